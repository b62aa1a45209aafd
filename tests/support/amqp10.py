"""A peer that speaks AMQP 1.0 to a server in memory, frame by frame or with any bytes."""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import trio

from segments.amqp10 import Opaque, Symbol, encode_map
from segments.amqp10_codes import Section
from segments.message import Message, MessageView, find_section
from streamd.server import AMQP
from streamd.wire.amqp10 import performatives as p
from streamd.wire.amqp10.codec import (
    AMQP_HEADER,
    FRAME_HEAD,
    SASL_HEADER,
    decode_composite,
    frame,
    sasl_frame,
)
from streamd.wire.amqp10.values import Described, read_entries, write_value
from tests.support.server import LONGEST_WAIT, AnyPeer, Harness

ACCEPTED, RELEASED = p.Accepted, p.Released  # as `outcomes` shows them: both are empty


def filters(sql: str | None = None, **values: Any) -> Opaque:
    """The filter map of a source; each key is its descriptor, with `rabbitmq:` before it."""
    named = [(f"rabbitmq:{name.replace('_', '-')}", value) for name, value in values.items()]
    entries = [(name, name, value) for name, value in named]
    if sql is not None:
        entries.append(("sql-filter", "amqp:sql-filter", sql))
    items: list[bytes] = []
    for key, descriptor, value in entries:
        described = Described(Symbol(descriptor), value)
        items += (write_value(Symbol(key)), write_value(described))
    return Opaque(encode_map(items))


FIRST = filters(stream_offset_spec="first")


def kind_of(outcome: Any) -> type[Any]:
    """Of an outcome, as `outcomes` shows it."""
    return outcome if isinstance(outcome, type) else type(outcome)


class Delivery(NamedTuple):
    """A message that was delivered, and the transfer that it began with."""

    transfer: p.Transfer
    raw: bytes

    @property
    def message(self) -> MessageView:
        return MessageView(self.raw)

    @property
    def body(self) -> bytes:
        return self.message.body

    @property
    def annotations(self) -> dict[str, Any]:
        at = find_section(self.raw, Section.MESSAGE_ANNOTATIONS)
        return {} if at is None else {e.key: e.value for e in read_entries(self.raw, at)}

    @property
    def offset(self) -> int:
        return cast("int", self.annotations["x-stream-offset"])


