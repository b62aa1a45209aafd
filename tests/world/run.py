"""Many worlds: `python -m tests.world.run --seconds 60`.

A world in which something followed something else for the first time is changed a little and tried
again, as in fuzzing that is guided by coverage. Of a world that fails, programs and faults are
taken away as long as it still fails in the same way; what is left is printed as a test.
"""

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.world.messages import Messages
from tests.world.nodes import Nodes
from tests.world.people import People
from tests.world.tier import Tier
from tests.world.world import Fault, World

PARTS = {"messages": Messages, "tier": Tier, "people": People, "nodes": Nodes}
_BESIDE = ("messages", "tier", "people")  # of one server
_CLUSTERS = 0.15  # of worlds are three nodes

_FOLDER = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
_MOST_KEPT = 500  # worlds that are worth a change
_CHANGED = 0.5  # how often one of them is tried
_SHRINK_SECONDS = 60
_KIND = 60  # characters of what did not hold


class Plan(NamedTuple):
    """What makes a world; None is what the seed chooses."""

    seed: int
    parts: tuple[str, ...] | None = None
    only: tuple[str, ...] | None = None
    faults: tuple[Fault, ...] | None = None


class Result(NamedTuple):
    """What became of a world.

    Attributes:
        plan: with all that the seed has chosen.
        found: what did not hold.
        pairs: kinds of events that followed each other.
        events: all of them.
    """

    plan: Plan
    found: list[str]
    pairs: set[tuple[str, str]]
    events: list[str]


def parts_of(seed: int) -> tuple[str, ...]:
    """Those that a seed chooses."""
    chance = Random(f"{seed}/parts")
    if Random(f"{seed}/nodes").random() < _CLUSTERS:
        return "nodes", "messages"
    return tuple(name for name in _BESIDE if chance.random() < 0.6) or (chance.choice(_BESIDE),)


def make(plan: Plan, folder: Path) -> World:
    """The world of a plan, in an empty folder."""
    parts = [PARTS[name] for name in plan.parts or parts_of(plan.seed)]
    return World(folder, plan.seed, parts, only=plan.only, faults=plan.faults)


def run(plan: Plan) -> Result:
    """Run it."""
    with tempfile.TemporaryDirectory(prefix="streamd-world-", dir=_FOLDER) as folder:
        world = make(plan, Path(folder))
        found = world.run()
    parts = plan.parts or parts_of(plan.seed)
    whole = Plan(plan.seed, parts, tuple(world.only), tuple(world.faults))
    return Result(whole, found, world.pairs, world.events)


