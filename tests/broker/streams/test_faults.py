"""A disk that fails under one of two streams: that one says so, the other one goes on."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from segments import FIRST, Log, LogPolicy, at_time
from segments.disk import OsDisk, OsFile
from segments.errors import StorageError, read_error
from streamd.broker.streams.flusher import Flusher, FlushMode
from streamd.broker.streams.open_log import FULL_DISK_SECONDS
from streamd.broker.streams.stream import Stream, StreamServices
from streamd.net import threads
from streamd.net.rounds import Rounds
from streamd.operations.errors import Refused
from streamd.wire.stream import ResponseCode, commands as c
from tests.broker.streams.test_stream import Bench, schedule
from tests.support.amqp import open_peer
from tests.support.logs import append, read_bodies, read_chunks
from tests.support.server import Harness, Peer, harness, inline, with_peer

BAD, GOOD = "bad", "good"
GONE = ResponseCode.STREAM_NOT_AVAILABLE
BEHIND = ResponseCode.PUBLISHER_DOES_NOT_EXIST  # a message that was refused, of a name


class Faults:
    """Makes operations of the real disk fail for files whose path has a part in it.

    Attributes:
        calls: how often an operation was refused.
    """

    def __init__(self) -> None:
        self.calls = 0
        self._faults: dict[str, tuple[int, str]] = {}
        self._bad_place = ("", range(0))

    def set(self, operation: str, code: int, part: str = f"/{BAD}/") -> None:
        self._faults[operation] = (code, part)

    def set_bad_place(self, part: str, place: range) -> None:
        """The device does not give these bytes of a file back."""
        self._bad_place = (part, place)

    def clear(self) -> None:
        self._faults.clear()
        self.set_bad_place("", range(0))

    def check_place(self, path: str, size: int, position: int) -> None:
        part, place = self._bad_place
        if part in path and max(position, place.start) < min(position + size, place.stop):
            raise read_error(path, OSError(errno.EIO, os.strerror(errno.EIO)))

    def check(self, operation: str, path: str) -> None:
        code, part = self._faults.get(operation, (0, ""))
        if code and part in path:
            self.calls += 1
            error = OSError(code, os.strerror(code))
            raise (
                read_error(path, error)
                if operation == "read"
                else StorageError(operation, path, error)
            )


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    found = Faults()
    for name in ("read", "write", "sync"):
        original = getattr(OsFile, name)

        def faulty(
            self: OsFile, *arguments: Any, name: str = name, original: Any = original
        ) -> Any:
            found.check("flush" if name == "sync" else name, self.path)
            if name == "read":
                found.check_place(self.path, *arguments)
            return original(self, *arguments)

        monkeypatch.setattr(OsFile, name, faulty)
    opens = OsDisk.open

    def open_(self: OsDisk, path: str, *, writable: bool) -> Any:
        if writable:
            found.check("open", path)
        return opens(self, path, writable=writable)

    monkeypatch.setattr(OsDisk, "open", open_)
    yield found
    found.clear()


async def two_streams(server: Harness) -> Peer:
    peer = await server.peer()
    for number, name in enumerate((BAD, GOOD), 1):
        await peer.begin(name, number, reference="p")
        await peer.store([b"before"], publisher_id=number)
    return peer


async def good_goes_on(peer: Peer, first_id: int) -> None:
    with trio.fail_after(5):
        await peer.store([b"after"], publisher_id=2, first_id=first_id)


@pytest.mark.parametrize("flush", ["os", "interval", "always"])
async def test_a_full_disk_holds_one_stream_up(tmp_path: Path, faults: Faults, flush: str) -> None:
    async with harness(tmp_path, flush=flush) as server:
        peer = await two_streams(server)
        faults.set("write", errno.ENOSPC)
        await peer.publish([b"x"], 2)
        await good_goes_on(peer, 2)
        await good_goes_on(peer, 3)
        assert server.host.alarms() == {BAD: "the disk is full"}
        faults.clear()
        confirm = await peer.expect(c.PublishConfirm)
        assert (confirm.publisher_id, confirm.publishing_ids) == (1, (2,))


async def test_what_is_told_of_a_stored_offset_is_on_a_full_disk(
    tmp_path: Path, faults: Faults
) -> None:
    """Otherwise the consumer would go on behind it, and know nothing of it after a crash."""
    async with harness(tmp_path, flush="always") as server:
        peer = await two_streams(server)
        await peer.send(c.StoreOffset("app", BAD, 0))
        assert (await peer.ask(c.QueryOffset, "app", BAD)).offset == 0
        faults.set("write", errno.ENOSPC)
        await peer.send(c.StoreOffset("app", BAD, 1), c.StoreOffset("app", BAD, 2))
        await peer.send(c.StoreOffset("new", BAD, 1))
        assert (await peer.ask(c.QueryOffset, "app", BAD)).offset == 0
        assert await peer.code(c.QueryOffset, "new", BAD) == ResponseCode.NO_OFFSET
        faults.clear()
        await trio.sleep(FULL_DISK_SECONDS + 0.1)
        assert (await peer.ask(c.QueryOffset, "app", BAD)).offset == 2
        assert (await peer.ask(c.QueryOffset, "new", BAD)).offset == 1


async def test_what_is_told_of_a_stored_offset_is_flushed(tmp_path: Path, faults: Faults) -> None:
    """A flush that fails makes none safe."""
    async with harness(tmp_path, flush="always") as server:
        peer = await two_streams(server)
        await peer.send(c.StoreOffset("app", BAD, 0))
        assert (await peer.ask(c.QueryOffset, "app", BAD)).offset == 0
        faults.set("flush", errno.EIO)
        await peer.send(c.StoreOffset("app", BAD, 1), c.StoreOffset("new", BAD, 1))
        assert (await peer.ask(c.QueryOffset, "app", BAD)).offset == 0
        assert await peer.code(c.QueryOffset, "new", BAD) == ResponseCode.NO_OFFSET
        assert server.host.find(BAD).stored_offsets() == {b"app": 0}
        with pytest.raises(Refused):
            await server.host.find(BAD).set_offset("app", 2)
        faults.clear()
        await trio.sleep(FULL_DISK_SECONDS + 0.1)
        assert (await peer.ask(c.QueryOffset, "app", BAD)).offset == 0


@pytest.mark.parametrize("flush", ["os", "interval", "always"])
async def test_a_write_that_fails_ends_one_stream(
    tmp_path: Path, faults: Faults, flush: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with harness(tmp_path, flush=flush) as server:
        peer = await two_streams(server)
        faults.set("write", errno.EIO)
        await peer.publish([b"x"], 2)
        assert await peer.expect(c.PublishError) == c.PublishError(1, ((2, GONE),))
        await good_goes_on(peer, 2)
        assert "Input/output error; look at the disk, then restart the server" in caplog.text
        await peer.subscribe(BAD)
        assert await peer.bodies(1) == [b"before"]
        faults.clear()  # as if it was replaced
        await peer.publish([b"x"], 2)
        assert await peer.expect(c.PublishError) == c.PublishError(1, ((2, BEHIND),))


async def test_a_sync_that_fails_confirms_nothing_and_is_not_tried_again(
    tmp_path: Path, faults: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    async with harness(tmp_path, flush="always") as server:
        peer = await two_streams(server)
        reader = await server.consumer(BAD)
        assert await reader.bodies(1) == [b"before"]
        faults.set("flush", errno.EIO)
        await peer.publish([b"x"], 2)
        assert await peer.expect(c.PublishError) == c.PublishError(1, ((2, GONE),))
        await good_goes_on(peer, 2)
        assert "Input/output error; look at the disk, then restart the server" in caplog.text
        faults.clear()
        await peer.publish([b"y"], 3)
        assert await peer.expect(c.PublishError) == c.PublishError(1, ((3, BEHIND),))
        await reader.silence(100)  # nobody sees what may not be there the next time
        assert faults.calls == 1
        assert list(server.host.alarms()) == [BAD]
        assert await peer.code(c.DeclarePublisher, 3, "", BAD) == GONE


async def test_a_sync_that_fails_in_the_background_ends_one_stream(
    tmp_path: Path, faults: Faults
) -> None:
    async with harness(tmp_path, flush="interval") as server:
        peer = await two_streams(server)
        await trio.sleep(5)
        faults.set("flush", errno.EIO)
        await peer.store([b"x"], 2)  # it is written, as promised
        await trio.sleep(5)
        faults.clear()
        await peer.publish([b"y"], 3)
        assert await peer.expect(c.PublishError) == c.PublishError(1, ((3, GONE),))
        await good_goes_on(peer, 2)
        await trio.sleep(100)
        assert faults.calls == 1
        await peer.subscribe(BAD)
        assert await peer.bodies(2) == [b"before", b"x"]


async def test_a_read_that_fails_ends_the_subscription(server: Harness, faults: Faults) -> None:
    peer = await two_streams(server)
    await peer.store([b"x"], 2)  # what was appended last is in memory
    faults.set("read", errno.EIO, f"/{BAD}/{0:020d}.segment")
    reader = await server.consumer(BAD)
    update = await reader.expect(c.MetadataUpdate)
    assert (update.code, update.stream) == (GONE, BAD)
    await reader.subscribe(GOOD, subscription_id=2)
    assert await reader.bodies(1) == [b"before"]
    await good_goes_on(peer, 2)


async def test_a_read_that_is_refused_at_the_start_is_tried_again(
    tmp_path: Path, faults: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    """The device cannot read the checkpoint for a while: the stream waits for it, and is whole."""
    async with harness(tmp_path) as server:
        await two_streams(server)
    faults.set_bad_place(f"/{BAD}/checkpoint", range(100))
    async with with_peer(tmp_path) as (_, peer):
        for _ in range(3):
            assert await peer.code(c.DeclarePublisher, 1, "", BAD) == GONE
            await trio.sleep(6)
        assert "; nothing was cut, and opening the stream is tried again; " in caplog.text
        faults.clear()
        await peer.declare(BAD)
        await peer.subscribe(BAD)
        assert await peer.bodies(1) == [b"before"]


@pytest.mark.parametrize("size", [100, 200_000])
async def test_a_place_that_cannot_be_read_costs_its_chunk_only(
    server: Harness, peer: Peer, faults: Faults, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a large chunk its size is promised before its data is read: the connection has to end."""
    await peer.begin(BAD)
    for number in range(1, 6):
        await peer.store([b"%d" % number + bytes(size)], number)
    segment = server.host.find(BAD).log.segments.shown[0]
    middle = segment.size // 2
    faults.set_bad_place(".segment", range(middle, middle + 1))
    reader = await server.consumer(BAD)
    if size > 100_000:
        assert [body[:1] for body in await reader.bodies(2)] == [b"1", b"2"]
        await reader.ended()
        reader = await server.consumer(BAD)
    assert [body[:1] for body in await reader.bodies(4)] == [b"1", b"2", b"4", b"5"]
    assert caplog.text.count("1 messages from offset 2 on are lost") == 1
    amqp = await open_peer(server)
    await amqp.consume(BAD, x_stream_offset="first")
    bodies = [delivery.body[:1] for delivery in await amqp.deliveries(4)]
    assert bodies == [b"1", b"2", b"4", b"5"]


