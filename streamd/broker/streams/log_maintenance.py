"""Work on a log's files beside the event loop: flushing, dropping old ones, filter indexes.

Everything that is done with the files of a log in a thread goes through here, so that no two pieces
of work race for one. Flushes and removals have turns, one at a time. An index is built beside them,
as that may take long, and so is the rest of a segment copied when the log is truncated; the segment
is not removed meanwhile. When the stream is deleted or its log
closed, `stop` waits until the last thread has come back: whatever happens then to the folder, and
to a new stream that gets the same one, nobody of the old stream touches it any more.

While a flush runs that publishers wait for, the writer is paused. A flush that fails is not tried
again, as the system may have dropped what it could not write, and would report success the next
time: the stream fails. Only one that found no descriptor, say, is: its publishers wait meanwhile.
"""

import errno
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TypeVar

import trio

from segments import Log, OffsetSpec, SegmentsError, StorageError, at_offset
from segments.chunk_search import Place
from segments.derived.filter_files import load_or_build, save
from segments.filter_index import FilterFile, FilterIndex, Index
from segments.flush import Flush
from segments.marks import WAL, remove_mark
from segments.offset_lookup import Position
from segments.segment import Segment
from segments.store.cache import ColdError
from segments.store.local_copy import write_copy
from segments.store.manifest import Manifest
from segments.truncation import Rest
from streamd.broker.streams.fetcher import Demand, NoTierError
from streamd.broker.streams.held_segments import HeldSegments
from streamd.broker.streams.log_writer import LogWriter
from streamd.broker.traffic import Histogram
from streamd.net import threads
from streamd.net.rounds import Rounds
from streamd.operations.errors import Reason

logger = logging.getLogger(__name__)

# That the tier may take when something of it is needed for a truncation. Clients wait 30 s.
_FETCH_SECONDS = 20.0

Result = TypeVar("Result")


class Stopped(Exception):
    """The stream is deleted, or its log is being closed."""


