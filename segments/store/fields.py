"""Fields of what a store has as JSON: each is what it should be, or is refused.

Whatever is in a store may have been written by somebody else.
"""

import re
import sys
from typing import Any

from segments.errors import FormatError

_MOST = (1 << 63) - 1
_UID = re.compile(r"[0-9a-f]{16}")
_CREATION = re.compile(r"[0-9A-Za-z-]{1,64}")
_SUFFIX = re.compile(r"\.[a-z]{1,20}")
_MOST_CHARACTERS = 4_096
# What decoding JSON of any kind, and looking for fields in it, raises.
WRONG = (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError)


def number(value: object) -> int:
    """A number from 0 on that has 63 bits."""
    if type(value) is not int or not 0 <= value <= _MOST:
        raise FormatError(f"a field is {shown(value)}, expected a number")
    return value


def time_ms(value: object) -> int:
    """A time in ms since 1970, or before."""
    if type(value) is not int or not -_MOST <= value <= _MOST:
        raise FormatError(f"a field is {shown(value)}, expected a time")
    return value


def text(value: object) -> str:
    """A text of a reasonable size that can be encoded, and is not empty."""
    if not isinstance(value, str) or not 0 < len(value) <= _MOST_CHARACTERS:
        raise FormatError(f"a field is {shown(value)}, expected a text")
    value.encode()  # or else it is a ValueError
    return value


def uid(value: object) -> str:
    """16 hexadecimal digits; they become a part of file names."""
    if not isinstance(value, str) or not _UID.fullmatch(value):
        raise FormatError(f"a field is {shown(value)}, expected 16 hexadecimal digits")
    return value


def creation(value: object) -> str:
    """A creation id, which becomes a part of keys."""
    if not isinstance(value, str) or not _CREATION.fullmatch(value):
        raise FormatError(f"a field is {shown(value)}, expected a creation id")
    return value


def suffix(value: str) -> str:
    """A dot and letters; thousands of segments share what there is of them."""
    if not _SUFFIX.fullmatch(value):
        raise FormatError(f"a file is called {shown(value)}, expected a suffix such as .index")
    return sys.intern(value)


def flag(value: object) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise FormatError(f"a field is {shown(value)}, expected true or false")
    return value


def plain(value: object) -> dict[str, Any]:
    """Names with values that are no lists and the like."""
    if not isinstance(value, dict):
        raise FormatError(f"a field is {shown(value)}, expected names with values")
    for name, one in value.items():
        text(name)
        if one is not None and not isinstance(one, bool | int | float | str):
            raise FormatError(f"the argument {name} is {shown(one)}, expected a plain value")
        if isinstance(one, str):
            one.encode()
    return value


def numbers(value: object) -> dict[str, int]:
    """Names with numbers."""
    return {text(name): number(one) for name, one in plain(value).items()}


def shown(value: object) -> str:
    """As much of a value as fits into a sentence."""
    if isinstance(value, list | dict):
        return f"a {type(value).__name__}"
    found = ascii(value) if isinstance(value, str | float | bool) or value is None else str(value)
    return f"{found[:40]}…" if len(found) > 40 else found  # noqa: PLR2004 - see above
