"""Streams that another node of a cluster leads, and this one has nothing of."""

from collections.abc import Callable

from segments.errors import UnrestoredError
from streamd.broker.read_only import ReadOnly
from streamd.broker.resources import Following
from streamd.broker.streams.publication import Remote
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name


class Elsewhere(ReadOnly):
    """Says who leads a shard; see also resources.FolderSource.

    Args:
        shard: the node that its streams were placed at.
        address: where clients of the stream protocol reach who leads it, inside TLS or not; None
            while nobody is known to.
        remote: gives what publishes to a stream.
    """

    reason = Reason.NOT_AVAILABLE

    def __init__(
        self,
        shard: str,
        address: Callable[[bool], tuple[str, int] | None],
        remote: Callable[[Name, Name, str], Remote | None],
    ) -> None:
        self._shard, self._address, self._remote = shard, address, remote

    def remote(self, virtual_host: Name, name: Name) -> Remote | None:
        """See FolderSource."""
        return self._remote(virtual_host, name, self._shard)

    @property
    def read_only(self) -> ReadOnly:
        """See FolderSource."""
        return self

    def refusal(self) -> Refused:  # noqa: D102 - see ReadOnly
        return Refused(self.reason, self._sentence())

    def leader(self, *, is_tls: bool) -> tuple[str, int] | None:  # noqa: D102 - see ReadOnly
        return self._address(is_tls)

    def _sentence(self) -> str:
        found = self._address(False) or self._address(True)
        if found is None:
            return f"it was placed at node {self._shard}, and nobody leads that at the moment"
        return f"it was placed at node {self._shard}; ask the node at {found[0]}:{found[1]}"

    async def make_folder(self, virtual_host: Name, name: Name, folder: str) -> Following | None:  # noqa: ARG002
        """See FolderSource."""
        raise UnrestoredError(self._sentence())
