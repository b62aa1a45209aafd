"""A connection that a node which stands by passes on: the leader serves it.

Nothing of it is looked at, and what is inside TLS is the leader's to read: it shows its own
certificate. A client that comes while nobody leads waits for who will; when the leader has gone,
its connections are closed, and clients come back.
"""

import logging
from contextlib import suppress
from typing import NamedTuple

import trio

from streamd.connections.services import Connection
from streamd.net import passing
from streamd.net.transport import Address, Transport, TransportClosed
from streamd.operations.cluster import NodeReports

logger = logging.getLogger(__name__)

_WAIT_SECONDS = 20.0  # for a leader; a takeover takes some twelve
_PAUSE_SECONDS = 0.2
_MEANWHILE_SECONDS = 60.0


class Leader(NamedTuple):
    """A connection to the leader.

    Attributes:
        transport: to it.
        start: of its process.
    """

    transport: Transport
    start: str


class Passage:
    """Passes a connection on; see services.Connection.

    It ends when another node leads: one that has lost its machine closes no connection.

    Args:
        client: closed when `run` returns.
        leader: the same.
        node: knows who leads.
    """

    is_open = True  # what the leader asks of clients is its own affair

    def __init__(self, client: Transport, leader: Leader, node: NodeReports) -> None:
        self._client, self._leader, self._node = client, leader, node

    async def run(self) -> None:
        """See services.Connection."""
        async with trio.open_nursery() as nursery:

            async def end() -> None:
                while True:
                    leads = self._node.served_by()
                    if leads is None or leads.start not in ("", self._leader.start):
                        nursery.cancel_scope.cancel()
                    await self._node.leader_changed()

            nursery.start_soon(end)
            await passing.pass_on(self._client, self._leader.transport)
            nursery.cancel_scope.cancel()

    async def stop(self) -> None:
        """See services.Connection; the leader gives what is due."""
        self._client.close()


class Meanwhile:
    """A connection that is served here while nobody leads, or the leader is not reached.

    It ends when somebody leads, or after a while: its client comes again.

    Args:
        node: knows who leads.
        connection: is served.
    """

    def __init__(self, node: NodeReports, connection: Connection) -> None:
        self._node, self._connection = node, connection

    @property
    def is_open(self) -> bool:
        """See services.Connection."""
        return self._connection.is_open

    async def run(self) -> None:
        """See services.Connection."""
        async with trio.open_nursery() as nursery:

            async def end() -> None:
                with trio.move_on_after(_MEANWHILE_SECONDS):
                    await self._node.leader_changed()
                if self._connection.is_open:
                    await self._connection.stop()
                nursery.cancel_scope.cancel()

            nursery.start_soon(end)
            await self._connection.run()
            nursery.cancel_scope.cancel()

    async def stop(self) -> None:
        """See services.Connection."""
        await self._connection.stop()


async def reach(
    node: NodeReports, listener: str, peer: Address, *, is_local: bool
) -> Leader | None:
    """Connect a client that has come to a node which stands by to the leader.

    Args:
        node: knows who leads.
        listener: that the client has connected to, by its name.
        peer: the client.
        is_local: it is on this machine.

    Returns:
        None where nobody leads, or is reached, for longer than a client is to wait.

    Raises:
        TransportClosed: the leader does not serve it; the log says why.
    """
    with trio.move_on_after(_WAIT_SECONDS):
        while True:
            leader = node.served_by()
            if leader is not None and leader.name:
                address = leader.addresses.get(listener)
                if address is None:
                    text = "%s: refused, node %s, which leads, does not listen for %s"
                    logger.warning(text, peer, leader.name, listener)
                    raise TransportClosed
                with suppress(OSError):
                    transport = await passing.connect(*address)
                    _check(transport, peer, is_local=is_local)
                    return Leader(transport, leader.start)
            await trio.sleep(_PAUSE_SECONDS)
    return None


def _check(leader: Transport, peer: Address, *, is_local: bool) -> None:
    """See that the leader, which knows by the address who comes from its own machine, is right.

    Raises:
        TransportClosed: it would be wrong about a client.
    """
    if leader.is_local and not is_local:
        text = "%s: refused, the leader is reached at %s, where all come from its own machine"
        logger.warning(text, peer, leader.peer)
        leader.close()
        raise TransportClosed
