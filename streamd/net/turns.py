"""Work that can be put aside: done in steps, so that others have their turn between two of them.

How much a request costs may depend on what is in it, or on what others have declared: the values of
a table, bindings, the contents of a compressed batch. Such work is a generator that yields every
millisecond or so. Most of it is done within one step, in place; what is not is finished by the task
of the connection that asked, which reads nothing meanwhile.

All who work in steps stand in one line, and one of them goes on in each turn of the event loop
(`next_turn`): how long a turn takes must not depend on how many they are.
"""

from collections import deque
from collections.abc import Generator, Iterable
from time import perf_counter
from typing import Generic, TypeAlias, TypeVar

import trio

Result = TypeVar("Result")
Item = TypeVar("Item")
Steps: TypeAlias = Generator[None, None, Result]

_TURN_SECONDS = 0.002
STEP_UNITS = 1_000  # comparisons or other small pieces of work in a step

_line: trio.lowlevel.RunVar[deque[trio.lowlevel.Task]] = trio.lowlevel.RunVar("line")


async def next_turn() -> None:
    """Return in a later turn of the event loop, in which nobody else returns from here."""
    try:
        line = _line.get()
    except LookupError:
        line = deque()
        _line.set(line)
    task = trio.lowlevel.current_task()

    def give_up(_: object) -> trio.lowlevel.Abort:
        line.remove(task)
        return trio.lowlevel.Abort.SUCCEEDED

    line.append(task)
    try:
        if line[0] is task:
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.wait_task_rescheduled(give_up)
    finally:
        if line and line[0] is task:  # else it gave up before its turn came
            line.popleft()
            if line:
                trio.lowlevel.reschedule(line[0])


class Stepwise(Generic[Result]):
    """Work in steps, the first of which is done at once.

    Args:
        steps: yields after each step but the last, and returns the result.

    Attributes:
        is_done: it has a result.
        result: what the work has come to; there once it is done.
    """

    result: Result

    def __init__(self, steps: Steps[Result]) -> None:
        self._steps = steps
        self.is_done = False
        self.go_on()

    def go_on(self) -> None:
        """Do one step.

        Raises:
            Exception: what the work raises.
        """
        try:
            next(self._steps)
        except StopIteration as end:
            self.result, self.is_done = end.value, True

    async def finish(self) -> Result:
        """Do the rest, others have their turn before each step.

        Raises:
            Exception: see `go_on`.
        """
        while not self.is_done:
            await next_turn()
            self.go_on()
        return self.result


class in_turns(Generic[Item]):  # noqa: N801 - used as a function
    """Yield items; others have their turn after each few milliseconds of work on them.

    What an item costs may be chosen by a peer: how long a name is, and what is asked about it.
    No generator: a loop over it may be left at any time.
    """

    def __init__(self, items: Iterable[Item]) -> None:
        self._items = iter(items)
        self._began = perf_counter()

    def __aiter__(self) -> "in_turns[Item]":
        return self

    async def __anext__(self) -> Item:
        if perf_counter() - self._began > _TURN_SECONDS:
            await next_turn()
            self._began = perf_counter()
        try:
            return next(self._items)
        except StopIteration:
            raise StopAsyncIteration from None
