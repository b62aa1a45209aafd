"""A search of cold segments finds what one of local segments finds, and fetches what it has to."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, strategies as st

from segments.derived.key_files import keys_of
from segments.log import Log
from segments.message import Message
from segments.search import search
from segments.search.page import KeysUnknown, Limits, Missing, Page
from segments.search.request import SearchRequest
from segments.search.search import Search
from segments.store.cache import ColdError, Range, TierCache
from segments.store.object_store import ObjectStore
from tests.segments.derived.test_key_files import index_keys, small_tables
from tests.segments.search.model import (
    IDENTITY,
    START_MS,
    ChunkPlan,
    plans,
    small_pieces,
    wanted,
    write,
)
from tests.segments.search.test_search import order, requests
from tests.support.cold import Bringer, make_cold
from tests.support.fake_store import FakeStore
from tests.support.logs import truncate

__all__ = ["small_pieces", "small_tables"]  # fixtures


def run(
    log: Log,
    store: ObjectStore,
    asked: SearchRequest,
    after: str = "",
    limits: Limits | None = None,
) -> Page:
    """A page; what is missing is brought, and all that is not needed any more goes at once."""
    bringer = Bringer(log, store)
    cache = log.stored.cache
    while True:
        try:
            searched = Search(log, asked, IDENTITY, START_MS, after, limits)
            break
        except ColdError as error:
            bringer.bring(error)
    steps = searched.steps()
    result: Any = None
    while True:
        try:
            work = steps.send(result)
        except StopIteration:
            bringer.release()
            return searched.page
        result = None
        if isinstance(work, KeysUnknown):
            _load_keys(work, bringer)
        elif isinstance(work, Missing):
            if not work.is_more:
                bringer.release()
            bringer.bring(work.error, work.requests)
            result = True
        cache.shrink(cache.max_bytes // 2)


def _load_keys(unknown: KeysUnknown, bringer: Bringer) -> None:
    while True:
        try:
            keys_of(unknown.segment)
        except ColdError as error:
            bringer.bring(error)
        else:
            return


@contextmanager
def made_cold(log: Log, *, restored: bool = False) -> Iterator[FakeStore]:
    """All of a log is in a store, and it has a cache."""
    store = FakeStore()
    with TemporaryDirectory() as folder:
        log.stored.cache = TierCache(folder, 1 << 20)
        make_cold(log, store, restored=restored)
        yield store
        log.close()


@given(
    plan=plans,
    asked=requests(),
    limit=st.integers(1, 5),
    cache_bytes=st.sampled_from((0, 2_000, 1 << 20)),
    restored=st.booleans(),
    with_keys=st.booleans(),
)
def test_pages_together_are_all_that_there_is(
    plan: list[ChunkPlan],
    asked: SearchRequest,
    limit: int,
    cache_bytes: int,
    restored: bool,
    with_keys: bool,
) -> None:
    log, messages = write(plan, key_properties=("order_id", "KEYS") if with_keys else ())
    if with_keys:
        log.seal()
        index_keys(log)
    store = FakeStore()
    with TemporaryDirectory() as folder:
        log.stored.cache = TierCache(folder, cache_bytes)
        make_cold(log, store, restored=restored)
        expected = wanted(messages, asked)
        assert [m.offset for m in run(log, store, asked).messages] == expected
        found: list[int] = []
        after = ""
        while True:
            page = run(log, store, replace(asked, limit=limit), after)
            found += [message.offset for message in page.messages]
            after = page.after
            if page.cut is None:
                break
        assert found == expected
        log.close()


def test_a_key_in_a_cold_log_fetches_its_chunk_alone() -> None:
    plan = [ChunkPlan(0, 1, [order(f"{n}", b"z" * 3_000)] * 3) for n in range(40)]
    log, _ = write(plan, key_properties=("order_id",))
    log.seal()
    index_keys(log)
    with made_cold(log) as store:
        before = len(store.calls)
        asked = SearchRequest(keys=("17",), properties=("order_id",))
        assert [m.offset for m in run(log, store, asked).messages] == [51, 52, 53]
        calls = store.calls[before:]
        assert [call.name for call in calls] == ["get_range"]
        assert calls[0].size < 10_000


def test_the_page_ends_where_the_tier_does_not_answer() -> None:
    log, _ = write([ChunkPlan(0, 1, [order("1")]) for _ in range(6)])
    with made_cold(log):
        searched = Search(log, SearchRequest(), IDENTITY, START_MS)
        steps = searched.steps()
        for work in steps:
            if isinstance(work, Missing):
                break
        with pytest.raises(StopIteration):
            steps.send(False)
        assert searched.is_away
        assert not searched.progress.has_progressed
        assert searched.page.after


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("number", range(6))
def test_what_is_left_of_a_truncated_segment_is_found(newest: bool, number: int) -> None:
    """Its objects go while it is searched; what is left of it stands in another segment."""
    chunks = [ChunkPlan(0, 1, [order(f"{n}", b"z" * 1_000)] * 3) for n in range(12)]
    log, _ = write(chunks, per_segment=12)
    store, first = FakeStore(), log.segments.first_offset
    cut = first + 12
    with TemporaryDirectory() as folder:
        log.stored.cache = TierCache(folder, 0)
        [segment] = make_cold(log, store)
        bringer = Bringer(log, store)
        assert segment.cold is not None
        searched = Search(log, SearchRequest(newest=newest), IDENTITY, START_MS)
        steps = searched.steps()
        result: Any = None
        while True:
            try:
                work = steps.send(result)
            except StopIteration:
                break
            result = None
            if not isinstance(work, Missing):
                continue
            if number == 0:
                bringer.bring(ColdError(segment.cold, Range(0, segment.size)))
                truncate(log, cut)
                bringer.release()
                log.stored.cache.shrink(0)
                segment.cold.is_gone = True
            number -= 1
            if work.error.cached is segment.cold and not segment.cold.is_gone:
                bringer.release()
                bringer.bring(work.error, work.requests)
            result = True
        found = [message.offset for message in searched.page.messages]
        assert number < 0
        assert [offset for offset in sorted(found) if offset >= cut] == [*range(cut, first + 36)]
        assert searched.page.looked_at.messages_lost == 0
        bringer.release()
        log.close()


def test_a_scan_fetches_many_chunks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_BLOCK", 256)
    log, messages = write([ChunkPlan(0, 1, [order("1")]) for _ in range(40)], per_segment=20)
    with made_cold(log) as store:
        found = run(log, store, SearchRequest(limit=1_000)).messages
        assert len(found) == len(messages) == 40
        assert store.count("get_range") == 2  # one for each segment


def test_a_filter_value_fetches_its_chunks_alone() -> None:
    """Also where the filter index has to be fetched before."""
    regions = ["EU" if n == 7 else "US" for n in range(20)]
    plan = [
        ChunkPlan(
            0, 1, [Message(b"z" * 3_000, application_properties={"region": regions[n]}).encode()]
        )
        for n in range(20)
    ]
    log, _ = write(plan, per_segment=20)
    with made_cold(log, restored=True) as store:
        asked = SearchRequest(filter_values=(b"EU",), filter_properties=("region",))
        assert [m.offset for m in run(log, store, asked).messages] == [7]
        assert store.count("get_range") == 1
        assert store.size("get_range") < 4_000
