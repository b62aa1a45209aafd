"""Confirms through the store: what streams get is in its write-ahead log before they confirm it.

Theory of operation. Streams whose messages are confirmed by the store (`stream-confirm`) write them
to the local disk at once, and show and confirm nothing of it. They say here that they have got
something (`wrote`). All that they have got goes into one *slot* (segments/store/wal.py): at once
when the last slot was begun an interval ago, or when a slot is full; never when nothing waits. A
few slots are on their way at the same time, and each is sent until the store has it:

    slot        leaves it
    made        the store was asked
    under way   it is stored: the store said so, or has the very same object
                it failed, or nobody knows: it is sent again, for ever
                another object is there, a fence: this server is over, nothing is confirmed any more
    stored      all slots before it are, too: what is in it is confirmed and shown

So what was confirmed is in the log, or in segments that manifests name. A start reads the logs of
earlier starts to their ends, and ends them (wal_reading.py), before a stream that may have
something in one is opened; what its disk lacks is put back (segments/recovery/tail.py), and what
its disk has beyond that is stored before anybody sees it.

Now and then the log is shortened: the cluster object says where it begins now, and then slots
before that go. Fences stay. It is once manifests have what was in the log a while ago, and at the
latest every hour, or GiB: then streams that hold it up are uploaded.
"""

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path, PurePath
from typing import NamedTuple, Protocol

import trio

from segments import Log, SegmentsError, at_offset
from segments.checksum import crc32
from segments.chunk import EncodedChunk
from segments.disk import OsDisk
from segments.log import Written
from segments.marks import LIFE, STORED, WAL, marked, put_mark
from segments.segment import walk_headers
from segments.store.cluster import WalMark
from segments.store.fields import Plain
from segments.store.local_copy import UNRESTORED_FILE
from segments.store.manifest import Manifest
from segments.store.object_names import StreamKey
from segments.store.object_store import MissingError, ObjectStore, TierError
from segments.store.wal import MOST_SLOT, Section, Slot, encode_slot, slot_key
from streamd.broker.declared.rows import StreamRow
from streamd.broker.streams.open_log import OpenLog
from streamd.broker.tier.confirm_watch import ConfirmWatch
from streamd.broker.tier.kept_slots import KeptSlots
from streamd.broker.tier.ownership import Ownership
from streamd.broker.tier.pauses import next_pause, shortened
from streamd.broker.tier.requests import ask
from streamd.broker.tier.upload_requests import RequestState, UploadRequest
from streamd.broker.tier.wal_reading import (
    TAIL_FILE,
    StoredTail,
    Tails,
    writer_of,
)
from streamd.broker.traffic import Histogram
from streamd.net import threads
from streamd.net.wakeup import Wakeup
from streamd.operations.argument_kinds import Value
from streamd.operations.arguments import plain_arguments
from streamd.operations.errors import Reason
from streamd.operations.names import stream_folder

logger = logging.getLogger(__name__)

SLOT_BYTES = 4 << 20  # a slot is full
_MOST_UNDER_WAY = 4  # slots
_MOST_ENDS = 10_000  # of streams, that a slot tells of: no start reads one that is too large
_SECTION_BYTES, _OFFSET_BYTES = 1 << 10, 540  # that a section, and an offset, count in a slot
_MOST_BEHIND = 64 << 20  # bytes of all streams that are in no slot in the store; then they wait
_CHUNK_BYTES = 2 << 10  # that a chunk takes up besides, until it is confirmed: it may be a message
_LONGEST_PAUSE = 2.0  # seconds before a slot is sent again
_REFUSED_SECONDS = 1.0  # before something is taken again of a stream whose disk has refused
_START_SECONDS = 10.0  # that the opening of a stream waits until the logs are read
_LOOK_SECONDS = 10.0  # between two looks whether the log is to be shortened
_SHORTEN_SECONDS, _SHORTEN_BYTES, _SHORTEN_SLOTS = 3_600.0, 1 << 30, 10_000
_LOOK_BYTES = 32 << 20  # of a log that is worth while


