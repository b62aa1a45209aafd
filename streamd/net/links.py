"""A connection whose client is at another process: a socket pair, and what that one knows of it.

The process that has the client makes the pair, says into it who the client is, and gives the other
end away over a way of its own. What follows is the connection as if the client were here.
"""

import select
import socket
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec
import trio

from streamd.net.transport import Address, Readers, SocketTransport, Transport

_SIZE = struct.Struct(">I")
_MAX_BYTES = 64 << 10  # a name in a certificate has 64 characters
_AT_ONCE = 64  # ends that come together


class Client(msgspec.Struct, frozen=True, array_like=True):
    """What a process knows of its client; see Transport."""

    peer: tuple[str, int]
    local: tuple[str, int]
    is_local: bool
    is_tls: bool
    certificate_user: str | None


class LinkTransport(SocketTransport):
    """One end of such a connection; see Transport.

    Args:
        connected: the end, which is taken over.
        client: who is at the other process.
        poller: as for SocketTransport.
    """

    _question = 0x5411 if sys.platform == "linux" else None  # SIOCOUTQ: not yet read
    _most_unsent = 128 << 10  # the kernel keeps little more, and says "writable" at a quarter

    def __init__(  # no socket of TCP: it has neither addresses nor its options
        self, connected: socket.socket, client: Client, poller: Readers | None
    ) -> None:
        self.peer, self.local = Address(*client.peer), Address(*client.local)
        self.is_local, self.is_tls = client.is_local, client.is_tls
        self.certificate_user = client.certificate_user
        self._take_over(connected, poller)

    @property
    def has_been_left(self) -> bool:
        """The other process has closed its end; there may be something to be read still."""
        left = select.poll()
        left.register(self._socket, 0)
        return bool(left.poll(0))


async def give(way: socket.socket, transport: Transport) -> LinkTransport:
    """Pass a client on; returns the end that stays here.

    Args:
        way: to the process that serves it, which does not wait.
        transport: to the client.

    Raises:
        OSError: there are too many open files, or that process has gone.
    """
    client = Client(
        transport.peer,
        transport.local,
        transport.is_local,
        transport.is_tls,
        transport.certificate_user,
    )
    facts = msgspec.msgpack.encode(client)
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            ours.sendall(_SIZE.pack(len(facts)) + facts)
            while True:
                try:
                    socket.send_fds(way, [b"\0"], [theirs.fileno()])
                    break
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(way)
        except BaseException:
            ours.close()
            raise
    return LinkTransport(ours, client, None)


async def given(way: socket.socket, poller: Readers | None) -> AsyncIterator[LinkTransport]:
    """The clients that a process passes on, until it has gone.

    Args:
        way: from that process, which does not wait.
        poller: as for SocketTransport.
    """
    while True:
        await trio.lowlevel.wait_readable(way)
        try:
            said, descriptors, _, _ = socket.recv_fds(way, _AT_ONCE, _AT_ONCE)
        except BlockingIOError:
            continue
        except OSError:
            return
        for descriptor in descriptors:
            connected = socket.socket(fileno=descriptor)
            client = None
            with suppress(OSError, struct.error, msgspec.MsgspecError):
                (size,) = _SIZE.unpack(connected.recv(_SIZE.size, socket.MSG_DONTWAIT))
                facts = connected.recv(min(size, _MAX_BYTES), socket.MSG_DONTWAIT)
                client = msgspec.msgpack.decode(facts, type=Client)
            if client is None:  # that process has ended meanwhile
                connected.close()
            else:
                yield LinkTransport(connected, client, poller)
        if not said:
            return
