"""A log that crashes again and again, against a model of ten lines: the list of what it took."""

from contextlib import suppress

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from segments import ChunkMatcher, Log, LogPolicy, StorageError
from tests.support.disk import FaultyDisk, Killed
from tests.support.logs import (
    append,
    bodies_of,
    read_bodies,
    read_chunks,
    store_offset,
    truncate,
)

VALUES = [b"", b"red", b"green"]


class CrashingLog(RuleBasedStateMachine):
    """`written` is what the log said it took; `durable` how much of it a sync has covered."""

    @initialize(chunks=st.integers(1, 6), size=st.sampled_from([16, 255]), history=st.booleans())
    def create(self, chunks: int, size: int, history: bool) -> None:
        self.policy = LogPolicy(max_segment_chunks=chunks, filter_size=size, filter_history=history)
        self.disk = FaultyDisk()
        self.offsets: dict[bytes, int] = {}
        self.log = self.opened()
        self.written: list[tuple[bytes, bytes]] = []  # value, body
        self.refused: dict[int, list[tuple[bytes, bytes]]] = {}
        self.durable = 0
        self.first = 0  # older messages are gone

    def opened(self) -> Log:
        log = Log.open("s", self.policy, self.disk)
        self.cut_offsets(log)
        return log

    def cut_offsets(self, log: Log) -> None:
        """None is behind the end of a log that was opened."""
        last = log.committed_offset - 1
        self.offsets = {name: min(at, last) for name, at in self.offsets.items() if last >= 0}

    @rule(batch=st.lists(st.tuples(st.sampled_from(VALUES), st.binary(max_size=40)), min_size=1))
    def append(self, batch: list[tuple[bytes, bytes]]) -> None:
        values, bodies = zip(*batch, strict=True)
        sequence = len(self.written) + len(batch)
        append(self.log, bodies, values, sequences={b"p": sequence})
        self.written += batch

    @rule(body=st.binary(max_size=40), room=st.integers(0, 120))
    def append_to_a_full_disk(self, body: bytes, room: int) -> None:
        used = sum(len(inode.content) for inode in self.disk.files.values())
        self.disk.capacity = used + room
        self.try_to_append(body)
        self.disk.capacity = None

    @rule(
        body=st.binary(max_size=40),
        operation=st.sampled_from(["write", "create", "rename", "truncate"]),
    )
    def append_with_a_failure(self, body: bytes, operation: str) -> None:
        self.disk.failures = {operation: 1}
        self.try_to_append(body)
        self.disk.failures = {}

    def try_to_append(self, body: bytes) -> None:
        offset = len(self.written)
        try:
            append(self.log, [body], sequences={b"p": offset + 1})
            self.written.append((b"", body))
        except StorageError:
            # Not taken. If the power fails before the cut that undoes it is on the device, it
            # may be there again: an unconfirmed message may appear, no other may.
            self.refused.setdefault(offset, []).append((b"", body))

    @rule(consumer=st.sampled_from([b"c1", b"c2"]), offset=st.integers(0, 100))
    def store_offset(self, consumer: bytes, offset: int) -> None:
        store_offset(self.log, consumer, offset)
        self.offsets[consumer] = offset

    @rule()
    def sync(self) -> None:
        self.log.journal.write_pending(self.log.committed_offset)
        self.log.flush()
        self.durable = len(self.written)

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, len(self.written) + 1))
        self.first = self.begin_before(offset, truncate(self.log, offset))
        self.durable = len(self.written)

    def begin_before(self, offset: int, first: int) -> int:
        """The beginning of the chunk with `offset`; at most all of one chunk stays before it."""
        assert self.first <= first <= max(self.first, offset)
        chunks = [chunk.header for chunk in read_chunks(self.log)]
        is_first = not chunks or chunks[0].chunk_id == first
        assert is_first
        assert not chunks or first == self.first or chunks[0].next_offset > offset
        return first

    @rule(data=st.data(), life=st.integers(0, 900))
    def truncate_and_kill(self, data: st.DataObject, life: int) -> None:
        offset = data.draw(st.integers(0, len(self.written)))
        self.disk.life = life
        with suppress(Killed):
            truncate(self.log, offset)
        self.disk.life = None
        self.log = self.opened()
        assert self.log.report.losses == ()
        assert self.first <= self.log.segments.first_offset <= max(self.first, offset)
        self.first = self.log.segments.first_offset
        self.durable = len(self.written)

    @rule(operation=st.sampled_from(["write", "create", "rename", "remove", "sync"]))
    def truncate_with_a_failure(self, operation: str) -> None:
        offset = len(self.written)
        self.disk.failures = {operation: 1}
        with suppress(StorageError):
            truncate(self.log, offset)
        self.disk.failures = {}
        with suppress(StorageError):
            self.log.close()
        self.log = self.opened()
        assert self.log.report.losses == ()
        assert self.first <= self.log.segments.first_offset <= offset
        self.first = self.log.segments.first_offset
        self.durable = len(self.written)

    @rule()
    def close_and_open(self) -> None:
        self.log.close()
        self.log = self.opened()
        assert self.log.report.losses == self.log.report.steps == ()
        self.durable = len(self.written)

    @rule(life=st.integers(0, 700), stores_offset=st.booleans())
    def kill(self, life: int, stores_offset: bool) -> None:
        """The process dies at any byte of what it is writing. All that returned before stays."""
        before = len(self.written)
        self.disk.life = life
        try:
            if stores_offset:
                store_offset(self.log, b"c1", 7)
                self.offsets[b"c1"] = 7
            append(self.log, [b"unconfirmed" * 5], [b"red"], sequences={b"p": before + 1})
        except Killed:
            pass
        self.disk.life = None
        self.log = self.opened()
        assert self.log.report.losses == ()
        assert self.log.committed_offset in (before, before + 1)
        if self.log.committed_offset > before:
            self.written.append((b"red", b"unconfirmed" * 5))
        else:
            self.refused.setdefault(before, []).append((b"red", b"unconfirmed" * 5))
        self.durable = len(self.written)  # what is opened is on the device
        for consumer, offset in self.offsets.items():
            assert self.log.journal.tracking.offset(consumer) in (
                {offset, min(7, self.log.committed_offset - 1)} if stores_offset else {offset}
            )

    @rule(data=st.data())
    def cut_power(self, data: st.DataObject) -> None:
        """Of each file's unsynced writes a prefix stays, the next one torn."""
        kept, torn = {}, {}
        for path, inode in self.disk.files.items():
            kept[path] = data.draw(st.integers(0, len(inode.unsynced)), label=f"kept of {path}")
            torn[path] = data.draw(st.integers(0, 30), label=f"torn of {path}")
        self.disk.cut_power(kept, torn)
        self.log = self.opened()
        found = bodies_of(read_chunks(self.log))
        offsets = [offset for offset, _ in found]
        durable = list(range(self.first, self.durable))
        assert offsets[: len(durable)] == durable  # what was synced stays
        kept = [self.message_at(offset, body) for offset, body in found]
        assert offsets == list(range(self.first, self.log.committed_offset))  # and no gap
        assert self.log.report.losses == ()
        self.written = self.written[: self.first] + kept
        self.offsets = {}
        self.sync()

    def message_at(self, offset: int, body: bytes) -> tuple[bytes, bytes]:
        """The message with `body` that was given to the log for `offset`; fails without one."""
        given = self.refused.get(offset, []) + self.written[offset : offset + 1]
        return next(message for message in given if message[1] == body)

    @invariant()
    def holds_exactly_what_was_written(self) -> None:
        bodies = [body for _, body in self.written]
        assert read_bodies(self.log) == bodies[self.first :]
        assert self.log.segments.first_offset == self.first
        assert self.log.committed_offset == len(bodies)

    @invariant()
    def remembers_the_last_sequence(self) -> None:
        sequence = self.log.journal.tracking.sequence(b"p")
        assert sequence == (len(self.written) or None)

    @invariant()
    def finds_every_match(self) -> None:
        found = read_bodies(self.log, matcher=ChunkMatcher([b"red"]))
        wanted = [body for value, body in self.written[self.first :] if value == b"red"]
        remaining = iter(found)
        assert all(body in remaining for body in wanted)  # a subsequence, in order


CrashingLog.TestCase.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)
TestCrashingLog = CrashingLog.TestCase
