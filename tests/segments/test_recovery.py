"""Opening what a crash left: every cut, every lost side file, damage in the middle."""

import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from segments import ChunkBuilder, Log, LogPolicy, Matcher
from segments.codec import FILE_HEADER_SIZE, INDEX_RECORD_SIZE
from segments.disk import OsDisk
from segments.recovery import Cut, Plan, Remove, Replace, examine
from tests.segments.test_codec import vector
from tests.support.logs import append, entry, read_bodies, read_chunks

ROLLING = LogPolicy(max_segment_chunks=3, filter_size=16)


def bodies(count: int) -> list[bytes]:
    return [b"message %d" % n for n in range(count)]


def fill(folder: Path, count: int, policy: LogPolicy = ROLLING) -> list[bytes]:
    """A log of `count` one-message chunks, all with filter, sequence and history."""
    log = Log.open(str(folder), policy)
    for number, body in enumerate(bodies(count)):
        append(log, [body], [b"v%d" % (number % 2)], sequences={b"p": number + 1})
    log.close()
    return bodies(count)


def builder_of(body: bytes) -> ChunkBuilder:
    builder = ChunkBuilder()
    builder.add(entry(body), 1, 1, None)
    return builder


def segment_of(folder: Path, base: int) -> Path:
    return folder / f"{base:020d}.segment"


def index_of(folder: Path, base: int) -> Path:
    return folder / f"{base:020d}.index"


def chunk_starts(folder: Path) -> dict[int, tuple[Path, int]]:
    """Where each chunk begins, by its id; found by walking, not by the code under test."""
    starts = {}
    for path in sorted(folder.glob("*.segment")):
        raw, position = path.read_bytes(), FILE_HEADER_SIZE
        while position < len(raw):
            head = raw[position : position + 48]
            starts[int.from_bytes(head[24:32], "big")] = (path, position)
            data, trailer = (int.from_bytes(head[at : at + 4], "big") for at in (36, 40))
            position += 48 + head[44] + data + trailer
    return starts


def reopened(folder: Path, policy: LogPolicy = ROLLING) -> tuple[list[bytes], Log]:
    log = Log.open(str(folder), policy)
    return read_bodies(log), log


def check_writable(folder: Path, kept: list[bytes], policy: LogPolicy = ROLLING) -> None:
    """The log takes messages again and still has them after the next opening."""
    found, log = reopened(folder, policy)
    assert found == kept
    append(log, [b"after"], [b"v9"])
    log.close()
    found, log = reopened(folder, policy)
    assert found == [*kept, b"after"]
    assert log.report.steps == log.report.losses == ()
    log.close()


def test_every_cut_of_the_last_two_chunks_leaves_the_longest_whole_prefix(tmp_path: Path) -> None:
    original = tmp_path / "original"
    original.mkdir()
    written = fill(original, 5)
    path, start = chunk_starts(original)[3]
    _, middle = chunk_starts(original)[4]
    size = path.stat().st_size
    for cut in range(start, size + 1):
        folder = tmp_path / "cut"
        shutil.copytree(original, folder)
        (folder / path.name).write_bytes(path.read_bytes()[:cut])
        kept = written[: 3 + (cut >= middle) + (cut >= size)]
        found, log = reopened(folder)
        assert found == kept, cut
        assert log.committed_offset == len(kept)
        assert log.tracking.sequence(b"p") == len(kept)  # only what was kept
        log.close()
        shutil.rmtree(folder)


@pytest.mark.parametrize("tail", [b"\0" * 5000, b"\x50garbage" * 9, b"\x50" + b"\0" * 47])
def test_garbage_after_the_last_chunk_is_cut(tmp_path: Path, tail: bytes) -> None:
    written = fill(tmp_path, 5)
    path = segment_of(tmp_path, 3)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + tail)
    log = Log.open(str(tmp_path), ROLLING)
    assert path.stat().st_size == size
    assert log.report.steps[0].startswith(f"cut {len(tail)} bytes from the end of {path}: ")
    log.close()
    check_writable(tmp_path, written)


