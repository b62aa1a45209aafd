"""The one way to a worker thread, so that tests can do without threads."""

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from typing import TypeVar

import trio

from segments.errors import StorageError

Item = TypeVar("Item")
Result = TypeVar("Result")

# Whose threads work is done in: the default limiter of trio's, unless a task says otherwise; then
# its work is abandoned when it is cancelled, which is nothing but a question to somebody far away.
_limiter: ContextVar[trio.CapacityLimiter | None] = ContextVar("threads", default=None)

_AGAIN_SECONDS = 1  # until the system is asked for a thread again

_turn: trio.lowlevel.RunVar[trio.Lock] = trio.lowlevel.RunVar("computing")


class NoThread(StorageError):
    """The system gives no thread: a shortage, and nothing was done."""

    def __init__(self) -> None:
        cause = OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        super().__init__("begin", "work in a thread", cause)


async def in_thread(work: Callable[..., Result], *arguments: object) -> Result:
    """Run blocking work in a thread; not abandoned on cancel: the caller always learns the outcome.

    A hop costs about 100 µs: for calls that wait for a disk, not for writes to the page cache.

    Raises:
        NoThread: the system gives no thread for it.
    """
    has_begun = False

    def begin() -> Result:
        nonlocal has_begun
        has_begun = True
        return work(*arguments)

    try:
        own = _limiter.get()
        if own is None:
            return await trio.to_thread.run_sync(begin)
        return await trio.to_thread.run_sync(begin, limiter=own, abandon_on_cancel=True)
    except RuntimeError as error:
        if has_begun:
            raise
        raise NoThread from error


def together(call: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """What a call that waits for somebody far away gives for each of a few items; blocks.

    It is called from a thread, as `in_thread` begins it, and begins one for each item; where the
    system gives none, one item comes after the other.
    """
    some = list(items)
    if len(some) == 1:
        return [call(some[0])]
    with ThreadPoolExecutor(len(some)) as pool:
        asked: list[Future[Result]] = []
        with suppress(RuntimeError):  # no thread
            asked.extend(pool.submit(copy_context().run, call, item) for item in some)
        return [one.result() for one in asked] + [call(item) for item in some[len(asked) :]]


def use(limiter: trio.CapacityLimiter) -> None:
    """Do the work of this task in threads that others do not wait for; see `_limiter`."""
    _limiter.set(limiter)


@contextmanager
def using(limiter: trio.CapacityLimiter) -> Iterator[None]:
    """The same for the work in a block."""
    token = _limiter.set(limiter)
    try:
        yield
    finally:
        _limiter.reset(token)


async def compute(work: Callable[..., Result], *arguments: object) -> Result:
    """As `in_thread`, for long work that any peer can ask for: one piece at a time.

    Together they are not done sooner, as they share an interpreter. All at once they would take the
    threads that others need for the disk, and the interpreter from the event loop.

    A thread that the system does not give is waited for: no peer has done anything wrong.
    """
    try:
        turn = _turn.get()
    except LookupError:
        turn = trio.Lock()
        _turn.set(turn)
    async with turn:
        while True:
            try:
                return await in_thread(work, *arguments)
            except NoThread:
                await trio.sleep(_AGAIN_SECONDS)
