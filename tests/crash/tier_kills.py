"""kill -9 of a server and of the store of its tier, and new machines; every message is compared.

    python -m tests.crash.tier_kills --seconds 120 --store gofakes3 --seed 3

Many clients publish, read, find, truncate, delete and change streams whose segments, local limits
and cache are tiny. Server and store are killed, stopped and paused. Now and then the machine is
lost: a new one is restored from the store, and has what the manifests name, no message more or
less. The old one is started again from its folder, or goes on after a pause: it changes nothing in
the store, and nothing of the new one.
"""

import argparse
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from random import Random

import pika
import pika.exceptions
import trio

from clients import (
    Client,
    Message,
    NoOffset,
    PreconditionFailed,
    StreamDoesNotExist,
    StreamError,
    StreamExists,
    connect,
)
from segments.store.address import parse_address
from segments.store.lookup import by_stream, counts_since, newest_manifest, stream_folders
from segments.store.manifest import Manifest
from segments.store.object_store import ObjectStore
from segments.store.stores import open_store
from streamd.operations.tier_reports import TierState
from tests.crash.tier_ledger import NUM_KINDS, Life, Sent, WrongError, last_missing, read
from tests.support.process import ServerProcess
from tests.support.stores import KINDS, StoreServer

_COMMON = {"stream-filter-property": "kind", "stream-chunk-max-records": "20"}
STREAMS = {
    "kept": {"stream-max-segment-size-bytes": "30000", "stream-local-max-length-bytes": "50000"},
    "ring": {
        "stream-key-properties": "id",
        "stream-max-segment-size-bytes": "20000",
        "stream-local-max-length-bytes": "0",
        "max-length-bytes": "500000",
    },
    "cut": {"stream-max-segment-size-bytes": "20000", "stream-local-max-length-bytes": "30000"},
    "life": {"stream-max-segment-size-bytes": "15000", "stream-local-max-length-bytes": "0"},
    "set": {
        "stream-key-properties": "id",
        "stream-max-segment-size-bytes": "25000",
        "stream-local-max-length-bytes": "40000",
    },
    "here": {"stream-max-segment-size-bytes": "20000", "stream-tier": "false"},
}
_SETTINGS = (
    {"stream-tier": "false"},
    {"stream-tier": "true"},
    {"stream-tier": "true"},
    {"stream-local-max-length-bytes": "0"},
    {"stream-local-max-length-bytes": "100000"},
    {"stream-local-max-age": "1s"},
    {"stream-local-max-age": ""},
    {"max-length-bytes": "800000"},
    {"max-length-bytes": ""},
    {"stream-max-segment-size-bytes": "10000"},
    {"stream-key-properties": "id,kind"},
    {"stream-key-properties": "id"},
)
_PUBLISHERS, _READERS = 2, 5
_BATCH = 40
_LOSS = 1 / 8  # of all that is done
_PATIENCE = 25.0  # seconds for one operation, while things are killed
_SLOW = 20.0
_LAST_PATIENCE = 120.0  # while nothing is
_GONE = (StreamError, OSError, trio.TooSlowError, pika.exceptions.AMQPError)
_FENCED_SECONDS = 75.0


class Moved(Exception):
    """The stream was deleted meanwhile."""


