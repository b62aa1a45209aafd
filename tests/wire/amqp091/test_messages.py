"""Messages to what a stream keeps and back: worked examples, every property, every header type."""

import struct
from datetime import UTC, datetime
from itertools import chain
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, strategies as st

from segments.amqp10 import encode_map, encode_text, skip_value
from segments.errors import FormatError
from segments.message import Message, MessageView, Properties as StreamProperties
from streamd.wire.amqp091.codec import FRAME_HEAD, FRAME_OVERHEAD, decode_content_head
from streamd.wire.amqp091.deliver import DeliverWriter
from streamd.wire.amqp091.errors import ChannelFault, Fault
from streamd.wire.amqp091.messages.from_amqp10 import delivered
from streamd.wire.amqp091.messages.property_templates import kind_of
from streamd.wire.amqp091.messages.to_amqp10 import StoredHead, stored_body, stored_head
from streamd.wire.amqp091.properties import Properties, decode_properties, encode_properties
from streamd.wire.amqp091.values import MAX_VALUES, Field, encode_field
from streamd.wire.stored_messages import MAX_SECTIONS
from tests.fuzz.frames import amqp_frames
from tests.segments.test_message_template import alike
from tests.wire.amqp091.strategies import properties, scalars

OFFSET = Field("l", 41)


