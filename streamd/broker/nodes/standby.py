"""What clients of a standby are told: who leads, and that changes are made there."""

from streamd.broker.nodes.node import Node
from streamd.broker.read_only import ReadOnly
from streamd.operations.errors import Reason, Refused


class Standby(ReadOnly):
    """Refuses changes with a code upon which clients look for the leader again, and names it."""

    reason = Reason.NOT_AVAILABLE

    def __init__(self, node: Node) -> None:
        self._node = node

    def refusal(self) -> Refused:  # noqa: D102 - see ReadOnly
        leader = self._node.leader
        ask = "it is not known who leads at the moment; ask again"
        if leader is not None:
            where = "" if leader.stream_address is None else f" at {leader.stream_address}"
            ask = f"node {leader.node}{where} leads; ask that one for changes"
        return Refused(self.reason, f"node {self._node.name} stands by: {ask}")

    def leader(self, *, is_tls: bool) -> tuple[str, int] | None:  # noqa: D102 - see ReadOnly
        leader = self._node.leader
        address = None if leader is None else leader.stream_address_of(is_tls=is_tls)
        return None if address is None else (address.host, address.port)