class LogMaintenance:
    """Flushes, expires and indexes the log of one stream.

    Args:
        name: of the stream, for messages to people.
        writer: paused, resumed, and notified of the outcome of a flush.
        rounds: messages that a flush has made safe are confirmed and delivered in one.
        now_ms: the wall clock, in ms since 1970.
        flush_seconds: gets the time that each flush takes.
        goes_on: called after a flush for which something may have waited: it is to be written and
            flushed now.
        demand: for what it reads of cold segments; None where nothing is cold.

    Attributes:
        held: segments that are worked on.
    """

    def __init__(
        self,
        name: str,
        log: Log,
        writer: LogWriter,
        rounds: Rounds,
        now_ms: Callable[[], int],
        flush_seconds: Histogram,
        goes_on: Callable[[], None],
        demand: Callable[[], Demand] | None = None,
    ) -> None:
        self._name = name
        self._log = log
        self._writer = writer
        self._rounds = rounds
        self._now_ms = now_ms
        self._flush_seconds = flush_seconds
        self._goes_on = goes_on
        self._demand = demand
        self.held = HeldSegments(log, self._expire_again)
        self._expires_again = False
        self._turn = trio.Lock()
        self._truncating = trio.Lock()

    async def flush(
        self, *, only_sealed: bool = False, with_checkpoint: bool = False, seals: bool = False
    ) -> bool:
        """Return once what is written is on the device, or the stream has failed.

        Args:
            only_sealed: leave the newest segment to the system.
            with_checkpoint: write one in any case.
            seals: begin a new segment afterwards.

        Returns:
            Whether a flush has run: False when there was nothing left to flush.
        """
        log = self._log
        try:
            has_run = await self._flush(
                only_sealed=only_sealed, with_checkpoint=with_checkpoint, seals=seals
            )
        except Exception as error:  # a bug: it stays in this stream
            logger.exception("stream %s failed", self._name)
            self._fail(str(error))
            return False
        # Whoever has asked for it: what came meanwhile has found the writer paused.
        is_gated = log.commits_on_flush or log.awaits_store
        may_wait = is_gated or log.flushing.obstacle is not None
        if has_run and (may_wait or log.journal.tracking.has_pending):
            self._goes_on()
        return has_run

    async def _flush(self, *, only_sealed: bool, with_checkpoint: bool, seals: bool) -> bool:
        log, writer = self._log, self._writer
        async with self._turn:
            if self.held.is_stopped or log.is_closed or log.flushing.failed is not None:
                return False
            try:
                flush = log.begin_flush(only_sealed=only_sealed, with_checkpoint=with_checkpoint)
            except StorageError as error:
                self._fail(str(error))
                return False
            if log.commits_on_flush:
                writer.pause()
            try:
                failure = await self._run(flush)
            finally:
                writer.resume()
            log.end_flush(flush, failure)
            if seals and failure is None:
                self._seal()
        if flush.fault and log.flushing.obstacle is None:  # else those who publish are told
            logger.warning("stream %s: the next start may take longer: %s", self._name, flush.fault)
        if log.flushing.obstacle is not None and failure is not None:
            writer.wait_for(failure)
            return True
        if failure is not None:
            writer.fail(str(failure))
            return True
        if log.commits_on_flush and not flush.is_partial:  # else the newest segment is not safe
            with self._rounds.open():
                writer.settle()
        elif not log.commits_on_flush and log.journal.tracking.has_pending:
            # It came while the journal was rewritten.
            with self._rounds.open():
                writer.write()
        return True

    async def mark(self) -> None:
        """Have the log note what it has to before its first message, see `Log.mark`."""
        log = self._log
        async with self._turn:
            if self.held.is_stopped or log.is_closed:
                return
            try:
                with trio.CancelScope(shield=True):
                    await threads.in_thread(log.mark)
            except StorageError as error:
                if error.is_temporary:
                    self._writer.wait_for(error)
                else:
                    self._fail(str(error))
        self._goes_on()

    async def leave_store(self) -> None:
        """Confirm by this device alone again, once all that a store has confirmed is on it.

        From then on opening the log does not need the store's any more, which would bring back what
        is forgotten here. Nothing is written meanwhile, nor goes to the store. Where something
        waits for the store it is to be called again.
        """
        log, writer = self._log, self._writer
        async with self._turn:
            if self.held.is_stopped or log.is_closed or log.flushing.failed is not None:
                return
            if not log.awaits_store or log.policy.confirms_in_store or writer.awaits_store:
                return
            writer.pause()
            try:
                await self._leave_store()
            except StorageError as error:
                if error.is_temporary:
                    writer.wait_for(error)
                else:
                    self._fail(str(error))
            finally:
                writer.resume()
        self._goes_on()

    async def _leave_store(self) -> None:
        log = self._log
        flush = log.begin_flush(with_checkpoint=True)
        failure = await self._run(flush)
        log.end_flush(flush, failure)
        if failure is not None:
            raise failure
        disk, mark = log.segments.shown[-1].disk, WAL + log.life
        with trio.CancelScope(shield=True):
            await threads.in_thread(remove_mark, disk, log.folder, mark)
        if not log.is_closed:
            self._writer.leave_store()

    def _seal(self) -> None:
        try:
            self._log.seal()
        except StorageError as error:
            logger.warning("stream %s: no new segment: %s", self._name, error)

    async def _run(self, flush: Flush) -> StorageError | None:
        """Run a flush in a thread; returns its error, None when it succeeded."""
        began_at = time.monotonic()
        try:
            with trio.CancelScope(shield=True):  # a thread cannot be cancelled
                await threads.in_thread(flush.run)
        except StorageError as error:
            return error
        finally:
            self._flush_seconds.observe(time.monotonic() - began_at)
        return None

    def _fail(self, reason: str) -> None:
        self._writer.fail(reason)
        self._writer.refuse_written(Reason.NOT_AVAILABLE)

    async def expire(self) -> None:
        """Drop segments that have outlived the stream's limits; files go in a thread.

        Those whose filter index is being built stay until that is done, and those after them; work
        on their key indexes is cancelled, as it may take long. What consumers have asked for is
        written down as well. Flushes take turns with the parts of a large removal.
        """
        log = self._log
        if log.outlive(self._now_ms()):
            await self.flush(with_checkpoint=True)
        async with self._turn:
            if self.held.is_stopped or log.is_closed:
                return
            await self._carry_out(log.filter_demand.write, logging.WARNING)
            busy = self.held.busy
            removal = log.expire(self._now_ms(), busy)
            outlived = log.segments.outlived if busy else []
            self._expires_again = bool(outlived)
            self.held.cancel(outlived)
            parts = removal.parts()
            has_more = await self._remove_next(parts)
        await self._remove_rest(parts, has_more=has_more)

    async def _expire_again(self) -> None:
        """Do it again where a segment had to stay that somebody worked on."""
        if self._expires_again and not self.held.is_stopped:
            await self.expire()

    async def _remove_rest(self, parts: Iterator[Callable[[], None]], *, has_more: bool) -> None:
        while has_more:
            async with self._turn:
                has_more = not self.held.is_stopped and await self._remove_next(parts)

    async def _remove_next(self, parts: Iterator[Callable[[], None]]) -> bool:
        """Do the next part of a removal; whether there may be more."""
        part = next(parts, None)
        return part is not None and await self._carry_out(part, logging.ERROR)

    async def _carry_out(self, work: Callable[[], None], level: int) -> bool:
        """Do something with the files in a thread; a refusal is logged, and False."""
        try:
            with trio.CancelScope(shield=True):
                await threads.in_thread(work)
        except StorageError as error:
            logger.log(level, "stream %s: %s", self._name, error)
            return False
        return True

    async def truncate(self, spec: OffsetSpec, check: Callable[[], None]) -> int:
        """Let the log begin at the chunk that `spec` is the place of, if it is behind the first.

        Where the rest of its segment cannot be copied, for want of room, say, the log begins with
        that segment, or an earlier one.

        Args:
            spec: the place.
            check: raises when it is not allowed; called when nothing is waited for any more.

        Returns:
            The first offset, which is on the device.

        Raises:
            Stopped: the stream is deleted, or its log closed.
            StorageError: the system refused.
        """
        first = 0
        with trio.CancelScope(shield=True):
            try:
                async with self._truncating:
                    first = await self._truncate(spec, check)
            finally:  # its copy held a segment
                await self._expire_again()
        return first

    async def _truncate(self, spec: OffsetSpec, check: Callable[[], None]) -> int:
        log = self._log
        offset = (await self._retry_cold(partial(self._find, spec))).offset
        await self.flush(with_checkpoint=True, seals=offset > log.segments.shown[-1].base_offset)
        self._check_open()
        start = await self._retry_cold(partial(self._find, at_offset(offset)))
        if start.offset <= log.segments.kept_from:
            return log.segments.kept_from
        rest = None
        if start.offset > start.segment.base_offset:
            rest = await self._copy_rest(start)
            start = start._replace(offset=start.segment.base_offset) if rest is None else start
        first: int | None = None
        parts: Iterator[Callable[[], None]] = iter(())
        while first is None:
            while self.held.has_before(start.offset):
                self.held.cancel(self._log.segments.shown)
                await self.held.wait()
            async with self._turn:
                self._check_open()
                if not self.held.has_before(start.offset):
                    try:
                        check()
                        first, parts = await self._begin_at(start.offset, rest)
                    finally:  # a copy that came to nothing takes no room
                        if rest is not None and not rest.may_be_there:
                            await self._carry_out(rest.discard, logging.WARNING)
        await self._remove_rest(parts, has_more=True)
        return first

    def _check_open(self) -> None:
        if self._log.is_closed:
            raise Stopped
        self._check_running()

    async def _copy_rest(self, start: Position) -> Rest | None:
        """The end of a sealed segment as one of its own; None where that cannot be made."""
        segment, log = start.segment, self._log
        if not (log.keeps(segment) and log.segments.is_sealed(segment)):
            return None
        rest = Rest(segment, Place(start.position, start.offset))
        with self.held.hold(segment):
            try:
                await self._retry_cold(partial(threads.in_thread, rest.copy, self._check_running))
            except SegmentsError as error:
                logger.warning("stream %s is cut before a whole segment: %s", self._name, error)
                await self._carry_out(rest.discard, logging.WARNING)
                return None
        return rest

    async def _find(self, spec: OffsetSpec) -> Position:
        return self._log.segments.find(spec)

    async def _retry_cold(self, do: Callable[[], Awaitable[Result]]) -> Result:
        """What some work gives, which is done again when what it needs is fetched.

        Raises:
            StorageError: that takes too long.
            Stopped: see `truncate`.
        """
        demand: Demand | None = None
        try:
            while True:
                try:
                    return await do()
                except ColdError as error:
                    assert self._demand is not None  # noqa: S101 - see above
                    demand = demand or self._demand()
                    demand.release()
                    await self._fetch(demand, error)
        finally:
            if demand is not None:
                demand.stop()

    async def _fetch(self, demand: Demand, error: ColdError) -> None:
        """Fetch something, but not for ever: others wait for their turn, and nobody can cancel."""
        ends_at = trio.current_time() + _FETCH_SECONDS
        try:
            while trio.current_time() < ends_at:
                self._check_running()
                with trio.move_on_after(1):
                    return await demand.fetch(error)
        except NoTierError as refusal:
            cause = OSError(errno.ENOENT, str(refusal))
            raise StorageError("read", self._name, cause) from error
        cause = OSError(errno.ETIMEDOUT, "the tier does not answer; try again later")
        raise StorageError("read", self._name, cause) from error

    async def _begin_at(
        self, offset: int, rest: Rest | None
    ) -> tuple[int, Iterator[Callable[[], None]]]:
        """Let the log begin at a base offset, in a turn; gives its first one, and what is left."""
        log, is_covered = self._log, self._log.journal.is_covered
        if not is_covered(offset):  # the disk had no room for what is known of publishers
            bases = [s.base_offset for s in log.segments.shown if s.base_offset < offset]
            offset, rest = max(filter(is_covered, bases), default=0), None
        if offset <= log.segments.kept_from:  # or retention was faster
            return log.segments.kept_from, iter(())
        self.held.goes_before = offset
        try:
            if rest is not None:
                await threads.in_thread(rest.finish)
            parts = log.truncate(offset, rest.segment if rest is not None else None).parts()
        finally:
            self.held.goes_before = 0
        if (first := next(parts, None)) is not None:
            await threads.in_thread(first)
        return log.segments.kept_from, parts

    async def follow(self, show: Callable[[], Sequence[Segment] | None]) -> bool:
        """Show readers what a store has by now.

        Args:
            show: lets the log have it, and gives segments whose files go, if any do.

        Returns:
            Whether they see it; False when the log is closed, or the disk has no room.
        """
        async with self._turn:
            if self.held.is_stopped or self._log.is_closed:
                return False
            try:
                with self._rounds.open():
                    gone = show()
            except SegmentsError as error:
                logger.warning("stream %s: %s", self._name, error)
                return False
            finally:
                with self._rounds.open():
                    self._writer.followed()
            for segment in gone or ():
                await self._carry_out(segment.remove, logging.WARNING)
            return True

    async def keep_manifest(self, manifest: Manifest) -> bool:
        """Write the copy of what a store has down, and let the log go by it.

        Returns:
            Whether it is on the device; False also when the log is closed.
        """
        log = self._log
        async with self._turn:
            if self.held.is_stopped or log.is_closed:
                return False
            disk, folder = log.segments.shown[-1].disk, log.folder
            is_written = await self._carry_out(
                lambda: write_copy(disk, folder, manifest), logging.WARNING
            )
            if is_written and not log.is_closed:
                log.stored.adopt(manifest)
            return is_written

    async def evict(self, segments: Collection[Segment]) -> None:
        """Remove files of segments that a store has, and that nobody works on; oldest first."""
        log = self._log
        async with self._turn:
            for segment in segments:
                if self.held.is_stopped or log.is_closed or segment in self.held.busy:
                    return
                if not log.keeps(segment) or segment.stored is None or segment.cold is not None:
                    continue
                log.stored.make_cold(segment)
                await self._carry_out(segment.remove_file, logging.WARNING)

    async def build_index(self, segment: Segment) -> bool:
        """Give a segment its filter index, built or opened in a thread.

        Its files are not removed meanwhile. Unlike a flush it keeps nobody waiting: the segment is
        read, and a file beside it is written.

        Returns:
            Whether it has the index of a file now.
        """
        if not self.held.may_hold(segment):
            segment.index_done()
            return False
        is_loaded = False
        with trio.CancelScope(shield=True), self.held.hold(segment):
            try:
                is_loaded = await self._build_index(segment)
            finally:
                segment.index_done()
        await self._expire_again()
        return is_loaded

    @property
    def is_truncating(self) -> bool:
        """Segments are about to go; work on key indexes should not begin."""
        return self._truncating.locked()

    async def _build_index(self, segment: Segment) -> bool:
        log, size = self._log, self._log.indexes.size_of(segment)
        is_sealed = log.segments.is_sealed(segment)
        in_memory = segment.filters if is_sealed else None
        try:
            if isinstance(in_memory, FilterIndex):
                filters: Index | None = await threads.in_thread(save, segment, in_memory)
            else:
                filters = await threads.in_thread(
                    load_or_build, segment, size, is_sealed, self._check_running
                )
        except (Stopped, ColdError):
            return False
        except SegmentsError as error:
            logger.warning("no filter index for %s: %s", segment.path(), error)
            segment.index_failed()
            return False
        except Exception:  # a bug: without an index filters are slower, but correct
            logger.exception("no filter index for %s", segment.path())
            segment.index_failed()
            return False
        if filters is None or not log.keeps(segment):
            return False
        log.indexes.adopt(segment, filters, size)
        return segment.filters is filters and isinstance(filters, FilterFile)

    def _check_running(self) -> None:
        """Raise Stopped when the work in a thread is not worth going on with."""
        if self.held.is_stopped:
            raise Stopped

    async def stop(self) -> None:
        """Return when nothing is done with the files in a thread any more, nor ever will be."""
        self.held.stop()
        async with self._turn:
            while self.held.busy:
                await self.held.wait()
