"""Conditions on one property, all of them and all pairs: no match is lost on any way.

Random selectors seldom meet where two conditions on one property do.
"""

from collections.abc import Iterator
from contextlib import suppress

import pytest

from segments.message import Message
from segments.selector import Dialect, RowReader, Selector, SelectorError, parse_property, parse_sql
from segments.selector.evaluate import Clock
from segments.selector.nodes import And, Node, Not, Or
from segments.selector.selector import condition_of
from tests.segments.selector.strategies import TEXTS, chunk, meeting, quoted

P = parse_property("p")
LIKES = ("a%", "%b", "_", "a", "", "%", "5%")


def conditions(dialect: Dialect) -> Iterator[Node]:
    texts = [
        "p IS NULL",
        "p IN ('a', '', '5')",
        "p IN ('b', 'true')",
        "p = 5",
        "q = 'a'",
        *(f"p = {quoted(text)}" for text in TEXTS),
        *(f"{quoted(text)} = p" for text in ("", "5", "a")),
        *(f"p LIKE {quoted(text)}" for text in LIKES),
        *(f"p CONTAINS {quoted(text)}" for text in ("", "a", "5")),
        *(f"p NOT CONTAINS {quoted(text)}" for text in ("", "a")),
        *(f"p NOT {rest}" for rest in ("IN ('a', '')", "IN ('5')", "LIKE 'a%'", "LIKE '%'")),
        *(f"p <> {quoted(text)}" for text in ("", "5", "a")),
    ]
    for text in texts:
        with suppress(SelectorError):  # another dialect's
            yield parse_sql(text, dialect).node


def combined(dialect: Dialect) -> Iterator[Node]:
    found = list(conditions(dialect))
    assert len(found) > 20
    for one in found:
        yield from (one, Not(one))
        for other in found:
            for kind in (And, Or):
                both = kind((one, other))
                yield from (both, Not(both))


@pytest.mark.parametrize("dialect", Dialect)
def test_no_match_is_lost_by_pushdown(dialect: Dialect) -> None:
    names = [P, parse_property("q")]
    rows = [RowReader(names).read(raw) for raw in dict.fromkeys(meeting("p"))]
    values = [row[0].encode() if isinstance(row[0], str) else row[0] for row in rows]
    of_rows = [value if isinstance(value, bytes) and value else None for value in values]
    for node in combined(dialect):
        selector = Selector(node, dialect)
        condition = condition_of(selector, names, Clock())
        matched = {
            value for row, value in zip(rows, of_rows, strict=True) if condition(row) is True
        }
        asked = selector.push_down(["p"], is_strict=True)
        assert not (asked.is_empty and matched), str(selector)
        if asked.values is not None:
            assert matched <= asked.values | ({None} if asked.match_unfiltered else set()), str(
                selector
            )
        lenient = selector.push_down(["p"], is_strict=False)
        assert lenient.match_unfiltered or not matched
        assert lenient.values == asked.values


@pytest.mark.parametrize("dialect", Dialect)
def test_no_match_is_lost_by_screening(dialect: Dialect) -> None:
    rest = [Message(b"x", application_properties={"z": "zz"}).encode()] * 20
    bodies = list(dict.fromkeys(meeting("p")))
    for node in conditions(dialect):
        matcher = Selector(node, dialect).matcher()
        for place in matcher.select(bodies):
            raw, ends = chunk([*rest, bodies[place], *rest])
            assert 20 in matcher.select_in(raw, ends), (node.text(dialect), bodies[place])


@pytest.mark.parametrize("dialect", [Dialect.UNION, Dialect.AMQP])
@pytest.mark.parametrize("subject", ["p", "'a'", "0x61", "5"])
@pytest.mark.parametrize("negated", [False, True])
def test_a_list_of_texts_is_several_equalities(
    dialect: Dialect, subject: str, negated: bool
) -> None:
    """Of every type of value: the list is looked up in a set, the equalities are compared."""
    in_list, equalities = (
        condition_of(parse_sql(f"{'NOT ' if negated else ''}({text})", dialect), [P], Clock())
        for text in (f"{subject} IN ('a', '5')", f"{subject} = 'a' OR {subject} = '5'")
    )
    for raw in dict.fromkeys(meeting("p")):
        row = RowReader([P]).read(raw)
        assert in_list(row) is equalities(row), row
