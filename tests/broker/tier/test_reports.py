"""Reports come back from the rows that they are sent as."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given, strategies as st

from streamd.operations.tier_reports import (
    Collected,
    Fault,
    Kind,
    Orphan,
    StreamTier,
    TierState,
    TierStatus,
    Verification,
    from_row,
    to_row,
)

COUNTS = st.integers(0, 1 << 62)
BY_KIND = st.fixed_dictionaries({str(kind): COUNTS for kind in Kind})
FIELDS: dict[Any, st.SearchStrategy[Any]] = {
    int: COUNTS,
    str: st.text(),
    bool: st.booleans(),
    float | None: st.none() | st.floats(0, 1e9),
}


def reports(kind: type[Any]) -> st.SearchStrategy[Any]:
    fields = {
        field.name: FIELDS.get(field.type, BY_KIND)
        for field in dataclasses.fields(kind)
        if field.name not in ("faults", "orphans")
    }
    lists = {"faults": st.just(()), "orphans": st.just(())}
    names = {field.name for field in dataclasses.fields(kind)}
    return st.builds(kind, **fields, **{n: made for n, made in lists.items() if n in names})


@pytest.mark.parametrize(
    "kind",
    [TierStatus, StreamTier, Fault, Verification, Orphan, Collected],
    ids=lambda k: k.__name__,
)
@given(data=st.data())
def test_rows_come_back(kind: type[Any], data: st.DataObject) -> None:
    report = data.draw(reports(kind))
    row = to_row(report)
    assert all(isinstance(text, str) for text in row.values())
    lists = {name: () for name in ("faults", "orphans") if hasattr(report, name)}
    assert from_row(kind, row, **lists) == report


def test_what_another_version_says_more_or_less() -> None:
    row = {**to_row(TierStatus(num_streams=4)), "something": "new", "requests.new": "5"}
    del row["epoch"], row["writer"]
    found = from_row(TierStatus, row)
    assert (found.num_streams, found.epoch, found.writer) == (4, 0, "")
    assert found.requests["new"] == 5


def test_without_a_tier_it_is_off() -> None:
    assert TierStatus().state == TierState.OFF
    assert TierStatus().requests == dict.fromkeys(("get", "put", "list", "delete"), 0)
