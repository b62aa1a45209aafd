"""What operands are worth while a message is looked at, and how they compare.

A value is None (missing), bool, int, float, str, bytes (binary, uuid) or OTHER. A comparison gives
True, False or None for unknown. Times are milliseconds.

Source: rabbitmq/rabbitmq-server, deps/rabbit/src/rabbit_amqp_filter_sql.erl. The rules of Union are
ours.
"""

import operator
import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias


class _Other:
    """A value that is neither missing nor equal to anything: a list, a decimal, a character."""

    def __repr__(self) -> str:
        return "OTHER"


OTHER: Final = _Other()
Value: TypeAlias = bool | int | float | str | bytes | _Other | None
Truth: TypeAlias = bool | None
Compare: TypeAlias = Callable[[Value, Value], Truth]

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_MAX_NUMBER_CHARACTERS = 64
_INTEGER = re.compile(r"[+-]?[0-9]+\Z")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?\Z")
BLANKS = "".join(map(chr, range(0x21)))
_BOOLEANS = {"true": True, "false": False}
_BOOLEAN, _NUMBER, _TEXT, _BINARY, _OTHER = range(5)
_KINDS: dict[type, int] = {
    bool: _BOOLEAN,
    int: _NUMBER,
    float: _NUMBER,
    str: _TEXT,
    bytes: _BINARY,
    _Other: _OTHER,
}


def number_of(text: str) -> int | float | None:
    """The number that a string property spells; None when it does not spell one."""
    if len(text) > _MAX_NUMBER_CHARACTERS:
        return None
    text = text.strip(BLANKS)
    if _INTEGER.match(text):
        return int(text)
    if not _DECIMAL.match(text):
        return None
    number = float(text)
    return None if number in (float("inf"), float("-inf")) else number


def boolean_of(text: str) -> bool | None:
    """The boolean that a string property spells; None when it does not spell one."""
    return _BOOLEANS.get(text.lower()) if text.isascii() else None


def union_compare(symbol: str, left_fixed: bool, right_fixed: bool) -> Compare:
    """Comparison by the rules of the Union.

    Args:
        symbol: =, <>, <, <=, > or >=.
        left_fixed: the left operand is a literal; a string literal is never read as a number or
            a boolean.
        right_fixed: the same of the right one.
    """
    return _UnionComparison(symbol, left_fixed, right_fixed).compare


class _UnionComparison:
    def __init__(self, symbol: str, left_fixed: bool, right_fixed: bool) -> None:
        self._holds = OPERATORS[symbol]
        self._is_equality = symbol in ("=", "<>")
        self._unequal = symbol == "<>"
        self._left_fixed, self._right_fixed = left_fixed, right_fixed

    def compare(self, left: Value, right: Value) -> Truth:
        if left is None or right is None:
            return None
        first, second = _KINDS[type(left)], _KINDS[type(right)]
        if _OTHER in (first, second):
            return None
        if first != second:
            return self._mixed(left, right, {first, second})
        if first == _TEXT:
            return self._texts(str(left), str(right))
        if first == _BOOLEAN and not self._is_equality:
            return None
        return self._holds(left, right)

    def _texts(self, left: str, right: str) -> Truth:
        if not (self._is_equality or self._left_fixed or self._right_fixed):
            first, second = number_of(left), number_of(right)
            if first is not None and second is not None:
                return self._holds(first, second)
        return self._holds(left, right)

    def _mixed(self, left: Value, right: Value, kinds: set[int]) -> Truth:
        if kinds == {_TEXT, _BINARY}:
            return self._holds(as_bytes(left), as_bytes(right))
        if kinds == {_TEXT, _NUMBER}:
            return self._spelled(left, right, number_of)
        if kinds == {_TEXT, _BOOLEAN}:
            return self._spelled(left, right, boolean_of)
        return self._unequal if self._is_equality else None

    def _spelled(
        self, left: Value, right: Value, reading: Callable[[str], int | float | None]
    ) -> Truth:
        """A string with what it may spell."""
        if self._left_fixed if isinstance(left, str) else self._right_fixed:
            return self._unequal
        if reading is boolean_of and not self._is_equality:
            return None
        first = reading(left) if isinstance(left, str) else left
        second = reading(right) if isinstance(right, str) else right
        return None if first is None or second is None else self._holds(first, second)


def amqp_compare(symbol: str) -> Compare:
    """Comparison by RabbitMQ's rules: values of unlike types are unequal, and have no order."""
    compare = OPERATORS[symbol]
    is_equality = symbol in ("=", "<>")
    unlike = symbol == "<>"

    def compare_values(left: Value, right: Value) -> Truth:
        if left is None or right is None:
            return None
        first, second = _KINDS[type(left)], _KINDS[type(right)]
        if {first, second} == {_TEXT, _BINARY}:
            return compare(as_bytes(left), as_bytes(right))
        if first != second or first == _OTHER or (first == _BOOLEAN and not is_equality):
            return unlike
        return compare(left, right)

    return compare_values


def as_bytes(value: Value) -> bytes:
    """A string as it is encoded, a binary as it is."""
    return value.encode() if isinstance(value, str) else bytes(value)  # type: ignore[arg-type]


def numeric(value: Value) -> int | float | None:
    """An operand of arithmetic by the rules of the Union: a string property may spell a number."""
    kind = type(value)
    if kind is int or kind is float:
        return value  # type: ignore[return-value] # by its type
    return number_of(value) if isinstance(value, str) else None


def strictly_numeric(value: Value) -> int | float | None:
    """An operand of arithmetic by RabbitMQ's rules."""
    kind = type(value)
    return value if kind is int or kind is float else None  # type: ignore[return-value]


MIN_RESULT, MAX_RESULT = -(1 << 63), (1 << 64) - 1


def calculate(symbol: str, left: int | float, right: int | float) -> int | float | None:
    """The result of + - * / %; None when it cannot be used."""
    try:
        result = _ARITHMETIC[symbol](left, right)
    except (OverflowError, ZeroDivisionError):
        return None
    if isinstance(result, int):
        return result if MIN_RESULT <= result <= MAX_RESULT else None
    return result if result is None or abs(result) < float("inf") else None


def _remainder(left: float, right: float) -> int | None:
    """With the sign of the dividend; of whole numbers only."""
    if not (isinstance(left, int) and isinstance(right, int)):
        return None
    rest = abs(left) % abs(right)
    return -rest if left < 0 else rest


_ARITHMETIC: dict[str, Callable[..., int | float | None]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": _remainder,
}