def hexadecimal(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


def head_of(given_properties: Properties, exchange: str = "", key: str = "q") -> StoredHead:
    return stored_head(exchange, key, encode_properties(given_properties))


def stored(found: Properties, body: bytes = b"body") -> bytes:
    head = head_of(found)
    return head.sections + stored_body(body, is_encoded=head.is_encoded)


def back(raw: bytes) -> tuple[Properties, bytes]:
    (_, before, after, _), body = delivered(raw)
    return decode_properties(before + (41).to_bytes(8, "big") + after), body


def through(found: Properties, body: bytes = b"body") -> Properties:
    result, received = back(stored(found, body))
    assert received == body
    return result


def header_through(field: Field, name: str = "n") -> Field | None:
    headers = through(Properties(headers={name: field})).headers
    assert headers is not None
    assert headers["x-stream-offset"] == OFFSET
    return headers.get(name)


STORED = hexadecimal(
    "00 53 70 C0 06 05 41 40 40 41 43"
    "00 53 72 C1 43 06"
    "A3 0A 782D65786368616E6765 A1 00"
    "A3 0D 782D726F7574696E672D6B6579 A1 06 6F7264657273"
    "A3 15 782D73747265616D2D66696C7465722D76616C7565 A1 04 656D6561"
    "00 53 73 C0 13 07 40 40 40 40 40 40 A3 0A 746578742F706C61696E"
    "00 53 74 C1 06 02 A1 01 6E 54 05"
    "00 53 75 A0 02 68 69"
)


def test_what_a_stream_keeps() -> None:
    """The octets that docs/internals/protocols.md explains."""
    found = Properties(
        content_type="text/plain",
        delivery_mode=2,
        headers={"n": Field("I", 5), "x-stream-filter-value": Field("S", b"emea")},
    )
    head = head_of(found, key="orders")
    assert head.sections + stored_body(b"hi", is_encoded=False) == STORED
    assert head.filter_value == b"emea"


def test_what_a_consumer_gets() -> None:
    """A message of a stream client, the other way."""
    raw = hexadecimal(
        "00 53 73 C0 0A 04 53 07 40 40 A1 03 69 6E 76"
        "00 53 74 C1 0D 04 A1 02 6F6B 41 A1 03 717479 52 0C"
        "00 53 75 A0 03 01 02 03"
    )
    frames = DeliverWriter(1, "c1", "orders", 4096).frames(1, 41, delivered(raw))
    assert frames == hexadecimal(
        "01 0001 00000018 003C 003C 02 6331 0000000000000001 00 00 06 6F7264657273 CE"
        "02 0001 0000003B 003C 0000 0000000000000003 2080 00000027"
        "02 6F6B 74 01 03 717479 69 0000000C"
        "0F 782D73747265616D2D6F6666736574 6C 0000000000000029 01 37 CE"
        "03 0001 00000003 010203 CE"
    )


@pytest.mark.parametrize("size", [3_900, *range(4_000, 4_040), 5_000, 100_000])
def test_headers_that_do_not_fit_into_a_frame_are_left_out(size: int) -> None:
    """A header frame cannot be cut; the message and its properties come all the same."""
    raw = stored(Properties(content_type="text/plain", headers={"x": Field("S", bytes(size))}))
    frames = DeliverWriter(1, "c1", "q", 4096).frames(1, 41, delivered(raw))
    found = [(one[0], one[FRAME_HEAD.size : -1]) for one in amqp_frames(frames)]
    assert all(len(payload) + FRAME_OVERHEAD <= 4096 for _, payload in found)
    assert [kind for kind, _ in found] == [1, 2, 3]
    came = decode_properties(decode_content_head(found[1][1]).properties)
    assert came.content_type == "text/plain"
    assert came.headers is not None
    assert came.headers["x-stream-offset"] == OFFSET
    assert ("x" in came.headers) is (len(found[1][1]) > 3_900)
    assert size not in (3_900, 5_000, 100_000) or ("x" in came.headers) is (size == 3_900)


@pytest.mark.parametrize(
    ("name", "sent", "received"),
    [
        ("content_type", "text/plain", "text/plain"),
        ("content_encoding", "gzip", "gzip"),
        ("delivery_mode", 2, 2),
        ("delivery_mode", 1, 1),
        ("delivery_mode", None, 1),
        ("priority", 98, 98),
        ("correlation_id", "c", "c"),
        ("reply_to", "reply/to ä", "reply/to ä"),
        ("expiration", "60000", "60000"),
        ("expiration", "007", "7"),
        ("expiration", "0", "0"),
        ("expiration", "4294967295", "4294967295"),
        ("expiration", "4294967296", None),
        ("message_id", "m", "m"),
        ("message_id", "ä" * 127, "ä" * 127),
        (
            "message_id",
            "urn:uuid:550E8400-e29b-41d4-a716-446655440000",
            "urn:uuid:550e8400-e29b-41d4-a716-446655440000",
        ),
        ("message_id", "urn:uuid:" + "x" * 36, "urn:uuid:" + "x" * 36),
        ("timestamp", 99, 99),
        ("timestamp", 1_700_000_000_000, 1_700_000_000_000),
        ("type", "t", "t"),
        ("user_id", "guest", "guest"),
        ("app_id", "a", "a"),
        ("cluster_id", "gone", None),
    ],
)
def test_every_property(name: str, sent: Any, received: Any) -> None:
    assert getattr(through(Properties(**{name: sent})), name) == received


@given(scalars)
def test_headers_come_back_with_their_tags(field: Field) -> None:
    """In application properties and among the annotations alike."""
    tag, value = field
    expected: Field | None = field
    if tag == "x":
        expected = Field("S", value)
    elif tag == "L":
        expected = Field("l", value)
    elif (
        tag == "D"
        or (tag in "fd" and value in (float("inf"), float("-inf")))
        or (tag == "T" and value * 1000 >= 1 << 63)
    ):
        expected = None
    assert header_through(field) == expected
    assert header_through(field, "x-n") == expected


def test_tables_and_arrays_are_kept_among_annotations_only() -> None:
    array = Field("A", [Field("I", 1), Field("S", b"a"), Field("F", {"k": Field("t", True)})])
    assert header_through(array, "x-n") == array
    assert header_through(array) is None


@pytest.mark.parametrize(
    "name", ["x-exchange", "x-routing-key", "x-death", "x-basic-priority", "x-cc"]
)
def test_headers_that_a_publisher_cannot_make(name: str) -> None:
    assert header_through(Field("S", b"mine"), name) is None


def test_headers_are_sorted_and_the_offset_is_the_servers() -> None:
    sent = {"z": Field("t", True), "x-stream-offset": Field("I", 5), "a": Field("t", False)}
    headers = through(Properties(headers=sent)).headers
    assert headers is not None
    assert list(headers.items()) == [
        ("a", sent["a"]),
        ("x-stream-offset", OFFSET),
        ("z", sent["z"]),
    ]


def test_exchange_and_key_are_for_the_delivery() -> None:
    head = head_of(Properties(), "exchange", "key")
    raw = head.sections + stored_body(b"", is_encoded=False)
    assert delivered(raw).head.destination == b"\x08exchange\x03key"


def test_a_stream_client_sees_it_all() -> None:
    sent = Properties(
        content_type="a/b",
        correlation_id="c",
        reply_to="q",
        message_id="urn:uuid:550e8400-e29b-41d4-a716-446655440000",
        timestamp=1_700_000_000,
        type="t",
        user_id="u",
        app_id="a",
        headers={
            "n": Field("u", 7),
            "x-list": Field("A", [Field("I", 1)]),
            "CC": Field("A", [Field("S", b"k")]),
        },
    )
    view = MessageView(stored(sent))
    assert view.properties == StreamProperties(
        message_id=UUID("550e8400-e29b-41d4-a716-446655440000"),
        user_id=b"u",
        reply_to="/queues/q",
        correlation_id="c",
        content_type="a/b",
        creation_time=datetime.fromtimestamp(1_700_000_000, UTC),
        group_id="a",
    )
    assert view.application_properties == {"n": 7}
    expected = {
        "x-exchange": "",
        "x-routing-key": "q",
        "x-basic-type": "t",
        "x-list": [1],
        "x-cc": ["k"],
    }
    assert view.annotations == expected
    assert view.body == b"body"


def test_a_stream_clients_message() -> None:
    message = Message(
        b"body",
        StreamProperties(
            message_id=1 << 40,
            user_id=b"\xff",
            to="lost",
            reply_to="/queues/a%2Fb",
            correlation_id=b"\1\2",
            creation_time=datetime.fromtimestamp(5, UTC),
            group_id="g",
        ),
        {
            "flag": True,
            "text": "x",
            "n": -5,
            "f": 2.5,
            "b": b"\0",
            "t": datetime.fromtimestamp(9, UTC),
            "none": None,
        },
        {"x-a": 1, "y": 2, "x-u": UUID(int=5), "x-m": {"k": "v"}},
    )
    found, body = back(message.encode())
    assert body == b"body"
    assert (found.message_id, found.user_id, found.reply_to) == (str(1 << 40), None, "a/b")
    assert (found.timestamp, found.app_id, found.delivery_mode) == (5, "g", None)
    assert found.headers == {
        "b": Field("S", b"\0"),
        "f": Field("d", 2.5),
        "flag": Field("t", True),
        "n": Field("l", -5),
        "none": Field("V", None),
        "t": Field("T", 9),
        "text": Field("S", b"x"),
        "x-a": Field("l", 1),
        "x-correlation-id": Field("x", b"\1\2"),
        "x-m": Field("F", {"k": Field("S", b"v")}),
        "x-stream-offset": OFFSET,
        "x-u": Field("S", b"urn:uuid:00000000-0000-0000-0000-000000000005"),
    }


def test_long_ids_become_headers() -> None:
    found, _ = back(Message(b"", StreamProperties(message_id="m" * 256)).encode())
    assert found.message_id is None
    assert found.headers is not None
    assert found.headers["x-message-id"] == Field("S", b"m" * 256)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("43", Field("i", 0)),
        ("44", Field("l", 0)),
        ("45", Field("A", [])),
        ("80 7FFFFFFFFFFFFFFF", Field("l", (1 << 63) - 1)),
        ("80 8000000000000000", None),
        ("E0 06 02 61 0001 0002", Field("A", [Field("s", 1), Field("s", 2)])),
        (
            "F0 0000000A 00000002 A1 01 61 02 6263",
            Field("A", [Field("S", b"a"), Field("S", b"bc")]),
        ),
        ("E0 02 02 41", None),
        ("73 00000041", None),
        ("74 00000000", None),
        ("72 7FC00000", None),
        ("83 FFFFFFFFFFFFFFFF", None),
        ("00 53 01 41", None),
    ],
)
def test_values_of_amqp_1_0(raw: str, expected: Field | None) -> None:
    value = hexadecimal(raw)
    body = b"\xa1\x01n" + value
    section = b"\0St\xd1" + struct.pack(">II", len(body) + 4, 2) + body
    headers = back(section + b"\0Su\xa0\0")[0].headers
    assert headers is not None
    assert headers.get("n") == expected


