"""Whose a store is, and where the log of its changes begins: its root, `v1/cluster`.

What is to be known of a tier (`Cluster`) is the fold of its log, see metadata_log.py. The root is
written once: by whoever begins a tier, if it is absent, or in the place of what an earlier version
has left there, by compare-and-set. It is a line of JSON, and the CRC-32 of it. It says which tier
this is, by an id that it gets once and keeps for good, and names the first snapshot, behind which
the log begins.

Programs that knew versions 1 and 2 had no log: the object itself said what `Cluster` says, was
replaced with each change, and named a copy of the catalog. They refuse the root. What they have
left is read as `EarlierRoot` until a server that writes has put a root in its place.
"""

import json
from dataclasses import asdict, dataclass
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from segments.checksum import crc32
from segments.store import fields
from segments.store.object_names import CATALOG_FOLDER, snapshot_key

ROOT_VERSION = 3
_EARLIER, _WITH_WALS = 1, 2  # without a log, and without or with write-ahead logs
_FORMAT = "streamd-tier-cluster"
_Start = Annotated[str, Meta(max_length=4_096)]


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
    """What is to be known of a tier as of a revision.

    Attributes:
        revision: of the last change; each is one more than the one before.
        epoch: of the server that has it: more than that of whoever had it before.
        writer: that server.
        start: of its process; two that run on copies of one data folder have one identity. Empty
            before the first has taken it.
        since: manifests of earlier epochs do not count.
        node: name of that server in a cluster, see heartbeat.py; empty where it is in none.
        tier: the id of the tier; empty in one that an earlier version has begun.
        wals: write-ahead logs of which something is in no manifest yet, that of the earliest
            epoch first.
    """

    revision: fields.Number
    epoch: fields.Number
    writer: fields.Text
    start: _Start
    since: fields.Number = 0
    tier: fields.Text = ""
    wals: tuple[WalMark, ...] = ()
    node: fields.Node = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """Where a log begins.

    Attributes:
        tier: the id of the tier.
        revision, uid: of the first snapshot; the log begins with the next revision.
        size, crc: of that object: bytes, and their CRC-32.
    """

    tier: fields.Text
    revision: fields.Number
    uid: fields.Uid
    size: fields.Number
    crc: fields.Number

    @property
    def key(self) -> str:
        """The key of the first snapshot."""
        return snapshot_key(self.tier, self.revision, self.uid)


class CatalogCopy(NamedTuple):
    """A copy of the catalog that an earlier version has left.

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


class EarlierRoot(NamedTuple):
    """What a version without a log has left.

    Attributes:
        cluster: what it said.
        catalog: the newest copy of the catalog; None before the first.
    """

    cluster: Cluster
    catalog: CatalogCopy | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copied:
    catalog: CatalogCopy | None = None


class _Version(msgspec.Struct):
    version: object = None


_read_version, _read_root = fields.reader(_Version), fields.reader(Root)
_read_cluster, _read_copied = fields.reader(Cluster), fields.reader(_Copied)


def encode_root(root: Root) -> bytes:
    """The content of the object."""
    line = {"format": _FORMAT, "version": ROOT_VERSION, **asdict(root)}
    text = json.dumps(line, separators=(",", ":")).encode() + b"\n"
    return text + f'{{"crc32":{crc32(text)}}}\n'.encode()


def decode_root(content: bytes) -> Root | EarlierRoot:
    """What the object says.

    Raises:
        VersionError: a later version of this program wrote it.
        FormatError: it is not one, or is damaged.
    """
    first, separator, last = content.partition(b"\n")
    version = _read_version(first).version
    expected = version if version in (_EARLIER, _WITH_WALS) else ROOT_VERSION
    assert isinstance(expected, int)  # noqa: S101 - one of three
    fields.check(first, last, first + separator, _FORMAT, expected)
    if expected == ROOT_VERSION:
        return _read_root(first)
    return EarlierRoot(_read_cluster(first), _read_copied(first).catalog)
