"""A line to the store of a test that all requests share, at virtual time.

As with a network, what is sent together arrives together; and as the library of real stores does,
it gives up a request that takes too long.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import trio

from segments.store.object_store import MOST_IN_REQUEST, TierError
from streamd.broker.tier.requests import expect
from streamd.net import threads
from tests.support.fake_store import WRITES, FakeStore

_QUANTUM = 32  # of these make a part


class Line:
    """The line.

    Args:
        rate: bytes a second.
        part: bytes of a file that are one request.
        deadline: seconds that a request may take.

    Attributes:
        sent: bytes so far, of requests that were given up as well.
        most: requests that were under way at once.
        stalled_until: nothing moves before.
    """

    def __init__(self, rate: float, part: int, deadline: float) -> None:
        self.rate, self.part, self.deadline = rate, part, deadline
        self.sent = 0.0
        self.most = 0
        self.stalled_until = -math.inf
        self._now = 0
        self._turn = trio.Lock()

    async def file(self, size: int, at_once: int) -> None:
        """Send a file in parts."""
        sizes = iter([min(self.part, size - at) for at in range(0, size, self.part)])
        failed: list[TierError] = []

        async def parts() -> None:
            try:
                for some in sizes:
                    expect(at_once * MOST_IN_REQUEST)
                    await self.request(some)
            except TierError as error:
                failed.append(error)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for _ in range(at_once):
                nursery.start_soon(parts)
        if failed:
            raise failed[0]

    async def request(self, size: int) -> None:
        """Send one request: a little of each that is under way, in turn."""
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            with trio.move_on_after(self.deadline):
                for _ in range(_QUANTUM):
                    async with self._turn:
                        await trio.sleep_until(self.stalled_until)
                        await trio.sleep(size / _QUANTUM / self.rate)
                    self.sent += size / _QUANTUM
                return
        finally:
            self._now -= 1
        raise TierError("there was no answer in time")


@contextmanager
def on_line(store: FakeStore, line: Line) -> Iterator[None]:
    """Whoever writes into the store waits for the line. Inside of a `harness`.

    Changes of the catalog do not: beside the segments of tests they are large.
    """
    inner = threads.in_thread

    async def in_thread(work: Callable[..., Any], *arguments: object) -> Any:
        if getattr(work, "__name__", "") == "put_file":
            _, _, size, at_once, _ = arguments
            await line.file(size, at_once)  # type: ignore[arg-type]
            return await inner(work, *arguments)
        before = len(store.calls)
        try:
            return await inner(work, *arguments)
        finally:
            calls = [call for call in store.calls[before:] if call.name in WRITES]
            written = sum(
                call.size
                for call in calls
                if "/~log/" not in call.key and "/~snapshots/" not in call.key
            )
            if written:
                await line.request(written)

    threads.in_thread = in_thread
    try:
        yield
    finally:
        threads.in_thread = inner
