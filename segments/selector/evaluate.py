"""Nodes to Python closures: the Union and RabbitMQ's dialect.

A closure takes a row, the values of the properties in the order in which `properties_of` lists
them, and gives True, False or None for unknown. Only True selects a message. User text is never
executed.

Source: rabbitmq/rabbitmq-server, deps/rabbit/src/rabbit_amqp_filter_sql.erl. The rules of Union are
ours.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from segments.selector import nodes as n
from segments.selector.check import constant
from segments.selector.dialects import Dialect
from segments.selector.fields import Row
from segments.selector.patterns import like, parse_pattern, text_test
from segments.selector.values import (
    MIRRORED,
    OPERATORS,
    Compare,
    Truth,
    Value,
    amqp_compare,
    boolean_of,
    calculate,
    numeric,
    strictly_numeric,
    union_compare,
)

Condition: TypeAlias = Callable[[Row], Truth]
Operand: TypeAlias = Callable[[Row], Value]
TAG = n.Property(n.PropertySection.APPLICATION, "TAGS")


class Clock:
    """What UTC() gives; set from outside, once for each chunk."""

    def __init__(self) -> None:
        self.now_ms = 0


def properties_of(node: n.Node) -> tuple[n.Property, ...]:
    """What has to be read for a selector, each property once."""
    if isinstance(node, n.Tags):
        return () if node.wanted is None else (TAG,)
    return tuple(dict.fromkeys(part for part in node.walk() if isinstance(part, n.Property)))


class Compiler:
    """Makes closures of nodes.

    Args:
        properties: in the order of a row.
        dialect: UNION or AMQP.
        clock: for UTC().
    """

    def __init__(self, properties: Sequence[n.Property], dialect: Dialect, clock: Clock) -> None:
        self._index = {prop: slot for slot, prop in enumerate(properties)}
        self._is_union = dialect is Dialect.UNION
        self._clock = clock

    # -- conditions

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
                both = [self._comparison(">=", subject, low), self._comparison("<=", subject, high)]
                return maybe_not(all_of(both), negated)
            case n.In():
                return maybe_not(self._in(node), node.negated)
            case n.Like(subject, pattern, escape, negated):
                return self._on_text(subject, like(parse_pattern(pattern, escape)), negated)
            case n.TextTest():
                return self._text_test(node)
            case n.IsNull(subject, negated):
                value = self.operand(subject)
                if negated:
                    return lambda row: value(row) is not None
                return lambda row: value(row) is None
            case n.Literal(value):
                fixed = value if isinstance(value, bool) else None
                return lambda _row: fixed
            case n.Tags(wanted):
                return self._tags(wanted)
        return self._as_condition(self.operand(node))

    def _as_condition(self, value: Operand) -> Condition:
        """A property on its own: a boolean, in the Union also one that is spelled."""
        is_union = self._is_union

        def condition(row: Row) -> Truth:
            found = value(row)
            if isinstance(found, bool):
                return found
            return boolean_of(found) if is_union and isinstance(found, str) else None

        return condition

    def _tags(self, wanted: frozenset[str] | None) -> Condition:
        if wanted is None:
            return lambda _row: True
        slot = self._index[TAG]
        forms = wanted | {tag.encode() for tag in wanted}
        return lambda row: row[slot] in forms

    # -- comparisons

    def _compare(self, operator: str, left: n.Node, right: n.Node) -> Compare:
        if not self._is_union:
            return amqp_compare(operator)
        return union_compare(operator, isinstance(left, n.Literal), isinstance(right, n.Literal))

    def _comparison(self, operator: str, left: n.Node, right: n.Node) -> Condition:
        left, right = _folded(left), _folded(right)
        if isinstance(left, n.Literal) and isinstance(right, n.Property):
            operator, left, right = MIRRORED[operator], right, left
        compare = self._compare(operator, left, right)
        if isinstance(left, n.Property) and isinstance(right, n.Literal):
            return _with_literal(self._index[left], OPERATORS[operator], right.value, compare)
        first, second = self.operand(left), self.operand(right)
        return lambda row: compare(first(row), second(row))

    def _in(self, node: n.In) -> Condition:
        subject = self.operand(node.subject)
        literals = [item.value for item in node.items if isinstance(item, n.Literal)]
        if len(literals) == len(node.items) and all(isinstance(v, str) for v in literals):
            return self._in_texts(node, subject, frozenset(map(str, literals)))
        equal = [
            (self._compare("=", node.subject, item), self.operand(item)) for item in node.items
        ]
        unknown = None if self._is_union else False  # RabbitMQ: a missing item is not equal

        def contains(row: Row) -> Truth:
            value = subject(row)
            if value is None:
                return None
            result: Truth = False
            for compare, item in equal:
                found = compare(value, item(row))
                if found:
                    return True
                if found is None:
                    result = unknown
            return result

        return contains

    def _in_texts(self, node: n.In, subject: Operand, wanted: frozenset[str]) -> Condition:
        encoded = frozenset(text.encode() for text in wanted)
        compare = self._compare("=", node.subject, n.Literal(""))

        def contains_value(value: Value) -> Truth:
            if isinstance(value, bytes):
                return value in encoded
            # One of another type is to each text as it is to any other.
            return value in wanted if isinstance(value, str) else compare(value, "")

        if isinstance(node.subject, n.Property):
            slot = self._index[node.subject]

            def contains_property(row: Row) -> Truth:
                value = row[slot]
                return value in wanted if type(value) is str else contains_value(value)

            return contains_property
        return lambda row: contains_value(subject(row))

    # -- strings

    def _text_test(self, node: n.TextTest) -> Condition:
        needle, negated = node.needle, node.negated
        if not needle:  # never true of a string, negated or not
            return self._on_text(node.subject, lambda _text: negated, negated)
        return self._on_text(node.subject, text_test(node.test, needle), negated)

    def _on_text(self, node: n.Node, test: Callable[[str], bool], negated: bool) -> Condition:
        subject = self.operand(node)

        def condition(row: Row) -> Truth:
            value = subject(row)
            if isinstance(value, bytes):
                try:
                    value = value.decode()
                except UnicodeDecodeError:
                    return None
            return test(value) is not negated if isinstance(value, str) else None

        return condition

    # -- operands

    def operand(self, node: n.Node) -> Operand:
        """A node that has a value."""
        match node:
            case n.Literal(value):
                return lambda _row: value
            case n.Property():
                slot = self._index[node]
                return lambda row: row[slot]
            case n.UtcNow():
                clock = self._clock
                return lambda _row: clock.now_ms
            case n.Sign(operator, inner):
                return self._arithmetic("-" if operator == "-" else "+", n.Literal(0), inner)
            case n.Arithmetic(operator, left, right):
                return self._arithmetic(operator, left, right)
        return self.condition(node)

    def _arithmetic(self, operator: str, left: n.Node, right: n.Node) -> Operand:
        first, second = self._number(left), self._number(right)

        def result(row: Row) -> int | float | None:
            one, two = first(row), second(row)
            return None if one is None or two is None else calculate(operator, one, two)

        return result

    def _number(self, node: n.Node) -> Callable[[Row], int | float | None]:
        value = self.operand(node)
        reading = numeric
        if not self._is_union or isinstance(node, n.Literal):
            reading = strictly_numeric
        return lambda row: reading(value(row))


def _folded(node: n.Node) -> n.Node:
    """A number with a sign as one literal."""
    value = constant(node)
    if isinstance(node, n.Sign) and isinstance(value, int | float):
        return n.Literal(value, span=node.span)
    return node


def _with_literal(
    slot: int, holds: Callable[[object, object], bool], literal: Value, compare: Compare
) -> Condition:
    """A property with a literal: most messages have it in the literal's own type."""
    kind = type(literal)
    if kind in (str, bytes):

        def compare_text(row: Row) -> Truth:
            value = row[slot]
            return holds(value, literal) if type(value) is kind else compare(value, literal)

        return compare_text
    if kind in (int, float):

        def compare_number(row: Row) -> Truth:
            value = row[slot]
            is_number = type(value) is int or type(value) is float
            return holds(value, literal) if is_number else compare(value, literal)

        return compare_number
    return lambda row: compare(row[slot], literal)


