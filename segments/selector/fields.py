"""Reading the properties that a selector names, straight from a message's bytes.

Nothing else is decoded. A message is read until the sections that are needed were found, or its
body, and no further. Before the body they may stand in any order; of two of a kind the first
counts.

Source: OASIS AMQP 1.0 part 1 (types) and part 3 (messaging), 3.2.
"""

import struct
from collections.abc import Callable, Sequence
from typing import TypeAlias

from segments import amqp10_codes as codes
from segments.amqp10 import section_code, skip_value
from segments.amqp10_codes import SHORT_DESCRIPTOR, Section
from segments.errors import FormatError
from segments.selector.nodes import Property, PropertySection
from segments.selector.parser import FIELDS
from segments.selector.values import OTHER, Value

Row: TypeAlias = list[Value]

_HEADER, _PROPERTIES = int(Section.HEADER), int(Section.PROPERTIES)
_APPLICATION = int(Section.APPLICATION_PROPERTIES)
_BODY, _LAST_CODE = int(Section.DATA), int(Section.FOOTER)
_PRIORITY_INDEX, _DEFAULT_PRIORITY = 1, 4
_SHORT_TEXT, _SHORT_MAP, _LONG_MAP = codes.STRING_8, codes.MAP_8, codes.MAP_32
# A short map of application properties, and the short sections that most messages have before it.
_SIMPLE_HEAD = SHORT_DESCRIPTOR + bytes((_APPLICATION, _SHORT_MAP))
_SIMPLE_BEFORE = frozenset(
    SHORT_DESCRIPTOR + bytes((code, kind))
    for code in Section
    if code < _APPLICATION
    for kind in (codes.LIST_8, codes.MAP_8)
)
_TWO_WORDS = struct.Struct(">II")
_TEXT_CODES = frozenset(codes.TEXTS)


class RowReader:
    """Reads the values of some properties from a message; None for a missing one.

    Args:
        properties: what to read, in the order of the row.
        reads_times: a time is its milliseconds, as selectors compare it; else it is OTHER, and a
            number is one for certain.

    Attributes:
        read: gives the values in a message. Raises FormatError when it is not an AMQP 1.0
            message, as far as it has to be read.
    """

    read: Callable[[bytes], Row]

    def __init__(self, properties: Sequence[Property], *, reads_times: bool = True) -> None:
        self._fixed = _SIMPLE if reads_times else _SIMPLE_WITHOUT_TIMES
        self._slots: dict[bytes, int] = {}
        self._lists: dict[int, dict[int, int]] = {}
        self._blank: Row = [None] * len(properties)
        for n, prop in enumerate(properties):
            if prop.section is PropertySection.APPLICATION:
                self._slots[prop.name.encode()] = n
            elif prop.section is PropertySection.PROPERTIES:
                index = FIELDS[PropertySection.PROPERTIES].index(prop.name)
                self._lists.setdefault(_PROPERTIES, {})[index] = n
            else:
                self._lists.setdefault(_HEADER, {})[_PRIORITY_INDEX] = n
                self._blank[n] = _DEFAULT_PRIORITY
        self._wanted = frozenset((*self._lists, *((_APPLICATION,) if self._slots else ())))
        if self._slots and not self._lists:
            self.read = _simple_reader(self._slots, self._blank, self._fixed, self._read_any)
        else:
            self.read = self._read_any

    def _read_any(self, raw: bytes) -> Row:
        row = self._blank.copy()
        try:
            self._read_sections(raw, row)
        except (IndexError, struct.error, UnicodeDecodeError) as error:
            raise FormatError(f"the message is damaged: {error}") from error
        return row

    def _read_sections(self, raw: bytes, row: Row) -> None:
        if not raw:
            raise FormatError("the message is empty")
        position = 0
        missing = self._wanted
        while position < len(raw):
            if raw[position : position + 2] == SHORT_DESCRIPTOR:
                code = raw[position + 2]
                position += 3
            else:
                code, position = section_code(raw, position)
            if not _HEADER <= code <= _LAST_CODE:
                raise FormatError(f"section code is {code}")
            if code in missing:
                if code == _APPLICATION:
                    _read_map(raw, position, self._slots, row, self._fixed)
                else:
                    _read_list(raw, position, self._lists[code], row, self._fixed)
                missing -= {code}
            if code >= _BODY or not missing:
                return
            position = skip_value(raw, position)


