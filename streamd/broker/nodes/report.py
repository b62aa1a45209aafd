"""The nodes of a cluster as its store says, whoever asks: a node, or the command line. Blocks."""

from segments.store.heartbeat import ListedNode, list_nodes
from segments.store.object_names import node_key
from segments.store.object_store import MissingError, ObjectStore
from streamd.broker.tier import claims
from streamd.operations.cluster import ClusterFacts, ClusterNode
from streamd.operations.errors import Reason, Refused


def read_cluster(store: ObjectStore, now_ms: int) -> ClusterFacts:
    """Who leads, and how the nodes do.

    Raises:
        MissingError: there is nothing in the store.
        TierError: it does not answer, or what it has cannot be used.
    """
    held = claims.look(store)
    if held is None:
        raise MissingError(f"there is nothing in the tier {store}: is its address right?")
    cluster = held.cluster

    def described(one: ListedNode) -> ClusterNode:
        beat, age = one.heartbeat, max(0, now_ms - one.modified_ms) / 1_000
        if beat is None:
            return ClusterNode(name=one.node, age=age)
        return ClusterNode(
            name=one.node,
            role=beat.role,
            leads=one.node == cluster.node and beat.writer == cluster.writer,
            age=age,
            interval=beat.interval_ms / 1_000,
            since_ms=beat.since_ms,
            revision=beat.revision,
            behind=max(0, cluster.revision - beat.revision),
            addresses={name: str(address) for name, address in beat.addresses.items()},
            version=beat.program,
            shards=tuple(sorted(beat.shards)),
        )

    nodes = tuple(sorted(map(described, list_nodes(store)), key=lambda one: one.name))
    return ClusterFacts(cluster.tier, cluster.node, cluster.epoch, cluster.revision, nodes)


def forget_node(store: ObjectStore, name: str, now_ms: int) -> None:
    """Remove the heartbeat of a node.

    Raises:
        Refused: there is none of that name, or it is there.
        TierError: see `read_cluster`.
    """
    found = {one.name: one for one in read_cluster(store, now_ms).nodes}
    if name not in found:
        raise Refused(Reason.NOT_FOUND, f"there is no node {name}")
    node = found[name]
    if node.is_there:
        details = f"node {name} has renewed its heartbeat {node.age:.0f} s ago: stop it first"
        raise Refused(Reason.PRECONDITION_FAILED, details)
    store.delete([node_key(name)])
