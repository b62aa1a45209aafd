"""Columns of messages as Arrow arrays.

A property's column has one type: the one that was asked for, or that of the values in the first
batch. A value of another type is an error that names both messages; a column that was asked for as
`string` takes any value, as text. A message without the property, or in which it is null or cannot
be read, has null.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa

from segments import amqp10_codes as codes
from segments.amqp10 import Opaque, Value
from segments.arrow.blocks import Block
from segments.arrow.parts import ColumnError
from segments.arrow.values import Found, Values, find_in_lists, find_in_maps
from segments.errors import FormatError
from segments.message import PROPERTY_NAMES, MessageView
from segments.selector import Property, SelectorError, parse_property
from segments.selector.nodes import PropertySection
from segments.spark.headers import Bytes, Numbers
from segments.spark.maps import replaced, slices
from segments.spark.messages import Sections, body_of, find_sections
from segments.spark.texts import text_of

KINDS = {
    "int64": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "bool": pa.bool_(),
    "timestamp": pa.timestamp("ms", "UTC"),
}
_OWN = {"offset": "int64", "timestamp": "timestamp", "body": "binary"}
_PREFIX = f"{PropertySection.APPLICATION}."
_MIN, _MAX = -(1 << 63), (1 << 63) - 1
_OTHER = "other"  # a value that only text can stand for: a list, a map, a decimal

_KIND_OF = np.full(256, _OTHER, object)
_KIND_OF[[*codes.INTEGERS, codes.UINT_0, codes.ULONG_0]] = "int64"
_KIND_OF[[*codes.FRACTIONS]] = "double"
_KIND_OF[[*codes.TEXTS, codes.CHAR, codes.UUID]] = "string"
_KIND_OF[[*codes.BINARIES]] = "binary"
_KIND_OF[[codes.TRUE, codes.FALSE, codes.BOOLEAN]] = "bool"
_KIND_OF[codes.TIMESTAMP] = "timestamp"
_FORMS = {code: f">{form}" for code, form in (codes.INTEGERS | codes.FRACTIONS).items()}
_READ_AT_ONCE = {
    "int64": {*codes.INTEGERS, codes.UINT_0, codes.ULONG_0} - {codes.ULONG},
    "double": {*_FORMS, codes.UINT_0, codes.ULONG_0},
    "string": set(codes.TEXTS),
    "binary": set(codes.BINARIES),
    "bool": {codes.TRUE, codes.FALSE},
    "timestamp": {codes.TIMESTAMP},
}
# The same to be indexed by type code. Values of other types are read one by one.
_AT_ONCE = {kind: np.isin(np.arange(256), list(known)) for kind, known in _READ_AT_ONCE.items()}


class Column(NamedTuple):
    """A column that is asked for.

    Attributes:
        name: of the column.
        prop: what it is of; None for what a message has by itself.
        kind: one of KINDS; None to go by the values.
        takes_all: values of any type, as text.
    """

    name: str
    prop: Property | None
    kind: str | None
    takes_all: bool = False


def columns_of(wanted: Sequence[str] | Mapping[str, str | None]) -> list[Column]:
    """The columns that are asked for, see `ArrowColumns`.

    Raises:
        ColumnError: there are none, one comes twice, or there is no such property or type.
    """
    if isinstance(wanted, str):
        raise ColumnError(f"columns is {wanted!r}, expected [{wanted!r}]")
    kinds = wanted if isinstance(wanted, Mapping) else dict.fromkeys(wanted)
    if not kinds:
        raise ColumnError("columns is empty, expected names")
    if len(kinds) != len(wanted):
        raise ColumnError(f"columns is {list(wanted)}, expected each name once")
    return [_column(name, kind) for name, kind in kinds.items()]


def _column(name: str, kind: str | None) -> Column:
    own = _OWN.get(name)
    if own is not None:
        if kind not in (None, own):
            raise ColumnError(f"column {name} is {own}, asked for as {kind}")
        return Column(name, None, own)
    if kind is not None and kind not in KINDS:
        raise ColumnError(f"column {name} is asked for as {kind!r}, expected {', '.join(KINDS)}")
    try:
        prop = parse_property(name.removeprefix(_PREFIX))
    except SelectorError as error:
        raise ColumnError(f"there is no column {name!r}: {error.reason}") from error
    return Column(name, prop, kind, takes_all=kind == "string")


class ArrowColumns:
    """Makes record batches of messages, all of the same schema.

    Args:
        wanted: names of columns, or their types by name: a key of KINDS, or None to go by the
            values of the first batch. A name is `offset`, `timestamp`, `body`, or a property as
            in selectors: region, properties.subject; application_properties.offset is one whose
            name is that of another column.

    Raises:
        ColumnError: see `columns_of`.
    """

    def __init__(self, wanted: Sequence[str] | Mapping[str, str | None]) -> None:
        self._columns = columns_of(wanted)
        self._since = -1  # offset of the first message: from there on types are known

    def batch(self, block: Block) -> pa.RecordBatch:
        """The messages of a block, which has some.

        Raises:
            ColumnError: a value is not of its column's type.
        """
        made = _Batch(block, [column.prop for column in self._columns if column.prop is not None])
        kinds = [self._kind(column, made) for column in self._columns]
        arrays = [
            made.array(column, kind) for column, kind in zip(self._columns, kinds, strict=True)
        ]
        if self._since < 0:
            self._since = int(block.offsets[0])
            self._columns = [
                column._replace(kind=kind)
                for column, kind in zip(self._columns, kinds, strict=True)
            ]
        names = [column.name for column in self._columns]
        fields = [pa.field(name, KINDS[kind]) for name, kind in zip(names, kinds, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _kind(self, column: Column, made: "_Batch") -> str:
        """The type of a column; that of text when it has no value."""
        if column.kind is not None or column.prop is None:
            return column.kind or ""
        kinds = made.kinds(column.prop)
        if kinds.keys() == {"int64", "double"}:
            return "double"
        if len(kinds) > 1 or _OTHER in kinds:
            told = " and ".join(f"{kind} at offset {at}" for kind, at in kinds.items())
            raise ColumnError(f"column {column.name} has values of type {told}; {_hint(column)}")
        return next(iter(kinds), "string")


def _hint(column: Column) -> str:
    return f"columns={{{column.name!r}: 'string'}} has them all as text"


class _Batch:
    """The arrays over a block."""

    def __init__(self, block: Block, props: Iterable[Property]) -> None:
        self._block = block
        self._sections: Sections = find_sections(block.buffer, block.starts, block.ends)
        self._views: dict[int, MessageView] = {}
        self._found: dict[Property, tuple[Values, Numbers]] = {}
        named = [prop for prop in props if prop.section is PropertySection.APPLICATION]
        fixed = [prop for prop in props if prop.section is PropertySection.PROPERTIES]
        if named:
            names = [prop.name for prop in named]
            self._take(named, find_in_maps(block.buffer, self._sections.application, names))
        if fixed:
            indexes = [PROPERTY_NAMES.index(prop.name) for prop in fixed]
            self._take(fixed, find_in_lists(block.buffer, self._sections.properties, indexes))

    def _take(self, props: list[Property], found: Found) -> None:
        odd = np.flatnonzero(found.odd | self._sections.odd)
        for prop, values in zip(props, found.values, strict=True):
            values.codes[odd] = 0
            self._found[prop] = values, odd

    def _view(self, row: int) -> MessageView:
        view = self._views.get(row)
        if view is None:
            view = self._views[row] = MessageView(self._block.raw(row))
        return view

    def _value(self, prop: Property, row: int) -> Value:
        """A property of a message, read for itself; None where it cannot be read."""
        view = self._view(row)
        try:
            if prop.section is PropertySection.APPLICATION:
                return view.application_property(prop.name)
            return view.fixed_property(prop.name)
        except FormatError:
            return None

    def kinds(self, prop: Property) -> dict[str, int]:
        """The types of a property's values, and the offset of the first of each."""
        values, odd = self._found[prop]
        found: dict[str, int] = {}
        for code in np.unique(values.codes).tolist():
            if code:
                row = int(np.argmax(values.codes == code))
                _first(found, str(_KIND_OF[code]), self._offset(row))
        for row in odd.tolist():
            value = self._value(prop, row)
            if value is not None:
                _first(found, _kind_of(value), self._offset(row))
        return dict(sorted(found.items(), key=lambda item: item[1]))

    def _offset(self, row: int) -> int:
        return int(self._block.offsets[row])

    def array(self, column: Column, kind: str) -> pa.Array:
        """The values of a column."""
        if column.prop is not None:
            return self._property(column, column.prop, kind)
        if column.name == "offset":
            return pa.array(self._block.offsets)
        if column.name == "timestamp":
            return pa.array(self._block.timestamps).view(KINDS[kind])
        sections = self._sections
        bodies = slices(self._block.buffer, sections.body, sections.body_end)
        values = [body_of(self._view(row)) for row in np.flatnonzero(sections.odd).tolist()]
        return replaced(bodies, sections.odd, pa.array(values, pa.binary()))

    def _property(self, column: Column, prop: Property, kind: str) -> pa.Array:
        values, odd = self._found[prop]
        usual = _AT_ONCE[kind][values.codes]
        rows = np.flatnonzero(usual)
        try:
            array = _MAKERS[kind](self._block.buffer, values, rows).cast(KINDS[kind])
        except pa.ArrowInvalid:  # not UTF-8 somewhere: one by one
            rows, array = rows[:0], pa.nulls(0, KINDS[kind])
        alone = np.ones(len(usual), np.bool_)
        alone[rows] = False
        alone &= values.codes != 0
        alone[odd] = True
        if len(rows) != len(usual):
            index = np.zeros(len(usual), np.int64)
            index[rows] = np.arange(len(rows))
            array = array.take(pa.array(index, mask=~usual | alone))
        others = [
            self._converted(column, prop, kind, row) for row in np.flatnonzero(alone).tolist()
        ]
        return replaced(array, alone, pa.array(others, KINDS[kind]))

    def _converted(self, column: Column, prop: Property, kind: str, row: int) -> object:
        """A value as a column of that kind has it."""
        value = self._value(prop, row)
        if value is None:
            return None
        found, where = _kind_of(value), f"at offset {self._offset(row)}"
        if column.takes_all:
            return text_of(value)
        if found != kind and (found, kind) != ("int64", "double"):
            reason = f"column {column.name} is {kind}, {where} it has a value of type {found}"
            raise ColumnError(f"{reason}; {_hint(column)}")
        if kind == "int64" and not _MIN <= value <= _MAX:  # type: ignore[operator]
            reason = f"column {column.name} has {value} {where}, which does not fit into int64"
            raise ColumnError(f"{reason}; {_hint(column)}")
        return _CONVERTERS.get(kind, _as_it_is)(value)


