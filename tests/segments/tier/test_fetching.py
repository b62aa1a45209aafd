"""What comes from the store is compared with what was stored before anybody reads it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from segments import Log
from segments.checksum import crc32
from segments.policy import LogPolicy
from segments.segment import Segment
from segments.store.cache import CachedSegment, ColdError, Range, TierCache
from segments.store.object_store import CutError, MissingError
from segments.tier import fetching
from segments.tier.fetching import BadFileError, chunk_fault, fetch_file, fetch_range
from segments.tier.plan import aligned
from tests.support.cold import KEY, make_cold
from tests.support.fake_store import FakeStore
from tests.support.logs import append


class World:
    """A cold segment of ten chunks, in a store."""

    def __init__(self, folder: Path) -> None:
        cache = TierCache(str(folder / "cache"), 1 << 20)
        cache.clear()
        log = Log.open(str(folder / "s"), LogPolicy(max_segment_chunks=10), cache=cache)
        for number in range(10):
            append(log, [bytes([number]) * 500], [b"v"], now_ms=number)
        self.content = Path(log.segments.shown[0].path()).read_bytes()
        self.store = FakeStore()
        self.segment: Segment = make_cold(log, self.store)[0]
        self.store.calls.clear()

    @property
    def cached(self) -> CachedSegment:
        assert self.segment.cold is not None
        return self.segment.cold

    def key(self, suffix: str) -> str:
        return self.cached.stored.key(KEY, suffix)

    def place(self, chunk: int) -> int:
        with self.segment.index() as index:
            return index.record(chunk).position

    def read(self, where: Range) -> bytes:
        file = self.segment.acquire()
        try:
            return file.read(where.end - where.start, where.start)
        finally:
            self.segment.release()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def turned(position: int) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        changed = bytearray(content)
        changed[position] ^= 1
        return bytes(changed)

    return change


@pytest.mark.parametrize("position", [0, 9, 24, 34, 40, 50, 100, -20, -1])
def test_what_was_damaged_on_its_way_is_fetched_again(world: World, position: int) -> None:
    where = Range(world.place(3), world.place(4))
    world.store.damage(turned(position), key=".segment")
    fetched = fetch_range(world.store, world.cached, where)
    assert not fetched.fault
    assert world.read(where) == world.content[where.start : where.end]
    assert world.store.count("get_range") == 2


def test_what_is_damaged_there_is_given_as_it_is(world: World) -> None:
    where = Range(world.place(3), world.place(5))
    world.store.flip(world.key(".segment"), where.start + 100)
    fetched = fetch_range(world.store, world.cached, where)
    assert fetched.fault == f"{world.key('.segment')}: the chunk 3 fails its checksums"
    found = world.read(where)
    assert found != world.content[where.start : where.end]
    assert world.store.count("get_range") == 2


def test_known_damage_is_no_fault(world: World) -> None:
    content = memoryview(world.content)
    assert not chunk_fault(world.cached, 0, content)
    changed = memoryview(turned(world.place(3))(world.content))
    assert "at byte" in chunk_fault(world.cached, 0, changed)
    world.segment.mark_missing(world.place(3), world.place(4))
    stored = world.cached.stored
    object.__setattr__(stored, "damage", tuple(world.segment.damage.values()))
    assert not chunk_fault(world.cached, 0, changed)


def test_bytes_that_are_not_there(world: World) -> None:
    where = aligned(world.segment, Range(world.place(8), world.place(8) + 1))
    world.store.shorten(world.key(".segment"), where.start + 5)
    with pytest.raises(CutError):
        fetch_range(world.store, world.cached, where)
    del world.store.objects[world.key(".segment")]
    with pytest.raises(MissingError):
        fetch_range(world.store, world.cached, where)
    assert world.cached.missing(0, 1_000_000) == [Range(0, world.segment.size)]


@pytest.mark.parametrize("suffix", [".index", ".filter"])
def test_a_file_beside_it(world: World, suffix: str) -> None:
    path = Path(world.segment.path(suffix))
    content, third = path.read_bytes(), world.place(3)
    path.unlink()
    with pytest.raises(ColdError) as told:
        world.segment.open_beside(suffix)
    assert told.value.suffix == suffix
    world.store.damage(turned(20), key=suffix)
    fetch_file(world.segment.disk, world.store, world.cached, suffix)
    assert path.read_bytes() == content
    world.segment.open_beside(suffix).close()

    path.unlink()
    world.store.flip(world.key(suffix), 20)
    if suffix == ".index":  # or it would be made from the chunks
        world.store.flip(world.key(".segment"), third)
    with pytest.raises(BadFileError, match="is not what was stored"):
        fetch_file(world.segment.disk, world.store, world.cached, suffix)
    assert not path.exists()
    assert crc32(content) == world.cached.stored.files[suffix].crc


@pytest.mark.parametrize("fault", ["missing", "empty", "changed", "large"])
@pytest.mark.parametrize("block", [48, 100, 1 << 20])
def test_an_index_is_made_anew(
    world: World, monkeypatch: pytest.MonkeyPatch, fault: str, block: int
) -> None:
    monkeypatch.setattr(fetching, "_BLOCK", block)
    path, key = Path(world.segment.path(".index")), world.key(".index")
    content = path.read_bytes()
    path.unlink()
    if fault == "missing":
        del world.store.objects[key]
    elif fault == "empty":
        world.store.shorten(key, 0)
    elif fault == "changed":
        world.store.flip(key, 20)
    else:
        world.store.put(key, content + b"x")
    fetch_file(world.segment.disk, world.store, world.cached, ".index")
    assert path.read_bytes() == content

    path.unlink()
    del world.store.objects[world.key(".segment")]
    with pytest.raises(MissingError):
        fetch_file(world.segment.disk, world.store, world.cached, ".index")


@pytest.mark.parametrize("first", range(10))
def test_ranges_are_whole_chunks(world: World, first: int) -> None:
    ends = [*(world.place(n) for n in range(10)), world.segment.size]
    for last in range(first, 10):
        wanted = Range(ends[first] + 1, ends[last] + 3)
        found = aligned(world.segment, wanted)
        assert found == Range(ends[first] if first else 0, ends[last + 1])


def test_what_is_missing_is_stepped_over(world: World) -> None:
    world.segment.mark_missing(world.place(3), world.place(6))
    (damage,) = world.segment.damage.values()
    assert (damage.first_offset, damage.next_offset) == (3, 6)
    world.segment.mark_missing(world.place(8), world.segment.size)
    assert world.segment.num_lost == 5
