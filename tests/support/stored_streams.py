"""Streams in an object store, as the server leaves them there."""

import shutil
import tempfile
from collections.abc import Collection
from contextlib import closing
from pathlib import Path, PurePath
from uuid import uuid4

from segments import Log
from segments.checksum import crc32
from segments.derived.filter_files import load_or_build
from segments.segment import FILTER_SUFFIX, INDEX_SUFFIX, SEGMENT_SUFFIX, Segment
from segments.store.manifest import Manifest, StoredFile, StoredSegment, encode_manifest
from segments.store.object_names import StreamKey
from segments.store.object_store import ObjectStore
from segments.tier.packing import stored_segment

EPOCH = 3


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
