"""Filter indexes on a running server: built beside the event loop; which consumers are woken."""

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from segments.filter_index import FilterFile, FilterIndex
from streamd.broker.streams import log_maintenance
from streamd.broker.streams.indexer import Indexer
from streamd.wire.stream import ResponseCode, commands as c
from tests.support.held_work import hold_work, is_flush
from tests.support.server import NEXT, OK, Harness, Peer, harness, with_peer
from tests.support.syncs import work_beside


async def fill(peer: Peer, first_id: int, count: int) -> None:
    for number in range(first_id, first_id + count):
        await peer.store([b"%d" % number], number, values=[b"v%d" % (number % 10)])


async def test_sealed_segments_get_a_file(server: Harness, peer: Peer) -> None:
    await peer.begin("s", stream_max_segment_size_bytes="1000")
    await fill(peer, 0, 50)
    await peer.silence()
    log = server.host.find("s").log
    assert len(log.segments.shown) > 3
    assert all(isinstance(segment.filters, FilterFile) for segment in log.segments.shown[:-1])
    assert isinstance(log.segments.shown[-1].filters, FilterIndex)
    await peer.subscribe("s", filter__0="v3", credit=100)
    assert await peer.bodies(5) == [b"3", b"13", b"23", b"33", b"43"]
    await peer.silence()


async def test_no_more_indexes_are_in_memory_than_there_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older ones are read again when they are wanted."""
    monkeypatch.setattr(Indexer.__init__, "__defaults__", (3 * 2_300,))
    async with with_peer(tmp_path) as (server, peer):
        await peer.begin("s", stream_max_segment_size_bytes="200")
        await fill(peer, 0, 60)
        await peer.silence()
        log = server.host.find("s").log
        assert len(log.segments.shown) > 10
        for number in range(3):
            await peer.subscribe("s", subscription_id=number, filter__0="v3", credit=100)
            assert await peer.bodies(6) == [b"3", b"13", b"23", b"33", b"43", b"53"]
            await peer.silence()
            loaded = [s for s in log.segments.shown if isinstance(s.filters, FilterFile)]
            assert 1 <= len(loaded) <= 3


async def test_after_a_restart_they_come_when_somebody_asks(tmp_path: Path) -> None:
    async with with_peer(tmp_path) as (_, peer):
        await peer.begin("s", stream_max_segment_size_bytes="1000")
        await fill(peer, 0, 45)
        await peer.silence()
    files = sorted((tmp_path / "streams").glob("*/s/*.filter"))
    files[0].unlink()
    files[1].write_bytes(b"damaged")
    async with with_peer(tmp_path) as (server, peer):
        await peer.declare("s")
        log = server.host.find("s").log
        assert not any(segment.filters for segment in log.segments.shown)
        await fill(peer, 45, 2)
        await peer.subscribe("s", filter__0="v3", credit=100)
        await peer.bodies(5)
        await peer.silence()
        assert all(segment.filters for segment in log.segments.shown)
        await peer.code(c.Unsubscribe, 1)
        await fill(peer, 47, 10)
        await peer.subscribe("s", filter__0="v6", credit=100)
        assert await peer.bodies(6) == [b"6", b"16", b"26", b"36", b"46", b"56"]
        await peer.silence()


async def test_consumers_at_the_end_are_told_of_what_is_for_them(
    server: Harness, peer: Peer
) -> None:
    await peer.begin("s")
    for number in range(20):
        await peer.subscribe("s", subscription_id=number, offset=NEXT, filter__0=f"v{number % 10}")
    stream = server.host.find("s")
    waiters = stream.waiters
    assert (len(waiters), len(waiters.by_key)) == (20, 10)
    told = []
    wake = waiters._wake
    waiters._wake = lambda woken: (told.append(len(woken)), wake(woken))  # type: ignore[method-assign, func-returns-value]
    await peer.store([b"x"], values=[b"v3"])
    got = sorted([(await peer.chunk()).subscription_id for _ in range(2)])
    assert got == [3, 13]
    await peer.store([b"x"], 2, values=[b"none"])
    await peer.store([b"x"], 3)
    assert told == [2, 0, 0]
    answer = await peer.ask(c.DescribeSubscription, 5, 3)
    figures = dict(answer.statistics)
    assert (figures["next_offset"], figures["skipped_chunks"]) == (3, 3)
    await peer.vanish()
    other = await server.peer()
    await other.silence()
    assert not waiters


@pytest.mark.parametrize("awaited", [1, 5])
async def test_progress_reaches_the_end_without_a_match(peer: Peer, awaited: int) -> None:
    await peer.begin("s")
    await peer.subscribe("s", offset=NEXT, filter__0="none")
    await peer.send(c.DescribeSubscription(77, 1, awaited))
    for number in range(awaited):
        await peer.store([b"x"], number, values=[b"a"])
    answer = await peer.expect(c.DescribeSubscriptionResponse)
    assert dict(answer.statistics)["next_offset"] == awaited


async def test_an_index_of_a_deleted_stream_is_no_trouble(
    server: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Deleted and created again just before the file is written."""
    await peer.begin("s", stream_max_segment_size_bytes="1000")
    log = server.host.find("s").log
    other = await server.peer()
    codes: list[int] = []

    async def delete_and_create() -> None:
        codes.append(await other.code(c.Delete, "s"))
        codes.append(await other.code(c.Create, "s", ()))
        codes.append(await other.code(c.DeclarePublisher, 1, "", "s"))

    async def delete_first(work: Callable[..., object], *args: object) -> object:
        if work is log_maintenance.save:
            server.start(delete_and_create)
            await trio.sleep(10)  # as long as the disk likes
            assert codes == []  # the deletion waits for whoever works on the files
        return work_beside(work, *args)

    monkeypatch.setattr(log_maintenance.threads, "in_thread", delete_first)
    await peer.store([bytes(1200)], 1, values=[b"v"])
    await peer.store([bytes(1200)], 2, values=[b"v"])
    await trio.sleep(20)
    assert codes == [OK, OK, OK]
    assert log.is_closed
    assert list(server.data.glob("streams/*/s/*.filter")) == []
    assert "no filter index" not in caplog.text


