"""Moving bytes over one connection: a socket here, pipes in memory in the tests.

The socket is used directly, not through trio's wrapper: each call is tried at once and only waits
when the kernel says so, which saves a turn of the event loop per call. Whoever sends in a loop
yields by itself (see duplex.py).
"""

import fcntl
import os
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from enum import Enum, IntEnum
from typing import NamedTuple, Protocol

import trio
from outcome import Error, Outcome, Value

from segments.disk import Buffer, File
from segments.errors import UNREADABLE
from streamd.config import RECEIVE_BYTES
from streamd.net.addresses import is_local_address

_SENDFILE_MOST = 0x7FFFF000  # Linux sends no more in one call
# The kernel says "writable" while fewer bytes than this are waiting to be sent: enough to keep a
# fast peer busy, little enough that an answer does not queue behind megabytes of chunks. It must
# stay above a whole packet (64 KiB on loopback): a send that ran full leaves up to a packet
# waiting for more, and with trio's default of 16 KiB more would never be asked for.
_UNSENT_BYTES = 256 << 10
_UNSENT_QUESTION = 0x894B if sys.platform == "linux" else None  # SIOCOUTQNSD: unsent bytes
_INT = struct.Struct("@i")
_UNSENT_OPTION = getattr(socket, "TCP_NOTSENT_LOWAT", None)
# Seconds of silence, between questions, and how many go unanswered: then the connection is over.
_KEEP_ALIVE = (("TCP_KEEPIDLE", 120), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 4))
_MORE = getattr(socket, "MSG_MORE", 0)  # Linux: do not send a small packet yet


class TransportClosed(Exception):
    """The peer is gone; there is nobody left to tell."""


class FileUnreadable(TransportClosed):
    """A file does not have the bytes that were promised to the peer: the connection is over."""


class Address(NamedTuple):
    """One end of a connection, or where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Listening(IntEnum):
    """Whether who has taken some bytes takes more; a truth value will do."""

    NO = 0
    YES = 1
    LATER = 2  # and what comes next may be read a moment later, together with others'


class Found(Enum):
    """What a connection had when a poller has read it."""

    ALL = "all there was was taken"
    PATIENT = "the same, and what comes next may be read a moment later"
    MORE = "as much as may be taken in a round was taken"


class Transport(Protocol):
    """A connection to one peer.

    Attributes:
        local: host and port of this end.
        is_local: the peer is on this machine.
        is_tls: the bytes are encrypted on their way.
        certificate_user: the name in its verified certificate; None without one.
        num_reads: how often something was received: a peer that is silent adds nothing.
    """

    num_reads: int
    peer: Address
    local: Address
    is_local: bool
    is_tls: bool
    certificate_user: str | None

    async def receive(self) -> bytes:
        """Some bytes, at most RECEIVE_BYTES; empty when the peer has ended its side.

        Raises:
            TransportClosed: the connection broke.
        """

    async def feed(self, take: Callable[[bytes], int]) -> bool:
        """Give `take` what arrives, until it returns False; then return True.

        False when the peer has ended its side.

        Args:
            take: does not wait; see Listening. What it raises is raised here.

        Raises:
            TransportClosed: the connection broke.
        """

    def hurry(self) -> None:
        """What comes next must not be read later; see Listening."""

    def send_some(self, parts: Sequence[Buffer]) -> int:
        """Send as much as can be sent without waiting; returns how many bytes that was.

        Raises:
            TransportClosed: the connection broke.
        """

    async def send(self, *parts: Buffer, more: bool = False) -> None:
        """Send all parts; `more` says that more follows at once. When cancelled, some may be sent.

        Raises:
            TransportClosed: the connection broke.
        """

    async def send_file(self, file: File, position: int, size: int) -> None:
        """Send `size` bytes of a file from `position`. When cancelled, part may be sent.

        Raises:
            FileUnreadable: the file is shorter than it was, or the device cannot read it.
            TransportClosed: the connection broke.
        """

    @property
    def is_congested(self) -> bool:
        """The peer takes less than it is sent: more would have to be held here."""

    async def drained(self) -> None:
        """Return when the peer has taken most of what was sent.

        Raises:
            TransportClosed: the connection broke.
        """

    def end_sending(self) -> None:
        """Tell the peer that nothing more follows."""

    def close(self) -> None:
        """End the connection at once."""


class _Settable(Protocol):
    def setsockopt(self, level: int, option: int, value: int, /) -> object: ...


def keep_alive(connection: _Settable) -> None:
    """Enable TCP keep-alive, so that the kernel notices peers that vanished."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def set_unsent_limit(connection: _Settable) -> None:
    """Set how little must be unsent before the kernel says "writable"."""
    if _UNSENT_OPTION is not None:
        connection.setsockopt(socket.IPPROTO_TCP, _UNSENT_OPTION, _UNSENT_BYTES)


