"""What may be told of stored offsets: those that are as safe as a confirmed message."""

from typing import NamedTuple

from segments.tracking import MAX_OFFSETS, Tracking


class _Stored(NamedTuple):
    """An offset, and the number that it has in the order of what its writer was given."""

    number: int
    offset: int


class _Unsafe(NamedTuple):
    """Of a consumer whose newest offset is not safe yet.

    Attributes:
        safe: the last one that was; None for none.
        first: that was stored after it, and is safe next.
        last: the newest one; those between are not kept.
    """

    safe: int | None
    first: _Stored
    last: _Stored


class SafeOffsets:
    """The stored offsets of one stream, as far as they may be told.

    A consumer goes on behind what it is told: after a crash it would know nothing of what it has
    skipped then.

    Attributes:
        unsafe: consumers whose newest offset was not safe when it was stored; `settle` is only
            needed while there are any.
    """

    def __init__(self) -> None:
        self.unsafe: dict[bytes, _Unsafe] = {}
        self._num_safe = 0

    def store(self, reference: bytes, before: int | None, offset: int, number: int) -> None:
        """An offset is stored, and not safe yet.

        Args:
            reference: of the consumer.
            before: what it had stored until now.
            offset: what it stores.
            number: see `settle`.
        """
        new = _Stored(number, offset)
        known = self._look(reference)
        self.unsafe.pop(reference, None)
        self.unsafe[reference] = (
            _Unsafe(before, new, new) if known is None else known._replace(last=new)
        )
        if len(self.unsafe) > MAX_OFFSETS:
            del self.unsafe[next(iter(self.unsafe))]

    def forget(self, reference: bytes) -> None:
        """A consumer has nothing stored any more."""
        self.unsafe.pop(reference, None)

    def settle(self, number: int, *, is_all: bool) -> None:
        """Those up to a number are safe; perhaps there are no others."""
        self._num_safe = number
        if is_all:
            self.unsafe.clear()

    def get(self, reference: bytes, tracking: Tracking) -> int | None:
        """What may be told of a consumer; None for nothing."""
        known, newest = self._look(reference), tracking.offset(reference)
        return newest if known is None or newest is None else known.safe

    def all(self, tracking: Tracking) -> dict[bytes, int]:
        """The same of all that something may be told of."""
        found = ((name, self.get(name, tracking)) for name in tracking.offsets())
        return {name: offset for name, offset in found if offset is not None}

    def _look(self, reference: bytes) -> _Unsafe | None:
        """What is not safe of a consumer by now."""
        known = self.unsafe.get(reference)
        if known is None or known.last.number <= self._num_safe:
            return None
        if known.first.number <= self._num_safe:
            return _Unsafe(known.first.offset, known.last, known.last)
        return known
