"""Selectors as columns: the case tables, and what the closures say of the same rows."""

from typing import Any

import pytest
from pyspark.sql import Column, Row, SparkSession, functions as F  # noqa: N812

from segments.message import Message
from segments.selector import Dialect, RowReader, Selector, SelectorError, parse_sql, parse_tags
from segments.selector.evaluate import Clock
from segments.selector.selector import condition_of
from segments.spark.selecting import selector_column
from tests.segments.selector.test_cases import MATCHES_NOT, RESULTS, load

_TYPES = {bool: "boolean", int: "bigint", float: "double", str: "string"}


def test_the_case_tables(spark: SparkSession) -> None:
    """All cases in one job: every case has columns of its own in a single row."""
    fields, values = ["nothing string", "priority int"], [None, 4]
    tried: list[tuple[str, str, Selector, dict[str, str], dict[str, Any], str]] = []
    for name in ("text", "typed"):
        for case in load(name):
            own = {}
            for prop, value in case["properties"].items():
                own[prop] = f"c{len(fields)}"
                fields.append(f"{own[prop]} {_TYPES[type(value)]}")
                values.append(value)
            for dialect in Dialect:
                try:
                    selector = parse_sql(case["expression"], dialect)
                except SelectorError:
                    continue
                if dialect in case:
                    names = {p.name: own.get(p.name, "nothing") for p in selector.properties}
                    names |= {"header.priority": "priority", "properties.subject": "nothing"}
                    where = f"{case['case']} {dialect}: {case['expression']}"
                    properties = case["properties"]
                    tried.append((where, case[dialect], selector, names, properties, dialect))
    frame = spark.createDataFrame([tuple(values)], ", ".join(fields))
    columns = [
        selector_column(s, frame, n).alias(str(i)) for i, (_, _, s, n, _, _) in enumerate(tried)
    ]
    (row,) = frame.select(columns).collect()
    assert len(tried) > 250
    for (where, expected, selector, _, properties, _), found in zip(tried, row, strict=True):
        letter = RESULTS[found]
        wanted = "U" if expected == "E" else expected
        assert letter == wanted or (wanted == "-" and letter in MATCHES_NOT), where
        raw = Message(b"", application_properties=properties).encode()
        values = RowReader(selector.properties).read(raw)
        assert found == condition_of(selector, selector.properties, Clock())(values), where


VALUES: dict[str, list[Any]] = {
    "string": [None, "", "a", "ab", "5", "5.0", "true", "TRUE", "a%b", "é\n", "x_y"],
    "bigint": [None, 0, 5, -5, 9007199254740993, -(1 << 63)],
    "double": [None, 0.0, 5.0, 2.5, float("nan"), float("inf"), -9007199254740992.0],
    "boolean": [None, True, False],
    "binary": [None, b"", b"a", b"\xff"],
}
EXPRESSIONS = (
    "p",
    "NOT p",
    "p = 5",
    "p <> 5",
    "p < 2.5",
    "p >= 2.5",
    "p = 2.5",
    "5 > p",
    "p = 9007199254740993",
    "p > 'a'",
    "p = '5'",
    "p <> 'a'",
    "p = TRUE",
    "p <> FALSE",
    "p = 0x61",
    "p < 0x62",
    "p IN ('a', '5')",
    "p NOT IN (5, 7)",
    "p IN (5, 'a', TRUE)",
    "p BETWEEN 0 AND 5",
    "p NOT BETWEEN 'a' AND 'b'",
    "p LIKE 'a%'",
    "p NOT LIKE '_'",
    "p LIKE 'a!%b' ESCAPE '!'",
    "p LIKE 'é_'",
    "p CONTAINS 'b'",
    "p NOT STARTSWITH 'a'",
    "p ENDSWITH ''",
    "p IS NULL",
    "p IS NOT NULL AND p <> 5",
    "p + 1 > 5",
    "-p < 3",
    "(p = 5) = TRUE",
    "(p = 5) IS NULL",
    "p = 5 OR p = 'a' OR p IS NULL",
    "NOT (p = 5 AND p > 2)",
    "p = q",
    "p < q",
)


def test_columns_say_what_the_closures_say(spark: SparkSession) -> None:
    fields = [f"p_{kind} {kind}" for kind in VALUES]
    rows = [
        tuple(values[n % len(values)] for values in VALUES.values())
        for n in range(max(map(len, VALUES.values())))
    ]
    frame = spark.createDataFrame(rows, ", ".join(fields))
    tried: list[tuple[Selector, dict[str, str]]] = []
    for text in EXPRESSIONS:
        for dialect in Dialect:
            try:
                selector = parse_sql(text, dialect)
            except SelectorError:
                continue
            for kind in VALUES:
                others = VALUES if "q" in {p.name for p in selector.properties} else ["string"]
                tried += [(selector, {"p": f"p_{kind}", "q": f"p_{other}"}) for other in others]
    columns: list[Column] = [selector_column(s, frame, n) for s, n in tried]
    found = frame.select([c.alias(str(i)) for i, c in enumerate(columns)]).collect()
    for values, outcomes in zip(frame.collect(), found, strict=True):
        for (selector, names), outcome in zip(tried, outcomes, strict=True):
            row = [_plain(values, names[prop.name]) for prop in selector.properties]
            expected = condition_of(selector, selector.properties, Clock())(row)
            assert outcome == expected, (str(selector), selector.dialect, row)


def _plain(values: Row, name: str) -> Any:
    value = values[name]
    return bytes(value) if isinstance(value, bytearray) else value


def test_tags_and_columns_that_are_missing(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a",), ("c",), (None,)], "TAGS string")
    column = selector_column(parse_tags("a || b"), frame)
    assert [row[0] for row in frame.select(column).collect()] == [True, False, False]
    with pytest.raises(SelectorError, match="there is no column carrier; load with the option"):
        selector_column(parse_sql("carrier = 'HA'"), frame)
    with pytest.raises(SelectorError, match="is of type array<int>, which no property has"):
        selector_column(parse_sql("p = 1"), frame.select(F.array(F.lit(1)).alias("p")))
