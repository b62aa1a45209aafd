"""The owner of a store: one small object, `v1/cluster`, replaced by compare-and-set.

A line of JSON, and the CRC-32 of it. Its revision grows with each change, as the etag of a store
may come back with an earlier content. Its epoch only grows: one more with each start of a server,
and with each server that takes over. Whoever reads a higher epoch than its own, or another writer,
is *fenced*: it writes nothing into the store any more.

It says which tier this is, by an id that it gets once and keeps for good, whoever writes. So a
server can tell its tier from an empty place, and from another tier.

It names the newest copy of the catalog, an object that is never changed.

When a server has taken the tier over from another one, all manifests that count have its epoch or a
later one, and the object says since which epoch that is so. A stream of which nothing was stored
before has no manifest that could fence the other server; what that one still begins to store for it
has an earlier epoch, and counts for nothing.
"""

import json
from dataclasses import asdict, dataclass
from typing import NamedTuple

from segments.checksum import crc32
from segments.store import fields
from segments.store.object_names import CATALOG_FOLDER

CLUSTER_VERSION, _WITH_WALS = 1, 2  # who does not know of the logs must not pass over them
_FORMAT = "streamd-tier-cluster"


class CatalogCopy(NamedTuple):
    """A copy of the catalog in the store.

    Attributes:
        revision: grows with each copy.
        epoch, uid: of the object's name; uid is 16 hexadecimal digits.
        size, crc: of the object: bytes, and their CRC-32.
    """

    revision: fields.Number
    epoch: fields.Number
    uid: fields.Uid
    size: fields.Number
    crc: fields.Number

    @property
    def key(self) -> str:
        """The key of the object."""
        return f"{CATALOG_FOLDER}/{self.revision}.{self.epoch}.{self.uid}"


class WalMark(NamedTuple):
    """A write-ahead log that is to be read, see wal.py.

    Attributes:
        epoch: of the server that has written it.
        begins: its first slot that is needed: what was before is in manifests.
    """

    epoch: fields.Number
    begins: fields.Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The owner of a store.

    Attributes:
        revision: grows with each change, from 1.
        start: of its process; two that run on copies of one data folder have one identity.
        catalog: the newest copy of its catalog; None before the first.
        since: manifests of earlier epochs do not count.
        tier: the id of the tier; empty in one that an earlier version has begun.
        wals: write-ahead logs of which something is in no manifest yet, that of the earliest
            epoch first.
    """

    revision: fields.Number
    epoch: fields.Number
    writer: fields.Text
    start: fields.Text
    catalog: CatalogCopy | None = None
    since: fields.Number = 0
    tier: fields.Text = ""
    wals: tuple[WalMark, ...] = ()


def encode_cluster(cluster: Cluster) -> bytes:
    """The content of the object."""
    version = _WITH_WALS if cluster.wals else CLUSTER_VERSION
    line = {"format": _FORMAT, "version": version, **asdict(cluster)}
    if not cluster.tier:
        del line["tier"]
    if not cluster.wals:
        del line["wals"]
    text = json.dumps(line, separators=(",", ":")).encode() + b"\n"
    return text + f'{{"crc32":{crc32(text)}}}\n'.encode()


def decode_cluster(content: bytes) -> Cluster:
    """What the object says.

    Raises:
        VersionError: a later version of this program wrote it.
        FormatError: it is not one, or is damaged.
    """
    first, separator, last = content.partition(b"\n")
    version = _WITH_WALS if b'"wals":' in first else CLUSTER_VERSION
    fields.check(first, last, first + separator, _FORMAT, version)
    return fields.decode(first, Cluster)