def _first(found: dict[str, int], kind: str, offset: int) -> None:
    found[kind] = min(found.get(kind, offset), offset)


def _as_it_is(value: Any) -> object:  # noqa: ANN401 - any value
    return value


def _milliseconds(value: Any) -> object:  # noqa: ANN401 - a time, or what datetime cannot say
    return int.from_bytes(value.raw[1:], "big", signed=True) if isinstance(value, Opaque) else value


_CONVERTERS: dict[str, Callable[[Any], object]] = {
    "double": float,
    "string": text_of,
    "timestamp": _milliseconds,
}


def _kind_of(value: Value) -> str:
    if isinstance(value, Opaque) and value.raw[0] == codes.TIMESTAMP:
        return "timestamp"
    for kind, types in _TYPES:
        if isinstance(value, types):
            return kind
    return _OTHER


_TYPES: tuple[tuple[str, type | tuple[type, ...]], ...] = (
    ("bool", bool),
    ("int64", int),
    ("double", float),
    ("string", (str, UUID)),
    ("binary", bytes),
    ("timestamp", datetime),
)


def _numbers(buffer: Bytes, values: Values, rows: Numbers, kind: Any) -> pa.Array:  # noqa: ANN401
    kinds, starts = values.codes[rows], values.starts[rows]
    numbers = np.zeros(len(rows), kind)
    for code in np.unique(kinds).tolist():
        if code in _FORMS or code == codes.TIMESTAMP:
            form = np.dtype(_FORMS.get(code, ">q"))
            everywhere = np.ndarray((len(buffer) - form.itemsize + 1,), form, buffer, strides=(1,))
            same = kinds == code
            numbers[same] = everywhere[starts[same]]
    return pa.array(numbers)


def _slices(buffer: Bytes, values: Values, rows: Numbers) -> pa.Array:
    return slices(buffer, values.starts[rows], values.ends[rows])


_MAKERS: dict[str, Callable[[Bytes, Values, Numbers], pa.Array]] = {
    "int64": lambda buffer, values, rows: _numbers(buffer, values, rows, np.int64),
    "double": lambda buffer, values, rows: _numbers(buffer, values, rows, np.float64),
    "timestamp": lambda buffer, values, rows: _numbers(buffer, values, rows, np.int64),
    "bool": lambda _, values, rows: pa.array(values.codes[rows] == codes.TRUE),
    "string": _slices,
    "binary": _slices,
}
