"""Taking Publish frames apart: the fast way, the slow way and the declaration say the same."""

import pytest
from hypothesis import given, strategies as st

from segments.codec import simple_ends, walk_entries
from segments.entries import Entries
from streamd.wire.stream import RemoteProtocolError, codec, commands as c, publish
from streamd.wire.stream.fields import PublishFault
from streamd.wire.stream.publish import Decoded, Outgoing
from tests.wire.stream import layout

U64 = st.integers(0, 2**64 - 1)
BODIES = st.binary(max_size=30) | st.just(b"x" * 12)
MESSAGES = st.lists(st.builds(Outgoing, U64, BODIES), max_size=12)
VALUES = st.none() | st.sampled_from([b"", b"a", b"b", b"cc"]) | st.binary(max_size=40)
FILTERED = st.lists(st.builds(Outgoing, U64, BODIES, VALUES), max_size=12)


@st.composite
def uniform(draw: st.DrawFn) -> list[Outgoing]:
    size, value_size = draw(st.integers(0, 20)), draw(st.none() | st.integers(0, 5))
    value = st.none() if value_size is None else st.binary(min_size=value_size, max_size=value_size)
    body = st.binary(min_size=size, max_size=size)
    return draw(st.lists(st.builds(Outgoing, U64, body, value), max_size=20))


def ids_of(messages: list[Outgoing]) -> bytes:
    return b"".join(m.publishing_id.to_bytes(8, "big") for m in messages)


def stored(messages: list[Outgoing]) -> bytes:
    return b"".join(len(m.body).to_bytes(4, "big") + m.body for m in messages)


@given(MESSAGES | uniform())
def test_plain_messages(messages: list[Outgoing]) -> None:
    raw, count = publish.encode_entries(messages), len(messages)
    expected = Decoded(
        [Entries(ids_of(messages), stored(messages), count, count, None)] if messages else []
    )
    assert publish.decode_entries(raw, count) == expected
    assert publish._one_by_one(raw, count) == expected
    assert publish._uniform(raw, count) in (None, expected)
    declared = [layout.SIMPLE_ENTRY.build(m._asdict()) for m in messages]
    assert b"".join(declared) == raw


@given(FILTERED | uniform())
def test_messages_with_filter_values(messages: list[Outgoing]) -> None:
    raw, count = publish.encode_filtered_entries(messages), len(messages)
    values = [m.filter_value or b"" for m in messages]
    decoded = publish.decode_filtered_entries(raw, count)
    assert publish._filtered_one_by_one(raw, count) == as_lists(decoded)
    if not messages:
        assert decoded.groups == []
        return
    (group,) = decoded.groups
    assert group[:4] == (ids_of(messages), stored(messages), count, count)
    assert list(group.filter_values or values) == values
    assert (group.filter_values is None) == (not any(values))
    declared = b"".join(
        layout.FILTERED_ENTRY.build(
            {
                "publishing_id": m.publishing_id,
                "value_size": -1 if m.filter_value is None else len(m.filter_value),
                "value": m.filter_value,
                "body": m.body,
            }
        )
        for m in messages
    )
    assert declared == raw


def test_the_fast_way_is_taken() -> None:
    messages = [Outgoing(n, b"x" * 100, b"v%02d" % n) for n in range(50)]
    assert publish._uniform(publish.encode_entries(messages), 50) is not None
    assert publish._uniform_filtered(publish.encode_filtered_entries(messages), 50) is not None


@given(st.lists(FILTERED, min_size=1, max_size=3), FILTERED, st.booleans(), st.data())
def test_sizes_that_came_before(
    before: list[list[Outgoing]], messages: list[Outgoing], filtered: bool, data: st.DataObject
) -> None:
    """What is known of frames before makes no difference, also to a frame that is damaged."""
    encode = publish.encode_filtered_entries if filtered else publish.encode_entries
    decode = publish.decode_filtered_entries if filtered else publish.decode_entries
    sizes = publish.KnownSizes(filtered=filtered)
    for some in [*before, messages] if data.draw(st.booleans()) else before:
        decode(encode(some), len(some), sizes)
    raw, count = encode(messages), len(messages)
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(0, len(raw)))] + data.draw(st.binary(max_size=3))
        count = data.draw(st.integers(0, 14))
    try:
        expected = decode(raw, count)
    except RemoteProtocolError:
        with pytest.raises(RemoteProtocolError):
            decode(raw, count, sizes)
        return
    found = decode(raw, count, sizes)
    for group in found.groups:
        assert group.ends is None or list(group.ends) == simple_ends(group.data)
    assert as_lists(found) == as_lists(expected)


