"""What the keys of a message are, and what a key that somebody looks for stands for: one rule.

A key is the value of a declared property, in a canonical form: a text, a symbol, a binary and a
UUID are their bytes, as they are for filters; a number is its value, whatever its type, so that 5,
5.0 and a long 5 are one key; a time is its milliseconds since 1970; a boolean is itself. The value
of `KEYS` is several keys with spaces between them. Missing, null or empty, a character, a decimal,
a list, and whatever stands in a message that cannot be read, are no keys.

Who looks for a text looks for all that it spells: the text itself, and a number, a boolean, a UUID
or a time where it is one.

The index (index.py) is made of these forms, and a search compares them, so that neither can know
a key that the other does not.

Source: apache/rocketmq, common/src/main/java/org/apache/rocketmq/common/message/MessageConst.java,
KEY_SEPARATOR, for `KEYS`. The forms are ours.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from math import isfinite
from typing import TypeAlias
from uuid import UUID
from zlib import crc32

import mmh3

from segments.errors import FormatError
from segments.selector import RowReader, parse_property
from segments.selector.values import Value, boolean_of, number_of
from segments.times import whole_ms

Key: TypeAlias = str | bytes | int | float | bool | UUID | datetime

KEYS = "KEYS"  # the property whose value is several keys
SEPARATOR = b" "
# The first byte of a form: what kind of key it is. Kinds have no keys in common.
TEXT, NUMBER, BOOLEAN = b"=", b"#", b"?"
_MAX_TIME_CHARACTERS = 40
_UUID_DIGITS = 32


def number_form(value: float) -> bytes | None:
    """The form of a number; None for one that is none, or endless."""
    if isinstance(value, float):
        if not isfinite(value):
            return None
        value = int(value) if value.is_integer() else value
    return NUMBER + repr(value).encode()


def forms_of_value(value: Value, *, is_split: bool = False) -> Iterable[bytes]:
    """The keys that a property's value is.

    Args:
        value: as `RowReader` reads it.
        is_split: it is that of `KEYS`.
    """
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return [TEXT + part for part in (value.split(SEPARATOR) if is_split else [value]) if part]
    if isinstance(value, bool):
        return [BOOLEAN + repr(value).encode()]
    if isinstance(value, int | float):
        form = number_form(value)
        return [] if form is None else [form]
    return []


def forms_of_key(key: Key) -> frozenset[bytes]:
    """All forms that a key stands for, which somebody looks for.

    Args:
        key: a text stands for what it spells as well, anything else for itself; a time without a
            zone is local, a text is one only with its zone.

    Returns:
        None at all for an empty text, which no message has for a key.
    """
    if isinstance(key, datetime):
        return frozenset(forms_of_value(whole_ms(key)))
    if isinstance(key, UUID):
        return frozenset((TEXT + key.bytes,))
    found = set(forms_of_value(key))
    if isinstance(key, str):
        for spelled in _spelled(key):
            found.update(forms_of_value(spelled))
    return frozenset(found)


def _spelled(text: str) -> Iterable[Value]:
    """What a text spells besides itself."""
    number = number_of(text)
    if number is not None:
        yield number
        return
    if boolean_of(text) is not None:
        yield boolean_of(text)
        return
    if len(text) > _MAX_TIME_CHARACTERS or not text.isascii():
        return
    if len(text) >= _UUID_DIGITS:
        with suppress(ValueError):
            yield UUID(text).bytes
    if text[:1].isdigit():  # of a year
        with suppress(ValueError):
            time = datetime.fromisoformat(text)
            if time.tzinfo is not None:  # whose zone it would be is not known here
                yield whole_ms(time)


class KeyReader:
    """Reads the keys of messages.

    Args:
        properties: names of application properties, or fields such as properties.message_id.

    Raises:
        SelectorError: there is no such field.
    """

    def __init__(self, properties: Sequence[str]) -> None:
        self._read_row = RowReader([parse_property(name) for name in properties]).read
        self._splits = [name == KEYS for name in properties]
        self._parts = [KeyReader([name]) for name in properties] if len(properties) > 1 else []

    def read(self, raw: bytes) -> frozenset[bytes]:
        """The forms of all keys of a message; none where it is no AMQP 1.0 message.

        Of one that is damaged those are read that stand before the damage, so that the keys of
        several properties are those of each.
        """
        try:
            row = self._read_row(raw)
        except FormatError:
            return frozenset().union(*(part.read(raw) for part in self._parts))
        return frozenset(
            form
            for value, is_split in zip(row, self._splits, strict=True)
            if value is not None
            for form in forms_of_value(value, is_split=is_split)
        )


def seed_of(name: str, kind: bytes) -> int:
    """What the prints of a property's keys of one kind begin with."""
    return crc32(name.encode(), crc32(kind))


def key_prints(properties: Iterable[str], forms: Iterable[bytes]) -> frozenset[int]:
    """What stands for keys in an index: 32 bits for each property that may have it.

    Args:
        properties: in which they are looked for.
        forms: of the keys, see `forms_of_key`.
    """
    wanted = [(form[:1], form[1:]) for form in forms]
    return frozenset(
        mmh3.hash(rest, seed_of(name, kind), signed=False)
        for name in properties
        for kind, rest in wanted
    )