def all_of(items: Sequence[Condition]) -> Condition:
    """AND: false decides, then unknown; from left to right."""
    if len(items) == 1:
        return items[0]
    if len(items) > 2:  # noqa: PLR2004 - two at a time are the fastest
        middle = len(items) // 2
        return all_of([all_of(items[:middle]), all_of(items[middle:])])
    first, second = items

    def both(row: Row) -> Truth:
        left = first(row)
        if left is False:
            return False
        right = second(row)
        return right if left or right is False else None

    return both


def any_of(items: Sequence[Condition]) -> Condition:
    """OR: true decides, then unknown; from left to right."""
    if len(items) == 1:
        return items[0]
    if len(items) > 2:  # noqa: PLR2004 - as above
        middle = len(items) // 2
        return any_of([any_of(items[:middle]), any_of(items[middle:])])
    first, second = items

    def either(row: Row) -> Truth:
        left = first(row)
        if left:
            return True
        right = second(row)
        return right if left is False or right else None

    return either


def negation(item: Condition) -> Condition:
    """NOT: unknown stays unknown."""

    def opposite(row: Row) -> Truth:
        found = item(row)
        return None if found is None else not found

    return opposite


def maybe_not(item: Condition, negated: bool) -> Condition:
    """The condition, or its negation."""
    return negation(item) if negated else item
