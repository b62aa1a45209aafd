"""A live stream, as connections see it: publish to it, wait for more, change its settings.

Three parts do the work; each knows only those below it:

    LogMaintenance   flushes and drops files in threads      log_maintenance.py
    LogWriter        the queue, chunks, confirms, failures   log_writer.py
    Waiters          the consumers that a commit wakes      waiters.py

Writing needs no task of its own where a round is open (net/rounds.py): it is done at its end. The
task here writes where there is none, and does what may take time: it waits for a flush with
`flush = always`, drops segments when a new one has begun, and tries again every second while the
disk is full. A full disk stops publishing to the stream, not the stream: what has been received
stays queued in its order, and connections that would send more are not read.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

import trio

from segments import Log
from segments.policy import LogPolicy
from streamd.broker.errors import Reason, Refused
from streamd.broker.filter_contract import FilterContract
from streamd.broker.log_maintenance import LogMaintenance
from streamd.broker.log_writer import LogWriter, WriterState
from streamd.broker.publication import PendingEntries
from streamd.broker.standing_selectors import StandingSelector, StandingSelectors
from streamd.broker.waiters import Waiters
from streamd.config import FULL_DISK_SECONDS
from streamd.net.rounds import Rounds
from streamd.net.wakeup import Wakeup


class FlushSchedule(Protocol):
    """Decides when streams are flushed."""

    def wrote(self, stream: "Stream") -> None:
        """Something was written to a stream that is not flushed."""


class Stream:
    """One stream of the server.

    Args:
        name: for messages to people.
        log: open.
        now_ms: the wall clock, in ms since 1970.
        rounds: it writes at the end of each.
        flushing: notified of every write; None when nobody needs to be.
        contract: what its filter values are; None when there is nothing to enforce.
        standing: selectors that groups have registered.

    Attributes:
        contract: see above.
        standing: the registered selectors.
        waiters: consumers that have read it to its end.
    """

    def __init__(
        self,
        name: str,
        log: Log,
        now_ms: Callable[[], int],
        rounds: Rounds,
        flushing: FlushSchedule | None = None,
        contract: FilterContract | None = None,
        standing: Iterable[StandingSelector] = (),
    ) -> None:
        self.name = name
        self.log = log
        self.contract = contract
        self.standing = StandingSelectors(standing)
        self.waiters = Waiters()
        self._rounds = rounds
        self._flushing = flushing
        self._writer = LogWriter(name, log, now_ms, self.standing, self.waiters)
        self._maintenance = LogMaintenance(name, log, self._writer, rounds, now_ms)
        self._work = Wakeup()

    @property
    def failed(self) -> str | None:
        """Why it accepts no more messages; None while it does."""
        return self._writer.failure

    @property
    def alarm(self) -> str:
        """Why it accepts no messages at the moment; empty while it does."""
        return self._writer.failure or (WriterState.FULL.value if self._writer.is_full else "")

    def set_policy(self, policy: LogPolicy) -> None:
        """Apply other limits from the next chunk on."""
        self._writer.set_policy(policy)

    # -- publishing

    def check_writable(self) -> None:
        """Raise Refused when a publisher cannot be declared now."""
        if self.failed is not None:
            raise Refused(Reason.NOT_AVAILABLE, self.failed)
        if self._writer.is_full:
            raise Refused(Reason.PRECONDITION_FAILED, WriterState.FULL.value)

    def publish(self, pending: PendingEntries) -> None:
        """Queue entries; their publisher learns when they are stored."""
        if self._writer.publish(pending) and not self._rounds.at_end(self._write_in_round):
            self._work.set()

    @property
    def num_queued(self) -> int:
        """Groups of entries that wait to be written."""
        return self._writer.num_queued

    @property
    def is_crowded(self) -> bool:
        """More must not be queued, see `room`."""
        return self._writer.is_crowded

    async def room(self) -> None:
        """Return when more may be queued: at once unless the disk is slow or full."""
        await self._writer.room()

    async def settled(self) -> None:
        """Return when all input so far is stored or refused, or cannot be stored for now."""
        await self._writer.settled()

    def store_offset(self, reference: str, offset: int) -> None:
        """Remember a consumer's offset; visible at once, on disk with the writer's next turn.

        Raises:
            ValueError: the reference cannot be stored.
        """
        self._writer.store_offset(reference.encode(), offset)
        self._work.set()

    # -- writing

    async def run(self) -> None:
        """Write what is queued until cancelled."""
        writer = self._writer
        while True:
            await self._work.wait()
            with self._rounds.open():
                self._write()
            if self._waits_for_flush:
                await self.flush()
            if writer.take_rolled():
                with self._rounds.open():
                    self.waiters.wake_all()
                await self.expire()
            if writer.is_full:
                await trio.sleep(FULL_DISK_SECONDS)
                self._work.set()

    @property
    def _waits_for_flush(self) -> bool:
        return self.log.commits_on_flush and not self.log.is_flushed

    def _write_in_round(self) -> None:
        """Write here, as waking the task costs as much; the task does what may take time."""
        writer = self._writer
        if (
            writer.state is not WriterState.FULL  # then the task tries, now and then
            and writer.write()
            and self._flushing is not None
        ):
            self._flushing.wrote(self)
        if writer.has_rolled or writer.state is WriterState.FULL or self.log.commits_on_flush:
            self._work.set()

    def _write(self) -> None:
        if self._writer.write() and self._flushing is not None:
            self._flushing.wrote(self)

    async def flush(self, *, only_sealed: bool = False, with_checkpoint: bool = False) -> None:
        """Return once what is written is on the device, or the stream has failed.

        Args:
            only_sealed: leave the newest segment to the system.
            with_checkpoint: write one in any case.
        """
        has_run = await self._maintenance.flush(
            only_sealed=only_sealed, with_checkpoint=with_checkpoint
        )
        if has_run and self.log.commits_on_flush:
            self._work.set()  # for what came meanwhile

    async def expire(self) -> None:
        """Drop segments that have outlived the stream's limits."""
        await self._maintenance.expire()

    # -- the end

    async def stop(self) -> None:
        """Return once nothing works on its files any more, and nothing will."""
        self._writer.stop()
        await self._maintenance.stop()

    def remove(self) -> None:
        """The stream is deleted: nobody waits for it any longer."""
        self._writer.remove()
        self.waiters.clear()
