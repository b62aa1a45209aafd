"""The server's half of an AMQP 0-9-1 connection: bytes in, requests out. No sockets.

Frames are put together, checked against the tables of states, and content is collected on each
channel. What a channel sends after the server has closed it is dropped here, as is everything but
the end of a connection that is being closed.

A client can make this hold one incomplete frame, and UNFINISHED_BYTES of incomplete messages
with their properties, on all channels together. While the connection is being closed, frames beyond
the limit are dropped as they come.

Source: AMQP 0-9-1 specification, 4.2 (wire-level format); rabbitmq/rabbitmq-server,
deps/rabbit/src/rabbit_reader.erl and deps/rabbit_common/src/rabbit_command_assembler.erl.
"""

import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import (
    FRAME_END,
    FRAME_HEAD,
    MIN_FRAME_MAX,
    PROTOCOL_HEADER,
    FrameType,
    decode_content_head,
    decode_method,
    decode_whole_content,
    method_frame,
)
from streamd.wire.amqp091.converted import TO_ENGINE, Acks, Run, decode_publish, decode_to_engine
from streamd.wire.amqp091.errors import (
    ChannelFault,
    ConnectionFault,
    MethodId,
    ReplyCode,
    frame_error,
)
from streamd.wire.amqp091.states import (
    CHANNEL_TRANSITIONS,
    CONNECTION_TRANSITIONS,
    ChannelState,
    State,
)

FRAME_MAX = 131_072  # what RabbitMQ offers
LOGIN_FRAME_MAX = 8_192  # before that is agreed; RabbitMQ's, too
CHANNEL_MAX = 2_047
MAX_MESSAGE_BYTES = 16 << 20  # larger ones close their channel, once they are read
MAX_BODY_BYTES = 512 << 20  # no header may announce more
UNFINISHED_BYTES = 32 << 20
_OTHER_HEADER = b"AMQP\x01\x01\x00\x09"  # also means 0-9-1

_PUBLISH = struct.pack(">HH", *m.IDS[m.BasicPublish])
_ENDS = [struct.pack(">HH", *m.IDS[kind]) for kind in (m.ConnectionClose, m.ConnectionCloseOk)]
_ACK = struct.pack(">HH", *m.IDS[m.BasicAck])
_ACK_FIELDS = struct.Struct(">Q?")
_ACK_SIZE = len(_ACK) + _ACK_FIELDS.size
_ACK_FRAME = struct.Struct(">BHI4sQBB")  # type, channel, size; method; tag, of several; end
_MOST_ACKS = 512  # that are taken together


class NotAmqp(Exception):
    """The peer speaks another protocol; the answer names the one spoken here."""


class Request(NamedTuple):
    """A method without content, on channel 0 for the connection."""

    channel: int
    method: m.Method


class Content(NamedTuple):
    """A message that was published.

    Attributes:
        properties: flags and properties as they came.
        body: None when it was too large to be kept.
    """

    channel: int
    method: m.BasicPublish
    properties: bytes
    body: bytes | None
    size: int


Event: TypeAlias = Request | Content | Run | Acks


class _Channel:
    """Where a channel is, and the message that is arriving on it."""

    __slots__ = ("arrived", "body", "missing", "properties", "publish", "size", "state")

    def __init__(self) -> None:
        self.state = ChannelState.NONE
        self.publish: m.BasicPublish | None = None
        self.properties: bytes | None = None
        self.body = bytearray()
        self.size = self.missing = self.arrived = 0


