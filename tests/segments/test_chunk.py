"""Building chunks: known bytes, checks that notice every change, entries cut where they may be."""

import mmh3
import pytest
from hypothesis import given, strategies as st

from segments import ChunkBuilder, LogPolicy, bloom, codec
from segments.chunk import EncodedChunk, history_form, split_entries
from segments.policy import RecordLimit
from tests.segments.test_codec import ENTRIES, vector
from tests.support.logs import entry, sub_batch


def encode(builder: ChunkBuilder, policy: LogPolicy | None = None) -> EncodedChunk:
    return builder.encode(
        chunk_id=0, timestamp_ms=1_700_000_000_000, epoch=1, policy=policy or LogPolicy()
    )


def build(values: list[bytes] | None, policy: LogPolicy | None = None) -> EncodedChunk:
    builder = ChunkBuilder()
    count = 2 if values is None else len(values)
    builder.add(entry(b"x") * count, count, count, values)
    return encode(builder, policy)


def test_known_chunk() -> None:
    builder = ChunkBuilder()
    builder.add(entry(b"hi"), 1, 1, [b"banana"])
    builder.add(entry(b"ho"), 1, 1, None)
    builder.set_sequence(b"wid1", 1)
    assert b"".join(encode(builder).parts) == vector("chunk")


def test_long_filter_values_are_recorded_by_prefix_and_hash() -> None:
    value = bytes(range(256)) * 4
    form = value[:239] + mmh3.hash_bytes(value, seed=0)
    assert history_form(value) == form
    assert len(form) == 255
    assert history_form(value[:255]) == value[:255]
    assert history_form(value[:256]) != value[:256]
    chunk = build([value])
    assert codec.decode_blocks(chunk.parts[2])[0].id == form
    assert chunk.parts[0][48:] == bloom.build([value], 16)  # the filter takes all of it


def test_known_trailer_size_and_crc() -> None:
    """rstream's test_deliver expects these of one message of a named publisher."""
    builder = ChunkBuilder()
    builder.add(entry(b"test message"), 1, 1, None)
    builder.set_sequence(b"test-reference", 1)
    header = encode(builder).header
    assert (header.trailer_size, header.data_crc, header.filter_size) == (24, 307778378, 0)


@pytest.mark.parametrize(
    ("num_values", "size"), [(1, 16), (6, 16), (10, 24), (50, 119), (100, 238), (200, 255)]
)
def test_adaptive_filter_size(num_values: int, size: int) -> None:
    policy = LogPolicy(filter_size=255, filter_error_rate=0.01)
    values = [b"v%d" % n for n in range(num_values)] + [b""]
    assert build(values, policy).header.filter_size == size


@given(st.data())
def test_every_changed_byte_is_noticed(data: st.DataObject) -> None:
    """Data by its CRC, everything else by the header check, magic and counts by themselves."""
    chunk = build([b"a", b"b", b""])
    raw = bytearray(b"".join(chunk.parts))
    position = data.draw(st.integers(0, len(raw) - 1))
    raw[position] ^= 1 << data.draw(st.integers(0, 7))
    header, start = chunk.header, chunk.header.data_start
    in_data = start <= position < start + header.data_size
    checked = codec.header_check(
        bytes(raw[:46]), bytes(raw[48:start]), bytes(raw[start + header.data_size :])
    )
    stored = int.from_bytes(raw[46:48], "big")
    assert (checked == stored) is in_data


@given(ENTRIES, st.integers(1, 10), st.integers(1, 120))
def test_splitting_keeps_order_and_limits(entries: list[bytes], records: int, size: int) -> None:
    data = b"".join(entries)
    runs = list(split_entries(data, records, size))
    assert b"".join(run for run, _, _ in runs) == data
    for run, num_entries, num_records in runs:
        walked = list(codec.walk_entries(run))
        assert (len(walked), sum(at.num_records for at in walked)) == (num_entries, num_records)
        assert num_entries == 1 or (num_records <= records and len(run) <= size)


def test_splitting_fills_runs() -> None:
    runs = list(split_entries(entry(b"x") * 10, 4, 1000))
    assert [records for _, _, records in runs] == [4, 4, 2]
    runs = list(split_entries(sub_batch(b"", 9) + entry(b"x"), 4, 1000))
    assert [records for _, _, records in runs] == [9, 1]


def test_record_limit_grows_under_backlog_and_shrinks_after() -> None:
    limit = RecordLimit(None)
    assert limit.unfiltered == 256
    for _ in range(10):
        limit.chunk_was_full()
    assert limit.unfiltered == 4096
    assert limit.filtered == 256
    for _ in range(10):
        limit.backlog_is_gone(100)
    assert limit.unfiltered == 256
    declared = RecordLimit(50)
    declared.chunk_was_full()
    assert declared.unfiltered == 50


@pytest.mark.parametrize("size", [0, 15, 256])
def test_filter_sizes_out_of_range_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"filter size is {size}"):
        LogPolicy(filter_size=size)
