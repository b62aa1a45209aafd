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
from segments.store.cluster import CatalogCopy, Cluster, encode_cluster
from segments.store.manifest import (
    Manifest,
    StoredFile,
    StoredTracking,
    encode_manifest,
)
from segments.store.object_names import CLUSTER, StreamKey
from segments.store.object_store import ObjectStore
from streamd.broker.catalog.catalog import Catalog
from streamd.broker.declared.rows import StreamRow
from streamd.broker.tier.catalog_copy import compact_copy
from streamd.operations.arguments import plain_arguments
from streamd.operations.names import Name, stream_folder
from tests.support.stored_streams import put_segment

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
    store: ObjectStore, data: Path, *, revision: int = 1, epoch: int = 1, user_version: int = 0
) -> Cluster:
    """Upload the catalog of a data folder, and say whose the tier is."""
    if user_version:
        with sqlite3.connect(data / "catalog.sqlite") as db:
            db.execute(f"PRAGMA user_version = {user_version}")
    content = compact_copy(str(data))
    copy = CatalogCopy(revision, epoch, f"{revision:016x}", len(content), crc32(content))
    store.put(copy.key, content)
    cluster = Cluster(
        revision=revision, epoch=epoch, writer="0123456789abcdef", start="1" * 16, catalog=copy
    )
    store.delete([CLUSTER])
    store.create(CLUSTER, encode_cluster(cluster))
    return cluster
