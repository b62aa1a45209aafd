"""A connection that a node which stands by passes on: the leader serves it.

Nothing of it is looked at, and what is inside TLS is the leader's to read: it shows its own
certificate. A client that comes while nobody leads waits a moment for who will, and is served here
then; when the leader has gone, its connections are closed, and clients come back.
"""

import logging
import math
from contextlib import suppress
from typing import NamedTuple

import trio

from streamd.config import ARRIVED_SECONDS, LOGIN_SECONDS
from streamd.connections.services import Connection
from streamd.net import passing
from streamd.net.transport import Address, Transport, TransportClosed
from streamd.operations.cluster import NodeReports

logger = logging.getLogger(__name__)

_WAIT_SECONDS = 2.0  # for a leader: who looks whether this server is alive waits for five
_PAUSE_SECONDS = 0.1  # before another attempt; twice as long each time
_QUIET_SECONDS = 1  # in which the leader answers what it was asked
_LOGIN_SECONDS = 3 * LOGIN_SECONDS  # the leader ends those who have not logged in by then
_MEANWHILE_SECONDS = 60.0


class Found(NamedTuple):
    """What came of looking for the leader.

    Attributes:
        start: of the leader's process; empty while nobody leads.
        transport: to it; None where it is not reached.
    """

    start: str
    transport: Transport | None


class Passage:
    """Passes a connection on; see services.Connection.

    It ends when another node leads: one that has lost its machine closes no connection.

    Args:
        client: closed when `run` returns.
        leader: the same.
        start: of the leader.
        node: knows who leads.
    """

    def __init__(self, client: Transport, leader: Transport, start: str, node: NodeReports) -> None:
        self._client, self._leader, self._start, self._node = client, leader, start, node
        self._began = trio.current_time()
        self._asking, self._has_ended = trio.CancelScope(), trio.Event()

    @property
    def is_open(self) -> bool:
        """The client has logged in, or the leader would have ended it."""
        return trio.current_time() - self._began > _LOGIN_SECONDS

    async def run(self) -> None:
        """See services.Connection."""
        async with trio.open_nursery() as nursery:

            async def end() -> None:
                await another_leads(self._node, self._start)
                nursery.cancel_scope.cancel()

            nursery.start_soon(end)
            try:
                await passing.pass_on(self._client, self._leader, self._ask)
            finally:
                self._has_ended.set()
            nursery.cancel_scope.cancel()

    async def _ask(self, client: Transport, leader: Transport) -> None:
        with self._asking:
            await passing.carry(client, leader)
        if self._asking.cancelled_caught:
            with trio.move_on_after(ARRIVED_SECONDS):
                before = -1
                while before != leader.num_reads:
                    before = leader.num_reads
                    await trio.sleep(_QUIET_SECONDS)
            leader.end_sending()  # it gives nothing more then

    async def stop(self) -> None:
        """See services.Connection; the leader gives what is due: until it is quiet, or a while."""
        self._asking.cancel()
        await self._has_ended.wait()


class Meanwhile:
    """A connection that is served here while nobody leads, or the leader is not reached.

    It ends when somebody else leads, or after a while: its client comes again.

    Args:
        node: knows who leads.
        start: of the leader that was not reached; empty for none.
        connection: is served.
    """

    def __init__(self, node: NodeReports, start: str, connection: Connection) -> None:
        self._node, self._start, self._connection = node, start, connection

    @property
    def is_open(self) -> bool:
        """See services.Connection."""
        return self._connection.is_open

    async def run(self) -> None:
        """See services.Connection."""
        async with trio.open_nursery() as nursery:

            async def end() -> None:
                with trio.move_on_after(_MEANWHILE_SECONDS if self._start else math.inf):
                    await another_leads(self._node, self._start)
                if self._connection.is_open:
                    await self._connection.stop()
                nursery.cancel_scope.cancel()

            nursery.start_soon(end)
            await self._connection.run()
            nursery.cancel_scope.cancel()

    async def stop(self) -> None:
        """See services.Connection."""
        await self._connection.stop()


async def another_leads(node: NodeReports, start: str) -> None:
    """Return when a process leads that is not the one that began as `start`."""
    while True:
        leader = node.served_by()
        if leader is None or leader.start not in ("", start):
            return
        await node.leader_changed()


async def reach(node: NodeReports, listener: str, peer: Address, *, is_local: bool) -> Found:
    """Connect a client that has come to a node which stands by to the leader.

    Args:
        node: knows who leads.
        listener: that the client has connected to, by its name.
        peer: the client.
        is_local: it is on this machine.

    Raises:
        TransportClosed: the leader does not serve it; the log says why.
    """
    start, pause = "", _PAUSE_SECONDS
    with trio.move_on_after(_WAIT_SECONDS):
        while True:
            leader = node.served_by()
            if leader is not None and leader.name:
                address, start = leader.addresses.get(listener), leader.start
                if address is None:
                    text = "%s: refused, node %s, which leads, does not listen for %s"
                    logger.warning(text, peer, leader.name, listener)
                    raise TransportClosed
                with suppress(OSError):
                    transport = await passing.connect(*address)
                    _check(transport, peer, is_local=is_local)
                    return Found(start, transport)
            await trio.sleep(pause)
            pause *= 2
    return Found(start, None)


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
