"""Streams with several filter properties, from the command line."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from segments.__main__ import main as segments
from tests.support.command_line import CommandLine

TWICE = ("--filter-property", "region", "--filter-property", "kind")
ROWS = [
    {"body": "0", "region": "EU", "kind": "late"},
    {"body": "1", "region": "EU"},
    {"body": "2", "region": "US", "kind": "late"},
    {"body": "3", "region": "EU", "kind": "early"},
]


def fill(streamd: CommandLine, *options: str) -> None:
    made = streamd("stream", "create", "s", *options, "--chunk-max-records", "1")
    assert (made.code, made.notes) == (0, "created s\n")
    text = "\n".join(map(json.dumps, ROWS))
    assert streamd("publish", "s", stdin=text.encode()).code == 0


def test_from_declaring_to_dumping(streamd: CommandLine) -> None:
    fill(streamd, *TWICE, "--filter-derive")
    sql = "region = 'EU' AND kind = 'late'"
    found = streamd("consume", "s", "--sql", sql, "--until-end", "--explain")
    assert [json.loads(line)["body"] for line in found.out.splitlines()] == ["0"]
    assert "chunks also tell the values of kind" in found.notes
    assert "and a message with kind late\n" in found.notes
    assert "chunks: 1 delivered, 0 of them without a match; 3 skipped" in found.notes
    shown = streamd("stream", "info", "s").out
    assert "region,kind" in shown
    assert "of 4 chunks, with 4 different values" in shown
    assert "values of kind            2" in shown
    assert "life" not in shown
    info = json.loads(streamd("stream", "info", "s", "--json").out)
    assert (info["filters"]["values"], info["filters"]["values.kind"]) == (4, 2)
    (folder,) = Path(streamd._data).glob("streams/*/s")
    dumped = CliRunner().invoke(segments, ["dump", str(folder)]).output.splitlines()
    assert dumped[1].endswith("  filter values: EU 1  kind: late 1")
    assert dumped[2].endswith("  filter values: EU 1  kind: (none) 1")
    raw = CliRunner().invoke(segments, ["dump", "--json", str(folder)]).output.splitlines()
    first = json.loads(raw[0])
    assert first["filter_values"] == {"EU": 1}
    assert first["filter_properties"] == {"kind": {"late": 1}}
    assert "filter_properties" in json.loads(raw[-1])
    assert CliRunner().invoke(segments, ["verify", str(folder)]).exit_code == 0


def test_the_first_is_the_one_that_values_are_given_of(streamd: CommandLine) -> None:
    made = streamd("stream", "create", "s", *TWICE, "--filter-contract", "strict")
    assert made.code == 0
    text = json.dumps(ROWS[0] | {"region": 5})
    assert streamd("publish", "s", "--filter-property", "region", stdin=text.encode()).code == 0
    refused = streamd(
        "publish", "s", "--filter-property", "kind", stdin=json.dumps(ROWS[0]).encode()
    )
    assert refused.code == 1
    assert refused.notes.count("\n") == 1


def test_why_filters_save_nothing_is_said(streamd: CommandLine) -> None:
    lines = "\n".join(json.dumps(row) for row in ROWS[:3:2]).encode()
    assert streamd("stream", "create", "s", "--filter-property", "region").code == 0
    for _ in range(3):
        assert streamd("publish", "s", stdin=lines).code == 0
    why = "2 values, all in every chunk: no size helps"
    assert f"filters save nothing    {why}" in streamd("stream", "info", "s").out
    explained = streamd("consume", "s", "--filter", "EU", "--until-end", "--explain")
    assert f"filters save nothing: {why}\n" in explained.notes
    everything = streamd("consume", "s", "--sql", "total > 5", "--until-end", "--explain")
    assert "save nothing" not in everything.notes


def test_that_publishers_sent_no_values_is_said(streamd: CommandLine) -> None:
    assert streamd("stream", "create", "s").code == 0
    assert streamd("publish", "s", stdin=b'{"body": "a"}').code == 0
    assert "filters save nothing  publishers sent no values" in streamd("stream", "info", "s").out


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("abcde", "expected at most 4 names of properties, and there are 5"),
        (["region", "region"], "expected each name once, and 'region' is there twice"),
        (["region", ""], "and one is missing"),
        (["region", "properties.color"], "expected the name of a property: properties has"),
        (["[region", "kind"], "expected a closing bracket behind a name in brackets"),
    ],
)
def test_what_is_no_list_of_properties(
    streamd: CommandLine, options: list[str], reason: str
) -> None:
    given = [part for name in options for part in ("--filter-property", name)]
    refused = streamd("stream", "create", "s", *given)
    assert refused.code == 1
    assert reason in refused.notes
    assert refused.notes.count("\n") == 1


def test_they_stay_as_they_were_declared(streamd: CommandLine) -> None:
    assert streamd("stream", "create", "s", *TWICE).code == 0
    again = streamd("stream", "create", "s", "--filter-property", "region, kind", "--exist-ok")
    assert again.code == 0
    other = streamd("stream", "create", "s", "--filter-property", "region", "--exist-ok")
    assert other.code == 1
    assert "stream-filter-property is region,kind, not region" in other.notes
