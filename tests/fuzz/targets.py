"""What is fuzzed: conversations of four protocols; three of these and stored bytes as functions."""

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.fuzz import frames, live, stored, values, wire
from tests.fuzz.mutate import ChangeValue, Fix, changed
from tests.fuzz.requests import changed_requests
from tests.fuzz.spare import SPARE_COMMANDS, SPARE_METHODS, SPARE_PERFORMATIVES

CORPUS = Path(__file__).parent / "corpus"
_MOST_FRAMES = 40

Change = Callable[[Sequence[bytes], Random], list[bytes]]


class Target(NamedTuple):
    """One thing to be fuzzed.

    Attributes:
        name: of its folder in the corpus.
        share: of the inputs that are tried.
        largest: bytes that one may have: long conversations find no more than short ones.
        run: tries an input; raises if something is broken.
        split: takes an input's bytes apart into frames.
        change: makes other frames of these.
    """

    name: str
    share: float
    largest: int
    run: Callable[[bytes], None]
    split: Callable[[bytes], list[bytes]]
    change: Change

    def mutated(self, data: bytes, chance: Random) -> bytes:
        """Another input from this one."""
        if not data:
            data = b"\x80"
        arrival = data[0] if chance.random() < 0.8 else chance.randrange(256)
        parts = self.split(data[1:])
        if parts:
            parts = self.change(parts, chance)
        return bytes((arrival,)) + b"".join(
            parts[: _MOST_FRAMES if chance.random() < 0.99 else None]
        )

    def crossed(self, one: bytes, other: bytes, chance: Random) -> bytes:
        """An input from two: the beginning of one, and some of the other."""
        first, second = self.split(one[1:]), self.split(other[1:])
        start = chance.randint(0, len(second))
        some = second[start : start + chance.randint(1, 10)]
        at = chance.randint(0, len(first))
        return one[:1] + b"".join([*first[:at], *some, *first[at:]])

    def corpus(self) -> list[Path]:
        """The inputs that are kept."""
        return sorted((CORPUS / self.name).iterdir())


def _changes(fix: Fix, spare: Sequence[bytes], change: ChangeValue) -> Change:
    return lambda parts, chance: changed(parts, chance, fix, spare, change)


_change_stream = _changes(frames.with_size, SPARE_COMMANDS, values.change_stream)
_change_amqp = _changes(frames.with_size_and_end, SPARE_METHODS, values.change_amqp)
_change_amqp10 = _changes(frames.with_whole_size, SPARE_PERFORMATIVES, values.change_amqp10)
_change_bytes = _changes(bytes, (), lambda part, _: part)


def _whole(data: bytes) -> list[bytes]:
    return [data]


STREAM = live.Conversations(live.connect_stream, live.STREAM_LOGIN, frames.stream_frames)
AMQP = live.Conversations(live.connect_amqp, live.AMQP_LOGIN, frames.amqp_frames)
AMQP10 = live.Conversations(live.connect_amqp, live.AMQP10_LOGIN, frames.amqp10_frames)
HTTP = live.Conversations(live.connect_http, b"", frames.http_requests)

TARGETS = (
    Target("stream", 0.02, 2_000, STREAM, frames.stream_frames, _change_stream),
    Target("amqp", 0.02, 2_000, AMQP, frames.amqp_frames, _change_amqp),
    Target("amqp10", 0.02, 2_000, AMQP10, frames.amqp10_frames, _change_amqp10),
    Target("http", 0.01, 2_000, HTTP, frames.http_requests, changed_requests),
    Target("stream-wire", 0.25, 1_000, wire.try_stream, frames.stream_frames, _change_stream),
    Target("amqp-wire", 0.25, 1_000, wire.try_amqp, frames.amqp_frames, _change_amqp),
    Target("amqp10-wire", 0.18, 1_000, wire.try_amqp10, frames.amqp10_frames, _change_amqp10),
    Target("message", 0.2, 500, wire.try_message, _whole, _change_bytes),
    Target("columns", 0.05, 2_000, stored.try_columns, _whole, _change_bytes),
)
BY_NAME = {target.name: target for target in TARGETS}


def close(target: Target, *, is_whole: bool = True) -> None:
    """End the server that a target may have: there can be one at a time."""
    if isinstance(target.run, live.Conversations):
        target.run.close(is_whole=is_whole)
