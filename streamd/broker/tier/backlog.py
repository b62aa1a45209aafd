"""Whether uploads keep up: how fast they are, and what waits for them."""

import math
from collections import deque

from streamd.broker.tier.line import Line

_MEMORY_SECONDS = 300.0  # of being busy, over which the rate is a mean
_SHORTEST_SECONDS = 1e-6  # of being busy; less is what sums of times are off by
_LOOK_BACK_SECONDS = 1_200.0
# That nothing is stored: at least so long, and as all that waits would take, but an hour at most.
_STALLED_SECONDS, _LONGEST_STALL = 600.0, 3_600.0


class Backlog:
    """Is shown now and then what waits and what has gone.

    Args:
        line: that uploads share.

    Attributes:
        rate: bytes a second that were uploaded lately, while something was; None as long as nothing
            has arrived.
        sentence: what is wrong and what to do; empty while uploads keep up.
    """

    def __init__(self, line: Line) -> None:
        self.rate: float | None = None
        self.sentence = ""
        self._line = line
        self._busy = self._moved = self._stored = 0.0
        self._weight = self._mean = 0.0
        self._waited: deque[tuple[float, int]] = deque()
        self._stored_at: float | None = None
        self._is_growing = False

    def look(self, now: float, waiting: int, stored: int, moved: int) -> None:
        """See how it is.

        Args:
            now: seconds, by the clock of all looks.
            waiting: bytes of full segments that are not stored.
            stored: bytes of segments that were, since the start.
            moved: bytes of them that have arrived, also of those not stored yet; since the start.
        """
        self._measure(moved)
        if self._stored_at is None or not waiting or stored != self._stored:
            self._stored, self._stored_at = stored, now
        if not waiting:
            self._waited.clear()
        self._waited.append((now, waiting))
        self._is_growing = self._grows(now)
        self.sentence = self._sentence(now - self._stored_at, waiting)

    def forget(self) -> None:
        """Nothing can be stored for a while, and that is told elsewhere."""
        self._waited.clear()
        self._stored_at, self._is_growing, self.sentence = None, False, ""

    def seconds_left(self, waiting: int) -> float | None:
        """How long these bytes take at that rate; None while it is not known."""
        return waiting / self.rate if waiting and self.rate else None

    def _measure(self, moved: int) -> None:
        """A part counts when it has arrived, with the seconds since the one before."""
        if moved == self._moved:
            return
        busy = self._line.busy_seconds - self._busy
        some, self._moved = moved - self._moved, moved
        self._busy += busy
        if busy > _SHORTEST_SECONDS:
            kept = math.exp(-busy / _MEMORY_SECONDS)
            self._weight = kept * self._weight + 1 - kept
            self._mean = kept * self._mean + (1 - kept) * some / busy
            self.rate = self._mean / self._weight

    def _grows(self, now: float) -> bool:
        """Whether more waits and more: it goes up and down by whole segments meanwhile."""
        begin, third = now - _LOOK_BACK_SECONDS, _LOOK_BACK_SECONDS / 3
        while self._waited[0][0] < begin:
            self._waited.popleft()
        first = [waiting for at, waiting in self._waited if at < begin + third]
        last = [waiting for at, waiting in self._waited if at >= now - third]
        if not last[-1] or (first and max(last) < min(first)):
            return False
        is_long = self._waited[0][0] < begin + third / 2
        return self._is_growing or (is_long and min(last) > max(first))

    def _sentence(self, stalled: float, waiting: int) -> str:
        much = f"{waiting / 1e6:,.1f} MB of full segments wait"
        speed = "" if self.rate is None else f", and {self.rate / 1e6:,.2f} MB a second leave"
        patience = min(self.seconds_left(waiting) or 0.0, _LONGEST_STALL)
        if stalled >= max(patience, _STALLED_SECONDS):
            return (
                f"nothing was stored for {stalled / 60:,.0f} minutes, while {much}{speed}: look "
                "at the line to the store, and at what is wrong with each stream"
            )
        if self._is_growing:
            return (
                f"segments get full faster than they are uploaded: {much}{speed}; publish less, "
                "or give this server a faster line to the store"
            )
        return ""
