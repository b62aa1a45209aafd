"""The one way to a worker thread, so that tests can do without threads."""

from collections.abc import Callable
from typing import TypeVar

import trio

Result = TypeVar("Result")


async def in_thread(work: Callable[..., Result], *arguments: object) -> Result:
    """Run blocking work in a thread; not abandoned on cancel: the caller always learns the outcome.

    A hop costs about 100 µs: for calls that wait for a disk, not for writes to the page cache.
    """
    return await trio.to_thread.run_sync(work, *arguments)
