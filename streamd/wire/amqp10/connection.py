"""The server's half of an AMQP 1.0 connection: bytes in, requests and messages out. No sockets.

Frames are put together, checked against the table of states, and messages are collected on each
link. What comes for a session or a link that the server has ended is dropped here, as is everything
but the end of a connection that is being closed.

A client can make this hold one incomplete frame, and UNFINISHED_BYTES of incomplete messages on all
links together.

Source: OASIS AMQP 1.0 part 2 (transport), 2.2 to 2.4; part 5 (security), 5.3;
rabbitmq/rabbitmq-server, deps/rabbit/src/rabbit_amqp_reader.erl.
"""

import sys
from collections.abc import Iterator
from itertools import repeat
from typing import NamedTuple, TypeAlias

from segments.amqp10 import Symbol
from segments.errors import FormatError
from streamd.wire.amqp10 import performatives as p
from streamd.wire.amqp10.codec import (
    AMQP_HEADER,
    FRAME_HEAD,
    SASL_HEADER,
    FrameType,
    TransferHead,
    TransferRun,
    decode_composite,
    frame,
    head_of,
    is_close,
    is_transfer,
    read_transfer,
)
from streamd.wire.amqp10.errors import Condition, ConnectionFault, Fault, SessionFault
from streamd.wire.amqp10.session import Arrived, Link, Session
from streamd.wire.amqp10.states import TRANSITIONS, State

FRAME_MAX = 131_072  # what RabbitMQ offers
LOGIN_FRAME_MAX = 8_192
CHANNEL_MAX = 63
UNFINISHED_BYTES = 32 << 20
_MOST_TEXT = 300  # bytes, about a fault
MAX_PERFORMATIVE_BYTES = 20 << 10  # without a message: each value in it costs
_HEADERS = {State.GREETING: SASL_HEADER, State.GREETING_AGAIN: AMQP_HEADER}
_AFTER = {State.GREETING: State.PROVING, State.GREETING_AGAIN: State.OPENING}
_MOST_AT_ONCE = 256  # transfers that are taken together
_OF_SESSIONS = (p.Attach, p.Flow, p.Transfer, p.Disposition, p.Detach, p.End)
# In these nothing is looked at but, once the connection is being closed, its end.
_QUIET = (State.JUDGING, State.GREETING_AGAIN, State.CLOSING, State.CLOSED)


class NotAmqp10(Exception):
    """The peer does not begin as it has to; the answer is the header of SASL."""


class Request(NamedTuple):
    """A performative that came in a frame of its own."""

    channel: int
    performative: p.Performative


class Messages(NamedTuple):
    """Transfers that arrived on one link, one after the other, and the messages that they made.

    Attributes:
        parts: transfers that made no message.
    """

    session: Session
    link: Link
    arrived: list[Arrived]
    parts: int = 0


class Broken(NamedTuple):
    """What a session or a link may not send: it has to end.

    Attributes:
        link: None where all of the session has to.
    """

    session: Session
    link: Link | None
    fault: Fault


class Detached(NamedTuple):
    """The client has detached a link, which is gone."""

    session: Session
    link: Link
    performative: p.Detach


Event: TypeAlias = Request | Messages | Broken | Detached