@pytest.mark.parametrize(
    "sections",
    ["00 53 77 A1 01 61", "00 53 76 45", "00 53 76 C0 03 01 54 05 00 53 76 45"],
)
def test_bodies_that_are_values(sections: str) -> None:
    raw = hexadecimal("00 53 74 C1 06 02 A1 01 6E 54 05") + hexadecimal(sections)
    found, body = back(raw)
    assert (found.type, body) == ("amqp-1.0", hexadecimal(sections))
    again = stored(Properties(type="amqp-1.0"), body)
    assert MessageView(again).value == MessageView(raw).value


def test_an_offset_that_a_publisher_claims_is_not_delivered() -> None:
    """Neither as a header of AMQP 0-9-1, nor as an annotation or a property of a stream client."""
    forged = Properties(headers={"x-stream-offset": Field("l", 7), "n": Field("I", 1)})
    message = Message(
        body=b"body",
        application_properties={"x-stream-offset": 7},
        annotations={"x-stream-offset": 7},
    )
    for raw in (stored(forged), message.encode()):
        found, _ = back(raw)
        assert found.headers is not None
        assert found.headers["x-stream-offset"] == OFFSET
        encoded = encode_properties(found)
        assert encoded.count(b"x-stream-offset") == 1


@pytest.mark.parametrize("body", [b"", b"text", b"\0Sp\x45", b"\0Su", b"\0Su\xa0\1a\0St\x45"])
def test_bodies_that_are_no_sections(body: bytes) -> None:
    with pytest.raises(ChannelFault):
        stored_body(body, is_encoded=True)


