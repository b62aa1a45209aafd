"""Many connections waited for together: what arrives is taken at once, without a task for each.

An event loop wakes a task for every connection that is ready, and puts it to sleep again: for a
client with one message in flight that costs several times what storing the message does. Here one
task waits for all of them. Each connection that is ready is read once and its commands are carried
out in place; what they leave to be done together, such as writing what came for one stream, is
done once at the end of the round (see rounds.py).

Of a consumer at the end of its stream comes a little credit for each message, and it has credit
left: for that nobody has to be woken. What such a connection sends is read along with others', or
a moment later; see `Listening.LATER`.

    watched     `EPOLLIN`; read when there is something
    patient     nothing is waited for; read in a round of others, once in PATIENT_SECONDS

    watched -> patient   its read says so
    patient -> watched   its read does not say so any more; `hurry`; no round came for too long

Rounds take as much as makes chunks large, and less while a consumer is short of credit (`hurry`):
then its publishers' messages are taken in smaller pieces, and it is heard between them.

It needs Linux's epoll. Without that, connections are waited for one by one (`open_poller`).
"""

import select
import time
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

import trio

from streamd.config import RECEIVE_BYTES
from streamd.net.rounds import Rounds
from streamd.net.transport import Found
from streamd.net.wakeup import Wakeup

_MOST_READY = 256  # connections served in one round
_SHARE_BYTES = 4 << 10  # that each of them may send in it, however many they are
_MOST_BYTES = 4 * RECEIVE_BYTES
_HURRIED_SECONDS = 10  # since somebody was in a hurry
PATIENT_SECONDS = 0.005  # twice as long at most


class _Length(NamedTuple):
    """How long rounds are to be: what they take goes by how long those before took.

    Large chunks are cheaper, long rounds make everybody wait. What a byte costs differs: small
    messages with filter values take twenty times as long as large ones without.

    Attributes:
        least_bytes: that a round takes from all connections together, however long it takes.
        short, long: in seconds; a shorter one may take more, after a longer one it is less.
    """

    least_bytes: int
    short: float
    long: float


_USUAL = _Length(RECEIVE_BYTES, 0.01, 0.02)
# A consumer without credit gets nothing in the two rounds until it has given some again.
_HURRIED = _Length(RECEIVE_BYTES // 8, 0.003, 0.006)


class Poller:
    """Reads connections that have something to be read.

    Args:
        rounds: one is open while connections are read.
        clock: seconds, by which a round's length is measured.
    """

    def __init__(self, rounds: Rounds, clock: Callable[[], float] = time.perf_counter) -> None:
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[int], Found]] = {}
        self._patient: dict[int, None] = {}  # who was read last is the last one
        self._patient_until = 0.0
        self._has_patient, self._patience = Wakeup(), trio.CancelScope()
        self._rounds = rounds
        self._clock = clock
        self._round_bytes = _USUAL.least_bytes
        self._hurried_until = 0.0

    def watch(self, descriptor: int, read: Callable[[int], Found]) -> None:
        """Call `read` whenever there is something to be read; it neither waits nor raises.

        It is told how many bytes it may take: what a round takes from all connections together is
        bounded, or those that send most would decide how long all others wait.
        """
        self._epoll.register(descriptor, select.EPOLLIN)
        self._readers[descriptor] = read

    def unwatch(self, descriptor: int) -> None:
        """Stop calling it."""
        self._patient.pop(descriptor, None)
        if self._readers.pop(descriptor, None) is not None and not self._epoll.closed:
            self._epoll.unregister(descriptor)

    def hurry(self, descriptor: int) -> None:
        """Read it as soon as there is something, and keep rounds short for a while."""
        self._hurried_until = self._clock() + _HURRIED_SECONDS
        self._watch_closely(descriptor)

    def _watch_closely(self, descriptor: int) -> None:
        if descriptor in self._patient:
            del self._patient[descriptor]
            self._epoll.modify(descriptor, select.EPOLLIN)

    def _let_wait(self, descriptor: int) -> None:
        if descriptor in self._readers:  # else it was ended
            self._epoll.modify(descriptor, 0)
            self._patient[descriptor] = None
            self._has_patient.set()

    async def run(self) -> None:
        """Work until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_patience)
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                self._take_round()

    async def _end_patience(self) -> None:
        """Watch those that no round has read for a while."""
        while True:
            await self._has_patient.wait()
            with self._patience:  # each round puts it off: nothing wakes while there are rounds
                await trio.sleep_forever()
            self._patience = trio.CancelScope()
            for descriptor in list(self._patient):
                self._watch_closely(descriptor)

    def close(self) -> None:
        """Release it; nobody can be watched after that."""
        self._epoll.close()

    def _take_round(self) -> None:
        began_at, is_limited = self._clock(), False
        self._rounds.begin()
        try:
            ready = self._epoll.poll(0, _MOST_READY)
            share = self._round_bytes // max(len(ready), 1)
            share = min(max(share, _SHARE_BYTES), RECEIVE_BYTES)
            for descriptor, _ in ready:
                read = self._readers.get(descriptor)
                if read is None:  # it was ended by one before it
                    continue
                found = read(share)
                if found is Found.MORE:
                    is_limited = True
                elif found is Found.PATIENT:
                    self._let_wait(descriptor)
            if self._patient and began_at >= self._patient_until:
                self._read_patient(share, began_at)
        finally:
            self._rounds.end()
            self._adapt(began_at, self._clock(), is_limited=is_limited)

    def _read_patient(self, share: int, now: float) -> None:
        self._patient_until = now + PATIENT_SECONDS
        self._patience.deadline = trio.current_time() + 2 * PATIENT_SECONDS
        for descriptor in list(islice(self._patient, _MOST_READY)):
            read = self._readers.get(descriptor)
            if read is None or read(share) is not Found.PATIENT:
                self._watch_closely(descriptor)
            elif self._patient.pop(descriptor, 0) is None:  # else it was hurried
                self._patient[descriptor] = None

    def _adapt(self, began_at: float, ended_at: float, *, is_limited: bool) -> None:
        """Let the next round take more or less than this one, by how long it took.

        More only after one that has left something: others are short because little came.
        """
        length = _HURRIED if ended_at < self._hurried_until else _USUAL
        seconds = ended_at - began_at
        if seconds > length.long:
            self._round_bytes = self._round_bytes // 2
        elif seconds < length.short and is_limited:
            self._round_bytes = min(self._round_bytes * 2, _MOST_BYTES)
        self._round_bytes = max(self._round_bytes, length.least_bytes)


def open_poller(rounds: Rounds) -> Poller | None:
    """A poller, None on systems without one."""
    return Poller(rounds) if hasattr(select, "epoll") else None
