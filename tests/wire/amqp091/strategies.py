"""Values and properties of AMQP 0-9-1, all that there can be."""

import struct
from typing import Any

from hypothesis import strategies as st

from streamd.wire.amqp091.properties import Properties
from streamd.wire.amqp091.values import Field


def whole(bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    low = -(1 << bits - 1) if signed else 0
    return st.integers(low, low + (1 << bits) - 1)


def _single(value: float) -> float:
    found: float = struct.unpack(">f", struct.pack(">f", value))[0]
    return found


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
doubles = st.floats(allow_nan=False)
singles = st.floats(allow_nan=False, width=32).map(_single)
BY_TAG: dict[str, st.SearchStrategy[Any]] = {
    "t": st.booleans(),
    "b": whole(8, signed=True),
    "B": whole(8, signed=False),
    "s": whole(16, signed=True),
    "u": whole(16, signed=False),
    "I": whole(32, signed=True),
    "i": whole(32, signed=False),
    "l": whole(64, signed=True),
    "L": whole(64, signed=True),
    "f": singles,
    "d": doubles,
    "D": st.binary(min_size=5, max_size=5),
    "S": st.one_of(texts.map(str.encode), st.binary(max_size=20)),
    "x": st.binary(max_size=20),
    "T": whole(64, signed=False),
    "V": st.none(),
}
scalars = st.one_of(
    [values.map(lambda v, tag=tag: Field(tag, v)) for tag, values in BY_TAG.items()]
)
fields = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda found: Field("A", found)),
        st.dictionaries(names, inner, max_size=3).map(lambda found: Field("F", found)),
    ),
    max_leaves=8,
)
tables = st.dictionaries(names, fields, max_size=4)
short = st.none() | texts
properties = st.builds(
    Properties,
    content_type=short,
    content_encoding=short,
    headers=st.none() | tables,
    delivery_mode=st.none() | whole(8, signed=False),
    priority=st.none() | whole(8, signed=False),
    correlation_id=short,
    reply_to=short,
    expiration=short,
    message_id=short,
    timestamp=st.none() | whole(64, signed=False),
    type=short,
    user_id=short,
    app_id=short,
    cluster_id=short,
)
