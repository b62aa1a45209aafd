"""Fetching for many readers: bounded, fair, the same bytes once, nothing for who has gone."""

import errno
import logging
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from segments import Log
from segments.errors import StorageError
from segments.policy import LogPolicy
from segments.store.cache import ColdError, Range, TierCache
from segments.store.manifest import encode_manifest
from segments.store.object_store import TierError
from segments.tier import plan
from segments.tier.plan import Request, aligned
from streamd.broker.streams import fetcher as fetching
from streamd.broker.streams.fetcher import Demand, Fetcher, NoTierError
from streamd.broker.supervisor import Supervisor
from streamd.net import threads
from tests.support.cold import make_cold
from tests.support.fake_store import Call, FakeStore, Kept, late_answers
from tests.support.logs import append
from tests.support.server import inline

_CHUNK = 1_000


class ColdStream:
    """A stream whose log has cold segments of 20 chunks."""

    name = "s"
    is_open = True

    def __init__(self, log: Log) -> None:
        self.log = log


class World:
    """A log, a store that takes a second for each request, and what fetches from it."""

    def __init__(self, folder: Path, nursery: trio.Nursery) -> None:
        self.cache = TierCache(str(folder / "cache"), 1 << 20)
        self.cache.clear()
        log = Log.open(str(folder / "s"), LogPolicy(max_segment_chunks=20), cache=self.cache)
        for number in range(100):
            append(log, [bytes([number]) * _CHUNK], now_ms=number)
        self.store = FakeStore()
        self.segments = make_cold(log, self.store)
        self.store.seconds = lambda _call: 1.0
        self.stream = ColdStream(log)
        self.supervisor = Supervisor(nursery)
        self.fetcher = Fetcher(self.cache, self.supervisor)
        self.fetcher.use(self.store)
        self.store.calls.clear()
        self.done: list[str] = []

    def error(self, chunk: int, segment: int = 0) -> ColdError:
        """That of a reader that wants a chunk."""
        found = self.segments[segment]
        with found.index() as index:
            position = index.record(chunk).position
        assert found.cold is not None
        return ColdError(found.cold, Range(position, position + 48))

    def requests(self, chunks: range, segment: int = 0) -> list[Request]:
        """A request for each of some chunks."""
        errors = [self.error(chunk, segment) for chunk in chunks]
        return [
            Request(error.cached, aligned(self.segments[segment], error.wanted)) for error in errors
        ]

    def want(
        self, name: str, chunk: int, requests: list[Request] | None = None, segment: int = 0
    ) -> Demand:
        demand = self.fetcher.demand(self.stream)
        error = self.error(chunk, segment)
        demand.want(error, lambda: self.done.append(name), requests or [])
        return demand

    async def fetch(self, chunk: int) -> Demand:
        """Until a reader of the stream has it."""
        demand = self.fetcher.demand(self.stream)
        await demand.fetch(self.error(chunk))
        return demand

    def has(self, chunk: int, segment: int = 0) -> bool:
        error = self.error(chunk, segment)
        return not error.cached.missing(*error.wanted)

    @property
    def pins(self) -> int:
        return sum(piece.pins for piece in self.cache._pieces)


