"""Peers that take their time, never read, ask for too much or are half gone; and an innocent one,
which notices nothing of it."""

import base64
import contextlib
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from streamd import server as serving
from streamd.broker.declared.rows import PermissionRow
from streamd.broker.streams import log_writer
from streamd.config import DRAIN_SECONDS
from streamd.http_api import serving as http_serving
from streamd.net import threads
from streamd.net.transport import SocketTransport
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import PROTOCOL_HEADER, method_frame
from streamd.wire.stream import ResponseCode, codec, commands as c
from tests.connections.stream.test_publishing import bodies
from tests.support.amqp import connect, declare
from tests.support.http import Named
from tests.support.server import FIRST, OK, Harness, frame, harness

Stream = trio.StapledStream[Any, Any]


@pytest.fixture
async def innocent(server: Harness) -> Callable[[], Any]:
    """Publishes and reads one message each time it is called; takes no time."""
    peer = await server.peer()
    await peer.create("innocent")
    await peer.declare("innocent")
    await peer.subscribe("innocent", credit=1000)
    count = 0

    async def work() -> None:
        nonlocal count
        count += 1
        before = trio.current_time()
        await peer.publish([b"%d" % count], count)
        found = [await peer.next(), await peer.next()]
        assert {type(command) for command in found} == {c.PublishConfirm, c.Deliver}
        assert trio.current_time() == before

    return work


def http_stream(server: Harness) -> Stream:
    ours, theirs = memory_stream_pair()
    theirs.socket = Named()  # type: ignore[attr-defined]
    server.start(http_serving.Server(server.server.http_app(), 100).serve, theirs)
    return ours


CONNECT = {
    "stream": lambda server: server.connect().stream,
    "amqp": lambda server: connect(server).stream,
    "http": http_stream,
}
START_OK = m.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US")
BEGINNINGS = {
    "stream": codec.encode(c.PeerProperties(1, ())),
    "amqp": PROTOCOL_HEADER + method_frame(0, START_OK),
    "http": b"GET /api/overview HTTP/1.1\r\nhost: localhost\r\nauthorization: Basic " + b"x" * 100,
}


@pytest.mark.parametrize("protocol", CONNECT)
async def test_a_byte_every_few_seconds(
    server: Harness, innocent: Callable[[], Any], protocol: str
) -> None:
    """A peer that has not logged in within seconds is dropped, whatever it sends meanwhile."""
    stream = CONNECT[protocol](server)
    started = trio.current_time()
    for byte in BEGINNINGS[protocol]:
        try:
            await stream.send_all(bytes([byte]))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            break
        await trio.sleep(3)
        await innocent()
    assert trio.current_time() - started < 20


@pytest.mark.parametrize("protocol", CONNECT)
async def test_nothing_at_all(server: Harness, innocent: Callable[[], Any], protocol: str) -> None:
    stream = CONNECT[protocol](server)
    started = trio.current_time()
    while await stream.receive_some(1000):
        pass
    assert 5 < trio.current_time() - started < 20
    await innocent()


@pytest.mark.parametrize("asked", [b"", b"GET /api/whoami HTTP/1.1\r\nhost: localhost\r\n\r\n"])
async def test_an_http_client_that_goes_takes_its_connection_with_it(
    server: Harness, asked: bytes
) -> None:
    stream = http_stream(server)
    before = trio.current_time()
    if asked:
        await stream.send_all(asked)
        assert b" 401 " in bytes(await stream.receive_some(10_000))
    await stream.send_stream.aclose()
    while await stream.receive_some(1000):
        pass
    assert trio.current_time() == before


async def begun_handshake(server: Harness) -> Stream:
    """The first bytes of a TLS handshake, and nothing after them."""

    class Certificates:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    async def serve(stream: Any) -> None:
        await serving._serve_tls(server.server, serving.STREAM, stream)
        await stream.aclose()  # as trio does with what it has accepted

    ours, theirs = memory_stream_pair()
    theirs.socket = Named()  # type: ignore[attr-defined]
    server.server.certificates = Certificates()  # type: ignore[assignment]
    server.start(serve, theirs)
    await ours.send_all(b"\x16\x03\x01")
    return ours


