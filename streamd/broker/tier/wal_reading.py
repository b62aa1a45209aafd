"""Reading write-ahead logs to their ends, and ending them: at each start, and at a restore.

Slots are read in their order, several requests at once, up to the first name that is free or a
fence. There a fence is created, so whatever the writer of that log still has under way counts for
nobody, see segments/store/wal.py. A slot that is damaged, or cannot be read, is not the end of a
log: nothing is gone on from then.

What was read is kept for each stream until its log is opened: the chunks in a file, the rest in
memory.
"""

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from segments.codec import CHUNK_HEADER_SIZE, decode_chunk_header
from segments.disk import OsDisk
from segments.errors import FormatError, SegmentsError
from segments.recovery.tail import TailChunk
from segments.store.cluster import WalMark
from segments.store.fields import Plain
from segments.store.lookup import BadObjectError
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
from streamd.broker.tier import claims
from streamd.broker.tier.identity import Identity
from streamd.broker.tier.kept_slots import KeptSlots
from streamd.broker.tier.patience import each, retry_store
from streamd.broker.tier.requests import ask
from streamd.net import threads

TAIL_FILE = "tail"  # in a stream's folder: what a store has to follow its log
_AT_ONCE = 16


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
class StoredTail:
    """What logs have of one stream.

    Attributes:
        next_offset: offset behind its last chunk.
        arguments, settings: see Section.
        offsets: of consumers, by reference; None for one that was forgotten.
        is_deleted: the stream was deleted.
        path: of the file with its chunks; empty where they are not kept.
    """

    key: StreamKey
    next_offset: int
    arguments: Plain = field(default_factory=dict)
    settings: Plain = field(default_factory=dict)
    offsets: dict[bytes, int | None] = field(default_factory=dict)
    is_deleted: bool = False
    path: str = ""
    _size: int = 0
    _afters: dict[int, int] = field(default_factory=dict)  # position of sections' first chunks

    def add(self, section: Section, part: memoryview) -> None:
        """What a slot has of it; blocks."""
        self.arguments, self.settings = dict(section.arguments), dict(section.settings)
        self.offsets.update((bytes.fromhex(name), at) for name, at in section.offsets.items())
        self.is_deleted = self.is_deleted or section.is_deleted
        self.next_offset = max(self.next_offset, section.next_offset)
        if not (part and self.path):
            return
        for _ in chunks_in(part):  # each is whole
            pass
        disk = OsDisk()
        file = disk.open(self.path, writable=True) if self._size else disk.create(self.path)
        with closing(file):
            file.write([bytes(part)], self._size)
        self._afters[self._size] = section.after
        self._size += len(part)

    def chunks(self) -> Iterator[TailChunk]:
        """Its chunks; see segments/recovery/tail.py."""
        if not self._size:
            return
        position, after = 0, 0
        with closing(OsDisk().open(self.path, writable=False)) as file:
            while position < self._size:
                after = self._afters.get(position, after)
                header = decode_chunk_header(file.read(CHUNK_HEADER_SIZE, position))
                yield TailChunk(after, header, file.read(header.total_size, position))
                position += header.total_size
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
        for section, part in zip(slot.sections, parts, strict=True):
            tail = self.streams.get(section.key)
            if tail is None:
                path = self.path_of(section.key)
                tail = StoredTail(section.key, section.after, path=path or "")
                if path:
                    OsDisk().remove(path)  # of an attempt before
                self.streams[section.key] = tail
            tail.add(section, part)
        self.slots.add(slot, size)
