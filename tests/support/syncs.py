"""Who waits for the device: threads may, the event loop never; all connections would wait, too."""

import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import trio

Result = TypeVar("Result")

_beside = 0  # pieces of work that run in place of a thread
_found: list[str] | None = None


def work_beside(work: Callable[..., Result], *arguments: object) -> Result:
    """Do on the event loop, for a test, what a thread does in production: it may sync."""
    global _beside  # noqa: PLW0603 - one event loop at a time
    _beside += 1
    try:
        return work(*arguments)
    finally:
        _beside -= 1


def sync(descriptor: int) -> None:
    """In place of `os.fsync`: no power fails here; notes where the event loop would have waited."""
    os.fstat(descriptor)
    if _found is not None and not _beside and trio.lowlevel.in_trio_run():
        _found.append("".join(traceback.format_stack(limit=12)[:-1]))


@contextmanager
def none_on_the_loop() -> Iterator[None]:
    """Fail after the block if the event loop has synced a file in it."""
    global _found  # noqa: PLW0603 - as above
    before, _found = _found, []
    found = _found
    try:
        yield
    finally:
        _found = before
    assert not found, f"the event loop waited for the device:\n{found[0]}"
