"""From the filters of a source to what its link gets.

Theory of operation. A filter is an entry of a map: a symbol and a described value. The descriptor
says what it is; only SQL is told by the symbol. Filters are read from the last one to the first, as
RabbitMQ reads them. One that cannot be used, or not beside those read before it, is left out: it is
missing in what is sent back, which clients may look at, and the log names it. Of several places to
begin, or several lists of filter values, the first one in the map holds.

A link has at most one selector: SQL, property filters (one for each section of a message), tags, or
the standing selector of a group. The last two are this server's. Each may stand beside filter
values. Those of a group are the chunks that hold a match, unless filter values are asked for.

Source: rabbitmq/rabbitmq-server, deps/rabbit/src/rabbit_amqp_session.erl, parse_filters.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

from segments import NEXT, ChunkMatcher, OffsetSpec, at_offset, at_time
from segments.amqp10 import Char, Symbol
from segments.segment import MAX_OFFSET
from segments.selector import Dialect, Selector, SelectorError, parse_sql, parse_tags
from segments.times import whole_ms
from streamd.broker.declared.checks import check_asked
from streamd.broker.declared.standing_selectors import StandingSelectors
from streamd.connections.amqp10.property_filters import (
    PropertyFilter,
    is_named,
    read_property_filter,
    selector_of,
)
from streamd.connections.consumer_choice import ConsumerArguments, start_named, wanted_of
from streamd.operations.arguments import Arguments
from streamd.operations.errors import Refused
from streamd.wire.amqp10.errors import Condition, LinkFault
from streamd.wire.amqp10.values import Described, Entry, Exact

OFFSET, FILTER = "rabbitmq:stream-offset-spec", "rabbitmq:stream-filter"
UNFILTERED = "rabbitmq:stream-match-unfiltered"
GROUP, TAGS = "streamd:group", "streamd:tag"
SQL_KEY = "sql-filter"
SQL = ("amqp:sql-filter", 0x120)
CAPABILITIES = (Symbol("AMQP_FILTEX_PROP_V1_0"), Symbol("AMQP_FILTEX_SQL_V1_0"))

_SHOWN = 40  # characters of what is left out


class Filters(NamedTuple):
    """What a link gets.

    Attributes:
        in_effect: the filters that are used, in their order.
        left_out: a sentence about each of the others.
        shown: those in effect, for people.
        group: its standing selector chooses the chunks: see `StandingSelectors.add_user`.
    """

    wanted: ConsumerArguments
    in_effect: list[Entry]
    left_out: list[str]
    shown: Mapping[str, str]
    group: str | None = None


def read_filters(
    entries: Sequence[Entry],
    stream: str,
    declared: Arguments,
    now_ms: Callable[[], int],
    standing: StandingSelectors,
) -> Filters:
    """What a link gets of a stream.

    Args:
        entries: of the filter map, in their order.
        stream: its name.
        declared: what it was declared with.
        now_ms: the wall clock.
        standing: the selectors of its groups.

    Raises:
        LinkFault: there is no such place to begin.
    """
    reading = _Reading(stream, now_ms, standing)
    in_effect: list[Entry] = []
    left_out = []
    for entry in reversed(entries):
        try:
            reading.take(entry)
        except ValueError as error:
            left_out.append(f"the filter {_brief(entry.key)} is left out: {_reason(error)}")
        else:
            in_effect.append(entry)
    in_effect.reverse()
    shown = {str(entry.key): _shown(entry.value.value) for entry in in_effect}
    wanted, group = reading.wanted(declared)
    return Filters(wanted, in_effect, left_out, shown, group)


class _Reading:
    """The filters that were read so far.

    Args:
        stream: the name, for errors.
    """

    def __init__(self, stream: str, now_ms: Callable[[], int], standing: StandingSelectors) -> None:
        self._stream = stream
        self._now_ms = now_ms
        self._standing = standing
        self._start: OffsetSpec = NEXT
        self._values: list[bytes] = []
        self._match_unfiltered = False
        self._properties: list[PropertyFilter] = []
        self._selector: Selector | None = None
        self._group: tuple[str, ChunkMatcher] | None = None
        self._readers = {
            OFFSET: self._take_start,
            FILTER: self._take_values,
            UNFILTERED: self._take_unfiltered,
            TAGS: self._take_tags,
            GROUP: self._take_group,
        }

    def take(self, entry: Entry) -> None:
        """Read one more.

        Raises:
            ValueError: it cannot be used; says why.
            LinkFault: there is no such place to begin.
        """
        key, described = entry.key, entry.value
        if not isinstance(key, Symbol):
            raise ValueError("its name is no symbol")
        if not isinstance(described, Described):
            raise ValueError("its value is not described")
        read = None
        if isinstance(described.descriptor, Symbol):
            read = self._readers.get(described.descriptor)
        if read is not None:
            read(described.value)
        elif key == SQL_KEY:
            self._take_sql(described)
        else:
            self._take_properties(described)

    def wanted(self, declared: Arguments) -> tuple[ConsumerArguments, str | None]:
        """What the link gets, and the group whose standing selector chooses the chunks."""
        matcher = None
        if self._values:
            matcher = ChunkMatcher(self._values, match_unfiltered=self._match_unfiltered)
        selector = selector_of(self._properties) if self._properties else self._selector
        found = wanted_of(self._start, matcher, selector, declared, self._now_ms)
        if self._group is None or matcher is not None:
            return found, None
        group, marked = self._group
        return found._replace(matcher=marked), group

    # -- places and filter values

    def _take_start(self, value: Exact) -> None:
        match value:
            case datetime():
                self._start = at_time(max(0, whole_ms(value)))
            case str() if not isinstance(value, Char):
                named = start_named(value, self._now_ms())
                if named is None:
                    raise self._no_place(value)
                self._start = named
            case int() if not isinstance(value, bool) and value >= 0:
                self._start = at_offset(min(value, MAX_OFFSET))
            case _:
                raise ValueError(f"{_brief(value)} is no text, time, or number from 0 on")

    def _no_place(self, text: str) -> LinkFault:
        return LinkFault(
            Condition.PRECONDITION_FAILED,
            f"failed consuming from stream '{self._stream}': {OFFSET} is {_brief(text)}, expected "
            "first, last, next, an offset, a timestamp, or an interval as in 1h",
        )

    def _take_values(self, value: Exact) -> None:
        texts = value if isinstance(value, list) else [value]
        values = [text.encode() for text in texts if type(text) is str]
        if not values or not all(values):
            raise ValueError("it has no filter value, or an empty one")
        try:
            check_asked(values)
        except Refused as refused:
            raise ValueError(refused.details) from refused
        self._values = values

    def _take_unfiltered(self, value: Exact) -> None:
        if not isinstance(value, bool):
            raise ValueError(f"{_brief(value)} is no boolean")
        self._match_unfiltered = value

    # -- selectors

    def _take_sql(self, described: Described) -> None:
        if not is_named(described.descriptor, SQL):
            raise ValueError(f"the descriptor is not {SQL[0]}")
        self._take_selector(described.value, partial(parse_sql, dialect=Dialect.AMQP))

    def _take_tags(self, value: Exact) -> None:
        self._take_selector(value, parse_tags)

    def _take_selector(self, value: Exact, parse: Callable[[str], Selector]) -> None:
        self._check_alone(self._properties)
        self._selector = parse(_text(value))

    def _take_group(self, value: Exact) -> None:
        self._check_alone(self._properties)
        group = _text(value)
        try:
            marked = self._standing.matcher(group)
        except Refused as refused:
            raise ValueError(refused.details) from refused
        row = self._standing.find(group)
        assert row is not None  # noqa: S101 - it has a matcher
        try:
            self._selector = row.parse()
        except SelectorError as error:
            raise ValueError(f"the selector of group {group} cannot be read") from error
        self._group = group, marked

    def _take_properties(self, described: Described) -> None:
        found = read_property_filter(described)
        self._check_alone(one for one in self._properties if one.section is found.section)
        self._properties.append(found)

    def _check_alone(self, others: Iterable[PropertyFilter]) -> None:
        """Raise ValueError where there is a selector, or one of these filters."""
        if self._selector is not None or any(others):
            raise ValueError("it excludes one that stands behind it")


def _text(value: Exact) -> str:
    if type(value) is not str:
        raise ValueError(f"{_brief(value)} is no string")
    return value


def _reason(error: ValueError) -> str:
    return error.reason if isinstance(error, SelectorError) else str(error)


def _brief(value: Exact) -> str:
    return repr(value)[:_SHOWN]


def _shown(value: Exact) -> str:
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}={_shown(wanted)}" for name, wanted in value.items())
    return str(value)
