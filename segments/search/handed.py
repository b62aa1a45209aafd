"""A log as a search sees it that was handed what it needs; see handing.py.

Its segments are those of segment.py, on a disk that has what was handed out and no more, in a cache
that has the bytes of a cold segment that stay until more are asked for.
"""

import errno
import os
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing, suppress
from typing import Any, NamedTuple

from segments.codec import Damage
from segments.derived.filter_files import load
from segments.disk import File
from segments.errors import SegmentsError, StorageError
from segments.gaps import Gaps
from segments.keys.index import KeyIndex
from segments.offset_lookup import segment_holding
from segments.search.chunk_screen import ChunkTest
from segments.search.handing import (
    Facts,
    Failed,
    Fetch,
    Fetched,
    Files,
    FilesOf,
    Found,
    Job,
    Keeps,
    Load,
    Needs,
    Notes,
    Outcome,
    Patient,
    Prompt,
    Segments,
    Some,
)
from segments.search.page import (
    Cut,
    KeysUnknown,
    LookedAt,
    Missing,
    Page,
    StreamIsGone,
    TooLarge,
)
from segments.search.search import Search
from segments.search.token import BadToken
from segments.segment import FILTER_SUFFIX, SEGMENT_SUFFIX, KeyState, Segment
from segments.store.cache import CachedSegment, ColdError, Range, TierCache
from segments.view import Part, ReadOnlyDisk


class _Disk(ReadOnlyDisk):
    """The files of a few segments, asked for when the first of one is opened.

    Args:
        hand: asks for those of a segment.
        cold: its file, where that is in the cache.
        is_wrong: is told of an index file that should be corrected.
    """

    def __init__(
        self,
        hand: Callable[[int], None],
        cold: Callable[[int], File | None],
        is_wrong: Callable[[int], None],
    ) -> None:
        self._hand, self._cold, self._is_wrong = hand, cold, is_wrong
        self._parts: dict[int, dict[str, Part]] = {}

    def take(self, base: int, files: Mapping[str, File]) -> None:
        """Have these of a segment, in the place of those that are there."""
        parts = self._parts.setdefault(base, {})
        for suffix, file in files.items():
            if suffix == SEGMENT_SUFFIX and suffix in parts:  # it is being read
                file.close()
                continue
            if suffix in parts:
                parts[suffix].close_file()
            parts[suffix] = Part(file)

    def open(self, path: str, *, writable: bool) -> File:
        base, suffix = _named(path)
        if writable:
            self._is_wrong(base)
            raise StorageError("change", path, OSError(errno.EROFS, "a search changes nothing"))
        if base not in self._parts:
            self.close()
            self._hand(base)
        found: File | None = self._parts[base].get(suffix)
        if found is None and suffix == SEGMENT_SUFFIX:
            found = self._cold(base)
        if found is None:
            raise StorageError("open", path, OSError(errno.ENOENT, "No such file or directory"))
        return found

    def remove(self, path: str) -> None:
        """The file is wrong: it is to be handed out again."""
        base, suffix = _named(path)
        found = self._parts.get(base, {}).pop(suffix, None)
        if found is not None:
            found.close_file()

    def list(self, folder: str) -> list[str]:  # noqa: ARG002 - see Disk
        return []

    def boot(self) -> str:
        return ""

    def close(self) -> None:
        """Nothing is open any more."""
        while self._parts:
            for part in self._parts.popitem()[1].values():
                part.close_file()


def _named(path: str) -> tuple[int, str]:
    """First offset and suffix of a segment's file."""
    base, dot, suffix = os.path.basename(path).partition(".")
    return int(base), dot + suffix


