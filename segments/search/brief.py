"""Look-ups of keys that take so little that they are done at once, where the log is.

A page is worked on in a process of its own, as nobody can say what a search will take. Of a look-up
of keys that is known before: where each segment has a key index, it reads a few blocks of each, and
the few chunks that they lead to. To go to another process takes several times as long as that, also
of the process that has the log.

It is the same search, over the same segments, but what it may take is bounded: bytes, those of
messages that are read one by one above all, steps and messages. No device is waited for: it reads
what is in memory (`disk.read_ready`). Of a segment without the keys nothing but its index is
opened, some 15 µs for a key, so there may be a hundred segments. Where it would take more, or finds
anything that is not as it should be, it is given up, whatever it has come to, and nobody knows of
it: the search begins again in the other process, and reports what is wrong.
"""

from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple, TypeGuard

from segments.codec import Damage
from segments.disk import Disk, File, Readable, read_ready
from segments.errors import SegmentsError
from segments.filter_index import FilterIndex
from segments.format_constants import KEY_BLOCK_SIZE
from segments.gaps import Gaps
from segments.keys import KeyIndex
from segments.keys.index import Held
from segments.log import Log
from segments.search.handing import Job
from segments.search.page import Limits, Page, TooDear
from segments.search.request import SearchRequest
from segments.search.search import Search
from segments.search.token import BadToken
from segments.segment import Segment
from segments.view import Part, ReadOnlyDisk

MOST_BYTES = 5 << 18  # a chunk of the usual size and what leads to it: half a millisecond
# Of messages that are read one by one: a stranger may have shaped them so that it takes 7 ms.
MOST_LOOKED_INTO = 1 << 15
_READ_COST = 1 << 11  # bytes that might be read in the time that a read takes
_OPEN_COST = 1 << 12
_TAIL = 1 << 18, 100  # bytes and chunks of the newest segment, that no index knows yet
_MOST_KEYS = 8
_MOST_ASKED = 200  # indexes opened, and keys looked for in each: some 8 µs either
_MOST_STEPS = 24
_MOST_FOUND = 32


def brief_page(log: Log, job: Job) -> Page | None:
    """The page of a look-up of keys that takes little, a millisecond or two at most.

    Args:
        log: which is open.
        job: the page.

    Returns:
        None for any other search, and where it takes more than that.
    """
    if not _is_plain(job.request) or not _is_indexed(log, job.request):
        return None
    limits = job.limits._replace(looked_into=MOST_LOOKED_INTO)
    try:
        seen = _SeenLog(log)
        search = _LookUp(seen, job, limits)
        with closing(search.steps()) as steps:
            for number, step in enumerate(steps, 1):
                if step is not None or number > _MOST_STEPS:
                    return None
        page = search.page
    except (TooDear, SegmentsError, BadToken):
        return None
    is_much = len(page.messages) > _MOST_FOUND
    return None if is_much or page.looked_at.chunks_damaged or seen.has_fault else page


def _is_plain(request: SearchRequest) -> bool:
    """Whether key indexes choose the chunks, and a message is read but for its keys."""
    is_short = 0 < len(request.keys) <= _MOST_KEYS
    return is_short and request.selector is None and not request.filter_values


def _is_indexed(log: Log, request: SearchRequest) -> bool:
    """Whether indexes of the keys leave no more than a few chunks to be looked through.

    Those are the newest ones, see key_schedule.py.
    """
    shown = log.segments.shown
    if any(one.cold is not None or one.damage for one in shown):
        return False
    newest, *older = reversed(shown)
    size, num_chunks = newest.size, newest.num_chunks
    if _knows(newest.keys, request):
        size, num_chunks = size - newest.keys.end.position, num_chunks - newest.keys.num_chunks
    has_short_tail = size <= _TAIL[0] and num_chunks <= _TAIL[1]
    return has_short_tail and all(_knows(one.keys, request) for one in older)


