"""Which messages of a chunk a selector may select, by the chunk's columns alone.

A column says which filter value each message has. What a selector asks of one filter property is
decided for all messages of a chunk at once, and joined as the selector joins it: for a node there
are the messages for which it may be true, or, below a NOT, those for which it may be false. What
it asks of other properties may be either for every message. So the messages found are perhaps too
many, but never too few: the selector itself is asked about each of them.

See `pushdown` for what filter values say of a property, and `columns` for what is asked here.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import TypeAlias

from segments.columns import ToldRows, ValueTest
from segments.property_keys import mark_of
from segments.selector import Selector, nodes as n, parse_property
from segments.selector.pushdown import ALL, ValueSet, outcomes_of

_Test: TypeAlias = Callable[[ToldRows], int | None]  # see Columns.rows; None for all messages


class RowScreen:
    """Finds the messages that a selector may select.

    Args:
        selector: the selector.
        filter_properties: the names of those that the stream has declared, the first one first.
        is_strict: see `pushdown.push_down`.

    Raises:
        SelectorError: there is no property of one of the names.

    Attributes:
        is_useful: columns may tell something; else `rows` is always None.
        num_tests: columns that are asked for a chunk, each time that they are.
    """

    def __init__(
        self, selector: Selector, filter_properties: Sequence[str], *, is_strict: bool
    ) -> None:
        self._dialect = selector.dialect
        self._properties = {name: parse_property(name) for name in filter_properties}
        self._is_strict = is_strict
        self.num_tests = 0
        self._test = self._compiled(selector.node, is_true=True)
        self.is_useful = self._test is not None

    def rows(self, columns: ToldRows) -> int | None:
        """A bit for each message that may be selected, see `Columns.rows`; None for all."""
        return None if self._test is None else self._test(columns)

    def _compiled(self, node: n.Node, *, is_true: bool) -> _Test | None:
        """Finds the messages for which a node may be true, or false; None where columns do not."""
        match node:
            case n.And(items) | n.Or(items):
                tests = [self._compiled(item, is_true=is_true) for item in items]
                return (_in_all if isinstance(node, n.And) is is_true else _in_some)(tests)
            case n.Not(inner):
                return self._compiled(inner, is_true=not is_true)
        for number, (name, prop) in enumerate(self._properties.items()):
            outcomes = outcomes_of(node, prop, self._dialect)
            values = outcomes.true if is_true else outcomes.false
            if values != ALL:
                may_lack = not (number or self._is_strict)
                self.num_tests += 1
                return _leaf(mark_of(name) if number else None, values, may_lack)
        return None


def _leaf(mark: bytes | None, values: ValueSet, may_lack: bool) -> _Test:
    """Finds the messages with a value of a set, or without one where they may lack it."""
    asked = set(values.values)
    if (values.has_unfiltered or may_lack) is not values.is_complement:
        asked.add(b"")
    test = ValueTest(mark, asked, is_complement=values.is_complement)
    return lambda columns: columns.rows(test)


def _in_all(tests: Sequence[_Test | None]) -> _Test | None:
    known = [test for test in tests if test is not None]

    def test(columns: ToldRows) -> int | None:
        found = None
        for part in known:
            rows = part(columns)
            if rows is not None:
                found = rows if found is None else found & rows
                if not found:
                    break
        return found

    return test if known else None


def _in_some(tests: Sequence[_Test | None]) -> _Test | None:
    known = [test for test in tests if test is not None]

    def test(columns: ToldRows) -> int | None:
        found = [rows for part in known if (rows := part(columns)) is not None]
        return reduce(or_, found) if len(found) == len(known) else None

    return test if len(known) == len(tests) else None
