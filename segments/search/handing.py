"""What of a log a search is given, wherever that runs: plain data, and open files.

A search asks; who has the log answers. Facts of segments come many at once, as they are at that
instant: what is appended later is not in them. The files of a segment are opened for the search all
at once, a few segments at a time, so that neither expiry nor truncation nor a new stream of the
same name is ever mixed up with it. Questions and what comes of a page are checked when they come
from another process, which reads what anybody has published.
"""

from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import msgspec

from segments.chunk_search import mend_index
from segments.codec import Damage
from segments.disk import File
from segments.errors import SegmentsError, StorageError
from segments.filter_index import FilterIndex
from segments.gaps import Gaps
from segments.keys.index import KeyIndex, Place
from segments.keys.table import KeyTable
from segments.log import Log
from segments.search.page import Limits, Page
from segments.search.request import SearchRequest
from segments.segment import (
    FILTER_SUFFIX,
    GROWING_KEYS_SUFFIX,
    INDEX_SUFFIX,
    KEYS_SUFFIX,
    SEGMENT_SUFFIX,
    KeyState,
    Segment,
)
from segments.store.cache import ColdError, Range
from segments.store.manifest import StoredSegment
from segments.store.object_names import StreamKey

_SEGMENTS_AT_ONCE = 32
_WITH_KEYS_AT_ONCE = 4  # and their files: looking up keys takes less time than asking for a segment
_MOST_POSTINGS = 1 << 18  # of a filter index in memory; with more, chunks are asked one by one


