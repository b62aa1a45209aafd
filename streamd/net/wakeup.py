"""A wake-up that one task waits for and anyone sets."""

import trio


class Wakeup:
    """Set before the wait counts; several sets before one wait count once."""

    def __init__(self) -> None:
        self._is_set = False
        self._lot = trio.lowlevel.ParkingLot()

    def set(self) -> None:
        """Wake the waiting task, or the next wait."""
        self._is_set = True
        self._lot.unpark()

    async def wait(self) -> None:
        """Return once it was set after the last wait. A cancelled wait loses no wake-up."""
        if self._is_set:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await self._lot.park()
        self._is_set = False
