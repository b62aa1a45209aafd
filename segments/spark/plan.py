"""Which chunks a query needs, and how they are dealt out to tasks.

A chunk is left out only if no message in it can be asked for: by its offsets, by its time, or by
a filter that passes its check. Everything else is read, and looked at message by message.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from segments.bloom import ChunkMatcher
from segments.spark.files import SegmentFile
from segments.spark.headers import Mask, Numbers
from segments.spark.inventory import Bounds, Gap, Listing


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
        keep = listing.is_user.copy()
        if self.nothing:
            return np.zeros_like(keep)
        if self.start_offset is not None:
            keep &= listing.chunk_ends > self.start_offset
        if self.end_offset is not None:
            keep &= listing.chunk_ids < self.end_offset
        if self.start_ms is not None:
            keep &= listing.timestamps >= self.start_ms
        if self.end_ms is not None:
            keep &= listing.timestamps < self.end_ms
        if self.matcher is not None and keep.any():
            keep[keep] = listing.screen(np.flatnonzero(keep), self.matcher)
        return keep

    @property
    def bounds(self) -> Bounds:
        """What is worth listing."""
        end = 0 if self.nothing else self.end_offset
        return Bounds(self.start_offset or 0, end, needs_filters=self.matcher is not None)

    def has_gap(self, gap: Gap) -> bool:
        """Whether something that is asked for may be lost in a gap."""
        end = max(gap.next_offset, gap.first_offset + 1)  # one that loses nothing is said as well
        is_before = self.start_offset is not None and end <= self.start_offset
        is_behind = self.end_offset is not None and gap.first_offset >= self.end_offset
        return not (is_before or is_behind or self.nothing)


class Piece(NamedTuple):
    """What one task reads: some chunks of one segment, or a gap.

    Attributes:
        positions, chunk_ids, sizes: of the chunks; sizes in bytes.
        gap: instead of chunks, something that cannot be read.
    """

    stream: str
    file: SegmentFile
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


def pieces(name: str, listings: Iterable[Listing], wanted: ChunkCriteria) -> Iterator[Piece]:
    """What is wanted of a stream: all of a segment in one piece, and what cannot be read."""
    for listing in listings:
        keep = np.flatnonzero(wanted.chunks(listing))
        if len(keep):
            found = (listing.positions[keep], listing.chunk_ids[keep], listing.sizes[keep])
            yield Piece(name, listing.file, *found)
        for gap in filter(wanted.has_gap, listing.gaps):
            empty = np.empty(0, np.int64)
            yield Piece(name, listing.file, empty, empty, empty, gap)


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
