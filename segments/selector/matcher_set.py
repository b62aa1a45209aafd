"""Several selectors over the same messages: each message is read once for all of them."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

from segments.errors import FormatError
from segments.selector.cost import Budget, Cost, cost_of
from segments.selector.evaluate import Clock, Condition
from segments.selector.fields import RowReader
from segments.selector.message_slices import body_at, holding
from segments.selector.prefilter import Screen, screen_of
from segments.selector.selector import SCREEN_SHARE, Selector, condition_of

Key = TypeVar("Key", bound=Hashable)

_FEW = 2  # candidates that are looked at before the bytes of the chunk are

_DAMAGED_UNITS = 50  # for each selector: it reads a damaged message by itself


class _Member(NamedTuple):
    condition: Condition
    reader: RowReader  # of its own properties alone
    own_condition: Condition
    screen: Screen | None
    cost: Cost


class MatcherSet(Generic[Key]):
    """Tells which of several selectors match some message of a chunk.

    Args:
        selectors: by any key; none of them depends on the time.
    """

    def __init__(self, selectors: Mapping[Key, Selector]) -> None:
        everything = dict.fromkeys(p for s in selectors.values() for p in s.properties)
        properties = tuple(everything)
        self._reader = RowReader(properties)
        self._members: dict[Key, _Member] = {}
        for key, selector in selectors.items():
            own = selector.properties
            self._members[key] = _Member(
                condition_of(selector, properties, Clock()),
                RowReader(own),
                condition_of(selector, own, Clock()),
                screen_of(selector.node, selector.dialect),
                cost_of(selector.node),
            )

    @property
    def keys(self) -> set[Key]:
        """The keys of all selectors."""
        return set(self._members)

    def matching(self, bodies: Sequence[bytes], budget: Budget) -> set[Key]:
        """The keys of the selectors that select one of the messages.

        Those that the budget does not suffice for are among them, as they may.
        """
        return self._try(bodies, list(self._members), budget)

    def matching_in(
        self,
        data: bytes,
        ends: Sequence[int],
        budget: Budget,
        candidates: Mapping[Key, Sequence[int]] = MappingProxyType({}),
    ) -> set[Key]:
        """The same of the messages of a chunk; see selector.MessageMatcher.select_in.

        Args:
            data: the chunk's messages, each with 4 bytes of length before it.
            ends: where each message ends in `data`, in order.
            budget: of the work.
            candidates: the places of the messages that a selector may select, in order, by its
                key; of the others, any.
        """
        found: set[Key] = set()
        rest: list[Key] = []
        for key, member in self._members.items():
            some = candidates.get(key)
            if some is not None:
                if self._try(_bodies(data, ends, some[:_FEW]), [key], budget):
                    found.add(key)
                    continue
                some = some[_FEW:]
                if not some:
                    continue
            places = None
            if member.screen is not None:
                places = member.screen.places(data, len(ends) // SCREEN_SHARE)
            if places is not None:
                held = holding(ends, places)
                some = list(held) if some is None else sorted({*some}.intersection(held))
            if some is None:
                rest.append(key)  # each message is read once for all of these
            else:
                found |= self._try(_bodies(data, ends, some), [key], budget)
        if rest:
            found |= self._try(_bodies(data, ends, range(len(ends))), rest, budget)
        return found

    def _try(self, bodies: Iterable[bytes], keys: list[Key], budget: Budget) -> set[Key]:
        """The `keys` whose selector selects one of the messages, or may."""
        left = {key: self._members[key].condition for key in keys}
        found: set[Key] = set()
        read = self._reader.read
        cost = self._cost(left)
        for raw in bodies:
            if not budget.take(cost.units(len(raw))):
                return found | left.keys()
            try:
                row = read(raw)
                hits = [key for key, condition in left.items() if condition(row) is True]
            except FormatError:  # what one selector does not read must not matter to it
                if not budget.take(_DAMAGED_UNITS * len(left)):
                    return found | left.keys()
                hits = [key for key in left if self._selects(self._members[key], raw)]
            for key in hits:
                del left[key]
                found.add(key)
            if not left:
                break
            if hits:
                cost = self._cost(left)
        return found

    def _cost(self, keys: Iterable[Key]) -> Cost:
        costs = [self._members[key].cost for key in keys]
        return Cost(sum(c.parts for c in costs), sum(c.scans for c in costs))

    def _selects(self, member: _Member, raw: bytes) -> bool:
        try:
            return member.own_condition(member.reader.read(raw)) is True
        except FormatError:
            return False


def _bodies(data: bytes, ends: Sequence[int], places: Iterable[int]) -> Iterator[bytes]:
    return (body_at(data, ends, place) for place in places)
