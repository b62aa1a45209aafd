"""Keys of further filter properties, which stand beside plain filter values.

A stream may declare several filter properties. Values of the first are plain filter values, which
clients give and ask for. Those of the others are taken from each message by the server, and stand
in the same chunk filter, trailer and filter index, as keys that are no plain filter values:

    00 00 NAME 00 VALUE    some message has this value of the property
    00 00 NAME 00          some message has no value of it
    00 00 NAME             it was looked for in every message: the chunk's mark
    00 00 00 VALUE         a plain filter value on such a stream that begins with two zeros

A name is neither empty nor has it a zero in it, so none of these can be mistaken for another. A
chunk without the mark says nothing of the property: it may hold any value of it. That is how a
chunk of before its declaration is told, and one that another program has written. (There a plain
filter value stands as it is: two zeros and the name of the property would be taken for its mark.)

Keys of more than 255 bytes are recorded as a long filter value is, see `bloom.history_form`.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

PREFIX = b"\0\0"
_END = b"\0"


def mark_of(name: str) -> bytes:
    """What chunks hold in which a property was looked for."""
    return PREFIX + name.encode()


def key_of(name: str, value: bytes) -> bytes:
    """What stands for a value of a property; for messages without one where it is empty."""
    return mark_of(name) + _END + value


def plain_key(value: bytes) -> bytes:
    """What stands for a plain filter value on a stream with several filter properties."""
    return PREFIX + _END + value if value.startswith(PREFIX) else value


def is_of_property(key: bytes) -> bool:
    """Whether it stands for something of a further property, if its chunk is of such a stream."""
    return key.startswith(PREFIX) and not key.startswith(PREFIX + _END)


def is_mark(key: bytes) -> bool:
    """The same for a mark."""
    return is_of_property(key) and _END not in key.removeprefix(PREFIX)


class Meaning(NamedTuple):
    """What a key stands for, if its chunk is of a stream with further properties.

    Attributes:
        name: of a further property; None for a plain filter value.
        value: a filter value, empty for messages without one; None for a mark.
    """

    name: str | None
    value: bytes | None


def meaning_of(key: bytes) -> Meaning:
    """See Meaning."""
    if not is_of_property(key):
        return Meaning(None, key.removeprefix(PREFIX + _END))
    name, end, value = key.removeprefix(PREFIX).partition(_END)
    return Meaning(name.decode(errors="replace"), value if end else None)


def marks_among(keys: Iterable[bytes]) -> set[bytes]:
    """The marks among some keys: those with keys of their properties beside them."""
    found = [key for key in keys if is_of_property(key)]
    heads = {
        PREFIX + key.removeprefix(PREFIX).partition(_END)[0] for key in found if not is_mark(key)
    }
    return {key for key in found if is_mark(key) and key in heads}


class Told(NamedTuple):
    """What the keys of a chunk say.

    Attributes:
        plain: how many messages have which filter value, an empty one for none.
        properties: the same of each further property, by its name.
    """

    plain: dict[bytes, int]
    properties: dict[str, dict[bytes, int]]


def told(counts: Mapping[bytes, int]) -> Told:
    """What the keys that a trailer lists say.

    A plain filter value on a stream without further properties may look like a key. Where there
    are some, every message has a key of each: their counts make up that of its mark.
    """
    if not any(key.startswith(PREFIX) for key in counts):
        return Told(dict(counts), {})
    properties = {}
    for mark in filter(is_mark, counts):
        head = mark + _END
        found = {k.removeprefix(head): n for k, n in counts.items() if k.startswith(head)}
        if sum(found.values()) == counts[mark]:
            properties[mark.removeprefix(PREFIX).decode(errors="replace")] = found
    if not properties:
        return Told(dict(counts), {})
    known = tuple(mark_of(name) for name in properties)
    heads = tuple(mark + _END for mark in known)
    plain = {
        key.removeprefix(PREFIX + _END): count
        for key, count in counts.items()
        if key not in known and not key.startswith(heads)
    }
    return Told(plain, properties)


class PropertyFilter(NamedTuple):
    """What a chunk has to hold of a further property.

    Attributes:
        name: of the property, as it was declared.
        values: one of these,
        match_unfiltered: or a message without a value of it.
    """

    name: str
    values: frozenset[bytes]
    match_unfiltered: bool

    @property
    def keys(self) -> tuple[bytes, ...]:
        """The keys of which it has to hold one."""
        none = (b"",) if self.match_unfiltered else ()
        return tuple(key_of(self.name, value) for value in (*sorted(self.values), *none))
