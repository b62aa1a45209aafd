"""When the log of a stream is in memory.

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
while it is not open waits (early_messages.py) and is written once it is; so do offsets that are
stored.
"""

import errno
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import Enum
from typing import Protocol

import trio

from segments import Log, SegmentsError, StorageError
from segments.errors import FULL_DISK
from segments.marks import new_life
from segments.store.object_store import TierError
from streamd.broker.streams.early_messages import EarlyMessages
from streamd.broker.streams.log_figures import NO_FIGURES, LogFigures
from streamd.broker.streams.open_log import LogServices, OpenLog
from streamd.broker.streams.publication import PendingEntries
from streamd.broker.supervisor import OverError
from streamd.config import FULL_DISK_SECONDS
from streamd.net import threads
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name

logger = logging.getLogger(__name__)

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


class LogUse(Protocol):
    """Hears how logs are used, to decide which ones to close."""

    def opened(self, life: "LogLife") -> None:
        """The log of a stream was opened."""

    def used(self, life: "LogLife") -> None:
        """The log of a stream is needed, or was."""


class KeySchedule(Protocol):
    """Decides whose keys are indexed when."""

    def keys_requested(self, life: "LogLife") -> None:
        """A log has keys to index."""


class LogLife:
    """Opens and closes the log of one stream.

    Args:
        name: of the stream, for messages to people.
        keeper: hears how it is used; None where no log is ever closed.
        keys: has its keys indexed; None where nobody does.
        open_log: opens it beside the event loop, or raises SegmentsError, OSError, or Refused where
            the stream is gone; None for a log that is attached by hand.
        begin: gives all work on a log that is open.
        publish: writes what was published early.

    Attributes:
        opened_log: all work on it, while it is open.
        disk_is_full: it was not opened as there is no room for its files.
        reason: why it is unavailable.
        gone: what is said once the stream is: it was deleted, or another node leads it.
    """

    def __init__(
        self,
        name: Name,
        services: LogServices,
        keeper: LogUse | None,
        keys: KeySchedule | None,
        early: EarlyMessages,
        open_log: Callable[[], Awaitable[Log]] | None,
        begin: Callable[[Log], OpenLog],
        publish: Callable[[PendingEntries], None],
    ) -> None:
        self.state = StreamState.CLOSED
        self.opened_log: OpenLog | None = None
        self.disk_is_full = False
        self.reason, self.gone = "", Reason.NOT_FOUND
        self.name, self._services, self._keeper, self._early = name, services, keeper, early
        self._keys, self._open_log, self._begin, self._publish = keys, open_log, begin, publish
        self._figures: LogFigures | None = None
        self._num_holds = 0
        self._retry_at = 0.0
        self._awaits_turn = self._tries_again = False
        self._changed = trio.lowlevel.ParkingLot()

    @property
    def held(self) -> OpenLog:
        """All work on its log, which is open."""
        assert self.opened_log is not None, f"the log of {self.name} is {self.state.value}"  # noqa: S101
        return self.opened_log

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
                raise Refused(self.gone, self.name)
            self.want()
            if self.state is StreamState.UNAVAILABLE:
                raise Refused(Reason.NOT_AVAILABLE, self.reason)
            await self._changed.park()
            if self.state is StreamState.CLOSED and self.disk_is_full:
                raise Refused(Reason.NOT_AVAILABLE, FULL_DISK)
        if self._keeper is not None:
            self._keeper.used(self)

    async def changed(self) -> None:
        """Return when the state may be another one."""
        await self._changed.park()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Log]:
        """Its log, open as long as the block lasts.

        Raises:
            Refused: see `ready`.
        """
        self.hold()
        try:
            await self.ready()
            yield self.held.log
        finally:
            self.release()

    def hold(self) -> None:
        """Keep the log open, once it is, until `release`."""
        self._num_holds += 1

    def release(self) -> None:
        """Give back a `hold`."""
        self._num_holds -= 1
        if self._keeper is not None:
            self._keeper.used(self)

    def want(self) -> None:
        """Begin to open the log where that has not begun."""
        if self.state is StreamState.CLOSED or self._may_try_again:
            self.state, self._awaits_turn = StreamState.OPENING, False
            assert self._services.supervisor is not None  # noqa: S101 - else it is attached
            try:
                self._services.supervisor.start_once("opening a log", self._open, self.name)
            except OverError as error:
                self._cannot_open(str(error), level=logging.INFO)

    @property
    def _may_try_again(self) -> bool:
        """Its log could not be opened, and that was a while ago."""
        return self.state is StreamState.UNAVAILABLE and trio.current_time() >= self._retry_at

    async def _open(self) -> None:
        assert self._open_log is not None  # noqa: S101 - as above
        try:
            with trio.CancelScope(shield=True):
                log = await self._open_log()
        except (SegmentsError, OSError, Refused) as error:
            if _is_full(error) and self.state is not StreamState.GONE:
                self._wait_for_disk(error)
            else:
                stops = trio.current_effective_deadline() == -math.inf  # the server
                is_due = stops and isinstance(error, TierError)  # nothing is wrong then
                self._cannot_open(str(error), level=logging.INFO if is_due else logging.ERROR)
        except BaseException as error:
            self._cannot_open(f"a bug: {error}")
            raise
        else:
            self.attach(log)
            assert self._services.supervisor is not None  # noqa: S101 - it runs this
            start, opened = self._services.supervisor.start, self.held
            start("writing a stream", opened.run, self.name, opened.running)
        finally:
            self._changed.unpark_all()

    def _wait_for_disk(self, error: Exception) -> None:
        """There is no room for its files: what was published waits, as it does in an open log."""
        if not self.disk_is_full:
            logger.error("stream %s: %s; its publishers wait", self.name, error)
        self.disk_is_full, self.state = True, StreamState.CLOSED
        if self._early and not self._tries_again:
            self._tries_again = True
            assert self._services.supervisor is not None  # noqa: S101 - it runs this
            self._services.supervisor.start(
                "waiting for room on the disk", self._try_again, self.name
            )

    async def _try_again(self) -> None:
        await trio.sleep(FULL_DISK_SECONDS)
        self._tries_again = False
        self.want()

    def _cannot_open(
        self, reason: str, *, is_final: bool = False, level: int = logging.ERROR
    ) -> None:
        if self.state is StreamState.GONE:
            return  # deleted while it was opened
        logger.log(level, "stream %s is not available: %s", self.name, reason)
        self.state, self.reason = StreamState.UNAVAILABLE, reason
        self._retry_at = math.inf if is_final else trio.current_time() + _RETRY_SECONDS
        self._early.refuse(Reason.NOT_AVAILABLE)

    def attach(self, log: Log) -> None:
        """Take a log that is open; what was published before is written."""
        self.opened_log = opened = self._begin(log)
        self.state, self.disk_is_full = StreamState.OPEN, False
        log.outlive(self._services.now_ms())  # time has passed
        self._early.hand_over(opened.writer.store_offset, self._publish)
        if self._keeper is not None:
            self._keeper.opened(self)
        if self._services.tier is not None:
            self._services.tier.log_opened(opened)
        opened.want_keys()
        self._changed.unpark_all()

    @property
    def is_idle(self) -> bool:
        """Its log is open, and nothing would be missed if it was closed."""
        opened = self.opened_log
        is_free = self.state is StreamState.OPEN and not self._num_holds
        return is_free and opened is not None and opened.is_idle

    @property
    def num_published(self) -> int:
        """Groups of entries and stored offsets since it was opened: it grows while it is used."""
        return self.opened_log.writer.num_asked if self.opened_log is not None else 0

    async def close(self) -> None:
        """Close an idle log; it is opened again when it is wanted."""
        opened = self.opened_log
        if opened is None or not self.is_idle:
            return
        self.state = StreamState.CLOSING
        if self._services.tier is not None:
            self._services.tier.log_closes()
        with trio.CancelScope(shield=True):
            closed = await opened.close()
        self._figures, self.opened_log = closed.figures, None
        self.state = StreamState.CLOSED
        if closed.fault:
            self._cannot_open(closed.fault, is_final=closed.is_final)
        self._changed.unpark_all()
        if self._early:
            self.want()

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
    def figures(self) -> LogFigures | None:
        """Its size, offsets and times; None while nobody has looked since the server's start."""
        return self._figures if self.opened_log is None else LogFigures.of(self.opened_log.log)

    def keys_requested(self) -> None:
        """Its log has keys to index."""
        if self._keys is not None:
            self._keys.keys_requested(self)

    async def look_at_keys(self) -> None:
        """Look at key files that nobody has looked at, so that `figures` can tell of them.

        Raises:
            Refused: its log cannot be opened.
        """
        known = self.figures
        if known is None or known.keys is None or not known.keys.num_unknown:
            return
        async with self.opened():
            await self.held.upkeep.look_at_some()
            self.held.want_keys()

    def know(self, figures: LogFigures) -> None:
        """What it has while its log is not open."""
        self._figures = figures

    def know_empty(self, *, is_read_only: bool) -> None:
        """Take it for new: nothing was ever stored in it, and nobody knows of an offset in it."""
        self._figures = NO_FIGURES._replace(life="" if is_read_only else new_life())

    @property
    def is_known(self) -> bool:
        """Somebody has looked at its log since the server's start, or it is new."""
        return self.opened_log is not None or self._figures is not None

    @property
    def unavailable(self) -> str | None:
        """Why its log cannot be opened, None while it can, or when that is to be tried again."""
        is_over = self.state is StreamState.UNAVAILABLE and not self._may_try_again
        return self.reason if is_over else None

    # -- the end

    async def stop(self) -> None:
        """Return when nothing is done with its files any more, nor ever will be."""
        await self._steady()
        if self.opened_log is not None:
            await self.opened_log.stop()

    def remove(self, reason: Reason) -> None:
        """The stream is gone, see Stream.remove."""
        self.state, self.gone = StreamState.GONE, reason
        if self._services.tier is not None:
            self._services.tier.log_closes()
        if self.opened_log is not None:
            self.opened_log.remove(reason)
        self._early.refuse(reason)
        self._changed.unpark_all()

    async def shut_down(self) -> None:
        """The server stops: write what is pending and release the files.

        Raises:
            SegmentsError: the system refused.
        """
        await self.stop()
        if self.opened_log is not None:
            await threads.in_thread(self.opened_log.log.close)
