"""Several filter properties: what the server takes from messages, and what selectors ask for."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from segments import FIRST, ChunkBuilder, ChunkMatcher, Log, LogPolicy, Reader
from segments.compression import GZIP, NO_COMPRESSION, pack
from segments.derived.filter_files import save
from segments.entries import Entries, split
from segments.filter_index import FilterIndex
from segments.message import Message
from segments.property_keys import key_of, mark_of, told
from segments.pushed_down import matcher_of
from segments.selector import Dialect, Selector, SelectorError, filter_value_reader, parse_property
from segments.selector.selector import parse_sql, parse_tags
from streamd.broker.declared.filter_contract import MAX_VALUES_BYTES, FilterContract, contract_of
from streamd.broker.streams.waiters import Waiters
from streamd.operations.arguments import filter_properties, read_arguments, read_settings
from streamd.operations.errors import Refused
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.publish import encode_sub_batch
from tests.broker.declared.test_selectors import history
from tests.segments.selector.strategies import expressions, meeting, messages
from tests.support.disk import FaultyDisk
from tests.support.logs import entry, sub_batch
from tests.support.server import FIRST as FIRST_MESSAGE, Harness, Peer

PROPERTY = "stream-filter-property"
STRICT, DERIVE = {"stream-filter-contract": "strict"}, {"stream-filter-derive": "true"}
CONTRACTS = ({}, STRICT, DERIVE, STRICT | DERIVE)
BOTH = {"stream_filter_property": "carrier,d", "stream_filter_derive": "true"}


def contract(names: str, arguments: dict[str, str]) -> FilterContract | None:
    return contract_of(read_arguments({PROPERTY: names, **arguments}.items()))


def entries_of(raws: Sequence[bytes], values: Sequence[bytes] | None = None) -> Entries:
    ids = b"".join(n.to_bytes(8, "big") for n in range(len(raws)))
    return Entries(ids, b"".join(map(entry, raws)), len(raws), len(raws), values)


def packed(raws: Sequence[bytes], compression: int) -> Entries:
    body, size = pack(raws, compression)
    return Entries(bytes(8), sub_batch(body, len(raws), compression, size), 1, len(raws), None)


class TestArguments:
    @pytest.mark.parametrize(
        ("text", "names", "canonical"),
        [
            ("region", ("region",), "region"),
            ("[x]", ("[x]",), "[x]"),  # one name is whatever it is
            ("region,kind", ("region", "kind"), "region,kind"),
            (" region , properties.subject", ("region", "properties.subject"), None),
            ("[a,b]", ("a,b",), "[a,b]"),
            ("[a,b],[c]]d],e", ("a,b", "c]d", "e"), "[a,b],c]d,e"),
            ("[ a],[[[b]", (" a", "[[b"), "[ a],[[[b]"),
            ("a,b,c,d", ("a", "b", "c", "d"), "a,b,c,d"),
        ],
    )
    def test_names(self, text: str, names: tuple[str, ...], canonical: str | None) -> None:
        found = read_arguments([(PROPERTY, text)])
        assert filter_properties(found) == names
        assert found[PROPERTY] == canonical or canonical is None
        assert read_arguments([(PROPERTY, str(found[PROPERTY]))]) == found

    @given(st.lists(st.text(min_size=1), min_size=1, max_size=4, unique=True))
    def test_any_names_can_be_written(self, names: list[str]) -> None:
        text = ",".join("[" + name.replace("]", "]]") + "]" for name in [*names, "last one"])
        try:
            found = read_arguments([(PROPERTY, text)])
        except Refused:
            return
        assert filter_properties(found) == (*names, "last one")

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("a,b,c,d,e", "expected at most 4 names of properties, and there are 5"),
            ("kind,region,kind", "expected each name once, and 'kind' is there twice"),
            ("region,", "expected names with commas between them, and one is missing"),
            (",region", "and one is missing"),
            ("", "expected the name of a property"),
            ("[region,kind", "expected a closing bracket behind a name in brackets"),
            ("[a,b]c", "expected a comma behind a name in brackets"),
            ("region,properties.nonsense", "expected the name of a property: properties has"),
            ("region,k\tind", "expected a name of at most 200 bytes"),
            ("region," + "x" * 201, "expected a name of at most 200 bytes"),
            ("x" * 256, "expected a name of at most 255 bytes"),
        ],
    )
    def test_what_is_no_list_of_names(self, text: str, reason: str) -> None:
        with pytest.raises(Refused) as caught:
            read_arguments([(PROPERTY, text)])
        assert reason in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_they_cannot_be_changed(self) -> None:
        with pytest.raises(Refused, match="stream-filter-property cannot be changed; "):
            read_settings([(PROPERTY, "region,kind")])


NAMES = ("p", "q", "TAGS")
READERS = [filter_value_reader(parse_property(name)) for name in NAMES]
MEETING = [*meeting("p"), *meeting("q"), *meeting("TAGS")]
MESSAGES = st.one_of(messages(), st.sampled_from(MEETING), st.sampled_from(MEETING))


def parsed(text: str, dialect: Dialect) -> Selector | None:
    try:
        return parse_sql(text, dialect)
    except SelectorError:
        return None


def built(checked: Entries | None) -> ChunkBuilder | None:
    if checked is None:
        return None
    made = ChunkBuilder()
    for part in split(checked, 2, 1 << 20):
        made.add(*part[1:])
    return made


@given(st.lists(MESSAGES, min_size=1, max_size=8), st.sampled_from(CONTRACTS), st.booleans())
@settings(max_examples=40)
def test_what_is_taken_is_what_each_property_says(
    raws: list[bytes], arguments: dict[str, str], is_packed: bool
) -> None:
    enforced = contract("p,q,TAGS", arguments)
    assert enforced is not None
    derives = "stream-filter-derive" in arguments
    if is_packed:
        checked = enforced.check_sub_batch(packed(raws, GZIP))
    else:
        given = [READERS[0](raw) for raw in raws]
        checked = enforced.check(entries_of(raws, given if any(given) and not derives else None))
    made = built(checked.entries)
    if made is None:  # a sub-batch has no values of its own, which a strict contract asks for
        assert is_packed
        assert "stream-filter-contract" in arguments
        return
    plain, properties = told(dict(made._values))
    expected = [Counter(read(raw) for raw in raws) for read in READERS]
    assert properties == {"q": expected[1], "TAGS": expected[2]}
    has_first = derives or not is_packed
    assert plain == (expected[0] if has_first else {b"": len(raws)})


class _Chunks:
    """A log whose chunks came in every way there is, and which of them hold a match.

    Args:
        names: of the filter properties; the last one was declared later.
        arguments: of the stream.
        selector: what is to be found.
    """

    def __init__(self, names: Sequence[str], arguments: dict[str, str], selector: Selector) -> None:
        now, before = (contract(",".join(part), arguments) for part in (names, names[:-1]))
        assert now is not None
        assert before is not None
        self._now, self._before = now, before
        self._first = READERS[NAMES.index(names[0])]
        self._selector = selector
        policy = LogPolicy(max_segment_chunks=1000, filter_size=255)
        self.log = Log.open("s", policy, FaultyDisk())
        self.needed: list[int] = []

    def publish(self, raws: Sequence[bytes], how: str) -> None:
        if how in ("packed", "gzip"):
            batch = packed(raws, GZIP if how == "gzip" else NO_COMPRESSION)
            checked = self._now.check_sub_batch(batch)
        elif how == "plain":
            checked = self._now.check(entries_of(raws))
        else:
            enforced = self._before if how == "before" else self._now
            checked = enforced.check(entries_of(raws, [self._first(raw) for raw in raws]))
        made = built(checked.entries)
        if made is None:
            return
        refused = {checked.refused_ids[n + 7] for n in range(0, len(checked.refused_ids), 8)}
        stored = [raw for n, raw in enumerate(raws) if n not in refused]
        if self._selector.matcher().select(stored):
            self.needed.append(self.log.committed_offset)
        self.log.append([made], 1)

    def index_as(self, state: str) -> None:
        (segment,) = self.log.segments.shown
        if state == "sealed":
            assert isinstance(segment.filters, FilterIndex)
            segment.filters = save(segment, segment.filters)
        elif state == "none":
            segment.filters, segment.is_indexable = None, False

    def read(self, matcher: ChunkMatcher | None) -> set[int]:
        reader = Reader(self.log, self.log.segments.find(FIRST), matcher)
        found = set()
        while not reader.at_end:
            found |= {chunk.header.chunk_id for chunk in reader.read(5, 1 << 20, 3)}
        reader.close()
        return found


HOW = st.sampled_from(("plain", "given", "packed", "gzip", "before"))
INDEXES = st.sampled_from(("sealed", "open", "none"))
TAGS = st.lists(st.sampled_from(("a", "b", "5")), min_size=1).map("||".join).map(parse_tags)


@pytest.mark.parametrize("dialect", Dialect)
@given(data=st.data())
@settings(max_examples=40)
def test_no_match_is_lost(dialect: Dialect, data: st.DataObject) -> None:
    """Any selector over any messages, whatever the contract, packed or not, sealed or not."""
    sql = expressions(dialect).map(lambda text: parsed(text, dialect))
    selector = data.draw(st.one_of(sql, sql, sql, TAGS))
    if selector is None:
        return
    arguments = data.draw(st.sampled_from(CONTRACTS))
    names = data.draw(st.permutations(NAMES))
    chunks = _Chunks(names, arguments, selector)
    some = [MEETING[place] for place in selector.matcher().select(MEETING)]
    drawn = st.one_of(MESSAGES, st.sampled_from(some)) if some else MESSAGES
    for raws in data.draw(st.lists(st.lists(drawn, min_size=1, max_size=4), max_size=6)):
        chunks.publish(raws, data.draw(HOW))
    asked = selector.push_down(names, is_strict="stream-filter-contract" in arguments)
    chunks.index_as(data.draw(INDEXES))
    assert set(chunks.needed) <= chunks.read(matcher_of(asked))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A message of which a byte is another one, perhaps, or an end is missing."""
    raw = bytearray(draw(MESSAGES))
    if raw and draw(st.booleans()):
        raw[draw(st.integers(0, min(40, len(raw) - 1)))] = draw(st.integers(0, 255))
    return bytes(raw[: draw(st.integers(0, len(raw)))] if draw(st.booleans()) else raw)


