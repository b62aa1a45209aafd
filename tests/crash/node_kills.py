"""A cluster of three whose nodes are killed, paused, wiped, stopped; every message is compared.

    python -m tests.crash.node_kills --kills 20 --seed 3 --store gofakes3

All streams are confirmed by the store. While one of the nodes is harmed, a publisher and a
consumer look for whoever serves them, and rstream publishes with a name, too. Nothing that was
confirmed may be lost, or be there twice, and what was read stays where it was, on each of the
nodes; a leader that was paused and has been taken over confirms nothing that is not there. Who
publishes, and how it is compared, says ledger.py; how long takeovers take is told at the end.
"""

import argparse
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import trio

from clients import Client, StreamError, connect
from tests.crash.ledger import ARGUMENTS, PATIENCE, Ledger
from tests.support.process import ServerProcess
from tests.support.stores import KINDS, StoreServer

_NODES = ("a", "b", "c")
_MOST_SILENCE = 1.5  # seconds, after which a client tries another node


class Harm(StrEnum):
    """What happens to a node."""

    KILL = "kill -9"
    PAUSE = "paused"
    WIPE = "wiped"
    STOP = "SIGTERM"
    STANDBY = "kill -9 of a standby"


class NodeRun:
    """A cluster.

    Attributes:
        ledger: what was published, and read.
        seconds: from the last confirm of a leader to the first one of the next, by what happened.
    """

    def __init__(self, folder: Path, seed: int, kind: str, takeover_seconds: int) -> None:
        self.ledger = Ledger(seed)
        self.seconds: dict[Harm, list[float]] = {harm: [] for harm in Harm}
        self._takeover_seconds = takeover_seconds
        self._store = StoreServer(kind, folder / "store").start()
        url = self._store.url("tier")
        options = ["--tier", url, "--tier-roll-seconds", "1", "--confirm", "store"]
        options += ["--confirm-interval-ms", "50", "--takeover-seconds", str(takeover_seconds)]
        options += ["--tier-delete-delay-seconds", "0"]
        beside = {"c": ("--metrics-port", "0")}  # its engine is a process of its own
        self._nodes = [
            ServerProcess(folder / name, "--node", name, *options, *beside.get(name, ()))
            for name in _NODES
        ]
        self._leader = self._nodes[0]

    async def run(self, kills: int, harms: tuple[Harm, ...] = tuple(Harm)) -> None:
        """Harm a node so many times; raises AssertionError when something is not as it should."""
        before = dict(os.environ)
        os.environ |= self._store.environment
        try:
            for node in self._nodes:
                await trio.to_thread.run_sync(node.start)
            assert [node.role for node in self._nodes] == ["leader", "standby", "standby"]
            async with connect(self._leader.uri) as client:
                await client.create("s", arguments=ARGUMENTS)
            for number in range(kills):
                await self._round(harms[number % len(harms)])
        finally:
            for node in self._nodes:
                if node.is_running:
                    _signal_all(node, signal.SIGCONT)
                node.end()
            self._store.kill()
            os.environ.clear()
            os.environ |= before

    async def _round(self, harm: Harm) -> None:
        async with trio.open_nursery() as nursery:
            ledger = self.ledger
            nursery.start_soon(self._anywhere, ledger.publish, lambda: ledger.last_confirm)
            nursery.start_soon(self._anywhere, ledger.follow, lambda: len(ledger.seen))
            await self._confirmed_after(0.0)
            self.ledger.rstream.start(self._leader.port)
            await trio.sleep(self.ledger.chance.uniform(0.5, 2))
            victim = await self._harm(harm)
            self.ledger.rstream.kill()
            await trio.sleep(1)  # a leader that was paused finds out that it is none
            nursery.cancel_scope.cancel()
        if not victim.is_running:
            await trio.to_thread.run_sync(victim.start)
        for node in self._nodes:
            await self._check(node)

    async def _check(self, node: ServerProcess) -> None:
        """Compare what a node has; one that only reads has it a moment later."""
        give_up_at = trio.current_time() + PATIENCE
        while True:
            before = self.ledger.num_compared
            try:
                await self.ledger.check(node.uri)
            except* (AssertionError, StreamError, OSError) as error:
                is_late = node is not self._leader and trio.current_time() < give_up_at
                if not is_late:
                    raise error from None
                self.ledger.num_compared = before
            else:
                return
            await trio.sleep(0.5)

    # -- clients

    async def _anywhere(
        self, work: Callable[[Client], Awaitable[None]], progress: Callable[[], float]
    ) -> None:
        """Do it wherever it is done, one node after the other; `progress` says whether it is."""
        while True:
            for node in self._nodes:
                if node.is_running:
                    await self._at(node, work, progress)
            await trio.sleep(0.05)

    async def _at(
        self,
        node: ServerProcess,
        work: Callable[[Client], Awaitable[None]],
        progress: Callable[[], float],
    ) -> None:
        """Do it while something comes of it: a node that stands still closes no connection."""
        async with trio.open_nursery() as nursery:

            async def use() -> None:
                await self.ledger.use(node.uri, work)
                nursery.cancel_scope.cancel()

            nursery.start_soon(use)
            known, until = progress(), trio.current_time() + _MOST_SILENCE
            while trio.current_time() < until:
                await trio.sleep(0.02)
                if progress() != known:
                    known, until = progress(), trio.current_time() + _MOST_SILENCE
                    if work == self.ledger.publish:
                        self._leader = node
            nursery.cancel_scope.cancel()

    async def _confirmed_after(self, moment: float) -> float:
        """Wait until something was confirmed after a moment; when it was."""
        with trio.fail_after(PATIENCE):
            while self.ledger.last_confirm <= moment:
                await trio.sleep(0.01)
        return self.ledger.last_confirm

    # -- harm

    async def _harm(self, harm: Harm) -> ServerProcess:
        """Harm a node, and wait until somebody confirms."""
        victim = self._leader
        if harm is Harm.STANDBY:
            victim = next(node for node in self._nodes if node is not self._leader)
        last = self.ledger.last_confirm
        match harm:
            case Harm.PAUSE:
                seconds = self.ledger.chance.uniform(1, 3 * self._takeover_seconds)
                _signal_all(victim, signal.SIGSTOP)
                last = self.ledger.last_confirm
                await trio.sleep(seconds)
                _signal_all(victim, signal.SIGCONT)
            case Harm.STOP:
                await trio.to_thread.run_sync(victim.stop)
                last = self.ledger.last_confirm
            case _:
                victim.kill()
                last = self.ledger.last_confirm
                if harm is Harm.WIPE:
                    shutil.rmtree(victim.data)
        first = await self._confirmed_after(last)
        self.seconds[harm].append(first - last)
        return victim


