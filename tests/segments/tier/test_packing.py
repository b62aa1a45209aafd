"""What the manifest says of a segment is what is in it."""

from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from segments import Log, LogPolicy
from segments.checksum import crc32
from segments.codec import CHUNK_HEADER_SIZE
from segments.errors import CorruptError
from segments.segment import FILTER_SUFFIX, INDEX_SUFFIX, KEYS_SUFFIX, SEGMENT_SUFFIX, Segment
from segments.tier import packing
from segments.tier.packing import pack
from segments.tracking import Tracking, as_of
from tests.segments.recovery.test_recovery import flip
from tests.support.logs import append

UID = "0" * 16


def a_segment(folder: Path, sizes: list[int]) -> tuple[Log, Segment]:
    """A log whose first segment is sealed, with a chunk of each size."""
    log = Log.open(str(folder), LogPolicy(filter_size=64))
    for number, size in enumerate(sizes):
        sequences = {b"p%d" % (number % 3): number} if number % 2 else None
        append(log, [b"x" * size], [b"v%d" % (number % 5)], sequences=sequences)
    log.seal()
    log.flush(with_checkpoint=True)
    return log, log.segments.shown[0]


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(0, 900) | st.integers(900, 5_000), min_size=1, max_size=20),
    piece=st.integers(64, 3_000),
)
def test_both_ways_find_the_same(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], piece: int
) -> None:
    log, segment = a_segment(tmp_path_factory.mktemp("log"), sizes)
    before, packing._PIECE_BYTES = packing._PIECE_BYTES, piece
    file = segment.open()
    try:
        quick = packing._quickly(segment, file, Tracking())
        thorough = packing._thoroughly(segment, file, Tracking())
    finally:
        file.close()
        packing._PIECE_BYTES = before
    assert quick is not None
    assert (quick.crc, quick.records) == (thorough.crc, thorough.records)
    assert (
        quick.tracking.sequences()
        == thorough.tracking.sequences()
        == log.journal.tracking.sequences()
    )
    content = Path(segment.path()).read_bytes()
    assert quick.crc == crc32(content)
    assert quick.records == Path(segment.path(INDEX_SUFFIX)).read_bytes()
    log.close()


def test_what_is_beside_it_is_there_too(tmp_path: Path) -> None:
    log, segment = a_segment(tmp_path, [10, 20])
    Path(segment.path(FILTER_SUFFIX)).write_bytes(b"filters")
    Path(segment.path(KEYS_SUFFIX)).write_bytes(b"keys")
    packed = pack(segment, 7, UID, Tracking())
    stored = packed.stored
    assert (stored.epoch, stored.uid, stored.num_chunks) == (7, UID, 2)
    assert (stored.base_offset, stored.next_offset, stored.last_chunk_id) == (0, 2, 1)
    assert packed.contents[FILTER_SUFFIX] == b"filters"
    assert packed.paths == {
        SEGMENT_SUFFIX: segment.path(),
        KEYS_SUFFIX: segment.path(KEYS_SUFFIX),
    }
    for suffix, file in stored.files.items():
        content = Path(segment.path(suffix)).read_bytes()
        assert file == (len(content), crc32(content))
    log.close()


@pytest.mark.parametrize("position", range(8, 192, 3))
def test_damage_that_nobody_knew_of(tmp_path: Path, position: int) -> None:
    """It is stored as such, or it is of no chunk's messages; the index is right in any case."""
    log, segment = a_segment(tmp_path, [50] * 5)
    index = Path(segment.path(INDEX_SUFFIX)).read_bytes()
    data_start = 8 + CHUNK_HEADER_SIZE + 64
    flip(Path(segment.path()), position)
    packed = pack(segment, 7, UID, Tracking())
    assert packed.stored.damage == tuple(segment.damage.values())
    if data_start <= position < data_start + 54:
        assert packed.stored.damage
    content = Path(segment.path()).read_bytes()
    assert packed.stored.files[SEGMENT_SUFFIX] == (len(content), crc32(content))
    assert packed.stored.num_chunks == 5
    assert packed.contents[INDEX_SUFFIX] == index
    log.close()


def test_an_index_that_is_wrong_is_not_stored(tmp_path: Path) -> None:
    log, segment = a_segment(tmp_path, [50] * 5)
    right = Path(segment.path(INDEX_SUFFIX)).read_bytes()
    flip(Path(segment.path(INDEX_SUFFIX)), 40)
    assert pack(segment, 7, UID, Tracking()).contents[INDEX_SUFFIX] == right
    log.close()


def test_a_file_that_was_cut(tmp_path: Path) -> None:
    log, segment = a_segment(tmp_path, [50] * 5)
    path = Path(segment.path())
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CorruptError, match="it ends there"):
        pack(segment, 7, UID, Tracking())
    log.close()


def test_what_was_known_at_an_offset() -> None:
    before, now = Tracking(), Tracking()
    before.set_sequences(3, [(b"old", 1)])
    before.set_sequences(5, [(b"busy", 2)])
    now.set_sequences(2, [(b"silent", 9)])
    now.set_sequences(3, [(b"old", 1)])
    now.set_sequences(12, [(b"busy", 7)])
    now.set_sequences(13, [(b"new", 8)])
    now.store_offset(b"app", 4)
    found = as_of(10, before, now.snapshot_blocks())
    assert list(found.sequences().items()) == [(b"silent", 9), (b"old", 1), (b"busy", 2)]
    assert found.offsets() == {b"app": 4}
