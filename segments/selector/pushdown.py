"""From a selector to the filter values that every message it selects has: which chunks to ask for.

A stream declares a filter property P: the filter value of a message is the value of P, as its
bytes, or none when that is missing, empty, or of a type that is not compared as bytes. For each
node two sets are found: the filter values of all messages for which it is true, and of all for
which it is false. They may be too large but never too small, so no match is lost.

Where a stream declares several properties, this is done for each: a message that is selected has
its value of P in the set for P and its value of Q in the set for Q, so its chunk holds one of each.

Source: rabbitmq/osiris, src/osiris_bloom.erl, for the filter of a chunk. The rules are ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from segments.selector import nodes as n
from segments.selector.dialects import Dialect
from segments.selector.evaluate import TAG
from segments.selector.patterns import parse_pattern
from segments.selector.values import as_bytes, boolean_of

MAX_VALUES = 64  # more would let nearly every chunk pass, and cost more than it saves


@dataclass(frozen=True, slots=True)
class ValueSet:
    """Some filter values, or all but some; and whether messages without one are among them.

    Attributes:
        values: those in the set, or those that are not, when `is_complement`.
        is_complement: see there.
        has_unfiltered: messages without a filter value are in the set.
    """

    values: frozenset[bytes]
    is_complement: bool
    has_unfiltered: bool

    def complement(self) -> "ValueSet":
        """All that is not in the set."""
        return ValueSet(self.values, not self.is_complement, not self.has_unfiltered)

    def __and__(self, other: "ValueSet") -> "ValueSet":
        """What is in both."""
        unfiltered = self.has_unfiltered and other.has_unfiltered
        match self.is_complement, other.is_complement:
            case True, True:
                return ValueSet(self.values | other.values, True, unfiltered)
            case True, False:
                return ValueSet(other.values - self.values, False, unfiltered)
            case False, True:
                return ValueSet(self.values - other.values, False, unfiltered)
        return ValueSet(self.values & other.values, False, unfiltered)

    def __or__(self, other: "ValueSet") -> "ValueSet":
        """What is in one of them."""
        return (self.complement() & other.complement()).complement()

    def __contains__(self, value: bytes | None) -> bool:
        """Whether a filter value, None for none, is in the set."""
        if value is None:
            return self.has_unfiltered
        return (value in self.values) is not self.is_complement


_NO_VALUES: Final[frozenset[bytes]] = frozenset()
ALL = ValueSet(_NO_VALUES, is_complement=True, has_unfiltered=True)
NOTHING = ALL.complement()
_UNFILTERED = ValueSet(_NO_VALUES, is_complement=False, has_unfiltered=True)
_ANY_VALUE = _UNFILTERED.complement()


class Outcomes(NamedTuple):
    """Filter values of the messages for which a node may be true, and may be false."""

    true: ValueSet
    false: ValueSet


_ANY = Outcomes(ALL, ALL)


class PropertyWish(NamedTuple):
    """What a chunk has to hold of a further filter property.

    Attributes:
        name: of the property, as it was declared.
        values: one of these,
        match_unfiltered: or a message without a value of it.
    """

    name: str
    values: frozenset[bytes]
    match_unfiltered: bool


@dataclass(frozen=True, slots=True)
class Pushdown:
    """What to ask the server for.

    Attributes:
        values: filter values of which a chunk has to hold one; None for chunks of any kind.
        match_unfiltered: chunks with messages without a filter value as well.
        is_empty: no message of the stream can match.
        properties: what a chunk has to hold besides of the stream's further filter properties.
    """

    values: frozenset[bytes] | None
    match_unfiltered: bool
    is_empty: bool = False
    properties: tuple[PropertyWish, ...] = ()


EVERYTHING = Pushdown(None, match_unfiltered=True)
_NOTHING = Pushdown(_NO_VALUES, match_unfiltered=False, is_empty=True)


def push_down(
    node: n.Node, dialect: Dialect, filter_properties: Mapping[str, n.Property], *, is_strict: bool
) -> Pushdown:
    """What a selector needs of a stream with some filter properties.

    Args:
        node: the selector.
        dialect: whose rules hold for it.
        filter_properties: those that the stream has declared by their names, the first one first.
        is_strict: every message with a value of the first has it as its filter value; else
            messages may come without one. Values of the others are always there.
    """
    found = EVERYTHING
    further = []
    for number, (name, filter_property) in enumerate(filter_properties.items()):
        wanted = outcomes_of(node, filter_property, dialect).true
        if wanted == NOTHING:
            return _NOTHING
        if wanted.is_complement or len(wanted.values) > MAX_VALUES:
            continue
        if number:
            further.append(PropertyWish(name, wanted.values, wanted.has_unfiltered))
        else:
            found = Pushdown(wanted.values, wanted.has_unfiltered or not is_strict)
    return replace(found, properties=tuple(further))


def outcomes_of(node: n.Node, filter_property: n.Property, dialect: Dialect) -> Outcomes:
    """What a node says of the filter values that a property gives to messages."""
    return _Analysis(filter_property, dialect).outcomes(node)


class _Analysis:
    def __init__(self, filter_property: n.Property, dialect: Dialect) -> None:
        self._property = filter_property
        self._spells = dialect is Dialect.ROCKETMQ

    def outcomes(self, node: n.Node) -> Outcomes:
        match node:
            case n.And(items) | n.Or(items):
                return self._joined(isinstance(node, n.And), [self.outcomes(i) for i in items])
            case n.Not(inner):
                true, false = self.outcomes(inner)
                return Outcomes(false, true)
            case n.Literal(value):
                return Outcomes(
                    ALL if value is True else NOTHING, ALL if value is False else NOTHING
                )
            case n.Tags(wanted):
                return self._tags(wanted)
            case n.Comparison() | n.In() | n.IsNull() | n.Like() | n.TextTest():
                return self._test(node)
        return _ANY

    def _joined(self, all_needed: bool, parts: list[Outcomes]) -> Outcomes:
        true, false = parts[0]
        for part in parts[1:]:
            if all_needed:
                true, false = true & part.true, false | part.false
            else:
                true, false = true | part.true, false & part.false
        return Outcomes(true, false)

    def _tags(self, wanted: frozenset[str] | None) -> Outcomes:
        if wanted is None:
            return Outcomes(ALL, NOTHING)
        if self._property != TAG:
            return _ANY
        return self._equal_to([n.Literal(tag) for tag in wanted])

    def _test(self, node: n.Comparison | n.In | n.IsNull | n.Like | n.TextTest) -> Outcomes:
        if isinstance(node, n.Comparison):
            return self._comparison(node)
        if node.subject != self._property:
            return _ANY
        match node:
            case n.In():
                found = self._equal_to(node.items)
            case n.IsNull():
                found = Outcomes(_UNFILTERED, ALL)
            case n.Like(_, pattern, escape):
                found = self._like(pattern, escape)
            case n.TextTest():
                # With an empty needle it is false in both forms; and for RocketMQ a missing
                # property does not contain a string either.
                return _ANY if node.negated or self._spells else Outcomes(_ANY_VALUE, ALL)
        return Outcomes(found.false, found.true) if node.negated else found

    def _comparison(self, node: n.Comparison) -> Outcomes:
        left, right = node.left, node.right
        if isinstance(left, n.Literal):
            left, right = right, left
        if left != self._property or node.operator not in ("=", "<>"):
            return _ANY
        found = self._equal_to([right])
        return Outcomes(found.false, found.true) if node.operator == "<>" else found

    def _equal_to(self, items: Sequence[n.Node]) -> Outcomes:
        """P equals one of the items."""
        values = set()
        unfiltered = False
        for item in items:
            if not isinstance(item, n.Literal) or not isinstance(item.value, str | bytes):
                return _ANY
            value = as_bytes(item.value)
            if value:
                values.add(value)
            if not value or (self._spells and is_spelled(item.value)):
                unfiltered = True
        true = ValueSet(frozenset(values), is_complement=False, has_unfiltered=unfiltered)
        others = ValueSet(true.values, is_complement=True, has_unfiltered=True)
        return Outcomes(true, others)

    def _like(self, pattern: str, escape: str | None) -> Outcomes:
        parsed = parse_pattern(pattern, escape)
        if parsed.literal is not None:
            return Outcomes(self._equal_to([n.Literal(parsed.literal)]).true, ALL)
        return Outcomes(ALL if parsed.matches_empty else _ANY_VALUE, ALL)


def is_spelled(value: str | bytes) -> bool:
    """A string that a number, a boolean or a time may also be written as."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    if boolean_of(text) is not None:
        return True
    try:
        float(text)
    except ValueError:
        return False
    return True
