"""What peers can make the server hold in each state of a connection, the last ones included.

The states are enumerated: a new one without a way into it here fails a test. In each of them a peer
that never waits for answers sends more than the limit allows, in different ways; what is held,
everywhere in the process, stays within the formula. What an ended connection has held is given
back at once, not when the collector comes for it.
"""

import gc
import tracemalloc
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import h11
import pytest
import trio
from trio.testing import lockstep_stream_pair, wait_all_tasks_blocked

from segments.amqp10 import Symbol
from streamd.config import RECEIVE_BYTES, Config
from streamd.http_api import serving as http
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import (
    PROTOCOL_HEADER,
    FrameType,
    encode_frame,
    method_frame,
)
from streamd.wire.amqp091.states import ChannelState, State as AmqpState
from streamd.wire.amqp10 import performatives as p
from streamd.wire.amqp10.codec import (
    AMQP_HEADER,
    FRAME_HEAD as FRAME_HEAD10,
    SASL_HEADER,
    frame as frame10,
    sasl_frame,
)
from streamd.wire.amqp10.states import State as Amqp10State
from streamd.wire.stream import State as StreamState, codec, commands as c
from tests.support import memory
from tests.support.amqp import connect as connect_amqp, declare
from tests.support.http import Named
from tests.support.server import Harness, harness

Stream = trio.StapledStream[Any, Any]
CONFIG = Config(frame_max=256 << 10)
MORE = 1 << 20  # sent beyond what may be held
_OURS = 3 * RECEIVE_BYTES  # a piece on its way: with the peer, in the pipe and in the socket
NOT_OURS = tracemalloc.Filter(False, "*/trio/*")  # pipes in memory


async def send(stream: Stream, *parts: bytes) -> None:
    """Send in pieces until the server reads no more."""
    with trio.move_on_after(30):
        try:
            for part in parts:
                for at in range(0, len(part), RECEIVE_BYTES):
                    await stream.send_all(part[at : at + RECEIVE_BYTES])
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass


async def read_all(stream: Stream) -> None:
    """Read what the server says, so that it is never held up by that."""
    try:
        while await stream.receive_some(1 << 20):
            pass
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Harness]:
    async with harness(tmp_path, frame_max=CONFIG.frame_max) as running:
        yield running


class Flood(NamedTuple):
    """What a peer sends that has reached a state.

    Attributes:
        first: sent once.
        then: sent again and again.
    """

    first: bytes
    then: bytes


