"""The slots of write-ahead logs that a start would have to read, and what is in them."""

from array import array
from collections import deque
from itertools import islice
from typing import NamedTuple

from segments.store.cluster import WalMark
from segments.store.object_names import StreamKey
from segments.store.wal import Slot, slot_key


class _Kept(NamedTuple):
    epoch: int
    slot: int
    size: int
    streams: "array[int]"  # by number: an hour's slots of many streams name them millions of times


class KeptSlots:
    """Slots that are in the store, those to be read first in front.

    Attributes:
        num_bytes: of all of them.
        ends: offset behind the last chunk of each stream, and the number of the last slot here that
            has stored offsets of it; 0 for none.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self.ends: dict[StreamKey, tuple[int, int]] = {}
        self._slots: deque[_Kept] = deque()
        self._num_dropped = self._num_named = 0
        self._numbers: dict[StreamKey, int] = {}

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def first_epoch(self) -> int | None:
        """Of the first slot; None without one."""
        return self._slots[0].epoch if self._slots else None

    def add(self, slot: Slot, size: int) -> None:
        """A slot, and the bytes of its object."""
        streams = array("L")
        number = self._num_dropped + len(self._slots) + 1
        for section in slot.sections:
            if section.key not in self._numbers:
                self._numbers[section.key] = self._num_named
                self._num_named += 1
            streams.append(self._numbers[section.key])
            end, last = self.ends.get(section.key, (0, 0))
            last = number if section.offsets else last
            self.ends[section.key] = max(end, section.next_offset), last
        self._slots.append(_Kept(slot.epoch, slot.slot, size, streams))
        self.num_bytes += size

    def keys(self, count: int) -> list[str]:
        """Keys of the first slots."""
        return [slot_key(one.epoch, one.slot) for one in islice(self._slots, count)]

    def keys_of(self, stream: StreamKey) -> set[str]:
        """Keys of the slots that have something of a stream."""
        number = self._numbers.get(stream)
        return {slot_key(one.epoch, one.slot) for one in self._slots if number in one.streams}

    def marks_without(
        self, count: int, marks: tuple[WalMark, ...], present: int
    ) -> tuple[WalMark, ...]:
        """What the cluster object says when the first slots are not needed any more.

        Args:
            count: so many slots.
            marks: what it says now.
            present: epoch of the log that is being written, which is named in any case.
        """
        behind = {one.epoch: one.slot + 1 for one in islice(self._slots, count)}
        left = {one.epoch for one in islice(self._slots, count, None)} | {present}
        return tuple(
            WalMark(epoch, max(begins, behind.get(epoch, 0)))
            for epoch, begins in marks
            if epoch in left
        )

    def drop(self, count: int) -> None:
        """Forget the first slots."""
        for _ in range(count):
            self.num_bytes -= self._slots.popleft().size
        self._num_dropped += count
        used: set[int] = set().union(*(one.streams for one in self._slots))
        self._numbers = {key: number for key, number in self._numbers.items() if number in used}
        ends = ((key, self.ends[key]) for key in self._numbers)
        self.ends = {
            key: (end, last if last > self._num_dropped else 0) for key, (end, last) in ends
        }
