"""What else a crash could leave of a stream: looked at while the world goes on.

Before and after any operation on the disk the server could be killed, or the power fail; a rare
kind of them is looked at as often as a common one. What that leaves is opened in memory, crashes
again in the midst of it perhaps, takes further messages, crashes once more, and is truncated until
it crashes. Nothing of it happens to the world; the witness says what has to be there.
"""

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from segments import FIRST, ChunkBuilder, Log, Reader, StorageError, at_offset
from segments.chunk_search import index_content
from segments.codec import walk_entries
from segments.derived.filter_files import load_or_build
from segments.derived.key_files import keys_of
from segments.message import Message, MessageView
from segments.search.request import SearchRequest
from segments.search.search import Search, run
from segments.segment import INDEX_SUFFIX
from segments.verify import verify
from tests.support.logs import entry, truncate
from tests.support.recorder import RecordingDisk, Write
from tests.world.witness import Seen, Sent, read
from tests.world.world import World

_MOST = 60  # that are looked at in a world
_SHARES = (0.05, 0.2, 0.7)  # of operations of a kind, divided by how many there were
_KILLED, _TWICE, _CLOSED, _FULL, _SEARCHED, _CUT = 0.3, 0.3, 0.3, 0.2, 0.3, 0.5
_MOST_ROOM = 8  # writes and new files, of an opening on a disk that is full
_TMP, _HEADER = ".tmp", b"OSIL\0\0\0\1"
_MADE_AGAIN = "the server rebuilds it"  # what only makes reading faster
_LATER = "later"  # who publishes behind a crash


class States:
    """Looks at what crashes could leave of the stream in a folder."""

    def __init__(self, world: World, folder: str) -> None:
        self._world = world
        self._folder = folder
        self._chance = world.chance_of("states")
        self._left = _MOST
        self._before = 1  # how many there were of the kind of the operation before
        self._share = self._chance.choice(_SHARES)
        world.box.machine.before_each = self._consider

    def _consider(self, kind: str, path: str, written: Write | None) -> None:
        """An operation of this kind comes."""
        world = self._world
        if not self._left or self._folder not in path or "tier" in world.box.settings:
            return  # with a tier, who reads the folder alone does not have all
        before, number = self._before, world.box.machine.kinds[kind]
        self._before = number
        if not world.witness.confirmed:
            return  # nobody knows that there is anything
        if self._chance.random() * min(before, number) > self._share:
            return
        disk, is_killed = self._after_crash(world.box.machine.record, written)
        self._left -= 1
        try:
            faults = list(_State(world, self._folder, disk, is_killed=is_killed).faults())
        except Exception as error:  # noqa: BLE001 - nothing of it may reach the server
            faults = [repr(error)]
        if faults:
            self._left = 0  # all others would say the same
        crash = "a kill" if is_killed else "a power failure"
        world.witness.faults += [f"another state: {fault} ({crash} at {kind})" for fault in faults]

    def _after_crash(
        self, record: RecordingDisk, written: Write | None
    ) -> tuple[RecordingDisk, bool]:
        if self._chance.random() < _KILLED:
            return record.after_kill(self._chance, following=written), True
        return record.after_power_failure(self._chance), False


