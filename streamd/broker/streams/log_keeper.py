"""Which logs stay open: each takes descriptors and memory, and there may be thousands of streams.

A log that nobody holds is closed when it has not been used for a while, or sooner, the one that was
used longest ago first, when more are open than the budget allows. Opening one again takes about a
millisecond, in a thread.

After the start every stream is looked at once, slowly and in the background: limits of age apply to
streams that nobody opens, damage is reported, and their sizes become known.
"""

import logging
import resource
from collections.abc import Callable, Iterable

import trio

from streamd.broker.streams.log_life import LogLife, StreamState
from streamd.broker.supervisor import Supervisor
from streamd.net.wakeup import Wakeup
from streamd.operations.errors import Refused

logger = logging.getLogger(__name__)

FILES_OF_A_LOG = 4  # its folder, and segment, index and journal while it is written
LOGS_SHARE = 0.25  # of the descriptors that a process may have
_FEWEST = 8
_IDLE_SECONDS = 60.0
_SWEEP_SECONDS = 15.0
_INSPECT_SECONDS = 0.005  # between two streams: a stream takes a millisecond or two


def descriptor_limit() -> int:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft


class LogKeeper:
    """Closes the logs that nobody needs.

    Args:
        most_open: logs that may be open while others could be closed; default a share of the
            descriptors of this process.
    """

    def __init__(self, most_open: int | None = None) -> None:
        share = int(descriptor_limit() * LOGS_SHARE / FILES_OF_A_LOG)
        self._most_open = max(_FEWEST, share if most_open is None else most_open)
        self._used_at: dict[LogLife, float] = {}  # the open ones, by the time of their last use
        self._published: dict[LogLife, int] = {}
        self._work = Wakeup()

    def opened(self, life: LogLife) -> None:
        """See log_life.LogUse."""
        self._touch(life)
        if len(self._used_at) > self._most_open:
            self._work.set()

    def used(self, life: LogLife) -> None:
        """See log_life.LogUse."""
        if life in self._used_at:
            self._touch(life)

    def _touch(self, life: LogLife) -> None:
        self._used_at.pop(life, None)
        self._used_at[life] = trio.current_time()  # the last one: the order is by use

    async def run(self) -> None:
        """Close logs until cancelled."""
        while True:
            with trio.move_on_after(_SWEEP_SECONDS):
                await self._work.wait()
            await self.sweep()

    async def sweep(self) -> None:
        """Close logs that have been idle for long, and as many more as the budget wants."""
        self._note_publishing()
        for life in list(self._used_at):
            if life not in self._used_at:
                continue  # `inspect` has closed it meanwhile
            if life.state in (StreamState.GONE, StreamState.CLOSED, StreamState.UNAVAILABLE):
                self._forget(life)
                continue
            is_old = self._used_at[life] + _IDLE_SECONDS <= trio.current_time()
            if (is_old or len(self._used_at) > self._most_open) and life.is_idle:
                await life.close()
                self._forget(life)
        await trio.lowlevel.checkpoint()

    def _note_publishing(self) -> None:
        """Publishing is use, too, but too frequent to be counted each time."""
        for life in list(self._used_at):
            count = life.num_published
            if self._published.get(life) != count:
                if life in self._published:
                    self._touch(life)
                self._published[life] = count

    def _forget(self, life: LogLife) -> None:
        if life.state is not StreamState.OPEN:  # else it was opened again meanwhile
            self._used_at.pop(life, None)
            self._published.pop(life, None)

    async def inspect(
        self, streams: Callable[[], Iterable[LogLife]], supervisor: Supervisor
    ) -> None:
        """Look once at each stream that nobody has opened since the start."""
        for life in list(streams()):
            if life.state is StreamState.CLOSED and life.figures is None:
                with supervisor.guarded("looking at a stream", life.name):
                    await self._look_at(life)

    async def _look_at(self, life: LogLife) -> None:
        try:
            async with life.opened():
                await life.held.expire()
        except Refused:
            return  # the log says why; it is shown as an alarm
        await life.close()
        self._forget(life)
        await trio.sleep(_INSPECT_SECONDS)
