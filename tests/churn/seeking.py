"""`python -m tests.churn.seeking`: nothing but seekers and a server, which may be killed.

    python -m tests.churn.seeking --seconds 120 --seekers 6 --kill-seconds 5

What was confirmed is found after each kill -9, with key files that were being made, a truncation
that was going on, and searches that go on where they were.
"""

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import trio

from tests.churn.network import Sockets
from tests.churn.outside import WorkerKiller, selecting_from, ways_to
from tests.churn.seekers import Seekers
from tests.churn.server_log import is_unexplained
from tests.support.process import ServerProcess

_MODES = ("interval", "always", "os")


class Seeking:
    """A run.

    Args:
        folder: for the server's data and log.
        seconds: how long.
        seekers: how many.
        seed: decides what they do.
        kill_seconds: until the server is killed, at most; 0 for never.

    Attributes:
        num_kills: how often the server was killed.
        seekers: what has come of it.
    """

    def __init__(
        self, folder: Path, seconds: float, seekers: int, seed: int, kill_seconds: float = 0
    ) -> None:
        self._mode = _MODES[seed % len(_MODES)]
        options = ("--http-port", "0", "--flush", self._mode, "--flush-ms", "50")
        self._server = ServerProcess(folder / "data", *options)
        self._seconds = seconds
        self._num_seekers = seekers
        self._chance = Random(f"{seed}/kills")
        self._kill_seconds = kill_seconds
        self._killer = WorkerKiller(self._server, Random(seed))
        self._end = 0.0
        self.num_kills = 0
        self.seekers = Seekers(
            Sockets(self._server),
            seed,
            ways_to(self._server),
            is_killed=kill_seconds > 0,
            select=selecting_from(self._server),
        )

    def run(self) -> list[str]:
        """What did not hold."""
        self._server.start()
        try:
            trio.run(self._run)
        finally:
            self._server.end()
        lines = self._server.log.read_text().splitlines()
        is_killed = self._kill_seconds > 0
        said = [f"the log: {line}" for line in lines if is_unexplained(line, is_killed=is_killed)]
        return [*self.seekers.faults, *said[:10]]

    def summary(self) -> str:
        """What was done."""
        total = sum(self.seekers.counts.values())
        shown = ", ".join(
            f"{kind} {outcome} {number:,}"
            for (_, kind, outcome), number in sorted(self.seekers.counts.items())
        )
        return (
            f"{total:,} operations, flush {self._mode}, {self.num_kills} kills of the server, "
            f"{self._killer.num_killed} of its worker: {shown}\n{self.seekers.summary()}"
        )

    async def _run(self) -> None:
        await self.seekers.fill()
        self._end = time.monotonic() + self._seconds
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._killer.run, self._until_end())
            if self._kill_seconds:
                nursery.start_soon(self._kill)
            await self.seekers.live(self._num_seekers, lambda _: self._until_end())
            nursery.cancel_scope.cancel()
        if not self.seekers.faults:
            try:
                await self.seekers.check()
            except Exception as error:  # noqa: BLE001 - it is one of the faults
                self.seekers.faults.append(f"in the end: {error!r}")

    def _until_end(self) -> Iterator[None]:
        while time.monotonic() < self._end and not self.seekers.has_failed:
            yield

    async def _kill(self) -> None:
        for _ in self._until_end():
            await trio.sleep(self._chance.uniform(0.2, self._kill_seconds))
            with trio.CancelScope(shield=True):
                self.seekers.is_up = trio.Event()
                self._server.kill()
                self.num_kills += 1
                await trio.to_thread.run_sync(self._server.start)
                self.seekers.is_up.set()


def main() -> None:
    """Run, print the result, and exit with 1 when something did not hold."""
    parser = argparse.ArgumentParser(description="Clients that find, and a server that is killed.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seekers", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill-seconds", type=float, default=5, help="at most, 0 for never")
    parser.add_argument("--keep", type=Path, help="an empty folder, which keeps data and log")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="streamd-seek-") as folder:
        place = given.keep or Path(folder)
        run = Seeking(place, given.seconds, given.seekers, given.seed, given.kill_seconds)
        faults = run.run()
    print(run.summary())
    print("\n".join(f"FAULT: {fault}" for fault in faults) or "everything was found")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
