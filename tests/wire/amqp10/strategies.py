"""Values and performatives of AMQP 1.0, all that there can be."""

from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from hypothesis import strategies as st

from segments.amqp10 import Opaque, Symbol
from streamd.wire.amqp10 import codec, performatives as p
from streamd.wire.amqp10.values import Array, Described, Ubyte, Uint, Ulong, Ushort, write_value

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
symbols = st.text(st.characters(max_codepoint=127), max_size=20).map(Symbol)


def unsigned(kind: type[int], bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1).map(kind)


WIDTHS: dict[type[int], int] = {Ubyte: 8, Ushort: 16, Uint: 32, Ulong: 64}
times = st.integers(-(10**12), 10**13).map(
    lambda ms: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    *(unsigned(kind, bits) for kind, bits in WIDTHS.items()),
    st.floats(allow_nan=False),
    texts,
    symbols,
    st.binary(max_size=300),
    st.uuids(),
    times,
)
keys = st.one_of(texts, symbols, unsigned(Ulong, 64))
arrays = st.lists(texts, min_size=1, max_size=3).map(Array) | st.lists(
    symbols, min_size=1, max_size=3
).map(Array)
values = st.recursive(
    scalars | arrays,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(keys, inner, max_size=3),
        st.builds(Described, symbols | unsigned(Ulong, 64), inner),
    ),
    max_leaves=5,
)
small = st.sampled_from([None, 5, "text", Symbol("s"), Uint(7), [], Described(Symbol("d"), 1)])
maps = st.dictionaries(keys, small, max_size=2)
_KINDS: dict[str, st.SearchStrategy[Any]] = {
    "ubyte": st.integers(0, 255),
    "ushort": st.integers(0, 65_535),
    "uint": st.integers(0, p.MAX_UINT),
    "ulong": st.integers(0, (1 << 64) - 1),
    "boolean": st.booleans(),
    "string": texts,
    "symbol": symbols.map(str),
    "symbols": st.lists(symbols, max_size=3).map(tuple),
    "binary": st.binary(max_size=300),
    "map": maps,
    "raw": small.filter(lambda value: value is not None).map(write_value).map(Opaque),
    "value": small,
}
ERRORS = st.tuples(symbols.map(str), st.none() | texts, st.none() | maps).map(p.Error._make)
_STATES = st.sampled_from([p.Accepted(), p.Released(), p.Received(1, 2)]) | ERRORS.map(p.Rejected)
_TERMINI = st.tuples(texts).map(lambda found: p.Target(*found)) | _KINDS["raw"].map(
    lambda raw: p.Source("/queues/s", filter=raw)
)


def _of_field(name: str, wanted: str) -> st.SearchStrategy[Any]:
    if wanted != "composite":
        return _KINDS[wanted]
    if name in ("source", "target"):
        return _TERMINI
    return ERRORS if name == "error" else _STATES


@cache
def of_kind(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Any of a performative's values; what may be missing is, now and then."""
    fields = {}
    for field in codec.layout_of(kind):
        given = _of_field(field.name, field.kind)
        fields[field.name] = given if field.is_mandatory else given | st.just(field.default)
    return st.tuples(*fields.values()).map(kind._make)
