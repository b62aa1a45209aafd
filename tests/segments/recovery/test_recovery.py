"""Opening what a crash left: every cut, every lost side file, damage in the middle."""

import copy
import shutil
import zlib
from pathlib import Path

import pytest

from segments import ChunkMatcher, Log, LogPolicy, codec
from segments.codec import FILE_HEADER_SIZE
from segments.disk import OsDisk
from segments.errors import OtherVersionError
from segments.recovery.recovery import examine
from segments.recovery.steps import Cut, Plan, Remove, Replace
from tests.segments.test_codec import vector
from tests.support.disk import FaultyDisk, Killed
from tests.support.logs import append, read_bodies, read_chunks, store_offset, truncate

ROLLING = LogPolicy(max_segment_chunks=3, filter_size=16)


def bodies(count: int) -> list[bytes]:
    return [b"message %d" % n for n in range(count)]


def fill(
    folder: Path, count: int, policy: LogPolicy = ROLLING, *, is_flushed: bool = True
) -> list[bytes]:
    """A log of `count` one-message chunks, all with filter, sequence and history.

    Of one that is not flushed any part may be missing after a power failure.
    """
    log = Log.open(str(folder), policy)
    for number, body in enumerate(bodies(count)):
        append(log, [body], [b"v%d" % (number % 2)], sequences={b"p": number + 1})
    if is_flushed:
        log.close()
    else:
        log.abandon()
    return bodies(count)


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
    written = fill(original, 5, is_flushed=False)
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
        assert log.journal.tracking.sequence(b"p") == len(kept)  # only what was kept
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
    assert log.segments.first_offset == 3
    assert not index_of(tmp_path, 0).exists()
    log.close()


def test_temporary_files_are_swept(tmp_path: Path) -> None:
    written = fill(tmp_path, 2)
    (tmp_path / "tracking.tmp").write_bytes(b"half")
    check_writable(tmp_path, written)
    assert not (tmp_path / "tracking.tmp").exists()


@pytest.mark.parametrize("size", [0, 3, 8])
def test_an_emptied_newest_segment_keeps_its_base_offset(tmp_path: Path, size: int) -> None:
    written = fill(tmp_path, 5, is_flushed=False)
    path = segment_of(tmp_path, 3)
    path.write_bytes(path.read_bytes()[:size])
    found, log = reopened(tmp_path)
    assert found == written[:3]
    assert log.committed_offset == 3
    log.close()
    assert path.read_bytes() == codec.SEGMENT_HEADER
    check_writable(tmp_path, written[:3])


def test_a_sole_segment_without_a_whole_chunk_does_not_use_offsets_again(tmp_path: Path) -> None:
    fill(tmp_path, 5)
    (tmp_path / "checkpoint").unlink()
    for suffix in ("segment", "index"):
        (tmp_path / f"{0:020d}.{suffix}").unlink()
    path = segment_of(tmp_path, 3)
    path.write_bytes(path.read_bytes()[:60])
    log = Log.open(str(tmp_path), ROLLING)
    assert (log.segments.first_offset, log.committed_offset) == (3, 3)
    assert append(log, [b"x"]) == 3
    log.close()


