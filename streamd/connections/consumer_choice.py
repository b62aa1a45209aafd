"""Which chunks and messages of a stream a consumer gets that is delivered messages one by one.

Messages with another filter value than those asked for are not delivered.
"""

from collections.abc import Callable
from functools import lru_cache, reduce
from operator import and_
from typing import NamedTuple, TypeAlias

from segments import FIRST, LAST, NEXT, ChunkMatcher, OffsetSpec, Start, at_time
from segments.amqp10 import find_in_map
from segments.amqp10_codes import Section
from segments.columns import Columns
from segments.creation_time import was_created_before
from segments.errors import FormatError
from segments.message import find_section
from segments.pushed_down import matcher_of
from segments.row_screen import RowScreen
from segments.selector import Cost, MessageMatcher, Selector, body_at
from streamd.broker.declared.filter_contract import own_value_reader
from streamd.operations.argument_kinds import age_seconds
from streamd.operations.arguments import FILTER_CONTRACT, STRICT, Arguments, filter_properties
from streamd.wire.stored_messages import FILTER_VALUE, ROUTING_KEY

_SHORT_HEADER = b"\x00\x53\x70\xc0"  # a header section, as a short list
_SHORT_ANNOTATIONS = b"\x00\x53\x72\xc1"  # message annotations, as a short map
_REMEMBERED_BYTES = 512  # of the beginning of a message

# The messages of a chunk that are wanted: data section, where its messages end; their places.
Choice: TypeAlias = Callable[[bytes, list[int]], list[int]]
Screen: TypeAlias = Callable[[Columns], int | None]  # see ConsumerArguments.rows


_WORDS = {"first": FIRST, "last": LAST, "next": NEXT}
_EXACT_COST = Cost(10, 1)  # of ExactValues
_CREATED_COST = Cost(4, 1)  # of Created


class ConsumerArguments(NamedTuple):
    """What a consumer asks for.

    Attributes:
        start: where to begin.
        first_offset: messages before it are not delivered.
        matcher: which chunks, None for all.
        choices: which messages of them; all have to agree.
        screens: which messages may be chosen, by the columns of their chunk.
        num_tests: columns that are asked for that.
    """

    start: OffsetSpec
    first_offset: int
    matcher: ChunkMatcher | None
    choices: tuple[Choice, ...]
    cost: Cost
    screens: tuple[Screen, ...] = ()
    num_tests: int = 0

    def rows(self, columns: Columns) -> int | None:
        """The messages of a chunk that may be chosen; None where its columns do not tell.

        Returns:
            see `Columns.rows`.
        """
        found = [rows for screen in self.screens if (rows := screen(columns)) is not None]
        return reduce(and_, found) if found else None

    def screening_units(self, num_records: int) -> int:
        """What `rows` may take for a chunk of so many messages, each with another value."""
        return self.num_tests * num_records // 2

    def of_first_chunk(self) -> "ConsumerArguments":
        """The same for the first chunk that was stored at the time asked for, or later."""
        created = _Created(self.start.value)
        cost = Cost(*(own + more for own, more in zip(self.cost, _CREATED_COST, strict=True)))
        return self._replace(choices=(*self.choices, created.places), cost=cost)


def start_named(text: str, now_ms: int) -> OffsetSpec | None:
    """The start that a text names: first, last, next, or an interval as in 1h; None for none."""
    if text in _WORDS:
        return _WORDS[text]
    try:
        return at_time(max(0, now_ms - age_seconds(text) * 1000))
    except ValueError:
        return None


