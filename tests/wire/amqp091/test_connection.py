"""The server's half of a connection: bytes in any pieces, and everything that is not allowed."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from streamd.wire.amqp091 import connection as connection_module, methods as m
from streamd.wire.amqp091.codec import (
    HEARTBEAT_FRAME,
    PROTOCOL_HEADER,
    FrameType,
    content_frames,
    encode_frame,
    encode_method,
    method_frame,
)
from streamd.wire.amqp091.connection import Connection, Content, Event, NotAmqp, Request
from streamd.wire.amqp091.converted import Acks
from streamd.wire.amqp091.errors import ChannelFault, ConnectionFault, Fault, ReplyCode
from streamd.wire.amqp091.properties import Properties, encode_properties
from streamd.wire.amqp091.states import (
    CHANNEL_TRANSITIONS,
    CONNECTION_TRANSITIONS,
    ChannelState,
    State,
)
from streamd.wire.amqp091.values import Field
from tests.fuzz.frames import amqp_frames

PLAIN = Properties(content_type="text/plain", headers={"n": Field("I", 5)})
# In an order that is the same in all processes of a run.
OF_CLIENTS = [kind for kind in m.IDS if kind in m.SENT_BY_CLIENT]
OF_SERVERS = [kind for kind in m.IDS if kind not in m.SENT_BY_CLIENT]
LOGIN = (
    m.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US"),
    m.ConnectionTuneOk(2047, 131_072, 60),
    m.ConnectionOpen("/", "", True),
)


def message(channel: int, body: bytes, frame_max: int = 4096) -> bytes:
    publish = encode_method(m.BasicPublish(0, "", "q", False, False))
    return content_frames(channel, publish, encode_properties(PLAIN), body, frame_max)


def opened(*channels: int) -> Connection:
    """An open connection with open channels."""
    connection = Connection()
    data = PROTOCOL_HEADER + b"".join(method_frame(0, step) for step in LOGIN)
    connection.receive_data(data + b"".join(method_frame(n, m.ChannelOpen()) for n in channels))
    assert len(list(connection.events())) == len(LOGIN) + len(channels)
    return connection


def fed(connection: Connection, data: bytes) -> list[Event]:
    """What comes of these bytes; what comes of nothing, or a part of something, is left out."""
    connection.receive_data(data)
    return [event for event in connection.events() if event is not None]


def fails(connection: Connection, data: bytes) -> ReplyCode:
    with pytest.raises(ConnectionFault) as caught:
        fed(connection, data)
    return caught.value.code


SESSION = b"".join(
    (
        PROTOCOL_HEADER,
        *(method_frame(0, step) for step in LOGIN),
        method_frame(1, m.ChannelOpen("0")),
        HEARTBEAT_FRAME,
        method_frame(1, m.QueueDeclare(0, "q", False, True, False, False, False, {})),
        message(1, b"body"),
        message(1, b""),
        message(1, bytes(10_000)),
        method_frame(1, m.BasicAck(7, True)),
        method_frame(1, m.ChannelClose(200, "", 0, 0)),
        method_frame(0, m.ConnectionClose(200, "", 0, 0)),
    )
)


RUNS = st.tuples(
    st.sampled_from((1, 1, 1, 2, 3, 0)), st.integers(0, 5), st.integers(1, 5), st.sampled_from("sm")
)
BETWEEN = st.sampled_from(
    (
        message(1, b"x"),
        message(1, b"x")[:-20],
        method_frame(2, m.ChannelClose(200, "", 0, 0)),
        HEARTBEAT_FRAME,
        encode_frame(FrameType.HEARTBEAT, 0, encode_method(m.BasicAck(1, False))),
    )
)


def told(connection: Connection, pieces: Iterable[bytes]) -> list[Any]:
    """What comes out, one acknowledgement after the other; and what ended it."""
    found: list[Any] = []
    try:
        for piece in pieces:
            connection.receive_data(piece)
            for event in connection.events():
                if isinstance(event, Acks):
                    assert event.number > 1
                    tags = range(
                        event.method.delivery_tag, event.method.delivery_tag + event.number
                    )
                    found += [Request(event.channel, m.BasicAck(tag, False)) for tag in tags]
                elif event is not None:
                    found.append(event)
    except Fault as fault:
        return [*found, (fault.code, str(fault))]
    except NotAmqp:
        return [*found, NotAmqp]
    return [*found, connection.state]


@given(st.lists(RUNS | BETWEEN, max_size=8), st.data())
def test_acks_together_are_acks_one_by_one(parts: list[Any], data: st.DataObject) -> None:
    frames: list[bytes] = []
    for part in parts:
        if isinstance(part, bytes):
            frames.append(part)
        else:
            channel, first, count, kind = part
            tags = range(first, first + count)
            frames += [method_frame(channel, m.BasicAck(tag, kind == "m")) for tag in tags]
    if frames and data.draw(st.booleans()):
        changed = bytearray(frames[-1])
        changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        frames[-1] = bytes(changed)
    whole = b"".join(frames)
    cut = data.draw(st.integers(0, len(whole)))
    assert told(opened(1, 2), (whole[:cut], whole[cut:])) == told(opened(1, 2), frames)


def test_acks_are_put_together() -> None:
    acks = [method_frame(1, m.BasicAck(tag, False)) for tag in (7, 8, 9, 11)]
    assert fed(opened(1), b"".join(acks)) == [
        Acks(1, m.BasicAck(7, False), 3),
        Request(1, m.BasicAck(11, False)),
    ]


def test_a_body_of_an_empty_message_is_too_much_however_it_arrives() -> None:
    raw = message(1, b"") + encode_frame(FrameType.BODY, 1, b"")
    assert fails(opened(1), raw) == ReplyCode.UNEXPECTED_FRAME
    connection = opened(1)
    assert len(fed(connection, message(1, b""))) == 1
    assert fails(connection, encode_frame(FrameType.BODY, 1, b"")) == ReplyCode.UNEXPECTED_FRAME


@pytest.mark.parametrize("state", list(ChannelState))
def test_every_method_in_every_state_of_a_channel(state: ChannelState) -> None:
    for kind in OF_CLIENTS:
        if m.IDS[kind].class_id == 10 or kind is m.BasicPublish:
            continue
        connection = opened(*(() if state is ChannelState.NONE else (1,)))
        if state is ChannelState.CLOSING:
            connection.close_channel(1, ChannelFault(ReplyCode.NOT_FOUND, "gone"))
        frame, asked = method_frame(1, blank(kind)), [Request(1, blank(kind))]
        legal = (state, kind) in CHANNEL_TRANSITIONS
        if state is ChannelState.CLOSING:
            assert fed(connection, frame) == (asked if kind is m.ChannelClose else []), kind
        elif legal:
            assert fed(connection, frame) == asked, kind
        else:
            assert fails(connection, frame) == ReplyCode.CHANNEL_ERROR, kind


_LEADING_TO = {
    State.STARTING: (),
    State.TUNING: LOGIN[:1],
    State.OPENING: LOGIN[:2],
    State.OPEN: LOGIN,
}


@pytest.mark.parametrize("state", list(_LEADING_TO))
def test_every_method_in_every_state_of_a_connection(state: State) -> None:
    for kind in OF_CLIENTS:
        connection = Connection()
        fed(connection, PROTOCOL_HEADER + b"".join(method_frame(0, s) for s in _LEADING_TO[state]))
        assert connection.state is state
        frame = method_frame(0, blank(kind))
        following = CONNECTION_TRANSITIONS.get((state, kind))
        if following is None:
            assert fails(connection, frame) == ReplyCode.CHANNEL_ERROR, kind
        else:
            assert fed(connection, frame) == [Request(0, blank(kind))], kind
            assert connection.state is following, kind


def blank(kind: type[Any]) -> Any:
    """A method of a kind, with nothing in it."""
    values = {"int": 0, "bool": False, "str": "", "bytes": b""}
    hints = kind.__annotations__.values()
    return kind(*(values.get(getattr(hint.__origin__, "__name__", ""), {}) for hint in hints))


@pytest.mark.parametrize("kind", OF_SERVERS, ids=lambda kind: kind.__name__)
def test_methods_that_are_for_servers(kind: type[Any]) -> None:
    assert fails(opened(1), method_frame(1, blank(kind))) == ReplyCode.COMMAND_INVALID


HEADER = message(1, b"body")


def header(size: int, class_id: int = 60, weight: int = 0) -> bytes:
    payload = class_id.to_bytes(2, "big") + weight.to_bytes(2, "big") + size.to_bytes(8, "big")
    return encode_frame(FrameType.HEADER, 1, payload + b"\0\0")


PUBLISH = method_frame(1, m.BasicPublish(0, "", "q", False, False))


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (HEADER[:-1] + b"\x00", 501),
        (b"\x01\x00\x01\xff\xff\xff\xff", 501),
        (b"\x01\x00\x01" + (131_073).to_bytes(4, "big"), 501),
        (b"\x04\x00\x00\x00\x00\x00\x00\xce", 501),
        (encode_frame(FrameType.METHOD, 1, b""), 501),
        (encode_frame(FrameType.METHOD, 1, b"\x00\x3c\x00\x63"), 540),
        (encode_frame(FrameType.METHOD, 1, b"\x00\x3c\x00\x50\x00"), 501),
        (encode_frame(FrameType.HEARTBEAT, 1, b""), 505),
        (encode_frame(FrameType.BODY, 0, b"x"), 505),
        (encode_frame(FrameType.BODY, 1, b"x"), 505),
        (encode_frame(FrameType.BODY, 2, b"x"), 505),
        (header(1), 505),
        (PUBLISH + PUBLISH, 505),
        (PUBLISH + encode_frame(FrameType.BODY, 1, b"x"), 505),
        (PUBLISH + header(1) + header(1), 505),
        (PUBLISH + header(1) + method_frame(1, m.BasicQos(0, 1, False)), 505),
        (PUBLISH + header(1) + encode_frame(FrameType.BODY, 1, b"xy"), 501),
        (PUBLISH + header(1, class_id=50), 501),
        (PUBLISH + header(1, weight=1), 501),
        (PUBLISH + encode_frame(FrameType.HEADER, 1, b"\0" * 13), 501),
        (PUBLISH + header((512 << 20) + 1), 501),
        (PUBLISH + header((1 << 64) - 1), 501),
    ],
)
def test_what_is_not_the_protocol(data: bytes, code: int) -> None:
    assert fails(opened(1), data) == code


def test_what_was_there_before_a_fault_comes_out() -> None:
    connection = opened(1)
    connection.receive_data(message(1, b"good") + b"\x04" * 8)
    events = connection.events()
    assert isinstance(next(events), Content)
    with pytest.raises(ConnectionFault):
        next(events)


@pytest.mark.parametrize("data", [b"AMQP\0\0\x09\x00", b"HTTP", b"\x16", b"AMQP\3"])
def test_other_protocols(data: bytes) -> None:
    connection = Connection()
    connection.receive_data(data)
    with pytest.raises(NotAmqp):
        list(connection.events())


def test_a_message_too_large_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "MAX_MESSAGE_BYTES", 100)
    (found,) = fed(opened(1), message(1, bytes(10_000)))
    assert isinstance(found, Content)
    assert (found.body, found.size) == (None, 10_000)
    (found,) = fed(opened(1), message(1, bytes(100)))
    assert isinstance(found, Content)
    assert found.body == bytes(100)


def test_unfinished_messages_have_a_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "UNFINISHED_BYTES", 10_000)
    start = PUBLISH + header(5000) + encode_frame(FrameType.BODY, 1, bytes(4000))
    many = opened(1, 2, 3)
    for number in (1, 2):
        assert fed(many, _on(number, start)) == []
    assert fails(many, _on(3, start)) == ReplyCode.RESOURCE_ERROR


def _on(channel: int, data: bytes) -> bytes:
    """Frames for another channel."""
    return b"".join(one[:1] + channel.to_bytes(2, "big") + one[3:] for one in amqp_frames(data))


def test_a_closing_connection_hears_of_nothing_but_its_end() -> None:
    connection = opened(1)
    connection.close(ConnectionFault(ReplyCode.NOT_ALLOWED, "enough"))
    data = message(1, b"body") + method_frame(1, m.ChannelOpen()) + HEARTBEAT_FRAME
    assert fed(connection, data) == []
    assert fed(connection, method_frame(0, m.ConnectionClose(200, "", 0, 0))) != []
    fed(connection, method_frame(0, m.ConnectionCloseOk()))
    assert connection.state is State.CLOSED


@given(st.data())
def test_a_session_with_bytes_changed_left_out_or_put_in(data: st.DataObject) -> None:
    """Whole messages are read faster than byte by byte, and nothing else is different."""
    changed = bytearray(SESSION)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        match data.draw(st.sampled_from(["change", "leave out", "put in"])):
            case "change":
                changed[at] = data.draw(st.integers(0, 255))
            case "leave out":
                del changed[at]
            case _:
                changed.insert(at, data.draw(st.integers(0, 255)))
    raw = bytes(changed)
    pieces = (raw[at : at + 1] for at in range(len(raw)))
    assert told(Connection(), [raw]) == told(Connection(), pieces)


def test_a_message_with_any_byte_changed() -> None:
    """All bytes of a message, all values: whole or byte by byte, the outcome is the same."""
    start = PROTOCOL_HEADER + b"".join(method_frame(0, step) for step in LOGIN)
    start += method_frame(1, m.ChannelOpen()) + method_frame(2, m.ChannelOpen())
    one = message(1, b"body")
    for at in range(len(one)):
        for value in {0, 1, 2, 3, 8, 60, 0xCE, 0xFF, one[at] ^ 1, one[at] ^ 0x80}:
            raw = one[:at] + bytes((value,)) + one[at + 1 :] + message(2, b"other")
            pieces = (start, *(bytes((b,)) for b in raw))
            assert told(Connection(), (start, raw)) == told(Connection(), pieces)


def test_the_end_is_found_behind_a_frame_that_is_too_large() -> None:
    """It is not kept, however it is cut, and whatever is in it."""
    connection = opened(1)
    size = 1 << 24
    data = b"\1\0\0" + size.to_bytes(4, "big")
    with pytest.raises(ConnectionFault) as caught:
        fed(connection, data)
    connection.close(caught.value)
    rest = (method_frame(0, m.ConnectionCloseOk()) * 100).ljust(size, b"\0") + b"\xce"
    for at in range(0, len(rest), 99_999):
        assert fed(connection, rest[at : at + 99_999]) == []
        assert len(connection._buffer) < 110_000
    broken = encode_frame(FrameType.METHOD, 0, encode_method(m.ConnectionClose(1, "", 0, 0))[:-1])
    end = method_frame(0, m.ConnectionCloseOk())
    assert fed(connection, broken * 3 + end) == [Request(0, m.ConnectionCloseOk())]
    assert connection.state is State.CLOSED


def test_nothing_is_looked_for_behind_a_frame_without_an_end() -> None:
    connection = opened(1)
    bad = method_frame(1, m.BasicAck(7, True))[:-1] + b"\0"
    with pytest.raises(ConnectionFault) as caught:
        fed(connection, bad)
    connection.close(caught.value)
    for _ in range(3):
        assert fed(connection, method_frame(0, m.ConnectionCloseOk()) * 100) == []
        assert len(connection._buffer) < 10_000


def test_each_frame_that_asks_for_nothing_can_be_counted() -> None:
    """Or a read full of them would be looked through in one go."""
    connection = opened(1)
    connection.receive_data(HEARTBEAT_FRAME * 3)
    assert list(connection.events()) == [None] * 3
    connection.close(ConnectionFault(ReplyCode.INTERNAL_ERROR, ""))
    connection.receive_data(HEARTBEAT_FRAME * 3)
    assert list(connection.events()) == [None] * 3
