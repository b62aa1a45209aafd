"""Many connections waited for together: what arrives is taken at once, without a task for each.

An event loop wakes a task for every connection that is ready, and puts it to sleep again: for a
client with one message in flight that costs several times what storing the message does. Here one
task waits for all of them. Each connection that is ready is read once and its commands are carried
out in place; what they leave to be done together, such as writing what came for one stream, is
done once at the end of the round (see rounds.py).

It needs Linux's epoll. Without that, connections are waited for one by one (`open_poller`).
"""

import select
from collections.abc import Callable

import trio

from streamd.config import RECEIVE_BYTES
from streamd.net.rounds import Rounds

_MOST_READY = 256  # connections served in one round
_SHARE_BYTES = 4 << 10  # that each of them may send in it, however many they are


class Poller:
    """Reads connections that have something to be read.

    Args:
        rounds: one is open while connections are read.
    """

    def __init__(self, rounds: Rounds) -> None:
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[int], None]] = {}
        self._rounds = rounds

    def watch(self, descriptor: int, read: Callable[[int], None]) -> None:
        """Call `read` whenever there is something to be read; it neither waits nor raises.

        It is told how many bytes it may take: a round takes no more from many connections than from
        one, or those that send most would decide how long all others wait.
        """
        self._epoll.register(descriptor, select.EPOLLIN)
        self._readers[descriptor] = read

    def unwatch(self, descriptor: int) -> None:
        """Stop calling it."""
        if self._readers.pop(descriptor, None) is not None and not self._epoll.closed:
            self._epoll.unregister(descriptor)

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            self._take_round()

    def close(self) -> None:
        """Release it; nobody can be watched after that."""
        self._epoll.close()

    def _take_round(self) -> None:
        self._rounds.begin()
        try:
            ready = self._epoll.poll(0, _MOST_READY)
            share = max(RECEIVE_BYTES // max(len(ready), 1), _SHARE_BYTES)
            for descriptor, _ in ready:
                read = self._readers.get(descriptor)
                if read is not None:  # else it was ended by one before it
                    read(share)
        finally:
            self._rounds.end()


def open_poller(rounds: Rounds) -> Poller | None:
    """A poller, None on systems without one."""
    return Poller(rounds) if hasattr(select, "epoll") else None
