"""What clients of a standby are told while nobody leads, and it serves them itself."""

from streamd.broker.nodes.node import Node
from streamd.broker.read_only import ReadOnly
from streamd.operations.errors import Reason, Refused


class Standby(ReadOnly):
    """Refuses changes with a code upon which clients ask again."""

    reason = Reason.NOT_AVAILABLE

    def __init__(self, node: Node) -> None:
        self._node = node

    def refusal(self) -> Refused:  # noqa: D102 - see ReadOnly
        details = f"node {self._node.name} stands by, and nobody leads at the moment; ask again"
        return Refused(self.reason, details)
