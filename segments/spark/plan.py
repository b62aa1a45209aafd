"""Which chunks a query needs, and how they are dealt out to tasks.

A chunk is left out only if no message in it can be asked for: by its offsets, by its time, or by
a filter that passes its check. Everything else is read, and looked at message by message.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from segments import bloom, codec
from segments.bloom import ChunkMatcher
from segments.codec import CHECKED_HEADER_SIZE, CHUNK_HEADER_SIZE
from segments.disk import OsDisk
from segments.errors import StorageError
from segments.format_constants import MMH3_SCHEME, USER
from segments.spark import headers as columns
from segments.spark.headers import Bytes, Mask, Numbers
from segments.spark.inventory import Gap, Listing, StreamFolder, content_of


@dataclass(frozen=True, slots=True)
class ChunkCriteria:
    """Which chunks to read; a bound that is None does not limit.

    Attributes:
        start_offset, end_offset: the end is not part of it.
        start_ms, end_ms: times of chunks, in ms since 1970; the end is not part of it.
        matcher: filter values.
        nothing: no message can match.
    """

    start_offset: int | None = None
    end_offset: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    matcher: ChunkMatcher | None = None
    nothing: bool = False

    def chunks(self, listing: Listing) -> Mask:
        """Which chunks of a segment have to be read."""
        headers = listing.headers
        keep: Mask = headers["chunk_type"] == USER
        if self.nothing:
            return np.zeros_like(keep)
        if self.start_offset is not None:
            keep &= columns.next_offsets(headers) > self.start_offset
        if self.end_offset is not None:
            keep &= headers["chunk_id"].astype(np.int64) < self.end_offset
        if self.start_ms is not None:
            keep &= headers["timestamp_ms"] >= self.start_ms
        if self.end_ms is not None:
            keep &= headers["timestamp_ms"] < self.end_ms
        if self.matcher is not None and keep.any():
            keep[keep] = _may_match(listing, np.flatnonzero(keep), self.matcher)
        return keep

    def has_gap(self, gap: Gap) -> bool:
        """Whether something that is asked for may be lost in a gap."""
        end = max(gap.next_offset, gap.first_offset + 1)  # one that loses nothing is said as well
        is_before = self.start_offset is not None and end <= self.start_offset
        is_behind = self.end_offset is not None and gap.first_offset >= self.end_offset
        return not (is_before or is_behind or self.nothing)


def _may_match(listing: Listing, rows: Numbers, matcher: ChunkMatcher) -> Mask:
    """The filter test for many chunks; as `ChunkMatcher.matches` and the header check say."""
    headers, positions = listing.headers[rows], listing.positions[rows]
    try:
        content = _content(listing)
    except StorageError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        return np.ones(len(rows), np.bool_)  # the task that reads them says that they are gone
    found: Mask = headers["filter_scheme"] != MMH3_SCHEME
    for filter_size in np.unique(headers["filter_size"][~found]):
        same = np.flatnonzero(~found & (headers["filter_size"] == filter_size))
        found[same] = _bits_match(content, positions[same], int(filter_size), matcher)
    for row in np.flatnonzero(~found):  # a damaged filter proves nothing
        parts = _ChunkParts.of(content, int(positions[row]), headers[row])
        check = codec.header_check(parts.header, parts.filter, parts.trailer)
        found[row] = check != int(headers[row]["header_check"])
        found[row] |= matcher.is_doubtful(parts.filter, parts.trailer)
    return found


def filter_says(listing: Listing, rows: Numbers, recorded: bytes, holds: Mask) -> Mask:
    """What the filters of some chunks say of a value, whether they can be trusted or not.

    Args:
        listing: of a segment.
        rows: the chunks in it.
        recorded: the value as trailers record it.
        holds: which of the chunks have it. Of 255 bytes it may be a value by itself or stand for a
            longer one; a filter has what its chunk holds, so that these chunks decide.
    """
    found = _bits_say(listing, rows, partial(bloom.bit_positions, recorded))
    if len(recorded) == bloom.MAX_RECORDED_SIZE and not found[holds].all():
        found = _bits_say(listing, rows, partial(bloom.long_bit_positions, recorded))
    return found


def _bits_say(listing: Listing, rows: Numbers, bits_in: Callable[[int], tuple[int, int]]) -> Mask:
    """Which filters have two bits; `bits_in` finds these for a filter of some size."""
    content, positions = _content(listing), listing.positions[rows]
    found = np.zeros(len(rows), np.bool_)
    sizes = listing.headers["filter_size"][rows]
    for size in np.unique(sizes[sizes > 0]):
        same = sizes == size
        first, second = bits_in(int(size))
        found[same] = _has_bit(content, positions[same], first)
        found[same] &= _has_bit(content, positions[same], second)
    return found


def _content(listing: Listing) -> Bytes:
    file = OsDisk().open(listing.path, writable=False)
    try:
        size = int((listing.positions[-1:] + columns.total_sizes(listing.headers[-1:]))[0])
        return content_of(file, size)
    finally:
        file.close()


def _bits_match(content: Bytes, positions: Numbers, size: int, matcher: ChunkMatcher) -> Mask:
    if not size:
        return np.full(len(positions), matcher.match_unfiltered)
    has = partial(_has_bit, content, positions)

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


def _has_bit(content: Bytes, positions: Numbers, bit: int) -> Mask:
    places = content[positions + CHUNK_HEADER_SIZE + bit // 8]
    mask: Mask = (places >> np.uint8(7 - bit % 8)) & np.uint8(1) == 1
    return mask


class _ChunkParts(NamedTuple):
    """The bytes of a chunk but its data; the header as far as it is checked."""

    header: bytes
    filter: bytes
    trailer: bytes

    @classmethod
    def of(cls, content: Bytes, position: int, header: np.void) -> "_ChunkParts":
        filter_start = position + CHUNK_HEADER_SIZE
        data_start = filter_start + int(header["filter_size"])
        trailer_start = data_start + int(header["data_size"])
        return cls(
            content[position : position + CHECKED_HEADER_SIZE].tobytes(),
            content[filter_start:data_start].tobytes(),
            content[trailer_start : trailer_start + int(header["trailer_size"])].tobytes(),
        )


class Piece(NamedTuple):
    """What one task reads: some chunks of one segment, or a gap.

    Attributes:
        stream: its name.
        path: the segment file.
        positions, chunk_ids, sizes: of the chunks; sizes in bytes.
        gap: instead of chunks, something that cannot be read.
    """

    stream: str
    path: str
    positions: Numbers
    chunk_ids: Numbers
    sizes: Numbers
    gap: Gap | None = None

    @property
    def size(self) -> int:
        """Bytes of its chunks."""
        return int(self.sizes.sum())

    def part(self, first: int, last: int) -> "Piece":
        """Its chunks from `first` to one before `last`."""
        return self._replace(
            positions=self.positions[first:last],
            chunk_ids=self.chunk_ids[first:last],
            sizes=self.sizes[first:last],
        )


def pieces(
    stream: StreamFolder, listings: Iterable[Listing], wanted: ChunkCriteria
) -> Iterator[Piece]:
    """What is wanted of a stream: all of a segment in one piece, and what cannot be read."""
    for listing in listings:
        keep = np.flatnonzero(wanted.chunks(listing))
        if len(keep):
            headers = listing.headers[keep]
            yield Piece(
                stream.name,
                listing.path,
                listing.positions[keep],
                headers["chunk_id"].astype(np.int64),
                columns.total_sizes(headers),
            )
        for gap in filter(wanted.has_gap, listing.gaps):
            empty = np.empty(0, np.int64)
            yield Piece(stream.name, gap.path, empty, empty, empty, gap)


def deal(found: Iterable[Piece], task_bytes: int) -> list[tuple[Piece, ...]]:
    """Deal pieces out to tasks of about `task_bytes`, one chunk at least, in order.

    Small segments share a task, large ones are cut.
    """
    groups: list[list[Piece]] = []
    room = 0
    for piece in found:
        rest = piece
        while True:
            if not groups or (room <= 0 and rest.gap is None):
                groups.append([])
                room = task_bytes
            count = int(np.searchsorted(np.cumsum(rest.sizes), room, side="right"))
            count = max(count, not groups[-1])  # a chunk that is larger gets a task of its own
            if count or rest.gap is not None:
                groups[-1].append(rest.part(0, count))
            room -= int(rest.sizes[:count].sum())
            if count == len(rest.sizes):
                break
            rest, room = rest.part(count, len(rest.sizes)), 0
    return [tuple(group) for group in groups]
