"""Ruling out a chunk before its messages are looked at: bytes that every match has to contain.

An equality with a string needs the string's bytes somewhere in the message, whichever type the
publisher gave it. If they are nowhere in the chunk, nothing in it matches; if they are rare, only
the messages around them are looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from segments import amqp10_codes as codes
from segments.selector import nodes as n
from segments.selector.dialects import Dialect
from segments.selector.patterns import parse_pattern
from segments.selector.pushdown import is_spelled

_MAX_PATTERNS = 16
_SHORT = 4  # a value of fewer bytes stands in many places: it counts behind its name alone
_TRIES = 8  # places where it does not, for each that is worth looking at: these are cheaper


class Pattern(NamedTuple):
    """Bytes that are looked for.

    Attributes:
        raw: these.
        heads: one of them stands before it; none where anything may.
    """

    raw: bytes
    heads: tuple[bytes, ...] = ()

    @property
    def size(self) -> int:
        """Bytes that are certain."""
        return len(self.raw) + min(map(len, self.heads), default=0)


@dataclass(frozen=True, slots=True)
class Screen:
    """Bytes of which every matching message contains one.

    Attributes:
        patterns: any of them may be the one.
    """

    patterns: tuple[Pattern, ...]

    def places(self, data: bytes, most: int) -> list[int] | None:
        """Where the patterns stand in a chunk's data, in order; None when there are too many.

        Args:
            data: the messages of a chunk.
            most: how many places are worth looking at one by one.
        """
        found: list[int] = []
        find, follows, left = data.find, data.endswith, _TRIES * most
        for raw, heads in self.patterns:
            at = find(raw)
            while at >= 0:
                left -= 1
                if not heads or follows(heads, 0, at):
                    found.append(at)
                if len(found) > most or left < 0:
                    return None
                at = find(raw, at + 1)
        found.sort()
        return found


def screen_of(node: n.Node, dialect: Dialect) -> Screen | None:
    """The best screen for a selector; None when no bytes are certain."""
    patterns = _Needs(dialect).of(node)
    return Screen(tuple(sorted(patterns))) if patterns else None


def short_value(name: str, raw: bytes) -> list[Pattern]:
    """A value of few bytes behind the name of its application property: text, symbol or binary."""
    before, size = name.encode(), bytes((len(raw),))
    heads = [before + bytes((code,)) for code in codes.SIZED_8]
    heads += [before + bytes((code, 0, 0, 0)) for code in codes.SIZED_32]
    if not raw:  # its size alone stands everywhere
        return [Pattern(head + size) for head in heads]
    return [Pattern(size + raw, tuple(heads))]


class _Needs:
    def __init__(self, dialect: Dialect) -> None:
        self._spells = dialect is Dialect.ROCKETMQ

    def of(self, node: n.Node) -> frozenset[Pattern] | None:
        """Bytes of which one is in every message for which the node is true; None: not known."""
        match node:
            case n.And(items):
                known = [found for item in items if (found := self.of(item)) is not None]
                return min(known, key=_cost, default=None)
            case n.Or(items):
                return _union([self.of(item) for item in items])
            case n.Comparison("=", n.Property() as prop, n.Literal(str() | bytes() as value)):
                return self._equal(prop, [value])
            case n.Comparison("=", n.Literal(str() | bytes() as value), n.Property() as prop):
                return self._equal(prop, [value])
            case n.In(n.Property() as prop, items, False):
                values = [item.value for item in items if isinstance(item, n.Literal)]
                texts = [value for value in values if isinstance(value, str | bytes)]
                return self._equal(prop, texts) if len(texts) == len(items) else None
            case n.Like(n.Property(), pattern, escape, False):
                return self._run(parse_pattern(pattern, escape).longest_run)
            case n.TextTest(n.Property(), _, needle, False):
                return self._run(needle)
            case n.Tags(wanted) if wanted is not None:
                return self._equal(
                    n.Property(n.PropertySection.APPLICATION, "TAGS"), sorted(wanted)
                )
        return None

    def _equal(self, prop: n.Property, values: Sequence[str | bytes]) -> frozenset[Pattern] | None:
        return _union([self._encodings(prop, value) for value in values])

    def _encodings(self, prop: n.Property, value: str | bytes) -> frozenset[Pattern] | None:
        if self._spells and is_spelled(value):
            return None  # RocketMQ: the number 5 equals the text 5
        raw = value.encode() if isinstance(value, str) else value
        is_application = prop.section is n.PropertySection.APPLICATION
        if len(raw) >= _SHORT or not is_application:
            return frozenset((Pattern(raw),)) if raw else None
        return frozenset(short_value(prop.name, raw))

    def _run(self, text: str) -> frozenset[Pattern] | None:
        if not text or (self._spells and any(char in _SPELLING for char in text.lower())):
            return None
        return frozenset((Pattern(text.encode()),))


_SPELLING = frozenset("0123456789.+-einftyatruls")  # of numbers and booleans


def _union(parts: Sequence[frozenset[Pattern] | None]) -> frozenset[Pattern] | None:
    """Either of several; None when one of them is not known, or there are too many."""
    together: frozenset[Pattern] = frozenset()
    for part in parts:
        if part is None:
            return None
        together |= part
    return together if len(together) <= _MAX_PATTERNS else None


def _cost(patterns: frozenset[Pattern]) -> tuple[int, int]:
    """Fewer are better, then longer ones."""
    return len(patterns), -min((pattern.size for pattern in patterns), default=0)
