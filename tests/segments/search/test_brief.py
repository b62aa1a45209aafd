"""Look-ups that are done at once: they find what the search finds, or leave it to that."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from segments import ChunkBuilder, Log, LogPolicy
from segments.compression import GZIP, pack
from segments.disk import File, OsDisk, read_ready
from segments.errors import UnreadableError
from segments.format_constants import NO_COMPRESSION
from segments.message import Message
from segments.search import brief
from segments.search.brief import brief_page
from segments.search.handing import Job
from segments.search.page import Limits, Page
from segments.search.request import SearchRequest
from segments.search.search import Search, run
from segments.segment import INDEX_SUFFIX
from tests.segments.derived.test_derived_files import index_all
from tests.segments.derived.test_key_files import index_keys, small_tables
from tests.segments.search.model import (
    IDENTITY,
    KEYS,
    MIXED,
    START_MS,
    ChunkPlan,
    plans,
    wanted,
    write,
)
from tests.segments.search.test_search import order
from tests.support.disk import FaultyDisk
from tests.support.logs import append, sub_batch

__all__ = ["small_tables"]  # a fixture

KEYED = SearchRequest(keys=("4711",), properties=("order_id",))


def read_all(file: File, size: int, position: int) -> bytes | None:
    """Everything is in memory."""
    return file.read(size, position)


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brief, "read_ready", read_all)


def page_of(log: Log, asked: SearchRequest, after: str = "") -> Page | None:
    """The page, if it is given; the log is as before in any case."""
    ends = log.segments.first_offset, log.committed_offset, log.segments.gaps
    before = known_of(log)
    found = brief_page(log, Job(asked, IDENTITY, START_MS, after, Limits(), *ends, 0))
    assert known_of(log) == before
    return found


def known_of(log: Log) -> list[object]:
    return [
        (dict(one.damage), one.keys and one.keys.fault, one.filters, one._users)
        for one in log.segments.shown
    ]


requests = st.builds(
    lambda keys, names, newest, offset, limit, latest, from_ms, to_ms, creation: SearchRequest(
        keys=tuple(keys),
        properties=tuple(names),
        filter_properties=("region",),
        newest=newest or latest,
        offset=offset,
        limit=limit,
        latest=latest,
        from_ms=from_ms,
        to_ms=to_ms,
        by_creation_time=creation,
    ),
    st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True),
    st.lists(st.sampled_from(("order_id", "KEYS", "region")), min_size=1, max_size=3, unique=True),
    st.booleans(),
    st.none() | st.integers(0, 40),
    st.sampled_from((1, 3, 10_000)),
    st.booleans(),
    st.sampled_from((None, None, START_MS, START_MS + 7)),
    st.sampled_from((None, None, START_MS + 7, START_MS + 2000)),
    st.booleans(),
)


@given(
    plan=plans,
    asked=requests,
    per_segment=st.integers(1, 4),
    first=st.integers(0, 8),
    is_indexed=st.booleans(),
    damage=st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(0, 7)), max_size=2),
)
def test_it_finds_what_the_search_finds_or_nothing_at_all(
    plan: list[ChunkPlan],
    asked: SearchRequest,
    per_segment: int,
    first: int,
    is_indexed: bool,
    damage: list[tuple[int, int]],
) -> None:
    log, messages = write(
        plan, per_segment=per_segment, key_properties=("order_id", "KEYS", "region")
    )
    index_all(log)
    index_keys(log)
    if first and len(log.segments.shown) > 1:  # retention
        log.truncate(log.segments.shown[1].base_offset)
        messages = [m for m in messages if m.offset >= log.segments.first_offset]
    if not is_indexed:
        for segment in log.segments.shown:
            segment.drop_filters()
    disk = log.segments.shown[0].disk
    assert isinstance(disk, FaultyDisk)
    files = sorted(path for path in disk.files if path.endswith((".segment", ".index", ".keys")))
    for place, bit in damage:
        content = disk.files[files[place % len(files)]].content
        if content:
            content[place // len(files) % len(content)] ^= 1 << bit
    found = page_of(log, asked)
    if found is None:
        is_sound = all(chunk.packed != MIXED for chunk in plan)  # those have a batch that is not
        is_little = sum(len(chunk.messages) for chunk in plan) <= brief._MOST_FOUND // 2
        assert damage or not (is_sound and is_little)
        return
    whole = run(Search(log, asked, IDENTITY, START_MS))
    assert (found.messages, found.cut, found.left) == (whole.messages, whole.cut, whole.left)
    assert found.after == whole.after
    if not damage:
        assert found.looked_at == whole.looked_at
        assert [m.offset for m in found.messages] == wanted(messages, asked)[: asked.limit]


def one_segment(bodies: list[bytes], *, is_indexed: bool = True) -> Log:
    policy = LogPolicy(key_properties=("order_id",))
    log = Log.open("s", policy, FaultyDisk())
    for raw in bodies:
        append(log, [raw], now_ms=START_MS)
    if is_indexed:
        index_keys(log)
    return log


def opened_of(disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of files that are opened from now on."""
    opened: list[str] = []
    really = disk.open

    def open_file(path: str, *, writable: bool) -> File:
        opened.append(path)
        return really(path, writable=writable)

    monkeypatch.setattr(disk, "open", open_file)
    return opened


