"""RocketMQ's own grammar: NOT binds tightest, comparisons chain, what follows is left unread.

Source: apache/rocketmq, filter/src/main/java/org/apache/rocketmq/filter/parser/SelectorParser.jj.
"""

from segments.selector import nodes as n
from segments.selector.dialects import Dialect
from segments.selector.parser import TEXT_TESTS, Tokens

_ORDERINGS = (">", ">=", "<", "<=")


class RocketmqParser(Tokens):
    """One method for each line of the grammar."""

    def __init__(self, text: str) -> None:
        super().__init__(text, Dialect.ROCKETMQ)

    def selector(self) -> n.Node:
        """The expression that the text begins with; the token behind it has to be one."""
        if self.token.kind == "end":
            self.fail("a condition is expected")
        return self._or()

    def _or(self) -> n.Node:
        return self.joined("OR", n.Or, self._and)

    def _and(self) -> n.Node:
        return self.joined("AND", n.And, self._equality)

    def _equality(self) -> n.Node:
        start = self.token.start
        node = self._relation()
        levels = 0
        while True:
            if self.is_symbol("=", "<>"):
                operator = self.take().text
                node = n.Comparison(operator, node, self._relation(), span=self.span(start))
            elif self.take_keyword("IS"):
                negated = self.take_keyword("NOT")
                self.expect_keyword("NULL")
                node = n.IsNull(node, negated, span=self.span(start))
            else:
                self.shallower(levels)
                return node
            self.deeper()
            levels += 1

    def _relation(self) -> n.Node:
        start = self.token.start
        left = self._unary()
        if self.is_symbol(*_ORDERINGS):
            operator = self.take().text
            return n.Comparison(operator, left, self._unary(), span=self.span(start))
        negated = self.take_keyword("NOT")
        word = self.keyword()
        if word in TEXT_TESTS:
            self.take()
            needle = self.expect_text("what is looked for")
            return n.TextTest(left, word, needle, negated, span=self.span(start))
        if word == "BETWEEN":
            self.take()
            low = self._unary()
            self.expect_keyword("AND")
            return n.Between(left, low, self._unary(), negated, span=self.span(start))
        if word == "IN":
            self.take()
            return n.In(left, self._texts(), negated, span=self.span(start))
        if negated:
            self.fail("CONTAINS, STARTSWITH, ENDSWITH, BETWEEN or IN is expected after NOT")
        return left

    def _texts(self) -> tuple[n.Node, ...]:
        self.expect_symbol("(")
        items: list[n.Node] = []
        while True:
            start = self.token.start
            text = self.expect_text("a value")
            items.append(n.Literal(text, span=self.span(start)))
            if not self.take_symbol(","):
                break
        self.expect_symbol(")")
        return tuple(items)

    def _unary(self) -> n.Node:
        signs = []
        while self.is_symbol("+", "-") or self.keyword() == "NOT":
            signs.append(self.take())
            self.deeper()
        node = self._primary()
        self.shallower(len(signs))
        for sign in reversed(signs):
            span = self.span(sign.start)
            is_sign = sign.kind == "symbol"
            node = n.Sign(sign.text, node, span=span) if is_sign else n.Not(node, span=span)
        return node

    def _primary(self) -> n.Node:
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
            return n.Literal(token.value, span=span)
        constants = {"TRUE": True, "FALSE": False, "NULL": None}
        word = self.keyword()
        if word in constants:
            self.take()
            return n.Literal(constants[word], span=span)
        if token.kind == "name" and not self.is_reserved(token):
            self.take()
            return n.Property(n.PropertySection.APPLICATION, token.text, span=span)
        return self.fail("a property, a value or ( is expected")
