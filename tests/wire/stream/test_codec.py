"""Commands to bytes and back, against a second declaration and against known frames."""

from pathlib import Path
from typing import Any

import pytest
from construct import Container
from hypothesis import given, settings, strategies as st

from streamd.wire.stream import RemoteProtocolError, ResponseCode, codec, commands as c, text_of
from streamd.wire.stream.deliver import encode_deliver_head, encode_stored_head
from streamd.wire.stream.fields import NO_OFFSET, OffsetSpecification
from tests.wire.stream import layout
from tests.wire.stream.strategies import COMMANDS, KINDS, of_kind

FRAMES = [
    line.split(maxsplit=2)
    for line in (Path(__file__).parents[2] / "vectors" / "frames.txt").read_text().splitlines()
    if line[:1] in ("C", "S")
]


def plain(value: Any) -> Any:
    """Values as both declarations can be compared by: containers to tuples of values."""
    if isinstance(value, Container):
        return tuple(plain(v) for k, v in value.items() if k != "_io")
    if isinstance(value, OffsetSpecification):
        return (value.type, value.value if value.type in (4, 5) else None)
    if isinstance(value, tuple | list):
        return tuple(map(plain, value))
    return value


@pytest.mark.parametrize(("_side", "name", "text"), FRAMES)
def test_known_frames(_side: str, name: str, text: str) -> None:
    raw = bytes.fromhex(text)
    command = codec.decode(raw[4:])
    assert type(command).__name__ == name
    expected = raw
    if isinstance(command, c.Subscribe) and not command.properties:
        size = len(raw) + 4 - 4  # without properties a client may leave their count out; we do not
        expected = size.to_bytes(4, "big") + raw[4:] + bytes(4)
    assert codec.encode(command) == expected


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=25)
@given(data=st.data())
def test_every_command_agrees_with_layout(kind: type[Any], data: st.DataObject) -> None:
    command = data.draw(of_kind(kind))
    raw = codec.encode(command)
    frame = layout.FRAME.parse(raw)
    body = layout.BODIES[frame.key, frame.version]
    declared = body.parse(frame.body)
    assert list(kind.__struct_fields__) == [k for k in declared if k != "_io"]
    assert plain(declared) == tuple(
        plain(getattr(command, name)) for name in kind.__struct_fields__
    )
    rebuilt = layout.FRAME.build(
        {"key": frame.key, "version": frame.version, "body": body.build(declared)}
    )
    assert rebuilt == raw
    assert codec.decode(raw[4:]) == command


def test_every_layout_belongs_to_a_command() -> None:
    declared = {(kind.KEY, getattr(kind, "VERSION", 1)) for kind in KINDS}
    assert declared == set(layout.BODIES)


@given(COMMANDS, st.data())
def test_changed_commands_are_commands_or_protocol_errors(
    command: c.Command, data: st.DataObject
) -> None:
    raw = bytearray(codec.encode(command)[4:])
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    try:
        codec.decode(bytes(raw[:cut]))
    except RemoteProtocolError as error:
        assert error.code == ResponseCode.UNKNOWN_FRAME  # noqa: PT017 - either outcome is right


CUTTABLE = [
    kind
    for kind in KINDS
    if not {"entries", "chunk", "challenge", "properties", "arguments", "streams", "versions"}
    & set(kind.__struct_fields__)
]


@pytest.mark.parametrize("kind", CUTTABLE, ids=lambda kind: kind.__name__)
@settings(max_examples=20)
@given(data=st.data())
def test_every_cut_is_refused(kind: type[Any], data: st.DataObject) -> None:
    raw = codec.encode(data.draw(of_kind(kind)))[4:]
    for size in range(len(raw)):
        with pytest.raises(RemoteProtocolError, match="unknown frame"):
            codec.decode(raw[:size])


@pytest.mark.parametrize(
    ("raw", "details"),
    [
        ("", "0 bytes cannot hold"),
        ("0001", "2 bytes cannot hold"),
        ("7530 0001", "command 0x7530"),
        ("0001 0002", "version 2 of command 0x0001"),
        ("0002 0003 00 00000000", "version 3 of command 0x0002"),
        ("0002 0001 00 0000", "Publish is cut off"),
        ("000e 0001 00000001 0005 61", "field stream of Delete is cut off"),
        ("000e 0001 00000001 0002 c328", "not readable"),
    ],
)
def test_refusals_say_what_was_wrong(raw: str, details: str) -> None:
    with pytest.raises(RemoteProtocolError, match=details):
        codec.decode(bytes.fromhex(raw))


