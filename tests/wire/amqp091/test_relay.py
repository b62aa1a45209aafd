"""What goes through a door means the same as without one, whatever comes and however it is cut."""

import struct
from collections.abc import Iterable
from typing import Any

from hypothesis import example, given, strategies as st

from segments.codec import simple_ends
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import (
    FRAME_HEAD,
    HEARTBEAT_FRAME,
    PROTOCOL_HEADER,
    content_frames,
    encode_method,
    method_frame,
)
from streamd.wire.amqp091.connection import Connection, Content, Request
from streamd.wire.amqp091.converted import (
    RUN,
    TO_ENGINE,
    Acks,
    Batch,
    Run,
    Stored,
    acks_frame,
    batch_frame,
    decode_run,
    run_frame,
)
from streamd.wire.amqp091.deliver import DeliverWriter
from streamd.wire.amqp091.errors import ConnectionFault, Fault
from streamd.wire.amqp091.messages.from_amqp10 import delivered
from streamd.wire.amqp091.messages.to_amqp10 import stored_body, stored_head
from streamd.wire.amqp091.properties import Properties, encode_properties
from streamd.wire.amqp091.relay import Inward, Outward
from streamd.wire.amqp091.values import Field
from tests.wire.amqp091.strategies import properties, texts
from tests.wire.amqp091.test_messages import STORED

MOST = 4096  # bytes of a frame
PLAIN = encode_properties(Properties(headers={"n": Field("I", 5)}))
LOGIN = PROTOCOL_HEADER + b"".join(
    method_frame(0, step)
    for step in (
        m.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US"),
        m.ConnectionTuneOk(2047, MOST, 60),
        m.ConnectionOpen("/", "", True),
    )
)


def published(
    body: bytes,
    given: bytes = PLAIN,
    channel: int = 1,
    exchange: str = "",
    mandatory: bool = False,
    immediate: bool = False,
) -> bytes:
    publish = encode_method(m.BasicPublish(0, exchange, "q", mandatory, immediate))
    return content_frames(channel, publish, given, body, MOST)


def _encoded(given: Properties) -> bytes:
    try:
        return encode_properties(given)
    except (ValueError, struct.error):
        return PLAIN


messages = st.builds(
    published,
    st.binary(max_size=40) | st.integers(0, 9_000).map(bytes),
    st.just(PLAIN) | properties.map(_encoded) | st.binary(min_size=2, max_size=6),
    st.integers(0, 3),
    st.sampled_from(["", "", "x"]),
    st.booleans(),
    st.integers(0, 9).map(lambda n: not n),
)
others = st.sampled_from(
    [
        HEARTBEAT_FRAME,
        method_frame(1, m.BasicAck(0, False)),
        method_frame(1, m.BasicAck(3, True)),
        method_frame(2, m.ChannelOpen()),
        method_frame(2, m.ChannelClose(200, "", 0, 0)),
        method_frame(1, m.BasicQos(0, 5, False)),
        method_frame(0, m.ConnectionTuneOk(2047, MOST, 60)),
    ]
)
acks = st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(1, 4)).map(
    lambda one: b"".join(
        method_frame(one[0], m.BasicAck(tag, False)) for tag in range(one[1], one[1] + one[2])
    )
)
conversations = st.lists(st.one_of(messages, messages, others, acks), max_size=12).map(b"".join)
broken = st.tuples(conversations, st.integers(0, 1 << 30), st.integers(0, 255))
cuts = st.lists(st.integers(1, 300), max_size=30)


def pieces(data: bytes, sizes: Iterable[int]) -> Iterable[bytes]:
    for size in sizes:
        yield data[:size]
        data = data[size:]
    yield data


def heard(connection: Connection, data: Iterable[bytes]) -> list[Any]:
    """What a connection makes of bytes: requests; messages as they are stored; the fault."""
    found: list[Any] = []
    for piece in data:
        connection.receive_data(piece)
        try:
            for event in connection.events():
                if isinstance(event, Run):
                    found += [
                        (event.channel, event.method, one.raw, one.body, one.filter_value)
                        for one in event.messages()
                    ]
                    assert event.entries == b"".join(
                        len(one.raw).to_bytes(4, "big") + one.raw for one in event.messages()
                    )
                elif isinstance(event, Acks):
                    first = event.method.delivery_tag
                    tags = range(first, first + event.number)
                    found += [Request(event.channel, m.BasicAck(tag, False)) for tag in tags]
                elif event is not None:
                    found.append(_stored(event) if isinstance(event, Content) else event)
        except ConnectionFault as fault:
            return [*found, str(fault)]
    return found


def _stored(content: Content) -> Any:
    """A message as the engine stores it, or what it is refused with."""
    number, method, given, body, _ = content
    assert body is not None
    try:
        head = stored_head(method.exchange, method.key, given)
        raw = head.sections + stored_body(body, is_encoded=head.is_encoded)
    except Fault as fault:
        return number, method, str(fault)
    return number, method, raw, body, head.filter_value


