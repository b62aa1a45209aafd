"""What clients say, recorded while they talk to a server: something of everything there is."""

import json
from typing import Any

import trio

from segments.amqp10 import Opaque, Symbol, encode_map
from segments.compression import pack
from segments.message import Message, Properties
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import HEARTBEAT_FRAME, method_frame
from streamd.wire.amqp091.values import Field
from streamd.wire.amqp10 import performatives as p
from streamd.wire.amqp10.codec import HEARTBEAT_FRAME as HEARTBEAT10, frame as frame10
from streamd.wire.amqp10.values import Described, Uint, Ulong, write_value
from streamd.wire.stream import codec, commands as c
from streamd.wire.stream.fields import CommandVersions, OffsetSpecification, Pair
from streamd.wire.stream.publish import encode_sub_batch
from tests.fuzz.frames import amqp10_frames, amqp_frames
from tests.support.amqp import FIRST as FROM_FIRST, STREAM, AmqpPeer, connect, declare, fields
from tests.support.amqp10 import Amqp10Peer, connect as connect10
from tests.support.server import FIRST, LAST, NEXT, Harness, Peer

STREAM_LOGIN, AMQP_LOGIN = 5, 5  # frames until the connection is open


class _Recorder:
    """Keeps what is sent."""

    def __init__(self, stream: trio.StapledStream[Any, Any]) -> None:
        self.frames: list[bytes] = []
        self._send = stream.send_all
        stream.send_all = self._record  # type: ignore[method-assign]

    async def _record(self, data: bytes) -> None:
        self.frames.append(bytes(data))
        await self._send(data)


async def record_stream(server: Harness) -> list[bytes]:
    """A session of the stream protocol."""
    peer = server.connect()
    recorder = _Recorder(peer.stream)
    for part in (_log_in, _publish, _consume, _look, _manage, _clean_up):
        await part(peer)
    return recorder.frames


async def _log_in(peer: Peer) -> None:
    await peer.log_in(connection_name="fuzz", product="x")
    versions = tuple(CommandVersions(kind.KEY, 1, 2) for kind in (c.Deliver, c.Publish))
    await peer.ask(c.ExchangeCommandVersions, versions)


async def _publish(peer: Peer) -> None:
    await peer.create("s", stream_filter_size_bytes="32", max_age="1h", max_length_bytes="100000")
    await peer.create("f", stream_filter_property="kind", stream_filter_contract="strict")
    await peer.create("small", stream_max_segment_size_bytes="2000", stream_chunk_max_records="3")
    await peer.declare("s", 1, "app")
    await peer.declare("s", 2)
    await peer.declare("small", 3)
    await peer.store([b"a", b"bb" * 50, b""], values=[b"x", b"y", None])
    await peer.store([b"c"] * 20, publisher_id=2)
    for n in range(3):
        await peer.store([b"%d" % n * 300] * 5, publisher_id=3, first_id=1 + 5 * n)
    for number, kind in enumerate((0, 1, 4), 50):
        body, full_size = pack([b"one", b"two"], kind)
        entry = encode_sub_batch(number, 2, kind, full_size, body)
        await peer.send(c.Publish(2, 1, entry))
        await peer.confirmed(1)
    await peer.ask(c.QueryPublisherSequence, "app", "s")


async def _consume(peer: Peer) -> None:
    await peer.subscribe("s", FIRST, 2, 1, filter__1="x", filter__2="y", match_unfiltered="true")
    await peer.chunk()
    await peer.send(c.Credit(1, 5))
    await peer.subscribe("small", OffsetSpecification(4, 7), 1, 2, name="app", super_stream="")
    await peer.chunk()
    await peer.subscribe("s", LAST, 1, 3, single_active_consumer="true", name="group")
    update = await _until(peer, c.ConsumerUpdate)
    answer = c.ConsumerUpdateResponse(update.correlation_id, 1, NEXT)
    await peer.send(answer)
    await peer.subscribe(
        "s", OffsetSpecification(5, 1_700_000_000_000), 1, 4, filter_mode="nothing"
    )
    for n in range(3):
        await peer.send(c.StoreOffset("app", "small", n))
    await peer.ask(c.QueryOffset, "app", "small")
    await peer.ask(c.DescribeSubscription, 1, 0)
    await peer.ask(c.ResolveOffsetSpec, "s", LAST)
    await peer.ask(c.Unsubscribe, 2)


