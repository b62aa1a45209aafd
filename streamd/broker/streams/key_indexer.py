"""Key indexes of all streams: whose turn it is, and the one process that makes the tables.

Nothing is done per message, nor per chunk: a stream with key properties says once that there is
something to index, and is then looked at each second until all of it is.

Only the log that is worked on is kept open: thousands may have something to index, after a start
say. One that was closed while it waited is opened again, but not for the end of its newest segment
alone, whose tables do not outlive it.

Until a segment has its index, searches look through its chunks. What is wrong with one stream is
said there (key_upkeep.py) and keeps no other waiting.
"""

import logging
from contextlib import suppress

import trio

from streamd.broker.streams.key_upkeep import GROWING_SECONDS, Progress
from streamd.broker.streams.key_worker import KeyWorker
from streamd.broker.streams.log_life import LogLife
from streamd.net.wakeup import Wakeup
from streamd.operations.errors import Refused

logger = logging.getLogger(__name__)

_IDLE_SECONDS = 10.0  # until a process that has nothing to do is ended


class KeyIndexer:
    """Keeps the key indexes of all streams of a server."""

    def __init__(self, worker: KeyWorker | None = None) -> None:
        self.worker = worker or KeyWorker()
        self._streams: dict[LogLife, bool] = {}  # whether it is opened for it
        self._work = Wakeup()

    def keys_requested(self, life: LogLife) -> None:
        """A stream has keys to index."""
        self._streams[life] = True
        self._work.set()

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            while True:
                has_worked = False
                for life in list(self._streams):
                    has_worked = await self._turn(life) or has_worked
                if not has_worked:
                    await self._pause()
        finally:
            await self.worker.end()

    async def _turn(self, life: LogLife) -> bool:
        """Do something for a stream; whether there was something."""
        progress = Progress.DONE
        try:
            if life.is_open or self._streams[life]:
                with suppress(Refused):  # it is gone, or its log says why
                    async with life.opened():
                        progress = await life.held.upkeep.step(self.worker)
        finally:
            del self._streams[life]  # it may have asked again when it was opened
        if progress is not Progress.DONE:
            self._streams[life] = progress is Progress.MADE
        await trio.lowlevel.checkpoint()
        return progress is Progress.MADE

    async def _pause(self) -> None:
        with trio.move_on_after(GROWING_SECONDS if self._streams else _IDLE_SECONDS):
            await self._work.wait()
            return
        if not self._streams:
            await self.worker.end()
            await self._work.wait()
