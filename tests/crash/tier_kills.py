"""kill -9 of a server with a tier, and machines that are lost; every message is compared.

    python -m tests.crash.tier_kills --kills 20 --seed 3

What can go wrong with a tier is tried at virtual time, in `tests/world`. Here the machine is real:
processes, their ends, the disk, and a folder as the store. A publisher with a name numbers its
messages, a consumer that keeps its offset reads them. Every third time the machine is lost: a new
one is restored from the store, and the old one is started again from its folder. With `--confirm
store` nothing that was confirmed, or read, may be lost with it; rstream publishes, too, then.
"""

import argparse
import logging
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from random import Random

import trio

from clients import Client, StreamError, connect
from segments.gaps import num_lost
from segments.store.folder_store import FolderStore
from segments.store.lookup import counts_since, find_stream
from segments.store.object_store import MissingError
from tests.support.process import ServerProcess

_ARGUMENTS = {
    "stream-max-segment-size-bytes": "10000",
    "stream-local-max-length-bytes": "0",
    "stream-chunk-max-records": "20",
    "stream-filter-property": "kind",
}
_LOSSES = 3  # of so many kills one is the loss of the machine
_PATIENCE = 120  # seconds without anything; how long all takes, depends on the machine
_KILLS_OF_A_TIER = 50  # all is read after each: with a new tier now and then it stays little


