"""The watch of the loop: who holds it is named, waits, and is ended when it happens again.

Theory of operation. All connections share one event loop. What each of them has done is bounded by
counted work, so that nobody holds the others for longer than HELD_SECONDS. This finds what is not.
Each piece of work that a connection asks for is timed, from where it begins to where others have
their turn. One that takes longer is logged and counted, and its connection waits until it has
used no more than its share of the loop; done again within AGAIN_SECONDS, it ends the connection.

A piece may take long without being to blame: the process was stopped, swapped out or not given a
processor, another thread had the interpreter, or garbage was collected. So what counts is for how
long the loop's own thread has worked. To ask for that costs as much as carrying out a small
command: it is asked every SAMPLE_SECONDS, and what may have been worked between that and the
beginning of a piece is taken off.
"""

import gc
import logging
import math
from collections.abc import Callable, Coroutine, Generator
from time import perf_counter, thread_time
from typing import Any, Generic, TypeVar

from streamd.broker.traffic import ProtocolTraffic

logger = logging.getLogger(__name__)

HELD_SECONDS = 0.05
AGAIN_SECONDS = 60
SAMPLE_SECONDS = 0.01
_WAITS = 9  # times as long: a connection then has a tenth of the loop
_MOST_SECONDS = 10
_FULL = 2  # the generation in which the collector looks at everything

Result = TypeVar("Result")


class LoopClock:
    """For how long the loop's thread has worked.

    Args:
        now: seconds.
        worked: seconds of processor that the thread has used.

    Attributes:
        now: see above.
        due: when `sample` is to be called next; by those who begin a piece of work.
    """

    def __init__(
        self, now: Callable[[], float] = perf_counter, worked: Callable[[], float] = thread_time
    ) -> None:
        self.now = now
        self.due = -math.inf
        self._worked = worked
        self._sampled_at = self._worked_then = 0.0
        self._collected = self._collecting_since = 0.0

    def sample(self, now: float) -> None:
        """Note for how long the thread has worked so far."""
        self._sampled_at, self.due = now, now + SAMPLE_SECONDS
        self._worked_then = self._worked() - self._collected

    def held(self, began: float) -> float:
        """For how long a piece of work has held the loop; 0.0 unless that is too long."""
        worked = self._worked() - self._collected - self._worked_then
        seconds = min(worked - (began - self._sampled_at), self.now() - began)
        return seconds if seconds > HELD_SECONDS else 0.0

    def collects(self, phase: str, info: dict[str, int]) -> None:
        """See gc.callbacks: how much garbage there is to be looked at is nobody's doing."""
        if info["generation"] < _FULL:
            return
        if phase == "start":
            self._collecting_since = self._worked()
        else:
            self._collected += self._worked() - self._collecting_since


_clock = LoopClock()
gc.callbacks.append(_clock.collects)


class Watch:
    """Times what one connection has done.

    Args:
        who: the connection, for the log.
        traffic: counts what clients of its protocol do.
        end: ends it, for the reason given.
        clock: of the loop.

    Attributes:
        pause: seconds for which the connection has to wait before its next command.
        clock: see above.
    """

    def __init__(
        self,
        who: str,
        traffic: ProtocolTraffic,
        end: Callable[[str], None],
        clock: LoopClock = _clock,
    ) -> None:
        self.pause = 0.0
        self.clock = clock
        self._who = who
        self._traffic = traffic
        self._end = end
        self._last_held = -math.inf

    def begin(self) -> float:
        """A piece of work begins; returns when, for `check`."""
        now = self.clock.now()
        if now > self.clock.due:
            self.clock.sample(now)
        return now

    def check(self, began: float, what: Callable[[], str], *, is_asked_for: bool = True) -> None:
        """A piece of work is over: see to it if it was long.

        Args:
            began: see `begin`.
            what: says what it was.
            is_asked_for: its price is this client's doing; what others have stored is not.
        """
        if self.clock.now() - began <= HELD_SECONDS:
            return
        seconds = self.clock.held(began)
        if not seconds:
            return
        self._traffic.loop_held += 1
        self._traffic.loop_held_seconds += seconds
        self.pause = min(_WAITS * seconds, _MOST_SECONDS)
        command = what()
        logger.warning(
            "%s: %s held everybody up for %.0f ms, at most %.0f are allowed; it waits for %.1f s",
            self._who,
            command,
            1_000 * seconds,
            1_000 * HELD_SECONDS,
            self.pause,
        )
        if not is_asked_for:
            return
        if began - self._last_held < AGAIN_SECONDS:
            self._end(f"{command} has held everybody up again, for {1_000 * seconds:.0f} ms")
        self._last_held = began

    def take_pause(self) -> float:
        """See `pause`; it is waited for by who asks."""
        pause, self.pause = self.pause, 0.0
        return pause


class Watched(Generic[Result]):
    """To be awaited: work whose pieces, between the places where it waits, are timed.

    Args:
        watch: of the connection that asks for it.
        work: to be done.
        what: says what it is.
    """

    def __init__(
        self, watch: Watch, work: Coroutine[Any, Any, Result], what: Callable[[], str]
    ) -> None:
        self._watch = watch
        self._work = work
        self._what = what

    def __await__(self) -> Generator[Any, Any, Result]:
        work, watch = self._work, self._watch
        step, given = work.send, None
        while True:
            began = watch.begin()
            try:
                asked = step(given)
            except StopIteration as end:
                result: Result = end.value
                return result
            finally:
                watch.check(began, self._what)
            try:
                step, given = work.send, (yield asked)
            except BaseException as error:  # noqa: BLE001 - the work is told
                step, given = work.throw, error
