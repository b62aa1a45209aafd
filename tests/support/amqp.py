"""A peer that speaks AMQP 0-9-1 to a server in memory, method by method or with any bytes."""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import trio

from streamd.server import AMQP
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import (
    BASIC,
    FRAME_HEAD,
    PROTOCOL_HEADER,
    FrameType,
    content_frames,
    decode_content_head,
    decode_method,
    encode_method,
    method_frame,
)
from streamd.wire.amqp091.properties import Properties, decode_properties, encode_properties
from streamd.wire.amqp091.values import Field
from tests.support.server import LONGEST_WAIT, AnyPeer, Harness

STREAM: dict[str, Field] = {"x-queue-type": Field("S", b"stream")}
FIRST = {"x-stream-offset": Field("S", b"first")}
CAPABILITIES = ("consumer_cancel_notify", "authentication_failure_close", "basic.nack")


def fields(**values: Any) -> dict[str, Field]:
    """A table: texts become S, ints l, bools t; `_` in names stands for `-`."""
    return {name.replace("_", "-"): _field(value) for name, value in values.items()}


def _field(value: Any) -> Field:
    match value:
        case Field():
            return value
        case bool():
            return Field("t", value)
        case int():
            return Field("l", value)
        case str():
            return Field("S", value.encode())
        case list():
            return Field("A", [_field(item) for item in value])
    raise TypeError(value)


class Delivery(NamedTuple):
    """A method with content."""

    channel: int
    method: Any
    properties: Properties
    body: bytes


