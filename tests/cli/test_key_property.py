"""`--key-property`: which may be given, and how often."""

import json

import pytest

from segments.selector import names_in
from tests.support.command_line import CommandLine


def test_it_may_be_repeated(streamd: CommandLine) -> None:
    given = ("--key-property", "a", "--key-property", "[b,c]")
    assert streamd("stream", "create", "s", *given).code == 0
    arguments = json.loads(streamd("stream", "info", "s", "--json").out)["arguments"]
    assert names_in(arguments["stream-key-properties"]) == ("a", "b,c")


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ([""], "expected the name of a property\n"),
        (list("abcdefghi"), "expected at most 8 names of properties, and there are 9"),
        (["a", "a"], "expected each name once, and 'a' is there twice"),
        (["properties.colour"], "expected the name of a property: properties has message_id"),
        (["x" * 256], "expected a name of at most 255 bytes"),
    ],
)
def test_names_that_are_refused(streamd: CommandLine, names: list[str], says: str) -> None:
    options = [word for name in names for word in ("--key-property", name)]
    ended = streamd("stream", "create", "s", *options)
    assert ended.code == 1
    assert ended.notes.startswith("Error: stream-key-properties is ")
    assert says in ended.notes


def test_default_is_not_one_of_several_properties(streamd: CommandLine) -> None:
    assert streamd("stream", "create", "s", "--key-property", "a").code == 0
    ended = streamd("stream", "set", "s", "--key-property", "default", "--key-property", "b")
    assert (ended.code, ended.notes) == (
        2,
        "Error: --key-property default takes all of them away, so it stands alone\n",
    )
    assert streamd("stream", "set", "s", "--key-property", "default").code == 0
    assert "stream-key-properties" not in streamd("stream", "info", "s").out


def test_a_stream_that_is_not_there_is_named(streamd: CommandLine) -> None:
    ended = streamd("stream", "set", "orders", "--key-property", "a")
    assert ended.code == 1
    assert ended.notes.startswith("Error: stream.set orders: stream does not exist; ")
