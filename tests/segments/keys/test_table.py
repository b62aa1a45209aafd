"""Tables of keys: what goes in comes out, and nothing else whatever the device makes of it."""

import zlib
from array import array

import pytest
from hypothesis import example, given, strategies as st

from segments.errors import FormatError
from segments.format_constants import KEY_BLOCK_SIZE
from segments.keys.table import PLACE_BITS, KeyTable, TableHead, number_bits, write_table
from tests.segments import layout
from tests.support.disk import FaultyDisk

PATH = "t"


def written(
    disk: FaultyDisk, pairs: set[tuple[int, int]], chunks: int, uncertain: list[int], at: int = 0
) -> KeyTable:
    """A table of pairs of prints and places."""
    numbers = [key << PLACE_BITS | place for key, place in pairs]
    half = len(numbers) // 2
    runs = [array("Q", sorted(numbers[:half])), array("Q", sorted(numbers[half:]))]
    head = TableHead(999, 7, 2, chunks, 5, len(uncertain), len(pairs), ("p", "properties.to"))
    file = disk.open(PATH, writable=True) if PATH in disk.files else disk.create(PATH)
    write_table(file, at, head, runs, uncertain)
    table = KeyTable(file, at)
    assert table.head == head
    assert table.end == file.size()
    assert table.number_bits == number_bits(chunks)
    assert sorted(table.pairs(file, table.number_bits)) == sorted(numbers)
    return table


KEYS = st.one_of(st.integers(0, 5), st.integers(0, (1 << 32) - 1), st.just((1 << 32) - 1))


@given(
    st.sets(st.tuples(KEYS, st.integers(0, (1 << 32) - 1)), max_size=40),
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
        expected = sorted(place for found, place in pairs if found == key)
        assert list(table.places_with(file, key)) == expected


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
        assert list(table.places_with(file, key)) == expected.get(key, []), key


@given(
    st.sets(st.tuples(KEYS, st.integers(0, 60_000), st.integers(0, 0xFFFF)), max_size=40),
    st.sampled_from((10, 65_536)),
)
def test_places_are_moved_to_a_table_with_more_chunks(
    told: set[tuple[int, int, int]], chunks: int
) -> None:
    """What its fewer bits cannot tell may be any message."""
    disk = FaultyDisk()
    table = written(disk, {(key, at << 16 | number) for key, at, number in told}, chunks, [])
    file = disk.open(PATH, writable=False)
    assert list(table.pairs(file, 8)) == sorted(
        key << 32 | at << 8 | min(number, 0xFF) for key, at, number in told
    )


def test_a_million_pairs_have_three_levels_and_need_three_blocks() -> None:
    disk = FaultyDisk()
    file = disk.create(PATH)
    count = 700_000
    run = array("Q", (n * 6_000 << PLACE_BITS | n % 60_000 for n in range(count)))
    head = TableHead(999, 7, 0, 60_000, 5, 0, count, ("p",))
    write_table(file, 0, head, [run], [])
    table = KeyTable(file, 0)
    reads: list[int] = []

    class Counted:
        def read(self, size: int, position: int) -> bytes:
            reads.append(position)
            return file.read(size, position)

    for n in (0, 1, 510, 511, 512, 350_000, count - 1):
        reads.clear()
        assert list(table.places_with(Counted(), n * 6_000)) == [n % 60_000]
        assert len(reads) <= 3
        assert list(table.places_with(file, n * 6_000 + 1)) == []
    assert file.size() / count < 8.05


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
    assert list(fences.numbers[:3]) == [0, 511 * 9, 0]
    first, second = (layout.KEY_PAIRS.parse(block, most=511) for block in blocks[2:4])
    ordered = sorted(pairs)
    assert list(zip(first.prints, first.places, strict=True)) == ordered[:511]
    assert list(zip(second.prints, second.places, strict=True))[:189] == ordered[511:]
    assert list(layout.KEY_FENCES.parse(blocks[4], most=1_023).numbers[:3]) == [3, 4, 0]
    assert len(blocks) == 5


@pytest.mark.parametrize(
    ("chunks", "form", "most"),
    [(10, layout.OLD_KEY_PAIRS, 682), (70_000, layout.KEY_PAIRS, 511)],
)
@pytest.mark.parametrize("count", [3, 700])
def test_tables_of_version_1(chunks: int, form: layout.Struct, most: int, count: int) -> None:
    """Built by the declarations: they have ordinals, and tell no messages."""
    disk = FaultyDisk()
    ordered = [(n * 9, n % 10) for n in range(count)]
    leaves = [ordered[at : at + most] for at in range(0, count, most)]
    names = b"p\nproperties.to"
    head = layout.KEY_TABLE.build(
        {
            "segment_size": 999, "base_offset": 7, "first_chunk": 2, "end_chunk": chunks,
            "content_crc": 5, "num_uncertain": 2, "num_pairs": count, "names": names,
            "padding": bytes(KEY_BLOCK_SIZE - 8 - 42 - 4 - len(names)), "crc": 0,
        }
    )  # fmt: skip
    head = b"SKEY\0\0\0\1" + head[:-4]
    seed = zlib.crc32(head)
    blocks = [head + seed.to_bytes(4, "big")]

    def add(content: bytes) -> None:
        blocks.append(content[:-4] + zlib.crc32(content[:-4], seed).to_bytes(4, "big"))

    def filled(numbers: list[int], size: int) -> list[int]:
        return numbers + [0] * (size - len(numbers))

    def fences(numbers: list[int]) -> bytes:
        return layout.KEY_FENCES.build({"numbers": filled(numbers, 1_023), "crc": 0}, most=1_023)

    if len(leaves) > 1:
        add(fences([leaf[0][0] for leaf in leaves]))
    for leaf in leaves:
        prints, places = (filled([pair[at] for pair in leaf], most) for at in (0, 1))
        columns = {"prints": prints, "ordinals": places, "places": places, "padding": bytes(4)}
        add(form.build({**columns, "crc": 0}, most=most))
    add(fences([3, 4]))
    file = disk.create(PATH)
    file.write(blocks, 0)
    table = KeyTable(file)
    assert table.head == TableHead(999, 7, 2, chunks, 5, 2, count, ("p", "properties.to"))
    assert (table.number_bits, list(table.uncertain), table.end) == (0, [3, 4], file.size())
    table.check(file)
    for key, ordinal in ordered:
        assert list(table.places_with(file, key)) == [ordinal]
        assert list(table.places_with(file, key + 1)) == []
    assert list(table.pairs(file, 8)) == [key << 32 | at << 8 | 0xFF for key, at in ordered]


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
    for key in (0, 9, 510 * 9, 511 * 9, 699 * 9, 4):
        try:
            assert list(table.places_with(file, key)) == [n for k, n in sorted(pairs) if k == key]
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
        list(table.places_with(other.open(PATH, writable=False), 1))