class _Cache(TierCache):
    """Bytes of a cold segment that stay where they are, in the cache of who has handed them out."""

    def __init__(self) -> None:
        super().__init__(max_bytes=sys.maxsize)
        self._part: _Swapped | None = None

    def take(self, cached: CachedSegment, file: File | None, ranges: Iterable[Range]) -> None:
        """These bytes are there, and no others."""
        self.remove_file(cached)
        if file is not None:
            if self._part is None:
                self._part = _Swapped(file)
            else:
                self._part.swap(file)
            cached.file()  # or they would go when nobody reads it
        for where in ranges:
            self.add(cached, where)

    def make_file(self, cached: CachedSegment) -> File:
        """The file with those bytes."""
        if self._part is None:
            path = f"{cached.stored.base_offset}{SEGMENT_SUFFIX}"
            raise StorageError("open", path, OSError(errno.ENOENT, "nothing of it is here"))
        return self._part

    def remove_file(self, cached: CachedSegment) -> None:
        """Nothing is there."""
        for piece in cached.take_pieces():
            self._pieces.pop(piece, None)

    def close(self) -> None:
        """Nothing is open any more."""
        if self._part is not None:
            self._part.close_file()


class _Swapped(Part):
    """A file in whose place another one may be put while it is open."""

    def swap(self, file: File) -> None:
        self._file.close()
        self._file = file


class _Segments(NamedTuple):
    """See SegmentList."""

    first_offset: int
    gaps: Gaps
    holding: Callable[[int], Segment]


class _Indexes(NamedTuple):
    """See LogIndexes."""

    request: Callable[[Segment], None]


class HandedLog:
    """What a search needs of a Log.

    Args:
        job: the page.
        ask: answers questions at once.

    Attributes:
        notes: what was learned on the way.
    """

    def __init__(self, job: Job, ask: Callable[[Prompt], Any]) -> None:
        self.segments = _Segments(job.first_offset, job.gaps, self._holding)
        self.committed_offset = job.committed_offset
        self.indexes = _Indexes(self._request_index)
        self.notes = Notes()
        self._ask = ask
        self._needs = Needs(ChunkTest(job.request).values, bool(job.request.keys))
        self._is_backward = job.request.newest
        self._disk = _Disk(self._hand, self._cold, self.notes.wrong.append)
        self._cache = _Cache()
        self._segments: list[Segment] = []  # that follow each other
        self._known: dict[int, Segment] = {}

    def _holding(self, offset: int) -> Segment:
        """See SegmentList.

        Raises:
            StreamIsGone: it was deleted meanwhile.
        """
        some = self._segments
        if not some or not some[0].base_offset <= offset < some[-1].next_offset:
            self._end_segments()
            answer: Some = self._ask(Segments(offset, self._is_backward, self._needs))
            if not answer.facts:
                raise StreamIsGone("the stream was deleted while it was searched")
            self._segments = some = list(map(self._segment, answer.facts))
            self._known = {segment.base_offset: segment for segment in some}
            for base, files in answer.files.items():
                self._take(base, files)
        return segment_holding(some, offset)

    def _segment(self, facts: Facts) -> Segment:
        segment = Segment(self._disk, "", facts.base_offset)
        segment.size, segment.next_offset = facts.size, facts.next_offset
        segment.num_chunks = facts.num_chunks
        segment.first_timestamp_ms = facts.first_timestamp_ms
        segment.last_timestamp_ms = facts.last_timestamp_ms
        segment.last_chunk_id = facts.last_chunk_id
        segment.damage = {damage.position: damage for damage in facts.damage}
        segment.is_indexable = facts.is_indexable
        segment.report_damage_to(self._note_damage)
        return segment

    def _note_damage(self, segment: Segment, damage: Damage) -> None:
        self.notes.damage.append((segment.base_offset, damage))

    def keeps(self, segment: Segment) -> bool:
        """See Log."""
        is_kept: bool = self._ask(Keeps(segment.base_offset))
        if not is_kept:
            self._segments = []  # others are there by now
        return is_kept

    def _request_index(self, segment: Segment) -> None:
        """See LogIndexes."""
        if segment.base_offset not in self.notes.unindexed:
            self.notes.unindexed.append(segment.base_offset)

    def _note_fault(self, segment: Segment) -> None:
        if segment.keys is not None and segment.keys.fault:
            self.notes.key_faults[segment.base_offset] = segment.keys.fault

    def _end_segments(self) -> None:
        for segment in self._segments:
            self._note_fault(segment)
        self._segments = []
        self._disk.close()

    def close(self) -> None:
        """Close all that was handed out."""
        self._end_segments()
        self._cache.close()

    # -- files

    def _hand(self, base: int) -> None:
        self._take(base, self._ask(self._files_of(base)))

    def _cold(self, base: int) -> File | None:
        cold = self._known[base].cold
        return None if cold is None else cold.open()

    def _files_of(self, base: int) -> FilesOf:
        return FilesOf(base, self._needs)

    def _take(self, base: int, found: Files) -> None:
        segment, cold = self._known[base], found.cold
        self._note_fault(segment)
        self._disk.take(base, found.files)
        if cold is not None and (segment.cold is None or segment.cold.stored != cold.stored):
            name = f"{base}{SEGMENT_SUFFIX}"
            segment.make_cold(CachedSegment(self._cache, cold.stream, cold.stored, "", name))
            segment.stored = cold.stored
        if segment.cold is not None:
            segment.cold.is_gone = cold is None or cold.is_gone
        segment.filters = found.filters
        if FILTER_SUFFIX in found.files:
            with suppress(SegmentsError):  # it is rebuilt where that is asked for
                segment.filters = load(segment)
        segment.key_state = KeyState.KNOWN if found.is_known else KeyState.UNKNOWN
        segment.keys = None
        if found.tables is not None:
            suffix, tables, end, is_final = found.tables
            path = segment.path(suffix)
            segment.keys = KeyIndex(self._disk, path, tables, end, is_final=is_final)

    # -- what takes its time

    def question(self, step: KeysUnknown | Missing, *, has_progressed: bool) -> Patient:
        """What is to be asked for a step of the search."""
        if isinstance(step, KeysUnknown):
            return Load(self._files_of(step.segment.base_offset))
        error = step.error
        return Fetch(
            self._files_of(error.cached.stored.base_offset),
            error.wanted,
            error.suffix,
            tuple(request.where for request in step.requests if not request.suffix),
            step.is_more,
            has_progressed,
        )

    def take(self, question: Patient, answer: Fetched) -> bool:
        """Use the answer; whether that is what was needed."""
        base, files = question.files.base, dict(answer.files.files)
        if isinstance(question, Fetch):
            file, cold = files.pop(SEGMENT_SUFFIX, None), self._known[base].cold
            assert cold is not None  # noqa: S101 - or nothing would have been asked for
            self._cache.take(cold, file, answer.ranges)
        self._take(base, answer.files._replace(files=files))
        if answer.files.cold is None:
            self._segments = []  # it has left the log, and others are there by now
        return answer.is_here


