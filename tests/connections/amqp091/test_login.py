"""AMQP 0-9-1: the way in, limits, heartbeats, and how connections and channels end."""

import pytest
import trio

from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import HEARTBEAT_FRAME, PROTOCOL_HEADER, method_frame
from streamd.wire.amqp091.values import Field, encode_table, text_field
from tests.support.amqp import AmqpPeer, connect, declare, open_peer
from tests.support.server import Harness

GOOD = b"\0guest\0guest"
ABLE = {"capabilities": Field("F", {"authentication_failure_close": Field("t", True)})}


async def start(server: Harness, *, is_local: bool = True) -> tuple[AmqpPeer, m.ConnectionStart]:
    peer = connect(server, is_local=is_local)
    await peer.send_bytes(PROTOCOL_HEADER)
    return peer, await peer.expect(m.ConnectionStart)


async def test_what_the_server_says_of_itself(server: Harness) -> None:
    _, found = await start(server)
    assert (found.major, found.minor) == (0, 9)  # pika insists
    assert found.mechanisms == b"PLAIN AMQPLAIN"
    capabilities = found.properties["capabilities"].value
    for name in ("publisher_confirms", "basic.nack", "exchange_exchange_bindings"):
        assert capabilities[name] == Field("t", True)


@pytest.mark.parametrize(
    "greeting",
    [b"AMQP\x00\x03\x01\x00", b"GET / HTTP/1.1\r\n", b"\x16\x03"],
)
async def test_another_protocol_is_answered_with_ours(server: Harness, greeting: bytes) -> None:
    peer = connect(server)
    await peer.send_bytes(greeting)
    received = b""
    while len(received) < len(PROTOCOL_HEADER):
        received += await peer.stream.receive_some(100)
    assert received == PROTOCOL_HEADER


async def test_the_other_header_of_the_same_protocol(server: Harness) -> None:
    peer = connect(server)
    await peer.send_bytes(b"AMQP\x01\x01\x00\x09")
    await peer.expect(m.ConnectionStart)


async def test_all_of_a_login_in_one_packet(server: Harness) -> None:
    peer = connect(server)
    steps = (
        m.ConnectionStartOk({}, "PLAIN", GOOD, "en_US"),
        m.ConnectionTuneOk(2047, 131_072, 0),
        m.ConnectionOpen("/", "", True),
    )
    data = PROTOCOL_HEADER + b"".join(method_frame(0, step) for step in steps)
    await peer.send_bytes(data + method_frame(1, m.ChannelOpen("0")))
    kinds = [type(await peer.next()) for _ in range(4)]
    assert kinds == [m.ConnectionStart, m.ConnectionTune, m.ConnectionOpenOk, m.ChannelOpenOk]


async def test_amqplain(server: Harness) -> None:
    peer, _ = await start(server)
    table = encode_table({"LOGIN": text_field("guest"), "PASSWORD": text_field("guest")})
    await peer.send(m.ConnectionStartOk({}, "AMQPLAIN", table[4:], "en_US"), 0)
    await peer.expect(m.ConnectionTune)


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("PLAIN", b"\0guest\0wrong"),
        ("PLAIN", b"\0nobody\0guest"),
        ("PLAIN", b"guest"),
        ("AMQPLAIN", b"\x05LOGIN"),
        ("EXTERNAL", b""),
        ("ANONYMOUS", b""),
        ("X", b""),
    ],
)
async def test_refused(server: Harness, mechanism: str, response: bytes) -> None:
    peer, _ = await start(server)
    await peer.send(m.ConnectionStartOk(ABLE, mechanism, response, "en_US"), 0)
    closed = await peer.expect(m.ConnectionClose)
    assert (closed.code, closed.class_id, closed.method_id) == (403, 0, 0)
    peer, _ = await start(server)
    begin = trio.current_time()
    await peer.send(m.ConnectionStartOk({}, mechanism, response, "en_US"), 0)
    await peer.ended()  # a client that does not understand the close gets none, later
    assert trio.current_time() - begin >= 3


async def test_guest_is_let_in_from_this_machine_only(server: Harness) -> None:
    peer, _ = await start(server, is_local=False)
    await peer.send(m.ConnectionStartOk(ABLE, "PLAIN", GOOD, "en_US"), 0)
    assert (await peer.expect(m.ConnectionClose)).code == 403


@pytest.mark.parametrize(
    "tune",
    [(2047, 4095, 0), (2047, 0, 0), (2047, 131_073, 0), (0, 131_072, 0), (2048, 131_072, 0)],
)
async def test_limits_beyond_those_that_were_offered(
    server: Harness, tune: tuple[int, int, int]
) -> None:
    peer, _ = await start(server)
    await peer.send(m.ConnectionStartOk({}, "PLAIN", GOOD, "en_US"), 0)
    await peer.expect(m.ConnectionTune)
    await peer.send(m.ConnectionTuneOk(*tune), 0)
    closed = await peer.expect(m.ConnectionClose)
    assert (closed.code, closed.class_id, closed.method_id) == (530, 10, 31)


async def test_a_virtual_host_that_is_not_there(server: Harness) -> None:
    peer, _ = await start(server)
    await peer.send(m.ConnectionStartOk({}, "PLAIN", GOOD, "en_US"), 0)
    await peer.send(m.ConnectionTuneOk(1, 4096, 0), 0)
    await peer.expect(m.ConnectionTune)
    await peer.send(m.ConnectionOpen("missing", "", False), 0)
    closed = await peer.expect(m.ConnectionClose)
    assert (closed.code, closed.class_id, closed.method_id) == (530, 10, 40)
    assert "vhost missing not found" in closed.text


