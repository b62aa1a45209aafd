"""Streams whose sealed segments are only in an object store."""

from collections.abc import Collection
from pathlib import Path
from uuid import uuid4

from segments import Log
from segments.checksum import crc32
from segments.disk import OsDisk
from segments.filter_files import load_or_build
from segments.segment import (
    FILTER_SUFFIX,
    INDEX_SUFFIX,
    KEYS_SUFFIX,
    SEGMENT_SUFFIX,
    Segment,
)
from segments.tier.keys import StreamKey
from segments.tier.local_copy import write_copy
from segments.tier.manifest import Manifest, StoredFile, StoredSegment
from segments.tier.object_store import ObjectStore
from streamd.broker.stream import Stream
from tests.support.syncs import work_beside

KEY = StreamKey("/", "s", "0000018bcfe56800-5eed")
EPOCH = 3
_ALL = (SEGMENT_SUFFIX, INDEX_SUFFIX, FILTER_SUFFIX, KEYS_SUFFIX)


def make_cold(
    log: Log,
    store: ObjectStore,
    *,
    seals: bool = True,
    suffixes: Collection[str] = _ALL,
    restored: bool = False,
    number: int | None = None,
) -> list[Segment]:
    """Upload sealed segments of a log, and remove their files.

    Args:
        log: open.
        store: where to.
        seals: the newest one is sealed before.
        suffixes: which files are uploaded, as far as there are any.
        restored: what is beside the segments is removed, too, as on a new machine.
        number: of the oldest segments; None for all sealed ones.

    Returns:
        Those that are cold now.
    """
    log.flush(with_checkpoint=True)
    if seals:
        log.seal()
        log.flush(with_checkpoint=True)
    sealed = [one for one in log.segments if log.is_sealed(one) and one.num_chunks]
    chosen = [one for one in sealed[:number] if one.cold is None]
    stored = [_put(store, one, suffixes) for one in chosen]
    before = log.manifest.segments if log.manifest is not None else ()
    manifest = Manifest(
        stream=KEY,
        revision=len(before) + 1,
        epoch=EPOCH,
        writer="test",
        next_offset=stored[-1].next_offset if stored else log.first_offset,
        segments=(*before, *stored),
    )
    write_copy(OsDisk(), log.folder, manifest)
    log.is_stored(manifest)
    for segment in chosen:
        log.make_cold(segment)
        segment.remove_file()
        if restored:
            segment.drop_filters()
            for suffix in (INDEX_SUFFIX, FILTER_SUFFIX, KEYS_SUFFIX):
                Path(segment.path(suffix)).unlink(missing_ok=True)
    return chosen


def make_stream_cold(stream: Stream, store: ObjectStore, **options: bool) -> list[Segment]:
    """The same on the event loop, of a stream whose log is open."""
    return work_beside(lambda: make_cold(stream.log, store, **options))


def _put(store: ObjectStore, segment: Segment, suffixes: Collection[str]) -> StoredSegment:
    if FILTER_SUFFIX in suffixes:
        load_or_build(segment, segment.size, is_sealed=True)
    uid = uuid4().hex[:16]
    files = {}
    for suffix in suffixes:
        path = Path(segment.path(suffix))
        if path.exists():
            content = path.read_bytes()
            if suffix == SEGMENT_SUFFIX:
                content = content[: segment.size]
            store.put(KEY.object(segment.base_offset, EPOCH, uid, suffix), content)
            files[suffix] = StoredFile(len(content), crc32(content))
    return StoredSegment(
        base_offset=segment.base_offset,
        next_offset=segment.next_offset,
        num_chunks=segment.num_chunks,
        first_timestamp_ms=segment.first_timestamp_ms,
        last_timestamp_ms=segment.last_timestamp_ms,
        last_chunk_id=segment.last_chunk_id,
        epoch=EPOCH,
        uid=uid,
        files=files,
        damage=tuple(segment.damage.values()),
    )
