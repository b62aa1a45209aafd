"""One run: a server in a process of its own, its clients, and what is left in the end.

When all clients are gone and everything is deleted, the server has as many descriptors open and as
many files as in the beginning. Its memory has grown by less than SLACK_BYTES since the first fifth
of the run, when its caches were filled: fragments stay, but what is kept of each stream or
connection would be more after some minutes. Caches fill for some 20 seconds: the memory of shorter
beginnings says nothing.

Full segments go to a tier, and some of them leave the disk. When all streams are deleted nothing of
them is left in the store.
"""

import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

import trio

from segments.store.lookup import stream_folders
from segments.store.stores import open_store
from tests.churn.clients import Client, Sizes, World
from tests.churn.doors import DOORS, AmqpDoor, Broken, Door, HttpDoor, StreamDoor
from tests.churn.innocents import Innocents
from tests.churn.network import Sockets
from tests.churn.outside import WorkerKiller, selecting_from, ways_to
from tests.churn.pika_door import PikaDoor
from tests.churn.seekers import Seekers
from tests.churn.server_log import is_unexplained
from tests.support.process import ServerProcess
from tests.support.stores import StoreServer

SLACK_BYTES = 64 << 20
_WARM_SECONDS = 20
_SETTLE_SECONDS = 30
_SHOWN = 10
_OF_A_WORKER = 2  # descriptors: processes that search, or make key tables, stay for a while


class Report(NamedTuple):
    """The result of a run.

    Attributes:
        text: for people.
        faults: what did not hold.
        num_operations: how many there were.
    """

    text: str
    faults: list[str]
    num_operations: int


class _Left(NamedTuple):
    """What a server holds.

    Attributes:
        workers: processes of it.
    """

    workers: int
    descriptors: Counter[str]
    files: frozenset[str]
    memory: int
    folders: frozenset[str]


