"""Nodes to Python closures by RocketMQ's rules: properties are strings, read as the literal's type.

A string that cannot be read so, or a boolean compared with a string, ends the evaluation of the
whole selector: the message does not match. Numbers, booleans and times, which other systems send,
are taken as the strings that spell them.

Source: apache/rocketmq,
filter/src/main/java/org/apache/rocketmq/filter/expression/ComparisonExpression.java,
filter/src/main/java/org/apache/rocketmq/filter/expression/LogicExpression.java,
filter/src/main/java/org/apache/rocketmq/filter/expression/UnaryExpression.java and
filter/src/main/java/org/apache/rocketmq/filter/expression/ConstantExpression.java.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from segments.selector import nodes as n
from segments.selector.evaluate import Condition, all_of, any_of, negation
from segments.selector.fields import Row
from segments.selector.patterns import text_test
from segments.selector.values import BLANKS, OPERATORS, OTHER, Truth, Value

Operand: TypeAlias = Callable[[Row], bool | int | float | str | None]
_Value: TypeAlias = bool | int | float | str | None
_INTEGER = re.compile(r"[+-]?\d+\Z")
_FLOAT = re.compile(
    r"[+-]?(?:(?:NaN|Infinity)|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)\Z"
)
_HEX_FLOAT = re.compile(r"[+-]?0[xX][0-9A-Fa-f]*\.?[0-9A-Fa-f]*[pP][+-]?[0-9]+[fFdD]?\Z")
_MAX_CHARACTERS = 400
_INT_BITS, _LONG_BITS = 31, 63


class Aborted(Exception):
    """The evaluation cannot go on."""


def text_of(value: Value) -> str | None:
    """A property as RocketMQ has it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")  # equal to no literal
    return None if value is OTHER else str(value)


class Compiler:
    """Makes closures of nodes.

    Args:
        properties: in the order of a row.
    """

    def __init__(self, properties: Sequence[n.Property]) -> None:
        self._index = {prop: slot for slot, prop in enumerate(properties)}

    def selector(self, node: n.Node) -> Condition:
        """The whole selector: an evaluation that was aborted gives unknown."""
        condition = self.condition(node)

        def select(row: Row) -> Truth:
            try:
                return condition(row)
            except Aborted:
                return None

        return select

    def condition(self, node: n.Node) -> Condition:
        """A node that is true, false or unknown."""
        match node:
            case n.And(items):
                return all_of([self.condition(item) for item in items])
            case n.Or(items):
                return any_of([self.condition(item) for item in items])
            case n.Not(inner):
                return negation(self.condition(inner))
            case n.Comparison(operator, left, right):
                return self._comparison(operator, left, right)
            case n.Between(subject, low, high, negated):
                first, second = ("<", ">") if negated else (">=", "<=")
                bounds = [
                    self._comparison(first, subject, low),
                    self._comparison(second, subject, high),
                ]
                return any_of(bounds) if negated else all_of(bounds)
            case n.In():
                return self._in(node)
            case n.TextTest():
                return self._text_test(node)
            case n.IsNull(subject, negated):
                value = self._operand(subject)
                return lambda row: (value(row) is None) is not negated
            case n.Literal(value):
                fixed = value if isinstance(value, bool) else None
                return lambda _row: fixed
        value = self._operand(node)
        return lambda row: None if value(row) is None else False  # a string is not a boolean

    def _in(self, node: n.In) -> Condition:
        subject, negated = self._operand(node.subject), node.negated
        wanted = frozenset(item.value for item in node.items if isinstance(item, n.Literal))

        def contains(row: Row) -> Truth:
            value = subject(row)
            return None if value is None else (value in wanted) is not negated

        return contains

    def _text_test(self, node: n.TextTest) -> Condition:
        subject, needle, negated = self._operand(node.subject), node.needle, node.negated
        test = text_test(node.test, needle)

        def condition(row: Row) -> Truth:
            value = subject(row)
            if not needle or not isinstance(value, str):
                return False
            return test(value) is not negated

        return condition

    def _comparison(self, operator: str, left: n.Node, right: n.Node) -> Condition:
        first, second = self._operand(left), self._operand(right)
        if operator in ("=", "<>"):
            opposite = operator == "<>"

            def equality(row: Row) -> Truth:
                found = _equal(first(row), second(row))
                return None if found is None else found is not opposite

            return equality
        return lambda row: _ordered(operator, first(row), second(row))

    def _operand(self, node: n.Node) -> Operand:
        match node:
            case n.Literal(value):
                fixed = text_of(value) if isinstance(value, bytes) else value
                return lambda _row: fixed
            case n.Property():
                slot = self._index[node]
                return lambda row: text_of(row[slot])
            case n.Sign("-", inner):
                return _negative(self._operand(inner))
            case n.Sign(_, inner):
                return self._operand(inner)
        return self.condition(node)


def _negative(value: Operand) -> Operand:
    def negative(row: Row) -> _Value:
        found = value(row)
        is_number = isinstance(found, int | float) and not isinstance(found, bool)
        return -found if is_number else None  # type: ignore[operator] # a number by now

    return negative


def _equal(left: _Value, right: _Value) -> Truth:
    if left is None:
        return True if right is None else None
    if right is None:
        return False
    if isinstance(left, bool) or isinstance(right, bool):
        return _equal_booleans(left, right)
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    return _order_of(*_numbers(left, right)) == 0


def _equal_booleans(left: _Value, right: _Value) -> bool:
    if isinstance(left, str):
        return (left.lower() == "true") is right
    if isinstance(right, str):
        raise Aborted
    return isinstance(left, bool) and left is right


def _ordered(operator: str, left: _Value, right: _Value) -> Truth:
    if left is None or right is None:
        return None
    if isinstance(left, bool) or isinstance(right, bool):
        raise Aborted
    if isinstance(left, str) and isinstance(right, str):
        left, right = _float_of(left), _float_of(right)
    return OPERATORS[operator](_order_of(*_numbers(left, right)), 0)


def _numbers(left: _Value, right: _Value) -> tuple[int | float, int | float]:
    """Both as numbers; a string is read as the type of the other one."""
    first = _read_as(left, right)
    second = _read_as(right, first)
    if isinstance(first, float) or isinstance(second, float):
        return float(first), float(second)
    return first, second


def _read_as(value: _Value, like: _Value) -> int | float:
    if not isinstance(value, str):
        return value or 0
    if not isinstance(like, int):
        return _float_of(value)
    text = value
    bits = _INT_BITS if -(1 << _INT_BITS) <= like < 1 << _INT_BITS else _LONG_BITS
    if len(text) > _MAX_CHARACTERS or not _INTEGER.match(text):
        raise Aborted
    number = int(text)
    if not -(1 << bits) <= number < 1 << bits:
        raise Aborted
    return number


def _float_of(text: str) -> float:
    text = text.strip(BLANKS)
    if len(text) <= _MAX_CHARACTERS:
        if _HEX_FLOAT.match(text):
            return _hex_float(text)
        if _FLOAT.match(text):
            return float(text if text.endswith(("NaN", "Infinity")) else text.rstrip("fFdD"))
    raise Aborted


def _hex_float(text: str) -> float:
    try:
        return float.fromhex(text.rstrip("fFdD"))
    except (OverflowError, ValueError):
        raise Aborted from None


def _order_of(left: float, right: float) -> int:
    """Java's order of numbers: NaN equals itself and is above all."""
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) - math.isnan(right)
    return (left > right) - (left < right)