def unsent_is_high(descriptor: int) -> bool:
    """Whether a socket holds so much unsent that it is not writable."""
    return _unsent(descriptor) >= _UNSENT_BYTES


def _unsent(descriptor: int, question: int | None = _UNSENT_QUESTION) -> int:
    """Bytes that a socket holds unsent; 0 where the system does not say."""
    if question is None:
        return 0
    try:
        answer = fcntl.ioctl(descriptor, question, bytes(_INT.size))
    except OSError:
        return 0  # the next send says what is wrong
    return int(_INT.unpack(answer)[0])


_buffer = bytearray(RECEIVE_BYTES)  # one for all: what is received is copied out before any await
_view = memoryview(_buffer)


class Readers(Protocol):
    """A poller, as far as a transport is concerned; see poller.Poller."""

    def watch(self, descriptor: int, read: Callable[[int], Found]) -> None:
        """Call `read` whenever there is something to be read; it neither waits nor raises.

        It is told how many bytes it may take.
        """

    def hurry(self, descriptor: int) -> None:
        """Read it without further delay, and keep rounds short for a while."""

    def unwatch(self, descriptor: int) -> None:
        """Call it no more."""


class PolledFeed:
    """`Transport.feed` for a connection that a poller reads.

    Theory of operation. The task that feeds sleeps, and the poller calls `_read` in its rounds: the
    bytes are taken in the poller's task, and the sleeping one is woken only when `take` has had
    enough, the peer has ended its side, or something went wrong. Whatever `_read` meets becomes
    the outcome of the sleeping task, so an error is raised where it belongs, and not in the
    poller. A task is woken once: it is forgotten before it is rescheduled, so that a cancellation
    that comes first finds nobody to wake.

    Args:
        poller: calls when there is something to be read.
        receive_some: what has arrived, at most so many bytes; empty at its end, None for nothing
            now. Raises OSError.
    """

    def __init__(
        self, poller: Readers, descriptor: int, receive_some: Callable[[int], bytes | None]
    ) -> None:
        self._poller = poller
        self._descriptor = descriptor
        self._receive_some = receive_some
        self._feeding: tuple[trio.lowlevel.Task, Callable[[bytes], int]] | None = None
        self._is_patient = False

    async def feed(self, take: Callable[[bytes], int]) -> bool:
        """See Transport."""
        try:
            self._poller.watch(self._descriptor, self._read)
        except OSError as error:  # the kernel has no room for one more
            raise _closed(error) from error
        self._feeding = trio.lowlevel.current_task(), take  # only now it can be woken

        def give_up(_: object) -> trio.lowlevel.Abort:
            self._forget()
            return trio.lowlevel.Abort.SUCCEEDED

        return bool(await trio.lowlevel.wait_task_rescheduled(give_up))

    def _read(self, most: int) -> Found:
        """Called by the poller: read once; the task goes on when it has something to do."""
        if self._feeding is None:
            return Found.ALL
        task, take = self._feeding
        found = Found.ALL
        result: Outcome[bool]
        try:
            data = self._receive_some(most)
            if data is None:
                return Found.PATIENT if self._is_patient else Found.ALL
            if len(data) == most:
                found = Found.MORE
            listens = take(data) if data else Listening.NO
            if listens:
                self._is_patient = listens == Listening.LATER
                return Found.PATIENT if self._is_patient else found
            result = Value(bool(data))
        except OSError as error:
            result = Error(_closed(error))
        except Exception as error:  # noqa: BLE001 - its task knows what to do with it
            result = Error(error)
        self._wake(task, result)
        return found

    def hurry(self) -> None:
        """See Transport."""
        self._is_patient = False
        self._poller.hurry(self._descriptor)

    def close(self) -> None:
        """The connection is closed from this side."""
        if self._feeding is not None:
            self._wake(self._feeding[0], Error(TransportClosed("closed from this side")))

    def _wake(self, task: trio.lowlevel.Task, result: Outcome[bool]) -> None:
        if self._feeding is not None:  # else `take` has closed it
            self._forget()
            trio.lowlevel.reschedule(task, result)

    def _forget(self) -> None:
        self._feeding, self._is_patient = None, False
        self._poller.unwatch(self._descriptor)


