"""A stream whose disk fills up or fails: what was confirmed stays, others go on."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from segments import FIRST, Log, LogPolicy, StorageError, at_offset
from segments.flush import Flush
from streamd.broker.streams.flusher import Flusher
from streamd.broker.streams.publication import PendingEntries
from streamd.broker.streams.stream import Stream, StreamServices
from streamd.broker.supervisor import Supervisor
from streamd.broker.traffic import ProtocolTraffic
from streamd.connections.stream.publisher import StreamPublisher
from streamd.net import threads
from streamd.net.outbox import Outbox
from streamd.net.rounds import Rounds
from streamd.net.wakeup import Wakeup
from streamd.operations.errors import Refused
from streamd.wire.stream import ResponseCode, codec, commands as c
from streamd.wire.stream.publish import Outgoing, decode_entries, encode_entries
from tests.support.disk import FaultyDisk
from tests.support.logs import append, read_bodies, read_chunks


class Bench:
    """A stream on a faulty disk, and a publisher whose answers can be read.

    Attributes:
        in_rounds: it publishes in rounds, as connections that a poller reads; else the stream's
            own task writes.
    """

    in_rounds = False

    def __init__(
        self,
        nursery: trio.Nursery,
        reference: str = "p",
        *,
        commits_on_flush: bool = False,
        flushing: Flusher | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        self.disk = FaultyDisk()
        policy = LogPolicy(max_segment_chunks=50)
        self.log = Log.open("s", policy, self.disk, commits_on_flush=commits_on_flush)
        self.num_flushes = 0
        self._begin_flush = self.log.begin_flush
        self.log.begin_flush = self._count_flush  # type: ignore[method-assign]
        self.rounds = Rounds()
        services = StreamServices(lambda: 0, self.rounds, flushing, supervisor=supervisor)
        self.stream = Stream("s", services)
        self.stream.life.attach(self.log)
        self.outbox = Outbox(Wakeup(), lambda _frame: 0)
        self.publisher = StreamPublisher(1, reference, self.outbox, ProtocolTraffic())
        nursery.start_soon(self.stream.life.held.run)

    def _count_flush(self, **options: bool) -> Flush:
        self.num_flushes += 1
        return self._begin_flush(**options)

    def block_flushes(self, gate: trio.Event) -> None:
        """Have them wait until the gate is open."""
        run = self.stream.life.held.maintenance._run

        async def wait_and_run(flush: Flush) -> StorageError | None:
            await gate.wait()
            return await run(flush)

        self.stream.life.held.maintenance._run = wait_and_run  # type: ignore[method-assign]

    def publish(self, *ids: int, size: int = 0) -> None:
        with self.rounds.open() if self.in_rounds else nullcontext():
            self._publish(ids, size)

    def _publish(self, ids: Sequence[int], size: int) -> None:
        raw = encode_entries([Outgoing(n, (b"m%d" % n).ljust(size, b" ")) for n in ids])
        for entries in decode_entries(raw, len(ids)).groups:
            self.stream.publish(PendingEntries(self.publisher, entries))

    async def answers(self) -> list[c.Command]:
        await wait_all_tasks_blocked()
        raw, found = self.outbox.take(), []
        self.outbox.sent()
        while raw:
            size = 4 + int.from_bytes(raw[:4], "big")
            found.append(codec.decode(raw[4:size]))
            raw = raw[size:]
        return found

    def fill_disk(self, room: int = 10) -> None:
        self.disk.capacity = sum(len(i.content) for i in self.disk.files.values()) + room

    def stored(self) -> list[bytes]:
        return read_bodies(Log.open("s", self.log.policy, self.disk))


@pytest.fixture(params=["rounds", "task"], autouse=True)
def schedule(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways in which a stream comes to write."""
    monkeypatch.setattr(Bench, "in_rounds", request.param == "rounds")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No threads: what they would do is done when others have had a turn."""

    async def do(work: Callable[..., Any], *arguments: object) -> Any:
        await trio.lowlevel.checkpoint()
        return work(*arguments)

    monkeypatch.setattr(threads, "in_thread", do)


async def test_a_full_disk_holds_what_came_and_goes_on_when_there_is_room(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(nursery)
    bench.publish(1, 2)
    assert await bench.answers() == [c.PublishConfirm(1, (1, 2))]
    bench.fill_disk()
    bench.publish(3, 4)
    bench.publish(5)
    assert await bench.answers() == []
    await trio.sleep(10)
    assert await bench.answers() == []
    assert caplog.text.count("No space left on device") == 1  # said once, not every second
    with pytest.raises(Refused, match="the disk is full"):
        bench.stream.check_writable()
    assert bench.stored() == [b"m1", b"m2"]
    bench.disk.capacity = None
    await trio.sleep(1.1)
    assert await bench.answers() == [c.PublishConfirm(1, (3, 4, 5))]
    bench.stream.check_writable()
    assert bench.stored() == [b"m1", b"m2", b"m3", b"m4", b"m5"]


async def test_order_and_sequences_hold_across_a_full_disk(nursery: trio.Nursery) -> None:
    """Some chunks fit, later ones do not: nothing overtakes, nothing is taken for a duplicate."""
    bench = Bench(nursery)
    bench.fill_disk(700)
    for start in range(1, 2000, 100):
        bench.publish(*range(start, start + 100))
    first = await bench.answers()
    confirmed = [n for answer in first for n in answer.publishing_ids]  # type: ignore[union-attr]
    assert confirmed == list(range(1, len(confirmed) + 1))
    assert bench.log.journal.tracking.sequence(b"p") == (confirmed[-1] if confirmed else None)
    bench.publish(1, 2)  # sent again meanwhile
    bench.disk.capacity = None
    await trio.sleep(1.1)
    rest = [n for a in await bench.answers() for n in a.publishing_ids]  # type: ignore[union-attr]
    assert confirmed + rest == [*range(1, 2001), 1, 2]
    assert bench.stored() == [b"m%d" % n for n in range(1, 2001)]


async def test_messages_wait_for_more_where_that_is_declared(nursery: trio.Nursery) -> None:
    bench = Bench(nursery)
    await wait_all_tasks_blocked()
    bench.stream.set_policy(replace(bench.log.policy, chunk_wait_ms=20, chunk_max_records=5))
    bench.publish(1)
    await trio.sleep(0.019)
    bench.publish(2)
    assert await bench.answers() == [], "not confirmed before it is written"
    await trio.sleep(0.002)
    assert await bench.answers() == [c.PublishConfirm(1, (1, 2))], "no longer than the first may"
    bench.publish(3, 4)
    await trio.sleep(0.001)
    bench.publish(5, 6, 7)
    assert await bench.answers() == [c.PublishConfirm(1, (3, 4, 5, 6, 7))], "a full one at once"
    bench.publish(8)
    assert await bench.answers() == []
    bench.stream.set_policy(replace(bench.log.policy, chunk_wait_ms=0))
    with trio.fail_after(0.021):
        await bench.stream.settled()
    bench.publish(9)
    assert await bench.answers() == [c.PublishConfirm(1, (8,)), c.PublishConfirm(1, (9,))]
    chunks = read_chunks(bench.log)
    assert [chunk.header.num_records for chunk in chunks] == [2, 5, 1, 1]


@pytest.mark.usefixtures("at_once")
async def test_a_message_waits_for_more_once_whatever_comes_between(nursery: trio.Nursery) -> None:
    """It counts from when it came: neither the log's first mark nor a flush begins anew."""
    bench = Bench(nursery, commits_on_flush=True)
    await wait_all_tasks_blocked()
    bench.log.awaits_mark = True
    bench.stream.set_policy(replace(bench.log.policy, chunk_wait_ms=20))
    gate = trio.Event()
    bench.block_flushes(gate)
    bench.publish(1)
    await trio.sleep(0.021)
    assert bench.log.next_offset == 1, "written, and being flushed"
    bench.publish(2)
    await trio.sleep(0.021)
    gate.set()
    await wait_all_tasks_blocked()
    assert await bench.answers() == [c.PublishConfirm(1, (1,)), c.PublishConfirm(1, (2,))]


