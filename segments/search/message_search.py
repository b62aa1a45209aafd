"""Searching the messages of a chunk."""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import accumulate

from segments import codec, compression
from segments.codec import ChunkHeader
from segments.columns import Opened, open_rows, places_of
from segments.errors import FormatError
from segments.keys.extraction import KeyExtractor
from segments.keys.table import NUMBER_BITS
from segments.missing_names import MissingNames
from segments.search.message_matcher import MessageTest
from segments.search.page import Steps
from segments.search.progress import Progress
from segments.search.request import SearchRequest
from segments.search.span_reader import Rows
from segments.selector import parse_property
from segments.selector.message_slices import body_at, holding
from segments.selector.selector import SCREEN_SHARE

_STEP_UNITS = 1_500  # of selector/cost.py, some 0.2 ms
# What is shaped to take long takes 0.2 µs for a byte of a message that is read, 0.1 for one that is
# unpacked, 0.5 for one whose keys are looked for.
_UNPACKED_AS_READ, _KEYED_AS_READ = 2, 2


class MessageSearch:
    """Finds messages in chunks.

    Args:
        request: what is searched for.
        test: of messages.
        progress: gets what is found, and says when to end.

    Attributes:
        names: of the request, that no message has, as far as messages were looked at.
    """

    def __init__(self, request: SearchRequest, test: MessageTest, progress: Progress) -> None:
        self._request, self._test, self._progress = request, test, progress
        self._extractor: KeyExtractor | None = None
        selector = request.selector
        named = [
            *map(parse_property, request.properties),
            *(selector.properties if selector else ()),
        ]
        self.names = MissingNames(named, None if selector is None else selector.node)

    def steps(
        self,
        header: ChunkHeader,
        data: bytes,
        keys: int | None,
        numbers: Collection[int] | None,
        rows: Rows | None,
    ) -> Steps:
        """Search the messages of a chunk.

        Args:
            header: its header.
            data: its messages.
            keys: which it may have, see `Search._held`; None where any may be.
            numbers: of the messages that may have them; None where any may.
            rows: the messages that may be wanted by its columns; None where any may.

        Raises:
            FormatError: it does not hold what its header says.
        """
        if rows is not None and rows.wanted.bit_count() * SCREEN_SHARE <= header.num_records:
            opened = _opened(rows, data)
            if opened is not None:
                yield from self._search_opened(header, opened)
                return
            rows = None
        most = header.num_records  # that have to be found
        if numbers is not None:
            if max(numbers) < most:
                most = max(numbers) + 1
            else:  # the index is of another chunk
                numbers = None
        bounds = self._bounds(header)
        ends = codec.simple_ends(data) if numbers is None else codec.simple_ends(data, most)
        if ends is None:
            yield from self._search_packed(header, data, bounds, numbers)
            return
        if len(ends) < most or (numbers is None and len(ends) > most):
            raise FormatError("the chunk does not hold the messages that its header counts")
        places = self._places(data, ends, bounds, keys, numbers, rows)
        self._progress.looked_at.messages_screened += len(bounds) - len(places)
        yield from self._search_messages(header, places, partial(body_at, data, ends))
        if not self._progress.found:
            seen = places if numbers is not None else bounds
            self._look_for_names(body_at(data, ends, place) for place in seen)

    def _look_for_names(self, bodies: Iterable[bytes]) -> None:
        self.names.look(map(self._counted, bodies))

    def _counted(self, raw: bytes) -> bytes:
        """A message that is read for itself."""
        self._progress.may_look_into(len(raw))
        return raw

    def _search_opened(self, header: ChunkHeader, opened: Opened) -> Steps:
        """Search those messages of a chunk that may be wanted."""
        bounds = self._bounds(header)
        bodies = [body_at(opened.data, opened.ends, number) for number in range(len(opened.ends))]
        found = {p: raw for p, raw in zip(opened.places, bodies, strict=True) if p in bounds}
        self._progress.looked_at.messages_screened += len(bounds) - len(found)
        yield from self._search_messages(header, [*found], found.__getitem__)
        if not self._progress.found:
            self._look_for_names(found.values())

    def _bounds(self, header: ChunkHeader) -> range:
        """The numbers of its messages that are left to be searched."""
        first = max(self._progress.low, header.chunk_id) - header.chunk_id
        return range(first, min(self._progress.high, header.next_offset) - header.chunk_id)

    def _places(
        self,
        data: bytes,
        ends: Sequence[int],
        bounds: range,
        keys: int | None,
        numbers: Collection[int] | None,
        rows: Rows | None,
    ) -> Sequence[int]:
        """The numbers of the messages that are to be tested."""
        if numbers is not None:
            return sorted(number for number in numbers if number in bounds)
        if keys is None and self._test.has_many:
            self._progress.may_look_into(len(data) * _KEYED_AS_READ)
            keys = self._keys_in(data)
        screen = self._test.screen if keys is None else self._test.screen_of(keys)
        at = None if screen is None else screen.places(data, len(ends) // SCREEN_SHARE)
        told = None if rows is None else places_of(rows.wanted, rows.columns.num_records)
        if at is None:
            return bounds if told is None else [place for place in told if place in bounds]
        may = bounds if told is None else set(told).intersection(bounds)
        return [place for place in holding(ends, at) if place in may]

    def _keys_in(self, data: bytes) -> int | None:
        """Which of many keys a chunk may have; None where that is not known."""
        if self._extractor is None:
            self._extractor = KeyExtractor(self._request.properties)
        told = self._extractor.told(data)
        if told is None:
            return None
        prints = {one >> NUMBER_BITS for one in told}
        wanted = enumerate(self._test.prints())
        return sum(1 << place for place, of_key in wanted if not prints.isdisjoint(of_key))

    def _search_packed(
        self, header: ChunkHeader, data: bytes, bounds: range, chosen: Collection[int] | None
    ) -> Steps:
        """The same where some messages are packed: one batch is unpacked after the other.

        Publishers pack batches, so one that cannot be unpacked is no reason to leave out others.
        """
        entries = list(codec.walk_entries(data))
        begins = [0, *accumulate(entry.num_records for entry in entries)]
        if begins[-1] != header.num_records:
            raise FormatError("the chunk does not hold the messages that its header counts")
        numbers, has_begun, lost = range(len(entries)), False, 0
        for number in reversed(numbers) if self._request.newest else numbers:
            begin = max(bounds.start, begins[number])
            end = min(bounds.stop, begins[number + 1])
            places: Sequence[int] = range(begin, end)
            if chosen is not None:
                places = sorted(place for place in chosen if place in places)
            if not places:
                continue
            yield None
            if has_begun and self._progress.is_over:
                self._progress.stop_at(
                    header.chunk_id + (end - 1 if self._request.newest else begin)
                )
                break
            has_begun = True
            entry = entries[number]
            size = max(entry.uncompressed_size, entry.end - entry.body)  # it may announce less
            self._progress.may_look_into(size // _UNPACKED_AS_READ)
            try:
                bodies = list(compression.entry_bodies(data, entry))
            except FormatError:
                lost += end - begin
                continue
            if not self._progress.found:
                self._look_for_names(bodies)
            yield from self._search_messages(
                header, places, partial(_nth_behind, bodies, begins[number])
            )
            if self._progress.is_cut:
                break
        self._progress.looked_at.chunks_damaged += lost > 0
        self._progress.looked_at.messages_lost += lost

    def _search_messages(
        self, header: ChunkHeader, places: Sequence[int], body: Callable[[int], bytes]
    ) -> Steps:
        """Test messages at some places of a chunk, as many in a step as are little work."""
        order = places[::-1] if self._request.newest else places
        at = 0
        while at < len(order):
            some, bodies = self._some(order, at, body)
            for number in self._test.select(bodies):
                if self._progress.take(header, some[number], number, bodies[number]):
                    self._progress.looked_at.messages_tested += number + 1
                    return
            self._progress.looked_at.messages_tested += len(some)
            at += len(some)
            if at < len(order):
                yield None
                if self._progress.is_over:
                    self._progress.stop_at(header.chunk_id + order[at])
                    return

    def _some(
        self, order: Sequence[int], at: int, body: Callable[[int], bytes]
    ) -> tuple[Sequence[int], list[bytes]]:
        """The next places, and the messages there."""
        cost, units = self._test.cost, 0
        bodies: list[bytes] = []
        while at + len(bodies) < len(order) and units < _STEP_UNITS:
            raw = self._counted(body(order[at + len(bodies)]))
            bodies.append(raw)
            units += cost.units(len(raw))
        return order[at : at + len(bodies)], bodies


def _nth_behind(bodies: Sequence[bytes], before: int, place: int) -> bytes:
    """The message at a place, where so many are before the first of these."""
    return bodies[place - before]


def _opened(rows: Rows, data: bytes) -> Opened | None:
    """The messages that may be wanted; None where columns are wrong though checks are right."""

    def read(size: int, position: int) -> bytes:
        return data[position : position + size]

    try:
        return open_rows(rows.columns, rows.wanted, len(data), read)
    except FormatError:
        return None
