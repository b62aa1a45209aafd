"""A node of a cluster that tells what a test wants."""

import trio

from segments.store.heartbeat import Heartbeat, NodeAddress, NodeRole
from segments.store.object_store import TierError
from streamd.operations.cluster import ClusterFacts, ClusterNode, LeaderFacts, NodeFacts
from streamd.operations.errors import Reason, Refused

BEAT = Heartbeat(
    tier="t",
    node="a",
    writer="w",
    start="s",
    counter=1,
    interval_ms=3_000,
    role=NodeRole.LEADER,
    since_ms=1_700_000_000_000,
    epoch=4,
    revision=8,
    addresses={"stream": NodeAddress("a.example", 5552)},
    program="0.1.0",
)
LEADER = ClusterNode(
    name="a",
    role="leader",
    leads=True,
    age=1.2,
    interval=3.0,
    since_ms=1_700_000_000_000,
    revision=8,
    addresses={"stream": "a.example:5552"},
    version="0.1.0",
)
STANDBY = ClusterNode(name="b", role="standby", age=2.0, interval=3.0, revision=7, behind=1)


class FakeNode:
    """See streamd.operations.cluster.NodeReports.

    Attributes:
        told: of itself.
        nodes: of the cluster.
        forgotten: names.
        error: raised by whatever asks the store.
    """

    def __init__(self, role: str = "standby") -> None:
        self.told = NodeFacts("b", role, "a", "a.example:5552", 1.5)
        self.nodes = (LEADER, STANDBY)
        self.forgotten: list[str] = []
        self.error: TierError | None = None

    def facts(self) -> NodeFacts:
        return self.told

    def served_by(self) -> LeaderFacts | None:
        return None

    async def leader_changed(self) -> None:
        await trio.sleep_forever()

    async def cluster(self) -> ClusterFacts:
        if self.error is not None:
            raise self.error
        return ClusterFacts("c41d07e2b3a95f68", "a", 4, 8, self.nodes)

    async def forget(self, name: str) -> None:
        if name == "a":
            raise Refused(Reason.PRECONDITION_FAILED, "node a has renewed its heartbeat 1 s ago")
        self.forgotten.append(name)
