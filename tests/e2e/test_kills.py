"""kill -9 under load; `make kills` does it 200 times."""

import logging
from pathlib import Path

import pytest

from tests.crash import node_kills, tier_kills
from tests.crash.harms import Harm


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what clients leave behind whose server is gone
@pytest.mark.parametrize("confirm", ["local", "store"])
def test_a_server_with_a_tier_and_a_machine_that_is_lost(tmp_path: Path, confirm: str) -> None:
    logging.disable(logging.CRITICAL)  # what clients say whose server is gone
    try:
        summary = tier_kills.kill_many(tmp_path, kills=3, confirm=confirm)
    finally:
        logging.disable(logging.NOTSET)
    assert "1 of a machine" in summary


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["file", "gofakes3"])
def test_a_cluster_whose_leader_is_harmed(tmp_path: Path, kind: str) -> None:
    logging.disable(logging.CRITICAL)
    harms = (Harm.KILL, Harm.STOP) if kind == "file" else (Harm.PAUSE,)
    try:
        summary = node_kills.kill_many(tmp_path, len(harms), kind=kind, harms=harms)
    finally:
        logging.disable(logging.NOTSET)
    assert f"{len(harms)} times a node was harmed" in summary
