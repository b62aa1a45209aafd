"""A live stream: its log, the messages on their way into it, and who waits for new ones.

One task writes. It takes everything that arrived while it wrote last (group commit), cuts it into
chunks and appends them; then it confirms and wakes consumers. Appends go to the page cache and
are made on the event loop: a hop to a thread costs more than the write, and with Python's lock
a busy loop would make it wait.

With `flush = always` the log holds back what is appended. The task has it synced in a thread, and
then confirms and wakes consumers: nobody is told of what a power failure can take away. What
arrives meanwhile stays queued and shares the next sync. Else somebody calls `flush` now and then.
A sync that fails is not tried again, as the system may have dropped what it could not write, and
would say next time that all is well: the stream fails.

A disk that is full stops publishing to the stream, not the stream: what has been received stays
queued in its order, connections that would send more are not read, and the write is tried again
every second. Any other refusal to write fails the stream: what is committed can still be read.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

import trio

from segments import Log, StorageError
from segments.entries import split
from segments.flush import Flush
from segments.policy import LogPolicy, RecordLimit
from streamd.broker import threads
from streamd.broker.chunk_assembly import ChunkAssembly
from streamd.broker.errors import Reason, Refused
from streamd.broker.filter_contract import FilterContract
from streamd.broker.publication import PendingEntries, Publisher
from streamd.broker.standing_selectors import StandingSelector, StandingSelectors
from streamd.config import FULL_DISK_SECONDS, PUBLICATION_BYTES, QUEUE_BYTES
from streamd.net.wakeup import Wakeup

logger = logging.getLogger(__name__)

_FULL = "the disk is full"
_NO_KEY = b"\0" * 256  # longer than any filter value: of who waits for none, but for new segments


class Waiter(Protocol):
    """A consumer that has read everything and wants to know of more.

    Attributes:
        keys: filter values of which a chunk has to hold one for it to be told; None for all.
    """

    @property
    def keys(self) -> Collection[bytes] | None:
        """See above; the same as long as it waits."""

    def stream_has_more(self) -> None:
        """Something was committed, or the stream is gone."""


class Stream:
    """One stream of the server.

    Args:
        name: for messages to people.
        log: open.
        now_ms: the wall clock, in ms since 1970.
        contract: what its filter values are, None when nothing has to be done for it.
        standing: selectors that groups have registered.

    Attributes:
        contract: as given.
        standing: the registered selectors.
        failed: why it takes no more messages, None while it does.
        leave: has something done at the end of a round of connections, see poller.Poller.
        on_written: told of this stream when something was written that is not flushed.
    """

    def __init__(
        self,
        name: str,
        log: Log,
        now_ms: Callable[[], int],
        contract: FilterContract | None = None,
        standing: Iterable[StandingSelector] = (),
    ) -> None:
        self.name = name
        self.log = log
        self.contract = contract
        self.standing = StandingSelectors(standing)
        self.failed: str | None = None
        self.at_round_end: Callable[[Callable[[], None]], bool] = lambda _work: False
        self.on_written: Callable[[Stream], None] = lambda _stream: None
        self._now_ms = now_ms
        self._queue: deque[PendingEntries] = deque()
        self._queued_bytes = 0
        self._is_full = False
        self._has_rolled = self._is_flushing = self._is_stopped = False
        self._disk_work = trio.Lock()  # one flush, or removal of segments, at a time
        self._told_offset = log.committed_offset
        self._newest = log.segments[-1]
        # Publications and stored offsets: that came, were written, and are as safe as promised.
        self._num_asked = self._num_written = self._num_settled = 0
        self._work = Wakeup()
        self._settled = trio.lowlevel.ParkingLot()
        self._waiters: set[Waiter] = set()
        self._waiters_for: dict[bytes, set[Waiter]] = {}
        self._new_keys: set[bytes] = set()
        self._limit = RecordLimit(log.policy.chunk_max_records)
        self._confirms: dict[Publisher, list[bytes]] = {}

    @property
    def alarm(self) -> str:
        """Why it takes no messages at the moment; empty while it does."""
        return self.failed or (_FULL if self._is_full else "")

    def set_policy(self, policy: LogPolicy) -> None:
        """Keep to other limits from the next chunk on."""
        self.log.policy = policy
        self._limit = RecordLimit(policy.chunk_max_records)

    # -- publishing

    def check_writable(self) -> None:
        """Raise Refused when a publisher cannot be declared now."""
        if self.failed is not None:
            raise Refused(Reason.NOT_AVAILABLE, self.failed)
        if self._is_full:
            raise Refused(Reason.PRECONDITION_FAILED, _FULL)

    def publish(self, publication: PendingEntries) -> None:
        """Queue entries; their publisher is told when they are stored."""
        if self.failed is not None:
            reason = Reason.NOT_AVAILABLE
            publication.publisher.refuse(publication.entries.publishing_ids, reason)
            return
        self._num_asked += 1
        publisher, entries = publication
        has_values = entries.filter_values is not None
        max_records = self._limit.current(has_filter_values=has_values)
        for part in split(entries, max_records, self.log.policy.chunk_max_bytes):
            self._queue.append(PendingEntries(publisher, part))
            self._queued_bytes += len(part.data) + PUBLICATION_BYTES
        if not self.at_round_end(self._write_now):
            self._work.set()

    @property
    def is_crowded(self) -> bool:
        """More must not be queued, see `room`."""
        return self._queued_bytes > (0 if self._is_full else QUEUE_BYTES)

    async def room(self) -> None:
        """Return when more may be queued: at once unless the disk is slow or full."""
        while self.is_crowded:
            await self._settled.park()

    async def settled(self) -> None:
        """Return when all that came so far is stored or refused, or cannot be for now."""
        asked = self._num_asked
        while self._num_settled < asked and not (self._is_full or self.failed):
            await self._settled.park()

    def store_offset(self, reference: str, offset: int) -> None:
        """Remember a consumer's offset; visible at once, on disk with the writer's next turn.

        Raises:
            ValueError: the reference cannot be stored.
        """
        self.log.store_offset(reference.encode(), offset)
        self._num_asked += 1
        self._work.set()

    # -- consuming

    def add_waiter(self, waiter: Waiter) -> None:
        """Tell `waiter` once when more is committed that may be for it.

        And when a new segment begins: who waits must not keep old ones open.
        """
        if waiter.keys is None:
            self._waiters.add(waiter)
            return
        for key in waiter.keys or (_NO_KEY,):
            self._waiters_for.setdefault(key, set()).add(waiter)

    def remove_waiter(self, waiter: Waiter) -> None:
        """Tell it nothing."""
        self._waiters.discard(waiter)
        for key in waiter.keys or (_NO_KEY,):
            waiting = self._waiters_for.get(key)
            if waiting is not None:
                waiting.discard(waiter)
                if not waiting:
                    del self._waiters_for[key]

    def _wake_waiters(self) -> None:
        """Tell who waits for what was just committed."""
        waiters, self._waiters = self._waiters, set()
        keys, self._new_keys = self._new_keys, set()
        for key in self._waiters_for.keys() & keys:
            waiters |= self._waiters_for.get(key, set())
        self._tell(waiters)

    def _wake_everybody(self) -> None:
        waiters = self._waiters.union(*self._waiters_for.values())
        self._waiters = set()
        self._tell(waiters)

    def _tell(self, waiters: Iterable[Waiter]) -> None:
        for waiter in waiters:
            self.remove_waiter(waiter)
        for waiter in waiters:
            waiter.stream_has_more()

    # -- writing

    async def run(self) -> None:
        """Write what is queued until cancelled."""
        while True:
            await self._work.wait()
            self._write()
            if self.log.holds_back and not self.log.is_flushed:
                await self.flush()
            if self._has_rolled:
                self._has_rolled = False
                self._wake_everybody()
                await self.expire()
            if self._is_full:
                await trio.sleep(FULL_DISK_SECONDS)
                self._work.set()

    def _write_now(self) -> None:
        """Write without a turn of the task, which costs as much; it does what may take time."""
        if not self._is_full:  # then the task tries, now and then
            self._write()
        if self._has_rolled or self._is_full or self.log.holds_back:
            self._work.set()

    def _write(self) -> None:
        try:
            self._take_turn()
        except Exception as error:  # a bug: it stays in this stream
            logger.exception("stream %s failed", self.name)
            self._fail(str(error))

    def _take_turn(self) -> None:
        """Write everything that is queued now; tell of it, unless it has to be flushed before."""
        if self._is_stopped or self._is_flushing:
            return  # its folder may be gone; and what a flush does not cover is not told with it
        if self.failed is None:
            self._num_written = self._num_asked
            log = self.log
            before, has_offsets = log.next_offset, log.tracking.has_pending
            try:
                self._write_queue()
                if has_offsets:
                    log.write_tracking()
            except StorageError as error:
                self._refused(error)
            else:
                if self._is_full:
                    logger.info("stream %s: there is room on the disk again", self.name)
                    self._is_full = False
            if has_offsets or log.next_offset != before:
                self.on_written(self)
        if self.log.holds_back and not self.log.is_flushed:
            self._settled.unpark_all()  # there is room in the queue
        else:
            self._settle()

    def _settle(self) -> None:
        """What was written is as safe as promised: confirm it, and wake who waits for it."""
        self._send_confirms()
        log = self.log
        if log.committed_offset != self._told_offset:
            self._told_offset = log.committed_offset
            if self._waiters or self._waiters_for:
                self._wake_waiters()
        if log.segments[-1] is not self._newest:
            self._newest = log.segments[-1]
            self._has_rolled = True
        self._num_settled = self._num_written
        if self._settled:
            self._settled.unpark_all()

    async def flush(self, *, only_sealed: bool = False, with_checkpoint: bool = False) -> None:
        """Return once what is written is on the device, or the stream has failed.

        Args:
            only_sealed: leave the newest segment to the system.
            with_checkpoint: write one in any case.
        """
        try:
            await self._flush(only_sealed=only_sealed, with_checkpoint=with_checkpoint)
        except Exception as error:  # a bug: it stays in this stream
            logger.exception("stream %s failed", self.name)
            self._fail(str(error))
            self._refuse_written(Reason.NOT_AVAILABLE)

    async def _flush(self, *, only_sealed: bool, with_checkpoint: bool) -> None:
        async with self._disk_work:
            if self._is_stopped or self.log.is_closed or self.log.failed is not None:
                return
            try:
                flush = self.log.begin_flush(
                    only_sealed=only_sealed, with_checkpoint=with_checkpoint
                )
            except StorageError as error:
                self._fail(str(error))
                self._refuse_written(Reason.NOT_AVAILABLE)
                return
            self._is_flushing = self.log.holds_back
            try:
                failure = await self._run(flush)
            finally:
                self._is_flushing = False
            self.log.end_flush(flush, failure)
        if flush.fault:
            logger.warning("stream %s: no checkpoint was written: %s", self.name, flush.fault)
        if failure is not None:
            self._fail(str(failure))
        if self.log.holds_back:
            self._settle()
            self._work.set()  # for what came meanwhile

    async def _run(self, flush: Flush) -> StorageError | None:
        """Run a flush in a thread; returns what it failed with."""
        try:
            with trio.CancelScope(shield=True):  # a thread cannot be cancelled
                await threads.in_thread(flush.run)
        except StorageError as error:
            return error
        return None

    async def stop(self) -> None:
        """Return when nothing is done with its files in a thread any more, nor ever will be."""
        self._is_stopped = True
        async with self._disk_work:
            pass

    def _refused(self, error: StorageError) -> None:
        if not error.is_full:
            self._fail(str(error))
        elif not self._is_full:
            self._work.set()  # the task tries again
            logger.error("stream %s: %s; its publishers wait", self.name, error)
            self._is_full = True

    def _fail(self, reason: str) -> None:
        reason = f"{reason}; look at the disk, then restart the server"
        logger.error("stream %s takes no more messages: %s", self.name, reason)
        self.failed = reason
        self._is_full = False
        if self.log.failed is not None:
            self._refuse_written(Reason.NOT_AVAILABLE)
        self._refuse_queue(Reason.NOT_AVAILABLE)

    def _refuse_written(self, reason: Reason) -> None:
        """What was written will not be flushed any more."""
        for publisher, ids in self._confirms.items():
            publisher.refuse(b"".join(ids), reason)
        self._confirms.clear()

    def _refuse_queue(self, reason: Reason) -> None:
        for publisher, entries in self._queue:
            publisher.refuse(entries.publishing_ids, reason)
        self._queue.clear()
        self._queued_bytes = 0
        self._settled.unpark_all()

    def remove(self) -> None:
        """The stream is deleted: nobody waits for it any longer."""
        self.failed = "it was deleted"
        self._refuse_written(Reason.NOT_FOUND)
        self._refuse_queue(Reason.NOT_FOUND)
        self._waiters.clear()
        self._waiters_for.clear()

    def _write_queue(self) -> None:
        """Append everything queued; what is in the log leaves the queue, nothing else does.

        Raises:
            StorageError: the system refused.
        """
        if not self._queue:
            return
        batches = self._make_batches()
        chunk_end = self.log.next_offset
        try:
            builders = [batch.builder for batch in batches if batch.builder.num_entries]
            for builder in builders:
                self.standing.mark(builder)
                if self._waiters_for:
                    self._new_keys.update(builder.keys)
            self.log.append(builders, self._now_ms())
        finally:
            for batch in batches:
                chunk_end += batch.builder.num_records
                if chunk_end > self.log.next_offset:
                    break
                self._take_off_queue(batch)

    def _make_batches(self) -> list[ChunkAssembly]:
        sequences: dict[bytes, int] = {}
        batch = ChunkAssembly(self.log, self._limit, sequences)
        batches = [batch]
        for publication in self._queue:
            if not batch.take(publication):
                self._limit.chunk_was_full()
                batch = ChunkAssembly(self.log, self._limit, sequences)
                batches.append(batch)
                batch.take(publication)
        self._limit.backlog_is_gone(batch.builder.num_records)
        return batches

    def _take_off_queue(self, batch: ChunkAssembly) -> None:
        for publisher, entries in batch.publications:
            self._queue.popleft()
            self._queued_bytes -= len(entries.data) + PUBLICATION_BYTES
            self._confirms.setdefault(publisher, []).append(entries.publishing_ids)

    def _send_confirms(self) -> None:
        for publisher, ids in self._confirms.items():
            publisher.confirm(b"".join(ids))
        self._confirms.clear()

    async def expire(self) -> None:
        """Drop segments that have outlived the stream's limits; files go in a thread.

        And write down what consumers have asked for.
        """
        if self.log.has_outlived(self._now_ms()):
            await self.flush(with_checkpoint=True)
        async with self._disk_work:
            if self._is_stopped or self.log.is_closed:
                return
            try:
                self.log.asked.write()
            except StorageError as error:
                logger.warning("stream %s: %s", self.name, error)
            try:
                removal = self.log.expire(self._now_ms())
                if removal.segments:
                    with trio.CancelScope(shield=True):
                        await threads.in_thread(removal.run)
            except StorageError as error:
                logger.error("stream %s: %s", self.name, error)
