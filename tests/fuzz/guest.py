"""An event loop that stands still between calls.

A fuzzer calls a function with one input after the other, and a server lives in an event loop. One
loop per input would cost more than the input, so this one goes on where it stood. It is trio's
guest mode: the loop hands out its turns one by one, which also counts them.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio
from outcome import Outcome, acapture
from trio.testing import MockClock

from tests.fuzz.work import TURN

Result = TypeVar("Result")


class TooManyTurns(Exception):
    """The loop has turned more often than anything may take: something goes round in circles."""


class Guest:
    """A program in a loop at virtual time.

    Args:
        program: awaits the function that it gets again and again, as long as it returns True;
            each time that carries out what `run` was called with.
    """

    def __init__(self, program: Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]]) -> None:
        self._turns: deque[Callable[[], object]] = deque()
        self._work: Callable[[], Awaitable[Any]] | None = None
        self._result: Outcome[Any] | None = None
        self._end: Outcome[Any] | None = None
        self._is_closing = False
        self._working = trio.CancelScope()
        trio.lowlevel.start_guest_run(
            program,
            self._serve,
            run_sync_soon_threadsafe=self._turns.append,
            done_callback=self._ended,
            host_uses_signal_set_wakeup_fd=True,
            clock=MockClock(autojump_threshold=0),
        )

    async def _serve(self) -> bool:
        while self._work is None:
            if self._is_closing:
                return False
            await trio.lowlevel.checkpoint()
        work, self._work = self._work, None
        with self._working:
            self._result = await acapture(work)
        return not self._is_closing

    def _ended(self, end: Outcome[Any]) -> None:
        self._end = end

    def run(self, work: Callable[[], Awaitable[Result]], most: int) -> Result:
        """Let the loop turn until `work` is done.

        Raises:
            TooManyTurns: it has turned `most` times, and it is not.
        """
        self._result, self._work, self._working = None, work, trio.CancelScope()
        for _ in range(most):
            TURN.next_turn()
            self._turns.popleft()()
            if self._result is not None:
                found: Result = self._result.unwrap()
                return found
            if self._end is not None:
                self._end.unwrap()
                raise RuntimeError("the program has ended")
        raise TooManyTurns(f"{most} turns of the event loop were not enough")

    def close(self, most: int) -> None:
        """End the program, and what it may be at.

        Raises:
            TooManyTurns: it does not end.
        """
        self._is_closing = True
        self._working.cancel()
        for _ in range(most):
            if self._end is not None:
                self._end.unwrap()
                return
            self._turns.popleft()()
        raise TooManyTurns(f"after {most} turns of the event loop it has not ended")
