"""One run of the world: its seed decides what everybody does, and what goes wrong when.

    python -m tests.world.run --count 200 --seed 1

Clients publish, follow, search and truncate; meanwhile the server is killed, loses power, finds its
disk full or broken, connections are cut and programs end in the middle. The witness judges what
everybody was told. A seed repeats what is asked for and what goes wrong, but not each step: some
sets are in the order of addresses.
"""

import argparse
import logging
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from clients import ConnectionLost
from segments.derived import key_schedule
from segments.derived.key_files import KeyJob, make_table
from segments.derived.key_worker import Answer
from segments.disk import OsDisk
from streamd.net import threads
from streamd.server import StartError
from tests.support.amqp import AmqpPeer, connect as connect_amqp
from tests.support.client import Network
from tests.support.server import harness
from tests.support.syncs import work_beside
from tests.world.actors import KINDS, TONES, Actors
from tests.world.machine import Machine
from tests.world.witness import Sent, Witness

_DELAYS = (0, 0, 0, 0.001, 0.01, 0.1)  # seconds that work in a thread takes
_PAUSES = (0.05, 0.3, 1, 3)  # between faults
_AWAY = (0.01, 0.5, 8)  # seconds until a server is started again
_SQL = "kind = 'k2' AND tone = 't1'"
_SECONDS = 20  # of virtual time with faults
_LONGEST = 600  # until everything must have ended
_FOLDER = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class _AmqpLine:
    """A connection that can break; see tests.support.client.MemoryByteStream."""

    def __init__(self, peer: AmqpPeer) -> None:
        self._stream = peer.stream

    def kill(self) -> None:
        """Break it."""
        self._stream.send_stream.close()
        self._stream.receive_stream.close()