class _State:
    """What one crash leaves."""

    def __init__(self, world: World, folder: str, disk: RecordingDisk, *, is_killed: bool) -> None:
        self._witness, self._now = world.witness, world.flushed_until()
        self._chance = world.chance_of(f"state {len(world.events)} {len(disk.operations)}")
        self._folder = folder
        self._disk = disk
        self._rotten = world.box.machine.rotten
        self._is_killed = is_killed
        self._log: Log

    def faults(self) -> Iterator[str]:
        """What does not hold."""
        yield from self._open()
        seen = list(_all_in(self._log))
        yield from self._judge(seen)
        if seen and self._chance.random() < _SEARCHED:
            yield from self._search(self._chance.choice(seen).message)
        known = [f.seen[-1].offset for f in self._witness.followers.values() if f.seen]
        yield from self._go_on(seen, max(known, default=-1))

    def _open(self) -> Iterator[str]:
        """As the next server does, which crashes meanwhile perhaps, or finds the disk full."""
        begun = len(self._disk.operations)
        if self._chance.random() < _FULL:
            self._disk.room = self._chance.randint(0, _MOST_ROOM)
        try:
            self._log = self._opened()
        except StorageError:
            self._disk.room = None
            begun = len(self._disk.operations)
            self._log = self._opened()
        if self._chance.random() < _TWICE:
            self._crash(self._chance.randint(begun, len(self._disk.operations)))
            self._log = self._opened()
        yield from self._log.report.losses
        yield from self._unlike_documented()

    def _unlike_documented(self) -> Iterator[str]:
        """durability.md, S6, S7 and S10: what an opening makes of files."""
        if self._disk.room is None:
            yield from (name for name in self._disk.list(self._folder) if name.endswith(_TMP))
        for segment in self._log.segments.shown:
            file = segment.acquire()
            if file.read(len(_HEADER), 0) != _HEADER:
                yield f"{file.path} has no header"
            index = self._disk.open(segment.path(INDEX_SUFFIX), writable=False)
            if PurePath(index.path).name in self._rotten:
                pass  # a byte of one that is trusted may be found by its readers alone
            elif index.read(index.size(), 0) != index_content(segment, file):
                yield f"{index.path} is not that of its segment"
            segment.release()

    def _opened(self) -> Log:
        commits_on_flush = self._witness.flushes == "always"
        return Log.open(self._folder, None, self._disk, commits_on_flush=commits_on_flush)

    def _crash(self, count: int | None = None, killed: float = _KILLED) -> None:
        if self._chance.random() < killed:
            self._disk = self._disk.after_kill(self._chance, count)
        else:
            self._disk, self._is_killed = self._disk.after_power_failure(self._chance, count), False

    def _judge(self, seen: list[Seen]) -> Iterator[str]:
        """What was told before the crash, against what is there."""
        witness, tracking = self._witness, self._log.journal.tracking
        offsets = {name.decode(): offset for name, offset in tracking.offsets().items()}
        sequences = {who: tracking.sequence(who.encode()) for who in sorted(witness.named)}
        is_killed = self._is_killed
        yield from witness.would_find(seen, self._now, offsets, sequences, is_killed=is_killed)
        last = dict(one.message for one in seen)
        for who, told in sequences.items():
            if (who in last or not witness.asked) and told != last.get(who):
                yield f"{who} has come to {last.get(who)}, the server says {told}"
        for name, offset in offsets.items():
            if seen and offset >= self._log.next_offset:  # in a gap it means what comes behind
                yield f"{offset} is stored for {name}, behind the end"

    def _search(self, sent: Sent) -> Iterator[str]:
        """Its key leads to a message, by what is left of filter and key files."""
        log, room, self._disk.room = self._log, self._disk.room, None
        for segment in log.segments.shown:
            size, is_sealed = log.indexes.size_of(segment), log.segments.is_sealed(segment)
            filters = load_or_build(segment, size, is_sealed)
            if filters is not None:
                log.indexes.adopt(segment, filters, size)
            segment.keys = keys_of(segment)
        wanted = [one.offset for one in _all_in(log) if one.message == sent]
        page = run(Search(log, SearchRequest(keys=(str(sent),), properties=("key",)), 0, 0))
        self._disk.room = room
        found = [message.offset for message in page.messages]
        if found != wanted:
            yield f"{sent} is at {wanted}, and a search for its key finds {found}"

    def _go_on(self, seen: list[Seen], known: int) -> Iterator[str]:
        """Further messages, of which nobody who has read up to `known` misses any."""
        log, chance = self._log, self._chance
        begun, tracking = len(self._disk.operations), log.journal.tracking
        sequences = {w: tracking.sequence(w.encode()) for w in sorted(self._witness.named)}
        new = [self._append(number) for number in range(chance.randint(1, 3))]
        self._disk.room = None
        if new[0].offset <= known:
            yield f"readers have come to {known}, and the next message gets {new[0].offset}"
        has_flushed, is_closed = chance.random() < 0.5, chance.random() < _CLOSED
        if is_closed:
            log.close()
            yield from self._verify()
        elif has_flushed:
            log.flush(with_checkpoint=chance.random() < 0.5)
            asked = chance.choice([*seen, *new]).offset
            wanted = [one for one in [*seen, *new] if one.offset >= asked]
            if [one for one in _all_in(log, asked) if one.offset >= asked] != wanted:
                yield f"from {asked} on a reader does not find all"
            self._crash(killed=0)
        else:
            self._crash(chance.choice((None, chance.randint(begun, len(self._disk.operations)))))
        self._log = self._opened()
        yield from self._log.report.losses
        yield from self._log.report.steps if is_closed else ()
        found = list(_all_in(self._log))
        least = len(seen) + len(new) * (has_flushed or is_closed)
        if found != [*seen, *new][: max(least, len(found))]:
            yield f"{_shown(found)} is there, and {_shown([*seen, *new])} was, {least} for certain"
        told = self._log.journal.tracking.sequence(_LATER.encode())
        if told != dict(one.message for one in found).get(_LATER):
            yield f"{_LATER} has come to {told}, found was {_shown(found)}"
        known = {who: self._log.journal.tracking.sequence(who.encode()) for who in sequences}
        if known != sequences:
            yield f"publishers had come to {sequences}, and now to {known}"
        if found and chance.random() < _CUT:
            yield from self._truncate(found, known)

    def _verify(self) -> Iterator[str]:
        """What `streamd verify` finds, but for what is made again, or was changed on purpose."""
        for fault in verify(self._disk, self._folder):
            is_rotten = PurePath(fault.path).name in self._rotten
            if not is_rotten and not str(fault).endswith(_MADE_AGAIN):
                yield str(fault)

    def _truncate(self, seen: list[Seen], sequences: dict[str, int | None]) -> Iterator[str]:
        """It begins later when that is answered, and as before or later while it goes on."""
        begun = len(self._disk.operations)
        first = truncate(self._log, self._chance.choice(seen).offset)
        end = len(self._disk.operations)
        crash = self._chance.choice((end, self._chance.randint(begun, end)))
        self._crash(crash)
        self._log = self._opened()
        yield from self._log.report.losses
        found = list(_all_in(self._log))
        is_cut = found == [one for one in seen if one.offset >= first]
        if not is_cut and (found != seen or crash == end):
            yield f"of {_shown(seen)} all from {first} on was kept, and there is {_shown(found)}"
        known = {who: self._log.journal.tracking.sequence(who.encode()) for who in sequences}
        if known != sequences:
            yield f"publishers had come to {sequences}, and now to {known}"

    def _append(self, number: int) -> Seen:
        """Publish one message."""
        log, body = self._log, f"{_LATER}:{number}".encode()
        offset = log.next_offset
        try:
            log.append([_chunk(number, body)], 0)
        except StorageError:
            self._disk.room = None
            log.flush(with_checkpoint=True)
            log.append([_chunk(number, body)], 0)
        return read(offset, body)


def _chunk(number: int, body: bytes) -> ChunkBuilder:
    builder = ChunkBuilder()
    builder.add(entry(Message(body).encode()), 1, 1, None)
    builder.set_sequence(_LATER.encode(), number)
    return builder


def _shown(seen: list[Seen]) -> str:
    return f"{len(seen)} up to {seen[-1] if seen else 'nothing'}"


def _all_in(log: Log, asked: int | None = None) -> Iterator[Seen]:
    """What a reader finds in a log."""
    start: Any = FIRST if asked is None else at_offset(asked)
    reader = Reader(log, log.segments.find(start))
    while not reader.at_end:
        for chunk in reader.read(1_000, 1 << 20, 1_000):
            raw = chunk.data
            if raw is None:
                raw = chunk.file.read(chunk.header.data_size, chunk.data_position)
            for offset, at in enumerate(walk_entries(raw), chunk.header.chunk_id):
                yield read(offset, bytes(MessageView(bytes(raw[at.body : at.end])).body))
    reader.close()
