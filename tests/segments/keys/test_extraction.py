"""The keys of a chunk: an index may know too many, and never too few."""

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import example, given, strategies as st

from segments import compression
from segments.amqp10 import Symbol, encode_list, encode_map, encode_value
from segments.keys import KeyReader, forms_of_key, key_prints
from segments.keys.extraction import ANY_MESSAGE, KeyExtractor
from segments.keys.table import NUMBER_BITS
from segments.message import Message, Properties
from tests.segments.selector import strategies
from tests.support import odd_messages
from tests.support.logs import entry, sub_batch

PROPERTIES = ("p", "q", "KEYS", "properties.message_id", "properties.subject")


def told_of(body: bytes, properties: Sequence[str]) -> frozenset[int]:
    """What a search would ask an index for, for the keys of a message."""
    return frozenset().union(
        *(key_prints([name], KeyReader([name]).read(body)) for name in properties)
    )


def check(
    data: bytes, bodies: Sequence[bytes | None], properties: Sequence[str] = PROPERTIES
) -> None:
    """Whoever looks for a key of a message is led to it, or to all of its chunk.

    Args:
        bodies: the messages by their numbers; None for one that nobody can read.
    """
    told = KeyExtractor(properties).told(data)
    if told is None:
        return
    for number, body in enumerate(bodies):
        for key in told_of(body, properties) if body is not None else ():
            places = {one & ANY_MESSAGE for one in told if one >> NUMBER_BITS == key}
            assert not places.isdisjoint((number, ANY_MESSAGE)), (number, key)


def prints(data: bytes, *properties: str) -> set[int] | None:
    told = KeyExtractor(properties).told(data)
    return None if told is None else {one >> NUMBER_BITS for one in told}


def data_of(bodies: Sequence[bytes]) -> bytes:
    return b"".join(map(entry, bodies))


