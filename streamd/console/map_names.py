"""Names at the marks on the map of a stream: in rows, so that none lies on another."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from streamd.operations.stream_views import Mark

ROWS = 4
_MOST_SIGNS = 20
_NARROW, _WIDE = 2.2, 0.75  # per cent of the map that a sign takes, on phones and elsewhere
_MARK = 2.5  # per cent that a mark takes
_ALL = 100.0


class Name(NamedTuple):
    """A name beside its mark.

    Attributes:
        x: of the mark, in per cent.
        row: 0 is next to the map.
        is_left: it stands to the left of its mark, else to the right.
        kind: "wide" or "narrow": of the screens that it is for.
    """

    x: float
    row: int
    is_left: bool
    text: str
    kind: str


def names_at(marks: Sequence[Mark]) -> list[Name]:
    """The names of marks for wide and narrow screens; those for which there is no room are left."""
    ordered = sorted(marks)
    return [*_placed(ordered, _WIDE, "wide"), *_placed(ordered, _NARROW, "narrow")]


def _placed(marks: Sequence[Mark], sign: float, kind: str) -> list[Name]:
    ends, places = [-_ALL] * ROWS, [mark.x for mark in marks]
    found: list[Name] = []
    for mark in marks:
        text = mark.title
        if len(text) > _MOST_SIGNS:
            text = f"{text[: _MOST_SIGNS - 1]}…"
        width = _MARK + len(text) * sign
        is_left = mark.x + width > _ALL and mark.x > width
        begin, after = (
            (mark.x - width, mark.x + _MARK) if is_left else (mark.x - _MARK, mark.x + width)
        )
        # In the first row are the marks, too: a name lies on none of another place.
        is_crossed = (
            bisect_left(places, mark.x) > bisect_right(places, begin - _MARK)
            if is_left
            else bisect_left(places, after + _MARK) > bisect_right(places, mark.x)
        )
        for row, end in enumerate(ends):
            if begin >= end and (row or not is_crossed):
                ends[row] = after
                found.append(Name(mark.x, row, is_left, text, kind))
                break
    return found


def height_of(names: Sequence[Name]) -> int:
    """How many rows they take."""
    return max((name.row + 1 for name in names), default=0)