async def _until(peer: Peer, kind: type[Any]) -> Any:
    while True:
        found = await peer.next()
        if isinstance(found, kind):
            return found


async def _look(peer: Peer) -> None:
    partitions, keys = ("p-0", "p-1"), ("0", "1")
    arguments = (Pair("max-length-bytes", "5000"),)
    await peer.ask(c.CreateSuperStream, "p", partitions, keys, arguments)
    await peer.ask(c.Partitions, "p")
    await peer.ask(c.Route, "1", "p")
    await peer.ask(c.Metadata, ("s", "p-0", "none"))
    await peer.ask(c.StreamStats, "s")
    await peer.ask(c.DescribeStreams, ("s", "small"))
    await peer.ask(c.DescribeStreams, ())
    await peer.ask(c.DescribeFilters, "s")


async def _manage(peer: Peer) -> None:
    for operation, arguments in (
        ("selector.add", {"stream": "s", "group": "g", "text": "a = 'b' AND c > 5"}),
        ("selector.list", {"stream": "s"}),
        ("stream.set", {"stream": "s", "max-age": "2h"}),
        ("user.add", {"name": "ada", "password": "secret", "tags": "management"}),
        ("user.passwd", {"name": "ada", "password": "other"}),
        ("user.list", {}),
        ("vhost.add", {"name": "v"}),
        ("permission.set", {"user": "ada", "vhost": "v", "read": "^s", "write": ".*"}),
        ("permission.clear", {"user": "ada", "vhost": "v"}),
        ("vhost.delete", {"name": "v"}),
        ("user.delete", {"name": "ada"}),
        ("selector.delete", {"stream": "s", "group": "g"}),
    ):
        await peer.ask(c.Manage, operation, tuple(Pair(*pair) for pair in arguments.items()))


async def _clean_up(peer: Peer) -> None:
    await peer.send(c.Heartbeat())
    await peer.ask(c.SaslAuthenticate, "PLAIN", b"\0guest\0guest")
    await peer.ask(c.DeletePublisher, 2)
    await peer.ask(c.DeleteSuperStream, "p")
    for name in ("s", "f", "small"):
        await peer.ask(c.Delete, name)
    await peer.ask(c.Close, 1, "bye")


SPARE_COMMANDS = [
    codec.encode(command)
    for command in (
        c.DeclarePublisher(1, 1, "app", "s"),
        c.Publish(7, 1, bytes(12)),
        c.PublishFiltered(1, 1, bytes(14)),
        c.Subscribe(1, 9, "s", OffsetSpecification(4, (1 << 64) - 1), 0, ()),
        c.Credit(200, 65_535),
        c.StoreOffset("", "s", 0),
        c.SaslHandshake(1),
        c.Tune(1, 1),
        c.Open(1, "/"),
        c.CloseResponse(1, 1),
        c.ConsumerUpdateResponse(0, 1, OffsetSpecification(4, 0)),
        c.Deliver(1, bytes(48)),
        c.CreateSuperStream(1, "p", ("p-0",) * 3, ("0",) * 3, ()),
        c.Manage(1, "stream.set", (Pair("stream", "s"), Pair("max-age", ""))),
        c.Delete(1, "s"),
    )
]

# -- AMQP 0-9-1

_HEADERS = fields(a=1, x_stream_filter_value="v", list=[1, "a"], CC=["s"])


