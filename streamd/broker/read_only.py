"""A server that only reads: what another one has stored in the tier, as it grows.

Every change that somebody asks for is refused in one of three places, all as `ReadOnly` says: of
the catalog in catalog/writer.py, of messages and of where a log begins in stream.py.
"""

from typing import TYPE_CHECKING

from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name

if TYPE_CHECKING:
    from streamd.broker.streams.publication import Remote

READ_ONLY = (
    "this server is read-only: it serves what another server has stored in the tier; "
    "ask that one for changes"
)


class ReadOnly:
    """How changes are refused, and where they are taken.

    Attributes:
        reason: of the refusal.
    """

    reason = Reason.PRECONDITION_FAILED

    def refusal(self) -> Refused:
        """Why it is refused, for who has asked for it."""
        return Refused(self.reason, READ_ONLY)

    def of(self, virtual_host: Name, name: Name) -> "ReadOnly":  # noqa: ARG002 - of others
        """The same for one stream."""
        return self

    @property
    def remote(self) -> "Remote | None":
        """What has messages stored by who takes changes; None where nobody is told of any here."""
        return None

    def leader(self, *, is_tls: bool) -> tuple[str, int] | None:  # noqa: ARG002 - of others
        """Host and port at which clients of the stream protocol reach who takes changes."""
        return None
