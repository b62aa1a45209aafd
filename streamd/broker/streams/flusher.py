"""When written messages are flushed to the device: the setting `flush`, and its background task.

With `always` each stream flushes itself, and confirms afterwards (stream.py). With `interval` one
task flushes all streams that were written to, some at a time, in threads. With `os` only segments
that are sealed are flushed, in the background, so that the next start can trust them.
"""

from enum import Enum

import trio

from streamd.broker.streams.open_log import OpenLog
from streamd.config import FLUSH_BYTES
from streamd.net.wakeup import Wakeup

_AT_ONCE = 4  # streams that are flushed at the same time: a disk does not get faster by more


class FlushMode(Enum):
    """What is true of a confirmed message; see the README."""

    OS = "os"
    INTERVAL = "interval"
    ALWAYS = "always"


class Flusher:
    """Flushes the streams of a server in the background.

    Args:
        seconds: how long written messages may wait for their flush to begin.
    """

    def __init__(self, mode: FlushMode, seconds: float) -> None:
        self.mode = mode
        self._seconds = seconds
        self._dirty: dict[OpenLog, None] = {}
        self._work, self._hurry = Wakeup(), Wakeup()
        self._limiter = trio.CapacityLimiter(_AT_ONCE)

    def wrote(self, opened: OpenLog) -> None:
        """Something was written to a stream."""
        if self.mode is FlushMode.INTERVAL:
            if opened not in self._dirty:
                self._dirty[opened] = None
                self._work.set()
            if opened.log.flushing.unflushed_bytes >= FLUSH_BYTES:
                self._hurry.set()
        elif self.mode is FlushMode.OS and opened.log.flushing.needs_upkeep:
            self._dirty[opened] = None
            self._work.set()

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._work.wait()
            if self.mode is FlushMode.INTERVAL:
                with trio.move_on_after(self._seconds):
                    await self._hurry.wait()
            dirty, self._dirty = self._dirty, {}
            async with trio.open_nursery() as nursery:
                for opened in dirty:
                    nursery.start_soon(self._flush, opened)

    async def _flush(self, opened: OpenLog) -> None:
        async with self._limiter:
            await opened.maintenance.flush(only_sealed=self.mode is FlushMode.OS)
