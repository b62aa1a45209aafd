"""`streamd cluster`, and what `streamd status` says of a node."""

import json
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from segments.store.cluster import Cluster
from segments.store.folder_store import FolderStore
from segments.store.heartbeat import NodeRole, encode_heartbeat
from segments.store.object_store import TierError
from tests.support.command_line import CommandLine
from tests.support.node import BEAT, LEADER, STANDBY, FakeNode
from tests.support.tiers import put_state

_CLUSTER = Cluster(revision=8, epoch=4, writer="w", start="s", tier="t", node="a")


@pytest.fixture(name="node")
def node_of_server(streamd: CommandLine) -> FakeNode:
    streamd.node = node = FakeNode()
    return node


def _lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.mark.usefixtures("node")
def test_status(streamd: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    ended = streamd("cluster", "status")
    assert (ended.code, ended.notes) == (0, "")
    assert _lines(ended.out) == [
        "cluster c41d07e2b3a95f68, 2 nodes: node a leads, epoch 4, revision 8",
        "node role leads since heartbeat stream behind version",
        "a leader 2023-11-14 22:13:20 1 s ago a.example:5552 0 0.1.0",
        "b standby 2 s ago 1",
    ]


def test_status_of_a_cluster_whose_leader_is_gone(streamd: CommandLine, node: FakeNode) -> None:
    node.nodes = (msgspec.structs.replace(LEADER, age=75.0), STANDBY)
    ended = streamd("cluster", "status")
    assert ended.code == 1
    assert "node a leads, and was last seen 1 min 15 s ago, epoch 4" in ended.out
    assert "1 min 15 s ago: not there" in ended.out


def test_status_as_json(streamd: CommandLine, node: FakeNode) -> None:
    found = json.loads(streamd("cluster", "status", "--json").out)
    assert (found["leader"], found["epoch"]) == ("a", 4)
    assert found["nodes"][1] == json.loads(msgspec.json.encode(STANDBY))
    node.error = TierError("the store does not answer")
    ended = streamd("cluster", "status")
    assert ended.code == 1
    assert "the store does not answer" in ended.notes


def test_a_server_that_is_no_node(streamd: CommandLine) -> None:
    ended = streamd("cluster", "status")
    assert ended.code == 1
    assert "the server is no node of a cluster: its setting node names one" in ended.notes


def test_forget(streamd: CommandLine, node: FakeNode) -> None:
    ended = streamd("cluster", "forget", "b")
    assert (ended.code, ended.notes) == (0, "node b is forgotten\n")
    assert node.forgotten == ["b"]
    ended = streamd("cluster", "forget", "a")
    assert ended.code == 1
    assert "node a has renewed its heartbeat" in ended.notes


def test_what_status_says_of_a_node(streamd: CommandLine, node: FakeNode) -> None:
    said = [line for line in _lines(streamd("status").out) if line.startswith("node ")]
    assert said == ["node b, standby: a at a.example:5552 leads, seen 2 s ago"]
    node.told = msgspec.structs.replace(node.told, role="leader", name="a")
    said = [line for line in _lines(streamd("status").out) if line.startswith("node ")]
    assert said == ["node a, leader"]


def test_the_store_alone_is_asked(streamd: CommandLine, tmp_path: Path) -> None:
    tier = f"file://{tmp_path}"
    ended = streamd("cluster", "status", "--tier", tier)
    assert ended.code == 1
    assert "there is nothing in the tier" in ended.notes
    store = FolderStore(str(tmp_path))
    put_state(store, _CLUSTER)
    left = replace(BEAT, node="b", role=NodeRole.LEFT, revision=5)
    for beat in (BEAT, left):
        store.create(beat.key, encode_heartbeat(beat))
    store.put("v1/~nodes/c", b"damaged")
    ended = streamd("cluster", "status", "--tier", tier, "--json")
    assert ended.code == 0
    found = json.loads(ended.out)
    assert [(n["name"], n["role"], n["leads"], n["behind"]) for n in found["nodes"]] == [
        ("a", "leader", True, 0),
        ("b", "left", False, 3),
        ("c", "", False, 0),
    ]
    ended = streamd("cluster", "forget", "a", "--tier", tier)
    assert ended.code == 1
    assert "node a has renewed its heartbeat 0 s ago: stop it first" in ended.notes
    ended = streamd("cluster", "forget", "none", "--tier", tier)
    assert "there is no node none" in ended.notes
    for name in ("b", "b"):
        ended = streamd("cluster", "forget", name, "--tier", tier)
    assert "there is no node b" in ended.notes