def test_a_torn_trailer_drops_its_chunk_and_does_not_lengthen_the_file(tmp_path: Path) -> None:
    written = fill(tmp_path, 2)
    path = segment_of(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:-3])
    check_writable(tmp_path, written[:1])


def test_every_size_of_the_index_gives_everything_back(tmp_path: Path) -> None:
    original = tmp_path / "original"
    original.mkdir()
    written = fill(original, 5)
    for base in (0, 3):
        whole = index_of(original, base).read_bytes()
        for cut in range(len(whole) + 1):
            folder = tmp_path / "cut"
            shutil.copytree(original, folder)
            index_of(folder, base).write_bytes(whole[:cut])
            found, log = reopened(folder)
            assert found == written, (base, cut)
            log.close()
            assert index_of(folder, base).read_bytes() == whole
            shutil.rmtree(folder)


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda _: b"noise" * 40,
        lambda raw: raw + bytes(INDEX_RECORD_SIZE * 3),
        lambda raw: raw[:-INDEX_RECORD_SIZE] + bytes(INDEX_RECORD_SIZE),
        lambda raw: raw[: FILE_HEADER_SIZE + 5] + b"\xff" * (len(raw) - FILE_HEADER_SIZE - 5),
        lambda raw: raw + bytes(4096),
    ],
)
def test_damaged_indexes_are_rebuilt(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    written = fill(tmp_path, 8)
    whole = {base: index_of(tmp_path, base).read_bytes() for base in (0, 3, 6)}
    for base, raw in whole.items():
        index_of(tmp_path, base).write_bytes(damage(raw))
    found, log = reopened(tmp_path)
    assert found == written
    log.close()
    assert {base: index_of(tmp_path, base).read_bytes() for base in whole} == whole
    check_writable(tmp_path, written)


def test_all_index_files_gone(tmp_path: Path) -> None:
    """osiris takes the segments for leftovers of retention then, and deletes the stream."""
    written = fill(tmp_path, 8)
    for path in tmp_path.glob("*.index"):
        path.unlink()
    check_writable(tmp_path, written)


def test_index_without_segment_means_finish_the_deletion(tmp_path: Path) -> None:
    written = fill(tmp_path, 8)
    segment_of(tmp_path, 0).unlink()
    found, log = reopened(tmp_path)
    assert found == written[3:]
    assert log.first_offset == 3
    assert not index_of(tmp_path, 0).exists()
    log.close()


def test_temporary_files_are_swept(tmp_path: Path) -> None:
    written = fill(tmp_path, 2)
    (tmp_path / "tracking.tmp").write_bytes(b"half")
    check_writable(tmp_path, written)
    assert not (tmp_path / "tracking.tmp").exists()


@pytest.mark.parametrize("size", [0, 3, 8])
def test_an_emptied_newest_segment_keeps_its_base_offset(tmp_path: Path, size: int) -> None:
    written = fill(tmp_path, 5)
    path = segment_of(tmp_path, 3)
    path.write_bytes(path.read_bytes()[:size])
    found, log = reopened(tmp_path)
    assert found == written[:3]
    assert log.committed_offset == 3
    log.close()
    check_writable(tmp_path, written[:3])


def test_a_sole_segment_without_a_whole_chunk_does_not_use_offsets_again(tmp_path: Path) -> None:
    fill(tmp_path, 5)
    for suffix in ("segment", "index"):
        (tmp_path / f"{0:020d}.{suffix}").unlink()
    path = segment_of(tmp_path, 3)
    path.write_bytes(path.read_bytes()[:60])
    log = Log.open(str(tmp_path), ROLLING)
    assert (log.first_offset, log.committed_offset) == (3, 3)
    assert append(log, [b"x"]) == 3
    log.close()


def test_garbage_in_a_fresh_newest_segment_is_not_appended_to(tmp_path: Path) -> None:
    written = fill(tmp_path, 3)
    segment_of(tmp_path, 3).write_bytes(b"OSIL\0\0\0\1" + b"garbage " * 20)
    index_of(tmp_path, 3).write_bytes(b"")
    check_writable(tmp_path, written)


def flip(path: Path, position: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[position] ^= 0xFF
    path.write_bytes(raw)


@pytest.mark.parametrize("where", [0, 5, 24, 36, 60, 70, -1])
@pytest.mark.parametrize("index", ["kept", "removed"])
def test_damage_in_the_middle_of_the_newest_segment(tmp_path: Path, where: int, index: str) -> None:
    """With the index, or a sound header, only the damaged chunk is lost. Nothing after it is."""
    policy = LogPolicy()
    written = fill(tmp_path, 9, policy)
    path, start = chunk_starts(tmp_path)[4]
    _, end = chunk_starts(tmp_path)[5]
    flip(path, start + where if where >= 0 else end - 1)
    if index == "removed":
        index_of(tmp_path, 0).unlink()
    found, log = reopened(tmp_path, policy)
    is_data = 64 <= where < 64 + 13
    header_is_broken = where in (0, 5, 24, 36)
    if is_data or (header_is_broken and index == "kept"):
        assert found == written[:4] + written[5:]
        assert "1 messages from offset 4 on are lost" in log.report.losses[0]
    elif header_is_broken:
        assert found == written[:4]  # nothing says where the next chunk begins
    else:
        assert found == written  # only filter or trailer: the messages are whole
        assert "left out tracking" in log.report.steps[-1]
    log.append([builder_of(b"after")], 0)
    log.close()
    again, log = reopened(tmp_path, policy)
    assert again == [*found, b"after"]
    assert log.report.losses == ()
    log.close()


def test_a_lost_page_with_its_index_records(tmp_path: Path) -> None:
    """Power failure: a page in the middle reads as zeros, later ones survived."""
    policy = LogPolicy()
    written = fill(tmp_path, 9, policy)
    (path, first), (_, last) = chunk_starts(tmp_path)[2], chunk_starts(tmp_path)[6]
    raw = bytearray(path.read_bytes())
    raw[first + 10 : last - 10] = bytes(last - first - 20)
    path.write_bytes(raw)
    found, log = reopened(tmp_path, policy)
    assert found == written[:2] + written[6:]
    assert "4 messages from offset 2 on are lost" in log.report.losses[0]
    log.close()
    check_writable(tmp_path, found, policy)


def test_sealed_segments_are_never_cut(tmp_path: Path) -> None:
    written = fill(tmp_path, 8)
    path, start = chunk_starts(tmp_path)[2]  # the last chunk of the first segment
    raw = path.read_bytes()
    path.write_bytes(raw[: start + 60])
    found, log = reopened(tmp_path)
    assert found == written[:2] + written[3:]
    assert "1 messages from offset 2 on are lost" in log.report.losses[0]
    log.close()
    assert path.stat().st_size == start + 60
    check_writable(tmp_path, found)


def test_a_sealed_segment_that_ends_too_early_at_a_chunk_boundary(tmp_path: Path) -> None:
    written = fill(tmp_path, 8)
    path, start = chunk_starts(tmp_path)[2]
    path.write_bytes(path.read_bytes()[:start])
    found, log = reopened(tmp_path)
    assert found == written[:2] + written[3:]
    log.close()
    check_writable(tmp_path, found)


def test_a_missing_segment_in_the_middle(tmp_path: Path) -> None:
    written = fill(tmp_path, 8)
    segment_of(tmp_path, 3).unlink()
    found, log = reopened(tmp_path)
    assert found == written[:3] + written[6:]
    assert "3 messages from offset 3 on are lost" in log.report.losses[0]
    log.close()
    check_writable(tmp_path, found)


@pytest.mark.parametrize("where", [0, 24, 40])
def test_damage_that_appears_while_running_is_stepped_over(tmp_path: Path, where: int) -> None:
    written = fill(tmp_path, 8)
    log = Log.open(str(tmp_path), ROLLING)
    path, start = chunk_starts(tmp_path)[1]
    flip(path, start + where)
    assert read_bodies(log) == written[:1] + written[2:]
    assert read_bodies(log, matcher=Matcher([b"v0"])) == written[:8:2]
    log.close()


def test_a_flipped_filter_bit_never_hides_a_chunk(tmp_path: Path) -> None:
    written = fill(tmp_path, 6)
    for number in range(6):
        path, start = chunk_starts(tmp_path)[number]
        raw = bytearray(path.read_bytes())
        raw[start + 48 : start + 64] = bytes(16)  # all bits gone
        path.write_bytes(raw)
    log = Log.open(str(tmp_path), ROLLING)
    assert read_bodies(log, matcher=Matcher([b"v0"])) == written
    log.close()


def test_a_known_place_of_damage_is_not_reported_again(tmp_path: Path) -> None:
    fill(tmp_path, 8)
    path, start = chunk_starts(tmp_path)[2]
    path.write_bytes(path.read_bytes()[: start + 60])
    log = Log.open(str(tmp_path), ROLLING)
    assert log.report.losses
    log.close()
    assert path.with_suffix(".damage").exists()
    log = Log.open(str(tmp_path), ROLLING)
    assert log.report.losses == log.report.steps == ()
    log.close()


def test_a_damaged_damage_file_is_made_anew(tmp_path: Path) -> None:
    written = fill(tmp_path, 8)
    path, start = chunk_starts(tmp_path)[2]
    path.write_bytes(path.read_bytes()[: start + 60])
    Log.open(str(tmp_path), ROLLING).close()
    path.with_suffix(".damage").write_bytes(b"noise")
    check_writable(tmp_path, written[:2] + written[3:])


def test_a_damage_file_of_a_whole_segment_is_removed(tmp_path: Path) -> None:
    written = fill(tmp_path, 2)
    path, start = chunk_starts(tmp_path)[0]
    flip(path, start + 68)
    Log.open(str(tmp_path), ROLLING).close()
    flip(path, start + 68)  # whole again
    assert path.with_suffix(".damage").exists()
    check_writable(tmp_path, written)
    assert not path.with_suffix(".damage").exists()


class TestTrackingJournal:
    @pytest.mark.parametrize("content", [b"", b"STRK", b"noise and more noise", b"STRK\0\0\0\2"])
    def test_a_damaged_journal_is_written_anew_from_the_chunks(
        self, tmp_path: Path, content: bytes
    ) -> None:
        written = fill(tmp_path, 8)
        (tmp_path / "tracking").write_bytes(content)
        found, log = reopened(tmp_path)
        assert found == written
        assert log.tracking.sequence(b"p") == 8
        assert any("cut the tracking journal" in step for step in log.report.steps)
        log.store_offset(b"c", 4)
        log.close()
        log = Log.open(str(tmp_path), ROLLING)
        assert (log.tracking.offset(b"c"), log.tracking.sequence(b"p")) == (4, 8)
        assert log.report.steps == ()
        log.close()

    def test_every_cut_keeps_a_prefix_of_what_was_stored(self, tmp_path: Path) -> None:
        original = tmp_path / "original"
        log = Log.open(str(original))
        sizes = []
        for n in range(4):
            log.store_offset(b"c", n)
            log.write_tracking()
            sizes.append((original / "tracking").stat().st_size)
        log.close()
        raw = (original / "tracking").read_bytes()
        for cut in range(len(raw) + 1):
            folder = tmp_path / "cut"
            shutil.copytree(original, folder)
            (folder / "tracking").write_bytes(raw[:cut])
            log = Log.open(str(folder))
            whole = sum(cut >= size for size in sizes)
            assert log.tracking.offset(b"c") == (whole - 1 if whole else None), cut
            log.close()
            shutil.rmtree(folder)

    def test_sequences_of_lost_chunks_go_with_them(self, tmp_path: Path) -> None:
        """The journal was synced at the roll, the chunks before it were not, and the power went."""
        fill(tmp_path, 4)  # the snapshot as of offset 3 knows p = 3
        for path in tmp_path.glob(f"{3:020d}.*"):
            path.unlink()
        path, start = chunk_starts(tmp_path)[1]
        path.write_bytes(path.read_bytes()[:start])
        log = Log.open(str(tmp_path), ROLLING)
        assert log.committed_offset == 1
        assert log.tracking.sequence(b"p") == 1
        # Other chunks take the offsets that the lost ones had, beyond the old snapshot: it must
        # not look valid again.
        append(log, [b"x", b"y", b"z"], sequences={b"p": 70})
        log.close()
        log = Log.open(str(tmp_path), ROLLING)
        assert log.tracking.sequence(b"p") == 70
        log.close()

    def test_a_damaged_trailer_costs_its_own_tracking_only(self, tmp_path: Path) -> None:
        policy = LogPolicy()
        written = fill(tmp_path, 5, policy)
        (path, _), (_, end) = chunk_starts(tmp_path)[2], chunk_starts(tmp_path)[3]
        flip(path, end - 1)
        found, log = reopened(tmp_path, policy)
        assert found == written
        assert log.tracking.sequence(b"p") == 5
        assert any("left out tracking" in step for step in log.report.steps)
        log.close()


def test_applying_a_plan_twice_changes_nothing(tmp_path: Path) -> None:
    fill(tmp_path, 8)
    path, start = chunk_starts(tmp_path)[7]
    path.write_bytes(path.read_bytes()[: start + 30])
    index_of(tmp_path, 0).unlink()
    (tmp_path / f"{99:020d}.index").write_bytes(b"")
    plan = examine(OsDisk(), str(tmp_path))
    kinds = [type(step) for step in plan.steps]
    assert kinds == [Remove, Replace, Cut, Replace]
    assert all(str(step).count(str(tmp_path)) == 1 for step in plan.steps)
    plan.apply(OsDisk())
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    again = examine(OsDisk(), str(tmp_path))
    assert again.steps == again.losses == []
    Plan([], [step for step in plan.steps if isinstance(step, Cut | Replace)], []).apply(OsDisk())
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_examining_writes_nothing(tmp_path: Path) -> None:
    fill(tmp_path, 8)
    path, start = chunk_starts(tmp_path)[7]
    path.write_bytes(path.read_bytes()[: start + 30])
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    examine(OsDisk(), str(tmp_path))
    examine(OsDisk(), str(tmp_path), trust_indexes=False)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_sealed_segments_are_trusted_without_reading_them(tmp_path: Path) -> None:
    fill(tmp_path, 8)
    path, start = chunk_starts(tmp_path)[1]
    flip(path, start + 66)  # in the data of a sealed segment
    log = Log.open(str(tmp_path), ROLLING)
    assert log.report.losses == ()
    log.close()
    losses = examine(OsDisk(), str(tmp_path), trust_indexes=False).losses
    assert [(loss.path, loss.position, loss.reason) for loss in losses] == [
        (str(path), start, "data fails its checksum")
    ]


def test_a_log_that_rabbitmq_wrote(tmp_path: Path) -> None:
    """Tracking chunks take offsets but are not handed out; foreign filters are not trusted."""
    user = vector("chunk-osiris")
    body = bytes.fromhex("00 04 77696431 0000000000000007")  # a delta: wid1 is at 7
    data = len(body).to_bytes(4, "big") + body
    delta = (
        bytes.fromhex("50 01 0001 00000001 0000018bcfe56800 0000000000000001 0000000000000002")
        + zlib.crc32(data).to_bytes(4, "big")
        + len(data).to_bytes(4, "big")
        + bytes(8)
        + data
    )
    segment_of(tmp_path, 0).write_bytes(b"OSIL\0\0\0\1" + user + delta)
    log = Log.open(str(tmp_path))
    assert log.committed_offset == 3
    assert log.tracking.sequence(b"wid1") == 7
    assert read_bodies(log) == [b"hi", b"ho"]
    assert read_bodies(log, matcher=Matcher([b"grape"])) == [b"hi", b"ho"]
    assert [c.header.chunk_id for c in read_chunks(log)] == [0]
    log.close()