@given(st.binary(max_size=40), st.sampled_from([b"", b"\0Sr", b"\0Ss", b"\0St", b"\0Su", STORED]))
@example(b"\xff", b"\0St\xc1")
def test_whatever_a_stream_holds_is_delivered(garbage: bytes, start: bytes) -> None:
    back(start + garbage)


@given(st.data())
def test_a_stored_message_with_any_byte_changed_is_delivered(data: st.DataObject) -> None:
    raw = bytearray(STORED)
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    back(bytes(raw))


def widened(raw: bytes) -> bytes:
    """The same message, its application properties not in the usual form: a long map."""
    at = 0
    while raw[at : at + 2] == b"\0S" and raw[at + 2 : at + 3] < b"\x75":
        if raw[at + 2 : at + 4] == b"\x74\xc1":
            size, count = raw[at + 4 : at + 6]
            sizes = (size + 3).to_bytes(4, "big") + count.to_bytes(4, "big")
            return raw[: at + 3] + b"\xd1" + sizes + raw[at + 6 :]
        at = skip_value(raw, at + 3)
    return raw


# A name twice; fewer items than there are bytes; an odd number of them; a name that is no text; a
# value that is cut off.
@example([[b"\0St\xc1\x0b\4\xa1\1aT\1\xa1\1aT\2\0Su\xa0\1x"]])
@example([[b"\0St\xc1\x0b\2\xa1\1aT\1\xa1\1bT\2\0Su\xa0\1x"]])
@example([[b"\0St\xc1\x09\3\xa1\1aT\1\xa1\1b\0Su\xa0\1x"]])
@example([[b"\0St\xc1\x06\2\xa1\1\xffT\1\0Su\xa0\1x"]])
@example([[b"\0St\xc1\x08\2\xa1\1a\xa1\x08xy\0Su\xa0\1x"]])
@given(st.lists(alike(), min_size=1, max_size=3))
def test_the_usual_form_is_read_as_any_other(kinds: list[list[bytes]]) -> None:
    """Over all types and damage: properties that are read in one pass, and by the general way."""
    for raw in chain.from_iterable(kinds):
        try:
            other = widened(raw)
        except (FormatError, ValueError):
            continue
        found, expected = delivered(raw), delivered(other)
        assert found.head == expected.head
        assert found.body == (raw if expected.body == other else expected.body)


