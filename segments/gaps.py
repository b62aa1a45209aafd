"""Gaps in a stream's offsets: they make an offset mean one message, whatever a machine has lost.

What readers have seen may be gone after the machine went down, and who has seen it keeps its
offset. If the next messages got the same offsets, that reader would pass over them. So the log goes
on OFFSET_GAP behind its end, which is more than it may have given out beyond what is known to be on
the device: a reader that asks for an offset in the gap begins with the first message behind it.

A gap needs no file: of the offsets that are missing between two segments whole gaps are gaps, and
the rest are messages that were lost. No log can lose as many as a gap has.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

OFFSET_GAP = 1 << 32
# When all that is left is what a store has: it may be days behind the machine that is gone.
RESTORE_GAP = OFFSET_GAP << 8


def end_before(offset: int, following: int) -> int:
    """Where a segment ends that has come to `offset`, and whose next one begins at `following`.

    What is missing from `offset` to there was lost; from there to `following` is a gap, or nothing.
    """
    return min(following, offset + (following - offset) % OFFSET_GAP)


def num_lost(offset: int, following: int) -> int:
    """How many messages are missing where the one at `following` comes after those to `offset`."""
    return end_before(offset, following) - offset


class Gap(NamedTuple):
    """Offsets that no message has.

    Attributes:
        start: the first of them: where the messages before it end.
        end: behind the last of them: of the first message behind it.
    """

    start: int
    end: int

    @classmethod
    def between(cls, offset: int, following: int) -> "Gap":
        """Where messages come to `offset`, and go on with `following`: what is no loss between."""
        return cls(end_before(offset, following), following)


class Gaps:
    """The gaps of a stream.

    Args:
        gaps: in their order.
    """

    def __init__(self, gaps: Iterable[Gap] = ()) -> None:
        self._gaps = tuple(gap for gap in gaps if gap.start < gap.end)

    def __iter__(self) -> Iterator[Gap]:
        """In their order."""
        return iter(self._gaps)

    def and_more(self, gaps: Iterable[Gap]) -> "Gaps":
        """These and others, which may be among these."""
        return Gaps(sorted({*self._gaps, *gaps}))

    def num_between(self, start: int, end: int) -> int:
        """How many messages there are, or were, from one offset to before another; 0 or more."""
        if not self._gaps:  # as nearly always
            return max(0, end - start)
        inside = sum(max(0, min(end, gap.end) - max(start, gap.start)) for gap in self._gaps)
        return max(0, end - start - inside)

    def moved(self, offset: int, by: int) -> int:
        """The offset of the message so many further than the one at `offset`, or before there.

        It may be less than 0, or behind the last one. Less than 0 is back.
        """
        at = self.before(offset + 1) - 1
        for gap in self._gaps if by > 0 else reversed(self._gaps):
            if at < gap.start <= at + by:
                at += gap.end - gap.start
            elif at + by < gap.end <= at:
                at -= gap.end - gap.start
        return at + by

    def before(self, offset: int) -> int:
        """The offset behind the last message before `offset`."""
        gap = self.around(offset - 1)
        return offset if gap is None else gap.start

    def around(self, offset: int) -> Gap | None:
        """The gap that an offset lies in."""
        return next((gap for gap in self._gaps if gap.start <= offset < gap.end), None)


NO_GAPS = Gaps()
