"""Consumers of one connection: which of them have something to send, and in which order.

Theory of operation. A consumer is in one of these states; `check` moves it on, and is called
whenever something has changed that may let it send (credit, activation, its turn is over):

    state      it                                              leaves it when
    IDLE       may send nothing: no credit, or not active      `check` finds that it may
    WAITING    has read everything                             its stream commits something for it,
                                                               or its segment has ended unindexed
    WOKEN      is looked at once the streams have written      the end of the round
    READY      is in line for the connection's writer          its turn comes
    DELAYED    gets in line in a moment, with what comes then  that moment, or something hurries it
    FETCHING   waits for bytes that the tier has               they are here, or it stops to wait
    CLOSED     is over                                         never

    IDLE -> WAITING | READY | DELAYED    by `check`
    WAITING -> WOKEN -> IDLE             by `stream_has_more` and the end of the round; then `check`
    WAITING -> IDLE                      by `leave_segment`, where no index tells; then `check`
    READY -> IDLE                        by `next`; the code that had its turn checks it again
    IDLE -> FETCHING                     by `fetch`, where reading met a cold segment
    FETCHING -> IDLE                     when they are here; then `check`. By `stop_waiting`
    any -> CLOSED                        by `close`; a place in line is then skipped

A stream that wakes a consumer only marks it. What is little and new is sent at the end of the round
(`send_now`): a turn of the writer for each of many consumers costs more than all the rest.
"""

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence, Set as AbstractSet
from contextlib import suppress
from enum import Enum
from typing import Any, Generic, TypeVar

from segments import Reader, StorageError
from segments.store.cache import ColdError
from segments.tier.plan import Request
from streamd.broker.streams.fetcher import Demand
from streamd.broker.streams.stream import Stream
from streamd.net.rounds import Rounds
from streamd.net.wakeup import Wakeup

logger = logging.getLogger(__name__)


class ConsumerState(Enum):
    """See the table above."""

    IDLE = "idle"
    WAITING = "waiting"
    WOKEN = "woken"
    READY = "ready"
    DELAYED = "delayed"
    FETCHING = "fetching"
    CLOSED = "closed"


