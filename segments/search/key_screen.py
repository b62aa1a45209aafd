"""Bytes of which every message with a key contains one; see selector/prefilter.py.

A key may stand in a message as a text, a symbol or bytes, and where it spells a number, a boolean,
a UUID or a time, as that; `forms_of_key` knows. An application property's value follows its name.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence

from segments import amqp10_codes as codes
from segments.keys.forms import KEYS, NUMBER, TEXT
from segments.selector.nodes import Property, PropertySection
from segments.selector.prefilter import Pattern, Screen, short_value

MAX_PATTERNS = 160  # more take longer than to read every message
_LONG = 4  # bytes of a text that seldom stand anywhere else
_NUMBERS = {**codes.INTEGERS, **codes.FRACTIONS, codes.TIMESTAMP: "q"}
_ZEROS = bytes((codes.UINT_0,)), bytes((codes.ULONG_0,))


def key_screen(forms: Iterable[bytes], properties: Sequence[Property]) -> Screen | None:
    """The screen for messages that have one of some keys in one of some properties.

    Args:
        forms: of the keys, see `forms_of_key`.
        properties: where they are looked for.

    Returns:
        None when there would be too many patterns.
    """
    patterns: set[Pattern] = set()
    for form in forms:
        for prop in properties:
            patterns.update(_patterns(form, prop))
        if len(patterns) > MAX_PATTERNS:
            return None
    return Screen(tuple(sorted(patterns)))


def _patterns(form: bytes, prop: Property) -> Iterator[Pattern]:
    kind, key = form[:1], form[1:]
    is_named = prop.section is PropertySection.APPLICATION
    if kind != TEXT:
        before = prop.name.encode() if is_named else b""
        encodings = _of_number(key) if kind == NUMBER else _of_boolean(key)
        yield from (Pattern(before + raw) for raw in encodings)
    elif len(key) >= _LONG or not is_named or prop.name == KEYS:
        yield Pattern(key)
    else:
        yield from short_value(prop.name, key)


def _of_number(key: bytes) -> Iterator[bytes]:
    """All encodings of a number."""
    text = key.decode()
    number = int(text) if text.lstrip("-").isdigit() else float(text)
    for code, form in _NUMBERS.items():
        layout = struct.Struct(f">{form}")
        try:
            raw = layout.pack(number)
        except (struct.error, OverflowError):
            continue
        if layout.unpack(raw) == (number,):
            yield bytes((code,)) + raw
    if number == 0:
        yield from _ZEROS
        for code, form in codes.FRACTIONS.items():
            yield bytes((code,)) + struct.pack(f">{form}", -0.0)


def _of_boolean(key: bytes) -> Iterator[bytes]:
    yield bytes((codes.TRUE if key == b"True" else codes.FALSE,))
    yield bytes((codes.BOOLEAN,))