def repeated(frame: bytes) -> Flood:
    """The same frame without end."""
    return Flood(b"", frame * (RECEIVE_BYTES // len(frame)))


async def drive(
    server: Harness,
    connect: Callable[[], Stream],
    before: Sequence[bytes],
    flood: Flood,
    most: float,
    most_kept: float = 100_000,
) -> None:
    """Go to a state and send more than `most`; at the end nothing is left of it."""
    stream = connect()
    count = (round(most) + MORE) // RECEIVE_BYTES
    gc.disable()
    tracemalloc.start()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_all, stream)
            for step in before:
                await send(stream, step)
                await wait_all_tasks_blocked()
            await send(stream, flood.first, *[flood.then] * count)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        held = tracemalloc.get_traced_memory()[1]
        await stream.aclose()
        await trio.sleep(300)
        assert not server.server._running
        kept = tracemalloc.take_snapshot().filter_traces((NOT_OURS,))
    finally:
        tracemalloc.stop()
        gc.enable()
    assert held < most + _OURS
    assert sum(statistic.size for statistic in kept.statistics("filename")) < most_kept


# -- the stream protocol

LOGIN = tuple(
    map(
        codec.encode,
        (
            c.PeerProperties(1, ()),
            c.SaslHandshake(2),
            c.SaslAuthenticate(3, "PLAIN", b"\0guest\0guest"),
            c.Tune(0, 0),
            c.Open(4, "/"),
        ),
    )
)
WRONG = codec.encode(c.SaslAuthenticate(3, "PLAIN", b"\0guest\0x"))
UNKNOWN = (4_000).to_bytes(4, "big") + b"\x7f\xff\0\1" + bytes(3_996)
CLOSE = codec.encode(c.Close(9, 1, "bye" * 1_000))
CLOSED = codec.encode(c.CloseResponse(1, 1))
# What a peer sends to get there. States that last only while the server answers are those of the
# step before: it is not read from in between.
STREAM_STATES: dict[StreamState, tuple[tuple[bytes, ...], ...]] = {
    StreamState.CONNECTED: ((),),
    StreamState.GREETING: (LOGIN[:1],),
    StreamState.GREETED: (LOGIN[:1],),
    StreamState.CHOOSING: (LOGIN[:2],),
    StreamState.AUTHENTICATING: (LOGIN[:2],),
    StreamState.JUDGING: (LOGIN[:3],),
    StreamState.AUTHENTICATED: (LOGIN[:3],),
    StreamState.TUNING: (LOGIN[:3],),
    StreamState.TUNED: (LOGIN[:4],),
    StreamState.OPENING: (LOGIN[:5],),
    StreamState.OPEN: (LOGIN,),
    StreamState.CLOSING: ((*LOGIN, UNKNOWN), (*LOGIN, CLOSE), (*LOGIN, UNKNOWN, CLOSE)),
    StreamState.CLOSED: ((*LOGIN, UNKNOWN, CLOSED),),
    StreamState.REFUSED: ((*LOGIN[:2], WRONG), (*LOGIN[:4], codec.encode(c.Open(4, "none")))),
}
STREAM_FLOODS = {
    "a frame of 4 GiB": Flood(b"\xff\xff\xff\xff", bytes(RECEIVE_BYTES)),
    "frames that are too large": Flood(b"", b"\0\x0f\xff\xfc" + bytes(RECEIVE_BYTES - 4)),
    "closes": repeated(CLOSE),
    "half a close": repeated(CLOSE[:-1]),
    "unknown frames": repeated(UNKNOWN),
}


def test_every_state_of_a_stream_connection_is_here() -> None:
    assert STREAM_STATES.keys() == set(StreamState)


@pytest.mark.parametrize("flood", STREAM_FLOODS)
@pytest.mark.parametrize("before", sorted({way for ways in STREAM_STATES.values() for way in ways}))
async def test_a_stream_connection(server: Harness, before: tuple[bytes, ...], flood: str) -> None:
    most = memory.nothing_open(CONFIG) if LOGIN[-1] in before else memory.before_login()
    connect = lambda: server.connect(reads_slowly=True).stream  # noqa: E731
    await drive(server, connect, before, STREAM_FLOODS[flood], most)


# -- AMQP 0-9-1

AMQP_LOGIN = (
    PROTOCOL_HEADER,
    method_frame(0, m.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US")),
    method_frame(0, m.ConnectionTuneOk(2047, 131_072, 0)),
    method_frame(0, m.ConnectionOpen("/", "", True)),
)
CHANNEL = method_frame(1, m.ChannelOpen())
CLOSES_CHANNEL = method_frame(1, declare("none", passive=True))
NO_METHOD = encode_frame(FrameType.METHOD, 0, b"\0\x0a\xff\xff" + bytes(4_000))
AMQP_CLOSE = method_frame(0, m.ConnectionClose(200, "bye" * 80, 0, 0))
AMQP_STATES: dict[AmqpState, tuple[tuple[bytes, ...], ...]] = {
    AmqpState.GREETING: ((),),
    AmqpState.STARTING: (AMQP_LOGIN[:1],),
    AmqpState.TUNING: (AMQP_LOGIN[:2],),
    AmqpState.OPENING: (AMQP_LOGIN[:3],),
    AmqpState.OPEN: (AMQP_LOGIN,),
    AmqpState.CLOSING: ((*AMQP_LOGIN, NO_METHOD), (*AMQP_LOGIN, NO_METHOD, AMQP_CLOSE)),
    AmqpState.CLOSED: (
        (*AMQP_LOGIN, AMQP_CLOSE),
        (*AMQP_LOGIN, NO_METHOD, method_frame(0, m.ConnectionCloseOk())),
    ),
}
CHANNEL_STATES: dict[ChannelState, tuple[bytes, ...]] = {
    ChannelState.NONE: AMQP_LOGIN,
    ChannelState.OPEN: (*AMQP_LOGIN, CHANNEL),
    ChannelState.CLOSING: (*AMQP_LOGIN, CHANNEL, CLOSES_CHANNEL),
}
AMQP_FLOODS = {
    "a frame of 4 GiB": Flood(b"\1\0\0\xff\xff\xff\xff", bytes(RECEIVE_BYTES)),
    "frames that are too large": Flood(
        b"", b"\1\0\0\0\x0f\xff\xf8" + bytes(RECEIVE_BYTES - 8) + b"\xce"
    ),
    "frames without an end": Flood(b"", b"\1\0\0\0\0\xff\xf8" + bytes(RECEIVE_BYTES - 7)),
    "methods that do not exist": repeated(NO_METHOD),
    "broken closes": repeated(encode_frame(FrameType.METHOD, 0, b"\0\x0a\0\x32" + bytes(4_000))),
    "closes": repeated(AMQP_CLOSE),
    "content": repeated(encode_frame(FrameType.BODY, 1, bytes(100_000))),
}
AMQP_WAYS = {way for ways in AMQP_STATES.values() for way in ways} | {*CHANNEL_STATES.values()}


def test_every_state_of_an_amqp_connection_is_here() -> None:
    assert AMQP_STATES.keys() == set(AmqpState)
    assert CHANNEL_STATES.keys() == set(ChannelState)


@pytest.mark.parametrize("flood", AMQP_FLOODS)
@pytest.mark.parametrize("before", sorted(AMQP_WAYS))
async def test_an_amqp_connection(server: Harness, before: tuple[bytes, ...], flood: str) -> None:
    most = memory.nothing_open(CONFIG) if AMQP_LOGIN[-1] in before else memory.before_login()
    connect = lambda: connect_amqp(server, reads_slowly=True).stream  # noqa: E731
    await drive(server, connect, before, AMQP_FLOODS[flood], most)


# -- AMQP 1.0

AMQP10_LOGIN = (
    SASL_HEADER,
    sasl_frame(p.SaslInit("PLAIN", b"\0guest\0guest")),
    AMQP_HEADER,
    frame10(0, p.Open("flood")),
)
LONG = {Symbol("x"): "x" * 10_000}
BEGIN = frame10(0, p.Begin(None, 0, 100, 100, properties=LONG))
ATTACH = frame10(
    0, p.Attach("x", 0, p.SENDER, target=p.Target(), initial_delivery_count=0, properties=LONG)
)
AMQP10_CLOSE = frame10(0, p.Close(p.Error("amqp:bye", "bye" * 80)))
NO_PERFORMATIVE = FRAME_HEAD10.pack(8 + 4_004, 2, 0, 0) + b"\0\x53\x99\x45" + bytes(4_000)
AMQP10_STATES: dict[Amqp10State, tuple[tuple[bytes, ...], ...]] = {
    Amqp10State.GREETING: ((), (SASL_HEADER[:5],)),
    Amqp10State.PROVING: (AMQP10_LOGIN[:1],),
    Amqp10State.JUDGING: ((SASL_HEADER, sasl_frame(p.SaslInit("PLAIN", b"\0guest\0wrong"))),),
    Amqp10State.GREETING_AGAIN: (AMQP10_LOGIN[:2],),
    Amqp10State.OPENING: (AMQP10_LOGIN[:3],),
    Amqp10State.OPEN: (AMQP10_LOGIN, (*AMQP10_LOGIN, BEGIN), (*AMQP10_LOGIN, BEGIN, ATTACH)),
    Amqp10State.CLOSING: ((*AMQP10_LOGIN, NO_PERFORMATIVE),),
    Amqp10State.CLOSED: ((*AMQP10_LOGIN, AMQP10_CLOSE),),
}
AMQP10_FLOODS = {
    "a frame of 4 GiB": Flood(b"\xff\xff\xff\xff\2\0\0\0", bytes(RECEIVE_BYTES)),
    "frames that are too large": Flood(b"", b"\0\x0f\xff\xfc\2\0\0\0" + bytes(RECEIVE_BYTES - 8)),
    "frames that are too small": repeated(b"\0\0\0\1\2\0\0\0"),
    "what does not exist": repeated(NO_PERFORMATIVE),
    "closes": repeated(AMQP10_CLOSE),
    "sessions that begin and end": repeated(BEGIN + frame10(0, p.End())),
    "links": repeated(ATTACH + frame10(0, p.Detach(0))),
    "half a message": repeated(frame10(0, p.Transfer(0, 0, b"", 0, True, True), bytes(100_000))),
}


AMQP10_KEPT = 500_000  # performatives are tuples, of which the interpreter keeps some for later


def test_every_state_of_an_amqp10_connection_is_here() -> None:
    assert AMQP10_STATES.keys() == set(Amqp10State)


@pytest.mark.parametrize("flood", AMQP10_FLOODS)
@pytest.mark.parametrize("before", sorted({w for ways in AMQP10_STATES.values() for w in ways}))
async def test_an_amqp10_connection(server: Harness, before: tuple[bytes, ...], flood: str) -> None:
    most = memory.nothing_open(CONFIG) if AMQP10_LOGIN[-1] in before else memory.before_login()
    connect = lambda: connect_amqp(server, reads_slowly=True).stream  # noqa: E731
    await drive(server, connect, before, AMQP10_FLOODS[flood], most, AMQP10_KEPT)


# -- HTTP

HTTP_MOST = 4 << 20  # a body as JSON takes more, which test_limits.py measures
HTTP_KEPT = HTTP_MOST  # Hypercorn's objects refer to each other, with what they have received
HEAD = b"PUT /api/vhosts/v HTTP/1.1\r\nhost: localhost\r\nauthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
WRONG_HEAD = HEAD.replace(b"Z3Vlc3Q6Z3Vlc3Q=", b"Z3Vlc3Q6eA==")
DONE = (
    b"GET /api/whoami HTTP/1.1\r\nhost: localhost\r\nauthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n"
)
# What a client may be doing, as h11 names it.
HTTP_STATES: dict[object, tuple[tuple[bytes, ...], ...]] = {
    h11.IDLE: ((), (DONE,)),
    h11.SEND_BODY: (
        (HEAD + b"content-length: 999999999\r\n\r\n",),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n",),
        (WRONG_HEAD + b"content-length: 999999999\r\n\r\n",),
    ),
    h11.DONE: ((WRONG_HEAD + b"\r\n",), (DONE * 20,)),
    h11.MUST_CLOSE: ((DONE.replace(b"1.1", b"1.0"),),),
    h11.CLOSED: ((DONE[:-2] + b"connection: close\r\n\r\n",),),
    h11.ERROR: ((b"NO HTTP AT ALL\r\n\r\n",),),
    h11.MIGHT_SWITCH_PROTOCOL: ((DONE[:-2] + b"upgrade: h2c\r\n\r\n",),),
}
HTTP_FLOODS = {
    "bytes": Flood(b"", bytes(RECEIVE_BYTES)),
    "requests": repeated(DONE[:-2] + b"x: " + b"x" * 30_000 + b"\r\n\r\n"),
    "a line without end": Flood(b"GET /", b"x" * RECEIVE_BYTES),
    "chunks": repeated(b"2710\r\n" + bytes(10_000) + b"\r\n"),
    "a chunk's extensions": Flood(b"1;", b"x" * RECEIVE_BYTES),
}


def test_every_state_of_an_http_client_is_here() -> None:
    """Those that h11 has; a client that has sent its answer or switched protocols is none."""
    of_clients = set(h11._state.EVENT_TRIGGERED_TRANSITIONS[h11.CLIENT])
    assert HTTP_STATES.keys() == of_clients - {h11.SWITCHED_PROTOCOL}


@pytest.mark.parametrize("flood", HTTP_FLOODS)
@pytest.mark.parametrize("before", sorted({way for ways in HTTP_STATES.values() for way in ways}))
async def test_an_http_connection(server: Harness, before: tuple[bytes, ...], flood: str) -> None:
    app = server.server.http_app()

    def connect() -> Stream:
        ours, theirs = lockstep_stream_pair()
        theirs.socket = Named()  # type: ignore[attr-defined]
        server.start(http.Server(app, 100).serve, theirs)
        return ours

    await drive(server, connect, before, HTTP_FLOODS[flood], HTTP_MOST, HTTP_KEPT)
