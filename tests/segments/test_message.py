"""AMQP 1.0 messages: written and read back, by us and by another client, and from any bytes."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st
from rstream import AMQPMessage, Properties as RstreamProperties, amqp_decoder

from segments.amqp10 import (
    MAX_DEPTH,
    Opaque,
    Symbol,
    decode_value,
    encode_map,
    encode_named,
    encode_text,
    encode_value,
    skip_value,
)
from segments.errors import FormatError
from segments.message import Message, MessageView, Properties

TIMES = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)).map(
    lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000, tzinfo=UTC)
)
SIMPLE: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.text(min_size=256, max_size=300)
    | st.binary(max_size=20)
    | TIMES
    | st.uuids()
    | st.text(st.characters(max_codepoint=127), max_size=10).map(Symbol)
)
VALUES = st.recursive(
    SIMPLE,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_values_come_back(value: Any) -> None:
    raw = encode_value(value)
    assert decode_value(raw) == (value, len(raw))
    found, _ = decode_value(b"xx" + raw + b"yy", 2)
    assert type(found) is type(value)


BORDERS = st.sampled_from([-129, -128, 127, 128, -(2**63), 2**63 - 1, 2**63, 2**64 - 1])
LONG = st.integers(225, 260).map("é".rjust)  # near what a short text and a short map hold


@given(st.dictionaries(st.text(max_size=5) | LONG, VALUES | BORDERS | LONG, max_size=6))
def test_values_by_name_are_written_as_each_alone(values: dict[str, Any]) -> None:
    items = [part for name in values for part in (encode_text(name), encode_value(values[name]))]
    assert encode_named(values) == encode_map(items)


def test_more_values_by_name_than_a_short_map_counts() -> None:
    for count in (127, 128, 200):
        values = {str(n): None for n in range(count)}
        found, _ = decode_value(encode_named(values))
        assert found == values


@pytest.mark.parametrize(
    ("value", "head"),
    [
        ("x" * 255, "a1ff"),
        ("x" * 256, "b100000100"),
        ("é" * 127 + "x", "a1ff"),
        ("é" * 128, "b100000100"),
        (Symbol("x" * 255), "a3ff"),
        (Symbol("x" * 256), "b300000100"),
        (b"x" * 255, "a0ff"),
        (b"x" * 256, "b000000100"),
        (-128, "5580"),
        (-129, "81ffffffffffffff7f"),
        (127, "557f"),
        (128, "810000000000000080"),
        (2**63 - 1, "817fffffffffffffff"),
        (2**63, "808000000000000000"),
        (True, "41"),
        (1.0, "823ff0000000000000"),
    ],
)
def test_the_shortest_encoding(value: Any, head: str) -> None:
    assert encode_value(value).hex().startswith(head)
    by_name = encode_named({"k": value}).hex()
    assert head in (by_name[12 : 12 + len(head)], by_name[24 : 24 + len(head)])
    if isinstance(value, bytes):
        assert Message(value).encode().hex().startswith("005375" + head)


@given(VALUES, st.data())
def test_every_cut_of_a_value_is_refused(value: Any, data: st.DataObject) -> None:
    raw = encode_value(value)
    with pytest.raises(FormatError):
        decode_value(raw[: data.draw(st.integers(0, len(raw) - 1))])


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_an_error(raw: bytes) -> None:
    try:
        value, end = decode_value(raw)
    except FormatError:
        return
    assert 0 < end <= len(raw)
    if raw[0] >> 4 in (0x8, 0x9, 0xA, 0xB) and raw[0] not in (0x80, 0x81):
        assert encode_value(value)


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("40", None),
        ("41", True),
        ("42", False),
        ("43", 0),
        ("44", 0),
        ("45", []),
        ("50ff", 255),
        ("51ff", -1),
        ("5207", 7),
        ("53ff", 255),
        ("54ff", -1),
        ("5580", -128),
        ("5600", False),
        ("5601", True),
        ("60ffff", 65535),
        ("61ffff", -1),
        ("70ffffffff", 2**32 - 1),
        ("71ffffffff", -1),
        ("7240490fdb", 3.1415927410125732),
        ("730001f600", "\U0001f600"),
        ("80ffffffffffffffff", 2**64 - 1),
        ("81ffffffffffffffff", -1),
        ("82400921fb54442d18", 3.141592653589793),
        ("830000018bcfe56800", datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        ("837fffffffffffffff", Opaque(bytes.fromhex("837fffffffffffffff"))),
        ("98" + "12" * 16, UUID("12" * 16)),
        ("a00261ff", b"a\xff"),
        ("a102c3a9", "é"),
        ("a30161", Symbol("a")),
        ("b00000000161", b"a"),
        ("b100000002c3a9", "é"),
        ("b30000000161", Symbol("a")),
        ("c003025202", None),
        ("c00402415401", [True, 1]),
        ("d0000000070000000241 5401".replace(" ", ""), [True, 1]),
        ("c10602a101615405", {"a": 5}),
        ("d10000000900000002a101615405", {"a": 5}),
        ("e00402540102", [1, 2]),
        ("f00000000700000002540102", [1, 2]),
        ("7411223344", Opaque(bytes.fromhex("7411223344"))),
        ("0053754040"[:8], Opaque(bytes.fromhex("00537540"))),
    ],
)
def test_all_type_codes(raw: str, value: Any) -> None:
    data = bytes.fromhex(raw)
    if raw == "c003025202":  # two items announced, one there
        with pytest.raises(FormatError):
            decode_value(data)
        return
    assert decode_value(data) == (value, len(data))


@pytest.mark.parametrize("code", range(256), ids=hex)
def test_what_can_be_read_is_skipped_as_far(code: int) -> None:
    raw = bytes((code,)) + bytes(20)
    with suppress(FormatError):
        _, end = decode_value(raw)
        assert skip_value(raw, 0) == end


def test_what_would_be_stored_for_an_opaque_value_is_what_was_read() -> None:
    raw = bytes.fromhex("c00b02 7411223344 7455667788")
    value, _ = decode_value(raw)
    assert encode_value(value) == raw


def test_nesting_has_a_limit() -> None:
    raw = b"\x45"
    for _ in range(MAX_DEPTH + 2):
        raw = b"\xd0" + (len(raw) + 4).to_bytes(4, "big") + (1).to_bytes(4, "big") + raw
    with pytest.raises(FormatError, match="nested more than"):
        decode_value(raw)
    with pytest.raises(FormatError):
        decode_value(b"\x00" * 10_000)


@pytest.mark.parametrize("value", [object(), {1, 2}, 2**64, -(2**63) - 1])
def test_what_has_no_type_is_refused(value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"no AMQP type|64 bits"):
        encode_value(value)


@pytest.mark.parametrize(
    ("properties", "kind", "reason"),
    [
        (Properties(message_id=-1), ValueError, r"message_id is -1, expected .* below 2\*\*64"),
        (Properties(correlation_id=1 << 64), ValueError, "correlation_id is 18446744073709551616"),
        (Properties(group_sequence=-1), ValueError, "group_sequence is -1"),
        (Properties(group_sequence=1 << 32), ValueError, r"expected 0 or more, below 2\*\*32"),
        (Properties(group_sequence="1"), TypeError, "group_sequence is str, expected a number"),  # type: ignore[arg-type]
    ],
)
def test_numbers_that_no_property_holds(
    properties: Properties, kind: type[Exception], reason: str
) -> None:
    with pytest.raises(kind, match=reason):
        Message(properties=properties).encode()


PROPERTIES = st.builds(
    Properties,
    message_id=st.none()
    | st.text(max_size=5)
    | st.integers(0, 2**64 - 1)
    | st.uuids()
    | st.binary(max_size=5),
    user_id=st.none() | st.binary(max_size=5),
    to=st.none() | st.text(max_size=5),
    subject=st.none() | st.text(max_size=5),
    content_type=st.none() | st.just("text/plain"),
    creation_time=st.none() | TIMES,
    group_sequence=st.none() | st.integers(0, 2**32 - 1),
    reply_to_group_id=st.none() | st.text(max_size=5),
)
MESSAGES = st.builds(
    Message,
    body=st.binary(max_size=300),
    properties=PROPERTIES,
    application_properties=st.dictionaries(st.text(max_size=10), SIMPLE, max_size=5),
    annotations=st.dictionaries(st.sampled_from(["x-a", "x-b"]), SIMPLE, max_size=2),
)


@given(MESSAGES)
def test_messages_come_back(message: Message) -> None:
    view = MessageView(message.encode())
    assert view.to_message() == message
    assert view.value is None


@given(MESSAGES, st.text(max_size=10))
def test_one_property_agrees_with_all(message: Message, other: str) -> None:
    for name in [*message.application_properties, other, "x" * 300]:
        one = MessageView(message.encode()).application_property(name)
        assert one == message.application_properties.get(name)
        view = MessageView(message.encode())
        assert (view.application_properties.get(name), view.application_property(name)) == (
            one,
            one,
        )


def test_a_name_that_comes_twice() -> None:
    """Whoever reads it takes the first value that is not null."""
    keys = [b"\xa1\x01a", b"\xa1\x01b"]
    items = [keys[0], b"\x40", keys[0], b"\x54\x01", keys[1], b"\x54\x02", keys[0], b"\x54\x03"]
    for rest in ({}, {"c": "x" * 300}):  # so that the map is written in either form
        others = [encode_value(part) for pair in rest.items() for part in pair]
        encoded = encode_map([*items, *others])
        raw = b"\x00\x53\x74" + encoded + b"\x00\x53\x75\xa0\x00"
        assert MessageView(raw).application_properties == {"a": 1, "b": 2} | rest
        assert MessageView(raw).application_property("a") == 1
        assert decode_value(encoded)[1] == len(encoded)


@given(MESSAGES, st.data())
def test_one_property_of_changed_messages(message: Message, data: st.DataObject) -> None:
    raw = bytearray(message.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(FormatError):
        MessageView(bytes(raw)).application_property("some")


@given(VALUES.filter(lambda value: value is not None))
def test_a_body_that_is_a_value(value: Any) -> None:
    view = MessageView(Message(value=value).encode())
    assert (view.value, view.body) == (value, b"")


@given(MESSAGES, st.data())
def test_changed_messages_are_messages_or_errors(message: Message, data: st.DataObject) -> None:
    raw = bytearray(message.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(FormatError):
        MessageView(bytes(raw[: data.draw(st.integers(0, len(raw)))])).to_message()


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_an_error(raw: bytes) -> None:
    for data in (raw, b"\x00\x53\x75" + raw, b"\x00\x53\x74" + raw):
        with suppress(FormatError):
            MessageView(data).to_message()


def test_other_ways_to_write_sections() -> None:
    long_code = b"\x00\x80" + (0x75).to_bytes(8, "big") + b"\xa0\x01a"
    by_name = b"\x00\xa3\x10amqp:data:binary\xa0\x01b"
    assert MessageView(long_code + by_name + b"\x00\x53\x75\xb0\0\0\0\1c").body == b"abc"
    assert MessageView(b"\x00\x53\x73\x45\x00\x53\x75\xa0\x00").properties == Properties()
    sequences = b"\x00\x53\x76\xc0\x03\x01\x54\x01" * 2
    assert MessageView(sequences).value == [[1], [1]]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"hello",
        b"\x00",
        b"\x00\x53",
        b"\x00\x53\x75",
        b"\x00\x53\x79\x40",
        b"\x00\x53\x74\xc1\x01\x00",
    ],
)
def test_what_is_no_message(raw: bytes) -> None:
    view = MessageView(raw)
    assert not view.is_amqp
    assert (view.body, view.value) == (raw, None)
    assert (view.properties, view.application_properties) == (Properties(), {})


GIVEN: dict[str, Any] = {"carrier": "HA", "delay": -5, "big": 2**40, "ok": True, "x": 1.5}


def test_rstream_reads_what_we_write() -> None:
    message = Message(
        b"body",
        Properties(message_id="id-1", subject="s", content_type="text/plain", group_sequence=7),
        GIVEN | {"none": None},
    )
    found = amqp_decoder(message.encode())
    assert bytes(found) == b"body" or found.body == b"body"
    properties = {k.decode(): v for k, v in found.application_properties.items()}
    assert properties == GIVEN | {"carrier": b"HA", "none": None}
    assert found.properties.message_id == b"id-1"


def test_we_read_what_rstream_writes() -> None:
    message = AMQPMessage(
        body=b"body",
        properties=RstreamProperties(message_id="id-1", subject="s"),
        application_properties=GIVEN,
    )
    view = MessageView(bytes(message))
    assert view.body == b"body"
    assert (view.properties.message_id, view.properties.subject) == ("id-1", "s")
    assert view.application_properties == GIVEN
