"""`python -m tests.churn.interleavings`: many orders of few requests, at virtual time.

One interleaving is a server in memory, some clients with some requests each, and a seed: for the
requests, for the order in which trio runs tasks, and for how long work in threads takes. The same
seed gives the same run. After it the catalog, the memory and the folders must agree, nothing may be
left of the clients, and every answer must be explained.

Every other server has a tier whose store refuses now and then, before or after it has done what it
was asked for. In the end the store has what the streams say that it has, and nothing of others.
"""

import argparse
import gc
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from segments.checksum import crc32
from segments.derived import key_schedule as schedule
from segments.derived.key_files import KeyJob, make_table
from segments.derived.key_worker import Answer
from segments.disk import OsDisk
from segments.store.manifest import Manifest, decode_manifest
from segments.store.object_store import TierError
from segments.tier.planning import next_unstored
from streamd.broker.catalog.catalog import Catalog
from streamd.net import threads
from streamd.net.worker import WorkerDied
from tests.broker.tier.support import tiered
from tests.churn.clients import Client, Sizes, World
from tests.churn.doors import DOORS
from tests.churn.innocents import Innocents
from tests.churn.network import Memory
from tests.churn.seekers import WAYS, Seekers
from tests.churn.server_log import is_unexplained
from tests.support.fake_store import Call, FakeStore
from tests.support.server import Harness, harness
from tests.support.syncs import work_beside

_CLIENTS = (3, 6)  # from, to: the seed decides
_STEPS = (2, 8)
_SEEKERS = (1, 3)
_SEEKER_STEPS = (3, 10)
_DIES = 0.1  # how often the process that makes key tables does, at a job
_INNOCENT_STEPS = 8
_INNOCENT_SECONDS = 0.012
_SIZES = Sizes(streams=2, routes=1, realms=1, messages=40, shelves=1)
_DELAYS = (0, 0, 0, 0.001, 0.004, 0.02)  # seconds that work in a thread takes
_SETTLE_SECONDS = 5
_REFUSED = 0.02  # how often the store refuses
_TIER_SECONDS = 300  # until all is stored, and removed, that is to be
_AT_ONCE = 20  # given to a process
_FOLDER = next((path for path in ("/dev/shm",) if os.access(path, os.W_OK)), None)
_SECONDS = 3_600  # of virtual time, until everything must have ended


