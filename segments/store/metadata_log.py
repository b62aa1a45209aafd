"""The log of metadata: one object for each change, created if absent, never removed.

    v1/~log/<tier>/<revision>               an entry; revisions are consecutive
    v1/~snapshots/<tier>/<revision>.<uid>   the catalog as of a revision, and what was known then

Theory of operation. What is to be known of a tier is the fold of its entries (`after`). A change
counts when its entry is there. Whoever writes has read on to the end, so it knows what its change
rests on, and creates the next name. If somebody was faster, that name is taken: it is read, and
counts first. So of two writers one order is made, and a server that was taken over meets the entry
that says so in the place of the one that it wants to write:

    a claim           takes the tier; its epoch is higher than that of all entries before
    any other entry   has epoch, writer and start of the last claim

A create that was not answered is decided by reading the name. It may still land there, but nowhere
else, and what it says rests on all that is before it: so it counts when it does.

The epoch of a claim is not its revision: a server that starts while the store is away has to number
its chunks with a new one at once. It grows along the log as revisions do, so it is the same order.

An entry says which rows of the catalog are other ones, or gone. A snapshot has the whole catalog
and spares its readers what is before; the newest that can be used is where reading begins, whether
the entries before it are still whole or not. The first one is named by the root. A free name is the
end only where nothing is behind it. An entry that is damaged is no end.

An entry is a line of JSON, and a line with its CRC-32; a snapshot has the catalog behind these,
whose CRC-32 the line has. Calls block.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Annotated, NamedTuple, TypeAlias

from msgspec import Meta

from segments.checksum import crc32
from segments.errors import FormatError
from segments.store import fields
from segments.store.bad_object import BadObjectError
from segments.store.cluster import Cluster, EarlierRoot, Root, WalMark, decode_root
from segments.store.object_names import (
    CLUSTER,
    entry_key,
    log_folder,
    snapshot_folder,
    snapshot_in,
    snapshot_key,
)
from segments.store.object_store import MissingError, ObjectStore, TooLargeError

_logger = logging.getLogger(__name__)

LOG_VERSION, SNAPSHOT_VERSION = 1, 1
MOST_ENTRY = 64 << 20  # bytes
MOST_SNAPSHOT = 512 << 20  # bytes; 10,000 streams have 2 MB
_LOG, _SNAPSHOT = "streamd-log", "streamd-snapshot"
_AT_ONCE = 16  # entries that are asked for together, at most

Scalar: TypeAlias = int | float | str | None
_Name = Annotated[str, Meta(pattern=r"^[a-z_]{1,64}\Z")]  # becomes a part of statements


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the catalog.

    Attributes:
        table: whose it is.
        key: columns of its primary key.
        values: all other columns; None for one that is gone.
    """

    table: _Name
    key: dict[_Name, Scalar]
    values: dict[_Name, Scalar] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A change.

    Attributes:
        tier, revision: of its key.
        epoch, writer, start: see Cluster.
        is_claim: this server takes the tier.
        node: see Cluster; of a claim.
        since, wals: see Cluster; None where they stay.
        change: rows are as of this change of the writer's catalog.
        schema: version of the catalog's tables; 0 without rows.
        rows: that are other ones, or gone.
    """

    tier: fields.Text
    revision: fields.Number
    epoch: fields.Number
    writer: fields.Text
    start: fields.Text
    is_claim: bool = False
    since: fields.Number | None = None
    wals: tuple[WalMark, ...] | None = None
    change: fields.Number = 0
    schema: fields.Number = 0
    rows: tuple[Row, ...] = ()
    node: fields.Node = ""

    @property
    def key(self) -> str:
        """The key of the object."""
        return entry_key(self.tier, self.revision)


class Held(NamedTuple):
    """What is known of a tier, and the object that says so: the last entry, a snapshot, the root.

    Attributes:
        earlier: of a tier without a log.
        crc: CRC-32 of the object.
    """

    cluster: Cluster
    key: str
    etag: str
    crc: int
    earlier: EarlierRoot | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHead:
    """What a snapshot says before the catalog.

    Attributes:
        cluster: as of then.
        change: see Entry.
        size, crc: of the catalog; no bytes for one with nothing in it.
    """

    cluster: Cluster
    change: fields.Number
    size: fields.Number
    crc: fields.Number


_read_line, _read_snapshot_head = fields.reader(Entry), fields.reader(SnapshotHead)


def encode_entry(entry: Entry) -> bytes:
    """The content of an object."""
    line: dict[str, object] = {"format": _LOG, "version": LOG_VERSION}
    line |= {name: value for name, value in _plain(entry).items() if name not in _DEFAULTS}
    for name, usual in _DEFAULTS.items():
        value = getattr(entry, name)
        if value != usual:
            line[name] = [asdict(row) for row in entry.rows] if name == "rows" else value
    text = json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    return text + f'{{"crc32":{crc32(text)}}}\n'.encode()


_DEFAULTS = {
    "is_claim": False,
    "node": "",
    "since": None,
    "wals": None,
    "change": 0,
    "schema": 0,
    "rows": (),
}


def _plain(entry: Entry) -> dict[str, object]:
    return {name: getattr(entry, name) for name in Entry.__dataclass_fields__}


def decode_entry(key: str, content: bytes) -> Entry:
    """What an entry says.

    Raises:
        VersionError: a later version of this program wrote it.
        FormatError: it is not one, is damaged, or another one than its key says.
    """
    first, separator, last = content.partition(b"\n")
    fields.check(first, last, first + separator, _LOG, LOG_VERSION)
    entry = _read_line(first)
    if entry.key != key:
        raise FormatError(f"it is revision {entry.revision} of the tier {entry.tier}")
    return entry


def encode_snapshot(cluster: Cluster, change: int, catalog: bytes) -> bytes:
    """The content of an object."""
    line = {
        "format": _SNAPSHOT,
        "version": SNAPSHOT_VERSION,
        "cluster": asdict(cluster),
        "change": change,
        "size": len(catalog),
        "crc": crc32(catalog),
    }
    head = json.dumps(line, separators=(",", ":")).encode() + b"\n"
    return b"".join([head, f'{{"crc32":{crc32(head)}}}\n'.encode(), catalog])


def decode_snapshot(content: bytes) -> tuple[SnapshotHead, bytes]:
    """What a snapshot says, and the catalog.

    Raises:
        VersionError: a later version of this program wrote it.
        FormatError: it is not one, or is damaged.
    """
    head_end = content.find(b"\n") + 1
    crc_end = content.find(b"\n", head_end) + 1
    if not (head_end and crc_end):
        raise FormatError("it is not whole")
    line = content[:head_end]
    fields.check(line, content[head_end:crc_end], line, _SNAPSHOT, SNAPSHOT_VERSION)
    head, catalog = _read_snapshot_head(line), content[crc_end:]
    if len(catalog) != head.size or crc32(catalog) != head.crc:
        raise FormatError("its catalog is not whole")
    return head, catalog


def after(cluster: Cluster, entry: Entry) -> Cluster:
    """What is known when an entry follows.

    Raises:
        FormatError: it cannot follow.
    """
    if (entry.tier, entry.revision) != (cluster.tier, cluster.revision + 1):
        raise FormatError(f"it cannot follow revision {cluster.revision} of {cluster.tier}")
    of_entry = (entry.epoch, entry.writer, entry.start)
    if entry.is_claim:
        if entry.epoch <= cluster.epoch:
            raise FormatError(f"it claims epoch {entry.epoch}, expected above {cluster.epoch}")
    elif of_entry != (cluster.epoch, cluster.writer, cluster.start):
        raise FormatError(f"it is of epoch {entry.epoch}, which does not have the tier there")
    return replace(
        cluster,
        revision=entry.revision,
        epoch=entry.epoch,
        writer=entry.writer,
        start=entry.start,
        since=cluster.since if entry.since is None else entry.since,
        wals=cluster.wals if entry.wals is None else entry.wals,
        node=entry.node if entry.is_claim else cluster.node,
    )


class ReadEntry(NamedTuple):
    """An entry as it was read."""

    entry: Entry
    etag: str
    crc: int


def read_entry(store: ObjectStore, tier: str, revision: int) -> ReadEntry:
    """An entry.

    Raises:
        MissingError: its name is free.
        BadObjectError: it cannot be used.
        TierError: the store is away.
    """
    key = entry_key(tier, revision)
    try:
        found = store.get(key, MOST_ENTRY)
        return ReadEntry(decode_entry(key, found.content), found.etag, crc32(found.content))
    except (FormatError, TooLargeError) as error:
        raise BadObjectError(key, error) from error


def following(held: Held, read: ReadEntry) -> Held:
    """What is known when an entry was read that follows.

    Raises:
        BadObjectError: it cannot follow.
    """
    try:
        cluster = after(held.cluster, read.entry)
    except FormatError as error:
        raise BadObjectError(read.entry.key, error) from error
    return Held(cluster, read.entry.key, read.etag, read.crc)


def read_root(store: ObjectStore) -> tuple[Root | EarlierRoot, str, int] | None:
    """The root, its etag and CRC-32; None in an empty store.

    Raises:
        BadObjectError: it cannot be used.
        TierError: the store is away.
    """
    try:
        found = store.get(CLUSTER)
        return decode_root(found.content), found.etag, crc32(found.content)
    except MissingError:
        return None
    except (FormatError, TooLargeError) as error:
        raise BadObjectError(CLUSTER, error) from error


class FoundSnapshot(NamedTuple):
    """A snapshot as it was read."""

    head: SnapshotHead
    catalog: bytes
    held: Held


class Found(NamedTuple):
    """What a store has.

    Attributes:
        held: what is known at the end of its log.
        snapshot: where reading began; None where that was something that was known before.
        entries: that were read.
    """

    held: Held
    snapshot: FoundSnapshot | None
    entries: list[Entry]


def _newest_snapshot(store: ObjectStore, root: Root) -> FoundSnapshot:
    """The newest snapshot that can be used.

    Raises:
        BadObjectError: none can be used.
        TierError: the store is away.
    """
    keys = [one.key for one in store.listing(snapshot_folder(root.tier))]
    for key in sorted(set(filter(snapshot_in, keys)) - {root.key}, reverse=True):
        try:
            return _read_snapshot(store, root.tier, key)
        except (FormatError, TooLargeError, MissingError) as error:
            _logger.error("the snapshot %s cannot be used: %s; the one before is read", key, error)
    try:
        return _read_snapshot(store, root.tier, root.key)
    except (FormatError, TooLargeError, MissingError) as error:
        raise BadObjectError(root.key, error) from error


def _read_snapshot(store: ObjectStore, tier: str, key: str) -> FoundSnapshot:
    found = store.get(key, MOST_SNAPSHOT)
    head, catalog = decode_snapshot(found.content)
    if (head.cluster.tier, head.cluster.revision) != (tier, snapshot_in(key)):
        raise FormatError(f"it is revision {head.cluster.revision} of {head.cluster.tier}")
    return FoundSnapshot(head, catalog, Held(head.cluster, key, found.etag, crc32(found.content)))


def has_snapshot_behind(store: ObjectStore, tier: str, revision: int) -> bool:
    """Whether one says more than the log up to a revision.

    Raises:
        TierError: the store is away.
    """
    return any(store.listing(snapshot_folder(tier), snapshot_key(tier, revision + 1, "")))


# Gives what a call gives for each of some revisions, in their order.
Asking: TypeAlias = Callable[
    [Callable[[int], ReadEntry | None], Iterable[int]], Iterable[ReadEntry | None]
]


def find(store: ObjectStore, asking: Asking = map) -> Found | None:
    """All that a store has, by nothing that is known; None for an empty one.

    Raises:
        BadObjectError: something cannot be used.
        TierError: the store is away.
    """
    found = read_root(store)
    if found is None:
        return None
    root, etag, crc = found
    if isinstance(root, EarlierRoot):
        return Found(Held(root.cluster, CLUSTER, etag, crc, root), None, [])
    snapshot = _newest_snapshot(store, root)
    steps = list(read_on(store, snapshot.held, asking, is_to_end=True))
    held = steps[-1][0] if steps else snapshot.held
    return Found(held, snapshot, [entry for _, entry in steps])


def read_on(
    store: ObjectStore, held: Held, asking: Asking = map, *, is_to_end: bool = False
) -> Iterator[tuple[Held, Entry]]:
    """Entries behind what is known, to the end, and what is known then.

    More and more are asked for together, so that nothing new costs one request.

    Args:
        store: where they are.
        held: what is known.
        asking: may ask for several at once.
        is_to_end: it is seen that nothing is behind the first free name. Whoever has seen that
            before need not again.

    Raises:
        BadObjectError: one cannot be used, or is missing: there is one behind it.
        TierError: the store is away.
    """
    tier = held.cluster.tier

    def read(revision: int) -> ReadEntry | None:
        try:
            return read_entry(store, tier, revision)
        except MissingError:
            return None

    at_once = 1
    while True:
        first = held.cluster.revision + 1
        there_are = asking(read, range(first, first + at_once))
        for revision, there in zip(count(first), list(there_are), strict=False):
            found = there
            if found is None:
                key = entry_key(tier, revision)
                if not is_to_end or not any(store.listing(log_folder(tier), key)):
                    return
                found = read(revision)  # it may have come meanwhile
                if found is None:
                    raise BadObjectError(key, "it is not there, and later ones are")
            held = following(held, found)
            yield held, found.entry
        at_once = min(2 * at_once, _AT_ONCE)


def look(store: ObjectStore, asking: Asking = map) -> Held | None:
    """What is known at the end of the log of a store; see `find`."""
    found = find(store, asking)
    return None if found is None else found.held
