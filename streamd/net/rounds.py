"""Rounds: what many connections leave to be done together, and in which order.

Theory of operation. Work on a stream begins outside of it: a connection is read and publishes, or a
disk has flushed. If a stream wrote and delivered at once, each frame would cost a write, and the
code of other connections would run in the middle of a stream's. So the code that begins such work
opens a round, and what follows is left for its end, each piece once:

    in the round     connections are read, their commands carried out; streams queue messages
    then             `at_end`: streams write what is queued, confirm, and mark waiting consumers
    then             `after_writes`: marked consumers send what is new for them
    and again        until nothing is left

The poller opens a round for each batch of connections that it has read, a stream's own task for
each of its writes. Everything happens within one turn of the event loop, nothing waits, and nothing
that is left raises into another's work: an error is logged, and the next piece is done.

A round inside a round is part of the outer one.

How much is carried out in a round does not depend on how many connections are read in it: who finds
its `units` used up leaves the rest to its own task (see command_loop.py).
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

logger = logging.getLogger(__name__)

Work: TypeAlias = Callable[[], None]  # neither waits nor raises

_ROUND_UNITS = 1_024  # as much as publishing so many messages


class Rounds:
    """The rounds of one server.

    Attributes:
        units: how much more may be carried out in this one, in messages that take as long.
    """

    def __init__(self) -> None:
        self.number = 0
        self.units = _ROUND_UNITS
        self._is_open = False
        self._writes: dict[Work, None] = {}
        self._sends: dict[Work, None] = {}

    @contextmanager
    def open(self) -> Iterator[None]:
        """A round, or a part of the one that is open."""
        if self._is_open:
            yield
            return
        self.begin()
        try:
            yield
        finally:
            self.end()

    def begin(self) -> None:
        """Open a round, for callers that cannot afford `open`; they call `end` in any case."""
        self._is_open = True
        self.units = _ROUND_UNITS

    def end(self) -> None:
        """Do the work that was left, and all that follows from it."""
        try:
            while self._writes or self._sends:
                if self._writes:
                    left, self._writes = self._writes, {}
                else:
                    left, self._sends = self._sends, {}
                for work in left:
                    try:
                        work()
                    except Exception:  # a bug: it stays in this piece of work
                        logger.exception("%s failed", getattr(work, "__qualname__", work))
        finally:
            self._is_open = False
            self.number += 1

    def allowance(self, most: int) -> int:
        """How much of `most` may be carried out now, in messages that take as long."""
        return min(most, self.units) if self._is_open else most

    def at_end(self, work: Work) -> bool:
        """Have a stream's writing done at the end of this round; False when none is open."""
        if self._is_open:
            self._writes[work] = None
        return self._is_open

    def after_writes(self, work: Work) -> None:
        """Have a connection's sending done once the streams of this round have written."""
        self._sends[work] = None
        if not self._is_open:  # nobody writes: at once
            self.end()