class Uploads(Protocol):
    """What the tier knows of its streams; see stream_tier.TieredStream."""

    @property
    def life(self) -> str | None:
        """The life of the stream; None where nobody has looked, empty where it has no files yet."""

    @property
    def is_removed(self) -> bool:
        """It was deleted, for good."""

    @property
    def manifest(self) -> Manifest | None:
        """What the store has of it, as far as is known."""

    def requested(self) -> AbstractContextManager[UploadRequest]:
        """Somebody waits in the block until all that is there now is stored."""


class _Taken(NamedTuple):
    """What a slot gets of a stream: see Section, and the chunks.

    Attributes:
        counted: bytes that are counted as waiting.
        num_chunks: that readers do not see yet.
        batch: see `LogWriter.take_batches`.
        log: of which it is.
    """

    after: int
    next_offset: int
    parts: list[bytes]
    size: int
    counted: int
    num_chunks: int
    offsets: dict[bytes, int | None]
    batch: int
    log: Log


class WalStream:
    """A stream on its way into the log.

    Args:
        row: its row in the catalog; None once it is gone.
        after: offset behind the last chunk of it that is in a slot, or named by a manifest.

    Attributes:
        opened: its log, while it is open.
        waiting: bytes of its chunks that are in no slot.
        num_held: chunks that the store does not have.
        noted: what its log had got when it was looked at last.
        is_marked: its folder says that opening it needs the log.
        is_broken: something that was taken of it was lost here: nothing more is.
    """

    def __init__(self, key: StreamKey, row: Callable[[], StreamRow | None], after: int) -> None:
        self.key, self._row, self._after = key, row, after
        self.opened: OpenLog | None = None
        self.waiting = self.num_held = 0
        self.noted = Written(0, 0, 0)
        self.is_marked = self.is_broken = False
        self._log: Log | None = None
        self._offsets: dict[bytes, int] = {}
        self._cursor = after
        self._num_under_way = 0  # slots that have something of it
        self._caught_up = trio.lowlevel.ParkingLot()

    def begin(self, log: Log) -> None:
        """Its log was opened."""
        before = self._log  # where it was closed, the store has all that it had
        is_stored = before is not None and before is not log and before.awaits_store
        self._offsets = before.journal.tracking.offsets() if before and is_stored else {}
        self._log, self.opened = log, None
        self.is_marked = False  # the mark goes where it is opened to be confirmed here
        self.waiting, self.num_held, self.noted = 0, 0, log.written
        self._cursor = self._after

    def wrote_by(self, opened: OpenLog, *, is_changed: bool) -> None:
        """Who writes to its log is there; the store is to have all offsets that it has not.

        Args:
            opened: who writes.
            is_changed: readers have seen what was not to be in the store then.
        """
        self.opened, before = opened, self._offsets
        self._offsets = {}
        now = opened.log.journal.tracking.offsets()
        offsets = {name: at for name, at in now.items() if before.get(name) != at}
        if offsets or is_changed:
            opened.writer.catch_up(offsets)

    @property
    def num_unconfirmed(self) -> int:
        """Messages that are written, and wait for the store."""
        log = self._log
        is_open = log is not None and not log.is_closed and log.awaits_store
        return log.next_offset - log.committed_offset if log is not None and is_open else 0

    @property
    def is_caught_up(self) -> bool:
        """All that readers see of it is stored."""
        if self._log is None:
            return True
        return self._cursor >= self._log.committed_offset and not self._num_under_way

    async def caught_up(self) -> None:
        """Return when that is so."""
        while not self.is_caught_up:
            await self._caught_up.park()

    async def take(self, room: int) -> _Taken | None:
        """What comes next of it, some `room` bytes; None for nothing."""
        log = self._log
        if log is None or not self.has_more:
            return None
        if not self.is_marked:
            await threads.in_thread(self._mark, log)
        self._pass_stored(log)
        if self._cursor < log.committed_offset:
            return await self._take_files(log, room)
        return self._take_held(log, room)

    def _mark(self, log: Log) -> None:
        """Note in its folder that opening it needs the log; on the device before that has it."""
        disk = log.segments.shown[-1].disk
        put_mark(disk, log.folder, WAL, log.life)
        disk.sync_folder(log.folder)
        self.is_marked = True

    def _pass_stored(self, log: Log) -> None:
        """What a manifest names needs no slot, and may be on no disk any more."""
        manifest = log.stored.manifest
        if manifest is not None and self._cursor < manifest.next_offset:
            self._cursor = self._after = manifest.next_offset
            self._caught_up.unpark_all()

    async def _take_files(self, log: Log, room: int) -> _Taken | None:
        """Chunks that readers see already: of before a start, or before it was confirmed so."""
        until = log.committed_offset
        parts, end, reached = await threads.in_thread(_read, log, self._cursor, until, room)
        self._cursor = reached
        if not parts:
            self._caught_up.unpark_all()
            return None
        return self._taken(log, parts, end, {})

    def _take_held(self, log: Log, room: int) -> _Taken | None:
        parts: list[bytes] = []
        size = num_chunks = 0
        end = self._cursor
        for chunk in _held_from(log, self._cursor):
            if size >= room:
                break
            parts += chunk.parts
            num_chunks += 1
            size, end = size + chunk.size, chunk.header.next_offset
        writer = None if self.opened is None else self.opened.writer
        offsets = {} if writer is None else writer.take_offsets()
        if not (parts or offsets or (writer is not None and writer.catches_up)):
            return None
        self._cursor = end
        taken = self._taken(log, parts, end if parts else self._after, offsets)
        return taken._replace(counted=size, num_chunks=num_chunks)

    def _taken(
        self, log: Log, parts: list[bytes], end: int, offsets: dict[bytes, int | None]
    ) -> _Taken:
        self._num_under_way += 1
        after, self._after = self._after, end
        batch = 0 if self.opened is None else self.opened.writer.take_batches(self._cursor)
        return _Taken(after, end, parts, sum(map(len, parts)), 0, 0, offsets, batch, log)

    @property
    def has_more(self) -> bool:
        """There is something to take."""
        log, opened = self._log, self.opened
        if log is None or log.is_closed or self.is_broken:
            return False
        writer = None if opened is None else opened.writer
        if writer is not None and writer.is_paused:  # it is about to leave the store
            return False
        has_more = writer is not None and (bool(writer.changed_offsets) or writer.catches_up)
        return self._cursor < log.next_offset or has_more

    def section(self, taken: _Taken) -> Section:
        """What stands in the slot before its chunks, but for their checksum."""
        row = self._row()
        return Section(
            virtual_host=self.key.virtual_host,
            stream=self.key.stream,
            creation=self.key.creation,
            after=taken.after,
            next_offset=taken.next_offset,
            size=taken.size,
            arguments=_plain({} if row is None else row.arguments),
            settings=_plain({} if row is None else row.settings),
            offsets={name.hex(): at for name, at in taken.offsets.items()},
            marked={} if self.opened is None else self.opened.standing.marked(),
        )

    def fail(self, reason: str) -> None:
        """Something of it is in no slot, and may never be: nothing more is confirmed."""
        self.is_broken = True
        if self.opened is not None:
            self.opened.writer.fail(reason)
            self.opened.writer.refuse_written(Reason.NOT_AVAILABLE)

    def stored(self, taken: _Taken) -> None:
        """The store has this, and all that was taken before."""
        if self.opened is not None and taken.log is self._log and not self.is_broken:
            self.opened.stored(taken.next_offset, taken.batch)
        self._num_under_way -= 1
        self._caught_up.unpark_all()


