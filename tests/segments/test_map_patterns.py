"""Properties that are read by a pattern are those that a RowReader reads, whatever comes."""

import pytest
from hypothesis import given, strategies as st

from segments.amqp10 import encode_list, encode_map, encode_text, encode_value
from segments.codec import simple_ends
from segments.errors import FormatError
from segments.map_patterns import MapPatterns
from segments.message import Message, Properties
from segments.selector import RowReader, parse_property
from segments.selector.fields import value_at
from segments.selector.values import Value
from tests.segments.selector.strategies import messages as few_messages
from tests.segments.test_message_template import messages as odd_messages
from tests.support.logs import entry

NAMES = ("p", "a", "region")
READER = RowReader([parse_property(name) for name in NAMES])
MESSAGES = st.one_of(few_messages(), odd_messages())
BODY = b"\0\x53\x75\xa0\1x"


class Patterns:
    """Reads messages as somebody does who has those of before."""

    def __init__(self, names: tuple[str, ...] = NAMES) -> None:
        self._patterns = MapPatterns(names)

    def read(self, raws: list[bytes]) -> list[tuple[bytes, ...] | None]:
        """The encoded values of each message; None for one that was not read."""
        data = b"".join(map(entry, raws))
        ends = simple_ends(data)
        assert ends is not None
        columns, unread = self._patterns.read(data, ends)
        if len(unread) == len(raws):
            return [None] * len(raws)
        assert len(columns) == len(NAMES)
        rows = list(zip(*columns, strict=True))
        assert len(rows) == len(raws)
        return [None if number in unread else row for number, row in enumerate(rows)]


def decoded(row: tuple[bytes, ...]) -> list[Value]:
    return [value_at(value, 0) if value else None for value in row]


@st.composite
def damaged(draw: st.DrawFn, raws: list[bytes]) -> bytes:
    """One of some messages, or a byte or the end of it is another one."""
    raw = bytearray(draw(st.sampled_from(raws)))
    if raw and draw(st.booleans()):
        raw[draw(st.integers(0, min(60, len(raw) - 1)))] = draw(st.integers(0, 255))
    return bytes(raw[: draw(st.integers(0, len(raw)))] if draw(st.booleans()) else raw)


@given(st.lists(MESSAGES, min_size=1, max_size=6), st.data())
def test_values_are_those_of_a_row_reader(raws: list[bytes], data: st.DataObject) -> None:
    patterns = Patterns()
    patterns.read(raws)
    for _ in range(2):
        some = data.draw(st.lists(damaged(raws), min_size=1, max_size=6))
        for raw, row in zip(some, patterns.read(some), strict=True):
            if row is None:
                continue
            try:
                expected = READER.read(raw)
            except FormatError:
                with pytest.raises(FormatError):
                    decoded(row)
            else:
                assert repr(decoded(row)) == repr(expected)


def of_map(properties: list[tuple[str, object]], *, before: bytes = b"") -> bytes:
    items = [part for name, value in properties for part in (encode_text(name), value)]
    encoded = [it if isinstance(it, bytes) else encode_value(it) for it in items]  # type: ignore[arg-type]
    return before + b"\0\x53\x74" + encode_map(encoded) + BODY


USUAL = [
    of_map([("other", n), ("p", "v" * (n % 3)), ("region", "EU"), ("a", 300 * n)])
    for n in range(1, 50)
]
LONG = [of_map([("region", "x" * 300), ("p", f"v{n}"), ("a", None)]) for n in range(9)]
BEHIND = [
    Message(
        b"x", properties=Properties(message_id=n), application_properties={"p": n > 3, "a": f"{n}"}
    ).encode()
    for n in range(9)
]
SAME = [of_map([("a", f"v{n}"), ("q", True), ("p", n)]) for n in range(1, 9)]
WITHOUT = [of_map([("q", "x" * n)]) for n in range(9)]


@pytest.mark.parametrize(
    "raws", [USUAL, SAME, LONG, BEHIND, WITHOUT, USUAL + LONG + BEHIND + WITHOUT]
)
def test_the_fast_way_is_taken(raws: list[bytes]) -> None:
    patterns = Patterns()
    assert not any(patterns.read(raws))
    for _ in range(50):
        patterns.read(raws)  # some are missing at first
    rows = patterns.read(raws)
    assert [row and decoded(row) for row in rows] == [READER.read(raw) for raw in raws]


@pytest.mark.parametrize(
    "raw",
    [
        of_map([("p", "a"), ("p", "b")]),  # which counts is the reader's business
        b"\0\x53\x73" + encode_list([]) + BODY,
        b"\0\x80" + bytes(7) + of_map([("p", "a")])[2:],
        of_map([]),
        of_map([("p", b"\0\x53\1\xa1\1a")]),  # described
        of_map([(f"n{n}", n) for n in range(70)]),
        of_map([("p", "x" * 5_000)]),
        BODY,
        b"",
    ],
)
def test_what_is_left_to_the_reader(raw: bytes) -> None:
    patterns = Patterns()
    for _ in range(3):
        assert patterns.read([raw] * 20) == [None] * 20


def test_a_message_that_ends_in_the_next_one() -> None:
    """What is missing of it would be there, if the two were one."""
    raw = of_map([("region", "EU"), ("p", "abcdefgh")])
    patterns = Patterns()
    patterns.read([raw] * 3)
    assert patterns.read([raw])[0] is not None
    cut = len(raw) - len(BODY) - 4
    assert patterns.read([raw[:cut], raw])[0] is None


@pytest.mark.parametrize("raws", [SAME, USUAL])
def test_a_map_whose_size_is_wrong_is_left_to_the_reader(raws: list[bytes]) -> None:
    patterns = Patterns()
    for _ in range(3):
        patterns.read(raws)
    assert raws[3][3:4] == b"\xc1"
    wrong = raws[3][:4] + bytes((raws[3][4] - 1,)) + raws[3][5:]
    assert patterns.read([raws[3], wrong, raws[3]])[1] is None


def test_what_is_known_is_bounded() -> None:
    """Whoever sends messages of which no two are alike is not looked at for long."""
    patterns = Patterns()
    forgotten = 0
    for number in range(300):
        raws = [of_map([(f"n{number}-{n}", n), ("p", "v" * (n % 60))]) for n in range(50)]
        patterns.read(raws)
        known = patterns._patterns._layouts
        assert len(known) <= 4
        assert all(sum(map(len, layout._kinds)) <= 128 + 64 for layout in known)
        forgotten += not known
    assert forgotten > 280
    for _ in range(1_000):
        patterns.read(USUAL)
    assert None not in patterns.read(USUAL)  # it was only for a while
