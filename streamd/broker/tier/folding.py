"""The fold of a log as a catalog: for a start, a restore, and a server that only reads."""

import logging
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import trio

from segments.atomic_write import replace_file
from segments.disk import OsDisk
from segments.store.cluster import EarlierRoot
from segments.store.local_copy import write_unrestored
from segments.store.metadata_log import (
    AT_ONCE,
    Entry,
    FoundSnapshot,
    Held,
    ReadEntry,
    Row,
    begin_at,
    newest_snapshot,
    read_entry,
    read_on,
    read_root,
)
from segments.store.object_names import CLUSTER
from segments.store.object_store import ObjectStore, TierError
from segments.words import plural
from streamd.broker.catalog import unlogged
from streamd.broker.catalog.catalog import CATALOG_FILE, Catalog
from streamd.broker.catalog.schema import VERSION
from streamd.broker.catalog.unlogged import State, Unlogged
from streamd.broker.tier import claims
from streamd.broker.tier.claims import FencedError, Found
from streamd.broker.tier.identity import Identity
from streamd.broker.tier.patience import each, retry_store
from streamd.broker.tier.requests import ask
from streamd.net import threads
from streamd.operations.names import stream_folder

logger = logging.getLogger(__name__)

_CATCH_UP_SECONDS = 5.0


async def read_log(store: ObjectStore) -> Found | None:
    """All that a store has, by nothing that is known; None for an empty one.

    Raises:
        BadObjectError: something cannot be used.
        TierError: the store is away.
    """
    found = await retry_store(read_root, store)
    if found is None:
        return None
    root, etag, crc = found
    if isinstance(root, EarlierRoot):
        return Found(Held(root.cluster, CLUSTER, etag, crc, root), None, [])
    snapshot = await retry_store(partial(newest_snapshot, with_catalog=True), store, root)
    held = await retry_store(begin_at, store, snapshot.head.cluster, (root, etag, crc))
    there = await _ahead(store, held)

    def asking(
        call: Callable[[int], ReadEntry | None], numbers: Iterable[int]
    ) -> list[ReadEntry | None]:
        return [there.get(number) or call(number) for number in numbers]

    def read() -> list[tuple[Held, Entry]]:
        return list(read_on(store, held, asking, AT_ONCE))

    rest = await retry_store(read)
    end = rest[-1][0] if rest else held
    return Found(end, snapshot, [entry for _, entry in rest])


async def _ahead(store: ObjectStore, held: Held) -> dict[int, ReadEntry]:
    """Entries behind what is known, as many as follow each other, several requests at once."""
    found: dict[int, ReadEntry] = {}
    number = held.cluster.revision + 1
    while True:
        numbers = range(number, number + AT_ONCE)
        outcomes = await each(partial(read_entry, store, held.cluster.tier), numbers)
        there = {
            n: one for n, one in zip(numbers, outcomes, strict=True) if isinstance(one, ReadEntry)
        }
        found |= there
        if len(there) < len(numbers):
            return found  # what is wrong is met again
        number += AT_ONCE


def make_catalog(data: str, found: Found) -> None:
    """Make the catalog in a folder that has none; blocks.

    Raises:
        CatalogError: it is of a later version, or no catalog.
        StorageError: the system refused.
    """
    snapshot = found.snapshot
    if snapshot is not None and snapshot.catalog:
        file = replace_file(OsDisk(), str(Path(data, CATALOG_FILE)), snapshot.catalog)
        file.close()
        Path(data, CATALOG_FILE).chmod(0o640)
    Catalog(data).close()
    first = [] if snapshot is None else [replace(_as_entry(snapshot, ()), rows=())]
    revision = 0 if snapshot is None else snapshot.head.cluster.revision
    num_bytes = sum(unlogged.size_of(entry.rows) for entry in found.entries)
    Unlogged(data).follow([*first, *found.entries], State(found.held, revision, num_bytes))


async def catch_up(data: str, open_store: Callable[[], ObjectStore], me: Identity) -> None:
    """Have what the log has, if the store answers soon; nobody has read the catalog yet.

    Else it is read when the tier is taken, which says what is wrong with the store.

    Raises:
        CatalogError: the catalog, or what the log says of it, cannot be used.
    """
    notes, found = Unlogged(data), None
    state = await threads.in_thread(notes.state)
    known = None if state is None else state.held
    with trio.move_on_after(_CATCH_UP_SECONDS), suppress(TierError, FencedError):
        found = await ask(claims.examine, await ask(open_store), me, known)
    if found is None or found.held.earlier is not None:
        return
    entries, now = await threads.in_thread(news_of, found, state, notes)
    count = await threads.in_thread(notes.follow, entries, now)
    if count:
        await threads.in_thread(_restore_later, data, entries)
        logger.warning(
            "the catalog lacked %s that the log in the tier has, as one from a backup does; it has "
            "what the log has now",
            plural(count, "change"),
        )


def _restore_later(data: str, entries: Iterable[Entry]) -> None:
    """Have streams that have no folder restored when they are opened; blocks."""
    disk, rows = OsDisk(), {_named(row): row for entry in entries for row in entry.rows}
    for row in rows.values():
        if row.table == "streams" and row.values is not None:
            folder = stream_folder(data, str(row.key["virtual_host"]), str(row.key["name"]))
            if not Path(folder).exists():
                disk.make_folder(folder)
                write_unrestored(disk, folder, "the data folder, as one from a backup, lacked it")


def news_of(found: Found, state: State | None, notes: Unlogged) -> tuple[list[Entry], State]:
    """What a catalog lacks that knows of a log up to its state, and what it knows then; blocks.

    Where it knows nothing of it, or goes on from an older one, a snapshot says everything.
    """
    num_bytes = sum(unlogged.size_of(entry.rows) for entry in found.entries)
    if found.snapshot is None:
        assert state is not None  # noqa: S101 - reading began there
        return found.entries, State(found.held, state.snapshot, state.num_bytes + num_bytes)
    revision = found.snapshot.head.cluster.revision
    with closing(notes.copy()) as copy:
        here = unlogged.all_rows(copy)
    entries = [_as_entry(found.snapshot, here), *found.entries]
    return entries, State(found.held, revision, num_bytes)


def _as_entry(snapshot: FoundSnapshot, here: Iterable[Row]) -> Entry:
    """A snapshot as an entry: all of its rows, and of those here what it has not."""
    cluster = snapshot.head.cluster
    rows = {_named(row): row for row in unlogged.rows_of(snapshot.catalog)}
    for row in here:
        rows.setdefault(_named(row), Row(row.table, row.key, None))
    return Entry(
        tier=cluster.tier,
        revision=cluster.revision,
        epoch=cluster.epoch,
        writer=cluster.writer,
        start=cluster.start or "-",
        change=snapshot.head.change,
        schema=VERSION,
        rows=tuple(rows.values()),
    )


def _named(row: Row) -> tuple[object, ...]:
    return row.table, *row.key.values()
