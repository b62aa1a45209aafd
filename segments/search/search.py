"""The search itself: segments, chunks, messages, in the order in which they are wanted.

Theory of operation. What is left to be searched is a range of offsets, `low` to `high`: it shrinks
from the one end or the other, and where the search is cut, a token keeps it. The end is fixed when
a search begins, so pages together are one answer, whatever is published meanwhile; what retention
removes meanwhile is gone. For each segment of the range:

    time range     two binary searches in its index      chunks outside are not looked at
    key index      asked for the keys, if it has one     of chunks without them nothing is read,
                                                         of others the messages are told
    filter index   asked for filter values               likewise
    chunks         read, several at once; checked        a header that fits the index, data with
                   as below                              the CRC that the header says
    columns        asked for filter values, where no     of chunks without them nothing is looked
                   index tells the messages              into, of others those messages are opened
    byte screen    bytes that a match contains, where    messages without them are not decoded
                   these leave many messages
    messages       tested one by one                     what passes is found

A chunk is read whole, also for one message, since one CRC covers all of its data: nothing is found
in a chunk before that has been checked, and one that fails is counted as lost. Its header has to be
what the index has of it, up to the offset of the next chunk, so no other is passed over with it.

An index file is derived, and may be wrong. A chunk that is not where it has it, or does not end
where the next begins, is no reason to leave anything out: the headers of the segment are walked
instead, and what cannot be read then is damage, which readers step over as well.

`steps` yields often: None after a piece of work of some 0.3 ms, or after the keys were looked up
in a segment, so that it can be ended; `KeysUnknown` where a file is to be looked at, which
`keys_of` would do as well; `Missing` where something of a cold segment has to be fetched: its
indexes first, then the chunks that they leave, several at once. Between two steps the log may grow,
lose segments, or be deleted; the segment that is searched is kept open.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import groupby
from typing import Protocol

from segments.checksum import crc32
from segments.chunk_search import (
    Place,
    chunk_holding,
    correct_index,
    first_chunk_at_or_after,
    index_content,
)
from segments.codec import (
    FILE_HEADER_SIZE,
    INDEX_RECORD_SIZE,
    ChunkHeader,
)
from segments.derived.key_files import keys_of
from segments.disk import File
from segments.errors import FormatError, StorageError
from segments.gaps import Gaps
from segments.keys import KeyIndex
from segments.keys.index import Held
from segments.search.chunk_screen import ChunkTest
from segments.search.chunk_table import ChunkTable
from segments.search.message_matcher import MessageTest
from segments.search.message_search import MessageSearch
from segments.search.page import (
    Cut,
    KeysUnknown,
    Limits,
    Missing,
    Page,
    Steps,
)
from segments.search.progress import Progress
from segments.search.request import SearchRequest
from segments.search.span_reader import SpanReader, WrongIndex
from segments.search.token import NO_CHUNK, BadToken, Token, read_token
from segments.segment import FILTER_SUFFIX, INDEX_SUFFIX, KeyState, Segment, read_header
from segments.store.cache import ColdError, ColdFile, Range
from segments.tier.plan import Request, merged

_BLOCK = 256  # chunks that are chosen at once
_SEGMENTS_A_STEP = 100
_AHEAD_BYTES = 8 << 20  # of a cold segment that are fetched together


class SearchedSegments(Protocol):
    """What a search needs of a log's segments; see SegmentList."""

    @property
    def first_offset(self) -> int:
        """First offset that is kept."""

    @property
    def gaps(self) -> Gaps:
        """Offsets that no message has."""

    def holding(self, offset: int, /) -> Segment:
        """The segment with `offset`, or the first one after it where none has it."""


class SearchedIndexes(Protocol):
    """What a search needs of a log's indexes; see LogIndexes."""

    def request(self, segment: Segment, /) -> None:
        """Ask for the filter index of this segment."""


class SearchedLog(Protocol):
    """What a search needs of a log; see Log."""

    @property
    def segments(self) -> SearchedSegments:
        """The segments that it consists of."""

    @property
    def committed_offset(self) -> int:
        """The offset after the last record that readers may read."""

    def keeps(self, segment: Segment) -> bool:
        """Whether a segment has not been dropped."""

    @property
    def indexes(self) -> SearchedIndexes:
        """The indexes of its segments."""


