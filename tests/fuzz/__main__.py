"""`python -m tests.fuzz`: a search for inputs that break the server, as long as you like."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import click

from tests.fuzz import failing
from tests.fuzz.targets import CORPUS, TARGETS, Target

FAILURES = Path("fuzz-failures")
_SECONDS_FOR_ONE = 120  # wall clock, and only here: an input that takes longer is kept
_MEMORY = "/dev/shm"  # a folder without a disk, on Linux
_MEMORY_MB = 3_000
_COVERAGE = re.compile(r"cov: (\d+) ft: (\d+)")
_NUMBER = re.compile(r"^#(\d+)\s", re.MULTILINE)
_FAILED = re.compile(r"^python -m tests\.fuzz (\S+)$", re.MULTILINE)


class Outcome(NamedTuple):
    """The end of one search."""

    name: str
    tried: int
    seconds: float
    covered: int
    new: int
    failures: list[str]
    text: str


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("files", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--count", type=int, help="Inputs, of all targets together.")
@click.option("--seconds", type=float, help="Instead: as many as can be tried.")
@click.option("--seed", default=None, type=int, help="Of a run before; else one of its own.")
@click.option("--jobs", default=2, show_default=True, help="Processes at the same time.")
@click.option("--only", type=click.Choice([t.name for t in TARGETS]), multiple=True)
@click.option("--keep", is_flag=True, help="Add inputs that reach new code to the corpus.")
def main(
    files: Sequence[Path],
    count: int | None,
    seconds: float | None,
    seed: int | None,
    jobs: int,
    only: Sequence[str],
    keep: bool,
) -> None:
    """Send changed conversations to a server, and check that it survives them.

    With FILES, of failures or of the corpus, try these again and nothing else.
    """
    if files:
        for place in files:
            target, series = failing.read(place)
            failing.try_series(target, series)
            print(f"{place}: nothing is broken")
        return
    seed = time.time_ns() % 1_000_000_000 if seed is None else seed
    print(f"seed {seed}", flush=True)
    FAILURES.mkdir(exist_ok=True)
    chosen = [target for target in TARGETS if not only or target.name in only]
    memory = _MEMORY if Path(_MEMORY).is_dir() else None
    with tempfile.TemporaryDirectory(prefix="streamd-fuzz-", dir=memory) as folder:
        search = _Search(Path(folder), seed or 1, count, seconds, jobs, chosen)
        with ThreadPoolExecutor(jobs) as pool:
            outcomes = []
            for outcome in pool.map(search.run, chosen):
                print(_row(outcome), flush=True)
                outcomes.append(outcome)
        tried = sum(outcome.tried for outcome in outcomes)
        took = max(0.001, sum(outcome.seconds for outcome in outcomes))
        print(f"together: {tried:,} inputs, {tried / took * min(jobs, len(chosen)):,.0f} a second")
        if keep:
            for target in chosen:
                print(f"{target.name}: {search.keep(target)} inputs in the corpus")
    failures = [place for outcome in outcomes for place in outcome.failures]
    for outcome in outcomes:
        if outcome.failures:
            print(outcome.text)
    if not failures and not any(FAILURES.iterdir()):
        FAILURES.rmdir()
    for failure in failures:
        print(f"again: python -m tests.fuzz {failure}")
    sys.exit(bool(failures))


def _row(outcome: Outcome) -> str:
    return (
        f"{outcome.name}: {outcome.tried:,} inputs in {outcome.seconds:.0f} s, "
        f"{outcome.tried / max(outcome.seconds, 0.001):,.0f} a second, {outcome.covered:,} places "
        f"in the code reached, {outcome.new} new inputs, {len(outcome.failures)} failures"
    )


class _Search:
    """All processes of one run."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        count: int | None,
        seconds: float | None,
        jobs: int,
        chosen: Sequence[Target],
    ) -> None:
        self._folder = folder
        self._seed = seed
        self._shares = sum(target.share for target in chosen)
        self._count = count
        default = 60.0 if count is None else None
        whole = default if seconds is None else seconds
        self._seconds = None if whole is None else whole * min(jobs, len(chosen)) / len(chosen)

    def run(self, target: Target) -> Outcome:
        """Search with one target."""
        new = self._folder / "new" / target.name
        new.mkdir(parents=True)
        limits = []
        if self._count is not None:
            limits.append(f"-runs={round(self._count * target.share / self._shares)}")
        if self._seconds is not None:
            limits.append(f"-max_total_time={max(1, round(self._seconds))}")
        started = time.perf_counter()
        code, text = self._libfuzzer(target, *limits, str(new), str(CORPUS / target.name))
        took = time.perf_counter() - started
        failures = _FAILED.findall(text)
        if code and not failures:  # a hang, too much memory, or the search itself
            failures = [*map(str, FAILURES.glob(f"{target.name}.*-*")), "and see above"]
        found = _COVERAGE.findall(text)
        numbers = _NUMBER.findall(text)
        return Outcome(
            target.name,
            int(numbers[-1]) if numbers else 0,
            took,
            int(found[-1][0]) if found else 0,
            len(list(new.iterdir())),
            failures,
            text,
        )

    def _libfuzzer(self, target: Target, *options: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "tests.fuzz.guided", target.name, str(FAILURES)]
        command += [
            f"-seed={self._seed}",
            f"-max_len={target.largest}",
            "-len_control=0",
            "-verbosity=1",
        ]
        command += [f"-timeout={_SECONDS_FOR_ONE}", f"-rss_limit_mb={_MEMORY_MB}"]
        command += [f"-artifact_prefix={FAILURES}/{target.name}.", *options]
        environment = {**os.environ, "PYTHONHASHSEED": "0", "TMPDIR": str(self._folder)}
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            env=environment,
        )
        return done.returncode, done.stdout

    def keep(self, target: Target) -> int:
        """Make the corpus the fewest small inputs that reach all that is reached."""
        made = self._folder / "kept" / target.name
        made.mkdir(parents=True)
        new = self._folder / "new" / target.name
        merge = ("-set_cover_merge=1", str(made), str(CORPUS / target.name), str(new))
        code, text = self._libfuzzer(target, *merge)
        if code:
            raise click.ClickException(text)
        place = CORPUS / target.name
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(made, place)
        return len(list(place.iterdir()))


if __name__ == "__main__":
    main()
