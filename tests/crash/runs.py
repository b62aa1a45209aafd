"""A run of a stream over a disk that records, with all promises made to users on the way."""

import sys
from contextlib import nullcontext
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import trio
import trio.testing

from segments import ChunkBuilder, Log, LogPolicy, StorageError, at_offset
from segments.codec import walk_entries
from segments.derived import key_schedule as schedule
from segments.derived.key_files import KeyJob, make_table
from segments.derived.key_worker import Answer
from segments.flush import Flush
from segments.message import Message
from segments.search.request import SearchRequest
from segments.search.search import Search, run
from streamd.broker.streams.flusher import Flusher, FlushMode
from streamd.broker.streams.key_upkeep import Progress
from streamd.broker.streams.publication import PendingEntries
from streamd.broker.streams.stream import Stream, StreamServices
from streamd.net import threads
from streamd.net.rounds import Rounds
from streamd.wire.stream.publish import Outgoing, decode_filtered_entries, encode_filtered_entries
from tests.support.recorder import RecordingDisk

FOLDER, _TRASH = "data/s", "data/trash"
KEY = "k"
_STEPS = 60
_IDENTITY = 1  # of the stream, for searches


class Mark(NamedTuple):
    """Something that was promised, or may be relied on, from an operation of the disk on.

    Attributes:
        at: how many operations had been done.
        value: what.
    """

    at: int
    value: Any


@dataclass
class Life:
    """A stream from its creation to its deletion.

    Attributes:
        created, deleted: how many operations had been done when it was so for certain.
        bodies: what was appended, by offset.
        offset_of: where a publisher's message stands.
        confirms: offsets that were confirmed, each as the highest so far.
        firsts: first offsets, as retention and truncation went on.
        cutting: offset before which it was being truncated, 0 while it was not.
        cut: first offsets that truncation had promised.
        stored: offsets that a consumer stored; None where none is left.
        known: of these, which were as safe as a confirm.
        flushes: flushes that were completed; the value is when they began.
        shown: offsets behind the last message that a reader could see.
        tokens: of searches that were not done.
    """

    number: int
    created: int = sys.maxsize
    deleted: int = sys.maxsize
    bodies: list[bytes] = field(default_factory=list)
    offset_of: dict[tuple[bytes, int], int] = field(default_factory=dict)
    confirms: list[Mark] = field(default_factory=list)
    firsts: list[Mark] = field(default_factory=list)
    cutting: list[Mark] = field(default_factory=list)
    cut: list[Mark] = field(default_factory=list)
    stored: list[Mark] = field(default_factory=list)
    known: list[Mark] = field(default_factory=list)
    flushes: list[Mark] = field(default_factory=list)
    shown: list[Mark] = field(default_factory=list)
    tokens: list[Mark] = field(default_factory=list)


class _Publisher:
    """Notes what is confirmed."""

    def __init__(self, run: "Run", reference: bytes) -> None:
        self.reference = reference
        self.last = 0
        self._run = run

    def confirm(self, publishing_ids: bytes) -> None:
        life = self._run.life
        starts = range(0, len(publishing_ids), 8)
        ids = [int.from_bytes(publishing_ids[at : at + 8], "big") for at in starts]
        offset = max(life.offset_of[self.reference, number] for number in ids)
        self._run.note(life.confirms, offset)

    def refuse(self, publishing_ids: bytes, code: object) -> None:
        raise AssertionError(f"refused with {code}: {publishing_ids!r}")