def as_lists(decoded: Decoded) -> Decoded:
    return decoded._replace(
        groups=[
            group._replace(
                ends=None, filter_values=group.filter_values and list(group.filter_values)
            )
            for group in decoded.groups
        ]
    )


@pytest.mark.parametrize("filtered", [True, False])
def test_known_sizes_are_used(filtered: bool) -> None:
    encode = publish.encode_filtered_entries if filtered else publish.encode_entries
    decode = publish.decode_filtered_entries if filtered else publish.decode_entries
    values = (None, b"", b"a", b"bcd")
    frames = [
        [Outgoing(n, b"x" * (n % 7), values[n % 4]) for n in range(m, m + 30)] for m in (0, 9)
    ]
    sizes = publish.KnownSizes(filtered=filtered)
    assert sizes.decode(encode(frames[0]), 30) is None
    decode(encode(frames[0]), 30, sizes)
    found = sizes.decode(encode(frames[1]), 30)
    assert found is not None
    assert as_lists(found) == as_lists(decode(encode(frames[1]), 30))
    assert sizes.decode(encode([*frames[1], Outgoing(1, b"x" * 50)]), 31) is None


def test_many_sizes_are_not_known() -> None:
    sizes = publish.KnownSizes(filtered=True)
    for n in range(1000):
        some = [Outgoing(m, b"x" * (m % 100 + n)) for m in range(50 + n % 50)]
        publish.decode_filtered_entries(publish.encode_filtered_entries(some), len(some), sizes)
        assert len(sizes._messages) <= 64
        assert len(sizes._values) <= 64


@given(FILTERED | uniform(), st.integers(1, 5), st.booleans(), st.integers(0, 40))
def test_a_frame_in_parts(messages: list[Outgoing], most: int, filtered: bool, cut: int) -> None:
    """The parts hold what the whole holds; nobody gets any of a frame that is damaged."""
    encode = publish.encode_filtered_entries if filtered else publish.encode_entries
    decode = publish.decode_filtered_entries if filtered else publish.decode_entries
    raw, count = encode(messages), len(messages)
    parts = list(publish.parts_of(raw, count, most, filtered=filtered))
    assert [part.num_entries for part in parts[:-1]] == [most] * (len(parts) - 1)
    assert sum(part.num_entries for part in parts) == count
    groups = [group for part in parts for group in decode(*part).groups]
    assert b"".join(group.publishing_ids for group in groups) == ids_of(messages)
    assert b"".join(group.data for group in groups) == stored(messages)
    for damaged in (raw[:-cut], raw + b"x"):
        if damaged != raw:
            with pytest.raises(RemoteProtocolError):
                list(publish.parts_of(damaged, count, most, filtered=filtered))


@given(st.binary(max_size=120), st.integers(0, 9), st.booleans())
def test_any_bytes_are_entries_or_a_protocol_error(raw: bytes, count: int, filtered: bool) -> None:
    decode = publish.decode_filtered_entries if filtered else publish.decode_entries
    try:
        decoded = decode(raw, count)
    except RemoteProtocolError:
        return
    for group in decoded.groups:
        assert len(group.publishing_ids) == 8 * group.num_entries
        walked = list(walk_entries(group.data))
        assert len(walked) == group.num_entries
        assert sum(at.num_records for at in walked) == group.num_records


def batch(
    number: int, records: int = 2, compression: int = 0, full: int = 12, body: bytes = b"z" * 12
) -> bytes:
    return publish.encode_sub_batch(number, records, compression, full, body)