@given(st.lists(damaged(), min_size=1, max_size=8))
def test_properties_that_were_seen_before_say_the_same(raws: list[bytes]) -> None:
    """Whatever stands behind them, and however they are damaged."""
    enforced = contract("p,q,TAGS", {"stream-filter-derive": "true"})
    assert enforced is not None
    raws += [raw + b"\0\x53\x77\xa1\1x" for raw in raws]
    for _ in range(2):
        checked = enforced.check(entries_of(raws)).entries
        assert checked is not None
        plain, q, tags = ([read(raw) for raw in raws] for read in READERS)
        assert checked.filter_values == (plain if any(plain) else None)
        assert list(map(list, checked.property_keys)) == [
            [key_of(name, value) for value in values] for name, values in (("q", q), ("TAGS", tags))
        ]


# p = 'a', and then a text that is not UTF-8 as q.
DAMAGED = b"\0\x53\x74\xc1\x0d\4\xa1\1p\xa1\1a\xa1\1q\xa1\1\xff" + b"\0\x53\x75\xa0\1x"


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("names", ["p,q", "q,p"])
def test_a_property_is_read_although_another_is_damaged(names: str, is_packed: bool) -> None:
    """A selector that names it alone finds it, too."""
    assert parse_sql("p = 'a'").matcher().matches(DAMAGED)
    enforced = contract(names, {"stream-filter-derive": "true"})
    assert enforced is not None
    check = enforced.check_sub_batch if is_packed else enforced.check
    made = built(check(packed([DAMAGED], GZIP) if is_packed else entries_of([DAMAGED])).entries)
    assert made is not None
    plain, properties = told(dict(made._values))
    assert plain == ({b"a": 1} if names == "p,q" else {b"": 1})
    assert properties == ({"q": {b"": 1}} if names == "p,q" else {"p": {b"a": 1}})


