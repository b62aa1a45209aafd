"""The filter value of a message, where it is the value of a property: one rule for everybody.

A text, in UTF-8, a binary and a UUID are filter values as their bytes. Missing, null or empty, a
time, a character, a decimal, a list, and whatever stands in a message that cannot be read are none.
A number or a boolean:

* The server takes it for no filter value. Filters of streams that declare a filter property were
  written so, and selectors choose chunks by that.
* A publisher on a stream without a filter property may have given it as text, as
  `streamd publish --filter-property` does. So readers, which compare values with a property of a
  message, take it for its JSON text: 5, 2.5, true.
* Where readers know that the stream declares a filter property, the server may have found no value
  in it, or the publisher may have given one: it is both the text and no value, so that no match is
  lost. With a strict contract it is no value, as no publisher can have given one.

`NumberRule` names the three for readers.

Source: rabbitmq/osiris, src/osiris_bloom.erl, for filter values. The promise is ours.
"""

import json
from collections.abc import Callable, Collection
from enum import Enum
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from segments.amqp10 import Char
from segments.errors import FormatError
from segments.selector.fields import RowReader
from segments.selector.nodes import Property


class NumberRule(Enum):
    """What a number or a boolean is to a reader of filter values; see the module."""

    TEXT = "its JSON text"
    EITHER = "its JSON text, and no filter value"
    NO_VALUE = "no filter value"


class PropertyValue(NamedTuple):
    """What a property is worth as a filter value.

    Attributes:
        value: a filter value, or the JSON text of a number or a boolean; empty for none.
        is_number: it is such a JSON text, or a character that a program's function has found.
        is_other: it is none although the property has a value, such as a time.
    """

    value: bytes
    is_number: bool = False
    is_other: bool = False


_NONE = PropertyValue(b"")
_REMEMBERED_CHARACTERS = 64  # of a text: most messages have one of a few


@lru_cache(maxsize=4096)
def _of_text(text: str) -> PropertyValue:
    return PropertyValue(text.encode())


def filter_value_of(value: object) -> bytes:
    """The filter value that a property's value makes for the server; empty for none."""
    if isinstance(value, str):
        return b"" if isinstance(value, Char) else value.encode()
    if isinstance(value, UUID):
        return value.bytes
    return value if isinstance(value, bytes) else b""


def property_value_of(value: object) -> PropertyValue:
    """What a property's value is worth for a reader."""
    if type(value) is str and len(value) <= _REMEMBERED_CHARACTERS:
        return _of_text(value)
    if isinstance(value, int | float):  # a boolean too
        return PropertyValue(json.dumps(value).encode(), is_number=True)
    if isinstance(value, Char):
        return PropertyValue(value.encode(), is_number=True)
    found = filter_value_of(value)
    return PropertyValue(found, is_other=not found and value not in (None, "", b""))


def filter_value_reader(filter_property: Property) -> Callable[[bytes], bytes]:
    """Reads the server's filter value from a message's encoding; empty for none."""
    read_row = RowReader([filter_property]).read

    def read(raw: bytes) -> bytes:
        try:
            (value,) = read_row(raw)
        except FormatError:
            return b""
        return filter_value_of(value)

    return read


def property_value_reader(filter_property: Property) -> Callable[[bytes], PropertyValue]:
    """Reads from a message's encoding what a property is worth for a reader."""
    read_row = RowReader([filter_property], reads_times=False).read

    def read(raw: bytes) -> PropertyValue:
        try:
            (value,) = read_row(raw)
        except FormatError:
            return _NONE
        return property_value_of(value)

    return read


class WantedValues:
    """A reader's test of messages by their filter values.

    Args:
        match_unfiltered: and messages without a value.
    """

    def __init__(
        self, values: Collection[bytes], *, match_unfiltered: bool, numbers: NumberRule
    ) -> None:
        self._values = frozenset(values)
        self._match_unfiltered = match_unfiltered
        self._numbers = numbers

    def has(self, found: PropertyValue) -> bool:
        """Whether a message with this value is wanted."""
        if not found.value:
            return self._match_unfiltered
        if not found.is_number:
            return found.value in self._values
        if self._numbers is NumberRule.NO_VALUE:
            return self._match_unfiltered
        is_either = self._match_unfiltered and self._numbers is NumberRule.EITHER
        return is_either or found.value in self._values