class Churn:
    """A run.

    Args:
        folder: for the server's data and log.
        seconds: how long clients are busy.
        clients: how many there are.
        seed: the same one makes clients ask for the same things; their order is another.
        store: the kind of the tier's store, one of tests.support.stores.KINDS.
    """

    def __init__(
        self, folder: Path, seconds: float, clients: int, seed: int, store: str = "file"
    ) -> None:
        self._store = StoreServer(store, folder / "store").start()
        os.environ.update(self._store.environment)
        self._tier = self._store.url("tier"), self._store.endpoint
        options = ["--tier", self._tier[0], "--tier-delete-delay-seconds", "0"]
        if self._store.endpoint:
            options += ["--tier-endpoint", self._store.endpoint]
        self._server = ServerProcess(
            folder / "data", "--http-port", "0", "--flush-ms", "100", *options
        )
        self._network = Sockets(self._server)
        self._seconds = seconds
        self._num_clients = clients
        self._seed = seed
        self._world = World(Sizes())
        self._innocents = Innocents(self._network, 1_000, 0.02)
        select = selecting_from(self._server)
        self._seekers = Seekers(self._network, seed, ways_to(self._server), select=select)
        self._killer = WorkerKiller(self._server, Random(seed))
        self._faults: list[str] = []
        self._busy = 0.0
        self._warm = 0

    def run(self) -> Report:
        """Start the server, run the clients, look at what is left."""
        self._server.start()
        try:
            trio.run(self._run)
        except* Broken as group:
            self._faults += [str(error) for error in group.exceptions]
        except* (OSError, trio.EndOfChannel, trio.BrokenResourceError, AssertionError) as group:
            self._faults.append(f"in the end: {group.exceptions!r}")
        finally:
            self._stop()
            self._store.kill()
        return self._report()

    def _stop(self) -> None:
        try:
            code = self._server.stop()
        except Exception as error:  # noqa: BLE001 - whatever it is, the server is to end
            self._faults.append(f"the server does not stop: {error!r}")
            self._server.end()
            return
        if code:
            self._faults.append(f"the server ended with {code}")

    # -- the clients

    async def _run(self) -> None:
        warm = await self._http()
        before = self._left()
        await warm.close()
        await self._innocents.fill()
        await self._seekers.fill()
        began = time.monotonic()
        end = began + self._seconds
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._innocents.live, self._until(end))
            nursery.start_soon(self._look_at_memory)
            seekers = max(2, self._num_clients // 4)
            nursery.start_soon(self._seekers.live, seekers, lambda _: self._until(end))
            nursery.start_soon(self._killer.run, self._until(end))
            for number in range(self._num_clients):
                client = self._client(number)
                nursery.start_soon(client.run, self._until(end))
        self._busy = time.monotonic() - began
        if self._world.has_failed or self._seekers.has_failed:
            return  # what is left says nothing then
        await self._seekers.check()
        await self._innocents.check()
        await self._delete_all()
        await self._settle(before._replace(memory=self._warm))

    async def _look_at_memory(self) -> None:
        await trio.sleep(max(self._seconds / 5, min(_WARM_SECONDS, 0.8 * self._seconds)))
        self._warm = self._server.resident_bytes()

    def _until(self, end: float) -> Iterator[None]:
        while time.monotonic() < end:
            if self._world.has_failed or self._seekers.has_failed:
                break
            yield

    def _client(self, number: int) -> Client:
        chance = Random(f"{self._seed}/{number}")
        return Client(f"c{number}", self._world, self._door(number), chance)

    def _door(self, number: int) -> Door:
        if number % 4 == 3:
            return PikaDoor(self._network, self._server.amqp_uri)
        return DOORS[number % 4](self._network)

    # -- the end

    async def _http(self) -> HttpDoor:
        door = HttpDoor(self._network)
        await door.open()
        await door.see("overview")
        return door

    async def _delete_all(self) -> None:
        stream, amqp, http = (kind(self._network) for kind in (StreamDoor, AmqpDoor, HttpDoor))
        for door in (stream, amqp, http):
            await door.open()
        for history in (*self._world.streams, *self._world.shelves):
            await amqp.calls["remove"](history.name)
        for history in self._world.routes:
            await stream.calls["delete_super"](history.name)
            await amqp.calls["remove_exchange"](history.name)
            for key in "01":
                await amqp.calls["remove"](f"{history.name}-{key}")
        for history in self._world.realms:
            await http.calls["delete_host"](history.name)
            await http.calls["delete_user"](history.name)
        for door in (stream, amqp, http):
            await door.close()

    def _left(self) -> _Left:
        data = self._server.data
        workers = _num_children(self._server.pid)
        descriptors = Counter(_descriptors(self._server.pid))
        files = _files(data)
        stored = frozenset(stream_folders(open_store(*self._tier)))
        return _Left(workers, descriptors, files, self._server.resident_bytes(), stored)

    async def _settle(self, before: _Left) -> None:
        """Wait until nothing is left; says what is, if it stays."""
        with trio.move_on_after(_SETTLE_SECONDS):
            while _difference(before, self._left()):
                await trio.sleep(0.2)
        self._memory = (before.memory, self._left().memory)
        self._faults += _difference(before, self._left())

    # -- the result

    def _report(self) -> Report:
        faults, undecided = self._world.judge()
        lines = self._server.log.read_text().splitlines()
        said = [line for line in lines if is_unexplained(line)]
        faults += [*self._innocents.faults, *self._seekers.faults, *self._faults]
        faults += [f"the server's log: {line}" for line in said[:_SHOWN]]
        counts = self._world.counts + self._seekers.counts
        total = sum(counts.values())
        text = [f"{total:,} operations in {self._busy:.0f} s, {total / max(1, self._busy):.0f}/s"]
        text += _table(counts, self._busy)
        text.append(self._seekers.summary())
        text.append(f"the process that makes key tables was killed {self._killer.num_killed} times")
        if undecided:
            text.append(f"undecided, too many cases: {', '.join(undecided)}")
        if hasattr(self, "_memory"):
            was, now = (size >> 20 for size in self._memory)
            text.append(f"memory: {was} MB when warm, {now} MB after")
        text += [f"FAULT: {fault}" for fault in faults]
        text.append("FAILED" if faults else "every answer is explained, nothing is left")
        return Report("\n".join(text), faults, total)


def _files(data: Path) -> frozenset[str]:
    """The files of a folder, by their paths in it."""
    while True:
        with suppress(FileNotFoundError):  # a folder went meanwhile
            found = (path for path in data.rglob("*") if path.is_file())
            return frozenset(str(path.relative_to(data)) for path in found)


def _descriptors(pid: int) -> Iterator[str]:
    """What each open descriptor of a process is, without its number."""
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            yield re.sub(r"\[\d+\]", "", str(path.readlink()))


def _num_children(pid: int) -> int:
    """Processes that a process has started, and that are there."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(len((thread / "children").read_text().split()) for thread in threads)


def _difference(before: _Left, now: _Left) -> list[str]:
    found = []
    of_workers = _OF_A_WORKER * (now.workers - before.workers)
    if now.descriptors.total() > before.descriptors.total() + of_workers:
        more = now.descriptors - before.descriptors
        shown = ", ".join(f"{count} of {what}" for what, count in more.most_common(_SHOWN))
        found.append(f"more descriptors are open than before: {shown}")
    if more := sorted(now.files - before.files):
        found.append(f"{len(more)} files are left, such as {', '.join(more[:3])}")
    if now.folders:
        found.append(f"{len(now.folders)} streams are left in the tier: {sorted(now.folders)[:3]}")
    if now.memory > before.memory + SLACK_BYTES:
        sizes = f"{now.memory >> 20} MB, {before.memory >> 20} MB before"
        found.append(f"memory has grown to {sizes}")
    return found


def _table(counts: Counter[tuple[str, str, str]], seconds: float) -> list[str]:
    """Operations a second by protocol, and the outcomes of each kind."""
    doors = Counter({door: 0 for door, _, _ in counts})
    kinds: dict[str, Counter[str]] = {}
    for (door, kind, outcome), count in counts.items():
        doors[door] += count
        kinds.setdefault(kind, Counter())[outcome] += count
    rates = ", ".join(f"{door} {count / max(1, seconds):.1f}/s" for door, count in doors.items())
    lines = [f"  {rates}"]
    for kind, outcomes in sorted(kinds.items()):
        shown = ", ".join(f"{outcome} {count:,}" for outcome, count in outcomes.most_common())
        lines.append(f"  {kind:18}{sum(outcomes.values()) / max(1, seconds):6.1f}/s  {shown}")
    return lines