def test_what_is_refused_leaves_no_keys() -> None:
    enforced = contract("carrier,d", {"stream-filter-contract": "strict"})
    assert enforced is not None
    raws = [flight("HA", "x"), flight("HA", "y"), flight("HA", "z")]
    checked = enforced.check(entries_of(raws, [b"HA", b"UA", b"HA"]))
    assert checked.refused_ids == (1).to_bytes(8, "big")
    made = built(checked.entries)
    assert made is not None
    assert told(dict(made._values)).properties == {"d": {b"x": 1, b"z": 1}}


def test_filter_values_that_look_like_keys_are_none() -> None:
    given = [b"\0\0d\0late", b"\0\0d", b"HA"]
    for arguments in CONTRACTS[::2]:
        enforced = contract("carrier,d", arguments)
        assert enforced is not None
        entries = entries_of([flight("UA", "x")] * 3, given)
        for stored in (enforced.check(entries).entries, enforced.with_property_keys(entries)):
            made = built(stored)
            assert made is not None
            plain, properties = told(dict(made._values))
            assert plain == Counter(given)
            assert properties == {"d": {b"x": 3}}


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        ("p = 'a' AND q = 'b'", {b"a"}, {b"b"}),
        ("p = 'a' AND q IN ('b', 'c') AND z > 5", {b"a"}, {b"b", b"c"}),
        ("(p = 'a' AND q = 'b') OR (p = 'c' AND q = 'd')", {b"a", b"c"}, {b"b", b"d"}),
        ("q = 'b'", None, {b"b"}),
        ("p = 'a' AND q <> 'b'", {b"a"}, None),
        ("p = 'a' OR q = 'b'", None, None),
        ("NOT (p <> 'a' OR q <> 'b')", {b"a"}, {b"b"}),
        ("p = 'a' AND (q = 'b' OR z = 1)", {b"a"}, None),
        ("q IS NULL AND p = 'a'", {b"a"}, {None}),
        ("q = 'b' OR q IS NULL", None, {b"b", None}),
    ],
)
def test_each_property_gets_its_values(
    text: str, first: set[bytes] | None, second: set[bytes | None] | None
) -> None:
    selector = parse_sql(text)
    asked = selector.push_down(["p", "q"], is_strict=True)
    assert asked.values == first
    if second is None:
        assert not asked.properties
        return
    (found,) = asked.properties
    assert found.name == "q"
    assert found.values == second - {None}
    assert found.match_unfiltered == (None in second)
    lenient = selector.push_down(["p", "q"], is_strict=False)  # that is about the first alone
    assert lenient.properties == asked.properties
    assert lenient.match_unfiltered


