"""What a selector consists of: immutable nodes with a canonical text.

The canonical text of a node, parsed in the same dialect, gives the same node again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from segments.selector.dialects import GRAMMARS, Dialect

Span: TypeAlias = tuple[int, int]
Constant: TypeAlias = bool | int | float | str | bytes | None


class PropertySection(StrEnum):
    """The part of a message that a property is in."""

    APPLICATION = "application_properties"
    PROPERTIES = "properties"
    HEADER = "header"


_OR, _AND, _NOT, _TEST, _SUM, _TERM, _SIGN, _ATOM = range(8)
_LEVELS = {"+": _SUM, "-": _SUM, "*": _TERM, "/": _TERM, "%": _TERM}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One part of a selector.

    Attributes:
        span: its first character in the selector's text and the one after its last; nodes
            are equal wherever they are.
    """

    span: Span = field(default=(0, 0), compare=False, repr=False)

    @property
    def children(self) -> tuple["Node", ...]:
        """The nodes that it is made of."""
        return ()

    def text(self, dialect: Dialect = Dialect.UNION) -> str:
        """Its canonical text."""
        raise NotImplementedError

    def operand(self, dialect: Dialect, level: int) -> str:
        """Its canonical text as a part of what binds as tightly as `level`."""
        if dialect is Dialect.ROCKETMQ and level > _AND:
            level = _ATOM  # there NOT binds otherwise, and comparisons follow one another
        text = self.text(dialect)
        return text if self.level() >= level else f"({text})"

    @classmethod
    def level(cls) -> int:
        """How tightly it binds, from OR to what needs no parentheses."""
        return _TEST

    def walk(self) -> Iterator["Node"]:
        """The node and all nodes within it."""
        yield self
        for child in self.children:
            yield from child.walk()

    def __str__(self) -> str:
        return self.text()


class _Atom(Node):
    """A node that needs no parentheses."""

    __slots__ = ()

    @classmethod
    def level(cls) -> int:
        return _ATOM


@dataclass(frozen=True, slots=True)
class Literal(_Atom):
    """A value that is written down; None is NULL."""

    value: Constant

    def text(self, dialect: Dialect = Dialect.UNION) -> str:  # noqa: ARG002 - the same in all
        match self.value:
            case None:
                return "NULL"
            case bool():
                return str(self.value).upper()
            case bytes():
                return f"0x{self.value.hex().upper()}"
            case str():
                return quoted(self.value)
            case float():
                return _float_text(self.value)
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Property(_Atom):
    """The value that a message has for a name."""

    section: PropertySection
    name: str

    def text(self, dialect: Dialect = Dialect.UNION) -> str:
        if self.section is not PropertySection.APPLICATION:
            return f"{self.section}.{self.name}"
        grammar = GRAMMARS[dialect]
        if grammar.plain_name.match(self.name) and self.name.upper() not in grammar.reserved:
            return self.name
        return f"[{self.name.replace('[', '[[').replace(']', ']]')}]"


@dataclass(frozen=True, slots=True)
class UtcNow(_Atom):
    """UTC(): milliseconds since 1970."""

    def text(self, dialect: Dialect = Dialect.UNION) -> str:  # noqa: ARG002 - the same in all
        return "UTC()"


@dataclass(frozen=True, slots=True)
class Sign(Node):
    """+x or -x."""

    operator: str
    inner: Node

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.inner,)

    def text(self, dialect: Dialect = Dialect.UNION) -> str:
        return f"{self.operator}{self.inner.operand(dialect, _ATOM)}"

    @classmethod
    def level(cls) -> int:
        return _SIGN


@dataclass(frozen=True, slots=True)
class _Pair(Node):
    operator: str
    left: Node
    right: Node

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.left, self.right)

    def text(self, dialect: Dialect = Dialect.UNION) -> str:
        left, right = (child.operand(dialect, _SUM) for child in self.children)
        return f"{left} {self.operator} {right}"


@dataclass(frozen=True, slots=True)
class Arithmetic(_Pair):
    """x + y, x - y, x * y, x / y, x % y."""

    def text(self, dialect: Dialect = Dialect.UNION) -> str:
        level = _LEVELS[self.operator]
        left, right = self.left.operand(dialect, level), self.right.operand(dialect, level + 1)
        return f"{left} {self.operator} {right}"

    def operand(self, dialect: Dialect, level: int) -> str:
        text = self.text(dialect)
        return text if _LEVELS[self.operator] >= level else f"({text})"


