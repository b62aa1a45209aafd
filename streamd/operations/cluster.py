"""What can be asked of the cluster that a server is a node of."""

from typing import Protocol

import msgspec

from segments.store.heartbeat import NodeAddress
from streamd.operations.declaration import ADMINISTRATORS, DOORS, WATCHERS, At, Operation
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name

_INTERVALS = 3  # without a heartbeat, and
_PATIENCE_SECONDS = 1.0  # more: a node is not there


class NodeFacts(msgspec.Struct, frozen=True):
    """A node, as it sees itself.

    Attributes:
        name: of the node.
        role: starting, leader, standby or left.
        leader: who leads, as far as it knows; empty where it does not.
        leader_address: host and port at which clients of the stream protocol reach that one; empty
            where it is not known.
        silent_seconds: how old the leader's last heartbeat is, as far as this node has seen.
    """

    name: str
    role: str
    leader: str
    leader_address: str
    silent_seconds: float


class LeaderFacts(msgspec.Struct, frozen=True):
    """The node that serves whoever comes to one that stands by.

    Attributes:
        name: of the node; empty while nobody is known to lead.
        start: of its process, as in Heartbeat; empty as well.
        addresses: where clients reach it, by the names of listeners.
        certificate: see Heartbeat.
    """

    name: str = ""
    start: str = ""
    addresses: dict[str, NodeAddress] = {}
    certificate: str = ""


class ClusterNode(msgspec.Struct, frozen=True):
    """A node, as its heartbeat in the store says.

    Attributes:
        name: of the node.
        role: as in NodeFacts; empty for a heartbeat that cannot be read.
        leads: the log says that it leads.
        age: seconds since the heartbeat, by the store's clock and that of who has read it.
        interval: seconds between two of its heartbeats.
        since_ms: since when it has this role, in ms since 1970, by its clock.
        revision: of the log, up to which it has applied it.
        behind: revisions that it lacks.
        addresses: where clients reach it, by protocol.
        version: of the program.
        shards: the nodes whose streams it leads, of those that were placed at one.
    """

    name: str
    role: str = ""
    leads: bool = False
    age: float = 0.0
    interval: float = 0.0
    since_ms: int = 0
    revision: int = 0
    behind: int = 0
    addresses: dict[str, str] = {}
    version: str = ""
    shards: tuple[str, ...] = ()

    @property
    def is_there(self) -> bool:
        """Whether it renews its heartbeat, as far as clocks agree."""
        return self.role != "left" and self.age <= _INTERVALS * self.interval + _PATIENCE_SECONDS


class ClusterFacts(msgspec.Struct, frozen=True):
    """A cluster, as its store says.

    Attributes:
        tier: its id.
        leader: name of the node that leads; empty for a server that has no name.
        epoch: of that one's claim.
        revision: of the log.
        nodes: all that there are, or were, by name.
    """

    tier: str
    leader: str
    epoch: int
    revision: int
    nodes: tuple[ClusterNode, ...]


class GetCluster(Operation[ClusterFacts], frozen=True, kw_only=True):
    """Who leads, and how the nodes do."""

    NAME = "cluster.get"
    NEEDS = WATCHERS


class GetServedBy(Operation[LeaderFacts | None], frozen=True, kw_only=True):
    """Who serves those who come to this node, where it stands by; None where it does itself."""

    NAME = "cluster.served_by"
    NEEDS = DOORS


class ForgetNode(Operation[None], frozen=True, kw_only=True):
    """Forget a node that will not come back; one that renews its heartbeat is refused."""

    NAME = "cluster.forget"
    NEEDS = ADMINISTRATORS
    CHANGES = True

    name: str


class LedStream(msgspec.Struct, frozen=True, array_like=True):
    """What a stream has that a node leads; see LogFigures."""

    vhost: Name
    stream: Name
    life: str
    first_offset: int
    next_offset: int
    first_chunk_id: int | None
    last_chunk_id: int | None
    num_lost: int
    num_chunks: int
    num_segments: int
    size: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    gaps: tuple[tuple[int, int], ...] = ()


class ListLed(Operation[list[LedStream]], frozen=True, kw_only=True):
    """What streams have that a node leads; for other nodes.

    Attributes:
        vhost: the virtual host of `streams`.
        streams: those that are asked about; if empty, all that were placed at a node.
    """

    NAME = "cluster.led"
    AT = At.HERE

    vhost: Name | None = None
    streams: tuple[Name, ...] = ()


class ReadOn(Operation[None], frozen=True, kw_only=True):
    """Return when this node knows what is declared by now; for other nodes."""

    NAME = "cluster.read_on"
    AT = At.HERE


class MoveShard(Operation[None], frozen=True, kw_only=True):
    """Have a node lead the streams that were placed at one, until it ends; it does on return."""

    NAME = "cluster.move"
    NEEDS = ADMINISTRATORS
    CHANGES = True
    AT = At.NODE

    shard: str
    node: str


class NodeReports(Protocol):
    """What a node tells of itself, and of its cluster.

    Attributes:
        secret: by which nodes know each other.
    """

    secret: str

    def facts(self) -> NodeFacts:
        """The node itself."""

    def served_by(self) -> LeaderFacts | None:
        """See GetServedBy."""

    async def leader_changed(self) -> None:
        """Return when there is another leader, or one again."""

    async def cluster(self) -> ClusterFacts:
        """All nodes.

        Raises:
            TierError: the store does not answer.
        """

    async def forget(self, name: str) -> None:
        """See ForgetNode.

        Raises:
            Refused: there is none of that name, or it is there.
            TierError: the store does not answer.
        """


def node_of(reports: NodeReports | None) -> NodeReports:
    """What a node tells.

    Raises:
        Refused: the server is none.
    """
    if reports is None:
        details = "the server is no node of a cluster: its setting node names one, with a tier"
        raise Refused(Reason.PRECONDITION_FAILED, details)
    return reports
