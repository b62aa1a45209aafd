"""Nodes that are harmed at random; `python -m tests.broker.nodes.random_harms` does it for long."""

from pathlib import Path

import pytest

from tests.broker.nodes.random_harms import harmed


@pytest.mark.parametrize("seed", range(1, 4))
async def test_a_cluster_that_is_harmed_at_random(tmp_path: Path, seed: int) -> None:
    assert await harmed(tmp_path, seed, rounds=3)
