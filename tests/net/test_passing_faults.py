"""A client that takes nothing, passed on to a server that has gone."""

import trio
from trio.testing import lockstep_stream_pair, memory_stream_pair

from streamd.net.passing import pass_on
from tests.support.server import MemoryTransport


class _Full(MemoryTransport):
    """A client that takes nothing."""

    is_congested = True


async def test_a_client_that_reads_nothing_ends_with_its_server() -> None:
    _peer, client = lockstep_stream_pair()
    leader, server = memory_stream_pair()
    await leader.send_all(b"more than the client takes")
    await leader.aclose()
    with trio.move_on_after(3_600) as waited:
        await pass_on(_Full(client), MemoryTransport(server))
    assert not waited.cancelled_caught