def plain(number: int) -> bytes:
    return publish.encode_entries([Outgoing(number, b"m%d" % number)])


def test_sub_batches_are_groups_of_their_own() -> None:
    raw = plain(1) + plain(2) + batch(3, records=7, full=28, compression=1) + batch(4) + plain(5)
    groups = publish.decode_entries(raw, 5).groups
    assert [(g.num_entries, g.num_records) for g in groups] == [(2, 2), (1, 7), (1, 2), (1, 1)]
    assert b"".join(g.publishing_ids for g in groups) == b"".join(
        n.to_bytes(8, "big") for n in range(1, 6)
    )
    assert groups[1].data == batch(3, records=7, full=28, compression=1)[8:]
    declared = layout.SUB_BATCH_ENTRY.parse(batch(3, records=7, full=28, compression=1))
    assert (declared.flags, declared.num_records, declared.uncompressed_size) == (0x90, 7, 28)


@pytest.mark.parametrize(
    "bad",
    [
        {"records": 0},
        {"records": 4, "full": 15},
        {"full": (64 << 20) + 1},
        {"compression": 5},
        {"compression": 7},
        {"compression": 1, "body": b""},
    ],
)
def test_bad_sub_batches_refuse_the_rest_of_the_frame(bad: dict[str, int]) -> None:
    raw = plain(1) + batch(2, **bad) + plain(3) + batch(4)
    decoded = publish.decode_entries(raw, 4)
    assert [g.publishing_ids for g in decoded.groups] == [(1).to_bytes(8, "big")]
    assert decoded.refused_ids == b"".join(n.to_bytes(8, "big") for n in (2, 3, 4))


def test_sub_batches_in_parts() -> None:
    raw = b"".join(batch(n) for n in range(3))
    parts = list(publish.parts_of(raw, 3, 2, filtered=False))
    assert [len(publish.decode_entries(*part).groups) for part in parts] == [2, 1]


def test_the_largest_sub_batch_is_taken() -> None:
    raw = batch(1, full=64 << 20, compression=4) + batch(2, records=3, full=12)
    assert publish.decode_entries(raw, 2).refused_ids == b""


def test_a_sub_batch_with_a_filter_value_breaks_the_connection() -> None:
    raw = (1).to_bytes(8, "big") + b"\0\1v" + batch(1)[8:]
    with pytest.raises(RemoteProtocolError, match="cannot have a filter value"):
        publish.decode_filtered_entries(raw, 1)


@given(MESSAGES, st.integers(0, 255), st.integers(0, 65535))
def test_confirms_and_refusals_agree_with_the_commands(
    messages: list[Outgoing], publisher_id: int, code: int
) -> None:
    numbers = tuple(m.publishing_id for m in messages)
    confirm = codec.encode(c.PublishConfirm(publisher_id, numbers))
    assert publish.encode_confirm(publisher_id, ids_of(messages)) == confirm
    faults = tuple(PublishFault(number, code) for number in numbers)
    refusal = codec.encode(c.PublishError(publisher_id, faults))
    assert publish.encode_refusal(publisher_id, ids_of(messages), code) == refusal


@given(FILTERED)
def test_ids_of_a_refused_frame(messages: list[Outgoing]) -> None:
    count = len(messages)
    plain_raw, raw = publish.encode_entries(messages), publish.encode_filtered_entries(messages)
    assert publish.publishing_ids_of(plain_raw, count, filtered=False) == ids_of(messages)
    assert publish.publishing_ids_of(raw, count, filtered=True) == ids_of(messages)


@pytest.mark.parametrize("value", [b"", b"EU"])
@pytest.mark.parametrize("count", [30, 100])
def test_where_messages_of_one_size_end(count: int, value: bytes) -> None:
    messages = [Outgoing(number, b"x" * 30, value) for number in range(count)]
    encoded = publish.encode_filtered_entries(messages)
    (group,) = publish.decode_filtered_entries(encoded, count).groups
    assert group.ends is not None
    assert list(group.ends) == simple_ends(group.data)
