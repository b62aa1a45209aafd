"""Making and opening filter indexes of segments. All of it may run in a thread."""

import mmap
import os
from collections.abc import Callable

from segments import codec
from segments.atomic_write import replace_file
from segments.chunk_check import header_is_sound
from segments.disk import File
from segments.errors import FormatError, SegmentsError
from segments.filter_index import UNFILTERED, FilterFile, FilterIndex, Index, Shape
from segments.format_constants import FILTER_VALUE, MMH3_SCHEME, USER
from segments.segment import FILTER_SUFFIX, Segment, walk_headers


def _go_on() -> None:
    """Nobody ends the building."""


def scan(segment: Segment, size: int, check_running: Callable[[], None] = _go_on) -> FilterIndex:
    """Read the index of a segment's first `size` bytes from its chunks.

    Raises:
        StorageError: the system refused to read.
    """
    index = FilterIndex()
    file = segment.disk.open(segment.path(), writable=False)
    try:
        for position, header in walk_headers(segment, file):
            if position >= size:
                break
            check_running()
            index.add(position, header.chunk_id, _keys(file, position, header))
    finally:
        file.close()
    return index


def _keys(file: File, position: int, header: codec.ChunkHeader) -> list[bytes] | None:
    if header.chunk_type != USER or header.filter_scheme != MMH3_SCHEME:
        return None
    raw = file.read(codec.CHUNK_HEADER_SIZE, position)
    if not header_is_sound(file, position, header, raw):
        return None
    if not header.filter_size:
        return [UNFILTERED]
    trailer_position = position + header.data_start + header.data_size
    try:
        blocks = codec.decode_blocks(file.read(header.trailer_size, trailer_position))
    except FormatError:
        return None
    return [block.id for block in blocks if block.kind == FILTER_VALUE] or None


def save(segment: Segment, index: FilterIndex) -> FilterFile:
    """Write a sealed segment's index beside it, and open it.

    Raises:
        StorageError: the system refused.
    """
    content = index.encode(segment.size, segment.base_offset)
    replace_file(segment.disk, segment.path(FILTER_SUFFIX), content).close()
    return load(segment)


def load(segment: Segment) -> FilterFile:
    """Open a sealed segment's filter file.

    Raises:
        FormatError: it is missing, damaged or stale.
        StorageError: the system refused.
    """
    if segment.damage:
        raise FormatError("the segment is damaged")
    shape = Shape(segment.size, segment.base_offset, segment.num_chunks)
    return FilterFile(_content(segment.path(FILTER_SUFFIX)), shape)


def _content(path: str) -> "bytes | mmap.mmap":
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise FormatError(f"cannot map {path}: {error.strerror}") from error
    return b""


def load_or_build(
    segment: Segment, size: int, is_sealed: bool, check_running: Callable[[], None] = _go_on
) -> Index | None:
    """The index of a segment, from its file or its chunks; None for a damaged segment.

    Args:
        segment: the segment.
        size: bytes of it that count.
        is_sealed: it no longer grows, so its index is written beside it unless it is there.
        check_running: called for each chunk; what it raises ends the building.
    """
    if segment.damage:
        return None
    if is_sealed:
        try:
            return load(segment)
        except SegmentsError:
            pass
    index = scan(segment, size, check_running)
    if segment.damage:  # found on the way
        return None
    return save(segment, index) if is_sealed else index
