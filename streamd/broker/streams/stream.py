"""A stream, as connections see it: publish to it, wait for more, change its settings.

Theory of operation. A stream whose log nobody needs has none in memory: no descriptors, no task.
The log is opened when somebody wants it and closed again when nobody has for a while
(log_keeper.py):

    state        the log                     leaves it
    CLOSED       is not in memory            `ready`, or a message that is published
    OPENING      is being opened             OPEN; UNAVAILABLE when that fails, CLOSED when the disk
                                             is full
    OPEN         is written and read         `close`, by the keeper, while nothing holds it
    CLOSING      is being closed             CLOSED
    UNAVAILABLE  cannot be opened            `ready` tries again after a while
    GONE         its stream was deleted      never

Consumers hold the log open (`hold`, `release`, `opened`). Publishers do not: what is published
while the log is not open waits in `_early` and is written once it is; so do offsets that are
stored, in `_early_offsets`.

While it is open three parts do the work, each knows only those below it:

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

import errno
import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from enum import Enum
from typing import NamedTuple, Protocol, TypeVar

import trio

from segments import (
    ChunkMatcher,
    Log,
    OffsetSpec,
    Reader,
    SegmentsError,
    Start,
    StorageError,
)
from segments.errors import FULL_DISK
from segments.marks import new_life
from segments.policy import LogPolicy
from segments.segment import Segment
from segments.store.cache import ColdError
from segments.store.manifest import Manifest
from segments.tracking import Tracking
from streamd.broker import threads
from streamd.broker.catalog.writer import Check, permitted
from streamd.broker.declared.filter_contract import FilterContract
from streamd.broker.declared.standing_selectors import StandingSelector, StandingSelectors
from streamd.broker.read_only import ReadOnlyError
from streamd.broker.streams.fetcher import Demand, Fetcher
from streamd.broker.streams.key_upkeep import KeyUpkeep, Progress, TableMaker
from streamd.broker.streams.log_figures import NO_FIGURES, LogFigures
from streamd.broker.streams.log_maintenance import LogMaintenance, Stopped
from streamd.broker.streams.log_writer import LogWriter, WriterState
from streamd.broker.streams.publication import PendingEntries, queued_size
from streamd.broker.streams.waiters import Waiters
from streamd.broker.supervisor import Supervisor
from streamd.broker.traffic import StreamTraffic, Traffic
from streamd.config import FULL_DISK_SECONDS, QUEUE_BYTES
from streamd.net.rounds import Rounds
from streamd.net.wakeup import Wakeup
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_RETRY_SECONDS = 5.0  # before a log that could not be opened is tried again


def _is_full(error: Exception) -> bool:
    if isinstance(error, StorageError):
        return error.is_full
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


class StreamState(Enum):
    """See the table above."""

    CLOSED = "closed"
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    UNAVAILABLE = "unavailable"
    GONE = "gone"


class LogStore(Protocol):
    """Where the logs of streams come from."""

    async def open_log(self, stream: "Stream") -> Log:
        """The log of a stream, opened beside the event loop.

        Raises:
            SegmentsError, OSError: it cannot be opened.
            Refused: the stream is gone.
        """


class LogUse(Protocol):
    """Hears how logs are used, to decide which ones to close."""

    def opened(self, stream: "Stream") -> None:
        """The log of a stream was opened."""

    def used(self, stream: "Stream") -> None:
        """The log of a stream is needed, or was."""


class FlushSchedule(Protocol):
    """Decides when streams are flushed."""

    def wrote(self, stream: "Stream") -> None:
        """Something was written to a stream that is not flushed."""


class KeySchedule(Protocol):
    """Decides whose keys are indexed when."""

    def keys_requested(self, stream: "Stream") -> None:
        """A stream, whose log is open, has keys to index."""


class TierUse(Protocol):
    """What becomes of the stream's sealed segments in an object store."""

    @property
    def fence(self) -> str:
        """Why the stream takes no messages; empty while it does."""

    def policy_changed(self, policy: LogPolicy) -> None:
        """The stream has these limits from now on."""

    def log_opened(self, log: Log) -> None:
        """Its log is open."""

    def log_closes(self) -> None:
        """Its log is about to be closed, or the stream is gone."""

    def changed(self) -> None:
        """A segment was sealed, or some were dropped."""

    def index_made(self) -> None:
        """A filter index was made, or cannot be."""