async def test_stalled_tls_handshakes_keep_nobody_out(tmp_path: Path) -> None:
    async with harness(tmp_path, max_connections=3) as server:
        stalled = [await begun_handshake(server) for _ in range(3)]
        await wait_all_tasks_blocked()
        assert server.server.handshakes == 3
        started = trio.current_time()
        for count, one in enumerate(stalled, 1):
            await server.peer()  # in place of the one that has been there longest
            assert await one.receive_some(9) == b""
            assert server.server.handshakes == 3 - count
        assert trio.current_time() == started
        with contextlib.suppress(trio.BrokenResourceError):
            await begun_handshake(server)
        await wait_all_tasks_blocked()
        assert server.server.handshakes == 0  # those that have logged in stay
        assert all(connection.is_open for connection in server.server._running)


async def test_a_tls_handshake_that_stalls(
    server: Harness, innocent: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    await begun_handshake(server)
    await wait_all_tasks_blocked()
    assert server.server.handshakes == 1
    monkeypatch.setattr(server.server, "takes", lambda _: False)
    refused_ours, refused = memory_stream_pair()
    refused.socket = Named()  # type: ignore[attr-defined]
    await serving._serve_tls(server.server, serving.STREAM, refused)  # type: ignore[arg-type]
    await refused_ours.aclose()
    await trio.sleep(10.1)
    assert server.server.handshakes == 0
    await innocent()


WHOAMI = b"GET /api/whoami HTTP/1.1\r\nhost: localhost\r\n"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
_H2C = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__"
_WEB_SOCKET = (
    b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="
)


async def http_status(stream: Stream) -> bytes:
    """Of the next answer, which has JSON."""
    answer = b""
    while not answer.endswith(b"}"):
        answer += bytes(await stream.receive_some(10_000))
    assert answer.count(b"HTTP/1.1 ") == 1
    return answer.split()[1]


@pytest.mark.parametrize("wish", [_H2C, _WEB_SOCKET, _H2C.upper()])
async def test_http_stays_as_it_is_whatever_a_peer_wishes(server: Harness, wish: bytes) -> None:
    """What follows would else be carried out beside the wait after a wrong password."""
    stream = http_stream(server)
    await stream.send_all(WHOAMI + wish + b"\r\n\r\n")
    assert await http_status(stream) == b"401"
    await stream.send_all(WHOAMI + b"\r\n")
    assert await http_status(stream) == b"401"
    await stream.aclose()


_CHUNKED = b"transfer-encoding: chunked\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (_PREFACE, b"505"),
        (WHOAMI.replace(b"1.1", b"1.9") + b"\r\n", b"505"),
        (WHOAMI + b"content-length: 5\r\n" + _CHUNKED + b"\r\n0\r\n\r\n" + WHOAMI, b"400"),
        (WHOAMI + _CHUNKED.title() + b"Content-Length: 5\r\n\r\n0\r\n\r\n" + WHOAMI, b"400"),
        (WHOAMI + b"content-length: 5\r\ncontent-length: 6\r\n\r\n", b"400"),
        (WHOAMI + _CHUNKED + _CHUNKED + b"\r\n0\r\n\r\n" + WHOAMI, b"501"),
        (WHOAMI + b"transfer-encoding: gzip, chunked\r\n\r\n", b"501"),
    ],
)
async def test_a_request_whose_end_may_be_disputed(
    server: Harness, sent: bytes, status: bytes
) -> None:
    """It is refused, and nothing behind it is taken for a request."""
    stream = http_stream(server)
    tasks = len(server._nursery.child_tasks)
    await stream.send_all(sent)
    answer = bytearray()
    while more := await stream.receive_some(10_000):
        answer += more
    assert answer.split()[1] == status
    assert answer.count(b"HTTP/1.1") == 1
    await trio.sleep(2)  # for the peer to read it
    assert len(server._nursery.child_tasks) == tasks - 1