class Search:
    """One search, or its next page.

    Args:
        log: where; open as long as this takes.
        request: what for; it has passed its `check`.
        identity: tells the stream from all others.
        now_ms: the time.
        after: the token of the page before, empty for the first.
        limits: what it may cost.

    Attributes:
        progress: how far it has come.
        looked_at: see LookedAt.
        is_away: the page has ended as something could not be fetched in time.

    Raises:
        BadToken: `after` is no token, or is of another search or stream.
        ColdError: something has to be fetched before.
        StorageError: the system refused to read.
    """

    def __init__(
        self,
        log: SearchedLog,
        request: SearchRequest,
        identity: int,
        now_ms: int,
        after: str = "",
        limits: Limits | None = None,
    ) -> None:
        self.is_away = self._has_index = False
        self._is_resumed = bool(after)
        self._log = log
        self._request = request
        self._identity = identity
        self._test = MessageTest(request, now_ms)
        self._chunk_test = ChunkTest(request)
        self._chunk = NO_CHUNK, 0
        self._distrusted: set[Segment] = set()  # whose index files are wrong
        end = log.segments.gaps.before(log.committed_offset)
        self.progress = Progress(request, self._test, limits or Limits(), end)
        self.looked_at = self.progress.looked_at
        self._messages = MessageSearch(request, self._test, self.progress)
        if after:
            self._go_on(read_token(after))

    # -- tokens

    def _go_on(self, token: Token) -> None:
        if token.stream != self._identity:
            raise BadToken("after is a token of another stream")
        if token.request != self._request.fingerprint():
            raise BadToken("after is a token of another search: all but limit has to be the same")
        if token.end > self._log.committed_offset or not self._has_chunk(token):
            raise BadToken("after is a token of another stream of that name: start again")
        self._chunk = token.chunk, token.chunk_check
        self._test.forget(token.done)
        self.progress.go_on(token.position, token.end)

    def _has_chunk(self, token: Token) -> bool:
        """Whether the chunk that a token knows is the one that is there, if any is."""
        log = self._log
        if not log.segments.first_offset <= token.chunk < log.committed_offset:
            return token.chunk == NO_CHUNK or token.chunk < log.segments.first_offset
        segment = log.segments.holding(token.chunk)
        if segment.damage or token.chunk < segment.base_offset:  # nothing is where it was
            return True
        place, header = _chunk_at(segment, token.chunk)
        return header is None or (
            place.offset == token.chunk and _check_of(header) == token.chunk_check
        )

    def _last_chunk(self) -> tuple[int, int]:
        """The newest chunk of the search, which retention removes last, and what tells it."""
        segment = self._log.segments.holding(self.progress.end - 1)
        if segment.damage or not segment.base_offset < self.progress.end <= segment.next_offset:
            return NO_CHUNK, 0
        place, header = _chunk_at(segment, self.progress.end - 1)
        return (NO_CHUNK, 0) if header is None else (place.offset, _check_of(header))

    def _token(self) -> str:
        so_far = self.progress
        fingerprint, done = self._request.fingerprint(), self._test.done
        if not self._request.latest:
            done = 0
        return str(
            Token(self._identity, fingerprint, so_far.end, so_far.position, *self._chunk, done)
        )

    # -- the whole

    @property
    def page(self) -> Page:
        """What was found, when `steps` has come to its end."""
        so_far = self.progress
        found, looked_at, end = so_far.found, self.looked_at, so_far.end
        hint = "" if found else self._messages.names.hint()
        if so_far.is_all:
            return Page(found, None, "", looked_at, range(0), end, hint)
        left = range(so_far.low, so_far.high)
        return Page(found, so_far.cut, self._token(), looked_at, left, end, hint)

    def steps(self) -> Steps:
        """Search; see above. It is to be closed where it is not gone through to its end.

        Raises:
            StreamIsGone: the stream was deleted meanwhile, if it is handed out.
            TooLarge: a message is wanted that no page has room for.
            TooDear: see Limits.
            StorageError: the system refused to read.
        """
        if self._chunk_test.is_empty:
            self.progress.low = self.progress.high
        number = 0
        while self.progress.low < self.progress.high and not self.progress.must_stop:
            segment = self._next_segment()
            if segment is None:
                break
            number += 1
            if self._is_outside(segment):
                self.looked_at.chunks_skipped_by_time += segment.num_chunks
                self.progress.done(segment.base_offset, segment.next_offset)
                if number % _SEGMENTS_A_STEP == 0:
                    yield None
            else:
                yield from self._search_segment(segment)
        while not (self.progress.is_all or self.is_away) and self._chunk[0] == NO_CHUNK:
            try:
                self._chunk = self._last_chunk()
                return
            except ColdError as error:
                if not (yield Missing(error)):
                    return  # the next page fixes it

    def _next_segment(self) -> Segment | None:
        """The next segment of the range; None when there is none any more."""
        log = self._log
        if self._request.newest:
            self.progress.high = log.segments.gaps.before(self.progress.high)
            segment = log.segments.holding(self.progress.high - 1)
            self.progress.high = min(self.progress.high, segment.next_offset)
        else:
            segment = log.segments.holding(self.progress.low)
            if segment.next_offset <= self.progress.low:
                return None
            self.progress.low = max(self.progress.low, segment.base_offset)
        return (
            segment
            if self.progress.low < self.progress.high and segment.base_offset < self.progress.high
            else None
        )

    def _is_outside(self, segment: Segment) -> bool:
        """Whether a segment has no chunk of the time range."""
        request = self._request
        first, last = segment.first_timestamp_ms, segment.last_timestamp_ms
        if first is None or last is None:
            return True  # it is empty
        if request.by_creation_time:
            return False
        is_before = request.from_ms is not None and last < request.from_ms
        return is_before or (request.to_ms is not None and first > request.to_ms)

    def _is_out_of_time(self, timestamp_ms: int) -> bool:
        """Whether a chunk of this time is outside the time range."""
        request = self._request
        if request.by_creation_time:
            return False
        is_before = request.from_ms is not None and timestamp_ms < request.from_ms
        return is_before or (request.to_ms is not None and timestamp_ms > request.to_ms)

    def _is_in_time(self, segment: Segment) -> bool:
        """Whether a segment has chunks, all of the time range."""
        times = segment.first_timestamp_ms, segment.last_timestamp_ms
        return all(time is not None and not self._is_out_of_time(time) for time in times)

    def _pass_by_keys(self, segment: Segment) -> None:
        """All of a segment is done: its key index says that it has none of the keys."""
        self.looked_at.segments += 1
        self.looked_at.segments_indexed += 1
        self.looked_at.chunks_skipped_by_keys += segment.num_chunks
        self.progress.done(segment.base_offset, segment.next_offset)

    # -- one segment

    def _search_segment(self, segment: Segment) -> Steps:
        try:
            file = segment.acquire()
        except StorageError as error:
            if not error.is_missing:
                raise
            if self._log.keeps(segment):  # else retention has removed it just now
                segment.mark_all_damaged()
            self._lose(segment)
            return
        low, high = self.progress.low, self.progress.high
        is_begun, self._has_index = self._is_begun(segment), False
        try:
            yield from self._search_file(segment, file)
        finally:
            segment.release()
        # One that a page has begun is counted there, not by those that go on in it.
        has_moved = (low, high) != (self.progress.low, self.progress.high)
        if not is_begun and (has_moved or self.progress.is_all):
            self.looked_at.segments += 1
            self.looked_at.segments_indexed += self._has_index
        self._count_damage(segment, low, high)

    def _is_begun(self, segment: Segment) -> bool:
        """Whether an earlier page has searched a part of a segment."""
        if not self._is_resumed:
            return False
        if self._request.newest:
            return self.progress.high < min(segment.next_offset, self.progress.end)
        return self.progress.low > max(segment.base_offset, self._request.offset or 0)

    def _lose(self, segment: Segment) -> None:
        """The file of a segment is gone: it is lost, or retention has removed it just now.

        Then what is there in its place is next, the rest of one that was truncated, say.
        """
        if self._log.keeps(segment):
            self.looked_at.messages_lost += segment.next_offset - segment.base_offset
            self.progress.done(segment.base_offset, segment.next_offset)

    def _lacks_filters(self, segment: Segment) -> bool:
        """Whether its filter index tells, once it is here, which chunks are not wanted."""
        is_certain = segment.is_indexable and not segment.damage
        return bool(self._chunk_test.matchers) and segment.filters is None and is_certain

    def _count_damage(self, segment: Segment, low: int, high: int) -> None:
        """Count the damage in what was done of a segment since it was left from `low` to `high`."""
        done = (
            range(self.progress.high, high)
            if self._request.newest
            else range(low, self.progress.low)
        )
        for damage in segment.damage.values():
            if damage.first_offset in done:
                self.looked_at.chunks_damaged += 1
                self.looked_at.messages_lost += damage.next_offset - damage.first_offset

    def _search_file(self, segment: Segment, file: File) -> Steps:
        if self._request.keys and segment.key_state is KeyState.UNKNOWN:
            yield KeysUnknown(segment)
        if self._lacks_filters(segment) and isinstance(file, ColdFile):
            yield from self._fetch(Missing(ColdError(file.cached, suffix=FILTER_SUFFIX)))
        while not self.progress.is_cut:
            with ExitStack() as opened:
                try:
                    # Anew each time: damage that is found takes chunks out of the table, and the
                    # key index counts them.
                    index = self._key_index(segment)
                    table = self._table(segment, file, opened)
                    yield from self._walk(segment, file, table, index)
                    self._has_index = index is not None
                    return
                except WrongIndex:
                    self._distrusted.add(segment)
                except ColdError as error:
                    if error.cached.is_gone:  # and what is beside it never comes
                        self._lose(segment)
                        return
                    yield from self._fetch(Missing(error, is_more=True))
                except (FormatError, StorageError) as error:
                    if isinstance(file, ColdFile) and file.cached.is_gone:
                        self._lose(segment)
                        return
                    is_index = isinstance(error, FormatError) or error.is_missing
                    if not is_index or segment in self._distrusted:
                        raise
                    self._distrusted.add(segment)

    def _key_index(self, segment: Segment) -> KeyIndex | None:
        """The segment's index of the keys; None where it has none of these."""
        if not self._request.keys or segment.damage or segment in self._distrusted:
            return None
        index = keys_of(segment)
        has_all = index is not None and set(self._request.properties) <= set(index.properties)
        return index if has_all else None

    def _table(self, segment: Segment, file: File, opened: ExitStack) -> ChunkTable:
        """Where the chunks of the segment are."""
        filters = segment.filters
        if segment.damage or segment in self._distrusted:
            content = index_content(segment, file)
            if segment in self._distrusted and self._log.keeps(segment):
                correct_index(segment, content)
            number = (len(content) - FILE_HEADER_SIZE) // INDEX_RECORD_SIZE
            return ChunkTable.of_file(segment, _Content(content), number, is_walked=True)
        if filters is not None and len(filters.positions):  # else those are in the index file
            return ChunkTable(segment, filters.positions, filters.chunk_ids, is_certain=True)
        index = segment.open_beside(INDEX_SUFFIX)
        opened.callback(index.close)
        is_stored = segment.cold is not None  # then it is compared with what was stored
        return ChunkTable.of_file(segment, index, segment.num_chunks, is_certain=is_stored)

    def _walk(
        self, segment: Segment, file: File, table: ChunkTable, index: KeyIndex | None
    ) -> Steps:
        """Search the chunks of the segment that are left."""
        first, last = self._bounds(segment, table)
        reader = SpanReader(segment, file, table, self.looked_at)
        held = self._held(first, last, index)
        blocks = self._blocks(first, last, index, held)
        for block in reversed(blocks) if self._request.newest else blocks:
            chosen = self._choose(segment, block)
            spans = reader.spans(chosen, is_backward=self._request.newest)
            ahead = list(spans) if isinstance(file, ColdFile) else ()
            for number, span in enumerate(ahead or spans):
                if not self._may_hold(span, held):
                    self.looked_at.chunks_skipped_by_keys += len(span)
                    continue
                yield None
                if self.progress.must_stop:
                    return
                if isinstance(file, ColdFile):
                    yield from self._bring(file, table, ahead[number:], held)
                    if self.progress.is_cut:
                        return
                yield from self._search_span(reader, span, held)
            if self.progress.must_stop:
                return
            self._pass_chunks(table, block)
            if not chosen:
                yield None
        self.progress.done(segment.base_offset, segment.next_offset)

    def _bring(
        self,
        file: ColdFile,
        table: ChunkTable,
        spans: Sequence[range],
        held: Held | None,
    ) -> Steps:
        """Have the chunks of the first span fetched, and some that follow, where they are not here.

        Nothing may be yielded between this and reading them, or they may be gone.
        """
        wanted = _range_of(table, spans[0])
        size = wanted.end - wanted.start
        while file.length_there(size, wanted.start) < size and not file.cached.is_gone:
            ranges: list[Range] = []
            left = _AHEAD_BYTES
            for span in spans:
                if left <= 0:
                    break
                if self._may_hold(span, held):
                    ranges.append(_range_of(table, span))
                    left -= ranges[-1].end - ranges[-1].start
            requests = [Request(file.cached, where) for where in merged(sorted(ranges))]
            if self._request.newest:
                requests.reverse()
            yield from self._fetch(Missing(ColdError(file.cached, wanted), requests))
            if self.progress.is_cut:
                return

    def _fetch(self, missing: Missing) -> Steps:
        """Have something fetched; where there is no time for that, the page ends."""
        if not (yield missing):
            self.progress.cut = Cut.BUDGET
            self.is_away = True

    def _bounds(self, segment: Segment, table: ChunkTable) -> tuple[int, int]:
        """Numbers of the first chunk to be searched, and of the one behind the last."""
        if not table.num_chunks:
            return 0, 0
        low, high = (
            max(self.progress.low, segment.base_offset),
            min(self.progress.high, segment.next_offset),
        )
        first, last = 0, table.num_chunks
        if low > segment.base_offset:
            first = table.holding(low)
            if not table.is_certain:
                _confirm(segment, table, first, low)
        if high < segment.next_offset:
            last = table.holding(high - 1) + 1
            if not table.is_certain:
                _confirm(segment, table, last - 1, high - 1)
        request, passed = self._request, last - first
        is_trusted = not segment.damage and segment not in self._distrusted
        if not request.by_creation_time and is_trusted:
            if request.from_ms is not None and _first_time(segment) < request.from_ms:
                first = max(
                    first,
                    _number_at(
                        table, first_chunk_at_or_after(segment, request.from_ms, walks=False)
                    ),
                )
            if request.to_ms is not None and _last_time(segment) > request.to_ms:
                last = min(
                    last,
                    _number_at(
                        table, first_chunk_at_or_after(segment, request.to_ms + 1, walks=False)
                    ),
                )
        last = max(first, last)
        self.looked_at.chunks_skipped_by_time += passed - (last - first)
        return first, last

    def _held(self, first: int, last: int, index: KeyIndex | None) -> Held | None:
        """Which messages may have which keys, as far as the index goes; None where nobody knows.

        Keys are told by their places in the request.
        """
        if index is None or first >= min(last, index.num_chunks):
            return None
        return index.asked(self._test.prints(), first, last)

    def _blocks(
        self, first: int, last: int, index: KeyIndex | None, held: Held | None
    ) -> Sequence[Sequence[int]]:
        """Numbers of chunks that may hold a key, in pieces that `_choose` can be asked about."""
        end, width = first, self._chunk_test.num_at_once
        size = min(_BLOCK, width)
        blocks: list[Sequence[int]] = []
        if index is not None and held is not None:
            end = min(last, index.num_chunks)
            self.looked_at.chunks_skipped_by_keys += end - first - len(held.keys)
            for _, near in groupby(sorted(held.keys), key=lambda ordinal: ordinal // width):
                found = list(near)
                blocks += [found[at : at + size] for at in range(0, len(found), size)]
            blocks = blocks or [()]
        blocks += [range(at, min(last, at + size)) for at in range(end, last, size)]
        return blocks

    def _may_hold(self, span: range, held: Held | None) -> bool:
        """Whether some of these chunks may have a key of which no newer message was found."""
        if held is None:
            return True
        keys = held.keys
        return any(ordinal not in keys or self._test.has_left(keys[ordinal]) for ordinal in span)

    def _choose(self, segment: Segment, block: Sequence[int]) -> Sequence[int]:
        """The chunks that may match by the filter index, as far as there is one."""
        test, filters = self._chunk_test, segment.filters
        if not test.matchers or segment.damage:
            return block
        if filters is None:
            self._log.indexes.request(segment)
            return block
        chosen = test.choose(filters, block)
        self.looked_at.chunks_skipped_by_filter += len(block) - len(chosen)
        return chosen

    def _pass_chunks(self, table: ChunkTable, block: Sequence[int]) -> None:
        """These chunks are done, and all before or behind them.

        What an index file says of chunks that were not read is not compared with anything.
        """
        if not block or not table.is_certain:
            return
        ids, behind = table.chunk_ids, block[-1] + 1
        so_far = self.progress
        so_far.done(ids[block[0]], ids[behind] if behind < table.num_chunks else so_far.low)

    # -- chunks

    def _search_span(self, reader: SpanReader, span: range, held: Held | None) -> Steps:
        # A key index tells which messages; what columns say would cost more than those.
        chunks = reader.read(
            span, self._chunk_test, asks_rows=held is None, is_backward=self._request.newest
        )
        for chunk in chunks:
            header = chunk.header
            if header.next_offset <= self.progress.low or header.chunk_id >= self.progress.high:
                continue
            if chunk.data is None:
                reader.lose(header)
            else:
                if self._is_out_of_time(header.timestamp_ms):
                    self.looked_at.chunks_skipped_by_time += 1
                    continue
                keys = numbers = None
                if held is not None:
                    keys = held.keys.get(chunk.ordinal)
                    numbers = held.messages.get(chunk.ordinal)
                if keys is not None and not self._test.has_left(keys):
                    self.looked_at.chunks_skipped_by_keys += 1
                    continue
                self.looked_at.chunks_read += 1
                try:
                    yield from self._messages.steps(header, chunk.data, keys, numbers, chunk.rows)
                except FormatError:  # it is damaged in itself
                    reader.lose(header)
            if self.progress.is_cut:
                return
            # Before the budget is looked at: what was found in this chunk is not to be found again.
            self.progress.done(header.chunk_id, header.next_offset)
            if self.progress.must_stop:
                return


class _Content:
    """What an index file should hold."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def read(self, size: int, position: int) -> bytes:
        """See disk.File."""
        return self._content[position : position + size]


def run(search: Search) -> Page:
    """Do all steps of a search at once.

    Raises:
        SegmentsError: see `Search.steps`.
    """
    for _ in search.steps():
        pass
    return search.page


def _chunk_at(segment: Segment, offset: int) -> tuple[Place, ChunkHeader | None]:
    """The chunk with an offset of a segment; no header where it cannot be found, or read.

    Raises:
        StorageError: the system refused to read.
    """
    try:
        place = chunk_holding(segment, offset, walks=False)
    except (FormatError, StorageError) as error:
        if isinstance(error, StorageError) and not error.is_missing:
            raise
        return Place(FILE_HEADER_SIZE, segment.base_offset), None
    file = segment.acquire()
    try:
        return place, read_header(file, place.position, place.offset)
    finally:
        segment.release()


def _range_of(table: ChunkTable, span: range) -> Range:
    """Where the chunks of a span are."""
    return Range(table.positions[span[0]], table.end(span[-1]))


def _check_of(header: ChunkHeader) -> int:
    """Tells a chunk from one of another stream at its place."""
    told = (header.timestamp_ms, header.epoch, header.data_crc, header.data_size)
    return crc32(repr(told).encode())


def _confirm(segment: Segment, table: ChunkTable, ordinal: int, offset: int) -> None:
    """Raise WrongIndex unless a chunk of the table holds an offset."""
    place = chunk_holding(segment, offset, walks=False)
    is_there = table.positions[ordinal] == place.position
    if not is_there or table.chunk_ids[ordinal] != place.offset:
        raise WrongIndex


def _number_at(table: ChunkTable, place: Place | None) -> int:
    """Number of the chunk at a place; as many as there are where there is none."""
    if place is None:
        return table.num_chunks
    number = table.at(place.position)
    if number == table.num_chunks or table.chunk_ids[number] != place.offset:
        raise WrongIndex
    return number


def _first_time(segment: Segment) -> int:
    assert segment.first_timestamp_ms is not None  # noqa: S101 - it has chunks
    return segment.first_timestamp_ms


def _last_time(segment: Segment) -> int:
    assert segment.last_timestamp_ms is not None  # noqa: S101 - it has chunks
    return segment.last_timestamp_ms