def test_what_real_clients_send_off_the_letter() -> None:
    """Surplus bytes, absent properties, null strings, unbelievable counts, data length -1."""
    assert codec.decode(bytes.fromhex("000e 0001 00000001 0001 61 ffff")) == c.Delete(1, "a")
    declared = codec.decode(bytes.fromhex("0001 0001 00000001 05 ffff 0001 61"))
    assert declared == c.DeclarePublisher(1, 5, "", "a")
    subscribe = bytes.fromhex("0007 0001 00000008 00 0001 61 0003 000a")
    assert codec.decode(subscribe) == c.Subscribe(8, 0, "a", OffsetSpecification(3), 10)
    assert codec.decode(subscribe + b"\0\0\0\5\0") == codec.decode(subscribe)
    created = codec.decode(bytes.fromhex("000d 0001 00000005 0001 61 000000ff 0001 6b 0001 76"))
    assert created == c.Create(5, "a", (("k", "v"),))
    assert codec.decode(bytes.fromhex("0013 0001 00000003 0005 504c41494e ffffffff")) == (
        c.SaslAuthenticate(3, "PLAIN", b"")
    )
    assert codec.decode(bytes.fromhex("8014 0001 00100000 0000003c")) == c.Tune(1 << 20, 60)


def test_offsets_of_an_unknown_type_are_left_to_the_server() -> None:
    command = codec.decode(bytes.fromhex("0007 0001 00000008 00 0001 61 0009 000a"))
    assert command == c.Subscribe(8, 0, "a", OffsetSpecification(9), 10)


def test_error_answers_keep_their_fixed_fields() -> None:
    """One client reads without the frame size: a missing field would shift all that follows."""
    for command in (
        c.QueryPublisherSequenceResponse(1, 2),
        c.QueryOffsetResponse(1, 19),
        c.ResolveOffsetSpecResponse(1, 2),
        c.StreamStatsResponse(1, 2),
        c.OpenResponse(1, 12),
    ):
        ok = type(command)(1, 1)
        assert len(codec.encode(command)) == len(codec.encode(ok))
    assert c.ResolveOffsetSpecResponse(1, 2).offset == NO_OFFSET == (4, 0)


def test_texts_that_cannot_be_sent_are_refused() -> None:
    with pytest.raises(ValueError, match="65536 bytes long"):
        codec.encode(c.Delete(1, "é" * 32768))


def test_passwords_do_not_show() -> None:
    command = c.SaslAuthenticate(1, "PLAIN", b"\0guest\0secret")
    assert "guest" not in repr(command)
    assert command.data == b"\0guest\0secret"


@given(st.integers(0, 255), st.binary(max_size=50), st.none() | st.integers(0, 2**64 - 1))
def test_deliver_heads_agree_with_the_command(
    subscription_id: int, data: bytes, committed: int | None
) -> None:
    stored = bytes([0x50]) + bytes(range(1, 48))
    head = encode_deliver_head(subscription_id, stored, len(data), committed)
    chunk = stored[:44] + bytes(4) + data
    command = (
        c.Deliver(subscription_id, chunk)
        if committed is None
        else c.DeliverCommitted(subscription_id, committed, chunk)
    )
    assert head + data == codec.encode(command)
    assert layout.DELIVERED_CHUNK_HEADER.parse(chunk).magic == 0x50


@given(st.integers(0, 255), st.binary(max_size=50))
def test_heads_of_stored_chunks_agree_with_the_command(number: int, rest: bytes) -> None:
    stored = bytes(range(48))
    head = encode_stored_head(number, stored, len(rest))
    assert head + rest == codec.encode(c.DeliverStored(number, stored + rest))


def test_codes_in_words() -> None:
    assert ResponseCode.STREAM_DOES_NOT_EXIST.text == "stream does not exist"
    assert text_of(17) == "precondition failed"
    assert text_of(99) == "unknown code 99"