def _held_from(log: Log, offset: int) -> Iterator[EncodedChunk]:
    """Chunks that readers do not see yet, from an offset on."""
    held = log.flushing.held
    first = bisect_right(held, offset, key=lambda one: one.chunks[-1].header.next_offset)
    for appended in islice(held, first, None):
        yield from (chunk for chunk in appended.chunks if chunk.header.chunk_id >= offset)


def _plain(arguments: Mapping[str, Value]) -> Plain:
    return dict(plain_arguments(arguments))


def _read(log: Log, cursor: int, until: int, room: int) -> tuple[list[bytes], int, int]:
    """Chunks from an offset on, some `room` bytes; blocks.

    Returns:
        Their bytes; the offset behind the last one; the one to go on with.
    """
    parts: list[bytes] = []
    size, end = 0, cursor
    place = log.segments.find(at_offset(cursor))
    segments = [one for one in log.segments.shown if one.base_offset >= place.segment.base_offset]
    for segment in segments:
        start = (place.position, place.offset) if segment is place.segment else None
        file = segment.open()
        try:
            for position, header in walk_headers(segment, file, start):
                if header.chunk_id < cursor or header.chunk_id >= until:
                    continue
                if size >= room:
                    return parts, end, end
                parts.append(file.read(header.total_size, position))
                size, end = size + header.total_size, header.next_offset
        finally:
            file.close()
    return parts, end, until