SPARE_METHODS = [
    *(
        method_frame(1, method)
        for method in (
            m.BasicGet(0, "s", False),
            m.BasicReject(1, True),
            m.BasicAck(0, True),
            m.BasicRecoverAsync(True),
            m.QueuePurge(0, "s", False),
            m.ChannelFlow(False),
            m.ChannelFlow(True),
            m.TxSelect(),
            m.ConfirmSelect(True),
            m.QueueDelete(0, "s", False, False, True),
            m.ExchangeDelete(0, "amq.topic", False, True),
            m.ExchangeBind(0, "x", "x", "", True, {}),
            m.ChannelCloseOk(),
            m.ChannelClose(1, "x", 0, 0),
            m.BasicDeliver("c", 1, False, "", ""),
        )
    ),
    *(method_frame(number, m.ChannelOpen()) for number in (0, 1, 2, 65_535)),
    method_frame(0, m.ConnectionUpdateSecret(b"x", "y")),
    method_frame(0, m.ConnectionCloseOk()),
    HEARTBEAT_FRAME,
]


async def record_amqp(server: Harness) -> list[bytes]:
    """A session of AMQP 0-9-1."""
    peer = connect(server)
    recorder = _Recorder(peer.stream)
    await peer.log_in()
    await peer.open()
    for part in (_declare, _publish_amqp, _consume_amqp, _clean_up_amqp):
        await part(peer)
    return [frame for sent in recorder.frames for frame in amqp_frames(sent)]


async def _declare(peer: AmqpPeer) -> None:
    await peer.confirm()
    await peer.declare("s")
    strict = fields(x_stream_filter_property="a", x_max_age="1h", x_stream_filter_size_bytes=64)
    await peer.ask(declare("f", STREAM | strict), m.QueueDeclareOk)
    await peer.ask(declare("s", passive=True), m.QueueDeclareOk)
    for name, kind in (("x", "headers"), ("y", "topic")):
        exchange = m.ExchangeDeclare(0, name, kind, False, True, False, False, False, {})
        await peer.ask(exchange, m.ExchangeDeclareOk)
    await peer.ask(m.QueueBind(0, "s", "x", "k", False, fields(a=1)), m.QueueBindOk)
    await peer.ask(m.QueueBind(0, "f", "y", "k.#", False, {}), m.QueueBindOk)
    await peer.ask(m.ExchangeBind(0, "x", "amq.topic", "k.#", False, {}), m.ExchangeBindOk)
    await peer.ask(m.ExchangeUnbind(0, "x", "amq.topic", "k.#", False, {}), m.ExchangeUnbindOk)


async def _publish_amqp(peer: AmqpPeer) -> None:
    headers = _HEADERS | {"t": Field("F", fields(x=5, d="y")), "d": Field("d", 1.5)}
    properties = {"content_type": "a/b", "expiration": "5", "message_id": "m", "priority": 3}
    places = (("s", ""), ("f", ""), ("", "x"), ("k.z", "y"), ("none", ""))
    for key, exchange in places:
        body = b"body" * 100
        options: dict[str, Any] = {"mandatory": True, "headers": headers, **properties}
        await peer.publish(key, body, exchange=exchange, **options)
    await peer.publish("nowhere", b"", mandatory=True)
    frame_max, peer.frame_max = peer.frame_max, 50
    await peer.publish("s", b"x" * 200)  # in several frames
    peer.frame_max = frame_max


async def _consume_amqp(peer: AmqpPeer) -> None:
    await peer.ask(m.BasicQos(0, 3, False), m.BasicQosOk)
    for queue, tag, arguments in (
        ("s", "c", {}),
        ("f", "d", fields(x_stream_filter=["1"], x_stream_match_unfiltered=True)),
        ("s", "e", fields(x_stream_sql="a = 1 AND b IS NULL")),
        ("s", "g", fields(x_stream_tags="a || b")),
    ):
        table = FROM_FIRST | arguments
        consume = m.BasicConsume(0, queue, tag, False, False, False, False, table)
        await peer.ask(consume, m.BasicConsumeOk)
    await peer.send(m.BasicAck(1, False))
    await peer.send(m.BasicNack(0, True, True))
    await peer.ask(m.BasicRecover(True), m.BasicRecoverOk)
    await peer.ask(m.BasicCancel("c", False), m.BasicCancelOk)


