"""What is found is what a look at every message finds: in each order, in pages of any size."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from segments.log import Log
from segments.message import Message
from segments.search import span_reader
from segments.search.page import Cut, Limits
from segments.search.request import SearchRequest
from segments.search.search import Search, run
from segments.selector import parse_sql, parse_tags
from tests.segments.derived.test_derived_files import index_all
from tests.segments.derived.test_key_files import index_keys, small_tables
from tests.segments.search.model import (
    IDENTITY,
    KEYS,
    START_MS,
    ChunkPlan,
    joined,
    pages,
    plans,
    small_pieces,
    wanted,
    write,
)

__all__ = ["small_pieces", "small_tables"]  # fixtures


SELECTORS = (
    None,
    parse_sql("region = 'EU'"),
    parse_sql("region = 'EU' OR order_id = 4711"),
    parse_sql("region <> 'EU'"),
    parse_sql("order_id LIKE 'l%'"),
    parse_sql("region = 'EU' AND region = 'US'"),
    parse_tags("*"),
)
TIMES = st.none() | st.sampled_from(
    (START_MS - 1, START_MS, START_MS + 1, START_MS + 8, START_MS + 1_008)
)


@st.composite
def requests(draw: st.DrawFn) -> SearchRequest:
    keys = draw(st.lists(st.sampled_from(KEYS), max_size=3, unique=True))
    names = st.sampled_from(("order_id", "KEYS", "properties.message_id", "region"))
    first, last = draw(TIMES), draw(TIMES)
    if first is not None and last is not None and last < first:
        first, last = last, first
    properties = draw(st.lists(names, min_size=1, max_size=3, unique=True)) if keys else ()
    latest = bool(keys) and draw(st.booleans())
    return SearchRequest(
        keys=tuple(keys),
        properties=tuple(properties),
        from_ms=first,
        to_ms=last,
        by_creation_time=draw(st.booleans()),
        selector=draw(st.sampled_from(SELECTORS)),
        filter_values=draw(st.sampled_from(((), (), (b"EU",), (b"US", b"5")))),
        filter_properties=("region",),
        is_strict=draw(st.booleans()),
        newest=latest or draw(st.booleans()),
        offset=draw(st.none() | st.integers(0, 40)),
        limit=10_000,
        latest=latest,
    )


@given(
    plan=plans,
    asked=requests(),
    limit=st.integers(1, 5),
    page_bytes=st.sampled_from((1, 4_000, 1 << 20)),
    read_bytes=st.sampled_from((1 << 20, 1 << 20, 1, 1_000, 4_000)),
    over_after=st.none() | st.integers(1, 6),
    filters=st.sampled_from(("as written", "none", "from files", "and keys")),
)
def test_pages_together_are_all_that_there_is(
    plan: list[ChunkPlan],
    asked: SearchRequest,
    limit: int,
    page_bytes: int,
    read_bytes: int,
    over_after: int | None,
    filters: str,
) -> None:
    with_keys = filters == "and keys"
    log, messages = write(plan, key_properties=("order_id", "KEYS") if with_keys else ())
    for segment in log.segments.shown:
        if filters != "as written":
            segment.drop_filters()
    if filters in ("from files", "and keys"):
        index_all(log)
    if with_keys:
        index_keys(log)
    expected = wanted(messages, asked)
    searched = Search(log, asked, IDENTITY, START_MS)
    whole = run(searched)
    is_indexed = with_keys and asked.keys and set(asked.properties) <= {"order_id", "KEYS"}
    assert is_indexed or not searched.looked_at.segments_indexed
    assert [m.offset for m in whole.messages] == expected
    assert (whole.cut, whole.after) == (None, "")
    by_offset = {m.offset: m for m in messages}
    for found in whole.messages:
        assert found.raw == by_offset[found.offset].raw
        assert found.timestamp_ms == by_offset[found.offset].timestamp_ms
    limits = Limits(page_bytes=page_bytes, read_bytes=read_bytes)
    parts = list(pages(log, replace(asked, limit=limit), limits, over_after=over_after))
    assert joined(parts) == whole.messages
    for counted in ("segments", "segments_indexed"):  # once, however many pages go on in one
        total = sum(getattr(part.looked_at, counted) for part in parts)
        assert total == getattr(whole.looked_at, counted)
    for part in parts:
        assert len(part.messages) <= limit
        assert page_bytes > 1 or len(part.messages) <= 1
        assert part.cut is not Cut.LIMIT or len(part.messages) == limit
    log.close()


def order(key: object, body: bytes = b"") -> bytes:
    return Message(body, application_properties={"order_id": key}).encode()


def latest(log: Log, *keys: str) -> tuple[list[int], dict[str, int]]:
    """Offsets of the newest message of each key, and what was looked at."""
    asked = SearchRequest(keys=keys, properties=("order_id",), newest=True, latest=True)
    page = run(Search(log, asked, IDENTITY, START_MS))
    assert page.cut is None
    return [message.offset for message in page.messages], page.looked_at.as_dict()


class TestTheLatestOfManyKeys:
    """What a key's newest message was found for is not looked for any more."""

    def test_chunks_without_a_key_that_is_left_are_not_read(self) -> None:
        self.check([order("rare")], [order("often")])
        large = b"z" * 2 * span_reader.SPAN_BYTES  # each chunk is read for itself
        looked_at = self.check([order("rare", large)], [order("often", large)])
        assert looked_at["bytes_read"] < 3 * len(large)

    def check(self, first: list[bytes], others: list[bytes]) -> dict[str, int]:
        plan = [ChunkPlan(0, 1, first)] + 11 * [ChunkPlan(0, 1, others)]
        log, _ = write(plan, key_properties=("order_id",))
        index_keys(log)
        found, looked_at = latest(log, "often", "rare")
        assert found == [11, 0]
        assert looked_at["chunks_read"] == 2
        assert looked_at["chunks_skipped_by_keys"] == 10
        assert looked_at["segments_indexed"] == looked_at["segments"] == 3
        return looked_at

    @pytest.mark.parametrize("is_indexed", [True, False])
    def test_of_a_chunk_only_keys_that_it_has_are_looked_for(self, is_indexed: bool) -> None:
        numbers = range(60)
        plan = [ChunkPlan(0, 1, [order(n), order(f"{n}")]) for n in numbers]
        log, _ = write(plan, key_properties=("order_id",) if is_indexed else ())
        index_keys(log)
        keys = [str(n) for n in numbers if n % 3]
        found, looked_at = latest(log, *keys)
        assert found == [2 * int(key) + 1 for key in reversed(keys)]
        assert looked_at["chunks_read"] == (len(keys) if is_indexed else 59)
        assert looked_at["messages_tested"] <= 2 * len(keys)
