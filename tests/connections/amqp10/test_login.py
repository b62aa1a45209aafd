"""AMQP 1.0: the way in, limits, signs of life, and how connections and sessions end."""

import pytest
import trio

from segments.amqp10 import Symbol
from streamd.wire.amqp10 import performatives as p
from streamd.wire.amqp10.codec import (
    AMQP_HEADER,
    FRAME_HEAD,
    HEARTBEAT_FRAME,
    SASL_HEADER,
    TLS_HEADER,
    frame,
    sasl_frame,
)
from tests.support.amqp10 import connect, open_peer
from tests.support.server import Harness

GOOD = p.SaslInit("PLAIN", b"\0guest\0guest")


async def test_what_the_server_says_of_itself(server: Harness) -> None:
    peer = connect(server)
    assert (await peer.greet()).mechanisms == ("PLAIN", "AMQPLAIN")
    peer = connect(server)
    found = await peer.log_in()
    assert found.channel_max == 63
    assert found.max_frame_size == 131_072
    assert found.idle_time_out == 30_000
    assert "LINK_PAIR_V1_0" in found.offered_capabilities
    assert found.properties is not None
    assert found.properties["product"] == "RabbitMQ"  # RabbitMQ's Python client insists
    assert found.properties["version"] >= "4.2"


@pytest.mark.parametrize("header", [AMQP_HEADER, TLS_HEADER])
async def test_who_does_not_begin_with_sasl_is_told_to(server: Harness, header: bytes) -> None:
    peer = connect(server)
    await peer.send_bytes(header)
    assert await peer.header() == SASL_HEADER
    await peer.ended()


async def test_a_header_byte_by_byte(server: Harness) -> None:
    peer = connect(server)
    for byte in SASL_HEADER:
        await peer.send_bytes(bytes((byte,)))
    assert await peer.header() == SASL_HEADER


async def test_all_of_a_login_in_one_packet(server: Harness) -> None:
    peer = connect(server)
    steps = frame(0, p.Open("all")) + frame(0, p.Begin(None, 0, 1, 1))
    await peer.send_bytes(SASL_HEADER + sasl_frame(GOOD) + AMQP_HEADER + steps)
    assert await peer.header() == SASL_HEADER
    await peer.expect(p.SaslMechanisms)
    assert (await peer.expect(p.SaslOutcome)).code == 0
    assert await peer.header() == AMQP_HEADER
    await peer.expect(p.Open)
    await peer.expect(p.Begin)


async def test_descriptors_by_name(server: Harness) -> None:
    peer = connect(server)
    await peer.greet()
    init = sasl_frame(GOOD).replace(b"\0\x53\x41", b"\0\xa3\x13amqp:sasl-init:list")
    await peer.send_bytes(len(init).to_bytes(4, "big") + init[4:])
    assert (await peer.expect(p.SaslOutcome)).code == 0


@pytest.mark.parametrize(
    ("mechanism", "response", "waits"),
    [
        ("PLAIN", b"\0guest\0wrong", True),
        ("PLAIN", b"\0nobody\0guest", True),
        ("PLAIN", b"guest", False),
        ("AMQPLAIN", b"\x05LOGIN", False),
    ],
)
async def test_who_may_not_enter_is_told(
    server: Harness, mechanism: str, response: bytes, waits: bool
) -> None:
    peer = connect(server)
    await peer.greet()
    begin = trio.current_time()
    assert await peer.prove(mechanism, response) == 1
    assert (trio.current_time() - begin >= 3) == waits
    await peer.ended()


async def test_an_unknown_mechanism(server: Harness) -> None:
    peer = connect(server)
    await peer.greet()
    await peer.send_bytes(sasl_frame(p.SaslInit("ANONYMOUS")))
    await peer.ended()


@pytest.mark.parametrize(
    "data", [sasl_frame(p.SaslResponse(b"x")), frame(0, p.Open("too early")), AMQP_HEADER]
)
async def test_what_is_no_proof(server: Harness, data: bytes) -> None:
    peer = connect(server)
    await peer.greet()
    await peer.send_bytes(data)
    await peer.ended()


