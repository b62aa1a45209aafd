"""AMQP 0-9-1: sessions with bytes changed, left out, put in and swapped. The server stays, and no
connection ends by an error of our own."""

import logging
import random

import pytest
import trio

from streamd.amqp091 import methods as m
from streamd.amqp091.codec import PROTOCOL_HEADER, method_frame
from streamd.amqp091.values import Field
from tests.support.amqp import FIRST, STREAM, AmqpPeer, connect, declare, fields, open_peer
from tests.support.server import Harness

SESSIONS = 400
HEADERS = fields(a=1, x_stream_filter_value="v", list=[1, "a"], CC=["s"]) | {
    "t": Field("F", {"x": Field("T", 5), "d": Field("d", 1.5)}),
    "x-t": Field("F", {"x": Field("T", 5), "f": Field("f", 1.5)}),
}


def frames(peer: AmqpPeer) -> list[bytes]:
    """A session that does something of everything."""
    login = (
        m.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US"),
        m.ConnectionTuneOk(2047, 131_072, 0),
        m.ConnectionOpen("/", "", True),
    )
    requests = (
        m.ChannelOpen(),
        m.ConfirmSelect(False),
        declare("s"),
        declare("f", STREAM | fields(x_stream_filter_property="a", x_max_age="1h")),
        m.ExchangeDeclare(0, "x", "headers", False, False, True, False, False, {}),
        m.QueueBind(0, "s", "x", "k", False, fields(a=1)),
        m.ExchangeBind(0, "x", "amq.topic", "k.#", False, {}),
    )
    places = (("s", ""), ("f", ""), ("", "x"), ("k.z", "amq.topic"), ("none", ""))
    consume = (
        m.BasicQos(0, 3, False),
        m.BasicConsume(0, "s", "c", False, False, False, False, FIRST),
        m.BasicConsume(
            0, "f", "d", False, False, False, False, FIRST | fields(x_stream_filter=["1"])
        ),
        m.BasicConsume(
            0, "s", "e", False, False, False, False, FIRST | fields(x_stream_sql="a = 1")
        ),
        m.BasicAck(1, False),
        m.BasicNack(0, True, True),
        m.BasicRecover(True),
        m.BasicCancel("c", False),
        m.QueueUnbind(0, "s", "x", "k", fields(a=1)),
        m.QueueDelete(0, "s", False, False, False),
        m.ExchangeDelete(0, "x", False, False),
        m.ChannelClose(200, "", 0, 0),
    )
    properties = {"content_type": "a/b", "expiration": "5", "message_id": "m", "headers": HEADERS}
    return [
        PROTOCOL_HEADER,
        *(method_frame(0, method) for method in login),
        *(method_frame(1, method) for method in requests),
        *(
            peer.message(key, b"body", exchange=exchange, mandatory=True, **properties)
            for key, exchange in places
        ),
        *(method_frame(1, method) for method in consume),
        method_frame(0, m.ConnectionClose(200, "", 0, 0)),
    ]


def _consume(queue: str, tag: str, **arguments: object) -> m.BasicConsume:
    return m.BasicConsume(0, queue, tag, False, False, False, False, FIRST | fields(**arguments))


def changed(session: list[bytes], chance: random.Random) -> bytes:
    """Behind the login mostly: there is more to break."""
    session = list(session)
    first = 0 if chance.random() < 0.1 else 4
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(first, len(session))
        frame = bytearray(session[at])
        place = chance.randrange(len(frame)) if frame else 0
        match chance.randrange(5):
            case 0 if frame:
                frame[place] = chance.randrange(256)
            case 1 if frame:
                frame[place] ^= 1 << chance.randrange(8)
            case 2:
                frame.insert(place, chance.randrange(256))
            case 3:
                other = chance.randrange(first, len(session))
                session[at], session[other] = session[other], session[at]
                continue
            case _:
                del frame[place : place + 1]
        session[at] = bytes(frame)
    return b"".join(session)


async def test_whatever_is_sent(server: Harness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "streamd.access")
    chance = random.Random(7)
    witness = await open_peer(server)
    for _ in range(SESSIONS):
        peer = connect(server)
        with trio.move_on_after(20) as waiting:
            try:
                await peer.send_bytes(changed(frames(peer), chance))
                await peer.stream.send_stream.aclose()
                while await peer.stream.receive_some(1 << 20):
                    pass
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
        assert not waiting.cancelled_caught, "the connection does not end"
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []
    await witness.declare("still-there")
