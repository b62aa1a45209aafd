"""Dashboards made for RabbitMQ find what they ask for."""

import re
from pathlib import Path

import pytest

from tests.support.metrics import Metrics
from tests.support.server import Harness, Peer

ASKED = Path(__file__).parents[1] / "vectors" / "dashboards.txt"
# They join every metric with this one, by these labels.
IDENTITY = {
    "rabbitmq_node": "streamd@localhost",
    "rabbitmq_cluster": "streamd@localhost",
    "rabbitmq_cluster_permanent_id": "streamd@localhost",
}


def asked() -> list[tuple[str, dict[str, str]]]:
    lines = [line for line in ASKED.read_text().splitlines() if not line.startswith("#")]
    return [(line.split()[1], dict(re.findall(r'(\w+)="([^"]*)"', line))) for line in lines]


@pytest.mark.parametrize("path", ["", "/per-object"])
async def test_every_metric_that_dashboards_ask_for(server: Harness, peer: Peer, path: str) -> None:
    await peer.begin("s")
    await peer.store([b"a"])
    found = await Metrics(server).scrape(path)
    wanted = asked()
    assert len(wanted) == 71
    assert [ask for ask in wanted if not any(found.like(ask[0], **ask[1]))] == []


async def test_all_stream_errors_are_there_from_the_start(server: Harness) -> None:
    """A panel adds them: with one of them missing it is empty."""
    found = await Metrics(server).scrape()
    errors = {n: v for (n, _), v in found.items() if n.startswith("rabbitmq_global_stream_error_")}
    assert len(errors) == 17
    assert set(errors.values()) == {0}
    told = {name for name, _ in asked() if "stream_error" in name}
    assert set(errors) == told


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [("", "aggregated"), ("/per-object", "per-object"), ("/detailed", "detailed")],
)
async def test_what_all_panels_join_with(server: Harness, path: str, endpoint: str) -> None:
    found = await Metrics(server).scrape(path)
    assert found.of("rabbitmq_identity_info", rabbitmq_endpoint=endpoint, **IDENTITY) == 1
    assert "# TYPE rabbitmq_identity_info untyped\n" in found.text


async def test_metrics_that_are_added_have_the_same_labels(server: Harness) -> None:
    found = await Metrics(server).scrape()
    kinds = ("consume_auto_ack", "consume_manual_ack", "get_auto_ack", "get_manual_ack")
    labels = [
        {key for name, key in found if name == f"rabbitmq_global_messages_delivered_{kind}_total"}
        for kind in kinds
    ]
    assert all(one == labels[0] for one in labels)
    assert len(labels[0]) == 3
