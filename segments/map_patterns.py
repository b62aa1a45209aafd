"""Reading application properties of many messages that look alike.

Most messages of a stream have the same properties in the same order, and each property has values
of one type and of few lengths. A regular expression of these names, types and lengths reads a
message in one step, whatever its values are, and is made of messages that came before. As the
length of each value stands before it, there is no message that two alternatives fit: an expression
takes no longer than the properties are long.

What fits no expression is left to `selector.RowReader`, which defines the right answer.
"""

import re
from collections.abc import Sequence
from itertools import repeat
from random import Random
from threading import Lock
from typing import NamedTuple, TypeAlias, cast

from segments import amqp10_codes as codes
from segments.amqp10_codes import SHORT_DESCRIPTOR, WIDTHS, Section
from segments.pace import Advice, Pace

_MAX_LAYOUTS = 4
_MAX_SIZE = 2048  # of all properties together
_MAX_VALUES = 64  # in the properties, and sections before them
_MAX_KINDS = 128  # types and lengths of those
_LEARNED_FROM = 32  # messages at a time
_APPLICATION = int(Section.APPLICATION_PROPERTIES)
_TEXTS = frozenset(codes.TEXTS)
_BEFORE = frozenset(range(Section.HEADER, Section.APPLICATION_PROPERTIES))
_LENGTH_BYTES = 4  # before each message
# How the size of a map is written, by how many bytes it has.
_SIZES = {
    codes.MAP_8: {size: size.to_bytes(1, "big") for size in range(256)},
    codes.MAP_32: {size: size.to_bytes(4, "big") for size in range(_MAX_SIZE)},
}
_Match: TypeAlias = re.Match[bytes]
_GROUPS = re.Match.groups


class _UnusualError(Exception):
    """A message has no layout."""


class _Kind(NamedTuple):
    """How a value is written: its code, with the size behind it, and how many bytes follow."""

    head: bytes
    rest: int

    @property
    def pattern(self) -> bytes:
        """What such values look like."""
        return re.escape(self.head) + (b".{%d}" % self.rest if self.rest else b"")


