"""From basic.publish to the streams that a message goes to, and back to the acks.

Where they go is in routes.py, how they are given to streams in gathering.py.
"""

import struct
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import trio

from streamd.auth.users import Rights
from streamd.broker.targets import Target
from streamd.broker.traffic import Traffic
from streamd.broker.virtual_host import VirtualHost
from streamd.connections.amqp091.channel import Channel
from streamd.connections.amqp091.channel_publisher import ChannelPublisher, Fail
from streamd.connections.amqp091.faults import fault_of, not_implemented, refusals
from streamd.connections.gathering import Gathering
from streamd.connections.routes import ROUTED, Routes, targets_a_turn
from streamd.net.outbox import Outbox
from streamd.net.turns import Steps, Stepwise
from streamd.operations.errors import Reason, Refused
from streamd.operations.figures import AMQP091
from streamd.operations.names import Name, as_sent
from streamd.operations.routing import Scalar
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import content_frames, encode_method, method_frame
from streamd.wire.amqp091.connection import MAX_MESSAGE_BYTES, Content
from streamd.wire.amqp091.converted import NO_PROPERTIES, Run, Stored
from streamd.wire.amqp091.errors import ConnectionFault, ReplyCode, precondition_failed
from streamd.wire.amqp091.messages.to_amqp10 import StoredHead, stored_body, stored_head
from streamd.wire.amqp091.properties import decode_properties, encode_properties
from streamd.wire.amqp091.values import INTEGER_TAGS, Field
from streamd.wire.stored_messages import MAX_SECTIONS

_BYTES_A_SECTION, _SECTIONS_A_MESSAGE = 4, 4  # at least; that take as long as a message
_RUN_A_MESSAGE = 16  # messages of a run that take as long as one by itself
_PLAIN = StoredHead(b"", b"", (), None, is_encoded=False, has_hidden_keys=False, price=0)
_LOW_ON_DISK = "low on disk"  # RabbitMQ's word for it


class _Message(NamedTuple):
    """A message that has been checked.

    Attributes:
        raw: as streams keep it, where a door has made that; else None.
    """

    channel: Channel
    content: Content
    body: bytes
    head: StoredHead
    raw: bytes | None = None

    @property
    def targets_a_turn(self) -> int:
        """See routes.py."""
        return targets_a_turn(len(self.body))

    def stored(self) -> bytes:
        """As streams keep it.

        Raises:
            ChannelFault: its body is not what its type says.
        """
        if self.raw is not None:
            return self.raw
        return self.head.sections + stored_body(self.body, is_encoded=self.head.is_encoded)


