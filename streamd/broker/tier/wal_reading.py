"""Reading write-ahead logs to their ends, and ending them: at each start, and at a restore.

Slots are read in their order, several requests at once, up to the first name that is free or a
fence. There a fence is created, so whatever the writer of that log still has under way counts for
nobody, see segments/store/wal.py. A slot that is damaged, or cannot be read, is not the end of a
log: nothing is gone on from then.

What was read is kept for each stream until its log is opened: the chunks in a file, the rest in
memory.
"""

from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from segments.disk import OsDisk
from segments.errors import FormatError, SegmentsError
from segments.gaps import Gap
from segments.recovery.tail import Tail, TailChunk
from segments.store.bad_object import BadObjectError
from segments.store.cluster import WalMark
from segments.store.fields import Plain
from segments.store.object_names import StreamKey
from segments.store.object_store import MissingError, ObjectStore, TierError
from segments.store.wal import (
    MOST_SLOT,
    Section,
    Slot,
    chunks_in,
    decode_slot,
    encode_slot,
    slot_key,
)
from segments.stored_part import Marks
from segments.tracking import MAX_OFFSETS, trim
from streamd.broker.tier import claims
from streamd.broker.tier.identity import Identity
from streamd.broker.tier.kept_slots import KeptSlots
from streamd.broker.tier.patience import each, retry_store
from streamd.broker.tier.requests import ask
from streamd.net import threads

TAIL_FILE = "tail"  # in a stream's folder: what a store has to follow its log
NOWHERE, _NO_MARKS = WalMark(0, 0), Marks({}, 0)
_AT_ONCE = 16
_PART_BYTES = 1 << 20  # that are read together


class ReadSlot(NamedTuple):
    """A slot, and the chunks of each of its sections."""

    slot: Slot
    parts: list[memoryview]
    size: int


def writer_of(me: Identity) -> str:
    """What a slot says of who has written it."""
    return f"{me.name}.{me.start}"


async def read_wal(
    store: ObjectStore, mark: WalMark, me: Identity
) -> AsyncGenerator[ReadSlot, None]:
    """The slots of a log that count, in their order; it has a fence at its end then.

    What is at the store's address may have been another one for a while, which has no slots: so it
    is asked in the end whether it is ours, and has the fence.

    Raises:
        BadObjectError: a slot cannot be used.
        TierError: the store is away.
    """
    number = mark.begins
    while True:
        numbers = range(number, number + _AT_ONCE)
        found = await each(partial(read_slot, store, mark.epoch), numbers)
        for number, outcome in zip(numbers, found, strict=True):
            one = outcome
            if isinstance(one, MissingError):
                one = await retry_store(_end, store, mark.epoch, number, me)
            if isinstance(one, SegmentsError):
                raise one
            check_tier(one.slot, me.tier)
            if one.slot.is_fence:
                await ask(claims.check, store, me)
                if not (await ask(read_slot, store, mark.epoch, number)).slot.is_fence:
                    key = slot_key(mark.epoch, number)
                    raise TierError(f"{key} was a fence and is none: was another store there?")
                return
            yield one
        number += 1


def read_slot(store: ObjectStore, epoch: int, number: int) -> ReadSlot:
    """A slot.

    Raises:
        MissingError: its name is free.
        BadObjectError: it cannot be used.
        TierError: the store is away.
    """
    key = slot_key(epoch, number)
    content = store.get(key, MOST_SLOT).content
    try:
        return ReadSlot(*decode_slot(key, content), len(content))
    except FormatError as error:
        raise BadObjectError(key, error) from error


def check_tier(slot: Slot, tier: str) -> None:
    """Raise BadObjectError where a slot is of another tier."""
    if slot.tier != tier:
        raise BadObjectError(slot_key(slot.epoch, slot.slot), "it is of another tier")


