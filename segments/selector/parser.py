"""Tokens to nodes: the grammar of the Union and of RabbitMQ's dialect.

Source: rabbitmq/rabbitmq-server, deps/rabbit/src/rabbit_amqp_sql_parser.yrl; what Union adds is
ours. RocketMQ's grammar is in `rocketmq.py`.
"""

from collections.abc import Callable, Sequence
from typing import NoReturn

from segments.selector import nodes as n
from segments.selector.dialects import GRAMMARS, MAX_DEPTH, Dialect
from segments.selector.errors import SelectorError
from segments.selector.lexer import Token, tokenize

COMPARISONS = frozenset(("=", "<>", "!=", "<", ">", "<=", ">="))
TEXT_TESTS = frozenset(("CONTAINS", "STARTSWITH", "ENDSWITH"))
_SECTIONS = {
    "application_properties": n.PropertySection.APPLICATION,
    "a": n.PropertySection.APPLICATION,
    "properties": n.PropertySection.PROPERTIES,
    "p": n.PropertySection.PROPERTIES,
    "header": n.PropertySection.HEADER,
    "h": n.PropertySection.HEADER,
}
FIELDS = {
    n.PropertySection.HEADER: ("priority",),
    n.PropertySection.PROPERTIES: (
        "message_id",
        "user_id",
        "to",
        "subject",
        "reply_to",
        "correlation_id",
        "content_type",
        "content_encoding",
        "absolute_expiry_time",
        "creation_time",
        "group_id",
        "group_sequence",
        "reply_to_group_id",
    ),
}


class Tokens:
    """The tokens of a selector with a place in them; the base of both grammars."""

    def __init__(self, text: str, dialect: Dialect) -> None:
        self.text = text
        self.dialect = dialect
        self._grammar = GRAMMARS[dialect]
        self._source = tokenize(text, dialect)
        self._depth = 0
        self.previous_end = 0
        self.token = next(self._source)

    def take(self) -> Token:
        """The token here; the place moves on."""
        token = self.token
        if token.kind != "end":
            self.previous_end = token.end
            self.token = next(self._source)
        return token

    def keyword(self) -> str:
        """The name here in upper case, if it can be a keyword; else an empty string."""
        token = self.token
        if token.kind != "name" or (self._grammar.upper_keywords and not token.text.isupper()):
            return ""
        return token.text.upper()

    def take_keyword(self, *words: str) -> bool:
        """Take a keyword if it is here."""
        if self.keyword() not in words:
            return False
        self.take()
        return True

    def joined(
        self, word: str, kind: type[n.And] | type[n.Or], part: Callable[[], n.Node]
    ) -> n.Node:
        """One or more parts with a keyword between them; one alone stays as it is."""
        start = self.token.start
        items = [part()]
        while self.take_keyword(word):
            items.append(part())
        return join(kind, items, self.span(start))

    def is_symbol(self, *symbols: str) -> bool:
        """One of the signs is here."""
        return self.token.kind == "symbol" and self.token.text in symbols

    def take_symbol(self, *symbols: str) -> bool:
        """Take a sign if it is here."""
        if not self.is_symbol(*symbols):
            return False
        self.take()
        return True

    def expect_symbol(self, symbol: str) -> None:
        """Take a sign that has to be here."""
        if not self.take_symbol(symbol):
            self.fail(f"{symbol!r} is expected")

    def expect_keyword(self, word: str) -> None:
        """Take a keyword that has to be here."""
        if not self.take_keyword(word):
            self.fail(f"{word} is expected")

    def expect_text(self, what: str) -> str:
        """The value of a string literal that has to be here."""
        if self.token.kind != "text":
            self.fail(f"{what} is expected, a string in quotes")
        return str(self.take().value)

    def is_reserved(self, token: Token) -> bool:
        """Whether a name cannot be an identifier."""
        return token.text.upper() in self._grammar.reserved

    def fail(self, reason: str) -> NoReturn:
        """The token here is wrong."""
        token = self.token
        found = "the end" if token.kind == "end" else token.text
        if len(found) > 30:  # noqa: PLR2004 - as much as helps
            found = f"{found[:27]}…"
        raise SelectorError(f"found {found}; {reason}", self.text, token.start, token.end)

    def span(self, start: int) -> tuple[int, int]:
        """From a place to the end of what was taken last."""
        return start, self.previous_end

    def deeper(self, levels: int = 1) -> None:
        """Something stands within something; `shallower` is called after it."""
        self._depth += levels
        if self._depth > MAX_DEPTH:
            start, end = self.token.start, self.token.end
            raise SelectorError(f"nested more than {MAX_DEPTH} deep", self.text, start, end)

    def shallower(self, levels: int = 1) -> None:
        """Back out of it."""
        self._depth -= levels


