"""Application properties of the usual form as headers: a short map of short names and plain values.

One pass without a call for each value: no two messages have the same values, so each of them is
read. Their names are the same again and again: where each header goes is remembered by them. What
is not of this form is left to `value_conversion`, which defines the right answer; a property test
compares the two.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from segments import amqp10_codes as codes
from segments.amqp10 import skip_value
from streamd.wire.amqp091.messages.value_conversion import delivered_field
from streamd.wire.amqp091.values import Room

_SHORT_NAMES = frozenset((codes.STRING_8, codes.SYMBOL_8))
_SHORT_TEXTS = frozenset((codes.STRING_8, codes.SYMBOL_8, codes.BINARY_8))
_FIRST_WITH_PARTS = codes.LIST_8
_SMALL = frozenset((codes.SMALL_UINT, codes.SMALL_ULONG, codes.SMALL_INT, codes.SMALL_LONG))
_SMALL_SIZE = 2

Names: TypeAlias = tuple[bytes, ...]


@lru_cache(maxsize=len(_SMALL) * 256)
def _small(value: bytes) -> bytes | None:
    return delivered_field(value, Room())


def simple_headers(raw: bytes, at: int, end: int) -> tuple[Names, list[bytes]] | None:
    """Names and tagged values of headers, in the order of the message.

    Args:
        raw: a message.
        at: where the short map of its application properties begins in it,
        end: and ends.

    Returns:
        None where they are not of the usual form, or one has no counterpart.
    """
    names: list[bytes] = []
    fields: list[bytes] = []
    count, at = raw[at + 2], at + 3
    try:
        for _ in range(count >> 1):
            if raw[at] not in _SHORT_NAMES:
                return None
            begin = at + 2
            at = begin + raw[at + 1]
            names.append(raw[begin:at])
            begin, code = at, raw[at]
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
            if field is None:
                return None
            fields.append(field)
    except IndexError:
        return None
    return (tuple(names), fields) if at == end and not count & 1 else None


class _Part(NamedTuple):
    """Headers that follow each other.

    Attributes:
        form: names and what is the same in all messages, with a gap for each value.
        pick: the values for the gaps, from those of a message.
    """

    form: bytes
    pick: Callable[[Sequence[bytes]], bytes | tuple[bytes, ...]]

    def fill(self, fields: Sequence[bytes]) -> bytes:
        """The headers of one message."""
        return self.form % self.pick(fields)


class Layout(NamedTuple):
    """Where the headers of messages with the same names go: in the order of these.

    Attributes:
        before: those before one place,
        after: and behind it.
    """

    before: _Part
    after: _Part


def layout_of(names: Names, others: Mapping[bytes, bytes], middle: bytes) -> Layout | None:
    """The layout of some names.

    Args:
        names: of a message's headers.
        others: headers that all messages have, as they are sent, by name; these count.
        middle: the name of the last one before the place.

    Returns:
        None where a name is no text, or stands there twice.
    """
    try:
        for name in names:
            name.decode()
    except UnicodeDecodeError:
        return None
    if len(set(names)) < len(names):
        return None
    entries: dict[bytes, tuple[bytes, int | None]] = {
        name: (_escaped(bytes((len(name),)) + name) + b"%b", n) for n, name in enumerate(names)
    }
    entries |= {name: (_escaped(entry), None) for name, entry in others.items()}
    ordered = sorted(entries)
    at = ordered.index(middle) + 1
    before, after = (map(entries.__getitem__, part) for part in (ordered[:at], ordered[at:]))
    return Layout(_part(before), _part(after))


def _part(entries: Iterable[tuple[bytes, int | None]]) -> _Part:
    forms, numbers = zip(*entries, strict=True) if (entries := list(entries)) else ((), ())
    found = [number for number in numbers if number is not None]
    return _Part(b"".join(forms), itemgetter(*found) if found else lambda _: ())


def _escaped(text: bytes) -> bytes:
    return text.replace(b"%", b"%%")
