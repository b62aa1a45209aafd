"""The corpus, and the same few new inputs every time; `make fuzz` searches for others."""

import logging
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.fuzz import failing
from tests.fuzz.targets import TARGETS, Target, close
from tests.fuzz.work import TURN

FRESH = 30


@pytest.fixture(params=TARGETS, ids=lambda target: target.name)
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    found: Target = request.param
    yield found
    failing.forget(found)


def test_the_corpus_and_a_few_more(target: Target, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1)
    inputs = [place.read_bytes() for place in target.corpus()]
    chance = Random(0)
    fresh = [target.mutated(chance.choice(inputs), chance) for _ in range(FRESH)]
    with TURN.counting():
        for data in inputs + fresh:
            TURN.next_turn()
            target.run(data or b"\0")
        close(target)


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