def shrink(plan: Plan, seconds: float = _SHRINK_SECONDS) -> Plan:
    """The least of a world that still breaks one of the promises which it breaks."""
    end = time.monotonic() + seconds
    broken = {_kind(fault) for fault in run(plan).found}
    size = max(1, len(plan.faults or ()) // 2)
    while time.monotonic() < end:
        for smaller in _smaller(plan, size):
            if broken & {_kind(fault) for fault in run(smaller).found}:
                plan = smaller
                break
            if time.monotonic() > end:
                break
        else:
            if size == 1:
                break
            size //= 2
    return plan


def _smaller(plan: Plan, size: int) -> Iterator[Plan]:
    """The same without some faults, or without a program."""
    faults, only = plan.faults or (), plan.only or ()
    for at in range(0, len(faults), size):
        yield plan._replace(faults=faults[:at] + faults[at + size :])
    for name in only if size == 1 else ():
        yield plan._replace(only=tuple(other for other in only if other != name))


def _kind(fault: str) -> str:
    """Which promise, and how it is broken: the text without its numbers."""
    return re.sub(r"\d+", "", fault)[:_KIND]


def changed(plan: Plan, chance: Random) -> Plan:
    """One that differs a little: in the order of things, or in a fault."""
    faults = list(plan.faults or ())
    at = chance.randrange(len(faults)) if faults else 0
    match chance.randrange(4):
        case 0:
            return plan._replace(seed=chance.randrange(1 << 30))
        case 1 if len(faults) > 1:
            del faults[at]
        case 2 if faults:
            faults.insert(at, faults[at]._replace(seed=chance.randrange(1 << 30)))
        case _ if faults:
            faults[at] = faults[at]._replace(after=chance.choice((0, 0.02, 0.5, 2)))
    return plan._replace(faults=tuple(faults))


class Search:
    """Worlds for some time.

    Args:
        seed: of the first; others follow it.
        names: of harms that are to be tried alone; all when there are none.
    """

    def __init__(self, seed: int, names: frozenset[str]) -> None:
        self.num_worlds = self.num_failed = 0
        self._seed = seed
        self._names = names
        self._chance = Random(f"{seed}/search")
        self._seen: set[tuple[str, str]] = set()
        self._kept: list[Plan] = []
        self._broken: set[str] = set()

    def go_on(self, count: int, seconds: float, jobs: int) -> None:
        """Run so many, or so long; print what failed."""
        end = time.monotonic() + seconds
        running: set[Future[Result]] = set()
        with ProcessPoolExecutor(jobs) as processes:
            for number in range(count):
                if time.monotonic() > end:
                    break
                running.add(processes.submit(run, self._next(number)))
                if len(running) > jobs + 1:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    self._look(done)
            self._look(wait(running).done)

    @property
    def num_pairs(self) -> int:
        return len(self._seen)

    def _next(self, number: int) -> Plan:
        if self._kept and self._chance.random() < _CHANGED:
            return changed(self._chance.choice(self._kept[-_MOST_KEPT:]), self._chance)
        plan = Plan(self._seed + number)
        if self._names:
            with tempfile.TemporaryDirectory() as folder:
                faults = make(plan, Path(folder)).faults
            plan = plan._replace(faults=tuple(f for f in faults if f.name in self._names))
        return plan

    def _look(self, done: set[Future[Result]]) -> None:
        for future in done:
            result = future.result()
            self.num_worlds += 1
            if not result.pairs <= self._seen:
                self._seen |= result.pairs
                self._kept.append(result.plan)
            if result.found:
                self.num_failed += 1
                self._tell(result)

    def _tell(self, result: Result) -> None:
        """What failed; one that breaks nothing new is not made smaller."""
        broken = {_kind(fault) for fault in result.found}
        if not broken <= self._broken:
            result = run(shrink(result.plan))
        self._broken |= broken
        print(as_test(result.plan))
        print("\n".join(f"  {fault[:300]}" for fault in result.found[:8]), flush=True)


def as_test(plan: Plan) -> str:
    """A test of the suite that runs it."""
    faults = "".join(f"\n        {fault}," for fault in plan.faults or ())
    return (
        f"def test_world_{plan.seed}() -> None:\n"
        f"    faults = ({faults}\n    )\n"
        f"    plan = Plan({plan.seed}, {plan.parts}, {plan.only}, faults)\n"
        f"    assert not run(plan).found"
    )


def main() -> None:
    """Run so many, print the faults, and exit with 1 when there were some."""
    parser = argparse.ArgumentParser(description="Worlds, at virtual time.")
    parser.add_argument("--count", type=int, default=1 << 30)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=None, help="the first; default: another one")
    parser.add_argument("--faults", default="", help="names, with commas between; default: all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--events", action="store_true", help="what happens in the world of --seed")
    given = parser.parse_args()
    seed = time.time_ns() % 1_000_000_000 if given.seed is None else given.seed
    if given.events:
        result = run(Plan(seed))
        print("\n".join([*result.events, str(result.plan), *result.found]))
        sys.exit(bool(result.found))
    search = Search(seed, frozenset(filter(None, given.faults.split(","))))
    began = time.monotonic()
    search.go_on(given.count, given.seconds, given.jobs)
    took = time.monotonic() - began
    rate = search.num_worlds / took * 60
    print(
        f"{search.num_worlds:,} worlds from seed {seed} in {took:.0f} s, {rate:,.0f} a minute, "
        f"{search.num_pairs:,} pairs of events, {search.num_failed} failed"
    )
    sys.exit(bool(search.num_failed))


if __name__ == "__main__":
    main()