class Run:
    """One recorded run.

    Attributes:
        disk: that recorded it.
        lives: of the stream.
        mode: how it was flushed.
    """

    def __init__(self, mode: FlushMode, seed: int) -> None:
        self.mode = mode
        self.disk = RecordingDisk()
        self.lives: list[Life] = []
        self._random = Random(seed)
        self._rounds = Rounds()
        self._in_rounds = seed % 2 == 0  # else the stream's own task writes
        self.policy = LogPolicy(
            max_segment_chunks=self._random.randint(2, 6),
            max_length_bytes=self._random.choice((3_000, 20_000)),
            filter_size=16,
            key_properties=(KEY,),
        )
        disk = self.disk
        disk.make_folder("data")
        disk.make_folder(_TRASH)
        disk.sync_folder("")
        disk.sync_folder("data")
        # The same run for the same seed: trio shuffles its tasks otherwise.
        trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[attr-defined]
        trio._core._run._r.seed(seed)  # type: ignore[attr-defined]
        clock = trio.testing.MockClock(autojump_threshold=0)
        original, threads.in_thread = threads.in_thread, self._in_thread
        limits = schedule.SPARE_BYTES, schedule.FEW_BYTES
        schedule.SPARE_BYTES = schedule.FEW_BYTES = 1
        try:
            trio.run(self._run, clock=clock)
        finally:
            threads.in_thread = original
            schedule.SPARE_BYTES, schedule.FEW_BYTES = limits

    @property
    def life(self) -> Life:
        return self.lives[-1]

    def note(self, marks: list[Mark], value: object) -> None:
        marks.append(Mark(len(self.disk.operations), value))

    async def _in_thread(self, work: Any, *arguments: object) -> Any:
        began = len(self.disk.operations)
        await trio.lowlevel.checkpoint()
        result = work(*arguments)
        await trio.sleep(self._random.choice((0, 0, 0.01)))
        if getattr(work, "__name__", "") == "run" and hasattr(work.__self__, "num_held"):
            self.note(self.life.flushes, began)
        return result

    async def _run(self) -> None:
        async with trio.open_nursery() as nursery:
            self._flusher = Flusher(self.mode, 1)
            nursery.start_soon(self._flusher.run)
            for number in range(3):
                self._create(nursery, number)
                for _ in range(_STEPS):
                    await self._step(nursery)
                if number < 2:
                    await self._delete()
            nursery.cancel_scope.cancel()

    # -- what a virtual host does, see streamd/broker/virtual_host.py

    def _create(self, nursery: trio.Nursery, number: int) -> None:
        if self.disk.tree.find(FOLDER) is not None:
            self.disk.remove_folder(FOLDER)
        self.lives.append(Life(number))
        self.publishers = [_Publisher(self, name) for name in (b"p", b"q", b"")]
        self._open(nursery)
        self.disk.sync_folder("data")
        self.life.created = len(self.disk.operations)  # it is in the catalog

    async def _delete(self) -> None:
        self.life.deleted = len(self.disk.operations)  # it is in the catalog no more
        await self._stream.life.stop()
        self._scope.cancel()
        self._stream.log.abandon()
        self.disk.rename(FOLDER, f"{_TRASH}/{self.life.number}")
        if self._random.random() < 0.5:
            self.disk.remove_folder(f"{_TRASH}/{self.life.number}")

    def _open(self, nursery: trio.Nursery) -> None:
        commits_on_flush = self.mode is FlushMode.ALWAYS
        log = Log.open(FOLDER, self.policy, self.disk, commits_on_flush=commits_on_flush)
        assert log.report.losses == ()
        self._watch(log)
        now_ms = lambda: 1_700_000_000_000  # noqa: E731
        self._stream = Stream("s", StreamServices(now_ms, self._rounds, self._flusher))
        self._stream.life.attach(log)
        self._scope = trio.CancelScope()
        nursery.start_soon(_run_in, self._scope, self._stream)
        self._now_safe()

    def _watch(self, log: Log) -> None:
        """Note what is appended where."""
        original = log.append

        def append(builders: list[ChunkBuilder], now_ms: int) -> None:
            original(builders, now_ms)
            life = self.life
            self.note(life.shown, log.committed_offset)
            for builder in builders:
                for raw in bodies_in(b"".join(builder._data)):
                    _, reference, number, _ = raw.split(b"|", 3)
                    life.offset_of[reference, int(number)] = len(life.bodies)
                    life.bodies.append(raw)

        end = log.end_flush

        def end_flush(flush: Flush, error: StorageError | None = None) -> None:
            end(flush, error)
            self.note(self.life.shown, log.committed_offset)

        hide = log.outlive

        def outlive(now_ms: int) -> bool:
            has_hidden = hide(now_ms)
            self.note(self.life.firsts, log.segments.first_offset)
            return has_hidden

        log.append, log.outlive = append, outlive  # type: ignore[method-assign]
        log.end_flush = end_flush  # type: ignore[method-assign]

    # -- what is done

    async def _step(self, nursery: trio.Nursery) -> None:
        random = self._random
        kind = random.choices(
            (
                *("publish", "repeat", "store", "sleep", "expire", "reopen"),
                *("ask", "index", "cut", "search"),
            ),
            (10, 2, 3, 4, 2, 0.4, 1, 6, 1, 1),
        )[0]
        if kind == "publish":
            with self._rounds.open() if self._in_rounds else nullcontext():
                for _ in range(random.randint(1, 3)):
                    self._publish(random.choice(self.publishers), random.randint(1, 8))
        elif kind == "repeat":
            publisher = random.choice(self.publishers[:2])
            first = random.randint(1, publisher.last + 1)
            self._send(publisher, range(max(1, first - 2), first))
        elif kind == "store":
            offset = random.randint(0, len(self.life.bodies) + 5)
            self._stream.store_offset("c", offset)
            self.note(self.life.stored, offset)
        elif kind == "sleep":
            await trio.sleep(random.choice((0.1, 0.5, 1.5)))
        elif kind == "search":
            self._search()
        elif kind == "ask":
            await self._stream.settled()
            if self.life.stored:
                self.note(self.life.known, len(self.life.stored) - 1)
        else:
            await self._keep_up(kind, nursery)
        if random.random() < 0.5:
            await trio.testing.wait_all_tasks_blocked()

    async def _keep_up(self, kind: str, nursery: trio.Nursery) -> None:
        if kind == "index":
            await self._index()
        elif kind == "cut":
            async with trio.open_nursery() as both:  # beside the making of key tables, perhaps
                if self._random.random() < 0.5:
                    both.start_soon(self._index)
                await self._cut()
        elif kind == "expire":
            await self._stream.life.held.expire()
        else:
            await self._reopen(nursery)

    def _search(self) -> None:
        page = run(search(self._stream.log, newest=self._random.random() < 0.5))
        if page.after:
            self.note(self.life.tokens, page.after)

    async def _index(self) -> None:
        for segment in self._stream.life.held.log.indexes.take_requests():
            await self._stream.life.held.build_index(segment)
        while await self._stream.life.held.upkeep.step(self) is Progress.MADE:
            pass

    async def _cut(self) -> None:
        log = self._stream.log
        offset = self._random.randint(log.segments.first_offset, log.next_offset)
        self.note(self.life.cutting, offset)
        self.note(self.life.cut, await self._stream.truncate(at_offset(offset)))
        self.note(self.life.firsts, log.segments.first_offset)
        self.note(self.life.cutting, 0)

    async def make(self, job: KeyJob) -> Answer:
        """What the process that makes key tables does."""
        await threads.in_thread(make_table, self.disk, job)
        return Answer()

    async def _reopen(self, nursery: trio.Nursery) -> None:
        await self._stream.settled()
        await self._stream.life.stop()
        self._scope.cancel()
        began = len(self.disk.operations)
        self._stream.log.close()
        self.note(self.life.flushes, began)
        self._open(nursery)
        stored, known = self._stream.log.journal.tracking.offset(b"c"), self.life.stored
        if known and known[-1].value != stored:  # it was behind the end
            self.note(known, stored)

    def _now_safe(self) -> None:
        """What is opened is on the device."""
        self.note(self.life.flushes, len(self.disk.operations))

    def _publish(self, publisher: _Publisher, number: int) -> None:
        first = publisher.last + 1
        publisher.last += number
        self._send(publisher, range(first, first + number))

    def _send(self, publisher: _Publisher, ids: range) -> None:
        if not ids:
            return
        bodies = {number: self._body(publisher.reference, number) for number in ids}
        messages = [Outgoing(n, body, filter_value_of(body)) for n, body in bodies.items()]
        encoded = encode_filtered_entries(messages)
        for entries in decode_filtered_entries(encoded, len(messages)).groups:
            self._stream.publish(PendingEntries(publisher, entries))  # type: ignore[arg-type]

    def _body(self, reference: bytes, number: int) -> bytes:
        padding = self._random.choice((0, 0, 30, 200, 1_500))
        body = b"%d|%s|%d|" % (self.life.number, reference, number) + b"x" * padding
        return Message(body, application_properties={KEY: str(number)}).encode()


async def _run_in(scope: trio.CancelScope, stream: Stream) -> None:
    with scope:
        await stream.life.held.run()


def search(log: Log, after: str = "", *, newest: bool = False) -> Search:
    """A search that finds all messages, two on a page."""
    return Search(log, SearchRequest(limit=2, newest=newest), _IDENTITY, 0, after)


def filter_value_of(body: bytes) -> bytes | None:
    """What a message of a run is published with: one of two values, or none."""
    number = int(body.split(b"|", 3)[2])
    return None if number % 5 == 4 else b"v%d" % (number // 9 % 2)


def bodies_in(data: bytes) -> list[bytes]:
    return [data[at.body : at.end] for at in walk_entries(data)]
