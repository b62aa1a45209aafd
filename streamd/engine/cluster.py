"""What is asked of the cluster."""

from streamd.engine.engine import Call, Handlers, Parts
from streamd.operations.cluster import (
    ClusterFacts,
    ForgetNode,
    GetCluster,
    GetServedBy,
    LeaderFacts,
    MoveShard,
    node_of,
)
from streamd.operations.errors import Reason, Refused
from streamd.operations.tier_reports import store_errors_refuse


class Cluster:
    """The nodes that share a tier.

    Attributes:
        handlers: one for each operation.
    """

    def __init__(self, parts: Parts) -> None:
        self._broker = parts.broker
        self.handlers: Handlers = {
            GetCluster: self._get,
            GetServedBy: self._served_by,
            ForgetNode: self._forget,
            MoveShard: self._move,
        }

    async def _get(self, _call: Call, _request: GetCluster) -> ClusterFacts:
        with store_errors_refuse():
            return await node_of(self._broker.node).cluster()

    async def _served_by(self, _call: Call, _request: GetServedBy) -> LeaderFacts | None:
        node = self._broker.node
        return None if node is None else node.served_by()

    async def _move(self, _call: Call, request: MoveShard) -> None:
        shards = self._broker.shards
        if shards is None:
            details = "this server is no node that streams are placed at: see --confirm store"
            raise Refused(Reason.PRECONDITION_FAILED, details)
        await shards.move_here(request.shard)

    async def _forget(self, _call: Call, request: ForgetNode) -> None:
        with store_errors_refuse():
            await node_of(self._broker.node).forget(request.name)