def flip(path: Path, position: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[position] ^= 0xFF
    path.write_bytes(raw)


WHERE = [0, 5, 24, 36, 60, 70, -1]  # of a chunk: header, filter, data, trailer


def is_fatal(where: int) -> bool:
    """A byte of a chunk without which its messages cannot be read; the rest costs its filter."""
    return where in (0, 5, 24, 36) or 64 <= where < 64 + 13


@pytest.mark.parametrize("where", WHERE)
def test_what_follows_damage_that_was_not_on_the_device_goes_into_quarantine(
    tmp_path: Path, where: int
) -> None:
    """Power failure: a page is lost, later ones survived. The log ends before it."""
    policy = LogPolicy()
    written = fill(tmp_path, 9, policy, is_flushed=False)
    path, start = chunk_starts(tmp_path)[4]
    _, end = chunk_starts(tmp_path)[5]
    flip(path, start + where if where >= 0 else end - 1)
    raw = path.read_bytes()
    found, log = reopened(tmp_path, policy)
    assert found == written[:4]
    assert (
        log.journal.tracking.sequence(b"p") == 4
    )  # a message that is sent again is not a duplicate
    assert log.report.steps[0].endswith("; they are kept in quarantine")
    kept = tmp_path / "quarantine" / f"{path.name}.from-byte-{start}.aside"
    assert kept.read_bytes() == raw[start:]
    log.close()
    check_writable(tmp_path, found, policy)


@pytest.mark.parametrize("where", WHERE)
def test_damage_of_what_was_on_the_device_is_stepped_over(tmp_path: Path, where: int) -> None:
    """With a sound header only the damaged chunk is lost, without its index all behind it is."""
    policy = LogPolicy()
    written = fill(tmp_path, 9, policy)
    path, start = chunk_starts(tmp_path)[4]
    _, end = chunk_starts(tmp_path)[5]
    flip(path, start + where if where >= 0 else end - 1)
    index_of(tmp_path, 0).unlink()  # so that it is read through
    found, log = reopened(tmp_path, policy)
    if where in (0, 5, 24, 36):
        assert found == written[:4]
        assert "5 messages from offset 4 on are lost" in log.report.losses[0]
    elif is_fatal(where):
        assert found == written[:4] + written[5:]
        assert "1 messages from offset 4 on are lost" in log.report.losses[0]
    else:
        assert found == written
    size = path.stat().st_size
    assert log.next_offset == 9
    append(log, [b"after"], now_ms=0)
    log.close()
    assert path.stat().st_size >= size
    again, log = reopened(tmp_path, policy)
    assert again == [*found, b"after"]
    assert log.report.losses == ()
    log.close()


@pytest.mark.parametrize("lost", range(1, 48))
def test_a_header_whose_end_is_lost(tmp_path: Path, lost: int) -> None:
    """Power failure: the header stood on two sectors, of which the second one is zero."""
    policy = LogPolicy()
    written = fill(tmp_path, 5, policy, is_flushed=False)
    path, start = chunk_starts(tmp_path)[3]
    raw = path.read_bytes()
    torn = start + 48 - lost
    path.write_bytes(raw[:torn] + bytes(len(raw) - torn))
    found, log = reopened(tmp_path, policy)
    assert found == written[:3]
    assert (log.next_offset, log.journal.tracking.sequence(b"p")) == (3, 3)
    log.close()


def test_segments_behind_a_fault_go_into_quarantine(tmp_path: Path) -> None:
    """Power failure: the first segment lost its end, the ones behind it survived."""
    written = fill(tmp_path, 8, is_flushed=False)
    path, start = chunk_starts(tmp_path)[2]
    later = {
        f"{p.name}.aside": p.read_bytes()
        for base in (3, 6)
        for p in tmp_path.glob(f"{base:020d}.*")
    }
    torn = path.read_bytes()[start : start + 20]
    path.write_bytes(path.read_bytes()[: start + 20])
    found, log = reopened(tmp_path)
    assert found == written[:2]
    assert (log.next_offset, log.journal.tracking.sequence(b"p")) == (2, 2)
    assert f"moved {segment_of(tmp_path, 3)} into quarantine" in "\n".join(log.report.steps)
    log.close()
    kept = {p.name: p.read_bytes() for p in (tmp_path / "quarantine").iterdir()}
    assert kept == later | {f"{path.name}.from-byte-{start}.aside": torn}
    check_writable(tmp_path, found)


def test_quarantine_replaces_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        fill(tmp_path, 4, is_flushed=False)
        path, start = chunk_starts(tmp_path)[1]
        path.write_bytes(path.read_bytes()[:start])
        log = Log.open(str(tmp_path), ROLLING)
        log.close()
        for old in (*tmp_path.glob("0*"), tmp_path / "checkpoint", tmp_path / "tracking"):
            old.unlink(missing_ok=True)
    names = [p.name for p in (tmp_path / "quarantine").iterdir()]
    assert sorted(names) == sorted(
        f"{3:020d}.{kind}.aside{number}" for kind in ("segment", "index") for number in ("", ".2")
    )


def test_an_offset_that_the_checkpoint_knew_is_not_used_again(tmp_path: Path) -> None:
    """Somebody removed, or cut, what had been flushed."""
    written = fill(tmp_path, 8)
    for path in tmp_path.glob(f"{6:020d}.*"):
        path.unlink()
    found, log = reopened(tmp_path)
    assert found == written[:6]
    assert log.next_offset == 8
    assert "2 messages from offset 6 on are lost" in log.report.losses[0]
    assert append(log, [b"after"]) == 8
    log.close()
    found, log = reopened(tmp_path)
    assert found == [*written[:6], b"after"]
    assert log.report.losses == log.report.steps == ()
    log.close()
    for path in tmp_path.glob("0*"):
        path.unlink()
    log = Log.open(str(tmp_path), ROLLING)
    assert (log.segments.first_offset, log.next_offset) == (9, 9)
    assert "9 messages from offset 0 on are lost" in log.report.losses[0]
    log.close()


def test_what_retention_had_begun_is_finished(tmp_path: Path) -> None:
    """A power failure right after the checkpoint brings the files of removed segments back."""
    policy = LogPolicy(max_segment_chunks=3, filter_size=16, max_length_bytes=1)
    written = fill(tmp_path, 8, policy)
    before = {p: p.read_bytes() for p in tmp_path.glob("0*")}
    log = Log.open(str(tmp_path), policy)
    log.expire(0).run()
    log.close()
    for path, raw in before.items():
        if not path.name.startswith(f"{3:020d}"):  # any part of them
            path.write_bytes(raw)
    found, log = reopened(tmp_path, policy)
    assert found == written[6:]
    assert log.report.losses == ()
    assert log.journal.tracking.sequence(b"p") == 8
    log.close()
    assert not segment_of(tmp_path, 0).exists()


@pytest.mark.parametrize("content", [None, b"", b"noise", b"SCKP\0\0\0\1" + bytes(53)])
def test_a_lost_checkpoint_costs_nothing_else(tmp_path: Path, content: bytes | None) -> None:
    written = fill(tmp_path, 8)
    if content is None:
        (tmp_path / "checkpoint").unlink()
    else:
        (tmp_path / "checkpoint").write_bytes(content)
    check_writable(tmp_path, written)


@pytest.mark.parametrize("name", ["checkpoint", "tracking", f"{0:020d}.segment"])
def test_files_of_another_version_are_left_alone(tmp_path: Path, name: str) -> None:
    fill(tmp_path, 8)
    raw = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(raw[:4] + b"\0\0\0\2" + bytes([raw[8] ^ 1]) + raw[9:])
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    message = f"cannot use .*{name}: its format version is 2, this program knows 1; start the prog"
    with pytest.raises(OtherVersionError, match=message):
        Log.open(str(tmp_path), ROLLING)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize("version", [0, 2, 3, 17, 99, 100, 1 << 24])
def test_a_damaged_version_costs_nothing(version: int) -> None:
    """What follows it is that of this version, as its checksums say."""
    original = FaultyDisk()
    log = Log.open("s", ROLLING, original)
    for number in range(4):
        append(log, [b"%d" % number], sequences={b"p": number + 1})
    log.journal.tracking.store_offset(b"c", 2)
    log.close()
    original.files[f"s/{0:020d}.segment"].content[8:12] = bytes(4)  # of the first chunk
    original.files[f"s/{0:020d}.index"].content.append(0)  # so it is noticed
    Log.open("s", ROLLING, original).close()
    for name in ("checkpoint", "tracking", f"{0:020d}.damage"):
        disk = copy.deepcopy(original)
        disk.files[f"s/{name}"].content[4:8] = version.to_bytes(4, "big")
        log = Log.open("s", ROLLING, disk)
        assert log.report.losses == ()
        assert read_bodies(log) == [b"1", b"2", b"3"]
        assert log.journal.tracking.sequence(b"p") == 4
        assert log.journal.tracking.offset(b"c") == 2
        log.close()


def test_what_is_flushed_is_not_read_again() -> None:
    """Opening takes as long for a large log as for a small one."""
    reads = {}
    for count in (30, 600):
        disk = FaultyDisk()
        policy = LogPolicy(max_segment_chunks=10_000)
        log = Log.open("s", policy, disk)
        for number in range(count):
            append(log, [b"x"], sequences={b"p": number})
        log.flush(with_checkpoint=True)
        append(log, [b"y"], sequences={b"p": count})
        log.abandon()  # killed
        disk.reads = 0
        log = Log.open("s", policy, disk)
        assert (log.next_offset, log.journal.tracking.sequence(b"p")) == (count + 1, count)
        reads[count] = disk.reads
    assert reads[600] <= reads[30] + 20  # binary search
    assert reads[600] < 60


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
    assert read_bodies(log, matcher=ChunkMatcher([b"v0"])) == written[:8:2]
    log.close()


def test_a_damage_file_of_a_whole_segment_is_removed(tmp_path: Path) -> None:
    written = fill(tmp_path, 2)
    path, start = chunk_starts(tmp_path)[0]
    flip(path, start + 68)
    index_of(tmp_path, 0).unlink()
    Log.open(str(tmp_path), ROLLING).close()
    flip(path, start + 68)  # whole again
    assert path.with_suffix(".damage").exists()
    index_of(tmp_path, 0).unlink()
    check_writable(tmp_path, written)
    assert not path.with_suffix(".damage").exists()


class TestTrackingJournal:
    def test_every_cut_keeps_a_prefix_of_what_was_stored(self, tmp_path: Path) -> None:
        original = tmp_path / "original"
        log = Log.open(str(original))
        append(log, 4 * [b"x"])
        sizes = []
        for n in range(4):
            store_offset(log, b"c", n)
            sizes.append((original / "tracking").stat().st_size)
        log.close()
        raw = (original / "tracking").read_bytes()
        for cut in range(len(raw) + 1):
            folder = tmp_path / "cut"
            shutil.copytree(original, folder)
            (folder / "tracking").write_bytes(raw[:cut])
            log = Log.open(str(folder))
            whole = sum(cut >= size for size in sizes)
            assert log.journal.tracking.offset(b"c") == (whole - 1 if whole else None), cut
            log.close()
            shutil.rmtree(folder)

    def test_sequences_of_lost_chunks_go_with_them(self, tmp_path: Path) -> None:
        """The journal was synced at the roll, the chunks before it were not, and the power went."""
        fill(tmp_path, 4, is_flushed=False)  # the snapshot as of offset 3 knows p = 3
        for path in tmp_path.glob(f"{3:020d}.*"):
            path.unlink()
        path, start = chunk_starts(tmp_path)[1]
        path.write_bytes(path.read_bytes()[:start])
        log = Log.open(str(tmp_path), ROLLING)
        assert log.committed_offset == 1
        assert log.journal.tracking.sequence(b"p") == 1
        # Other chunks take the offsets that the lost ones had, beyond the old snapshot: it must
        # not look valid again.
        append(log, [b"x", b"y", b"z"], sequences={b"p": 70})
        log.close()
        log = Log.open(str(tmp_path), ROLLING)
        assert log.journal.tracking.sequence(b"p") == 70
        log.close()

    def test_a_rewritten_journal_still_knows_what_was_safe(self, tmp_path: Path) -> None:
        """The chunk with p = 1 is long gone, the one with p = 2 is lost with the power."""
        policy = LogPolicy(max_segment_chunks=1, max_length_bytes=1)
        log = Log.open(str(tmp_path), policy)
        append(log, [b"x"], sequences={b"p": 1})
        append(log, [b"y"])
        log.flush(with_checkpoint=True)
        log.expire(0).run()
        assert log.segments.first_offset == 1
        append(log, [b"z"], sequences={b"p": 2})
        log.journal.must_be_rewritten()  # as it is when it has grown
        flush = log.begin_flush(only_sealed=True)
        flush.run()
        log.end_flush(flush)
        log.abandon()
        for path in tmp_path.glob(f"{2:020d}.*"):
            path.unlink()
        log = Log.open(str(tmp_path), policy)
        assert (log.committed_offset, log.journal.tracking.sequence(b"p")) == (2, 1)
        log.close()

    def test_an_offset_that_was_taken_back_does_not_return(self, tmp_path: Path) -> None:
        """Stored, then an earlier one, whose message retention removes; killed."""
        policy = LogPolicy(max_segment_chunks=1, max_length_bytes=1)
        log = Log.open(str(tmp_path), policy)
        for _ in range(4):
            append(log, [b"x"])
        log.journal.tracking.store_offset(b"c", 3)
        log.flush(with_checkpoint=True)
        log.journal.tracking.store_offset(b"c", 0)
        log.expire(0).run()
        log.journal.write_pending(log.committed_offset)
        log.abandon()
        log = Log.open(str(tmp_path), policy)
        assert log.journal.tracking.offset(b"c") in (None, 0)
        log.close()

    def test_a_damaged_trailer_costs_its_own_tracking_only(self, tmp_path: Path) -> None:
        policy = LogPolicy()
        written = fill(tmp_path, 5, policy)
        (tmp_path / "tracking").unlink()
        (path, _), (_, end) = chunk_starts(tmp_path)[2], chunk_starts(tmp_path)[3]
        flip(path, end - 1)
        found, log = reopened(tmp_path, policy)
        assert found == written
        assert log.journal.tracking.sequence(b"p") == 5
        assert any("left out tracking" in step for step in log.report.steps)
        log.close()


def test_applying_a_plan_twice_changes_nothing(tmp_path: Path) -> None:
    fill(tmp_path, 8, is_flushed=False)
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
    assert log.journal.tracking.sequence(b"wid1") == 7
    assert read_bodies(log) == [b"hi", b"ho"]
    assert read_bodies(log, matcher=ChunkMatcher([b"grape"])) == [b"hi", b"ho"]
    assert [c.header.chunk_id for c in read_chunks(log)] == [0]
    log.close()


def test_what_truncation_had_begun_is_finished() -> None:
    """Killed at any byte it writes and after any operation: it has happened, or it has not."""
    found = set()
    for life in range(2_000):
        disk = FaultyDisk()
        log = Log.open("s", LogPolicy(max_segment_chunks=4, filter_size=16), disk)
        for number, body in enumerate(bodies(10)):
            append(log, [body], [b"v"], sequences={b"p": number + 1})
        disk.life = life
        try:
            truncate(log, 6)
            is_done = True
        except Killed:
            is_done = False
        disk.life = None
        log = Log.open("s", LogPolicy(), disk)
        assert log.report.losses == ()
        assert log.segments.first_offset == 6 if is_done else log.segments.first_offset in (0, 6)
        assert read_bodies(log) == bodies(10)[log.segments.first_offset :]
        assert log.journal.tracking.sequence(b"p") == 10
        found.add((is_done, log.segments.first_offset))
        log.close()
        again = Log.open("s", LogPolicy(), disk)
        assert (again.report.losses, again.segments.first_offset) == ((), log.segments.first_offset)
        again.close()
        assert Log.open("s", LogPolicy(), disk).report.steps == ()
        if is_done:
            break
    assert found == {(False, 0), (False, 6), (True, 6)}
