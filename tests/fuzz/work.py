"""Work, counted in calls of functions: what takes too long does so on every machine."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class TooMuchWork(Exception):
    """One turn of an event loop does more than any may. Raised within it: a server logs it."""


class Counter:
    """Counts the calls of one turn.

    Attributes:
        most: of all turns so far.
    """

    def __init__(self, limit: int) -> None:
        self.most = 0
        self._limit = limit
        self._count = 0

    def next_turn(self) -> None:
        """Begin again."""
        self.most = max(self.most, self._count)
        self._count = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what is called meanwhile.

        Raises:
            TooMuchWork: from within the work.
        """
        self.next_turn()
        before = sys.getprofile()
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(before)
            self.next_turn()

    def _see(self, _frame: FrameType, event: str, _argument: Any) -> None:
        if event in ("call", "c_call"):
            self._count += 1
            if self._count > self._limit:
                self._count = 0
                raise TooMuchWork(f"more than {self._limit} calls in one turn")


TURN = Counter(300_000)
