"""Selectors and messages for property tests: few names and values, so that they often meet."""

import struct
import uuid
from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st

from segments.amqp10 import Opaque, Symbol
from segments.codec import walk_entries
from segments.message import Message, Properties
from segments.selector import Dialect

NAMES = ("p", "q", "TAGS")
TEXTS = ("", "a", "b", "ab", "5", "05", "5.0", "true", "é", "a%b", "x_y", "'", "hello world")
_NUMBERS = ("0", "5", "-5", "5.0", "2.5", "7")

names = st.sampled_from(NAMES)
texts = st.sampled_from(TEXTS)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def values(dialect: Dialect) -> st.SearchStrategy[str]:
    literal = st.one_of(texts.map(quoted), st.sampled_from(_NUMBERS))
    if dialect is Dialect.ROCKETMQ:
        return st.one_of(texts.map(quoted), st.sampled_from(("5", "7", "2.5")), names)
    fields = st.sampled_from(("properties.subject", "h.priority", "[p]", "0x61"))
    simple = st.one_of(literal, names, fields, st.sampled_from(("TRUE", "FALSE")))
    arithmetic = st.tuples(simple, st.sampled_from("+-*/%"), simple).map(
        lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
    )
    return st.one_of(simple, simple, arithmetic)


def tests(dialect: Dialect) -> st.SearchStrategy[str]:
    """One condition."""
    value = values(dialect)
    subject = st.one_of(names, names, value)
    negated = st.sampled_from(("", "NOT "))
    comparison = st.tuples(subject, st.sampled_from(("=", "<>", "<", ">=")), value).map(" ".join)
    one_of = st.tuples(names, negated, st.lists(texts.map(quoted), min_size=1, max_size=3)).map(
        lambda parts: f"{parts[0]} {parts[1]}IN ({', '.join(parts[2])})"
    )
    is_null = st.tuples(names, negated).map(lambda parts: f"{parts[0]} IS {parts[1]}NULL")
    like = st.tuples(names, negated, st.sampled_from(("a%", "%b", "_", "a", "", "%", "a!%b"))).map(
        lambda parts: f"{parts[0]} {parts[1]}LIKE '{parts[2]}' ESCAPE '!'"
    )
    holds = st.tuples(names, negated, st.sampled_from(("CONTAINS", "STARTSWITH")), texts).map(
        lambda parts: f"{parts[0]} {parts[1]}{parts[2]} {quoted(parts[3])}"
    )
    between = st.tuples(names, negated, value, value).map(
        lambda parts: f"{parts[0]} {parts[1]}BETWEEN {parts[2]} AND {parts[3]}"
    )
    parts = [comparison, comparison, one_of, is_null]
    if dialect is not Dialect.ROCKETMQ:
        parts.append(like)
    if dialect is not Dialect.AMQP:
        parts += [holds, between]
    return st.one_of(*parts)


def expressions(dialect: Dialect) -> st.SearchStrategy[str]:
    """Conditions, joined and negated; some of them a dialect refuses."""
    return st.recursive(
        tests(dialect),
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(("AND", "OR")), inner).map(
                lambda parts: f"({parts[0]}) {parts[1]} ({parts[2]})"
            ),
            inner.map(lambda text: f"NOT ({text})"),
            inner.map(lambda text: f"({text}) IS NULL" if dialect is Dialect.UNION else text),
        ),
        max_leaves=6,
    )


def _long_text(text: str) -> Opaque:
    """A text with a size of four bytes, though one would do."""
    raw = text.encode()
    return Opaque(b"\xb1" + struct.pack(">I", len(raw)) + raw)


property_values: st.SearchStrategy[Any] = st.one_of(
    texts,
    texts,
    texts.filter(str.isascii).map(Symbol),
    texts.map(str.encode),
    st.sampled_from((None, True, False, 0, 5, -5, 7, 5.0, 2.5, 1 << 40)),
    st.just(uuid.UUID(int=0x61616161616161616161616161616161)),
    st.just(datetime(2026, 11, 21, tzinfo=UTC)),
    st.just([1, "a"]),
    st.just(Opaque(b"\x74" + struct.pack(">I", 5))),
    texts.map(_long_text),
)
rows = st.dictionaries(st.sampled_from((*NAMES, "other")), property_values, max_size=4)


EVERY_VALUE: tuple[Any, ...] = (
    *TEXTS,
    *(Symbol(text) for text in TEXTS if text.isascii()),
    *(text.encode() for text in TEXTS),
    *(None, True, False, 0, 5, -5, 7, 5.0, 2.5, 1 << 40),
    uuid.UUID(int=0x61616161616161616161616161616161),
    datetime(2026, 11, 21, tzinfo=UTC),
    [1, "a"],
    *(_long_text(text) for text in TEXTS),
)
_OTHERS: tuple[dict[str, Any], ...] = ({}, {"q": "a"}, {"q": "5"}, {"q": 5}, {"q": "true"})


def meeting(name: str) -> list[bytes]:
    """Messages in which a property has every value, none too, beside some values of another.

    What a random selector asks for is seldom in a random message: here it mostly is.
    """
    found = []
    for others in _OTHERS:
        found.append(Message(b"x", application_properties=others).encode())
        for value in EVERY_VALUE:
            if name != "properties.subject":
                found.append(Message(b"x", application_properties={name: value, **others}).encode())
            elif type(value) is str:
                found.append(Message(b"x", Properties(subject=value), others).encode())
    return found


def chunk(bodies: list[bytes]) -> tuple[bytes, list[int]]:
    """The data of a chunk, and where each message ends in it."""
    data = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    return data, [entry.end for entry in walk_entries(data)]


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """An encoded message, or at times something else."""
    subject = draw(st.one_of(st.none(), texts))
    message = Message(
        draw(st.binary(max_size=20)),
        Properties(subject=subject),
        draw(rows),
        draw(st.sampled_from(({}, {"x-note": "a"}))),
    )
    raw = message.encode()
    if draw(st.integers(0, 30)) == 0:
        return raw[: draw(st.integers(0, len(raw)))]
    return raw