class _LookUp(Search):
    """The search, which passes over segments that no key is in before it makes anything of them.

    Raises:
        BadToken, StorageError: see Search.
        TooDear: all indexes together take too much, whatever they say; or see `_ReadyFile`.
    """

    def __init__(self, seen: "_SeenLog", job: Job, limits: Limits) -> None:
        super().__init__(seen, job.request, job.identity, job.now_ms, job.after, limits)
        self._seen = seen
        self._asked: Held | None = None  # what the index says of the segment that is searched next
        self._to_come = reversed(seen.shown) if job.request.newest else iter(seen.shown)
        num_prints, num_segments = sum(map(len, self._test.prints())), len(seen.shown)
        if num_segments * (1 + num_prints) > _MOST_ASKED:
            raise TooDear
        block = KEY_BLOCK_SIZE + _READ_COST
        seen.disk.left += num_segments * (_OPEN_COST + num_prints * block)

    def _next_segment(self) -> Segment | None:
        """See Search."""
        so_far = self.progress
        for segment in self._to_come:
            first, behind = segment.base_offset, segment.next_offset
            if behind <= so_far.low or so_far.high <= first:
                continue
            is_whole = so_far.low <= first and behind <= so_far.high
            if is_whole and not self._may_hold_key(segment):
                self._pass_by_keys(segment)
                continue
            if self._request.newest:
                so_far.high = min(so_far.high, behind)
            else:
                so_far.low = max(so_far.low, first)
            return self._seen.of(segment)
        return None

    def _may_hold_key(self, segment: Segment) -> bool:
        """Whether a segment is to be searched; its index says of others that no key is in them."""
        index = segment.keys
        if index is None or index.num_chunks < segment.num_chunks or not self._is_in_time(segment):
            return True
        file = self._seen.disk.open(index.path, writable=False)
        try:
            held = index.held(file, self._test.prints())
        finally:
            file.close()
        self._asked = held if held.keys else None
        return self._asked is not None

    def _held(self, first: int, last: int, index: KeyIndex | None) -> Held | None:
        """See Search; nothing is asked twice."""
        found, self._asked = self._asked, None
        return super()._held(first, last, index) if found is None else found


def _knows(index: KeyIndex | None, request: SearchRequest) -> TypeGuard[KeyIndex]:
    if index is None or index.fault:
        return False
    return set(request.properties) <= set(index.properties)


class _ReadyFile(Part):
    """What of a file is in memory.

    Raises:
        TooDear: something that is read is not, or the disk's budget is used up.
    """

    def __init__(self, file: File, disk: "_ReadyDisk") -> None:
        super().__init__(file)
        self._disk = disk

    def read(self, size: int, position: int) -> bytes:
        self._disk.left -= size + _READ_COST
        found = read_ready(self._file, size, position) if self._disk.left >= 0 else None
        if found is None:
            raise TooDear
        return found


class _OwnFile(_ReadyFile):
    """The same of one that was opened for it."""

    def close(self) -> None:
        """Release the descriptor."""
        self.close_file()


class _ReadyDisk(ReadOnlyDisk):
    """Files as far as they are in memory.

    Attributes:
        left: bytes that may still be read.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.left = MOST_BYTES

    def open(self, path: str, *, writable: bool) -> File:
        self.left -= _OPEN_COST
        if writable or self.left < 0:
            raise TooDear
        return _OwnFile(self._disk.open(path, writable=False), self)

    def list(self, folder: str) -> list[str]:  # noqa: ARG002 - see Disk
        raise TooDear

    def boot(self) -> str:
        raise TooDear


class _SeenSegment(Segment):
    """A segment as it is; what is found out about it is kept from it."""

    def __init__(self, real: Segment, disk: _ReadyDisk) -> None:
        vars(self).update(vars(real))
        self.disk, self._real, self._ready = disk, real, disk
        self.damage = {}
        if real.keys is not None:
            index = real.keys
            self.keys = KeyIndex(disk, index.path, index.tables, index.end, is_final=index.is_final)
        if not isinstance(real.filters, FilterIndex):  # it would be asked in a file
            self.filters = None

    def acquire(self) -> File:
        return _ReadyFile(self._real.acquire(), self._ready)

    def release(self) -> None:
        self._real.release()

    def mark_damaged(self, file: Readable, position: int, offset: int) -> Damage:  # noqa: ARG002
        raise TooDear

    def mark_all_damaged(self) -> None:
        raise TooDear


class _SeenSegments(NamedTuple):
    """See SearchedSegments."""

    first_offset: int
    gaps: Gaps
    holding: Callable[[int], Segment]


class _SeenLog:
    """What a search sees of a log: what is there now, and in memory; see SearchedLog.

    Attributes:
        shown: its segments themselves.
        disk: what is in memory of their files.
    """

    def __init__(self, log: Log) -> None:
        real = log.segments
        self.shown = real.shown
        self.disk = _ReadyDisk(real.shown[0].disk)
        self._seen: dict[int, _SeenSegment] = {}

        def holding(offset: int) -> Segment:
            return self.of(real.holding(offset))

        self.segments = _SeenSegments(real.first_offset, real.gaps, holding)
        self.committed_offset = log.committed_offset
        self.indexes = self

    def of(self, real: Segment) -> _SeenSegment:
        """A segment as a search sees it."""
        found = self._seen.get(real.base_offset)
        if found is None:
            found = self._seen[real.base_offset] = _SeenSegment(real, self.disk)
        return found

    def keeps(self, segment: Segment) -> bool:  # noqa: ARG002
        """See SearchedLog; only asked where something is missing."""
        raise TooDear

    def request(self, segment: Segment) -> None:
        """See SearchedIndexes: it is asked for by who needs it longer."""

    @property
    def has_fault(self) -> bool:
        """Whether a key index could not be asked."""
        return any(one.keys is not None and one.keys.fault for one in self._seen.values())
