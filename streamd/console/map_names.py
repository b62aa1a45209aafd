"""Names at the marks on the map of a stream: in rows, so that none lies on another."""

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
    ends = [-_ALL] * ROWS
    found: list[Name] = []
    for mark in marks:
        text = mark.title
        if len(text) > _MOST_SIGNS:
            text = f"{text[: _MOST_SIGNS - 1]}…"
        width = _MARK + len(text) * sign
        is_left = mark.x + width > _ALL and mark.x > width
        begin = mark.x - width if is_left else mark.x - _MARK
        for row, end in enumerate(ends):
            if begin >= end:
                ends[row] = mark.x + (_MARK if is_left else width)
                found.append(Name(mark.x, row, is_left, text, kind))
                break
    return found


def height_of(names: Sequence[Name]) -> int:
    """How many rows they take."""
    return max((name.row + 1 for name in names), default=0)
