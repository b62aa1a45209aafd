"""Truncating streams and changing stored offsets, while others publish, read and delete."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from segments import at_offset
from segments.errors import StorageError
from segments.journal import Journal
from segments.truncation import Rest
from streamd.net import threads
from streamd.operations.errors import Reason, Refused
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.fields import OffsetSpecification
from tests.auth.test_users import manage, must
from tests.support.held_work import before_work, delay_work, hold_work, is_flush, named
from tests.support.http import Http
from tests.support.server import OK, Harness, Peer, harness, with_peer

PRECONDITION = ResponseCode.PRECONDITION_FAILED


async def fill(peer: Peer, count: int = 10, **arguments: str) -> list[bytes]:
    """A stream `s` with chunks of one message."""
    await peer.begin("s", **arguments)
    bodies = [b"%d" % number for number in range(count)]
    for number, body in enumerate(bodies):
        await peer.store([body], number + 1)
    return bodies


async def truncate(peer: Peer, **where: int) -> int:
    (row,) = await must(
        peer, "stream.truncate", stream="s", **{k: str(v) for k, v in where.items()}
    )
    return int(row["first_offset"])


async def all_of(server: Harness, count: int) -> list[bytes]:
    peer = await server.consumer("s", credit=1_000)
    return await peer.bodies(count)


@pytest.mark.parametrize("at", [0, 1, 4, 9, 10, 99])
@pytest.mark.parametrize("size", ["1", "200", "1000000"])
async def test_it_begins_there_and_after_a_restart(tmp_path: Path, at: int, size: str) -> None:
    async with with_peer(tmp_path) as (server, peer):
        bodies = await fill(peer, stream_max_segment_size_bytes=size)
        assert await truncate(peer, offset=at) == min(at, 10)
        await peer.store([b"more"], 11)
        kept = [*bodies[at:], b"more"]
        assert await all_of(server, len(kept)) == kept
        assert await truncate(peer, offset=0) == min(at, 10)
    async with harness(tmp_path) as server:
        assert await all_of(server, len(kept)) == kept


async def test_readers_go_on_where_it_begins(server: Harness, peer: Peer) -> None:
    await fill(peer)
    readers = [await server.peer() for _ in range(3)]
    for number, reader in enumerate(readers):
        await reader.subscribe("s", credit=number)
        await reader.bodies(number)
    assert await truncate(peer, offset=7) == 7
    for reader in readers:
        await reader.send(c.Credit(1, 10))
        assert await reader.bodies(3) == [b"7", b"8", b"9"]
    await peer.store([b"10"], 11)
    for reader in readers:
        assert await reader.bodies(1) == [b"10"]


async def test_a_filtered_reader_too(server: Harness, peer: Peer) -> None:
    await peer.begin("s")
    for number in range(10):
        await peer.store([b"%d" % number], number + 1, values=[b"odd" if number % 2 else b"even"])
    reader = await server.consumer("s", credit=1, filter__0="odd")
    assert await reader.bodies(1) == [b"1"]
    assert await truncate(peer, offset=6) == 6
    await reader.send(c.Credit(1, 10))
    assert await reader.bodies(2) == [b"7", b"9"]


async def test_by_time(server: Harness, peer: Peer) -> None:
    await peer.begin("s")
    times = []
    for number in range(5):
        times.append(server.server.broker.now_ms())
        await peer.store([b"%d" % number], number + 1)
        await trio.sleep(10)
    assert await truncate(peer, timestamp=times[2] + 1) == 3
    assert await truncate(peer, timestamp=times[1]) == 3
    assert await truncate(peer, timestamp=times[4] + 99_999) == 5


async def test_publishers_are_still_known(tmp_path: Path) -> None:
    """What they have sent is stored once, although the chunks that say so are gone."""
    async with with_peer(tmp_path) as (_, peer):
        await peer.begin("s", reference="p")
        await peer.store([b"a", b"b"])
        assert await truncate(peer, offset=2) == 2
    async with with_peer(tmp_path) as (server, peer):
        await peer.declare("s", reference="p")
        assert (await peer.ask(c.QueryPublisherSequence, "p", "s")).sequence == 2
        await peer.publish([b"b", b"c"], first_id=2)
        await peer.confirmed(2)
        assert await all_of(server, 1) == [b"c"]


async def test_while_others_publish_truncate_and_read(server: Harness, peer: Peer) -> None:
    """Each reader gets a rising sequence without gaps but those that truncation made."""
    await fill(peer, 5, stream_max_segment_size_bytes="300")
    found: list[list[int]] = [[] for _ in range(4)]

    async def publish() -> None:
        for number in range(5, 60):
            await peer.store([b"%d" % number], number + 1)

    async def cut(every: int) -> None:
        other = await server.peer()
        for number in range(0, 60, every):
            await truncate(other, offset=number)

    async def read(numbers: list[int]) -> None:
        reader = await server.consumer("s", credit=1)
        while not numbers or numbers[-1] != 59:
            numbers += map(int, (await reader.chunk()).bodies)
            await reader.send(c.Credit(1, 1))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish)
        for every in (3, 7):
            nursery.start_soon(cut, every)
        for numbers in found:
            nursery.start_soon(read, numbers)
    for numbers in found:
        assert numbers == sorted(set(numbers))
        assert numbers[-1] == 59
    assert (await truncate(peer, offset=58)) == 58
    assert await all_of(server, 2) == [b"58", b"59"]


async def test_confirms_do_not_wait_for_the_removal_of_many_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flushes have their turns between its parts."""
    async with harness(tmp_path, flush="always") as server:
        peer, other = await server.peer(), await server.peer()
        await fill(peer, 70, stream_max_segment_size_bytes="1")
        began = trio.current_time()
        with monkeypatch.context() as patched:
            delay_work(patched, 10, named("_remove_some"))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(truncate, other, offset=65))
                await trio.sleep(1)
                await peer.store([b"x"], 200)
                assert trio.current_time() - began <= 10
        assert trio.current_time() - began > 20
        assert len(list(tmp_path.rglob("*.segment"))) <= 7