@given(properties)
def test_what_is_stored_once_is_stored_the_same_again(found: Properties) -> None:
    """What is lost, is lost the first time."""
    try:
        raw = stored(found)
    except ChannelFault:
        return
    once, _ = back(raw)
    try:
        twice, _ = back(stored(once))
    except ChannelFault as fault:  # what came back as a value may not be one for all clients
        raise AssertionError(encode_field(Field("F", once.headers))) from fault
    if once.headers is not None and "x-stream-offset" in once.headers:
        assert twice == once


def stored_or_fault(raw: bytes) -> object:
    try:
        return stored_head("", "q", raw)
    except Fault as fault:
        return fault.code, fault.text


@given(properties, st.data())
def test_messages_of_a_kind_are_stored_as_each_for_itself(
    found: Properties, data: st.DataObject
) -> None:
    """What is alike is converted once: with the same result, cut, changed, or whole."""
    raw = bytearray(encode_properties(found))
    for _ in range(data.draw(st.integers(0, 2))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(2, len(raw)))])
    for each in (bytes(raw), cut):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("streamd.wire.amqp091.messages.to_amqp10.kind_of", lambda _: None)
            expected = stored_or_fault(each)
        assert stored_or_fault(each) == expected


def test_messages_that_differ_in_their_ids_and_times_are_of_one_kind() -> None:
    first, second = (
        kind_of(
            encode_properties(
                Properties(
                    "text/plain",
                    headers={"n": Field("I", 5)},
                    correlation_id=f"c{n}",
                    reply_to="r",
                    message_id=f"m{n}",
                    timestamp=n,
                    app_id="a",
                )
            )
        )
        for n in (1, 2)
    )
    assert first is not None
    assert second is not None
    assert first.common == second.common
    assert first.differing == (b"c1", b"m1", (1).to_bytes(8, "big"))


def _section(code: int, value: bytes) -> bytes:
    return b"\0\x53" + bytes((code,)) + value


@pytest.mark.parametrize("many", [1_024, 1_025])
def test_many_sections(many: int) -> None:
    """Published they are refused; a stream client may have stored them."""
    body = _section(0x75, b"\xa0\1x") * many
    if many <= MAX_SECTIONS:
        assert stored(Properties(type="amqp-1.0"), body).endswith(body)
        assert back(body)[1] == b"x" * many
    else:
        with pytest.raises(ChannelFault, match="more than 1,024 sections"):
            stored(Properties(type="amqp-1.0"), body)
        assert back(body) == (Properties(headers={"x-stream-offset": OFFSET}), body)


@pytest.mark.parametrize("many", [MAX_VALUES // 4, MAX_VALUES // 2, 40_000])
def test_many_properties(many: int) -> None:
    """So many that no table may have them: the message comes without headers."""
    names = [encode_text(f"{n}") for n in range(many)]
    free = encode_map([part for name in names for part in (name, b"\x40")])
    kept = encode_map([b"\xa3\3x-a", b"\x41"])
    raw = _section(0x72, kept) + _section(0x74, free) + _section(0x75, b"\xa0\1x")
    found, body = back(raw)
    assert body == b"x"
    assert found.headers is not None
    assert len(found.headers) == (many + 2 if many < MAX_VALUES // 2 else 1)