@pytest.mark.parametrize("text", ["q = 'a' AND q = 'b'", "p = 'a' AND q IS NULL AND q = 'c'"])
def test_what_no_value_of_a_property_fulfils_asks_for_nothing(text: str) -> None:
    assert parse_sql(text).push_down(["p", "q"], is_strict=False).is_empty


def flight(carrier: object, d: object) -> bytes:
    found: dict[str, Any] = {"carrier": carrier, "d": d}
    given = {name: value for name, value in found.items() if value is not None}
    return Message(b"x", application_properties=given).encode()


class _Consumer:
    """A waiter that notes that it was woken."""

    def __init__(self, keys: Sequence[bytes], *others: set[bytes]) -> None:
        self.keys = keys
        self.other_keys = others
        self.times = 0

    def stream_has_more(self) -> None:
        self.times += 1

    def leave_segment(self) -> None:
        """Nothing: it reads no segment."""


def test_a_waiter_is_woken_when_all_that_it_needs_is_there() -> None:
    waiters = Waiters()
    both, either = _Consumer([b"a"], {b"k", b"l"}), _Consumer([b"a"])
    third, gone = _Consumer([b"a"], {b"k"}, {b"z"}), _Consumer([b"a"], {b"k"})
    consumers = (both, either, third, gone)
    for consumer in consumers:
        waiters.add(consumer)
    waiters.remove(gone)

    def woken_by(*keys: bytes) -> list[int]:
        waiters.note(keys, 1)
        waiters.wake(1)
        return [consumer.times for consumer in consumers]

    assert woken_by(b"k", b"z") == [0, 0, 0, 0]
    assert woken_by(b"a") == [0, 1, 0, 0]
    assert woken_by(b"a", b"l") == [1, 1, 0, 0]
    assert woken_by(b"a", b"k", b"z") == [1, 1, 1, 0]
    assert woken_by(b"a", b"k", b"z") == [1, 1, 1, 0]
    assert not waiters
    assert not waiters._for_several


OF_D = {"filter_property__0": "d"}
OR_NONE = {"filter_property__0__match_unfiltered": "true"}


