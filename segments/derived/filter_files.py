"""Making and opening filter indexes of segments. All of it may run in a thread.

A filter file may outlive what it was made from: it is synced when it is made, its segment perhaps
later, so a power failure can take chunks away and leave it, and others may take their place. So it
says of which content it is (`shape_of`). That is told by the index, read in one go, and by the last
chunk, which is never the same after an end was lost. To read all headers would cost as much as to
make the filter index again.
"""

from collections.abc import Callable

from segments import codec
from segments.atomic_write import replace_file
from segments.checksum import crc32
from segments.chunk_search import mend_index
from segments.errors import FormatError, SegmentsError, StorageError
from segments.filter_index import (
    FilterFile,
    FilterIndex,
    Index,
    Shape,
    content_crc,
)
from segments.segment import FILTER_SUFFIX, Segment, walk_headers
from segments.store.cache import ColdError
from segments.stored_chunk import keys_in


def _go_on() -> None:
    """Nobody ends the building."""


def scan(
    segment: Segment,
    size: int,
    check_running: Callable[[], None] = _go_on,
    *,
    mends: bool = False,
) -> FilterIndex:
    """Read the index of a segment's first `size` bytes from its chunks.

    Args:
        segment: the segment.
        size: bytes of it that count.
        check_running: called for each chunk; what it raises ends this.
        mends: correct the segment's other index, too, which a filter file has to agree with.

    Raises:
        StorageError: the system refused to read.
    """
    index = FilterIndex()
    file = segment.open()
    try:
        for position, header in walk_headers(segment, file):
            if position >= size:
                break
            check_running()
            index.add(position, header.chunk_id, keys_in(file, position, header))
        if mends:
            mend_index(segment, file)
    finally:
        file.close()
    return index


def shape_of(segment: Segment) -> Shape:
    """What a filter file of this sealed segment has to fit.

    Raises:
        FormatError: index and segment do not agree, or cannot be read.
        StorageError: the system refused.
    """
    number = segment.num_chunks
    with segment.index() as index:
        crc = index.crc()
        position = index.record(number - 1).position if number else segment.size
    file = segment.open()
    try:
        crc = crc32(file.read(codec.CHUNK_HEADER_SIZE, position), crc)
    finally:
        file.close()
    return Shape(segment.size, segment.base_offset, number, crc)


def save(segment: Segment, index: FilterIndex) -> FilterFile:
    """Write a sealed segment's index beside it, and open it.

    Raises:
        FormatError: the segment's other index cannot be read.
        StorageError: the system refused.
    """
    shape = shape_of(segment)
    content = index.encode(shape)
    replace_file(segment.disk, segment.path(FILTER_SUFFIX), content).close()
    return FilterFile(content, shape)


def load(segment: Segment) -> FilterFile:
    """Open a sealed segment's filter file.

    Raises:
        FormatError: it is missing, damaged or stale.
        ColdError: it has to be fetched.
        StorageError: the system refused.
    """
    if segment.damage:
        raise FormatError("the segment is damaged")
    try:
        file = segment.open_beside(FILTER_SUFFIX)
    except StorageError as error:
        if error.is_missing:
            raise FormatError(str(error)) from error
        raise
    try:
        content = file.read(file.size(), 0)
    finally:
        file.close()
    shape = shape_of(segment) if segment.cold is None else _shape_in_store(segment, content)
    return FilterFile(content, shape)


def _shape_in_store(segment: Segment, content: bytes) -> Shape:
    """What a filter file of a cold segment has to fit: its last chunk is not looked at.

    Nothing has been added to the segment or cut from it since it was stored, with its filter file.
    """
    return Shape(segment.size, segment.base_offset, segment.num_chunks, content_crc(content))


def load_or_build(
    segment: Segment, size: int, is_sealed: bool, check_running: Callable[[], None] = _go_on
) -> Index | None:
    """The index of a segment, from its file or its chunks; None for a damaged segment.

    Args:
        segment: the segment.
        size: bytes of it that count.
        is_sealed: it no longer grows, so its index is written beside it unless it is there.
        check_running: called for each chunk; what it raises ends the building.

    Raises:
        ColdError: its file has to be fetched.
        SegmentsError: it cannot be made.
    """
    if segment.damage:
        return None
    if is_sealed:
        try:
            return load(segment)
        except ColdError:
            raise
        except SegmentsError:
            if segment.cold is not None:
                raise
    index = scan(segment, size, check_running, mends=is_sealed)
    if segment.damage:  # found on the way
        return None
    return save(segment, index) if is_sealed else index
