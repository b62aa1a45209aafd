"""Values, performatives and frames of AMQP 1.0: both ways, and whatever bytes come."""

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import assume, given, settings, strategies as st

from segments.amqp10 import Symbol
from segments.errors import FormatError
from streamd.wire.amqp10 import performatives as p
from streamd.wire.amqp10.codec import (
    FRAME_HEAD,
    TransferRun,
    decode_composite,
    encode_composite,
    frame,
    head_of,
    is_amqp10,
    layout_of,
    read_transfer,
)
from streamd.wire.amqp10.deliver import Pieces, TransferWriter, pieces_of
from streamd.wire.amqp10.outcomes import ACCEPTED, runs, settled_frames
from streamd.wire.amqp10.values import (
    Described,
    Uint,
    Ulong,
    map_of,
    read_entries,
    read_value,
    write_value,
)
from tests.fuzz.frames import amqp10_frames
from tests.wire.amqp10.strategies import keys, of_kind, values


def alike(one: Any, other: Any) -> bool:
    """Equal, and of the same types."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            alike(k, j) and alike(v, w)
            for (k, v), (j, w) in zip(one.items(), other.items(), strict=True)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


@pytest.mark.parametrize(
    "raw",
    [
        b"\xe0\x06\x02\x60\0\x01\0\x02",  # ushorts
        b"\xe0\x0a\x02\x71\0\0\0\x01\0\0\0\x02",  # ints
        b"\xe0\x04\x02\x56\x01\0",  # booleans
        b"\xe0\x06\x02\xa0\x01a\x01b",  # binaries
    ],
)
def test_arrays_of_anything_go_back(raw: bytes) -> None:
    value, end = read_value(raw)
    assert end == len(raw)
    assert alike(read_value(write_value(value))[0], value)


@given(values, st.binary(max_size=3))
def test_values_both_ways(value: Any, behind: bytes) -> None:
    raw = write_value(value)
    found, end = read_value(raw + behind)
    assert end == len(raw)
    assert alike(found, value)
    for cut in range(len(raw)):
        with pytest.raises(FormatError):
            read_value(raw[:cut])


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_an_error(raw: bytes) -> None:
    with contextlib.suppress(FormatError):
        _, end = read_value(raw)
        assert 0 < end <= len(raw)
    with contextlib.suppress(FormatError):
        decode_composite(raw)
    read_transfer(raw, 0)


def test_nesting_has_an_end() -> None:
    for deeper in (b"\0\x40", b"\xc0\xff\x01", b"\xc1\xff\x02\x40"):
        with pytest.raises(FormatError):
            read_value(deeper * 100 + b"\x40")


@given(st.dictionaries(keys, values, max_size=4))
def test_entries_of_a_map_go_back_as_they_came(value: dict[Any, Any]) -> None:
    raw = write_value(value)
    entries = read_entries(raw)
    assert alike({entry.key: entry.value for entry in entries}, value)
    assert map_of(entries).raw == raw
    assert read_entries(b"\x40") == []


@pytest.mark.parametrize("kind", list(p.CODES))
@settings(max_examples=20)
@given(st.data())
def test_performatives_both_ways(kind: type[Any], data: st.DataObject) -> None:
    performative = data.draw(of_kind(kind))
    assume(performative != p.SaslMechanisms(()))  # which is null, and may not be
    raw = encode_composite(performative)
    assert decode_composite(raw) == (performative, len(raw))
    (name,) = (name for name, found in p.BY_NAME.items() if found is kind)
    named = b"\0" + write_value(Symbol(name)) + raw[3:]
    assert decode_composite(named)[0] == performative


@pytest.mark.parametrize("kind", list(p.CODES))
def test_fields_that_are_missing_or_too_many(kind: type[Any]) -> None:
    code = p.CODES[kind]
    if any(field.is_mandatory for field in layout_of(kind)):
        with pytest.raises(FormatError, match="mandatory"):
            decode_composite(bytes((0, 0x53, code, 0x45)))
    else:
        assert decode_composite(bytes((0, 0x53, code, 0x45)))[0] == kind()
    with pytest.raises(FormatError, match="at most"):
        decode_composite(bytes((0, 0x53, code, 0xC0, 41, 40)) + b"\x40" * 40)


def described(code: int, count: int, fields: str) -> bytes:
    """A composite value, of its fields as other implementations write them."""
    raw = bytes.fromhex(fields)
    return bytes((0, 0x53, code, 0xC0, len(raw) + 1, count)) + raw


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (
            described(
                *(0x10, 10),
                "a103616263 40 7000010000 6000ff 7000007530 40404040 c10602a301785205",
            ),
            p.Open("abc", None, 65_536, 255, 30_000, properties={Symbol("x"): Uint(5)}),
        ),
        (
            described(0x15, 5, "41 5200 5200 41 00532445"),
            p.Disposition(True, 0, 0, True, p.Accepted()),
        ),
        (
            described(0x40, 1, "f0 00000013 00000002 b3 00000005 504c41494e 00000001 58"),
            p.SaslMechanisms((Symbol("PLAIN"), Symbol("X"))),
        ),
        (described(0x40, 1, "a305504c41494e"), p.SaslMechanisms((Symbol("PLAIN"),))),
    ],
)
def test_vectors(raw: bytes, expected: object) -> None:
    assert decode_composite(raw) == (expected, len(raw))


@given(of_kind(p.Transfer))
def test_a_transfer_is_read_quickly_as_it_is_slowly(transfer: p.Transfer) -> None:
    raw = encode_composite(transfer)
    found = read_transfer(raw + b"payload", 0)
    assert found in (None, head_of(transfer)._replace(end=len(raw)))
    if transfer.delivery_tag == b"tag" and transfer.state is None:
        assert found is not None


@given(
    st.lists(st.tuples(st.integers(0, 1 << 32), st.binary(max_size=20)), min_size=1, max_size=8),
    st.integers(0, 20),
    st.binary(max_size=30),
    st.booleans(),
)
def test_runs_of_transfers(
    sent: list[tuple[int, bytes]], most: int, behind: bytes, settled: bool
) -> None:
    transfers = [p.Transfer(3, n & p.MAX_UINT, b"tag", 0, settled) for n, _ in sent]
    frames = [frame(1, t, payload) for t, (_, payload) in zip(transfers, sent, strict=True)]
    raw = b"".join(frames)
    head = read_transfer(raw, FRAME_HEAD.size)
    assert head is not None
    run = TransferRun(raw, 0, head)
    assert run.is_whole
    ids, payloads, end = run.take(raw + behind, len(frames[0]), most, 131_072)
    count = len(ids)
    assert count <= most
    assert ids == [t.delivery_id for t in transfers[1 : 1 + count]]
    assert payloads == [payload for _, payload in sent[1 : 1 + count]]
    assert end == len(b"".join(frames[: 1 + count]))


@given(st.sets(st.integers(0, 300)), st.integers(0, 63))
def test_outcomes_in_runs(numbers: set[int], channel: int) -> None:
    found: list[int] = []
    for first, last in runs(list(numbers)):
        found += range(first, last + 1)
    assert found == sorted(numbers)
    raw, told = settled_frames(channel, list(numbers), ACCEPTED), []
    for one in amqp10_frames(raw):
        assert FRAME_HEAD.unpack_from(one) == (len(one), 2, 0, channel)
        disposition, end = decode_composite(one[FRAME_HEAD.size :])
        assert end == len(one) - FRAME_HEAD.size
        assert (disposition.role, disposition.settled) == (p.RECEIVER, True)
        assert disposition.state == p.Accepted()
        told += range(disposition.first, disposition.last + 1)
    assert told == sorted(numbers)


@given(
    st.binary(min_size=1, max_size=3_000),
    st.sampled_from([0, 5, (1 << 32) - 1, 1 << 32, 1 << 40]),
    st.integers(0, p.MAX_UINT),
    st.integers(0, 255),
    st.booleans(),
)
def test_deliveries(
    body: bytes, offset: int, delivery_id: int, handle: int, is_settled: bool
) -> None:
    """In frames that fit, each with the transfer; all payloads together are the message."""
    writer = TransferWriter(9, handle, "q", 512, is_settled=is_settled)
    raw = b"\0\x53\x75\xb0" + struct.pack(">I", len(body)) + body
    found = writer.write(delivery_id, offset, raw)
    message, frames = b"", [found] if isinstance(found, bytes) else cut(found, 2)
    for number, one in enumerate(frames):
        size, _, _, channel = FRAME_HEAD.unpack_from(one)
        assert size == len(one) <= 512
        assert channel == 9
        transfer, end = decode_composite(one[FRAME_HEAD.size :])
        tag = offset.to_bytes(4 if offset < 1 << 32 else 8, "big")
        assert transfer == p.Transfer(
            handle, delivery_id, tag, 0, is_settled, number < len(frames) - 1
        )
        message += one[FRAME_HEAD.size + end :]
    assert message.endswith(raw)
    assert message.count(offset.to_bytes(8, "big")) >= 1


def cut(message: Pieces, most: int) -> list[bytes]:
    """The frames of a message, where so many may be sent at once."""
    frames: list[bytes] = []
    while not frames or message.size:
        data, count = message.take(most)
        found = amqp10_frames(data)
        assert len(found) == count <= most
        frames += found
    return frames


@given(st.binary(max_size=2_000), st.integers(512, 600), st.integers(1, 5))
def test_other_transfers_are_cut(message: bytes, frame_max: int, most: int) -> None:
    frames = cut(pieces_of(0, p.Transfer(1, 2, b"", 0, True), message, frame_max), most)
    assert max(map(len, frames)) <= frame_max
    parts = []
    for number, one in enumerate(frames):
        transfer, end = decode_composite(one[FRAME_HEAD.size :])
        assert transfer.more == (number < len(frames) - 1)
        parts.append(one[FRAME_HEAD.size + end :])
    assert b"".join(parts) == message


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (b"", None),
        (b"AMQP", None),
        (b"AMQP\3\1\0\0", True),
        (b"AMQP\0\1\0\0more", True),
        (b"AMQP\0\0", False),
        (b"AMQP\3\1\0\1", False),
        (b"GET", False),
    ],
)
def test_which_amqp_it_is(start: bytes, expected: bool | None) -> None:
    assert is_amqp10(start) is expected


def test_secrets_are_not_shown() -> None:
    assert "guest" not in repr(p.SaslInit("PLAIN", b"\0guest\0guest"))
    assert "guest" not in repr(p.SaslResponse(b"guest"))


def test_what_is_unknown_is_kept() -> None:
    state = Described(Ulong(0x99), [1])
    transfer = p.Transfer(0, 1, b"", state=state)
    assert decode_composite(encode_composite(transfer))[0].state == state
    with pytest.raises(FormatError):
        decode_composite(b"\0\x53\x99\x45")
