"""What may happen to a log while it is searched, and to the files beside it: nothing gets lost."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from segments import ChunkBuilder, Log, LogPolicy
from segments.codec import (
    CHUNK_HEADER_SIZE,
    FILE_HEADER_SIZE,
    INDEX_RECORD_SIZE,
    walk_entries,
)
from segments.compression import GZIP, pack
from segments.keys import KeyIndex
from segments.keys.index import Held
from segments.message import Message
from segments.search.chunk_screen import ChunkTest
from segments.search.page import Cut, Limits, TooLarge
from segments.search.request import BadSearch, SearchRequest
from segments.search.search import Search, run
from segments.search.token import BadToken
from segments.segment import INDEX_SUFFIX
from segments.selector import Dialect, parse_sql
from tests.segments.derived.test_key_files import index_keys, small_tables
from tests.segments.search.model import (
    IDENTITY,
    START_MS,
    joined,
    pages,
    step,
)
from tests.support.disk import FaultyDisk
from tests.support.logs import append, entry, sub_batch, truncate

__all__ = ["small_tables"]  # a fixture

EVERYTHING = SearchRequest(limit=10_000)
ORDERS = (EVERYTHING, replace(EVERYTHING, newest=True))
KEYED = SearchRequest(keys=("4711",), properties=("order_id",), limit=10_000)


def order(number: int) -> bytes:
    return Message(b"body", application_properties={"order_id": number}).encode()


def orders(count: int, *, per_chunk: int = 3, per_segment: int = 4) -> tuple[FaultyDisk, Log]:
    """A log of orders, each with its offset as its number, a second between two chunks."""
    disk = FaultyDisk()
    log = Log.open("s", LogPolicy(max_segment_chunks=per_segment), disk)
    for at in range(0, count, per_chunk):
        bodies = [order(n) for n in range(at, min(count, at + per_chunk))]
        append(log, bodies, now_ms=START_MS + 1000 * at)
    log.flush(with_checkpoint=True)  # nobody else uses a sealed segment
    return disk, log


def offsets(log: Log, asked: SearchRequest, after: str = "") -> list[int]:
    return [m.offset for m in run(Search(log, asked, IDENTITY, START_MS, after)).messages]


# -- index files


def each_index_fault() -> list[tuple[str, Callable[[bytearray], None]]]:
    faults: list[tuple[str, Callable[[bytearray], None]]] = [
        ("cut", lambda raw: raw.__delitem__(slice(FILE_HEADER_SIZE + INDEX_RECORD_SIZE, None))),
        ("empty", bytearray.clear),
        ("zeroed", lambda raw: raw.__setitem__(slice(8, None), bytes(len(raw) - 8))),
        ("doubled", lambda raw: raw.__setitem__(slice(8, None), raw[8:37] + raw[8:-29])),
    ]
    for record in range(3):
        for byte in (7, 15, 27, 28):  # of offset, time, epoch, position, type
            at = FILE_HEADER_SIZE + record * INDEX_RECORD_SIZE + byte

            def flip(raw: bytearray, at: int = at) -> None:
                if at < len(raw):
                    raw[at] ^= 0x15

            faults.append((f"record {record} byte {byte}", flip))
    return faults


@pytest.mark.parametrize(("_name", "fault"), each_index_fault(), ids=lambda x: x or "")
def test_a_wrong_index_file_hides_nothing(_name: str, fault: Callable[[bytearray], None]) -> None:
    for base in (0, 12):  # a sealed segment, and the newest
        disk, log = orders(22)
        for segment in log.segments.shown:
            segment.drop_filters()
            if segment.base_offset == base:
                fault(disk.files[segment.path(INDEX_SUFFIX)].content)
        for asked in ORDERS:
            expected = list(range(22))[:: -1 if asked.newest else 1]
            assert offsets(log, asked) == expected
            found = offsets(log, replace(asked, from_ms=START_MS + 3000, to_ms=START_MS + 9000))
            assert sorted(found) == list(range(3, 12))
            assert offsets(log, replace(asked, keys=("7",), properties=("order_id",))) == [7]
            assert offsets(log, replace(asked, offset=13, limit=1)) == [13]
        assert not any(segment.damage for segment in log.segments.shown)


@pytest.mark.parametrize("asked", ORDERS)
def test_places_that_do_not_ascend_hide_nothing(asked: SearchRequest) -> None:
    disk, log = orders(12)
    at = FILE_HEADER_SIZE + INDEX_RECORD_SIZE + 24
    log.segments.shown[0].drop_filters()
    disk.files[log.segments.shown[0].path(INDEX_SUFFIX)].content[at : at + 4] = bytes(4)
    assert sorted(offsets(log, asked)) == list(range(12))


@pytest.mark.parametrize("byte", [0, 4, 7, 22, 27])
@pytest.mark.parametrize("record", range(6))
def test_a_wrong_index_file_beside_a_key_index_hides_nothing(record: int, byte: int) -> None:
    disk = FaultyDisk()
    log = Log.open("s", LogPolicy(max_segment_chunks=6, key_properties=("order_id",)), disk)
    for number in (0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 7, 0, 7):
        append(log, [order(number)], now_ms=START_MS)
    index_keys(log)
    for segment in log.segments.shown:
        segment.drop_filters()
        content = disk.files[segment.path(INDEX_SUFFIX)].content
        at = FILE_HEADER_SIZE + record * INDEX_RECORD_SIZE + byte
        if at < len(content):
            content[at] ^= 0x15
    asked = SearchRequest(keys=("7",), properties=("order_id",))
    for limits in (Limits(), Limits(read_bytes=1)):
        for newest in (False, True):
            found = joined(list(pages(log, replace(asked, newest=newest), limits)))
            assert [m.offset for m in found] == [1, 10, 12, 14][:: -1 if newest else 1]


def test_a_wrong_index_file_beside_a_key_index_hides_nothing_from_an_offset_on() -> None:
    disk = FaultyDisk()
    log = Log.open("s", LogPolicy(max_segment_chunks=4, key_properties=("order_id",)), disk)
    for at in range(0, 15, 3):
        append(log, [order(7 if n == 5 else 0) for n in range(at, at + 3)], now_ms=START_MS)
    index_keys(log)
    segment = log.segments.shown[0]
    path = segment.path(INDEX_SUFFIX)
    right = bytes(disk.files[path].content)
    asked = SearchRequest(keys=("7",), properties=("order_id",))
    for record, wrong in product(range(4), range(12)):
        at = FILE_HEADER_SIZE + record * INDEX_RECORD_SIZE
        for offset, newest in product(range(12), (False, True)):
            content = disk.files[path].content  # a search that notices makes it anew
            content[:] = right
            content[at : at + 8] = wrong.to_bytes(8)
            segment.drop_filters()
            is_wanted = offset >= 5 if newest else offset <= 5
            found = offsets(log, replace(asked, offset=offset, newest=newest))
            assert found == [5] * is_wanted


# -- key indexes that lead to messages


def keyed(chunks: list[bytes], counts: list[int]) -> tuple[FaultyDisk, Log]:
    """A log of chunks, with their numbers of messages, in one segment that is indexed."""
    disk = FaultyDisk()
    log = Log.open("s", LogPolicy(key_properties=("order_id",)), disk)
    for data, count in zip(chunks, counts, strict=True):
        builder = ChunkBuilder()
        builder.add(data, len(list(walk_entries(data))), count, None)
        log.append([builder], START_MS)
    index_keys(log)
    return disk, log


@pytest.mark.usefixtures("small_tables")
class TestOneMessage:
    def test_no_other_is_looked_at(self) -> None:
        bodies = [order(n) for n in range(300)]
        _, log = keyed([b"".join(map(entry, bodies))], [300])
        for number in (0, 150, 299):
            for newest in (False, True):
                asked = replace(KEYED, keys=(str(number),), newest=newest)
                search = Search(log, asked, IDENTITY, START_MS)
                assert [m.offset for m in run(search).messages] == [number]
                assert search.looked_at.messages_tested == 1
                assert search.looked_at.messages_screened == 299

    def test_no_other_batch_is_unpacked(self) -> None:
        batches = [pack([order(n), order(n + 1)], GZIP) for n in (0, 2, 4)]
        data = b"".join(sub_batch(body, 2, GZIP, size) for body, size in batches)
        broken = sub_batch(b"no gzip", 2, GZIP, 99)
        _, log = keyed([data + broken + entry(order(8))], [9])
        for number in (0, 3, 5, 8):
            search = Search(log, replace(KEYED, keys=(str(number),)), IDENTITY, START_MS)
            assert [m.offset for m in run(search).messages] == [number]
            looked_at = search.looked_at
            assert (looked_at.messages_tested, looked_at.messages_lost) == (1, 0)

    def test_a_key_that_is_told_of_some_messages_alone(self) -> None:
        """As a text it is one message's, as a number that of more than the index lists."""
        text = Message(application_properties={"order_id": "5"}).encode()
        bodies = [text] + [order(5)] * 9 + [order(6)]
        _, log = keyed([b"".join(map(entry, bodies))], [11])
        assert offsets(log, replace(KEYED, keys=("5",))) == list(range(10))
        assert offsets(log, replace(KEYED, keys=("6", "5"), newest=True)) == list(range(11))[::-1]

    @pytest.mark.parametrize("numbers", [{5}, {0, 900}, {(1 << 16) - 2}])
    @pytest.mark.parametrize("is_packed", [False, True])
    def test_an_index_of_another_chunk_hides_nothing(
        self, numbers: set[int], is_packed: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = b"".join(entry(order(n)) for n in range(3))
        if is_packed:
            data = sub_batch(data, 3)
        _, log = keyed([data], [3])
        monkeypatch.setattr(KeyIndex, "asked", lambda *_: Held({0: 1}, {0: numbers}))
        assert offsets(log, replace(KEYED, keys=("1",))) == [1]

    def test_no_byte_of_a_chunk_is_given_as_right_where_it_is_wrong(self) -> None:
        """A chunk is sound, or all of it is lost, whichever of its messages is looked at."""
        disk, log = keyed([b"".join(entry(order(n)) for n in range(4))] * 3, [4] * 3)
        segment = log.segments.shown[0]
        content = disk.files[segment.path()].content
        whole, sound = bytes(content), (2, order(2))
        others = [(6, order(2)), (10, order(2))]
        end = (len(whole) - FILE_HEADER_SIZE) // 3 + FILE_HEADER_SIZE
        for at, flips in product(range(FILE_HEADER_SIZE, end), (1, 0x14)):
            content[:] = whole
            content[at] ^= flips
            for with_filters in (True, False):
                segment.damage.clear()
                if not with_filters:
                    segment.drop_filters()
                search = Search(log, replace(KEYED, keys=("2",)), IDENTITY, START_MS)
                found = [(m.offset, m.raw) for m in run(search).messages]
                if found == [sound, *others]:
                    assert at < FILE_HEADER_SIZE + CHUNK_HEADER_SIZE, "the data is whole"
                elif found == others:
                    assert search.looked_at.messages_lost
                else:
                    assert search.looked_at.messages_lost >= 8, (at, found)


# -- damage


@pytest.mark.parametrize("asked", ORDERS, ids=["oldest", "newest"])
def test_damage_beside_damage_is_counted_once(asked: SearchRequest) -> None:
    """Where a chunk is not where it should be, what was read before it is not read again."""
    disk, log = orders(22)
    segment = log.segments.shown[0]
    assert segment.filters is not None
    content = disk.files[segment.path()].content
    first, second = segment.filters.positions[1:3]
    torn, wrong = (second, first) if asked.newest else (first, second)
    content[torn + CHUNK_HEADER_SIZE + 20] ^= 0x11
    content[wrong] ^= 0x11
    search = Search(log, asked, IDENTITY, START_MS)
    found = [m.offset for m in run(search).messages]
    assert len(found) == 16
    assert (search.looked_at.chunks_damaged, search.looked_at.messages_lost) == (2, 6)


@pytest.mark.parametrize("asked", ORDERS, ids=["oldest", "newest"])
@pytest.mark.parametrize("place", ["magic", "chunk id", "size", "data", "unreadable"])
@pytest.mark.parametrize("with_filters", [True, False])
def test_only_what_is_damaged_is_left_out(
    asked: SearchRequest, place: str, with_filters: bool
) -> None:
    disk, log = orders(22)
    segment = log.segments.shown[0]
    inode = disk.files[segment.path()]
    assert segment.filters is not None
    start = segment.filters.positions[1]
    at = {"magic": 0, "chunk id": 31, "size": 38, "data": CHUNK_HEADER_SIZE + 20, "unreadable": 0}
    if place == "unreadable":
        inode.unreadable = range(start, start + 60)
    else:
        inode.content[start + at[place]] ^= 0x11
    if not with_filters:
        for one in log.segments.shown:
            one.drop_filters()
    search = Search(log, asked, IDENTITY, START_MS)
    found = [m.offset for m in run(search).messages]
    assert sorted(found) == [0, 1, 2, *range(6, 22)]
    assert search.looked_at.chunks_damaged == 1
    assert search.looked_at.messages_lost == 3
    assert search.page.cut is None
    for one in log.segments.shown:
        one.drop_filters()
    assert offsets(log, asked) == found  # known from now on
    times = {"from_ms": START_MS + 1, "to_ms": START_MS + 9000}
    assert sorted(offsets(log, replace(asked, **times))) == [6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("with_filters", [True, False])
def test_damage_shifts_no_chunk_that_the_key_index_counts(with_filters: bool, newest: bool) -> None:
    disk, log = orders(22)
    log.policy = LogPolicy(key_properties=("order_id",))
    index_keys(log)
    segment = log.segments.shown[0]
    assert segment.filters is not None
    disk.files[segment.path()].content[segment.filters.positions[1]] ^= 0x11
    if not with_filters:
        segment.drop_filters()
    # 4 is in the chunk that cannot be read, 10 in one behind it.
    assert offsets(log, replace(KEYED, keys=("4", "10"), newest=newest)) == [10]
    assert offsets(log, replace(KEYED, keys=("1", "7", "10"))) == [1, 7, 10]


# -- meanwhile


def test_a_search_that_is_left_keeps_no_file() -> None:
    _, log = orders(30)
    steps = Search(log, EVERYTHING, IDENTITY, START_MS).steps()
    next(steps)
    assert log.segments.shown[0]._users
    steps.close()
    assert not log.segments.shown[0]._users


# -- tokens


def token(log: Log, asked: SearchRequest) -> str:
    page = run(Search(log, replace(asked, limit=1), IDENTITY, START_MS))
    assert page.cut is Cut.LIMIT
    return page.after


def refused(log: Log, asked: SearchRequest, after: str, identity: int = IDENTITY) -> str:
    with pytest.raises(BadToken) as caught:
        Search(log, asked, identity, START_MS, after)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_token_is_good_for_its_stream_and_search_alone() -> None:
    _, log = orders(22)
    for asked in ORDERS:
        after = token(log, asked)
        assert "another stream" in refused(log, asked, after, IDENTITY + 1)
        for other in (replace(asked, newest=not asked.newest), replace(asked, offset=3), KEYED):
            assert "another search" in refused(log, other, after)
        assert len(offsets(log, replace(asked, limit=5), after)) == 5  # the limit may differ
        _, short = orders(3)
        assert "of that name" in refused(short, asked, after)
        other_log = Log.open("s", LogPolicy(), FaultyDisk())
        for number in range(22):
            append(other_log, [order(number)], now_ms=START_MS + 77)
        assert "of that name" in refused(other_log, asked, after)


@pytest.mark.parametrize("asked", ORDERS, ids=["oldest", "newest"])
def test_a_token_tells_streams_apart_also_where_retention_has_been(asked: SearchRequest) -> None:
    _, log = orders(30)
    after = token(log, asked)
    other = Log.open("s", LogPolicy(max_segment_chunks=4), FaultyDisk())
    for number in range(30):
        append(other, [order(number)], now_ms=START_MS + 77)
    truncate(other, 20)
    assert "of that name" in refused(other, asked, after)


@pytest.mark.parametrize("newest", [False, True])
def test_a_token_tells_streams_apart_also_where_nothing_was_read(newest: bool) -> None:
    logs = []
    for time in (START_MS, START_MS + 77):
        policy = LogPolicy(max_segment_chunks=4, key_properties=("order_id",))
        log = Log.open("s", policy, FaultyDisk())
        for number in range(30):
            append(log, [order(number)], now_ms=time)
        assert log.seal()
        index_keys(log)
        logs.append(log)
    asked = replace(KEYED, newest=newest)
    search = Search(logs[0], asked, IDENTITY, START_MS)
    page = step(search, over_after=2)
    assert (page.cut, page.looked_at.chunks_read) == (Cut.BUDGET, 0)
    assert "of that name" in refused(logs[1], asked, page.after)
    assert offsets(logs[0], asked, page.after) == []


def test_a_token_with_any_bit_changed_is_none() -> None:
    _, log = orders(22)
    after = token(log, EVERYTHING)
    for at in range(len(after)):
        for other in "AZaz09-_":
            changed = after[:at] + other + after[at + 1 :]
            if changed != after:
                try:
                    Search(log, EVERYTHING, IDENTITY, START_MS, changed)
                except BadToken:
                    continue
                assert at == len(after) - 1  # bits that base64 leaves over


def test_a_token_survives_that_its_place_is_removed() -> None:
    _, log = orders(30)
    after = token(log, EVERYTHING)
    log.policy = LogPolicy(max_length_bytes=1, max_segment_chunks=4)
    log.flush(with_checkpoint=True)
    log.expire(START_MS)
    assert offsets(log, EVERYTHING, after) == list(range(log.segments.first_offset, 30))
    assert offsets(log, ORDERS[1], "") == list(range(log.segments.first_offset, 30))[::-1]


def test_a_token_is_of_one_dialect() -> None:
    """Which messages are selected depends on it."""
    _, log = orders(22)
    union, rocketmq = (
        replace(EVERYTHING, selector=parse_sql("order_id <> 'x'", dialect))
        for dialect in (Dialect.UNION, Dialect.ROCKETMQ)
    )
    after = token(log, union)
    assert "another search" in refused(log, rocketmq, after)


# -- requests


def test_a_number_is_found_whose_publisher_has_given_another_text_of_it() -> None:
    """The filter value of 5.0 may be "5.0" where the contract is not strict."""
    for value, given_, keys in (
        (5.0, b"5.0", ("5", "5.0")),
        (5, b"5", ("5.0",)),
        (True, b"true", ("TRUE",)),
    ):
        log = Log.open("s", LogPolicy(), FaultyDisk())
        append(log, [Message(b"b", application_properties={"n": value}).encode()], [given_])
        for key in keys:
            asked = SearchRequest(keys=(key,), properties=("n",), filter_properties=("n",))
            assert offsets(log, asked) == [0]


@pytest.mark.parametrize(
    "changed",
    [
        {"limit": 0},
        {"limit": 10**9},
        {"keys": ("",), "properties": ("a",)},
        {"keys": ("x" * 2000,), "properties": ("a",)},
        {"keys": tuple(map(str, range(300))), "properties": ("a",)},
        {"keys": ("a",)},
        {"keys": ("a",), "properties": tuple("abcdefghi")},
        {"properties": ("a",)},
        {"from_ms": 2, "to_ms": 1},
        {"filter_values": (b"a",)},
        {"filter_values": (b"",), "filter_properties": ("p",)},
        {"latest": True},
    ],
)
def test_what_cannot_be_searched_for_is_said_in_a_line(changed: dict[str, Any]) -> None:
    with pytest.raises(BadSearch) as caught:
        replace(EVERYTHING, **changed).check()
    assert "\n" not in str(caught.value)


# -- steps are short


@pytest.mark.parametrize("size", [1, 300_000])
def test_chunks_that_only_seem_to_be_of_a_filter_property_are_searched(size: int) -> None:
    """They were written before it was declared; small filters have the bits of its mark."""
    log = Log.open("s", LogPolicy(filter_size=16), FaultyDisk())
    late = Message(b"x", application_properties={"kind": "late"}).encode()
    for n in range(30):
        values = [b"%d-%d" % (n, value) for value in range(40)]
        append(log, [late, *[bytes(size)] + [b""] * 38], values)
    (segment,) = log.segments.shown
    segment.filters, segment.is_indexable = None, False
    asked = SearchRequest(
        selector=parse_sql("kind = 'late'"), filter_properties=("region", "kind"), limit=100
    )
    assert offsets(log, asked) == list(range(0, 1200, 40))


@pytest.mark.parametrize("latest", [False, True])
def test_large_messages_are_found(latest: bool) -> None:
    """Each may have very many properties."""
    many = {f"p{number}": number for number in range(5_000)} | {"order_id": 4711}
    large = Message(b"b", application_properties=many).encode()
    log = Log.open("s", LogPolicy(), FaultyDisk())
    append(log, [order(1), large, order(4711), large, order(2)])
    asked = replace(KEYED, newest=True, latest=latest)
    assert offsets(log, asked) == ([3] if latest else [3, 2, 1])


def test_chunks_are_not_asked_for_very_many_filter_values() -> None:
    """A thousand in 256 chunks took 0.3 s, longer than to search them."""
    asked = replace(EVERYTHING, filter_properties=("region",))
    for number, is_asked in ((64, True), (65, False)):
        values = tuple(b"%d" % n for n in range(number))
        assert bool(ChunkTest(replace(asked, filter_values=values)).matchers) is is_asked


# -- the screen


@pytest.mark.parametrize("asked", ORDERS, ids=["oldest", "newest"])
def test_a_page_ends_between_batches(asked: SearchRequest) -> None:
    """A chunk may hold thousands of them, each of which takes long to unpack."""
    log = Log.open("s", LogPolicy(), FaultyDisk())
    builder = ChunkBuilder()
    for number in range(20):
        body, size = pack([order(number)], GZIP)
        builder.add(sub_batch(body, 1, GZIP, size), 1, 1, None)
    log.append([builder], START_MS)
    found = list(pages(log, asked, over_after=5))
    assert len(found) > 5
    assert [m.offset for m in joined(found)] == sorted(range(20), reverse=asked.newest)


def test_an_index_of_other_chunks_is_not_read_further() -> None:
    _, log = orders(300)
    search = Search(log, replace(EVERYTHING, offset=100, limit=1), IDENTITY, START_MS)
    assert [m.offset for m in run(search).messages] == [100]
    assert search.looked_at.chunks_read == 1


def test_of_each_key_only_the_newest_message_also_within_a_chunk() -> None:
    log = Log.open("s", LogPolicy(), FaultyDisk())
    append(log, [order(n) for n in (1, 3, 2, 1, 4, 1)])
    append(log, [order(n) for n in (5, 3, 3, 5)])
    keys = ("1", "2", "3", "1.0", "nothing")
    asked = SearchRequest(keys=keys, properties=("order_id",), newest=True, latest=True)
    assert offsets(log, asked) == [8, 5, 2]
    assert [m.offset for page in pages(log, replace(asked, limit=1)) for m in page.messages] == [
        *(8, 5, 2)
    ]


def test_a_message_that_no_page_has_room_for_is_named() -> None:
    log = Log.open("s", LogPolicy(), FaultyDisk())
    append(log, [order(0), order(1), b"x" * 5000, order(3)])
    limits = Limits(message_bytes=4_000)
    with pytest.raises(TooLarge, match="the message with offset 2 has 5,000 bytes"):
        run(Search(log, EVERYTHING, IDENTITY, START_MS, limits=limits))
    beside = replace(EVERYTHING, offset=3)
    assert [m.offset for m in run(Search(log, beside, IDENTITY, 0, limits=limits)).messages] == [3]
    keyed = replace(EVERYTHING, keys=("1",), properties=("order_id",))
    assert [m.offset for m in run(Search(log, keyed, IDENTITY, 0, limits=limits)).messages] == [1]