def conduct(
    job: Job, ask: Callable[[Prompt], Any], now: Callable[[], float]
) -> Generator[Patient | None, Fetched, Outcome]:
    """Search for a page; None is yielded when others may have their turn.

    Args:
        job: the page.
        ask: answers questions at once.
        now: a clock, in seconds.
    """
    ends_at = now() + job.seconds
    log = HandedLog(job, ask)
    try:
        return (yield from _search(job, log, lambda: now() >= ends_at))
    except (BadToken, TooLarge) as error:
        return Failed(str(error), log.notes, is_wrong=True)
    except SegmentsError as error:
        return Failed(str(error), log.notes)
    finally:
        log.close()


def _search(
    job: Job, log: HandedLog, is_over: Callable[[], bool]
) -> Generator[Patient | None, Fetched, Outcome]:
    search: Search | None = None
    while search is None:
        try:
            search = Search(log, job.request, job.identity, job.now_ms, job.after, job.limits)
        except ColdError as error:
            question = log.question(Missing(error), has_progressed=False)
            if not log.take(question, (yield question)):
                page = Page([], Cut.BUDGET, job.after, LookedAt(), range(0), 0)
                return Found(page, log.notes, is_away=True, has_progressed=False)
    result: object = None
    with closing(search.steps()) as steps:
        while True:
            try:
                step = steps.send(result)
            except StopIteration:
                has_progressed = search.progress.has_progressed
                log.close()
                return Found(search.page, log.notes, search.is_away, has_progressed)
            result = None
            if step is None:
                yield None
            else:
                question = log.question(step, has_progressed=search.progress.has_progressed)
                result = log.take(question, (yield question))
            search.progress.is_over = is_over()