def _signal_all(node: ServerProcess, number: signal.Signals) -> None:
    """Signal a node's processes, its parent first."""
    for pid in _family(node.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _family(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from _family(int(child))


def kill_many(
    folder: Path,
    kills: int,
    seed: int = 1,
    kind: str = "file",
    takeover_seconds: int = 2,
    harms: tuple[Harm, ...] = tuple(Harm),
) -> str:
    """Harm nodes so many times; fails when something is not as it should be. Returns a summary."""
    run = NodeRun(folder, seed, kind, takeover_seconds)
    trio.run(run.run, kills, harms)
    lines = [f"{kills} times a node was harmed; {run.ledger.num_compared:,} messages compared"]
    for harm, found in run.seconds.items():
        if found:
            found.sort()
            half, most = found[len(found) // 2], found[min(len(found) - 1, len(found) * 99 // 100)]
            lines.append(f"{harm}: no confirm for {half:.1f} s (p50), {most:.1f} s (p99)")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="kill -9, SIGSTOP and more of three nodes.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", choices=KINDS, default="file")
    parser.add_argument("--takeover-seconds", type=int, default=10)
    parser.add_argument("--harm", choices=[harm.name for harm in Harm], nargs="*")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)  # errors of clients whose server is gone
    harms = tuple(Harm[name] for name in given.harm or Harm.__members__)
    with tempfile.TemporaryDirectory() as folder:
        arguments = given.seed, given.store, given.takeover_seconds, harms
        print(kill_many(Path(folder), given.kills, *arguments))


if __name__ == "__main__":
    main()
