"""How much the server does in one turn of the event loop: by counted work, not by the clock.

A turn is what one task does between two checkpoints; nobody else is served meanwhile. What is
counted are the lines of Python that it runs, and calls into C, however fast the machine is. A few
functions of C take as long as what they are given is large: those are charged by size.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import trio

# Some 50 ms on a machine of 2024: a line, with what it calls in C, takes some 100 ns.
MOST_UNITS = 500_000
_BYTES_A_UNIT = 16  # of JSON that is read or written


class Watchdog(trio.abc.Instrument):
    """Counts the work of each turn of the tasks that are not the test's own.

    Attributes:
        longest: the most work of a turn since `reset`.
        where: the name of its task.
    """

    def __init__(self) -> None:
        self._own = trio.lowlevel.current_task()
        self._units = 0
        self.longest, self.where = 0, ""

    def reset(self) -> None:
        """Begin anew."""
        self.longest, self.where = 0, ""

    # -- see trio.abc.Instrument

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._units = 0
        if task is not self._own:
            sys.settrace(self._trace)
            sys.setprofile(self._profile)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        sys.settrace(None)
        sys.setprofile(None)
        if task is not self._own and self._units > self.longest:
            self.longest, self.where = self._units, task.name

    # -- counting

    def _trace(self, _frame: FrameType, _event: str, _arg: Any) -> Any:
        self._units += 1
        return self._trace

    def _profile(self, _frame: FrameType, event: str, _arg: Any) -> None:
        if event == "c_call":
            self._units += 1

    def charge(self, units: int) -> None:
        """Count work that was done in C."""
        self._units += units

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count what a thread would do."""
        units = self._units
        sys.settrace(None)
        sys.setprofile(None)
        try:
            yield
        finally:
            self._units = units
            if trio.lowlevel.current_task() is not self._own:
                sys.settrace(self._trace)
                sys.setprofile(self._profile)


@contextmanager
def watchdog(patch: Any) -> Iterator[Watchdog]:
    """Watch the turns of all tasks but this one.

    Args:
        patch: pytest's monkeypatch, in a harness that runs.
    """
    from streamd.net import threads  # noqa: PLC0415 - the harness has replaced what is in it

    dog = Watchdog()
    inline = threads.in_thread

    async def in_thread(work: Callable[..., Any], *arguments: object) -> Any:
        def uncounted(*given: object) -> Any:
            with dog.paused():
                return work(*given)

        return await inline(uncounted, *arguments)

    patch.setattr(threads, "in_thread", in_thread)
    loads, dumps = json.loads, json.dumps

    def charged_loads(data: Any, **options: Any) -> Any:
        dog.charge(len(data) // _BYTES_A_UNIT)
        return loads(data, **options)

    def charged_dumps(value: Any, **options: Any) -> str:
        text = dumps(value, **options)
        dog.charge(len(text) // _BYTES_A_UNIT)
        return text

    patch.setattr(json, "loads", charged_loads)
    patch.setattr(json, "dumps", charged_dumps)
    trio.lowlevel.add_instrument(dog)
    try:
        yield dog
    finally:
        trio.lowlevel.remove_instrument(dog)
        sys.settrace(None)
        sys.setprofile(None)
