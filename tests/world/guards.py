"""Guards of the code, taken away one by one: each has to be missed.

    python -m tests.world.guards --only "checkpoint"

A guard is a line of the product that keeps a rule (`tests/world/guard_list.py`), and says by what
it is missed: a test, or worlds. For each a copy of the packages is made without it. There that test
has to fail, or worlds run, from seed 1 on, until one does; `--worlds` asks worlds in any case. A
guard that nothing misses is not needed, or tests and worlds are too poor. The table in the end says
what each took. With no guard taken away the same tests pass, and the same seeds find nothing: that
is tried first.
"""

import argparse
import json
import logging
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("clients", "segments", "streamd", "tests")
_BESIDE = ("tests/vectors", "docs", "README.md")  # what tests compare with
_LEFT_OUT = shutil.ignore_patterns("vectors", "*.html", "*.js")
_NAME = "tests.world.guards"
_FOLDER = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
WORLD = "world"
_LONGEST = 30  # seconds of a processor that a world may take: then it hangs
_LONGEST_TEST = 180  # seconds that a test may take on a busy machine: then it hangs
_PARTS = {
    "streamd/broker/tier/": "tier",
    "segments/store/": "tier",
    "streamd/broker/nodes/": "nodes",
    "streamd/auth/": "people",
    "streamd/broker/catalog/": "people",
}
_LONGEST_VIRTUAL = 400  # of the world's clock: who waits so long waits for ever


class Guard(NamedTuple):
    """A rule of the code, and how it is taken away.

    Attributes:
        rule: what holds thanks to it.
        file: where it is.
        old: its text, which is there once.
        new: what stands there without it.
        kin: faults that readers have found, of which it is the mend.
        by: what misses it: a test as pytest names it, or worlds.
        part: of the world that misses it; empty for that of its file, see `_PARTS`.
    """

    rule: str
    file: str
    old: str
    new: str
    kin: str = ""
    by: str = WORLD
    part: str = ""

    @property
    def world(self) -> str:
        """The part of the world that misses it."""
        known = (part for folder, part in _PARTS.items() if self.file.startswith(folder))
        return self.part or next(known, "messages")

    def removed_from(self, text: str) -> str:
        """The file without the guard.

        Raises:
            ValueError: the guard is not there, or more than once.
        """
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.rule}: {self.file} has it {found} times")
        return text.replace(self.old, self.new)


class Outcome(NamedTuple):
    """What a test or worlds have found without a guard.

    Attributes:
        seed: the first that has found something; 0 for none. A test is one world.
        num_worlds: that ran.
        seconds: of a processor that they took.
        fault: what was found first.
    """

    seed: int
    num_worlds: int
    seconds: float
    fault: str


NOTHING = Guard("no guard is taken away", "", "", "")


def without(guard: Guard, folder: Path) -> None:
    """Put the packages into a folder, without a guard."""
    for package in _PACKAGES:
        shutil.copytree(_ROOT / package, folder / package, ignore=_LEFT_OUT)
    shutil.copy(_ROOT / "pyproject.toml", folder)
    for name in _BESIDE:
        (folder / name).symlink_to(_ROOT / name)
    if guard.file:
        path = folder / guard.file
        path.write_text(guard.removed_from(path.read_text()))


def find(guard: Guard, seeds: Sequence[int]) -> Outcome:
    """Run worlds without a guard, in a process of their own, until one finds something."""
    worker = _run(guard, _NAME, "--part", guard.world, "--worker", *map(str, seeds))
    seconds, num_worlds, fault = 0.0, 0, ""
    for line in worker.stdout.splitlines():
        number, took, fault = json.loads(line)
        num_worlds, seconds = num_worlds + 1, seconds + took
        if fault:
            return Outcome(number, num_worlds, seconds, fault)
    told = worker.stderr.strip().splitlines()
    if worker.returncode > 0 and told:  # it cannot even be imported, say
        return Outcome(seeds[num_worlds], num_worlds + 1, seconds, f"the process ended: {told[-1]}")
    end = f"the process ended with {worker.returncode}" if worker.returncode else ""
    return Outcome(0, num_worlds, seconds, end)  # somebody has killed it


def fail(guard: Guard, tests: Sequence[str], longest: float = _LONGEST_TEST) -> Outcome:
    """Run tests without a guard, until one fails, or they take `longest` seconds each."""
    began = time.monotonic()
    given = ("-x", "-q", "-p", "no:cacheprovider", "--tb=no", "--hypothesis-profile", "unshrunk")
    try:
        ended = _run(guard, "pytest", *given, *tests, longest=longest * len(tests))
    except subprocess.TimeoutExpired as error:
        return Outcome(1, 1, error.timeout, f"it hangs: {', '.join(tests)}"[:200])
    seconds, told = time.monotonic() - began, ended.stdout.strip().splitlines() or [""]
    if ended.returncode > 1:
        return Outcome(0, 1, seconds, f"pytest ended with {ended.returncode}: {told[-1]}")
    failed = next((line for line in told if line.startswith(("FAILED", "ERROR"))), "")
    return Outcome(ended.returncode, 1, seconds, failed)


