"""When to learn of what comes, where learning takes as long as reading hundreds of messages.

What is learned is used while most of what comes is known by it. Where it is not, it is forgotten,
and learned anew after a pause that is longer each time: whoever sends what cannot be learned waits
little longer than without.
"""

from enum import Enum

_FIRST = 16  # messages that were not known
_MOST = 1 << 14
_SHORTEST_PAUSE, _LONGEST_PAUSE = 1 << 12, 1 << 16
_LESSONS = 3  # in a row that have not helped
_ENOUGH = 2  # known messages for each that was not: then it has helped
_MANY = 256  # the same: it has helped much


class Advice(Enum):
    """What to do after some messages."""

    NOTHING = "nothing"
    LEARN = "learn"
    FORGET = "forget"


class Pace:
    """Says when something is to be learned, and when to be forgotten."""

    __slots__ = ("_known", "_lessons", "_next_pause", "_pause", "_unknown", "_wait")

    def __init__(self) -> None:
        self._known = self._unknown = self._lessons = 0
        self._wait = _FIRST  # messages that were not known until the next lesson
        self._next_pause = _SHORTEST_PAUSE
        self._pause = 1  # messages until the first lesson; 0 behind it

    def advice(self, known: int, unknown: int) -> Advice:
        """What to do after some messages that were known, and some that were not."""
        if self._pause:
            self._pause = max(0, self._pause - unknown)
            return Advice.NOTHING if self._pause else Advice.LEARN
        self._known += known
        self._unknown += unknown
        if self._unknown < self._wait:
            return Advice.NOTHING
        known, unknown, self._known, self._unknown = self._known, self._unknown, 0, 0
        self._lessons = 0 if known >= _ENOUGH * unknown else self._lessons + 1
        if self._lessons == _LESSONS:
            self._pause, self._wait, self._lessons = self._next_pause, _FIRST, 0
            self._next_pause = min(2 * self._next_pause, _LONGEST_PAUSE)
            return Advice.FORGET
        if known >= _MANY * unknown:
            self._wait, self._next_pause = _FIRST, _SHORTEST_PAUSE
        else:
            self._wait = min(2 * self._wait, _MOST)
        return Advice.LEARN