async def _clean_up_amqp(peer: AmqpPeer) -> None:
    await peer.ask(m.QueueUnbind(0, "s", "x", "k", fields(a=1)), m.QueueUnbindOk)
    for exchange in ("x", "y"):
        await peer.ask(m.ExchangeDelete(0, exchange, False, False), m.ExchangeDeleteOk)
    for name in ("s", "f"):
        await peer.ask(m.QueueDelete(0, name, False, False, False), m.QueueDeleteOk)
    await peer.ask(m.ChannelClose(200, "", 0, 0), m.ChannelCloseOk)
    await peer.ask(m.ConnectionClose(200, "", 0, 0), m.ConnectionCloseOk, 0)


# -- AMQP 1.0

AMQP10_LOGIN = 5  # frames and headers until a session has begun
_FILTERS: dict[str, Any] = {
    "rabbitmq:stream-offset-spec": "first",
    "rabbitmq:stream-filter": ["a", "b"],
    "rabbitmq:stream-match-unfiltered": True,
    "sql-filter": ("amqp:sql-filter", "a = 1 AND b IS NULL"),
    "streamd:tag": "a || b",
    "p": ("amqp:properties-filter", {Symbol("subject"): "&p:x", Symbol("group-sequence"): Uint(1)}),
    "q": ("amqp:application-properties-filter", {"a": 1, "b": None}),
}


def _filter_of(*names: str) -> Opaque:
    items: list[bytes] = []
    for name in names:
        given = _FILTERS[name]
        descriptor, value = given if isinstance(given, tuple) else (name, given)
        items += (write_value(Symbol(name)), write_value(Described(Symbol(descriptor), value)))
    return Opaque(encode_map(items))


def _request(method: str, to: str, body: Any = None) -> bytes:
    properties = [Ulong(7), None, to, method, "$me"]
    sections = ((0x73, properties), (0x77, body))
    return b"".join(bytes((0, 0x53, code)) + write_value(value) for code, value in sections)


SPARE_PERFORMATIVES = (
    *(
        frame10(0, p.Attach(name, 9, role, *modes, source=source, target=target, properties=more))
        for name, role, modes, source, target, more in (
            ("a", True, (1, 0), p.Source("/queues/s", filter=_filter_of(*_FILTERS)), None, None),
            ("b", True, (0, 1), p.Source("/queues/s", dynamic=True), p.Target(), None),
            ("c", False, (2, 0), None, p.Target("/exchanges/amq.topic/a.b"), None),
            ("d", False, (2, 0), p.Source(), p.Coordinator(), None),
            ("m", False, (1, 0), p.Source("me"), p.Target("/management"), {Symbol("paired"): True}),
        )
    ),
    frame10(0, p.Flow(0, 0, 0, 0)),
    frame10(0, p.Flow(0, 100, 0, 100, 1, 0, 50, 0, True, True)),
    frame10(0, p.Disposition(True, 0, 1_000_000, False, p.Modified(True, True))),
    frame10(0, p.Disposition(True, 0, None, True, p.Rejected(p.Error("amqp:x", "why")))),
    frame10(0, p.Transfer(0, 90, b"t", 0, False, True), b"\0\x53\x75\xa0\x01"),
    frame10(0, p.Transfer(0), b"x"),
    frame10(0, p.Transfer(0, 91, b"t", 0, True, aborted=True)),
    frame10(0, p.Detach(0, False)),
    frame10(1, p.Begin(None, 5, 1, 1, 3)),
    frame10(0, p.End()),
    frame10(0, p.Close(p.Error("amqp:y"))),
    HEARTBEAT10,
)


