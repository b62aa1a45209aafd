"""Work on a log's files beside the event loop: flushing them, and dropping old ones.

One piece of work at a time for each log. While a flush runs that publishers wait for, the writer is
paused. A flush that fails is not tried again, as the system may have dropped what it could not
write, and would report success the next time: the stream fails.
"""

import logging
from collections.abc import Callable

import trio

from segments import Log, StorageError
from segments.flush import Flush
from streamd.broker import threads
from streamd.broker.errors import Reason
from streamd.broker.log_writer import LogWriter
from streamd.net.rounds import Rounds

logger = logging.getLogger(__name__)


class LogMaintenance:
    """Flushes and expires the log of one stream.

    Args:
        name: of the stream, for messages to people.
        log: its log.
        writer: paused, resumed, and notified of the outcome of a flush.
        rounds: messages that a flush has made safe are confirmed and delivered in one.
        now_ms: the wall clock, in ms since 1970.
    """

    def __init__(
        self, name: str, log: Log, writer: LogWriter, rounds: Rounds, now_ms: Callable[[], int]
    ) -> None:
        self._name = name
        self._log = log
        self._writer = writer
        self._rounds = rounds
        self._now_ms = now_ms
        self._is_stopped = False
        self._turn = trio.Lock()

    async def flush(self, *, only_sealed: bool = False, with_checkpoint: bool = False) -> bool:
        """Return once what is written is on the device, or the stream has failed.

        Args:
            only_sealed: leave the newest segment to the system.
            with_checkpoint: write one in any case.

        Returns:
            Whether a flush has run: False when there was nothing left to flush.
        """
        try:
            return await self._flush(only_sealed=only_sealed, with_checkpoint=with_checkpoint)
        except Exception as error:  # a bug: it stays in this stream
            logger.exception("stream %s failed", self._name)
            self._fail(str(error))
            return False

    async def _flush(self, *, only_sealed: bool, with_checkpoint: bool) -> bool:
        log, writer = self._log, self._writer
        async with self._turn:
            if self._is_stopped or log.is_closed or log.failed is not None:
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
        if flush.fault:
            logger.warning("stream %s: no checkpoint was written: %s", self._name, flush.fault)
        if failure is not None:
            writer.fail(str(failure))
        if log.commits_on_flush:
            with self._rounds.open():
                writer.settle()
        return True

    async def _run(self, flush: Flush) -> StorageError | None:
        """Run a flush in a thread; returns its error, None when it succeeded."""
        try:
            with trio.CancelScope(shield=True):  # a thread cannot be cancelled
                await threads.in_thread(flush.run)
        except StorageError as error:
            return error
        return None

    def _fail(self, reason: str) -> None:
        self._writer.fail(reason)
        self._writer.refuse_written(Reason.NOT_AVAILABLE)

    async def expire(self) -> None:
        """Drop segments that have outlived the stream's limits; files go in a thread.

        Also write down what consumers have asked for.
        """
        log = self._log
        if log.has_outlived(self._now_ms()):
            await self.flush(with_checkpoint=True)
        async with self._turn:
            if self._is_stopped or log.is_closed:
                return
            try:
                log.filter_demand.write()
            except StorageError as error:
                logger.warning("stream %s: %s", self._name, error)
            try:
                removal = log.expire(self._now_ms())
                if removal.segments:
                    with trio.CancelScope(shield=True):
                        await threads.in_thread(removal.run)
            except StorageError as error:
                logger.error("stream %s: %s", self._name, error)

    async def stop(self) -> None:
        """Return once no thread works on the files any more, and none will."""
        self._is_stopped = True
        async with self._turn:
            pass