@pytest.mark.usefixtures("small_tables")
class TestWhatIsLeftToTheSearch:
    def test_what_asks_for_more_than_keys(self) -> None:
        log = one_segment([order("4711")])
        found = page_of(log, KEYED)
        assert found is not None
        assert [m.offset for m in found.messages] == [0]
        assert page_of(log, SearchRequest()) is None
        assert page_of(log, replace(KEYED, filter_properties=("a",), filter_values=(b"x",))) is None
        assert page_of(log, replace(KEYED, keys=tuple(map(str, range(9))))) is None
        assert page_of(log, KEYED, "no token") is None

    def test_segments_without_an_index(self, monkeypatch: pytest.MonkeyPatch) -> None:
        log = one_segment([order("4711")], is_indexed=False)
        assert page_of(log, KEYED) is not None, "there is next to nothing to look through"
        for most in ((50, 9), (500, 0)):
            monkeypatch.setattr(brief, "_TAIL", most)
            assert page_of(log, KEYED) is None
        index_keys(log)
        assert page_of(log, KEYED) is not None
        assert page_of(log, replace(KEYED, properties=("order_id", "other"))) is None
        policy = LogPolicy(key_properties=("order_id",), max_segment_chunks=1)
        log = Log.open("s", policy, FaultyDisk())
        append(log, [order("4711")], now_ms=START_MS)
        append(log, [order("4712")], now_ms=START_MS)
        assert page_of(log, KEYED) is None
        index_keys(log)
        assert page_of(log, KEYED) is not None
        log.segments.shown[0].keys.fault = "wrong"  # type: ignore[union-attr]
        assert page_of(log, KEYED) is None

    @pytest.mark.parametrize("newest", [False, True])
    def test_many_segments(self, newest: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        plan = [ChunkPlan(0, 1, [order(str(n))]) for n in range(4 * 15)]
        log, _ = write(plan, key_properties=("order_id",))
        index_keys(log)
        disk = log.segments.shown[0].disk
        assert isinstance(disk, FaultyDisk)
        asked = replace(KEYED, keys=("7", "41"), newest=newest)
        for segment in log.segments.shown:
            segment.drop_filters()
        opened = opened_of(disk, monkeypatch)
        found = page_of(log, asked)
        assert found is not None
        assert [m.offset for m in found.messages] == ([41, 7] if newest else [7, 41])
        assert found.looked_at.segments == found.looked_at.segments_indexed == 15
        beside = [path for path in opened if not path.endswith((".keys", ".tmp"))]
        assert len(beside) == 2, "of others only the index of keys"
        monkeypatch.setattr(brief, "_MOST_ASKED", 15 * (1 + 2))  # a text and a number
        opened.clear()
        assert page_of(log, asked) is None
        assert not opened, "it is known before that this takes too much"
        assert page_of(log, replace(KEYED, keys=("7",), newest=newest)) is not None

    def test_what_is_not_in_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        log = one_segment([order("4711")])
        for suffix in (".segment", INDEX_SUFFIX, ".tmp"):

            def read(file: File, size: int, position: int, end: str = suffix) -> bytes | None:
                return None if file.path.endswith(end) else file.read(size, position)

            log.segments.shown[0].drop_filters()
            monkeypatch.setattr(brief, "read_ready", read)
            assert page_of(log, KEYED) is None
            monkeypatch.setattr(brief, "read_ready", read_all)
            assert page_of(log, KEYED) is not None

    def test_many_messages_and_many_bytes(self) -> None:
        log = one_segment([order("4711")] * 60)
        assert page_of(log, KEYED) is None
        assert page_of(log, replace(KEYED, limit=3)) is not None
        large = order("4711", bytes(brief.MOST_LOOKED_INTO // 2))
        assert page_of(one_segment([large]), KEYED) is not None
        assert page_of(one_segment([large] * 2), KEYED) is None
        padding = [order("0", bytes(1_000))] * (brief.MOST_BYTES // 2_000)
        for times, is_done in ((1, True), (2, False)):
            log = one_segment([])
            for _ in range(times):
                append(log, [*padding, order("4711")], now_ms=START_MS)
            index_keys(log)
            assert (page_of(log, KEYED) is not None) is is_done

    def test_messages_that_take_long_to_read(self) -> None:
        """Each step is short only where messages are: what a stranger publishes may not be."""
        many = {f"a{number}": None for number in range(10_000)}
        dear = Message(application_properties={**many, "order_id": "4711"}).encode()
        log = one_segment([dear])
        assert page_of(log, KEYED) is None
        assert len(run(Search(log, KEYED, IDENTITY, START_MS)).messages) == 1
        names = ("order_id", "other")
        keys = tuple(str(number) for number in range(brief._MOST_KEYS))
        log = Log.open("s", LogPolicy(key_properties=names), FaultyDisk())
        append(log, [order("4711")], now_ms=START_MS)
        index_keys(log)
        append(log, [Message(b"\x08order_id" * 2_000).encode()], now_ms=START_MS)
        asked = replace(KEYED, properties=names, keys=keys)
        assert page_of(log, asked) is None, "the keys of a chunk are read"
        assert page_of(log, replace(asked, keys=keys[:1])) is not None

    def test_what_is_looked_into_for_names(self) -> None:
        log = one_segment([order("4711")])
        for _ in range(9):
            append(log, [Message(bytes(5_000)).encode()], now_ms=START_MS)
        assert page_of(log, replace(KEYED, keys=("4712",))) is None
        assert page_of(log, replace(KEYED, keys=("4712",), offset=5)) is not None

    @pytest.mark.parametrize(("compression", "announced"), [(GZIP, 0), (NO_COMPRESSION, 1)])
    def test_a_batch_that_has_much(self, compression: int, announced: int) -> None:
        log = Log.open("s", LogPolicy(key_properties=("order_id",)), FaultyDisk())
        body, size = pack([order("4711"), bytes(2 * brief.MOST_LOOKED_INTO)], compression)
        builder = ChunkBuilder()
        builder.add(sub_batch(body, 2, compression, announced or size), 1, 2, None)
        log.append([builder], START_MS)
        index_keys(log)
        assert page_of(log, KEYED) is None
        assert len(run(Search(log, KEYED, IDENTITY, START_MS)).messages) == 1

    @pytest.mark.parametrize("suffix", [".segment", INDEX_SUFFIX, ".keys.growing.tmp"])
    def test_what_is_damaged(self, suffix: str) -> None:
        log = one_segment([order(str(n)) for n in range(4_709, 4_714)])
        segment = log.segments.shown[0]
        segment.drop_filters()
        disk = segment.disk
        assert isinstance(disk, FaultyDisk)
        content = disk.files[segment.path(suffix)].content
        for at in range(8, len(content)):
            content[at] ^= 0xFF
        assert page_of(log, KEYED) is None


def test_what_is_ready_is_read(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(range(200)))
    file = OsDisk().open(str(path), writable=False)
    try:
        assert file.read(200, 0) == bytes(range(200))  # now it is in memory
        for size, position in ((10, 0), (200, 0), (300, 50), (5, 200), (5, 900), (0, 3)):
            assert read_ready(file, size, position) in (file.read(size, position), None)
    finally:
        file.close()


@pytest.mark.parametrize(
    ("number", "is_refused"), [(errno.EAGAIN, False), (errno.EOPNOTSUPP, False), (errno.EIO, True)]
)
def test_what_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_refused: bool
) -> None:
    """The first bytes are in memory, the next ones are not."""

    def preadv(_fd: int, buffers: list[memoryview], position: int, _flags: int) -> int:
        if position:
            raise OSError(number, os.strerror(number))
        buffers[0][:3] = b"abc"
        return 3

    path = tmp_path / "f"
    path.write_bytes(b"abcdef")
    file = OsDisk().open(str(path), writable=False)
    monkeypatch.setattr("segments.disk._NO_WAIT", 8)
    monkeypatch.setattr("os.preadv", preadv)
    try:
        if is_refused:
            with pytest.raises(UnreadableError):
                read_ready(file, 6, 0)
        else:
            assert read_ready(file, 6, 0) is None
        assert read_ready(file, 3, 0) == b"abc"
        monkeypatch.setattr("segments.disk._NO_WAIT", None)
        assert read_ready(file, 3, 0) is None
    finally:
        file.close()