def wanted_of(
    start: OffsetSpec,
    matcher: ChunkMatcher | None,
    selector: Selector | None,
    declared: Arguments,
    now_ms: Callable[[], int],
) -> ConsumerArguments:
    """What a consumer gets.

    Args:
        start: where to begin.
        matcher: the filter values asked for; None for all.
        selector: of messages.
        declared: what the stream was declared with.
        now_ms: the wall clock, for selectors that ask for the time.
    """
    choices: list[Choice] = []
    screens: list[Screen] = []
    num_tests = 0
    parts, scans = _EXACT_COST
    if matcher is not None:
        choices.append(ExactValues(matcher, declared).places)
        screens.append(matcher.rows)
        num_tests += 1
    if selector is not None:
        names, is_strict = filter_properties(declared), declared.get(FILTER_CONTRACT) == STRICT
        if matcher is None:
            matcher = matcher_of(selector.push_down(names, is_strict=is_strict))
        screen = RowScreen(selector, names, is_strict=is_strict)
        if screen.is_useful:
            screens.append(screen.rows)
            num_tests += screen.num_tests
        own = selector.matcher()
        choices.append(_Selection(own, now_ms).places)
        parts, scans = parts + own.cost.parts, scans + own.cost.scans
    first_offset = start.value if start.start is Start.OFFSET else 0
    cost = Cost(parts, scans)
    return ConsumerArguments(
        start, first_offset, matcher, tuple(choices), cost, tuple(screens), num_tests
    )


class _Selection:
    """The messages that a selector selects."""

    def __init__(self, matcher: MessageMatcher, now_ms: Callable[[], int]) -> None:
        self._matcher = matcher
        self._now_ms = now_ms

    def places(self, data: bytes, ends: list[int]) -> list[int]:
        """See Choice."""
        self._matcher.clock.now_ms = self._now_ms()
        return self._matcher.select_in(data, ends)


class _Created:
    """The messages that do not say that they were created before a time."""

    def __init__(self, time_ms: int) -> None:
        self._time_ms = time_ms

    def places(self, data: bytes, ends: list[int]) -> list[int]:
        """See Choice."""
        return [
            place
            for place in range(len(ends))
            if not was_created_before(body_at(data, ends, place), self._time_ms)
        ]


class ExactValues:
    """The messages whose filter value was asked for.

    The value is the annotation that AMQP publishers give, else the value of the stream's filter
    property. A message from a stream client that has neither had a value that is unknown here:
    it is delivered, where the columns of its chunk did not tell either.
    """

    def __init__(self, matcher: ChunkMatcher, declared: Arguments) -> None:
        self._wanted = {*matcher.values, *([b""] if matcher.match_unfiltered else [])}
        self._own_value = own_value_reader(declared)
        self._is_strict = declared.get(FILTER_CONTRACT) == STRICT

    def places(self, data: bytes, ends: list[int]) -> list[int]:
        """See Choice."""
        start, found = 4, []
        wanted, own_value = self._wanted, self._own_value
        for place, end in enumerate(ends):
            # Messages of one kind begin alike, so most beginnings were seen before.
            after = _annotations_end(data, start, end)
            if after and after - start <= _REMEMBERED_BYTES:
                value = _remembered_value(data[start:after])
            else:
                value = annotated_value(data[start:end])
            if not value and own_value is not None:
                value = own_value(data[start:end]) or (b"" if self._is_strict else value)
            if value is None or value in wanted:
                found.append(place)
            start = end + 4
        return found


def annotated_value(raw: bytes) -> bytes | None:
    """The filter value that a message was published with over AMQP 0-9-1, empty for none.

    None where that cannot be told: stream clients give their values beside the messages.
    """
    try:
        at = find_section(raw, Section.MESSAGE_ANNOTATIONS)
        if at is None:
            return None
        value = find_in_map(raw, at, FILTER_VALUE)
        if isinstance(value, str):
            return value.encode()
        return None if find_in_map(raw, at, ROUTING_KEY) is None else b""
    except FormatError:
        return None


_remembered_value = lru_cache(maxsize=4096)(annotated_value)


def _annotations_end(data: bytes, start: int, end: int) -> int:
    """Where the annotations of a message in `data` end; 0 unless it begins as most do."""
    at = start
    if data[at : at + 4] == _SHORT_HEADER and at + 4 < end:
        at += 5 + data[at + 4]
    if data[at : at + 4] != _SHORT_ANNOTATIONS or at + 4 >= end:
        return 0
    after = at + 5 + data[at + 4]
    return after if after <= end else 0
