"""Putting chunks back that a store has, and the disk has lost, before a log is opened.

A stream whose messages are confirmed when a store has them needs no flush of its own, so a power
failure may take chunks that were confirmed; a new machine has none at all. `append_tail` writes
what is behind the end of the log into its newest segment, or into a new one, as it stood there. It
is read through afterwards like anything else that a crash has left.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from segments.chunk import EncodedChunk
from segments.codec import ChunkHeader
from segments.disk import Disk
from segments.errors import SegmentsError
from segments.recovery.steps import Plan
from segments.segment import Segment, SegmentWriter

_GROUP_BYTES, _GROUP_CHUNKS = 1 << 20, 64  # written in one call


class TailChunk(NamedTuple):
    """A chunk that a store has.

    Attributes:
        after: offset at which the chunk before it ends.
        raw: its bytes, as they stand in a segment.
    """

    after: int
    header: ChunkHeader
    raw: bytes


# Gives what a store has to follow a log, in its order; SegmentsError where that cannot be read.
Tail: TypeAlias = Callable[[], Iterable[TailChunk]]


class HoleError(SegmentsError):
    """Between the end of a log and what a store has to follow it messages are missing."""


def append_tail(disk: Disk, folder: str, plan: Plan, chunks: Tail) -> bool:
    """Write chunks that come after the end of a log; whether there were any.

    Args:
        disk: the file system.
        folder: of the stream.
        plan: what was found there, carried out.
        chunks: that the store has.

    Raises:
        HoleError: they do not follow it.
        StorageError: the system refused.
    """
    tail = _Tail(disk, folder, plan)
    try:
        for chunk in chunks():
            if chunk.header.chunk_id < tail.end:
                continue
            if chunk.after > tail.end:
                raise HoleError(
                    f"{folder}: the log ends at offset {tail.end}, and what the tier has to follow "
                    f"it begins behind offset {chunk.after}: files of another time were put "
                    "there; start on an empty data folder with --restore"
                )
            tail.add(chunk.header, chunk.raw)
        tail.write()
    finally:
        tail.close()
    return tail.has_begun


class _Tail:
    """Where chunks are appended.

    Attributes:
        end: offset behind the last one.
        has_begun: something was added.
    """

    def __init__(self, disk: Disk, folder: str, plan: Plan) -> None:
        self.end = plan.ends_at
        self.has_begun = False
        self._disk, self._folder, self._empty = disk, folder, plan.empty
        last = plan.segments[-1] if plan.segments else None
        grows = last is not None and last.cold is None and not (plan.is_ended or plan.empty)
        if last is not None and plan.checkpoint is not None:  # of before an empty one went
            grows = grows and plan.checkpoint.segment <= last.base_offset
        self._last: Segment | None = last if grows else None
        self._writer: SegmentWriter | None = None
        self._group: list[EncodedChunk] = []
        self._size = 0

    def add(self, header: ChunkHeader, raw: bytes) -> None:
        if self._writer is None or header.chunk_id > self.end:
            self._begin(header.chunk_id)
        self.has_begun, self.end = True, header.next_offset
        self._group.append(EncodedChunk(header, (raw, b"", b""), len(raw), (), {}))
        self._size += len(raw)
        if self._size >= _GROUP_BYTES or len(self._group) == _GROUP_CHUNKS:
            self.write()

    def _begin(self, offset: int) -> None:
        """Go on at an offset: in the newest segment, if it ends there, or in a new one."""
        self.write()
        self.close()
        last, self._last = self._last, None
        if last is not None and last.next_offset == offset:
            self._writer = SegmentWriter.resume(last)
            return
        for segment in self._empty:
            segment.remove()
        self._empty = []
        self._writer = SegmentWriter.create(self._disk, self._folder, offset)

    def write(self) -> None:
        group, self._group, self._size = self._group, [], 0
        if group:
            assert self._writer is not None  # noqa: S101 - they were added to it
            self._writer.append(group)

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
