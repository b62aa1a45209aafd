"""The filter value of a message, where it is the value of a property: one reader for everybody.

Server, client library, command line and Spark all take it from here, so what one of them puts into
a chunk's filter is what the others look for. A text, in UTF-8, a binary and a UUID are filter
values as their bytes. All else is none: missing, null or empty, a number, a boolean, a time, a
character, a list, and whatever stands in a message that cannot be read.

Source: rabbitmq/osiris, src/osiris_bloom.erl, for filter values. The promise is ours.
"""

from collections.abc import Callable
from uuid import UUID

from segments.errors import FormatError
from segments.selector.fields import RowReader
from segments.selector.nodes import Property


def filter_value_of(value: object) -> bytes:
    """The filter value that a property's value makes; empty for none."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, UUID):
        return value.bytes
    return value if isinstance(value, bytes) else b""


def filter_value_reader(filter_property: Property) -> Callable[[bytes], bytes]:
    """Reads the value of a filter property from a message's encoding; empty for none."""
    read_row = RowReader([filter_property]).read

    def read(raw: bytes) -> bytes:
        try:
            (value,) = read_row(raw)
        except FormatError:
            return b""
        return filter_value_of(value)

    return read