class Publishing:
    """What one connection publishes.

    Args:
        frame_max: bytes that a frame may have.
        fail: ends the connection.
        hears_of_blocking: the client wants to know when the disk is full.
    """

    def __init__(
        self,
        host: VirtualHost,
        rights: Rights,
        outbox: Outbox,
        frame_max: int,
        fail: Fail,
        traffic: Traffic,
        *,
        hears_of_blocking: bool,
    ) -> None:
        self._rights = rights
        self._routes, self._gathering = Routes(host, rights), Gathering(traffic)
        self._outbox = outbox
        self._frame_max = frame_max
        self._fail = fail
        self._hears_of_blocking = hears_of_blocking
        self._unfinished: tuple[Stepwise[list[Target]], _Message] | None = None
        self._traffic = traffic.protocol(AMQP091)
        self._new_sizes = self._gathering.new_sizes
        self.flush, self.settled = self._gathering.flush, self._gathering.settled
        self.has_room = self._gathering.has_room

    def publish(self, channel: Channel, content: Content) -> int:
        """Take a message; `flush` gives it to its streams.

        Returns:
            How much work that was, as much as so many messages for one stream; 0 when it has only
            been begun, see `go_on`.

        Raises:
            ChannelFault, ConnectionFault: it cannot be published.
        """
        method = content.method
        if method.immediate:
            raise not_implemented("immediate=true")
        exchange, key = as_sent(method.exchange), method.key
        self._require(exchange)
        if content.body is None:
            raise precondition_failed(
                f"message size {content.size} is larger than the limit of {MAX_MESSAGE_BYTES} bytes"
            )
        head = stored_head(exchange, key, content.properties)
        if head.user_id not in (None, self._rights.user):
            raise precondition_failed(
                f"user_id property set to '{head.user_id}' but authenticated user was "
                f"'{self._rights.user}'"
            )
        price = head.price
        if head.is_encoded:
            price += min(len(content.body) // _BYTES_A_SECTION, MAX_SECTIONS) // _SECTIONS_A_MESSAGE
        return self._route(exchange, key, _Message(channel, content, content.body, head), price)

    def publish_run(self, channel: Channel, run: Run) -> int:
        """Take messages that a door has put together; `flush` gives them to their streams.

        Returns:
            How much work that was; 0 when nothing was done: each has to be published by itself.

        Raises:
            ChannelFault, ConnectionFault: they cannot be published.
        """
        exchange, key = as_sent(run.method.exchange), run.method.key
        self._require(exchange)
        targets = self._routes.known(exchange, key)
        if targets is None:
            if self._routes.looks_at_headers(exchange):
                return 0
            work = Stepwise(self._targets(exchange, key, _PLAIN, NO_PROPERTIES, None))
            if not work.is_done:
                return 0
            targets = work.result
        if len(targets) != 1 or not targets[0].takes_any_value:
            return 0
        count = len(run.sizes)
        tags = self._next_tags(channel, run.sizes)
        numbers, values = struct.pack(f">{count}Q", *tags), run.values or [b""] * count
        self._gathering.add_run(channel.publisher, numbers, run.entries, values, targets[0].stream)
        return 1 + count // _RUN_A_MESSAGE

    def publish_stored(self, channel: Channel, method: m.BasicPublish, message: Stored) -> int:
        """Take one message of a run; as `publish`."""
        exchange, key = as_sent(method.exchange), method.key
        self._require(exchange)
        body = message.body
        properties = message.properties or NO_PROPERTIES
        content = Content(channel.number, method, properties, body, len(body))
        head = _PLAIN._replace(filter_value=message.filter_value)
        return self._route(exchange, key, _Message(channel, content, body, head, message.raw), 0)

    def _route(self, exchange: Name, key: str, message: _Message, price: int) -> int:
        """Give a message to its streams; as `publish`."""
        head = message.head
        known = None if head.more_keys else self._routes.known(exchange, key)
        if known is not None and len(known) <= 1:
            self._publish_to(known, message)
            return 1 + price
        work = Stepwise(self._targets(exchange, key, head, message.content.properties, known))
        if not work.is_done or len(work.result) > message.targets_a_turn:
            self._unfinished = work, message
            return 0
        self._publish_to(work.result, message)
        price += len(work.result)
        return price if known is not None else price + head.price + ROUTED

    async def go_on(self) -> None:
        """Do the rest of a message that `publish` has begun, others have their turn meanwhile.

        Raises:
            ChannelFault, ConnectionFault: it cannot be published.
        """
        assert self._unfinished is not None  # noqa: S101 - it is called then
        (work, message), self._unfinished = self._unfinished, None
        self.flush()
        targets = await work.finish()
        exchange = as_sent(message.content.method.exchange)
        self._require(exchange)  # it may have gone meanwhile
        raw, most = message.stored(), message.targets_a_turn
        values: list[bytes] = []  # of all, before one of the streams has it
        for target in targets:
            with refusals():
                values.append(target.filter_value(message.head.filter_value, raw))
            if len(values) % most == 0:
                await trio.lowlevel.checkpoint()
        tag = self._next_tag(targets, message)
        for at in range(0, len(targets), most):
            with refusals():
                self._routes.require_right(exchange)
            places = slice(at, at + most)
            given = zip(targets[places], values[places], strict=True)
            self._gathering.add(message.channel.publisher, tag, raw, given)
            self.flush()
            await self.room()
            await trio.lowlevel.checkpoint()
        if not targets:
            self._publish_nowhere(tag, message)

    def _publish_to(self, targets: list[Target], message: _Message) -> None:
        if targets:
            raw, given = message.stored(), message.head.filter_value
            with refusals():
                values = [target.filter_value(given, raw) for target in targets]
        tag = self._next_tag(targets, message)
        if targets:
            given_to = zip(targets, values, strict=True)
            self._gathering.add(message.channel.publisher, tag, raw, given_to)
        else:
            self._publish_nowhere(tag, message)

    def _next_tag(self, targets: list[Target], message: _Message) -> int:
        """The number of a message whose publisher wants to know, 0 of others."""
        self._traffic.messages_received += 1
        self._new_sizes.append(len(message.body))
        if targets:
            self._traffic.messages_routed += 1
        confirms = message.channel.publisher.confirms
        if confirms is None:
            return 0
        self._traffic.messages_received_confirm += 1
        return confirms.next_tag(len(targets))

    def _next_tags(self, channel: Channel, sizes: Sequence[int]) -> Sequence[int]:
        """The same for messages of one stream each, by the sizes of their bodies."""
        count = len(sizes)
        self._traffic.messages_received += count
        self._new_sizes.extend(sizes)
        self._traffic.messages_routed += count
        confirms = channel.publisher.confirms
        if confirms is None:
            return [0] * count
        self._traffic.messages_received_confirm += count
        return confirms.next_tags(count)

    def _publish_nowhere(self, tag: int, message: _Message) -> None:
        channel, content, _, head, _ = message
        if content.method.mandatory:
            self._return(channel, content, has_hidden_keys=head.has_hidden_keys)
            self._traffic.messages_unroutable_returned += 1
        else:
            self._traffic.messages_unroutable_dropped += 1
        if tag:
            channel.publisher.settle((tag,))

    def new_publisher(self, channel_number: int) -> ChannelPublisher:
        """The publisher for a channel that is opened."""
        return ChannelPublisher(channel_number, self._outbox, self._fail, self._traffic)

    async def room(self) -> None:
        """Return when the streams that were written to can take more."""
        await self._gathering.room(self._tell)

    def _tell(self, is_blocked: bool) -> None:
        if self._hears_of_blocking:
            method = m.ConnectionBlocked(_LOW_ON_DISK) if is_blocked else m.ConnectionUnblocked()
            self._outbox.put(method_frame(0, method))

    # -- where to

    def _require(self, exchange: Name) -> None:
        """Raise ChannelFault unless the user may publish there, and clients may at all."""
        try:
            self._routes.require(exchange)
        except Refused as refused:
            raise fault_of(refused) from refused

    def _targets(
        self,
        exchange: Name,
        key: str,
        head: StoredHead,
        properties: bytes,
        known: list[Target] | None,
    ) -> Steps[list[Target]]:
        if known is not None:
            return known
        headers = partial(_plain_headers, properties)
        try:
            return (yield from self._routes.find(exchange, key, head.more_keys, headers))
        except Refused as refused:
            if refused.reason is not Reason.NOT_AVAILABLE:
                raise
            raise ConnectionFault(ReplyCode.RESOURCE_ERROR, refused.details) from refused

    def _return(self, channel: Channel, content: Content, *, has_hidden_keys: bool) -> None:
        method, properties = content.method, content.properties
        if has_hidden_keys:
            given = decode_properties(properties)
            headers = {k: v for k, v in (given.headers or {}).items() if k != "BCC"}
            given.headers = headers
            properties = encode_properties(given)
        code = ReplyCode.NO_ROUTE
        told = encode_method(m.BasicReturn(code, code.name, method.exchange, method.key))
        frames = content_frames(
            channel.number, told, properties, content.body or b"", self._frame_max
        )
        self._outbox.put(frames)


def _plain_headers(properties: bytes) -> Mapping[str, Scalar]:
    return plain_table(decode_properties(properties).headers or {})


def plain_table(table: Mapping[str, Field]) -> dict[str, Scalar]:
    """The scalar values of a table, without their tags."""
    return {name: plain_value(field) for name, field in table.items() if field.tag not in "AFD"}


def argument_values(table: Mapping[str, Field]) -> dict[str, object]:
    """The arguments of a queue; see `queue_arguments`."""
    return {name: _argument_value(field) for name, field in table.items()}


def _argument_value(field: Field) -> object:
    if field.tag == "S":
        return field.value.decode(errors="replace")
    return field.value if field.tag in (*INTEGER_TAGS, *"tfd") else field


def plain_value(field: Field) -> Scalar:
    """A scalar value without its tag."""
    value: bytes | int | float | bool | None = field.value
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
