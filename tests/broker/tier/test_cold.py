"""What is asked of streams whose segments are only in an object store: finding, truncating, lag."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio

from clients.connection import ANSWER_SECONDS
from streamd.broker import search_session
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.fields import OffsetSpecification
from tests.auth.test_users import must
from tests.broker.streams.test_truncate import all_of, fill, truncate
from tests.connections.stream.test_consuming import at, since
from tests.connections.stream.test_finding import find, order, words
from tests.support.cold import make_stream_cold
from tests.support.fake_store import FakeStore, late_answers
from tests.support.server import FIRST, LAST, OK, Harness, Peer, harness


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Harness]:
    """Without a tier of its own: what is fetched comes from `store`."""
    async with harness(tmp_path, is_polled=True) as running:
        yield running


@pytest.fixture
def store(server: Harness) -> Iterator[FakeStore]:
    store = FakeStore()
    server.server.broker.fetcher.use(store)
    server.server.broker.fetcher.cache.max_bytes = 5_000
    with late_answers(store):
        yield store


async def orders(peer: Peer) -> None:
    """Stream s: 60 orders in chunks of 4 and segments of a few, a second apart."""
    await peer.begin(
        "s",
        stream_max_segment_size_bytes="2000",
        stream_chunk_max_records="4",
        stream_key_properties="order_id",
    )
    for n in range(0, 60, 4):
        await peer.store([order(n + k, region="EU" if k else "US") for k in range(4)], n)
        await trio.sleep(1)
    await trio.sleep(60)  # keys are indexed


@pytest.mark.parametrize("restored", [False, True])
async def test_finding(peer: Peer, server: Harness, store: FakeStore, restored: bool) -> None:
    await orders(peer)
    asked: list[dict[str, object]] = [
        {"key": "17"},
        {"key": "17", "order": "newest"},
        {"sql": "region = 'US'"},
        {"sql": "region = 'US'", "limit": 3, "order": "newest"},
        {"key": "3", "latest": "true"},
        {"offset": 33, "limit": 7},
        {"from": 1_700_000_004_500, "to": 1_700_000_009_000},
    ]
    local = [await find(peer, "s", **words) for words in asked]
    assert all(local)
    make_stream_cold(server.host.find("s"), store, restored=restored)
    store.seconds = lambda _call: 0.05
    assert [await find(peer, "s", **words) for words in asked] == local


async def test_a_page_where_the_tier_is_away(peer: Peer, server: Harness, store: FakeStore) -> None:
    await orders(peer)
    make_stream_cold(server.host.find("s"), store)
    store.fail(times=-1)
    began_at = trio.current_time()
    answer = await peer.ask(c.Find, "s", words(sql="region = 'US'"))
    assert answer.code == ResponseCode.STREAM_NOT_AVAILABLE
    assert "the tier" in answer.reason
    assert trio.current_time() - began_at < 2 * search_session.FETCH_SECONDS
    store.heal()
    await trio.sleep(60)
    assert await find(peer, "s", key="17") == [17]


async def test_finding_without_a_tier(peer: Peer, server: Harness) -> None:
    await orders(peer)
    make_stream_cold(server.host.find("s"), FakeStore(), restored=True)
    answer = await peer.ask(c.Find, "s", words(key="17"))
    assert answer.code == ResponseCode.STREAM_NOT_AVAILABLE
    assert "start the server with --tier" in answer.reason


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize("offset", [0, 4, 9, 10])
async def test_truncating(
    peer: Peer, server: Harness, store: FakeStore, offset: int, restored: bool
) -> None:
    sent = await fill(peer, stream_max_segment_size_bytes="300")
    make_stream_cold(server.host.find("s"), store, restored=restored)
    store.fail(name="get_range", times=2)
    assert await truncate(peer, offset=offset) == offset
    assert await all_of(server, 10 - offset) == sent[offset:] if offset < 10 else True


async def test_truncating_where_the_tier_is_away(
    peer: Peer, server: Harness, store: FakeStore
) -> None:
    """It is cut before a whole segment, as where the disk has no room; nobody waits for ever."""
    await fill(peer)
    make_stream_cold(server.host.find("s"), store)
    store.fail(times=-1)
    began_at = trio.current_time()
    assert await truncate(peer, offset=7) == 0
    assert trio.current_time() - began_at < ANSWER_SECONDS  # that clients wait


async def test_where_offsets_lead_to(peer: Peer, server: Harness, store: FakeStore) -> None:
    await orders(peer)
    specs: list[OffsetSpecification] = [FIRST, LAST, at(33), since(1_700_000_004_500)]
    local = [await peer.ask(c.ResolveOffsetSpec, "s", spec, ()) for spec in specs]
    make_stream_cold(server.host.find("s"), store, restored=True)
    found = [await peer.ask(c.ResolveOffsetSpec, "s", spec, ()) for spec in specs]
    assert [one.offset for one in found] == [one.offset for one in local]
    assert {one.code for one in found} == {OK}


async def test_lag_in_seconds_needs_nothing_of_the_tier(
    peer: Peer, server: Harness, store: FakeStore
) -> None:
    await orders(peer)
    await peer.send(c.StoreOffset("me", "s", 20))
    await trio.sleep(1)
    (local,) = await must(peer, "offset.list", stream="s")
    make_stream_cold(server.host.find("s"), store)
    (found,) = await must(peer, "offset.list", stream="s")
    assert float(found["seconds_behind"]) == pytest.approx(float(local["seconds_behind"]), abs=5)
    assert not store.count("get_range")
