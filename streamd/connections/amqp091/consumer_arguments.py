"""From the arguments of basic.consume to what the consumer gets: a start, a matcher, a choice.

Source: rabbitmq/rabbitmq-server, deps/rabbit/src/rabbit_stream_queue.erl. Additions of this server:
`x-stream-sql` and `x-stream-tags`; and messages with another filter value than those asked for are
not delivered.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, reduce
from operator import and_
from typing import NamedTuple, TypeAlias

from segments import FIRST, LAST, NEXT, ChunkMatcher, OffsetSpec, Start, at_offset, at_time
from segments.amqp10 import find_in_map
from segments.amqp10_codes import Section
from segments.columns import Columns
from segments.creation_time import was_created_before
from segments.errors import FormatError
from segments.message import find_section
from segments.pushed_down import matcher_of
from segments.row_screen import RowScreen
from segments.selector import (
    Cost,
    MessageMatcher,
    Selector,
    SelectorError,
    body_at,
    parse_sql,
    parse_tags,
)
from streamd.broker.declared.checks import check_asked
from streamd.broker.declared.filter_contract import own_value_reader
from streamd.operations.argument_kinds import age_seconds
from streamd.operations.arguments import (
    FILTER_CONTRACT,
    STRICT,
    Arguments,
    filter_properties,
)
from streamd.operations.errors import Refused
from streamd.wire.amqp091.errors import MAX_SHORT_TEXT, precondition_failed
from streamd.wire.amqp091.messages.to_amqp10 import FILTER_VALUE, ROUTING_KEY
from streamd.wire.amqp091.values import INTEGER_TAGS, Field, Table

OFFSET, FILTER, UNFILTERED = "x-stream-offset", "x-stream-filter", "x-stream-match-unfiltered"
SQL, TAGS = "x-stream-sql", "x-stream-tags"
_PREFIX = "x-stream-"
_KNOWN = (OFFSET, FILTER, UNFILTERED, SQL, TAGS)
_YES, _TEXT = Field("t", True), Field("S", b"")
FOREIGN = ("x-priority", "x-consumer-timeout")
_WORDS = {b"first": FIRST, b"last": LAST, b"next": NEXT}

_SHORT_HEADER = b"\x00\x53\x70\xc0"  # a header section, as a short list
_SHORT_ANNOTATIONS = b"\x00\x53\x72\xc1"  # message annotations, as a short map
_REMEMBERED_BYTES = 512  # of the beginning of a message

# The messages of a chunk that are wanted: data section, where its messages end; their places.
Choice: TypeAlias = Callable[[bytes, list[int]], list[int]]
Screen: TypeAlias = Callable[[Columns], int | None]  # see ConsumerArguments.rows


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


def read_offset(field: Field | None, now_ms: int) -> OffsetSpec:
    """Where to begin.

    Raises:
        ChannelFault: it is not a valid place.
    """
    if field is None:
        return NEXT
    tag, value = field
    if tag in INTEGER_TAGS and value >= 0:
        return at_offset(value)
    if tag == "T":
        return at_time(min(value * 1000, (1 << 63) - 1))
    if tag == "S":
        if value in _WORDS:
            return _WORDS[value]
        try:
            return at_time(max(0, now_ms - age_seconds(value.decode()) * 1000))
        except (ValueError, UnicodeDecodeError):
            pass
    shown = value.decode(errors="replace")[:40] if isinstance(value, bytes) else value
    raise precondition_failed(
        f"{OFFSET} is {shown!r} (type {tag}); expected first, last, next, an offset from 0 on, a "
        "timestamp, or an interval as in 1h"
    )


def read_wanted(
    arguments: Table, start: OffsetSpec, declared: Arguments, now_ms: Callable[[], int]
) -> ConsumerArguments:
    """Which chunks and messages.

    Args:
        arguments: of basic.consume.
        start: where to begin.
        declared: what the stream was declared with.
        now_ms: the wall clock, for selectors that ask for the time.

    Raises:
        ChannelFault: a filter or a selector cannot be used.
    """
    matcher = _filter(arguments)
    choices: list[Choice] = []
    screens: list[Screen] = []
    num_tests = 0
    parts, scans = _EXACT_COST
    if matcher is not None:
        choices.append(ExactValues(matcher, declared).places)
        screens.append(matcher.rows)
        num_tests += 1
    selector = _selector(arguments)
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


def ignored(arguments: Table) -> Iterator[str]:
    """Warnings about arguments that are ignored, as in RabbitMQ, but were probably meant."""
    for name in arguments:
        if name.startswith(_PREFIX) and name not in _KNOWN:
            known = ", ".join(_KNOWN)
            yield f"the argument {name[:40]!r} is ignored; those of consumers are {known}"
    field = arguments.get(FILTER)
    fields = field.value if field is not None and field.tag == "A" else [field or _TEXT]
    for tag in sorted({item.tag for item in fields} - {"S"}):
        yield f"{FILTER} has a value of type {tag}, which is ignored; expected strings"
    tag = arguments.get(UNFILTERED, _YES).tag
    if tag != _YES.tag:
        yield f"{UNFILTERED} is of type {tag}, which counts as false; expected a boolean"


def _filter(arguments: Table) -> ChunkMatcher | None:
    field = arguments.get(FILTER)
    if field is None or field.tag not in "SA":
        return None
    fields = field.value if field.tag == "A" else [field]
    values = [item.value for item in fields if item.tag == "S"]
    if not values or not all(values):
        raise precondition_failed(
            f"{FILTER} has no filter value, or an empty one; expected a string or an array of them"
        )
    try:
        check_asked(values)
    except Refused as refused:
        raise precondition_failed(refused.details) from refused
    return ChunkMatcher(values, match_unfiltered=arguments.get(UNFILTERED) == _YES)


def _selector(arguments: Table) -> Selector | None:
    given = [name for name in (SQL, TAGS) if name in arguments]
    if not given:
        return None
    if len(given) > 1:
        raise precondition_failed(f"{SQL} and {TAGS} exclude each other; give one of them")
    (name,) = given
    field = arguments[name]
    try:
        text = field.value.decode() if field.tag == "S" else None
    except UnicodeDecodeError:
        text = None
    if text is None:
        raise precondition_failed(f"{name} is not a UTF-8 string; expected a selector")
    try:
        return parse_sql(text) if name == SQL else parse_tags(text)
    except SelectorError as error:
        raise precondition_failed(_shortened(name, error)) from error


_CODE_BYTES = len("PRECONDITION_FAILED - ")


def _shortened(name: str, error: SelectorError) -> str:
    """The message with its caret, cut so that it fits into the text of a close."""
    room = MAX_SHORT_TEXT - _CODE_BYTES
    whole = f"{name}: {error}"
    if len(whole.encode()) <= room:
        return whole
    head, shown, caret = whole.rsplit("\n", 2)
    at = len(caret) - len(caret.lstrip())
    first = max(2, at - 20)
    shown = "  " + shown[first : first + 40]
    caret = "  " + caret[first : first + 40]
    left = room - len(f"\n{shown}\n{caret}".encode()) - len("…".encode())
    cut = head.encode()[:left].decode(errors="ignore")
    return f"{cut if cut == head else cut + '…'}\n{shown}\n{caret}"


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


def shown_arguments(arguments: Table) -> Mapping[str, str]:
    """The arguments for people."""
    return {name: _shown(field) for name, field in arguments.items()}


def _shown(field: Field) -> str:
    if isinstance(field.value, bytes):
        return field.value.decode(errors="replace")
    if field.tag == "A":
        return ", ".join(map(_shown, field.value))
    return str(field.value)
