"""What is known of a tier, put into a store and read there, without a server."""

import json
from dataclasses import asdict

from segments.checksum import crc32
from segments.store.cluster import CatalogCopy, Cluster, Root, encode_root
from segments.store.metadata_log import encode_snapshot, look
from segments.store.object_names import CLUSTER
from segments.store.object_store import ObjectStore


def put_state(store: ObjectStore, cluster: Cluster, catalog: bytes = b"") -> None:
    """Begin a log with this, in the place of one that is there."""
    content = encode_snapshot(cluster, 0, catalog)
    root = Root(
        tier=cluster.tier,
        revision=cluster.revision,
        uid=f"{crc32(content):016x}",
        size=len(content),
        crc=crc32(content),
    )
    store.put(root.key, content)
    store.delete([CLUSTER])
    store.create(CLUSTER, encode_root(root))


def state_of(store: ObjectStore) -> Cluster:
    """What is known at the end of the log."""
    held = look(store)
    assert held is not None
    return held.cluster


def earlier_root(cluster: Cluster, catalog: CatalogCopy | None = None) -> bytes:
    """What versions without a log had in the place of the root."""
    line = {
        "format": "streamd-tier-cluster",
        "version": 2 if cluster.wals else 1,
        "revision": cluster.revision,
        "epoch": cluster.epoch,
        "writer": cluster.writer,
        "start": cluster.start,
        "catalog": catalog,
        "since": cluster.since,
    }
    line |= {"tier": cluster.tier} if cluster.tier else {}
    line |= {"wals": asdict(cluster)["wals"]} if cluster.wals else {}
    text = json.dumps(line, separators=(",", ":")).encode() + b"\n"
    return text + f'{{"crc32":{crc32(text)}}}\n'.encode()
