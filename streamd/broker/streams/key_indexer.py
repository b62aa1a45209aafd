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
from contextlib import AbstractAsyncContextManager, suppress
from typing import Protocol

import trio

from segments import Log
from streamd.broker.streams.key_upkeep import QUIET_SECONDS, Progress, TableMaker
from streamd.broker.streams.key_worker import KeyWorker
from streamd.net.wakeup import Wakeup
from streamd.operations.errors import Refused

logger = logging.getLogger(__name__)

_IDLE_SECONDS = 10.0  # until a process that has nothing to do is ended


class Keyed(Protocol):
    """A stream, as far as this module is concerned."""

    @property
    def is_open(self) -> bool:
        """Its log is."""

    def opened(self) -> AbstractAsyncContextManager[Log]:
        """Its log, open as long as the block lasts; raises Refused when it cannot be."""

    async def index_keys(self, maker: TableMaker) -> Progress:
        """Do the next piece of work."""


class KeyIndexer:
    """Keeps the key indexes of all streams of a server.

    Args:
        worker: makes the tables.
    """

    def __init__(self, worker: KeyWorker | None = None) -> None:
        self.worker = worker or KeyWorker()
        self._streams: dict[Keyed, bool] = {}  # whether it is opened for it
        self._work = Wakeup()

    def keys_requested(self, stream: Keyed) -> None:
        """A stream has keys to index."""
        self._streams[stream] = True
        self._work.set()

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            while True:
                has_worked = False
                for stream in list(self._streams):
                    has_worked = await self._turn(stream) or has_worked
                if not has_worked:
                    await self._pause()
        finally:
            await self.worker.end()

    async def _turn(self, stream: Keyed) -> bool:
        """Do something for a stream; whether there was something."""
        progress = Progress.DONE
        try:
            if stream.is_open or self._streams[stream]:
                with suppress(Refused):  # it is gone, or its log says why
                    async with stream.opened():
                        progress = await stream.index_keys(self.worker)
        finally:
            del self._streams[stream]  # it may have asked again when it was opened
        if progress is not Progress.DONE:
            self._streams[stream] = progress is Progress.MADE
        await trio.lowlevel.checkpoint()
        return progress is Progress.MADE

    async def _pause(self) -> None:
        with trio.move_on_after(QUIET_SECONDS if self._streams else _IDLE_SECONDS):
            await self._work.wait()
            return
        if not self._streams:
            await self.worker.end()
            await self._work.wait()
