"""A store with what a data folder has, put there without an uploader."""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from segments import Log
from segments.checksum import crc32
from segments.journal import journal_of
from segments.store.cluster import Cluster
from segments.store.manifest import (
    Manifest,
    StoredFile,
    StoredTracking,
    encode_manifest,
)
from segments.store.metadata_log import Row, encode_snapshot, find, look
from segments.store.object_names import StreamKey, snapshot_key
from segments.store.object_store import ObjectStore
from streamd.broker.catalog.catalog import Catalog
from streamd.broker.catalog.schema import VERSION
from streamd.broker.catalog.unlogged import Unlogged, all_rows, packed, rows_of
from streamd.broker.declared.rows import StreamRow
from streamd.broker.tier.claims import put_rows
from streamd.operations.arguments import plain_arguments
from streamd.operations.names import Name, stream_folder
from tests.support.stored_streams import put_segment
from tests.support.tiers import put_state

SUFFIXES = (".segment", ".index", ".filter", ".keys")


def upload_stream(
    store: ObjectStore,
    data: Path,
    name: str,
    *,
    host: str = "/",
    creation: str = "00000001",
    revision: int = 1,
    epoch: int = 1,
    arguments: Mapping[str, Any] | None = None,
    suffixes: Sequence[str] = SUFFIXES,
) -> Manifest:
    """Upload all of a stream, which nobody has open; its newest segment is sealed for that.

    Its arguments are by default those of the catalog there.
    """
    log = Log.open(stream_folder(str(data), host, name))
    log.seal()
    key = StreamKey(host, name, creation)
    manifest = stored(store, log, key, suffixes)
    row = _row(data, host, name)
    if arguments is None and row is not None:
        arguments = plain_arguments(row.arguments)
    manifest = replace(manifest, revision=revision, epoch=epoch, arguments=arguments or {})
    log.close()
    store.delete([key.manifest])
    store.create(key.manifest, encode_manifest(manifest))
    return manifest


def _row(data: Path, host: str, name: str) -> StreamRow | None:
    with closing(Catalog(str(data))) as catalog:
        rows = {(row.virtual_host, row.name): row for row in catalog.streams()}
    return rows.get((Name(host), Name(name)))


def stored(
    store: ObjectStore,
    log: Log,
    key: StreamKey,
    suffixes: Sequence[str] = SUFFIXES,
    *,
    epoch: int = 1,
) -> Manifest:
    """Put the sealed segments of a log into a store, and its tracking; the manifest for them."""
    segments = tuple(
        put_segment(store, key, s, suffixes, epoch=epoch, uid=f"{s.base_offset:016x}")
        for s in log.segments.shown[:-1]
    )
    next_offset = log.segments.shown[-1].base_offset
    content = journal_of(log.journal.tracking, next_offset)
    uid = f"{next_offset:016x}"
    tracking = StoredTracking(next_offset, epoch, uid, StoredFile(len(content), crc32(content)))
    store.put(key.object(next_offset, epoch, uid, ".tracking"), content)
    return Manifest(
        stream=key,
        revision=1,
        epoch=epoch,
        writer="0123456789abcdef",
        next_offset=next_offset,
        segments=segments,
        tracking=tracking,
    )


def upload_catalog(
    store: ObjectStore, data: Path, *, epoch: int = 1, user_version: int = 0
) -> Cluster:
    """Have the catalog of a data folder in the log, which begins with it where there is none."""
    if user_version:
        with sqlite3.connect(data / "catalog.sqlite") as db:
            db.execute(f"PRAGMA user_version = {user_version}")
    with closing(Unlogged(str(data)).copy()) as copy:
        rows = {(row.table, *row.key.values()): row for row in all_rows(copy)}
        content = packed(copy)
    held = look(store)
    if held is None:
        cluster = Cluster(
            revision=1, epoch=epoch, writer="0123456789abcdef", start="1" * 16, tier="a-tier"
        )
        put_state(store, cluster, content)
        return cluster
    if user_version:
        upload_snapshot(store, data)
        return held.cluster
    for row in _rows_before(store):
        rows.setdefault((row.table, *row.key.values()), replace(row, values=None))
    return put_rows(store, held, tuple(rows.values()), 0, VERSION).cluster


def _rows_before(store: ObjectStore) -> list[Row]:
    found = find(store)
    assert found is not None
    assert found.snapshot is not None
    return rows_of(found.snapshot.catalog) + [row for entry in found.entries for row in entry.rows]


def upload_snapshot(store: ObjectStore, data: Path) -> str:
    """Store a snapshot behind all that is in the log; its key."""
    with closing(Unlogged(str(data)).copy()) as copy:
        content = packed(copy)
    before = look(store)
    assert before is not None
    held = put_rows(store, before, (), 0, VERSION)
    key = snapshot_key(held.cluster.tier, held.cluster.revision, f"{1:016x}")
    store.put(key, encode_snapshot(held.cluster, 0, content))
    return key