class _Log(logging.Handler):
    """Keeps what is said of things gone wrong."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{record.levelname} {record.getMessage()}"
        if is_unexplained(line):
            self.found.append(logging.Formatter("%(levelname)s %(message)s").format(record))


class Interleaving:
    """One run.

    Args:
        folder: an empty one.
        seed: decides everything.

    Attributes:
        world: what its clients share.
        seekers: those that find.
    """

    seekers: Seekers

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._seed = seed
        self._chance = Random(seed)
        self.world = World(_SIZES, lost_seconds=None)
        self._store = FakeStore() if seed % 2 else None
        self._faults: list[str] = []

    def run(self) -> list[str]:
        """What did not hold; empty when everything did."""
        trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[attr-defined]
        trio._core._run._r.seed(self._seed)  # type: ignore[attr-defined]
        with _prepared() as log:
            try:
                trio.run(self._run, clock=MockClock(autojump_threshold=0))
            except BaseExceptionGroup as group:
                self._faults.append(f"the server ended: {_leaves(group)}")
        faults, undecided = self.world.judge()
        faults += [f"undecided, too many cases: {name}" for name in undecided]
        return [*faults, *self._faults, *(f"the log: {line}" for line in log.found)]

    async def _run(self) -> None:
        with trio.move_on_after(_SECONDS) as limit:
            async with self._server() as server:
                threads.in_thread = self._in_thread  # the harness puts the real one back
                server.server.broker._resources.keys.worker.make = self._make  # type: ignore
                await self._act(server)
        if limit.cancelled_caught:
            self._faults.append("the run does not end")

    def _server(self) -> AbstractAsyncContextManager[Harness]:
        if self._store is None:
            return harness(self._folder)
        self._store.before = self._store.after = self._refuse
        return tiered(self._folder, self._store)

    def _refuse(self, _call: Call) -> None:
        if self._chance.random() < _REFUSED:
            raise TierError("the connection broke off")

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
        if self._chance.random() < _DIES:
            await trio.sleep(self._chance.choice(_DELAYS))
            raise WorkerDied("it was killed")
        await self._in_thread(make_table, OsDisk(), job)
        return Answer()

    async def _act(self, server: Harness) -> None:
        network = Memory(server)
        innocents = Innocents(network, 40, _INNOCENT_SECONDS)
        await innocents.fill()
        self.seekers = seekers = Seekers(network, self._seed, WAYS, streams=2)
        await seekers.fill()
        chance = Random(f"{self._seed}/steps")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(innocents.live, range(_INNOCENT_STEPS))
            number = chance.randint(*_SEEKERS)
            nursery.start_soon(
                seekers.live, number, lambda _: range(chance.randint(*_SEEKER_STEPS))
            )
            for number in range(self._chance.randint(*_CLIENTS)):
                door = DOORS[number % len(DOORS)](network)
                chance = Random(f"{self._seed}/{number}")
                client = Client(f"c{number}", self.world, door, chance)
                nursery.start_soon(client.run, range(chance.randint(*_STEPS)))
        await trio.sleep(_SETTLE_SECONDS)
        await wait_all_tasks_blocked()
        self._faults += innocents.faults
        self._faults += seekers.faults
        self._faults += _disagreements(server)
        await innocents.check()
        await seekers.check(keys=2)
        if self._store is not None:
            self._faults += await _stored_badly(server, self._store)


# -- what must hold


def _disagreements(server: Harness) -> list[str]:
    """Where the catalog, the memory and the folders differ, and what is left of clients."""
    broker = server.server.broker
    pairs = {
        "in the catalog": _catalogued(broker.catalog._catalog),
        "in memory": _remembered(server),
    }
    found = [
        f"{what} only {where}: {sorted(map(str, more))}"
        for where, other in (("in the catalog", "in memory"), ("in memory", "in the catalog"))
        for what in pairs[where]
        if (more := pairs[where][what] - pairs[other][what])
    ]
    folders = {str(path) for path in (server.data / "streams").glob("*/*")}
    hosts = broker.virtual_hosts.values()
    expected = {
        host.logs.folder(name)
        for host in hosts
        for name in host.names()
        if host.row(name).has_files
    }
    if folders != expected:
        found.append(f"folders and streams differ: {sorted(folders ^ expected)}")
    return found + [f"{count} {what} are left" for what, count in _left(server).items() if count]


async def _stored_badly(server: Harness, store: FakeStore) -> list[str]:
    """Where the store differs from what the streams say, once it answers."""
    store.before = store.after = lambda _call: None
    await trio.sleep(_TIER_SECONDS)
    found = []
    known = set()
    for host in server.server.broker.virtual_hosts.values():
        for name in host.names():
            async with host.find(name).opened() as log:
                manifest = log.stored.manifest
                waiting = next_unstored(log)
            if waiting is not None:
                found.append(f"{waiting} of {name} is not stored")
            if manifest is not None:
                known.add(manifest.stream.folder)
                found += _stored_otherwise(store, manifest)
    folders = {key.rpartition("/")[0] for key in store.objects if "~" in key}
    return found + [f"of no stream: {folder}" for folder in sorted(folders - known)]


def _stored_otherwise(store: FakeStore, manifest: Manifest) -> list[str]:
    """What a stream says of the store that is not so."""
    kept = store.objects.get(manifest.stream.manifest)
    if kept is None:
        return [] if not manifest.segments else [f"{manifest.stream} has no manifest"]
    if decode_manifest(kept.content) != manifest:
        return [f"the manifest of {manifest.stream} is another one"]
    files = {
        segment.key(manifest.stream, suffix): file
        for segment in manifest.segments
        for suffix, file in segment.files.items()
    }
    return [
        f"{key} is not what was stored"
        for key, (_, crc) in files.items()
        if key not in store.objects or crc32(store.objects[key].content) != crc
    ]


def _catalogued(catalog: Catalog) -> dict[str, set[Any]]:
    contents = catalog.contents()
    return {
        "virtual hosts": set(contents.virtual_hosts),
        "streams": {(row.virtual_host, row.name, str(row.arguments)) for row in contents.streams},
        "exchanges": {(row.virtual_host, row.name, row.type) for row in contents.exchanges},
        "bindings": {str(row) for row in contents.bindings},
        "users": set(catalog.users()),
        "permissions": set(catalog.permissions()),
    }


def _remembered(server: Harness) -> dict[str, set[Any]]:
    hosts = server.server.broker.virtual_hosts
    exchanges = [
        (host, row)
        for host in hosts.values()
        for row in host.topology.rows()
        if row.name and not row.name.startswith("amq.")
    ]
    return {
        "virtual hosts": set(hosts),
        "streams": {
            (host.name, name, str(host.arguments(name)))
            for host in hosts.values()
            for name in host.names()
        },
        "exchanges": {(host.name, row.name, row.type) for host, row in exchanges},
        "bindings": {
            str(binding)
            for host, row in exchanges
            for binding in host.topology.bindings_from(row.name)
        },
        "users": set(server.server.directory.users()),
        "permissions": set(server.server.directory.permissions()),
    }


def _left(server: Harness) -> dict[str, int]:
    running = server.server
    hosts = list(running.broker.virtual_hosts.values())
    num_streams = sum(len(host.names()) for host in hosts)
    return {
        "connections": len(running._running),
        "connections in lists": len(running.connections),
        "observers": sum(len(host.observers) for host in hosts),
        "groups": sum(len(host.groups._groups) for host in hosts),
        "waiters": sum(len(stream.waiters) for host in hosts for stream in host.streams()),
        "streams too many in the quota": running.broker._resources.quota._used - num_streams,
        "folders of deleted streams": sum(1 for _ in (server.data / "trash").glob("*")),
    }


@contextmanager
def _prepared() -> Iterator[_Log]:
    """Nothing waits for the device, and an ear for the log."""
    root, log = logging.getLogger(), _Log()
    originals = os.fsync, os.fdatasync
    limits = schedule.SPARE_BYTES, schedule.FEW_BYTES
    schedule.SPARE_BYTES, schedule.FEW_BYTES = 20_000, 1
    os.fsync = os.fdatasync = lambda _fd: None  # type: ignore[assignment]
    root.addHandler(log)
    try:
        yield log
    finally:
        root.removeHandler(log)
        os.fsync, os.fdatasync = originals
        schedule.SPARE_BYTES, schedule.FEW_BYTES = limits


def _leaves(group: BaseExceptionGroup[Any]) -> str:
    inner = [
        _leaves(error) if isinstance(error, BaseExceptionGroup) else repr(error)
        for error in group.exceptions
    ]
    return "; ".join(inner)


# -- many of them


def try_seeds(seeds: range, tell: Callable[[int, list[str]], bool]) -> int:
    """Run interleavings until `tell`, which gets the seed and the faults of each, says no.

    Returns:
        How many there were.
    """
    for number, seed in enumerate(seeds, 1):
        with tempfile.TemporaryDirectory(prefix="streamd-order-", dir=_FOLDER) as folder:
            faults = Interleaving(Path(folder, "data"), seed).run()
        if number % 50 == 0:
            gc.collect()
        if not tell(seed, faults):
            return number
    return len(seeds)


def _faults_of(seeds: range) -> list[tuple[int, list[str]]]:
    """What did not hold, by seed."""
    found: list[tuple[int, list[str]]] = []
    try_seeds(seeds, lambda seed, faults: found.append((seed, faults)) or True)
    return [(seed, faults) for seed, faults in found if faults]


def main() -> None:
    """Run so many, print the faults, and exit with 1 when there were some."""
    parser = argparse.ArgumentParser(description="Many orders of few requests, at virtual time.")
    parser.add_argument("--count", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1, help="the first one; others follow it")
    parser.add_argument("--go-on", action="store_true", help="also after a fault")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    given = parser.parse_args()
    logging.getLogger().addHandler(logging.NullHandler())
    end = given.seed + given.count
    parts = [range(at, min(at + _AT_ONCE, end)) for at in range(given.seed, end, _AT_ONCE)]
    began = time.monotonic()
    done = num_failed = 0
    with ProcessPoolExecutor(given.jobs) as processes:
        for part, found in zip(parts, processes.map(_faults_of, parts), strict=True):
            done += len(part)
            num_failed += len(found)
            for seed, faults in found:
                print(f"python -m tests.churn.interleavings --count 1 --seed {seed}")
                print("\n".join(f"  {fault}" for fault in faults), flush=True)
            if found and not given.go_on:
                processes.shutdown(wait=False, cancel_futures=True)
                break
    seconds = time.monotonic() - began
    rate = done / max(seconds, 0.001) * 60
    print(f"{done:,} interleavings in {seconds:.0f} s, {rate:,.0f} a minute, {num_failed} failed")
    sys.exit(bool(num_failed))


if __name__ == "__main__":
    main()
