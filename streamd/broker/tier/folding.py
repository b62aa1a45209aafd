"""The fold of a log as a catalog: for a start, a restore, and a server that only reads."""

import logging
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import trio

from segments.atomic_write import replace_file
from segments.disk import OsDisk
from segments.store.local_copy import LACKED, write_unrestored
from segments.store.metadata_log import (
    Entry,
    Found,
    FoundSnapshot,
    Row,
)
from segments.store.object_store import ObjectStore, TierError
from segments.words import plural
from streamd.broker.catalog import unlogged
from streamd.broker.catalog.catalog import CATALOG_FILE, Catalog
from streamd.broker.catalog.schema import VERSION
from streamd.broker.catalog.unlogged import State, Unlogged
from streamd.broker.tier import claims
from streamd.broker.tier.claims import FencedError
from streamd.broker.tier.identity import Identity
from streamd.broker.tier.requests import ask
from streamd.net import threads
from streamd.operations.names import stream_folder

logger = logging.getLogger(__name__)

_CATCH_UP_SECONDS = 10.0


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
    await threads.in_thread(notes.begin, me.start)
    state = await threads.in_thread(notes.state)
    known = None if state is None else state.held
    with trio.move_on_after(_CATCH_UP_SECONDS), suppress(TierError, FencedError):
        found = await ask(claims.examine, await ask(open_store), me, known)
    if found is None or found.held.earlier is not None:
        return
    entries, now = await threads.in_thread(news_of, found, state, notes)
    await threads.in_thread(_restore_later, data, entries)
    count = await threads.in_thread(notes.follow, entries, now)
    if count:
        logger.warning(
            "the catalog lacked %s that the log in the tier has, as one from a backup does; it has "
            "what the log has now",
            plural(count, "change"),
        )


def _restore_later(data: str, entries: Iterable[Entry]) -> None:
    """Have streams that have no folder restored when they are opened; blocks.

    The catalog does not have them yet: what ends before it has is done again.
    """
    disk, rows = OsDisk(), {_named(row): row for entry in entries for row in entry.rows}
    for row in rows.values():
        if row.table == "streams" and row.values is not None and row.values["has_files"]:
            folder = stream_folder(data, str(row.key["virtual_host"]), str(row.key["name"]))
            if not Path(folder).exists() or not disk.list(folder):
                disk.make_folder(folder)
                write_unrestored(disk, folder, LACKED)


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
