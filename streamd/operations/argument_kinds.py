"""What values an argument of a stream may have, and how each door writes them."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import Enum
from typing import TypeAlias

from segments.format_constants import MAX_FILTER_SIZE, MIN_FILTER_SIZE
from segments.selector import (
    MAX_PROPERTY_BYTES,
    SelectorError,
    names_in,
    parse_property,
    text_of_names,
)
from segments.words import whole_number
from streamd.config import AGE as AGE_FORM


@dataclass(frozen=True, slots=True, repr=False)
class Age:
    """An age as it was declared; ages of the same length are equal."""

    text: str = field(compare=False)
    seconds: int

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return repr(self.text)


Plain: TypeAlias = int | float | str | bool
Value: TypeAlias = Plain | Age

AUTO = "auto"
_TYPED = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([a-z]*)")  # a number and a unit
_BETWEEN_THOUSANDS = re.compile(r"(?<=\d)[,_](?=\d{3}(?!\d))")  # 1,5 is no 15
_UNITS = {"Y": 365 * 86_400, "M": 30 * 86_400, "D": 86_400, "h": 3_600, "m": 60, "s": 1}


class AmqpType(Enum):
    """What stands for a value in AMQP 0-9-1."""

    TEXT = "a string"
    INTEGER = "an integer"
    INTEGER_OR_AUTO = "an integer, or `auto`"
    FLAG = "a boolean or a string"
    RATE = "a float or a string"


@dataclass(frozen=True, slots=True)
class Kind:
    """Values of one kind.

    Attributes:
        expected: what they are, as in "one of …".
        read: gives the value that a text stands for; raises ValueError for another text.
        metavar: what stands for one in the help of the command line; empty where the option alone
            means true, and one that begins with --no- means false.
        choices: all of them, as texts with their titles; empty where there are too many.
        is_list: names with commas between them.
        typed: gives such a text for what people type; what cannot be understood stays as it is.
    """

    expected: str
    read: Callable[[str], Value]
    amqp: AmqpType = AmqpType.TEXT
    metavar: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    is_list: bool = False
    typed: Callable[[str], str] = str


def whole(low: int, high: int, metavar: str = "N") -> Kind:
    """A whole number between two, both included."""
    expected = f"a whole number from {low:,} to {high:,}"

    def read(text: str) -> int:
        number = whole_number(text, low, high)
        if number is None:
            raise ValueError(expected)
        return number

    return Kind(expected, read, AmqpType.INTEGER, metavar)


def size(low: int, high: int) -> Kind:
    """A number of bytes."""
    return replace(whole(low, high, "BYTES"), typed=_typed_size)


def _typed_size(text: str) -> str:
    """Bytes as people type them, 10 GB or 1.5 GiB, in digits."""
    found = _TYPED.fullmatch(_plain_number(text))
    factor = _SIZES.get(found[2]) if found else None
    if found is None or factor is None:
        return text
    number = Decimal(found[1]) * factor
    return str(int(number)) if number == int(number) else text


def _typed_age(text: str) -> str:
    """An age as people type it, 7 d or 2 weeks, in its form."""
    if AGE_FORM.fullmatch(text):
        return text  # M and m are two units
    found = _TYPED.fullmatch(_plain_number(text))
    unit = _AGES.get(found[2].removesuffix("s") or "s") if found and found[2] else None
    if found is None or unit is None or "." in found[1]:
        return text
    return f"{int(found[1]) * unit[0]}{unit[1]}"


def _plain_number(text: str) -> str:
    return " ".join(_BETWEEN_THOUSANDS.sub("", text).lower().split())


_SIZES = {"": 1, "b": 1, "byte": 1, "bytes": 1} | {
    f"{letter}{middle}b": step**power
    for power, letter in enumerate("kmgtp", 1)
    for middle, step in (("", 1_000), ("i", 1_024))
}
_AGES = {
    **dict.fromkeys(("s", "sec", "second"), (1, "s")),
    **dict.fromkeys(("min", "minute"), (1, "m")),
    **dict.fromkeys(("h", "hour"), (1, "h")),
    **dict.fromkeys(("d", "day"), (1, "D")),
    **dict.fromkeys(("w", "week"), (7, "D")),
    "month": (1, "M"),
    **dict.fromkeys(("y", "year"), (1, "Y")),
}


def choice(*choices: str) -> Kind:
    """One of some words."""
    expected = "one of " + ", ".join(choices)

    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(expected)
        return text

    return Kind(
        expected, read, metavar="|".join(choices), choices=tuple((word, word) for word in choices)
    )


def properties(most: int, further_bytes: int) -> Kind:
    """Names of properties; the value is their canonical text.

    Args:
        most: names.
        further_bytes: of each name but the first, at most.
    """

    def read(text: str) -> str:
        names = names_in(text)
        if len(names) > most:
            raise ValueError(f"at most {most} names of properties, and there are {len(names)}")
        _check_property(names[0], MAX_PROPERTY_BYTES)
        for name in names[1:]:
            _check_property(name, further_bytes)
        return text_of_names(names)

    expected = f"up to {most} names of properties, with commas between them"
    if further_bytes < MAX_PROPERTY_BYTES:
        expected += f", all but the first of at most {further_bytes} bytes"
    return Kind(expected, read, metavar="P", is_list=True)


def _check_property(name: str, most: int) -> None:
    if len(name.encode()) > most or not name.isprintable():
        raise ValueError(f"a name of at most {most} bytes")
    if not name:
        raise ValueError("the name of a property")
    try:
        parse_property(name)
    except SelectorError as error:
        raise ValueError(f"the name of a property: {error.reason}") from None


def age_seconds(text: str) -> int:
    """The seconds in an age or an interval.

    Raises:
        ValueError: it is not valid; the text says what is expected.
    """
    match = AGE_FORM.fullmatch(text)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not seconds:
        raise ValueError(AGE.expected)
    return seconds


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1:
        raise ValueError(RATE.expected)
    return rate


def _filter_size(text: str) -> Value:
    if text == AUTO:
        return text
    try:
        return _SIZE.read(text)
    except ValueError:
        raise ValueError(FILTER_SIZE.expected) from None


_SIZE = whole(MIN_FILTER_SIZE, MAX_FILTER_SIZE)
FILTER_SIZE = Kind(
    f"{_SIZE.expected} bytes, or {AUTO}", _filter_size, AmqpType.INTEGER_OR_AUTO, f"N|{AUTO}"
)
AGE = Kind(
    "a number and one of the units Y, M, D, h, m, s, as in 7D",
    lambda text: Age(text, age_seconds(text)),
    metavar="AGE",
    typed=_typed_age,
)
RATE = Kind("a share between 0 and 1, as in 0.01", _rate, AmqpType.RATE, "RATE")
_TRUE_OR_FALSE = choice("true", "false")
FLAG = replace(
    _TRUE_OR_FALSE,
    read=lambda text: _TRUE_OR_FALSE.read(text) == "true",
    amqp=AmqpType.FLAG,
    choices=(("true", "yes"), ("false", "no")),
)
SWITCH = replace(FLAG, metavar="")