class MapPatterns:
    """Reads some application properties, and learns what messages look like.

    Args:
        names: of the properties.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = [name.encode() for name in names]
        self._layouts: tuple[_Layout, ...] = ()  # replaced as a whole: threads may read meanwhile
        self._learning = Lock()
        self._pace = Pace()
        self._chance = Random(0)  # noqa: S311 - which messages are learned from

    def read(self, data: bytes, ends: Sequence[int]) -> tuple[list[Sequence[bytes]], Sequence[int]]:
        """The values of the properties in some messages.

        Args:
            data: the messages, each with 4 bytes of length before it.
            ends: where each ends.

        Returns:
            For each property its values, as they are encoded, empty where a message has no such
            property; and the numbers of the messages that were not read. No values where that is
            none of them.
        """
        count, layouts = len(ends), self._layouts
        columns: list[Sequence[bytes]] = []
        unread: Sequence[int] = range(count)
        begins = [0, *ends]
        if layouts:
            found = layouts[0].matches(data, begins, ends)
            columns = layouts[0].columns(found)
            if columns:
                unread = ()
            else:
                columns, unread = self._read_apart(layouts, data, ends, found)
        advice = self._pace.advice(count - len(unread), len(unread))
        if advice is Advice.FORGET:
            self._layouts = ()
        elif advice is Advice.LEARN:
            some = self._chance.sample(unread, min(len(unread), _LEARNED_FROM))
            self._learn([data[begins[n] : ends[n]] for n in some])
        return columns, unread

    def _read_apart(
        self,
        layouts: Sequence["_Layout"],
        data: bytes,
        ends: Sequence[int],
        found: list[_Match | None],
    ) -> tuple[list[Sequence[bytes]], Sequence[int]]:
        """The same for messages not all of which look alike; `found` is what the first finds."""
        begins = [0, *ends]
        columns = [[b""] * len(ends) for _ in self._names]
        unread: Sequence[int] = range(len(ends))
        for layout in layouts:
            if layout is not layouts[0]:
                found = layout.matches(data, [begins[n] for n in unread], [ends[n] for n in unread])
            left = []
            for at, match in zip(unread, found, strict=True):
                row = match and layout.row(match)
                if row:
                    for column, value in zip(columns, row, strict=True):
                        column[at] = value
                else:
                    left.append(at)
            unread = left
            if not unread:
                break
        return [*columns], unread

    def _learn(self, messages: Sequence[bytes]) -> None:
        if not self._learning.acquire(blocking=False):
            return
        try:
            layouts, changed = [*self._layouts], dict[_Layout, None]()
            for message in messages:
                try:
                    seen = _Seen(message)
                    layout = self._like(seen, layouts)
                except (_UnusualError, IndexError):
                    continue
                if layout.add(seen):
                    changed[layout] = None
            for layout in changed:
                layout.compile()
            self._layouts = tuple(layouts)
        finally:
            self._learning.release()

    def _like(self, seen: "_Seen", layouts: list["_Layout"]) -> "_Layout":
        for layout in layouts:
            if layout.literals == seen.literals:
                return layout
        layout = _Layout(seen, self._names)
        if len(layouts) == _MAX_LAYOUTS:
            layouts.pop()
        layouts.append(layout)
        return layout


class _Seen:
    """What a message looks like up to the end of its application properties.

    Attributes:
        literals: what stands between the values.
        kinds: of the values.
        names: of the properties; their values are the last ones.
        map_code: of the map that they are in.

    Raises:
        _UnusualError: it does not look like many others.
        IndexError: it is cut off.
    """

    def __init__(self, message: bytes) -> None:
        self._raw = message
        self.kinds: list[_Kind] = []
        literals: list[bytes] = []
        at = begin = _LENGTH_BYTES
        while True:
            at += len(SHORT_DESCRIPTOR) + 1
            code = message[at - 1]
            if message[begin : at - 1] != SHORT_DESCRIPTOR:
                raise _UnusualError
            literals.append(message[begin:at])
            if code == _APPLICATION:
                break
            if code not in _BEFORE:
                raise _UnusualError
            at = begin = self._value(at)
        self.map_code = message[at]
        width = codes.MAPS.get(self.map_code)
        if width is None:
            raise _UnusualError
        literals[-1] += message[at : at + 1]
        begin, at = at + 1 + width, at + 1 + 2 * width
        pairs, is_odd = divmod(int.from_bytes(message[begin:at], "big"), 2)
        size = int.from_bytes(message[begin - width : begin], "big")
        if is_odd or not 0 < pairs <= _MAX_VALUES or size >= _MAX_SIZE:
            raise _UnusualError
        self.names: list[bytes] = []
        for _ in range(pairs):
            if message[at] not in _TEXTS:
                raise _UnusualError
            kind, start = self._kind(at)
            at = start + kind.rest
            self.names.append(message[start:at])
            literals.append(message[begin:at])
            at = begin = self._value(at)
        self.literals = tuple(literals)

    def _value(self, at: int) -> int:
        kind, start = self._kind(at)
        if len(self.kinds) == _MAX_VALUES or kind.rest > _MAX_SIZE:
            raise _UnusualError
        self.kinds.append(kind)
        return start + kind.rest

    def _kind(self, at: int) -> tuple[_Kind, int]:
        """How the value at a position is written, and where its last part begins."""
        raw = self._raw
        width = WIDTHS[raw[at] >> 4]
        if width is None:
            raise _UnusualError
        if width >= 0:
            return _Kind(raw[at : at + 1], width), at + 1
        start = at + 1 - width
        return _Kind(raw[at:start], int.from_bytes(raw[at + 1 : start], "big")), start


class _Layout:
    """Messages with the same properties in the same order.

    Attributes:
        literals: see _Seen.
    """

    def __init__(self, seen: _Seen, names: Sequence[bytes]) -> None:
        if any(seen.names.count(name) > 1 for name in names):  # RowReader knows which counts
            raise _UnusualError
        self.literals = seen.literals
        self._kinds: list[dict[_Kind, None]] = [{} for _ in seen.kinds]
        self._first = len(seen.kinds) - len(seen.names)  # value of a property
        self._sizes = _SIZES[seen.map_code]
        self._size_width = codes.MAPS[seen.map_code]
        places = {name: place for place, name in enumerate(seen.names) if name in names}
        self._wanted = frozenset(place + self._first for place in places.values())
        order = {name: number for number, name in enumerate(places)}
        self._groups = [order.get(name) for name in names]
        self._match = re.compile(b"(?!)").match

    def add(self, seen: _Seen) -> bool:
        """Take note of how values are written; whether something of it is new."""
        if all(kind in kinds for kinds, kind in zip(self._kinds, seen.kinds, strict=True)):
            return False
        if sum(map(len, self._kinds)) >= _MAX_KINDS:
            for kinds in self._kinds:
                kinds.clear()
        for kinds, kind in zip(self._kinds, seen.kinds, strict=True):
            kinds[kind] = None
        return True

    def compile(self) -> None:
        """Make the expression of what was noted."""
        parts = [b"(?s)" + b"." * _LENGTH_BYTES]
        size = self._only_size()
        values = enumerate(self._kinds)
        for number, literal in enumerate(self.literals):
            parts.append(re.escape(literal))
            if number == self._first:  # the size of the map, which counts all behind it
                whole = b"(%b)(" % (b"." * self._size_width)
                parts.append(whole if size is None else re.escape(size))
                continue
            place, kinds = next(values)
            head = b"(" if place in self._wanted else b"(?:"
            parts.append(head + b"|".join(kind.pattern for kind in kinds) + b")")
        parts.append(b"" if size else b")")
        self._match = re.compile(b"".join(parts)).match

    def _only_size(self) -> bytes | None:
        """The size of the map, where all values known of a property are of one length."""
        values = self._kinds[self._first :]
        lengths = [{len(kind.head) + kind.rest for kind in kinds} for kinds in values]
        if any(len(some) > 1 for some in lengths):
            return None
        behind = sum(map(len, self.literals[self._first + 1 :]))
        return self._sizes.get(behind + sum(length for some in lengths for length in some))

    def matches(
        self, data: bytes, begins: Sequence[int], ends: Sequence[int]
    ) -> list[_Match | None]:
        """What the expression finds, for each message; None for one that looks different."""
        return list(map(self._match, repeat(data), begins, ends))

    def columns(self, found: Sequence[_Match | None]) -> list[Sequence[bytes]]:
        """The values of each wanted property, if all messages look like this; else none."""
        if None in found:
            return []
        rows = map(_GROUPS, cast("Sequence[_Match]", found))
        groups = list(zip(*rows, strict=True))
        if len(groups) > len(self._wanted):  # before the values, the size of the map and the map
            sizes, contents, *groups = groups
            if [*sizes] != list(map(self._sizes.get, map(len, contents))):
                return []
        return [(b"",) * len(found) if n is None else groups[n] for n in self._groups]

    def row(self, match: _Match) -> list[bytes] | None:
        """The values of one message."""
        groups = [*match.groups()]
        if len(groups) > len(self._wanted):
            size, content, *groups = groups
            if size != self._sizes.get(len(content)):
                return None
        return [b"" if n is None else groups[n] for n in self._groups]
