"""What readers are given of cold segments is what they are given of local ones."""

import random
import shutil
from pathlib import Path

import pytest

from segments import FIRST, LAST, ChunkMatcher, Log, OffsetSpec, Reader, at_offset, filter_index
from segments.offset_lookup import Position
from segments.offsets import Start
from segments.policy import LogPolicy
from segments.reader import SMALL_CHUNK, StoredChunk
from segments.segment import Segment
from segments.store.cache import ColdError, Range, TierCache
from segments.tier import plan
from segments.tier.fetching import fetch_range
from tests.support.cold import KEY, Bringer, load_filters, make_cold
from tests.support.fake_store import FakeStore
from tests.support.logs import append

_POLICY = LogPolicy(max_segment_bytes=400_000)
_MATCHERS = {
    "all": None,
    "one": ChunkMatcher([b"1"]),
    "rare": ChunkMatcher([b"rare"]),
    "unfiltered": ChunkMatcher([b"2"], match_unfiltered=True),
    "nothing": ChunkMatcher(()),
}


def _write(folder: Path, *, seed: int = 1, number: int = 150) -> None:
    rnd = random.Random(seed)
    log = Log.open(str(folder), _POLICY)
    for at in range(number):
        large = rnd.random() < 0.1
        size = rnd.randrange(SMALL_CHUNK, 3 * SMALL_CHUNK) if large else rnd.randrange(1, 9_000)
        value = b"" if rnd.random() < 0.1 else b"rare" if at % 50 == 49 else b"%d" % (at % 5)
        bodies = [rnd.randbytes(max(1, size // 4))] * 4
        append(log, bodies, [value], now_ms=1_000 * at)
    log.close()


class World:
    """A log that is local, and the same with cold segments.

    Args:
        folder: for both.
        cache_bytes: of the cache.
        options: of `make_cold`.
    """

    def __init__(
        self,
        folder: Path,
        cache_bytes: int,
        **options: object,
    ) -> None:
        _write(folder / "s")
        shutil.copytree(folder / "s", folder / "t")
        self.local = Log.open(str(folder / "s"), _POLICY)
        self.local.flush()
        self.local.seal()
        for segment in self.local.segments.shown[:-1]:
            self.local.indexes.request(segment)
        load_filters(self.local)
        self.cache = TierCache(str(folder / "cache"), cache_bytes)
        self.cache.clear()
        self.store = FakeStore()
        self.log = Log.open(str(folder / "t"), _POLICY, cache=self.cache)
        self.cold = make_cold(self.log, self.store, **options)  # type: ignore[arg-type]

    def flip(self, segment: Segment, position: int) -> None:
        """Turn a bit of a segment, of both logs."""
        assert segment.stored is not None
        self.store.flip(segment.stored.key(KEY, ".segment"), position)
        path = Path(self.local.segments.holding(segment.base_offset).path())
        content = bytearray(path.read_bytes())
        content[position] ^= 1
        path.write_bytes(content)

    def read(
        self,
        log: Log,
        spec: OffsetSpec,
        matcher: ChunkMatcher | None,
        *,
        max_chunks: int = 20,
        drops: bool = True,
    ) -> list[tuple[int, bytes]]:
        """All chunks: their ids, and data as it is sent; `drops` what was read ahead each time."""
        bringer = Bringer(log, self.store)
        reader = Reader(log, self._find(bringer, log, spec), matcher)
        found: list[tuple[int, bytes]] = []
        while not reader.at_end:
            try:
                chunks = reader.read(max_chunks, 100_000, 50)
            except ColdError as error:
                bringer.bring(error, reader.missing(error))
                continue
            bringer.release()
            bringer.fetch(one for one in reader.ahead() if not one.suffix)
            held = reader.pin_segment()
            if drops:
                reader.drop_readahead()
            self.cache.shrink(0)  # what is pinned stays
            found += [(chunk.header.chunk_id, _sent(chunk)) for chunk in chunks]
            held.release()
        reader.close()
        return found

    def _find(self, bringer: Bringer, log: Log, spec: OffsetSpec) -> Position:
        while True:
            try:
                return log.segments.find(spec)
            except ColdError as error:
                bringer.bring(error)


def _sent(chunk: StoredChunk) -> bytes:
    """From memory and from the file, which must be the same as long as it is pinned."""
    data = chunk.file.read(chunk.header.data_size, chunk.data_position)
    assert chunk.data is None or bytes(chunk.data) == data
    return data


_SPECS = [
    FIRST,
    LAST,
    *(at_offset(offset) for offset in (5, 299, 599, 600)),
    *(OffsetSpec(Start.TIMESTAMP, time) for time in (999, 77_500, 10**9)),
]


@pytest.mark.parametrize("cache_bytes", [0, 500_000, 1 << 30])
@pytest.mark.parametrize("restored", [False, True])
def test_from_everywhere(tmp_path: Path, cache_bytes: int, restored: bool) -> None:
    world = World(tmp_path, cache_bytes, restored=restored)
    assert len(world.cold) > 3
    for name, matcher in _MATCHERS.items():
        for spec in _SPECS:
            wanted = world.read(world.local, spec, matcher)
            assert world.read(world.log, spec, matcher) == wanted, (name, spec)
        few = world.read(world.log, FIRST, matcher, max_chunks=1, drops=False)
        assert few == world.read(world.local, FIRST, matcher), name


def test_with_short_looks_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that ends before anything was found is no end of what there is."""
    monkeypatch.setattr(plan, "_CHUNKS_A_LOOK", 2)
    monkeypatch.setattr(plan, "_MOST_LOOKS", 3)
    monkeypatch.setattr(filter_index, "_POSTINGS_AT_ONCE", 12)
    world = World(tmp_path, 1 << 30)
    for name, matcher in _MATCHERS.items():
        wanted = world.read(world.local, FIRST, matcher)
        assert world.read(world.log, FIRST, matcher) == wanted, name


@pytest.mark.parametrize("cache_bytes", [0, 1 << 30])
@pytest.mark.parametrize("where", ["header", "size", "filter", "data", "last", "several"])
def test_damage_is_told_as_that_of_a_local_file(
    tmp_path: Path, where: str, cache_bytes: int
) -> None:
    world = World(tmp_path, cache_bytes)
    for segment in world.cold[:2]:
        with segment.index() as index:
            numbers = {"last": [index.num_records - 1], "several": [3, 4, 9]}.get(where, [5])
            records = [index.record(number) for number in numbers]
        offset = {"size": 38, "filter": 50, "data": 90}.get(where, 28)
        for record in records:
            world.flip(segment, record.position + offset)
    for _ in range(2):  # the second time it is known
        for matcher in (None, _MATCHERS["one"]):
            wanted = world.read(world.local, FIRST, matcher)
            assert world.read(world.log, FIRST, matcher) == wanted
    assert _damage(world.log) == _damage(world.local)


def test_an_object_that_is_gone_is_stepped_over(tmp_path: Path) -> None:
    world = World(tmp_path, 1 << 30)
    segment = world.cold[1]
    half = segment.size // 2
    where = plan.aligned(segment, Range(0, half))
    assert segment.cold is not None
    fetch_range(world.store, segment.cold, where).pin.release()
    reader = Reader(world.log, world.log.segments.find(at_offset(segment.base_offset)))
    first = reader.read(3, 1 << 20, 50)
    assert first
    segment.cold.is_gone = True
    found = []
    while reader.next_offset < segment.next_offset:
        found += [chunk.header.chunk_id for chunk in reader.read(3, 1 << 20, 50)]
    assert found  # what is here can still be read
    assert reader.next_offset == segment.next_offset
    assert reader.counts.records + reader.counts.lost_records == (
        segment.next_offset - segment.base_offset
    )
    assert reader.counts.lost_records
    reader.close()


def _damage(log: Log) -> list[dict[int, object]]:
    return [dict(segment.damage) for segment in log.segments.shown if segment.num_chunks]
