"""The corpus, and the same few new inputs every time; `make fuzz` searches for others."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from streamd.connections.stream.session import Session
from streamd.wire.stream import codec, commands as c
from tests.fuzz import failing
from tests.fuzz.guest import TooManyTurns
from tests.fuzz.live import LOGGED_IN
from tests.fuzz.targets import BY_NAME, TARGETS, Target, close
from tests.fuzz.wire import Broken
from tests.fuzz.work import TURN

FRESH = 30


@pytest.fixture(params=TARGETS, ids=lambda target: target.name)
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    found: Target = request.param
    yield found
    failing.forget(found)


def test_the_corpus_and_a_few_more(target: Target) -> None:
    inputs = [place.read_bytes() for place in target.corpus()]
    chance = Random(0)
    fresh = [target.mutated(chance.choice(inputs), chance) for _ in range(FRESH)]
    for data in inputs:
        target.run(data or b"\0")
    with TURN.counting():  # which takes most of the time
        for data in fresh:
            TURN.next_turn()
            target.run(data or b"\0")
    close(target)


@pytest.fixture
def stream() -> Iterator[Target]:
    yield BY_NAME["stream"]
    failing.forget(BY_NAME["stream"])


DECLARE = bytes((LOGGED_IN,)) + codec.encode(c.DeclarePublisher(1, 1, "", "s"))


async def _fail(*_: object) -> None:
    raise RuntimeError("a bug")


async def _turn_for_ever(*_: object) -> None:
    while True:
        await trio.lowlevel.checkpoint()


async def _call_for_ever(*_: object) -> None:
    while True:
        _break(b"")


@pytest.mark.parametrize(
    ("work", "seen", "text"),
    [
        (_fail, Broken, "a bug"),
        (_turn_for_ever, TooManyTurns, "turns of the event loop"),
        (_call_for_ever, Broken, "calls in one turn"),
    ],
)
def test_faults_of_the_server_are_seen(
    stream: Target,
    work: Callable[..., Any],
    seen: type[Exception],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream.run(DECLARE)
    monkeypatch.setattr(Session, "handle", work)
    is_counted = work is _call_for_ever
    with TURN.counting() if is_counted else nullcontext(), pytest.raises(seen, match=text):
        stream.run(DECLARE)


def test_what_a_connection_leaves_is_seen(stream: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    stream.run(DECLARE)
    monkeypatch.setattr(Session, "close", lambda _: None)
    with pytest.raises(Broken, match="left"):
        stream.run(DECLARE)


def test_a_failure_is_kept_and_seen_again(tmp_path: Path) -> None:
    broken = BROKEN._replace(name="message")
    place = failing.keep(broken, b"\0bad", tmp_path)
    assert failing.is_broken_by(broken, [b"\0bad"])
    found, series = failing.read(place)
    assert (found.name, series) == ("message", [b"\0bad"])


def test_one_series_in_a_file(tmp_path: Path) -> None:
    place = tmp_path / "stream.1.series"
    place.write_bytes(b"\0\0\0\1a\0\0\0\2bc")
    assert failing.read(place)[1] == [b"a", b"bc"]


def _break(data: bytes) -> None:
    if b"bad" in data:
        raise ValueError


BROKEN = TARGETS[0]._replace(run=_break)
