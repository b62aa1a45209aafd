"""The test that each message has to pass before it is found."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeAlias

from segments.creation_time import creation_time_ms
from segments.keys import KeyReader, forms_of_key, key_prints
from segments.search.key_screen import key_screen
from segments.search.request import SearchRequest
from segments.selector import (
    NumberRule,
    Property,
    WantedValues,
    parse_property,
    property_value_reader,
)
from segments.selector.cost import Cost
from segments.selector.prefilter import Screen, screen_of

_Test: TypeAlias = Callable[[bytes], bool]

_PARTS = 3  # what reading a property costs, in units of selector/cost.py
_SCANS = 1
_MANY = 16
_MOST_SCREENS = 64


class MessageTest:
    """Tells which messages are wanted.

    Args:
        now_ms: the time, for selectors that ask for it.

    Attributes:
        forms: what stands for the keys, which may become fewer, see `takes`.
    """

    def __init__(self, request: SearchRequest, now_ms: int) -> None:
        self._request = request
        self._forms = {key: forms_of_key(key) for key in request.keys}
        self._left = dict(self._forms)
        self._prints: list[frozenset[int]] | None = None
        self._bits = {key: 1 << place for place, key in enumerate(request.keys)}
        self._properties = tuple(parse_property(name) for name in request.properties)
        self._read_keys = KeyReader(request.properties).read
        self._matcher = None if request.selector is None else request.selector.matcher()
        if self._matcher is not None:
            self._matcher.clock.now_ms = now_ms
        self._tests = list(self._make_tests())
        self._selected: dict[int, frozenset[bytes]] = {}  # the keys of what was selected last
        self._look()

    def _make_tests(self) -> Iterator[_Test]:
        request = self._request
        if request.keys:
            yield self._has_key
        if request.filter_values and request.filter_property is not None:
            yield _filter_test(request.filter_property, request.filter_values)
        if request.by_creation_time and (request.from_ms, request.to_ms) != (None, None):
            yield _creation_test(request.from_ms, request.to_ms)

    def _look(self) -> None:
        """Find what follows from the keys that are left."""
        self.forms: frozenset[bytes] = frozenset().union(*self._left.values())
        self._left_bits = sum(self._bits[key] for key in self._left)
        self._screens: dict[int, Screen | None] = {}

    @property
    def screen(self) -> Screen | None:
        """Bytes of which every wanted message contains one; None when none are certain."""
        return self.screen_of(self._left_bits)

    def screen_of(self, keys: int) -> Screen | None:
        """The same for the messages of a chunk that may have some keys.

        Args:
            keys: a bit for each, by its place in the request; others may be left out.
        """
        keys &= self._left_bits
        if keys not in self._screens:
            if len(self._screens) >= _MOST_SCREENS:
                self._screens.clear()
            self._screens[keys] = self._make_screen(keys)
        return self._screens[keys]

    def _make_screen(self, keys: int) -> Screen | None:
        request = self._request
        if request.keys:
            forms = [self._left[key] for key in self._left if self._bits[key] & keys]
            return key_screen(frozenset().union(*forms), self._properties)
        if request.selector is not None:
            return screen_of(request.selector.node, request.selector.dialect)
        return None

    def has_left(self, keys: int) -> bool:
        """Whether one of some keys is still looked for; see `screen_of`."""
        return bool(keys & self._left_bits)

    @property
    def has_many(self) -> bool:
        """There are so many keys that it takes less to read those of a chunk than to look for each.

        Bytes are looked for in a chunk of 4,096 messages in some 0.1 ms, keys are read in 2.5.
        """
        return len(self.forms) * len(self._properties) > _MANY

    def prints(self) -> list[frozenset[int]]:
        """The prints of each key of the request; none of one that is not looked for any more."""
        if self._prints is None:
            names = self._request.properties
            self._prints = [key_prints(names, forms) for forms in self._forms.values()]
        return [
            prints if key in self._left else frozenset()
            for key, prints in zip(self._bits, self._prints, strict=True)
        ]

    @property
    def cost(self) -> Cost:
        """The cost of testing a message."""
        own = self._matcher.cost if self._matcher is not None else Cost(0, 0)
        parts = _PARTS * (1 + len(self._tests) + len(self._properties))
        return Cost(own.parts + parts, own.scans + _SCANS)

    @property
    def done(self) -> int:
        """Keys whose newest message was found: a bit for each, by its place in the request."""
        return sum(bit for key, bit in self._bits.items() if key not in self._left)

    @property
    def is_done(self) -> bool:
        """The newest message of every key was found."""
        return self._request.latest and not self._left

    def forget(self, done: int) -> None:
        """Take the bits of `done` from an earlier search."""
        for key, bit in self._bits.items():
            if done & bit:
                self._left.pop(key, None)
        self._look()

    def takes(self, place: int) -> bool:
        """Take a message that the last `select` has chosen, in the order wanted.

        Args:
            place: of the message among those that it chose from.

        Returns:
            False for one of whose keys a newer message was taken, if only the latest are wanted.
        """
        if not self._request.latest:
            return True
        forms = self._selected[place]
        has = [key for key, wanted in self._left.items() if not forms.isdisjoint(wanted)]
        for key in has:
            del self._left[key]
        if has:
            self._look()
        return bool(has)

    def select(self, bodies: Sequence[bytes]) -> Sequence[int]:
        """The places of the wanted ones in a list of messages, in order."""
        places: Sequence[int] = range(len(bodies))
        for test in self._tests:
            places = [place for place in places if test(bodies[place])]
        if self._matcher is not None and places:
            found = self._matcher.select([bodies[place] for place in places])
            places = [places[number] for number in found]
        if self._request.latest:
            self._selected = {place: self._read_keys(bodies[place]) for place in places}
        return places

    def _has_key(self, raw: bytes) -> bool:
        return not self.forms.isdisjoint(self._read_keys(raw))


def _filter_test(prop: Property, values: Collection[bytes]) -> _Test:
    read = property_value_reader(prop)
    wanted = WantedValues(values, match_unfiltered=False, numbers=NumberRule.TEXT)
    return lambda raw: wanted.has(read(raw))


def _creation_test(from_ms: int | None, to_ms: int | None) -> _Test:
    first = -(1 << 63) if from_ms is None else from_ms
    last = 1 << 63 if to_ms is None else to_ms

    def is_within(raw: bytes) -> bool:
        created = creation_time_ms(raw)
        return created is not None and first <= created <= last

    return is_within
