"""Slips in SQL, in names of properties, and on the command line: each answered with a hint."""

import json

import pytest

from tests.support.command_line import CommandLine

ROWS = [
    {"body": "1", "color": "red", "region": "EU", "total": 90, "order_id": "a1"},
    {"body": "2", "color": "blue", "region": "US", "total": 5, "order_id": "a2"},
]
FIND, CONSUME = ("find", "s"), ("consume", "s", "--until-end")
UNQUOTED = "is read as a property: a text is written"

SLIPS = [
    ((*FIND, "--sql", "colour = 'red'"), "has a property colour: did you mean color?"),
    ((*FIND, "--sql", "Region = 'EU'"), "has a property Region: did you mean region?"),
    ((*FIND, "--sql", "reigon = 'EU' AND total > 1"), "a property reigon: did you mean region?"),
    ((*FIND, "--sql", "color = red"), f"red {UNQUOTED} 'red'"),
    ((*FIND, "--sql", "region IN (EU, UK)"), f"UK {UNQUOTED} 'UK'"),
    ((*FIND, "--sql", "red = color"), f"red {UNQUOTED} 'red'"),
    ((*FIND, "--sql", "'color' = 'red'"), "'color' is read as a text: a property has no quotes"),
    ((*FIND, "--sql", "weight > 5"), "has a property weight: there is color, region, total, …"),
    ((*FIND, "--sql", "properties.subject = 'x'"), "has a property properties.subject: there is"),
    ((*FIND, "--tags", "new"), "has a property TAGS: there is color"),
    ((*FIND, "--key", "a1", "--property", "orderid"), "did you mean order_id?"),
    ((*CONSUME, "--sql", "colour = 'red'"), "has a property colour: did you mean color?"),
    ((*CONSUME, "--sql", "color = red"), f"red {UNQUOTED} 'red'"),
    ((*CONSUME, "--filter", "red", "--filter-property", "clor"), "did you mean color?"),
    ((*FIND, "--sql", "color == 'red'"), "column 8: found =; a property, a value or ( is expected"),
    ((*FIND, "--sql", "color = 'red"), "a string without its closing quote"),
    ((*FIND, "--sql", "color LIKE red"), "a pattern is expected, a string in quotes"),
    (("fnd", "s"), "No such command 'fnd'. Did you mean find?"),
    (("stream", "creat", "s"), "No such command 'creat'. Did you mean create?"),
    ((*FIND, "--sqll", "a"), "No such option '--sqll'. Did you mean '--sql'?"),
    (("stream", "create", "t", "--filter-sise", "16"), "'--filter-size'?)"),
    (
        ("stream", "create", "t", "--argument", "stream-filter-property-name=a"),
        "without effect: did you mean stream-filter-property",
    ),
    (("publish", "s", "--filter-property", "colr"), "has no property colr: did you mean color?"),
]


@pytest.fixture
def filled(streamd: CommandLine) -> CommandLine:
    assert streamd("stream", "create", "s").code == 0
    text = "\n".join(map(json.dumps, ROWS))
    # A chunk has to hold a wanted value, or there is nothing to be looked into.
    published = streamd("publish", "s", "--filter-property", "color", stdin=text.encode())
    assert published.code == 0
    return streamd


@pytest.mark.parametrize(("typed", "hint"), SLIPS)
def test_a_slip_is_answered_with_a_hint(
    filled: CommandLine, typed: tuple[str, ...], hint: str
) -> None:
    assert len(SLIPS) >= 20
    ended = filled(*typed, stdin=json.dumps(ROWS[0]).encode())
    assert ended.out == ""
    assert hint in ended.notes


@pytest.mark.parametrize(
    "typed",
    [
        (*FIND, "--sql", "color = 'green'"),
        (*FIND, "--sql", "region = 'EU'"),
        (*FIND, "--sql", "colour IS NULL"),  # it finds messages
        (*FIND, "--key", "zz", "--property", "order_id"),
        (*CONSUME, "--sql", "total > 1000"),
        (*CONSUME, "--filter", "red", "--filter-property", "color"),
    ],
)
def test_what_is_right_is_answered_without_one(filled: CommandLine, typed: tuple[str, ...]) -> None:
    ended = filled(*typed)
    assert ended.code == 0
    assert "property" not in ended.notes
    assert "did you mean" not in ended.notes


def test_an_empty_stream_has_no_names(streamd: CommandLine) -> None:
    assert streamd("stream", "create", "s").code == 0
    assert streamd(*FIND, "--sql", "a = b").notes == "no messages match\n"
