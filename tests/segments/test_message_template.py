"""Messages read by a template are what the general decoder makes of them, whatever they hold."""

import struct
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from hypothesis import given, strategies as st

from segments import message as reading, message_template
from segments.amqp10 import encode_list, encode_map, encode_text, encode_value
from segments.errors import FormatError
from segments.message import Message, MessageView, Properties
from segments.message_template import Templates
from tests.segments.test_message import SIMPLE, VALUES
from tests.support.odd_messages import VALUES as OF_ALL_TYPES, odd_messages

ENCODED = st.sampled_from([value for value, _, _ in OF_ALL_TYPES.values()])
SIMPLE_ENCODED = SIMPLE.map(encode_value) | ENCODED
KEYS = st.sampled_from(["a", "region", "é", "y" * 200, "x" * 300]).map(encode_text) | ENCODED
LOOKED_FOR = ("a", "region", "é", "x" * 300, "EU", "5", "")


def _map(items: list[tuple[bytes, bytes]]) -> bytes:
    return encode_map([part for item in items for part in item])


MAPS = st.lists(st.tuples(KEYS, SIMPLE_ENCODED | VALUES.map(encode_value)), max_size=5).map(_map)
LISTS = st.lists(SIMPLE_ENCODED, max_size=15).map(encode_list)
SECTIONS = {0x70: LISTS, 0x71: MAPS, 0x72: MAPS, 0x73: LISTS, 0x74: MAPS, 0x78: MAPS}
BODIES = {0x75: st.binary(max_size=300).map(encode_value), 0x76: LISTS, 0x77: SIMPLE_ENCODED}
ODD = [odd.raw for name in ("region", "properties.subject") for odd in odd_messages(name)]