@dataclass
class _Sent:
    """A slot that is under way.

    Attributes:
        took: what it has of each stream, in the order of its sections.
        num_ends: ends of streams that it tells of, or one before.
        size: of the chunks, in bytes.
        made_at: by trio's clock.
        content: of the object; None until that is made, and when the store has it.
    """

    slot: Slot
    took: list[tuple[WalStream, _Taken]]
    num_ends: int
    size: int
    made_at: float
    content: bytes | None = None
    is_stored: bool = False

    @property
    def key(self) -> str:
        """Of the object."""
        return slot_key(self.slot.epoch, self.slot.slot)

    def store(self, store: ObjectStore) -> int:
        """Store it; in a thread, as often as it takes. Gives the size of the object.

        Raises:
            _OverError: something else is there.
            TierError: nobody knows whether it is there.
        """
        if self.content is None:
            self.content = self._encode()
        key, content = self.key, self.content
        try:
            store.create(key, content)
        except TierError as error:
            try:
                found = store.get(key, MOST_SLOT).content
            except MissingError:
                raise TierError(str(error)) from error  # and that is all there is to it
            if found != content:
                raise _OverError(f"another server has written {key}") from error
        return len(content)

    def _encode(self) -> bytes:
        sections = list(self.slot.sections)
        for number, (_, taken) in enumerate(self.took):
            crc = 0
            for part in taken.parts:
                crc = crc32(part, crc)
            sections[number] = replace(sections[number], crc=crc)
        parts = (part for _, taken in self.took for part in taken.parts)
        return encode_slot(replace(self.slot, sections=tuple(sections)), parts)


class _Mark(NamedTuple):
    """What manifests are to have before the first slots can go.

    Attributes:
        num_slots: so many.
        ends: see KeptSlots.
    """

    num_slots: int
    ends: dict[StreamKey, tuple[int, int]]


class _OverError(TierError):
    """Something else is in the place of a slot: another server has ended the log."""