async def test_an_impossible_file_name_sets_its_stream_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with harness(tmp_path) as server:
        await two_streams(server)
        folder = Path(server.host.find(BAD).log.folder)
    (folder / f"{10**20 - 1}.segment").touch()
    async with with_peer(tmp_path) as (server, peer):
        await trio.sleep(60)
        errors = [record for record in caplog.records if record.levelname == "ERROR"]
        assert len(errors) == 1
        assert "its name is an offset above 9223372036854775807" in errors[0].message
        assert await peer.code(c.DeclarePublisher, 1, "", BAD) == GONE
        await peer.declare(GOOD)
        await peer.store([b"after"])
        assert list(server.host.alarms()) == [BAD]


async def test_a_stream_that_cannot_be_opened_for_writing_is_set_aside(
    tmp_path: Path, faults: Faults
) -> None:
    async with harness(tmp_path) as server:
        await two_streams(server)
    faults.set("open", errno.EROFS)
    async with with_peer(tmp_path) as (server, peer):
        assert await peer.code(c.DeclarePublisher, 1, "", BAD) == GONE
        assert "Read-only file system" in server.host.alarms()[BAD]
        await peer.declare(GOOD)
        await peer.store([b"after"])
    faults.clear()
    async with with_peer(tmp_path) as (_, peer):  # remounted
        await peer.subscribe(BAD)
        assert await peer.bodies(1) == [b"before"]


