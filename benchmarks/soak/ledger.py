"""What was sent, and whether what comes is that: nothing lost, invented, out of order or twice.

A message says who sent it and its number there, and everything else about it follows from these
two. So each consumer can be checked alone: of every producer the next message that it wants has to
come next.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

KINDS = tuple(f"k{n}" for n in range(10))
_PADDING = b"." * 60


class Told(NamedTuple):
    """What a message says of itself."""

    producer: str
    number: int

    @property
    def kind(self) -> str:
        """Its filter value."""
        return KINDS[self._digest % len(KINDS)]

    @property
    def is_large(self) -> bool:
        """A property for selectors."""
        return self._digest >> 8 & 1 == 1

    @property
    def _digest(self) -> int:
        return zlib.crc32(f"{self.producer}/{self.number}".encode())

    def body(self) -> bytes:
        """The message's bytes."""
        text = f"{self.producer} {self.number} ".encode() + _PADDING
        return text + b" %08x" % zlib.crc32(text)

    @property
    def properties(self) -> dict[str, str | int | bool]:
        """Its application properties."""
        return {"kind": self.kind, "large": self.is_large, "number": self.number}


def read(body: bytes) -> Told | None:
    """What a body says; None when it is not one of these messages, or damaged."""
    text, _, check = body.rpartition(b" ")
    parts = text.split(b" ")
    if len(parts) != 3 or b"%08x" % zlib.crc32(text) != check:  # noqa: PLR2004 - see Told.body
        return None
    return Told(parts[0].decode(), int(parts[1]))


Wants = Callable[[Told], bool]


@dataclass
class Producer:
    """One that publishes.

    Attributes:
        name: of it, as its messages say.
        stream: where to.
        may_repeat: a message may be stored twice when its confirm was lost.
        sent: the highest number it has given to its client.
        confirmed: all up to here are known to be stored.
    """

    name: str
    stream: str
    may_repeat: bool
    sent: int = 0
    confirmed: int = 0


class Gap(NamedTuple):
    """Messages that a consumer should have had, unless retention took them."""

    consumer: str
    stream: str
    offset: int
    text: str


@dataclass
class Ledger:
    """Producers, and what is wrong.

    Attributes:
        producers: by name.
        violations: one line each.
        gaps: not checked yet.
        taken: messages that retention took before somebody read them.
    """

    producers: dict[str, Producer] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    taken: int = 0

    def add(self, name: str, stream: str, *, may_repeat: bool) -> Producer:
        """A producer that begins."""
        producer = self.producers[name] = Producer(name, stream, may_repeat)
        return producer

    def judge_gaps(self, first_offsets: dict[str, int]) -> None:
        """Gaps of messages that are still there are losses."""
        gaps, self.gaps = self.gaps, []
        for gap in gaps:
            if first_offsets[gap.stream] > gap.offset:
                self.taken += 1
            else:
                self.violations.append(gap.text)


class Reader:
    """One consumer, checked.

    Args:
        ledger: what was sent.
        name: for messages.
        stream: it reads.
        wants: which messages it asked for.

    Attributes:
        received: messages.
        repeated: of these, came before.
        last_offset: of the last one; -1 before the first.
        last: the highest number of each producer.
    """

    def __init__(
        self, ledger: Ledger, name: str, stream: str, wants: Wants = lambda _: True
    ) -> None:
        self.name = name
        self.stream = stream
        self.received = self.repeated = 0
        self.last_offset = -1
        self.last: dict[str, int] = {}
        self._ledger = ledger
        self._wants = wants

    def take(self, body: bytes, offset: int) -> None:
        """Judge the next message."""
        told = read(body)
        where = f"{self.name} at offset {offset} of {self.stream}"
        if told is None:
            self._complain(f"{where}: {body[:40]!r} was never sent")
            return
        producer = self._ledger.producers.get(told.producer)
        if producer is None or producer.stream != self.stream or told.number > producer.sent:
            self._complain(f"{where}: {told} was never sent")
            return
        if offset <= self.last_offset:
            self._complain(f"{where}: it had come to {self.last_offset} already")
        if not self._wants(told):
            self._complain(f"{where}: {told} was not asked for")
        self._place(producer, told, offset, where)
        self.received += 1
        self.last_offset = offset

    def _place(self, producer: Producer, told: Told, offset: int, where: str) -> None:
        last = self.last.get(producer.name)
        if last is None:
            # It began somewhere; from the beginning, if nothing is missing before it.
            last = told.number - 1 if offset > 0 else 0
        if told.number <= last:
            self.repeated += 1
            if not producer.may_repeat:
                self._complain(f"{where}: {told} came twice, {last} was there")
            return
        missing = next((n for n in range(last + 1, told.number) if self._asked(producer, n)), None)
        if missing is not None:
            text = f"{where}: {told} came, but {missing} did not"
            self._ledger.gaps.append(Gap(self.name, self.stream, self.last_offset + 1, text))
        self.last[producer.name] = told.number

    def _asked(self, producer: Producer, number: int) -> bool:
        return self._wants(Told(producer.name, number))

    def _complain(self, text: str) -> None:
        self._ledger.violations.append(text)

    def has_all(self) -> bool:
        """It has come to the end of what is confirmed."""
        return not self.missing()

    def missing(self) -> list[str]:
        """What it should still get, in words."""
        found = []
        for producer in self._ledger.producers.values():
            if producer.stream != self.stream:
                continue
            numbers = range(producer.confirmed, self.last.get(producer.name, 0), -1)
            last = next((n for n in numbers if self._asked(producer, n)), None)
            if last is not None:
                had = self.last.get(producer.name, 0)
                found.append(f"{self.name}: {last} of {producer.name} did not come, only {had}")
        return found