def through(data: Iterable[bytes]) -> list[bytes]:
    inward = Inward({})
    return [piece for part in data for piece in inward.take(part)]


def opened(data: bytes) -> bytes:
    return LOGIN + method_frame(1, m.ChannelOpen()) + data


@given(conversations, cuts)
@example(published(bytes(5_000)) + published(b"x"), [300])
@example(published(b"x", mandatory=True) + published(b"y", exchange="x", channel=2), [])
def test_the_engine_hears_the_same(data: bytes, sizes: list[int]) -> None:
    data = opened(data)
    relayed = through(pieces(data, sizes))
    assert heard(Connection(is_relayed=True), relayed) == heard(Connection(), [data])


@given(broken, cuts)
def test_also_of_what_breaks_the_protocol(change: tuple[bytes, int, int], sizes: list[int]) -> None:
    data, at, byte = change
    changed = bytearray(data or b"\0")
    changed[at % len(changed)] = byte
    whole = opened(bytes(changed))
    relayed = heard(Connection(is_relayed=True), through(pieces(whole, sizes)))
    direct = heard(Connection(), [whole])
    if isinstance(direct[-1], str):
        for kind in TO_ENGINE:  # which the engine would believe
            direct[-1] = direct[-1].replace(f"is of type {kind},", "is of type 0,")
    assert relayed == direct


@given(st.binary(max_size=200), cuts)
def test_a_client_can_make_no_run(payload: bytes, sizes: list[int]) -> None:
    forged = run_frame(
        1,
        encode_method(m.BasicPublish(0, "", "q", False, False)),
        [Stored(b"not AMQP at all", 3, b"", b"")],
    )
    other = FRAME_HEAD.pack(RUN, 1, len(payload)) + payload + b"\xce"
    for frame in (forged, acks_frame(1, 1, 1_000_000), other):
        found = heard(Connection(is_relayed=True), through(pieces(opened(frame), sizes)))
        assert found[-1].startswith("FRAME_ERROR - a frame is of type 0")


@given(st.binary(max_size=300), st.integers(0, 300), st.integers(-3, 3))
def test_what_a_broken_door_sends_is_no_run(noise: bytes, at: int, more: int) -> None:
    publish = encode_method(m.BasicPublish(0, "", "q", False, False))
    stored = [Stored(b"\0Su\xa0\1x", 1, b"v" * n, b"") for n in range(3)]
    payload = run_frame(1, publish, stored)[FRAME_HEAD.size : -1]
    changed = payload[:at] + noise + payload[at + len(noise) + more :]
    try:
        run = decode_run(1, changed)
    except ConnectionFault:
        return
    assert len(list(run.messages())) == len(run.sizes)
    assert simple_ends(run.entries) is not None


def test_most_messages_come_in_runs_with_what_the_engine_may_need() -> None:
    connection = Connection(is_relayed=True)
    (login, data) = opened(b""), published(b"x") * 700 + published(b"y", exchange="x") * 2
    inward = Inward({})
    for piece in (*inward.take(login), *inward.take(data)):
        connection.receive_data(piece)
    runs = [event for event in connection.events() if isinstance(event, Run)]
    assert [len(run.sizes) for run in runs] == [512, 188, 2]
    assert [run.properties for run in runs] == [None, None, [PLAIN, PLAIN]]


@given(
    st.lists(
        st.one_of(
            st.lists(
                st.tuples(st.integers(0, 1 << 60), st.just(STORED) | st.binary(max_size=40)),
                min_size=1,
                max_size=5,
            ),
            st.sampled_from(
                [HEARTBEAT_FRAME, method_frame(1, m.BasicAck(4, True)), published(b"A" * 300)]
            ),
        ),
        max_size=8,
    ),
    texts,
    cuts,
)
@example([published(b"A" * 300), [(1, b"")]], "t", [100, 100])
def test_a_client_gets_the_same(sent: list[Any], tag: str, sizes: list[int]) -> None:
    writer = DeliverWriter(3, tag, "q", MOST)
    relayed, direct, number = b"", b"", 1
    for one in sent:
        if isinstance(one, bytes):
            relayed, direct = relayed + one, direct + one
            continue
        relayed += batch_frame(Batch(3, tag, "q", MOST, number, one))
        for offset, raw in one:
            direct += writer.frames(number, offset, delivered(raw))
            number += 1
    outward = Outward()
    assert b"".join(p for part in pieces(relayed, sizes) for p in outward.take(part)) == direct


def test_a_client_is_told_what_is_spoken_here() -> None:
    assert b"".join(Outward().take(PROTOCOL_HEADER)) == PROTOCOL_HEADER
