"""Many connections waited for together: what arrives is taken at once, without a task for each.

An event loop wakes a task for every connection that is ready, and puts it to sleep again: for a
client with one message in flight that costs several times what storing the message does. Here one
task waits for all of them. Each connection that is ready is read once and its commands are carried
out in place; what they leave to be done together, such as writing what came for one stream, is
done once at the end of the round (see rounds.py).

It needs Linux's epoll. Without that, connections are waited for one by one (`open_poller`).
"""

import select
import time
from collections.abc import Callable

import trio

from streamd.config import RECEIVE_BYTES
from streamd.net.rounds import Rounds

_MOST_READY = 256  # connections served in one round
_SHARE_BYTES = 4 << 10  # that each of them may send in it, however many they are
# A round takes from all connections together between these, by how long the rounds before took:
# large chunks are cheaper, long rounds make everybody wait.
_LEAST_BYTES = RECEIVE_BYTES
_MOST_BYTES = 4 * RECEIVE_BYTES
_SHORT_SECONDS = 0.01
_LONG_SECONDS = 0.02


class Poller:
    """Reads connections that have something to be read.

    Args:
        rounds: one is open while connections are read.
        clock: seconds, by which a round's length is measured.
    """

    def __init__(self, rounds: Rounds, clock: Callable[[], float] = time.perf_counter) -> None:
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[int], None]] = {}
        self._rounds = rounds
        self._clock = clock
        self._round_bytes = _LEAST_BYTES

    def watch(self, descriptor: int, read: Callable[[int], None]) -> None:
        """Call `read` whenever there is something to be read; it neither waits nor raises.

        It is told how many bytes it may take: what a round takes from all connections together is
        bounded, or those that send most would decide how long all others wait.
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
        began_at = self._clock()
        self._rounds.begin()
        try:
            ready = self._epoll.poll(0, _MOST_READY)
            share = self._round_bytes // max(len(ready), 1)
            share = min(max(share, _SHARE_BYTES), RECEIVE_BYTES)
            for descriptor, _ in ready:
                read = self._readers.get(descriptor)
                if read is not None:  # else it was ended by one before it
                    read(share)
        finally:
            self._rounds.end()
            self._adapt(self._clock() - began_at)

    def _adapt(self, seconds: float) -> None:
        """Let the next round take more or less than one that took so long."""
        if seconds > _LONG_SECONDS:
            self._round_bytes = max(self._round_bytes // 2, _LEAST_BYTES)
        elif seconds < _SHORT_SECONDS:
            self._round_bytes = min(self._round_bytes * 2, _MOST_BYTES)


def open_poller(rounds: Rounds) -> Poller | None:
    """A poller, None on systems without one."""
    return Poller(rounds) if hasattr(select, "epoll") else None