class _Question(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Something that a search wants to know."""


class Needs(_Question, frozen=True):
    """Which files of a segment are needed besides its own and its index.

    Attributes:
        values: of which chunks may hold them in a filter index; None where that is not needed.
        keys: its key index is.
    """

    values: frozenset[bytes] | None
    keys: bool


class Segments(_Question, frozen=True):
    """The segment with an offset, or the one behind it, and some that are searched after it: Some.

    Attributes:
        needs: of files; those of the first segment that is searched are handed out with it.
    """

    offset: int
    is_backward: bool
    needs: Needs


class FilesOf(_Question, frozen=True):
    """The files of the segment that begins with an offset: Files."""

    base: int
    needs: Needs


class Keeps(_Question, frozen=True):
    """Whether a segment is still in the log: bool."""

    base: int


class Load(_Question, frozen=True):
    """Somebody is to look at the key file of a segment: Fetched."""

    files: FilesOf


class Fetch(_Question, frozen=True):
    """Something of a cold segment is to be here: Fetched, which says whether it is.

    Attributes:
        wanted: bytes that have to be here at the same time.
        suffix: of the file that is missing; empty for the segment itself.
        ranges: that bring it, and what will be needed soon.
        is_more: what was fetched before is still needed.
        has_progressed: the page has found or ruled out something.
    """

    files: FilesOf
    wanted: Range
    suffix: str
    ranges: tuple[Range, ...]
    is_more: bool
    has_progressed: bool


Prompt: TypeAlias = Segments | FilesOf | Keeps  # answered at once
Patient: TypeAlias = Load | Fetch
Question: TypeAlias = Prompt | Patient


class Facts(NamedTuple):
    """A segment as it is; see Segment."""

    base_offset: int
    size: int
    next_offset: int
    num_chunks: int
    first_timestamp_ms: int | None
    last_timestamp_ms: int | None
    last_chunk_id: int | None
    damage: tuple[Damage, ...]
    is_indexable: bool

    @classmethod
    def of(cls, segment: Segment) -> "Facts":
        """The facts of a segment at this moment."""
        return cls(
            segment.base_offset,
            segment.size,
            segment.next_offset,
            segment.num_chunks,
            segment.first_timestamp_ms,
            segment.last_timestamp_ms,
            segment.last_chunk_id,
            tuple(segment.damage.values()),
            segment.is_indexable,
        )


class Tables(NamedTuple):
    """The key tables in a file, see KeyIndex."""

    suffix: str
    tables: tuple[KeyTable, ...]
    end: Place
    is_final: bool


class Cold(NamedTuple):
    """A segment that is in a store: which, and whether that has it no more."""

    stream: StreamKey
    stored: StoredSegment
    is_gone: bool


class Files(NamedTuple):
    """What there is of a segment.

    Attributes:
        files: open for reading, by suffix; whoever gets this closes them.
        filters: a part of the filter index that is in memory.
        tables: of keys; None where there are none.
        is_known: somebody has looked for those.
        cold: where its messages are not in a file here.
    """

    files: Mapping[str, File] = {}
    filters: FilterIndex | None = None
    tables: Tables | None = None
    is_known: bool = True
    cold: Cold | None = None


class Some(NamedTuple):
    """Segments that follow each other, none where the stream is gone; see `Segments`.

    Attributes:
        files: of those that are searched first, by their base offset.
    """

    facts: tuple[Facts, ...] = ()
    files: Mapping[int, Files] = {}


class Fetched(NamedTuple):
    """What became of a `Fetch`.

    Attributes:
        is_here: it was brought, or never can be.
        ranges: bytes of the segment that stay where they are until the next one.
        files: of the segment, as they are now; of the segment itself the cache's.
    """

    is_here: bool
    ranges: tuple[Range, ...] = ()
    files: Files = Files()


class Job(NamedTuple):
    """A page that is asked for; see Search. The log is given by its ends and gaps."""

    request: SearchRequest
    identity: int
    now_ms: int
    after: str
    limits: Limits
    first_offset: int
    committed_offset: int
    gaps: Gaps
    seconds: float


class Notes(msgspec.Struct, array_like=True):
    """What a search has learned of segments, by their first offset.

    Attributes:
        damage: that was found.
        unindexed: segments whose filter index would be of use.
        wrong: those whose index file is.
        key_faults: why a key index cannot be asked any more.
    """

    damage: list[tuple[int, Damage]] = []
    unindexed: list[int] = []
    wrong: list[int] = []
    key_faults: dict[int, str] = {}


class Found(msgspec.Struct, tag=True, array_like=True):
    """A page, and whether it has ended because something could not be fetched in time."""

    page: Page
    notes: Notes
    is_away: bool = False
    has_progressed: bool = True


class Failed(msgspec.Struct, tag=True, array_like=True):
    """No page: the search is wrong, the disk refuses, or there is a bug; text for people."""

    text: str
    notes: Notes
    is_wrong: bool = False
    is_bug: bool = False


Outcome: TypeAlias = Found | Failed


class Handing:
    """Answers a search; it is to be told at last what the search has learned."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._known: dict[int, Segment] = {}
        self._indexes: dict[int, KeyIndex | None] = {}  # that were handed out

    def answer(self, question: Prompt) -> object:
        """What it says there.

        Raises:
            StorageError: the system refused.
        """
        if isinstance(question, Segments):
            return self._segments(question)
        if isinstance(question, Keeps):
            return self.keeps(question.base)
        return self.files(question)

    def _segments(self, asked: Segments) -> Some:
        log = self._log
        segments = log.segments.shown
        if log.is_closed:
            return Some()
        base = log.segments.holding(asked.offset).base_offset
        number = bisect_left(segments, base, key=attrgetter("base_offset"))
        most = _WITH_KEYS_AT_ONCE if asked.needs.keys else _SEGMENTS_AT_ONCE
        first, behind = number, number + most
        if asked.is_backward:
            first, behind = max(0, number + 1 - most), number + 1
        some = {segment.base_offset: segment for segment in segments[first:behind]}
        self._known.update(some)
        files: dict[int, Files] = {}
        try:
            for one in some if asked.needs.keys else (base,):
                files[one] = self.files(FilesOf(one, asked.needs))
        except BaseException:
            for opened in files.values():
                close(opened.files)
            raise
        return Some(tuple(map(Facts.of, some.values())), files)

    def keeps(self, base: int) -> bool:
        """Whether a segment that was handed out is still in the log."""
        return base in self._known and self._log.keeps(self._known[base])

    def segment(self, base: int) -> Segment | None:
        """One that was handed out, while it is in the log."""
        return self._known[base] if self.keeps(base) else None

    def files(self, asked: FilesOf) -> Files:
        """The files of a segment that was handed out; none where it is not in the log any more.

        Raises:
            StorageError: the system refused.
        """
        segment = self.segment(asked.base)
        if segment is None:
            return Files()
        files: dict[str, File] = {}
        try:
            if segment.cold is None:
                _open(segment, SEGMENT_SUFFIX, files)
            _open(segment, INDEX_SUFFIX, files)
            filters = None
            if asked.needs.values is not None:
                filters = _part(segment, asked.needs.values)
                if filters is None:
                    _open(segment, FILTER_SUFFIX, files)
            tables = _tables(segment, files) if asked.needs.keys else None
            self._indexes[asked.base] = segment.keys
        except BaseException:
            close(files)
            raise
        is_known = segment.key_state is not KeyState.UNKNOWN
        return Files(files, filters, tables, is_known, cold_of(segment))

    def take(self, notes: Notes) -> None:
        """Note what a search has learned; of segments that are in the log."""
        for base, damage in notes.damage:
            segment = self.segment(base)
            if segment is not None:
                segment.note_damage(damage)
        for base in notes.unindexed:
            segment = self.segment(base)
            if segment is not None and segment.filters is None:
                self._log.indexes.request(segment)
        for base, fault in notes.key_faults.items():
            index = self._indexes.get(base)
            if index is not None:
                index.fault = index.fault or fault

    def mend(self, notes: Notes) -> None:
        """Correct the index files that are wrong; may take long, so in a thread, rather."""
        for segment in map(self.segment, notes.wrong):
            if segment is None or segment.cold is not None:
                continue
            with suppress(SegmentsError):  # the next search says so again
                file = segment.open()
                try:
                    mend_index(segment, file)
                finally:
                    file.close()


def close(files: Mapping[Any, File]) -> None:
    """Close files that were handed out, or could not be."""
    for file in files.values():
        file.close()


def cold_of(segment: Segment) -> Cold | None:
    """Where the messages of a segment are."""
    cold = segment.cold
    return None if cold is None else Cold(cold.stream, cold.stored, cold.is_gone)


def _open(segment: Segment, suffix: str, files: dict[str, File]) -> None:
    """Open a file where there is one."""
    try:
        files[suffix] = segment.open_beside(suffix)
    except ColdError:
        return
    except StorageError as error:
        if not error.is_missing:
            raise


def _part(segment: Segment, values: frozenset[bytes]) -> FilterIndex | None:
    """What the filter index in memory says of some values; None where it is in a file, or large."""
    filters = segment.filters
    return filters.part(values, _MOST_POSTINGS) if isinstance(filters, FilterIndex) else None


def _tables(segment: Segment, files: dict[str, File]) -> Tables | None:
    index = segment.keys
    if index is None or index.fault or segment.damage:
        return None
    suffix = KEYS_SUFFIX if index.is_final else GROWING_KEYS_SUFFIX
    with suppress(StorageError):
        files[suffix] = segment.disk.open(index.path, writable=False)
        return Tables(suffix, index.tables, index.end, index.is_final)
    return None