async def record_amqp10(server: Harness) -> list[bytes]:
    """A session of AMQP 1.0."""
    peer = connect10(server)
    recorder = _Recorder(peer.stream)
    await peer.log_in(hostname="vhost:/", idle_time_out=60_000)
    await peer.begin(window=100)
    for part in (_manage10, _publish10, _consume10):
        await part(peer)
    await peer.send(p.Close())
    return [one for data in recorder.frames for one in amqp10_frames(data)]


async def _manage10(peer: Amqp10Peer) -> None:
    pair: dict[str, Any] = {"snd_settle_mode": 1, "properties": {Symbol("paired"): True}}
    both: dict[str, Any] = {"name": "pair", **pair}
    await peer.attach_receiver("/management", 1, filter=None, **both)
    await peer.attach_sender("/management", 0, **both)
    await peer.credit(100, 1)
    stream = {"x-queue-type": "stream", "x-stream-filter-property": "a", "x-max-age": "1h"}
    for method, to, body in (
        ("PUT", "/queues/s", {"durable": True, "arguments": stream}),
        ("GET", "/queues/s", None),
        ("PUT", "/exchanges/e", {"type": "topic", "durable": True}),
        ("POST", "/bindings", {"source": "e", "destination_queue": "s", "binding_key": "k.#"}),
        ("GET", "/bindings?src=e&dstq=s&key=k.%23", None),
        ("DELETE", "/bindings/src=e;dstq=s;key=k.%23;args=", None),
        ("DELETE", "/exchanges/e", None),
        ("DELETE", "/queues/none", None),
    ):
        await peer.publish(_request(method, to, body), settled=True)
        await peer.deliveries(1)


async def _publish10(peer: Amqp10Peer) -> None:
    await peer.attach_sender("/queues/s", 2)
    annotated = Message(b"b", annotations={"x-stream-filter-value": "a", "x-cc": ["s", "t"]})
    free = Message(b"c" * 50, application_properties={"a": 1, "b": "x", "c": None})
    value = Message(value={"a": [1, 2.5, b"x"]})
    await peer.publish(Message(b"a"), annotated, free, value, handle=2)
    await peer.outcomes(4)
    raw = Message(b"long" * 30).encode()
    await peer.send_bytes(peer.transfer(raw[:50], 2, more=True))
    await peer.send_bytes(frame10(0, p.Transfer(2), raw[50:]))
    await peer.outcomes(1)
    await peer.attach_sender(None, 3)
    for to in ("/queues/s", "/exchanges/amq.fanout", "/exchanges/none/k", "bad"):
        await peer.publish(Message(b"x", Properties(to=to)), handle=3)
    await peer.outcomes(4)


async def _consume10(peer: Amqp10Peer) -> None:
    first = "rabbitmq:stream-offset-spec"
    choices = ((), (first,), (first, "rabbitmq:stream-filter"), (first, "sql-filter"), ("q", "p"))
    for handle, names in enumerate(choices, 10):
        await peer.attach_receiver(handle=handle, filter=_filter_of(*names) if names else None)
        await peer.credit(3, handle, next_incoming_id=8, drain=handle % 2 == 1)
    await trio.sleep(0.1)
    await peer.send(p.Disposition(True, 8, 9, False, p.Accepted()))
    await peer.send(p.Detach(10, True))


# -- HTTP

