"""A few worlds with a tier, and that the witness misses nothing of it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fake_store import Kept
from tests.world.run import Plan, make
from tests.world.sentences_tier import SENTENCES
from tests.world.store import CLUSTER
from tests.world.test_world import _fine as _fine_messages
from tests.world.tier import Tier
from tests.world.witness import PROMISES as PROMISES_OF_MESSAGES
from tests.world.witness_tier import PROMISES, Read, Taken, TierWitness

_FOLDER = "v1/%2F/s~1"
_SEGMENT = f"{_FOLDER}/{10:020d}.1.ab.segment"


@pytest.mark.parametrize("seed", [2, 3, 5])
def test_worlds(tmp_path: Path, seed: int) -> None:
    world = make(Plan(seed, ("messages", "tier")), tmp_path)
    faults = world.run()
    assert not faults, "\n".join([*faults, *world.events])
    (tier,) = (part for part in world.parts if isinstance(part, Tier))
    assert tier.told.status


def test_a_tier_alone(tmp_path: Path) -> None:
    assert not make(Plan(1, ("tier",)), tmp_path).run()


def _object(*lines: object) -> Kept:
    return Kept("\n".join(map(json.dumps, [*lines, {"crc32": 0}])).encode(), "", 0)


_CLUSTER = {"tier": "t", "revision": 1, "epoch": 1, "since": 0, "wals": []}


def _fine() -> TierWitness:
    """What was told of a stream with one segment, all of which is stored."""
    segment = {"base": 10, "next": 13, "epoch": 1, "uid": "ab", "files": {".segment": [3, 0]}}
    head = {"stream": "s", "epoch": 1, "next_offset": 13, "tracking": None, "deleted": False}
    told = TierWitness(_fine_messages())
    told.objects = {
        CLUSTER: _object({"tier": "t", "revision": 1, "uid": "ab"}),
        f"{_FOLDER}/manifest": _object(head, segment),
        _SEGMENT: Kept(b"abc", "", 0),
        "v1/~snapshots/t/00000000000000000001.ab": _object({"cluster": _CLUSTER}),
    }
    told.named = told.manifests
    told.status = {"state": "ok", "sentence": "", "epoch": "1"}
    told.status |= {"bytes_waiting": "0", "bytes_remote": "3"}
    told.rows = [{"name": "s", "bytes_remote": "3", "sentence": ""}]
    told.restored, told.offset, told.has_offset = [(10, 12)], 11, 11
    told.reads = [Read([(0, 1, 1), (1, 1, 2), (5, 1, 6)], frozenset(), {1: 5})]
    told.taken = [Taken(30, "p:1 was confirmed")]
    told.log, told.looked = list(told.messages.log), 2
    return told


def test_all_is_fine() -> None:
    assert _fine().judge() == []


def _add(name: str, *values: object) -> Callable[[TierWitness], None]:
    return lambda told: getattr(told, name).extend(values)


def _lose_an_offset(told: TierWitness) -> None:
    told.restored.append((10, 14))


def _go_back(told: TierWitness) -> None:
    told.has_offset = 10


def _mix_lives(told: TierWitness) -> None:
    told.reads[0].seen.append((6, 2, 1))


def _lie(told: TierWitness) -> None:
    told.status["bytes_waiting"] = "1"


def _cut(told: TierWitness) -> None:
    told.objects[_SEGMENT] = Kept(b"ab", "", 0)


def _leave(told: TierWitness) -> None:
    told.objects["v1/%2F/t~1/manifest"] = _object({"stream": "t", "epoch": 1, "deleted": True})


def _keep(told: TierWitness) -> None:
    told.deleted |= told.manifests.keys()


def _lack(told: TierWitness) -> None:
    assert told.log is not None
    told.log.pop()


_BREAKS: tuple[Callable[[TierWitness], None], ...] = (
    _add("unstored", _SEGMENT),
    _add("removed", _SEGMENT),
    _add("begun", CLUSTER),
    _add("changed", CLUSTER),
    _add("taken", Taken(62, "p:1 was confirmed")),
    _add("confirmed_late", "old 1:1"),
    _add("written", CLUSTER),
    _add("accepted", "publish"),
    _add("untold", "{}"),
    _lose_an_offset,
    _go_back,
    _mix_lives,
    _add("missed", "p:1"),
    _add("hangs", "the last upload"),
    _lie,
    _cut,
    _leave,
    _keep,
    _lack,
)


@pytest.mark.parametrize(("promise", "break_it"), list(zip(PROMISES, _BREAKS, strict=True)))
def test_each_broken_promise_is_noticed(
    promise: str, break_it: Callable[[TierWitness], None]
) -> None:
    told = _fine()
    break_it(told)
    assert [fault for fault in told.judge() if fault.startswith(promise)]


def test_what_was_cut_may_be_passed_over() -> None:
    told = _fine()
    told.reads.append(Read([(1, 1, 2), (6, 1, 7)], frozenset(), {1: 4}))
    assert told.judge()


@pytest.mark.parametrize("page", SENTENCES)
def test_sentences_have_checkers(page: str) -> None:
    text = " ".join(Path("docs", page).read_text().split())
    for sentence, checker in SENTENCES[page].items():
        assert text.count(sentence) == 1, sentence
        assert checker in {*PROMISES, *PROMISES_OF_MESSAGES} or Path(checker).exists(), checker
