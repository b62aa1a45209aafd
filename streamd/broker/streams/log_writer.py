"""From published messages to chunks in a log, in the order of their arrival.

Theory of operation. Everything that was published while the last chunks were written makes the next
ones (group commit). Appends go to the page cache and are made on the event loop: a hop to a thread
costs more than the write, and with Python's lock a busy loop would make it wait.

Three counters say how far things are; they count what was published and the stored offsets, and
always num_settled <= num_written <= num_asked:

    num_asked     was given to the writer
    num_written   is in the log, or was refused
    num_settled   is as safe as the setting `flush` promises, and its publishers know

With `flush = always` the log holds back what is appended until it is flushed; the writer is paused
meanwhile, as a flush covers what was written before it, and only that may be confirmed then.
Otherwise a turn writes and settles at once.

The states, and what each makes of the four things that happen to a writer:

    state     publish           a turn                   a shortage             refused otherwise
    WRITING   queued            written                  -> WAITING             -> FAILED
    WAITING   queued, slowly    tried again              stays                  -> FAILED
    FAILED    refused           nothing                  -                      -
    STOPPED   queued            nothing: the folder may be another stream's by now

WAITING -> WRITING when a turn succeeds. A shortage is that of room on the disk, of descriptors, of
memory, or of threads; a flush that could not be completed for one is tried again, too. Every state
-> STOPPED by `stop`, when the stream is being deleted; `remove` then refuses what is queued. A
paused writer takes no turn in any state.

Where messages are confirmed when a store has them (`Log.awaits_store`), a turn does not settle but
makes a *batch*: what it has written, and whom to tell. Batches are numbered, and settled in their
order:

    _num_settled_batches <= _num_taken_batches <= _num_batches
    the store has them      are on their way to it   were made

A batch that brought neither chunks nor offsets, of messages sent twice say, has nothing to wait for
but those before it. Offsets that are taken before their turn make a batch of their own, so that
their turn's finds one to wait for; so does what was there before a store was to have it
(`catch_up`).
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from itertools import islice
from typing import NamedTuple, Protocol

import trio

from segments import Log, StorageError
from segments.entries import ID_SIZE, has_filter_values, split
from segments.errors import FULL_DISK
from segments.policy import LogPolicy, RecordLimit
from segments.tracking import MAX_OFFSETS, trim
from streamd.broker.declared.standing_selectors import StandingSelectors
from streamd.broker.streams.chunk_assembly import ChunkAssembly
from streamd.broker.streams.publication import PendingEntries, Publisher, queued_size
from streamd.broker.streams.safe_offsets import SafeOffsets
from streamd.broker.streams.waiters import Waiters
from streamd.broker.traffic import Histogram
from streamd.config import QUEUE_BYTES
from streamd.operations.errors import Reason

logger = logging.getLogger(__name__)

_PAUSE_MS = 1_000  # without a chunk: the next one is remembered, so that lag can be told in seconds
_PAUSES_KEPT = 4


class WriterState(Enum):
    """See the table above."""

    WRITING = "writing"
    WAITING = "waiting"
    FAILED = "failed"
    STOPPED = "stopped"


class Floor(Protocol):
    """How much of the disk is to stay free; see disk_floor.py."""

    @property
    def error(self) -> StorageError | None:
        """Why nothing is to be written now; None while there is room."""


class _Batch(NamedTuple):
    """What a turn has written, until a store has it.

    Attributes:
        end: offset behind its last message.
        confirms: whom to tell of which messages.
        num_written, written_at: of the writer, then.
    """

    end: int
    confirms: dict[Publisher, list[bytes]]
    num_written: int
    written_at: float


class LogWriter:
    """Writes what is published to one stream.

    Args:
        name: of the stream, for messages to people.
        now_ms: the wall clock, in ms since 1970.
        standing: selectors that are evaluated for each chunk.
        waiters: woken by what is committed.
        confirm_seconds: gets the time that messages wait for their confirm.
        floor: says when the disk has too little room; None where nobody minds.

    Attributes:
        failure: why it accepts nothing more; None while it does.
        shortage: what it waits for; empty while it does not.
        write_by: what is queued waits for more messages no longer than until then, by trio's clock.
        has_rolled: a new segment has begun since `take_rolled`.
        is_paused: nothing is to be written at the moment.
        changed_offsets: that consumers have stored, or had forgotten, and that a store is to have.
        safe_offsets: what may be told of those that consumers have stored.
    """

    def __init__(
        self,
        name: str,
        log: Log,
        now_ms: Callable[[], int],
        standing: StandingSelectors,
        waiters: Waiters,
        confirm_seconds: Histogram,
        floor: Floor | None = None,
    ) -> None:
        self.state = WriterState.WRITING
        self.failure: str | None = None
        self.shortage = ""
        self.has_rolled = False
        self._name = name
        self._log = log
        self._now_ms = now_ms
        self._standing = standing
        self._waiters = waiters
        self._floor = floor
        self._confirm_seconds = confirm_seconds
        # When the first message of those that are queued came, and of those that are not confirmed;
        # 0 where there is none, or where that is not measured.
        self._queued_at = self._written_at = 0.0
        self._measures, self._measured_ms, self._unmeasured = True, 0, 0
        self._pauses: list[tuple[int, int]] = []
        self.is_paused = self._holds_messages = False
        self.write_by = 0.0
        self._queue: deque[PendingEntries] = deque()
        self._queued_bytes = self._queued_records = 0
        self.num_asked = self._num_written = self.num_settled = 0
        self._told_offset = log.committed_offset
        self._last_write_ms = log.segments.last_timestamp_ms or 0
        self._newest = log.segments.shown[-1]
        self._settled = trio.lowlevel.ParkingLot()
        self._limit = RecordLimit(log.policy.chunk_max_records)
        self._confirms: dict[Publisher, list[bytes]] = {}
        self.changed_offsets: dict[bytes, int | None] = {}
        self.safe_offsets = SafeOffsets()
        self._batches: deque[_Batch] = deque()  # that are not settled
        self._num_batches = self._num_taken_batches = self._num_settled_batches = 0
        self._catches_up = 0  # the last batch of what was there before

    def set_policy(self, policy: LogPolicy) -> None:
        """Apply other limits from the next chunk on."""
        self._log.policy = policy
        self._limit = RecordLimit(policy.chunk_max_records)

    # -- input

    def publish(self, pending: PendingEntries) -> bool:
        """Queue entries for the next turn; False when they are refused."""
        publisher, entries = pending
        if self.failure is not None:
            self._refuse(publisher, entries.publishing_ids, Reason.NOT_AVAILABLE)
            return False
        limit = self._limit
        self.num_asked += 1
        if self._measures and not self._queue:
            self._queued_at = time.monotonic()
        if self._log.policy.chunk_wait_ms and not self._queue:
            self.write_by = trio.current_time() + self._log.policy.chunk_wait_ms / 1_000
        max_records = limit.filtered if has_filter_values(entries) else limit.unfiltered
        for part in split(entries, max_records, self._log.policy.chunk_max_bytes):
            self._queue.append(PendingEntries(publisher, part))
            self._queued_bytes += queued_size(part)
            self._queued_records += part.num_records
        return True

    def store_offset(self, reference: bytes, offset: int) -> None:
        """Remember a consumer's offset: visible at once, written with the next turn.

        Raises:
            ValueError: the reference cannot be stored.
        """
        before = self._log.journal.tracking.offset(reference)
        self._log.journal.tracking.store_offset(reference, offset)
        self._note_offset(reference, offset)
        self.safe_offsets.store(reference, before, offset, self.num_asked)

    def forget_offset(self, reference: bytes) -> bool:
        """Forget a consumer's offset; whether there was one. On the device after the next flush."""
        is_known = self._log.journal.delete_offset(reference)
        self.safe_offsets.forget(reference)
        if is_known and self._log.awaits_store:
            self._note_offset(reference, None)
        return is_known

    def _note_offset(self, reference: bytes, offset: int | None) -> None:
        self.num_asked += 1
        if self._log.awaits_store:
            self.changed_offsets.pop(reference, None)  # re-inserted last: the order is by use
            self.changed_offsets[reference] = offset
            trim(self.changed_offsets, MAX_OFFSETS)

    @property
    def num_queued(self) -> int:
        """Groups of entries that wait for a turn."""
        return len(self._queue)

    def written_ms(self, offset: int) -> int:
        """When a message was written at the earliest, in ms since 1970; 0 when nobody knows.

        The last pauses are known: what comes after one is not older than its end.
        """
        return max((at_ms for first, at_ms in self._pauses if first <= offset), default=0)

    @property
    def awaits_more(self) -> bool:
        """What is queued may wait for more messages, as the stream is declared."""
        policy = self._log.policy
        return (
            policy.chunk_wait_ms > 0
            and self._queued_records < self._limit.filtered
            and self._queued_bytes < policy.chunk_max_bytes
            and trio.current_time() < self.write_by
        )

    @property
    def is_settled(self) -> bool:
        """Everything that came is stored or refused, and nothing waits for a turn."""
        return not self._queue and self.num_settled == self.num_asked and not self.is_paused

    @property
    def is_waiting(self) -> bool:
        """There is a shortage, and what was published waits."""
        return self.state is WriterState.WAITING

    @property
    def awaits_mark(self) -> bool:
        """Something is queued that cannot be written before `LogMaintenance.mark`."""
        return bool(self._queue) and self._log.awaits_mark

    @property
    def is_crowded(self) -> bool:
        """More must not be queued, see `room`."""
        return self._queued_bytes > (0 if self.state is WriterState.WAITING else QUEUE_BYTES)

    async def room(self) -> None:
        """Return when more may be queued: at once unless the disk is slow or full."""
        while self.is_crowded:
            await self._settled.park()

    async def settled(self) -> None:
        """Return when all input so far is stored or refused, or cannot be stored for now."""
        asked = self.num_asked
        while self.num_settled < asked and not self.failure:
            if self.is_waiting and not self._holds_messages:
                break
            await self._settled.park()

    # -- a turn

    def write(self) -> bool:
        """Write everything that is queued; settle it, unless it has to be flushed first.

        Returns:
            Whether something was added to the log.
        """
        if self.is_paused or self.awaits_mark or self.state is WriterState.STOPPED:
            return False
        log = self._log
        before = log.next_offset
        has_written = False
        try:
            if self.failure is None:
                tracking, asked = log.journal.tracking, self.num_asked
                has_offsets = tracking.has_pending
                self._append_all(has_offsets=has_offsets)
                if not (has_offsets and tracking.has_pending):  # or the journal is rewritten
                    self._num_written = asked
                has_written = has_offsets
            if log.awaits_store:
                self._make_batch()
                self._settled.unpark_all()
            elif log.commits_on_flush and not log.flushing.is_flushed:
                self._settled.unpark_all()  # there is room in the queue
            else:
                self.settle()
        except Exception as error:  # a bug: it stays in this stream
            logger.exception("stream %s failed", self._name)
            self.fail(str(error))
        return has_written or log.next_offset != before

    def _append_all(self, *, has_offsets: bool) -> None:
        low = self._floor.error if self._floor is not None and self._queue else None
        try:
            if self._log.flushing.obstacle is not None:
                raise self._log.flushing.obstacle
            if low is None:
                self._write_queue()
            if has_offsets:
                self._log.journal.write_pending(self._log.committed_offset)
            if low is not None:  # messages wait, and nothing else
                raise low
        except StorageError as error:
            self._holds_messages = error is low
            if error.is_temporary:
                self.wait_for(error)
            else:
                self.fail(str(error))
        else:
            if self.state is WriterState.WAITING:
                over = (
                    "there is room on the disk again" if self.shortage == FULL_DISK else "goes on"
                )
                logger.info("stream %s: %s", self._name, over)
                self.state, self.shortage = WriterState.WRITING, ""

    def _write_queue(self) -> None:
        """Append everything queued; what is in the log leaves the queue, nothing else does.

        Raises:
            StorageError: the system refused.
        """
        if not self._queue:
            return
        chunks = self._assemble()
        log = self._log
        first = chunk_end = log.next_offset
        self._written_at, self._queued_at = self._written_at or self._queued_at, 0.0
        try:
            builders = [chunk.builder for chunk in chunks if chunk.builder.num_entries]
            self._standing.mark(builders)
            now_ms = self._now_ms()
            if now_ms != self._last_write_ms:
                self._next_millisecond(now_ms, first)
            log.append(builders, now_ms)
        finally:
            # A consumer may come to wait while this is being flushed, or stored.
            is_noted = bool(self._waiters.by_key) or log.commits_on_flush or log.awaits_store
            for chunk in chunks:
                chunk_end += chunk.builder.num_records
                if chunk_end > log.next_offset:
                    break
                if is_noted:  # what is not in the log may never be, under these offsets
                    self._waiters.note(chunk.builder.keys, chunk_end)
                for single, place in chunk.singles:
                    single.offset = chunk_end - chunk.builder.num_records + place
                for publisher, entries in chunk.taken:
                    self._queue.popleft()
                    self._confirms.setdefault(publisher, []).append(entries.publishing_ids)
            left = self._queue
            self._queued_bytes = sum(queued_size(it.entries) for it in left) if left else 0
            self._queued_records = sum(it.entries.num_records for it in left) if left else 0

    def _assemble(self) -> list[ChunkAssembly]:
        sequences: dict[bytes, int] = {}
        chunk = ChunkAssembly(self._log, self._limit, sequences)
        chunks = [chunk]
        for pending in self._queue:
            if not chunk.take(pending):
                self._limit.chunk_was_full()
                chunk = ChunkAssembly(self._log, self._limit, sequences)
                chunks.append(chunk)
                chunk.take(pending)
        self._limit.backlog_is_gone(chunk.builder.num_records)
        return chunks

    def wait_for(self, error: StorageError) -> None:
        """Nothing can be written or flushed before a shortage is over."""
        if self.shortage != error.shortage:
            logger.error("stream %s: %s; its publishers wait", self._name, error)
        if self.state is WriterState.WRITING:
            self.state = WriterState.WAITING
        self.shortage = error.shortage

    # -- the outcome

    def pause(self) -> None:
        """A flush runs: what it does not cover must not be written before it has ended."""
        self.is_paused = True

    def resume(self) -> None:
        """The flush has ended."""
        self.is_paused = False

    # -- batches

    def leave_store(self) -> None:
        """Nothing waits for a store; from now on this device is enough, as before."""
        self._log.await_store(awaits=False)
        self.changed_offsets.clear()  # of the pause: they are written with the next turn

    def _make_batch(self) -> None:
        """What this turn has written is settled when a store has it."""
        last = self._batches[-1].num_written if self._batches else self.num_settled
        if self._confirms or self._num_written > last:
            self._add_batch(self._confirms)
            self._confirms, self._written_at = {}, 0.0
            self.settle_batches(0)

    def _add_batch(self, told: dict[Publisher, list[bytes]]) -> None:
        self._num_batches += 1
        end = self._log.next_offset
        self._batches.append(_Batch(end, told, self._num_written, self._written_at))

    def catch_up(self, offsets: Mapping[bytes, int]) -> None:
        """A store is to have what readers see, and these offsets, before anything is settled."""
        self.changed_offsets.update(offsets)
        self.num_asked += 1
        self._add_batch({})
        self._catches_up = self._num_batches

    @property
    def catches_up(self) -> bool:
        """What readers saw before is not all on its way to a store."""
        return self._num_taken_batches < self._catches_up

    def take_offsets(self) -> dict[bytes, int | None]:
        """Offsets that are to be on their way to a store now; see `take_batches`."""
        offsets, self.changed_offsets = self.changed_offsets, {}
        if offsets:
            self._add_batch({})
        return offsets

    @property
    def awaits_store(self) -> bool:
        """Something is to be stored, or on its way to a store, before batches can be settled."""
        return bool(
            self._log.flushing.held
            or self.changed_offsets
            or max(self._num_taken_batches, self._catches_up) > self._num_settled_batches
        )

    def take_batches(self, end: int) -> int:
        """Chunks before an offset, and all offsets, are on their way to a store.

        Returns:
            The number of the last batch that nothing is missing of then; see `settle_batches`.
        """
        first = self._num_batches - len(self._batches)
        number = max(first, self._num_taken_batches)
        for batch in islice(self._batches, number - first, None):
            if batch.end > end:
                break
            number += 1
        self._num_taken_batches = number
        return number

    def settle_batches(self, number: int) -> None:
        """A store has all batches up to this one."""
        self._num_settled_batches = max(self._num_settled_batches, number)
        if not self.awaits_store:  # those that are left have brought nothing
            self._num_taken_batches = self._num_settled_batches = self._num_batches
        num_written = self.num_settled
        while self._num_batches - len(self._batches) < self._num_settled_batches:
            batch = self._batches.popleft()
            num_written = batch.num_written
            for publisher, ids in batch.confirms.items():
                self._confirms.setdefault(publisher, []).extend(ids)
            self._written_at = self._written_at or batch.written_at
        self.settle(num_written)

    def settle(self, num_written: int | None = None) -> None:
        """What was written is as safe as promised: confirm it, and wake its consumers.

        Args:
            num_written: how much of it; default all.
        """
        confirms, self._confirms = self._confirms, {}
        size = 0
        for publisher, ids in confirms.items():
            joined = b"".join(ids)
            size += len(joined)
            try:
                publisher.confirm(joined)
            except Exception:  # a bug of its connection: it stays there
                logger.exception("stream %s: a publisher cannot be confirmed to", self._name)
        self._unmeasured += size
        if self._written_at and size:
            self._measure()
        log = self._log
        if log.committed_offset != self._told_offset:
            self._told_offset = log.committed_offset
            self._waiters.wake(log.committed_offset)
        if log.segments.shown[-1] is not self._newest:
            self._newest = log.segments.shown[-1]
            self.has_rolled = True
        self.num_settled = self._num_written if num_written is None else num_written
        if self.safe_offsets.unsafe:
            self.safe_offsets.settle(self.num_settled, is_all=self.num_settled == self.num_asked)
        if self._settled:
            self._settled.unpark_all()

    def followed(self) -> None:
        """The log is written elsewhere, and has more, or less, than before."""
        self._told_offset, self._newest = self._log.committed_offset, self._log.segments.shown[-1]
        self._waiters.wake_all()

    def _next_millisecond(self, now_ms: int, first: int) -> None:
        """Note the first write in a millisecond; `first` is its first offset."""
        if now_ms - self._last_write_ms > _PAUSE_MS:
            self._pauses.append((first, now_ms))
            del self._pauses[:-_PAUSES_KEPT]
        self._last_write_ms, self._measures = now_ms, True

    def _measure(self) -> None:
        """Note how long messages have waited for their confirm.

        Of many turns in a millisecond a few are measured, for the others as well: it costs as much
        as writing a message.
        """
        seconds, self._written_at = time.monotonic() - self._written_at, 0.0
        self._confirm_seconds.observe(seconds, self._unmeasured // ID_SIZE)
        self._unmeasured = 0
        self._measures = self._measured_ms != self._last_write_ms
        self._measured_ms = self._last_write_ms

    def take_rolled(self) -> bool:
        """Whether a new segment has begun since this was asked last."""
        has_rolled, self.has_rolled = self.has_rolled, False
        return has_rolled

    def _refuse(self, publisher: Publisher, ids: bytes, reason: Reason) -> None:
        try:
            publisher.refuse(ids, reason)
        except Exception:  # as above
            logger.exception("stream %s: a refusal to a publisher failed", self._name)

    def fail(self, reason: str) -> None:
        """Accept nothing more: queued messages are refused, committed ones can still be read."""
        reason = f"{reason}; look at the disk, then restart the server"
        logger.error("stream %s accepts no more messages: %s", self._name, reason)
        self.failure = reason
        if self.state is not WriterState.STOPPED:
            self.state = WriterState.FAILED
        if self._log.flushing.failed is not None:
            self.refuse_written(Reason.NOT_AVAILABLE)
        self._refuse_queue(Reason.NOT_AVAILABLE)

    def refuse_written(self, reason: Reason) -> None:
        """What was written will not be flushed, or stored, any more."""
        found = [*(batch.confirms for batch in self._batches), self._confirms]
        self._batches.clear()
        self._confirms, self._written_at = {}, 0.0
        for confirms in found:
            for publisher, ids in confirms.items():
                self._refuse(publisher, b"".join(ids), reason)

    def _refuse_queue(self, reason: Reason) -> None:
        queue, self._queue = self._queue, deque()
        self._queued_bytes = self._queued_records = 0
        for publisher, entries in queue:
            self._refuse(publisher, entries.publishing_ids, reason)
        self._settled.unpark_all()

    def stop(self) -> None:
        """Write nothing any more: the folder may be another stream's soon."""
        self.state = WriterState.STOPPED

    def remove(self, reason: Reason) -> None:
        """The stream is gone, see Stream.remove: nobody waits for it any longer."""
        self.state, self.failure = WriterState.STOPPED, "it was deleted"
        self.refuse_written(reason)
        self._refuse_queue(reason)
