"""What was sent to streams of a tier, and what was found: each message once, in its place.

The body of a message says who sent it, and the rest of it follows from that, so what was invented
or damaged is found out. What was once read at an offset stays there, or is cut off at the front; or
it is lost with its machine, and then no other message ever gets its offset.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple
from zlib import crc32

from segments.gaps import num_lost

NUM_KINDS = 8


class Sent(NamedTuple):
    """A message: of which life of a stream, by whom, and its number there, from 1."""

    stream: str
    life: int
    producer: str
    number: int

    @property
    def kind(self) -> str:
        """Its filter value."""
        return f"k{self._code % NUM_KINDS}"

    @property
    def identity(self) -> str:
        """Its key, which no other message of the stream has."""
        return f"{self.producer}-{self.number}"

    @property
    def body(self) -> bytes:
        """Its body."""
        code = self._code
        padding = f"{code:08x}" * (2 + code % 50)
        return f"{self.stream} {self.life} {self.producer} {self.number} {padding}".encode()

    @property
    def _code(self) -> int:
        return crc32(f"{self.stream} {self.life} {self.producer} {self.number}".encode())


def read(body: bytes) -> Sent | None:
    """The message that a body is of; None for one that nobody sends."""
    try:
        stream, life, producer, number, _ = body.decode().split(" ")
        sent = Sent(stream, int(life), producer, int(number))
    except ValueError:
        return None
    return sent if sent.body == body else None


def last_missing(start: int, end: int) -> int | None:
    """The last offset from one to before another that a message must have; gaps are none."""
    lost = num_lost(start, end)
    return start + lost - 1 if lost else None


class WrongError(AssertionError):
    """A promise was broken."""


@dataclass
class Life:
    """A stream, from its creation to its deletion.

    Attributes:
        name, number: which.
        seen: what was read, by its offset.
        places: the offsets of messages.
        gone: offsets of messages that were read, and lost with a machine.
        confirmed: messages that must be there, and that nobody has read yet.
        sent: the highest number of each producer.
        first: the first offset that it had when somebody looked last; it only grows.
        stored: offsets that a consumer has stored, oldest first.
        is_emptied: all that had been read was cut off at some time, so that nothing may be there.
        num_compared: messages that were read, and were what they should be.
    """

    name: str
    number: int
    seen: dict[int, Sent] = field(default_factory=dict)
    places: dict[Sent, int] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    confirmed: set[Sent] = field(default_factory=set)
    sent: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    first: int = 0
    stored: list[int] = field(default_factory=list)
    is_emptied: bool = False
    num_compared: int = 0

    def next(self, producer: str) -> Sent:
        """The next message of a producer that does not repeat itself."""
        self.sent[producer] += 1
        return Sent(self.name, self.number, producer, self.sent[producer])

    def take(self, offset: int, body: bytes) -> Sent:
        """Compare what was read at an offset."""
        sent = read(body)
        where = f"{self.name} at offset {offset}"
        if sent is None or (sent.stream, sent.life) != (self.name, self.number):
            raise WrongError(f"{where}: {body[:60]!r} was never sent to life {self.number}")
        if sent.number > self.sent[sent.producer]:
            raise WrongError(f"{where}: {sent} was never sent")
        if offset in self.gone:
            raise WrongError(f"{where}: {sent}, where one was that is lost")
        known = self.seen.get(offset)
        if known is not None and known != sent:
            raise WrongError(f"{where}: {sent}, where {known} was")
        place = self.places.get(sent)
        if place is not None and place != offset:
            raise WrongError(f"{where}: {sent} is also at {place}")
        self.seen[offset], self.places[sent] = sent, offset
        self.confirmed.discard(sent)
        self.num_compared += 1
        return sent

    def begins(self, first: int) -> None:
        """It begins at an offset."""
        if first < self.first:
            raise WrongError(f"{self.name} begins at {first}, and began at {self.first} before")
        self.first = first

    def check_all(self, offsets: list[int], end: int, confirmed: set[Sent]) -> None:
        """All of it was read.

        Args:
            offsets: of the messages that came.
            end: behind the last message that there was before.
            confirmed: messages that were confirmed before.
        """
        first = offsets[0] if offsets else end
        if any(num_lost(before + 1, after) for before, after in pairwise(offsets)):
            raise WrongError(f"{self.name}: of offsets from {first} on some are missing")
        if offsets and offsets[-1] + 1 < end:
            raise WrongError(f"{self.name}: it ended at {offsets[-1] + 1}, expected {end}")
        numbers: dict[str, list[int]] = defaultdict(list)
        for offset in offsets:
            sent = self.seen[offset]
            numbers[sent.producer].append(sent.number)
        for producer, found in numbers.items():
            if found != sorted(set(found)):
                raise WrongError(f"{self.name}: {producer} is not in order: {found[:20]}…")
            if producer.startswith("named") and found[-1] - found[0] + 1 != len(found):
                raise WrongError(f"{self.name}: {producer} has gaps from {found[0]} on")
        for sent in confirmed & self.confirmed:
            found = numbers[sent.producer]
            if first == 0 or (found and found[0] < sent.number):
                raise WrongError(f"{self.name}: {sent} was confirmed and is lost")
        self.confirmed -= confirmed

    def is_cut_back(self, next_offset: int) -> None:
        """A new machine has it up to an offset."""
        for offset in [at for at in self.seen if at >= next_offset]:
            del self.places[self.seen.pop(offset)]
            self.gone.add(offset)
        self.confirmed.clear()
        self.stored.clear()  # an older one is there, as of the last upload
        self.first = 0

    def last_numbers(self) -> dict[str, int]:
        """The highest number that was read of each producer with a name."""
        found: dict[str, int] = {}
        for sent in self.seen.values():
            if sent.producer.startswith("named"):
                found[sent.producer] = max(found.get(sent.producer, 0), sent.number)
        return found
