"""Key indexes on a running server: whose turn it is, and what goes wrong."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from segments.derived import key_schedule as schedule
from segments.derived.key_files import KeyJob, keys_of
from segments.derived.key_worker import Answer, encode_job, work
from segments.segment import KeyState
from streamd.broker.streams import key_upkeep, log_keeper
from streamd.broker.streams.key_upkeep import KeyUpkeep
from streamd.broker.streams.key_worker import KeyWorker
from streamd.net.worker import WorkerDied
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.fields import Pair
from tests.segments.derived.test_key_files import chunks_with, message
from tests.support.http import Http
from tests.support.server import OK, Harness, Peer, harness, with_peer
from tests.support.syncs import work_beside

Making = Callable[[KeyJob], Answer]


def make(job: KeyJob) -> Answer:
    return work_beside(work, encode_job(job))


class Worker:
    """Stands in for the process.

    Attributes:
        jobs: that it was given.
        make: what it does with one.
        takes: seconds for each.
        ended: how often it was ended.
    """

    def __init__(self) -> None:
        self.jobs: list[KeyJob] = []
        self.make: Making = make
        self.takes = 0.0
        self.ended = 0

    async def do(self, job: KeyJob) -> Answer:
        self.jobs.append(job)
        await trio.sleep(self.takes)
        return self.make(job)

    async def end(self) -> None:
        self.ended += 1


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    found = Worker()

    async def do(_: KeyWorker, job: KeyJob) -> Answer:
        return await found.do(job)

    async def end(_: KeyWorker) -> None:
        await found.end()

    monkeypatch.setattr(KeyWorker, "make", do)
    monkeypatch.setattr(KeyWorker, "end", end)
    monkeypatch.setattr(schedule, "FEW_BYTES", 200)
    return found


@pytest.fixture
async def keyed(worker: Worker, tmp_path: Path) -> AsyncIterator[tuple[Harness, Peer]]:  # noqa: ARG001 - before the server
    async with begun(tmp_path) as found:
        yield found


@asynccontextmanager
async def begun(folder: Path, size: str = "1000") -> AsyncIterator[tuple[Harness, Peer]]:
    """A server, and a peer that publishes to a stream with keys."""
    async with with_peer(folder) as (server, peer):
        await create(peer, size=size)
        await peer.declare("s")
        yield server, peer


async def create(peer: Peer, name: str = "s", keys: str = "k", size: str = "1000") -> None:
    await peer.create(name, stream_max_segment_size_bytes=size, stream_key_properties=keys)


async def fill(peer: Peer, first: int, count: int) -> None:
    for number in range(first, first + count):
        await peer.store([message(f"key{number}")], number)


def found(server: Harness, number: int) -> int:
    """In how many chunks a key may be, of segments that are indexed; each has been looked at."""
    segments = server.host.find("s").log.segments.shown
    return sum(len(chunks_with(segment, f"key{number}") or ()) for segment in segments)


def key_files(data: Path) -> list[str]:
    return sorted(path.name[16:] for path in data.glob("streams/*/s/*.keys*"))


async def set_keys(peer: Peer, names: str) -> None:
    pairs = (Pair("stream", "s"), Pair("stream-key-properties", names))
    assert await peer.code(c.Manage, "stream.set", pairs) == OK


async def test_all_is_indexed_when_it_is_quiet(keyed: tuple[Harness, Peer], worker: Worker) -> None:
    server, peer = keyed
    await fill(peer, 0, 40)
    await trio.sleep(5)
    log = server.host.find("s").log
    assert len(log.segments.shown) > 3
    assert [found(server, number) for number in range(40)] == [1] * 40
    assert len(key_files(server.data)) == len(log.segments.shown)
    assert not log.indexes.keys_requested
    before = len(worker.jobs)
    await trio.sleep(30)
    assert (len(worker.jobs), worker.ended) == (before, 1), "nobody is kept for nothing"
    await fill(peer, 40, 3)
    await trio.sleep(5)
    assert found(server, 41) == 1
    await peer.silence()


async def test_a_steady_stream_is_indexed_while_it_grows(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is never quiet: 200 messages a second, each in a chunk of its own."""
    monkeypatch.setattr(schedule, "FEW_BYTES", 1 << 18)
    worker.takes = 0.1
    async with begun(tmp_path, "10000000") as (server, peer):
        segment = server.host.find("s").log.segments.shown[-1]
        for number in range(2_000):
            await fill(peer, number, 1)
            await trio.sleep(1 / 200)
            known = 0 if segment.keys is None else segment.keys.num_chunks
            assert segment.num_chunks - known < 300, "chunks that a search goes through"
            assert segment.keys is None or len(segment.keys.tables) < 8
        assert len(worker.jobs) <= 11, "one a second"
        assert [job.start.num_chunks for job in worker.jobs[1:]] == [
            job.end.num_chunks for job in worker.jobs[:-1]
        ], "no chunk is read twice"
        assert found(server, 17) == 1
        await peer.silence()


