"""Requests to the store: in threads of their own, counted, and with an end.

A request may hang for as long as the store's time limits allow. So it does not use up the threads
that others need for the disk, and whoever waits for it can be cancelled, when the server stops for
one: the thread is left alone then, and what it does is of no harm, as every write may be repeated,
or is a compare-and-set. It ends with its next request, or the next part of a file, so that nothing
is sent that nobody waits for.

Whoever waits does so for as long as something moves. How long that is at most, each request says
when it begins, and a file with each part that has arrived.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import trio

from segments.disk import Buffer
from segments.store.object_store import (
    MOST_IN_REQUEST,
    MOST_WHOLE,
    SLOWEST,
    ConflictError,
    Listed,
    MissingError,
    ObjectStore,
    StoredObject,
    TierError,
    ignored,
)
from streamd.net import threads
from streamd.operations.tier_reports import Kind

Result = TypeVar("Result")

_MOST_THREADS = 16
_PATIENCE_SECONDS = 300.0  # with a request without a body; longer than stores have it

_expecting: ContextVar[Callable[[int], None]] = ContextVar("expecting", default=ignored)


def expect(size: int) -> None:
    """Something has moved, and so many bytes will: for that long `ask` waits. In its thread.

    Raises:
        TierError: nobody waits any more.
    """
    _expecting.get()(size)


_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("asking the store")


def _threads() -> trio.CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        limiter = trio.CapacityLimiter(_MOST_THREADS)
        _limiter.set(limiter)
        return limiter


class CountedStore:
    """A store that counts what is asked of it; see ObjectStore.

    Attributes:
        requests: so far, by kind.
        transferred: bytes of those that were answered, and of parts of files, by kind.
        file_bytes: of files that were put, in parts that have arrived.
        errors: requests that failed; what is missing, or was changed meanwhile, is no failure.
    """

    def __init__(self, inner: ObjectStore) -> None:
        self.requests: Counter[str] = Counter()
        self.transferred: Counter[str] = Counter()
        self.file_bytes = self.errors = 0
        self._inner = inner
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return repr(self._inner)

    @contextmanager
    def _counted(self, kind: Kind, size: int = 0) -> Iterator[None]:
        expect(size)
        with self._lock:
            self.requests[kind] += 1
        try:
            yield
        except (MissingError, ConflictError):
            raise
        except TierError:
            with self._lock:
                self.errors += 1
            raise

    def _add(self, kind: Kind, size: int) -> None:
        with self._lock:
            self.transferred[kind] += size

    def get(self, key: str, most: int = MOST_WHOLE) -> StoredObject:  # noqa: D102 - see ObjectStore
        with self._counted(Kind.GET):
            found = self._inner.get(key, most)
        self._add(Kind.GET, len(found.content))
        return found

    def get_changed(self, key: str, etag: str) -> StoredObject | None:  # noqa: D102 - see ObjectStore
        with self._counted(Kind.GET):
            found = self._inner.get_changed(key, etag)
        self._add(Kind.GET, 0 if found is None else len(found.content))
        return found

    def get_range(self, key: str, start: int, size: int) -> Buffer:  # noqa: D102 - see ObjectStore
        with self._counted(Kind.GET, size):
            found = self._inner.get_range(key, start, size)
        self._add(Kind.GET, size)
        return found

    def put(self, key: str, content: Buffer) -> None:  # noqa: D102 - see ObjectStore
        with self._counted(Kind.PUT, len(content)):
            self._inner.put(key, content)
        self._add(Kind.PUT, len(content))

    def put_file(  # noqa: D102 - see ObjectStore
        self,
        key: str,
        path: str,
        size: int,
        at_once: int = 1,
        moved: Callable[[int], None] = ignored,
    ) -> None:
        under_way = at_once * MOST_IN_REQUEST

        def note_moved(some: int) -> None:
            self._add(Kind.PUT, some)
            with self._lock:
                self.file_bytes += some
            moved(some)
            expect(under_way)

        with self._counted(Kind.PUT, under_way):
            self._inner.put_file(key, path, size, at_once, note_moved)

    def create(self, key: str, content: bytes) -> str:  # noqa: D102 - see ObjectStore
        with self._counted(Kind.PUT, len(content)):
            etag = self._inner.create(key, content)
        self._add(Kind.PUT, len(content))
        return etag

    def replace(self, key: str, content: bytes, etag: str) -> str:  # noqa: D102 - see ObjectStore
        with self._counted(Kind.PUT, len(content)):
            found = self._inner.replace(key, content, etag)
        self._add(Kind.PUT, len(content))
        return found

    def listing(  # noqa: D102 - see ObjectStore
        self, folder: str, after: str = ""
    ) -> Iterator[Listed]:
        with self._counted(Kind.LIST):
            yield from self._inner.listing(folder, after)

    def folders(self, folder: str) -> list[str]:  # noqa: D102 - see ObjectStore
        with self._counted(Kind.LIST):
            return self._inner.folders(folder)

    def delete(self, keys: list[str]) -> None:  # noqa: D102 - see ObjectStore
        with self._counted(Kind.DELETE):
            self._inner.delete(keys)


class _LeftError(TierError):
    """Nobody waits for it any more."""


async def ask(work: Callable[..., Result], *arguments: object) -> Result:
    """Ask the store for something, in a thread.

    Args:
        work: calls the store; what it does may go on for a request when this is cancelled.
        arguments: of it.

    Raises:
        TierError: nothing has moved for too long; and what `work` raises.
    """
    loop = trio.lowlevel.current_trio_token()
    is_over, seconds = False, _PATIENCE_SECONDS

    def expecting(size: int) -> None:
        if is_over:
            raise _LeftError("nobody waits for the store any more")
        loop.run_sync_soon(wait_longer, _PATIENCE_SECONDS + size / SLOWEST)

    def wait_longer(longer: float) -> None:
        nonlocal seconds
        seconds, waiting.deadline = longer, trio.current_time() + longer

    with trio.move_on_after(seconds) as waiting:
        token = _expecting.set(expecting)
        try:
            with threads.using(_threads()):
                return await threads.in_thread(work, *arguments)
        finally:
            is_over = True
            _expecting.reset(token)
    raise TierError(f"the store has not answered for {seconds:.0f} seconds")
