"""A stream, as connections see it: publish to it, wait for more, change its settings.

LogLife         when its log is in memory                         log_life.py
EarlyMessages   what is published while it is not                 early_messages.py
OpenLog         who writes to it, and works on its files          open_log.py
"""

import logging
import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import trio

from segments import ChunkMatcher, Log, OffsetSpec, Reader, Start, StorageError
from segments.errors import FULL_DISK
from segments.policy import LogPolicy
from segments.store.cache import ColdError
from streamd.broker.catalog.writer import Check, permitted
from streamd.broker.declared.filter_contract import FilterContract
from streamd.broker.declared.standing_selectors import StandingSelectors
from streamd.broker.read_only import ReadOnly
from streamd.broker.streams.early_messages import EarlyMessages
from streamd.broker.streams.fetcher import Demand, Fetcher
from streamd.broker.streams.log_figures import LogFigures
from streamd.broker.streams.log_life import KeySchedule, LogLife, LogUse, StreamState
from streamd.broker.streams.log_maintenance import Stopped
from streamd.broker.streams.log_writer import Floor
from streamd.broker.streams.open_log import FlushSchedule, LogServices, OpenLog, TierUse
from streamd.broker.streams.publication import PendingEntries, Remote
from streamd.broker.streams.waiters import Waiters
from streamd.broker.supervisor import Supervisor
from streamd.broker.traffic import StreamTraffic, Traffic
from streamd.config import QUEUE_BYTES
from streamd.net.rounds import Rounds
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name

logger = logging.getLogger(__name__)

_SOON_SECONDS = 5.0
_ANSWER_SECONDS = 20.0  # clients wait 30 s

Result = TypeVar("Result")


class LogStore(Protocol):
    """Where the logs of streams come from."""

    async def open_log(self, stream: "Stream") -> Log:
        """The log of a stream, opened beside the event loop.

        Raises:
            SegmentsError, OSError: it cannot be opened.
            Refused: the stream is gone.
        """


def _nowhere() -> None:
    """All is published here."""


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
        read_only: another server writes it, and nobody may change anything here; None if not.
        floor: says when the disk has too little room; None where nobody minds.
        remote: gives what publishes to it, where another node leads it.
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
    read_only: ReadOnly | None = None
    floor: Floor | None = None
    remote: Callable[[], Remote | None] = _nowhere