async def test_a_segment_that_somebody_removed_is_skipped(
    server: Harness, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    await peer.begin(BAD, stream_max_segment_size_bytes="100")
    for number in range(6):
        await peer.store([b"%d" % number + b"x" * 100], number)
    early = await server.consumer(BAD, credit=1)
    assert (await early.chunk()).bodies[0][:1] == b"0"
    await trio.sleep(3)  # until then the files are open, to be flushed
    folder = Path(server.host.folder(BAD))
    for base in (0, 2, 3):
        (folder / f"{base:020d}.segment").unlink()
    await early.send(c.Credit(1, 10))
    assert [body[:1] for body in await early.bodies(3)] == [b"1", b"4", b"5"]
    late = await server.consumer(BAD)
    assert [body[:1] for body in await late.bodies(3)] == [b"1", b"4", b"5"]
    assert caplog.text.count("look at the disk") == 3  # once for each segment
    await peer.store([b"more"], 7)
    assert server.host.find(BAD).log.segments.num_lost == 3


async def test_a_clock_that_jumps_back(nursery: trio.Nursery, tmp_path: Path) -> None:
    """Times in the stream do not; searching by time stays right, and nothing is dropped early."""
    policy = LogPolicy(max_segment_chunks=2, max_age_ms=60_000)
    log = Log.open(str(tmp_path / "s"), policy)
    now = [10_000_000]
    stream = Stream("s", StreamServices(lambda: now[0], Rounds()))
    stream.life.attach(log)
    nursery.start_soon(stream.life.held.run)
    hour = 3_600_000
    for step in (0, 1_000, -hour, 1_000, 1_000, hour + 5_000, 1_000):
        now[0] += step
        append(log, [b"x"], now_ms=now[0])
        await stream.life.held.expire()
    times = [chunk.header.timestamp_ms for chunk in read_chunks(log)]
    assert times == sorted(times)
    assert len(times) == 7
    assert log.segments.find(at_time(10_001_000)).offset == 1
    assert log.segments.find(at_time(times[-1])).offset == 6
    now[0] += 120_000
    append(log, [b"x"], now_ms=now[0])
    await stream.life.held.expire()
    assert log.segments.find(FIRST).offset == 6
    log.close()


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "in_thread", inline)