def _closed(error: OSError) -> TransportClosed:
    closed = TransportClosed(str(error))
    closed.__cause__ = error
    return closed


async def feed_from(receive: Callable[[], Awaitable[bytes]], take: Callable[[bytes], int]) -> bool:
    """`Transport.feed` without a poller: wait for this socket alone."""
    while data := await receive():
        if not take(data):
            return True
    return False


class SocketTransport:
    """A TCP connection; see Transport.

    Args:
        stream: as trio accepted it; its socket is taken over.
        poller: waits for what arrives; None where there is none.
    """

    is_tls = False
    certificate_user: str | None = None

    _question, _most_unsent = _UNSENT_QUESTION, _UNSENT_BYTES

    def __init__(self, stream: trio.SocketStream, poller: Readers | None) -> None:
        self.peer = Address(*stream.socket.getpeername()[:2])
        self.local = Address(*stream.socket.getsockname()[:2])
        self.is_local = is_local_address(self.peer.host)
        self._take_over(socket.socket(fileno=stream.socket.detach()), poller)
        set_unsent_limit(self._socket)
        keep_alive(self._socket)

    def _take_over(self, connected: socket.socket, poller: Readers | None) -> None:
        self.num_reads = 0
        self._socket = connected
        self._socket.setblocking(False)
        self._unsent_at_most = 0  # what was unsent when the kernel was asked, and all sent since
        descriptor = self._socket.fileno()
        self._polled = (
            None if poller is None else PolledFeed(poller, descriptor, self._receive_some)
        )

    async def receive(self) -> bytes:  # noqa: D102 - see Transport
        try:
            data = self._receive_some()
            if data is None:
                while data is None:
                    await trio.lowlevel.wait_readable(self._socket)
                    data = self._receive_some()
            else:
                await trio.lowlevel.checkpoint()  # others have a turn, too
        except (OSError, trio.ClosedResourceError) as error:
            raise TransportClosed from error
        return data

    async def feed(self, take: Callable[[bytes], int]) -> bool:  # noqa: D102 - see Transport
        if self._polled is None:
            return await feed_from(self.receive, take)
        return await self._polled.feed(take)

    def hurry(self) -> None:  # noqa: D102 - see Transport
        if self._polled is not None:
            self._polled.hurry()

    def _receive_some(self, most: int = RECEIVE_BYTES) -> bytes | None:
        try:
            size = self._socket.recv_into(_buffer, most)
        except BlockingIOError:
            return None
        self.num_reads += 1
        return bytes(_view[:size])

    async def send(self, *parts: Buffer, more: bool = False) -> None:  # noqa: D102
        flags = _MORE if more else 0
        sent = self.send_some(parts, flags)
        if sent == sum(map(len, parts)):
            return
        rest = memoryview(b"".join(parts))[sent:]
        while rest:
            await self.drained()
            rest = rest[self.send_some((rest,), flags) :]

    def send_some(self, parts: Sequence[Buffer], flags: int = 0) -> int:  # noqa: D102
        try:
            sent = self._socket.sendmsg(parts, (), flags)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise TransportClosed from error
        self._unsent_at_most += sent
        return sent

    async def send_file(self, file: File, position: int, size: int) -> None:  # noqa: D102
        end = position + size
        try:
            while position < end:
                count = min(end - position, _SENDFILE_MOST)
                try:
                    sent = os.sendfile(self._socket.fileno(), file.fileno(), position, count)
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(self._socket)
                    continue
                if not sent:  # the frame's length is already promised
                    raise FileUnreadable(f"{file.path} ends before byte {end}")
                position += sent
                self._unsent_at_most += sent
        except trio.ClosedResourceError as error:
            raise TransportClosed from error
        except OSError as error:
            if error.errno in UNREADABLE:
                raise FileUnreadable(f"{file.path}: {error.strerror}") from error
            raise TransportClosed from error

    @property
    def is_congested(self) -> bool:  # noqa: D102 - see Transport
        if self._unsent_at_most < self._most_unsent:
            return False  # without a question to the kernel, for all that send little
        self._unsent_at_most = _unsent(self._socket.fileno(), self._question)
        return self._unsent_at_most >= self._most_unsent

    async def drained(self) -> None:  # noqa: D102 - see Transport
        try:
            await trio.lowlevel.wait_writable(self._socket)
        except (OSError, trio.ClosedResourceError) as error:
            raise TransportClosed from error

    def end_sending(self) -> None:  # noqa: D102 - see Transport
        with suppress(OSError):  # it has gone
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:  # noqa: D102 - see Transport
        if self._polled is not None:
            self._polled.close()
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()
