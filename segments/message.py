"""Messages as the sections of AMQP 1.0, which all stream clients write and read.

`Message` is written, `MessageView` is read: looking at one application property does not decode
the rest.

Source: OASIS AMQP 1.0 part 3 (messaging), 3.2.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from operator import attrgetter
from typing import Any, Literal, TypeAlias
from uuid import UUID

from segments.amqp10 import (
    Value,
    binary_head,
    decode_value,
    encode_list,
    encode_map,
    encode_named,
    encode_symbol,
    encode_value,
    find_in_list,
    find_in_map,
    section_code,
    skip_value,
)
from segments.amqp10_codes import NULL, SHORT_DESCRIPTOR, UINT, ULONG, Section
from segments.errors import FormatError
from segments.message_template import Parts, Template, Templates

MessageId: TypeAlias = str | int | UUID | bytes


@dataclass(slots=True)
class Properties:
    """The fixed properties of a message, in the order of the specification."""

    message_id: MessageId | None = None
    user_id: bytes | None = None
    to: str | None = None
    subject: str | None = None
    reply_to: str | None = None
    correlation_id: MessageId | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    absolute_expiry_time: datetime | None = None
    creation_time: datetime | None = None
    group_id: str | None = None
    group_sequence: int | None = None
    reply_to_group_id: str | None = None


PROPERTY_NAMES = tuple(item.name for item in fields(Properties))
_SYMBOLS = frozenset({"content_type", "content_encoding"})
_UNSIGNED = frozenset({"group_sequence"})


@dataclass(slots=True)
class Message:
    """A message to be published.

    Attributes:
        body: the bytes of the data section.
        properties: the fixed properties.
        application_properties: free ones, by name; simple values.
        annotations: for brokers; keys begin with `x-`.
        value: the body as one AMQP value instead of bytes.
    """

    body: bytes = b""
    properties: Properties = field(default_factory=Properties)
    application_properties: Mapping[str, Value] = field(default_factory=dict)
    annotations: Mapping[str, Value] = field(default_factory=dict)
    value: Value = None

    def encode(self) -> bytes:
        """The message's sections.

        Raises:
            TypeError: a property's type has no AMQP type.
            ValueError: a property is out of range.
        """
        parts: list[bytes] = []
        if self.annotations:
            items = [
                part
                for key, value in self.annotations.items()
                for part in (encode_symbol(key), encode_value(value))
            ]
            parts += (_ANNOTATIONS, encode_map(items))
        fields = _fields_of(self.properties)
        if fields != _NO_FIELDS:
            parts += (_PROPERTIES, encode_list(_encode_fields(fields)))
        if self.application_properties:
            parts += (_APPLICATION_PROPERTIES, encode_named(self.application_properties))
        if self.value is None:
            parts += (_DATA, binary_head(len(self.body)), self.body)
        else:
            parts += (_VALUE, encode_value(self.value))
        return b"".join(parts)


_TEMPLATES = Templates()
_DAMAGED = (FormatError, UnicodeDecodeError)  # a part that holds no value: what follows is slower


class MessageView:
    """A message that was read; each section is decoded when something of it is asked for.

    Messages that look like one before are read by its template, see message_template.py.

    Args:
        raw: the message's encoding.

    Attributes:
        raw: the message's encoding.

    Every attribute raises FormatError when its section is not what it should be.
    """

    # What was read already. Not functools.cached_property: in Python 3.11 that takes a lock,
    # which costs as much as decoding a property.
    _fit: tuple[Template, Parts] | Literal[False] | None = False  # False: not looked for yet
    _found: Mapping[int, list[int]] | None = None
    _body: bytes | None = None
    _properties: Properties | None = None
    _application_properties: dict[str, Value] | None = None

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def _fitting(self) -> tuple[Template, Parts] | None:
        """The template that it fits, and its parts."""
        fit = self._fit
        if fit is False:
            fit = self._fit = _TEMPLATES.fit(self.raw)
        return fit

    @property
    def _sections(self) -> Mapping[int, list[int]]:
        """Positions of the sections' values, by section code; empty unless it is a message."""
        found = self._found
        if found is None:
            fit = self._fitting()
            try:
                found = _find_sections(self.raw) if fit is None else fit[0].sections
            except FormatError:
                found = {}
            self._found = found
        return found

    @property
    def is_amqp(self) -> bool:
        """The bytes are an AMQP 1.0 message; otherwise they are all body."""
        return bool(self._sections)

    def _read(self, section: Section) -> list[Value]:
        return [decode_value(self.raw, at)[0] for at in self._sections.get(section, ())]

    @property
    def body(self) -> bytes:
        """The bytes of all data sections together; empty when the body is a value.

        Where the bytes are not an AMQP 1.0 message, all of them.
        """
        body = self._body
        if body is None:
            fit = self._fit
            if fit is False:
                fit = self._fit = _TEMPLATES.fit(self.raw)
            if fit is not None:
                body = self.raw[fit[0].size :]
            else:
                parts = self._read(Section.DATA) if self._sections else [self.raw]
                body = b"".join(part for part in parts if isinstance(part, bytes))
            self._body = body
        return body

    @property
    def value(self) -> Value:
        """The AMQP value, or the list of sequences, that is the body; None when it is bytes."""
        values = self._read(Section.VALUE)
        return values[0] if values else self._read(Section.SEQUENCE) or None

    @property
    def properties(self) -> Properties:
        """The fixed properties; all None where the message has none."""
        if self._properties is None:
            self._properties = Properties(*self._fixed_properties()[: len(PROPERTY_NAMES)])
        return self._properties

    def _fixed_properties(self) -> list[Any]:
        fit = self._fitting()
        if fit is not None:
            try:
                return fit[0].properties(fit[1])
            except _DAMAGED:
                pass
        for values in self._read(Section.PROPERTIES):
            if isinstance(values, list):
                return values
        return []

    @property
    def application_properties(self) -> dict[str, Value]:
        """The free properties by name; empty where the message has none."""
        found = self._application_properties
        if found is None:
            fit = self._fit
            if fit is False:
                fit = self._fit = _TEMPLATES.fit(self.raw)
            try:
                if fit is not None:
                    found = fit[0].application_properties(fit[1])
            except _DAMAGED:
                pass
            if found is None:
                found = self._map(Section.APPLICATION_PROPERTIES)
            self._application_properties = found
        return found

    def application_property(self, name: str) -> Value:
        """One free property, None where it is missing; nothing else is decoded for it.

        Raises:
            FormatError: the message is damaged before the place where the property stands.
        """
        found = self._application_properties
        if found is not None:
            return found.get(name)
        fit = self._fit
        if fit is False:
            fit = self._fit = _TEMPLATES.fit(self.raw)
        if fit is not None:
            template, parts = fit
            slot = template.application.get(name)
            if slot is None:
                return None
            try:
                part = parts[slot.part]
                return part if slot.convert is None else slot.convert(part)
            except _DAMAGED:
                pass
        position = find_section(self.raw, Section.APPLICATION_PROPERTIES)
        return None if position is None else find_in_map(self.raw, position, name)

    def fixed_property(self, name: str) -> Value:
        """One fixed property, None where it is missing; nothing else is decoded for it.

        Raises:
            FormatError: the message is damaged before the place where the property stands.
            ValueError: there is no fixed property of that name.
        """
        found = self._properties
        if found is not None and name in PROPERTY_NAMES:
            value: Value = getattr(found, name)
            return value
        index = PROPERTY_NAMES.index(name)
        fit = self._fitting()
        if fit is not None:
            try:
                return fit[0].fixed_property(fit[1], index)
            except _DAMAGED:
                pass
        position = find_section(self.raw, Section.PROPERTIES)
        return None if position is None else find_in_list(self.raw, position, index)

    @property
    def annotations(self) -> dict[str, Value]:
        """What brokers noted; empty where the message has none."""
        return self._map(Section.MESSAGE_ANNOTATIONS)

    def _map(self, section: Section) -> dict[str, Value]:
        for found in self._read(section):
            if isinstance(found, dict):
                return found
        return {}

    def to_message(self) -> Message:
        """The same message, to be changed and published again."""
        return Message(
            self.body,
            self.properties,
            self.application_properties,
            self.annotations,
            self.value,
        )