class RstreamPublisher:
    """RabbitMQ's client publishes numbers to a stream of its own, with a name, until it is killed.

    Attributes:
        num_confirmed: messages that were confirmed to it, from the first one on.
    """

    def __init__(self) -> None:
        self.num_confirmed = 0
        self._process: subprocess.Popen[str] | None = None

    def start(self, port: int) -> None:
        """Begin behind what was confirmed; what was sent before is sent again."""
        arguments = [str(port), "r", str(self.num_confirmed)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.rstream_publisher", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def kill(self) -> None:
        """End it; what it was told counts."""
        process, self._process = self._process, None
        assert process is not None, "it was started"
        process.kill()
        lines = process.communicate()[0].splitlines(keepends=True)
        told = [line.split() for line in lines if line.endswith("\n")]  # the last may be cut
        confirmed = (int(number) + 1 for word, number in told if word == "confirmed")
        self.num_confirmed = max([self.num_confirmed, *confirmed])


class Run:
    """Machines, one after the other, with one tier.

    Attributes:
        seen: the number of each message that somebody was given, by its offset.
        confirmed: the highest number that must be there.
        num_compared: messages that were read, and were what they should be.
    """

    def __init__(self, folder: Path, seed: int, confirm: str = "local") -> None:
        self.seen: dict[int, int] = {}
        self.confirmed = 0
        self.num_compared = 0
        self._gone: set[int] = set()  # offsets of messages that were lost with their machine
        self._folder = folder
        self._chance = Random(seed)
        self._num_machines = 0
        (folder / "tier").mkdir()
        self._options = ("--tier", f"file://{folder}/tier", "--tier-roll-seconds", "1")
        self._options += ("--tier-delete-delay-seconds", "0", "--flush", "interval")
        self._options += ("--confirm", confirm, "--confirm-interval-ms", "50")
        self._keeps_all = confirm == "store"
        self._rstream = RstreamPublisher()
        self.server = self._new_machine()

    def _new_machine(self) -> ServerProcess:
        self._num_machines += 1
        return ServerProcess(self._folder / f"machine-{self._num_machines}", *self._options)

    async def run(self, kills: int) -> None:
        """Kill so many times; raises AssertionError when something is not as it should be."""
        self.server.start()
        try:
            async with connect(self.server.uri) as client:
                await client.create("s", arguments=_ARGUMENTS)
            for number in range(1, kills + 1):
                await self._use_and_kill()
                if number % _LOSSES == 0:
                    await self._lose()
                else:
                    self.server.start()
                await self._check()
        finally:
            self.server.end()

    # -- clients

    async def _use_and_kill(self) -> None:
        async with trio.open_nursery() as nursery:
            for work in (self._publish, self._follow):
                nursery.start_soon(self._until_killed, work)
            if self._keeps_all:
                self._rstream.start(self.server.port)
            await trio.sleep(self._chance.uniform(0.3, 2.5))
            self.server.kill()
            nursery.cancel_scope.cancel()
        if self._keeps_all:
            self._rstream.kill()

    async def _until_killed(self, work: Callable[[Client], Awaitable[None]]) -> None:
        try:
            async with connect(self.server.uri, retry_seconds=0) as client:
                await work(client)
        except* (StreamError, OSError):
            pass

    async def _publish(self, client: Client) -> None:
        async with client.producer("s", name="p") as producer:
            number = producer.last_publishing_id
            while True:
                for _ in range(self._chance.choice((1, 20, 200))):
                    number += 1
                    await producer.send(b"%d " % number + bytes(self._chance.randrange(80)))
                await producer.flush()
                self.confirmed = number
                await trio.sleep(0.01)

    async def _follow(self, client: Client) -> None:
        start = max(self.seen, default=-1) + 1
        async with client.consumer("s", offset=start) as messages:
            async for message in messages:
                self._take(message.offset, int(bytes(message.body).split()[0]))

    def _take(self, offset: int, number: int) -> None:
        assert offset not in self._gone, f"{number} at {offset}, where one was that is lost"
        known = self.seen.setdefault(offset, number)
        assert known == number, f"{number} at {offset}, where {known} was"
        self.num_compared += 1

    async def _check(self) -> None:
        """All that was confirmed is there, once, in order; what was read is where it was."""
        offsets, numbers = await self._read()
        if self._rstream.num_confirmed:
            sent = [number for _, number in await self._messages("r")]
            self.num_compared += len(sent)
            assert sent == list(range(len(sent))), "rstream's are missing, or doubled"
            assert len(sent) >= self._rstream.num_confirmed, "what rstream was told is lost"
        assert numbers == list(range(1, len(numbers) + 1)), "numbers are missing, or doubled"
        assert len(numbers) >= self.confirmed, f"{self.confirmed} was confirmed, and is lost"
        lost = [at for at, after in pairwise(offsets) if num_lost(at + 1, after)]
        assert not lost, f"offsets behind {lost} are missing"
        missing = self.seen.keys() - set(offsets)
        assert not missing, f"{sorted(missing)[:5]} were read, and are gone"

    async def _read(self) -> tuple[list[int], list[int]]:
        """Offsets and numbers of all messages of the stream that is followed."""
        found = await self._messages("s")
        for offset, number in found:
            self._take(offset, number)
        return [offset for offset, _ in found], [number for _, number in found]

    async def _messages(self, name: str) -> list[tuple[int, int]]:
        """Offset and number of each message of a stream, however long that takes."""
        found = []
        with trio.fail_after(_PATIENCE) as waiting:
            async with (
                connect(self.server.uri) as client,
                client.consumer(name, offset="first", until_end=True) as messages,
            ):
                async for message in messages:
                    found.append((message.offset, int(bytes(message.body).split()[0])))
                    waiting.deadline = trio.current_time() + _PATIENCE
        return found

    # -- machines

    async def _lose(self) -> None:
        """Another machine goes on with what the manifest names; the old one can do nothing."""
        old, self.server = self.server, self._new_machine()
        if self._keeps_all:
            self.server.start("--restore")
            await self._check()
            self.server.kill()
            await self._wake(old)
            self.server.start()
            return
        try:
            store = FolderStore(f"{self._folder}/tier")
            end = find_stream(store, "/", "s", counts_since(store)).next_offset
        except MissingError:  # nothing was stored before
            end = 0
        self.server.start("--restore")
        self._gone |= {offset for offset in self.seen if offset >= end}
        self.seen = {at: number for at, number in self.seen.items() if at < end}
        self.confirmed = 0
        offsets, numbers = await self._read()
        assert (offsets[-1] + 1 if offsets else 0) == end, f"{offsets[-1:]}, expected {end}"
        self.confirmed = len(numbers)
        self.server.kill()
        await self._wake(old)
        self.server.start()

    async def _wake(self, old: ServerProcess) -> None:
        """The old machine is started again from its folder."""
        before = self._objects()
        old.start()
        try:
            async with connect(old.uri) as client:
                with trio.fail_after(_PATIENCE):
                    while (await client.tier_report("tier.status"))[0]["state"] != "fenced":
                        await trio.sleep(0.1)
                with suppress(StreamError):
                    async with client.producer("s") as producer:
                        await producer.send(b"0 from the past")
                    raise AssertionError("a server that was replaced has confirmed a message")
        finally:
            old.end()
        assert self._objects() == before, "a server that was replaced has changed the store"

    def _objects(self) -> dict[str, bytes]:
        """All that the store has."""
        files = [path for path in (self._folder / "tier" / "v1").rglob("*") if path.is_file()]
        return {str(path): path.read_bytes() for path in files}


def kill_many(folder: Path, kills: int, seed: int = 1, confirm: str = "local") -> str:
    """Kill so many times; fails when something is not as it should be. Returns a summary."""
    run = Run(folder, seed, confirm)
    trio.run(run.run, kills)
    return f"{kills} kills, {kills // _LOSSES} of a machine; {run.num_compared:,} messages compared"


def _sizes(kills: int) -> Iterator[int]:
    """How many kills each tier has."""
    for done in range(0, kills, _KILLS_OF_A_TIER):
        yield min(_KILLS_OF_A_TIER, kills - done)


def main() -> None:
    parser = argparse.ArgumentParser(description="kill -9 of servers with a tier.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--confirm", choices=("local", "store"), default="local")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)  # errors of clients whose server is gone
    for seed, kills in enumerate(_sizes(given.kills), given.seed):
        with tempfile.TemporaryDirectory() as folder:
            text = kill_many(Path(folder), kills, seed, given.confirm)
        print(f"seed {seed}: {text}", flush=True)


if __name__ == "__main__":
    main()