class World:
    """See above."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.seed = seed
        self._chance = Random(seed)
        self._machine = Machine(folder, Random(f"{seed}/machine"))
        self._flush = self._chance.choice(("always", "interval"))
        self.witness = Witness(self._flush)
        self.actors = Actors(self.witness, Random(f"{seed}/actors"))
        self.events: list[str] = []
        self._serving = trio.CancelScope()
        self._is_over = False
        self._waiting: set[str] = set()  # clients that have not ended
        self._patch = pytest.MonkeyPatch()

    def run(self) -> list[str]:
        """What did not hold; empty when everything did."""
        trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[attr-defined]
        trio._core._run._r.seed(self.seed)  # type: ignore[attr-defined]
        random.seed(self.seed)
        limits = key_schedule.SPARE_BYTES, key_schedule.FEW_BYTES
        key_schedule.SPARE_BYTES, key_schedule.FEW_BYTES = 20_000, 1
        try:
            with self._machine.running():
                trio.run(self._run, clock=MockClock(autojump_threshold=0))
        except BaseExceptionGroup as group:
            self.witness.faults.append(f"the world ended: {_leaves(group)}")
        finally:
            key_schedule.SPARE_BYTES, key_schedule.FEW_BYTES = limits
            self._patch.undo()
        return self.witness.judge()

    async def _run(self) -> None:
        with trio.move_on_after(_LONGEST) as limit:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._serve)
                await self.actors.create()
                await self._act()
                self._is_over = True
                self._serving.cancel()
        if limit.cancelled_caught:
            waiting = ", ".join(sorted(self._waiting))
            self.witness.faults.append(f"these wait for ever: {waiting}")

    # -- the server

    async def _serve(self, task_status: trio.TaskStatus[None]) -> None:
        is_first = True
        while not self._is_over:
            with trio.CancelScope() as self._serving, suppress(StartError):
                async with harness(
                    self._machine.data, is_polled=True, flush=self._flush, http_port=None
                ) as server:
                    threads.in_thread = self._in_thread  # the harness puts the real one back
                    server.server.broker._resources.keys.worker.make = self._make  # type: ignore
                    if is_first:
                        self._network = Network(server, self._patch)
                        task_status.started()
                        is_first = False
                    self._network.server, self._network.is_away = server, False
                    await trio.sleep_forever()
            if not self._is_over:
                await trio.sleep(self._chance.choice(_AWAY))

    async def _dial_amqp(self) -> AmqpPeer:
        await trio.lowlevel.checkpoint()
        if self._network.is_away:
            raise ConnectionLost("nobody is there")
        peer = connect_amqp(self._network.server)
        self._network.streams.append(_AmqpLine(peer))  # type: ignore[arg-type]
        return peer

    async def _in_thread(self, work: Callable[..., Any], *arguments: object) -> Any:
        await trio.lowlevel.checkpoint()
        with trio.CancelScope(shield=True):  # a thread cannot be cancelled
            await trio.sleep(self._chance.choice(_DELAYS))
            try:
                return work_beside(work, *arguments)
            finally:
                await trio.sleep(self._chance.choice(_DELAYS))

    async def _make(self, job: KeyJob) -> Answer:
        """What the process that makes key tables does."""
        await self._in_thread(make_table, OsDisk(), job)
        return Answer()

    # -- what happens

    async def _act(self) -> None:
        actors = self.actors
        async with trio.open_nursery() as nursery:

            def begin(name: str, work: Callable[..., Any], *given: Any, **named: Any) -> None:
                async def act() -> None:
                    await work(*given, **named)
                    self._waiting.discard(name)

                self._waiting.add(name)
                nursery.start_soon(act)

            begin("all", actors.follow, "all", lambda _: True)
            begin("own", actors.follow, "own", lambda _: True, keeps_itself=True)
            one, both = _has(kind=1), _has(kind=2, tone=1)
            begin("k1", actors.follow, "k1", one, filter_values=["k1"], filter_value="kind")
            begin("sql", actors.follow, "sql", both, sql=_SQL)
            begin("amqp", actors.follow_amqp, "amqp", both, self._dial_amqp, x_stream_sql=_SQL)
            begin("p", actors.publish, "p", is_named=True)
            begin("q", actors.publish, "q", is_named=False)
            begin("search", actors.search)
            await self._harm()
            actors.is_ending = True
            while self._waiting & {"p", "q", "search"}:
                await trio.sleep(0.1)
            await actors.end()
        await actors.read()

    async def _harm(self) -> None:
        end = trio.current_time() + _SECONDS
        kinds = {
            "kill": self._kill,
            "power": self._cut_power,
            "cut": self._cut_connection,
            "crash": self._crash,
            "full": self._fill,
            "broken": self._break,
            "truncate": self.actors.truncate,
        }
        while trio.current_time() < end:
            await trio.sleep(self._chance.choice(_PAUSES))
            kind = self._chance.choice(list(kinds))
            self.events.append(f"{trio.current_time():.2f} {kind}")
            await kinds[kind]()

    async def _kill(self) -> None:
        if not self._network.is_away:
            self._vanish()
            self._machine.kill()
            self._serving.cancel()

    async def _cut_power(self) -> None:
        if not self._network.is_away:
            self._vanish()
            self._machine.cut_power()
            self.witness.lose_power(trio.current_time())
            self._serving.cancel()

    def _vanish(self) -> None:
        """Nothing reaches the server any more, nor comes from it."""
        self._network.is_away = True
        for stream in self._network.streams:
            stream.kill()
        self._network.streams.clear()

    async def _cut_connection(self) -> None:
        if self._network.streams:
            self._chance.choice(self._network.streams).kill()

    async def _crash(self) -> None:
        if self.actors.scopes:
            self._chance.choice(list(self.actors.scopes.values())).cancel()

    async def _fill(self) -> None:
        self._machine.wrong = "full"
        await trio.sleep(self._chance.choice((0.05, 1, 3)))
        self._machine.wrong = ""

    async def _break(self) -> None:
        """What fails to reach the device: its server takes nothing more until it starts again."""
        self._machine.wrong = "broken"
        await trio.sleep(self._chance.choice((0.05, 1)))
        self._machine.wrong = ""
        await self._kill()


def _has(kind: int, tone: int | None = None) -> Callable[[Sent], bool]:
    def wants(sent: Sent) -> bool:
        return sent.number % KINDS == kind and (tone is None or sent.number % TONES == tone)

    return wants


def _leaves(group: BaseExceptionGroup[Any]) -> str:
    inner = [
        _leaves(error) if isinstance(error, BaseExceptionGroup) else repr(error)
        for error in group.exceptions
    ]
    return "; ".join(inner)


def faults_of(seed: int) -> tuple[int, list[str]]:
    """What did not hold in the world of a seed."""
    with tempfile.TemporaryDirectory(prefix="streamd-world-", dir=_FOLDER) as folder:
        return seed, World(Path(folder), seed).run()


def main() -> None:
    """Run so many, print the faults, and exit with 1 when there were some."""
    parser = argparse.ArgumentParser(description="Worlds, at virtual time.")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="the first one; others follow it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    given = parser.parse_args()
    logging.getLogger().addHandler(logging.NullHandler())
    began = time.monotonic()
    num_failed = 0
    with ProcessPoolExecutor(given.jobs) as processes:
        for seed, found in processes.map(faults_of, range(given.seed, given.seed + given.count)):
            num_failed += bool(found)
            if found:
                print(f"python -m tests.world.run --count 1 --seed {seed}")
                print("\n".join(f"  {fault}" for fault in found[:8]), flush=True)
    seconds = time.monotonic() - began
    rate = given.count / seconds * 60
    print(f"{given.count:,} worlds in {seconds:.0f} s, {rate:,.0f} a minute, {num_failed} failed")
    sys.exit(bool(num_failed))


if __name__ == "__main__":
    main()