def _end(store: ObjectStore, epoch: int, number: int, me: Identity) -> ReadSlot:
    """End a log at a slot that was free; what is there then: a fence, or a slot that was faster."""
    fence = Slot(tier=me.tier, epoch=epoch, slot=number, writer=writer_of(me), is_fence=True)
    try:
        store.create(slot_key(epoch, number), encode_slot(fence))
    except TierError as error:
        try:
            return read_slot(store, epoch, number)
        except MissingError:
            raise TierError(str(error)) from error  # to be tried again
    return ReadSlot(fence, [], 0)


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
class StoredTail:
    """What logs have of a stream: chunks in a file, the rest in memory.

    One task at a time changes it; what blocks says so.

    Args:
        path: of the file; empty where chunks are not kept. With each `cut` there is another one.

    Attributes:
        next_offset: offset behind its last chunk.
        arguments, settings: see Section.
        offsets: of consumers, by reference; None for one that was forgotten.
        changed_offsets: of them, those that no open log has got.
        is_deleted: the stream was deleted.
        marks: of all chunks up to its end.
        last_timestamp_ms, last_chunk_id: of the last chunk; None before the first one.
        last_slot: that had something of it.
    """

    key: StreamKey
    path: str
    next_offset: int = 0
    arguments: Plain = field(default_factory=dict)
    settings: Plain = field(default_factory=dict)
    offsets: dict[bytes, int | None] = field(default_factory=dict)
    changed_offsets: dict[bytes, int | None] = field(default_factory=dict)
    is_deleted: bool = False
    marks: Marks = _NO_MARKS
    last_timestamp_ms: int | None = None
    last_chunk_id: int | None = None
    last_slot: WalMark = NOWHERE
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
        if chunks and self.path:
            self._keep(section, chunks)
        self.arguments, self.settings = dict(section.arguments), dict(section.settings)
        self.is_deleted = self.is_deleted or section.is_deleted
        self.next_offset = max(self.next_offset, section.next_offset)
        self.last_slot, self.marks = slot, Marks(section.marked, section.next_offset)
        for known in (self.offsets, self.changed_offsets):
            for name, offset in section.offsets.items():
                known.pop(bytes.fromhex(name), None)  # re-inserted last: the order is by use
                known[bytes.fromhex(name)] = offset
            trim(known, MAX_OFFSETS)

    def _keep(self, section: Section, chunks: memoryview) -> None:
        headers = [header for header, _ in chunks_in(chunks)]
        first, position, disk = headers[0].chunk_id, self.size, OsDisk()
        file = disk.open(self.path, writable=True) if position else disk.create(self.path)
        with closing(file):
            file.write([bytes(chunks)], position)
        size, end = len(chunks), section.next_offset
        self._note(Part(section.after, first, end, position, size, len(headers)))
        self.last_chunk_id = headers[-1].chunk_id
        self.last_timestamp_ms = headers[-1].timestamp_ms

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

    def chunks(self, parts: Iterable[Part] | None = None) -> Tail:
        """Gives the chunks of some parts, or of all, as they are now; that blocks.

        It raises StorageError where the file is gone, as it was cut twice since.
        """
        wanted = self._parts if parts is None else parts
        return partial(_chunks, self.path, [replace(part) for part in wanted])

    def has_before(self, offset: int) -> bool:
        """There is something for `cut` to forget."""
        return self._number_of(offset) > 0

    def cut(self, offset: int) -> str:
        """Forget what is before an offset, of which there is some; blocks.

        Returns:
            The file of before, which somebody may still read.

        Raises:
            StorageError: the disk takes nothing.
        """
        left, before = self._parts[self._number_of(offset) :], self.path
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
    def ranges(self) -> list[tuple[int, int]]:
        """First offset of what follows without a hole, and the one behind it, for each."""
        return [(part.first, part.next_offset) for part in self._parts]

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


@dataclass
class Tails:
    """What was read of all logs.

    Args:
        path_of: where the chunks of a stream are kept; None for a stream that is not here.

    Attributes:
        streams: what there is of each.
        slots: that were read.
    """

    path_of: Callable[[StreamKey], str | None]
    streams: dict[StreamKey, StoredTail] = field(default_factory=dict)
    slots: KeptSlots = field(default_factory=KeptSlots)

    async def read(self, store: ObjectStore, marks: tuple[WalMark, ...], me: Identity) -> None:
        """Read logs to their ends, that of the earliest epoch first.

        Raises:
            BadObjectError: a slot cannot be used.
            TierError: the store is away.
            StorageError: the disk takes nothing.
        """
        for mark in sorted(marks):
            if mark.epoch < me.epoch:
                async with aclosing(read_wal(store, mark, me)) as slots:
                    async for found in slots:
                        await threads.in_thread(self._take, found)

    def _take(self, found: ReadSlot) -> None:
        slot, parts, size = found
        at = WalMark(slot.epoch, slot.slot)
        for section, part in zip(slot.sections, parts, strict=True):
            tail = self.streams.get(section.key)
            if tail is None:
                path = self.path_of(section.key)
                tail = StoredTail(section.key, path or "")
                if path:
                    OsDisk().remove(path)  # of an attempt before
                self.streams[section.key] = tail
            tail.add(at, section, part)
        self.slots.add(slot, size)
