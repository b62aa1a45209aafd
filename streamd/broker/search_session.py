"""What the engine does for one page of a search, wherever that is worked on: it answers."""

import os
from collections.abc import Iterable

import trio

from segments import Log
from segments.disk import OsFile
from segments.search.handing import Fetch, Fetched, Handing, Notes, Patient, Prompt
from segments.segment import SEGMENT_SUFFIX
from segments.store.cache import CachedSegment, ColdError, Pin, Range
from segments.tier.plan import Request
from streamd.broker.streams.fetcher import Demand, NoTierError
from streamd.broker.streams.stream import Stream
from streamd.net import threads

FETCH_SECONDS = 5.0  # that the first thing of a page may take to be fetched


class Session:
    """Answers what one page asks for.

    Args:
        stream: that is searched.
        log: of it; open as long as this is used.
        seconds: that the page should take.

    Attributes:
        fault: why nothing can be fetched.
    """

    def __init__(self, stream: Stream, log: Log, seconds: float) -> None:
        self.fault: NoTierError | None = None
        self._stream = stream
        self._handing = Handing(log)
        self._ends_at = trio.current_time() + seconds
        self._demand: Demand | None = None
        self._pins: list[Pin] = []
        self._ranges: list[Range] = []  # that they keep

    def now(self, question: Prompt) -> object:
        """The answer to a question that does not take long.

        Raises:
            StorageError: the system refused.
        """
        return self._handing.answer(question)

    async def later(self, question: Patient) -> Fetched:
        """The answer to one that may; what could not be had in time is not here.

        Raises:
            StorageError: the system refused.
        """
        base, is_fetch = question.files.base, isinstance(question, Fetch)
        deadline = self._ends_at
        if not (isinstance(question, Fetch) and question.has_progressed):
            deadline = max(deadline, trio.current_time() + FETCH_SECONDS)
        segment = self._handing.segment(base)
        is_here = True
        if segment is not None:
            with trio.move_on_at(deadline) as scope:
                try:
                    if isinstance(question, Fetch):
                        assert segment.cold is not None  # noqa: S101 - or nothing were missing
                        await self._fetch(segment.cold, question)
                    else:
                        await self._stream.life.held.load_keys(segment)
                except NoTierError as error:
                    self.fault = error
                    is_here = False
            is_here = is_here and not scope.cancelled_caught
        found = self._handing.files(question.files)
        cold = segment.cold if segment is not None else None
        if is_fetch and cold is not None and self._ranges:
            found = found._replace(files={**found.files, SEGMENT_SUFFIX: self._cached(cold)})
        return Fetched(is_here, tuple(self._ranges), found)

    async def _fetch(self, cached: CachedSegment, asked: Fetch) -> None:
        if not asked.is_more:
            self._release()
        if self._demand is None:
            self._demand = self._stream.demand()
        requests = [Request(cached, where) for where in asked.ranges]
        await self._demand.fetch(ColdError(cached, asked.wanted, asked.suffix), requests)
        self._hold(cached, [asked.wanted, *asked.ranges])
        self._demand.release()

    def _hold(self, cached: CachedSegment, wanted: Iterable[Range]) -> None:
        """Keep what is here of some bytes."""
        for where in wanted:
            start = where.start
            for gap in [*cached.missing(*where), Range(where.end, where.end)]:
                pin = cached.hold(start, gap.start) if start < gap.start else None
                if pin is not None:
                    self._pins.append(pin)
                    self._ranges.append(Range(start, gap.start))
                start = gap.end
        self._ranges = _joined(self._ranges)

    def _cached(self, cached: CachedSegment) -> OsFile:
        """The cache's file, for who closes it; nothing of it is kept where it has been cut."""
        with_bytes = cached.open()
        try:
            file = OsFile.of(os.dup(with_bytes.fileno()), with_bytes.path)
        finally:
            with_bytes.close()
        if file.size() < self._ranges[-1].end:
            cached.lose()
            self._release()
        return file

    def _release(self) -> None:
        pins, self._pins, self._ranges = self._pins, [], []
        for pin in pins:
            pin.release()

    async def take(self, notes: Notes) -> None:
        """Note what the search has learned."""
        self._handing.take(notes)
        if notes.wrong:
            await threads.compute(self._handing.mend, notes)

    def close(self) -> None:
        """The page has ended."""
        self._release()
        if self._demand is not None:
            self._demand.stop()


def _joined(ranges: Iterable[Range]) -> list[Range]:
    """The same bytes in ranges of which none touches another, in order."""
    found: list[Range] = []
    for where in sorted(ranges):
        if found and where.start <= found[-1].end:
            found[-1] = Range(found[-1].start, max(found[-1].end, where.end))
        else:
            found.append(where)
    return found
