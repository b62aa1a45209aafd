"""Methods, tables and properties: there and back, and against another implementation."""

from typing import Any, get_type_hints

import pamqp.frame
import pytest
from hypothesis import given, strategies as st

from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import decode_method, encode_method, method_frame
from streamd.wire.amqp091.errors import ConnectionFault
from streamd.wire.amqp091.properties import Properties, decode_properties, encode_properties
from streamd.wire.amqp091.values import (
    MAX_DEPTH,
    MAX_VALUES,
    Field,
    decode_field,
    decode_table,
    encode_field,
    encode_table,
)
from tests.wire.amqp091.strategies import fields, properties, tables, texts, whole

_KINDS: dict[str, st.SearchStrategy[Any]] = {
    "octet": whole(8, signed=False),
    "short": whole(16, signed=False),
    "long": whole(32, signed=False),
    "longlong": whole(64, signed=False),
    "bit": st.booleans(),
    "shortstr": texts,
    "longstr": st.binary(max_size=20),
    "table": tables,
}


def _method(kind: type[Any]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind, include_extras=True).values()
    return st.tuples(*(_KINDS[hint.__metadata__[0]] for hint in hints)).map(lambda v: kind(*v))


methods = st.sampled_from(list(m.IDS)).flatmap(_method)


@given(fields)
def test_fields_keep_their_tags(field: Field) -> None:
    raw = encode_field(field)
    assert decode_field(b"x" + raw, 1) == (field, len(raw) + 1)


@given(methods)
def test_methods_there_and_back(method: Any) -> None:
    assert decode_method(encode_method(method)) == method


@given(properties)
def test_properties_there_and_back(found: Properties) -> None:
    assert decode_properties(encode_properties(found)) == found


@pytest.mark.parametrize("tag", "AF")
def test_tables_in_tables(tag: str) -> None:
    def nested(depth: int) -> Field:
        field = Field("V", None)
        for _ in range(depth):
            field = Field(tag, [field] if tag == "A" else {"": field})
        return field

    encode_and_read = lambda depth: decode_table(encode_table({"a": nested(depth)}), 0)  # noqa: E731
    encode_and_read(MAX_DEPTH - 1)
    for depth in (MAX_DEPTH, 100):
        with pytest.raises(ConnectionFault, match="nested"):
            encode_and_read(depth)


@pytest.mark.parametrize("tag", "AF")
def test_many_values(tag: str) -> None:
    """Those in tables and arrays count, and so do those whose name comes twice."""

    def table(count: int) -> bytes:
        names = b"" if tag == "A" else b"\0"
        parts = (names + b"V") * count
        inner = b"\1a" + tag.encode() + len(parts).to_bytes(4, "big") + parts
        return len(inner).to_bytes(4, "big") + inner

    decode_table(table(MAX_VALUES - 1), 0)
    for count in (MAX_VALUES, 60_000):
        with pytest.raises(ConnectionFault, match="more than 4,096 values"):
            decode_table(table(count), 0)


def test_of_duplicates_the_first_one_counts() -> None:
    twice = b"\x01at\x01" + b"\x01at\x00"
    assert decode_table(len(twice).to_bytes(4, "big") + twice, 0)[0] == {"a": Field("t", True)}


@pytest.mark.parametrize("name", ["ä" * 128, "x" * 256])
def test_short_strings_of_256_bytes(name: str) -> None:
    with pytest.raises(ValueError, match="256 bytes"):
        encode_method(m.BasicCancel(name, False))


def test_names_that_are_not_utf8() -> None:
    with pytest.raises(ConnectionFault, match="UTF-8") as caught:
        decode_method(encode_method(m.BasicCancel("ab", False)).replace(b"ab", b"\xff\xfe"))
    assert caught.value.method == m.IDS[m.BasicCancel]


def test_unknown_methods() -> None:
    with pytest.raises(ConnectionFault) as caught:
        decode_method(b"\x00\x3c\x00\xff")
    assert (caught.value.code, caught.value.method) == (540, (60, 255))


# What another implementation makes of the same fields. It knows no access.request, warns of
# recover-async, and takes only one value of reserved fields.
_UNKNOWN = (m.AccessRequest, m.AccessRequestOk, m.BasicRecoverAsync)
_RESERVED: dict[str, Any] = {"bit": False, "short": 0, "shortstr": "", "longstr": b""}
ascii_names = st.text("abcdefghijklmnopqrstuvwxyz.-", min_size=1, max_size=20)
_SIMPLE = _KINDS | {
    "shortstr": ascii_names,
    "longstr": ascii_names.map(str.encode),
    "table": st.dictionaries(ascii_names, ascii_names.map(lambda t: Field("S", t.encode()))),
}


def _values(kind: type[Any], data: st.DataObject) -> list[Any]:
    hints = get_type_hints(kind, include_extras=True).items()
    kinds = [(name, hint.__metadata__[0]) for name, hint in hints]
    return [
        _RESERVED[k] if name.startswith(("reserved", "ticket")) else data.draw(_SIMPLE[k])
        for name, k in kinds
    ]


@given(st.sampled_from([kind for kind in m.IDS if kind not in _UNKNOWN]), st.data())
def test_as_pamqp_has_them(kind: type[Any], data: st.DataObject) -> None:
    method = kind(*_values(kind, data))
    frame = method_frame(3, method)
    size, channel, theirs = pamqp.frame.unmarshal(frame)
    assert (size, channel) == (len(frame), 3)
    found = [getattr(theirs, name) for name in theirs.attributes()]
    assert found == [_as_theirs(value, other) for value, other in zip(method, found, strict=True)]


def _as_theirs(value: Any, other: Any) -> Any:
    if isinstance(value, dict):
        return {name: field.value.decode() for name, field in value.items()}
    return value.decode() if isinstance(value, bytes) and isinstance(other, str) else value
