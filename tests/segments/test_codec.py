"""The struct twins agree with the declarations, and refuse everything that is not whole."""

import zlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from segments import codec, format_constants
from segments.codec import Block, Checkpoint, ChunkHeader, Damage, IndexRecord, JournalRecord
from segments.errors import FormatError
from tests.segments import layout
from tests.support.logs import entry, sub_batch

VECTORS = Path(__file__).parents[1] / "vectors"

U8, U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64))
I64 = st.integers(-(2**63), 2**63 - 1)
FILTER_SIZES = st.sampled_from([0, 16, 17, 64, 255])
NAMES = st.binary(min_size=1, max_size=255)


@st.composite
def chunk_headers(draw: st.DrawFn) -> ChunkHeader:
    entries = draw(st.integers(1, 2**16 - 1))
    return ChunkHeader(
        chunk_type=format_constants.USER,
        num_entries=entries,
        num_records=draw(st.integers(entries, 2**32 - 1)),
        timestamp_ms=draw(I64),
        epoch=draw(U64),
        chunk_id=draw(U64),
        data_crc=draw(U32),
        data_size=draw(U32),
        trailer_size=draw(U32),
        filter_size=draw(FILTER_SIZES),
        filter_scheme=draw(
            st.sampled_from([format_constants.OSIRIS_SCHEME, format_constants.MMH3_SCHEME])
        ),
        header_check=draw(U16),
    )


def vector(name: str) -> bytes:
    lines = (VECTORS / f"{name}.hex").read_text().splitlines()
    return bytes.fromhex("".join(line.partition("#")[0] for line in lines))


@given(chunk_headers())
def test_chunk_header_agrees_with_layout(header: ChunkHeader) -> None:
    raw = codec.encode_chunk_header(header)
    declared = layout.CHUNK_HEADER.parse(raw)
    assert [int(declared[name]) for name in ChunkHeader._fields] == list(header)
    assert layout.CHUNK_HEADER.build(declared) == raw
    assert codec.decode_chunk_header(raw) == header
    assert codec.decode_chunk_header(b"xx" + raw + b"yy", 2) == header


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_entries": 0, "num_records": 0}, "counts 0 entries"),
        ({"num_entries": 5, "num_records": 4}, "counts 5 entries and 4 records"),
        ({"filter_size": 15}, "filter size is 15"),
        ({"filter_size": 1}, "filter size is 1"),
        ({"chunk_type": 3}, "chunk type is 3"),
        ({"chunk_type": 1, "filter_size": 16}, "tracking chunk"),
        ({"chunk_type": 2, "trailer_size": 1}, "tracking chunk"),
        ({"chunk_type": 2, "num_entries": 2, "num_records": 2}, "tracking chunk"),
    ],
)
def test_impossible_headers_are_refused(change: dict[str, int], reason: str) -> None:
    sound = ChunkHeader(0, 1, 1, 0, 1, 0, 0, 0, 0, 0, 1, 0)
    with pytest.raises(FormatError, match=reason):
        codec.decode_chunk_header(codec.encode_chunk_header(sound._replace(**change)))


def test_zeros_are_no_chunk() -> None:
    with pytest.raises(FormatError, match="begins with 0x0"):
        codec.decode_chunk_header(bytes(48))


@given(st.builds(IndexRecord, U64, I64, U64, U32, U8))
def test_index_record_agrees_with_layout(record: IndexRecord) -> None:
    raw = codec.encode_index_record(record)
    declared = layout.INDEX_RECORD.parse(raw)
    assert [declared[name] for name in IndexRecord._fields] == list(record)
    assert codec.decode_index_record(raw) == record
    assert len(raw) == codec.INDEX_RECORD_SIZE == layout.INDEX_RECORD.sizeof()


