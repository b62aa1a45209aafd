"""The benchmark of many narrow consumers runs, and counts a message once, for its own consumer."""

import json

from click.testing import CliRunner

from benchmarks.crowd import Crowd, Served
from benchmarks.narrow import main

SMALL = ["--alone", "--rounds", "1", "--seconds", "0.2", "--subscriptions", "30"]


def test_a_small_run() -> None:
    done = CliRunner().invoke(main, [*SMALL, "--connections", "4", "--json"])
    assert done.exit_code == 0, done.output
    (line,) = json.loads(done.stdout)
    assert (line["server"], line["subscriptions"], line["connections"]) == ("streamd", 30, 4)
    (found,) = line["rounds"]
    assert set(found) == set(Served._fields)
    assert found["p50"] <= found["p99"]


def test_the_table_names_each_run() -> None:
    done = CliRunner().invoke(main, [*SMALL, "--subscriptions", "20"])
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[:3] for row in rows if row[:1] == ["streamd"]] == [
        ["streamd", "30", "3"],
        ["streamd", "20", "2"],
    ]


def test_connections_are_shared() -> None:
    assert [Crowd(n).members for n in (5, 100, 5_000, 50_000)] == [1, 10, 500, 500]
    assert Crowd(5, connections=9).members == 5


def test_too_many_for_a_connection_is_one_line() -> None:
    done = CliRunner().invoke(main, [*SMALL, "--subscriptions", "1000", "--connections", "3"])
    assert done.exit_code == 2
    assert "1,000 subscriptions are too many for 3 connections: 256 each" in done.stderr
