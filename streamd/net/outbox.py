"""What waits to be sent to one peer besides chunks: answers, confirms, heartbeats."""

from collections.abc import Callable, Sequence

import trio

from segments.disk import Buffer
from streamd.config import OUTBOX_BYTES
from streamd.net.wakeup import Wakeup


class Outbox:
    """Frames in order, taken together.

    Args:
        work: woken when something was put in.
        send_some: sends what the peer takes at once, and returns how many bytes that was.

    Attributes:
        is_idle: the sender waits in `idle`, so nothing is half sent.
    """

    def __init__(self, work: Wakeup, send_some: Callable[[Sequence[Buffer]], int]) -> None:
        self.is_idle = False
        self._send_some = send_some
        self._frames: list[bytes] = []
        self._size = 0
        self._is_sending = False
        self._work = work
        self._sent = trio.lowlevel.ParkingLot()

    def put(self, frame: bytes) -> None:
        """Queue a whole frame. Never waits: the code that makes answers watches `room`."""
        self._frames.append(frame)
        self._size += len(frame)
        self._work.set()

    async def idle(self) -> None:
        """Return when there is work; what is put in meanwhile may be sent at once."""
        self.is_idle = True
        try:
            await self._work.wait()
        finally:
            self.is_idle = False

    @property
    def is_free(self) -> bool:
        """What is put in now is sent at once, as far as the peer takes it."""
        return self.is_idle and not self._frames

    def put_now(self, *parts: Buffer) -> None:
        """Send whole frames at once if nothing is queued before them, else queue them.

        This saves waking the task that sends, which costs more than the sending.
        """
        sent = 0 if self._frames or not self.is_idle else self._send_some(parts)
        if sent < sum(map(len, parts)):
            self.put(b"".join(parts)[sent:])

    def take(self) -> bytes:
        """All queued frames, to be sent now; empty when there are none."""
        if not self._frames:
            return b""
        data = self._frames[0] if len(self._frames) == 1 else b"".join(self._frames)
        self._frames.clear()
        self._is_sending = True
        return data

    def sent(self) -> None:
        """What `take` gave is on its way to the peer."""
        self._is_sending = False
        self._size = sum(map(len, self._frames))
        self._sent.unpark_all()

    def forget(self) -> None:
        """Give back what is queued: the connection has ended."""
        self._frames.clear()

    @property
    def is_empty(self) -> bool:
        """Nothing is queued and nothing is being sent."""
        return not (self._frames or self._is_sending)

    @property
    def has_frames(self) -> bool:
        """Something is queued."""
        return bool(self._frames)

    async def emptied(self) -> None:
        """Return once everything queued has been sent."""
        while not self.is_empty:
            await self._sent.park()

    @property
    def is_full(self) -> bool:
        """The queue is beyond its limit: a peer that reads nothing is not served."""
        return self._size > OUTBOX_BYTES

    async def room(self) -> None:
        """Return once the queue is within its limit."""
        while self.is_full:
            await self._sent.park()
