"""Passing bytes on: whatever one connection says, another one is told, and the other way round.

A side that is slow slows down the other one: nothing is read that cannot be sent on. When one side
has ended its half, the other one is told, and may go on with its own.
"""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import trio

from streamd.config import CLOSE_SECONDS
from streamd.net.tls import TlsTransport, inside_tls
from streamd.net.transport import SocketTransport, Transport, TransportClosed

Carry: TypeAlias = Callable[[Transport, Transport], Awaitable[None]]

_CONNECT_SECONDS = 5.0
_STUCK_SECONDS = 300.0  # for which one takes nothing, and says nothing either: it has gone


async def carry(source: Transport, target: Transport) -> None:
    """Send on what comes, as it is, until the source has ended its half.

    Raises:
        TransportClosed: one of both is gone.
    """
    while data := await source.receive():
        await target.send(data)
    target.end_sending()


async def pass_on(
    client: Transport, server: Transport, inward: Carry = carry, outward: Carry = carry
) -> None:
    """Serve a client until one of both has gone, or both have ended; both are closed on return.

    Args:
        client: has connected to us.
        server: serves it.
        inward: carries what the client says.
        outward: carries what the server says.
    """
    try:
        async with trio.open_nursery() as watching:
            watching.start_soon(_end_when_stuck, client, server, watching.cancel_scope)
            async with trio.open_nursery() as nursery:

                async def answer() -> None:
                    await outward(server, client)
                    # The server is done with it: what the client still says reaches nobody.
                    nursery.cancel_scope.deadline = trio.current_time() + CLOSE_SECONDS

                nursery.start_soon(answer)
                await inward(client, server)
            watching.cancel_scope.cancel()
    except* TransportClosed:
        pass
    finally:
        client.close()
        server.close()


async def _end_when_stuck(client: Transport, server: Transport, both: trio.CancelScope) -> None:
    """Whoever waits for one that takes nothing does not see that the other has gone."""
    before = None
    while True:
        await trio.sleep(_STUCK_SECONDS)
        now = client.num_reads, server.num_reads
        if now == before and (client.is_congested or server.is_congested):
            both.cancel()
        before = now


async def connect(host: str, port: int, certificate: str = "") -> Transport:
    """A connection to another server.

    Args:
        host: where it listens.
        port: on which port.
        certificate: SHA-256 of the one that it has to show, in hex; empty for one without TLS.

    Raises:
        OSError: there is nobody, somebody else, or no way.
    """
    try:
        with trio.fail_after(_CONNECT_SECONDS):
            stream = await trio.open_tcp_stream(host, port)
            if certificate:
                return TlsTransport(await inside_tls(stream, certificate))
            return SocketTransport(stream, None)
    except trio.BrokenResourceError as error:
        raise OSError(f"{host}:{port} does not speak TLS") from error
    except trio.TooSlowError:
        raise TimeoutError(f"{host}:{port} does not answer") from None
