"""Property filters decide as RabbitMQ does, and what cannot be used is never used in part."""

import math
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st

from segments.amqp10 import Char, Opaque, Symbol, encode_list
from segments.selector import Dialect, filter_value_of, parse_sql
from segments.selector.parser import FIELDS
from streamd.connections.amqp10.property_filters import (
    APPLICATION_PROPERTIES,
    MAX_FIELDS,
    PROPERTIES,
    read_property_filter,
    selector_of,
)
from streamd.wire.amqp10.values import Described, Ubyte, Uint, Ulong, write_value

ORDER = FIELDS["properties"]  # type: ignore[index] # a StrEnum
TEXTS = st.text("ab%_\\&", max_size=3)
TIMES = st.sampled_from([0, 1, 1_000]).map(lambda ms: datetime.fromtimestamp(ms / 1000, UTC))
UUIDS = st.sampled_from([uuid.UUID(int=0), uuid.UUID(bytes=b"a" * 16)])
VALUES = (
    TEXTS
    | TEXTS.map(str.encode)
    | st.text("ab", max_size=2).map(Symbol)
    | st.sampled_from(
        [True, False, None, 0, 1, 1_000, 0.0, 1.0, 1.5, 2**53 + 1, 2.0**53, 97, -1, -1.0, -0.0]
    )
    | st.sampled_from([Ulong(1), Uint(1), Ubyte(0), [], {}, Opaque(b"\x73\0\0\0a")])
    | TIMES
    | UUIDS
)
MODIFIED = st.builds(str.__add__, st.sampled_from(["&p:", "&s:", "&&", "&"]), TEXTS)
ASKED = VALUES | MODIFIED | st.just(Char("a"))
NAMES = st.sampled_from(["a", "b", "a b", "[c]", "TRUE", "é"])
_IDS = st.integers(0, 3).map(Ulong) | UUIDS | TEXTS.map(str.encode) | TEXTS | MODIFIED
BY_FIELD: dict[str, st.SearchStrategy[Any]] = {
    "message-id": _IDS,
    "user-id": TEXTS.map(str.encode),
    "to": TEXTS | MODIFIED,
    "subject": TEXTS | MODIFIED,
    "reply-to": TEXTS | MODIFIED,
    "correlation-id": _IDS,
    "content-type": st.text("ab", max_size=2).map(Symbol),
    "content-encoding": st.text("ab", max_size=2).map(Symbol),
    "absolute-expiry-time": TIMES,
    "creation-time": TIMES,
    "group-id": TEXTS | MODIFIED,
    "group-sequence": st.integers(0, 3).map(Uint),
    "reply-to-group-id": TEXTS | MODIFIED,
}
MAPS = st.fixed_dictionaries({}, optional={Symbol(name): of for name, of in BY_FIELD.items()})


def application(fields: object) -> Described:
    return Described(Symbol(APPLICATION_PROPERTIES[0]), fields)


def unwrapped(value: Any) -> Any:
    """What RabbitMQ compares."""
    if value is None or isinstance(value, Char | list | dict | Opaque):
        return None  # there a character is a number
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    return value.bytes if isinstance(value, uuid.UUID) else value


def passes(asked: Any, found: Any) -> bool:
    """Whether a value is what is asked for: rabbit_amqp_filter_prop.erl, match_simple_type."""
    value = unwrapped(found)
    if asked is None or value is None:
        return value is not None
    if type(asked) is str and asked.startswith("&p:"):
        return isinstance(value, bytes) and value.startswith(asked[3:].encode())
    if type(asked) is str and asked.startswith("&s:"):
        return isinstance(value, bytes) and value.endswith(asked[3:].encode())
    if type(asked) is str and asked.startswith("&&"):
        asked = asked[1:]
    wanted = unwrapped(asked)
    if isinstance(wanted, bool) is not isinstance(value, bool):
        return False
    return bool(wanted == value)


def is_usable(fields: dict[Any, Any]) -> bool:
    texts = [value for value in fields.values() if type(value) is str]
    return all(not t.startswith("&") or t.startswith(("&p:", "&s:", "&&")) for t in texts)


@given(st.dictionaries(NAMES, ASKED, min_size=1, max_size=3), st.dictionaries(NAMES, VALUES))
def test_application_properties(asked: dict[str, Any], had: dict[str, Any]) -> None:
    if not is_usable(asked):
        with pytest.raises(ValueError, match="begins with &, expected &p:, &s: or &&"):
            read_property_filter(application(asked))
        return
    selector = selector_of([read_property_filter(application(asked))])
    raw = b"\x00\x53\x74" + write_value(had) + b"\x00\x53\x77\x40"
    expected = all(passes(value, had.get(name)) for name, value in asked.items())
    assert selector.matcher().matches(raw) is expected
    assert parse_sql(str(selector), Dialect.AMQP) == selector
    for name in asked if expected else ():
        pushed = selector.push_down([name], is_strict=True)
        value = filter_value_of(had[name])
        if pushed.values is not None:
            assert value in pushed.values if value else pushed.match_unfiltered