class Connection:
    """One connection.

    Args:
        is_relayed: the bytes come from a door, which may have put some of them together.

    Attributes:
        frame_max: bytes that a frame may have.
        channel_max: channels that may be open.
        is_relayed: see above.
        frame_size: bytes of the last frame but those of whole messages.
    """

    def __init__(self, *, is_relayed: bool = False) -> None:
        self.is_relayed = is_relayed
        self.state = State.GREETING
        self.frame_max = LOGIN_FRAME_MAX
        self.channel_max = CHANNEL_MAX
        self.frame_size = 0
        self._buffer = b""
        self._position = 0
        self._channels: dict[int, _Channel] = {}
        self._unfinished = 0
        self._unread = 0  # bytes still to come of a frame that is not looked at

    @property
    def is_open(self) -> bool:
        """Both ends have agreed, and none has closed it."""
        return self.state is State.OPEN

    @property
    def is_closed(self) -> bool:
        """Both ends have closed it."""
        return self.state is State.CLOSED

    # -- what the server does

    def tune(self, answer: m.ConnectionTuneOk) -> None:
        """Apply the limits that the client has answered.

        Raises:
            ConnectionFault: they exceed what was offered.
        """
        limits = (
            ("frame_max", answer.frame_max, MIN_FRAME_MAX, FRAME_MAX),
            ("channel_max", answer.channel_max, 1, CHANNEL_MAX),
        )
        for name, value, low, high in limits:
            if not low <= value <= high:
                reason = f"{name} is {value}, expected {low} to {high}"
                raise ConnectionFault(ReplyCode.NOT_ALLOWED, reason, m.IDS[m.ConnectionTuneOk])
        self.frame_max, self.channel_max = answer.frame_max, answer.channel_max

    def close_channel(self, number: int, fault: ChannelFault) -> bytes:
        """The frame that closes a channel; nothing more comes from it until it is answered."""
        channel = self._channels[number]
        self._drop_content(channel)
        channel.state = ChannelState.CLOSING
        return method_frame(number, m.ChannelClose(fault.code, fault.text, *fault.method))

    def close(self, fault: ConnectionFault) -> bytes:
        """The frame that closes the connection; only its answer comes out from now on."""
        self.state = State.CLOSING
        self._channels.clear()
        return method_frame(0, m.ConnectionClose(fault.code, fault.text, *fault.method))

    # -- what the client does

    def receive_data(self, data: bytes) -> None:
        """Take bytes; `events` gives what is in them."""
        if self._unread:
            data = self._without_unread(data)
        rest = self._buffer[self._position :]
        self._buffer = rest + data if rest else data
        self._position = 0

    def forget(self) -> None:
        """Give back what was received: the connection has ended."""
        self._buffer, self._position = b"", 0
        self._channels.clear()

    def _without_unread(self, data: bytes) -> bytes:
        rest = data[self._unread :]
        self._unread -= len(data) - len(rest)
        return rest

    def events(self) -> Iterator[Event | None]:
        """The events in the bytes so far. If left early, the next call gives the rest.

        A frame that asks for nothing, or is a part of something, gives None: it was work, too.

        Raises:
            NotAmqp: the connection begins otherwise.
            ConnectionFault: the bytes break the protocol. Nothing more is to be read
                after a bad frame, until `close` was called.
        """
        if not self.has_greeted():
            return
        closing, closed = State.CLOSING, State.CLOSED
        while self.state is not closing and self.state is not closed:
            buffer, start = self._buffer, self._position
            if start + FRAME_HEAD.size > len(buffer):
                return
            kind, number, size = FRAME_HEAD.unpack_from(buffer, start)
            if size > self.frame_max and not self._is_of_door(kind):  # the overhead is forgiven
                raise frame_error(f"a frame has {size} bytes, {self.frame_max} were agreed")
            begin = start + FRAME_HEAD.size
            end = begin + size
            if end >= len(buffer):
                return
            if buffer[end] != FRAME_END:
                raise frame_error(f"a frame ends with {buffer[end]:#04x}, not {FRAME_END:#04x}")
            self._position = end + 1
            payload = buffer[begin:end]
            event = self._take_more(number, start, payload) if kind == FrameType.METHOD else None
            if event is None:
                self.frame_size = size
                event = self._take(kind, number, payload)
            yield event
        yield from self._last_events()

    def _take_more(self, number: int, start: int, payload: bytes) -> Event | None:
        """What begins with a method and is all here, of several frames; None for any other."""
        if payload[:4] == _PUBLISH:
            return self._take_whole(number, payload)
        if payload[:4] == _ACK and len(payload) == _ACK_SIZE:
            return self._take_acks(number, start)
        return None

    def _take_acks(self, number: int, start: int) -> Event | None:
        """Acknowledgements of one message each that follow each other; None for one alone.

        One by one they would cost ten times as much.

        Args:
            number: of the channel.
            start: where the frame of the first begins.
        """
        size = _ACK_FRAME.size
        most = min((len(self._buffer) - start) // size, _MOST_ACKS)
        frames = _ACK_FRAME.iter_unpack(memoryview(self._buffer)[start : start + most * size])
        *_, first, is_multiple, _ = next(frames)
        if is_multiple:
            return None
        count = 1
        for frame in frames:
            following = first + count
            if frame != (FrameType.METHOD, number, _ACK_SIZE, _ACK, following, 0, FRAME_END):
                break
            count += 1
        if count == 1:
            return None
        self._position = start + count * size
        return self._take_together(Acks(number, m.BasicAck(first, False), count))

    def _last_events(self) -> Iterator[Event | None]:
        """What ends a connection that is being closed.

        Whatever else the client says, or breaks, is too late: it is dropped as it comes.
        """
        while self.state is State.CLOSING:
            start = self._position
            if start + FRAME_HEAD.size > len(self._buffer):
                return
            kind, number, size = FRAME_HEAD.unpack_from(self._buffer, start)
            end = start + FRAME_HEAD.size + size
            is_whole = end < len(self._buffer)
            if not is_whole and size <= self.frame_max:
                return
            self._position = min(end + 1, len(self._buffer))
            self._unread = end + 1 - self._position
            if is_whole and self._buffer[end] != FRAME_END:  # nobody knows where the next begins
                self._position, self._unread = len(self._buffer), sys.maxsize
            elif kind == FrameType.METHOD and not number and is_whole:
                yield self._take_end(self._buffer[start + FRAME_HEAD.size : end])
            else:
                yield None

    def _take_end(self, payload: bytes) -> Event | None:
        if payload[:4] not in _ENDS:
            return None
        try:
            return self._take_of_connection(decode_method(payload))
        except ConnectionFault:
            return None

    def has_greeted(self) -> bool:
        """Whether the client has sent its protocol header, which must be the right one.

        Raises:
            NotAmqp: it is something else.
        """
        if self.state is not State.GREETING:
            return True
        size = len(PROTOCOL_HEADER)
        start = self._buffer[:size]
        if not (PROTOCOL_HEADER.startswith(start) or _OTHER_HEADER.startswith(start)):
            raise NotAmqp(f"the connection begins with {start!r}")
        if len(start) < size:
            return False
        self._position = size
        self.state = State.STARTING
        return True

    def _is_of_door(self, kind: int) -> bool:
        return kind in TO_ENGINE and self.is_relayed

    def _take(self, kind: int, number: int, payload: bytes) -> Event | None:
        if kind == FrameType.METHOD:
            return self._take_method(number, payload)
        if self._is_of_door(kind):
            return self._take_together(decode_to_engine(kind, number, payload))
        if kind == FrameType.HEARTBEAT:
            if number:
                raise _unexpected("a heartbeat", number)
            return None
        if kind not in (FrameType.HEADER, FrameType.BODY):
            raise frame_error(f"a frame is of type {kind}, expected 1, 2, 3 or 8")
        channel = self._channels.get(number)
        if channel is None:
            raise _unexpected("content", number)
        if channel.state is ChannelState.CLOSING:
            return None
        if kind == FrameType.HEADER:
            return self._take_header(number, channel, payload)
        return self._take_body(number, channel, payload)

    # -- methods

    def _take_method(self, number: int, payload: bytes) -> Event | None:
        channel = self._channels.get(number)
        if channel is not None and channel.publish is not None:
            raise _unexpected("a method in the middle of content", number)
        method = _decode(payload)
        kind = type(method)
        if kind not in m.SENT_BY_CLIENT:
            reason = f"{kind.__name__} is for servers to send"
            raise ConnectionFault(ReplyCode.COMMAND_INVALID, reason, m.IDS[kind])
        if not number:
            return self._take_of_connection(method)
        if self.state is not State.OPEN:
            raise _not_now(method, number)
        if channel is None:
            channel = _Channel()
        return self._take_of_channel(number, channel, method)

    def _take_of_connection(self, method: m.Method) -> Event | None:
        following = CONNECTION_TRANSITIONS.get((self.state, type(method)))
        if following is None:
            raise _not_now(method, 0)
        self.state = following
        return Request(0, method)

    def _take_of_channel(self, number: int, channel: _Channel, method: m.Method) -> Event | None:
        before = channel.state
        following = CHANNEL_TRANSITIONS.get((before, type(method)))
        if following is None:
            if before is ChannelState.CLOSING:
                return None
            raise _not_now(method, number)
        if before is ChannelState.NONE and len(self._channels) >= self.channel_max:
            reason = f"{self.channel_max} channels are open, the most that was agreed"
            raise ConnectionFault(ReplyCode.NOT_ALLOWED, reason, m.IDS[m.ChannelOpen])
        channel.state = following
        self._channels[number] = channel
        if following is ChannelState.NONE:
            del self._channels[number]
        if type(method) is m.BasicPublish:
            channel.publish = method
            return None
        # On a closing channel nothing matters but what must be answered.
        is_of_interest = before is not ChannelState.CLOSING or type(method) is m.ChannelClose
        return Request(number, method) if is_of_interest else None

    # -- content

    def _take_together(self, run: Run | Acks) -> Run | Acks | None:
        """What was put together; each of it is treated as if it had come by itself."""
        number, method = run.channel, run.method
        channel = self._channels.get(number)
        if channel is not None and channel.publish is not None:
            raise _unexpected("a method in the middle of content", number)
        if not number:
            self._take_of_connection(method)
        if self.state is not State.OPEN or channel is None:
            raise _not_now(method, number)
        return run if channel.state is ChannelState.OPEN else None

    def _take_header(self, number: int, channel: _Channel, payload: bytes) -> Event | None:
        if channel.publish is None or channel.properties is not None:
            raise _unexpected("a content header", number)
        head = decode_content_head(payload)
        if head.body_size > MAX_BODY_BYTES:
            reason = f"a body of {head.body_size} bytes is announced, at most {MAX_BODY_BYTES} can"
            raise frame_error(reason, m.IDS[m.BasicPublish])
        channel.properties = head.properties
        channel.size = channel.missing = head.body_size
        if not head.body_size:
            return self._finish(number, channel, b"")
        self._keep(channel, len(head.properties))
        return None

    def _take_body(self, number: int, channel: _Channel, payload: bytes) -> Event | None:
        if channel.properties is None:
            raise _unexpected("a body", number)
        if len(payload) > channel.missing:
            reason = f"a body is longer than the {channel.size} bytes that were announced"
            raise frame_error(reason, m.IDS[m.BasicPublish])
        channel.missing -= len(payload)
        if channel.size > MAX_MESSAGE_BYTES:
            return None if channel.missing else self._finish(number, channel, None)
        if len(payload) == channel.size:  # as most are: nothing has to be kept
            return self._finish(number, channel, payload)
        channel.body += payload
        if not channel.missing:
            return self._finish(number, channel, bytes(channel.body))
        self._keep(channel, len(payload))
        return None

    def _keep(self, channel: _Channel, size: int) -> None:
        """Count what is kept until a message is whole."""
        channel.arrived += size
        self._unfinished += size
        if self._unfinished > UNFINISHED_BYTES:
            reason = f"unfinished messages have more than {UNFINISHED_BYTES} bytes together"
            raise ConnectionFault(ReplyCode.RESOURCE_ERROR, reason, m.IDS[m.BasicPublish])

    def _take_whole(self, number: int, payload: bytes) -> Content | None:
        """A message of which all frames are here, as most are; None for any other.

        Frame by frame it would cost three times as much.

        Args:
            number: of the channel.
            payload: of the Publish; its frame has been taken.
        """
        channel = self._channels.get(number)
        if (
            channel is None
            or channel.state is not ChannelState.OPEN
            or self.state is not State.OPEN
        ):
            return None
        if channel.publish is not None:
            return None
        found = decode_whole_content(self._buffer, self._position, number, self.frame_max)
        if found is None:
            return None
        method = decode_publish(payload)
        assert type(method) is m.BasicPublish  # noqa: S101 - see events
        self._position = found.end
        return Content(number, method, found.properties, found.body, len(found.body))

    def _finish(self, number: int, channel: _Channel, body: bytes | None) -> Content:
        publish, properties, size = channel.publish, channel.properties, channel.size
        self._drop_content(channel)
        assert publish is not None and properties is not None  # noqa: S101, PT018 - see callers
        return Content(number, publish, properties, body, size)

    def _drop_content(self, channel: _Channel) -> None:
        self._unfinished -= channel.arrived
        channel.publish = channel.properties = None
        if channel.body:
            channel.body = bytearray()
        channel.arrived = 0


def _decode(payload: bytes) -> m.Method:
    """As decode_method; the two methods that come for every message are read faster."""
    start = payload[:4]
    if start == _PUBLISH:
        return decode_publish(payload)
    if start == _ACK and len(payload) == _ACK_SIZE:
        return m.BasicAck(*_ACK_FIELDS.unpack_from(payload, 4))
    return decode_method(payload)


def _unexpected(what: str, number: int) -> ConnectionFault:
    return ConnectionFault(
        ReplyCode.UNEXPECTED_FRAME, f"{what} on channel {number} was not expected"
    )


def _not_now(method: m.Method, number: int) -> ConnectionFault:
    kind = type(method)
    where = f"channel {number}" if number else "the connection"
    reason = f"{kind.__name__} is not what {where} may send now"
    code: MethodId = m.IDS[kind]
    return ConnectionFault(ReplyCode.CHANNEL_ERROR, reason, code)