class QueuedConsumer(ABC):
    """A consumer of any protocol.

    Attributes:
        state: see the table above; the queue and the consumer alone set it.
    """

    def __init__(self, stream: Stream, queue: "ReadyQueue[Any]") -> None:
        self.stream = stream
        self.state = ConsumerState.IDLE
        self._queue = queue
        self._demand: Demand | None = None

    @property
    @abstractmethod
    def keys(self) -> Collection[bytes] | None:
        """See waiters.Waiter."""

    @property
    @abstractmethod
    def other_keys(self) -> Sequence[AbstractSet[bytes]]:
        """See waiters.Waiter."""

    @property
    @abstractmethod
    def may_send(self) -> bool:
        """Whether it is active and its client wants more."""

    @property
    @abstractmethod
    def is_at_end(self) -> bool:
        """Whether it has read and sent everything that is committed."""

    @abstractmethod
    def read_on(self) -> None:
        """What it waited for is here: read on, soon."""

    @abstractmethod
    def catch_up(self) -> None:
        """Skip what is committed and not for it, as far as indexes tell; nothing is read.

        Raises:
            StorageError: the stream cannot be read.
        """

    def send_now(self) -> None:  # noqa: B027 - not every protocol does
        """Send what has just been committed, if that is little; else do nothing."""

    @property
    def is_closed(self) -> bool:
        """Whether it is closed and gets nothing more."""
        return self.state is ConsumerState.CLOSED

    @property
    def is_waiting(self) -> bool:
        """Whether it waits at the end of its stream."""
        return self.state is ConsumerState.WAITING

    def check(self) -> None:
        """Get in line when there is something to send, else wait for the stream."""
        if self.state is not ConsumerState.IDLE or not self.may_send:
            return
        if self.is_at_end:
            self.state = ConsumerState.WAITING
            self.stream.waiters.add(self)
        else:
            self.get_in_line()

    def get_in_line(self) -> None:
        """There is something to send."""
        self._queue.enqueue(self)

    def stream_has_more(self) -> None:
        """See waiters.Waiter."""
        self.state = ConsumerState.WOKEN
        self._queue.wake(self)

    def leave_segment(self) -> None:
        """See waiters.Waiter. Where no index tells what is for it, it is woken instead."""
        if self.state is not ConsumerState.WAITING:
            return
        with suppress(StorageError):  # it reads, and meets it again
            self.catch_up()
        if not self.is_at_end:
            self.stop_waiting()
            self.check()

    # -- cold segments

    def fetch(self, error: ColdError, requests: Iterable[Request] = ()) -> None:
        """Have fetched what it needs to go on, and wait for it; nothing if it is in line again.

        Args:
            error: which reading has raised.
            requests: what to fetch; see `Reader.missing`.

        Raises:
            NoTierError: this server does not know the tier.
        """
        if self.state is not ConsumerState.IDLE:
            return  # it has been checked meanwhile, and will meet the same error
        if self._demand is None:
            self._demand = self.stream.demand()
        self._demand.want(error, self._resume, requests)
        self.state = ConsumerState.FETCHING

    def _resume(self) -> None:
        if self.state is ConsumerState.FETCHING:
            self.state = ConsumerState.IDLE
            try:
                self.read_on()
            except Exception as error:  # noqa: BLE001 - a bug: it ends this connection alone
                self._queue.fail(error)
            if self.state is ConsumerState.IDLE and self._demand is not None:
                self._demand.release()  # it may not send now

    def rest(self, reader: Reader | None) -> None:
        """Stop reading ahead: nothing in the cache is kept for it.

        A peer that gives no credit, or takes nothing of what it is sent, must not fill the disk.
        """
        if reader is not None:
            reader.rest()
        if self._demand is not None and self.state is not ConsumerState.FETCHING:
            self._demand.release()

    def fetch_ahead(self, reader: Reader) -> None:
        """Release what it has read, and fetch what it needs soon."""
        if self._demand is not None:
            self._demand.release()
            requests = reader.ahead()
            if requests:
                self._demand.ahead(requests)

    def _stop_fetching(self) -> None:
        demand, self._demand = self._demand, None
        if demand is not None:
            demand.stop()
        if self.state is ConsumerState.FETCHING:
            self.state = ConsumerState.IDLE

    def stop_waiting(self) -> None:
        """Do not wake it any more: it has no place to go on from."""
        self._stop_fetching()
        if self.state in (ConsumerState.WAITING, ConsumerState.WOKEN):
            self.stream.waiters.remove(self)
            self.state = ConsumerState.IDLE

    def end_state(self) -> None:
        """Close it."""
        self.stop_waiting()
        self.state = ConsumerState.CLOSED


Consumer = TypeVar("Consumer", bound=QueuedConsumer)


class ReadyQueue(Generic[Consumer]):
    """The line of one connection.

    Args:
        work: wakes the connection's writer.
        rounds: woken consumers are looked at the end of each.
        fail: ends the connection, with the error that one of its consumers has raised.
    """

    def __init__(self, work: Wakeup, rounds: Rounds, fail: Callable[[Exception], None]) -> None:
        self._work = work
        self._rounds = rounds
        self._fail = fail
        self._line: deque[Consumer] = deque()
        self._woken: list[Consumer] = []

    @property
    def has_pending(self) -> bool:
        """Somebody is in line."""
        return bool(self._line)

    def fail(self, error: Exception) -> None:
        """End the connection."""
        self._fail(error)

    def enqueue(self, consumer: Consumer) -> None:
        """Put a consumer in line."""
        consumer.state = ConsumerState.READY
        self._line.append(consumer)
        self._work.set()

    def next(self) -> Consumer | None:
        """The next in turn; None when that one has been closed."""
        consumer = self._line.popleft()
        if consumer.is_closed:
            return None
        consumer.state = ConsumerState.IDLE
        return consumer

    def wake(self, consumer: Consumer) -> None:
        """Look at a consumer at the end of the round: its stream has more for it."""
        self._woken.append(consumer)
        if len(self._woken) == 1:
            self._rounds.after_writes(self._look_at_woken)

    def _look_at_woken(self) -> None:
        woken, self._woken = self._woken, []
        for consumer in woken:
            if consumer.state is ConsumerState.WOKEN:
                consumer.state = ConsumerState.IDLE
                try:
                    consumer.send_now()
                    consumer.check()
                except Exception as error:  # noqa: BLE001 - a bug: it ends this connection alone
                    self._fail(error)
