"""Messages as the sections of AMQP 1.0, which all stream clients write and read.

`Message` is written, `MessageView` is read: whoever looks at one application property does not
pay for decoding the rest.

Source: OASIS AMQP 1.0 part 3 (messaging), 3.2.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import IntEnum
from functools import cached_property
from typing import TypeAlias
from uuid import UUID

from segments.amqp10 import (
    Value,
    decode_value,
    encode_binary,
    encode_list,
    encode_map,
    encode_symbol,
    encode_text,
    encode_value,
)
from segments.errors import FormatError

MessageId: TypeAlias = str | int | UUID | bytes


class Section(IntEnum):
    """Section codes, in the order in which sections stand."""

    HEADER = 0x70
    DELIVERY_ANNOTATIONS = 0x71
    MESSAGE_ANNOTATIONS = 0x72
    PROPERTIES = 0x73
    APPLICATION_PROPERTIES = 0x74
    DATA = 0x75
    SEQUENCE = 0x76
    VALUE = 0x77
    FOOTER = 0x78


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


_PROPERTY_NAMES = tuple(item.name for item in fields(Properties))
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
        parts = []
        if self.annotations:
            items = [
                part
                for key, value in self.annotations.items()
                for part in (encode_symbol(key), encode_value(value))
            ]
            parts += [_head(Section.MESSAGE_ANNOTATIONS), encode_map(items)]
        properties = _encode_properties(self.properties)
        if properties:
            parts += [_head(Section.PROPERTIES), encode_list(properties)]
        if self.application_properties:
            items = [
                part
                for key, value in self.application_properties.items()
                for part in (encode_text(key), encode_value(value))
            ]
            parts += [_head(Section.APPLICATION_PROPERTIES), encode_map(items)]
        if self.value is not None:
            parts += [_head(Section.VALUE), encode_value(self.value)]
        else:
            parts += [_head(Section.DATA), encode_binary(self.body)]
        return b"".join(parts)


class MessageView:
    """A message that was read; each section is decoded when something of it is asked for.

    Args:
        raw: the message's encoding.

    Raises:
        FormatError: the bytes are not the sections of a message. What is wrong within a section
            shows when it is read.
    """

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self._sections = _find_sections(raw)

    def _read(self, section: Section) -> list[Value]:
        return [decode_value(self.raw, at)[0] for at in self._sections.get(section, ())]

    @cached_property
    def body(self) -> bytes:
        """The bytes of all data sections together; empty when the body is a value."""
        return b"".join(part for part in self._read(Section.DATA) if isinstance(part, bytes))

    @cached_property
    def value(self) -> Value:
        """The AMQP value, or the list of sequences, that is the body; None when it is bytes."""
        values = self._read(Section.VALUE)
        return values[0] if values else self._read(Section.SEQUENCE) or None

    @cached_property
    def properties(self) -> Properties:
        """The fixed properties; all None where the message has none."""
        found = Properties()
        for values in self._read(Section.PROPERTIES):
            if isinstance(values, list):
                for name, value in zip(_PROPERTY_NAMES, values, strict=False):
                    setattr(found, name, value)
        return found

    @cached_property
    def application_properties(self) -> dict[str, Value]:
        """The free properties by name; empty where the message has none."""
        return self._map(Section.APPLICATION_PROPERTIES)

    @cached_property
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


_SECTION_CODES = frozenset(Section)
# How many bytes follow a type code, by its high half; below 0 the width of a length.
_WIDTHS = (None, None, None, None, 0, 1, 2, 4, 8, 16, -1, -4, -1, -4, -1, -4)
_DESCRIPTOR_SYMBOLS = {
    "amqp:header:list": Section.HEADER,
    "amqp:delivery-annotations:map": Section.DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": Section.MESSAGE_ANNOTATIONS,
    "amqp:properties:list": Section.PROPERTIES,
    "amqp:application-properties:map": Section.APPLICATION_PROPERTIES,
    "amqp:data:binary": Section.DATA,
    "amqp:amqp-sequence:list": Section.SEQUENCE,
    "amqp:amqp-value:*": Section.VALUE,
    "amqp:footer:map": Section.FOOTER,
}


def _head(section: Section) -> bytes:
    return bytes((0x00, 0x53, section))


def _find_sections(raw: bytes) -> dict[int, list[int]]:
    """Positions of the values of a message's sections, by section code."""
    found: dict[int, list[int]] = {}
    position, size = 0, len(raw)
    while position < size:
        code, position = _descriptor(raw, position)
        found.setdefault(code, []).append(position)
        position = _skip(raw, position)
    if not found.keys() & {Section.DATA, Section.SEQUENCE, Section.VALUE}:
        raise FormatError("the message has no body section")
    return found


def _descriptor(raw: bytes, position: int) -> tuple[int, int]:
    """Section code and position of the section's value."""
    if raw[position : position + 2] == b"\x00\x53" and position + 2 < len(raw):
        code, end = raw[position + 2], position + 3
    else:
        if raw[position] != 0:
            raise FormatError(f"byte {position} begins no section")
        value, end = decode_value(raw, position + 1)
        code = _DESCRIPTOR_SYMBOLS.get(value, -1) if isinstance(value, str) else value  # type: ignore[assignment]
    if code not in _SECTION_CODES:
        raise FormatError(f"section at byte {position} has the code {code!r}")
    return code, end


def _skip(raw: bytes, position: int) -> int:
    """The position after the value at `position`, which is not looked into."""
    if position >= len(raw):
        raise FormatError("the last section has no value")
    width = _WIDTHS[raw[position] >> 4]
    if width is None:
        return decode_value(raw, position)[1]
    position += 1
    if width >= 0:
        end = position + width
    else:
        end = position - width + int.from_bytes(raw[position : position - width], "big")
    if end > len(raw):
        raise FormatError("the last section is cut off")
    return end


def _encode_properties(properties: Properties) -> list[bytes]:
    """The fields in order, without the missing ones at the end."""
    parts: list[bytes] = []
    for name in _PROPERTY_NAMES:
        value = getattr(properties, name)
        if value is None:
            parts.append(b"\x40")
        elif name in _SYMBOLS:
            parts.append(encode_symbol(value))
        elif name in _UNSIGNED:
            parts.append(b"\x70" + value.to_bytes(4, "big"))
        elif isinstance(value, int):  # an id that is a number is unsigned
            parts.append(b"\x80" + value.to_bytes(8, "big"))
        else:
            parts.append(encode_value(value))
    while parts and parts[-1] == b"\x40":
        parts.pop()
    return parts
