"""A door that sends what is none: its connection ends, and nothing else."""

import pytest
import trio

from streamd.server import AMQP, AMQP_IN_DOORS
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import FRAME_HEAD, encode_method
from streamd.wire.amqp091.converted import ACKS, BATCH, RUN, Stored, run_frame
from tests.support.amqp import AmqpPeer
from tests.support.server import Harness

pytestmark = pytest.mark.trio
MESSAGE = b"\0Su\xa0\1x"
RUN_OF_3 = run_frame(
    1, encode_method(m.BasicPublish(0, "", "s", False, False)), [Stored(MESSAGE, 1, b"", b"")] * 3
)
CUT = RUN_OF_3[FRAME_HEAD.size : -5]


@pytest.fixture
async def two(server: Harness) -> list[AmqpPeer]:
    """A peer, and one behind a door: both publish to s."""
    peers = [AmqpPeer(server.dial(AMQP)), AmqpPeer(server.dial(AMQP_IN_DOORS))]
    for peer in peers:
        await peer.log_in()
        await peer.open()
        await peer.declare("s")
        await peer.confirm()
    return peers


@pytest.mark.parametrize(
    "frame",
    [
        FRAME_HEAD.pack(RUN, 1, len(CUT)) + CUT + b"\xce",
        FRAME_HEAD.pack(RUN, 1, 0) + b"\xce",
        FRAME_HEAD.pack(RUN, 1, 9) + b"\xff" * 9 + b"\xce",
        FRAME_HEAD.pack(ACKS, 1, 5) + bytes(5) + b"\xce",
        FRAME_HEAD.pack(BATCH, 1, 0) + b"\xce",
    ],
    ids=["cut", "empty", "noise", "acks", "batch"],
)
async def test_what_is_no_run_ends_the_connection_alone(two: list[AmqpPeer], frame: bytes) -> None:
    other, behind = two
    await behind.send_bytes(RUN_OF_3)
    assert await behind.expect(m.BasicAck) == m.BasicAck(3, True)
    await behind.send_bytes(RUN_OF_3 + frame)
    closed = await behind.expect(m.ConnectionClose)
    assert closed.code == 501
    await other.publish("s", b"y")
    assert await other.expect(m.BasicAck) == m.BasicAck(1, False)
    assert (await other.declare("s")).messages == 7


async def test_a_door_that_goes_takes_its_connection_alone(
    server: Harness, two: list[AmqpPeer]
) -> None:
    other, behind = two
    await behind.send_bytes(RUN_OF_3 + RUN_OF_3[:-1])  # of the second one the end is missing
    await behind.expect(m.BasicAck)
    await behind.stream.aclose()
    with trio.fail_after(60):
        while len(list(server.server.connections)) > 1:
            await trio.sleep(0.1)
    await other.publish("s", b"y")
    await other.expect(m.BasicAck)
    assert (await other.declare("s")).messages == 4
