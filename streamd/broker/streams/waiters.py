"""Consumers that have read a stream to its end, and which of them a commit is for.

A waiter for everything is woken by every commit. One with a filter waits for the keys of its filter
(filter values, or the token of a standing selector) and is woken by a chunk whose filter holds one
of them: thousands of narrow consumers cost nothing while others' messages come.

A waiter is woken once and then forgotten; it adds itself again when it has read on. Waking only
marks it: what is new is sent after the stream has written (see net/rounds.py), so the code of other
connections never runs inside the stream's.

A chunk is noted when it is written, and its waiters are woken when it is committed. That may be
later, and in parts: with what is flushed, or stored, just then. So what is noted of the rest stays,
for those who come to wait meanwhile.

When a new segment begins, the waiters stand in one that nobody needs any more, and would keep its
file open. Those with a filter leave it without being woken, a few at a time (`leave_segment`): with
tens of thousands of them everything else would wait for seconds.
"""

import logging
from collections import deque
from collections.abc import Collection, Iterator, Sequence, Set as AbstractSet
from typing import Protocol

logger = logging.getLogger(__name__)

_NO_KEY = b"\0" * 256  # longer than any filter value: for waiters that no chunk is for
_LEAVING = 100  # waiters that leave a segment at a time, some 1 ms


class Waiter(Protocol):
    """A consumer that has read everything and is to be woken when there is more.

    Attributes:
        keys: filter values of which a chunk has to hold one for it to be woken; None for all.
        other_keys: collections of which it has to hold one each besides.
    """

    @property
    def keys(self) -> Collection[bytes] | None:
        """See above; the same as long as it waits."""

    @property
    def other_keys(self) -> Sequence[AbstractSet[bytes]]:
        """See above; the same as long as it waits."""

    def stream_has_more(self) -> None:
        """Something was committed, or the stream is gone. Marks it; does not read or send."""

    def leave_segment(self) -> None:
        """A new segment has begun: stand in it, not in one before it. Nothing if it is gone on."""


class Waiters:
    """The waiters of one stream.

    Attributes:
        by_key: those that wait for keys; while there are none, `note` is not needed.
    """

    def __init__(self) -> None:
        # Each in the order in which they came to wait.
        self._for_all: dict[Waiter, None] = {}
        self._for_several: dict[Waiter, None] = {}  # with other keys; they are in `by_key`, too
        self.by_key: dict[bytes, dict[Waiter, None]] = {}
        self._noted: deque[tuple[int, Collection[bytes]]] = deque()

    def __len__(self) -> int:
        """How many waiters there are; one with several keys counts once."""
        return len(self._all())

    def __bool__(self) -> bool:
        return bool(self._for_all or self.by_key)

    def add(self, waiter: Waiter) -> None:
        """Wake `waiter` once when more is committed that may be for it."""
        if waiter.keys is None:
            self._for_all[waiter] = None
            return
        for key in waiter.keys or (_NO_KEY,):
            self.by_key.setdefault(key, {})[waiter] = None
        if waiter.other_keys:
            self._for_several[waiter] = None

    def remove(self, waiter: Waiter) -> None:
        """Do not wake it."""
        self._for_all.pop(waiter, None)
        if self._for_several:
            self._for_several.pop(waiter, None)
        for key in waiter.keys or (_NO_KEY,):
            waiting = self.by_key.get(key)
            if waiting is not None:
                waiting.pop(waiter, None)
                if not waiting:
                    del self.by_key[key]

    def note(self, keys: Collection[bytes], next_offset: int) -> None:
        """A chunk with these keys is written, and ends there; it may be committed much later."""
        self._noted.append((next_offset, keys))

    def wake(self, committed_offset: int) -> None:
        """What was noted is committed up to there: wake those it is for."""
        keys: set[bytes] = set()
        while self._noted and self._noted[0][0] <= committed_offset:
            keys.update(self._noted.popleft()[1])
        waiters, self._for_all = self._for_all, {}
        for key in sorted(self.by_key.keys() & keys):
            waiters |= self.by_key[key]
        if self._for_several:
            several = self._for_several
            for waiter in [w for w in waiters if w in several and _misses(w, keys)]:
                del waiters[waiter]
        self._wake(waiters)

    def wake_all(self) -> None:
        """Something is there of which nobody knows for whom: wake everybody."""
        waiters, self._for_all = self._all(), {}
        self._wake(waiters)

    def _all(self) -> dict[Waiter, None]:
        found = dict(self._for_all)
        for waiting in self.by_key.values():
            found |= waiting
        return found

    def leave_segment(self) -> Iterator[None]:
        """A new segment has begun: have waiters go there, a few at each step.

        Those without a filter were woken by its first chunk.
        """
        told = 0
        for key in list(self.by_key):
            for waiter in list(self.by_key.get(key, ())):
                try:
                    waiter.leave_segment()
                except Exception:  # as in _wake
                    logger.exception("%s cannot leave a segment", waiter)
                told += 1
                if told % _LEAVING == 0:
                    yield

    def _wake(self, waiters: Collection[Waiter]) -> None:
        """Wake waiters, which are not among those for everything any more."""
        if self.by_key:
            for waiter in waiters:
                self.remove(waiter)
        for waiter in waiters:
            try:
                waiter.stream_has_more()
            except Exception:  # a bug: it stays with its consumer, the others are woken
                logger.exception("%s cannot be woken", waiter)

    def clear(self) -> None:
        """The stream is gone: forget everybody."""
        self._for_all.clear()
        self._for_several.clear()
        self.by_key.clear()
        self._noted.clear()


def _misses(waiter: Waiter, keys: AbstractSet[bytes]) -> bool:
    """Whether new chunks with these keys, all of them together, lack one that a waiter needs."""
    return any(keys.isdisjoint(others) for others in waiter.other_keys)