async def test_filter_statistics(peer: Peer) -> None:
    """40 values a chunk in 16 bytes: about a fifth of the chunks lets a foreign value pass."""
    await peer.create("s", stream_filter_size_bytes="16", stream_max_segment_size_bytes="5000")
    await peer.create("bare")
    await peer.declare("s")
    for number in range(20):
        values = [b"v%d-%d" % (number, n) for n in range(40)]
        await peer.store([b"x"] * 40, 40 * number, values=values)
    answer = await peer.ask(c.DescribeFilters, "s")
    figures = dict(answer.statistics)
    assert (figures["chunks"], figures["values"]) == (20, 800)
    assert 400_000 < figures["fill_ppm"] < 550_000
    for rate in ("predicted_ppm", "observed_ppm"):
        assert 170_000 < figures[rate] < 270_000
    bare = (await peer.ask(c.DescribeFilters, "bare")).statistics
    assert {figure.value for figure in bare} == {0}
    assert await peer.code(c.DescribeFilters, "none") == ResponseCode.STREAM_DOES_NOT_EXIST


async def test_what_is_asked_for_is_counted(server: Harness, peer: Peer) -> None:
    await peer.create("s")
    await peer.subscribe("s", subscription_id=1, filter__0="HA", filter__1="UA")
    await peer.subscribe("s", subscription_id=2, filter__0="HA")
    await peer.subscribe("s", subscription_id=3)
    await peer.subscribe("s", subscription_id=4, filter_mode="unfiltered-only")
    log = server.host.find("s").log
    assert log.filter_demand.counts == {"HA": 2, "UA": 1}
    await server.host.expire()
    assert Path(log.folder, "asked.json").exists()


async def test_a_consumer_that_comes_to_the_end_while_a_match_is_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for chunks that it cannot see yet: it is told of the one that was written before."""
    async with harness(tmp_path, flush="always") as server:
        peer, reader = await server.peer(), await server.peer()
        await peer.begin("s")
        await peer.store([b"before"], values=[b"other"])
        flushes = hold_work(monkeypatch, is_flush)
        await peer.publish([b"match"], 2, values=[b"v"])
        await trio.sleep(1)
        await reader.subscribe("s", offset=NEXT, filter__0="v")
        await reader.silence(1)
        flushes.goes_on.set()
        with trio.fail_after(5):
            assert await reader.bodies(1) == [b"match"]
