"""Background tasks, none of which can end the server.

Each runs under a name that says what it does and for which stream. An exception is logged with that
name and counted; a task that is to run for ever is started again after a pause, which doubles with
each failure in a row up to a maximum and is forgotten once the task has run well for a while.

A test enumerates the tasks that a server starts and lets each of them fail: start one without the
supervisor, and that test fails.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial

import trio

from segments.errors import SegmentsError
from streamd.net.actor import serves

logger = logging.getLogger(__name__)

_FIRST_PAUSE = 0.1  # seconds
_LONGEST_PAUSE = 30.0
_LATELY = 3_600.0  # seconds
_RUNS_WELL = 60.0  # seconds after which the pauses begin again


class OverError(SegmentsError):
    """What a supervisor worked for has ended: the server, or its lead of a shard."""


class Supervisor:
    """Starts tasks and keeps them running.

    Whoever has begun something that is not cancelled may want a task when the supervisor's nursery
    has ended: `start` and `start_once` raise OverError then.

    Attributes:
        faults: how often a task has failed, by its kind.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self.faults: Counter[str] = Counter()
        self._failed_at: dict[str, float] = {}
        self._nursery = nursery

    @property
    def num_faults(self) -> int:
        """How often any task has failed."""
        return self.faults.total()

    def faults_lately(self) -> dict[str, int]:
        """The entries of `faults` whose latest fault is less than an hour old."""
        now = trio.current_time()
        kinds = [kind for kind, at in self._failed_at.items() if now - at < _LATELY]
        return {kind: self.faults[kind] for kind in kinds}

    def within(self, nursery: trio.Nursery) -> "Supervisor":
        """One that starts tasks in another nursery; faults are counted together."""
        found = Supervisor(nursery)
        found.faults, found._failed_at = self.faults, self._failed_at
        return found

    def start(
        self,
        kind: str,
        task: Callable[[], Awaitable[None]],
        subject: str = "",
        scope: trio.CancelScope | None = None,
        nursery: trio.Nursery | None = None,
    ) -> None:
        """Run a task until it returns or is cancelled; a failure starts it again.

        Args:
            kind: what it does, for the log and the count.
            task: started again where it left off, so it must not rely on what it had in hand.
            subject: for whom: the name of a stream, say.
            scope: cancels it; default the nursery's alone.
            nursery: in which it runs; default that of all.
        """
        self.faults[kind] += 0  # it is there from now on, for those who look for a rise
        keep_running = partial(self._keep_running, kind, task, subject, scope)
        _start(nursery or self._nursery, keep_running, kind)

    def start_once(
        self,
        kind: str,
        task: Callable[[], Awaitable[None]],
        subject: str = "",
    ) -> None:
        """Run a task once; a failure is logged and counted."""
        _start(self._nursery, partial(self._run_once, kind, task, subject), kind)

    @contextmanager
    def guarded(self, kind: str, subject: str = "") -> Iterator[None]:
        """A failure in the block is logged and counted, and goes no further."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays here
            self.failed(kind, subject, error)

    def failed(self, kind: str, subject: str, error: BaseException) -> None:
        """Log and count a failure that its task has survived."""
        self.faults[kind] += 1
        self._failed_at[kind] = trio.current_time()
        where = f"{kind} ({subject})" if subject else kind
        logger.error("%s failed, the rest goes on", where, exc_info=error)

    async def _run_once(self, kind: str, task: Callable[[], Awaitable[None]], subject: str) -> None:
        serves(None)
        with self.guarded(kind, subject):
            await task()

    async def _keep_running(
        self,
        kind: str,
        task: Callable[[], Awaitable[None]],
        subject: str,
        scope: trio.CancelScope | None,
    ) -> None:
        serves(None)
        pause = _FIRST_PAUSE
        with scope or trio.CancelScope():
            while True:
                began_at = trio.current_time()
                try:
                    await task()
                    return
                except Exception as error:  # noqa: BLE001 - as above
                    self.failed(kind, subject, error)
                if trio.current_time() - began_at > _RUNS_WELL:
                    pause = _FIRST_PAUSE
                await trio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)


def _start(nursery: trio.Nursery, task: Callable[[], Awaitable[None]], kind: str) -> None:
    try:
        nursery.start_soon(task, name=kind)
    except RuntimeError as error:
        raise OverError(f"{kind} is over: this server stops, or leads it no more") from error
