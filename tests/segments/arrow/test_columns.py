"""Columns hold what the messages say, read one by one."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from segments.amqp10 import Symbol, encode_list, encode_map, encode_text
from segments.arrow.blocks import Block, DamagedPart, block_of
from segments.arrow.columns import KINDS, ArrowColumns
from segments.arrow.parts import ColumnError, Part
from segments.compression import NAMES, pack
from segments.errors import FormatError
from segments.message import PROPERTY_NAMES, Message, MessageView, Properties
from segments.spark.texts import text_of
from streamd.wire.stream.publish import encode_sub_batch
from tests.segments.test_message_template import alike
from tests.support.odd_messages import VALUES as OF_ALL_TYPES

TIME_MS = 1_700_000_000_000
NAMED = ("a", "region", "é", "y" * 200)
FIXED = tuple(f"properties.{name}" for name in PROPERTY_NAMES)
MANY = 9  # as few messages that look alike are read at once


def _part(raws: list[bytes], first_offset: int = 0, rows: range | None = None) -> Part:
    data, _ = pack(raws, NAMES["none"])
    rows = range(len(raws)) if rows is None else rows
    offsets = range(first_offset + rows.start, first_offset + rows.stop)
    return Part(TIME_MS, len(raws), data, rows, offsets)


def _block(raws: list[bytes]) -> Block:
    return block_of([_part(raws)])


def _value(raw: bytes, name: str) -> Any:
    view = MessageView(raw)
    try:
        if name in FIXED:
            return view.fixed_property(name.partition(".")[2])
        return view.application_property(name)
    except FormatError:
        return None


def _body(raw: bytes) -> bytes:
    try:
        return MessageView(raw).body
    except FormatError:
        return raw


@given(st.lists(alike(), min_size=1, max_size=3), st.lists(st.sampled_from((*NAMED, *FIXED))))
def test_columns_hold_what_messages_say_one_by_one(
    runs: list[list[bytes]], names: list[str]
) -> None:
    raws = [raw for run in runs for raw in run for _ in range(MANY)]
    wanted = dict.fromkeys(names, "string")
    batch = ArrowColumns({"offset": None, "body": None, **wanted}).batch(_block(raws))
    assert batch["offset"].to_pylist() == list(range(len(raws)))
    assert batch["body"].to_pylist() == [_body(raw) for raw in raws]
    for name in wanted:
        assert batch[name].to_pylist() == [text_of(_value(raw, name)) for raw in raws], name


KINDS_OF: list[tuple[str, Any]] = [
    *(("int64", value) for value in (0, 5, -5, 1 << 40, -(1 << 63))),
    *(("double", value) for value in (2.5, -1e300)),
    *(("string", value) for value in ("", "EU", "é" * 200, Symbol("EU"))),
    *(("binary", value) for value in (b"", b"\xff\x00", b"x" * 300)),
    ("bool", True),
    ("bool", False),
    ("timestamp", datetime(2026, 11, 24, 2, 30, tzinfo=UTC)),
    ("timestamp", datetime(1, 1, 2, tzinfo=UTC)),
]


@given(st.lists(st.sampled_from([(None, None), *KINDS_OF]), min_size=1, max_size=30))
def test_the_type_of_a_column_is_that_of_its_values(values: list[tuple[str | None, Any]]) -> None:
    raws = [
        Message(b"", application_properties={"n": n, "v": v} if v is not None else {}).encode()
        for n, (_, v) in enumerate(values)
    ]
    kinds = dict.fromkeys(kind for kind, _ in values if kind is not None)
    made = ArrowColumns(["v"])
    if len(kinds) > 1 and set(kinds) != {"int64", "double"}:
        with pytest.raises(ColumnError, match="column v has values of type"):
            made.batch(_block(raws))
        return
    kind = "double" if len(kinds) > 1 else next(iter(kinds), "string")
    batch = made.batch(_block(raws))
    assert batch.schema == pa.schema([("v", KINDS[kind])])
    assert batch["v"].to_pylist() == [v for _, v in values]


@pytest.mark.parametrize("many", [1, MANY])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_type_is_read_at_once_as_it_is_alone(kind: str, many: int) -> None:
    for name, (encoded, _, _) in OF_ALL_TYPES.items():
        application = b"\x00\x53\x74" + encode_map([encode_text("v"), encoded])
        fixed = b"\x00\x53\x73" + encode_list([b"\x40", b"\x40", b"\x40", encoded])
        raws = [fixed + application + b"\x00\x53\x75\xa0\x01x"]
        for column in ("v", "properties.subject"):
            found = _outcome(raws * many, column, kind)
            assert found == _outcome(raws, column, kind), name
            if kind == "string":
                assert found == text_of(_value(raws[0], column)), name


def _outcome(raws: list[bytes], column: str, kind: str) -> Any:
    try:
        array = ArrowColumns({column: kind}).batch(_block(raws))[column]
    except ColumnError as error:
        return str(error)
    # Python's times end with the year 9999.
    found = (array.cast(pa.int64()) if kind == "timestamp" else array).to_pylist()
    assert all(repr(value) == repr(found[0]) for value in found)
    return "NaN" if repr(found[0]) == "nan" else found[0]


def _orders(count: int, **changed: Any) -> list[bytes]:
    return [
        Message(
            b"%d" % n, Properties(subject="order"), {"total": n, "region": "EU"} | changed
        ).encode()
        for n in range(count)
    ]


def test_a_later_batch_has_the_types_of_the_first() -> None:
    made = ArrowColumns(["total", "note"])
    assert made.batch(_block(_orders(20))).schema.types == [pa.int64(), pa.string()]
    assert made.batch(_block(_orders(20, total=None)))["total"].null_count == 20
    reason = (
        "column total is int64, at offset 0 it has a value of type string; "
        "columns={'total': 'string'} has them all as text"
    )
    with pytest.raises(ColumnError, match=reason):
        made.batch(_block(_orders(20, total="many")))
    with pytest.raises(ColumnError, match=r"column note is string, at offset 0 .* type int64"):
        made.batch(_block(_orders(20, note=5)))
    assert made.batch(_block(_orders(20, note="x")))["note"].to_pylist() == ["x"] * 20


def test_mixed_types_name_both_messages() -> None:
    raws = _orders(20) + _orders(20, total="many")
    with pytest.raises(ColumnError, match="int64 at offset 0 and string at offset 20; columns="):
        ArrowColumns(["total"]).batch(_block(raws))
    batch = ArrowColumns({"total": "string"}).batch(_block(raws))
    assert batch["total"].to_pylist() == [*map(str, range(20)), *["many"] * 20]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ColumnError, match=r"18446744073709551615 at offset 0.* int64"):
        ArrowColumns(["total"]).batch(_block(_orders(20, total=2**64 - 1)))
    with pytest.raises(ColumnError, match="has values of type other at offset 0"):
        ArrowColumns(["total"]).batch(_block(_orders(20, total=[1])))
    assert ArrowColumns({"total": "string"}).batch(_block(_orders(9, total=[1])))["total"][0]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ([], "columns is empty"),
        ("total", "expected ['total']"),
        (["total", "total"], "each name once"),
        ([""], "there is no column ''"),
        (["properties.nothing"], "there is no column 'properties.nothing': properties has"),
        ({"total": "number"}, "asked for as 'number', expected int64, double"),
        ({"offset": "string"}, "column offset is int64, asked for as string"),
    ],
)
def test_columns_that_there_cannot_be(columns: Any, reason: str) -> None:
    with pytest.raises(ColumnError, match=re.escape(reason)):
        ArrowColumns(columns)


def test_a_property_may_have_the_name_of_another_column() -> None:
    raws = _orders(9, offset="far", body=True)
    columns = ["offset", "application_properties.offset", "application_properties.body"]
    found = ArrowColumns(columns).batch(_block(raws)).to_pylist()[3]
    assert list(found.values()) == [3, "far", True]
    assert list(found) == columns


def test_what_is_no_message_is_all_body() -> None:
    raws = [b"plain %d" % n for n in range(20)] + [b""]
    batch = ArrowColumns(["body", "total", "timestamp"]).batch(_block(raws))
    assert batch["body"].to_pylist() == raws
    assert batch["total"].null_count == len(raws)
    assert batch["timestamp"][0].as_py() == datetime.fromtimestamp(TIME_MS / 1000, UTC)


@given(
    st.lists(st.tuples(st.integers(1, 20), st.booleans(), st.integers(0, 20), st.integers(0, 20)))
)
def test_parts_make_one_block(parts: list[tuple[int, bool, int, int]]) -> None:
    made, expected, first = [], [], 0
    for count, is_packed, start, stop in [*parts, (1, False, 0, 1)]:
        raws = [b"%d" % (first + n) * (1 + n % 3) for n in range(count)]
        rows = range(min(start, count), max(min(start, count), min(stop, count)))
        part = _part(raws, first, rows)
        if is_packed:
            batch = encode_sub_batch(1, count, 0, len(part.data), part.data)[8:]
            part = replace(part, data=batch)
        made.append(part)
        expected += [(first + n, raws[n]) for n in rows]
        first += count
    block = block_of(made)
    assert [(int(o), block.raw(n)) for n, o in enumerate(block.offsets)] == expected
    assert len(block.timestamps) == len(expected)


@pytest.mark.parametrize("change", ["cut", "more", "fewer"])
def test_a_part_that_is_damaged_is_named(change: str) -> None:
    parts = [_part(_orders(20), first) for first in (0, 20, 40)]
    bad = parts[1]
    parts[1] = {
        "cut": replace(bad, data=bad.data[:-1]),
        "more": replace(bad, num_records=21),
        "fewer": replace(bad, num_records=19),
    }[change]
    with pytest.raises(DamagedPart) as caught:
        block_of(parts)
    assert caught.value.number == 1