class AmqpPeer(AnyPeer):
    """A client that sends and reads only what a test asks for."""

    def __init__(self, stream: trio.StapledStream[Any, Any]) -> None:
        self.stream = stream
        self.frame_max = 131_072
        self.unasked: list[Any] = []
        self._buffer = b""

    # -- sending

    async def send_bytes(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def send(self, method: Any, channel: int = 1) -> None:
        await self.send_bytes(method_frame(channel, method))

    def message(
        self,
        key: str,
        body: bytes = b"",
        exchange: str = "",
        channel: int = 1,
        mandatory: bool = False,
        **properties: Any,
    ) -> bytes:
        """The frames of a publish."""
        publish = m.BasicPublish(0, exchange, key, mandatory, False)
        encoded = encode_properties(Properties(**properties))
        return content_frames(channel, encode_method(publish), encoded, body, self.frame_max)

    async def publish(self, key: str, *bodies: bytes, **options: Any) -> None:
        await self.send_bytes(b"".join(self.message(key, body, **options) for body in bodies))

    # -- receiving

    async def next_frame(self) -> tuple[int, int, bytes]:
        """Type, channel, payload; raises EndOfChannel when the server has ended the connection."""
        while True:
            if len(self._buffer) >= FRAME_HEAD.size:
                kind, channel, size = FRAME_HEAD.unpack_from(self._buffer)
                end = FRAME_HEAD.size + size
                if len(self._buffer) > end:
                    payload = self._buffer[FRAME_HEAD.size : end]
                    assert self._buffer[end] == 0xCE
                    assert size + 8 <= self.frame_max
                    self._buffer = self._buffer[end + 1 :]
                    return kind, channel, payload
            with trio.fail_after(LONGEST_WAIT):
                data = await self.stream.receive_some(1 << 20)
            if not data:
                raise trio.EndOfChannel
            self._buffer += data

    async def receive(self) -> tuple[int, Any]:
        """Channel and method, or Delivery for one with content. Heartbeats are skipped."""
        while True:
            kind, channel, payload = await self.next_frame()
            if kind != FrameType.HEARTBEAT:
                break
        assert kind == FrameType.METHOD
        method = decode_method(payload)
        if not isinstance(method, m.BasicDeliver | m.BasicReturn):
            return channel, method
        kind, number, payload = await self.next_frame()
        assert (kind, number) == (FrameType.HEADER, channel)
        assert payload[:4] == BASIC.to_bytes(2, "big") + b"\0\0"
        head = decode_content_head(payload)
        body = b""
        while len(body) < head.body_size:
            kind, number, payload = await self.next_frame()
            assert (kind, number) == (FrameType.BODY, channel)
            assert payload, "an empty body frame"
            body += payload
        return channel, Delivery(channel, method, decode_properties(head.properties), body)

    async def next(self) -> Any:
        """The next method or Delivery."""
        if self.unasked:
            return self.unasked.pop(0)
        return (await self.receive())[1]

    async def ask(self, method: Any, answer: type[Any], channel: int = 1) -> Any:
        """Send a request and return its answer; what else comes meanwhile is kept."""
        await self.send(method, channel)
        while True:
            number, found = await self.receive()
            if isinstance(found, answer) and number == channel:
                return found
            assert not isinstance(found, m.ChannelClose | m.ConnectionClose), found
            self.unasked.append(found)

    async def deliveries(self, count: int) -> list[Delivery]:
        found = [await self.expect(Delivery) for _ in range(count)]
        assert all(isinstance(item.method, m.BasicDeliver) for item in found)
        return found

    # -- whole steps

    async def log_in(
        self,
        user: str = "guest",
        password: str = "guest",
        virtual_host: str = "/",
        tune: tuple[int, int, int] = (2047, 131_072, 0),
        capabilities: tuple[str, ...] = CAPABILITIES,
    ) -> None:
        await self.send_bytes(PROTOCOL_HEADER)
        await self.expect(m.ConnectionStart)
        able = Field("F", {name: Field("t", True) for name in capabilities})
        response = f"\0{user}\0{password}".encode()
        start = m.ConnectionStartOk({"capabilities": able}, "PLAIN", response, "en_US")
        await self.send(start, 0)
        await self.expect(m.ConnectionTune)
        await self.send(m.ConnectionTuneOk(*tune), 0)
        self.frame_max = tune[1]
        await self.ask(m.ConnectionOpen(virtual_host, "", True), m.ConnectionOpenOk, 0)

    async def open(self, channel: int = 1) -> None:
        await self.ask(m.ChannelOpen(), m.ChannelOpenOk, channel)

    async def declare(self, name: str, channel: int = 1, **arguments: Any) -> m.QueueDeclareOk:
        table = STREAM | fields(**arguments)
        method = declare(name, table)
        return cast("m.QueueDeclareOk", await self.ask(method, m.QueueDeclareOk, channel))

    async def confirm(self, channel: int = 1) -> None:
        await self.ask(m.ConfirmSelect(False), m.ConfirmSelectOk, channel)

    async def store(self, key: str, *bodies: bytes, channel: int = 9, **options: Any) -> None:
        """Publish and wait until all are confirmed, on a channel of its own."""
        await self.open(channel)
        await self.confirm(channel)
        await self.publish(key, *bodies, channel=channel, **options)
        acked = 0
        while acked < len(bodies):
            number, found = await self.receive()
            if number != channel:
                self.unasked.append(found)
                continue
            assert isinstance(found, m.BasicAck), found
            acked = found.delivery_tag if found.multiple else acked + 1
        await self.ask(m.ChannelClose(200, "", 0, 0), m.ChannelCloseOk, channel)

    async def consume(
        self,
        queue: str,
        tag: str = "c",
        channel: int = 1,
        prefetch: int = 100,
        **arguments: Any,
    ) -> str:
        await self.ask(m.BasicQos(0, prefetch, False), m.BasicQosOk, channel)
        table = fields(**arguments)
        method = m.BasicConsume(0, queue, tag, False, False, False, False, table)
        return cast("str", (await self.ask(method, m.BasicConsumeOk, channel)).tag)

    async def channel_fails(self, method: Any, code: int, text: str = "", channel: int = 1) -> str:
        """A request that closes its channel, which can be opened again."""
        if isinstance(method, bytes):
            await self.send_bytes(method)
        else:
            await self.send(method, channel)
        closed = await self.expect(m.ChannelClose)
        assert closed.code == code, closed
        assert text in closed.text, closed
        await self.send(m.ChannelCloseOk(), channel)
        return cast("str", closed.text)

    async def connection_fails(self, method: Any, code: int, text: str = "") -> str:
        """A request that closes the connection."""
        await self.send_bytes(method if isinstance(method, bytes) else method_frame(1, method))
        closed = await self.expect(m.ConnectionClose)
        assert closed.code == code, closed
        assert text in closed.text, closed
        await self.send(m.ConnectionCloseOk(), 0)
        await self.ended()
        return cast("str", closed.text)


def declare(
    name: str,
    table: Mapping[str, Field] = STREAM,
    *,
    passive: bool = False,
    durable: bool = True,
    exclusive: bool = False,
    auto_delete: bool = False,
) -> m.QueueDeclare:
    """A queue.declare."""
    return m.QueueDeclare(0, name, passive, durable, exclusive, auto_delete, False, table)


def exchange(
    name: str,
    kind: str = "direct",
    *,
    passive: bool = False,
    durable: bool = True,
    auto_delete: bool = False,
    internal: bool = False,
    **arguments: Any,
) -> m.ExchangeDeclare:
    """An exchange.declare."""
    table = fields(**arguments)
    return m.ExchangeDeclare(0, name, kind, passive, durable, auto_delete, internal, False, table)


def connect(server: Harness, *, in_rounds: bool = False, **options: Any) -> AmqpPeer:
    """A peer that has not logged in; see `Harness.dial`."""
    return AmqpPeer(server.dial(AMQP, in_rounds=in_rounds, **options))


async def open_peer(server: Harness, **login: Any) -> AmqpPeer:
    """A peer that has logged in and opened channel 1."""
    peer = connect(server)
    await peer.log_in(**login)
    await peer.open()
    return peer
