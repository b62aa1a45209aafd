"""Blocks of messages to Arrow batches, and the schema that these have.

pyarrow and numpy because Spark takes Arrow batches as they are: no message becomes a Python
object unless a column needs its properties.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from segments import codec
from segments.errors import FormatError
from segments.format_constants import FILTER_VALUE
from segments.message import MessageView, Properties
from segments.property_keys import told
from segments.selector import (
    Property,
    RowReader,
    SelectorError,
    parse_property,
    property_value_reader,
)
from segments.selector.nodes import PropertySection
from segments.spark.entries import MessageBlock
from segments.spark.headers import Mask, Numbers
from segments.spark.inventory import Gap
from segments.spark.maps import (
    MapEntries,
    as_column,
    as_map,
    named,
    read_entries,
    replaced,
    slices,
    with_repeats,
)
from segments.spark.messages import Sections, body_of, find_sections, view_of
from segments.spark.options import OptionError, Options
from segments.spark.texts import READINGS, binary_of, long_of, microseconds_of, text_of

TOKEN_PREFIX = b"\0selector\0"  # of what standing selectors put into filters: no filter values

TIMESTAMP = pa.timestamp("us", "UTC")
_TYPES = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "timestamp": TIMESTAMP,
    "array<string>": pa.list_(pa.field("element", pa.string())),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}
_FIELDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "message_id": ("string", text_of),
    "user_id": ("binary", binary_of),
    "to": ("string", text_of),
    "subject": ("string", text_of),
    "reply_to": ("string", text_of),
    "correlation_id": ("string", text_of),
    "content_type": ("string", text_of),
    "content_encoding": ("string", text_of),
    "absolute_expiry_time": ("timestamp", microseconds_of),
    "creation_time": ("timestamp", microseconds_of),
    "group_id": ("string", text_of),
    "group_sequence": ("bigint", long_of),
    "reply_to_group_id": ("string", text_of),
}
_APPLICATION = "application_properties"
DAMAGE = "damage"
COLUMNS: dict[str, str] = {
    "stream": "string",
    "offset": "bigint",
    "timestamp": "timestamp",
    "chunk_id": "bigint",
    "filter_values": "array<string>",
    "body": "binary",
    **{name: kind for name, (kind, _) in _FIELDS.items()},
    _APPLICATION: "map<string,string>",
}
_COMMA = re.compile(r",(?=(?:[^`]*`[^`]*`)*[^`]*\Z)")  # not of a name in backticks
_DECLARED = re.compile(r"\s*(?:`(?P<quoted>[^`]+)`|(?P<plain>[^\s`,]+))\s+(?P<type>\w+)\s*")


class Column(NamedTuple):
    """One column.

    Attributes:
        name: of the column; of one that was declared, also of the property.
        kind: its type, as in DDL.
        is_property: it was declared with the option properties.
    """

    name: str
    kind: str
    is_property: bool = False


def columns_of(options: Options) -> tuple[Column, ...]:
    """The columns that a reader with these options gives, in order.

    Raises:
        OptionError: a column or a property's type does not exist, or a name comes twice.
    """
    wanted = COLUMNS if options.columns is None else options.columns
    for name in wanted:
        if name not in COLUMNS:
            raise OptionError(f"there is no column {name}; there are {', '.join(COLUMNS)}")
    found = [Column(name, COLUMNS[name]) for name in wanted]
    found += declared(options.properties)
    if options.permissive:
        found.append(Column(DAMAGE, "string"))
    names = [column.name.lower() for column in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise OptionError(f"column {twice} is asked for twice; leave one of them out of columns")
    return tuple(found)


def declared(text: str) -> list[Column]:
    """The columns that the option properties declares.

    Raises:
        OptionError: it cannot be read.
    """
    found = []
    for part in filter(str.strip, _COMMA.split(text)):
        match = _DECLARED.fullmatch(part)
        kind = match["type"].lower() if match else ""
        kind = {"long": "bigint", "int": "bigint"}.get(kind, kind)
        if match is None or kind not in READINGS:
            raise OptionError(
                f"properties has {part.strip()!r}, expected a name and one of "
                f"{', '.join(READINGS)}, as in: carrier string, dep_delay bigint"
            )
        name = match["quoted"] or match["plain"]
        try:
            parse_property(name)
        except SelectorError as error:
            raise OptionError(f"properties has {name!r}: {error.reason}") from error
        found.append(Column(name, kind, is_property=True))
    return found


def ddl_of(columns: Sequence[Column]) -> str:
    """The schema of some columns, as DDL."""
    return ", ".join(f"`{column.name}` {column.kind}" for column in columns)


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """The schema that Spark expects of the batches."""
    return pa.schema([(column.name, _TYPES[column.kind]) for column in columns])


class Decoder:
    """Makes Arrow batches of the messages of a stream.

    Args:
        columns: what the batches have, in order.
    """

    def __init__(self, stream: str, columns: Sequence[Column]) -> None:
        self._stream = stream
        self._columns = columns
        self._schema = arrow_schema(columns)
        declared = [column for column in columns if column.is_property]
        self._declared = declared
        self._fields = [column for column in columns if column.name in _FIELDS]

    def batch(self, block: MessageBlock) -> pa.RecordBatch:
        """The messages of a block."""
        made = _Batch(block)
        arrays: dict[str, pa.Array] = {}
        if self._fields:
            arrays |= made.fields([column.name for column in self._fields])
        if self._declared:
            arrays |= made.declared(self._declared)
        for column in self._columns:
            if column.name not in arrays:
                arrays[column.name] = self._array(made, column)
        return pa.RecordBatch.from_arrays(
            [arrays[column.name] for column in self._columns], schema=self._schema
        )

    def _array(self, made: "_Batch", column: Column) -> pa.Array:
        if column.name == "stream":
            return pa.repeat(pa.scalar(self._stream), len(made.block.offsets))
        make = _MAKERS.get(column.name)
        if make is None:  # of damage, and there is no damage
            return pa.nulls(len(made.block.offsets), _TYPES[column.kind])
        return make(made)

    def damage(self, gap: Gap) -> pa.RecordBatch:
        """A row for something that cannot be read."""
        known = {"stream": self._stream, "offset": gap.first_offset, DAMAGE: str(gap.error())}
        arrays = [pa.array([known.get(field.name)], field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class PropertyValues(NamedTuple):
    """What a property of some messages is worth to a reader; see selector.filter_values.

    Attributes:
        values: as binary, null for none; numbers and booleans as their JSON text.
        is_number: which of them are such a text.
    """

    values: pa.Array
    is_number: pa.Array


def filter_values_of(block: MessageBlock, filter_property: Property) -> PropertyValues:
    """The filter values of messages, taken from a property."""
    return _Batch(block).property_values(filter_property)


class _Batch:
    """The arrays over one block; sections are found when a column first needs them."""

    def __init__(self, block: MessageBlock) -> None:
        self.block = block = block.compact()
        self._found: Sections | None = None
        self._maps: MapEntries | None = None

    @property
    def _sections(self) -> Sections:
        if self._found is None:
            block = self.block
            self._found = find_sections(block.buffer, block.starts, block.ends)
        return self._found

    def _of_chunks(self, values: Sequence[int]) -> Numbers:
        found: Numbers = np.array(values, np.int64)[self.block.chunks]
        return found

    def offsets(self) -> pa.Array:
        return pa.array(self.block.offsets)

    def timestamps(self) -> pa.Array:
        times = self._of_chunks([header.timestamp_ms * 1000 for header in self.block.headers])
        return pa.array(times).view(TIMESTAMP)

    def chunk_ids(self) -> pa.Array:
        return pa.array(self._of_chunks([header.chunk_id for header in self.block.headers]))

    def filter_values(self) -> pa.Array:
        lists = pa.array(
            [known_values(raw) for raw in self.block.trailers], _TYPES["array<string>"]
        )
        return lists.take(pa.array(self.block.chunks))

    def bodies(self) -> pa.Array:
        block, sections = self.block, self._sections
        bodies = slices(block.buffer, sections.body, sections.body_end)
        values = [body_of(self._view(row)) for row in np.flatnonzero(sections.odd).tolist()]
        return replaced(bodies, sections.odd, pa.array(values, pa.binary()))

    def _view(self, row: int) -> MessageView:
        return view_of(self.block.buffer, self.block.starts[row], self.block.ends[row])

    def fields(self, names: Sequence[str]) -> dict[str, pa.Array]:
        """Columns of the section of properties."""
        sections = self._sections
        found: list[Properties | None] = [None] * len(sections.odd)
        for row in np.flatnonzero(sections.odd | (sections.properties >= 0)).tolist():
            try:
                found[row] = self._view(row).properties
            except FormatError:
                continue  # as a message without
        arrays = {}
        for name in names:
            kind, reading = _FIELDS[name]
            values = [None if p is None else reading(getattr(p, name)) for p in found]
            arrays[name] = _array_of(values, kind)
        return arrays

    @property
    def _entries(self) -> MapEntries:
        if self._maps is None:
            self._maps = read_entries(self.block.buffer, self._sections.application)
        return self._maps

    def application_properties(self) -> pa.Array:
        odd = self._entries.odd | self._sections.odd
        odd |= with_repeats(self.block.buffer, self._entries)
        try:
            found = as_map(self.block.buffer, self._entries)
        except pa.ArrowInvalid:  # not UTF-8 somewhere: message by message
            odd = np.ones_like(odd)
            found = pa.array([None] * len(odd), _TYPES["map<string,string>"])
        others = [self._map(row) for row in np.flatnonzero(odd).tolist()]
        return replaced(found, odd, pa.array(others, _TYPES["map<string,string>"]))

    def _map(self, row: int) -> list[tuple[str, str | None]]:
        try:
            found = self._view(row).application_properties
        except FormatError:
            return []
        return [(text_of(key) or "", text_of(value)) for key, value in found.items()]

    def declared(self, columns: Sequence[Column]) -> dict[str, pa.Array]:
        """Columns that were declared with the option properties."""
        return {column.name: self._declared(column) for column in columns}

    def _declared(self, column: Column) -> pa.Array:
        prop = parse_property(column.name)
        found, odd = self._usual(prop, column.kind)
        read = RowReader([prop]).read
        values = [self._read(read, row) for row in np.flatnonzero(odd).tolist()]
        others = _array_of([READINGS[column.kind](value) for value in values], column.kind)
        return replaced(found, odd, others)

    def property_values(self, prop: Property) -> PropertyValues:
        """See filter_values_of."""
        texts, odd = self._usual(prop, "string")
        binaries, _ = self._usual(prop, "binary")
        numbers, _ = self._usual(prop, "json")
        read = property_value_reader(prop)
        rows = np.flatnonzero(odd).tolist()
        others = [read(self._view(row).raw) for row in rows]
        usual = pc.coalesce(texts.cast(pa.binary()), binaries, numbers.cast(pa.binary()))
        found = replaced(usual, odd, pa.array([other.value for other in others], pa.binary()))
        is_number = replaced(
            pc.is_valid(numbers), odd, pa.array([other.is_number for other in others], pa.bool_())
        )
        return PropertyValues(
            pc.if_else(pc.equal(pc.binary_length(found), 0), None, found), is_number
        )

    def _usual(self, prop: Property, kind: str) -> tuple[pa.Array, Mask]:
        """A property's values of one type, and which messages have to be read one by one."""
        odd = self._entries.odd | self._sections.odd
        arrow_type = _TYPES.get(kind, pa.string())
        missing = pa.nulls(len(odd), arrow_type)
        if prop.section is not PropertySection.APPLICATION:
            return missing, odd | (self._sections.properties >= 0)
        try:
            entries = named(self.block.buffer, self._entries, prop.name)
            return as_column(self.block.buffer, entries, kind, arrow_type), odd
        except pa.ArrowInvalid:  # not UTF-8 somewhere
            return missing, np.ones_like(odd)

    def _read(self, read: Callable[[bytes], Any], row: int) -> object:
        try:
            return read(self._view(row).raw)[0]
        except FormatError:
            return None