async def test_guesses_on_one_http_connection_wait_for_each_other(server: Harness) -> None:
    stream = http_stream(server)
    wrong = WHOAMI + b"authorization: Basic Z3Vlc3Q6eA==\r\n\r\n"
    started = trio.current_time()
    await stream.send_all(wrong * 10)
    for count in range(1, 4):
        assert await http_status(stream) == b"401"
        assert trio.current_time() - started >= 3 * count
    await stream.aclose()


PUT_NO_BODY = b"PUT /api/vhosts/v HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n"
WITH_AUTHORIZATION = PUT_NO_BODY[:-2] + b"authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n"


@pytest.mark.parametrize("sent", [PUT_NO_BODY, WITH_AUTHORIZATION])
async def test_a_request_that_is_never_done(server: Harness, sent: bytes) -> None:
    """Whatever a peer leaves the API waiting for, its connection is free again after minutes."""
    stream = http_stream(server)
    tasks = len(server._nursery.child_tasks)
    await stream.send_all(sent)
    await trio.sleep(300)
    assert len(server._nursery.child_tasks) == tasks - 1
    await stream.aclose()


async def test_a_frame_byte_by_byte(server: Harness, innocent: Callable[[], Any]) -> None:
    """Slow is not wrong: nobody else waits for it."""
    peer = await server.peer()
    await peer.create("s")
    await peer.declare("s")
    for byte in codec.encode(frame(bodies(3))):
        await peer.stream.send_all(bytes([byte]))
        await trio.sleep(1)
        await innocent()
    assert await peer.confirmed(3) == [1, 2, 3]


async def test_confirms_that_are_never_read(server: Harness, innocent: Callable[[], Any]) -> None:
    peer = server.connect(reads_slowly=True)
    await peer.log_in()
    await peer.create("s")
    await peer.declare("s")
    (link,) = (link for link in server.server._running if link._transport._receiver is None)
    raw = codec.encode(frame(bodies(100)))
    with trio.move_on_after(30) as waiting:
        while True:
            await peer.stream.send_all(raw * 100)
    assert waiting.cancelled_caught  # it is not read from any more
    assert link._outbox._size < 2 * log_writer.QUEUE_BYTES
    other = await server.peer()
    await other.declare("s")  # the stream is there for others
    await other.store([b"x"])
    await peer.vanish()
    await wait_all_tasks_blocked()
    assert link not in server.server._running
    await innocent()


async def test_more_credit_than_there_can_be(server: Harness, innocent: Callable[[], Any]) -> None:
    peer = await server.peer()
    await peer.create("s")
    await peer.declare("s")
    await peer.subscribe("s", FIRST, 65_535)
    for _ in range(1000):
        await peer.send(c.Credit(1, 65_535))
    await peer.publish([b"x"] * 10)
    await peer.expect(c.PublishConfirm)
    assert len((await peer.chunk()).bodies) == 10
    await peer.send(c.Credit(2, 65_535))
    assert await peer.next() == c.CreditResponse(ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST, 2)
    await innocent()


@pytest.mark.parametrize("frame_max", [1, 7, 100])
async def test_tiny_frames_are_agreed(
    server: Harness, innocent: Callable[[], Any], frame_max: int
) -> None:
    """Chunks may be larger than frames anyway; what the client sends is held to it."""
    peer = await server.peer(frame_max=frame_max)
    await peer.send(c.Create(9, "x" * 100, ()))
    closing = await peer.expect(c.Close)
    assert closing.code == ResponseCode.FRAME_TOO_LARGE
    await innocent()


@pytest.mark.parametrize("number", [1, 2047])
async def test_amqp_frames_of_4_gib_are_announced(
    server: Harness, innocent: Callable[[], Any], number: int
) -> None:
    peer = connect(server)
    await peer.log_in()
    await peer.send_bytes(b"\1" + number.to_bytes(2, "big") + b"\xff\xff\xff\xff")
    closing = await peer.expect(m.ConnectionClose)
    assert closing.code == 501
    await innocent()


