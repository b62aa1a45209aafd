"""Work that is given to threads, and waits: until it may go on, or for a while."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import trio

from segments.flush import Flush
from streamd.net import threads

Chosen = Callable[[Any], bool]  # whether it is this work


def all_of_it(_work: object) -> bool:
    return True


def is_flush(work: object) -> bool:
    return isinstance(getattr(work, "__self__", None), Flush)


def named(*names: str) -> Chosen:
    """Functions of these names."""
    return lambda work: getattr(work, "__name__", "") in names


class HeldWork(NamedTuple):
    """Work that waits.

    Attributes:
        has_begun: some of it is there.
        goes_on: set it to let it go on.
    """

    has_begun: trio.Event
    goes_on: trio.Event


def before_work(
    patch: pytest.MonkeyPatch, do: Callable[[], Awaitable[Any]], chosen: Chosen = all_of_it
) -> None:
    """From now on something is done before such work."""
    inner = threads.in_thread

    async def in_thread(work: Callable[..., Any], *arguments: object) -> Any:
        if chosen(work):
            await do()
        return await inner(work, *arguments)

    patch.setattr(threads, "in_thread", in_thread)


def delay_work(patch: pytest.MonkeyPatch, seconds: float, chosen: Chosen = all_of_it) -> None:
    """From now on such work takes some seconds more."""
    before_work(patch, partial(trio.sleep, seconds), chosen)


def hold_work(
    patch: pytest.MonkeyPatch, chosen: Chosen = all_of_it, error: Exception | None = None
) -> HeldWork:
    """From now on such work waits, and fails then where an error is given."""
    held = HeldWork(trio.Event(), trio.Event())

    async def wait() -> None:
        held.has_begun.set()
        await held.goes_on.wait()
        if error is not None:
            raise error

    before_work(patch, wait, chosen)
    return held
