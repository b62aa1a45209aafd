"""A few worlds, and that the witness misses nothing."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from tests.world import world as worlds
from tests.world.run import Plan, make
from tests.world.witness import PROMISES, Block, Follower, Found, Seen, Sent, Walk, Witness
from tests.world.world import Program, World

_A, _B, _C = (Sent("p", number) for number in range(3))


@pytest.mark.parametrize("seed", range(1, 7))
def test_worlds(tmp_path: Path, seed: int) -> None:
    world = make(Plan(seed, ("messages",)), tmp_path)
    faults = world.run()
    assert not faults, "\n".join([*faults, *world.events])
    assert len(world.witness.log) > len(world.witness.followers)


def test_a_seed_makes_one_world() -> None:
    """In whatever order sets have what they hold."""
    command = (sys.executable, "-m", "tests.world.run", "--events", "--seed", "9002")
    first, again = (
        subprocess.check_output(command, env=os.environ | {"PYTHONHASHSEED": h}) for h in ("1", "2")
    )
    folder = re.compile(rb"streamd-world-\w+")
    assert folder.sub(b"", first) == folder.sub(b"", again)


def _fine() -> Witness:
    """What was told of three messages."""
    log = [Seen(10, _A), Seen(11, _B), Seen(12, _C)]
    told = Witness("always", sent=dict.fromkeys((_A, _B, _C), 0.0), named={"p"}, log=log)
    told.confirm([_A, _B, _C], 1)
    told.followers["all"] = Follower(lambda _: True, list(log))
    told.found.append(Found(_A, [Seen(10, _A)]))
    told.walks.append(Walk(lambda _: True, {_A, _B, _C}, list(log), is_newest_first=False))
    told.stored["all"], told.stored_at_end["all"] = [(1, 11)], 11
    told.figures |= {"messages": 3, "committed_offset": 12}
    return told


def test_all_is_fine() -> None:
    assert _fine().judge() == []


def _lose(told: Witness) -> None:
    del told.log[1]


def _invent(told: Witness) -> None:
    told.log.append(Seen(13, Sent("p", 9)))
    told.followers["all"].seen.append(told.log[-1])


def _double(told: Witness) -> None:
    told.log.append(Seen(13, _A))


def _leave_a_gap(told: Witness) -> None:
    told.confirmed.clear()
    del told.log[1]


def _mean_two(told: Witness) -> None:
    told.followers["all"].seen.append(Seen(10, _B))


def _pass_over(told: Witness) -> None:
    del told.followers["all"].seen[1]


def _give_too_much(told: Witness) -> None:
    told.followers["all"].wants = lambda sent: sent != _B


def _give_twice(told: Witness) -> None:
    told.followers["all"].begins(0)
    told.followers["all"].seen += [Seen(12, _C), Seen(12, _C)]


def _take_back(told: Witness) -> None:
    told.followers["all"].seen.append(Seen(13, Sent("q", 1)))


def _miss(told: Witness) -> None:
    told.found[0].results.clear()


def _come_back(told: Witness) -> None:
    told.asked = told.begin = 11


def _pass_over_in_a_walk(told: Witness) -> None:
    del told.walks[0].results[1]


def _forget(told: Witness) -> None:
    told.stored_at_end["all"] = 10


def _count_wrong(told: Witness) -> None:
    told.figures["messages"] = 4


def _go_back(told: Witness) -> None:
    told.blocks.append(Block("lone", [told.log[1], told.log[0]]))


def _end_too_early(told: Witness) -> None:
    told.unconfirmed.add(_C)


_BREAKS = (
    _lose,
    _invent,
    _double,
    _leave_a_gap,
    _mean_two,
    _pass_over,
    _give_too_much,
    _give_twice,
    _take_back,
    _miss,
    _pass_over_in_a_walk,
    _forget,
    _count_wrong,
    _come_back,
    _go_back,
    _end_too_early,
)


@pytest.mark.parametrize(("promise", "break_it"), list(zip(PROMISES, _BREAKS, strict=True)))
def test_each_broken_promise_is_noticed(promise: str, break_it: Callable[[Witness], None]) -> None:
    told = _fine()
    break_it(told)
    assert [fault for fault in told.judge() if fault.startswith(promise)]


class _Part:
    """Has had something confirmed, and does one thing.

    Args:
        programs: by name.
        look: its last one.
    """

    is_kept = False

    def __init__(self, world: World, programs: dict[str, Program], look: Program) -> None:
        world.witness.sent[_A] = 0
        world.witness.confirm([_A], 1)
        self._programs, self.settle = programs, look

    async def prepare(self) -> None:
        pass

    def programs(self) -> dict[str, Program]:
        return self._programs

    def harms(self) -> dict[str, Program]:
        return {}

    async def finish(self) -> None:
        pass


async def _raise() -> None:
    raise LookupError("a bug")


@pytest.mark.parametrize(
    ("work", "look", "expected"),
    [
        (trio.sleep_forever, trio.lowlevel.checkpoint, "these wait for ever: work"),
        (trio.lowlevel.checkpoint, trio.sleep_forever, "these wait for ever: the last look"),
        (_raise, trio.lowlevel.checkpoint, "the world ended: LookupError('a bug')"),
    ],
)
def test_without_a_last_look_nothing_counts_as_lost(
    tmp_path: Path, work: Program, look: Program, expected: str
) -> None:
    """Only what was noticed on the way is told beside the reason."""
    world = World(tmp_path, 1, [lambda w: _Part(w, {"work": work}, look)], faults=())
    world.witness.faults.append("noticed: on the way")
    told = f"{expected}: no last look, no promise is judged"
    assert world.run() == [told, "noticed: on the way"]


def test_a_world_that_turns_round_and_round_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def turn_for_ever() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    look = trio.lowlevel.checkpoint
    monkeypatch.setattr(worlds, "_LONGEST_WORK", 0.5)
    world = World(tmp_path, 1, [lambda w: _Part(w, {"work": turn_for_ever}, look)], faults=())
    (told,) = world.run()
    assert told.startswith("these wait for ever: work")


def test_with_a_last_look_it_counts(tmp_path: Path) -> None:
    look = trio.lowlevel.checkpoint
    world = World(tmp_path, 1, [lambda w: _Part(w, {"work": look}, look)], faults=())
    assert world.run() == ["nothing confirmed is lost: p:0 was confirmed and is not there"]


def test_what_a_power_failure_may_take() -> None:
    told = _fine()
    told.flushes = "interval"
    told.lose_power(2)
    del told.log[2]
    told.figures |= {"messages": 2, "committed_offset": 11}
    assert told.judge() == []


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_machine_that_is_switched_off(*, is_killed: bool) -> None:
    """What a killed process has left may go, when nobody has opened it before."""
    told = _fine()
    told.flushes = "interval"
    told.confirmed = dict.fromkeys(told.sent, 1.0)
    if is_killed:
        told.kill(1.5)
    told.switch_off()
    _lose(told)
    assert any("nothing confirmed is lost" in fault for fault in told.judge()) is not is_killed


def test_what_a_power_failure_could_leave() -> None:
    told = _fine()
    assert told.would_find(told.log, 2) == []
    assert told.would_find(told.log[:2], 2)
    told.flushes = "interval"
    assert told.would_find(told.log[:2], 2) == []
    assert told.would_find(told.log[:2], 9)
    assert told.lost == set()
