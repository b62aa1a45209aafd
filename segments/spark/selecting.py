"""A selector as a Column: true, false or null for unknown, as the selector says of a message.

What Spark's expressions say in just the same way becomes one of them. For the rest (RocketMQ's
rules, which may end an evaluation midway; texts that spell numbers; arithmetic) the column calls
the same closures that consumers use: slower, and the same results by construction.
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import Column, DataFrame, functions as F  # noqa: N812 - as everybody calls it

from segments.selector import Dialect, Property, Selector, SelectorError
from segments.selector.evaluate import TAG, Clock
from segments.selector.nodes import PropertySection
from segments.selector.selector import condition_of
from segments.spark.expressions import (
    BINARY,
    BOOLEAN,
    FLOAT,
    INTEGER,
    TEXT,
    NotNative,
    Operand,
    Translator,
)

_KINDS = {
    "boolean": BOOLEAN,
    "tinyint": INTEGER,
    "smallint": INTEGER,
    "int": INTEGER,
    "bigint": INTEGER,
    "float": FLOAT,
    "double": FLOAT,
    "string": TEXT,
    "binary": BINARY,
    "timestamp": INTEGER,  # milliseconds, as everywhere in selectors
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def selector_column(
    selector: Selector, frame: DataFrame, names: Mapping[str, str] | None = None
) -> Column:
    """A selector over the columns of a DataFrame.

    Args:
        selector: from parse_sql or parse_tags.
        frame: has a column for each property that the selector names, of the property's type; as
            the source's option `properties` makes them. Fixed properties may be columns under
            their own name (`subject`) or their full one (`properties.subject`).
        names: columns of other names, by property.

    Raises:
        SelectorError: a property has no column, or one of a type that no property has.
    """
    types = dict(frame.dtypes)
    found = {prop: _column_of(prop, types, names or {}) for prop in selector.properties}
    operands = {prop: _operand(name, types[name]) for prop, name in found.items()}
    if selector.dialect is not Dialect.ROCKETMQ:
        try:
            return Translator(operands, selector.dialect is Dialect.UNION).condition(selector.node)
        except NotNative:
            pass
    return _called(selector, [_raw(name) for name in found.values()])


def _column_of(prop: Property, types: Mapping[str, str], names: Mapping[str, str]) -> str:
    full = (
        prop.name if prop.section is PropertySection.APPLICATION else f"{prop.section}.{prop.name}"
    )
    candidates = [names[full]] if full in names else [full, prop.name]
    for name in candidates:
        if name in types:
            if types[name] not in _KINDS:
                reason = f"column {name} is of type {types[name]}, which no property has"
                raise SelectorError(reason, full, 0, len(full))
            return name
    kind = "string" if prop == TAG else "TYPE"
    reason = f"there is no column {candidates[0]}; load with the option properties='{full} {kind}'"
    raise SelectorError(reason, full, 0, len(full))


def _raw(name: str) -> Column:
    return F.col(f"`{name}`")


def _operand(name: str, kind: str) -> Operand:
    column = _raw(name)
    return Operand(F.unix_millis(column) if kind == "timestamp" else column, _KINDS[kind])


def _called(selector: Selector, columns: list[Column]) -> Column:
    clock = Clock()
    clock.now_ms = time.time_ns() // 1_000_000
    condition = condition_of(selector, selector.properties, clock)

    def evaluate(*values: Any) -> bool | None:  # noqa: ANN401 - of any column
        return condition([_value(value) for value in values])

    return F.udf(evaluate, "boolean")(*columns)


def _value(value: Any) -> Any:  # noqa: ANN401 - see above
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, datetime):
        return (value.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)
    return value
