"""reference/python-api has everything that the public modules offer."""

import re
from importlib import import_module

import pytest

from clients import Client
from tests.support.pages import ROOT

PAGE = (ROOT / "docs" / "reference/python-api.md").read_text()
# For the server and the source in Spark: they have no use for programs.
OF_OTHERS = {"ConsumerCounts", "SearchOptions", "FormatError", "ConfigError"}  # what goes with them
_INSIDE = {
    "MAX_PROPERTY_BYTES",
    *("EVERYTHING", "TAGS", "Budget", "Cost", "MatcherSet", "NumberRule", "Property"),
    *("PropertyValue", "RowReader", "SelectorError", "WantedValues", "body_at", "Dialect"),
    *("names_in", "text_of_names"),
    *("filter_value_of", "filter_value_reader", "property_value_of", "property_value_reader"),
}


def documented(module: str) -> set[str]:
    (part,) = re.findall(
        rf"^## {re.escape(module)}$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL
    )
    return set(re.findall(r"^####? `(\w+)`$", part, re.MULTILINE)) - OF_OTHERS


@pytest.mark.parametrize("name", ["clients", "segments.spark", "segments.selector"])
def test_each_name_is_there(name: str) -> None:
    offered = set(import_module(name).__all__)
    if name == "segments.selector":
        assert offered > _INSIDE
        offered -= _INSIDE
    assert documented(name) == offered


def test_the_plugin_is_there() -> None:
    assert documented("streamd.testing") == {
        "streamd_server",
        "run_server",
        "StreamdServer",
        "ServerNotStarted",
    }


def test_each_parameter_is_described() -> None:
    """Of the methods that have many."""
    for name in ("producer", "consumer", "super_producer", "super_consumer", "create"):
        text = getattr(Client, name).__doc__
        code = getattr(Client, name)
        code = getattr(code, "__wrapped__", code).__code__
        given = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
        for parameter in given:
            assert f"{parameter}: " in text, (name, parameter)
