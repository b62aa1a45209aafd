"""reference/stream-arguments has every argument over every door, and what it says of them is so."""

import re

import click
import pytest

from segments import LogPolicy
from streamd.cli.streams import create, set_arguments
from streamd.connections.amqp091 import consumer_arguments
from streamd.connections.queue_arguments import Declaration
from streamd.operations.arguments import ARGUMENTS, SETTINGS, policy_of, read_arguments
from streamd.operations.errors import Refused
from streamd.wire.stored_messages import FILTER_VALUE
from streamd.wire.stream import subscribe_properties
from tests.support.pages import ROOT

PAGE = (ROOT / "docs" / "reference/stream-arguments.md").read_text()
_ROW = re.compile(r"^\| .*?`([a-z-]+)`<br>`x-\1` \|(.*)$", re.MULTILINE)
ROWS = dict(_ROW.findall(PAGE))


def options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts if name[0] == "-"}


def test_there_is_a_row_for_each_argument() -> None:
    assert list(ROWS) == list(ARGUMENTS)


def test_each_option_that_declares_something_is_there() -> None:
    named = {argument.option for argument in ARGUMENTS.values()} - {""}
    assert options(create) - named == {"--argument", "--exist-ok", "--uri"}
    assert named < options(create)
    changing = {ARGUMENTS[name].option for name in SETTINGS}
    assert options(set_arguments) - {"--uri"} == changing


@pytest.mark.parametrize("name", ARGUMENTS)
def test_what_can_be_changed_is_marked(name: str) -> None:
    assert ("Can be changed" in ROWS[name]) == (name in SETTINGS)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_amqp_takes_the_types_that_are_named(name: str) -> None:
    """A value of a type that is named is understood; one of another type is refused."""
    examples = {"string": "?", "integer": 100, "boolean": True, "float": 0.01}
    allowed = ROWS[name].partition("AMQP: ")[2].partition(".<br>")[0]
    for kind, value in examples.items():
        try:
            Declaration("s", "/", {f"x-{name}": value}).canonical()
            error = ""
        except Exception as fault:  # noqa: BLE001 - of any kind
            error = str(fault)
        is_wrong_type = "not a value of type" in error
        assert is_wrong_type == (kind not in allowed), (kind, error)


def test_without_arguments_a_stream_has_the_defaults() -> None:
    assert policy_of({}) == LogPolicy()
    policy = LogPolicy()
    assert f"Default: {policy.filter_size}." in ROWS["stream-filter-size-bytes"]
    in_tier = policy_of({}, has_tier=True)
    sizes = f"{policy.max_segment_bytes:,}; {in_tier.max_segment_bytes:,} for a stream in the tier"
    assert f"Default: {sizes}." in ROWS["stream-max-segment-size-bytes"]
    assert f"Default: {policy.chunk_max_bytes:,}." in ROWS["stream-chunk-max-bytes"]
    assert "Default: `true`" in ROWS["stream-filter-history"]
    assert "Default: `true`" in ROWS["stream-tier"]
    assert policy.tier
    local = "Default: 1,073,741,824 without a local age, else none."
    assert local in ROWS["stream-local-max-length-bytes"]
    assert policy.local_max_length_bytes is policy.local_max_age_ms is None
    assert policy.filter_history
    assert policy.max_length_bytes is policy.max_age_ms is policy.filter_error_rate is None


def test_contract_and_deriving_need_a_property() -> None:
    for name in ("stream-filter-contract", "stream-filter-derive"):
        assert "Needs a filter property" in ROWS[name]
        with pytest.raises(Refused, match="needs stream-filter-property"):
            read_arguments([(name, "true" if name.endswith("derive") else "strict")])


def test_every_word_of_consumers_and_publishers_is_there() -> None:
    words = {
        value
        for name, value in vars(subscribe_properties).items()
        if name.isupper() and name[0] != "_" and isinstance(value, str)
    }
    assert len(words) > 8
    amqp = {
        value
        for name, value in vars(consumer_arguments).items()
        if name in ("OFFSET", "FILTER", "UNFILTERED", "SQL", "TAGS")
    }
    assert len(amqp) == 5
    for word in words | amqp | {*consumer_arguments.FOREIGN, FILTER_VALUE}:
        assert f"`{word}" in PAGE, word
