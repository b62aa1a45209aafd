"""A log is opened and closed while other things go wrong: nothing hangs, nobody else is hurt."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from segments import Log
from segments.entries import Entries
from segments.errors import StorageError
from segments.flush import Flush
from streamd.broker.catalog.catalog import Change
from streamd.broker.catalog.writer import Turn
from streamd.broker.streams.log_life import LogLife, StreamState
from streamd.broker.streams.open_log import OpenLog
from streamd.broker.streams.publication import PendingEntries
from streamd.net import threads
from streamd.operations.errors import Reason
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import method_frame
from streamd.wire.stream import ResponseCode, commands as c
from tests.broker.streams.test_faults import BAD, GOOD, Faults, faults  # noqa: F401 - a fixture
from tests.support import amqp
from tests.support.held_work import delay_work, hold_work, is_flush
from tests.support.server import OK, Harness, Peer, harness, inline, with_peer

CLOSED_AFTER = 120  # seconds
IN_THREAD = threads.in_thread  # a server in memory does without
NO_THREAD = StorageError("begin", "work in a thread", OSError(errno.EAGAIN, "try again"))


async def used(server: Harness, name: str) -> Peer:
    """A peer that has stored a message in a new stream and needs it no more."""
    peer = await server.publisher(name, is_new=True)
    await peer.store([b"before"])
    assert await peer.code(c.DeletePublisher, 1) == OK
    return peer


def refuse(code: int) -> Callable[..., Any]:
    def refused(*_: object, **__: object) -> Any:
        raise StorageError("open", "a file", OSError(code, os.strerror(code)))

    return refused


async def test_a_log_that_could_not_be_opened_is_tried_again(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = await used(server, GOOD)
    await trio.sleep(CLOSED_AFTER)
    with monkeypatch.context() as patched:
        patched.setattr(Log, "open", refuse(errno.EMFILE))
        refused = await peer.code(c.DeclarePublisher, 1, "", GOOD)
    assert refused == ResponseCode.STREAM_NOT_AVAILABLE
    assert GOOD in server.host.alarms()
    await trio.sleep(10)
    assert GOOD in server.host.alarms()  # until somebody asks for it
    await peer.declare(GOOD)
    await peer.store([b"after"])
    assert not server.host.alarms()


async def test_an_offset_that_cannot_be_stored_holds_nothing_up(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await peer.create(BAD)
    monkeypatch.setattr(Log, "open", refuse(errno.ENOSPC))
    await peer.send(c.StoreOffset("reader", BAD, 5))
    with trio.fail_after(5):
        await peer.create(GOOD)


async def test_a_log_is_not_closed_while_its_stream_is_deleted(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = await used(server, GOOD)
    stream = server.host.find(GOOD)
    flushes = hold_work(monkeypatch, is_flush)
    server.start(lambda: stream.life.held.maintenance.flush(with_checkpoint=True))
    await trio.sleep(1)
    server.start(peer.code, c.Delete, GOOD)
    await trio.sleep(1)
    server.start(stream.life.close)
    await trio.sleep(1)
    flushes.goes_on.set()
    await trio.sleep(1)
    assert stream.state is StreamState.GONE
    assert not server.host.has_stream(GOOD)


async def test_stored_offsets_wait_for_room_when_nobody_uses_the_stream(
    server: Harness,
    faults: Faults,  # noqa: F811
) -> None:
    peer = await used(server, BAD)
    faults.set("write", errno.ENOSPC)
    await peer.send(c.StoreOffset("reader", BAD, 0))
    await peer.vanish()
    await trio.sleep(CLOSED_AFTER)
    faults.clear()
    await trio.sleep(CLOSED_AFTER)
    peer = await server.peer()
    answer = await peer.ask(c.QueryOffset, "reader", BAD)
    assert (answer.code, answer.offset) == (OK, 0)


@pytest.mark.parametrize("error", [RuntimeError("a bug"), NO_THREAD])
async def test_a_log_that_no_thread_can_close_keeps_nobody_waiting(
    server: Harness, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def without(work: Callable[..., Any], *arguments: object) -> Any:
        if getattr(work, "__func__", None) is Log.close:
            raise error
        return await inline(work, *arguments)

    peer = await used(server, GOOD)
    log = server.host.find(GOOD).log
    with monkeypatch.context() as patched:
        patched.setattr(threads, "in_thread", without)
        await trio.sleep(CLOSED_AFTER)
    assert log.is_closed
    await trio.sleep(10)
    with trio.fail_after(5):
        await peer.declare(GOOD)
        await peer.store([b"after"])


@contextmanager
def no_threads() -> Iterator[None]:
    """The system starts no thread for anything."""

    async def refused(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(threads, "in_thread", IN_THREAD)
        patched.setattr(trio.to_thread, "run_sync", refused)
        yield


async def test_a_bug_in_a_thread_is_no_shortage() -> None:
    def work() -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        await IN_THREAD(work)


@pytest.mark.parametrize("flush", ["interval", "always"])
async def test_a_flush_waits_for_a_thread(tmp_path: Path, flush: str) -> None:
    async with with_peer(tmp_path, flush=flush) as (server, peer):
        await peer.begin(GOOD)
        await peer.store([b"before"])
        with no_threads():
            await peer.publish([b"meanwhile"], 2)
            await trio.sleep(5)
            assert server.host.alarms() == {GOOD: "threads are short"}
        confirm = await peer.expect(c.PublishConfirm)
        assert confirm.publishing_ids == (2,)
        await trio.sleep(5)
        assert not server.host.alarms()
        await peer.store([b"after"], 3)
        await peer.subscribe(GOOD)
        assert await peer.bodies(3) == [b"before", b"meanwhile", b"after"]


async def test_without_threads_a_change_is_refused(peer: Peer) -> None:
    with no_threads():
        assert await peer.code(c.Create, GOOD, ()) == ResponseCode.INTERNAL_ERROR
    await peer.create(GOOD)


async def test_a_stream_is_deleted_although_no_thread_moves_its_files(server: Harness) -> None:
    peer = await used(server, GOOD)
    commit = Turn.commit

    async def commit_in_thread(self: Turn, *changes: Change) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(threads, "in_thread", inline)
            await commit(self, *changes)

    with pytest.MonkeyPatch.context() as patched, no_threads():
        patched.setattr(Turn, "commit", commit_in_thread)
        assert await peer.code(c.Delete, GOOD) == OK
    await peer.begin(GOOD)
    await peer.store([b"another"])
    await peer.subscribe(GOOD)
    assert await peer.bodies(1) == [b"another"]


async def test_a_stream_is_deleted_on_a_disk_without_room_for_the_trash(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Path.mkdir

    def mkdir(self: Path, *arguments: Any, **options: Any) -> None:
        if self.name == "trash":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        make(self, *arguments, **options)

    peer = await used(server, GOOD)
    monkeypatch.setattr(Path, "mkdir", mkdir)
    assert await peer.code(c.Delete, GOOD) == OK
    assert await peer.code(c.Delete, GOOD) == ResponseCode.STREAM_DOES_NOT_EXIST
    assert not list((server.data / "streams").glob("*/*"))  # its room is free


async def test_a_connection_that_fails_while_it_waits_for_a_log_holds_nothing(
    server: Harness,
    faults: Faults,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await used(server, GOOD)
    await trio.sleep(CLOSED_AFTER)
    await used(server, BAD)
    stream = server.host.find(GOOD)
    assert stream.state is StreamState.CLOSED
    delay_work(monkeypatch, 1)
    peer = await amqp.open_peer(server)
    await peer.ask(m.BasicQos(0, 10, False), m.BasicQosOk)
    consume = m.BasicConsume(0, GOOD, "tag", False, False, False, False, dict(amqp.FIRST))
    faults.set("write", errno.EIO)
    await peer.send_bytes(peer.message(BAD, b"lost") + method_frame(1, consume))
    await peer.expect(m.ConnectionClose)
    await trio.sleep(5)
    await peer.stream.aclose()
    await trio.sleep(CLOSED_AFTER)
    assert stream.state is StreamState.CLOSED


async def test_a_connection_that_cannot_be_ended_takes_no_answers_from_others(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise RuntimeError("a bug")

    await server.peer()
    (other,) = server.server._running
    monkeypatch.setattr(other, "stop", fail)
    peer = await server.publisher(GOOD, is_new=True)
    await peer.store([b"before"])
    await trio.sleep(CLOSED_AFTER)
    delay_work(monkeypatch, 1)
    await peer.publish([b"while it is opened"], first_id=2)
    await trio.sleep(0.1)
    assert server.host.find(GOOD).state is StreamState.OPENING
    server.start(server.server.drain)
    assert await peer.confirmed(1) == [2]


async def test_a_log_that_fails_while_it_is_closed_is_not_trusted_again(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a sync has failed to write may be gone, and the next one would say that all is well."""
    peer = await used(server, GOOD)
    monkeypatch.setattr(Flush, "run", refuse(errno.EIO))
    await peer.declare(GOOD)
    await peer.store([b"after"], 2)
    await peer.send(c.StoreOffset("reader", GOOD, 1))
    assert await peer.code(c.DeletePublisher, 1) == OK
    monkeypatch.setattr(Log, "close", refuse(errno.EIO))
    await trio.sleep(CLOSED_AFTER)
    assert "restart the server" in server.host.alarms()[GOOD]
    monkeypatch.undo()
    await trio.sleep(60)
    assert await peer.code(c.DeclarePublisher, 1, "", GOOD) == ResponseCode.STREAM_NOT_AVAILABLE