class Parser(Tokens):
    """One method for each line of the grammar."""

    def __init__(self, text: str, dialect: Dialect) -> None:
        super().__init__(text, dialect)
        self._is_union = dialect is Dialect.UNION

    def selector(self) -> n.Node:
        """The whole text.

        Raises:
            SelectorError: it is not a selector.
        """
        if self.token.kind == "end":
            self.fail("a condition is expected")
        node = self._or()
        if self.token.kind != "end":
            self.fail("an operator or the end is expected")
        return node

    def _or(self) -> n.Node:
        return self.joined("OR", n.Or, self._and)

    def _and(self) -> n.Node:
        return self.joined("AND", n.And, self._not)

    def _not(self) -> n.Node:
        starts = []
        while self.keyword() == "NOT":
            starts.append(self.take().start)
            self.deeper()
        node = self._predicate()
        self.shallower(len(starts))
        for start in reversed(starts):
            node = n.Not(node, span=self.span(start))
        return node

    def _predicate(self) -> n.Node:
        start = self.token.start
        left = self._sum()
        if self.token.kind == "symbol" and self.token.text in COMPARISONS:
            operator = self.take().text.replace("!=", "<>")
            right = self._sum()
            if self.token.kind == "symbol" and self.token.text in COMPARISONS:
                self.fail("comparisons do not follow one another; use AND")
            return n.Comparison(operator, left, right, span=self.span(start))
        if self.keyword() == "IS":
            return self._null_test(left, start)
        negated = self.take_keyword("NOT")
        node = self._test(left, negated, start)
        if node is None and negated:
            self.fail("IN, LIKE or another test is expected after NOT")
        return left if node is None else node

    def _null_test(self, left: n.Node, start: int) -> n.Node:
        if not self._is_union and not isinstance(left, n.Property):
            self.fail("IS NULL is for properties only")
        self.take()
        negated = self.take_keyword("NOT")
        self.expect_keyword("NULL")
        return n.IsNull(left, negated, span=self.span(start))

    def _test(self, left: n.Node, negated: bool, start: int) -> n.Node | None:
        word = self.keyword()
        if word == "IN":
            self.take()
            items = self._items()
            return n.In(left, items, negated, span=self.span(start))
        if word == "LIKE":
            self.take()
            pattern = self.expect_text("a pattern")
            escape = self.expect_text("a character") if self.take_keyword("ESCAPE") else None
            return n.Like(left, pattern, escape, negated, span=self.span(start))
        if not self._is_union:
            return None
        if word == "BETWEEN":
            self.take()
            low = self._sum()
            self.expect_keyword("AND")
            high = self._sum()
            return n.Between(left, low, high, negated, span=self.span(start))
        if word in TEXT_TESTS:
            self.take()
            needle = self.expect_text("what is looked for")
            return n.TextTest(left, word, needle, negated, span=self.span(start))
        return None

    def _items(self) -> tuple[n.Node, ...]:
        self.expect_symbol("(")
        items = [self._sum()]
        while self.take_symbol(","):
            items.append(self._sum())
        self.expect_symbol(")")
        return tuple(items)

    def _sum(self) -> n.Node:
        return self._chain(("+", "-"), self._term)

    def _term(self) -> n.Node:
        return self._chain(("*", "/", "%"), self._sign)

    def _chain(self, symbols: Sequence[str], part: Callable[[], n.Node]) -> n.Node:
        start = self.token.start
        node = part()
        levels = 0
        while self.is_symbol(*symbols):
            operator = self.take().text
            self.deeper()
            levels += 1
            node = n.Arithmetic(operator, node, part(), span=self.span(start))
        self.shallower(levels)
        return node

    def _sign(self) -> n.Node:
        signs: list[Token] = []
        while self.is_symbol("+", "-") and (self._is_union or not signs):
            signs.append(self.take())
            self.deeper()
        node = self._primary()
        self.shallower(len(signs))
        for sign in reversed(signs):
            node = n.Sign(sign.text, node, span=self.span(sign.start))
        return node

    def _primary(self) -> n.Node:
        token = self.token
        if self.is_symbol("("):
            self.take()
            self.deeper()
            node = self._or()
            self.shallower()
            self.expect_symbol(")")
            return node
        if token.kind in ("int", "float", "text", "binary"):
            self.take()
            return n.Literal(token.value, span=(token.start, token.end))
        if token.kind == "bracket":
            self.take()
            return n.Property(
                n.PropertySection.APPLICATION, str(token.value), span=(token.start, token.end)
            )
        if token.kind == "name":
            return self._name()
        return self.fail("a property, a value or ( is expected")

    def _name(self) -> n.Node:
        start, word = self.token.start, self.keyword()
        constants = {"TRUE": True, "FALSE": False, "NULL": None}
        if word in constants and not (word == "NULL" and not self._is_union):
            self.take()
            return n.Literal(constants[word], span=self.span(start))
        if word == "UTC" and self._is_clock():
            return n.UtcNow(span=self.span(start))
        token = self.token
        if self.is_reserved(token):
            self.fail(f"a property is expected; write [{token.text}] for one of this name")
        name = self.take().text
        if self.is_symbol("."):
            return self._in_section(token)
        if self.is_symbol("("):
            self.fail(f"{name} is not a function, there is only UTC()")
        return n.Property(n.PropertySection.APPLICATION, name, span=self.span(start))

    def _is_clock(self) -> bool:
        """Take UTC(); a name without parentheses is a property's, where it may be one."""
        rest = self.text[self.token.end :].lstrip()
        if not rest.startswith("("):
            return False
        self.take()
        self.take()
        self.expect_symbol(")")
        return True

    def _in_section(self, first: Token) -> n.Node:
        section = _SECTIONS.get(first.text)
        if section is None:
            reason = f"{first.text} is not a section; there are {', '.join(n.PropertySection)}"
            raise SelectorError(reason, self.text, first.start, first.end)
        self.take()
        token = self.token
        if token.kind not in ("name", "bracket"):
            self.fail("the name of a property is expected")
        name = str(token.value) if token.kind == "bracket" else token.text
        if section in FIELDS and name not in FIELDS[section]:
            self.fail(f"{section} has {', '.join(FIELDS[section])}")
        self.take()
        return n.Property(section, name, span=self.span(first.start))


def join(kind: type[n.And] | type[n.Or], items: Sequence[n.Node], span: tuple[int, int]) -> n.Node:
    """Items joined by AND or OR; those that are joined alike become one with them."""
    if len(items) == 1:
        return items[0]
    flat: list[n.Node] = []
    for item in items:
        flat += item.items if isinstance(item, kind) else (item,)
    return kind(tuple(flat), span=span)
