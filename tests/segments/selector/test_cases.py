"""The case tables: what each dialect makes of an expression and a message."""

import json
from pathlib import Path
from typing import Any

import pytest

from segments.message import Message
from segments.selector import Dialect, SelectorError, parse_sql, parse_tags
from segments.selector.evaluate import Clock
from segments.selector.fields import RowReader
from segments.selector.selector import condition_of

CASES = Path(__file__).parent / "cases"
RESULTS = {True: "M", False: "N", None: "U"}
MATCHES_NOT = {"N", "U", "E", "-"}  # E: evaluation ends, -: false or unknown


def load(name: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((CASES / f"{name}.json").read_text())
    return cases


def outcome(expression: str, properties: dict[str, Any], dialect: Dialect) -> str:
    """M, N, U, or X for a selector that is refused."""
    try:
        selector = parse_sql(expression, dialect)
    except SelectorError:
        return "X"
    message = Message(b"body", application_properties=properties).encode()
    row = RowReader(selector.properties).read(message)
    found = condition_of(selector, selector.properties, Clock())(row)
    assert selector.matcher().matches(message) is (found is True)
    return RESULTS[found]


ALL = [
    pytest.param(case, dialect, id=f"{case['case']}-{dialect}")
    for name in ("text", "typed")
    for case in load(name)
    for dialect in Dialect
    if dialect in case
]


@pytest.mark.parametrize(("case", "dialect"), ALL)
def test_the_case_tables(case: dict[str, Any], dialect: Dialect) -> None:
    found = outcome(case["expression"], case["properties"], dialect)
    expected = case[dialect]
    if expected == "E":
        expected = "U"  # an error in the evaluation is not a match, like unknown
    assert found == expected or (expected == "-" and found in MATCHES_NOT), case["remark"]


@pytest.mark.parametrize("case", load("tags"), ids=lambda case: repr(case["expression"]))
def test_tags(case: dict[str, Any]) -> None:
    if case["tags"] == "X":
        with pytest.raises(SelectorError, match="no tag is named"):
            parse_tags(case["expression"])
        return
    selector = parse_tags(case["expression"])
    wanted = case["tags"]
    for tag in ("A", "B", "a", "*", "|B", "A|B", "New York", "", None, "Aa", "BB"):
        properties = {} if tag is None else {"TAGS": tag}
        raw = Message(b"x", application_properties=properties).encode()
        assert selector.matcher().matches(raw) is (wanted is None or tag in wanted)
    assert parse_tags(str(selector)) == selector