async def test_a_login_has_its_time(server: Harness) -> None:
    begin = trio.current_time()
    for data in (b"", b"AMQP", PROTOCOL_HEADER):
        peer = connect(server)
        await peer.send_bytes(data)
        if data == PROTOCOL_HEADER:
            await peer.expect(m.ConnectionStart)
        await peer.ended()
    assert trio.current_time() - begin == pytest.approx(30)


async def test_methods_before_the_connection_is_open_end_it(server: Harness) -> None:
    peer, _ = await start(server)
    await peer.send(m.ChannelOpen())
    await peer.ended()


async def test_heartbeats_both_ways(server: Harness) -> None:
    peer = connect(server)
    await peer.log_in(tune=(2047, 131_072, 10))
    for _ in range(6):
        assert (await peer.next_frame())[0] == 8
        await peer.send_bytes(HEARTBEAT_FRAME)
    begin = trio.current_time()
    with pytest.raises(trio.EndOfChannel):
        await peer.receive()  # heartbeats are not looked at
    assert 20 <= trio.current_time() - begin <= 30


async def test_a_new_secret(server: Harness) -> None:
    peer = await open_peer(server)
    await peer.ask(m.ConnectionUpdateSecret(b"new", "why"), m.ConnectionUpdateSecretOk, 0)


async def test_closed_in_order(server: Harness) -> None:
    peer = await open_peer(server)
    await peer.send(m.ConnectionClose(200, "bye", 0, 0), 0)
    await peer.expect(m.ConnectionCloseOk)
    await peer.ended()
    assert len(server.server.connections) == 0


async def test_it_is_listed_while_it_is_open(server: Harness) -> None:
    peer = await open_peer(server)
    (connection,) = server.server.connections
    assert connection.protocol == "AMQP 0-9-1"
    assert connection.user == "guest"
    connection.end("enough")
    closed = await peer.expect(m.ConnectionClose)
    assert (closed.code, closed.text) == (320, "CONNECTION_FORCED - enough")
    await peer.send(m.ConnectionCloseOk(), 0)
    await peer.ended()


async def test_who_does_not_answer_a_forced_close_is_dropped(server: Harness) -> None:
    peer = await open_peer(server)
    (connection,) = server.server.connections
    begin = trio.current_time()
    connection.end("enough")
    await peer.expect(m.ConnectionClose)
    await peer.ended()
    assert trio.current_time() - begin <= 10


async def test_a_stop_of_the_server_is_announced(server: Harness) -> None:
    peer = await open_peer(server)
    server.start(server.server.drain)
    assert (await peer.expect(m.ConnectionClose)).code == 320


class TestChannels:
    @pytest.mark.parametrize(
        ("method", "code"),
        [
            (m.ChannelOpen(), 504),  # which it is
            (method_frame(2, declare("s")), 504),  # which is not open
            (m.TxSelect(), 540),
            (m.TxCommit(), 540),
            (m.TxRollback(), 540),
        ],
    )
    async def test_what_ends_the_connection(
        self, server: Harness, method: object, code: int
    ) -> None:
        peer = await open_peer(server)
        await peer.connection_fails(method, code)

    async def test_more_than_were_agreed(self, server: Harness) -> None:
        peer = await open_peer(server, tune=(3, 4096, 0))
        await peer.open(2)
        await peer.open(65_535)
        await peer.connection_fails(method_frame(7, m.ChannelOpen()), 530)

    async def test_all_that_there_can_be(self, server: Harness) -> None:
        peer = connect(server)
        await peer.log_in()
        await peer.send_bytes(b"".join(method_frame(n, m.ChannelOpen()) for n in range(1, 65_536)))
        for _ in range(2047):
            await peer.expect(m.ChannelOpenOk)
        assert (await peer.expect(m.ConnectionClose)).code == 530

    async def test_a_number_is_free_again(self, server: Harness) -> None:
        peer = await open_peer(server)
        for _ in range(3):
            await peer.ask(m.ChannelClose(200, "", 0, 0), m.ChannelCloseOk)
            await peer.open()
        await peer.channel_fails(declare("missing", passive=True), 404)
        await peer.open()

    async def test_until_a_close_is_answered_everything_else_is_ignored(
        self, server: Harness
    ) -> None:
        peer = await open_peer(server)
        data = method_frame(1, declare("missing", passive=True))
        data += peer.message("missing", b"body", mandatory=True) * 2
        data += method_frame(1, declare("s"))
        await peer.send_bytes(data)
        assert (await peer.expect(m.ChannelClose)).code == 404
        await peer.silence()
        await peer.send(m.ChannelClose(200, "", 0, 0))  # both ends had enough
        await peer.expect(m.ChannelCloseOk)
        await peer.send(m.ChannelCloseOk())
        await peer.open()
        await peer.channel_fails(declare("s", passive=True), 404)

    async def test_the_close_names_what_failed(self, server: Harness) -> None:
        peer = await open_peer(server)
        await peer.send(declare("missing", passive=True))
        closed = await peer.expect(m.ChannelClose)
        assert (closed.class_id, closed.method_id) == (50, 10)
        assert closed.text == "NOT_FOUND - no queue 'missing' in vhost '/'"

    async def test_flow(self, server: Harness) -> None:
        peer = await open_peer(server)
        assert (await peer.ask(m.ChannelFlow(True), m.ChannelFlowOk)).active
        await peer.connection_fails(m.ChannelFlow(False), 540)

    async def test_old_clients_ask_for_access(self, server: Harness) -> None:
        peer = await open_peer(server)
        assert (await peer.ask(m.AccessRequest("/data"), m.AccessRequestOk)).ticket == 1

    async def test_a_fault_of_one_channel_leaves_the_others(self, server: Harness) -> None:
        peer = await open_peer(server)
        await peer.open(2)
        await peer.channel_fails(declare("missing", passive=True), 404)
        await peer.declare("s", channel=2)
