"""What clients of a standby are told where it serves them itself: the leader is not reached."""

from streamd.broker.nodes.node import Node
from streamd.broker.read_only import ReadOnly
from streamd.operations.errors import Reason, Refused


class Standby(ReadOnly):
    """Refuses changes with a code upon which clients ask again, and names the leader."""

    reason = Reason.NOT_AVAILABLE

    def __init__(self, node: Node) -> None:
        self._node = node

    def refusal(self) -> Refused:  # noqa: D102 - see ReadOnly
        name, leader = self._node.name, self._node.served_by()
        if leader is None or not leader.name:
            found = "nobody leads at the moment; ask again"
        else:
            at = leader.addresses.get("stream") or leader.addresses.get("stream/ssl")
            where = "" if at is None else f" at {at}"
            found = f"does not reach node {leader.name}{where}, which leads; ask that one"
        return Refused(self.reason, f"node {name} stands by, and {found}")

    def leader(self, *, is_tls: bool) -> tuple[str, int] | None:  # noqa: D102 - see ReadOnly
        leader = self._node.served_by()
        return (
            None if leader is None else leader.addresses.get("stream/ssl" if is_tls else "stream")
        )
