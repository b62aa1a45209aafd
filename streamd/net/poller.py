"""Many connections waited for together: what arrives is taken at once, without a task for each.

An event loop wakes a task for every connection that is ready, and puts it to sleep again: for a
client with one message in flight that costs several times what storing the message does. Here one
task waits for all of them. Each connection that is ready is read once and its commands are carried
out in place; what they leave to be done together, such as writing what came for one stream, is
done once at the end of the round.

Linux's epoll. Where there is none, connections are waited for one by one (`open_poller`).
"""

import select
from collections.abc import Callable

import trio

_MOST_READY = 256  # connections served in one round


class Poller:
    """Tells of connections that have something to be read."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}
        self._at_round_end: dict[Callable[[], None], None] = {}
        self._is_in_round = False

    def watch(self, descriptor: int, read: Callable[[], None]) -> None:
        """Call `read` whenever there is something to be read; it neither waits nor raises."""
        self._epoll.register(descriptor, select.EPOLLIN)
        self._readers[descriptor] = read

    def unwatch(self, descriptor: int) -> None:
        """Call it no more."""
        if self._readers.pop(descriptor, None) is not None and not self._epoll.closed:
            self._epoll.unregister(descriptor)

    def at_round_end(self, work: Callable[[], None]) -> bool:
        """Have `work` done once at the end of this round; False when there is none going on.

        Args:
            work: neither waits nor raises.
        """
        if self._is_in_round:
            self._at_round_end[work] = None
        return self._is_in_round

    async def run(self) -> None:
        """Work until cancelled; nobody can be watched after that."""
        with self._epoll:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                self._take_round()

    def _take_round(self) -> None:
        self._is_in_round = True
        for descriptor, _ in self._epoll.poll(0, _MOST_READY):
            read = self._readers.get(descriptor)
            if read is not None:  # else it was ended by one before it
                read()
        self._is_in_round = False
        left, self._at_round_end = self._at_round_end, {}
        for work in left:
            work()


def open_poller() -> Poller | None:
    """A poller, None on systems without one."""
    return Poller() if hasattr(select, "epoll") else None
