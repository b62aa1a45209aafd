"""AMQP 1.0 clients meet the same server whether a door is between them or not."""

import pytest

from tests.connections.amqp091.conftest import server
from tests.support.amqp10 import Amqp10Peer, open_peer
from tests.support.server import Harness

__all__ = ["server"]


@pytest.fixture
async def peer(server: Harness) -> Amqp10Peer:
    """A peer with a session, and stream s."""
    await (await server.peer()).create("s")
    return await open_peer(server)