async def test_what_is_published_without_room_for_files_waits_for_it(
    server: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new stream whose files cannot be made yet takes messages as a full one does.

    The first of the tasks that wait for it fails.
    """
    again = LogLife._try_again
    num_waits = 0

    async def failing_first(life: LogLife) -> None:
        nonlocal num_waits
        num_waits += 1
        if num_waits == 1:
            raise RuntimeError("injected")
        await again(life)

    monkeypatch.setattr(LogLife, "_try_again", failing_first)
    consumer = await amqp.open_peer(server)
    await consumer.declare("s")
    await consumer.confirm()
    num_tries = 0

    def full(*_: object, **__: object) -> Any:
        nonlocal num_tries
        num_tries += 1
        raise StorageError("open", "a file", OSError(errno.ENOSPC, "no room"))

    with monkeypatch.context() as patched:
        patched.setattr(Log, "open", full)
        for body in (b"1", b"2", b"3"):
            await consumer.publish("s", body)
        await trio.sleep(10)
        assert server.host.alarms() == {"s": "the disk is full"}
        declared = await peer.code(c.DeclarePublisher, 1, "", "s")
        assert declared == ResponseCode.STREAM_NOT_AVAILABLE
        assert num_tries <= 12  # once a second, however many wait
    await trio.sleep(2)
    assert not server.host.alarms()
    assert +server.server.broker.supervisor.faults == {"waiting for room on the disk": 1}
    await peer.subscribe("s")
    assert len(await peer.bodies(3)) == 3


class Raising:
    """A consumer, and a publisher, of a connection with a bug."""

    reference = b""
    keys = None

    def stream_has_more(self) -> None:
        raise RuntimeError("a bug in one consumer's connection")

    def confirm(self, publishing_ids: bytes) -> None:
        raise RuntimeError(f"a bug in one publisher's connection: {publishing_ids!r}")

    def refuse(self, publishing_ids: bytes, reason: Reason) -> None:
        raise RuntimeError(f"the same bug: {publishing_ids!r}, {reason}")


async def test_a_bug_of_one_connection_leaves_the_stream_to_the_others(
    server: Harness, peer: Peer
) -> None:
    await peer.begin("s")
    await peer.store([b"first"])
    reader = await server.consumer("s")
    assert await reader.bodies(1) == [b"first"]
    stream = server.host.find("s")
    stream.life.hold()
    stream.waiters.add(Raising())
    entry = (1).to_bytes(8, "big"), b"\0\0\0\1x", 1, 1, None
    stream.publish(PendingEntries(Raising(), Entries(*entry)))
    await peer.store([b"second"], 2)
    assert await reader.bodies(2) == [b"x", b"second"]
    assert stream.failed is None
    assert await peer.code(c.Delete, "s") == OK  # refuses what is left, and ends its consumers
    await reader.expect(c.MetadataUpdate)


async def fail(*_: object) -> None:
    raise RuntimeError("a bug")


_expire = OpenLog.expire


async def expire_good(opened: OpenLog) -> None:
    if opened.name == BAD:
        raise RuntimeError("a bug")
    await _expire(opened)


async def test_a_fault_while_old_segments_are_dropped_stays_with_its_stream(
    server: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate((BAD, GOOD), 1):
        await peer.begin(name, number, stream_max_segment_size_bytes="100", max_age="30s")
        await peer.store([bytes(100)], 1, publisher_id=number)
        await peer.store([bytes(100)], 2, publisher_id=number)
    monkeypatch.setattr(OpenLog, "expire", expire_good)
    good = server.host.find(GOOD)
    async with good.opened() as log:
        await trio.sleep(CLOSED_AFTER)
        assert log.segments.first_offset == 1
    assert server.server.broker.supervisor.faults["dropping old segments"]


async def test_faults_of_one_stream_at_start_and_end_stay_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_peer(tmp_path) as (_, peer):
        for number, name in enumerate((BAD, GOOD), 1):
            await peer.begin(name, number)
            await peer.store([b"x"], 1, publisher_id=number)
    async with harness(tmp_path) as server:
        monkeypatch.setattr(OpenLog, "expire", expire_good)
        await trio.sleep(5)
        good = server.host.find(GOOD)
        assert good.figures is not None
        async with good.opened() as log:
            monkeypatch.setattr(server.host.find(BAD).life, "shut_down", fail)
    assert log.is_closed
