"""What all connections have in common, whatever the protocol: sending, signs of life, the end.

Only the writer sends: first everything in the outbox, then one turn of deliveries, and again.
When the writer has nothing to do, small answers go out at once, without waking it.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import trio

from segments.disk import Buffer
from streamd.config import REFUSAL_SECONDS
from streamd.net.outbox import Outbox
from streamd.net.transport import Transport, TransportClosed
from streamd.net.wakeup import Wakeup

logger = logging.getLogger(__name__)

_MISSED_HEARTBEATS = 2
LINGER_SECONDS = 1  # for the peer to end its side


class Ended(Exception):
    """The connection is over, in order or not."""


class Stopped(Exception):
    """The server stops, and nothing more is taken from the peer."""


class Sender(Protocol):
    """What a connection sends besides answers."""

    @property
    def has_pending(self) -> bool:
        """There is something to send."""

    async def send_next(self, transport: Transport) -> None:
        """Send a little of it, or wait until the peer has taken what it was sent."""


class Duplex:
    """One connection's bytes, in and out.

    Args:
        transport: carries them; closed by whoever owns the connection.
        heartbeat: the frame that is a sign of life.

    Attributes:
        work: woken when there is something to send.
        outbox: what waits to be sent besides deliveries.
    """

    def __init__(self, transport: Transport, heartbeat: bytes) -> None:
        self.transport = transport
        self.work = Wakeup()
        self.outbox = Outbox(self.work, self._send_some)
        self._is_listening = True
        self._heartbeat = heartbeat
        self._has_sent = False
        self._is_stopped = False
        self._listening = trio.CancelScope()
        self._quiet = trio.Event()

    # -- in

    async def receive(self) -> bytes:
        """Some bytes.

        Raises:
            Ended: the peer has ended its side.
            TransportClosed: the connection broke.
        """
        data = await self.transport.receive()
        if not data:
            raise Ended
        return data

    async def feed(self, take: Callable[[bytes], int]) -> None:
        """Give `take`, which does not wait, what arrives, until it returns False.

        Raises:
            Ended: the peer has ended its side.
            Stopped: `stop_listening` was called.
            TransportClosed: the connection broke.
        """
        with trio.CancelScope() as self._listening:
            if self._is_stopped:
                raise Stopped
            if not await self.transport.feed(take):
                raise Ended
        if self._listening.cancelled_caught:
            raise Stopped

    @contextmanager
    def not_listening(self) -> Iterator[None]:
        """Nothing is received meanwhile, so the peer's silence means nothing."""
        self._is_listening = False
        try:
            yield
        finally:
            self._is_listening = True

    def stop_listening(self) -> None:
        """Take nothing more from the peer than what has arrived."""
        self._is_stopped = True
        self._listening.cancel()

    async def farewell(self) -> None:
        """Send what waits to be sent, and tell the peer that nothing follows.

        Raises:
            TransportClosed: the peer is gone.
        """
        await self.outbox.emptied()
        if not self.outbox.is_idle:  # a chunk is being sent
            self._quiet = trio.Event()
            await self._quiet.wait()
        self.transport.end_sending()
        await self.linger()

    async def linger(self, seconds: float = LINGER_SECONDS) -> None:
        """Read and discard what the peer still sends, for a moment.

        Closing with unread input would destroy what the peer has not read yet; see
        RFC 1122, 4.2.2.13.

        Raises:
            TransportClosed: the peer is gone.
        """
        with trio.move_on_after(seconds):
            while await self.transport.receive():
                pass

    # -- out

    def is_clear(self) -> bool:
        """Whether bytes sent now would be on their way at once."""
        return self.outbox.is_free and not self.transport.is_congested

    async def write(self, sender: Sender) -> None:
        """Send, one thing at a time, so that frames never mix; until cancelled.

        Raises:
            TransportClosed: the peer is gone.
        """
        outbox = self.outbox
        while True:
            data = outbox.take()
            if data:
                await self.transport.send(data)
                outbox.sent()
                self._has_sent = True
            elif sender.has_pending:
                await sender.send_next(self.transport)
                self._has_sent = True
                await trio.lowlevel.checkpoint()  # a fast peer must not keep others waiting
            else:
                self._quiet.set()
                await outbox.idle()

    def _send_some(self, parts: Sequence[Buffer]) -> int:
        """Send what the peer takes at once; if it is gone, `write` will notice."""
        try:
            sent = self.transport.send_some(parts)
        except TransportClosed:
            return 0
        self._has_sent = True
        return sent

    # -- life

    async def watch(self, interval: int) -> None:
        """Send signs of life when nothing else is sent, and end when none come.

        The peer is not blamed for silence while the server itself does not listen.

        Args:
            interval: agreed, in seconds; 0 for none.

        Raises:
            Ended: nothing came for two intervals.
        """
        silent, num_reads = 0, self.transport.num_reads
        while interval:
            for _ in range(2):
                await trio.sleep(interval / 2)
                if not self._has_sent and self.outbox.is_empty:
                    self.outbox.put(self._heartbeat)
                self._has_sent = False
            before, num_reads = num_reads, self.transport.num_reads
            is_alive = num_reads != before or not self._is_listening
            silent = 0 if is_alive else silent + 1
            if silent >= _MISSED_HEARTBEATS:
                logger.info("%s: no sign of life in %s s", self.transport.peer, 2 * interval)
                raise Ended

    async def refused(self, reason: BaseException, *, waits: bool) -> None:
        """Log why the peer may not enter; the answer to a wrong password is delayed."""
        logger.warning("%s: login refused, %s", self.transport.peer, reason)
        if waits:
            await trio.sleep(REFUSAL_SECONDS)