_SECTION_CODES = frozenset(map(int, Section))
_BODY_SECTIONS = frozenset(map(int, (Section.DATA, Section.SEQUENCE, Section.VALUE)))
_FIRST_BODY = min(_BODY_SECTIONS)
_NULL, _UINT, _ULONG = (bytes((code,)) for code in (NULL, UINT, ULONG))


_ANNOTATIONS, _PROPERTIES, _APPLICATION_PROPERTIES, _DATA, _VALUE = (
    SHORT_DESCRIPTOR + bytes((section,))
    for section in (
        Section.MESSAGE_ANNOTATIONS,
        Section.PROPERTIES,
        Section.APPLICATION_PROPERTIES,
        Section.DATA,
        Section.VALUE,
    )
)
_fields_of = attrgetter(*PROPERTY_NAMES)
_NO_FIELDS = (None,) * len(PROPERTY_NAMES)


def _find_sections(raw: bytes) -> dict[int, list[int]]:
    """Positions of the values of a message's sections, by section code.

    Several only of those that make up the body: of two others of a kind the first counts, and none
    behind the body.
    """
    found: dict[int, list[int]] = {}
    position, size = 0, len(raw)
    is_behind = False
    while position < size:
        if raw[position : position + 2] == SHORT_DESCRIPTOR and position + 2 < size:
            code, position = raw[position + 2], position + 3
        else:
            code, position = section_code(raw, position)
        if code not in _SECTION_CODES:
            raise FormatError(f"section code is {code}")
        if code >= _FIRST_BODY:
            is_behind = True
            found.setdefault(code, []).append(position)
        elif not is_behind and code not in found:
            found[code] = [position]
        position = skip_value(raw, position)
    if not found.keys() & _BODY_SECTIONS:
        raise FormatError("the message has no body section")
    return found


