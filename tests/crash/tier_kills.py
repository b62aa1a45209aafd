"""kill -9 of a server with a tier, and machines that are lost; every message is compared.

    python -m tests.crash.tier_kills --kills 20 --seed 3

What can go wrong with a tier is tried at virtual time, in `tests/world`. Here the machine is real:
processes, their ends, the disk, and a folder as the store. Who publishes and reads, and how it is
compared, says ledger.py. Every third time the machine is lost: a new one is restored from the
store, and the old one is started again from its folder. With `--confirm store` nothing that was
confirmed, or read, may be lost with it; rstream publishes, too, then.
"""

import argparse
import logging
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import trio

from clients import StreamError, connect
from segments.store.folder_store import FolderStore
from segments.store.lookup import counts_since, find_stream
from segments.store.object_store import MissingError
from streamd.broker.streams.flusher import FlushMode
from tests.crash.ledger import ARGUMENTS, PATIENCE, Ledger
from tests.support.process import ServerProcess

_LOSSES = 3  # of so many kills one is the loss of the machine
_KILLS_OF_A_TIER = 50  # all is read after each: with a new tier now and then it stays little


class Run:
    """Machines, one after the other, with one tier.

    Attributes:
        ledger: what was published, and read.
    """

    def __init__(self, folder: Path, seed: int, confirm: str = "local") -> None:
        self.ledger = Ledger(seed)
        self._folder = folder
        self._num_machines = 0
        (folder / "tier").mkdir()
        self._options = ("--tier", f"file://{folder}/tier", "--tier-roll-seconds", "1")
        flush = self.ledger.chance.choice(list(FlushMode)).value
        self._options += ("--tier-delete-delay-seconds", "0", "--flush", flush)
        self._options += ("--confirm", confirm, "--confirm-interval-ms", "50")
        self._keeps_all = confirm == "store"
        self.server = self._new_machine()

    def _new_machine(self) -> ServerProcess:
        self._num_machines += 1
        return ServerProcess(self._folder / f"machine-{self._num_machines}", *self._options)

    async def run(self, kills: int) -> None:
        """Kill so many times; raises AssertionError when something is not as it should be."""
        self.server.start()
        try:
            async with connect(self.server.uri) as client:
                await client.create("s", arguments=ARGUMENTS)
            for number in range(1, kills + 1):
                await self._use_and_kill()
                if number % _LOSSES == 0:
                    await self._lose()
                else:
                    self.server.start()
                await self.ledger.check(self.server.uri)
        finally:
            self.server.end()

    # -- clients

    async def _use_and_kill(self) -> None:
        async with trio.open_nursery() as nursery:
            for work in (self.ledger.publish, self.ledger.follow):
                nursery.start_soon(self.ledger.use, self.server.uri, work)
            if self._keeps_all:
                self.ledger.rstream.start(self.server.port)
            await trio.sleep(self.ledger.chance.uniform(0.3, 2.5))
            self.server.kill()
            nursery.cancel_scope.cancel()
        if self._keeps_all:
            self.ledger.rstream.kill()

    # -- machines

    async def _lose(self) -> None:
        """Another machine goes on with what the manifest names; the old one can do nothing."""
        old, self.server = self.server, self._new_machine()
        if self._keeps_all:
            self.server.start("--restore")
            await self.ledger.check(self.server.uri)
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
        self.ledger.lose(end)
        messages = await self.ledger.read(self.server.uri)
        assert (messages[-1].offset + 1 if messages else 0) == end, f"{messages[-1:]}, not {end}"
        self.ledger.told.confirmed = {one.publisher: one.number for one in messages}
        self.server.kill()
        await self._wake(old)
        self.server.start()

    async def _wake(self, old: ServerProcess) -> None:
        """The old machine is started again from its folder."""
        before = self._objects()
        old.start()
        try:
            async with connect(old.uri) as client:
                with trio.fail_after(PATIENCE):
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
    compared = f"{run.ledger.num_compared:,} messages compared"
    return f"{kills} kills, {kills // _LOSSES} of a machine; {compared}"


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
