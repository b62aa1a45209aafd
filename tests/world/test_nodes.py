"""A few worlds of three nodes, and that what goes wrong in them is noticed."""

from pathlib import Path

import pytest
import trio

from tests.world.nodes import Nodes
from tests.world.run import Plan, make
from tests.world.witness import Seen, Sent
from tests.world.witness_tier import Read, mixed_lives
from tests.world.world import Fault, World


@pytest.mark.parametrize("seed", [1, 5, 13])
def test_worlds(tmp_path: Path, seed: int) -> None:
    world = make(Plan(seed, ("nodes", "messages")), tmp_path)
    faults = world.run()
    assert not faults, "\n".join([*faults, *world.events])
    assert len(world.witness.log) > len(world.witness.followers)


def _quiet(folder: Path, *faults: Fault) -> tuple[World, Nodes]:
    world = make(Plan(1, ("nodes",), ("n0 p", "n0 f"), faults), folder)
    (nodes,) = (part for part in world.parts if isinstance(part, Nodes))
    return world, nodes


def test_a_node_that_does_not_come_back_is_noticed(tmp_path: Path) -> None:
    world, nodes = _quiet(tmp_path)
    finish = nodes.finish

    async def lose() -> None:
        world.boxes["b"].is_over = True
        world.boxes["b"].kill()
        await finish()

    nodes.finish = lose  # type: ignore[method-assign]
    assert [fault for fault in world.run() if "a cluster becomes whole again" in fault]


def test_nodes_that_say_different_things_are_noticed(tmp_path: Path) -> None:
    world, nodes = _quiet(tmp_path)
    told = world.witness.others["n0"]

    async def invent() -> None:
        await trio.lowlevel.checkpoint()
        told.log = [Seen(0, Sent("q", 1))]

    nodes.finish = invent  # type: ignore[method-assign]
    assert [fault for fault in world.run() if "all nodes say the same" in fault]


def test_lives_that_are_mixed_up_are_noticed() -> None:
    fine = Read([(0, 1, 1), (1, 1, 2), (5, 1, 6)], frozenset(), {1: 5})
    assert not list(mixed_lives([fine]))
    assert list(mixed_lives([fine._replace(seen=[(0, 1, 1), (1, 2, 2)])]))
    assert list(mixed_lives([fine._replace(gone=frozenset({1}))]))
    assert list(mixed_lives([fine._replace(cut={})]))
