"""Bringing bytes of cold segments from the store into the cache. All of it blocks: for threads.

What comes is compared with the checksums of its chunks; where they are wrong, it is fetched again,
as it may have been damaged on the way. What is wrong again is damaged in the store: it is given as
it is, so that readers find the damage as they find it in a file of this disk.
"""

import logging
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import PurePath
from threading import Lock
from typing import NamedTuple

from segments import codec
from segments.atomic_write import replace_with
from segments.checksum import crc32
from segments.codec import (
    CHECKED_HEADER_SIZE,
    CHUNK_HEADER_SIZE,
    FILE_HEADER_SIZE,
    ChunkHeader,
    IndexRecord,
)
from segments.disk import Buffer, Disk, File
from segments.errors import FormatError
from segments.format_constants import OSIRIS_SCHEME
from segments.segment import INDEX_SUFFIX, SEGMENT_SUFFIX, file_path
from segments.store.cache import CachedSegment, Pin, Range
from segments.store.manifest import StoredSegment
from segments.store.object_names import StreamKey
from segments.store.object_store import MissingError, ObjectStore, TierError, TooLargeError

logger = logging.getLogger(__name__)

_ATTEMPTS = 2
_BLOCK = 1 << 20  # of a segment whose headers alone are read
# One thread at a time checks and writes what it has got, when that is much. Several are no sooner
# done: they hand the interpreter to and fro with each chunk, and wait for each other at the file of
# the cache. Reading all of a cold stream takes a quarter less processor time by this. Single chunks
# are done sooner than it would be somebody's turn.
_TURN, _MUCH = Lock(), 1 << 20


class Fetched(NamedTuple):
    """Bytes that are in the cache now.

    Attributes:
        pin: keeps them there.
        fault: what is wrong with them; empty for nothing.
    """

    pin: Pin
    fault: str


class BadFileError(TierError):
    """A file beside a segment is not in the store as it was stored."""


def fetch_range(store: ObjectStore, cached: CachedSegment, where: Range) -> Fetched:
    """Fetch whole chunks of a cold segment.

    Raises:
        MissingError: the object is not there.
        TierError: the store refuses, or gives less.
        StorageError: the disk of the cache refuses.
    """
    key = cached.stored.key(cached.stream, ".segment")
    fault = ""
    content: Buffer = b""
    size = where.end - where.start
    turn = _TURN if size >= _MUCH else nullcontext()
    for _ in range(_ATTEMPTS):
        content = store.get_range(key, where.start, size)
        with turn:
            fault = chunk_fault(cached, where.start, memoryview(content))
        if not fault:
            break
    with turn:
        return Fetched(cached.put(where.start, content), fault and f"{key}: {fault}")


def chunk_fault(cached: CachedSegment, start: int, content: memoryview) -> str:
    """What is wrong with chunks that begin at a byte of their segment; empty for nothing."""
    damage = {one.position: one for one in cached.stored.damage}
    position = max(start, FILE_HEADER_SIZE)
    end = start + len(content)
    try:
        while position < end:
            if position in damage:
                position = max(position + 1, damage[position].end)
                continue
            header = codec.decode_chunk_header(content, position - start)
            if position + header.total_size > end:
                return f"the chunk {header.chunk_id} is cut"
            if not _is_sound(header, content[position - start :]):
                return f"the chunk {header.chunk_id} fails its checksums"
            position += header.total_size
    except FormatError as error:
        return f"at byte {position}: {error}"
    return ""


def _is_sound(header: ChunkHeader, content: memoryview) -> bool:
    data_end = header.data_start + header.data_size
    if crc32(content[header.data_start : data_end]) != header.data_crc:
        return False
    if header.filter_scheme == OSIRIS_SCHEME:
        return True  # nothing covers its header
    checked, trailer = content[:CHECKED_HEADER_SIZE], content[data_end : header.total_size]
    filter_bytes = content[CHUNK_HEADER_SIZE : header.data_start]
    found = crc32(trailer, crc32(filter_bytes, crc32(checked))) & 0xFFFF
    return found == header.header_check