async def test_guest_is_let_in_from_this_machine_only(server: Harness) -> None:
    peer = connect(server, is_local=False)
    await peer.greet()
    assert await peer.prove() == 1


@pytest.mark.parametrize(
    "fields",
    [{"max_frame_size": 511}, {"idle_time_out": 999}, {"hostname": "vhost:missing"}],
)
async def test_an_open_that_is_refused(server: Harness, fields: dict[str, object]) -> None:
    """RabbitMQ's Python client would go on for ever with a connection that is opened and closed."""
    peer = connect(server)
    with pytest.raises(trio.EndOfChannel):
        await peer.log_in(**fields)


@pytest.mark.parametrize("hostname", [None, "localhost", "vhost:/"])
async def test_a_hostname_names_a_virtual_host(server: Harness, hostname: str | None) -> None:
    peer = connect(server)
    await peer.log_in(hostname=hostname, properties={Symbol("who"): "me", Symbol("n"): 1})
    (connection,) = server.server.connections
    assert connection.virtual_host == "/"
    assert connection.protocol == "AMQP 1-0"
    assert connection.mechanism == "PLAIN"
    assert connection.properties == {"connection_name": "test", "who": "me"}
    assert connection.frame_max == 131_072


async def test_a_login_has_its_time(server: Harness) -> None:
    begin = trio.current_time()
    for data in (b"AMQP\x03", SASL_HEADER):
        peer = connect(server)
        await peer.send_bytes(data)
        if data == SASL_HEADER:
            await peer.header()
            await peer.expect(p.SaslMechanisms)
        await peer.ended()
    assert trio.current_time() - begin == pytest.approx(20)


async def test_silence_ends_the_connection(server: Harness) -> None:
    peer = await open_peer(server)
    begin = trio.current_time()
    error = (await peer.expect(p.Close)).error
    assert error.condition == "amqp:resource-limit-exceeded"
    await peer.ended()
    assert 60 <= trio.current_time() - begin <= 90


async def test_signs_of_life_as_often_as_the_client_wants(server: Harness) -> None:
    peer = await open_peer(server, idle_time_out=2_000)
    begin = trio.current_time()
    for _ in range(100):
        assert (await peer.receive())[1] is None
        await peer.send_bytes(HEARTBEAT_FRAME)
    assert trio.current_time() - begin <= 100


async def test_closed_in_order(server: Harness) -> None:
    peer = await open_peer(server)
    await peer.send(p.Close())
    assert (await peer.expect(p.Close)).error is None
    await peer.ended()
    assert len(server.server.connections) == 0


async def test_who_is_ended_is_told_why(server: Harness) -> None:
    peer = await open_peer(server)
    (connection,) = server.server.connections
    connection.end("enough")
    await peer.connection_fails("amqp:internal-error", 'Connection forced: "enough"')


async def test_a_stop_of_the_server_is_announced(server: Harness) -> None:
    peer = await open_peer(server)
    server.start(server.server.drain)
    await peer.connection_fails("amqp:internal-error", "shutdown")


