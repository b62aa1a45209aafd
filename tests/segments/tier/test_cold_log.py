"""Opening a log of which some segments are only in the store."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from segments import ChunkMatcher, Log, at_offset
from segments.checksum import crc32
from segments.chunk_search import Place
from segments.disk import OsDisk
from segments.errors import CorruptError, LostCopyError
from segments.policy import LogPolicy
from segments.reader import Reader
from segments.segment import walk_headers
from segments.store.cache import ColdError, TierCache
from segments.store.local_copy import MANIFEST_FILE, write_copy
from segments.store.manifest import Manifest, StoredFile
from segments.store.object_names import StreamKey
from segments.tier.packing import stored_segment
from segments.tier.planning import conflict
from segments.truncation import Rest
from tests.support.logs import append

_KEY = StreamKey("/", "s", "1")
_POLICY = LogPolicy(max_segment_bytes=2_000)


def _write(folder: Path, number: int = 60) -> Log:
    log = Log.open(str(folder), _POLICY)
    for at in range(number):
        _append(log, at)
    return log


def _append(log: Log, at: int) -> None:
    append(log, [b"%d " % at * 50], [b"value %d" % (at % 7)], now_ms=1_000 * at)


def _file(path: Path) -> StoredFile:
    content = path.read_bytes()
    return StoredFile(len(content), crc32(content))


def _store(log: Log, number: int, contents: dict[str, bytes]) -> Manifest:
    """What a store would have of the oldest segments; their bytes go into `contents`."""
    stored = []
    for segment in log.segments.shown[:number]:
        uid = f"{segment.base_offset:016x}"
        files = {s: _file(Path(segment.path(s))) for s in (".segment", ".index")}
        contents[uid] = Path(segment.path()).read_bytes()
        stored.append(stored_segment(segment, 1, uid, files))
    return Manifest(
        stream=_KEY,
        revision=1,
        epoch=1,
        writer="w",
        next_offset=stored[-1].next_offset,
        segments=tuple(stored),
    )


def _read_all(log: Log, contents: dict[str, bytes]) -> list[bytes]:
    reader = Reader(log, log.segments.find(at_offset(0)))
    found: list[bytes] = []
    while not reader.at_end:
        try:
            chunks = reader.read(16, 1 << 20, 100)
        except ColdError as error:
            for gap in error.ranges:
                content = contents[error.cached.stored.uid]
                error.cached.put(gap.start, content[gap.start : gap.end]).release()
        else:
            found += [
                chunk.file.read(chunk.header.data_size, chunk.data_position) for chunk in chunks
            ]
    reader.close()
    return found


def _cache(folder: Path) -> TierCache:
    cache = TierCache(str(folder / "cache"), 1 << 20)
    cache.clear()
    return cache


def test_it_becomes_cold_while_it_is_read(tmp_path: Path) -> None:
    log, contents = _write(tmp_path / "s"), dict[str, bytes]()
    wanted = _read_all(log, {})
    reader = Reader(log, log.segments.find(at_offset(0)))
    log.flush()
    first = log.segments.shown[0]
    manifest = _store(log, 4, contents)
    write_copy(OsDisk(), log.folder, manifest)
    log.stored.adopt(manifest)
    before = log.segments.local_size
    log.stored.make_cold(first)
    first.remove_file()
    assert log.segments.local_size == before - first.size
    found = []
    while reader.next_offset < first.next_offset:  # it has the file
        found += [chunk.data for chunk in reader.read(16, 1 << 20, 100)]
    assert [bytes(data or b"") for data in found] == wanted[: len(found)]
    reader.close()
    with pytest.raises(ColdError):
        Reader(log, log.segments.find(at_offset(0))).read(1, 1, 1)
    log.close()


def test_what_was_fetched_goes_when_the_store_has_it_otherwise(tmp_path: Path) -> None:
    """A key index that is stored later makes another row of the manifest."""
    log, contents = _write(tmp_path / "s"), dict[str, bytes]()
    manifest = _store(log, 3, contents)
    write_copy(OsDisk(), log.folder, manifest)
    log.close()
    for stored in manifest.segments:
        Path(log.folder, f"{stored.base_offset:020d}.segment").unlink()
    cache = _cache(tmp_path)
    log = Log.open(str(tmp_path / "s"), _POLICY, cache=cache)
    wanted = _read_all(log, contents)
    first, *others = manifest.segments
    other = replace(first, files=first.files | {".keys": StoredFile(1, 0)})
    log.stored.adopt(replace(manifest, revision=2, segments=(other, *others)))
    assert _read_all(log, contents) == wanted
    assert len(list((tmp_path / "cache").iterdir())) == 3
    log.stored.forget_cold()
    log.close()
    assert not list((tmp_path / "cache").iterdir())
    assert not cache.num_bytes


def test_nothing_but_the_copy_is_left(tmp_path: Path) -> None:
    """As on a new machine: it goes on behind what is stored, in a new segment."""
    log, contents = _write(tmp_path / "s"), dict[str, bytes]()
    wanted = _read_all(log, {})
    manifest = _store(log, len(log.segments.shown) - 1, contents)
    log.close()
    new = tmp_path / "new"
    new.mkdir()
    write_copy(OsDisk(), str(new), manifest)
    log = Log.open(str(new), _POLICY, cache=_cache(tmp_path))
    assert (log.segments.first_offset, log.next_offset) == (0, manifest.next_offset)
    assert log.epoch == 2
    found = _read_all(log, contents)
    assert found == wanted[: len(found)]
    assert len(found) == manifest.next_offset
    with pytest.raises(ColdError, match="index file of the cold segment"):
        log.segments.find(at_offset(3))
    _append(log, manifest.next_offset)
    log.close()
    log = Log.open(str(new), _POLICY, cache=_cache(tmp_path))
    assert log.next_offset == manifest.next_offset + 1
    log.close()


@pytest.mark.parametrize("is_used", [False, True])
def test_an_index_that_is_not_what_was_stored_goes(tmp_path: Path, *, is_used: bool) -> None:
    """Also where it was good when it was opened before."""
    log, contents = _write(tmp_path / "s"), dict[str, bytes]()
    manifest = _store(log, 2, contents)
    write_copy(OsDisk(), log.folder, manifest)
    log.flush()
    first = log.segments.shown[0]
    log.close()
    Path(first.path()).unlink()
    index = Path(first.path(".index"))
    raw = bytearray(index.read_bytes())
    log = Log.open(str(tmp_path / "s"), _POLICY, cache=_cache(tmp_path))
    if is_used:
        assert log.segments.find(at_offset(3)).segment.base_offset == first.base_offset
    raw[40] ^= 1
    index.write_bytes(raw)
    with pytest.raises(ColdError) as caught:
        log.segments.find(at_offset(3))
    assert caught.value.suffix == ".index"
    assert not index.exists()
    log.close()


def test_retention_takes_cold_segments_too(tmp_path: Path) -> None:
    log, contents = _write(tmp_path / "s"), dict[str, bytes]()
    write_copy(OsDisk(), log.folder, _store(log, 5, contents))
    cold = [Path(segment.path()) for segment in log.segments.shown[:5]]
    log.close()
    for path in cold:
        path.unlink()
    cache = _cache(tmp_path)
    log = Log.open(
        str(tmp_path / "s"), LogPolicy(max_segment_bytes=2_000, max_length_bytes=3_000), cache=cache
    )
    _read_all(log, contents)
    log.flush(with_checkpoint=True)
    log.expire(1 << 40).run()
    assert all(segment.cold is None for segment in log.segments.shown)
    assert not Path(cold[0].with_suffix(".index")).exists()
    assert cache.num_bytes == 0
    first = log.segments.first_offset
    log.close()
    log = Log.open(str(tmp_path / "s"), _POLICY, cache=cache)  # the copy still names them
    assert log.segments.first_offset == first
    log.close()


def test_a_copy_that_is_damaged_is_not_taken_for_no_copy(tmp_path: Path) -> None:
    log, contents = _write(tmp_path / "s"), dict[str, bytes]()
    write_copy(OsDisk(), log.folder, _store(log, 2, contents))
    log.close()
    path = tmp_path / "s" / MANIFEST_FILE
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(LostCopyError, match=r"is damaged; the server fetches it"):
        Log.open(str(tmp_path / "s"), _POLICY)
    for mark in (tmp_path / "s").glob("tier-*"):
        mark.unlink()
    with pytest.raises(CorruptError, match=r"manifest is damaged.*the store has it, too"):
        Log.open(str(tmp_path / "s"), _POLICY)


def test_a_segment_of_another_server_is_not_taken_for_this_one(tmp_path: Path) -> None:
    """Two that began with the same folder have written as much, at other times."""
    log, other = _write(tmp_path / "s"), Log.open(str(tmp_path / "t"), _POLICY)
    for at in range(60):
        append(other, [b"%d " % at * 50], [b"value %d" % (at % 7)], now_ms=1_000 * at + 5)
    assert [s.size for s in log.segments.shown[:2]] == [s.size for s in other.segments.shown[:2]]
    manifest = _store(other, 2, {})
    log.stored.adopt(manifest)
    assert not any(segment.stored for segment in log.segments.shown)
    assert "is another one in the tier" in conflict(log, manifest)
    other.stored.adopt(manifest)
    assert all(segment.stored for segment in other.segments.shown[:2])
    assert not conflict(other, manifest)


def test_a_segment_that_was_stored_without_its_filter_index(tmp_path: Path) -> None:
    """No filter index is asked for that the store does not have."""
    log, contents = _write(tmp_path / "s"), dict[str, bytes]()
    log.stored.adopt(_store(log, 3, contents))
    log.flush(with_checkpoint=True)
    first = log.segments.shown[0]
    log.stored.make_cold(first)
    first.drop_filters()
    reader = Reader(log, log.segments.find(at_offset(0)), ChunkMatcher([b"value 1"]))
    with pytest.raises(ColdError) as caught:
        reader.read(16, 1 << 20, 100)
    assert caught.value.suffix in ("", *caught.value.cached.stored.files)


@pytest.mark.parametrize("has_later", [False, True])
def test_an_older_copy_is_noticed_where_the_checkpoint_ends_with_a_cold_segment(
    tmp_path: Path, *, has_later: bool
) -> None:
    """It was sealed right behind that checkpoint, and needs no other one to leave the disk."""
    log, contents = _write(tmp_path / "s"), {}
    log.flush(with_checkpoint=True)
    number = len(log.segments.shown)
    log.seal()
    if has_later:
        _append(log, 60)
    older = _store(log, number - 1, contents)
    newer = replace(_store(log, number, contents), revision=2)
    write_copy(OsDisk(), log.folder, newer)
    log.stored.adopt(newer)
    for segment in log.segments.shown[:number]:
        assert log.is_sure_of(segment.next_offset)
        log.stored.make_cold(segment)
        segment.remove_file()
    log.abandon()
    write_copy(OsDisk(), log.folder, older)
    with pytest.raises(LostCopyError, match="is an older one"):
        Log.open(str(tmp_path / "s"), _POLICY, cache=_cache(tmp_path))


@pytest.mark.parametrize("number", range(1, 6))
def test_a_copy_of_a_truncation_that_is_not_removed_to_the_end(tmp_path: Path, number: int) -> None:
    log = _write(tmp_path / "s")
    log.seal()
    log.flush(with_checkpoint=True)
    write_copy(OsDisk(), log.folder, _store(log, 1, {}))
    segment = log.segments.shown[1]
    file = segment.acquire()
    (_, (position, header), *_) = walk_headers(segment, file, (64, segment.base_offset))
    segment.release()
    rest = Rest(segment, Place(position, header.chunk_id))
    rest.copy(lambda: None)
    rest.segment.disk = _Killed(number)
    with suppress(KeyboardInterrupt):
        rest.discard()
    log.abandon()
    Log.open(str(tmp_path / "s"), _POLICY, cache=_cache(tmp_path)).close()


class _Killed(OsDisk):
    """The process ends before so many files are removed."""

    def __init__(self, left: int) -> None:
        self._left = left

    def remove(self, path: str) -> None:
        self._left -= 1
        if not self._left:
            raise KeyboardInterrupt
        super().remove(path)