class StreamServices(NamedTuple):
    """The parts of a server that its streams work with.

    Attributes:
        now_ms: the wall clock, in ms since 1970.
        rounds: streams write at the end of each.
        flushing: hears of every write; None where nobody has to.
        store: where logs come from; None for a stream whose log is attached by hand.
        keeper: hears how logs are used; None where none is ever closed.
        supervisor: runs the tasks of streams; None where somebody else does.
        keys: has keys indexed; None where nobody does.
        traffic: of the server; None where nobody asks for it.
        fetcher: fetches what is read of cold segments; None where nothing is cold.
        tier: has sealed segments uploaded; None where nobody does.
        is_read_only: another server writes it; nobody may change anything here.
    """

    now_ms: Callable[[], int]
    rounds: Rounds
    flushing: FlushSchedule | None = None
    store: LogStore | None = None
    keeper: LogUse | None = None
    supervisor: Supervisor | None = None
    keys: KeySchedule | None = None
    traffic: Traffic | None = None
    fetcher: Fetcher | None = None
    tier: TierUse | None = None
    is_read_only: bool = False


class Stream:
    """One stream of the server.

    Args:
        name: for messages to people.
        services: of the server.
        contract: promises about its filter values, None when nothing has to be done for it.
        standing: selectors that groups have registered.

    Attributes:
        name, contract: see above.
        state: see the table above.
        standing: the registered selectors.
        waiters: consumers at the end of it.
        traffic: counts what goes through it.
    """

    def __init__(
        self,
        name: Name,
        services: StreamServices,
        contract: FilterContract | None = None,
        standing: Iterable[StandingSelector] = (),
    ) -> None:
        self.name = name
        self.contract = contract
        self.state = StreamState.CLOSED
        self.standing = StandingSelectors(standing)
        self.waiters = Waiters()
        self.traffic = StreamTraffic(services.traffic or Traffic())
        self._services = services
        self._tier = services.tier
        self._is_read_only = services.is_read_only
        self._log: Log | None = None
        self._writer: LogWriter | None = None
        self._maintenance: LogMaintenance | None = None
        self._upkeep: KeyUpkeep | None = None
        self._keys_changed = False
        self._early: deque[PendingEntries] = deque()
        self._early_bytes = 0
        self._early_offsets = Tracking()
        self._num_holds = 0
        self._figures: LogFigures | None = None
        self._reason = ""  # why it is unavailable
        self._retry_at = 0.0
        self._awaits_turn = self._disk_is_full = self._tries_again = self._expires = False
        self._changed = trio.lowlevel.ParkingLot()
        self._running = trio.CancelScope()
        self._work = Wakeup()

    def __repr__(self) -> str:
        return f"<stream {self.name}, {self.state.value}>"

    # -- opening and closing

    @property
    def log(self) -> Log:
        """Its log, which is open: after `ready` until the next wait, or while it is held."""
        assert self._log is not None, f"the log of {self.name} is {self.state.value}"  # noqa: S101
        return self._log

    @property
    def is_open(self) -> bool:
        """Its log can be used."""
        return self.state is StreamState.OPEN

    async def ready(self) -> None:
        """Return when its log is open; it stays open until the next wait, or while it is held.

        Raises:
            Refused: it cannot be opened, or the stream is gone.
        """
        while self.state is not StreamState.OPEN:
            if self.state is StreamState.GONE:
                raise Refused(Reason.NOT_FOUND, self.name)
            self._want_log()
            if self.state is StreamState.UNAVAILABLE:
                raise Refused(Reason.NOT_AVAILABLE, self._reason)
            await self._changed.park()
            if self.state is StreamState.CLOSED and self._disk_is_full:
                raise Refused(Reason.PRECONDITION_FAILED, FULL_DISK)
        if self._services.keeper is not None:
            self._services.keeper.used(self)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Log]:
        """Its log, open as long as the block lasts.

        Raises:
            Refused: see `ready`.
        """
        self.hold()
        try:
            await self.ready()
            yield self.log
        finally:
            self.release()

    def hold(self) -> None:
        """Keep the log open, once it is, until `release`."""
        self._num_holds += 1

    def release(self) -> None:
        """It is needed no longer by one that called `hold`."""
        self._num_holds -= 1
        if self._services.keeper is not None:
            self._services.keeper.used(self)

    def _want_log(self) -> None:
        """Begin to open the log where that has not begun."""
        if self.state is StreamState.CLOSED or self._may_try_again:
            self.state, self._awaits_turn = StreamState.OPENING, False
            assert self._services.supervisor is not None  # noqa: S101 - else it is attached
            self._services.supervisor.start_once("opening a log", self._open, self.name)

    @property
    def _may_try_again(self) -> bool:
        """Its log could not be opened, and that was a while ago."""
        return self.state is StreamState.UNAVAILABLE and trio.current_time() >= self._retry_at

    async def _open(self) -> None:
        store = self._services.store
        assert store is not None  # noqa: S101 - as above
        try:
            with trio.CancelScope(shield=True):
                log = await store.open_log(self)
        except (SegmentsError, OSError, Refused) as error:
            if _is_full(error) and self.state is not StreamState.GONE:
                self._wait_for_disk(error)
            else:
                self._cannot_open(str(error))
        except BaseException as error:
            self._cannot_open(f"a bug: {error}")
            raise
        else:
            self.attach(log)
            supervisor = self._services.supervisor
            assert supervisor is not None  # noqa: S101 - it runs this
            supervisor.start("writing a stream", self.run, self.name, self._running)
        finally:
            self._changed.unpark_all()

    def _wait_for_disk(self, error: Exception) -> None:
        """There is no room for its files: what was published waits, as it does in an open log."""
        if not self._disk_is_full:
            logger.error("stream %s: %s; its publishers wait", self.name, error)
        self._disk_is_full, self.state = True, StreamState.CLOSED
        if self._has_early and not self._tries_again:
            self._tries_again = True
            supervisor = self._services.supervisor
            assert supervisor is not None  # noqa: S101 - it runs this
            supervisor.start("waiting for room on the disk", self._try_again, self.name)

    async def _try_again(self) -> None:
        await trio.sleep(FULL_DISK_SECONDS)
        self._tries_again = False
        self._want_log()

    def _cannot_open(self, reason: str, *, is_final: bool = False) -> None:
        if self.state is StreamState.GONE:
            return  # deleted while it was opened
        logger.error("stream %s is not available: %s", self.name, reason)
        self.state, self._reason = StreamState.UNAVAILABLE, reason
        self._retry_at = math.inf if is_final else trio.current_time() + _RETRY_SECONDS
        self._refuse_early(Reason.NOT_AVAILABLE)

    @property
    def _has_early(self) -> bool:
        return bool(self._early) or self._early_offsets.has_pending

    def _refuse_early(self, reason: Reason) -> None:
        self._early_offsets = Tracking()  # nobody is told
        early, self._early, self._early_bytes = self._early, deque(), 0
        for publisher, entries in early:
            try:
                publisher.refuse(entries.publishing_ids, reason)
            except Exception:  # a bug of its connection: it stays there
                logger.exception("stream %s: a publisher cannot be refused", self.name)

    def attach(self, log: Log) -> None:
        """Take a log that is open; what was published before is written."""
        services = self._services
        self._log = log
        if log.manifest is not None:
            self.standing.rest_on(log.manifest)
        self.traffic.log_opened(log)
        self._writer = LogWriter(
            self.name,
            log,
            services.now_ms,
            self.standing,
            self.waiters,
            self.traffic.server.confirm_seconds,
        )
        self._maintenance = LogMaintenance(
            self.name,
            log,
            self._writer,
            services.rounds,
            services.now_ms,
            self.traffic.server.flush_seconds,
            self._work.set,
            self.demand,
        )
        self._upkeep = KeyUpkeep(self.name, log, self._maintenance)
        if self._keys_changed:
            self._keys_changed = False
            self._upkeep.properties_changed()
        self._running = trio.CancelScope()
        self.state, self._disk_is_full = StreamState.OPEN, False
        log.outlive(services.now_ms())  # time has passed
        offsets, self._early_offsets = self._early_offsets.offsets(), Tracking()
        for reference, offset in offsets.items():
            self._writer.store_offset(reference, offset)
        early, self._early, self._early_bytes = self._early, deque(), 0
        for pending in early:
            self.publish(pending)
        if services.keeper is not None:
            services.keeper.opened(self)
        if self._tier is not None:
            self._tier.log_opened(log)
        self.want_keys()
        self._changed.unpark_all()

    @property
    def is_idle(self) -> bool:
        """Its log is open, and nothing would be missed if it was closed."""
        writer = self._writer
        return (
            self.state is StreamState.OPEN
            and writer is not None
            and not self._num_holds
            and not self.waiters
            and writer.is_settled
            and writer.state is WriterState.WRITING  # not waiting, failed, or about to be deleted
        )

    @property
    def num_published(self) -> int:
        """Groups of entries and stored offsets since it was opened: it grows while it is used."""
        return self._writer.num_asked if self._writer is not None else 0

    async def close(self) -> None:
        """Close the log of an idle stream; it is opened again when it is wanted."""
        if not self.is_idle:
            return
        maintenance, writer, log = self._maintenance, self._writer, self.log
        assert maintenance is not None and writer is not None  # noqa: S101, PT018 - it is open
        self.state = StreamState.CLOSING
        if self._tier is not None:
            self._tier.log_closes()
        with trio.CancelScope(shield=True):
            await maintenance.stop()
            self._running.cancel()
            self._figures = LogFigures.of(log)
            # A flush that failed meanwhile, or fails now, is not tried again: the system may have
            # dropped what it could not write, and would report success the next time.
            failure, is_final = writer.failure or "", writer.failure is not None
            try:
                if is_final:
                    log.abandon()
                else:
                    await threads.in_thread(log.close)
            except SegmentsError as error:
                is_final = not (isinstance(error, StorageError) and error.is_temporary)
                advice = "; look at the disk, then restart the server" if is_final else ""
                failure = f"{error}{advice}"
                log.abandon()  # nothing was done where there is no thread
            except Exception as error:  # a bug: nobody may wait for it for ever
                logger.exception("stream %s: its log cannot be closed", self.name)
                failure = str(error)
                log.abandon()
        self.traffic.log_closed()
        self._log = self._writer = self._maintenance = self._upkeep = None
        self.state = StreamState.CLOSED
        if failure:
            self._cannot_open(failure, is_final=is_final)
        self._changed.unpark_all()
        if self._has_early:
            self._want_log()

    def waits_for_turn(self) -> None:
        """The files of a new stream are made; the catalog does not have them yet.

        From here on the stream can be deleted: its files are not touched by their names any more,
        and its turn will find that it is gone.
        """
        self._awaits_turn = True
        self._changed.unpark_all()

    async def _steady(self) -> None:
        """Return when no thread opens or closes the log."""
        while self.state is StreamState.CLOSING or (
            self.state is StreamState.OPENING and not self._awaits_turn
        ):
            await self._changed.park()

    # -- what it is like

    @property
    def failed(self) -> str | None:
        """Why it takes no more messages, None while it does."""
        if self.state is StreamState.UNAVAILABLE:
            return self._reason
        if self.state is StreamState.GONE:
            return "it was deleted"
        if self._fence:
            return self._fence
        return self._writer.failure if self._writer is not None else None

    @property
    def _fence(self) -> str:
        """Another server writes it now; empty while this one does."""
        return "" if self._tier is None else self._tier.fence

    @property
    def unavailable(self) -> str | None:
        """Why its log cannot be opened, None while it can, or when that is to be tried again."""
        is_over = self.state is StreamState.UNAVAILABLE and not self._may_try_again
        return self._reason if is_over else None

    @property
    def alarm(self) -> str:
        """Why it takes no messages at the moment; empty while it does."""
        known = FULL_DISK if self._disk_is_full else ""
        return self.failed or (known if self._writer is None else self._writer.shortage)

    @property
    def figures(self) -> LogFigures | None:
        """Its size, offsets and times; None while nobody has looked since the server's start."""
        return LogFigures.of(self._log) if self._log is not None else self._figures

    def reader(self, start: OffsetSpec, matcher: ChunkMatcher | None) -> Reader:
        """A reader of its log, which is open, for a consumer.

        Args:
            start: where to begin.
            matcher: which chunks to hand out, None for all.

        Raises:
            ColdError: something has to be fetched before.
            StorageError: it cannot be read.
        """
        reader = Reader(self.log, self.log.find(start), matcher)
        asked = start.value if start.start is Start.OFFSET else 0
        gap = self.log.gaps.around(asked)
        if gap is not None and asked > gap.start:
            logger.warning(
                "stream %s: a consumer asks for offset %d; offsets %d to %d were given out before "
                "a machine went down, and are lost: it begins with offset %d",
                *(self.name, asked, gap.start, asked - 1, gap.end),
            )
        return reader

    def lag_seconds(self, reader: Reader, next_offset: int) -> float:
        """How old the first message is that a consumer has not reached; 0 when it has all.

        An upper bound without a look at the disk: not older than the last chunk that was read, the
        first one of its segment, and the end of the last pause in writing before it. Its log is
        open.
        """
        if next_offset >= self.log.committed_offset:
            return 0.0
        assert self._writer is not None  # noqa: S101 - it is open
        since_ms = max(reader.reached_ms, self._writer.written_ms(next_offset))
        return max(0, self._services.now_ms() - since_ms) / 1_000

    def know_empty(self) -> None:
        """It is new: nothing was ever stored in it, and nobody knows of an offset in it."""
        life = "" if self._is_read_only else new_life()
        self._figures = NO_FIGURES._replace(life=life)

    def know(self, figures: LogFigures) -> None:
        """What it has while its log is not open."""
        self._figures = figures

    @property
    def is_known(self) -> bool:
        """Somebody has looked at its log since the server's start, or it is new."""
        return self._log is not None or self._figures is not None

    async def read_figures(self) -> LogFigures:
        """Its size, offsets and times; its log is opened where nobody knows.

        Raises:
            Refused: it cannot be opened.
        """
        known = self.figures
        if known is not None and not self._early:
            return known
        async with self.opened() as log:
            await self.settled()
            return LogFigures.of(log)

    def set_policy(self, policy: LogPolicy) -> None:
        """Keep to other limits from the next chunk on."""
        if self._tier is not None:
            self._tier.policy_changed(policy)
        if self._writer is None or self._upkeep is None:
            self._keys_changed = True  # perhaps: it is looked at when the log is opened
            return
        before = self.log.policy.key_properties
        self._writer.set_policy(policy)
        if policy.key_properties != before:
            self._upkeep.properties_changed()
            self.want_keys()

    # -- publishing

    def check_writable(self) -> None:
        """Raise Refused when a publisher cannot be declared now."""
        if self._is_read_only:
            raise ReadOnlyError
        if self.failed is not None:
            raise Refused(Reason.NOT_AVAILABLE, self.failed)
        if self.alarm:
            raise Refused(Reason.PRECONDITION_FAILED, self.alarm)

    def publish(self, pending: PendingEntries) -> None:
        """Queue entries; their publisher is told when they are stored."""
        writer = self._writer
        if self._is_read_only:
            pending.publisher.refuse(pending.entries.publishing_ids, Reason.PRECONDITION_FAILED)
        elif self._tier is not None and self._tier.fence:
            pending.publisher.refuse(pending.entries.publishing_ids, Reason.NOT_AVAILABLE)
        elif writer is None or self.state is not StreamState.OPEN:
            self._publish_early(pending)
        elif writer.publish(pending) and not self._services.rounds.at_end(self._write_in_round):
            self._work.set()

    def _publish_early(self, pending: PendingEntries) -> None:
        self._want_log()
        if self.state is StreamState.GONE:
            pending.publisher.refuse(pending.entries.publishing_ids, Reason.NOT_FOUND)
        elif self.state is StreamState.UNAVAILABLE:
            pending.publisher.refuse(pending.entries.publishing_ids, Reason.NOT_AVAILABLE)
        else:
            self._early.append(pending)
            self._early_bytes += queued_size(pending.entries)

    @property
    def num_queued(self) -> int:
        """Groups of entries that wait to be written."""
        return len(self._early) + (self._writer.num_queued if self._writer is not None else 0)

    @property
    def is_crowded(self) -> bool:
        """More must not be queued, see `room`."""
        writer = self._writer
        if writer is not None:
            return writer.is_crowded
        return self._early_bytes > (0 if self._disk_is_full else QUEUE_BYTES)

    async def room(self) -> None:
        """Return when more may be queued: at once unless the disk is slow or full."""
        while self._writer is None and self.is_crowded:
            await self._changed.park()
        if self._writer is not None:
            await self._writer.room()

    async def settled(self) -> None:
        """Return when everything received so far is stored or refused, or cannot be for now."""
        while self._has_early and not self._disk_is_full:
            self._want_log()
            await self._changed.park()
        if self._writer is not None:
            await self._writer.settled()

    def store_offset(self, reference: str, offset: int) -> None:
        """Remember a consumer's offset; on disk with the writer's next turn.

        Whoever asks from now on gets it, also where the log has to be opened first.

        Raises:
            ValueError: the reference cannot be stored.
        """
        if self._writer is not None and self.state is StreamState.OPEN:
            self._writer.store_offset(reference.encode(), offset)
            self._work.set()
            return
        self._want_log()
        if self.state is not StreamState.UNAVAILABLE:
            self._early_offsets.store_offset(reference.encode(), offset)

    async def set_offset(self, reference: str, offset: int) -> None:
        """Store a consumer's offset; as safe as a confirmed message on return. It is held open.

        Raises:
            ValueError: the reference cannot be stored.
            Refused: the stream was deleted meanwhile; or the disk is full, or the stream has
                failed: it may be unknown after a restart.
        """
        self.store_offset(reference, offset)
        await self.settled()
        self._check_there()
        if self.alarm:
            raise Refused(Reason.NOT_AVAILABLE, self.alarm)

    async def delete_offset(self, reference: str) -> bool:
        """Forget a stored offset; whether there was one. On the device on return. It is held open.

        Raises:
            Refused: the stream was deleted meanwhile; or the disk is full, or the stream has
                failed: it may be known again after a restart.
        """
        if not self.log.delete_offset(reference.encode()):
            return False
        await self.flush()
        self._check_there()
        if self.failed or self._log is None or self._log.awaits_flush:
            raise Refused(Reason.NOT_AVAILABLE, self.alarm or "the disk took nothing; try again")
        return True

    def _check_there(self) -> None:
        if self.state is StreamState.GONE:
            raise Refused(Reason.NOT_FOUND, self.name)

    # -- writing

    async def run(self) -> None:
        """Write what is queued until cancelled."""
        writer = self._writer
        assert writer is not None  # noqa: S101 - it runs while the log is open
        self._work.set()
        if self.log.outlived:
            await self._expire_beside()
        while True:
            await self._work.wait()
            with self._services.rounds.open():
                self._write()
            if writer.awaits_mark and self._maintenance is not None:
                await self._maintenance.mark()
            if self._waits_for_flush:
                await self.flush()
            if writer.take_rolled():
                if self._tier is not None:
                    self._tier.changed()
                await self._expire_beside()
            if writer.is_waiting:
                await trio.sleep(FULL_DISK_SECONDS)
                if self.log.awaits_flush:
                    await self.flush()
                self._work.set()

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
        newest = self._log and self._log.segments[-1]
        for _ in self.waiters.leave_segment():
            await trio.lowlevel.checkpoint()
        return self._log is not None and self._log.segments[-1] is not newest

    @property
    def _waits_for_flush(self) -> bool:
        return self.log.commits_on_flush and not self.log.is_flushed

    def _write_in_round(self) -> None:
        """Write without a turn of the task, which costs as much; it does what may take time."""
        writer, log = self._writer, self._log
        if writer is None or log is None:
            return  # closed or deleted within the round
        if writer.state is not WriterState.WAITING:  # then the task tries, now and then
            self._write()
        is_waiting = writer.awaits_mark or writer.state is WriterState.WAITING
        if is_waiting or writer.has_rolled or log.commits_on_flush:
            self._work.set()

    def _write(self) -> None:
        writer, flushing = self._writer, self._services.flushing
        if writer is None or self.state is not StreamState.OPEN:
            return
        if writer.write() and flushing is not None:
            flushing.wrote(self)

    # -- work on its files; nothing where the log is not open

    async def flush(self, *, only_sealed: bool = False, with_checkpoint: bool = False) -> None:
        """Return once everything written is on the device, or the stream has failed.

        Args:
            only_sealed: leave the newest segment to the system.
            with_checkpoint: write one in any case.
        """
        if self._maintenance is not None:
            await self._maintenance.flush(only_sealed=only_sealed, with_checkpoint=with_checkpoint)

    @property
    def unflushed_bytes(self) -> int:
        """Bytes that were written and may not be on the device."""
        return self._log.unflushed_bytes if self._log is not None else 0

    @property
    def needs_upkeep(self) -> bool:
        """A segment was sealed that may not be on the device, or its journal has grown large."""
        return self._log is not None and self._log.needs_upkeep

    async def expire(self) -> None:
        """Drop segments that have outlived the stream's limits."""
        if self._maintenance is not None and self._log is not None:
            before = self._log.kept_from
            await self._maintenance.expire()
            has_dropped = self._log is not None and self._log.kept_from != before
            if self._tier is not None and has_dropped:
                self._tier.changed()

    async def truncate(self, spec: OffsetSpec, check: Check = permitted) -> int:
        """Let the log begin at the chunk that `spec` leads to; returns its first offset then.

        It is held open. Messages before are gone for good, for all readers and after a crash.

        Args:
            spec: the place.
            check: raises Refused when it is not allowed; called when nothing is waited for any
                more.

        Raises:
            Refused: it is not allowed, the stream has failed or is deleted, or the disk refuses.
        """
        maintenance = self._maintenance
        self._check_there()
        if self._is_read_only:
            raise ReadOnlyError
        if self.failed is not None or maintenance is None:
            raise Refused(Reason.NOT_AVAILABLE, self.failed or "it is not open")
        await self.settled()
        try:
            first = await maintenance.truncate(spec, check)
            if self._tier is not None:
                self._tier.changed()
            return first
        except Stopped:
            raise Refused(Reason.NOT_FOUND, self.name) from None
        except StorageError as error:
            if self.state is StreamState.GONE:  # and so are its files
                raise Refused(Reason.NOT_FOUND, self.name) from None
            raise Refused(Reason.NOT_AVAILABLE, str(error)) from error

    def take_index_requests(self) -> list[Segment]:
        """Segments that need a filter index, see indexer.py."""
        return self._log.take_index_requests() if self._log is not None else []

    async def build_index(self, segment: Segment) -> bool:
        """Give a segment its filter index; whether it is that of a file."""
        try:
            return self._maintenance is not None and await self._maintenance.build_index(segment)
        finally:
            if self._services.fetcher is not None:
                self._services.fetcher.index_loaded()
            if self._tier is not None:
                self._tier.index_made()

    # -- cold segments, see tier/fetcher.py

    def demand(self) -> Demand:
        """What a reader of it wants from the tier, nothing as yet."""
        assert self._services.fetcher is not None  # noqa: S101 - or nothing would be cold
        return self._services.fetcher.demand(self)

    async def patiently(
        self, work: Callable[..., Result], *arguments: object, seconds: float = math.inf
    ) -> Result:
        """What some work on its log gives that does not wait; see `Fetcher.patiently`.

        Raises:
            AwayError: it takes longer.
            NoTierError: it needs a cold segment, and this server knows no store.
            StorageError: the stream was deleted meanwhile.
        """
        try:
            return work(*arguments)
        except ColdError:
            assert self._services.fetcher is not None  # noqa: S101 - as above
            fetcher = self._services.fetcher
            return await fetcher.patiently(self, work, *arguments, seconds=seconds)

    # -- the tier, see tier/stream_tier.py

    async def keep_manifest(self, manifest: Manifest) -> bool:
        """Write the copy of what a store has down; whether it is on the device."""
        return self._maintenance is not None and await self._maintenance.keep_manifest(manifest)

    async def evict(self, segments: Collection[Segment]) -> None:
        """Remove files of segments that a store has."""
        if self._maintenance is not None:
            await self._maintenance.evict(segments)

    async def seal(self) -> None:
        """Begin a new segment, unless the newest one is empty."""
        if self._maintenance is not None:
            await self._maintenance.flush(seals=True)
            self._work.set()

    async def follow(self, manifest: Manifest, tracking: Callable[[Tracking], Tracking]) -> bool:
        """Show what a store has of it to readers; see `LogMaintenance.follow`."""
        if self._maintenance is None:
            return False
        self.standing.rest_on(manifest)
        return await self._maintenance.follow(manifest, tracking)

    # -- keys, see key_upkeep.py

    @property
    def key_properties(self) -> tuple[str, ...]:
        """The properties whose values are keys; its log is open."""
        return self.log.policy.key_properties

    def want_keys(self) -> None:
        """Have the key indexes made that are missing, where its log is open."""
        if self._log is not None and self._upkeep is not None:
            self._upkeep.look_again()
            self._log.request_keys()

    def keys_requested(self) -> None:
        """Its log has keys to index."""
        if self._services.keys is not None:
            self._services.keys.keys_requested(self)

    async def load_keys(self, segment: Segment) -> None:
        """Look at the key file of a segment where nobody has, so that `keys_of` need not.

        Raises:
            NoTierError: it is in a tier, and this server knows none.
        """
        try:
            if self._upkeep is not None:
                await self._upkeep.load(segment)
        except ColdError as error:
            demand = self.demand()
            try:
                await demand.fetch(error)
            finally:
                demand.stop()
            await self.load_keys(segment)

    async def look_at_keys(self) -> None:
        """Look at key files that nobody has looked at, so that `figures` can tell of them.

        Raises:
            Refused: its log cannot be opened.
        """
        known = self.figures
        if known is None or known.keys is None or not known.keys.num_unknown:
            return
        async with self.opened():
            if self._upkeep is not None:
                await self._upkeep.look_at_some()
                self.want_keys()

    async def index_keys(self, maker: TableMaker) -> Progress:
        """Do the next piece of work on its key indexes."""
        return Progress.DONE if self._upkeep is None else await self._upkeep.step(maker)

    # -- the end

    async def stop(self) -> None:
        """Return when nothing is done with its files any more, nor ever will be."""
        await self._steady()
        if self._writer is not None and self._maintenance is not None:
            self._writer.stop()
            await self._maintenance.stop()

    def remove(self) -> None:
        """The stream is deleted: nobody waits for it any longer, its files are released."""
        self.state = StreamState.GONE
        if self._tier is not None:
            self._tier.log_closes()
        self.traffic.server.stream_is_gone(self.traffic)
        self._running.cancel()
        if self._writer is not None:
            self._writer.remove()
        self._refuse_early(Reason.NOT_FOUND)
        self.waiters.clear()
        if self._log is not None:
            self._log.abandon()
            self._log.forget_cold()
        self._changed.unpark_all()

    async def shut_down(self) -> None:
        """The server stops: write what is pending and release the files.

        Raises:
            SegmentsError: the system refused.
        """
        await self.stop()
        if self._log is not None:
            await threads.in_thread(self._log.close)