class Stream:
    """One stream of the server.

    Args:
        contract: promises about its filter values, None when nothing has to be done for it.
        standing: selectors that groups have registered.

    Attributes:
        waiters: consumers at the end of it.
    """

    def __init__(
        self,
        name: Name,
        services: StreamServices,
        contract: FilterContract | None = None,
        standing: StandingSelectors | None = None,
    ) -> None:
        self.name = name
        self.contract = contract
        self.standing = standing or StandingSelectors()
        self.waiters = Waiters()
        self.traffic = StreamTraffic(services.traffic or Traffic())
        self._services, self._tier = services, services.tier
        self._log_services = LogServices(
            services.now_ms,
            services.rounds,
            services.flushing,
            services.supervisor,
            services.fetcher,
            services.tier,
            services.floor,
        )
        self._remote: Remote | None = None
        self._early = EarlyMessages(name)
        self._keys_changed = False
        self.life = LogLife(
            name,
            self._log_services,
            services.keeper,
            services.keys,
            self._early,
            partial(services.store.open_log, self) if services.store is not None else None,
            self._begin,
            self.publish,
        )

    def __repr__(self) -> str:
        return f"<stream {self.name}, {self.life.state.value}>"

    # -- its log, see `LogLife`

    @property
    def state(self) -> StreamState:
        """The state of its log."""
        return self.life.state

    @property
    def log(self) -> Log:
        """Its log, which is open: after `ready` until the next wait, or while it is held."""
        life = self.life
        assert life.opened_log, f"the log of {self.name} is {life.state.value}"  # noqa: S101
        return life.opened_log.log

    @property
    def is_open(self) -> bool:
        """Its log can be used."""
        return self.life.state is StreamState.OPEN

    async def ready(self) -> None:
        """See `LogLife.ready`."""
        await self.life.ready()

    def opened(self) -> AbstractAsyncContextManager[Log]:
        """See `LogLife.opened`."""
        return self.life.opened()

    @property
    def figures(self) -> LogFigures | None:
        """Its size, offsets and times; None while nobody has looked since the server's start."""
        return self.life.figures

    def _begin(self, log: Log) -> OpenLog:
        if log.stored.marks is not None:
            self.standing.rest_on(*log.stored.marks)
        opened = OpenLog(
            self.name,
            log,
            self._log_services,
            self.standing,
            self.waiters,
            self.traffic,
            self.demand,
        )
        if self._keys_changed:
            self._keys_changed = False
            opened.upkeep.properties_changed()
        return opened

    # -- what it is like

    @property
    def failed(self) -> str | None:
        """Why it takes no more messages, None while it does."""
        if self.life.state is StreamState.UNAVAILABLE:
            return self.life.reason
        if self.life.state is StreamState.GONE:
            return "it was deleted"
        if self._tier is not None and self._tier.fence:
            return self._tier.fence
        opened = self.life.opened_log
        return opened.writer.failure if opened is not None else None

    @property
    def alarm(self) -> str:
        """Why it takes no messages at the moment; empty while it does."""
        opened, known = self.life.opened_log, FULL_DISK if self.life.disk_is_full else ""
        return self.failed or (known if opened is None else opened.writer.shortage) or self._waits

    @property
    def _waits(self) -> str:
        """Why what was written is not confirmed at the moment; empty while it is."""
        opened, tier = self.life.opened_log, self._tier
        if tier is None or opened is None or not opened.log.awaits_store:
            return ""
        return tier.trouble

    def reader(self, start: OffsetSpec, matcher: ChunkMatcher | None) -> Reader:
        """A reader of its log, which is open, for a consumer.

        Args:
            start: where to begin.
            matcher: which chunks to hand out, None for all.

        Raises:
            ColdError: something has to be fetched before.
            StorageError: it cannot be read.
        """
        reader = Reader(self.log, self.log.segments.find(start), matcher)
        asked = start.value if start.start is Start.OFFSET else 0
        gap = self.log.segments.gaps.around(asked)
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
        since_ms = max(reader.reached_ms, self.life.held.writer.written_ms(next_offset))
        return max(0, self._services.now_ms() - since_ms) / 1_000

    async def read_figures(self) -> LogFigures:
        """Its size, offsets and times; its log is opened where nobody knows.

        Raises:
            Refused: it cannot be opened.
        """
        known = self.life.figures
        if known is not None and not len(self._early):
            return known
        async with self.opened() as log:
            await self.settled()
            return LogFigures.of(log)

    def set_policy(self, policy: LogPolicy) -> None:
        """Keep to other limits from the next chunk on."""
        if self._tier is not None:
            self._tier.policy_changed(policy)
        if self.life.opened_log is None:
            self._keys_changed = True  # perhaps: it is looked at when the log is opened
        else:
            self.life.opened_log.set_policy(policy)

    # -- publishing

    def check_writable(self) -> None:
        """Raise Refused when a publisher cannot be declared now."""
        if self._services.read_only is not None:
            raise self._services.read_only.refusal()
        if self.failed is not None:
            raise Refused(Reason.NOT_AVAILABLE, self.failed)
        if self.alarm:
            raise Refused(Reason.NOT_AVAILABLE, self.alarm)

    def publish(self, pending: PendingEntries) -> None:
        """Queue entries; their publisher is told when they are stored."""
        life, tier = self.life, self._tier
        opened = life.opened_log
        if self._services.read_only is not None:
            self._publish_elsewhere(pending, self._services.read_only.reason)
        elif tier is not None and tier.fence:
            pending.publisher.refuse(pending.entries.publishing_ids, Reason.NOT_AVAILABLE)
        elif opened is None or life.state is not StreamState.OPEN:
            self._publish_early(pending)
        elif opened.writer.publish(pending):
            opened.published()

    def _publish_elsewhere(self, pending: PendingEntries, reason: Reason) -> None:
        if self.remote is not None:
            self.remote.publish(pending)
        else:
            pending.publisher.refuse(pending.entries.publishing_ids, reason)

    def _publish_early(self, pending: PendingEntries) -> None:
        self.life.want()
        if self.life.state is StreamState.GONE:
            pending.publisher.refuse(pending.entries.publishing_ids, self.life.gone)
        elif self.life.state is StreamState.UNAVAILABLE:
            pending.publisher.refuse(pending.entries.publishing_ids, Reason.NOT_AVAILABLE)
        else:
            self._early.add(pending)

    @property
    def remote(self) -> Remote | None:
        """What has messages stored by the node that leads it; None where this one does."""
        if self._remote is None and self._services.read_only is not None:
            self._remote = self._services.remote()
        return self._remote

    @property
    def is_crowded(self) -> bool:
        """More must not be queued, see `room`."""
        if self._services.read_only is not None and self.remote is not None:
            return self.remote.is_crowded
        opened = self.life.opened_log
        if opened is not None:
            return opened.writer.is_crowded
        return self._early.num_bytes > (0 if self.life.disk_is_full else QUEUE_BYTES)

    async def room(self) -> None:
        """Return when more may be queued: at once unless the disk is slow or full."""
        if self._services.read_only is not None and self.remote is not None:
            await self.remote.room()
            return
        while self.life.opened_log is None and self.is_crowded:
            await self.life.changed()
        if self.life.opened_log is not None:
            await self.life.opened_log.writer.room()

    async def settled(self) -> None:
        """Return when everything received so far is stored or refused, or cannot be for now."""
        if self._services.read_only is not None and self.remote is not None:
            await self.remote.settled()
            return
        while self._early and not self.life.disk_is_full:
            self.life.want()
            await self.life.changed()
        if self.life.opened_log is not None:
            await self.life.opened_log.writer.settled()

    async def settled_soon(self) -> None:
        """As `settled_in_time`, for those who look: not at all where it is known to take long.

        Raises:
            Refused: the store takes long; says why, if that is known.
        """
        await self.settled_in_time(0 if self._waits else _SOON_SECONDS)

    async def settled_in_time(self, seconds: float = _ANSWER_SECONDS) -> None:
        """As `settled`, for those who are to be answered, however long a store is away.

        Raises:
            Refused: the store takes longer; says why, if that is known.
        """
        with trio.move_on_after(seconds):
            return await self.settled()
        raise Refused(Reason.NOT_AVAILABLE, self._waits or "confirms wait for the tier; try again")

    def store_offset(self, reference: str, offset: int) -> None:
        """Remember a consumer's offset; on disk with the writer's next turn.

        Whoever asks from now on gets it, also where the log has to be opened first.

        Raises:
            ValueError: the reference cannot be stored.
        """
        opened = self.life.opened_log
        if opened is not None and self.is_open:
            opened.writer.store_offset(reference.encode(), offset)
            opened.work.set()
            return
        self.life.want()
        if self.life.state is not StreamState.UNAVAILABLE:
            self._early.store_offset(reference.encode(), offset)

    async def set_offset(self, reference: str, offset: int) -> None:
        """Store a consumer's offset; as safe as a confirmed message on return. It is held open.

        Raises:
            ValueError: the reference cannot be stored.
            Refused: the stream was deleted meanwhile; or the disk is full, a store that confirms
                takes long, or the stream has failed: it may be unknown after a restart.
        """
        self.store_offset(reference, offset)
        writer = self.life.held.writer
        number = writer.num_asked
        await self.settled_in_time()
        self._check_there()
        if self.failed or writer.num_settled < number:
            raise Refused(Reason.NOT_AVAILABLE, self.alarm)

    def stored_offset(self, reference: str) -> int | None:
        """What may be told of a consumer: as safe as a confirmed message. It is held open."""
        writer = self.life.held.writer
        return writer.safe_offsets.get(reference.encode(), self.log.journal.tracking)

    def stored_offsets(self) -> dict[bytes, int]:
        """The same of all consumers."""
        return self.life.held.writer.safe_offsets.all(self.log.journal.tracking)

    async def delete_offset(self, reference: str) -> bool:
        """Forget a stored offset; whether there was one. On the device on return. It is held open.

        Raises:
            Refused: the stream was deleted meanwhile; or the disk is full, a store that confirms
                takes long, or the stream has failed: it may be known again after a restart.
        """
        opened = self.life.held
        if not opened.writer.forget_offset(reference.encode()):
            return False
        await opened.maintenance.flush()
        opened.work.set()
        await self.settled_in_time()
        self._check_there()
        if self.failed or opened.log.is_closed or opened.log.flushing.obstacle:
            raise Refused(Reason.NOT_AVAILABLE, self.alarm or "the disk took nothing; try again")
        return True

    def _check_there(self) -> None:
        if self.life.state is StreamState.GONE:
            raise Refused(Reason.NOT_FOUND, self.name)

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
        opened = self.life.opened_log
        self._check_there()
        if self._services.read_only is not None:
            raise self._services.read_only.refusal()
        if self.failed is not None or opened is None:
            raise Refused(Reason.NOT_AVAILABLE, self.failed or "it is not open")
        await self.settled_in_time()
        try:
            return await opened.truncate(spec, check)
        except Stopped:
            raise Refused(Reason.NOT_FOUND, self.name) from None
        except StorageError as error:
            if self.life.state is StreamState.GONE:  # and so are its files
                raise Refused(Reason.NOT_FOUND, self.name) from None
            raise Refused(Reason.NOT_AVAILABLE, str(error)) from error

    # -- cold segments, see fetcher.py

    def demand(self) -> Demand:
        """What a reader of it wants from the tier, nothing as yet."""
        assert self._services.fetcher is not None  # noqa: S101 - or nothing would be cold
        return self._services.fetcher.demand(self)

    async def retry_cold_read(
        self, work: Callable[..., Result], *arguments: object, seconds: float = math.inf
    ) -> Result:
        """What some work on its log gives that does not wait; see `Fetcher.retry_cold_read`.

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
            return await fetcher.retry_cold_read(self, work, *arguments, seconds=seconds)

    def remove(self, reason: Reason = Reason.NOT_FOUND) -> None:
        """The stream is gone: nobody waits for it any longer, its files are released.

        Args:
            reason: it was deleted; or it is not available, as another node leads it from now on.
        """
        self.traffic.server.stream_is_gone(self.traffic)
        self.life.remove(reason)
        self.waiters.clear()
