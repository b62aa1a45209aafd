"""When written messages are flushed to the device: the setting `flush`, and its background task.

With `always` each stream flushes itself, and confirms afterwards (stream.py). With `interval` one
task flushes all streams that were written to, some at a time, in threads. With `os` only segments
that are sealed are flushed, in the background, so that the next start can trust them.
"""

from enum import Enum
from typing import Protocol

import trio

from streamd.config import FLUSH_BYTES
from streamd.net.wakeup import Wakeup

_AT_ONCE = 4  # streams that are flushed at the same time: a disk does not get faster by more


class FlushMode(Enum):
    """What is true of a confirmed message; see the README."""

    OS = "os"
    INTERVAL = "interval"
    ALWAYS = "always"


class Flushed(Protocol):
    """A stream, as far as this module is concerned."""

    @property
    def unflushed_bytes(self) -> int:
        """Bytes that were written and may not be on the device."""

    @property
    def needs_upkeep(self) -> bool:
        """A segment was sealed that may not be on the device, or its journal has grown large."""

    async def flush(self, *, only_sealed: bool = False) -> None:
        """Return once everything written is on the device, or the stream has failed."""


class Flusher:
    """Flushes the streams of a server in the background.

    Args:
        seconds: how long written messages may wait for their flush to begin.
    """

    def __init__(self, mode: FlushMode, seconds: float) -> None:
        self.mode = mode
        self._seconds = seconds
        self._dirty: dict[Flushed, None] = {}
        self._work, self._hurry = Wakeup(), Wakeup()
        self._limiter = trio.CapacityLimiter(_AT_ONCE)

    def wrote(self, stream: Flushed) -> None:
        """Something was written to a stream."""
        if self.mode is FlushMode.INTERVAL:
            if stream not in self._dirty:
                self._dirty[stream] = None
                self._work.set()
            if stream.unflushed_bytes >= FLUSH_BYTES:
                self._hurry.set()
        elif self.mode is FlushMode.OS and stream.needs_upkeep:
            self._dirty[stream] = None
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
                for stream in dirty:
                    nursery.start_soon(self._flush, stream)

    async def _flush(self, stream: Flushed) -> None:
        async with self._limiter:
            await stream.flush(only_sealed=self.mode is FlushMode.OS)