def test_null_asks_for_any_value() -> None:
    matcher = selector_of([read_property_filter(application({"a": None}))]).matcher()
    for had, expected in (({"a": 0}, True), ({"a": ""}, True), ({"b": 0}, False), ({}, False)):
        raw = b"\x00\x53\x74" + write_value(had) + b"\x00\x53\x77\x40"
        assert matcher.matches(raw) is expected


@given(MAPS, MAPS)
def test_properties(asked: dict[Symbol, Any], had: dict[Symbol, Any]) -> None:
    assume(asked and is_usable(asked))
    found = read_property_filter(Described(Ulong(PROPERTIES[1]), asked))
    row = [had.get(Symbol(name.replace("_", "-"))) for name in ORDER]
    raw = b"\x00\x53\x73" + encode_list(list(map(write_value, row))) + b"\x00\x53\x77\x40"
    expected = all(passes(value, had.get(name)) for name, value in asked.items())
    assert selector_of([found]).matcher().matches(raw) is expected
    same = read_property_filter(Described(Symbol(PROPERTIES[0]), asked))
    assert found == same


@given(MAPS, st.dictionaries(NAMES, ASKED, min_size=1, max_size=3))
def test_both_have_to_let_a_message_pass(one: dict[Symbol, Any], other: dict[str, Any]) -> None:
    assume(one and is_usable(one) and is_usable(other))
    filters = [
        read_property_filter(Described(Ulong(PROPERTIES[1]), one)),
        read_property_filter(application(other)),
    ]
    both = selector_of(filters)
    assert set(both.properties) == {p for one in filters for p in selector_of([one]).properties}
    assert parse_sql(str(both), Dialect.AMQP).node == both.node


UNUSABLE = (
    Described(Symbol("amqp:properties-filter"), {}),
    Described(Symbol("amqp:properties-filter"), {Symbol("subject"): None}),
    Described(Symbol("amqp:properties-filter"), {"subject": "a"}),
    Described(Symbol("amqp:properties-filter"), {Symbol("subject"): Symbol("a")}),
    Described(Symbol("amqp:properties-filter"), {Symbol("content-type"): "a"}),
    Described(Symbol("amqp:properties-filter"), {Symbol("group-sequence"): Ulong(1)}),
    Described(Symbol("amqp:properties-filter"), {Symbol("message-id"): 1}),
    Described(Symbol("amqp:properties-filter"), {Symbol("creation-time"): 1}),
    Described(Symbol("amqp:properties-filter"), {Symbol("message_id"): Ulong(1)}),
    Described(Symbol("amqp:properties-filter"), {Symbol("to"): "a", Symbol("subject"): "&a"}),
    Described(Symbol("amqp:properties-filter"), [Symbol("subject"), "a"]),
    Described(Symbol("amqp:application-properties-filter"), {Symbol("a"): "a"}),
    Described(Symbol("amqp:application-properties-filter"), {"a": 1, 5: 1}),
    Described("amqp:application-properties-filter", {"a": "a"}),
    Described(Uint(APPLICATION_PROPERTIES[1]), {"a": "a"}),
    Described(Symbol("amqp:sql-filter"), "TRUE"),
    {"a": "a"},
    None,
)


@pytest.mark.parametrize("value", UNUSABLE, ids=str)
def test_what_cannot_be_used(value: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the texts are for people
        read_property_filter(value)


def test_there_are_up_to_so_many_fields() -> None:
    most = {str(number): number for number in range(MAX_FIELDS)}
    assert len(read_property_filter(application(most)).fields) == MAX_FIELDS
    with pytest.raises(ValueError, match="a map of 1 to 16 fields"):
        read_property_filter(application(most | {"more": 1}))


@pytest.mark.parametrize("value", [math.inf, math.nan, Char("a"), [], {}])
def test_what_equals_nothing_matches_nothing(value: object) -> None:
    selector = selector_of([read_property_filter(application({"a": value}))])
    assert selector.push_down(["a"], is_strict=False).is_empty


def test_a_filter_property_chooses_chunks() -> None:
    filters = [read_property_filter(application({"region": "north", "n": 1}))]
    asked = selector_of(filters).push_down(["region"], is_strict=True)
    assert asked.values == frozenset({b"north"})
    assert not asked.match_unfiltered
    subject = Described(Symbol(PROPERTIES[0]), {Symbol("subject"): "north"})
    asked = selector_of([read_property_filter(subject)]).push_down(
        ["properties.subject"], is_strict=True
    )
    assert asked.values == frozenset({b"north"})