class TestServer:
    async def test_values_stand_beside_one_another(self, server: Harness, peer: Peer) -> None:
        await peer.begin("s", **BOTH)
        await peer.store([flight("HA", "late"), flight("UA", None), flight("HA", 5), b"no message"])
        (found,) = history(server)
        assert found == {
            b"HA": 2,
            b"UA": 1,
            b"": 1,
            mark_of("d"): 4,
            key_of("d", b"late"): 1,
            key_of("d", b""): 3,
        }

    @pytest.mark.parametrize("compression", [NO_COMPRESSION, GZIP])
    async def test_from_sub_batches(self, server: Harness, peer: Peer, compression: int) -> None:
        await peer.begin("s", stream_filter_property="carrier,d", stream_filter_derive="false")
        body, size = pack([flight("HA", "late"), flight("UA", "early")], compression)
        await peer.send(c.Publish(1, 1, encode_sub_batch(1, 2, compression, size, body)))
        await peer.confirmed(1)
        (found,) = history(server)
        plain, properties = told(found)
        assert plain == {b"": 2}
        assert properties == {"d": {b"late": 1, b"early": 1}}

    async def test_a_sub_batch_with_too_many_values(self, peer: Peer) -> None:
        await peer.begin("s", stream_filter_property="carrier,d")
        big = [flight("HA", "x" * 20_000 + str(n)) for n in range(MAX_VALUES_BYTES // 20_000 + 1)]
        body, size = pack(big, GZIP)
        await peer.send(c.Publish(1, 1, encode_sub_batch(1, len(big), GZIP, size, body)))
        answer = await peer.next()
        assert isinstance(answer, c.PublishError)

    @pytest.mark.parametrize(
        ("properties", "expected"),
        [
            ({}, [0, 1, 2, 3]),
            ({"filter__0": "HA"}, [0, 1]),
            (OF_D | {"filter_property__0__value__0": "late"}, [0, 2]),
            (OF_D | {"filter__0": "HA", "filter_property__0__value__0": "late"}, [0]),
            (
                OF_D
                | OR_NONE
                | {"filter__0": "UA", "match_unfiltered": "true"}
                | {"filter_property__0__value__0": "early"},
                [3],
            ),
            (OF_D | OR_NONE, [3]),
            (OF_D, []),
            # One that the stream does not declare further says nothing of chunks.
            ({"filter_property__0": "carrier", "filter_property__0__value__0": "x"}, [0, 1, 2, 3]),
            ({"filter_property__0": "z", "filter_property__0__value__0": "x"}, [0, 1, 2, 3]),
            ({"filter_property__0__value__0": "x"}, [0, 1, 2, 3]),
        ],
    )
    async def test_whole_chunks(
        self, peer: Peer, properties: dict[str, str], expected: list[int]
    ) -> None:
        await peer.begin("s", **BOTH)
        pairs = [("HA", "late"), ("HA", "early"), ("UA", "late"), ("UA", None)]
        for number, (carrier, d) in enumerate(pairs):
            await peer.store([flight(carrier, d)], first_id=number)
        await peer.subscribe("s", **properties)
        for number in expected:
            assert (await peer.chunk()).bodies == [flight(*pairs[number])]
        await peer.silence()

    async def test_only_those_who_want_all_of_it_are_woken(self, peer: Peer) -> None:
        await peer.begin("s", **BOTH)
        for number in range(6):
            await peer.subscribe(
                "s",
                subscription_id=number,
                filter__0=f"c{number % 2}",
                filter_property__0="d",
                filter_property__0__value__0=f"d{number // 2}",
            )
        for number in (*range(6), *range(6)):
            raw = flight(f"c{number % 2}", f"d{number // 2}")
            await peer.publish([raw], first_id=100 + number)
            commands = [await peer.next(), await peer.next()]
            delivered = [x.subscription_id for x in commands if isinstance(x, c.Deliver)]
            assert delivered == [number]
        await peer.silence()

    async def test_what_is_asked_of_others_keeps_nobody_waiting(self, peer: Peer) -> None:
        await peer.begin("s", **BOTH)
        await peer.subscribe("s", filter_property__0="z", filter_property__0__value__0="x")
        await peer.publish([flight("HA", "late")])
        commands = [await peer.next(), await peer.next()]
        assert any(isinstance(command, c.Deliver) for command in commands)

    @pytest.mark.parametrize(
        "pairs",
        [
            [(f"filter-property.{n}", "d") for n in range(5)],
            [("filter-property.0", "d"), ("filter.0", "HA")]
            + [(f"filter-property.0.value.{n}", str(n)) for n in range(1_000)],
        ],
        ids=["properties", "values"],
    )
    async def test_too_many(self, peer: Peer, pairs: list[tuple[str, str]]) -> None:
        await peer.begin("s", **BOTH)
        code = await peer.code(c.Subscribe, 1, "s", FIRST_MESSAGE, 10, tuple(pairs))
        assert code == ResponseCode.PRECONDITION_FAILED


def test_a_commit_of_a_part_wakes_for_that_part_alone() -> None:
    """What is written and not committed yet wakes those who come to wait in between."""
    waiters, early, late = Waiters(), _Consumer([b"a"]), _Consumer([b"b"])
    waiters.add(early)
    waiters.note([b"a"], 5)
    waiters.note([b"b"], 9)
    waiters.wake(5)
    waiters.add(late)
    assert (early.times, late.times) == (1, 0)
    waiters.wake(8)
    waiters.wake_all()
    waiters.add(late)
    assert late.times == 1
    waiters.wake(9)
    assert late.times == 2
