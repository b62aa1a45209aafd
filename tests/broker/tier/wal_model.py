"""Every interleaving of a small server that confirms through a store, with the server's own code.

    python -m tests.broker.tier.wal_model           all set-ups, with the states that each has

Theory of operation. `StoreConfirms`, `Tails`, `TieredStream`, `Stream` and `Log` are the real ones,
in one process at virtual time. What they write into the store is parked until a scheduler says what
becomes of it: it is done and answered; done and not answered; not done, and the sender told so; it
may land later, when its sender has gone on or is dead, and once more. The scheduler also says when
a message is published, an offset stored and asked for, a stream deleted or uploaded, the log
shortened, a process killed, a machine lost, another one started.

A *way* is a list of choices. A run follows one, and goes on with the first choice of each state
that nobody has seen, until it meets one that somebody has: so all states are found, depth first.
A state is what decides what can happen: objects, what is parked or may land late, what each server
has sent and confirmed, and what clients were told.

In each state these are looked at:

* What a reader was shown at an offset, is what every later reader is shown there; a server that
  only reads shows what is in manifests and logs, confirmed or not.
* What was confirmed, or said to be there by a sequence, a start finds: in manifests and logs as the
  store has them now, and on its own log when it serves.
* No message of the publisher, which has a name, is there twice, or before an earlier one.
* An offset that was answered is known to the next start, or a later one.
* A stream whose end was answered does not come back.
* When nothing is under way any more, the newest server has confirmed what it was given.

What is not modelled: time (any server may be paused for any time), claims (a cluster object that
knows epochs stands for them), segments in the store (a manifest has chunks as they are).
"""

import argparse
import hashlib
import logging
import os
import random
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias, cast

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from segments import Log, LogPolicy
from segments.codec import simple_bodies
from segments.disk import OsDisk
from segments.marks import LIFE, put_mark
from segments.recovery.tail import TailChunk
from segments.segment import walk_headers
from segments.store.cluster import WalMark
from segments.store.manifest import Manifest
from segments.store.object_names import StreamKey
from segments.store.object_store import ConflictError, MissingError, StoredObject, TierError
from segments.store.wal import chunks_in, decode_slot, slot_key
from streamd.broker import stream_logs
from streamd.broker.declared.rows import StreamRow
from streamd.broker.streams.publication import PendingEntries
from streamd.broker.streams.stream import Stream, StreamServices
from streamd.broker.tier import wal, wal_reading
from streamd.broker.tier.identity import Identity
from streamd.broker.tier.ownership import Ownership
from streamd.broker.tier.stream_tier import TieredStream, TierParts
from streamd.broker.tier.wal import StoreConfirms
from streamd.broker.traffic import Histogram
from streamd.net import threads
from streamd.net.rounds import Rounds
from streamd.operations.errors import Reason
from streamd.operations.names import Name, stream_folder
from streamd.wire.stream.publish import Outgoing, decode_entries, encode_entries

_HOST = Name("/")
_LIFE = "0000000000000001"
_PUBLISHER, _CONSUMER = b"p", b"c"
_STEP_SECONDS = 3.0  # in which all who wait for a while do what they wait for


class Loss(AssertionError):
    """A promise is broken."""


class Setup(NamedTuple):
    """What can happen, so many times at most.

    Attributes:
        streams: there are.
        messages: of each.
        kills: of a process; its folder stays.
        losses: of a machine, or starts on another one while it goes on: who takes over has nothing.
        unanswered: writes that are done and not answered.
        late: writes that fail, and may land later.
        again: writes that may land once more.
        offsets: that a consumer stores and asks for.
        trims, uploads, deletions: see above.
    """

    streams: int = 1
    messages: int = 2
    kills: int = 0
    losses: int = 0
    unanswered: int = 0
    late: int = 0
    again: int = 0
    offsets: int = 0
    trims: int = 0
    uploads: int = 0
    deletions: int = 0