@pytest.mark.usefixtures("at_once")
async def test_a_flush_of_full_segments_confirms_nothing_of_the_newest(
    nursery: trio.Nursery,
) -> None:
    """The tier asks for one; what is not on the device would be confirmed, and not be seen."""
    bench = Bench(nursery, commits_on_flush=True)
    maintenance, gate = bench.stream.life.held.maintenance, trio.Event()
    async with maintenance._turn:
        nursery.start_soon(partial(maintenance.flush, only_sealed=True))
        await wait_all_tasks_blocked()
        bench.publish(1)
        await wait_all_tasks_blocked()
        assert bench.log.next_offset == 1, "written, and not flushed"
        run = maintenance._run

        async def run_some(flush: Flush) -> StorageError | None:
            if not flush.is_partial:
                await gate.wait()
            return await run(flush)

        maintenance._run = run_some  # type: ignore[method-assign]
    assert await bench.answers() == []
    assert bench.log.committed_offset == 0
    gate.set()
    assert await bench.answers() == [c.PublishConfirm(1, (1,))]
    assert bench.log.committed_offset == 1


async def test_while_the_disk_is_full_publishers_wait(nursery: trio.Nursery) -> None:
    bench = Bench(nursery)
    bench.fill_disk()
    bench.publish(1)
    await wait_all_tasks_blocked()
    with trio.move_on_after(100) as waited:
        await bench.stream.room()
    assert waited.cancelled_caught
    with trio.fail_after(1):
        await bench.stream.settled()  # requests without messages are not kept waiting
    bench.disk.capacity = None
    with trio.fail_after(2):
        await bench.stream.room()


