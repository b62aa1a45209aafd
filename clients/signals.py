"""Waking tasks that wait for a change."""

import anyio


class Signal:
    """Wakes all that wait at the moment; who waits looks first whether it has to.

    No change is missed as long as nothing is awaited between looking and `wait`.
    """

    def __init__(self) -> None:
        self._event = anyio.Event()

    def set(self) -> None:
        """Something has changed."""
        self._event.set()
        self._event = anyio.Event()

    async def wait(self) -> None:
        """Return after the next change."""
        await self._event.wait()
