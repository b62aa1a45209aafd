"""kill -9 under load; `make kills` does it 200 times, in all flush modes."""

import logging
from pathlib import Path

import pytest

from streamd.broker.streams.flusher import FlushMode
from tests.crash import node_kills, tier_kills
from tests.crash.harms import Harm
from tests.crash.kills import kill_many


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what clients leave behind whose server is gone
def test_what_was_confirmed_survives_kills(tmp_path: Path) -> None:
    logging.disable(logging.CRITICAL)  # what clients say whose server is gone
    try:
        summary = kill_many(tmp_path, kills=3, modes=[FlushMode.ALWAYS])
    finally:
        logging.disable(logging.NOTSET)
    assert "none that was confirmed was lost" in summary


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("confirm", ["local", "store"])
def test_a_server_with_a_tier_and_a_machine_that_is_lost(tmp_path: Path, confirm: str) -> None:
    logging.disable(logging.CRITICAL)
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
