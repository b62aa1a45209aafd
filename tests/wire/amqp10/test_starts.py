"""What is told of a message by its beginning is what all of it tells."""

import pytest
from hypothesis import given, strategies as st

from segments.amqp10 import Symbol, encode_binary, encode_list, encode_map
from segments.amqp10_codes import LIST_0, SHORT_DESCRIPTOR, Section
from streamd.wire.amqp10.errors import LinkFault
from streamd.wire.amqp10.messages import Start, bare_position, check_bare, read_start, start_of
from streamd.wire.amqp10.values import write_value


def read(exchange: str, key: str, raw: bytes) -> tuple[Start, int]:
    at = bare_position(raw)
    return read_start(exchange, key, raw, at, check_bare(raw, at))


def section(code: int, value: bytes) -> bytes:
    return SHORT_DESCRIPTOR + bytes((code,)) + value


def a_map(key: str, value: str) -> bytes:
    return encode_map([write_value(key), write_value(value)])


NOTES = section(
    Section.MESSAGE_ANNOTATIONS,
    encode_map([write_value(Symbol("x-stream-filter-value")), write_value("red")]),
)
PARTS = [
    NOTES,
    section(Section.HEADER, encode_list([write_value(True)])),
    section(Section.PROPERTIES, encode_list([write_value("id"), write_value(b"guest")])),
    section(Section.PROPERTIES, bytes((LIST_0,))),
    section(Section.APPLICATION_PROPERTIES, a_map("kind", "red")),
    section(Section.APPLICATION_PROPERTIES, a_map("kind", "x" * 300)),
    section(Section.DATA, encode_binary(b"body")),
    section(Section.DATA, encode_binary(bytes(300))),
    section(Section.VALUE, write_value("text")),
    section(Section.VALUE, write_value(7)),
    section(Section.VALUE, a_map("kind", "red")),
    section(Section.SEQUENCE, encode_list([write_value(7)])),
    section(Section.FOOTER, a_map("x-sum", "7")),
    b"\x00\x53",
]


@given(st.lists(st.sampled_from(PARTS), min_size=1, max_size=5), st.binary(max_size=3))
def test_a_beginning_tells_what_all_tells(parts: list[bytes], more: bytes) -> None:
    raw = b"".join(parts) + more
    try:
        whole, size = read("e", "k", raw)
    except LinkFault:
        whole, size = None, 0
    for end in range(len(raw) + 1):
        found = start_of("e", "k", raw[:end], len(raw))
        assert found is None or found == whole, end
    if size and not parts[-1].startswith(section(Section.FOOTER, b"")):
        assert start_of("e", "k", raw[:size], len(raw)) == whole


@pytest.mark.parametrize("body", [section(Section.DATA, encode_binary(b"body")), PARTS[8]])
def test_most_messages_are_told_by_their_beginning(body: bytes) -> None:
    raw = NOTES + PARTS[2] + PARTS[4] + body
    whole, size = read("e", "k", raw)
    assert (whole.user, whole.head.filter_value) == (b"guest", b"red")
    assert size == len(raw) - 4
    assert start_of("e", "k", raw[:size], len(raw)) == whole


def test_a_long_beginning_is_not_remembered() -> None:
    assert read("e", "k", PARTS[5] + PARTS[6])[1] == 0