class Amqp10Peer(AnyPeer):
    """A client that sends and reads only what a test asks for."""

    def __init__(self, stream: trio.StapledStream[Any, Any]) -> None:
        self.stream = stream
        self.frame_max = 131_072
        self._buffer = b""
        self._kept: list[tuple[int, Any, bytes]] = []
        self._delivery_id = 0

    # -- sending

    async def send_bytes(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def send(self, *performatives: Any, channel: int = 0) -> None:
        await self.send_bytes(b"".join(frame(channel, one) for one in performatives))

    def delivery_id(self) -> int:
        """That of the next message."""
        number, self._delivery_id = self._delivery_id, self._delivery_id + 1
        return number

    def transfer(
        self, raw: bytes, handle: int = 0, channel: int = 0, settled: bool = False, **more: Any
    ) -> bytes:
        """The frame of a message; its delivery id is the next one."""
        number = self.delivery_id()
        tag = number.to_bytes(4, "big")
        transfer = p.Transfer(handle, number, tag, 0, settled)._replace(**more)
        return frame(channel, transfer, raw)

    async def publish(self, *messages: Message | bytes, **options: Any) -> None:
        raws = [one if isinstance(one, bytes) else one.encode() for one in messages]
        await self.send_bytes(b"".join(self.transfer(raw, **options) for raw in raws))

    # -- receiving

    async def _fill(self, count: int) -> None:
        while len(self._buffer) < count:
            with trio.fail_after(LONGEST_WAIT):
                data = await self.stream.receive_some(1 << 20)
            if not data:
                raise trio.EndOfChannel
            self._buffer += data

    def _take(self, count: int) -> bytes:
        found, self._buffer = self._buffer[:count], self._buffer[count:]
        return found

    async def header(self) -> bytes:
        await self._fill(8)
        return self._take(8)

    async def receive(self) -> tuple[int, Any, bytes]:
        """Channel, performative, payload; the performative is None in a sign of life.

        Who is cancelled has lost nothing.
        """
        if self._kept:
            return self._kept.pop(0)
        await self._fill(FRAME_HEAD.size)
        size, words, _, channel = FRAME_HEAD.unpack_from(self._buffer)
        assert size <= self.frame_max
        await self._fill(size)
        body = self._take(size)[4 * words :]
        if not body:
            return channel, None, b""
        performative, end = decode_composite(body)
        return channel, performative, body[end:]

    async def next(self) -> Any:
        """The next performative that is no sign of life."""
        while True:
            _, found, _ = await self.receive()
            if found is not None:
                return found

    async def find(self, kind: type[Any]) -> Any:
        """The next performative of a kind; what else comes before it is kept."""
        before = []
        while True:
            found = await self.receive()
            if isinstance(found[1], kind):
                self._kept = before + self._kept
                return found[1]
            before.append(found)

    async def deliveries(self, count: int) -> list[Delivery]:
        """So many messages; flows and dispositions before them are dropped."""
        return [await self._delivery() for _ in range(count)]

    async def _delivery(self) -> Delivery:
        first, parts = None, []
        while True:
            _, found, payload = await self.receive()
            if isinstance(found, p.Transfer):
                first = first or found
                parts.append(payload)
                if not found.more:
                    return Delivery(first, b"".join(parts))
            else:
                assert isinstance(found, p.Flow | p.Disposition | None), found

    async def outcomes(self, count: int) -> dict[int, Any]:
        """The outcomes of so many messages, by their ids; flows before them are dropped."""
        found: dict[int, Any] = {}
        while len(found) < count:
            one = await self.next()
            if isinstance(one, p.Flow):
                continue
            assert isinstance(one, p.Disposition), one
            assert one.role is p.RECEIVER
            assert one.settled
            last = one.first if one.last is None else one.last
            for number in range(one.first, last + 1):
                assert number not in found, "told twice"
                found[number] = one.state or type(one.state)
        return found

    async def ended(self) -> None:
        """Not even with a sign of life."""
        try:
            found = await self.receive()
        except (trio.EndOfChannel, trio.BrokenResourceError):
            return
        raise AssertionError(f"an end was expected, not {found}")

    # -- whole steps

    async def greet(self) -> p.SaslMechanisms:
        await self.send_bytes(SASL_HEADER)
        assert await self.header() == SASL_HEADER
        return cast("p.SaslMechanisms", await self.expect(p.SaslMechanisms))

    async def prove(self, mechanism: str = "PLAIN", response: bytes = b"\0guest\0guest") -> int:
        await self.send_bytes(sasl_frame(p.SaslInit(mechanism, response)))
        return cast("int", (await self.expect(p.SaslOutcome)).code)

    async def log_in(
        self, user: str = "guest", password: str = "guest", **open_fields: Any
    ) -> p.Open:
        await self.greet()
        assert not await self.prove(response=f"\0{user}\0{password}".encode())
        await self.send_bytes(AMQP_HEADER)
        assert await self.header() == AMQP_HEADER
        await self.send(p.Open("test")._replace(**open_fields))
        self.frame_max = open_fields.get("max_frame_size", self.frame_max)
        return cast("p.Open", await self.expect(p.Open))

    async def begin(self, channel: int = 0, window: int = 10_000, **more: Any) -> p.Begin:
        await self.send(p.Begin(None, 0, window, 10_000)._replace(**more), channel=channel)
        return cast("p.Begin", await self.expect(p.Begin))

    async def attach_sender(
        self, address: Any = "/queues/s", handle: int = 0, channel: int = 0, **more: Any
    ) -> p.Attach:
        attach = p.Attach(f"out{handle}", handle, p.SENDER, initial_delivery_count=0)
        target = None if address is Ellipsis else p.Target(address)
        attach = attach._replace(source=p.Source("here"), target=target, **more)
        await self.send(attach, channel=channel)
        return cast("p.Attach", await self.find(p.Attach))

    async def attach_receiver(
        self,
        address: Any = "/queues/s",
        handle: int = 1,
        channel: int = 0,
        filter: Opaque | None = FIRST,  # noqa: A002 - as the field is called
        **more: Any,
    ) -> p.Attach:
        source = p.Source(address, filter=filter)
        attach = p.Attach(f"in{handle}", handle, p.RECEIVER, source=source, target=p.Target("me"))
        await self.send(attach._replace(**more), channel=channel)
        return cast("p.Attach", await self.find(p.Attach))

    async def credit(
        self,
        credit: int,
        handle: int = 1,
        channel: int = 0,
        delivery_count: int = 0,
        window: int = 10_000,
        next_incoming_id: int = 0,
        **more: Any,
    ) -> None:
        flow = p.Flow(next_incoming_id, window, 0, 10_000, handle, delivery_count, credit)
        await self.send(flow._replace(**more), channel=channel)

    async def consume(self, credit: int = 1_000, **options: Any) -> p.Attach:
        found = await self.attach_receiver(**options)
        await self.credit(credit, options.get("handle", 1), options.get("channel", 0))
        return found

    async def store(self, *messages: Message | bytes, address: str = "/queues/s") -> None:
        """Publish and wait until all are accepted, on a link of its own."""
        await self.attach_sender(address, handle=200)
        for at in range(0, len(messages), 100):
            some = messages[at : at + 100]
            await self.publish(*some, handle=200)
            assert set((await self.outcomes(len(some))).values()) == {ACCEPTED}
        await self.send(p.Detach(200, True))
        await self.find(p.Detach)

    # -- refusals

    async def link_is_refused(self, attach: p.Attach, condition: str, text: str = "") -> p.Error:
        """A link whose attach is answered, and followed by a detach that says why."""
        assert (attach.source if attach.role is p.SENDER else attach.target) is None
        return await self.detached(condition, text)

    async def detached(self, condition: str, text: str = "") -> p.Error:
        return self._told(await self.find(p.Detach), condition, text)

    async def session_ends(self, condition: str, text: str = "") -> p.Error:
        return self._told(await self.find(p.End), condition, text)

    async def connection_fails(self, condition: str, text: str = "") -> p.Error:
        error = self._told(await self.find(p.Close), condition, text)
        await self.send(p.Close())
        await self.ended()
        return error

    def _told(self, performative: Any, condition: str, text: str) -> p.Error:
        error = cast("p.Error", performative.error)
        assert error is not None
        assert error.condition == condition, error
        assert text in (error.description or ""), error
        return error


def connect(server: Harness, *, in_rounds: bool = False, **options: Any) -> Amqp10Peer:
    """A peer that has not logged in; see `Harness.dial`."""
    return Amqp10Peer(server.dial(AMQP, in_rounds=in_rounds, **options))


async def open_peer(server: Harness, **login: Any) -> Amqp10Peer:
    """A peer that has logged in and begun session 0."""
    peer = connect(server)
    await peer.log_in(**login)
    await peer.begin()
    return peer


def bodies(found: Sequence[Delivery]) -> list[bytes]:
    return [delivery.body for delivery in found]


def numbers(count: int, first: int = 0) -> list[Message]:
    return [Message(b"%d" % n) for n in range(first, first + count)]
