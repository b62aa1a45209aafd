"""The way in: each step, each refusal, and its time."""

import pytest
import trio

from streamd.wire.stream import ResponseCode, codec, commands as c
from streamd.wire.stream.fields import Pair
from tests.support.server import OK, Harness, Peer

GOOD = b"\0guest\0guest"


async def greeted(server: Harness, *, is_local: bool = True) -> Peer:
    """A peer that is about to prove who it is."""
    peer = server.connect(is_local=is_local)
    await peer.ask(c.PeerProperties, ())
    await peer.ask(c.SaslHandshake)
    return peer


async def test_what_the_server_says_of_itself(server: Harness) -> None:
    peer = server.connect()
    answer = await peer.ask(c.PeerProperties, (Pair("connection_name", "test"),))
    properties = dict(answer.properties)
    assert properties["product"] == "RabbitMQ"
    assert properties["version"] == "4.3.0"
    assert "streamd" in properties
    assert (await peer.ask(c.SaslHandshake)).mechanisms == ("PLAIN", "AMQPLAIN")
    await peer.send(c.SaslAuthenticate(7, "PLAIN", GOOD))
    assert await peer.next() == c.SaslAuthenticateResponse(7, OK)
    assert await peer.next() == c.Tune(1 << 20, 60)  # unasked
    await peer.send(c.Tune(1 << 20, 60))
    opened = await peer.ask(c.Open, "/")
    # Exactly these two: one client loses its place at any other.
    assert opened.properties == (("advertised_host", "localhost"), ("advertised_port", "5552"))


async def test_heartbeats_before_the_end_of_the_login_are_ignored(server: Harness) -> None:
    peer = server.connect()
    await peer.send(c.Heartbeat())
    await peer.log_in()
    await peer.send(c.Heartbeat())
    assert await peer.code(c.StreamStats, "none") == ResponseCode.STREAM_DOES_NOT_EXIST


@pytest.mark.parametrize("key", [0x0014, 0x8014])
async def test_both_keys_of_tune(server: Harness, key: int) -> None:
    peer = await greeted(server)
    await peer.ask(c.SaslAuthenticate, "PLAIN", GOOD)
    await peer.expect(c.Tune)
    tune = bytearray(peer.connection.send(c.Tune(1 << 20, 0)))
    tune[4:6] = key.to_bytes(2, "big")
    await peer.stream.send_all(tune)
    assert await peer.code(c.Open, "/") == OK


@pytest.mark.parametrize(
    ("mechanism", "data", "code", "seconds"),
    [
        ("PLAIN", b"\0guest\0wrong", ResponseCode.AUTHENTICATION_FAILURE, 3),
        ("PLAIN", b"\0nobody\0guest", ResponseCode.AUTHENTICATION_FAILURE, 3),
        ("PLAIN", "\0gäst\0gäst".encode(), ResponseCode.AUTHENTICATION_FAILURE, 3),
        ("PLAIN", b"", ResponseCode.SASL_ERROR, 0),
        ("PLAIN", b"guest\0guest", ResponseCode.SASL_ERROR, 0),
        ("PLAIN", b"someone\0guest\0guest", ResponseCode.SASL_ERROR, 0),
        ("PLAIN", b"\0guest\0guest\0", ResponseCode.SASL_ERROR, 0),
        ("SCRAM", GOOD, ResponseCode.SASL_MECHANISM_NOT_SUPPORTED, 0),
    ],
)
async def test_refused_credentials(
    server: Harness, mechanism: str, data: bytes, code: ResponseCode, seconds: int
) -> None:
    peer = await greeted(server)
    started = trio.current_time()
    assert await peer.code(c.SaslAuthenticate, mechanism, data) == code
    assert trio.current_time() - started == pytest.approx(seconds)
    await peer.ended()


async def test_the_default_user_comes_from_this_machine_only(server: Harness) -> None:
    peer = await greeted(server, is_local=False)
    code = await peer.code(c.SaslAuthenticate, "PLAIN", GOOD)
    assert code == ResponseCode.AUTHENTICATION_FAILURE_LOOPBACK
    await peer.ended()


async def test_an_unknown_virtual_host(server: Harness) -> None:
    peer = await greeted(server)
    await peer.ask(c.SaslAuthenticate, "PLAIN", GOOD)
    await peer.expect(c.Tune)
    await peer.send(c.Tune(1 << 20, 0))
    started = trio.current_time()
    answer = await peer.ask(c.Open, "/elsewhere")
    assert (answer.code, answer.properties) == (ResponseCode.VIRTUAL_HOST_ACCESS_FAILURE, ())
    assert trio.current_time() - started == pytest.approx(3)
    await peer.ended()


@pytest.mark.parametrize(
    "raw",
    [
        codec.encode(c.Open(1, "/")),
        codec.encode(c.Delete(1, "s")),
        codec.encode(c.Publish(1, 1, bytes(12))),
        codec.encode(c.Close(1, 1, "x")),
        bytes(4),
        b"\0\0\0\6\x75\x30\0\1xx",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS on the plain port
        b"GET / HTTP/1.1\r\n\r\n",
        (8193).to_bytes(4, "big"),
    ],
)
async def test_anything_else_ends_the_connection_without_a_word(
    server: Harness, raw: bytes
) -> None:
    peer = server.connect()
    await peer.stream.send_all(raw)
    await peer.ended()


async def test_every_step_has_ten_seconds(server: Harness) -> None:
    peer = server.connect()
    await trio.sleep(9)
    await peer.ask(c.PeerProperties, ())
    await trio.sleep(9)
    await peer.ask(c.SaslHandshake)
    started = trio.current_time()
    await peer.ended()
    assert trio.current_time() - started == pytest.approx(10)


async def test_a_peer_that_vanishes_at_any_byte_leaves_nothing(server: Harness) -> None:
    raw = codec.encode(c.PeerProperties(1, ()))
    for size in range(len(raw)):
        peer = server.connect()
        await peer.stream.send_all(raw[:size])
        await peer.vanish()
    await trio.testing.wait_all_tasks_blocked()
    assert not server.server._running
