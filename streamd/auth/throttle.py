"""Slows down password guessing, also over many connections, by the address it comes from.

The answer to a wrong password is delayed already; that bounds what one connection can try. Here
two passwords of an address are checked at once, and after ten wrong ones one a second. Clients
known to have the right password do not come here (see users.py), and when the guessing stops,
all is forgotten within seconds: nobody is locked out for long by what others do. Memory is
bounded: beyond a limit the address that was seen longest ago is forgotten.
"""

from collections.abc import Awaitable, Callable

import trio

from streamd.net.addresses import network_of

_AT_ONCE = 2  # checked for one address: other addresses soon have their turn
_FREE = 10  # wrong ones before others have to wait
_SECONDS_EACH = 1.0
_WAITING = 5  # may wait for that; more are refused unchecked
MAX_ADDRESSES = 10_000


class _Address:
    """What is known about one address.

    Attributes:
        turns: limits how many are checked at once.
        users: connections that wait for it, or have it.
        paid_at: when its wrong passwords are forgotten.
    """

    def __init__(self) -> None:
        self.turns = trio.Semaphore(_AT_ONCE)
        self.users = 0
        self.paid_at = 0.0

    @property
    def seconds_to_wait(self) -> float:
        """Until the next one is checked."""
        return max(0.0, self.paid_at - trio.current_time() - _FREE * _SECONDS_EACH)


class LoginThrottle:
    """Limits attempts with passwords, by address."""

    def __init__(self) -> None:
        self._addresses: dict[str, _Address] = {}

    async def judge(self, address: str, look: Callable[[], Awaitable[bool]]) -> bool | None:
        """The answer of `look` for a password, in its turn; None when it was not asked.

        Args:
            address: where the password comes from.
            look: whether it is right.
        """
        name = network_of(address)
        found = self._addresses.pop(name, None) or _Address()
        self._addresses[name] = found  # the last one: the order is by use
        self._trim()
        found.users += 1
        try:
            async with found.turns:
                if found.seconds_to_wait and found.users > _WAITING:
                    return None
                await trio.sleep(found.seconds_to_wait)
                is_right = await look()
                if not is_right:
                    found.paid_at = max(found.paid_at, trio.current_time()) + _SECONDS_EACH
                return is_right
        finally:
            found.users -= 1

    def _trim(self) -> None:
        if len(self._addresses) > MAX_ADDRESSES:
            unused = (name for name, found in self._addresses.items() if not found.users)
            oldest = next(unused, None)
            if oldest is not None:  # else there are as many connections, which have their limit
                del self._addresses[oldest]