@pytest.fixture
async def world(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[World]:
    threads.in_thread = inline
    world = World(tmp_path, nursery)
    with late_answers(world.store):
        yield world


async def test_who_waits_is_told_once_and_has_its_bytes_until_it_has_read(world: World) -> None:
    world.cache.max_bytes = 0
    demand = world.want("a", 3)
    assert not world.done
    await trio.sleep(2)
    assert world.done == ["a"]
    world.cache.shrink(0)
    assert world.has(3)
    demand.release()
    world.cache.shrink(0)
    assert not world.has(3)
    assert not world.fetcher.jobs


async def test_what_is_here_by_now_is_told_later_as_well(world: World) -> None:
    world.want("a", 3)
    await trio.sleep(2)
    world.want("b", 3)
    assert world.done == ["a"]  # never from within
    await trio.sleep(0.1)
    assert world.done == ["a", "b"]
    assert world.store.count("get_range") == 1


async def test_the_same_bytes_are_fetched_once(world: World) -> None:
    demands = [world.want(f"{n}", 3) for n in range(50)]
    await trio.sleep(0.5)
    demands += [world.want(f"{n}", 3, world.requests(range(2, 5))) for n in range(50, 60)]
    await trio.sleep(5)
    assert len(world.done) == 60
    assert world.store.count("get_range") == 3  # and two beside it
    for demand in demands:
        demand.stop()
    assert not world.pins


async def test_limits_on_requests_and_bytes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "MAX_REQUESTS", 4)
    for segment in range(5):
        world.want("a", 0, world.requests(range(20), segment), segment)
    seen = []
    while world.fetcher.jobs:
        seen.append(world.fetcher._running)
        await trio.sleep(0.25)
    assert max(seen) == 4
    assert len(world.done) == 5
    assert world.store.count("get_range") == 100

    world.cache.shrink(0)
    monkeypatch.setattr(fetching, "MAX_BYTES", 2_500)
    world.want("b", 0, world.requests(range(20)))
    while world.fetcher.jobs:
        assert world.fetcher._running_bytes <= 2_500
        await trio.sleep(0.25)


async def test_requests_are_fewer_when_they_fail_and_more_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a slow line: too many at once, and none of them is answered."""
    monkeypatch.setattr(fetching, "MAX_REQUESTS", 16)

    def before(call: Call) -> None:
        if call.name == "get_range" and world.fetcher._running > 3:
            raise TierError("there was no answer in time")

    world.store.before = before
    for segment in range(5):
        world.want("a", 0, world.requests(range(20), segment), segment)
    await trio.sleep(600)
    assert len(world.done) == 5
    assert world.fetcher.num_errors < 300  # a thousand, if as many are made all the time
    world.store.before = lambda _call: None
    world.cache.shrink(0)
    world.want("b", 0, world.requests(range(20)))
    seen = []
    while world.fetcher.jobs:
        seen.append(world.fetcher._running)
        await trio.sleep(0.25)
    assert max(seen) > 3


async def test_one_that_wants_much_delays_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "MAX_REQUESTS", 2)
    greedy = world.want("greedy", 0, world.requests(range(20)))
    greedy.ahead(world.requests(range(20), 1))
    world.want("modest", 5, segment=2)
    await trio.sleep(2.5)
    assert world.done == ["greedy", "modest"]
    assert len(world.fetcher.jobs) > 30


async def test_what_nobody_wants_any_more_is_not_fetched(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "MAX_REQUESTS", 1)
    demand = world.want("a", 0, world.requests(range(20)))
    other = world.want("b", 7)
    await trio.sleep(0.5)
    demand.stop()
    await trio.sleep(30)
    assert world.done == ["b"]
    assert world.store.count("get_range") == 2  # what was under way, and what the other one wants
    other.stop()
    assert not world.pins
    assert not world.fetcher.jobs


@pytest.mark.parametrize("times", [1, 8])
async def test_a_store_that_is_away(
    world: World, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    world.store.seconds = lambda _call: 0
    world.store.fail(name="get_range", times=times)
    began_at = trio.current_time()
    await world.fetch(3)
    assert world.has(3)
    longest = sum(min(0.1 * 2**n, 30) for n in range(times))
    assert longest / 2 <= trio.current_time() - began_at <= longest
    assert caplog.text.count("the tier cannot be read") == 1
    assert world.fetcher.num_errors == times


async def test_a_full_disk_makes_the_cache_smaller(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (await world.fetch(1)).stop()
    add, left = world.cache.add, [2]

    def full(*arguments: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise StorageError("write", "x", OSError(errno.ENOSPC, "full"))
        return add(*arguments)

    monkeypatch.setattr(world.cache, "add", full)
    await world.fetch(3)
    assert world.has(3)
    assert not world.has(1)
    assert caplog.text.count("shrinking the cache of the tier") == 1


async def test_a_bug_is_logged_and_tried_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.store.fail(ValueError("a bug"), name="get_range")
    await world.fetch(3)
    assert world.has(3)
    assert world.supervisor.faults["fetching from the tier"] == 1
    assert "a bug" in caplog.text


@pytest.mark.parametrize("suffix", [".index", ".filter"])
async def test_a_file_beside_a_segment_that_has_left_the_log(world: World, suffix: str) -> None:
    """Who reads the segment goes on as behind one that retention has dropped."""
    cached = world.segments[0].cold
    assert cached is not None
    demand = world.fetcher.demand(world.stream)
    del world.stream.log.segments.shown[0]
    await demand.fetch(ColdError(cached, suffix=suffix))
    assert cached.is_gone
    assert not world.store.calls


async def test_a_stream_that_is_deleted_meanwhile(world: World) -> None:
    cached = world.segments[0].cold
    assert cached is not None

    def work() -> None:
        world.stream.is_open = False
        raise ColdError(cached, suffix=".index")

    with pytest.raises(StorageError, match="was deleted"):
        await world.fetcher.retry_cold_read(world.stream, work)


@pytest.mark.parametrize("is_gone", [True, False])
async def test_a_file_that_comes_when_its_stream_is_another(world: World, is_gone: bool) -> None:
    """It was deleted, and created anew: the folder has the file of another segment."""
    cached, path = world.segments[0].cold, Path(world.segments[0].path(".index"))
    assert cached is not None
    content = path.read_bytes()
    path.unlink()

    def before(_call: Call) -> None:
        path.write_bytes(b"another")
        if is_gone:
            world.stream.log.abandon()

    world.store.before = before
    await world.fetcher.demand(world.stream).fetch(ColdError(cached, suffix=".index"))
    assert path.read_bytes() == (b"another" if is_gone else content)
    assert not list(path.parent.glob("*.tmp"))


async def test_who_waits_for_an_index_keeps_no_request_from_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The indexer may be busy for long; nobody loads indexes here."""
    monkeypatch.setattr(fetching, "MAX_REQUESTS", 2)
    for segment in world.segments:
        assert segment.cold is not None
        demand = world.fetcher.demand(world.stream)
        demand.want(ColdError(segment.cold, suffix=".filter"), lambda: None)
    world.want("a", 3)
    await trio.sleep(2)
    assert world.done == ["a"]
    assert all(segment.index_requested for segment in world.segments)