@pytest.mark.parametrize("kind", ["stream", "amqp"])
async def test_a_peer_that_is_half_gone(
    server: Harness, innocent: Callable[[], Any], kind: str
) -> None:
    """It has said nothing for two heartbeats: all that it had is given back."""
    maker = await server.peer()
    await maker.create("s")
    users = len(server.host.observers)
    if kind == "stream":
        peer: Any = await server.peer(heartbeat=5)
        await peer.declare("s")
        await peer.subscribe("s")
    else:
        peer = connect(server)
        await peer.log_in(tune=(2047, 131_072, 5))
        await peer.open()
        await peer.consume("s", x_stream_offset="first")
    await wait_all_tasks_blocked()
    assert server.host.find("s").waiters
    assert len(server.host.observers) == users + 1
    await trio.sleep(16)
    assert not server.host.find("s").waiters
    assert len(server.host.observers) == users
    await innocent()


def test_the_kernel_asks_for_peers_that_are_silent() -> None:

    async def look(accepted: socket.socket) -> int:
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(accepted))
        transport = SocketTransport(stream, None)
        found = transport._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        transport.close()
        return found

    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        accepted.setblocking(False)
        assert trio.run(look, accepted) == 1


async def test_idle_peers_do_not_hold_up_the_end(server: Harness) -> None:
    """Whatever they speak, and though none of them answers or goes."""
    peer, amqp = await server.peer(), connect(server)
    await amqp.log_in()
    await amqp.open()
    server.connect()
    started = trio.current_time()
    await server.server.drain()
    assert trio.current_time() - started <= 1
    assert (await amqp.expect(m.ConnectionClose)).code == 320
    await peer.ended()


async def test_a_peer_that_never_reads_holds_up_the_end_for_seconds(server: Harness) -> None:
    peer = server.connect(reads_slowly=True)
    await peer.log_in()
    with trio.move_on_after(1):
        while True:
            await peer.stream.send_all(codec.encode(c.Metadata(1, ("none",) * 90)) * 50)
    started = trio.current_time()
    await server.server.drain()
    assert 1 < trio.current_time() - started <= DRAIN_SECONDS


@pytest.mark.parametrize("kind", ["stream", "amqp"])
async def test_requests_without_end(server: Harness, kind: str) -> None:
    """Others have their turn between them."""
    other = await server.peer()
    await other.create("s")
    if kind == "stream":
        peer: Any = await server.peer()
        asked = codec.encode(c.QueryOffset(1, "app", "s"))
    else:
        peer = connect(server)
        await peer.log_in()
        await peer.open()
        asked = method_frame(1, declare("s", passive=True))
    await wait_all_tasks_blocked()
    await peer.stream.send_all(asked * 3000)
    assert await other.code(c.QueryOffset, "app", "s") == ResponseCode.NO_OFFSET
    answered = len(bytes(await peer.stream.receive_some(1 << 20)))
    assert answered < 1000 * 20


