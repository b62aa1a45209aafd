"""Segments of a log that are worked on beside its flushes: nobody removes their files meanwhile."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio

from segments import Log
from segments.segment import Segment


class HeldSegments:
    """The segments of a log whose files are needed for a while.

    Attributes:
        goes_before: base offset: segments before it are about to go.
        is_stopped: no work on files is begun any more.
    """

    def __init__(self, log: Log, released: Callable[[], Awaitable[None]]) -> None:
        self.goes_before = 0
        self.is_stopped = False
        self._log = log
        self._released = released  # called when work that could be cancelled is over
        self._held: Counter[Segment] = Counter()
        self._scopes: dict[trio.CancelScope, Segment] = {}
        self._has_worked = trio.lowlevel.ParkingLot()

    @property
    def busy(self) -> set[Segment]:
        """The segments that are held."""
        return set(self._held)

    def has_before(self, offset: int) -> bool:
        """One that begins before an offset is held."""
        return any(segment.base_offset < offset for segment in self._held)

    def may_hold(self, segment: Segment) -> bool:
        """Its files are there, and are not about to go."""
        is_kept = self._log.keeps(segment) and segment.base_offset >= self.goes_before
        return is_kept and not self.is_stopped

    @contextmanager
    def hold(self, segment: Segment) -> Iterator[None]:
        """Its files stay while the block lasts; see `may_hold`."""
        self._held[segment] += 1
        try:
            yield
        finally:
            self._held -= Counter((segment,))  # without those that have none left
            self._has_worked.unpark_all()

    @asynccontextmanager
    async def holding(self, segment: Segment) -> AsyncIterator[bool]:
        """The same for work that others cancel who remove the files.

        Gives whether they may be touched at all.
        """
        if not self.may_hold(segment):
            yield False
            return
        scope = trio.CancelScope()
        with self.hold(segment):
            self._scopes[scope] = segment
            try:
                with scope:
                    yield True
            finally:
                del self._scopes[scope]
        await self._released()

    def cancel(self, segments: Collection[Segment]) -> None:
        """End the work on some of them that can be cancelled."""
        for scope, segment in self._scopes.items():
            if segment in segments:
                scope.cancel()

    async def wait(self) -> None:
        """Return when one is held no more."""
        await self._has_worked.park()

    def stop(self) -> None:
        """Hold no more, and end what can be cancelled."""
        self.is_stopped = True
        self.cancel(self._scopes.values())
