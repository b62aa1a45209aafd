"""The log of a stream while it is open: who writes to it, and who works on its files.

Three parts do the work, each knows only those below it:

    LogMaintenance   work on files in threads                log_maintenance.py
    LogWriter        the queue, chunks, confirms, failures   log_writer.py
    Waiters          who is woken by what was committed      waiters.py

Writing needs no task of its own where a round is open (net/rounds.py): it is done at its end. The
task here writes where there is none, and does what may take time: it waits for a flush with
`flush = always`, has old segments dropped when a new one has begun, and tries again every second
while the disk is full or descriptors are short. That stops publishing to the stream, not the
stream: what has been received stays queued in its order, and connections that would send more are
not read.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import trio

from segments import Log, OffsetSpec, SegmentsError, StorageError
from segments.policy import LogPolicy
from segments.recovery.tail import TailChunk
from segments.segment import Segment
from segments.store.cache import ColdError
from segments.store.manifest import Manifest
from segments.stored_part import Marks
from segments.tracking import Tracking
from streamd.broker.catalog.writer import Check, permitted
from streamd.broker.declared.standing_selectors import StandingSelectors
from streamd.broker.streams.fetcher import Demand, Fetcher
from streamd.broker.streams.key_upkeep import KeyUpkeep
from streamd.broker.streams.log_figures import LogFigures
from streamd.broker.streams.log_maintenance import LogMaintenance
from streamd.broker.streams.log_writer import Floor, LogWriter, WriterState
from streamd.broker.streams.waiters import Waiters
from streamd.broker.supervisor import Supervisor
from streamd.broker.traffic import StreamTraffic
from streamd.config import FULL_DISK_SECONDS
from streamd.net import threads
from streamd.net.rounds import Rounds
from streamd.net.wakeup import Wakeup
from streamd.operations.errors import Reason
from streamd.operations.names import Name

logger = logging.getLogger(__name__)


class FlushSchedule(Protocol):
    """Decides when streams are flushed."""

    def wrote(self, log: "OpenLog") -> None:
        """Something was written to a log that is not flushed."""


class TierUse(Protocol):
    """What becomes of the stream's sealed segments in an object store."""

    @property
    def fence(self) -> str:
        """Why the stream takes no messages; empty while it does."""

    def policy_changed(self, policy: LogPolicy) -> None:
        """The stream has these limits from now on."""

    def log_opened(self, opened: "OpenLog") -> None:
        """Its log is open."""

    def wrote(self, opened: "OpenLog") -> None:
        """Something was written that is confirmed when the tier has it."""

    def may_write(self, opened: "OpenLog") -> bool:
        """The tier keeps up with confirming; where it does not, the log is told when it does."""

    @property
    def trouble(self) -> str:
        """Why the tier confirms nothing at the moment; empty while it does."""

    def confirm_in_store(self, opened: "OpenLog") -> None:
        """From now on its messages are confirmed when the tier has them."""

    def log_closes(self) -> None:
        """Its log is about to be closed, or the stream is gone."""

    def changed(self) -> None:
        """A segment was sealed, or some were dropped."""

    async def truncated(self, opened: "OpenLog") -> None:
        """Return when the tier knows where the log begins now, if what it has is confirmed there.

        Raises:
            Refused: it does not for long.
        """

    def index_made(self) -> None:
        """A filter index was made, or cannot be."""


class LogServices(NamedTuple):
    """The parts of a server that open logs work with.

    Attributes:
        now_ms: the wall clock, in ms since 1970.
        rounds: logs are written at the end of each.
        flushing: hears of every write; None where nobody has to.
        supervisor: runs tasks; None where somebody else does.
        fetcher: fetches what is read of cold segments; None where nothing is cold.
        tier: has sealed segments uploaded; None where nobody does.
        floor: says when the disk has too little room; None where nobody minds.
    """

    now_ms: Callable[[], int]
    rounds: Rounds
    flushing: FlushSchedule | None
    supervisor: Supervisor | None
    fetcher: Fetcher | None
    tier: TierUse | None
    floor: Floor | None = None


class Closed(NamedTuple):
    """What is known of a log that was closed.

    Attributes:
        fault: why not all of it could be written; empty where it was.
        is_final: it cannot be opened again before somebody has looked at the disk.
    """

    figures: LogFigures
    fault: str = ""
    is_final: bool = False