@pytest.mark.usefixtures("no_threads", schedule.__name__)
class TestFlushing:
    async def test_always_tells_nobody_before_the_flush(self, nursery: trio.Nursery) -> None:
        bench = Bench(nursery, commits_on_flush=True)
        bench.disk.failures = {}
        gate = trio.Event()
        bench.block_flushes(gate)
        bench.publish(1, 2)
        bench.publish(3)
        bench.stream.store_offset("app", 1)
        assert await bench.answers() == []
        assert read_bodies(bench.log) == []
        assert (bench.log.next_offset, bench.log.committed_offset) == (3, 0)
        asked = trio.Event()

        async def ask() -> None:
            await bench.stream.settled()
            asked.set()

        nursery.start_soon(ask)
        bench.publish(4)  # shares the next flush
        bench.publish(2)  # and a duplicate is one although it is not flushed
        await wait_all_tasks_blocked()
        assert not asked.is_set()
        gate.set()
        assert await bench.answers() == [
            c.PublishConfirm(1, (1, 2, 3)),
            c.PublishConfirm(1, (4, 2)),
        ]
        assert asked.is_set()
        assert read_bodies(bench.log) == [b"m1", b"m2", b"m3", b"m4"]
        assert bench.num_flushes == 2

    async def test_interval_flushes_within_the_interval(self, nursery: trio.Nursery) -> None:
        flusher = Flusher(FlushMode.INTERVAL, 1)
        bench = Bench(nursery, flushing=flusher)
        nursery.start_soon(flusher.run)
        for number in range(1, 40):
            bench.publish(number)
            await trio.sleep(0.3)
            written_at = trio.current_time()
            bench.stream.store_offset("app", number)
            while not bench.log.flushing.is_flushed:
                await trio.sleep(0.01)
            assert trio.current_time() - written_at <= 1.02
        assert bench.num_flushes <= 41

    async def test_much_is_flushed_sooner(self, nursery: trio.Nursery) -> None:
        flusher = Flusher(FlushMode.INTERVAL, 3_600)
        bench = Bench(nursery, flushing=flusher)
        nursery.start_soon(flusher.run)
        for number in range(9):
            bench.publish(number + 1, size=1 << 20)
            await wait_all_tasks_blocked()
        assert bench.log.flushing.unflushed_bytes < 2 << 20
        assert bench.num_flushes == 1

    async def test_os_flushes_what_is_sealed(self, nursery: trio.Nursery) -> None:
        flusher = Flusher(FlushMode.OS, 1)
        bench = Bench(nursery, flushing=flusher)
        nursery.start_soon(flusher.run)
        for number in range(1, 51):
            bench.publish(number)
            await wait_all_tasks_blocked()
        assert bench.num_flushes == 0
        bench.publish(51)
        await wait_all_tasks_blocked()
        assert bench.num_flushes == 1
        assert not bench.log.flushing.sealed