class StoreConfirms:
    """Confirms through the store, for all streams of a server.

    Args:
        data: the data folder.
        ownership: gives the store, and knows whose it is.
        find: gives what the tier knows of a stream, by virtual host and name.
        interval: seconds between the beginnings of two slots.
        may_move: what is at the store's address may be another one for a while, as with a file
            system that is not mounted: each slot is looked for when it was written.
        slot_seconds: see ConfirmWatch.
        told: called when `is_end_told` may have become true.

    Attributes:
        watch: says why confirms wait.
    """

    def __init__(
        self,
        data: str,
        ownership: Ownership,
        find: Callable[[str, str], "Uploads | None"],
        interval: float,
        slot_seconds: Histogram,
        told: Callable[[], None] = lambda: None,
        *,
        may_move: bool = False,
    ) -> None:
        self.watch = ConfirmWatch(slot_seconds)
        self._data, self._ownership, self._find, self._interval = data, ownership, find, interval
        self._told, self._may_move = told, may_move
        self._tails: Tails | None = None
        self._streams: dict[StreamKey, WalStream] = {}
        self._queue: dict[WalStream, None] = {}
        self._deleted: list[StreamKey] = []
        self._untold: set[StreamKey] = set()  # of streams that are gone, until that is stored
        self._num_ends = self._num_ends_stored = 0
        self._behind: dict[OpenLog, None] = {}
        self._waiting = self._under_way = 0  # bytes
        self._num_held = 0  # chunks
        self._sent: deque[_Sent] = deque()
        self._next, self._has_begun, self._is_over = 0, False, False
        self._began_at = -interval
        self._work, self._is_full = Wakeup(), Wakeup()
        self._changed = trio.lowlevel.ParkingLot()
        self._slots = KeptSlots()
        self._shortened_at = 0.0
        self._mark: _Mark | None = None

    # -- what streams ask

    @property
    def is_behind(self) -> bool:
        """So much waits for the store that nothing more is to be written."""
        return self.bytes_behind + _CHUNK_BYTES * self._num_held > _MOST_BEHIND

    @property
    def bytes_behind(self) -> int:
        """Of all streams, that are in no slot that is stored."""
        return self._waiting + self._under_way

    @property
    def oldest_seconds(self) -> float | None:
        """How long the oldest slot waits that is not confirmed; None when none does."""
        if self._is_over or not self._sent:
            return None
        return trio.current_time() - self._sent[0].made_at

    @property
    def kept_slots(self) -> tuple[int, int]:
        """Slots that a start would read, as manifests may lack something of them; their bytes."""
        return len(self._slots), self._slots.num_bytes

    def slots_of(self, key: StreamKey) -> set[str]:
        """Keys of slots that a start would read, and that have something of a stream."""
        return self._slots.keys_of(key)

    async def read(self) -> None:
        """Return when the logs of earlier starts are read.

        Raises:
            TierError: that takes longer.
        """
        with trio.move_on_after(_START_SECONDS):
            while self._tails is None:
                await self._changed.park()
        if self._tails is None:
            reason = self.watch.cause or self._ownership.sentence or "it was not reached yet"
            raise TierError(f"what the tier has to follow it was not read yet: {reason}")

    def tail(self, virtual_host: str, name: str) -> StoredTail | None:
        """What the logs of earlier starts have of a stream whose log is about to be opened."""
        assert self._tails is not None  # noqa: S101 - they are read
        lives = [
            key
            for key, tail in self._tails.streams.items()
            if key[:2] == (virtual_host, name) and tail.path
        ]
        return self._tails.streams[max(lives)] if lives else None

    def forget_tail(self, tail: StoredTail) -> None:
        """Its log was opened, and has it on the device; blocks."""
        OsDisk().remove(tail.path)
        tail.path = ""

    def stream(
        self, key: StreamKey, row: Callable[[], StreamRow | None], log: Log, after: int
    ) -> WalStream:
        """A stream that is confirmed by the store, whose log was opened."""
        found = self._streams.get(key)
        if found is None:
            tail = None if self._tails is None else self._tails.streams.get(key)
            found = WalStream(key, row, max(after, 0 if tail is None else tail.next_offset))
            self._streams[key] = found
        self._forget(found)
        found.begin(log)
        self.wants(found)
        return found

    def opened(self, stream: WalStream, opened: OpenLog, *, is_changed: bool = False) -> None:
        """Who writes to its log, which was opened, is there; see WalStream.wrote_by."""
        stream.wrote_by(opened, is_changed=is_changed)
        self.wants(stream)

    def wants(self, stream: WalStream) -> None:
        """Something of it may be in no slot."""
        if stream.has_more:
            self._queue[stream] = None
            self._work.set()

    def wrote(self, stream: WalStream, opened: OpenLog) -> None:
        """Something was written to its log."""
        self._note(stream, opened)
        self.wants(stream)
        if self._waiting >= SLOT_BYTES:
            self._is_full.set()

    def _note(self, stream: WalStream, opened: OpenLog) -> None:
        """Count what its log has got."""
        before, stream.noted = stream.noted, opened.log.written
        grown = stream.noted.size - before.size
        num_chunks = stream.noted.chunks - before.chunks
        stream.waiting += grown
        stream.num_held += num_chunks
        self._waiting += grown
        self._num_held += num_chunks

    def _forget(self, stream: WalStream) -> None:
        """What waits of it does not count any more."""
        self._waiting -= stream.waiting
        self._num_held -= stream.num_held
        stream.waiting = stream.num_held = 0

    def wait_for_room(self, opened: OpenLog) -> None:
        """It is to be told when it is not behind any more."""
        self._behind[opened] = None

    def deleted(self, virtual_host: str, name: str, life: str = "") -> None:
        """A stream was deleted: say so in the log, if it has something of it.

        Args:
            virtual_host: where it was.
            name: of it.
            life: of it; where it is empty, there is no other one of its name.
        """
        for key in sorted(self._known(virtual_host, (name,))):
            if life in ("", key.creation):
                self._end_stream(key)

    def _end_stream(self, key: StreamKey) -> None:
        stream = self._streams.pop(key, None)
        if stream is not None:
            self._forget(stream)
            self._queue.pop(stream, None)
        if self._tails is not None:
            self._tails.streams.pop(key, None)
        self._deleted.append(key)
        self._untold.add(key)
        self._num_ends += 1
        self._work.set()

    def _known(self, virtual_host: str, names: Container[str]) -> set[StreamKey]:
        """All lives of some streams that logs may have something of."""
        tails = () if self._tails is None else self._tails.streams
        known = chain(self._streams, tails, self._slots.ends)
        return {key for key in known if key.stream in names and key.virtual_host == virtual_host}

    def known_of(self, virtual_host: str, names: Iterable[str]) -> set[str]:
        """Those of some streams that logs may have something of."""
        return {key.stream for key in self._known(virtual_host, frozenset(names))}

    def is_end_told(self, key: StreamKey) -> bool:
        """Logs say of a stream that is gone that it is, where they have something of it."""
        return self._tails is not None and key not in self._untold

    async def ends_stored(self) -> None:
        """Return when logs say of all streams that are gone now that they are."""
        while self._tails is None:
            await self._changed.park()
        wanted = self._num_ends
        while self._num_ends_stored < wanted:
            await self._changed.park()

    # -- tasks

    async def run(self) -> None:
        """Read the logs of earlier starts, then write one."""
        await self._ownership.taken()
        self._shortened_at = trio.current_time()
        await self._read()
        async with trio.open_nursery() as nursery:
            for sent in self._sent:
                if not sent.is_stored:  # of a run that has failed
                    nursery.start_soon(self._send, sent)
            nursery.start_soon(self._shorten_now_and_then)
            while not self._is_over:
                await self._work.wait()
                while (self._queue or self._deleted) and not self._is_over:
                    await self._write(nursery)

    async def _read(self) -> None:
        pause = 0.0
        while self._tails is None:
            tails = Tails(self._path_of)
            owner = self._ownership
            try:
                await tails.read(owner.store, owner.wals, owner.identity)
            except SegmentsError as error:
                self._failed(error)
                pause = next_pause(pause)
                await trio.sleep(shortened(pause))
            else:
                self._tails = tails
                self._slots = tails.slots
                for key, tail in list(tails.streams.items()):
                    if tail.is_deleted:
                        continue
                    if self._is_gone(key) or await threads.in_thread(self._is_replaced, key):
                        self._end_stream(key)  # nobody could say so before
                self.watch.goes_on()
        self._changed.unpark_all()
        self._told()

    def _path_of(self, key: StreamKey) -> str | None:
        """Where the chunks of a stream are kept until it is opened."""
        if self._find(key.virtual_host, key.stream) is None:
            return None
        folder, names, lives = self._folder_of(key)
        is_lacked = not lives and UNRESTORED_FILE in names  # it is to get what there is
        return str(PurePath(folder, TAIL_FILE)) if key.creation in lives or is_lacked else None

    def _is_replaced(self, key: StreamKey) -> bool:
        """The stream of that name, which nobody has opened yet, is another one; blocks."""
        found = self._find(key.virtual_host, key.stream)
        if found is None or found.life is not None:
            return False
        _, _, lives = self._folder_of(key)
        return bool(lives) and key.creation not in lives

    def _folder_of(self, key: StreamKey) -> tuple[str, Collection[str], Collection[str]]:
        """The folder of a name, what is in it, and of which life it is."""
        folder = stream_folder(self._data, key.virtual_host, key.stream)
        names = OsDisk().list(folder) if Path(folder).is_dir() else []
        return folder, names, marked(names, LIFE) or marked(names, STORED)

    def _failed(self, error: SegmentsError) -> None:
        self.watch.failed(str(error), trio.current_time())

    async def _write(self, nursery: trio.Nursery) -> None:
        """Make the next slot when it is time, and send it."""
        with trio.move_on_at(self._began_at + self._interval):
            while self._waiting < SLOT_BYTES:
                await self._is_full.wait()
        while len(self._sent) >= _MOST_UNDER_WAY:
            await self._changed.park()
        await self._begin()
        if self._is_over:
            return
        self._began_at = trio.current_time()
        try:
            sent = await self._make(nursery)
        except Exception as error:  # a bug: what was taken for it must not be passed over
            self._end(f"a bug: {error}; restart the server")
            raise
        if sent is not None:
            self._sent.append(sent)
            self._next += 1
            self._under_way += sent.size
            nursery.start_soon(self._send, sent)

    async def _begin(self) -> None:
        """Have the cluster object name the log, before there is anything in it."""
        mark, pause = WalMark(self._ownership.identity.epoch, 0), 0.0
        while not self._has_begun:
            try:
                await self._ownership.mark_wals(lambda wals: (*(set(wals) - {mark}), mark))
                self._has_begun = True
            except TierError as error:
                if self._ownership.fence:
                    self._end(self._ownership.fence)
                    return
                self._failed(error)
                pause = next_pause(pause)
                await trio.sleep(shortened(pause))

    async def _take_again(self, stream: WalStream) -> None:
        await trio.sleep(_REFUSED_SECONDS)
        self.wants(stream)

    async def _make(self, nursery: trio.Nursery) -> _Sent | None:
        """A slot of what waits."""
        took: list[tuple[WalStream, _Taken]] = []
        sections: list[Section] = []
        size = filled = 0
        mine = self._ownership.identity
        while self._queue and filled < SLOT_BYTES:
            stream = next(iter(self._queue))
            del self._queue[stream]
            try:
                taken = await stream.take(SLOT_BYTES - filled)
                if taken is not None:
                    sections.append(stream.section(taken))
            except SegmentsError as error:  # nothing was taken
                logger.error("stream %s is not confirmed: %s", stream.key.stream, error)
                nursery.start_soon(self._take_again, stream)
                continue
            except Exception as error:  # a bug: it stays in this stream
                logger.exception("stream %s is not confirmed", stream.key.stream)
                stream.fail(str(error))
                self._forget(stream)
                continue
            if taken is not None:
                took.append((stream, taken))
                size += taken.size
                filled += taken.size + _SECTION_BYTES + _OFFSET_BYTES * len(taken.offsets)
                if stream.opened is not None:  # a flush may have written what nobody has told of
                    self._note(stream, stream.opened)
                counted = min(taken.counted, stream.waiting)
                stream.waiting -= counted
                self._waiting -= counted
            self.wants(stream)
        deleted, self._deleted = self._deleted[:_MOST_ENDS], self._deleted[_MOST_ENDS:]
        num_ends = self._num_ends - len(self._deleted)
        if not (took or deleted):
            return None
        slot = Slot(
            tier=mine.tier,
            epoch=mine.epoch,
            slot=self._next,
            writer=writer_of(mine),
            sections=(*sections, *map(_gone, deleted)),
        )
        return _Sent(slot, took, num_ends, size, trio.current_time())

    async def _send(self, sent: _Sent) -> None:
        """Send a slot until it is stored."""
        pause = 0.0
        while not (sent.is_stored or self._is_over):
            try:
                size = await ask(sent.store, self._ownership.store)
                if self._may_move:
                    await self._ownership.check_stored({sent.key: size})
            except _OverError as error:
                await self._ownership.check_ownership()
                self._end(str(error))
                return
            except TierError as error:
                self._ownership.look_again(error)
                if sent is self._sent[0] or not self.watch.cause:  # the same for all: one's words
                    self._failed(error)
                pause = min(next_pause(pause), _LONGEST_PAUSE)
                await trio.sleep(shortened(pause))
            else:
                sent.is_stored, sent.content = True, None
                self.watch.stored(trio.current_time() - sent.made_at)
                self._settle(size)

    def _settle(self, size: int) -> None:
        """Confirm what is in slots that are stored, as are all before them."""
        while self._sent and self._sent[0].is_stored and not self._is_over:
            sent = self._sent.popleft()
            self._under_way -= sent.size
            self._slots.add(sent.slot, size)
            self._num_ends_stored = sent.num_ends
            if told := {one.key for one in sent.slot.sections if one.is_deleted}:
                self._untold -= told
                self._told()
            for stream, taken in sent.took:
                num_chunks = min(taken.num_chunks, stream.num_held)
                stream.num_held -= num_chunks
                self._num_held -= num_chunks
                stream.stored(taken)
            self.watch.goes_on()
        self._changed.unpark_all()
        if not self.is_behind:
            behind, self._behind = self._behind, {}
            for opened in behind:
                opened.work.set()

    def _end(self, reason: str) -> None:
        """The log has ended, by another server in most cases: nothing is confirmed any more."""
        self._is_over = True
        self.watch.ended(reason, trio.current_time())
        self._changed.unpark_all()
        for stream in self._streams.values():
            if stream.opened is not None:
                stream.opened.writer.refuse_written(Reason.NOT_AVAILABLE)

    # -- shortening

    async def _shorten_now_and_then(self) -> None:
        while True:
            await trio.sleep(_LOOK_SECONDS)
            self.watch.look(self.oldest_seconds)
            try:
                if self._slots and self._is_long:
                    self._shortened_at = trio.current_time()
                    await self.shorten()
                elif self._mark is None:
                    self._mark = self._next_mark()
                elif self._is_reached(self._mark):
                    await self._drop(self._mark.num_slots)
            except SegmentsError as error:
                logger.warning("the write-ahead log in the tier is not shortened: %s", error)

    def _next_mark(self) -> _Mark | None:
        """What the log has now; None for little."""
        slots = self._slots
        return _Mark(len(slots), dict(slots.ends)) if slots.num_bytes >= _LOOK_BYTES else None

    def _is_reached(self, mark: _Mark) -> bool:
        """Manifests have all of it, and offsets of consumers with later messages."""
        return all(
            self._is_stored(key, end, with_offsets=bool(last))
            for key, (end, last) in mark.ends.items()
        )

    def _is_stored(self, key: StreamKey, end: int, *, with_offsets: bool) -> bool:
        """A manifest has all of a stream before an offset, or it is deleted.

        Offsets are stored with the end of a segment, as they are then. Where that is behind all
        that was in slots at some time, so were the offsets.
        """
        if self._is_gone(key):
            return True
        manifest = self._manifest_of(key)
        if manifest is None or manifest.next_offset < end:
            return False
        return not with_offsets or (
            manifest.tracking is not None and manifest.tracking.next_offset > end
        )

    def _is_gone(self, key: StreamKey) -> bool:
        found = self._find(key.virtual_host, key.stream)
        return found is None or found.is_removed or found.life not in (None, key.creation)

    def _manifest_of(self, key: StreamKey) -> Manifest | None:
        found = self._find(key.virtual_host, key.stream)
        return None if found is None else found.manifest

    @property
    def _is_long(self) -> bool:
        slots = self._slots
        is_old = trio.current_time() - self._shortened_at >= _SHORTEN_SECONDS
        is_earlier = slots.first_epoch != self._ownership.identity.epoch
        is_large = len(slots) >= _SHORTEN_SLOTS or slots.num_bytes >= _SHORTEN_BYTES
        return is_old or is_earlier or is_large

    async def shorten(self) -> None:
        """Let all slots go that are there now, once manifests have what is in them.

        Raises:
            TierError: the store is away, or a stream cannot be uploaded.
        """
        count = len(self._slots)
        await self._upload()
        await self._drop(count)

    async def _drop(self, count: int) -> None:
        """Let the first slots go: first nobody reads them any more."""
        slots, mine = self._slots, self._ownership.identity.epoch
        self._mark = None
        await self._ownership.mark_wals(partial(slots.marks_without, count, present=mine))
        keys = slots.keys(count)
        slots.drop(count)
        await ask(self._ownership.store.delete, keys)

    async def _upload(self) -> None:
        """Have all that is in slots stored as segments, and offsets of consumers with them."""
        with ExitStack() as waiting:
            requests: list[UploadRequest] = []
            for key, (end, has_offsets) in list(self._slots.ends.items()):
                found = self._find(key.virtual_host, key.stream)
                if found is None or self._is_gone(key):
                    continue
                if has_offsets or not self._is_stored(key, end, with_offsets=False):
                    requests.append(waiting.enter_context(found.requested()))
            for request in requests:
                await request.ended()
        for request in requests:
            if request.state is RequestState.FAILED:
                raise TierError(f"{request.name} cannot be uploaded: {request.reason}")


def _gone(key: StreamKey) -> Section:
    return Section(
        virtual_host=key.virtual_host,
        stream=key.stream,
        creation=key.creation,
        after=0,
        next_offset=0,
        arguments={},
        settings={},
        offsets={},
        is_deleted=True,
    )
