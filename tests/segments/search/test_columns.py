"""Searches that choose messages by columns find what looking at every message finds."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from segments import Log, LogPolicy
from segments.codec import FILE_HEADER_SIZE
from segments.columns import read_columns
from segments.message import Message
from segments.search import span_reader
from segments.search.chunk_screen import ChunkTest
from segments.search.page import FoundMessage, Limits
from segments.search.request import SearchRequest
from segments.search.search import Search, run
from segments.segment import SEGMENT_SUFFIX, read_header
from segments.selector import Dialect
from segments.selector.selector import parse_sql
from tests.broker.declared.test_several_properties import (
    CONTRACTS,
    MESSAGES,
    NAMES,
    READERS,
    TAGS,
    built,
    contract,
    entries_of,
    parsed,
)
from tests.segments.derived.test_derived_files import index_all
from tests.segments.search.model import IDENTITY, START_MS, joined, pages
from tests.segments.selector.strategies import expressions
from tests.support.disk import FaultyDisk

FILLERS = [
    Message(b"x", application_properties={"p": f"{n % 3}", "q": "z"}).encode() for n in range(16)
]
SMALL_SPAN = 64  # every chunk is a large one


def drawn_log(
    data: st.DataObject, names: list[str], arguments: dict[str, str], *, strict: bool
) -> Log:
    """A log as a stream with some filter properties has it."""
    log = Log.open("s", LogPolicy(max_segment_chunks=3, filter_size=16), FaultyDisk())
    enforced = contract(",".join(names), arguments)
    for _ in range(data.draw(st.integers(1, 5))):
        raws = data.draw(st.lists(MESSAGES, min_size=1, max_size=5))
        raws += FILLERS if data.draw(st.booleans()) else []
        values = [READERS[NAMES.index(names[0])](raw) for raw in raws]
        if not strict:  # some publishers give none
            values = [value if data.draw(st.booleans()) else b"" for value in values]
        entries = entries_of(raws, values if any(values) else None)
        if enforced is not None:
            checked = enforced.check(entries).entries
            assert checked is not None
            entries = checked
        builder = built(entries)
        assert builder is not None
        log.append([builder], START_MS)
    return log


def append_derived(log: Log, names: str, raws: list[bytes]) -> None:
    """Append what a stream stores whose filter values are derived."""
    derives = contract(names, {"stream-filter-derive": "true"})
    assert derives is not None
    builder = built(derives.check(entries_of(raws)).entries)
    assert builder is not None
    log.append([builder], START_MS)


def found_in(log: Log, asked: SearchRequest) -> list[FoundMessage]:
    return run(Search(log, asked, IDENTITY, START_MS)).messages


@pytest.mark.parametrize("dialect", Dialect)
@given(data=st.data())
def test_they_find_what_all_messages_are_looked_at_for(
    dialect: Dialect, data: st.DataObject
) -> None:
    """Whatever is asked, published and damaged; in pages, forwards and backwards."""
    sql = expressions(dialect).map(lambda text: parsed(text, dialect))
    arguments = data.draw(st.sampled_from(CONTRACTS))
    strict = "stream-filter-contract" in arguments
    names = data.draw(st.permutations(NAMES))[: data.draw(st.integers(1, 3))]
    log = drawn_log(data, names, arguments, strict=strict)
    asked = SearchRequest(
        selector=data.draw(st.one_of(st.none(), sql, sql, sql, TAGS)),
        filter_values=data.draw(st.sampled_from(((), (), (b"a",), (b"5", b"b")))),
        filter_properties=tuple(names),
        is_strict=strict,
        newest=data.draw(st.booleans()),
        offset=data.draw(st.none() | st.integers(0, 60)),
        limit=10_000,
    )
    if data.draw(st.booleans()):
        index_all(log)
    segments = log.segments.shown
    if len(segments) > 1 and data.draw(st.booleans()):
        log.truncate(segments[1].base_offset)
    disk = segments[0].disk
    assert isinstance(disk, FaultyDisk)
    for place, bit in data.draw(
        st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 7)), max_size=2)
    ):
        files = sorted(path for path in disk.files if path.endswith(SEGMENT_SUFFIX))
        content = disk.files[files[place % len(files)]].content
        content[8 + place // len(files) % (len(content) - 8)] ^= 1 << bit
    with pytest.MonkeyPatch.context() as patched:
        if data.draw(st.booleans()):
            patched.setattr(span_reader, "SPAN_BYTES", SMALL_SPAN)
        fast = found_in(log, asked)
        limits = Limits(page_bytes=data.draw(st.sampled_from((1, 4_000, 1 << 20))))
        parts = pages(log, replace(asked, limit=data.draw(st.integers(1, 5))), limits)
        assert joined(list(parts)) == fast
        patched.setattr(span_reader, "has_columns", lambda _: False)
        assert fast == found_in(log, asked)
    log.close()


def test_what_is_looked_into() -> None:
    """Messages that may match are tested, chunks without them are not read."""
    log = Log.open("s", LogPolicy(), FaultyDisk())
    for number in range(4):
        raws = [
            Message(
                b"x" * 2_000, application_properties={"p": f"{n % 40}", "q": f"{number}"}
            ).encode()
            for n in range(80)
        ]
        append_derived(log, "p,q", raws)
    for segment in log.segments.shown:
        segment.drop_filters()
    asked = SearchRequest(
        selector=parse_sql("p = '7' AND q = '2'"), filter_properties=("p", "q"), is_strict=True
    )
    page = run(Search(log, asked, IDENTITY, START_MS))
    assert [m.offset for m in page.messages] == [167, 207]
    seen = page.looked_at
    assert (seen.chunks_read, seen.chunks_skipped_by_filter) == (1, 3)
    assert (seen.messages_screened, seen.messages_tested) == (78, 2)
    assert 160_000 < seen.bytes_read < 200_000
    log.close()


@pytest.mark.parametrize("number", [1, 100])
def test_columns_that_take_long_are_not_asked(number: int) -> None:
    """Nobody knows how long before: as if each message had another value."""
    raws = [Message(b"", application_properties={"p": f"{n}"}).encode() for n in range(700)]
    log = Log.open("s", LogPolicy(), FaultyDisk())
    append_derived(log, "p", raws)
    text = " AND ".join(["p IN ('7', '500')"] * number)
    asked = SearchRequest(selector=parse_sql(text), filter_properties=("p",), is_strict=True)
    test = ChunkTest(asked)
    file = log.segments.shown[0].acquire()
    header = read_header(file, FILE_HEADER_SIZE, 0)
    assert header is not None
    columns = read_columns(file, FILE_HEADER_SIZE, header)
    log.segments.shown[0].release()
    assert columns is not None
    assert (test.rows(columns) is None) is (number > 1)
    assert [m.offset for m in found_in(log, asked)] == [7, 500]
    log.close()
