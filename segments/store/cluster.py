"""Whose a store is: one small object, `v1/cluster`, that is replaced by compare-and-set.

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
from dataclasses import dataclass
from typing import Any, NamedTuple

from segments.checksum import crc32
from segments.errors import FormatError, VersionError
from segments.store import fields
from segments.store.object_names import CATALOG_FOLDER

CLUSTER_VERSION = 1
_FORMAT = "streamd-tier-cluster"


class CatalogCopy(NamedTuple):
    """A copy of the catalog in the store.

    Attributes:
        revision: grows with each copy.
        epoch, uid: of the object's name; uid is 16 hexadecimal digits.
        size, crc: of the object: bytes, and their CRC-32.
    """

    revision: int
    epoch: int
    uid: str
    size: int
    crc: int

    @property
    def key(self) -> str:
        """Of the object."""
        return f"{CATALOG_FOLDER}/{self.revision}.{self.epoch}.{self.uid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Whose a store is.

    Attributes:
        revision: grows with each change, from 1.
        epoch: of the server that writes.
        writer: its identity.
        start: of its process; two that run on copies of one data folder have one identity.
        catalog: the newest copy of its catalog; None before the first.
        since: manifests of earlier epochs do not count.
        tier: the id of the tier; empty in one that an earlier version has begun.
    """

    revision: int
    epoch: int
    writer: str
    start: str
    catalog: CatalogCopy | None = None
    since: int = 0
    tier: str = ""


def encode_cluster(cluster: Cluster) -> bytes:
    """The content of the object."""
    line = {
        "format": _FORMAT,
        "version": CLUSTER_VERSION,
        "revision": cluster.revision,
        "epoch": cluster.epoch,
        "writer": cluster.writer,
        "start": cluster.start,
        "catalog": None if cluster.catalog is None else [*cluster.catalog],
        "since": cluster.since,
        **({"tier": cluster.tier} if cluster.tier else {}),
    }
    text = json.dumps(line, separators=(",", ":")).encode() + b"\n"
    return text + f'{{"crc32":{crc32(text)}}}\n'.encode()


def decode_cluster(content: bytes) -> Cluster:
    """What the object says.

    Raises:
        VersionError: a later version of this program wrote it.
        FormatError: it is not one, or is damaged.
    """
    first, separator, last = content.partition(b"\n")
    try:
        found = json.loads(first)
        if found["format"] != _FORMAT:
            raise FormatError("it does not say whose the tier is")
        if found["version"] != CLUSTER_VERSION:
            version = fields.shown(found["version"])
            raise VersionError(f"its version is {version}, expected {CLUSTER_VERSION}")
        if json.loads(last)["crc32"] != crc32(first + separator):
            raise FormatError("its checksum is wrong")
        return _decoded(found)
    except FormatError:
        raise
    except fields.WRONG as error:
        raise FormatError("it is not whole") from error


def _decoded(found: dict[str, Any]) -> Cluster:
    catalog = found["catalog"]
    return Cluster(
        revision=fields.number(found["revision"]),
        epoch=fields.number(found["epoch"]),
        writer=fields.text(found["writer"]),
        start=fields.text(found["start"]),
        catalog=None if catalog is None else _catalog(*catalog),
        since=fields.number(found.get("since", 0)),
        tier=fields.text(found["tier"]) if "tier" in found else "",
    )


def _catalog(
    revision: object, epoch: object, uid: object, size: object, crc: object
) -> CatalogCopy:
    numbers = fields.number(revision), fields.number(epoch)
    return CatalogCopy(*numbers, fields.uid(uid), fields.number(size), fields.number(crc))
