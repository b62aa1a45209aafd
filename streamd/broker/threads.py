"""The one way to a worker thread, so that tests can do without threads."""

import errno
import os
from collections.abc import Callable
from typing import TypeVar

import trio

from segments.errors import StorageError

Result = TypeVar("Result")


async def in_thread(work: Callable[..., Result], *arguments: object) -> Result:
    """Run blocking work in a thread; not abandoned on cancel: the caller always learns the outcome.

    A hop costs about 100 µs: for calls that wait for a disk, not for writes to the page cache.

    Raises:
        StorageError: the system gives no thread for it: a shortage, and nothing was done.
    """
    has_begun = False

    def begin() -> Result:
        nonlocal has_begun
        has_begun = True
        return work(*arguments)

    try:
        return await trio.to_thread.run_sync(begin)
    except RuntimeError as error:
        if has_begun:
            raise
        cause = OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        raise StorageError("begin", "work in a thread", cause) from error