def packed(bodies: Sequence[bytes], code: int) -> bytes:
    body, size = compression.pack(bodies, code)
    return sub_batch(body, len(bodies), code, size)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Messages of all kinds, some of them damaged."""
    rows = st.dictionaries(
        st.sampled_from(("p", "q", "KEYS", "other")),
        st.one_of(strategies.property_values, st.text("pq \x01¡", max_size=6)),
        max_size=4,
    )
    ids = st.one_of(st.none(), strategies.texts, st.integers(0, 9), st.uuids(), st.binary())
    raw = Message(
        draw(st.binary(max_size=9)),
        Properties(message_id=draw(ids), subject=draw(st.one_of(st.none(), strategies.texts))),
        draw(rows),
    ).encode()
    if draw(st.integers(0, 4)):
        return raw
    at, size = draw(st.integers(0, len(raw))), draw(st.integers(0, 3))
    return raw[:at] + draw(st.binary(max_size=size)) + raw[at + size :]


LOST = sub_batch(b"no batch", 2, 1, 99)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.lists(messages(), min_size=1, max_size=3), st.integers(0, 4)),
            messages(),
            st.just(LOST),
        ),
        max_size=5,
    )
)
def test_and_of_packed_ones(entries: list[tuple[list[bytes], int] | bytes]) -> None:
    """Beside messages that are not, and batches that nobody can unpack."""
    data, bodies = b"", list[bytes | None]()
    for one in entries:
        if isinstance(one, tuple):
            data += packed(*one)
            bodies += one[0]
        else:
            data += one if one is LOST else entry(one)
            bodies += [None, None] if one is LOST else [one]
    check(data, bodies)
    assert KeyExtractor(PROPERTIES).told(data) is not None


def keyed(*keys: object) -> list[bytes]:
    return [Message(application_properties={"p": key}).encode() for key in keys]


class TestWhichMessages:
    def test_each_is_told(self) -> None:
        for bodies in (keyed("a", "b", 5, "a"), keyed("b"), keyed("a", "a")):
            found = KeyExtractor(["p"]).told(data_of(bodies))
            expected = [(n, key) for n, body in enumerate(bodies) for key in told_of(body, ["p"])]
            assert found == {key << NUMBER_BITS | n for n, key in expected}

    def test_one_stands_for_many(self) -> None:
        (key,) = told_of(keyed("a")[0], ["p"])
        for count, numbers in ((8, range(8)), (9, [ANY_MESSAGE])):
            found = KeyExtractor(["p"]).told(data_of(keyed(*["a"] * count)))
            assert found == {key << NUMBER_BITS | n for n in numbers}

    def test_of_a_batch_behind_what_is_no_batch(self) -> None:
        data = data_of(keyed("x")) + LOST + packed(keyed("y", "a"), 1) + data_of(keyed("b"))
        found = KeyExtractor(["p"]).told(data)
        expected = zip(keyed("x", "y", "a", "b"), (0, 3, 4, 5), strict=True)
        assert found == {
            key << NUMBER_BITS | n for body, n in expected for key in told_of(body, ["p"])
        }

    def test_messages_that_are_far_behind(self) -> None:
        plain = packed([b""] * 0xFFFF, 0)
        for before, number in ((packed([b""] * 0xFFFE, 0), 0xFFFE), (plain, ANY_MESSAGE)):
            found = KeyExtractor(["p"]).told(before + data_of(keyed("a")))
            (key,) = told_of(keyed("a")[0], ["p"])
            assert found == {key << NUMBER_BITS | number}


@given(st.binary(max_size=64), st.lists(messages(), max_size=2))
def test_bytes_that_are_no_messages(junk: bytes, bodies: list[bytes]) -> None:
    check(data_of([junk, *bodies]), [junk, *bodies])
    check(data_of(bodies) + junk, [])


@pytest.mark.parametrize("name", ["region", "properties.subject"])
def test_each_type_and_encoding(name: str) -> None:
    bodies = [message.raw for message in odd_messages.odd_messages(name)]
    for body in bodies:
        check(data_of([body]), [body], [name])
    check(data_of(bodies), bodies, [name])


NAMES = ("a", "aa", "á", "¡", "\x01".join("aa"), "a" * 97, "é" * 80 + "¡", "order_id")


@example("a", ["x"], "a")
@given(st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), max_size=3), st.text(max_size=4))
def test_names_that_stand_in_each_other(name: str, others: list[str], value: str) -> None:
    """A value may be the name, its length before it; and so may the end of one."""
    nested = [bytes((len(n.encode()),)).decode("latin1") + n + "¡" for n in NAMES if n.isascii()]
    for given_ in (value, name, *nested, nested[0] + value):
        parts = [part for n in others for part in (encode_value(n), encode_value(given_))]
        parts += [encode_value(name), encode_value(given_ + name), encode_value("z"), b"\x43"]
        body = b"\x00\x53\x74" + encode_map(parts)
        check(data_of([body, body]), [body], [name])
        assert KeyReader([name]).read(body) or not given_


def test_a_value_with_the_name_of_its_property_in_it() -> None:
    row = {"x": "order_id", "order_id": "4711"}
    body = Message(application_properties=row).encode()
    check(data_of([body]), [body], ["order_id"])
    for value in (b"\x08order_id\xa1\x0212", "\x08order_id", "\x08order_id¡12"):
        body = Message(application_properties={"order_id": value, "y": "z"}).encode()
        check(data_of([body]), [body], ["order_id"])


def test_a_place_that_hides_the_next_one() -> None:
    """The name ends as its encoding begins: what looks like it takes a byte of the true one."""
    name = "n" * 37 + "á("
    encoded = name.encode()
    assert len(encoded) == ord("(")
    looks_like_it = b"(" + encoded[:-2]
    for value in ("z", 5, b"z", 2.5, "z" * 300):
        body = Message(application_properties={"x": looks_like_it, name: value}).encode()
        assert body.count(b"(" + encoded) == 1
        assert body.find(b"(" + encoded) + len(encoded) == body.rfind(b"(" + encoded)
        assert KeyReader([name]).read(body)
        for bodies in (
            [body],
            [body, body],
            [body, Message(application_properties={name: "y"}).encode()],
        ):
            check(data_of(bodies), bodies, [name])


def test_a_place_that_is_hidden_by_the_next_one() -> None:
    """A number and the next property look like the name once more, with a string behind it."""
    name = "Sá$" + "n" * 35 + "("
    encoded = name.encode()
    assert len(encoded) == ord("(")
    parts = [b"\xa1(" + encoded, b"\x53\xc3", encode_value(name[3:]), encode_value("z")]
    body = b"\x00\x53\x74" + encode_map(parts)
    assert body.count(b"(" + encoded) == body.count(b"(" + encoded + b"\xa1") == 1
    assert KeyReader([name]).read(body) == {b"#195"}
    check(data_of([body]), [body], [name])


def test_bombs_are_not_unpacked() -> None:
    size = 10 << 20
    body, full = compression.pack([bytes(size)], 1)
    one = sub_batch(body, 1, 1, full)
    assert prints(one, "p") == set()
    assert prints(one + one, "p") is None, "looked at by whoever searches"


def test_a_chunk_of_nothing_but_keys_is_not_indexed() -> None:
    words = " ".join(str(n) for n in range(4_000))
    body = Message(application_properties={"KEYS": words}).encode()
    assert prints(entry(body + bytes(100_000)), "KEYS") is not None
    short = "".join(chr(0x100 + n) + " " for n in range(4_000))
    body = Message(application_properties={"KEYS": short}).encode()
    assert prints(entry(body), "KEYS") is None


def test_values_that_reach_over_each_other_are_not_read_for_ever() -> None:
    place = b"\x02aa\xb0\0\0\xf0\0"
    assert prints(entry(place * 30_000), "aa") is None


def test_keys_are_split_at_spaces() -> None:
    body = Message(application_properties={"KEYS": " a  b c ", "p": "a b"}).encode()
    assert KeyReader(["KEYS"]).read(body) == {b"=a", b"=b", b"=c"}
    assert KeyReader(["p"]).read(body) == {b"=a b"}


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("4711", ["4711", 4711, 4711.0, b"4711", Symbol("4711")]),
        ("5.50", ["5.50", 5.5]),
        ("true", ["true", True]),
        (b"4711", ["4711", b"4711"]),
        (4711, [4711, 4711.0]),
        (True, [True]),
        (2.5, [2.5]),
    ],
)
def test_what_a_key_stands_for(key: str | bytes | float, values: list[object]) -> None:
    every = ["4711", 4711, 4711.0, b"4711", "5.50", 5.5, 2.5, "true", True, 1, "x", None, ""]
    for value in (*every, *values):
        body = Message(application_properties={"p": value}).encode()
        is_one = any(value == one and type(value) is type(one) for one in values)
        assert (not forms_of_key(key).isdisjoint(KeyReader(["p"]).read(body))) is is_one, value


def test_ids_and_times() -> None:
    uuid = "12345678-1234-5678-1234-567812345678"
    time = "2026-11-21T09:00:00Z"

    body = Message(
        properties=Properties(
            message_id=UUID(uuid), creation_time=datetime(2026, 11, 21, 9, tzinfo=UTC)
        )
    ).encode()
    for name, keys in (
        ("properties.message_id", (uuid, UUID(uuid))),
        ("properties.creation_time", (time, datetime(2026, 11, 21, 9, tzinfo=UTC), 1795251600000)),
    ):
        for key in keys:
            assert not forms_of_key(key).isdisjoint(KeyReader([name]).read(body)), key
    assert forms_of_key("") == frozenset()


def test_damage_behind_a_key_hides_it_from_nobody() -> None:
    """Whether a property is asked for alone or with others."""
    fields = encode_list([encode_value("id"), b"\xa1\xff"])
    body = b"\x00\x53\x73" + fields + b"\x00\x53\x75\xa0\x01x"
    names = ["properties.message_id", "properties.user_id"]
    assert KeyReader(names[:1]).read(body) == {b"=id"}
    assert KeyReader(names).read(body) == {b"=id"}
    check(data_of([body]), [body], names)