class Connection:
    """One connection.

    Attributes:
        frame_max: bytes that a frame may have.
        sessions: by channel.
        frame_size: bytes of the last frame but those of messages.
    """

    def __init__(self) -> None:
        self.state = State.GREETING
        self.frame_max = LOGIN_FRAME_MAX
        self.channel_max = CHANNEL_MAX
        self.sessions: dict[int, Session] = {}
        self.frame_size = 0
        self._buffer = b""
        self._position = 0
        self._unfinished = 0
        self._unread = 0  # bytes still to come of a frame that is not looked at
        self._broken: Broken | None = None  # what follows the messages before it

    @property
    def is_open(self) -> bool:
        """Both ends have opened it, and none has closed it."""
        return self.state is State.OPEN

    @property
    def is_closed(self) -> bool:
        """Both ends have closed it."""
        return self.state is State.CLOSED

    # -- what the server does

    def authenticated(self) -> None:
        """The client may enter."""
        self.state = State.GREETING_AGAIN

    def open(self) -> None:
        """The client's Open was answered: frames may be as large as that said."""
        self.frame_max = FRAME_MAX

    def close(self, fault: ConnectionFault | None = None) -> bytes:
        """The frame that closes the connection; nothing comes out from now on."""
        self.state = State.CLOSING
        self.sessions.clear()
        return frame(0, p.Close(error_of(fault)))

    def end_session(self, session: Session, fault: Fault | None = None) -> bytes:
        """The frame that ends a session."""
        if self.sessions.get(session.channel) is session:
            del self.sessions[session.channel]
        for link in session.links.values():
            self._forget_link(link)
        return frame(session.channel, p.End(error_of(fault)))

    def detach(self, session: Session, link: Link, fault: Fault | None = None) -> bytes:
        """The frame that detaches a link; what still comes for it is dropped."""
        link.is_detached = True
        self._forget_link(link)
        return frame(session.channel, p.Detach(link.handle, True, error_of(fault)))

    def _forget_link(self, link: Link) -> None:
        self._unfinished -= link.unfinished
        link.drop_unfinished()

    # -- what the client does

    def receive_data(self, data: bytes) -> None:
        """Take bytes; `events` gives what is in them."""
        if self._unread:
            rest = data[self._unread :]
            self._unread -= len(data) - len(rest)
            data = rest
        rest = self._buffer[self._position :]
        self._buffer = rest + data if rest else data
        self._position = 0

    def forget(self) -> None:
        """Give back what was received: the connection has ended."""
        self._buffer, self._position = b"", 0
        self.sessions.clear()

    def has_greeted(self) -> bool:
        """Whether the client has sent the header that it has to, in whichever state.

        Raises:
            NotAmqp10: it is something else.
        """
        wanted = _HEADERS.get(self.state)
        if wanted is None:
            return True
        start = self._buffer[self._position : self._position + len(wanted)]
        if not wanted.startswith(start):
            raise NotAmqp10(f"a header is {start!r}, expected {wanted!r}")
        if len(start) < len(wanted):
            return False
        self._position += len(wanted)
        self.state = _AFTER[self.state]
        return True

    def events(self) -> Iterator[Event | None]:
        """The events in the bytes so far. If left early, the next call gives the rest.

        A frame that asks for nothing gives None: to find that out was work, too.

        Raises:
            NotAmqp10: a header is not what it has to be.
            ConnectionFault: the bytes break the protocol. Nothing more is to be read after it,
                until `close` was called.
        """
        if not self.has_greeted():
            return
        while self.state not in _QUIET:
            if self._broken is not None:
                broken, self._broken = self._broken, None
                yield broken
                continue
            found = self._whole_frame()
            if found is None:
                return
            kind, channel, begin, end = found
            head = read_transfer(self._buffer, begin)
            session = self.sessions.get(channel)
            if head is not None and session is not None and kind == FrameType.AMQP:
                yield self._take_transfers(session, head, end)
            else:
                self._position, self.frame_size = end, end - begin
                yield self._take(kind, channel, self._buffer[begin:end])
        yield from self._skip_to_close()

    def _whole_frame(self) -> tuple[int, int, int, int] | None:
        """Type, channel, begin and end of the body of the next frame; None if it is not there."""
        buffer, start = self._buffer, self._position
        if start + FRAME_HEAD.size > len(buffer):
            return None
        size, words, kind, channel = FRAME_HEAD.unpack_from(buffer, start)
        if size > self.frame_max:
            raise _framing(f"a frame has {size:,} bytes, at most {self.frame_max:,} were agreed")
        if not FRAME_HEAD.size <= 4 * words <= size:
            raise _framing(f"a frame of {size} bytes has a header of {4 * words}")
        if start + size > len(buffer):
            return None
        return kind, channel, start + 4 * words, start + size

    # -- messages

    def _take_transfers(self, session: Session, head: TransferHead, end: int) -> Event | None:
        """Messages of one link, in frames that follow each other: as one event."""
        link: Link | None = None
        arrived: list[Arrived] = []
        parts = 0
        try:
            link = session.link(head.handle)
            while len(arrived) + parts < _MOST_AT_ONCE:
                start, begin, self._position = self._position, head.end, end
                message = self._take_transfer(session, link, head, self._buffer[begin:end])
                if message is None:
                    parts += 1
                else:
                    arrived.append(message)
                    self._take_run(session, link, start, head, arrived)
                following = self._following(session.channel, head.handle)
                if following is None:
                    break
                head, end = following
        except Fault as fault:
            broken = Broken(session, None if isinstance(fault, SessionFault) else link, fault)
            if not arrived and not parts:
                return broken
            self._broken = broken
        assert link is not None  # noqa: S101 - or else that was a fault
        return Messages(session, link, arrived, parts)

    def _take_run(
        self, session: Session, link: Link, start: int, head: TransferHead, arrived: list[Arrived]
    ) -> None:
        """Take what follows a message and looks like it."""
        run = TransferRun(self._buffer, start, head)
        most = min(session.incoming, link.credit, _MOST_AT_ONCE - len(arrived))
        if run.is_whole and most > 0:
            ids, payloads, end = run.take(self._buffer, self._position, most, self.frame_max)
            if ids:
                self._position = end
                session.took(len(ids))
                link.took(len(ids))
                arrived.extend(map(Arrived, ids, repeat(bool(head.settled)), payloads))

    def _following(self, channel: int, handle: int) -> tuple[TransferHead, int] | None:
        """The transfer that is next, if it is on the same link; and where its frame ends."""
        buffer, start = self._buffer, self._position
        if start + FRAME_HEAD.size > len(buffer):
            return None
        size, words, kind, number = FRAME_HEAD.unpack_from(buffer, start)
        end = start + size
        if (words, kind, number) != (2, FrameType.AMQP, channel) or end > len(buffer):
            return None
        head = read_transfer(buffer, start + FRAME_HEAD.size)
        if head is None or head.handle != handle or head.end > end or size > self.frame_max:
            return None
        return head, end

    def _take_transfer(
        self, session: Session, link: Link, head: TransferHead, payload: bytes
    ) -> Arrived | None:
        session.take_transfer()
        if link.is_detached:
            return None
        if not link.is_incoming:
            text = f"a transfer came on link '{link.name}', on which the client receives"
            raise SessionFault(Condition.NOT_ALLOWED, text)
        before = link.unfinished
        try:
            return link.take(head, payload)
        finally:
            if link.unfinished != before:
                self._unfinished += link.unfinished - before
                if self._unfinished > UNFINISHED_BYTES:
                    raise SessionFault(
                        Condition.RESOURCE_LIMIT_EXCEEDED,
                        f"unfinished messages have more than {UNFINISHED_BYTES:,} bytes together",
                    )

    # -- everything else

    def _take(self, kind: int, channel: int, body: bytes) -> Event | None:
        wanted = FrameType.SASL if self.state is State.PROVING else FrameType.AMQP
        if kind != wanted:
            raise _framing(f"a frame is of type {kind}, expected {wanted}")
        if not body and self.state is State.OPEN:
            return None  # a sign of life
        if channel > self.channel_max:
            raise _framing(f"a frame is for channel {channel}, at most {self.channel_max} can be")
        if len(body) > MAX_PERFORMATIVE_BYTES and not is_transfer(body):
            text = f"a performative has {len(body):,} bytes, at most {MAX_PERFORMATIVE_BYTES:,} can"
            raise ConnectionFault(Condition.RESOURCE_LIMIT_EXCEEDED, text)
        try:
            performative, end = decode_composite(body)
        except FormatError as error:
            raise ConnectionFault(Condition.DECODE_ERROR, str(error)) from None
        following = TRANSITIONS.get((self.state, type(performative)))
        if following is None:
            name = type(performative).__name__
            raise ConnectionFault(
                Condition.NOT_ALLOWED, f"{name} is not what the connection may send now"
            )
        self.state = following
        session = self.sessions.get(channel)
        if isinstance(performative, p.Begin):
            self._begin(channel, performative, session)
        elif isinstance(performative, _OF_SESSIONS):
            if session is None:
                return None
            return self._take_of_session(session, performative, body[end:])
        return Request(channel, performative)

    def _take_of_session(
        self, session: Session, performative: p.Performative, payload: bytes
    ) -> Event | None:
        link: Link | None = None
        try:
            match performative:
                case p.Transfer():
                    link = session.link(performative.handle)
                    head = head_of(performative)
                    message = self._take_transfer(session, link, head, payload)
                    arrived = [] if message is None else [message]
                    return Messages(session, link, arrived, 1 - len(arrived))
                case p.Detach():
                    link = session.links.pop(performative.handle, None)
                    if link is None or link.is_detached:
                        return None
                    self._forget_link(link)
                    return Detached(session, link, performative)
                case p.Flow(handle=handle):
                    session.take_flow(performative)
                    if handle is not None and session.link(handle).is_detached:
                        performative = performative._replace(handle=None)  # the window is open
        except Fault as fault:
            return Broken(session, None if isinstance(fault, SessionFault) else link, fault)
        return Request(session.channel, performative)

    def _begin(self, channel: int, begin: p.Begin, session: Session | None) -> None:
        if session is not None:
            text = f"a session is begun on channel {channel}, which has one"
            raise ConnectionFault(Condition.NOT_ALLOWED, text)
        if begin.remote_channel is not None:
            text = f"a session is begun as an answer on channel {channel}; nobody has asked"
            raise ConnectionFault(Condition.NOT_ALLOWED, text)
        self.sessions[channel] = Session(channel, begin)

    def _skip_to_close(self) -> Iterator[None]:
        """Whatever the client says, or breaks, when we have closed is too late, but its Close."""
        while self.state is State.CLOSING:
            buffer, start = self._buffer, self._position
            if start + FRAME_HEAD.size > len(buffer):
                return
            size, words, _, _ = FRAME_HEAD.unpack_from(buffer, start)
            end = start + size
            if size < FRAME_HEAD.size:  # nobody knows where the next begins
                self._position, self._unread = len(buffer), sys.maxsize
            elif end > len(buffer):
                if size > self.frame_max:
                    self._position, self._unread = len(buffer), end - len(buffer)
                return
            else:
                self._position = end
                if is_close(buffer[start + 4 * words : end]):
                    self.state = State.CLOSED
                yield None


def error_of(fault: Fault | None) -> p.Error | None:
    """What a peer is told about a fault, in one frame: it may say what the peer has sent."""
    if fault is None:
        return None
    text = fault.text.encode()[:_MOST_TEXT].decode(errors="ignore")
    info = {Symbol(key): value for key, value in fault.info.items()}
    return p.Error(fault.condition.value, text, info or None)


def _framing(text: str) -> ConnectionFault:
    return ConnectionFault(Condition.FRAMING_ERROR, text)