async def test_no_store(world: World) -> None:
    fetcher = Fetcher(world.cache, world.supervisor)
    with pytest.raises(NoTierError, match=r"offsets 0 to 99 of s are in the object store; start"):
        await fetcher.demand(world.stream).fetch(world.error(3))


async def test_a_wait_that_is_cancelled_leaves_nothing(world: World) -> None:
    with world.fetcher.demanded(world.stream) as demand, trio.move_on_after(0.5):
        await demand.fetch(world.error(3))
    await trio.sleep(5)
    assert not world.pins
    assert not world.fetcher.jobs


async def test_work_that_needs_several_places_at_once(world: World) -> None:
    world.cache.max_bytes = 0
    segment = world.segments[0]

    def work() -> list[int]:
        file = segment.acquire()
        try:
            found = []
            for chunk in (1, 9, 4, 18):
                error = world.error(chunk)
                file.read(48, error.wanted.start)
                found.append(chunk)
            return found
        finally:
            segment.release()

    assert await world.fetcher.retry_cold_read(world.stream, work) == [1, 9, 4, 18]
    assert world.store.count("get_range") == 4
    await wait_all_tasks_blocked()
    assert not world.pins


@pytest.mark.parametrize("gap", [0, 10, 20_000, 300_000])
def test_what_is_worth_one_request(gap: int) -> None:
    size, start = 10_000, 0
    chosen = []
    for _ in range(20):
        chosen.append(Range(start, start + size))
        start += size + gap
    found = plan.merged(chosen)
    assert len(found) == (1 if gap <= plan._SHORT_GAP else 20)
    assert found[0].start == 0
    assert found[-1].end == chosen[-1].end


def test_little_is_fetched_that_is_not_wanted() -> None:
    """Whatever the chunks' sizes: at most a quarter more, but for short gaps."""
    for size in (20_000, 100_000, 1_000_000):
        for every in (2, 3, 10, 100):
            chosen = [Range(n * size, (n + 1) * size) for n in range(0, 1_000, every)]
            wanted = sum(one.end - one.start for one in chosen)
            found = plan.merged(chosen)
            assert sum(one.end - one.start for one in found) <= 1.25 * wanted + size
            assert all(one.end - one.start <= plan.MOST_MERGED for one in found)