SHORTAGES = {errno.EMFILE: "too many files are open", errno.ENOMEM: "memory is short"}


@pytest.mark.parametrize("code", SHORTAGES)
@pytest.mark.parametrize("flush", ["os", "interval", "always"])
@pytest.mark.parametrize("operation", ["create", "sync_folder"])
async def test_a_shortage_during_a_roll_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, flush: str, code: int
) -> None:
    """A new segment needs two descriptors, syncing its folder one."""
    original = getattr(OsDisk, operation)
    is_short = False

    def refuse(self: OsDisk, path: str) -> Any:
        if is_short and f"/{BAD}" in path:
            raise StorageError("open", path, OSError(code, os.strerror(code)))
        return original(self, path)

    monkeypatch.setattr(OsDisk, operation, refuse)
    async with with_peer(tmp_path, flush=flush) as (server, peer):
        await peer.begin(BAD, stream_max_segment_size_bytes="100")
        await peer.store([b"x" * 100], 1)
        await trio.sleep(5)
        is_short = True
        await peer.publish([b"y" * 100], 2)
        await trio.sleep(5)
        assert server.host.alarms() == {BAD: SHORTAGES[code]}
        is_short = False
        confirm = await peer.expect(c.PublishConfirm)
        assert (confirm.publisher_id, confirm.publishing_ids) == (1, (2,))
        await trio.sleep(5)
        assert not server.host.alarms()
        await peer.store([b"z"], 3)
        await peer.subscribe(BAD)
        assert [body[:1] for body in await peer.bodies(3)] == [b"x", b"y", b"z"]