def trailer_blocks() -> st.SearchStrategy[list[Block]]:
    unsigned = st.builds(
        Block,
        st.sampled_from([format_constants.SEQUENCE, format_constants.OFFSET]),
        NAMES,
        U64,
        st.none(),
    )
    values = st.builds(
        Block, st.just(format_constants.FILTER_VALUE), st.binary(max_size=255), U64, st.none()
    )
    times = st.builds(Block, st.just(format_constants.TIMESTAMP), NAMES, I64, st.none())
    return st.lists(unsigned | values | times, max_size=8)


def snapshot_blocks() -> st.SearchStrategy[list[Block]]:
    sequences = st.builds(Block, st.just(format_constants.SEQUENCE), NAMES, U64, U64)
    offsets = st.builds(Block, st.just(format_constants.OFFSET), NAMES, U64, st.none())
    times = st.builds(Block, st.just(format_constants.TIMESTAMP), NAMES, I64, st.none())
    return st.lists(sequences | offsets | times, max_size=8)


@given(trailer_blocks())
def test_trailer_blocks_agree_with_layout(blocks: list[Block]) -> None:
    raw = codec.encode_blocks(blocks)
    declared = layout.TRACKING_BLOCKS.parse(raw)
    assert [(int(b.kind), b.id, b.value) for b in declared] == [b[:3] for b in blocks]
    assert codec.decode_blocks(raw) == blocks


@given(snapshot_blocks())
def test_snapshot_blocks_agree_with_layout(blocks: list[Block]) -> None:
    raw = codec.encode_blocks(blocks)
    declared = layout.SNAPSHOT_BLOCKS.parse(raw)
    assert [(int(b.kind), b.id, b.value, b.chunk_id) for b in declared] == blocks
    assert codec.decode_blocks(raw, snapshot=True) == blocks


@given(trailer_blocks(), st.data())
def test_cut_blocks_are_refused(blocks: list[Block], data: st.DataObject) -> None:
    raw = codec.encode_blocks(blocks)
    sizes = {len(codec.encode_blocks(blocks[:n])) for n in range(len(blocks) + 1)}
    cut = data.draw(st.integers(0, len(raw)))
    if cut in sizes:
        assert codec.decode_blocks(raw[:cut]) == blocks[: len(codec.decode_blocks(raw[:cut]))]
    else:
        with pytest.raises(FormatError, match="cut off"):
            codec.decode_blocks(raw[:cut])


@given(trailer_blocks(), st.integers(0, 3), st.binary(max_size=4))
def test_a_block_is_found(blocks: list[Block], kind: int, name: bytes) -> None:
    names = [block.id for block in blocks if block.kind == kind]
    for wanted in (name, *names, *(other[:-1] for other in names)):
        head = bytes((kind, len(wanted))) + wanted
        places = [at for at, block in enumerate(blocks) if block[:2] == (kind, wanted)]
        first = (len(codec.encode_blocks(blocks[: places[0]])), places[0]) if places else None
        assert codec.find_block(codec.encode_blocks(blocks), head) == first


class _Counted(bytes):
    """Counts how often something is looked for in it."""

    num_found = 0

    def find(self, *arguments: Any) -> int:
        self.num_found += 1
        return super().find(*arguments)


def test_what_looks_like_a_block_within_others_costs_nothing() -> None:
    """Publishers shape filter values."""
    blocks = [Block(format_constants.FILTER_VALUE, b"\x03\x01x" * 85, 1)] * 10
    trailer = _Counted(codec.encode_blocks(blocks))
    assert codec.find_block(trailer, b"\x03\x01x") is None
    assert trailer.num_found == len(blocks) + 1


def test_unknown_block_kinds_are_refused() -> None:
    with pytest.raises(FormatError, match="kind is 9"):
        codec.decode_blocks(bytes([9, 1, 65]) + bytes(8))
    with pytest.raises(FormatError, match="kind is 3"):
        codec.decode_blocks(bytes([3, 1, 65]) + bytes(8), snapshot=True)


