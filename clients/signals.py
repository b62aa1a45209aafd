"""Waking tasks that wait for a change."""

import anyio


class Signal:
    """Wakes all that wait at the moment; who waits looks first whether it has to.

    No change is missed as long as nothing is awaited between looking and `wait`.
    """

    def __init__(self) -> None:
        self._event: anyio.Event | None = None  # None while nobody waits, as is usual

    def set(self) -> None:
        """Something has changed."""
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        """Return after the next change."""
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()
