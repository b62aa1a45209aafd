"""Selectors: RocketMQ's tags and SQL92 pick messages by their properties.

`parse_sql` and `parse_tags` make a Selector. Its matcher tells of single messages whether they
match, and its `push_down` which chunks of a stream can hold any that do. Synchronous, without
clocks; user text is parsed and compiled to closures, never executed.
"""

from segments.selector.cost import Budget, Cost
from segments.selector.dialects import Dialect
from segments.selector.errors import SelectorError
from segments.selector.fields import RowReader
from segments.selector.filter_values import (
    NumberRule,
    PropertyValue,
    WantedValues,
    filter_value_of,
    filter_value_reader,
    property_value_of,
    property_value_reader,
)
from segments.selector.matcher_set import MatcherSet
from segments.selector.message_slices import body_at
from segments.selector.nodes import Property
from segments.selector.property_names import names_in, text_of_names
from segments.selector.pushdown import EVERYTHING, PropertyWish, Pushdown
from segments.selector.selector import (
    MAX_PROPERTY_BYTES,
    TAGS,
    MessageMatcher,
    Selector,
    parse_property,
    parse_selector,
    parse_sql,
    parse_tags,
)

__all__ = [
    "EVERYTHING",
    "MAX_PROPERTY_BYTES",
    "TAGS",
    "Budget",
    "Cost",
    "Dialect",
    "MatcherSet",
    "MessageMatcher",
    "NumberRule",
    "Property",
    "PropertyValue",
    "PropertyWish",
    "Pushdown",
    "RowReader",
    "Selector",
    "SelectorError",
    "WantedValues",
    "body_at",
    "filter_value_of",
    "filter_value_reader",
    "names_in",
    "parse_property",
    "parse_selector",
    "parse_sql",
    "parse_tags",
    "property_value_of",
    "property_value_reader",
    "text_of_names",
]
