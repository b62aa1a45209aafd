"""Selectors to Spark's own expressions, where these say just the same.

Kinds of values are known from the columns' types, so most of what the Union decides message by
message is decided here, once. NotNative is raised for the rest.

Source: rabbitmq/rabbitmq-server, deps/rabbit/src/rabbit_amqp_filter_sql.erl. The rules of Union are
ours.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

from pyspark.sql import Column, functions as F  # noqa: N812 - as everybody calls it

from segments.selector import nodes as n
from segments.selector.check import constant
from segments.selector.evaluate import TAG
from segments.selector.patterns import parse_pattern
from segments.selector.values import MIRRORED, OPERATORS

BOOLEAN, INTEGER, FLOAT, TEXT, BINARY = "boolean", "integer", "float", "text", "binary"
_NUMBERS = (INTEGER, FLOAT)
_EQUALITIES = ("=", "<>")
_LONGS = range(-(1 << 63), 1 << 63)


class NotNative(Exception):
    """Spark has no expression for this."""


class Operand(NamedTuple):
    """A value in an expression.

    Attributes:
        is_fixed: it is written in the selector.
        literal: what it is, where it is fixed.
    """

    column: Column
    kind: str
    is_fixed: bool = False
    literal: Any = None


class Translator:
    """Makes expressions of nodes.

    Args:
        is_union: the Union's rules hold, else RabbitMQ's.
    """

    def __init__(self, operands: Mapping[n.Property, Operand], is_union: bool) -> None:
        self._operands = operands
        self._is_union = is_union

    def condition(self, node: n.Node) -> Column:
        """A node that is true, false or unknown.

        Raises:
            NotNative: see there.
        """
        match node:
            case n.And(items):
                return reduce(operator.and_, map(self.condition, items))
            case n.Or(items):
                return reduce(operator.or_, map(self.condition, items))
            case n.Not(inner):
                return ~self.condition(inner)
            case n.Literal(value):
                return F.lit(value if isinstance(value, bool) else None).cast("boolean")
            case n.IsNull(subject, negated):
                column = self._operand(subject).column
                return column.isNotNull() if negated else column.isNull()
        return self._test(node)

    def _test(self, node: n.Node) -> Column:
        match node:
            case n.Comparison(symbol, left, right):
                return self._compare(symbol, self._operand(left), self._operand(right))
            case n.Between(subject, low, high, negated):
                first = self._compare(">=", self._operand(subject), self._operand(low))
                second = self._compare("<=", self._operand(subject), self._operand(high))
                return _maybe_not(first & second, negated)
            case n.In(subject, items, negated):
                return _maybe_not(self._in(self._operand(subject), items), negated)
            case n.Like() | n.TextTest():
                return self._text_test(node)
            case n.Tags(wanted):
                return self._tags(wanted)
            case n.Property():
                return self._truth(self._operand(node))
        raise NotNative

    def _truth(self, value: Operand) -> Column:
        """A property on its own."""
        if value.kind == BOOLEAN:
            return value.column
        if value.kind == TEXT and self._is_union:
            spelled = F.lower(value.column)
            return F.when(spelled == "true", True).when(spelled == "false", False)
        return F.lit(None).cast("boolean")

    def _tags(self, wanted: frozenset[str] | None) -> Column:
        if wanted is None:
            return F.lit(True)
        value = self._operands[TAG]
        if value.kind not in (TEXT, BINARY):
            return F.lit(False)
        tags = sorted(wanted) if value.kind == TEXT else [tag.encode() for tag in sorted(wanted)]
        return F.coalesce(value.column.isin(tags), F.lit(False))

    # -- operands

    def _operand(self, node: n.Node) -> Operand:
        found = constant(node)
        if isinstance(node, n.Literal | n.Sign) and not isinstance(found, n.Node):
            return _literal(found)
        if isinstance(node, n.Property):
            return self._operands[node]
        if isinstance(node, n.Sign):
            raise NotNative
        return Operand(self.condition(node), BOOLEAN)

    # -- comparisons

    def _compare(self, symbol: str, left: Operand, right: Operand) -> Column:
        if left.is_fixed and not right.is_fixed:
            symbol, left, right = MIRRORED[symbol], right, left
        kinds = {left.kind, right.kind}
        if kinds == {TEXT, BINARY}:
            return _holds(symbol, _encoded(left), _encoded(right))
        if kinds <= set(_NUMBERS):
            return _numbers(symbol, left, right)
        if len(kinds) == 1 and (left.kind != BOOLEAN or symbol in _EQUALITIES):
            both_free = not (left.is_fixed or right.is_fixed)
            if self._is_union and left.kind == TEXT and both_free and symbol not in _EQUALITIES:
                raise NotNative  # both may spell numbers
            return _holds(symbol, left.column, right.column)
        return self._unlike(symbol, left, right)

    def _unlike(self, symbol: str, left: Operand, right: Operand) -> Column:
        """Values of kinds that have nothing in common, or no order."""
        is_present = left.column.isNotNull() & right.column.isNotNull()
        if not self._is_union:
            return F.when(is_present, symbol == "<>")
        text = next((value for value in (left, right) if value.kind == TEXT), None)
        if text is not None:
            if not text.is_fixed:
                raise NotNative  # it may spell a value of the other's type
            return F.when(is_present, symbol == "<>")
        if symbol in _EQUALITIES:
            return F.when(is_present, symbol == "<>")
        return F.lit(None).cast("boolean")

    def _in(self, subject: Operand, items: Sequence[n.Node]) -> Column:
        found = [self._compare("=", subject, self._operand(item)) for item in items]
        if not self._is_union:  # RabbitMQ: a missing item is not equal
            found = [F.coalesce(one, F.lit(False)) for one in found]
        return F.when(subject.column.isNotNull(), reduce(operator.or_, found))

    # -- strings

    def _text_test(self, node: n.Like | n.TextTest) -> Column:
        subject = self._operand(node.subject)
        if subject.kind == BINARY:
            raise NotNative  # it may be UTF-8 or not
        if subject.kind != TEXT:
            return F.lit(None).cast("boolean")
        if isinstance(node, n.Like):
            return _maybe_not(subject.column.rlike(_regex(node)), node.negated)
        if not node.needle:
            return F.when(subject.column.isNotNull(), False)
        tests: dict[str, Callable[[str], Column]] = {
            "CONTAINS": subject.column.contains,
            "STARTSWITH": subject.column.startswith,
            "ENDSWITH": subject.column.endswith,
        }
        return _maybe_not(tests[node.test](node.needle), node.negated)


def _literal(value: object) -> Operand:
    match value:
        case bool():
            return Operand(F.lit(value), BOOLEAN, True, value)
        case int():
            if value not in _LONGS:
                raise NotNative
            return Operand(F.lit(value).cast("bigint"), INTEGER, True, value)
        case float():
            return Operand(F.lit(value), FLOAT, True, value)
        case str():
            return Operand(F.lit(value), TEXT, True, value)
        case bytes():
            return Operand(F.lit(value), BINARY, True, value)
    raise NotNative


def _numbers(symbol: str, left: Operand, right: Operand) -> Column:
    """Whole numbers with fractions are compared exactly, which doubles are not able to."""
    if left.is_fixed and right.is_fixed:
        return F.lit(OPERATORS[symbol](left.literal, right.literal))
    if left.kind == INTEGER and right.kind == FLOAT:
        return _with_fraction(symbol, left, right)
    if left.kind == FLOAT and right.kind == INTEGER:
        if not right.is_fixed or float(right.literal) != right.literal:
            raise NotNative
        right = _literal(float(right.literal))
    found = _holds(symbol, left.column, right.column)
    floats = [value for value in (left, right) if value.kind == FLOAT and not value.is_fixed]
    for value in floats:  # in Spark NaN equals itself
        is_present = left.column.isNotNull() & right.column.isNotNull()
        found = F.when(F.isnan(value.column) & is_present, symbol == "<>").otherwise(found)
    return found


def _with_fraction(symbol: str, left: Operand, right: Operand) -> Column:
    if not right.is_fixed or not math.isfinite(right.literal):
        raise NotNative
    floor = math.floor(right.literal)
    if floor not in _LONGS:
        raise NotNative
    if floor != right.literal:
        if symbol in _EQUALITIES:
            return F.when(left.column.isNotNull(), symbol == "<>")
        symbol = {">=": ">", "<": "<="}.get(symbol, symbol)
    return _holds(symbol, left.column, _literal(floor).column)


def _holds(symbol: str, left: Column, right: Column) -> Column:
    found: Column = OPERATORS[symbol](left, right)  # type: ignore[assignment] # of columns
    return found


def _encoded(value: Operand) -> Column:
    return F.encode(value.column, "utf-8") if value.kind == TEXT else value.column


def _regex(node: n.Like) -> str:
    """A LIKE pattern as Java's regular expressions have it."""
    parts = parse_pattern(node.pattern, node.escape).parts
    made = ["".join("." if char is None else _quoted(char) for char in part) for part in parts]
    return r"(?s)\A" + ".*".join(made) + r"\z"


def _quoted(char: str) -> str:
    return char if char.isalnum() or not char.isascii() else f"\\x{ord(char):02x}"


def _maybe_not(condition: Column, negated: bool) -> Column:
    return ~condition if negated else condition
