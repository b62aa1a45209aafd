"""The dashboard and the alerts that the program prints ask for metrics that there are."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from streamd.broker.declared.standing_selectors import parse_standing
from streamd.cli import main
from streamd.operations.server import BEHIND_SECONDS
from tests.support.metrics import Metrics, Scraped
from tests.support.node import FakeNode
from tests.support.server import Harness
from tests.support.tier import FakeTier

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "monitoring.md"
METRIC = re.compile(r"\b(?:streamd|rabbitmq)_\w+")


def printed(what: str) -> str:
    result = CliRunner().invoke(main, ["print", what])
    assert result.exit_code == 0
    return result.output


def values_of(tree: Any, key: str) -> Iterator[Any]:
    if isinstance(tree, dict):
        for name, value in tree.items():
            if name == key:
                yield value
            yield from values_of(value, key)
    elif isinstance(tree, list):
        for item in tree:
            yield from values_of(item, key)


@pytest.fixture
async def scrapes(server: Harness) -> tuple[Scraped, Scraped]:
    """Of the server, and of each object, with something in it."""
    server.server.broker.tier = FakeTier()
    server.server.broker.node = FakeNode()
    peer = await server.peer()
    await peer.create("s")
    await server.host.settings.put_selector("s", parse_standing("g", "union", "TRUE"))
    await peer.declare("s")
    await peer.store([b"m"])
    await peer.subscribe("s", name="reader")
    metrics = Metrics(server)
    return await metrics.scrape(), await metrics.scrape("/per-object")


def names_in(expression: str) -> set[str]:
    return set(METRIC.findall(expression))


def test_consumers_are_late_for_the_alert_when_the_server_says_so() -> None:
    assert f'streamd_stream_lag_seconds{{job="streamd"}} > {BEHIND_SECONDS}' in printed("alerts")


async def test_the_dashboard(scrapes: tuple[Scraped, Scraped]) -> None:
    dashboard = json.loads(printed("dashboard"))
    totals, objects = ({name for name, _ in scrape} for scrape in scrapes)
    expressions = [*values_of(dashboard, "expr"), *values_of(dashboard, "definition")]
    assert len(expressions) > 40
    for expression in expressions:
        is_of_objects = "$objects_job" in expression or "vhost" in expression
        names = names_in(expression)
        assert names
        assert names <= (objects if is_of_objects else totals), expression
    grid = [panel["gridPos"] for panel in dashboard["panels"]]
    places = [(x, p["y"]) for p in grid for x in range(p["x"], p["x"] + p["w"])]
    assert len(set(places)) == len(places), "panels lie on each other"
    assert len(set(values_of(dashboard["panels"], "id"))) == len(grid)


async def test_labels_that_the_dashboard_sums_by(scrapes: tuple[Scraped, Scraped]) -> None:
    dashboard = json.loads(printed("dashboard"))
    labels = {key for scrape in scrapes for _, pairs in scrape for key, _ in pairs}
    used = {
        label.strip()
        for expression in values_of(dashboard, "expr")
        for group in re.findall(r"\bby \(([^)]*)\)", expression)
        for label in group.split(",")
    }
    assert used <= labels | {"instance"}
    legends = set(re.findall(r"{{(\w+)}}", " ".join(values_of(dashboard, "legendFormat"))))
    assert legends <= labels | {"instance"}


async def test_the_alerts(scrapes: tuple[Scraped, Scraped]) -> None:
    rules = [
        rule for group in yaml.safe_load(printed("alerts"))["groups"] for rule in group["rules"]
    ]
    totals = {name for name, _ in scrapes[0]}
    for rule in rules:
        assert names_in(rule["expr"]) <= totals, rule["alert"]
        of_one_job = set(re.findall(r'(\w+_\w+){job="streamd"}', rule["expr"]))
        assert of_one_job == names_in(rule["expr"]), "others come from the job of streams, too"
    assert re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE) == [
        rule["alert"] for rule in rules
    ]


async def test_an_alert_for_a_task_sees_its_first_failure(server: Harness) -> None:
    """A counter that begins to exist with 1 has not risen for Prometheus."""
    faults = server.server.broker.supervisor.faults
    assert faults["flushing"] == 0
    assert "flushing" in faults


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_understands_them(tmp_path: Path) -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "prometheus.yml").write_text(blocks[0])
    (tmp_path / "streamd.yaml").write_text(printed("alerts"))
    command = ["promtool", "check", "config", "prometheus.yml"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "13 rules found" in result.stdout