async def test_questions_about_filters_leave_threads_to_others(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are only so many threads, and changes of the catalog, say, need one."""
    asking, owner = 50, await server.peer()
    await owner.create("s")
    in_thread, end, at_work = threads.in_thread, trio.Event(), 0

    async def slow(work: Callable[..., Any], *arguments: object) -> Any:
        nonlocal at_work
        if "filter" in work.__name__:
            at_work += 1
            await end.wait()
        return await in_thread(work, *arguments)

    monkeypatch.setattr(threads, "in_thread", slow)
    peers = [await server.peer() for _ in range(asking)]
    for peer in peers:
        await peer.send(c.DescribeFilters(1, "s"))
    await wait_all_tasks_blocked()
    assert at_work == 1
    await peers[0].vanish()  # waiting takes nothing from those behind
    end.set()
    for peer in peers[1:]:
        assert (await peer.expect(c.DescribeFiltersResponse)).code == OK


_RIGHT = b"authorization: Basic Z3Vlc3Q6Z3Vlc3Q="
_PUT = b"PUT /api/queues/%2F/s HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n"
_HOLDING = {
    "silent": b"",
    "half a request": b"GET /api/whoami HTTP/1.1\r\n",
    "no password": WHOAMI + b"\r\n",
    "a wrong password": WHOAMI + b"authorization: Basic Og==\r\n\r\n",
    "between two requests": WHOAMI + _RIGHT + b"\r\n\r\n",
}


async def http_streams(
    serving: http_serving.Server, server: Harness, number: int, host: str = "127.0.0.1"
) -> list[Stream]:
    """Connections, opened one after the other."""
    streams = []
    for _ in range(number):
        ours, theirs = memory_stream_pair()
        theirs.socket = Named(host)  # type: ignore[attr-defined]
        server.start(serving.serve, theirs)
        await wait_all_tasks_blocked()
        streams.append(ours)
    return streams


@pytest.mark.parametrize("sent", _HOLDING.values(), ids=_HOLDING)
async def test_who_holds_http_connections_without_a_request_makes_room(
    server: Harness, sent: bytes
) -> None:
    serving = http_serving.Server(server.server.http_app(), 5)
    holding = await http_streams(serving, server, 5)
    for stream in holding:
        await stream.send_all(sent or b"\r\n")
        await wait_all_tasks_blocked()
    begin = trio.current_time()
    newcomers = await http_streams(serving, server, 3)
    for stream in newcomers:
        await stream.send_all(_HOLDING["between two requests"])
        assert await http_status(stream) == b"200"
    assert trio.current_time() == begin
    for stream in holding[:3]:  # the oldest
        with trio.fail_after(1), contextlib.suppress(trio.BrokenResourceError):
            while await stream.receive_some():
                pass


async def test_http_requests_that_are_answered_are_not_given_up_for_others(
    server: Harness,
) -> None:
    serving = http_serving.Server(server.server.http_app(), 2)
    busy = await http_streams(serving, server, 2)
    for stream in busy:
        await stream.send_all(_PUT + _RIGHT + b"\r\n\r\n{")
        await wait_all_tasks_blocked()
    (late,) = await http_streams(serving, server, 1)
    assert await http_status(late) == b"503"
    for stream, status in zip(busy, (b"201", b"204"), strict=True):
        await stream.send_all(b"}")
        answer = bytes(await stream.receive_some(10_000))
        assert answer.split()[1] == status


async def test_a_user_with_many_slow_requests_locks_nobody_out(server: Harness) -> None:
    """Beyond a share of the connections those of one user make room for others."""
    await server.server.directory.put_user("slow", b"slow", ["management"])
    await server.server.directory.put_permission(PermissionRow("slow", "/", ".*", ".*", ".*"))
    serving = http_serving.Server(server.server.http_app(), 12)
    slow = b"authorization: Basic " + base64.b64encode(b"slow:slow")
    held = await http_streams(serving, server, 12)
    for stream in held:
        await stream.send_all(_PUT + slow + b"\r\n\r\n{")
        await wait_all_tasks_blocked()
    for _ in range(20):
        (other,) = await http_streams(serving, server, 1)
        await other.send_all(_HOLDING["between two requests"])
        assert await http_status(other) == b"200"
        (again,) = await http_streams(serving, server, 1)
        await again.send_all(_PUT + slow + b"\r\n\r\n{")
        await wait_all_tasks_blocked()
    for stream in held[:8]:  # its share
        await stream.send_all(b"}")
        answer = bytes(await stream.receive_some(10_000))
        assert answer.split()[1] in (b"201", b"204")


async def test_connections_of_an_address_make_room_for_those_of_others(server: Harness) -> None:
    serving = http_serving.Server(server.server.http_app(), 5)
    (early,) = await http_streams(serving, server, 1, "192.0.2.1")
    for number in range(10):  # an IPv6 network is one address
        await http_streams(serving, server, 1, f"2001:db8::{number}")
    await early.send_all(_HOLDING["no password"])
    assert await http_status(early) == b"401"
