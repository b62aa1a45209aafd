"""Tables of keys: what goes in comes out, and nothing else whatever the device makes of it."""

from array import array

import pytest
from hypothesis import example, given, strategies as st

from segments.errors import FormatError
from segments.format_constants import KEY_BLOCK_SIZE
from segments.keys.table import ORDINAL_BITS, KeyTable, TableHead, write_table
from tests.segments import layout
from tests.support.disk import FaultyDisk

PATH = "t"


def written(
    disk: FaultyDisk, pairs: set[tuple[int, int]], chunks: int, uncertain: list[int], at: int = 0
) -> KeyTable:
    numbers = [key << ORDINAL_BITS | ordinal for key, ordinal in pairs]
    half = len(numbers) // 2
    runs = [array("Q", sorted(numbers[:half])), array("Q", sorted(numbers[half:]))]
    head = TableHead(999, 7, 2, chunks, 5, len(uncertain), len(pairs), ("p", "properties.to"))
    file = disk.open(PATH, writable=True) if PATH in disk.files else disk.create(PATH)
    write_table(file, at, head, runs, uncertain)
    table = KeyTable(file, at)
    assert table.head == head
    assert table.end == file.size()
    assert sorted(table.pairs(file)) == sorted(numbers)
    return table


KEYS = st.one_of(st.integers(0, 5), st.integers(0, (1 << 32) - 1), st.just((1 << 32) - 1))


@given(
    st.sets(st.tuples(KEYS, st.integers(0, 9)), max_size=40),
    st.sampled_from((10, 70_000)),
    st.lists(st.integers(0, 9), max_size=3, unique=True).map(sorted),
    st.lists(KEYS, max_size=5),
)
def test_what_was_written_is_found(
    pairs: set[tuple[int, int]], chunks: int, uncertain: list[int], others: list[int]
) -> None:
    disk = FaultyDisk()
    table = written(disk, pairs, chunks, uncertain)
    assert list(table.uncertain) == uncertain
    file = disk.open(PATH, writable=False)
    for key in {key for key, _ in pairs}.union(others):
        expected = sorted(ordinal for found, ordinal in pairs if found == key)
        assert list(table.chunks_with(file, key)) == expected


@pytest.mark.parametrize("chunks", [3_000, 200_000])
@pytest.mark.parametrize("step", [1, 7, 5_000])
def test_tables_of_several_levels(chunks: int, step: int) -> None:
    """Pairs of one print in many blocks, and prints at the ends of blocks."""
    disk = FaultyDisk()
    some = {(n * step, n % chunks) for n in range(3_000)}
    pairs = (
        some | {(2_000 * step, n) for n in range(3_000)} | {((1 << 32) - 1, n) for n in range(5)}
    )
    table = written(disk, pairs, chunks, [])
    file = disk.open(PATH, writable=False)
    expected: dict[int, list[int]] = {}
    for key, ordinal in sorted(pairs):
        expected.setdefault(key, []).append(ordinal)
    for key in [*range(0, 3_001 * step, step), (1 << 32) - 1, 3]:
        assert list(table.chunks_with(file, key)) == expected.get(key, []), key


def test_a_million_pairs_have_three_levels_and_need_three_blocks() -> None:
    disk = FaultyDisk()
    file = disk.create(PATH)
    count = 700_000
    run = array("Q", (n * 6_000 << ORDINAL_BITS | n % 60_000 for n in range(count)))
    head = TableHead(999, 7, 0, 60_000, 5, 0, count, ("p",))
    write_table(file, 0, head, [run], [])
    table = KeyTable(file, 0)
    reads: list[int] = []

    class Counted:
        def read(self, size: int, position: int) -> bytes:
            reads.append(position)
            return file.read(size, position)

    for n in (0, 1, 681, 682, 683, 350_000, count - 1):
        reads.clear()
        assert list(table.chunks_with(Counted(), n * 6_000)) == [n % 60_000]
        assert len(reads) <= 3
        assert list(table.chunks_with(file, n * 6_000 + 1)) == []
    assert file.size() / count < 6.05


def test_tables_are_as_declared() -> None:
    disk = FaultyDisk()
    pairs = {(n * 9, n % 10) for n in range(700)}
    written(disk, pairs, 10, [3, 4])
    raw = bytes(disk.files[PATH].content)
    blocks = [raw[at : at + KEY_BLOCK_SIZE] for at in range(0, len(raw), KEY_BLOCK_SIZE)]
    layout.KEY_TABLE_HEADER.parse(blocks[0][:8])
    head = layout.KEY_TABLE.parse(blocks[0][8:])
    said = (head.segment_size, head.base_offset, head.first_chunk, head.end_chunk)
    assert said == (999, 7, 2, 10)
    assert (head.content_crc, head.num_uncertain, head.num_pairs) == (5, 2, 700)
    assert head.names == b"p\nproperties.to"
    assert layout.KEY_TABLE.build(head) == blocks[0][8:]
    fences = layout.KEY_FENCES.parse(blocks[1], most=1_023)
    assert list(fences.numbers[:3]) == [0, 682 * 9, 0]
    first, second = (layout.KEY_PAIRS.parse(block, most=682) for block in blocks[2:4])
    ordered = sorted(pairs)
    assert list(zip(first.prints, first.ordinals, strict=True)) == ordered[:682]
    assert list(zip(second.prints, second.ordinals, strict=True))[:18] == ordered[682:]
    assert list(layout.KEY_FENCES.parse(blocks[4], most=1_023).numbers[:3]) == [3, 4, 0]
    assert len(blocks) == 5
    written(disk, pairs, 70_000, [], at=len(raw))
    wide = bytes(disk.files[PATH].content)[len(raw) + 2 * KEY_BLOCK_SIZE :][:KEY_BLOCK_SIZE]
    parsed = layout.KEY_PAIRS_WIDE.parse(wide, most=511)
    assert list(zip(parsed.prints, parsed.ordinals, strict=True)) == ordered[:511]


@given(st.data())
@example(None)
def test_no_flipped_bit_and_no_cut_gives_a_wrong_answer(data: st.DataObject | None) -> None:
    disk = FaultyDisk()
    pairs = {(n * 9, n % 10) for n in range(700)}
    table = written(disk, pairs, 10, [3])
    content = disk.files[PATH].content
    position = data.draw(st.integers(0, 8 * len(content) - 1)) if data is not None else 8 * 4096 * 2
    content[position // 8] ^= 1 << position % 8
    file = disk.open(PATH, writable=False)
    for key in (0, 9, 681 * 9, 682 * 9, 699 * 9, 4):
        try:
            assert list(table.chunks_with(file, key)) == [n for k, n in sorted(pairs) if k == key]
        except FormatError:
            continue
    try:
        again = KeyTable(file, 0)
    except FormatError:
        return
    assert (again.head, list(again.uncertain)) == (table.head, [3])


def test_blocks_of_another_table_are_not_taken_for_its_own() -> None:
    """A key file may be replaced while somebody asks it."""
    disk, other = FaultyDisk(), FaultyDisk()
    table = written(disk, {(n, 3) for n in range(700)}, 10, [])
    written(other, {(n, 4) for n in range(700)}, 11, [])
    with pytest.raises(FormatError, match="checksum"):
        list(table.chunks_with(other.open(PATH, writable=False), 1))