def _always() -> bool:
    return True


def fetch_file(
    disk: Disk,
    store: ObjectStore,
    cached: CachedSegment,
    suffix: str,
    is_wanted: Callable[[], bool] = _always,
) -> None:
    """Fetch a file that is beside a cold segment.

    Args:
        disk: where the segment's folder is.
        store: has the file.
        cached: the segment.
        suffix: of the file.
        is_wanted: asked when it is about to get its name; where it says no, there is no file. The
            stream may have been deleted meanwhile, and its folder may be that of a new one.

    Raises:
        MissingError: the object is not there.
        BadFileError: it is not what was stored.
        TierError: the store refuses.
        StorageError: the disk refuses.
    """
    content = file_beside(store, cached.stream, cached.stored, suffix)
    path = file_path(cached.folder, cached.stored.base_offset, suffix)
    _put_beside(disk, path, content, is_wanted)


def file_beside(store: ObjectStore, stream: StreamKey, stored: StoredSegment, suffix: str) -> bytes:
    """What a file beside a stored segment holds.

    An index that is not there, or not as it was stored, is rebuilt from the segment's chunks.

    Raises:
        MissingError: the object is not there.
        BadFileError: it is not what was stored.
        TierError: the store refuses.
    """
    wanted, key = stored.files[suffix], stored.key(stream, suffix)
    content = b""
    try:
        for _ in range(_ATTEMPTS):
            content = bytes(store.get(key, wanted.size).content)
            if (len(content), crc32(content)) == wanted:
                return content
        found = f"{len(content):,} bytes, expected {wanted.size:,}"
        fault = f"{key} in {store} is not what was stored: {found} and their checksum"
    except TooLargeError as error:
        fault = str(error)
    except MissingError:
        if suffix != INDEX_SUFFIX:
            raise
        fault = f"{key} in {store} is not there, and the chunks of its segment do not give it"
    if suffix == INDEX_SUFFIX:
        content = _index_of(store, stream, stored)
        if (len(content), crc32(content)) == wanted:
            logger.warning("%s in %s cannot be used: it was made from the segment", key, store)
            return content
    raise BadFileError(fault)


def _index_of(store: ObjectStore, stream: StreamKey, stored: StoredSegment) -> bytes:
    """The index of a stored segment by the headers of its chunks, as far as they can be read."""
    key, content = stored.key(stream, SEGMENT_SUFFIX), bytearray(codec.INDEX_HEADER)
    damage = {one.position: one for one in stored.damage}
    block, start, position = memoryview(b""), 0, FILE_HEADER_SIZE
    while position < stored.size:
        if position in damage:
            position = max(position + 1, damage[position].end)
            continue
        if position + CHUNK_HEADER_SIZE > start + len(block):
            size = min(_BLOCK, stored.size - position)
            block, start = memoryview(store.get_range(key, position, size)), position
        try:
            header = codec.decode_chunk_header(block, position - start)
        except FormatError:
            break
        chunk_id, timestamp_ms, epoch = header.chunk_id, header.timestamp_ms, header.epoch
        record = IndexRecord(chunk_id, timestamp_ms, epoch, position, header.chunk_type)
        content += codec.encode_index_record(record)
        position += header.total_size
    return bytes(content)


class _Unwanted(Exception):
    """Nobody wants a file any more."""


def _put_beside(disk: Disk, path: str, content: bytes, is_wanted: Callable[[], bool]) -> None:
    def write(file: File) -> None:
        file.write([content], 0)
        file.sync()
        if not is_wanted():
            disk.remove(file.path)
            raise _Unwanted

    with suppress(_Unwanted):
        replace_with(disk, path, write, is_synced=False).close()
        disk.sync_folder(str(PurePath(path).parent))
