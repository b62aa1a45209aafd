"""Finding some properties in many messages at once.

Messages whose maps have the same keys in the same order advance together, a key per step, until
all that is wanted was found: lengths and types of the values may differ. What is unusual is left to
`segments.message.MessageView`, which defines the right answer: a property test compares the two.

Source: OASIS AMQP 1.0 part 1 (types), 1.6.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from segments import amqp10_codes as codes
from segments.spark.headers import Bytes, Mask, Numbers
from segments.spark.maps import map_heads, value_ends
from segments.spark.walk import words

_WORD = 8  # bytes that are compared at once
_FEW = 8  # as few messages as this are as fast one by one
_IS_SKIPPED = np.array([width is not None for width in codes.WIDTHS])
_NONE = 0  # no type code of a value


class Values(NamedTuple):
    """Where a property stands in each of some messages.

    Attributes:
        codes: its type code; 0 where it is missing or null, or the message is odd.
        starts, ends: of its bytes, behind code and size.
    """

    codes: Bytes
    starts: Numbers
    ends: Numbers

    @classmethod
    def none_of(cls, count: int) -> "Values":
        """Missing everywhere."""
        return cls(np.zeros(count, np.uint8), np.zeros(count, np.int64), np.zeros(count, np.int64))

    def note(self, rows: Numbers, kinds: Bytes, starts: Numbers, ends: Numbers) -> bool:
        """It stands there in these messages; of two the first counts. Whether all have it now."""
        is_new = (kinds != codes.NULL) & (self.codes[rows] == _NONE)
        if not is_new.all():
            rows, kinds, starts, ends = rows[is_new], kinds[is_new], starts[is_new], ends[is_new]
        self.codes[rows], self.starts[rows], self.ends[rows] = kinds, starts, ends
        return bool(is_new.all())


class Found(NamedTuple):
    """Properties of some messages.

    Attributes:
        values: of each, in the order in which they were asked for.
        odd: messages that the above does not describe.
    """

    values: list[Values]
    odd: Mask


class _Alike(NamedTuple):
    """Messages whose maps go on alike, as far as they were followed.

    Attributes:
        rows: their numbers.
        at: where the next key of each begins.
        limits: where each map ends.
        left: keys that follow.
        wanted: names that were not found in all of them yet.
    """

    rows: Numbers
    at: Numbers
    limits: Numbers
    left: int
    wanted: frozenset[bytes]

    def some(self, which: Mask) -> "_Alike":
        """Some of them."""
        if which.all():
            return self
        return self._replace(rows=self.rows[which], at=self.at[which], limits=self.limits[which])


def find_in_maps(buffer: Bytes, positions: Numbers, names: Sequence[str]) -> Found:
    """Find values by their keys in the maps that begin at `positions`; -1 for a message without.

    Args:
        buffer: holds them, with PADDING bytes behind the last message.
        positions: of each message's map.
        names: of the values.
    """
    found = Found([Values.none_of(len(positions)) for _ in names], np.zeros(len(positions), bool))
    places = {name.encode(): values for name, values in zip(names, found.values, strict=True)}
    eights = np.ndarray((len(buffer) - _WORD + 1,), "<u8", buffer, strides=(1,))
    rows = np.flatnonzero(positions >= 0)
    at, limits, counts = map_heads(buffer, words(buffer), positions[rows])
    sound = (counts % 2 == 0) & (counts <= limits - at)
    found.odd[rows[~sound]] = True
    groups = [
        _Alike(rows[which], at[which], limits[which], count // 2, frozenset(places))
        for count in np.unique(counts[sound]).tolist()
        for which in [sound & (counts == count)]
    ]
    while groups:
        group = groups.pop()
        if not group.left:
            found.odd[group.rows[group.at != group.limits]] = True
        elif len(group.rows) < _FEW:
            found.odd[group.rows] = True
        else:
            groups += _pass_key(buffer, eights, group, places, found.odd)
    return found


def _pass_key(
    buffer: Bytes, eights: Numbers, group: _Alike, places: dict[bytes, Values], odd: Mask
) -> list[_Alike]:
    """Note the value behind the key with which the maps of a group go on.

    Returns:
        The groups that follow: those with another key, and those with this one behind its value.
    """
    head = int(group.at[0])
    size = int(buffer[head + 1])
    if buffer[head] != codes.STRING_8 or head + 2 + size >= group.limits[0]:
        same = eights[group.at] == eights[head]
        odd[group.rows[same]] = True
        return [group.some(~same)] if not same.all() else []
    same = _have_same(eights, group.at, 2 + size)
    others = [] if same.all() else [group.some(~same)]
    group = group.some(same)
    place = np.minimum(group.at + (2 + size), group.limits)
    kinds = buffer[place]
    starts, ends = value_ends(buffer, words(buffer), place, kinds)
    fits = _IS_SKIPPED[kinds >> 4] & (place < group.limits) & (ends <= group.limits)
    if not fits.all():
        odd[group.rows[~fits]] = True
        group, kinds, starts, ends = group.some(fits), kinds[fits], starts[fits], ends[fits]
    name = buffer[head + 2 : head + 2 + size].tobytes()
    wanted = group.wanted
    if name in wanted and places[name].note(group.rows, kinds, starts, ends):
        wanted -= {name}
    if wanted and len(group.rows):
        others.append(group._replace(at=ends, left=group.left - 1, wanted=wanted))
    return others


def _have_same(eights: Numbers, at: Numbers, size: int) -> Mask:
    """Whether the `size` bytes at each place are those at the first one."""
    same: Mask = np.ones(len(at), np.bool_)
    for shift in range(0, size, _WORD):
        # A map that ends before that may stand at the end of the buffer; it has no such value.
        found = eights[np.minimum(at + shift, len(eights) - 1)] ^ eights[at[0] + shift]
        rest = size - shift
        if rest < _WORD:
            found &= np.uint64((1 << 8 * rest) - 1)
        same &= found == 0
    return same


def find_in_lists(buffer: Bytes, positions: Numbers, indexes: Collection[int]) -> Found:
    """Find values by their index in the lists that begin at `positions`; as `find_in_maps`."""
    found = Found([Values.none_of(len(positions)) for _ in indexes], np.zeros(len(positions), bool))
    places = dict(zip(indexes, found.values, strict=True))
    numbers = words(buffer)
    rows = np.flatnonzero(positions >= 0)
    rows, at, limits, counts = _list_heads(buffer, rows, positions[rows], found.odd)
    for index in range(max(indexes, default=-1) + 1):
        has_it = counts > index
        if not has_it.all():
            rows, at, limits, counts = rows[has_it], at[has_it], limits[has_it], counts[has_it]
        kinds = buffer[at]
        starts, ends = value_ends(buffer, numbers, at, kinds)
        fits = _IS_SKIPPED[kinds >> 4] & (at < limits) & (ends <= limits)
        if not fits.all():
            found.odd[rows[~fits]] = True
            rows, limits, counts = rows[fits], limits[fits], counts[fits]
            kinds, starts, ends = kinds[fits], starts[fits], ends[fits]
        if index in places:
            places[index].note(rows, kinds, starts, ends)
        at = ends
    return found


def _list_heads(
    buffer: Bytes, rows: Numbers, at: Numbers, odd: Mask
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Messages, first values, ends and counts of lists of the short form; others are odd."""
    kinds = buffer[at]
    usual = kinds == codes.LIST_8
    odd[rows[~usual & (kinds != codes.LIST_0)]] = True
    rows, at = rows[usual], at[usual]
    limits = at + 2 + buffer[at + 1]
    return rows, at + 3, limits, buffer[at + 2].astype(np.int64)