async def test_any_other_refusal_fails_the_stream_and_nothing_confirmed_is_lost(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(nursery)
    bench.publish(1)
    assert await bench.answers() == [c.PublishConfirm(1, (1,))]
    bench.disk.failures = {"write": 1}
    bench.publish(2)
    bench.publish(3)
    code = ResponseCode.STREAM_NOT_AVAILABLE
    assert await bench.answers() == [
        c.PublishError(1, ((2, code),)),
        c.PublishError(1, ((3, code),)),
    ]
    assert "accepts no more messages: cannot write" in caplog.text
    bench.publish(4)
    assert await bench.answers() == [c.PublishError(1, ((4, code),))]
    with pytest.raises(Refused, match="cannot write"):
        bench.stream.check_writable()
    assert read_bodies(bench.log) == [b"m1"]
    assert bench.stored() == [b"m1"]


async def test_what_is_queued_leaves_room_when_it_is_written(nursery: trio.Nursery) -> None:
    """However much has gone through; and only then: what a full disk holds up still counts."""
    bench = Bench(nursery)
    for number in range(12):
        bench.publish(number, size=1 << 20)
        await bench.answers()
        assert not bench.stream.is_crowded
    bench.fill_disk()
    bench.publish(100)
    await bench.answers()
    assert bench.stream.is_crowded
    bench.fill_disk(1 << 20)
    await trio.sleep(10)
    assert not bench.stream.is_crowded


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("broken", ["append", "begin_flush"])
async def test_a_bug_in_writing_or_flushing_fails_the_stream_only(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    bench = Bench(nursery, commits_on_flush=broken == "begin_flush")
    monkeypatch.setattr(bench.log, broken, None)
    bench.publish(1)
    answers = await bench.answers()
    assert answers == [c.PublishError(1, ((1, ResponseCode.STREAM_NOT_AVAILABLE),))]
    assert bench.stream.failed
    await bench.stream.settled()


async def test_a_deleted_stream_keeps_nobody_waiting(nursery: trio.Nursery) -> None:
    bench = Bench(nursery)
    bench.fill_disk()
    bench.publish(1)
    await wait_all_tasks_blocked()
    nursery.start_soon(bench.stream.room)
    await wait_all_tasks_blocked()
    bench.stream.remove()
    with trio.fail_after(1):
        await bench.stream.room()
        await bench.stream.settled()
    answers = await bench.answers()
    assert answers == [c.PublishError(1, ((1, ResponseCode.STREAM_DOES_NOT_EXIST),))]


async def test_what_is_published_does_not_wait_until_old_segments_are_removed(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slowly(work: Callable[..., Any], *arguments: object) -> Any:
        await trio.sleep(1)
        return work(*arguments)

    monkeypatch.setattr(threads, "in_thread", slowly)
    bench = Bench(nursery, commits_on_flush=True, supervisor=Supervisor(nursery))
    bench.log.policy = LogPolicy(max_segment_chunks=1)
    for _ in range(200):
        append(bench.log, [b"m"])
        bench.log.flush(with_checkpoint=True)
    bench.log.policy = LogPolicy(max_segment_chunks=1, max_length_bytes=1)
    files = len(bench.disk.files)
    for number in range(1, 4):
        bench.publish(number)
        await trio.sleep(4)
        assert await bench.answers() == [c.PublishConfirm(1, (number,))]
    assert len(bench.disk.files) > files / 2  # and they were being removed meanwhile
    await trio.sleep(100)
    assert len(bench.disk.files) < 10


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("commits_on_flush", [False, True])
async def test_what_has_outlived_its_limits_is_not_found_when_a_message_is_confirmed(
    nursery: trio.Nursery, *, commits_on_flush: bool
) -> None:
    """Whoever reads from the first message right after that begins where the limits say."""
    bench = Bench(nursery, commits_on_flush=commits_on_flush)
    bench.stream.set_policy(LogPolicy(max_segment_chunks=5, max_length_bytes=1))
    firsts: list[int] = []

    class Publisher(StreamPublisher):
        def confirm(self, ids: bytes) -> None:
            firsts.append(bench.log.segments.find(FIRST).offset)
            super().confirm(ids)

    bench.publisher = Publisher(1, "p", bench.outbox, ProtocolTraffic())
    for number in range(1, 18):
        bench.publish(number)
        await bench.answers()
    assert firsts == [*[0] * 5, *[5] * 5, *[10] * 5, *[15] * 2]


@pytest.mark.usefixtures("at_once")
async def test_a_log_begins_where_its_limits_say_when_it_is_opened(nursery: trio.Nursery) -> None:
    """Time has passed, or a kill has kept files that were to go."""
    bench = Bench(nursery)
    bench.stream.set_policy(LogPolicy(max_segment_chunks=5))
    for number in range(1, 18):
        bench.publish(number)
        await bench.answers()
    await bench.stream.life.close()
    log = Log.open("s", LogPolicy(max_segment_chunks=5, max_length_bytes=1), bench.disk)
    bench.stream.life.attach(log)
    assert log.segments.find(FIRST).offset == log.segments.first_offset == 15
    nursery.start_soon(bench.stream.life.held.run)
    await trio.sleep(1)
    assert [path for path in bench.disk.files if path.endswith(".segment")] == [
        log.segments.shown[0].path()
    ]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("what", ["drop old segments", "truncate"])
async def test_what_is_published_while_old_segments_are_about_to_go_is_confirmed(
    nursery: trio.Nursery, what: str
) -> None:
    """Even if nothing more is published: nobody else has a turn then."""
    bench = Bench(nursery, commits_on_flush=True)
    for number in range(1, 120):
        bench.publish(number)
        assert await bench.answers() == [c.PublishConfirm(1, (number,))]
    gate = trio.Event()
    bench.block_flushes(gate)
    if what == "truncate":
        nursery.start_soon(bench.stream.truncate, at_offset(60))
    else:
        bench.stream.set_policy(LogPolicy(max_segment_chunks=50, max_length_bytes=1))
        nursery.start_soon(bench.stream.life.held.expire)
    await wait_all_tasks_blocked()
    bench.publish(120)
    bench.stream.store_offset("c", 7)
    assert await bench.answers() == []
    gate.set()
    assert await bench.answers() == [c.PublishConfirm(1, (120,))]
    assert bench.log.segments.first_offset > 0
    with trio.fail_after(1):
        await bench.stream.settled()


@pytest.mark.usefixtures("at_once")
async def test_a_flush_before_old_segments_go_that_finds_a_shortage_is_tried_again(
    nursery: trio.Nursery,
) -> None:
    bench = Bench(nursery)
    for number in range(1, 120):
        bench.publish(number)
        await bench.answers()
    bench.stream.set_policy(LogPolicy(max_segment_chunks=50, max_length_bytes=1))
    run = bench.stream.life.held.maintenance._run

    async def refuse(_flush: Flush) -> StorageError | None:
        bench.stream.life.held.maintenance._run = run  # type: ignore[method-assign]
        return threads.NoThread()

    bench.stream.life.held.maintenance._run = refuse  # type: ignore[method-assign]
    await bench.stream.life.held.expire()
    assert bench.stream.alarm
    await trio.sleep(5)
    assert not bench.stream.alarm