async def test_those_that_never_read_do_not_fill_the_disk(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peers that take nothing of what they are sent: the bytes that are kept for them may go."""
    monkeypatch.setattr(fetching, "MAX_BYTES", 3 * _CHUNK)
    world.cache.max_bytes = 2 * _CHUNK
    demands = [world.want(f"{n}", n) for n in range(20)]
    await trio.sleep(60)
    assert len(world.done) == 20
    assert world.cache.num_bytes <= 7 * _CHUNK
    world.cache.shrink(0)
    assert world.has(19)
    assert not world.has(0)
    for demand in demands:
        demand.stop()
    assert not world.pins
    assert not world.fetcher.pinned


def _key_of(world: World) -> str:
    cached = world.segments[0].cold
    assert cached is not None
    return cached.stored.key(cached.stream, ".segment")


def _lose(world: World, *, is_cut: bool) -> tuple[str, Kept]:
    """A segment is missing in the store, or its end is; its key, and the object as it was."""
    key = _key_of(world)
    kept = world.store.objects.pop(key)
    if is_cut:
        world.store.objects[key] = replace(kept, content=kept.content[:100])
    return key, kept


async def _is_read(world: World, seconds: float) -> bool:
    """Whether a reader is told within some time."""
    with world.fetcher.demanded(world.stream) as demand, trio.move_on_after(seconds):
        await demand.fetch(world.error(3))
        return True
    return False


@pytest.mark.parametrize("fault", ["late", "cut"])
async def test_what_comes_late_is_not_lost(world: World, fault: str) -> None:
    key, kept = _lose(world, is_cut=fault == "cut")
    demand = world.fetcher.demand(world.stream)
    demand.want(world.error(3), lambda: world.done.append("a"))
    await trio.sleep(fetching.LOST_SECONDS - 5)
    assert not world.done
    world.store.objects[key] = kept
    await trio.sleep(fetching.LOST_SECONDS + 30)
    assert world.done == ["a"]
    assert world.has(3)
    assert not world.segments[0].damage


@pytest.mark.parametrize("fault", ["missing", "cut"])
async def test_what_is_lost_is_read_once_it_is_put_back(
    world: World, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (key, kept), segment = _lose(world, is_cut=fault == "cut"), world.segments[0]
    assert await _is_read(world, 100)
    assert segment.num_lost
    await trio.sleep(1_000)
    assert segment.num_lost
    world.store.objects[key] = kept
    await trio.sleep(fetching.AGAIN_SECONDS + 10)
    assert not segment.num_lost
    assert "offsets 0 to 19, which were lost, can be read again" in caplog.text
    assert await _is_read(world, 10)
    assert world.has(3)
    assert not world.fetcher.jobs
    assert not world.pins


@pytest.mark.parametrize("fault", ["no manifest", "an older one", "a damaged one"])
async def test_a_store_that_cannot_say_what_became_of_it(
    world: World, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is another one, or half of it is there: whoever waits goes on waiting."""
    known = world.stream.log.stored.manifest
    assert known is not None
    key = known.stream.manifest
    gone = {one: world.store.objects.pop(one) for one in (_key_of(world), key)}
    if fault != "no manifest":
        older = replace(known, revision=known.revision - 1, segments=())
        content = encode_manifest(older)
        world.store.create(key, content[: -1 if fault == "a damaged one" else None])
    assert not await _is_read(world, 10_000)
    assert not world.segments[0].damage
    assert caplog.text.count("readers keep waiting for it") == 1
    world.store.objects |= gone
    assert await _is_read(world, 100)
    assert world.has(3)


async def test_the_cache_folder_is_removed(world: World, tmp_path: Path) -> None:
    assert await _is_read(world, 10)
    shutil.rmtree(tmp_path / "cache")
    world.cache.shrink(0)
    assert await _is_read(world, 10)
    assert world.has(3)
    shutil.rmtree(tmp_path / "cache")
    file = world.segments[0].acquire()
    with pytest.raises(ColdError):
        file.read(48, world.error(3).wanted.start)
    world.segments[0].release()
    assert await _is_read(world, 10)
    assert world.has(3)