async def test_streams_without_key_properties_need_no_process(
    worker: Worker, server: Harness, peer: Peer
) -> None:
    await peer.begin("s", stream_max_segment_size_bytes="1000")
    await fill(peer, 0, 40)
    await trio.sleep(100)
    assert worker.jobs == []
    assert key_files(server.data) == []
    await set_keys(peer, "k")
    await trio.sleep(5)
    assert [found(server, number) for number in range(40)] == [1] * 40
    await set_keys(peer, "k,other")
    await trio.sleep(5)
    segment = server.host.find("s").log.segments.shown[0]
    assert chunks_with(segment, "key1", "other") == [1]
    await set_keys(peer, "")
    await fill(peer, 40, 40)
    before = len(worker.jobs)
    await trio.sleep(5)
    assert len(worker.jobs) == before


async def test_after_a_restart_only_what_is_missing_is_made(
    worker: Worker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with begun(tmp_path) as (server, peer):
        await fill(peer, 0, 40)
        await trio.sleep(5)
    files = sorted(tmp_path.glob("streams/*/s/*.keys"))
    assert len(key_files(tmp_path)) == len(files), "those of the newest segment are gone"
    files[0].unlink()
    damaged = bytearray(files[1].read_bytes())
    damaged[5_000] ^= 1
    files[1].write_bytes(damaged)
    files[2].write_bytes(b"no key file")
    del worker.jobs[:]
    caplog.clear()
    async with with_peer(tmp_path) as (server, peer):
        await peer.declare("s")
        await trio.sleep(5)
        assert {job.base_offset for job in worker.jobs if job.is_sealed} == {0}
        stream = server.host.find("s")
        for segment in stream.log.segments.shown:
            await stream.life.held.load_keys(segment)
            assert segment.key_state is KeyState.KNOWN
        assert found(server, 1) == 1
        assert keys_of(stream.log.segments.shown[2]) is None
        for number in range(40):
            found(server, number)
        stream.life.held.want_keys()
        await trio.sleep(5)
        assert [found(server, number) for number in range(40)] == [1] * 40
        lines = [r.getMessage() for r in caplog.records if "rebuilding " in r.getMessage()]
        assert len(lines) == 2, "one for each file that was wrong"
        assert not any("Traceback" in line for line in lines)


async def test_a_stream_that_is_deleted_meanwhile(
    keyed: tuple[Harness, Peer], worker: Worker
) -> None:
    """The job is cancelled; nothing is left, and nothing comes back."""
    server, peer = keyed
    worker.takes = 1_000
    await fill(peer, 0, 20)
    await trio.sleep(3)
    assert len(worker.jobs) == 1
    began = trio.current_time()
    assert await peer.code(c.Delete, "s") == OK
    assert trio.current_time() - began < 10
    await trio.sleep(10)
    assert list(server.data.glob("streams/*/s")) == []
    assert await peer.code(c.Create, "s", ()) == OK
    assert len(worker.jobs) == 1


async def test_retention_does_not_wait_for_indexing(
    keyed: tuple[Harness, Peer], worker: Worker
) -> None:
    """Or the disk would be full some time after the process has come to hang."""
    server, peer = keyed
    await server.host.settings.set_arguments("s", [("max-length-bytes", "3000")])
    worker.takes = 1_000_000
    async with server.host.find("s").opened() as log:
        for first in range(0, 300, 100):
            await fill(peer, first, 100)
            await trio.sleep(100)
            assert log.segments.size < 5_000
        worker.takes = 0
        await fill(peer, 300, 100)
        await trio.sleep(100)
        kept = range(log.segments.first_offset, 400)
        assert [found(server, n) for n in kept] == [1] * len(kept)
        assert len(key_files(server.data)) <= len(log.segments.shown)


async def test_a_process_that_dies_again_and_again(
    keyed: tuple[Harness, Peer], worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    server, peer = keyed

    def die(job: KeyJob) -> Answer:
        if job.base_offset == 0:
            Path(job.path + ".tmp").write_bytes(b"half of it")
            raise WorkerDied("it was killed")
        return make(job)

    worker.make = die
    await fill(peer, 0, 40)
    await trio.sleep(10)
    assert sum(job.base_offset == 0 for job in worker.jobs) == 3
    lines = [record for record in caplog.records if "no key index for" in record.getMessage()]
    assert len(lines) == 1
    assert not [name for name in key_files(server.data) if name.endswith("keys.tmp")]
    first = server.host.find("s").log.segments.shown[0]
    assert keys_of(first) is None
    assert all(keys_of(s) for s in server.host.find("s").log.segments.shown[1:])
    await peer.silence()


async def test_a_full_disk(
    keyed: tuple[Harness, Peer], worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """One line, and it is tried again until there is room."""
    server, peer = keyed
    worker.make = lambda _: Answer("cannot write: the disk is full", is_temporary=True)
    await fill(peer, 0, 20)
    await trio.sleep(200)
    assert 3 < len(worker.jobs) < 10
    lines = [record for record in caplog.records if "will be built later" in record.getMessage()]
    assert len(lines) == 1
    worker.make = make
    await trio.sleep(40)
    assert [found(server, number) for number in range(20)] == [1] * 20


async def test_a_bug_there_stays_there(
    keyed: tuple[Harness, Peer], worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    server, peer = keyed
    worker.make = lambda _: Answer("Traceback: a bug", is_bug=True)
    await fill(peer, 0, 20)
    await trio.sleep(10)
    errors = [r for r in caplog.records if r.levelno == logging.ERROR]
    sealed = len(server.host.find("s").log.segments.shown) - 1
    assert sealed <= len(errors) <= sealed + 1
    await fill(peer, 20, 1)


async def test_a_bug_here_leaves_other_streams_alone(
    keyed: tuple[Harness, Peer], worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    server, peer = keyed

    def fail(job: KeyJob) -> Answer:
        if job.folder.endswith("/s"):
            raise RuntimeError("a bug")
        return make(job)

    worker.make = fail
    await create(peer, "other")
    await fill(peer, 0, 20)
    await peer.declare("other", 2)
    for number in range(20):
        await peer.store([message(f"key{number}")], number, publisher_id=2)
    await trio.sleep(100)
    await server.host.find("other").ready()
    log = server.host.find("other").log
    await trio.sleep(10)
    assert sum(len(chunks_with(s, "key3") or ()) for s in log.segments.shown) == 1
    assert "indexing keys failed" in caplog.text
    worker.make = make
    await server.host.find("s").ready()
    server.host.find("s").life.held.want_keys()
    await trio.sleep(10)
    assert found(server, 3) == 1
    assert await peer.code(c.Delete, "s") == ResponseCode.OK


async def test_other_properties_of_a_stream_that_nobody_has_open(
    keyed: tuple[Harness, Peer], worker: Worker
) -> None:
    """It is indexed for them when it is opened."""
    server, peer = keyed
    await fill(peer, 0, 20)
    await peer.code(c.DeletePublisher, 1)
    await trio.sleep(120)
    stream = server.host.find("s")
    assert not stream.is_open
    del worker.jobs[:]
    await set_keys(peer, "k,other")
    async with stream.opened():
        await trio.sleep(10)
        assert {job.properties for job in worker.jobs} == {("k", "other")}
        found = [chunks_with(s, "key1", "other") for s in stream.log.segments.shown]
        assert found[0] == [1]


async def test_truncating_does_not_wait_for_indexing(
    keyed: tuple[Harness, Peer], worker: Worker
) -> None:
    """What is being indexed is about to go; the rest is indexed after that."""
    server, peer = keyed
    worker.takes = 500
    await fill(peer, 0, 40)
    await trio.sleep(3)
    assert len(worker.jobs) == 1
    stream = server.host.find("s")
    stream.log.segments.shown[-2].drop_keys()  # so that one is indexed that goes
    began = trio.current_time()
    pairs = (Pair("stream", "s"), Pair("offset", "33"))
    assert await peer.code(c.Manage, "stream.truncate", pairs) == OK
    assert trio.current_time() - began < 10
    worker.takes = 0
    await trio.sleep(1_000)
    await stream.ready()
    log = stream.log
    assert log.segments.first_offset == 33
    await trio.sleep(10)
    assert [found(server, number) for number in range(33, 40)] == [1] * 7


async def test_a_small_message_is_no_reason_to_look_at_all_segments(
    keyed: tuple[Harness, Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be thousands of them, and as many messages each second."""
    server, peer = keyed
    await fill(peer, 0, 40)
    await trio.sleep(10)
    monkeypatch.setattr(schedule, "FEW_BYTES", 100_000)
    async with server.host.find("s").opened() as log:
        log.policy = replace(log.policy, max_segment_bytes=1_000_000)
        looked = []
        step = KeyUpkeep.step
        monkeypatch.setattr(KeyUpkeep, "step", lambda *args: looked.append(args) or step(*args))
        for number in range(40, 60):
            await fill(peer, number, 1)
            await trio.sleep(2)
        assert len(looked) == 1
        monkeypatch.setattr(schedule, "FEW_BYTES", 200)
        server.host.find("s").life.held.want_keys()
        await trio.sleep(5)
        assert [found(server, number) for number in range(60)] == [1] * 60


async def test_other_properties_and_a_restart_in_the_middle(worker: Worker, tmp_path: Path) -> None:
    """All is indexed for them, although nobody asks for what is stored."""
    async with begun(tmp_path) as (server, peer):
        await fill(peer, 0, 40)
        await trio.sleep(10)
        worker.takes = 10
        await set_keys(peer, "k,other")
        await trio.sleep(15)
    worker.takes = 0
    async with harness(tmp_path) as server:
        await trio.sleep(30)
        await server.host.find("s").ready()
        for segment in server.host.find("s").log.segments.shown[:-1]:
            index = keys_of(segment)
            assert index is not None
            assert index.properties == ("k", "other")


async def test_many_streams_with_keys_are_not_open_at_once(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each log takes descriptors, which connections need, too."""
    monkeypatch.setattr(log_keeper, "LOGS_SHARE", 0)  # so that 8 are open at most
    names = [f"s{number}" for number in range(24)]
    async with with_peer(tmp_path) as (_, peer):
        for number, name in enumerate(names):
            await create(peer, name, size="200")
            await peer.declare(name, number)
            for key in range(4):
                await peer.store([message(f"key{key}")], key + 1, publisher_id=number)
    worker.takes = 5
    async with harness(tmp_path) as server:
        most = 0
        for _ in range(200):
            await trio.sleep(3)
            most = max(most, sum(stream.is_open for stream in server.host.streams()))
        assert most <= 10
        for name in names:
            async with server.host.find(name).opened() as log:
                assert all(keys_of(segment) for segment in log.segments.shown[:-1])


async def key_figures(peer: Peer) -> dict[str, int]:
    answer = await peer.ask(c.DescribeStreams, ("s",))
    found = {name: number for name, number in answer.streams[0].statistics if "key_" in name}
    return {name.removeprefix("key_"): number for name, number in found.items()}


async def test_figures_tell_how_far_it_has_come(keyed: tuple[Harness, Peer]) -> None:
    server, peer = keyed
    await fill(peer, 0, 40)
    before = await key_figures(peer)
    assert before["segments_indexed"] < before["segments_sealed"]
    await trio.sleep(5)
    found = await key_figures(peer)
    files = server.data.glob("streams/*/s/*.keys*")
    sealed = len(server.host.find("s").log.segments.shown) - 1
    assert found == {
        "segments_sealed": sealed,
        "segments_indexed": sealed,
        "segments_unknown": 0,
        "index_bytes": sum(path.stat().st_size for path in files),
    }
    row = (await Http(server).get("queues/%2F/s"))["key_index"]
    assert list(row.values()) == list(found.values())
    await set_keys(peer, "")
    assert await key_figures(peer) == {}
    assert "key_index" not in await Http(server).get("queues/%2F/s")
    await set_keys(peer, "other")
    found = await key_figures(peer)
    assert found["segments_indexed"] < found["segments_sealed"], "those are of other properties"


@pytest.mark.parametrize("at_once", [64, 2])
async def test_after_a_start_files_are_looked_at_for_the_figures(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(key_upkeep, "_FILES_AT_ONCE", at_once)
    async with begun(tmp_path) as (_, peer):
        await fill(peer, 0, 40)
        await trio.sleep(5)
        whole = await key_figures(peer)
    made = len(worker.jobs)
    async with with_peer(tmp_path) as (_, peer):
        found = await key_figures(peer)
        if at_once == 2:
            await trio.sleep(5)  # the others are looked at beside everything else
            found = await key_figures(peer)
        assert (found["segments_unknown"], found["segments_indexed"]) == (
            0,
            whole["segments_sealed"],
        )
    assert len(worker.jobs) - made <= 1, "that of the newest segment alone"