def _simple_reader(  # noqa: C901 - see below
    slots: dict[bytes, int], blank: Row, simple: "_Fixed", read_any: Callable[[bytes], Row]
) -> Callable[[bytes], Row]:
    """Reads a message with a short map of application properties and short sections before it.

    The same as `_read_map` without a call in it: this is done for every message. Other
    forms, and damaged messages, are left to `read_any`.
    """
    get, wanted = slots.get, len(slots)

    def read(raw: bytes) -> Row:  # noqa: C901
        row, at = blank.copy(), 0
        missing = wanted
        try:
            while raw[at : at + 4] != _SIMPLE_HEAD:
                if raw[at : at + 4] not in _SIMPLE_BEFORE:
                    return read_any(raw)
                at += 5 + raw[at + 4]
            end, count, at = at + 5 + raw[at + 4], raw[at + 5], at + 6
            for _ in range(count >> 1):
                start = at + 2
                if raw[at] != _SHORT_TEXT:
                    return read_any(raw)
                at = start + raw[at + 1]
                slot = get(raw[start:at])
                code = raw[at]
                if code == _SHORT_TEXT:
                    start = at + 2
                    at = start + raw[at + 1]
                    if slot is not None and row[slot] is None:
                        row[slot] = raw[start:at].decode()
                        missing -= 1
                elif code in simple:
                    size, unpack = simple[code]
                    if slot is not None and row[slot] is None:
                        (row[slot],) = unpack(raw, at + 1)
                        missing -= 1
                    at += size
                else:
                    return read_any(raw)
                if not missing:
                    break
        except (IndexError, struct.error, UnicodeDecodeError):
            return read_any(raw)
        return row if at <= end <= len(raw) else read_any(raw)

    return read


def _read_map(
    raw: bytes, position: int, slots: dict[bytes, int], row: Row, fixed: "_Fixed"
) -> None:
    """The wanted values of a map of properties, the first of each name."""
    if raw[position] == _SHORT_MAP:
        end, count, at = position + 2 + raw[position + 1], raw[position + 2], position + 3
    elif raw[position] == _LONG_MAP:
        size, count = _TWO_WORDS.unpack_from(raw, position + 1)
        end, at = position + 5 + size, position + 9
    else:
        raise FormatError("the application properties are not a map")
    if end > len(raw):
        raise FormatError("the application properties are cut off")
    missing = len(slots)
    for _ in range(count >> 1):
        slot, at = _key(raw, at, slots)
        if slot is None or row[slot] is not None:  # where a name comes twice the first counts
            at = skip_value(raw, at)
            continue
        row[slot], at = _read_value(raw, at, fixed)
        missing -= row[slot] is not None
        if not missing:
            break
    if at > end:
        raise FormatError("the application properties are longer than they say")


def _key(raw: bytes, at: int, slots: dict[bytes, int]) -> tuple[int | None, int]:
    """The slot of the value that follows, and its place; an unwanted key may be damaged."""
    code, end = raw[at], skip_value(raw, at)
    if code not in _TEXT_CODES:
        return None, end
    return slots.get(raw[at + (2 if code < codes.FIRST_LONG else 5) : end]), end


def _read_list(raw: bytes, position: int, slots: dict[int, int], row: Row, fixed: "_Fixed") -> None:
    """The wanted items of a list of fields."""
    width = codes.LISTS.get(raw[position])
    if width is None:
        raise FormatError("a section of fields is not a list")
    if not width:
        return
    at = position + 1 + width
    count = int.from_bytes(raw[at : at + width], "big")
    at += width
    for index in range(min(count, max(slots) + 1)):
        if index in slots:
            value, at = _read_value(raw, at, fixed)
            if value is not None:
                row[slots[index]] = value
        else:
            at = skip_value(raw, at)


def _of_form(form: str) -> tuple[int, Callable[[bytes, int], tuple[Value]]]:
    layout = struct.Struct(f">{form}")
    return 1 + layout.size, layout.unpack_from


# How values of fixed size are read, by their type code.
_Fixed: TypeAlias = dict[int, tuple[int, Callable[[bytes, int], tuple[Value]]]]
_SIMPLE: _Fixed = {
    code: _of_form(form)
    for code, form in {
        **codes.INTEGERS,
        **codes.FRACTIONS,
        codes.BOOLEAN: "?",
        codes.TIMESTAMP: "q",  # in milliseconds
        codes.UUID: "16s",
    }.items()
}
_SIMPLE_WITHOUT_TIMES = {code: how for code, how in _SIMPLE.items() if code != codes.TIMESTAMP}
_CONSTANTS: dict[int, Value] = {
    codes.NULL: None,
    codes.TRUE: True,
    codes.FALSE: False,
    codes.UINT_0: 0,
    codes.ULONG_0: 0,
}
_BYTES_CODES = frozenset(codes.BINARIES)


def value_at(raw: bytes, at: int) -> Value:
    """The value at a position, as a RowReader reads it.

    Raises:
        FormatError: there is none.
    """
    try:
        return _read_value(raw, at, _SIMPLE)[0]
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise FormatError(f"the value is damaged: {error}") from error


def _read_value(raw: bytes, at: int, fixed: _Fixed) -> tuple[Value, int]:
    """Any value, and the position after it."""
    code = raw[at]
    if code in _CONSTANTS:
        return _CONSTANTS[code], at + 1
    if code in fixed:
        size, unpack = fixed[code]
        return unpack(raw, at + 1)[0], at + size
    end = skip_value(raw, at)
    if code in _TEXT_CODES or code in _BYTES_CODES:
        body = raw[at + (2 if code < codes.FIRST_LONG else 5) : end]
        return (body if code in _BYTES_CODES else body.decode()), end
    return OTHER, end