_MAKERS: dict[str, Callable[[_Batch], pa.Array]] = {
    "offset": _Batch.offsets,
    "timestamp": _Batch.timestamps,
    "chunk_id": _Batch.chunk_ids,
    "filter_values": _Batch.filter_values,
    "body": _Batch.bodies,
    _APPLICATION: _Batch.application_properties,
}


def known_values(trailer: bytes) -> list[str] | None:
    """The filter values that a chunk's trailer lists, an empty one for messages without.

    Returns:
        None where the trailer says nothing of them.
    """
    return [text_of(value) or "" for value in value_counts(trailer)] or None


def value_counts(trailer: bytes) -> dict[bytes, int]:
    """How many messages of a chunk have each filter value, as its trailer lists them.

    Empty where it says nothing of them.
    """
    try:
        blocks = codec.decode_blocks(trailer)
    except FormatError:
        return {}
    return told(
        {
            block.id: block.value
            for block in blocks
            if block.kind == FILTER_VALUE and not block.id.startswith(TOKEN_PREFIX)
        }
    ).plain


def _array_of(values: Sequence[Any], kind: str) -> pa.Array:
    if kind == "timestamp":
        return pa.array(values, pa.int64()).cast(TIMESTAMP)
    return pa.array(values, _TYPES[kind])
