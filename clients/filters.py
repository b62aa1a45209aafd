"""Which messages a consumer wants: the server chooses chunks, the consumer messages in them.

A filter names filter values. A selector finds by itself which filter values to ask for, if the
stream has declared which property they are the values of; messages are then tested one by one.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set as AbstractSet
from datetime import UTC, datetime
from typing import NamedTuple, TypeAlias

from segments import ChunkMatcher, compression
from segments.codec import simple_ends
from segments.columns import Columns, open_rows
from segments.errors import FormatError
from segments.message import MessageView
from segments.missing_names import MissingNames
from segments.property_keys import PropertyFilter
from segments.row_screen import RowScreen
from segments.selector import (
    EVERYTHING,
    TAGS,
    Dialect,
    NumberRule,
    PropertyValue,
    Selector,
    WantedValues,
    body_at,
    filter_value_of,
    filter_value_reader,
    names_in,
    parse_property,
    property_value_of,
    property_value_reader,
)
from segments.selector.pushdown import is_spelled
from streamd.wire.stream import subscribe_properties as words
from streamd.wire.stream.fields import Pair


class SelectorRequest(NamedTuple):
    """The selector that a program asks for; see `Client.consumer`."""

    sql: str | None
    tags: str | None
    dialect: str = Dialect.UNION
    filter_property: str | None = None
    group: str = ""

    def kind_and_text(self) -> tuple[str, str]:
        """The dialect, or "tags", and the selector's text.

        Raises:
            ValueError: both kinds, or none.
        """
        if (self.sql is None) == (self.tags is None):
            raise ValueError("a selector is either SQL or tags")
        return (TAGS, self.tags or "") if self.sql is None else (self.dialect, self.sql)


class ReceivedMessage(MessageView):
    """A message and its place in the stream.

    Attributes:
        stream: the stream's name.
        offset: its number in the stream.
        timestamp_ms: when its chunk was written, in ms since 1970.
    """

    def __init__(self, raw: bytes, stream: str, offset: int, timestamp_ms: int) -> None:
        self.raw = raw  # a call of MessageView's would cost as much as all of this
        self.stream = stream
        self.offset = offset
        self.timestamp_ms = timestamp_ms

    @property
    def timestamp(self) -> datetime:
        """When its chunk was written."""
        return datetime.fromtimestamp(self.timestamp_ms / 1000, UTC)


_PROPERTY, _CONTRACT = "stream-filter-property", "stream-filter-contract"
_DERIVE = "stream-filter-derive"


_AS_STORED = Pair(words.STORED_CHUNKS, words.TRUE)


class Declared(NamedTuple):
    """What a stream says about its filter values.

    Attributes:
        names: of its filter properties, the first one first.
        is_strict: every message with a value of the first has it as its filter value.
        fills: the server gives messages without a filter value that of the first property.
    """

    names: tuple[str, ...] = ()
    is_strict: bool = False
    fills: bool = False

    @classmethod
    def by(cls, arguments: Mapping[str, str]) -> "Declared":
        """What the arguments of a stream say."""
        text = arguments.get(_PROPERTY)
        is_strict, fills = arguments.get(_CONTRACT) == "strict", arguments.get(_DERIVE) == "true"
        return cls(() if text is None else names_in(text), is_strict, fills)

    def missing_value_reader(self) -> Callable[[bytes], bytes] | None:
        """Reads the filter value that a publisher gives a message without one; None: it gives none.

        Where the server does it, it is left to the server.
        """
        if self.fills or not self.names:
            return None
        return filter_value_reader(parse_property(self.names[0]))

    def number_rule(self, name: str | None) -> NumberRule:
        """How values of a property that are numbers are taken; None: of no certain property."""
        if not self.names:
            return NumberRule.TEXT
        is_certain = name in self.names[1:] or (self.is_strict and name == self.names[0])
        return NumberRule.NO_VALUE if is_certain else NumberRule.EITHER


_Rows: TypeAlias = Callable[[Columns], int | None]  # see Columns.rows
FilterValue: TypeAlias = str | Callable[[ReceivedMessage], str | bytes | None]


class ArrivedChunk(NamedTuple):
    """The messages of a chunk, and which of them were asked for.

    Attributes:
        stream: the stream's name.
        chunk_id: offset of the first message.
        timestamp_ms: when the chunk was written.
        data: the chunk's data section.
        first_offset, end_offset: messages from here, and before there, were asked for.
        left_out: places of messages that were not.
        columns: which of its messages have which filter value, where it tells.
    """

    stream: str
    chunk_id: int
    timestamp_ms: int
    data: bytes
    first_offset: int
    end_offset: int
    left_out: AbstractSet[int] = frozenset()
    columns: Columns | None = None

    def message(self, place: int, body: bytes) -> ReceivedMessage:
        """One of its messages."""
        return ReceivedMessage(body, self.stream, self.chunk_id + place, self.timestamp_ms)

    def messages(self) -> list[ReceivedMessage]:
        """All of its messages that were asked for."""
        stream, chunk_id, time_ms = self.stream, self.chunk_id, self.timestamp_ms
        found = [
            ReceivedMessage(body, stream, offset, time_ms)
            for offset, body in enumerate(self.bodies(), chunk_id)
        ]
        is_within = self.first_offset <= chunk_id and chunk_id + len(found) <= self.end_offset
        if is_within and not self.left_out:
            return found
        return [message for place, message in enumerate(found) if self.holds(place)]

    def holds(self, place: int) -> bool:
        """Whether the message at a place was asked for."""
        is_within = self.first_offset <= self.chunk_id + place < self.end_offset
        return is_within and place not in self.left_out

    def num_asked(self, count: int) -> int:
        """How many of its messages, `count` in all, were asked for."""
        first = max(0, self.first_offset - self.chunk_id)
        last = min(count, self.end_offset - self.chunk_id)
        return max(0, last - first) - sum(first <= place < last for place in self.left_out)

    def bodies(self) -> Sequence[bytes]:
        """Its messages, sub-batches unpacked."""
        return compression.bodies(self.data)

    def opened(self, rows: _Rows | None) -> "_Opened | None":
        """Those of its messages that may be wanted; None where it does not tell."""
        columns = self.columns
        found = None if columns is None or rows is None else rows(columns)
        if columns is None or found is None:
            return None
        try:
            data, ends, places = open_rows(columns, found, len(self.data), self._read)
        except FormatError:  # the columns are wrong, though the checksums are right
            return None
        bodies = [body_at(data, ends, number) for number in range(len(ends))]
        return _Opened(columns.num_records, list(zip(places, bodies, strict=True)))

    def _read(self, size: int, position: int) -> bytes:
        return self.data[position : position + size]


class _Opened(NamedTuple):
    """Some messages of a chunk, with their places, and how many there are in all."""

    num_records: int
    messages: list[tuple[int, bytes]]


class Picked(NamedTuple):
    """What is in a chunk for a consumer.

    Attributes:
        asked: how many messages are neither before the offset or time it asked for nor after its
            end.
        wanted: of those, the ones it gets.
    """

    asked: int
    wanted: list[ReceivedMessage]


class Filter:
    """By filter values.

    Args:
        values: chunks in which some message may have one of these; empty for all chunks.
        match_unfiltered: and messages without a filter value.
        value_of: finds the filter value of a message, or names the property that it is the value
            of; with it only matching messages come out. Where it is a further filter property of
            the stream, chunks are asked for by that.

    Attributes:
        numbers: what numbers are on the stream, see `Declared`.
        follows: it looks into messages, and needs to know what the stream has declared.
        num_others: messages that the server sees without a filter value although the property
            has one.
        names: of the question, that no message has.

    Raises:
        SelectorError: there is no property of that name.
    """

    def __init__(
        self,
        values: Collection[str | bytes],
        match_unfiltered: bool,
        value_of: FilterValue | None,
    ) -> None:
        self._values = frozenset(map(filter_value_of, values))
        self._match_unfiltered = match_unfiltered
        read = None if value_of is None else _reader(value_of)
        self._read = read if values else None
        self._name = value_of if isinstance(value_of, str) and values else None
        self._further: str | None = None
        self._asks_unfiltered = match_unfiltered
        self._rows = self._screen()
        self.names = MissingNames([] if self._name is None else [parse_property(self._name)])
        self.follows = self._read is not None
        self.numbers = NumberRule.TEXT
        self.num_others = 0

    def learn(self, declared: Declared) -> None:
        """What the stream has declared."""
        self.numbers = declared.number_rule(self._name)
        self._further = self._name if self._name in declared.names[1:] else None
        # A number that is wanted for its text may stand in a chunk's filter as no value.
        has_both = self.numbers is NumberRule.EITHER and any(map(is_spelled, self._values))
        self._asks_unfiltered = self._match_unfiltered or has_both
        self._rows = self._screen()

    def _screen(self) -> _Rows | None:
        """Finds the messages that may match; those without a value are counted, see num_others."""
        if self._read is None:
            return None
        if self._further is None:
            return ChunkMatcher(self._values, match_unfiltered=True).rows
        asked = PropertyFilter(self._further, self._values, match_unfiltered=True)
        return ChunkMatcher(None, properties=[asked]).rows

    def properties(self) -> tuple[Pair, ...]:
        """As Subscribe takes them."""
        as_stored = () if self._rows is None else (_AS_STORED,)
        if self._further is not None:
            asked = (self._further, self._values, self._match_unfiltered)
            return (*(Pair(*pair) for pair in words.property_pairs([asked])), *as_stored)
        values = _value_properties(self._values, match_unfiltered=self._asks_unfiltered)
        return (*values, *as_stored)

    def pick(self, chunk: ArrivedChunk) -> Picked:
        """The messages that match, as far as that is known."""
        opened = chunk.opened(self._rows)
        if opened is None:
            asked = chunk.messages()
            count = len(asked)
        else:
            found = opened.messages
            asked = [chunk.message(place, body) for place, body in found if chunk.holds(place)]
            count = chunk.num_asked(opened.num_records)
        read = self._read
        if read is None:
            return Picked(count, asked)
        self.names.look(message.raw for message in asked)
        values = list(map(read, asked))
        knows_property = self.numbers is not NumberRule.TEXT
        self.num_others += sum([v.is_other or (knows_property and v.is_number) for v in values])
        wanted = WantedValues(
            self._values, match_unfiltered=self._match_unfiltered, numbers=self.numbers
        )
        return Picked(count, [m for m, v in zip(asked, values, strict=True) if wanted.has(v)])

    def explain(self) -> list[str]:
        """What is asked for, in lines for people."""
        if not self._values:
            return ["asks for every chunk"]
        unfiltered = self._asks_unfiltered
        return [_asks_for([_held(self._values, match_unfiltered=unfiltered, name=self._further)])]


class SelectorFilter:
    """By a selector.

    Args:
        selector: which messages.
        stream: its name, for people.
        own: the filter properties that the program names; None for those of the stream.
        group: whose standing selector it is; its chunks are the server's to choose.
        since: of that selector.

    Attributes:
        selector: see above.
        matcher: tests messages.
        names: of the selector, that no message has.
        follows: what it asks for, or looks into, depends on what the stream has declared.
    """

    def __init__(
        self, selector: Selector, stream: str, own: str | None, group: str = "", since: int = 0
    ) -> None:
        self.selector = selector
        self.matcher = selector.matcher()
        self.names = MissingNames(selector.properties, selector.node)
        self.follows = own is None
        self._dialect = TAGS if selector.is_tags else selector.dialect
        self._stream = stream
        self._group = group
        self._pushdown = EVERYTHING
        self._basis = f"chunks from offset {since} on are marked for group {group}"
        self.learn(Declared() if own is None else Declared(names_in(own)))

    def learn(self, declared: Declared) -> None:
        """See Filter."""
        names, is_strict, _ = declared
        screen = RowScreen(self.selector, names, is_strict=is_strict)
        self._rows = screen.rows if screen.is_useful else None
        if self._group:
            return
        self._pushdown = self.selector.push_down(names, is_strict=is_strict)
        basis = f"{self._stream} declares no filter property"
        if names:
            contract = "every message has it" if is_strict else "some messages may have none"
            basis = f"filter values are those of {names[0]}; {contract}"
        if names[1:]:
            basis += f"; chunks also tell the values of {' and of '.join(names[1:])}"
        self._basis = basis

    def properties(self) -> tuple[Pair, ...]:
        """See Filter."""
        text = Pair(words.SELECTOR, str(self.selector))
        if self._rows is not None:
            return (_AS_STORED, *self._asked(text))
        return self._asked(text)

    def _asked(self, text: Pair) -> tuple[Pair, ...]:
        asked = self._pushdown
        if self._group:
            dialect = Pair(words.SELECTOR_DIALECT, self._dialect)
            return (text, dialect, Pair(words.SELECTOR_GROUP, self._group))
        if asked.is_empty:
            return (text, Pair(words.FILTER_MODE, words.NOTHING))
        others = tuple(Pair(*pair) for pair in words.property_pairs(asked.properties))
        if asked.values is None:
            return (text, *others)
        if not asked.values:
            return (text, Pair(words.FILTER_MODE, words.UNFILTERED_ONLY), *others)
        match_unfiltered = asked.match_unfiltered
        values = _value_properties(asked.values, match_unfiltered=match_unfiltered)
        return (text, *values, *others)

    def pick(self, chunk: ArrivedChunk) -> Picked:
        """See Filter."""
        self.matcher.clock.now_ms = round(time.time() * 1000)
        opened = chunk.opened(self._rows)
        if opened is not None:
            count, messages = opened
            bodies = [body for _, body in messages]
            self.names.look(bodies)
            self.matcher.tested += count - len(bodies)
            found = [messages[n] for n in self.matcher.select(bodies)]
            return self._picked(chunk, count, found)
        data = chunk.data
        ends = simple_ends(data)
        if ends is None:
            unpacked = chunk.bodies()
            self.names.look(unpacked)
            found = [(place, unpacked[place]) for place in self.matcher.select(unpacked)]
            count = len(unpacked)
        else:
            self.names.look(body_at(data, ends, place) for place in range(len(ends)))
            places = self.matcher.select_in(data, ends)
            found = [(n, body_at(data, ends, n)) for n in places]
            count = len(ends)
        return self._picked(chunk, count, found)

    @staticmethod
    def _picked(chunk: ArrivedChunk, count: int, found: Iterable[tuple[int, bytes]]) -> Picked:
        wanted = [chunk.message(place, body) for place, body in found if chunk.holds(place)]
        return Picked(chunk.num_asked(count), wanted)

    def explain(self) -> list[str]:
        """See Filter."""
        asked = self._pushdown
        lines = [f"selector ({self._dialect}): {self.selector}", self._basis]
        if self._group:
            return lines
        if asked.is_empty:
            return [*lines, "asks for no chunk: no message can match this"]
        if asked.values is None and not asked.properties:
            return [*lines, "asks for every chunk"]
        parts = []
        if asked.values is not None:
            parts.append(_held(asked.values, match_unfiltered=asked.match_unfiltered))
        for name, values, match_unfiltered in asked.properties:
            parts.append(_held(values, match_unfiltered=match_unfiltered, name=name))
        return [*lines, _asks_for(parts)]


ConsumerFilter: TypeAlias = Filter | SelectorFilter


def _reader(value_of: FilterValue) -> Callable[[ReceivedMessage], PropertyValue]:
    """Finds the filter value of a message; one that cannot be read has none."""
    if isinstance(value_of, str):
        read_raw = property_value_reader(parse_property(value_of))
        return lambda message: read_raw(message.raw)

    def read(message: ReceivedMessage) -> PropertyValue:
        try:
            return property_value_of(value_of(message))
        except FormatError:
            return property_value_of(None)

    return read


def _value_properties(values: Collection[bytes], *, match_unfiltered: bool) -> tuple[Pair, ...]:
    pairs = [
        Pair(f"{words.FILTER_PREFIX}{n}", words.text_of(value))
        for n, value in enumerate(sorted(values))
    ]
    if pairs:
        pairs.append(Pair(words.MATCH_UNFILTERED, str(match_unfiltered).lower()))
    return tuple(pairs)


def _asks_for(parts: Sequence[str]) -> str:
    return f"asks for chunks that may hold {'; and '.join(parts)}"


def _held(values: Collection[bytes], *, match_unfiltered: bool, name: str | None = None) -> str:
    """What a chunk has to hold of filter values, or of a further filter property."""
    parts = []
    if values:
        shown = ", ".join(value.decode(errors="replace") for value in sorted(values))
        parts.append(f"a message with {name or 'filter value'} {shown}")
    if match_unfiltered:
        parts.append(f"a message without {name or 'a filter value'}")
    return ", or ".join(parts)
