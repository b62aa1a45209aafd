"""What to fetch of cold segments for one reader: what it needs now, and what it will need soon.

A reader without a filter needs everything: blocks of the segment, each a request of its own. One
with a filter needs the chunks that its filter index names; those that are near each other become
one request, as a request costs about as much as some bytes more. Both end where chunks end.

The first request is small, so that the first message comes soon. Then so much is asked for ahead as
the window has, in several requests; the window grows as long as the reader goes on, as a reader
that wants one message should not cost much, and one that wants all should never wait. It doubles
when half of it has been read; more is asked for as soon as a block has. It goes on in the next
segment, and ends at one that is not cold, or whose filter index is not here yet: that is asked for,
too.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from segments.bloom import ChunkMatcher
from segments.codec import FILE_HEADER_SIZE
from segments.filter_index import Index, chunks_at_once, matching
from segments.segment import FILTER_SUFFIX, Segment
from segments.store.cache import CachedSegment, ColdError, Range

if TYPE_CHECKING:
    from segments.log import Log

BLOCK = 4 << 20  # of a segment, in one request: half a second at 8 MB/s
FIRST = 256 << 10  # of the first request, some ms
MOST_MERGED = 8 << 20  # of one request
FIRST_REQUESTS, MOST_REQUESTS = 16, 48  # ahead of a reader, at first and as it goes on
_FIRST_WINDOW, MOST_WINDOW = 4 << 20, 32 << 20
_CACHE_SHARE = 4  # a window is at most this part of the cache
# Chunks are merged over a gap that is at most as long, and at most this part of what is wanted
# beside it; over a short one always: a request costs more.
MOST_GAP, _SHORT_GAP, _GAP_SHARE = 256 << 10, 16 << 10, 4
_CHUNKS_A_LOOK = 256  # a filter index is asked about together
_MOST_LOOKS = 16  # for one request, each of a millisecond or two at most


class Request(NamedTuple):
    """Something to fetch.

    Attributes:
        where: whole chunks of it.
        suffix: of the file beside it; empty for the segment itself.
    """

    cached: CachedSegment
    where: Range = Range(0, 0)
    suffix: str = ""


def aligned(segment: Segment, wanted: Range) -> Range:
    """The whole chunks that some bytes of a segment are in, with damage beside them.

    Raises:
        ColdError: the index of the segment has to be fetched.
        FormatError, StorageError: it cannot be read.
    """
    filters = segment.filters
    if filters is not None:
        return _aligned(len(filters.positions), filters.positions.__getitem__, segment.size, wanted)
    with segment.index() as index:
        return _aligned(index.num_records, lambda n: index.record(n).position, segment.size, wanted)


def _aligned(number: int, position: Callable[[int], int], size: int, wanted: Range) -> Range:
    numbers = range(number)
    first = bisect_right(numbers, wanted.start, key=position) - 1
    last = bisect_left(numbers, wanted.end, lo=max(first, 0), key=position)
    start = position(first) if first > 0 else 0
    return Range(start, position(last) if last < number else size)


def merged(chosen: list[Range]) -> list[Range]:
    """Ranges of chunks, in order, as few requests as are worth it."""
    found: list[Range] = []
    useful = 0
    for one in chosen:
        if found and _is_worth(found[-1], one, useful):
            found[-1] = Range(found[-1].start, one.end)
            useful += one.end - one.start
        else:
            found.append(one)
            useful = one.end - one.start
    return found


def _is_worth(before: Range, one: Range, useful: int) -> bool:
    """Whether two ranges should be one, of which the first has so many useful bytes."""
    gap = one.start - before.end
    is_near = gap <= _SHORT_GAP or gap <= min(MOST_GAP, useful // _GAP_SHARE)
    return is_near and one.end - before.start <= MOST_MERGED


class ReadAhead:
    """What to fetch for a reader.

    Args:
        matcher: which chunks it wants; None for all.
    """

    def __init__(self, log: "Log", matcher: ChunkMatcher | None) -> None:
        self._cursor = _Cursor(log, matcher)
        self._asked: deque[tuple[int, Range]] = deque()  # base offset, and where
        self._asked_bytes = 0
        self._window = 0
        self._most_requests = FIRST_REQUESTS

    def missed(self, segment: Segment, error: ColdError) -> list[Request]:
        """The reader needs bytes that are not here: what to fetch, what it needs first.

        Raises:
            FormatError, StorageError: the index of the segment cannot be read.
        """
        if error.suffix:
            return [Request(error.cached, suffix=error.suffix)]
        try:
            needed = aligned(segment, error.wanted)
        except ColdError as other:
            return [Request(other.cached, suffix=other.suffix)]
        if self._is_asked(segment, needed):
            return [Request(error.cached, needed)]
        if self._cursor.wants_all(segment, needed.start):
            end = min(needed.start + FIRST, _block_end(needed.start))
            needed = aligned(segment, Range(needed.start, max(needed.end, end)))
        self._asked.clear()
        self._asked_bytes = 0
        self._window = min(_FIRST_WINDOW, error.cached.max_ahead // _CACHE_SHARE)
        self._most_requests = FIRST_REQUESTS
        self._cursor.begin(segment, needed.end)
        return [Request(error.cached, needed), *self._more()]

    def passed(self, segment: Segment, position: int) -> list[Request]:
        """The reader has come to a place: what to fetch now."""
        here, asked = (segment.base_offset, position), self._asked
        while asked and (asked[0][0], asked[0][1].end) <= here:
            _, where = asked.popleft()
            self._asked_bytes -= where.end - where.start
        cold = segment.cold
        if cold is None or self._cursor.is_at_end:
            return []
        if 2 * self._asked_bytes <= self._window:
            self._window = min(2 * self._window, MOST_WINDOW, cold.max_ahead // _CACHE_SHARE)
            self._most_requests = min(2 * self._most_requests, MOST_REQUESTS)
        has_room = self._asked_bytes + min(BLOCK, self._window // 2) <= self._window
        return self._more() if has_room and 4 * len(asked) <= 3 * self._most_requests else []

    def _is_asked(self, segment: Segment, where: Range) -> bool:
        for base, one in self._asked:
            if base == segment.base_offset and one.start <= where.start < one.end:
                return True
        return False

    def _more(self) -> list[Request]:
        """As much as the window has room for."""
        requests: list[Request] = []
        while self._asked_bytes < self._window and len(self._asked) < self._most_requests:
            request = self._cursor.next()
            if request is None:
                break
            requests.append(request)
            if not request.suffix:
                where = request.where
                self._asked.append((request.cached.stored.base_offset, where))
                self._asked_bytes += where.end - where.start
        return requests


class _Cursor:
    """Goes from request to request through the cold segments of a log.

    Attributes:
        is_at_end: there is nothing more to be fetched, as far as it is known.
    """

    def __init__(self, log: "Log", matcher: ChunkMatcher | None) -> None:
        self._log = log
        self._matcher = matcher
        self._segment: Segment | None = None
        self._position = 0
        self._waits_for: tuple[Segment, str] | None = None

    def wants_all(self, segment: Segment, position: int) -> bool:
        """Whether all chunks of a segment are wanted from a place on."""
        matcher = self._matcher
        if matcher is None or segment.damage or not segment.is_indexable:
            return True
        filters = segment.filters
        if filters is None:
            return False
        at = bisect_left(filters.positions, position)
        return at < len(filters.positions) and filters.chunk_ids[at] < matcher.since

    def begin(self, segment: Segment, position: int) -> None:
        """Go on from here."""
        self._segment, self._position = segment, position
        self._waits_for = None

    @property
    def is_at_end(self) -> bool:
        """See above."""
        return self._segment is None

    def next(self) -> Request | None:
        """The next request; None where there is none, a file is awaited, or nothing is near."""
        for _ in range(_MOST_LOOKS):
            segment = self._segment
            if segment is None or segment.cold is None:
                self._segment = None
                break
            if self._position >= segment.size:
                self._enter_next(segment)
                continue
            try:
                where = self._next_in(segment, segment.cold)
            except ColdError as error:
                return self._wait_for(segment, error.suffix)
            if where is not None:
                self._position = where.end
                return Request(segment.cold, where)
        return None

    def _enter_next(self, segment: Segment) -> None:
        following = self._log.segments.holding(segment.next_offset)
        is_next = following.base_offset >= segment.next_offset
        self._segment, self._position = following if is_next else None, FILE_HEADER_SIZE

    def _wait_for(self, segment: Segment, suffix: str) -> Request | None:
        """Ask for a file once; nothing more is planned before it is here."""
        if self._waits_for == (segment, suffix) or segment.cold is None:
            return None
        self._waits_for = segment, suffix
        return Request(segment.cold, suffix=suffix)

    def _next_in(self, segment: Segment, cold: CachedSegment) -> Range | None:
        if self.wants_all(segment, self._position):
            return aligned(segment, Range(self._position, _block_end(self._position)))
        if segment.filters is None:
            raise ColdError(cold, suffix=FILTER_SUFFIX)
        return self._next_matching(segment, segment.filters)

    def _next_matching(self, segment: Segment, filters: Index) -> Range | None:
        """The next chunks that match, as far as they are worth one request.

        Where it takes long to find any, None, and the next look begins behind what was looked at.
        """
        matcher, positions = self._matcher, filters.positions
        assert matcher is not None  # noqa: S101 - or all would be wanted
        found: Range | None = None
        useful = 0
        most = chunks_at_once((matcher,))
        first = bisect_left(positions, self._position)
        last = min(first + most, len(positions))
        for start in range(first, last, _CHUNKS_A_LOOK):
            for ordinal in matching(
                filters, matcher, range(start, min(start + _CHUNKS_A_LOOK, last))
            ):
                end = positions[ordinal + 1] if ordinal + 1 < len(positions) else segment.size
                one = Range(positions[ordinal], end)
                if found is not None and not _is_worth(found, one, useful):
                    return found
                found = one if found is None else Range(found.start, end)
                useful += end - one.start
        self._position = positions[last] if last < len(positions) else segment.size
        return found


def _block_end(position: int) -> int:
    """Where the block ends that a place is in: the same for all readers, so that they share it."""
    return (position // BLOCK + 1) * BLOCK