SETUPS = {
    "lost": Setup(messages=2, losses=1, unanswered=1, late=1),
    "three": Setup(messages=3, losses=1, late=1),
    "killed": Setup(messages=2, kills=1, unanswered=1, late=1),
    "twice": Setup(messages=2, kills=1, losses=1),
    "trim": Setup(messages=2, losses=1, trims=1, again=1),
    "offsets": Setup(messages=1, losses=1, kills=1, offsets=2),
    "two": Setup(streams=2, messages=1, losses=1, kills=1),
    "deleted": Setup(messages=1, losses=1, late=1, deletions=1),
}


# In words, and how.
_Choice: TypeAlias = tuple[str, Callable[[], Awaitable[None] | None]]


class _Park(BaseException):
    """Work in a thread has come to a write: it is done again when that is decided."""

    def __init__(self, write: "Write") -> None:
        self.write = write


@dataclass(eq=False)
class Write:
    """Something that a server wants written.

    Attributes:
        node: whose.
        name: of the method.
        is_done: the store has it.
        decided: it has an answer, or never gets one.
    """

    node: int
    name: str
    key: str
    content: bytes
    expected: bytes = b""
    keys: tuple[str, ...] = ()
    answer: BaseException | None = None
    decided: trio.Event = field(default_factory=trio.Event)

    def told(self) -> tuple[object, ...]:
        return (self.node, self.name, self.key, _digest(self.content), self.expected, self.keys)

    def __str__(self) -> str:
        what = _digest(self.content)[:4]
        return f"{self.name} {self.key or self.keys} of server {self.node} ({what})"


