"""A connection at a port of AMQP: the first bytes decide which AMQP it is.

What begins as neither is answered by AMQP 0-9-1, with the header that it expects.
"""

import trio

from streamd.config import LOGIN_SECONDS
from streamd.connections.amqp091.connection import Amqp091Connection
from streamd.connections.amqp10.connection import Amqp10Connection
from streamd.connections.services import Connection, Services
from streamd.net.transport import Transport, TransportClosed
from streamd.wire.amqp10.codec import is_amqp10


class AmqpPort:
    """See services.Connection.

    Args:
        is_relayed: a door is between this end and the client.
    """

    def __init__(self, transport: Transport, services: Services, *, is_relayed: bool) -> None:
        self._transport = transport
        self._services = services
        self._is_relayed = is_relayed
        self._chosen: Connection | None = None

    @property
    def is_open(self) -> bool:
        """Somebody has logged in."""
        return self._chosen is not None and self._chosen.is_open

    async def run(self) -> None:
        """See services.Connection."""
        try:
            with trio.move_on_after(LOGIN_SECONDS):
                await self._choose()
        except TransportClosed:
            pass
        finally:
            if self._chosen is None:
                self._transport.close()
        if self._chosen is not None:
            await self._chosen.run()

    async def _choose(self) -> None:
        received = await self._begin()
        if not received:
            return
        if is_amqp10(received):
            self._chosen = Amqp10Connection(self._transport, self._services, received)
        else:
            self._chosen = Amqp091Connection(
                self._transport, self._services, received, is_relayed=self._is_relayed
            )

    async def _begin(self) -> bytes:
        """What the client has sent, once it is clear what it speaks; empty if it has gone."""
        received = b""
        while is_amqp10(received) is None:
            data = await self._transport.receive()
            if not data:
                return b""
            received += data
        return received

    async def stop(self) -> None:
        """See services.Connection."""
        if self._chosen is not None:
            await self._chosen.stop()


def make_connection(
    transport: Transport,
    services: Services,
    announced: tuple[str, int],  # noqa: ARG001 - AMQP clients are not told where the server is
    *,
    is_relayed: bool = False,
) -> AmqpPort:
    """See services.MakeConnection; `is_relayed` as for AmqpPort."""
    return AmqpPort(transport, services, is_relayed=is_relayed)
