"""Which chunks of a segment may hold a filter value: by the filters in them, or by its index.

A chunk is ruled out only by a filter that passes its check, or by an index that is known to be that
of its segment.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from segments import bloom, codec
from segments.bloom import ChunkMatcher
from segments.codec import CHECKED_HEADER_SIZE, CHUNK_HEADER_SIZE
from segments.filter_index import FilterFile, matching
from segments.format_constants import MMH3_SCHEME
from segments.spark import headers as columns
from segments.spark.files import SegmentFile, SegmentGone, Window
from segments.spark.headers import Headers, Mask, Numbers

# Of the chunks with some numbers, those that may match.
Screen = Callable[[Numbers, ChunkMatcher], Mask]


def keep_all(rows: Numbers, matcher: ChunkMatcher) -> Mask:  # noqa: ARG001 - see Screen
    """Nothing is known."""
    return np.ones(len(rows), np.bool_)


def by_index(index: FilterFile) -> Screen:
    """The test by a filter index, whose chunks are those that are tested."""

    def screen(rows: Numbers, matcher: ChunkMatcher) -> Mask:
        found = np.zeros(len(index.positions), np.bool_)
        found[matching(index, matcher, range(len(found)))] = True
        some: Mask = found[rows]
        return some

    return screen


class _HasWindows(Protocol):
    def window(self, start: int, end: int) -> Window: ...


def by_filters(file: _HasWindows, positions: Numbers, headers: Headers) -> Screen:
    """The test by the chunks' own filters; as `ChunkMatcher.matches` and the header check say."""

    def screen(rows: Numbers, matcher: ChunkMatcher) -> Mask:
        try:
            return _may_match(file, positions[rows], headers[rows], matcher)
        except SegmentGone:
            return keep_all(rows, matcher)  # the task that reads them says that they are gone

    return screen


def _may_match(
    file: _HasWindows, positions: Numbers, headers: Headers, matcher: ChunkMatcher
) -> Mask:
    window = _filters_of(file, positions, headers)
    found: Mask = headers["filter_scheme"] != MMH3_SCHEME
    for filter_size in np.unique(headers["filter_size"][~found]):
        same = np.flatnonzero(~found & (headers["filter_size"] == filter_size))
        found[same] = _bits_match(window, positions[same], int(filter_size), matcher)
    rest = np.flatnonzero(~found)
    trailers = columns.trailer_positions(headers[rest], positions[rest])
    window.load(trailers, trailers + headers[rest]["trailer_size"])
    for row in rest:  # a damaged filter proves nothing
        parts = _ChunkParts.of(window, int(positions[row]), headers[row])
        check = codec.header_check(parts.header, parts.filter, parts.trailer)
        found[row] = check != int(headers[row]["header_check"])
        found[row] |= matcher.is_doubtful(parts.filter, parts.trailer)
    return found


def _filters_of(file: _HasWindows, positions: Numbers, headers: Headers) -> Window:
    """A window of some chunks, whose headers and filters are loaded."""
    if not len(positions):
        return file.window(0, 0)
    size = int(columns.total_sizes(headers[-1:])[0])
    window = file.window(int(positions[0]), int(positions[-1]) + size)
    window.load(positions, columns.data_positions(headers, positions))
    return window


def filter_says(
    file: SegmentFile, positions: Numbers, headers: Headers, recorded: bytes, holds: Mask
) -> Mask:
    """What the filters of some chunks say of a value, whether they can be trusted or not.

    Args:
        file: the segment's.
        positions: of the chunks.
        headers: of the chunks.
        recorded: the value as trailers record it.
        holds: which of the chunks have it. Of 255 bytes it may be a value by itself or stand for a
            longer one; a filter has what its chunk holds, so that these chunks decide.
    """
    window = _filters_of(file, positions, headers)
    sizes = headers["filter_size"]
    found = _bits_say(window, positions, sizes, partial(bloom.bit_positions, recorded))
    if len(recorded) == bloom.MAX_RECORDED_SIZE and not found[holds].all():
        found = _bits_say(window, positions, sizes, partial(bloom.long_bit_positions, recorded))
    return found


def _bits_say(
    window: Window, positions: Numbers, sizes: Numbers, bits_in: Callable[[int], tuple[int, int]]
) -> Mask:
    """Which filters have two bits; `bits_in` finds these for a filter of some size."""
    found = np.zeros(len(positions), np.bool_)
    for size in np.unique(sizes[sizes > 0]):
        same = sizes == size
        first, second = bits_in(int(size))
        found[same] = _bit_mask(window, positions[same], first)
        found[same] &= _bit_mask(window, positions[same], second)
    return found


def _bits_match(window: Window, positions: Numbers, size: int, matcher: ChunkMatcher) -> Mask:
    if not size:
        return np.full(len(positions), matcher.match_unfiltered)
    has = partial(_bit_mask, window, positions)

    def holds(value: bytes) -> Mask:
        if not value:
            return has(0)
        first, second = bloom.bit_positions(value, size)
        return has(first) & has(second)

    found = np.ones(len(positions), np.bool_)
    for clause in matcher.clauses:
        of_clause = np.zeros(len(positions), np.bool_)
        for value in clause.values:
            of_clause |= holds(value)
        if clause.mark is not None:
            of_clause |= ~holds(clause.mark)
        found &= of_clause
    return found


def _bit_mask(window: Window, positions: Numbers, bit: int) -> Mask:
    places = window.content[positions - window.start + CHUNK_HEADER_SIZE + bit // 8]
    mask: Mask = (places >> np.uint8(7 - bit % 8)) & np.uint8(1) == 1
    return mask


class _ChunkParts(NamedTuple):
    """The bytes of a chunk but its data; the header as far as it is checked."""

    header: bytes
    filter: bytes
    trailer: bytes

    @classmethod
    def of(cls, window: Window, position: int, header: np.void) -> "_ChunkParts":
        content, start = window.content, position - window.start
        filter_start = start + CHUNK_HEADER_SIZE
        data_start = filter_start + int(header["filter_size"])
        trailer_start = data_start + int(header["data_size"])
        return cls(
            content[start : start + CHECKED_HEADER_SIZE].tobytes(),
            content[filter_start:data_start].tobytes(),
            content[trailer_start : trailer_start + int(header["trailer_size"])].tobytes(),
        )