def _digest(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


class _Store:
    """The store as one server sees it; see ObjectStore."""

    def __init__(self, world: "World", node: int) -> None:
        self._world, self._node = world, node

    def __repr__(self) -> str:
        return "model://store"

    def get(self, key: str, _most: int = 0) -> StoredObject:
        if key not in self._world.objects:
            raise MissingError(f"cannot read {key} in {self}: it is not there")
        return StoredObject(self._world.objects[key], "")

    def create(self, key: str, content: bytes) -> str:
        self._write(Write(self._node, "create", key, content))
        return ""

    def delete(self, keys: Sequence[str]) -> None:
        if keys:
            self._write(Write(self._node, "delete", "", b"", keys=tuple(keys)))

    def mark(self, marks: tuple[WalMark, ...], expected: bytes) -> None:
        """Replace what the cluster object says of logs, by compare-and-set."""
        self._write(Write(self._node, "mark", "cluster", repr(marks).encode(), expected))
        self._world.marks_of[repr(marks).encode()] = marks

    def _write(self, write: Write) -> None:
        self._world.ask(write)


class _Owner:
    """Stands for `Ownership`: whose the tier is, is a number in the store."""

    sentence = ""

    def __init__(self, world: "World", node: int, epoch: int) -> None:
        self.identity = Identity("server", epoch, f"{node}", tier="tier")
        self.store = _Store(world, node)
        self.wals = world.marks
        self.fence = ""
        self._world = world

    async def taken(self) -> None:
        await trio.lowlevel.checkpoint()

    async def mark_wals(self, change: Callable[[tuple[WalMark, ...]], tuple[WalMark, ...]]) -> None:
        await wal.ask(self._mark, change)

    def _mark(self, change: Callable[[tuple[WalMark, ...]], tuple[WalMark, ...]]) -> None:
        before, world = self._world.cluster, self._world
        if world.epoch != self.identity.epoch:
            self.fence = "another server has the tier"
            raise TierError(self.fence)
        wanted = change(world.marks)
        if repr(wanted).encode() != before:
            world.marks_of[repr(wanted).encode()] = wanted
            self.store.mark(wanted, before)

    async def check_ownership(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._world.epoch != self.identity.epoch:
            self.fence = "another server has the tier"

    def look_again(self, _error: TierError) -> None:
        """Nobody has to."""


class _Tiered(TieredStream):
    """The tier's part of a stream, which stores segments when the scheduler says so."""

    world: "World"

    @property
    def manifest(self) -> Manifest | None:
        key = StreamKey(self.virtual_host, self.name, self.life or "")
        return self.world.manifests.get(key, (None, ()))[0]


class _Publisher:
    """Publishes numbers, with a name."""

    reference = _PUBLISHER

    def __init__(self, told: Callable[[int], None]) -> None:
        self._told = told
        self.num_refused = 0

    def confirm(self, publishing_ids: bytes) -> None:
        for position in range(0, len(publishing_ids), 8):
            self._told(int.from_bytes(publishing_ids[position : position + 8], "big"))

    def refuse(self, publishing_ids: bytes, _reason: Reason) -> None:
        self.num_refused += len(publishing_ids) // 8


@dataclass
class Open:
    """A stream on a server, and who has to do with it there.

    Attributes:
        sent: the last number that was published here; None before the publisher has come here.
        is_asked: the publisher, or the consumer, waits for an answer.
    """

    stream: Stream
    tiered: _Tiered
    sent: int | None = None
    is_asked: bool = False


class Node:
    """One start of a server."""

    def __init__(self, world: "World", number: int, folder: str) -> None:
        self.world, self.number, self.folder = world, number, folder
        self.owner = _Owner(world, number, world.epoch)
        self.running = trio.CancelScope()
        self.is_over = self.is_shortening = False
        self.open: dict[str, Open] = {}
        self.rounds = Rounds()
        self.tiered: dict[str, _Tiered] = {}
        self.confirms = StoreConfirms(
            folder, cast("Ownership", self.owner), self._find, 0.2, Histogram((1.0,))
        )

    def _find(self, _host: str, name: str) -> TieredStream | None:
        return self.tiered.get(name)

    async def run(self) -> None:
        """Until it is killed."""
        world = self.world
        parts = SimpleNamespace(
            ownership=self.owner,
            confirms=self.confirms,
            line=None,
            now_ms=lambda: 0,
            delay_ms=0,
            roll_ms=1 << 40,
            wants=lambda _stream: None,
            wants_at=lambda *_: None,
            note_open=lambda *_: None,
            delete_later=None,
            is_shard=False,
        )
        with self.running:
            async with trio.open_nursery() as self.nursery:
                streams: dict[str, Stream] = {}
                for name in world.names:
                    row = StreamRow(_HOST, Name(name), {}, has_files=True)
                    tiered = _Tiered(
                        cast("TierParts", parts), _HOST, Name(name), lambda row=row: row
                    )
                    tiered.world = world
                    services = StreamServices(lambda: 1, self.rounds, tier=tiered)
                    stream = Stream(Name(name), services)
                    tiered.belongs_to(stream)
                    tiered.policy_changed(world.policy)
                    self.tiered[name] = tiered
                    streams[name] = stream
                self.nursery.start_soon(self.confirms.run)
                await self.confirms.read()
                for name, stream in streams.items():
                    self.nursery.start_soon(self._open, name, stream)
                await trio.sleep_forever()

    async def _open(self, name: str, stream: Stream) -> None:
        """As stream_logs.py, and `Tier.confirm`."""
        world, key = self.world, StreamKey(_HOST, name, _LIFE)
        tail = self.confirms.tail(_HOST, name)
        manifest, stored = world.manifests.get(key, (None, ()))
        folder = stream_folder(self.folder, _HOST, name)

        def chunks() -> Iterator[TailChunk]:
            yield from stored
            if tail is not None:
                yield from tail.chunks()()

        if key in world.gone:
            if tail is not None and not tail.is_deleted and world.gone[key]:
                raise Loss(f"{name} was deleted, and is there again")
            return
        log = Log.open(folder, world.policy, epoch=self.owner.identity.epoch, tail=chunks)
        world.logs.append(log)
        log.stored.manifest = manifest
        if tail is not None:
            stream_logs._take_offsets(log, tail)
            self.confirms.forget_tail(tail)
        waits = self.tiered[name].begin_confirms(log)
        await waits.caught_up()
        stream.life.attach(log)
        self.nursery.start_soon(stream.life.held.run)
        self.open[name] = Open(stream, self.tiered[name])
        world.serves(self, name)

    # -- what clients do

    async def publish(self, name: str) -> None:
        """The next message; the publisher asks first where it is when it has come here just now."""
        one, world = self.open[name], self.world
        if one.sent is None:
            one.is_asked = True
            await one.stream.settled()
            sequence = one.stream.log.journal.tracking.sequence(_PUBLISHER) or 0
            world.promise(name, sequence)
            one.sent = max(sequence, world.confirmed[name])
            one.is_asked = False
        number = one.sent + 1
        if number > world.setup.messages:
            return
        one.sent = number
        publisher = _Publisher(lambda number: world.promise(name, number))
        raw = encode_entries([Outgoing(number, b"%d" % number)])
        with self.rounds.open():
            for entries in decode_entries(raw, 1).groups:
                one.stream.publish(PendingEntries(publisher, entries))

    async def store_offset(self, name: str, offset: int) -> None:
        """A consumer stores an offset, and asks for it; it believes what it is told."""
        one = self.open[name]
        one.stream.store_offset(_CONSUMER.decode(), offset)
        await one.stream.settled()
        found = one.stream.stored_offset(_CONSUMER.decode())
        if found is not None:
            self.world.offsets[name] = max(found, self.world.offsets.get(name, -1))

    async def shorten(self) -> None:
        self.is_shortening = True
        try:
            with self._uploading():
                await self.confirms.shorten()
        except TierError:
            pass
        self.is_shortening = False

    @contextmanager
    def _uploading(self) -> Iterator[None]:
        """Who waits for an upload has it at once; it is refused where another server has come."""
        tiered = list(self.tiered.values())

        async def upload() -> None:
            for one in tiered:
                for request in list(one._requests):
                    if self.upload(one.name):
                        request.complete(0, 0)
                    else:
                        request.fail("another server has the tier")

        self.nursery.start_soon(upload)
        yield

    def upload(self, name: str) -> bool:
        """All that readers see is in the manifest; False where another server has come."""
        world, one = self.world, self.open.get(name)
        if one is None or world.epoch != self.owner.identity.epoch:
            return False
        log, key = one.stream.log, StreamKey(_HOST, name, _LIFE)
        chunks = tuple(_chunks_of(log))
        offsets = log.journal.tracking.offsets()
        manifest = Manifest(
            stream=key, revision=1, epoch=1, writer="", next_offset=log.committed_offset
        )
        world.manifests[key] = (manifest, chunks)
        world.stored_offsets[name] = dict(offsets)
        log.stored.manifest = manifest
        return True

    async def delete(self, name: str) -> None:
        """As virtual_host.py: the catalog forgets it, and the log says so."""
        key = StreamKey(_HOST, name, _LIFE)
        self.world.gone[key] = False
        self.world.manifests.pop(key, None)
        self.open.pop(name).stream.remove()
        await self.confirms.ends_stored()
        self.world.gone[key] = True

    # -- what it is like

    def state(self) -> tuple[object, ...]:
        confirms = self.confirms
        streams = []
        for name, stream in sorted((one.key.stream, one) for one in confirms._streams.values()):
            one = self.open.get(name)
            writer = None if stream.opened is None else stream.opened.writer
            log = stream._log
            streams.append(
                (
                    name,
                    stream._cursor,
                    stream._after,
                    stream._num_under_way,
                    stream.is_broken,
                    stream.is_marked,
                    None if log is None else (log.next_offset, log.committed_offset),
                    None
                    if writer is None
                    else (
                        writer.num_asked - writer.num_settled,
                        tuple(writer.changed_offsets.items()),
                        writer.catches_up,
                        len(writer._batches),
                        writer.failure,
                    ),
                    None if one is None else (one.sent, one.is_asked),
                )
            )
        sent = tuple((one.slot.slot, one.is_stored, repr(one.slot)) for one in confirms._sent)
        return (
            self.is_over,
            self.running.cancel_called,
            self.is_shortening,
            self.owner.fence,
            confirms._next,
            confirms._has_begun,
            confirms._is_over,
            confirms._tails is None,
            tuple(confirms._slots.keys(len(confirms._slots))),
            tuple(confirms._deleted),
            sent,
            tuple(streams),
        )


def _chunks_of(log: Log) -> Iterator[TailChunk]:
    """What readers see of it."""
    after = 0
    for segment in log.segments.shown:
        with closing(segment.open()) as file:
            for position, header in walk_headers(segment, file, None):
                if header.chunk_id < log.committed_offset:
                    raw = bytes(file.read(header.total_size, position))
                    yield TailChunk(after, header, raw)
                    after = header.next_offset


def _numbers(chunks: Iterator[TailChunk] | Sequence[TailChunk]) -> list[tuple[int, int]]:
    """Offset and number of each message."""
    found = []
    for _, header, raw in chunks:
        bodies = simple_bodies(raw[header.data_start :][: header.data_size]) or []
        found += [(header.chunk_id + place, int(body[-1:])) for place, body in enumerate(bodies)]
    return found


class World:
    """What there is beside the servers, and the scheduler.

    Attributes:
        objects: of the store, by key.
        epoch, marks: of the cluster object.
        manifests: of streams: what they say, and the chunks that are in segments.
        late: writes that may land at any time.
        confirmed: the last number that somebody was told is there, by stream.
        shown: number by offset, of what any reader has seen, by stream.
        offsets: that a consumer was told.
        gone: streams that were deleted, and whether that was answered.
        left: how often each thing may still happen.
    """

    def __init__(self, setup: Setup, folder: str) -> None:
        self.setup, self.folder = setup, folder
        self.names = "st"[: setup.streams]
        self.policy = LogPolicy(confirms_in_store=True, tier=True)
        self.objects: dict[str, bytes] = {}
        self.epoch, self.marks = 0, cast("tuple[WalMark, ...]", ())
        self.marks_of: dict[bytes, tuple[WalMark, ...]] = {}
        self.manifests: dict[StreamKey, tuple[Manifest | None, tuple[TailChunk, ...]]] = {}
        self.stored_offsets: dict[str, dict[bytes, int]] = {}
        self.nodes: list[Node] = []
        self.parked: list[Write] = []
        self.late: list[Write] = []
        self.confirmed = dict.fromkeys(self.names, 0)
        self.shown: dict[str, dict[int, int]] = {name: {} for name in self.names}
        self.offsets: dict[str, int] = {}
        self.gone: dict[StreamKey, bool] = {}
        self.left = setup._asdict()
        self.logs: list[Log] = []
        self._answers: list[BaseException | None] = []

    @property
    def cluster(self) -> bytes:
        return repr(self.marks).encode()

    # -- work that asks the store

    def ask(self, write: Write) -> None:
        """A write, in work that is done again and again until all its writes are decided."""
        if not self._answers:
            raise _Park(write)
        answer = self._answers.pop(0)
        if answer is not None:
            raise answer

    async def in_thread(self, work: Callable[..., Any], *arguments: object) -> Any:
        """See threads.in_thread."""
        known: list[BaseException | None] = []
        await trio.lowlevel.checkpoint()
        while True:
            self._answers = list(known)
            try:
                return work(*arguments)
            except _Park as park:
                write = park.write
            self.parked.append(write)
            try:
                await write.decided.wait()
            except trio.Cancelled:  # its server is dead, and it may be on its way
                if write in self.parked:
                    self.parked.remove(write)
                    self.late.append(write)
                raise
            known.append(write.answer)

    def _carry_out(self, write: Write) -> BaseException | None:
        """The store does it; the answer."""
        if write.name == "create":
            if write.key in self.objects:
                return ConflictError(f"cannot write {write.key}: somebody else has written it")
            self.objects[write.key] = write.content
        elif write.name == "mark":
            mine = self.nodes[write.node].owner.identity.epoch
            if self.cluster != write.expected or self.epoch != mine:
                return ConflictError("cannot write the cluster: somebody else has written it")
            self.marks = self.marks_of[write.content]
        else:
            for key in write.keys:
                self.objects.pop(key, None)
        return None

    def _decide(self, write: Write, answer: BaseException | None) -> None:
        self.parked.remove(write)
        write.answer = answer
        write.decided.set()

    # -- choices

    def choices(self) -> list[_Choice]:
        """What may happen next."""
        found = [*self._of_writes(), *self._of_starts()]
        for node in self.nodes:
            if not node.running.cancel_called:
                found += self._of_clients(node)
        return sorted(found, key=itemgetter(0))

    def _of_writes(self) -> Iterator[_Choice]:
        for write in self.parked:
            yield f"{write}: done", partial(self._done, write)
            if self.left["unanswered"]:
                yield f"{write}: unanswered", partial(self._unanswered, write)
            if self.left["late"]:
                yield f"{write}: fails", partial(self._fails, write)
            if self.left["again"] and write.name == "create":
                yield f"{write}: done, and again", partial(self._again, write)
        for write in self.late:
            yield f"{write}: lands late", partial(self._lands, write)

    def _of_starts(self) -> Iterator[_Choice]:
        if self.left["kills"]:
            yield "kill, and start again", self._kill
        if self.left["losses"]:
            yield "start on another machine", self._take_over
            if not self.nodes[-1].running.cancel_called:
                yield "the machine is lost", self._lose

    def _of_clients(self, node: Node) -> Iterator[_Choice]:
        where = f"server {node.number}"
        for name, one in node.open.items():
            sent = one.sent if one.sent is not None else self.confirmed[name]
            if not one.is_asked and (one.sent is None or sent < self.setup.messages):
                yield f"publish to {name} on {where}", partial(node.publish, name)
            if self.left["offsets"] and self.shown[name]:
                yield f"store an offset of {name} on {where}", partial(self._offset, node, name)
            if self.left["deletions"] and node is self.nodes[-1]:
                yield f"delete {name} on {where}", partial(self._delete, node, name)
        if self.left["trims"] and node.open and len(node.confirms._slots):
            yield f"{where} shortens", partial(self._shorten, node)

    def _use(self, what: str) -> None:
        self.left[what] -= 1

    def _done(self, write: Write) -> None:
        self._decide(write, self._carry_out(write))

    def _unanswered(self, write: Write) -> None:
        self._use("unanswered")
        self._carry_out(write)
        self._decide(write, TierError("the answer is lost"))

    def _fails(self, write: Write) -> None:
        self._use("late")
        self.late.append(write)
        self._decide(write, TierError("cannot reach the store"))

    def _again(self, write: Write) -> None:
        self._use("again")
        self._done(write)
        self.late.append(write)

    def _lands(self, write: Write) -> None:
        self.late.remove(write)
        self._carry_out(write)

    async def _offset(self, node: Node, name: str) -> None:
        self._use("offsets")
        await node.store_offset(name, max(self.shown[name]))

    async def _shorten(self, node: Node) -> None:
        self._use("trims")
        await node.shorten()

    async def _delete(self, node: Node, name: str) -> None:
        self._use("deletions")
        await node.delete(name)

    def _kill(self) -> None:
        self._use("kills")
        newest = self.nodes[-1]
        newest.running.cancel()
        folder = f"{self.folder}/{len(self.nodes)}"
        if Path(newest.folder).exists():
            shutil.copytree(newest.folder, folder)
        self.start(folder)

    def _lose(self) -> None:
        self.nodes[-1].running.cancel()
        self._take_over()

    def _take_over(self) -> None:
        self._use("losses")
        folder = f"{self.folder}/{len(self.nodes)}"
        self.start(folder)

    def start(self, folder: str) -> None:
        """A server starts: the tier is its own from now on."""
        self.epoch += 1
        for name in self.names:
            at = stream_folder(folder, _HOST, name)
            Path(at).mkdir(parents=True, exist_ok=True)
            put_mark(OsDisk(), at, LIFE, _LIFE)
        node = Node(self, len(self.nodes), folder)
        self.nodes.append(node)
        self.nursery.start_soon(node.run)

    # -- promises

    def promise(self, name: str, number: int) -> None:
        """Somebody was told that all up to this number is there."""
        self.confirmed[name] = max(self.confirmed[name], number)

    def serves(self, node: Node, name: str) -> None:
        """A server begins to serve a stream: all that anybody was told or shown is there."""
        log = node.open[name].stream.log
        found = _numbers(list(_chunks_of(log)))
        self._check(name, dict(found), [number for _, number in found], "a start serves")
        if node is self.nodes[-1] and name in self.offsets:
            offset = log.journal.tracking.offset(_CONSUMER)
            if offset is None or offset < self.offsets[name]:
                raise Loss(f"offset {self.offsets[name]} was answered, a start has {offset}")

    def _check(self, name: str, there: dict[int, int], order: list[int], what: str) -> None:
        if order != sorted(set(order)):
            raise Loss(f"{what} {order}: doubled, or in another order")
        for offset, number in self.shown[name].items():
            if there.get(offset) != number:
                raise Loss(f"{what} {there}, and {self.shown[name]} were shown")
        if not set(range(1, self.confirmed[name] + 1)) <= set(order):
            raise Loss(f"{what} {there}, and {self.confirmed[name]} was confirmed")

    def see(self) -> None:
        """What readers see is what others saw."""
        for node in self.nodes:
            for name, one in node.open.items():
                if node.running.cancel_called:
                    continue
                for offset, number in _numbers(list(_chunks_of(one.stream.log))):
                    self._show(name, offset, number)

    def _show(self, name: str, offset: int, number: int) -> None:
        before = self.shown[name].setdefault(offset, number)
        if before != number:
            raise Loss(f"{number} at offset {offset}, where others saw {before}")

    def look(self) -> None:
        """What a start would find has all that anybody was told or shown."""
        for name in self.names:
            key = StreamKey(_HOST, name, _LIFE)
            if key in self.gone:
                if self.gone[key] and self._logged(key):
                    raise Loss(f"{name} was deleted, and a start would find messages of it")
                continue
            _, chunks = self.manifests.get(key, (None, ()))
            found = dict(_numbers(chunks))
            end = chunks[-1].header.next_offset if chunks else 0
            for after, header, raw in self._logged(key):
                if header.chunk_id < end:
                    continue
                if after > end:
                    raise Loss(f"{name} goes on behind {after}, and ends at {end}")
                found.update(_numbers([TailChunk(after, header, raw)]))
                end = header.next_offset
            order = [found[offset] for offset in sorted(found)]
            self._check(name, found, order, "a start would find")
            for offset, number in found.items():  # a server that only reads shows it now
                self._show(name, offset, number)

    def _logged(self, key: StreamKey) -> list[TailChunk]:
        """What logs have of a stream, read as their rules say."""
        found: list[TailChunk] = []
        for epoch, begins in sorted(self.marks):
            number = begins
            while (name := slot_key(epoch, number)) in self.objects:
                slot, parts = decode_slot(name, self.objects[name])
                if slot.is_fence:
                    break
                for section, part in zip(slot.sections, parts, strict=True):
                    if section.key == key:
                        found = [] if section.is_deleted else found
                        after = section.after
                        for header, raw in chunks_in(part):
                            found.append(TailChunk(after, header, bytes(raw)))
                            after = header.next_offset
                number += 1
        return found

    def is_stuck(self) -> str:
        """What was given to the newest server and is not confirmed, with nothing under way."""
        newest = self.nodes[-1]
        if self.parked or newest.running.cancel_called or newest.confirms._is_over:
            return ""
        for name in self.names:
            if StreamKey(_HOST, name, _LIFE) in self.gone:
                continue
            one = newest.open.get(name)
            if one is None:
                return f"server {newest.number} does not serve {name}"
            if one.sent is not None and self.confirmed[name] < one.sent:
                return f"{one.sent} of {name} is not confirmed by server {newest.number}"
        return ""

    def state(self) -> str:
        """What decides what can happen."""
        found = (
            sorted((key, _digest(content)) for key, content in self.objects.items()),
            (self.epoch, self.marks),
            sorted((key, one.next_offset) for key, (one, _) in self.manifests.items() if one),
            sorted(map(Write.told, self.parked), key=repr),
            sorted(map(Write.told, self.late), key=repr),
            [node.state() for node in self.nodes],
            self.confirmed,
            self.shown,
            self.offsets,
            self.gone,
            self.left,
        )
        return _digest(repr(found).encode())

    # -- a run

    async def settle(self) -> None:
        """Until everybody waits for the scheduler, or for ever."""
        for _ in range(3):
            await wait_all_tasks_blocked()
            self.clock.jump(_STEP_SECONDS)
        await wait_all_tasks_blocked()

    async def run(
        self, clock: MockClock, way: Sequence[int], seen: set[str]
    ) -> tuple[list[tuple[int, int]], list[str]]:
        """Follow a way, and go on; the choices that were made, of how many, and in words."""
        self.clock = clock
        made: list[tuple[int, int]] = []
        words: list[str] = []
        async with trio.open_nursery() as self.nursery:
            try:
                self.start(f"{self.folder}/0")
                await self._follow(way, seen, made, words)
            except Loss as loss:
                loss.add_note("\n".join(words))
                raise
            finally:
                for log in self.logs:
                    log.abandon()
            self.nursery.cancel_scope.cancel()
        return made, words

    async def _follow(
        self,
        way: Sequence[int],
        seen: set[str],
        made: list[tuple[int, int]],
        words: list[str],
    ) -> None:
        while True:
            await self.settle()
            self.see()
            self.look()
            is_new = len(made) >= len(way)
            if is_new:
                state = self.state()
                if state in seen:
                    return
                seen.add(state)
                stuck = self.is_stuck()
                if stuck:
                    raise Loss(stuck)
            choices = self.choices()
            if not choices:
                return
            number = 0 if is_new else way[len(made)]
            made.append((number, len(choices)))
            text, do = choices[number]
            words.append(text)
            found = do()
            if found is not None:
                self.nursery.start_soon(_await, found)


async def _await(work: Awaitable[None]) -> None:
    await work


class Explored(NamedTuple):
    """What was found.

    Attributes:
        loss: the promise that is broken, and the way there; empty for none.
        is_whole: all states were seen.
    """

    states: int
    runs: int
    seconds: float
    loss: str
    is_whole: bool


def explore(setup: Setup, *, seconds: float = 1e9, runs: int = 1 << 40) -> Explored:
    """All ways of a set-up, or as many as there is time for, or runs."""
    began, seen, done = time.monotonic(), cast("set[str]", set()), 0
    ways: list[tuple[int, ...]] = [()]
    chance = random.Random(1)
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    while ways and done < runs and time.monotonic() - began < seconds:
        number = chance.randrange(len(ways))
        ways[number], ways[-1] = ways[-1], ways[number]
        way = ways.pop()
        done += 1
        with tempfile.TemporaryDirectory(prefix="streamd-model-", dir=place) as folder:
            try:
                made = _run(setup, folder, way, seen)
            except ExceptionGroup as error:
                return Explored(len(seen), done, time.monotonic() - began, _told(error), True)
        numbers = tuple(number for number, _ in made)
        for at in range(len(way), len(made)):
            ways += [(*numbers[:at], other) for other in range(1, made[at][1])]
    return Explored(len(seen), done, time.monotonic() - began, "", not ways)


def _told(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])


def _run(setup: Setup, folder: str, way: Sequence[int], seen: set[str]) -> list[tuple[int, int]]:
    world, clock = World(setup, folder), MockClock()
    random.seed(0)
    trio._core._run._r.seed(0)  # type: ignore[attr-defined]
    with ExitStack() as patched:
        for module, name, value in (
            (trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", True),  # type: ignore[attr-defined]
            (threads, "in_thread", world.in_thread),
            (wal, "_LOOK_SECONDS", 1e12),
            (wal, "_START_SECONDS", 1e12),
            (wal_reading.claims, "check", lambda *_: None),  # the store is the right one
            (wal_reading, "_AT_ONCE", 2),
        ):
            before = getattr(module, name)
            setattr(module, name, value)
            patched.callback(setattr, module, name, before)
        made, _ = trio.run(world.run, clock, way, seen, clock=clock)
    return made


def main() -> None:
    """Explore set-ups, and say what each has."""
    parser = argparse.ArgumentParser(description="Every interleaving of confirms through a store.")
    parser.add_argument("setups", nargs="*", default=[], help=", ".join(SETUPS))
    parser.add_argument("--seconds", type=float, default=1e9, help="for each, at most")
    given = parser.parse_args()
    logging.getLogger().addHandler(logging.NullHandler())
    failed = False
    for name in given.setups or SETUPS:
        found = explore(SETUPS[name], seconds=given.seconds)
        failed |= bool(found.loss)
        whole = "all" if found.is_whole else "not all"
        print(
            f"{name}: {found.states} states ({whole}), {found.runs} runs, {found.seconds:.0f} s"
            f"{': ' if found.loss else ''}{found.loss}",
            flush=True,
        )
        if failed:
            break
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