_AUTHORIZATION = "authorization: Basic Z3Vlc3Q6Z3Vlc3Q="
_DEFINITIONS = {
    "users": [{"name": "eve", "password": "x", "tags": "administrator"}],
    "vhosts": [{"name": "w"}],
    "permissions": [{"user": "eve", "vhost": "w", "configure": "", "write": "", "read": ""}],
    "queues": [{"name": "r", "vhost": "w", "arguments": {"x-queue-type": "stream"}}],
    "exchanges": [{"name": "z", "vhost": "w", "type": "direct"}],
    "bindings": [
        {
            "source": "z",
            "vhost": "w",
            "destination": "r",
            "destination_type": "queue",
            "routing_key": "1",
            "arguments": {"x-stream-partition-order": 1},
        },
        {
            "source": "amq.topic",
            "vhost": "w",
            "destination": "z",
            "destination_type": "exchange",
            "routing_key": "#",
            "arguments": {"a": True},
        },
    ],
}
_HASH = {"password_hash": "AAAA", "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": []}
_BINDING = {"routing_key": "k", "arguments": {"x-stream-partition-order": 1}}
_EXCHANGE = {
    "type": "headers",
    "durable": False,
    "auto_delete": True,
    "internal": False,
    "arguments": {"alternate-exchange": "e", "x-other": [1, "a", {"b": None}]},
}
_QUEUE = {"arguments": {"x-max-age": "1h", "x-max-length-bytes": 10_000}, "durable": True}
_REQUESTS: tuple[tuple[str, str, dict[str, Any] | None], ...] = (
    ("GET", "/api/overview", None),
    ("GET", "/api/whoami", None),
    ("PUT", "/api/queues/%2F/s", _QUEUE),
    ("GET", "/api/queues?page=1&page_size=2&name=s&columns=name,messages", None),
    ("GET", "/api/queues/%2F/s", None),
    ("PUT", "/api/stream/super-streams/%2F/p", {"partitions": 2, "arguments": {}}),
    ("PUT", "/api/stream/super-streams/%2F/q", {"binding-keys": "a,b"}),
    ("PUT", "/api/exchanges/%2F/e", {"type": "direct", "durable": True}),
    ("POST", "/api/bindings/%2F/e/e/q/s", _BINDING),
    ("GET", "/api/bindings/%2F/e/e/q/s", None),
    ("PUT", "/api/exchanges/%2F/x", _EXCHANGE),
    ("POST", "/api/bindings/%2F/e/x/q/s", {"routing_key": "k.#", "arguments": {"a": 1, "b": "c"}}),
    ("POST", "/api/bindings/%2F/e/e/e/x", {"routing_key": "k", "arguments": {}}),
    ("GET", "/api/exchanges/%2F/x", None),
    ("GET", "/api/exchanges/%2F/x/bindings/source", None),
    ("GET", "/api/queues/%2F/s/bindings", None),
    ("DELETE", "/api/bindings/%2F/e/x/q/s/k.%23", None),
    ("DELETE", "/api/exchanges/%2F/x?if-unused=true", None),
    ("DELETE", "/api/bindings/%2F/e/e/q/s/k", None),
    ("PUT", "/api/users/ada", {"password": "secret", "tags": "management,monitoring"}),
    ("PUT", "/api/users/bob", _HASH),
    ("PUT", "/api/vhosts/v", {}),
    ("PUT", "/api/permissions/v/ada", {"configure": ".*", "write": "^a", "read": ""}),
    ("GET", "/api/permissions", None),
    ("GET", "/api/users/ada/permissions", None),
    ("GET", "/api/vhosts/v/connections", None),
    ("GET", "/api/stream/publishers/%2F/s", None),
    ("DELETE", "/api/permissions/v/ada", None),
    ("GET", "/api/connections", None),
    ("GET", "/api/stream/connections", None),
    ("GET", "/api/consumers", None),
    ("GET", "/api/definitions", None),
    ("POST", "/api/definitions", _DEFINITIONS),
    ("DELETE", "/api/vhosts/v", None),
    ("DELETE", "/api/users/ada", None),
    ("DELETE", "/api/stream/super-streams/%2F/p", None),
    ("DELETE", "/api/queues/%2F/s", None),
    ("GET", "/api/nodes", None),
    ("GET", "/api/health/checks/alarms", None),
)


def http_requests() -> list[bytes]:
    """Requests to the HTTP API, one after the other."""
    made = []
    for method, path, value in _REQUESTS:
        body = "" if value is None else json.dumps(value)
        lines = [f"{method} {path} HTTP/1.1", "host: localhost", _AUTHORIZATION]
        if body:
            lines += ["content-type: application/json", f"content-length: {len(body.encode())}"]
        made.append(("\r\n".join(lines) + "\r\n\r\n" + body).encode())
    return made