@pytest.mark.parametrize("moment", ["copy", "finish"])
async def test_a_stream_that_is_deleted_meanwhile(
    server: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The next stream of that name has nothing of it."""
    await fill(peer)
    other, held = await server.peer(), hold_work(monkeypatch, named(moment))
    codes = []

    async def cut() -> None:
        answer = await manage(other, "stream.truncate", stream="s", offset="4")
        codes.append(answer.code)

    async def delete() -> None:
        assert await peer.code(c.Delete, "s") == OK

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cut)
        await held.has_begun.wait()
        nursery.start_soon(delete)
        await wait_all_tasks_blocked()
        held.goes_on.set()
    assert codes[0] in (OK, ResponseCode.STREAM_DOES_NOT_EXIST)
    await other.begin("s")
    await other.store([b"new"])
    assert await all_of(server, 1) == [b"new"]


async def test_no_room_for_the_rest_of_a_segment(
    server: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whole segments go, the one with the place stays."""
    bodies = await fill(peer, stream_max_segment_size_bytes="300")

    def full(*_: object) -> None:
        raise StorageError("write", "a file", OSError(28, "No space left on device"))

    monkeypatch.setattr(Rest, "_copy_data", full)
    first = await truncate(peer, offset=8)
    assert 0 < first < 8
    assert "is cut before a whole segment" in caplog.text
    assert await all_of(server, 10 - first) == bodies[first:]


async def test_a_copy_that_comes_to_nothing_takes_no_room(server: Harness, peer: Peer) -> None:
    bodies = await fill(peer)

    def too_late() -> None:
        raise Refused(Reason.ACCESS_REFUSED, "taken away meanwhile")

    with pytest.raises(Refused, match="meanwhile"):
        await server.host.find("s").truncate(at_offset(5), too_late)
    assert not list(server.data.rglob("*.tmp"))
    assert await all_of(server, 10) == bodies
    assert await truncate(peer, offset=5) == 5  # the next attempt finds what is left of it
    assert await all_of(server, 5) == bodies[5:]


async def test_no_room_for_what_is_known_of_publishers(
    server: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the chunks alone tell of publishers is not given up."""
    bodies = await fill(peer, stream_max_segment_size_bytes="200")
    await must(peer, "offset.set", stream="s", name="a", offset="2")
    await truncate(peer, offset=4)
    begins = [segment.base_offset for segment in server.host.find("s").log.segments.shown]
    monkeypatch.setattr(Journal, "is_covered", lambda _, offset: offset <= begins[1])
    assert await truncate(peer, offset=begins[1] + 1) == begins[1] > 4
    assert await all_of(server, 10 - begins[1]) == bodies[begins[1] :]


async def test_no_index_of_what_is_about_to_go_is_begun(
    server: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the rest of its segment takes its name: the files would be missed, and one be left."""
    await fill(peer)
    stream = server.host.find("s")
    (old,) = stream.log.segments.shown
    built: list[bool] = []

    async def at_last() -> None:
        built.append(await stream.life.held.build_index(old))

    before_work(monkeypatch, at_last, named(Rest.finish.__name__))
    assert await truncate(peer, offset=4) == 4
    assert built == [False]
    built = [
        await stream.life.held.build_index(segment) for segment in stream.log.segments.shown[:-1]
    ]
    assert built == [True]


async def test_it_waits_for_work_that_began_while_it_waited_for_its_turn(
    server: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(peer)
    other = await server.publisher("s")
    stream = server.host.find("s")
    maintenance = stream.life.held.maintenance
    (old,) = stream.log.segments.shown
    kept: list[bool] = []

    async def work_on_it() -> None:
        await trio.sleep(5)
        with maintenance.held.hold(old):
            await trio.sleep(45)
            kept.append(stream.log.keeps(old))

    async def begin() -> None:
        await other.store([b"more"], 11)
        nursery.start_soon(maintenance.flush)
        nursery.start_soon(work_on_it)
        await wait_all_tasks_blocked()

    def is_second(work: object) -> bool:
        return is_flush(work) and stream.log.flushing.unflushed_bytes == 0

    async with trio.open_nursery() as nursery:
        before_work(monkeypatch, begin, named(Rest.copy.__name__))
        delay_work(monkeypatch, 10, is_second)
        assert await truncate(peer, offset=4) == 4
    assert kept == [True]


async def test_what_outlived_its_limits_while_a_rest_was_copied_goes_then(
    server: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy keeps the files of its segment, and of those after it, whatever becomes of it."""
    sizes = {"stream_max_segment_size_bytes": "300", "max_length_bytes": "300"}
    await fill(peer, 4, **sizes)
    stream, in_thread = server.host.find("s"), threads.in_thread

    async def at_last() -> None:
        monkeypatch.setattr(threads, "in_thread", in_thread)
        for number in range(20):
            await peer.store([b"more"], 100 + number)
        await stream.life.held.expire()
        assert stream.log.segments.outlived, "they are kept meanwhile"

    def too_late() -> None:
        raise Refused(Reason.ACCESS_REFUSED, "taken away meanwhile")

    before_work(monkeypatch, at_last, named(Rest.copy.__name__))
    with pytest.raises(Refused, match="meanwhile"):
        await stream.truncate(at_offset(stream.log.segments.first_offset + 1), too_late)
    assert not stream.log.segments.outlived


async def test_so_does_what_work_was_cancelled_on(
    server: Harness, peer: Peer, nursery: trio.Nursery
) -> None:
    await fill(peer, 20, stream_max_segment_size_bytes="300")
    stream = server.host.find("s")
    held = stream.life.held.maintenance.held

    async def work() -> None:
        async with held.holding(stream.log.segments.shown[0]) as may_be_touched:
            assert may_be_touched
            await trio.sleep_forever()

    nursery.start_soon(work)
    await wait_all_tasks_blocked()
    stream.set_policy(replace(stream.log.policy, max_length_bytes=1))
    await stream.life.held.expire()
    assert stream.log.segments.outlived, "they are kept while it ends"
    with trio.fail_after(1):
        while stream.log.segments.outlived:
            await trio.sleep(0.01)


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [("stream.truncate", {"offset": "4"}), ("offset.set", {"name": "a", "offset": "2"})],
)
async def test_the_stream_is_deleted_before_it_begins(
    server: Harness,
    peer: Peer,
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
    arguments: dict[str, str],
) -> None:
    """Its files are missing then, which is no fault of the disk."""
    await fill(peer)
    stream, other = server.host.find("s"), await server.peer()

    async def settled() -> None:
        assert await other.code(c.Delete, "s") == OK

    monkeypatch.setattr(stream, "settled", settled)
    answer = await manage(peer, operation, stream="s", **arguments)
    assert answer.code == ResponseCode.STREAM_DOES_NOT_EXIST


@pytest.mark.parametrize(
    "arguments",
    [{}, {"offset": "x"}, {"offset": "-1"}, {"timestamp": "1e3"}, {"offset": str(1 << 63)}],
)
async def test_bad_places(peer: Peer, arguments: dict[str, str]) -> None:
    await fill(peer, 1)
    answer = await manage(peer, "stream.truncate", stream="s", **arguments)
    assert answer.code == PRECONDITION
    assert "expected a whole number" in answer.reason or not arguments


class TestStoredOffsets:
    async def test_listed_set_and_deleted(self, tmp_path: Path) -> None:
        async with with_peer(tmp_path) as (_, peer):
            await fill(peer)
            ask = partial(must, peer, stream="s")
            await peer.send(c.StoreOffset("a", "s", 3))
            await ask("offset.set", name="b", offset="9")
            await trio.sleep(5)
            assert await ask("offset.list") == [
                {"name": "a", "offset": "3", "messages_behind": "6", "seconds_behind": "5.0"},
                {"name": "b", "offset": "9", "messages_behind": "0", "seconds_behind": "0.0"},
            ]
            await ask("offset.delete", name="a")
            assert await peer.code(c.QueryOffset, "a", "s") == ResponseCode.NO_OFFSET
            again = await manage(peer, "offset.delete", stream="s", name="a")
            assert (again.code, again.reason) == (PRECONDITION, "a has stored no offset in s")
        async with with_peer(tmp_path) as (_, peer):
            rows = await must(peer, "offset.list", stream="s")
            assert [row["name"] for row in rows] == ["b"]

    async def test_none_is_set_that_cannot_be_written(
        self, server: Harness, peer: Peer, http: Http, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await fill(peer)
        log = server.host.find("s").log

        def full(_next_offset: int) -> None:
            raise StorageError("write", "a file", OSError(28, "No space left on device"))

        with monkeypatch.context() as patched:
            patched.setattr(log.journal, "write_pending", full)
            answer = await manage(peer, "offset.set", stream="s", name="a", offset="2")
            assert answer.code == ResponseCode.STREAM_NOT_AVAILABLE
            assert answer.reason == "the disk is full"
            assert await http.code("PUT", "stream/%2F/s/tracking/b", {"offset": 4}) == 503
        await trio.sleep(5)
        await must(peer, "offset.set", stream="s", name="a", offset="2")

    async def test_one_that_is_set_while_the_journal_is_rewritten_is_in_it(
        self, server: Harness, peer: Peer
    ) -> None:
        await fill(peer)
        for name in ("a", "b"):
            await must(peer, "offset.set", stream="s", name=name, offset="2")
        stream, other = server.host.find("s"), await server.peer()
        with pytest.MonkeyPatch.context() as patched:
            held = hold_work(patched, named("run"))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(must, other, "offset.delete", stream="s", name="b"))
                await wait_all_tasks_blocked()
                nursery.start_soon(
                    partial(must, peer, "offset.set", stream="s", name="a", offset="7")
                )
                await wait_all_tasks_blocked()
                assert stream.log.journal.tracking.has_pending
                assert len(nursery.child_tasks) == 2, "the one that sets it waits, too"
                held.goes_on.set()
        assert not stream.log.journal.tracking.has_pending

    async def test_their_stream_is_deleted_meanwhile(
        self, server: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """That is said, and not that the disk refuses."""
        await fill(peer)
        await must(peer, "offset.set", stream="s", name="a", offset="2")
        stream, other = server.host.find("s"), await server.peer()

        async def flush() -> None:
            """It waits for its turn, and then there is nothing to flush any more."""
            assert await other.code(c.Delete, "s") == OK

        monkeypatch.setattr(stream.life.held.maintenance, "flush", flush)
        answer = await manage(peer, "offset.delete", stream="s", name="a")
        assert answer.code == ResponseCode.STREAM_DOES_NOT_EXIST

    async def test_those_before_the_beginning_stay(self, peer: Peer) -> None:
        """Their consumers are to go on with the first message, not as if they were new."""
        await fill(peer)
        await must(peer, "offset.set", stream="s", name="a", offset="2")
        await truncate(peer, offset=6)
        (row,) = await must(peer, "offset.list", stream="s")
        assert (row["offset"], row["messages_behind"]) == ("2", "4")
        await peer.subscribe("s", offset=OffsetSpecification(4, 3))
        assert await peer.bodies(4) == [b"6", b"7", b"8", b"9"]

    async def test_over_http(self, peer: Peer, http: Http) -> None:
        await fill(peer)
        path = "stream/%2F/s/tracking"
        assert await http.get(path) == {"offsets": {}, "writers": {}}
        assert await http.code("PUT", f"{path}/till%2F3", {"offset": 4}) == 204
        assert await http.get(f"{path}?type=offset") == {"offsets": {"till/3": 4}}
        assert await http.get(f"{path}?type=writer") == {"writers": {}}
        (row,) = (await http.get(f"{path}?details=true"))["consumers"]
        assert (row["reference"], row["messages_behind"]) == ("till/3", 5)
        for bad in ({}, {"offset": -1}, {"offset": True}, {"offset": "4"}, {"offset": 1 << 63}):
            said = await http.reason("PUT", f"{path}/a", bad)
            assert "expected a whole number" in said or "expected one of offset" in said
        assert await http.code("PUT", f"{path}/{'x' * 256}", {"offset": 4}) == 400
        assert await http.code("DELETE", f"{path}/till%2F3") == 204
        assert await http.code("DELETE", f"{path}/till%2F3") == 404
        answer = await http.ask("POST", "stream/%2F/s/truncate", {"offset": 8})
        assert answer.json() == {"first_offset": 8}
        for bad in ({}, {"offset": 1, "timestamp": 1}):
            assert "expected either" in await http.reason("POST", "stream/%2F/s/truncate", bad)
        assert await http.code("GET", "stream/%2F/none/tracking") == 404
