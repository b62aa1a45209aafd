"""RocketMQ's own grammar: NOT binds tightest, comparisons chain, what follows is left unread.

Source: message-filtering reference, 2.1 to 2.3.
"""

from segments.selector.dialects import Dialect
from segments.selector.nodes import (
    And,
    Between,
    Comparison,
    In,
    IsNull,
    Literal,
    Node,
    Not,
    Or,
    Property,
    PropertySection,
    Sign,
    TextTest,
)
from segments.selector.parser import TEXT_TESTS, Tokens

_ORDERINGS = (">", ">=", "<", "<=")


class RocketmqParser(Tokens):
    """One method for each line of the grammar."""

    def __init__(self, text: str) -> None:
        super().__init__(text, Dialect.ROCKETMQ)

    def selector(self) -> Node:
        """The expression that the text begins with; the token behind it has to be one."""
        if self.token.kind == "end":
            self.fail("a condition is expected")
        return self._or()

    def _or(self) -> Node:
        return self.joined("OR", Or, self._and)

    def _and(self) -> Node:
        return self.joined("AND", And, self._equality)

    def _equality(self) -> Node:
        start = self.token.start
        node = self._relation()
        levels = 0
        while True:
            if self.is_symbol("=", "<>"):
                operator = self.take().text
                node = Comparison(operator, node, self._relation(), span=self.span(start))
            elif self.take_keyword("IS"):
                negated = self.take_keyword("NOT")
                self.expect_keyword("NULL")
                node = IsNull(node, negated, span=self.span(start))
            else:
                self.shallower(levels)
                return node
            self.deeper()
            levels += 1

    def _relation(self) -> Node:
        start = self.token.start
        left = self._unary()
        if self.is_symbol(*_ORDERINGS):
            operator = self.take().text
            return Comparison(operator, left, self._unary(), span=self.span(start))
        negated = self.take_keyword("NOT")
        word = self.keyword()
        if word in TEXT_TESTS:
            self.take()
            needle = self.expect_text("what is looked for")
            return TextTest(left, word, needle, negated, span=self.span(start))
        if word == "BETWEEN":
            self.take()
            low = self._unary()
            self.expect_keyword("AND")
            return Between(left, low, self._unary(), negated, span=self.span(start))
        if word == "IN":
            self.take()
            return In(left, self._texts(), negated, span=self.span(start))
        if negated:
            self.fail("CONTAINS, STARTSWITH, ENDSWITH, BETWEEN or IN is expected after NOT")
        return left

    def _texts(self) -> tuple[Node, ...]:
        self.expect_symbol("(")
        items: list[Node] = []
        while True:
            start = self.token.start
            text = self.expect_text("a value")
            items.append(Literal(text, span=self.span(start)))
            if not self.take_symbol(","):
                break
        self.expect_symbol(")")
        return tuple(items)

    def _unary(self) -> Node:
        signs = []
        while self.is_symbol("+", "-") or self.keyword() == "NOT":
            signs.append(self.take())
            self.deeper()
        node = self._primary()
        self.shallower(len(signs))
        for sign in reversed(signs):
            span = self.span(sign.start)
            is_sign = sign.kind == "symbol"
            node = Sign(sign.text, node, span=span) if is_sign else Not(node, span=span)
        return node

    def _primary(self) -> Node:
        token = self.token
        if self.take_symbol("("):
            self.deeper()
            node = self._or()
            self.shallower()
            self.expect_symbol(")")
            return node
        span = (token.start, token.end)
        if token.kind in ("int", "float", "text"):
            self.take()
            return Literal(token.value, span=span)
        constants = {"TRUE": True, "FALSE": False, "NULL": None}
        word = self.keyword()
        if word in constants:
            self.take()
            return Literal(constants[word], span=span)
        if token.kind == "name" and not self.is_reserved(token):
            self.take()
            return Property(PropertySection.APPLICATION, token.text, span=span)
        return self.fail("a property, a value or ( is expected")