@st.composite
def _section(draw: st.DrawFn, codes: dict[int, st.SearchStrategy[bytes]]) -> bytes:
    code = draw(st.sampled_from(sorted(codes)))
    kind = codes[code] if draw(st.integers(0, 9)) else ENCODED
    is_short = draw(st.integers(0, 9))
    descriptor = b"\x00\x53" if is_short else b"\x00\x80" + bytes(7)
    return descriptor + bytes((code,)) + draw(kind)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Sections of all kinds and types, mostly in order, before bytes."""
    odd = draw(st.integers(0, 5))
    if odd == 0:
        return draw(st.sampled_from(ODD))
    if odd == 1:
        before = draw(st.lists(_section(SECTIONS), max_size=4))
        return b"".join(before + draw(st.lists(_section(BODIES | SECTIONS), max_size=3)))
    items = st.lists(st.tuples(KEYS, SIMPLE_ENCODED), max_size=4, unique_by=lambda pair: pair[0])
    parts = [b"\x00\x53\x73" + draw(LISTS), b"\x00\x53\x74" + draw(items.map(_map))]
    if draw(st.booleans()):
        parts.insert(0, draw(_section(SECTIONS)))
    return b"".join((*parts[draw(st.integers(0, 1)) :], b"\x00\x53\x75", draw(BODIES[0x75])))


@st.composite
def alike(draw: st.DrawFn) -> list[bytes]:
    """A message, and some that differ from it in a few bytes, or in how many there are."""
    raw = draw(messages())
    found = [raw] * 3
    for _ in range(draw(st.integers(1, 6))):
        changed = bytearray(raw)
        for _ in range(draw(st.integers(1, 3))):
            if changed:
                changed[draw(st.integers(0, len(changed) - 1))] = draw(st.integers(0, 255))
        cut = draw(st.integers(0, len(changed))) if not draw(st.integers(0, 4)) else len(changed)
        found.append(bytes(changed[:cut]) + draw(st.binary(max_size=draw(st.sampled_from((0, 3))))))
    return draw(st.permutations([*found, raw]))


READ: dict[str, Callable[[MessageView], Any]] = {
    "is_amqp": lambda view: view.is_amqp,
    "body": lambda view: view.body,
    "value": lambda view: view.value,
    "properties": lambda view: view.properties,
    "application_properties": lambda view: list(view.application_properties.items()),
    "annotations": lambda view: view.annotations,
    **{
        f"fixed property {name}": lambda view, name=name: view.fixed_property(name)
        for name in ("message_id", "subject", "reply_to_group_id")
    },
    **{
        f"application property {name}": lambda view, name=name: view.application_property(name)
        for name in LOOKED_FOR
    },
}


def _outcome(read: Callable[[MessageView], Any], view: MessageView) -> tuple[str, str]:
    """What was read, with its type; NaN is as good as another."""
    try:
        found = read(view)
    except FormatError as error:
        return "error", str(error)
    return type(found).__name__, repr(found)


def _by_general_decoder(raw: bytes) -> MessageView:
    view = MessageView(raw)
    view._fit = None
    return view


def _check(raw: bytes, names: list[str]) -> None:
    fast, general = MessageView(raw), _by_general_decoder(raw)
    for name in names:
        assert _outcome(READ[name], fast) == _outcome(READ[name], general), name


@pytest.fixture(autouse=True)
def templates(monkeypatch: pytest.MonkeyPatch) -> Templates:
    found = Templates()
    monkeypatch.setattr(reading, "_TEMPLATES", found)
    return found


@given(st.lists(alike(), min_size=1, max_size=3), st.permutations(sorted(READ)))
def test_what_a_template_reads_is_what_the_general_decoder_reads(
    runs: list[list[bytes]], names: list[str]
) -> None:
    reading._TEMPLATES._known.clear()
    for raw in (raw for run in runs for raw in run):
        _check(raw, names)


@pytest.mark.parametrize("name", ["region", "properties.subject"])
def test_each_type_is_read_as_by_the_general_decoder(name: str) -> None:
    for odd in odd_messages(name):
        for _ in range(3):
            _check(odd.raw, sorted(READ))


SMALL = b"\xa1\x01a\x54\x05"  # a property
DAMAGED = {
    "map ends too early": b"\x00\x53\x74\xc1\x06\x02" + SMALL + b"\x00\x53\x75\xa0\x00",
    "map ends too late": b"\x00\x53\x74\xc1\x07\x02" + SMALL + b"\x40\x00\x53\x75\xa0\x00",
    "key without a value": b"\x00\x53\x74\xc1\x09\x03" + SMALL + b"\xa1\x01b\x00\x53\x75\xa0\x00",
    "odd count": b"\x00\x53\x74\xc1\x06\x03" + SMALL + b"\x00\x53\x75\xa0\x00",
    "list ends too late": b"\x00\x53\x73\xc0\x04\x01\x54\x05\x40\x00\x53\x75\xa0\x00",
    "section twice": b"\x00\x53\x74\xc1\x06\x02" + SMALL + b"\x00\x53\x74\x45\x00\x53\x75\xa0\x00",
    "symbol": b"\x00\x53\x74\xc1\x08\x02\xa1\x01a\xa3\x02\xc3\xa9\x00\x53\x75\xa0\x00",
    "body cut off": b"\x00\x53\x74\xc1\x06\x02" + SMALL + b"\x00\x53\x75\xa0\x05abcd",
    "no list": b"\x00\x53\x73\x40\x00\x53\x75\xa0\x00",
}


@pytest.mark.parametrize("raw", DAMAGED.values(), ids=DAMAGED)
def test_damage_is_what_the_general_decoder_says(raw: bytes) -> None:
    for name in READ:
        for _ in range(3):
            _check(raw, [name])


def _order(number: int) -> bytes:
    return Message(
        b"x" * (number % 300),
        Properties(message_id=number + 1_000, subject="created"),
        {"region": "EU", "total": number + 1_000, "paid": True, "weight": 0.5 * number},
        {"x-source": "shop"},
    ).encode()


def test_messages_that_look_alike_share_a_template(templates: Templates) -> None:
    raws = [_order(number) for number in range(255)]
    found = [templates.fit(raw) for raw in raws]
    assert found[0] is None
    made = {id(fit[0]) for fit in found[1:] if fit is not None}
    assert len(made) == 1
    assert all(fit is not None for fit in found[1:])
    view = MessageView(raws[7])
    assert view.application_property("total") == 1_007
    assert view.body == b"x" * 7
    assert view._fit


def test_texts_of_other_lengths_have_templates_of_their_own(templates: Templates) -> None:
    raws = [
        Message(b"", application_properties={"a": "x" * a, "b": "y" * b}).encode()
        for _ in range(3)
        for a, b in product((1, 2), repeat=2)
    ]
    found = [templates.fit(raw) for raw in raws]
    assert all(fit is not None for fit in found[4:])
    assert len({id(fit[0]) for fit in found if fit is not None}) == 4


def test_a_single_message_makes_no_template(templates: Templates) -> None:
    assert templates.fit(_order(1)) is None
    (alike,) = templates._known.values()
    assert not alike.templates


def test_messages_that_never_look_alike_cost_few_templates(
    templates: Templates, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0

    class Counted(message_template.Template):
        def __init__(self, raw: bytes) -> None:
            nonlocal made
            made += 1
            super().__init__(raw)

    monkeypatch.setattr(message_template, "Template", Counted)
    for number in range(5_000):  # the same size, in 199 ways
        a = 1 + number * 7 % 199
        texts = {"a": "x" * a, "b": "y" * (200 - a)}
        templates.fit(Message(b"", application_properties=texts).encode())
    assert 0 < made <= 8 * 5_000 // 1_000
    nested = Message(b"", application_properties={"a": ["x"]}).encode()
    before = made
    for _ in range(900):
        assert templates.fit(nested) is None
    assert made == before + 1


def test_what_is_kept_is_bounded(templates: Templates) -> None:
    for number in range(2_000):
        raw = b"\x00\x53\x74\xd1" + struct.pack(">H", number)
        templates.fit(raw)
    assert len(templates._known) == message_template._MAX_KEYS