@pytest.mark.parametrize("size", [0, 256])
def test_references_that_no_length_byte_can_hold_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"{size} bytes long"):
        codec.encode_blocks([Block(format_constants.SEQUENCE, b"x" * size, 1)])


JOURNAL_RECORDS = st.lists(
    st.builds(JournalRecord, st.sampled_from([1, 2]), U64, st.binary(max_size=60)), max_size=5
)


@given(JOURNAL_RECORDS)
def test_journal_agrees_with_layout(records: list[JournalRecord]) -> None:
    raw = b"".join(map(codec.encode_journal_record, records))
    assert codec.decode_journal(raw) == (records, len(raw))
    for record in records:
        one = codec.encode_journal_record(record)
        declared = layout.JOURNAL_RECORD.parse(one)
        assert (int(declared.kind), declared.next_offset, declared.body) == record
        assert declared.crc == zlib.crc32(one[4:])


@given(JOURNAL_RECORDS, st.data())
def test_a_torn_journal_gives_its_whole_records(
    records: list[JournalRecord], data: st.DataObject
) -> None:
    raw = bytearray(b"".join(map(codec.encode_journal_record, records)))
    cut = data.draw(st.integers(0, len(raw)))
    torn = raw[:cut]
    if torn and data.draw(st.booleans()):
        torn[data.draw(st.integers(0, len(torn) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    found, used = codec.decode_journal(bytes(torn))
    assert found == records[: len(found)]
    assert used == sum(len(codec.encode_journal_record(r)) for r in found)


@given(st.lists(st.builds(Damage, U64, U64, U64, U64), max_size=4))
def test_damage_agrees_with_layout(ranges: list[Damage]) -> None:
    raw = codec.encode_damage(ranges)
    assert codec.decode_damage(raw) == ranges
    assert layout.DAMAGE_HEADER.parse(raw).magic == b"SDMG"
    for number, damage in enumerate(ranges):
        declared = layout.DAMAGE_RECORD.parse(raw[8 + 36 * number :])
        assert [declared[name] for name in Damage._fields] == list(damage)


VERSION = range(4, 8)  # in a file header; what follows tells which one it is
CHECKPOINTS = st.builds(Checkpoint, U64, U64, U64, U64, U64, U64, st.booleans())


@given(CHECKPOINTS)
def test_checkpoint_agrees_with_layout(checkpoint: Checkpoint) -> None:
    raw = codec.encode_checkpoint(checkpoint)
    assert codec.decode_checkpoint(raw) == checkpoint
    assert layout.CHECKPOINT_HEADER.parse(raw).magic == b"SCKP"
    declared = layout.CHECKPOINT.parse(raw[8:])
    assert [declared[name] for name in Checkpoint._fields] == list(checkpoint)


DAMAGES = st.lists(st.builds(Damage, U64, U64, U64, U64), min_size=1, max_size=3)


@pytest.mark.parametrize(
    ("contents", "encode", "decode"),
    [
        pytest.param(
            CHECKPOINTS, codec.encode_checkpoint, codec.decode_checkpoint, id="checkpoint"
        ),
        pytest.param(DAMAGES, codec.encode_damage, codec.decode_damage, id="damage"),
    ],
)
@given(data=st.data())
def test_changed_files_are_refused(
    contents: st.SearchStrategy[Any],
    encode: Callable[[Any], bytes],
    decode: Callable[[bytes], Any],
    data: st.DataObject,
) -> None:
    content = data.draw(contents)
    raw = bytearray(encode(content))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    with nullcontext() if at in VERSION else pytest.raises(FormatError):
        assert decode(bytes(raw)) == content
    with pytest.raises(FormatError):
        decode(encode(content)[:-1])


ENTRIES = st.lists(
    st.builds(entry, st.binary(max_size=40))
    | st.builds(sub_batch, st.binary(max_size=40), st.integers(1, 2**16 - 1), st.integers(0, 4)),
    max_size=8,
)


@given(ENTRIES)
def test_entries_agree_with_layout(entries: list[bytes]) -> None:
    raw = b"".join(entries)
    walked = list(codec.walk_entries(raw))
    assert [raw[at.start : at.end] for at in walked] == entries
    for at in walked:
        declared = layout.ENTRY.parse(raw[at.start :]).entry
        assert declared.body == raw[at.body : at.end]
        if at.compression is not None:
            assert (declared.compression, declared.num_records) == (at.compression, at.num_records)
            assert declared.uncompressed_size == at.uncompressed_size


@given(ENTRIES, st.data())
def test_reading_bodies_agrees_with_walking(entries: list[bytes], data: st.DataObject) -> None:
    raw = b"".join(entries)[: data.draw(st.integers(0, len(b"".join(entries))))]
    try:
        walked = list(codec.walk_entries(raw))
    except FormatError:
        if not any(entry[0] & 0x80 for entry in entries if entry):
            with pytest.raises(FormatError):
                codec.simple_bodies(raw)
        return
    if any(at.compression is not None for at in walked):
        assert codec.simple_bodies(raw) is None
    else:
        assert codec.simple_bodies(raw) == [raw[at.body : at.end] for at in walked]


RUNS = st.lists(
    st.tuples(st.sampled_from((0, 1, 100, 256, 300)), st.sampled_from((1, 31, 32, 33, 64, 200))),
    max_size=6,
)


@given(RUNS, st.booleans(), st.data())
def test_ends_of_many_messages_of_one_size_agree_with_walking(
    runs: list[tuple[int, int]], has_batch: bool, data: st.DataObject
) -> None:
    entries = [entry(bytes(size)) for size, count in runs for _ in range(count)]
    if has_batch:
        entries.insert(data.draw(st.integers(0, len(entries))), sub_batch(bytes(7), 1, 0))
    raw = b"".join(entries)
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(0, len(raw)))]
    try:
        walked = list(codec.walk_entries(raw))
    except FormatError:
        if not has_batch:
            with pytest.raises(FormatError):
                codec.simple_ends(raw)
        return
    is_simple = all(at.compression is None for at in walked)
    expected = [at.end for at in walked] if is_simple else None
    assert codec.simple_ends(raw) == codec.simple_ends(memoryview(raw)) == expected


@given(ENTRIES, st.data())
def test_cut_entries_are_refused(entries: list[bytes], data: st.DataObject) -> None:
    raw = b"".join(entries)
    boundaries = {sum(map(len, entries[:n])) for n in range(len(entries) + 1)}
    cut = data.draw(st.integers(0, len(raw)))
    if cut in boundaries:
        assert sum(at.end - at.start for at in codec.walk_entries(raw[:cut])) == cut
    else:
        with pytest.raises(FormatError):
            list(codec.walk_entries(raw[:cut]))


@pytest.mark.parametrize(
    ("raw", "reason"),
    [(b"OSI", "3 bytes long"), (b"OSIX\0\0\0\1", "begins with"), (b"OSIL\0\0\0\2", "version is 2")],
)
def test_file_headers_are_checked(raw: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        codec.check_file_header(raw, codec.SEGMENT_HEADER)


def test_vectors_of_an_independent_source() -> None:
    header = codec.decode_chunk_header(vector("chunk-osiris"))
    assert header == ChunkHeader(
        chunk_type=0,
        num_entries=2,
        num_records=2,
        timestamp_ms=1_700_000_000_000,
        epoch=1,
        chunk_id=0,
        data_crc=0x3BAE15D9,
        data_size=12,
        trailer_size=14,
        filter_size=16,
        filter_scheme=format_constants.OSIRIS_SCHEME,
        header_check=0,
    )
    assert codec.decode_index_record(vector("index-record")) == IndexRecord(
        0, 1_700_000_000_000, 1, 8, 0
    )
    (batch,) = codec.walk_entries(vector("sub-batch"))
    assert (batch.num_records, batch.compression, batch.uncompressed_size) == (2, 0, 12)