@dataclass(frozen=True, slots=True)
class Comparison(_Pair):
    """x = y, x <> y, x < y, x <= y, x > y, x >= y."""


@dataclass(frozen=True, slots=True)
class Between(Node):
    """x BETWEEN low AND high."""

    subject: Node
    low: Node
    high: Node
    negated: bool = False

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.subject, self.low, self.high)

    def text(self, dialect: Dialect = Dialect.UNION) -> str:
        subject, low, high = (child.operand(dialect, _SUM) for child in self.children)
        return f"{subject} {_not(self.negated)}BETWEEN {low} AND {high}"


@dataclass(frozen=True, slots=True)
class In(Node):
    """x IN (item, …)."""

    subject: Node
    items: tuple[Node, ...]
    negated: bool = False

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.subject, *self.items)

    def text(self, dialect: Dialect = Dialect.UNION) -> str:
        items = ", ".join(item.operand(dialect, _SUM) for item in self.items)
        return f"{self.subject.operand(dialect, _SUM)} {_not(self.negated)}IN ({items})"


@dataclass(frozen=True, slots=True)
class Like(Node):
    """x LIKE pattern, with % for any characters and _ for one."""

    subject: Node
    pattern: str
    escape: str | None = None
    negated: bool = False

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.subject,)

    def text(self, dialect: Dialect = Dialect.UNION) -> str:
        escape = "" if self.escape is None else f" ESCAPE {quoted(self.escape)}"
        what = f"{_not(self.negated)}LIKE {quoted(self.pattern)}{escape}"
        return f"{self.subject.operand(dialect, _SUM)} {what}"


@dataclass(frozen=True, slots=True)
class TextTest(Node):
    """x CONTAINS, STARTSWITH or ENDSWITH needle."""

    subject: Node
    test: str
    needle: str
    negated: bool = False

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.subject,)

    def text(self, dialect: Dialect = Dialect.UNION) -> str:
        what = f"{_not(self.negated)}{self.test} {quoted(self.needle)}"
        return f"{self.subject.operand(dialect, _SUM)} {what}"


@dataclass(frozen=True, slots=True)
class IsNull(Node):
    """x IS NULL."""

    subject: Node
    negated: bool = False

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.subject,)

    def text(self, dialect: Dialect = Dialect.UNION) -> str:
        return f"{self.subject.operand(dialect, _SUM)} IS {_not(self.negated)}NULL"


@dataclass(frozen=True, slots=True)
class Not(Node):
    """NOT x."""

    inner: Node

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.inner,)

    def text(self, dialect: Dialect = Dialect.UNION) -> str:
        return f"NOT {self.inner.operand(dialect, _NOT)}"

    @classmethod
    def level(cls) -> int:
        return _NOT


@dataclass(frozen=True, slots=True)
class _Joined(Node):
    items: tuple[Node, ...]

    @property
    def children(self) -> tuple[Node, ...]:
        return self.items

    def _join(self, word: str, dialect: Dialect) -> str:
        return f" {word} ".join(item.operand(dialect, self.level() + 1) for item in self.items)


@dataclass(frozen=True, slots=True)
class And(_Joined):
    """x AND y AND …; none of the items is an And."""

    def text(self, dialect: Dialect = Dialect.UNION) -> str:
        return self._join("AND", dialect)

    @classmethod
    def level(cls) -> int:
        return _AND


@dataclass(frozen=True, slots=True)
class Or(_Joined):
    """x OR y OR …; none of the items is an Or."""

    def text(self, dialect: Dialect = Dialect.UNION) -> str:
        return self._join("OR", dialect)

    @classmethod
    def level(cls) -> int:
        return _OR


@dataclass(frozen=True, slots=True)
class Tags(_Atom):
    """a || b: the message's tag is one of these; None takes every message."""

    wanted: frozenset[str] | None

    def text(self, dialect: Dialect = Dialect.UNION) -> str:  # noqa: ARG002 - the same in all
        if self.wanted is None:
            return "*"
        together = " || ".join(sorted(self.wanted))
        return " * " if together == "*" else together  # a tag of that name


def quoted(text: str) -> str:
    """A string literal."""
    return "'" + text.replace("'", "''") + "'"


def _not(negated: bool) -> str:
    return "NOT " if negated else ""


def _float_text(value: float) -> str:
    """A float as all dialects read it: with a point, and E before an exponent."""
    digits, _, exponent = repr(value).upper().partition("E")
    digits = digits if "." in digits else f"{digits}.0"
    return f"{digits}E{int(exponent)}" if exponent else digits