class Run:
    """One run.

    Args:
        folder: for everything.
        kind: of the store.
        seconds: how long.
        seed: decides what is done.
        restores: whether machines are lost.

    Attributes:
        counts: what was done, and how it ended.
        faults: what did not hold.
    """

    def __init__(
        self, folder: Path, kind: str, seconds: float, seed: int, *, restores: bool = True
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.num_compared = 0
        self._folder = folder
        self._seconds = seconds
        self._chance = Random(seed)
        self._restores = restores
        self._machine = 0
        self._store_server = StoreServer(kind, folder / "store").start()
        os.environ.update(self._store_server.environment)
        self._url = self._store_server.url("streams")
        self._delay = self._chance.choice((0, 0, 1))
        self._flush = self._chance.choice(("interval", "always", "os"))
        self.server = self._new_server()
        self.lives = {name: Life(name, 1) for name in STREAMS}
        self._all_lives = {(name, 1): life for name, life in self.lives.items()}
        self._publishers = 0
        self._up = trio.Event()
        self._generation = 0
        self._end = 0.0

    def _new_server(self) -> ServerProcess:
        self._machine += 1
        options = ["--tier", self._url, "--tier-delete-delay-seconds", f"{self._delay}"]
        options += ["--tier-roll-seconds", "2", "--flush", self._flush, "--flush-ms", "50"]
        if self._store_server.endpoint:
            options += ["--tier-endpoint", self._store_server.endpoint]
        data = self._folder / f"machine-{self._machine}"
        return ServerProcess(data, *options, module="tests.crash.small_cache")

    def _store(self) -> ObjectStore:
        parse_address(self._url, self._store_server.endpoint)
        return open_store(self._url, self._store_server.endpoint)

    # -- the run

    def run(self) -> list[str]:
        """What did not hold."""
        try:
            trio.run(self._run)
        except BaseException as error:
            self.faults.append(f"{_first(error)!r}")
            if not isinstance(_first(error), WrongError | AssertionError | OSError | StreamError):
                raise
        finally:
            self.server.end()
            self._store_server.kill()
        for log in sorted(self._folder.glob("machine-*.log")):
            lines = log.read_text().splitlines()
            wrong = [line for line in lines if "Traceback" in line or " CRITICAL " in line]
            wrong += [line for line in lines if "bug" in line.lower()]
            self.faults += [f"{log.name}: {line}" for line in wrong[:5]]
        return self.faults

    async def _run(self) -> None:
        await trio.to_thread.run_sync(self.server.start)
        for name in STREAMS:
            await self._create(name)
        self._up.set()
        self._end = time.monotonic() + self._seconds
        while time.monotonic() < self._end:
            async with trio.open_nursery() as nursery:
                for name in STREAMS:
                    for number in range(_PUBLISHERS):
                        nursery.start_soon(self._publish, name, f"named{number}")
                    nursery.start_soon(self._publish_unnamed, name)
                for number in range(_READERS):
                    nursery.start_soon(self._work, number)
                loses = await self._disturb()
                nursery.cancel_scope.cancel()
            if loses is not None:  # without clients: what they still read is not of the new one
                await self._lose_machine(is_paused=loses)
        for name in STREAMS:
            await self._check(name, patience=_LAST_PATIENCE)
            await self._verify(name)
        if self._restores:
            await self._lose_machine(is_paused=False)
            for name in STREAMS:
                await self._check(name, patience=_LAST_PATIENCE)
        self.num_compared = sum(life.num_compared for life in self._all_lives.values())

    # -- what is done to it

    async def _disturb(self) -> bool | None:
        """Disturb until the end, or until the machine is to be lost: whether it is paused then."""
        kinds: dict[str, tuple[float, Callable[[], Awaitable[None]]]] = {
            "kill server": (5, self._kill_server),
            "kill store": (3, self._kill_store),
            "kill both": (2, self._kill_both),
            "stop server": (1, self._stop_server),
            "pause store": (1.5, self._pause_store),
            "check": (2, self._check_one),
        }
        names = list(kinds)
        while time.monotonic() < self._end:
            await trio.sleep(self._chance.uniform(0.5, 6))
            if self._restores and self._chance.random() < _LOSS:
                return self._chance.random() < 1 / 2
            (name,) = self._chance.choices(names, [kinds[one][0] for one in names])
            self._tell(name)
            self.counts[name] += 1
            await kinds[name][1]()
        return None

    def _tell(self, text: str) -> None:
        with (self._folder / "story").open("a") as story:
            story.write(f"{time.strftime('%H:%M:%S', time.gmtime())} {text}\n")

    def _goes_down(self) -> None:
        self._up = trio.Event()
        self._generation += 1

    async def _start(self) -> None:
        await trio.to_thread.run_sync(self.server.start)
        self._up.set()

    async def _kill_server(self) -> None:
        self._goes_down()
        self.server.kill()
        await self._start()

    async def _stop_server(self) -> None:
        self._goes_down()
        code = await trio.to_thread.run_sync(self.server.stop)
        if code:
            raise WrongError(f"the server ended with {code}")
        await self._start()

    async def _kill_store(self) -> None:
        self._store_server.kill()
        await trio.sleep(self._chance.uniform(0, 2))
        self._store_server.start()

    async def _kill_both(self) -> None:
        self._goes_down()
        self._store_server.kill()
        await trio.sleep(self._chance.uniform(0, 0.3))
        self.server.kill()
        starts = [self._start, trio.lowlevel.checkpoint]
        await starts[0]()
        await trio.sleep(self._chance.uniform(0, 2))
        self._store_server.start()

    async def _pause_store(self) -> None:
        self._store_server.signal(signal.SIGSTOP)
        await trio.sleep(self._chance.uniform(0.2, 4))
        self._store_server.signal(signal.SIGCONT)

    # -- a new machine

    async def _lose_machine(self, *, is_paused: bool) -> None:
        """Its folder is gone, or it has stopped for a while: another one takes over."""
        what = "replace paused machine" if is_paused else "lose machine"
        self._tell(what)
        self.counts[what] += 1
        self._goes_down()
        old = self.server
        if is_paused:
            old.signal(signal.SIGSTOP)
        else:
            old.kill()
        self.server = self._new_server()
        await trio.to_thread.run_sync(self.server.start, "--restore")
        try:
            manifests = await trio.to_thread.run_sync(self._manifests)
            for name in STREAMS:
                await self._compare_restored(name, manifests.get(name))
            if not is_paused:
                await self._wake_from_folder(old)
            self._up.set()
            if is_paused:
                await self._wake(old)
        finally:
            old.end()
        for name in STREAMS:
            await self._check(name)
        shutil.rmtree(old.data)

    def _manifests(self) -> dict[str, Manifest]:
        store = self._store()
        since, groups = counts_since(store), by_stream(stream_folders(store)).values()
        found = (newest_manifest(store, group, since) for group in groups)
        return {one.manifest.stream.stream: one.manifest for one in found if one is not None}

    async def _compare_restored(self, name: str, manifest: Manifest | None) -> None:
        """What a new machine has of a stream is what its manifest names."""
        async with connect(self.server.uri, retry_seconds=0) as client:
            if not await client.exists(name):
                if manifest is not None:
                    raise WrongError(f"{name} was stored, and is not restored")
                await self._create(name)
                return
            stats = await client.stats(name)
        end = stats["committed_offset"] + 1
        first = max(0, stats["first_chunk_id"])
        has_any = manifest is not None and manifest.segments
        expected = manifest.next_offset if manifest is not None and has_any else 0
        if end != expected:
            raise WrongError(f"{name} is restored up to {end}, expected {expected}")
        if manifest is not None and manifest.segments and first != manifest.first_offset:
            raise WrongError(f"{name} begins at {first}, expected {manifest.first_offset}")
        life = self.lives[name]
        if manifest is None:
            self._new_life(name)
            return
        if end == 0:  # retention had dropped all that was stored
            life.is_cut_back(manifest.next_offset)
            life.first = manifest.next_offset
            return
        body = await self._first_body(name)
        sent = None if body is None else read(body)
        if sent is not None and sent.life != life.number:  # its deletion was not stored
            life = self.lives[name] = self._all_lives[name, sent.life]
        life.is_cut_back(end)
        await self._check(name, end=end)
        await self._compare_sequences(life)
        async with connect(self.server.uri, retry_seconds=0) as client:
            with suppress(NoOffset):
                offset = await client.query_offset(name, "app")
                if offset >= end:
                    raise WrongError(f"{name}: offset {offset} is stored, and it ends at {end}")

    async def _first_body(self, name: str) -> bytes | None:
        async with connect(self.server.uri, retry_seconds=0) as client:
            with trio.fail_after(_LAST_PATIENCE):
                async with client.consumer(name, offset="first", until_end=True) as messages:
                    async for message in messages:
                        return bytes(message.body)
        return None

    async def _compare_sequences(self, life: Life) -> None:
        async with connect(self.server.uri, retry_seconds=0) as client:
            for producer, number in life.last_numbers().items():
                async with client.producer(life.name, name=producer) as sink:
                    if sink.last_publishing_id != number:
                        raise WrongError(
                            f"{life.name}: {producer} is to go on behind {sink.last_publishing_id},"
                            f" and {number} is its last message"
                        )

    async def _wake_from_folder(self, old: ServerProcess) -> None:
        """The old machine is started again: it learns that it is not the one any more."""
        self.server.kill()
        before = await trio.to_thread.run_sync(self._listing)
        zombie = ServerProcess(old.data, *old._options, module="tests.crash.small_cache")
        try:
            await trio.to_thread.run_sync(zombie.start)
            await self._until_fenced(zombie)
            async with connect(zombie.uri, retry_seconds=0) as client:
                with suppress(PreconditionFailed, StreamError):
                    await client.tier_report("tier.gc", dry_run="false")
                    raise WrongError("a fenced server has removed orphans")
                await self._is_refused(client)
                with suppress(StreamError):
                    await client.delete("life")
            await trio.sleep(self._delay + 0.5)
        finally:
            zombie.end()
        after = await trio.to_thread.run_sync(self._listing)
        if before != after:
            changed = sorted(before.items() ^ after.items())
            raise WrongError(f"a fenced server has changed the store: {changed[:10]}")
        await trio.to_thread.run_sync(self.server.start)

    async def _is_refused(self, client: Client) -> None:
        for name in ("kept", "cut"):
            with suppress(StreamError):
                with trio.move_on_after(2):
                    async with client.producer(name) as sink:
                        await sink.send(b"from the past")
                        await sink.flush()
                        raise WrongError(f"a fenced server has taken a message for {name}")

    def _listing(self) -> dict[str, tuple[int, bytes]]:
        store = self._store()
        found = {}
        for one in store.listing("v1"):
            is_small = one.key.endswith("/manifest") or one.key == "v1/cluster"
            found[one.key] = (one.size, bytes(store.get(one.key).content) if is_small else b"")
        return found

    async def _until_fenced(self, zombie: ServerProcess) -> None:
        with trio.fail_after(_FENCED_SECONDS):
            while True:
                async with connect(zombie.uri, retry_seconds=0) as client:
                    (row, *_) = await client.tier_report("tier.status")
                if row["state"] == TierState.FENCED:
                    return
                await trio.sleep(0.2)

    async def _wake(self, zombie: ServerProcess) -> None:
        """The old machine goes on, and does not know."""
        await trio.sleep(self._chance.uniform(0, 2))
        zombie.signal(signal.SIGCONT)
        self._tell("the old machine goes on")

        async def publish(name: str) -> None:
            with suppress(*_GONE):
                async with (
                    connect(zombie.uri, retry_seconds=0) as client,
                    client.producer(name) as sink,
                ):
                    for number in range(400):
                        await sink.send(b"from the past %d " % number + bytes(300))
                        await trio.sleep(0.005)
                        await sink.flush()

        async def disturb() -> None:
            with suppress(*_GONE):
                async with connect(zombie.uri, retry_seconds=0) as client:
                    await client.truncate("kept", before=1_000_000_000)
                    await client.tier_report("tier.gc", dry_run="false")
                    await client.delete("ring")

        async with trio.open_nursery() as nursery:
            for name in STREAMS:
                nursery.start_soon(publish, name)
            nursery.start_soon(disturb)
            with suppress(StreamError):
                await self._until_fenced(zombie)
            nursery.cancel_scope.cancel()
        async with connect(zombie.uri, retry_seconds=0) as client:
            await self._is_refused(client)

    # -- lives of streams

    async def _create(self, name: str) -> None:
        life = self._new_life(name)
        with trio.fail_after(_LAST_PATIENCE):
            while True:
                try:
                    async with connect(self.server.uri, retry_seconds=0) as client:
                        await client.create(name, arguments=_COMMON | STREAMS[name])
                    return
                except StreamExists:
                    return
                except StreamError:
                    await trio.sleep(0.2)
                    if self.lives[name] is not life:
                        return

    def _new_life(self, name: str) -> Life:
        number = 1 + max(life for stream, life in self._all_lives if stream == name)
        life = self.lives[name] = self._all_lives[name, number] = Life(name, number)
        return life

    # -- clients

    @asynccontextmanager
    async def _client(self, what: str, name: str) -> AsyncIterator[tuple[Client, Life]]:
        """A client, for one operation that may fail when something is killed."""
        stack, client = await self._connected()
        life, generation = self.lives[name], self._generation
        try:
            async with stack:
                yield client, life
            self.counts[what] += 1
        except BaseException as error:
            first = _first(error)
            if isinstance(first, trio.Cancelled | KeyboardInterrupt):
                raise
            if self.lives[name] is not life or isinstance(first, Moved):
                self.counts[f"{what}, deleted"] += 1
            elif isinstance(first, _GONE):
                is_expected = generation != self._generation or not self._up.is_set()
                self.counts[f"{what}, {'interrupted' if is_expected else 'failed'}"] += 1
                if not is_expected:
                    self._tell(f"{what} of {name}: {first!r}")
                await trio.sleep(0.1)
            else:
                raise

    async def _connected(self) -> tuple[AsyncExitStack, Client]:
        """A client, and what ends it; it has a time limit."""
        while True:
            await self._up.wait()
            try:
                async with AsyncExitStack() as stack:
                    stack.enter_context(trio.fail_after(_PATIENCE))
                    client = await stack.enter_async_context(
                        connect(self.server.uri, retry_seconds=0)
                    )
                    return stack.pop_all(), client
            except BaseException as error:
                if not isinstance(_first(error), _GONE):
                    raise
            await trio.sleep(0.1)

    async def _publish(self, name: str, producer: str) -> None:
        """Begin a little before the last one that is stored: each is there once."""
        while True:
            async with (
                self._client("publish", name) as (client, life),
                client.producer(name, name=producer) as sink,
            ):
                last = sink.last_publishing_id
                if self.lives[name] is not life:
                    raise Moved
                if last > life.sent[producer]:
                    raise WrongError(f"{name}: {producer} is said to have sent {last}")
                for _ in range(self._chance.randrange(1, 30)):
                    start = max(1, last + 1 - self._chance.randrange(20))
                    numbers = range(start, last + 1 + self._chance.randrange(1, _BATCH))
                    life.sent[producer] = max(life.sent[producer], numbers[-1])
                    sents = [Sent(name, life.number, producer, number) for number in numbers]
                    for sent in sents:
                        await sink.send(
                            _message(sent), publishing_id=sent.number, filter_value=sent.kind
                        )
                    await sink.flush()
                    self._confirm(life, sents)
                    last = numbers[-1]
                    await trio.sleep(0.2)

    async def _publish_unnamed(self, name: str) -> None:
        while True:
            self._publishers += 1
            producer = f"free{self._publishers}"
            async with (
                self._client("publish unnamed", name) as (client, life),
                client.producer(name) as sink,
            ):
                for _ in range(self._chance.randrange(1, 30)):
                    sents = [life.next(producer) for _ in range(_BATCH // 2)]
                    for sent in sents:
                        await sink.send(_message(sent), filter_value=sent.kind)
                    await sink.flush()
                    self._confirm(life, sents)
                    await trio.sleep(0.3)

    def _confirm(self, life: Life, sents: list[Sent]) -> None:
        life.confirmed |= {sent for sent in sents if sent not in life.places}

    async def _work(self, number: int) -> None:
        chance = Random(f"{self._chance.random()} {number}")
        works: list[tuple[float, str, Callable[[str, Random], Awaitable[None]]]] = [
            (4, "", self._read_range),
            (4, "", self._read_filtered),
            (2, "", self._read_selected),
            (4, "", self._find),
            (2, "", self._read_with_pika),
            (1.5, "cut", self._truncate),
            (0.7, "life", self._delete),
            (1, "set", self._set),
            (0.5, "", self._collect),
            (0.5, "", self._verify_some),
            (1, "", self._store_offset),
        ]
        works = [one for one in works if not one[1] or one[1] in STREAMS]
        while True:
            weights = [weight for weight, _, _ in works]
            ((_, name, work),) = chance.choices(works, weights)
            await work(name or chance.choice(list(STREAMS)), chance)
            await trio.sleep(chance.uniform(0, 0.1))

    # -- reading

    async def _read_range(self, name: str, chance: Random) -> None:
        async with self._client("read", name) as (client, life):
            at = _somewhere(life, chance)
            most = chance.choice((1, 50, 500, 3_000))
            last = None
            async with client.consumer(name, offset=at, until_end=True) as messages:
                async for message in messages:
                    self._is_same(life)
                    missing = last_missing(at if last is None else last + 1, message.offset)
                    if missing is not None:
                        await self._is_cut(client, life, missing)
                    last = message.offset
                    life.take(message.offset, bytes(message.body))
                    most -= 1
                    if not most:
                        break

    def _is_same(self, life: Life) -> None:
        if self.lives[life.name] is not life:
            raise Moved

    async def _is_cut(self, client: Client, life: Life, missing: int) -> None:
        """A message that did not come was cut off."""
        first = (await client.stats(life.name))["first_chunk_id"]
        self._is_same(life)
        if missing >= first and not (first < 0 and life.is_emptied):
            raise WrongError(f"{life.name}: {missing} did not come, it begins at {first}")

    async def _compare_filtered(
        self,
        client: Client,
        life: Life,
        start: int,
        end: int,
        wanted: Callable[[Sent], bool],
        came: dict[int, bytes],
    ) -> None:
        before = {at: sent for at, sent in life.seen.items() if start <= at < end and wanted(sent)}
        for offset, body in came.items():
            sent = life.take(offset, body)
            if not wanted(sent):
                raise WrongError(f"{life.name}: {sent} at {offset} was not asked for")
        missing = sorted(before.keys() - came.keys())
        if missing:
            await self._is_cut(client, life, missing[-1])

    async def _read_filtered(self, name: str, chance: Random) -> None:
        async with self._client("read filtered", name) as (client, life):
            at = _somewhere(life, chance)
            kinds = {f"k{chance.randrange(NUM_KINDS)}" for _ in range(chance.randrange(1, 3))}
            end = (await client.stats(name))["committed_offset"] + 1
            known = set(life.seen)
            async with client.consumer(
                name, offset=at, until_end=True, filter_values=kinds, filter_value="kind"
            ) as messages:
                came = {one.offset: bytes(one.body) async for one in messages}
            self._is_same(life)
            await self._compare_filtered(
                client, life, at, end, lambda sent: sent.kind in kinds, came
            )
            del known

    async def _read_selected(self, name: str, chance: Random) -> None:
        async with self._client("read selected", name) as (client, life):
            at = _somewhere(life, chance)
            kind, number = f"k{chance.randrange(NUM_KINDS)}", chance.randrange(200)
            end = (await client.stats(name))["committed_offset"] + 1
            async with client.consumer(
                name, offset=at, until_end=True, sql=f"kind = '{kind}' AND n > {number}"
            ) as messages:
                came = {one.offset: bytes(one.body) async for one in messages}
            self._is_same(life)
            await self._compare_filtered(
                client, life, at, end, lambda s: s.kind == kind and s.number > number, came
            )

    async def _find(self, name: str, chance: Random) -> None:
        async with self._client("find", name) as (client, life):
            if not life.seen:
                raise Moved
            at = chance.choice(list(life.seen))
            sent = life.seen[at]
            found = {
                one.offset: bytes(one.body)
                async for one in client.find(name, key=sent.identity, properties=["id"])
            }
            self._is_same(life)
            for offset, body in found.items():
                life.take(offset, body)
            if found.keys() - {at}:
                raise WrongError(f"{name}: {sent.identity} was found at {sorted(found)}, not {at}")
            if not found:
                await self._is_cut(client, life, at)

    async def _read_with_pika(self, name: str, chance: Random) -> None:
        async with self._client("read with pika", name) as (client, life):
            at = _somewhere(life, chance)
            kind = f"k{chance.randrange(NUM_KINDS)}" if chance.random() < 0.5 else ""
            found = await trio.to_thread.run_sync(
                _consume, self.server.amqp_port, name, at, kind, abandon_on_cancel=True
            )
            self._is_same(life)
            offsets = [offset for offset, _ in found]
            if offsets != sorted(set(offsets)):
                raise WrongError(f"{name}: offsets by AMQP are not in order: {offsets[:20]}")
            for offset, body in found:
                life.take(offset, body)
            if not found:
                return
            if kind:
                wanted = {o for o, sent in life.seen.items() if sent.kind == kind}
                missing = [o for o in wanted - {*offsets} if at <= o < offsets[-1]]
            else:
                pairs = pairwise([at - 1, *offsets])
                found_missing = (last_missing(before + 1, after) for before, after in pairs)
                missing = [one for one in found_missing if one is not None]
            if missing:
                await self._is_cut(client, life, max(missing))

    async def _check_one(self) -> None:
        await self._check(self._chance.choice(list(STREAMS)))

    async def _check(self, name: str, *, patience: float = 60.0, end: int | None = None) -> None:
        """All of a stream, from its first message on."""
        give_up_at = time.monotonic() + patience
        while True:
            life = self.lives[name]
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._alarm)
                    with trio.fail_after(max(0.1, give_up_at - time.monotonic())):
                        await self._check_once(life, end)
                    nursery.cancel_scope.cancel()
                return
            except BaseException as error:
                first = _first(error)
                if isinstance(first, (*_GONE, Moved)) and self.lives[name] is not life:
                    return
                if not isinstance(first, _GONE):
                    raise
                if name == "life" and isinstance(first, StreamDoesNotExist):
                    return  # whoever has deleted it was stopped before creating it again
                if time.monotonic() > give_up_at:
                    raise WrongError(f"{name} cannot be read: {first!r}") from error
                await trio.sleep(0.2)

    async def _alarm(self) -> None:
        """What the server does, which takes its time, is in the log then."""
        await trio.sleep(_SLOW)
        if self.server.is_running:
            self.server.signal(signal.SIGUSR1)

    async def _check_once(self, life: Life, expected: int | None) -> None:
        name = life.name
        confirmed = set(life.confirmed)
        known = [at for at in life.seen if at >= life.first]
        async with connect(self.server.uri, retry_seconds=0) as client:
            end = (await client.stats(name))["committed_offset"] + 1
            if known and max(known) >= end:
                self._is_same(life)
                raise WrongError(f"{name} ends at {end}, {max(known)} was read before")
            offsets: list[int] = []
            async with client.consumer(name, offset="first", until_end=True) as messages:
                async for message in messages:
                    self._is_same(life)
                    missing = last_missing(offsets[-1] + 1, message.offset) if offsets else None
                    if missing is not None:
                        await self._is_cut(client, life, missing)
                        offsets.clear()  # retention was faster
                    life.take(message.offset, bytes(message.body))
                    offsets.append(message.offset)
            first = (await client.stats(name))["first_chunk_id"]
        self._is_same(life)
        if offsets:
            life.begins(max(life.first, min(offsets[0], max(first, 0))) if first else offsets[0])
        if expected is not None and offsets and offsets[-1] + 1 != expected:
            raise WrongError(f"{name} ends at {offsets[-1] + 1}, expected {expected}")
        if offsets or first <= 0:
            life.check_all(offsets, end, confirmed)

    # -- changing

    async def _truncate(self, name: str, chance: Random) -> None:
        async with self._client("truncate", name) as (client, life):
            if not life.seen:
                raise Moved
            last = max(life.seen)
            before = last - chance.randrange(3_000) if chance.random() < 0.9 else last + 1
            life.is_emptied |= before > last
            first = await client.truncate(name, before=max(0, before))
            self._is_same(life)
            life.first = max(life.first, first)

    async def _delete(self, name: str, _chance: Random) -> None:
        async with self._client("delete", name) as (client, life):
            await client.delete(name)
            self._is_same(life)
            self._new_life(name)
        while True:
            if not self._up.is_set():
                await self._up.wait()
            try:
                with trio.fail_after(_PATIENCE):
                    async with connect(self.server.uri, retry_seconds=0) as client:
                        if await client.exists(name):
                            return
                        if not self.lives[name].sent:
                            await client.create(name, arguments=_COMMON | STREAMS[name])
                            return
                        self._new_life(name)
            except BaseException as error:
                if not isinstance(_first(error), _GONE):
                    raise
                await trio.sleep(0.1)

    async def _set(self, name: str, chance: Random) -> None:
        async with self._client("set", name) as (client, _):
            await client.set_arguments(name, chance.choice(_SETTINGS))

    async def _collect(self, _name: str, chance: Random) -> None:
        async with self._client("gc", "kept") as (client, _):
            dry = "true" if chance.random() < 0.3 else "false"
            await client.tier_report("tier.gc", dry_run=dry)

    async def _store_offset(self, _name: str, _chance: Random) -> None:
        async with self._client("store offset", "kept") as (client, life):
            with suppress(NoOffset):
                found = await client.query_offset("kept", "app")
                life.stored = life.stored or [found]
                if found not in life.stored[-2:]:
                    raise WrongError(f"offset {found} is stored, expected {life.stored[-2:]}")
            if life.seen:
                at = max(life.seen)
                life.stored.append(at)
                await client.set_offset("kept", "app", at)

    # -- verifying

    async def _verify_some(self, name: str, _chance: Random) -> None:
        async with self._client("verify", name) as (client, life):
            await self._verify_with(client, name, attempts=3)
            self._is_same(life)

    async def _verify(self, name: str) -> None:
        async with self._client("verify", name) as (client, _):
            await self._verify_with(client, name, attempts=3)

    async def _verify_with(self, client: Client, name: str, attempts: int) -> None:
        """Objects that retention removes while they are read are none of its faults."""
        with suppress(PreconditionFailed, StreamDoesNotExist):
            for _ in range(attempts):
                report, *faults = await client.tier_report("tier.verify", stream=name)
                if report["num_faults"] == "0":
                    return
                await trio.sleep(0.3)
            if self.lives[name].name != "life" and name not in ("ring", "cut", "set"):
                raise WrongError(f"verify of {name}: {faults[:3]}")


def _somewhere(life: Life, chance: Random) -> int:
    """An offset that was read, or the next one; of those in gaps there would be too many."""
    return chance.choice([*life.seen]) + chance.randrange(2) if life.seen else 0


def _message(sent: Sent) -> Message:
    properties = {"kind": sent.kind, "id": sent.identity, "n": sent.number}
    return Message(sent.body, application_properties=properties)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        order = sorted(error.exceptions, key=lambda one: isinstance(one, trio.Cancelled))
        error = order[0]
    return error


def _consume(port: int, name: str, start: int, kind: str) -> list[tuple[int, bytes]]:
    """Some messages by AMQP 0-9-1, as far as they come in a moment."""
    login = pika.PlainCredentials("guest", "guest")
    parameters = pika.ConnectionParameters(
        "127.0.0.1", port, credentials=login, socket_timeout=5, blocked_connection_timeout=5
    )
    found: list[tuple[int, bytes]] = []
    arguments = {"x-stream-offset": start}
    if kind:
        arguments["x-stream-filter"] = kind
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=100)
        for method, properties, body in channel.consume(
            name, arguments=arguments, inactivity_timeout=1
        ):
            if method is None or len(found) == 400:
                break
            sent = read(body)
            if not kind or sent is None or sent.kind == kind:  # chunks come in whole
                found.append((properties.headers["x-stream-offset"], body))
            channel.basic_ack(method.delivery_tag)
        channel.cancel()
    return found


def main() -> None:
    """Run, print the result, and exit with 1 when something did not hold."""
    parser = argparse.ArgumentParser(description="kill -9 of a server and of its tier's store.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--store", choices=KINDS, default="file")
    parser.add_argument("--seed", type=int, default=None, help="of a run before")
    parser.add_argument("--no-restore", action="store_true")
    parser.add_argument("--keep", type=Path, help="an empty folder, which keeps everything")
    given = parser.parse_args()
    seed = time.time_ns() % 1_000_000 if given.seed is None else given.seed
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="streamd-tier-kills-") as folder:
        place = given.keep or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        run = Run(place, given.store, given.seconds, seed, restores=not given.no_restore)
        faults = run.run()
    print(", ".join(f"{name} {number:,}" for name, number in sorted(run.counts.items())))
    print(f"{run.num_compared:,} messages compared, seed {seed}")
    print("\n".join(f"FAULT: {fault}" for fault in faults) or "every message was in its place")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
