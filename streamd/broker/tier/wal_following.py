"""Following write-ahead logs as they grow, for servers that only read.

Slots are read in their order, see segments/store/wal.py: a name that is free has nothing yet, and a
fence ends a log; then the one of the next epoch goes on. Slots that have gone are in manifests.
Nothing is written into the store.

What was read of a stream, and is in no manifest yet, is kept in a file, see `GrowingTail`.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter

from segments.disk import OsDisk
from segments.gaps import Gap
from segments.recovery.tail import Tail, TailChunk
from segments.store.cluster import Cluster, WalMark
from segments.store.object_names import StreamKey
from segments.store.object_store import MissingError, ObjectStore
from segments.store.wal import Section, chunks_in
from segments.stored_part import Marks
from segments.tracking import MAX_OFFSETS
from streamd.broker.tier.patience import each
from streamd.broker.tier.wal_reading import ReadSlot, check_tier, read_slot

_AT_ONCE = 8  # slots
_NONE, _NO_MARKS = WalMark(0, 0), Marks({}, 0)
_PART_BYTES = 1 << 20  # that are read together


class GrowingLogs:
    """The place up to which logs were read.

    Attributes:
        at: the next slot; logs of earlier epochs are at their ends.
    """

    def __init__(self) -> None:
        self.at = _NONE
        self._at_once = 1

    async def read(self, store: ObjectStore, cluster: Cluster) -> list[ReadSlot]:
        """The next slots, a few at most; none where there are none yet.

        Args:
            store: of the logs.
            cluster: says which logs there are.

        Raises:
            BadObjectError: the next slot cannot be used.
            TierError: the store is away.
        """
        mark = self._place(cluster.wals)
        if mark is None:
            return []
        numbers = range(mark.begins, mark.begins + self._at_once)
        outcomes = await each(partial(read_slot, store, mark.epoch), numbers, seconds=0)
        found: list[ReadSlot] = []
        for one in outcomes:
            if not isinstance(one, ReadSlot):
                self._at_once = 1
                if found or isinstance(one, MissingError):
                    return found  # what is wrong is met again
                raise one
            check_tier(one.slot, cluster.tier)
            self.at = WalMark(mark.epoch, one.slot.slot + 1)
            if one.slot.is_fence:
                self.at = WalMark(mark.epoch + 1, 0)
                return found or await self.read(store, cluster)
            found.append(one)
        self._at_once = min(2 * self._at_once, _AT_ONCE)
        return found

    def _place(self, marks: Iterable[WalMark]) -> WalMark | None:
        """Where to go on; None where there is no log."""
        there = (max(mark, self.at) if mark.epoch == self.at.epoch else mark for mark in marks)
        return min((mark for mark in there if mark >= self.at), default=None)


@dataclass
class Part:
    """Chunks that follow each other.

    Attributes:
        after: offset behind the chunk before.
        first, next_offset: of the first message, and behind the last one.
        position, size: in the file, in bytes.
        num_chunks: how many.
    """

    after: int
    first: int
    next_offset: int
    position: int
    size: int
    num_chunks: int

    @property
    def gap(self) -> Gap:
        """Before it, of no offsets in most cases."""
        return Gap.between(self.after, self.first)


@dataclass
class GrowingTail:
    """What logs have of a stream behind its manifest: chunks in a file, the rest in memory.

    One task at a time changes it; what blocks says so.

    Args:
        path: of the file. With each `cut` there is another one.

    Attributes:
        last_slot: that had something of it.
        offsets: of consumers, by reference; None for one that was forgotten.
        changed_offsets: of them, those that no open log has got.
        marks: of all chunks up to its end.
        last_timestamp_ms, last_chunk_id: of the last chunk; None before the first one.
    """

    key: StreamKey
    path: str
    offsets: dict[bytes, int | None] = field(default_factory=dict)
    changed_offsets: dict[bytes, int | None] = field(default_factory=dict)
    marks: Marks = _NO_MARKS
    last_timestamp_ms: int | None = None
    last_chunk_id: int | None = None
    last_slot: WalMark = _NONE
    _parts: list[Part] = field(default_factory=list)
    _generation: int = 0

    @property
    def size(self) -> int:
        """Of the file, in bytes."""
        return self._parts[-1].position + self._parts[-1].size if self._parts else 0

    def add(self, slot: WalMark, section: Section, chunks: memoryview) -> None:
        """What a slot has of it; blocks.

        Raises:
            FormatError: those are no whole chunks.
            StorageError: the disk takes nothing.
        """
        changed = {bytes.fromhex(name): at for name, at in section.offsets.items()}
        headers = [header for header, _ in chunks_in(chunks)]
        position = self.size
        if headers:
            disk = OsDisk()
            file = disk.open(self.path, writable=True) if position else disk.create(self.path)
            with closing(file):
                file.write([bytes(chunks)], position)
            self._note(
                Part(
                    section.after,
                    headers[0].chunk_id,
                    section.next_offset,
                    position,
                    len(chunks),
                    len(headers),
                )
            )
            self.last_chunk_id = headers[-1].chunk_id
            self.last_timestamp_ms = headers[-1].timestamp_ms
        self.last_slot, self.marks = slot, Marks(section.marked, section.next_offset)
        for known in (self.offsets, self.changed_offsets):
            known.update(changed)
            for reference in list(known)[: max(0, len(known) - MAX_OFFSETS)]:
                del known[reference]

    def _note(self, part: Part) -> None:
        last = self._parts[-1] if self._parts else None
        follows = last is not None and last.next_offset == part.after == part.first
        if last is None or not follows or last.size >= _PART_BYTES:
            self._parts.append(part)
            return
        last.size += part.size
        last.num_chunks += part.num_chunks
        last.next_offset = part.next_offset

    def behind(self, offset: int) -> list[Part]:
        """What follows a log that ends at an offset, without a hole; nothing where one begins."""
        found: list[Part] = []
        for part in self._parts[self._number_of(offset) :]:
            if part.after > (found[-1].next_offset if found else offset):
                break
            found.append(part)
        return found

    def _number_of(self, offset: int) -> int:
        return bisect_right(self._parts, offset, key=attrgetter("next_offset"))

    def chunks(self, parts: Iterable[Part]) -> Tail:
        """Gives the chunks of some parts, as they are now; that blocks.

        It raises StorageError where the file is gone, as it was cut twice since.
        """
        return partial(_chunks, self.path, [replace(part) for part in parts])

    def cut(self, offset: int) -> str:
        """Forget what is before an offset; blocks.

        Returns:
            The file of before, which somebody may still read; empty where nothing has changed.

        Raises:
            StorageError: the disk takes nothing.
        """
        number = self._number_of(offset)
        if not number:
            return ""
        left, before = self._parts[number:], self.path
        path = f"{before.rpartition('.')[0]}.{self._generation + 1}"
        first = left[0].position if left else self.size
        if left:
            disk = OsDisk()
            with (
                closing(disk.open(before, writable=False)) as old,
                closing(disk.create(path)) as new,
            ):
                for part in left:
                    new.write([old.read(part.size, part.position)], part.position - first)
        self._parts = [replace(part, position=part.position - first) for part in left]
        self._generation, self.path = self._generation + 1, path
        return before

    @property
    def is_empty(self) -> bool:
        """There are no chunks."""
        return not self._parts


def _chunks(path: str, parts: Sequence[Part]) -> Iterator[TailChunk]:
    if not parts:
        return  # nor a file
    with closing(OsDisk().open(path, writable=False)) as file:
        for part in parts:
            after = part.after
            for header, raw in chunks_in(memoryview(file.read(part.size, part.position))):
                yield TailChunk(after, header, bytes(raw))
                after = header.next_offset
