"""Application properties of the usual form as headers: a short map of short names and plain values.

One pass without a call for each value: no two messages have the same values, so each of them is
read. What is not of this form is left to `value_conversion`, which defines the right answer; a
property test compares the two.
"""

from functools import lru_cache

from segments import amqp10_codes as codes
from segments.amqp10 import skip_value
from streamd.wire.amqp091.messages.value_conversion import delivered_field
from streamd.wire.amqp091.values import Room

_SHORT_NAMES = frozenset((codes.STRING_8, codes.SYMBOL_8))
_SHORT_TEXTS = frozenset((codes.STRING_8, codes.SYMBOL_8, codes.BINARY_8))
_FIRST_WITH_PARTS = codes.LIST_8
_SMALL = frozenset((codes.SMALL_UINT, codes.SMALL_ULONG, codes.SMALL_INT, codes.SMALL_LONG))
_SMALL_SIZE = 2
_CACHED_NAMES = 4096


@lru_cache(maxsize=_CACHED_NAMES)
def _entry_start(name: bytes) -> bytes | None:
    """A header's name as it is sent; None where it is no text."""
    try:
        name.decode()
    except UnicodeDecodeError:
        return None
    return bytes((len(name),)) + name


@lru_cache(maxsize=len(_SMALL) * 256)
def _small(value: bytes) -> bytes | None:
    return delivered_field(value, Room())


def simple_headers(raw: bytes, at: int, end: int) -> dict[bytes, bytes] | None:
    """Headers by their names as they are sent, in the order of the message.

    Args:
        raw: a message.
        at: where the short map of its application properties begins in it,
        end: and ends.

    Returns:
        None where they are not of the usual form.
    """
    found: dict[bytes, bytes] = {}
    count, at = raw[at + 2], at + 3
    try:
        for _ in range(count >> 1):
            if raw[at] not in _SHORT_NAMES:
                return None
            begin = at + 2
            at = begin + raw[at + 1]
            name = raw[begin:at]
            code = raw[at]
            begin = at
            field: bytes | None
            if code in _SHORT_TEXTS:
                at += 2 + raw[at + 1]
                field = b"S\0\0\0" + raw[begin + 1 : at]  # its size is one byte here and four there
            elif code in _SMALL:
                at += _SMALL_SIZE
                field = _small(raw[begin:at])
            elif code < _FIRST_WITH_PARTS:
                at = skip_value(raw, at)
                field = delivered_field(raw[begin:at], Room())
            else:
                return None
            start = _entry_start(name)
            if start is not None and field is not None and name not in found:
                found[name] = start + field
    except IndexError:
        return None
    return found if at == end and not count & 1 else None
