"""Streams in an object store, as the server leaves them there."""

import shutil
import tempfile
from collections.abc import Collection
from contextlib import closing
from dataclasses import replace
from pathlib import Path, PurePath
from uuid import uuid4

from segments import Log
from segments.checksum import crc32
from segments.codec import ChunkHeader
from segments.derived.filter_files import load_or_build
from segments.segment import FILTER_SUFFIX, INDEX_SUFFIX, SEGMENT_SUFFIX, Segment, walk_headers
from segments.store.cluster import Cluster, WalMark
from segments.store.manifest import Manifest, StoredFile, StoredSegment, encode_manifest
from segments.store.object_names import StreamKey
from segments.store.object_store import ObjectStore
from segments.store.wal import Section, Slot, encode_slot, slot_key
from segments.tier.packing import stored_segment
from tests.support.tiers import put_state

EPOCH = 3
_TIER = "a-tier"


def put_stream(
    store: ObjectStore,
    folder: Path | str,
    virtual_host: str,
    name: str,
    *,
    creation: str = "0000018bcfe56800-5eed",
    suffixes: tuple[str, ...] = (SEGMENT_SUFFIX, INDEX_SUFFIX, FILTER_SUFFIX),
    is_deleted: bool = False,
) -> Manifest:
    """Upload all segments of a stream's folder, the newest one sealed before; leaves it as it is.

    Args:
        store: where to.
        folder: that a Log has written; it is closed.
        virtual_host, name: of the stream.
        creation: of this life of it.
        suffixes: which files are uploaded, as far as there are any.
        is_deleted: the manifest says that the stream is no more.
    """
    key = StreamKey(virtual_host, name, creation)
    with tempfile.TemporaryDirectory() as scratch:
        copy = shutil.copytree(folder, Path(scratch, "stream"))
        log = Log.open(str(copy))
        try:
            log.flush(with_checkpoint=True)
            log.seal()
            stored = tuple(
                put_segment(store, key, s, suffixes) for s in log.segments.shown if s.num_chunks
            )
            found = Manifest(
                stream=key,
                revision=1,
                epoch=EPOCH,
                writer="test",
                next_offset=stored[-1].next_offset if stored else log.segments.first_offset,
                segments=stored,
                is_deleted=is_deleted,
            )
        finally:
            log.close()
    store.create(key.manifest, encode_manifest(found))
    return found


def put_segment(
    store: ObjectStore,
    key: StreamKey,
    segment: Segment,
    suffixes: Collection[str],
    *,
    epoch: int = EPOCH,
    uid: str = "",
) -> StoredSegment:
    """Upload the files of a sealed segment, those of them that are there."""
    if FILTER_SUFFIX in suffixes:
        load_or_build(segment, segment.size, is_sealed=True)
    uid = uid or uuid4().hex[:16]
    files = {}
    for suffix in suffixes:
        if PurePath(segment.path(suffix)).name in segment.disk.list(segment.folder):
            with closing(segment.disk.open(segment.path(suffix), writable=False)) as file:
                content = file.read(file.size(), 0)
            if suffix == SEGMENT_SUFFIX:
                content = content[: segment.size]
            store.put(key.object(segment.base_offset, epoch, uid, suffix), content)
            files[suffix] = StoredFile(len(content), crc32(content))
    return stored_segment(segment, epoch, uid, files)


def keep_segments(store: ObjectStore, manifest: Manifest, number: int) -> Manifest:
    """Let a manifest name the oldest segments alone."""
    segments = manifest.segments[:number]
    end = segments[-1].next_offset if segments else 0
    found = replace(manifest, revision=2, segments=segments, next_offset=end)
    store.delete([manifest.stream.manifest])
    store.create(manifest.stream.manifest, encode_manifest(found))
    return found


def put_slots(
    store: ObjectStore, folder: Path | str, key: StreamKey, start: int, most: int
) -> list[str]:
    """Write a write-ahead log with the chunks of a stream's folder from an offset on.

    Args:
        store: where to.
        folder: that a Log has written; it is closed.
        key: whose they are.
        start: see above.
        most: chunks in a slot; before each there is a slot of another stream.

    Returns:
        The keys of its slots.
    """
    slots: list[list[tuple[ChunkHeader, bytes]]] = []
    with tempfile.TemporaryDirectory() as scratch:
        log = Log.open(str(shutil.copytree(folder, Path(scratch, "stream"))))
        for segment in log.segments.shown:
            with closing(segment.open()) as file:
                for position, header in walk_headers(segment, file):
                    if header.chunk_id >= start:
                        if not slots or len(slots[-1]) == most:
                            slots.append([])
                        slots[-1].append((header, file.read(header.total_size, position)))
        log.close()
    mark = WalMark(EPOCH, 5)
    keys, other = [], StreamKey("/", "other", key.creation)
    for number, chunks in enumerate(slots, mark.begins):
        first, last = chunks[0][0], chunks[-1][0]
        content = b"".join(raw for _, raw in chunks)
        sections = (
            _section(other, first.chunk_id, last.next_offset, content),
            _section(key, first.chunk_id, last.next_offset, content),
        )
        slot = Slot(tier=_TIER, epoch=EPOCH, slot=number, writer="test", sections=sections)
        keys.append(slot_key(EPOCH, number))
        store.create(keys[-1], encode_slot(slot, [content, content]))
    cluster = Cluster(
        revision=1, epoch=EPOCH, writer="test", start="test", tier=_TIER, wals=(mark,)
    )
    put_state(store, cluster)
    return keys


def _section(key: StreamKey, after: int, next_offset: int, content: bytes) -> Section:
    return Section(
        virtual_host=key.virtual_host,
        stream=key.stream,
        creation=key.creation,
        after=after,
        next_offset=next_offset,
        size=len(content),
        crc=crc32(content),
        arguments={},
        settings={},
        offsets={},
    )
