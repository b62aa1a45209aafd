"""Keys of further filter properties: nothing is mistaken for them, and no chunk is lost by them."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import example, given, strategies as st

from segments import FIRST, ChunkBuilder, ChunkMatcher, Log, LogPolicy, Reader
from segments.derived.filter_files import save, scan
from segments.filter_index import FilterIndex, matching, next_match, next_of_all
from segments.property_keys import (
    PREFIX,
    PropertyFilter,
    is_mark,
    is_of_property,
    key_of,
    mark_of,
    plain_key,
    told,
)
from segments.search.chunk_screen import ChunkTest
from segments.search.request import SearchRequest
from segments.selector import parse_sql
from tests.support.disk import FaultyDisk

NAMES = st.sampled_from(("k", "kind", "properties.subject", "[", "é"))
# Values that look like the keys of others, or nearly so.
VALUES = st.one_of(
    st.binary(max_size=8),
    st.sampled_from(
        (b"\0", b"\0\0", b"\0\0k", b"\0\0k\0", b"\0\0k\0a", b"\0\0\0", b"a", b"x" * 300)
    ),
)


@given(NAMES, VALUES, NAMES, VALUES)
def test_different_things_have_different_keys(
    name: str, value: bytes, other: str, another: bytes
) -> None:
    keys = {
        ("plain", "", value): plain_key(value),
        ("plain", "", another): plain_key(another),
        ("key", name, value): key_of(name, value),
        ("key", other, another): key_of(other, another),
        ("mark", name, b""): mark_of(name),
        ("mark", other, b""): mark_of(other),
    }
    assert len(set(keys.values())) == len(keys)
    for (kind, _, _), key in keys.items():
        assert is_of_property(key) == (kind != "plain")
        assert is_mark(key) == (kind == "mark")


Message = tuple[bytes, bytes, bytes]  # a plain filter value, and values of k and of m


def builder(messages: Sequence[Message], names: Sequence[str] = ("k", "m")) -> ChunkBuilder:
    """A chunk as a stream writes it whose further properties are these."""
    made = ChunkBuilder()
    plain = [m[0] for m in messages]
    if names:
        plain = list(map(plain_key, plain))
    made.add(
        b"\0\0\0\1x" * len(messages),
        len(messages),
        len(messages),
        plain if any(plain) else None,
        tuple(map(mark_of, names)),
        tuple([key_of(n, m["km".index(n) + 1]) for m in messages] for n in names),
    )
    return made


SMALL = st.sampled_from((b"", b"a", b"b", b"\0\0k", b"\0\0k\0a", b"y" * 300))


def plainer(
    chunk: tuple[list[Message], tuple[str, ...]],
) -> tuple[list[Message], tuple[str, ...]]:
    """Before a stream had further properties, no filter value looked like a mark."""
    messages, names = chunk
    return (messages if names else [(m[0].lstrip(b"\0"), *m[1:]) for m in messages]), names


CHUNKS = st.lists(
    st.tuples(
        st.lists(st.tuples(SMALL, SMALL, SMALL), min_size=1, max_size=4),
        # Most declared both; some are of before one, or both, were declared.
        st.sampled_from((("k", "m"), ("k", "m"), ("k", "m"), ("k",), ())),
    ).map(plainer),
    min_size=1,
    max_size=25,
)
WANTED = st.tuples(st.sets(SMALL.filter(bool), max_size=2), st.booleans())
MATCHERS = st.tuples(st.none() | WANTED, st.none() | WANTED, st.none() | WANTED).filter(any)


def matcher_of(wanted: Sequence[tuple[set[bytes], bool] | None]) -> ChunkMatcher:
    plain, *others = wanted
    return ChunkMatcher(
        None if plain is None else plain[0],
        match_unfiltered=plain is not None and plain[1],
        properties=[
            PropertyFilter(name, frozenset(found[0]), found[1])
            for name, found in zip("km", others, strict=True)
            if found is not None
        ],
    )


def is_wanted(
    messages: Sequence[Message],
    names: Sequence[str],
    wanted: Sequence[tuple[set[bytes], bool] | None],
) -> bool:
    for place, (name, found) in enumerate(zip((None, "k", "m"), wanted, strict=True)):
        if found is None or (name is not None and name not in names):
            continue
        values = {m[place] for m in messages}
        # A plain value that looks like a key may be one, where it is asked for.
        looks = {v for v in found[0] if v.startswith(PREFIX)} if name is None else set()
        if not (values & found[0] or (found[1] and b"" in values) or looks):
            return False
    return True


def is_surely_wanted(
    messages: Sequence[Message],
    names: Sequence[str],
    wanted: Sequence[tuple[set[bytes], bool] | None],
) -> bool:
    clean = [
        found if found is None else ({v for v in found[0] if not v.startswith(PREFIX)}, found[1])
        for found in wanted[:1]
    ]
    return is_wanted(messages, names, [*clean, *wanted[1:]]) or (
        wanted[0] is not None
        and bool({m[0] for m in messages} & wanted[0][0])
        and is_wanted(messages, names, [None, *wanted[1:]])
    )


def read(log: Log, matcher: ChunkMatcher) -> list[int]:
    reader = Reader(log, log.segments.find(FIRST), matcher)
    found: list[int] = []
    while not reader.at_end:
        found += [chunk.header.chunk_id for chunk in reader.read(5, 1 << 20, 3)]
    assert reader.counts.chunks + reader.counts.skipped_chunks == log.segments.shown[-1].num_chunks
    reader.close()
    return found


@given(CHUNKS, MATCHERS, st.booleans())
@example([([(b"\0\0k\0a", b"", b"")], ("k", "m"))], (None, ({b"a"}, False), None), False)
def test_exactly_the_chunks_that_hold_all_of_it(
    chunks: list[tuple[list[Message], tuple[str, ...]]],
    wanted: tuple[tuple[set[bytes], bool] | None, ...],
    is_sealed: bool,
) -> None:
    log = Log.open("s", LogPolicy(max_segment_chunks=1000), FaultyDisk())
    may, must, offset = [], [], 0
    for messages, names in chunks:
        log.append([builder(messages, names)], 1)
        if is_wanted(messages, names, wanted):
            may.append(offset)
        if is_surely_wanted(messages, names, wanted):
            must.append(offset)
        offset += len(messages)
    matcher = matcher_of(wanted)
    (segment,) = log.segments.shown
    assert isinstance(segment.filters, FilterIndex)
    assert vars(scan(segment, segment.size)) == vars(segment.filters)
    if is_sealed:
        segment.filters = save(segment, segment.filters)
    found = read(log, matcher)
    assert set(must) <= set(found) <= set(may)
    segment.filters, segment.is_indexable = None, False
    assert set(found) <= set(read(log, matcher))


@given(CHUNKS, MATCHERS)
def test_what_is_found_together_is_what_each_finds(
    chunks: list[tuple[list[Message], tuple[str, ...]]],
    wanted: tuple[tuple[set[bytes], bool] | None, ...],
) -> None:
    index = FilterIndex()
    for number, (messages, names) in enumerate(chunks):
        index.add(100 * number, number, builder(messages, names).keys if number % 7 else None)
    matcher = matcher_of(wanted)
    clauses = matcher.clauses
    every = range(len(chunks))
    held = [n for n in every if all(index.next_match(c.keys, n, c.mark) == n for c in clauses)]
    for ordinal in range(len(chunks) + 1):
        at = bisect_left(held, ordinal)
        assert matching(index, matcher, range(ordinal, len(chunks))) == held[at:]
        assert matching(index, matcher, range(ordinal)) == held[:at]
        assert ordinal <= next_match(index, matcher, ordinal) <= min([*held[at:], len(chunks)])


def test_a_long_search_is_done_in_parts() -> None:
    """Chunks hold one or the other in turn: not all of them are passed in one go."""
    index = FilterIndex()
    sides = [builder([(b"", value, b"z")]).keys for value in (b"a", b"b")]
    for number in range(1000):
        index.add(number, number, sides[number % 2])
    clauses = ChunkMatcher(
        None,
        properties=[PropertyFilter("k", frozenset({value}), False) for value in (b"a", b"b")],
    ).clauses
    found, rounds = 0, 0
    while found < 1000:
        found, rounds = next_of_all(index, clauses, found), rounds + 1
    assert found == 1000
    assert 20 < rounds < 200


class CountingIndex(FilterIndex):
    """Counts the postings that are looked at."""

    looked_at = 0

    def holding(self, key: bytes, chunks: range) -> list[int]:
        found = list(super().holding(key, chunks))
        self.looked_at += len(found) + 1
        return found

    def next_match(self, keys: Iterable[bytes], ordinal: int, mark: bytes | None = None) -> int:
        self.looked_at += 1
        return super().next_match(keys, ordinal, mark)


def test_two_properties_that_never_meet_cost_what_their_chunks_cost() -> None:
    """To know of each chunk whether it is wanted, its postings are looked at once."""
    index = CountingIndex()
    sides = [builder([message]).keys for message in ((b"", b"a", b""), (b"", b"", b"b"))]
    for number in range(4000):
        index.add(number, number, sides[number % 2])
    test = ChunkTest(
        SearchRequest(selector=parse_sql("k = 'a' AND m = 'b'"), filter_properties=("f", "k", "m"))
    )
    (matcher,) = test.matchers
    assert test.num_at_once >= 100
    assert len(matcher.clauses) == 2
    for at in range(0, 4000, 100):
        assert not test.choose(index, range(at, at + 100))
    assert index.looked_at < 5 * 4000


@given(CHUNKS)
def test_the_keys_of_a_chunk_tell_its_values(
    chunks: list[tuple[list[Message], tuple[str, ...]]],
) -> None:
    for messages, names in chunks:
        short = [tuple(value[:9] for value in message) for message in messages]
        found = builder(short, names)
        counts = dict(found._values)
        plain, properties = told(counts)
        assert plain == Counter(m[0] for m in short)
        assert properties == {n: Counter(m["km".index(n) + 1] for m in short) for n in names}


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 0), (0, 1, 0)])
def test_a_chunk_has_the_marks_that_all_its_entries_have(order: tuple[int, ...]) -> None:
    made = ChunkBuilder()
    for with_marks in order:
        if with_marks:
            made.add(b"\0\0\0\1x", 1, 1, None, (mark_of("k"),), ([key_of("k", b"a")],))
        else:
            made.add(b"\0\0\0\1x", 1, 1, None)
    assert mark_of("k") not in made.keys


@pytest.mark.parametrize("is_indexed", [False, True])
def test_a_chunk_that_only_seems_to_have_a_mark_is_not_skipped(is_indexed: bool) -> None:
    """In a small filter with many values the bits of a mark are those of others now and then."""
    log = Log.open("s", LogPolicy(max_segment_chunks=1000, filter_size=16), FaultyDisk())
    for number in range(100):
        values = [(b"%d-%d" % (number, n), b"", b"") for n in range(40)]
        log.append([builder(values, ())], 1)
    (segment,) = log.segments.shown
    if not is_indexed:
        segment.filters, segment.is_indexable = None, False
    matcher = ChunkMatcher(None, properties=[PropertyFilter("k", frozenset({b"a"}), False)])
    assert len(read(log, matcher)) == 100
    both = ChunkMatcher([b"7-7"], properties=[PropertyFilter("k", frozenset({b"a"}), False)])
    found = read(log, both)
    assert 7 * 40 in found
    assert len(found) == 1 if is_indexed else len(found) < 70  # the first property rules some out


def test_catching_up_ends_soon() -> None:
    """Where chunks hold one thing or the other in turn, the rest is read in turns with others."""
    log = Log.open("s", LogPolicy(max_segment_chunks=10_000), FaultyDisk())
    for number in range(1000):
        log.append([builder([(b"", b"ab"[number % 2 :][:1], b"z")])], 1)
    sides = [PropertyFilter("k", frozenset({value}), False) for value in (b"a", b"b")]
    reader = Reader(log, log.segments.find(FIRST), ChunkMatcher(None, properties=sides))
    reader.catch_up()
    assert 50 < reader.next_offset < 500
    while not reader.at_end:
        assert not reader.read(5, 1 << 20, 3)
    assert reader.counts.skipped_chunks == 1000
    reader.close()


@pytest.mark.parametrize(
    ("keys", "is_bare"),
    [
        ([b""], True),
        ([b"", b"a"], False),
        ([b"a"], False),
        ([b"", mark_of("k"), key_of("k", b"a")], True),
        ([b"", mark_of("k"), key_of("k", b"a"), b"b"], False),
        ([b"", b"\0\0x"], False),  # a filter value of a stream without further properties
    ],
)
def test_chunks_without_filter_values_are_known(keys: list[bytes], is_bare: bool) -> None:
    index = FilterIndex()
    index.add(0, 0, keys)
    assert list(index.bare) == ([0] if is_bare else [])
