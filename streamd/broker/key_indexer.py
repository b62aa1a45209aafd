"""Key indexes of all streams: whose turn it is, and the one process that makes the tables.

Nothing is done per message, nor per chunk: a stream with key properties says once that there is
something to index, and is then looked at each second until all of it is.

Until a segment has its index, searches look through its chunks. What is wrong with one stream is
said there (key_upkeep.py) and keeps no other waiting.
"""

import logging
from typing import Protocol

import trio

from streamd.broker.key_upkeep import QUIET_SECONDS, Progress, TableMaker
from streamd.broker.key_worker import KeyWorker
from streamd.net.wakeup import Wakeup

logger = logging.getLogger(__name__)

_IDLE_SECONDS = 10.0  # until a process that has nothing to do is ended


class Keyed(Protocol):
    """A stream, as far as this module is concerned."""

    def hold(self) -> None:
        """Keep its log open."""

    def release(self) -> None:
        """It need not be kept open any longer."""

    async def index_keys(self, maker: TableMaker) -> Progress:
        """Do the next piece of work."""


class KeyIndexer:
    """Keeps the key indexes of all streams of a server.

    Args:
        worker: makes the tables.
    """

    def __init__(self, worker: KeyWorker | None = None) -> None:
        self.worker = worker or KeyWorker()
        self._streams: dict[Keyed, None] = {}
        self._work = Wakeup()

    def keys_requested(self, stream: Keyed) -> None:
        """A stream has keys to index; its log stays open until that is done."""
        if stream not in self._streams:
            self._streams[stream] = None
            stream.hold()
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
            progress = await stream.index_keys(self.worker)
        finally:
            if progress is Progress.DONE and self._streams.pop(stream, True) is None:
                stream.release()
        await trio.lowlevel.checkpoint()
        return progress is Progress.MADE

    async def _pause(self) -> None:
        with trio.move_on_after(QUIET_SECONDS if self._streams else _IDLE_SECONDS):
            await self._work.wait()
            return
        if not self._streams:
            await self.worker.end()
            await self._work.wait()