class OpenLog:
    """A log that is open, and all work on it.

    Args:
        name: of the stream, for messages to people.
        standing: selectors that are evaluated for each chunk.
        waiters: woken by what is committed.
        demand: for what is read of cold segments.

    Attributes:
        maintenance: work on the files goes through it.
        standing: see above.
        work: set it to have the task look what there is to do.
        running: the task, to be cancelled.
    """

    def __init__(
        self,
        name: Name,
        log: Log,
        services: LogServices,
        standing: StandingSelectors,
        waiters: Waiters,
        traffic: StreamTraffic,
        demand: Callable[[], Demand],
    ) -> None:
        self.name, self.log = name, log
        self.work = Wakeup()
        self.running = trio.CancelScope()
        self._services, self._tier = services, services.tier
        self.standing, self._waiters = standing, waiters
        self._demand = demand
        self._traffic, self._expires = traffic, False
        traffic.log_opened(log)
        now_ms, server = services.now_ms, traffic.server
        self.writer = LogWriter(
            name, log, now_ms, standing, waiters, server.confirm_seconds, services.floor
        )
        self.maintenance = LogMaintenance(
            name,
            log,
            self.writer,
            services.rounds,
            now_ms,
            server.flush_seconds,
            self.work.set,
            demand,
        )
        self.upkeep = KeyUpkeep(name, log, self.maintenance)

    async def run(self) -> None:
        """Write what is queued until cancelled."""
        writer = self.writer
        self.work.set()
        if self.log.segments.outlived:
            await self._expire_beside()
        while True:
            await self.work.wait()
            while writer.awaits_more:
                with trio.move_on_at(writer.write_by):
                    await self.work.wait()
            with self._services.rounds.open():
                self._write()
            if writer.awaits_mark:
                await self.maintenance.mark()
            await self._make_safe()
            if writer.take_rolled():
                if self._tier is not None:
                    self._tier.changed()
                await self._expire_beside()
            if writer.is_waiting:
                await trio.sleep(FULL_DISK_SECONDS)
                if self.log.flushing.obstacle:
                    await self.maintenance.flush()
                self.work.set()

    async def _make_safe(self) -> None:
        """Flush what waits for that, also where a store has confirmed until now."""
        if self._waits_for_flush:
            await self.maintenance.flush()
        if self._leaves_store:
            await self.maintenance.leave_store()
            self._enter_store()  # where that has changed meanwhile

    async def _expire_beside(self) -> None:
        """Drop old segments in a task of its own: what is published meanwhile does not wait."""
        supervisor = self._services.supervisor
        if supervisor is None:
            await self._expire_once()
        elif not self._expires:
            self._expires = True
            supervisor.start_once("dropping old segments", self._expire_once, self.name)

    async def _expire_once(self) -> None:
        try:
            has_begun = await self._leave_segment()
        finally:
            self._expires = False  # a segment that begins from now on is not seen for certain
        await self.expire()
        if has_begun:
            await self._expire_beside()

    async def _leave_segment(self) -> bool:
        """Have waiters leave the segments before the newest, which are dropped then.

        Returns:
            Whether another segment has begun meanwhile.
        """
        newest = self.log.segments.shown[-1]
        for _ in self._waiters.leave_segment():
            await trio.lowlevel.checkpoint()
        return not self.log.is_closed and self.log.segments.shown[-1] is not newest

    @property
    def _waits_for_flush(self) -> bool:
        return self.log.commits_on_flush and not self.log.flushing.is_flushed

    def published(self) -> None:
        """Something is queued: it is written with the round, or by the task when more has come."""
        rounds = self._services.rounds
        if self.writer.awaits_more or not rounds.at_end(self.write_in_round):
            self.work.set()

    def write_in_round(self) -> None:
        """Write without a turn of the task, which costs as much; it does what may take time."""
        writer, log = self.writer, self.log
        if writer.state is not WriterState.WAITING:  # then the task tries, now and then
            self._write()
        is_waiting = writer.awaits_mark or writer.state is WriterState.WAITING
        if is_waiting or writer.has_rolled or log.commits_on_flush:
            self.work.set()

    def _write(self) -> None:
        flushing, log, tier = self._services.flushing, self.log, self._tier
        if log.awaits_store and tier is not None and not tier.may_write(self):
            return
        if self.writer.write() and flushing is not None:
            flushing.wrote(self)
        if log.awaits_store and tier is not None:
            tier.wrote(self)

    def stored(self, next_offset: int, batch: int) -> None:
        """The tier has all chunks before an offset, and all batches up to a number."""
        if self.log.is_closed:
            return
        with self._services.rounds.open():
            self.log.commit_to(next_offset)
            self.writer.settle_batches(batch)
        if self.writer.has_rolled or self._leaves_store:
            self.work.set()

    @property
    def _leaves_store(self) -> bool:
        """It is to confirm without the tier again, and nothing waits for that any more."""
        log = self.log
        is_done = log.policy.confirms_in_store or self.writer.awaits_store
        return log.awaits_store and not is_done

    def _enter_store(self) -> None:
        """Confirm through the tier, if that is wanted."""
        log, tier = self.log, self._tier
        if log.policy.confirms_in_store and not log.awaits_store and tier is not None:
            tier.confirm_in_store(self)
            self.work.set()

    # -- work on its files

    async def expire(self) -> None:
        """Drop segments that have outlived the stream's limits."""
        before = self.log.segments.kept_from
        await self.maintenance.expire()
        if self._tier is not None and self.log.segments.kept_from != before:
            self._tier.changed()

    async def truncate(self, spec: OffsetSpec, check: Check = permitted) -> int:
        """See `Stream.truncate`.

        Raises:
            Stopped, StorageError: see `LogMaintenance.truncate`.
            Refused: it is done, and the tier does not know it for long.
        """
        first = await self.maintenance.truncate(spec, check)
        if self._tier is not None:
            self._tier.changed()
            await self._tier.truncated(self)
        return first

    async def build_index(self, segment: Segment) -> bool:
        """Give a segment its filter index; whether it is that of a file."""
        try:
            return await self.maintenance.build_index(segment)
        finally:
            if self._services.fetcher is not None:
                self._services.fetcher.index_loaded()
            if self._tier is not None:
                self._tier.index_made()

    async def seal(self) -> None:
        """Begin a new segment, unless the newest one is empty."""
        await self.maintenance.flush(seals=True)
        self.work.set()

    async def follow(self, manifest: Manifest, tracking: Callable[[Tracking], Tracking]) -> bool:
        """Show readers what a store has of it; see `LogMaintenance.follow`.

        Args:
            manifest: what it has.
            tracking: gives what is known then, of what is known now.
        """
        self._rest_on(Marks(manifest.marked, manifest.next_offset))
        log = self.log
        return await self.maintenance.follow(
            lambda: log.follow(manifest, tracking(log.journal.tracking))
        )

    async def follow_tail(self, chunks: Sequence[TailChunk], life: str, marks: Marks) -> bool:
        """Show what a store has behind the manifest; see `LogMaintenance.follow`."""
        self._rest_on(marks)
        return await self.maintenance.follow(lambda: self.log.follow_tail(chunks, life))

    def _rest_on(self, marks: Marks) -> None:
        self.log.stored.note_marks(marks)
        assert self.log.stored.marks is not None  # noqa: S101 - as it is
        self.standing.rest_on(*self.log.stored.marks)

    # -- keys, see key_upkeep.py

    def want_keys(self) -> None:
        """Have the key indexes made that are missing, soon."""
        self.upkeep.look_again()
        if self.log.policy.key_properties:
            self.log.indexes.request_keys()

    async def load_keys(self, segment: Segment) -> None:
        """Look at the key file of a segment where nobody has, so that `keys_of` need not.

        Raises:
            NoTierError: it is in a tier, and this server knows none.
        """
        try:
            await self.upkeep.load(segment)
        except ColdError as error:
            demand = self._demand()
            try:
                await demand.fetch(error)
            finally:
                demand.stop()
            await self.load_keys(segment)

    def set_policy(self, policy: LogPolicy) -> None:
        """Keep to other limits from the next chunk on."""
        before = self.log.policy.key_properties
        self.writer.set_policy(policy)
        self._enter_store()
        if self._leaves_store:
            self.work.set()
        if policy.key_properties != before:
            self.upkeep.properties_changed()
            self.want_keys()

    # -- the end

    @property
    def is_idle(self) -> bool:
        """Nothing would be missed if it was closed."""
        writer = self.writer
        # Not waiting, failed, or about to be deleted.
        return not self._waiters and writer.is_settled and writer.state is WriterState.WRITING

    async def close(self) -> Closed:
        """Close it; nothing is written any more.

        A flush that failed, or fails now, is not tried again: the system may have dropped what it
        could not write, and would report success the next time.
        """
        log, writer = self.log, self.writer
        writer.stop()
        await self.maintenance.stop()
        self.running.cancel()
        figures = LogFigures.of(log)
        self._traffic.log_closed()
        try:
            if writer.failure is None:
                await threads.in_thread(log.close)
                return Closed(figures)
            closed = Closed(figures, writer.failure, is_final=True)
        except SegmentsError as error:
            is_final = not (isinstance(error, StorageError) and error.is_temporary)
            advice = "; look at the disk, then restart the server" if is_final else ""
            closed = Closed(figures, f"{error}{advice}", is_final)
        except Exception as error:  # a bug: nobody may wait for it for ever
            logger.exception("stream %s: its log cannot be closed", self.name)
            closed = Closed(figures, str(error))
        log.abandon()  # nothing was done where there is no thread
        return closed

    async def stop(self) -> None:
        """Return when nothing is done with its files any more, nor ever will be."""
        self.writer.stop()
        await self.maintenance.stop()

    def remove(self, reason: Reason) -> None:
        """The stream is gone, see Stream.remove: its files are released."""
        self.running.cancel()
        self.writer.remove(reason)
        self.log.abandon()
        self.log.stored.forget_cold()