def walk_sections(raw: bytes, position: int = 0) -> Iterator[tuple[int, int, int]]:
    """Code, start, and position of the value of each section, in order.

    Raises:
        FormatError: the bytes there are not a section.
    """
    while position < len(raw):
        code, value = section_code(raw, position)
        if code not in _SECTION_CODES:
            raise FormatError(f"section code is {code}")
        yield code, position, value
        position = skip_value(raw, value)


def find_section(raw: bytes, wanted: int) -> int | None:
    """Position of the value of the first section of a kind; what is behind it is not read.

    Sections before the body may stand in any order, none is looked for behind it.

    Returns:
        None where there is none.

    Raises:
        FormatError: the bytes before it are not sections.
    """
    position, size = 0, len(raw)
    while position < size:
        if raw[position : position + 2] == SHORT_DESCRIPTOR and position + 2 < size:
            code, position = raw[position + 2], position + 3
        else:
            code, position = section_code(raw, position)
        if code == wanted or code >= _FIRST_BODY:
            return position if code == wanted else None
        position = skip_value(raw, position)
    return None


def _encode_fields(values: Iterable[Any]) -> list[bytes]:
    """The fixed properties in order, without the missing ones at the end."""
    parts: list[bytes] = []
    for name, value in zip(PROPERTY_NAMES, values, strict=True):
        if value is None:
            parts.append(_NULL)
        elif name in _SYMBOLS:
            parts.append(encode_symbol(value))
        elif name in _UNSIGNED:
            parts.append(_UINT + _unsigned(name, value, 4))
        elif isinstance(value, int):  # an id that is a number is unsigned
            parts.append(_ULONG + _unsigned(name, value, 8))
        else:
            parts.append(encode_value(value))
    while parts and parts[-1] == _NULL:
        parts.pop()
    return parts


def _unsigned(name: str, value: object, size: int) -> bytes:
    if not isinstance(value, int):
        raise TypeError(f"{name} is {type(value).__name__}, expected a number")
    if not 0 <= value < 1 << 8 * size:
        raise ValueError(f"{name} is {value}, expected 0 or more, below 2**{8 * size}")
    return value.to_bytes(size, "big")
