"""What a selector may not say, found before the first message is looked at.

Source: apache/rocketmq,
filter/src/main/java/org/apache/rocketmq/filter/expression/ComparisonExpression.java,
filter/src/main/java/org/apache/rocketmq/filter/expression/LogicExpression.java,
filter/src/main/java/org/apache/rocketmq/filter/expression/UnaryExpression.java and
filter/src/main/java/org/apache/rocketmq/filter/expression/ConstantExpression.java;
rabbitmq/rabbitmq-server, deps/rabbit/src/rabbit_amqp_filter_sql.erl. Union, which joins the two, is
ours.
"""

from typing import NoReturn

from segments.selector import nodes as n
from segments.selector.dialects import Dialect
from segments.selector.errors import SelectorError

BOOLEAN_NODES = (
    n.And,
    n.Or,
    n.Not,
    n.Comparison,
    n.Between,
    n.In,
    n.Like,
    n.TextTest,
    n.IsNull,
    n.Tags,
)
_EQUALITIES = ("=", "<>")


def check(node: n.Node, text: str, dialect: Dialect) -> None:
    """Check a whole selector.

    Raises:
        SelectorError: a part of it makes no sense; says which.
    """
    checker = {
        Dialect.UNION: _Union,
        Dialect.ROCKETMQ: _Rocketmq,
        Dialect.AMQP: _Amqp,
    }[dialect](text)
    checker.condition(node)
    for part in node.walk():
        checker.part(part)


def is_boolean(node: n.Node) -> bool:
    """Whether it is true, false or unknown for every message."""
    return isinstance(node, BOOLEAN_NODES) or _is_literal(node, bool)


def constant(node: n.Node) -> object:
    """The value of a literal, with a sign or without; the node itself if it is not one."""
    if isinstance(node, n.Literal):
        return node.value
    if isinstance(node, n.Sign):
        inner = constant(node.inner)
        if isinstance(inner, int | float) and not isinstance(inner, bool):
            return -inner if node.operator == "-" else inner
    return node


def _is_literal(node: n.Node, *kinds: type) -> bool:
    return isinstance(node, n.Literal) and isinstance(node.value, kinds)


class _Checker:
    def __init__(self, text: str) -> None:
        self._text = text

    def fail(self, node: n.Node, reason: str) -> NoReturn:
        raise SelectorError(reason, self._text, *node.span)

    def condition(self, node: n.Node) -> None:
        """The node stands where true or false is wanted."""

    def part(self, node: n.Node) -> None:
        """The node stands somewhere in the selector."""
        if isinstance(node, n.And | n.Or):
            for item in node.items:
                self.condition(item)
        elif isinstance(node, n.Not):
            self.condition(node.inner)
        elif isinstance(node, n.Like):
            self._pattern(node)

    def _pattern(self, node: n.Like) -> None:
        if node.escape is None:
            return
        if len(node.escape) != 1:
            self.fail(node, f"ESCAPE takes one character, not {len(node.escape)}")
        rest = node.pattern.replace(node.escape * 2, "")
        if rest.endswith(node.escape):
            self.fail(node, "the pattern ends with its escape character")


class _Union(_Checker):
    def condition(self, node: n.Node) -> None:
        if isinstance(node, n.Literal) and not isinstance(node.value, bool | None):
            self.fail(node, "a condition is expected, not a value")
        if isinstance(node, n.Sign | n.Arithmetic | n.UtcNow):
            self.fail(node, "a condition is expected, not a number")

    def part(self, node: n.Node) -> None:
        super().part(node)
        if isinstance(
            node, n.Comparison | n.Between | n.In | n.Sign | n.Arithmetic | n.Like | n.TextTest
        ):
            for child in node.children:
                if _is_literal(child, type(None)):
                    self.fail(child, "NULL equals nothing; use IS NULL")
        if isinstance(node, n.Between):
            self._bounds(node)
        is_ordering = isinstance(node, n.Comparison) and node.operator not in _EQUALITIES
        if is_ordering or isinstance(node, n.Between):
            for child in node.children:
                if is_boolean(child):
                    self.fail(child, "true and false have no order")

    def _bounds(self, node: n.Between) -> None:
        low, high = constant(node.low), constant(node.high)
        if node.negated or isinstance(low, bool) or isinstance(high, bool):
            return
        for kind in ((int, float), str, bytes):
            if isinstance(low, kind) and isinstance(high, kind) and low > high:  # type: ignore[operator]
                self.fail(node, "the bounds are the wrong way round: nothing is between them")


class _Amqp(_Checker):
    def _pattern(self, node: n.Like) -> None:
        super()._pattern(node)
        if any(ord(char) < ord(" ") for char in node.pattern):
            self.fail(node, "RabbitMQ takes no control characters in a pattern")


class _Rocketmq(_Checker):
    def condition(self, node: n.Node) -> None:
        if not (is_boolean(node) or isinstance(node, n.Property) or _is_literal(node, type(None))):
            self.fail(node, "a condition is expected, not a value")

    def part(self, node: n.Node) -> None:
        super().part(node)
        if isinstance(node, n.Comparison):
            self._comparison(node)
        elif isinstance(node, n.In) and not isinstance(node.subject, n.Property):
            self.fail(node.subject, "IN is for properties only")
        elif isinstance(node, n.Between):
            self._between(node)

    def _comparison(self, node: n.Comparison) -> None:
        for child in node.children:
            if _is_literal(child, type(None)):
                self.fail(child, "NULL equals nothing; use IS NULL")
            if node.operator not in _EQUALITIES:
                self._ordered(child)
        is_value = isinstance(node.right, n.Literal) and not is_boolean(node.right)
        if _is_literal(node.left, bool) and is_value:
            self.fail(node, "TRUE and FALSE are compared with conditions and properties only")

    def _ordered(self, node: n.Node) -> None:
        if is_boolean(node):
            self.fail(node, "true and false have no order")
        if _is_literal(node, str):
            self.fail(node, "RocketMQ orders numbers only")

    def _between(self, node: n.Between) -> None:
        for bound in (node.subject, node.low, node.high):
            if _is_literal(bound, type(None)):
                self.fail(bound, "NULL cannot be a bound")
            self._ordered(bound)
        if node.negated or not (
            isinstance(node.low, n.Literal) and isinstance(node.high, n.Literal)
        ):
            return
        if node.low.value > node.high.value:  # type: ignore[operator] # both numbers by now
            self.fail(node, "the bounds are the wrong way round: nothing is between them")