class TestBadFrames:
    """What breaks the protocol ends the connection, with a reason."""

    @pytest.mark.parametrize(
        ("data", "condition"),
        [
            (FRAME_HEAD.pack(131_073, 2, 0, 0), "amqp:connection:framing-error"),
            (FRAME_HEAD.pack(7, 2, 0, 0), "amqp:connection:framing-error"),
            (FRAME_HEAD.pack(8, 1, 0, 0), "amqp:connection:framing-error"),
            (FRAME_HEAD.pack(8, 3, 0, 0), "amqp:connection:framing-error"),
            (FRAME_HEAD.pack(9, 2, 1, 0) + b"x", "amqp:connection:framing-error"),
            (frame(64, p.Begin(None, 0, 1, 1)), "amqp:connection:framing-error"),
            (FRAME_HEAD.pack(9, 2, 0, 0) + b"x", "amqp:decode-error"),
            (FRAME_HEAD.pack(12, 2, 0, 0) + b"\0\x53\x99\x45", "amqp:decode-error"),
            (FRAME_HEAD.pack(12, 2, 0, 0) + b"\0\x53\x10\x45", "amqp:decode-error"),
            (frame(0, p.Open("again")), "amqp:not-allowed"),
            (frame(0, p.Begin(None, 0, 1, 1)), "amqp:not-allowed"),
            (frame(1, p.Begin(5, 0, 1, 1)), "amqp:not-allowed"),
            (frame(0, p.Accepted()), "amqp:not-allowed"),
            (frame(0, p.Attach("x", 256, p.SENDER)), "amqp:connection:framing-error"),
            (frame(0, p.Attach("x" * 33_000, 0, p.SENDER)), "amqp:resource-limit-exceeded"),
        ],
    )
    async def test_frames(self, server: Harness, data: bytes, condition: str) -> None:
        peer = await open_peer(server)
        await peer.send_bytes(data)
        await peer.connection_fails(condition)

    async def test_what_follows_a_fault_is_not_looked_at(self, server: Harness) -> None:
        peer = await open_peer(server)
        bad = FRAME_HEAD.pack(7, 2, 0, 0)
        await peer.send_bytes(frame(0, p.Open("x")) + frame(9, p.Begin(None, 0, 1, 1)) + bad)
        await peer.find(p.Close)
        await peer.ended()

    async def test_frames_for_no_session_are_dropped(self, server: Harness) -> None:
        peer = await open_peer(server)
        await peer.send(p.Flow(0, 1, 0, 1), p.End(), p.Detach(0), channel=7)
        await peer.silence()
        await peer.begin(7)

    async def test_longer_headers_are_skipped(self, server: Harness) -> None:
        peer = await open_peer(server)
        body = frame(3, p.Begin(None, 0, 1, 1))[8:]
        await peer.send_bytes(FRAME_HEAD.pack(12 + len(body), 3, 0, 3) + b"more" + body)
        await peer.expect(p.Begin)


class TestSessions:
    async def test_the_answer(self, server: Harness) -> None:
        peer = connect(server)
        await peer.log_in()
        found = await peer.begin(63, handle_max=7)
        assert found == p.Begin(63, 0, 400, p.MAX_UINT, 7)

    async def test_a_number_is_free_again(self, server: Harness) -> None:
        peer = await open_peer(server)
        for _ in range(3):
            await peer.send(p.End())
            assert (await peer.expect(p.End)).error is None
            await peer.begin()

    async def test_a_fault_of_one_leaves_the_others(self, server: Harness) -> None:
        peer = await open_peer(server)
        await peer.begin(1)
        await peer.send(p.Flow(0, 1, 0, 1, handle=9))
        await peer.session_ends("amqp:session:unattached-handle")
        await peer.send(p.Flow(0, 1, 0, 1, handle=9))  # there is no session any more
        await peer.silence()
        await peer.send(p.End(), channel=1)
        await peer.expect(p.End)
        await peer.begin()

    async def test_a_transfer_without_a_link(self, server: Harness) -> None:
        peer = await open_peer(server)
        await peer.publish(b"x", handle=9)
        await peer.session_ends("amqp:session:unattached-handle", "handle 9")

    async def test_a_link_that_is_not_there_is_not_detached(self, server: Harness) -> None:
        peer = await open_peer(server)
        await peer.send(p.Detach(9, True))
        await peer.silence()
        await peer.send(p.End())
        assert (await peer.expect(p.End)).error is None

    async def test_a_handle_that_is_used(self, server: Harness) -> None:
        await (await server.peer()).create("s")
        peer = await open_peer(server)
        await peer.attach_sender()
        await peer.send(p.Attach("other", 0, p.SENDER, target=p.Target("/queues/s")))
        await peer.session_ends("amqp:session:handle-in-use", "out0")