def _run(
    guard: Guard, module: str, *given: str, longest: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a module of the copy; with what it has started it ends after `longest` seconds.

    Raises:
        subprocess.TimeoutExpired: it has taken longer.
    """
    with tempfile.TemporaryDirectory(prefix="streamd-guard-", dir=_FOLDER) as folder:
        without(guard, Path(folder))
        with subprocess.Popen(
            [sys.executable, "-m", module, *given],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": folder, "PYTHONHASHSEED": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as running:
            try:
                told = running.communicate(timeout=longest)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                raise
            return subprocess.CompletedProcess(given, running.returncode, *told)


def _work(part: str, seeds: Sequence[int]) -> None:
    """Run worlds, and print what each has found; ends with the first that has found something."""
    from tests.world import run as worlds, world  # noqa: PLC0415 - of the copy

    world._LONGEST, world._LONGEST_WORK = _LONGEST_VIRTUAL, _LONGEST
    worlds._FOLDER = os.getcwd()  # what has to be killed leaves its folder
    logging.getLogger().addHandler(logging.NullHandler())
    for seed in seeds:
        began = time.process_time()

        def give_up(*_: object, seed: int = seed) -> None:
            print(json.dumps([seed, _LONGEST, "the world hangs"]), flush=True)
            os._exit(0)

        signal.signal(signal.SIGALRM, give_up)
        signal.setitimer(signal.ITIMER_REAL, 10 * _LONGEST)  # it waits, say
        fault = next(iter(worlds.run(worlds.Plan(seed, _parts(part, seed))).found), "")
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps([seed, time.process_time() - began, fault]), flush=True)
        if fault:
            return


def _parts(part: str, seed: int) -> tuple[str, ...]:
    if part == "nodes":
        return part, "messages"
    return (part,) if seed % 2 or part == "messages" else ("messages", part)


def _try(seeds: Sequence[int], in_worlds: bool, guard: Guard) -> Outcome:
    """Say what is found without it."""
    is_world = in_worlds or guard.by == WORLD
    found = find(guard, seeds) if is_world else fail(guard, [guard.by])
    place = f"seed {found.seed}" if found.seed else "NOT FOUND"
    what = f"{found.num_worlds} worlds, {found.seconds:.0f} s"
    print(f"{guard.file}: {guard.rule}: {place}, {what}: {found.fault[:200]}", flush=True)
    return found


def _rows(guards: Sequence[Guard], outcomes: Sequence[Outcome]) -> Iterator[str]:
    """A table for a page."""
    yield "| Guard | Kin | File | Seeds | What is found without it |"
    yield "|---|---|---|---|---|"
    for guard, found in zip(guards, outcomes, strict=True):
        seeds = str(found.num_worlds) if found.seed else f"not in {found.num_worlds}"
        yield f"| {guard.rule} | {guard.kin} | {guard.file} | {seeds} | {found.fault[:120]} |"


def main() -> None:
    """Take guards away one by one, print what was found, and a table; fails if some was not."""
    from tests.world.guard_list import GUARDS  # noqa: PLC0415 - which needs this module

    parser = argparse.ArgumentParser(description="Worlds without a guard each.")
    parser.add_argument("--only", default="", help="guards with this in their rule or file")
    parser.add_argument("--worlds", action="store_true", help="also for what a test misses")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=1, help="seed")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--bare", action="store_true", help="do not try it with all guards first")
    parser.add_argument("--table", type=Path, help="write a table here")
    parser.add_argument("--part", default="messages", help=argparse.SUPPRESS)
    parser.add_argument("--worker", nargs="+", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        _work(given.part, given.worker)
        return
    seeds = range(given.first, given.first + given.seeds)
    guards = [g for g in GUARDS if given.only in f"{g.file}: {g.rule} {g.kin}"]
    if not given.bare:
        tests = sorted({guard.by for guard in guards} - {WORLD})
        found = find(NOTHING, seeds) if given.worlds or not tests else fail(NOTHING, tests)
        print(f"{NOTHING.rule}: {found.fault or 'nothing is found'}", flush=True)
        if found.seed:
            sys.exit(1)
    with ThreadPoolExecutor(given.jobs) as jobs:
        outcomes = list(jobs.map(partial(_try, seeds, given.worlds), guards))
    if given.table:
        given.table.write_text("\n".join(_rows(guards, outcomes)) + "\n")
    found_in = [outcome.num_worlds for outcome in outcomes if outcome.seed]
    median = statistics.median(found_in) if found_in else 0
    print(f"{len(found_in)} of {len(guards)} found, median {median:g} seeds")
    sys.exit(len(found_in) < len(guards))


if __name__ == "__main__":
    main()
