"""The way to the store, which all uploads of a server share.

On a line that is slow, what is begun together ends together: late, or never, as connections do not
live for ever. So there is a window, as in TCP: the bytes that may be on their way at once, of all
uploads. It begins with one part, doubles while parts arrive soon, and halves when they take long or
an upload fails. Uploads enter it in the order in which they ask, and each takes of what is left as
much as it has use for. So on a slow line a segment is stored before the next one is begun, and on a
fast one several are on their way.
"""

from collections.abc import Awaitable, Callable

import trio

from segments.store.object_store import MOST_IN_REQUEST, TierError

PARTS_AT_ONCE = 3  # of an upload: with the one that is read meanwhile, 32 MiB of memory
MOST_PARTS = 12  # of all
_SOON_SECONDS, _LATE_SECONDS = 10.0, 30.0  # that a part takes; routers forget what lasts longer


class Line:
    """Lets uploads go, a few at once.

    Args:
        part: bytes that are sent in one request.

    Attributes:
        window: bytes that may be on their way at once.
    """

    def __init__(self, part: int = MOST_IN_REQUEST) -> None:
        self.window = part
        self._part = part
        self._used = 0
        self._turn = trio.Lock()  # those who wait stand in a queue
        self._has_room = trio.lowlevel.ParkingLot()
        self._busy_seconds = self._busy_since = 0.0

    @property
    def busy_seconds(self) -> float:
        """How long something was on its way, since the start."""
        return self._busy_seconds + (trio.current_time() - self._busy_since if self._used else 0.0)

    async def send(self, size: int, upload: Callable[[int], Awaitable[bool]]) -> bool:
        """Do an upload when it is its turn; whether it has come to its end.

        Args:
            size: bytes of it.
            upload: does it; is told how many parts of it may be on their way at once.

        Raises:
            TierError: what `upload` raises.
        """
        async with self._turn:
            while self._used and self._used + min(size, self._part) > self.window:
                await self._has_room.park()
            parts = max(1, min(PARTS_AT_ONCE, (self.window - self._used) // self._part))
            taken = min(size, parts * self._part)
            self._enter(taken)
        began = trio.current_time()
        try:
            is_done = await upload(parts)
        except TierError:
            self.window = max(self._part, self.window // 2)
            raise
        else:
            if is_done:
                share = max(taken, self._part) / max(size, 1)
                self._note_arrival(
                    share * (trio.current_time() - began), is_whole=taken >= self._part
                )
            return is_done
        finally:
            self._leave(taken)

    def _note_arrival(self, seconds: float, *, is_whole: bool) -> None:
        """A part has taken so long; one that was not whole would have."""
        if seconds < _SOON_SECONDS:
            self.window = min(2 * self.window, MOST_PARTS * self._part)
        elif seconds > _LATE_SECONDS and is_whole:
            self.window = max(self._part, self.window // 2)

    def _enter(self, size: int) -> None:
        if not self._used:
            self._busy_since = trio.current_time()
        self._used += size

    def _leave(self, size: int) -> None:
        self._used -= size
        if not self._used:
            self._busy_seconds += trio.current_time() - self._busy_since
        self._has_room.unpark_all()
