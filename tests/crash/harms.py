"""What happens to a cluster of three: each function is one harm, until it is over.

Where somebody else has to lead then, it waits for that. What is not mended when it returns, such as
a process that has ended, or a line that is cut, is mended afterwards (`Cluster.mend`).
"""

import signal
from collections.abc import Awaitable, Callable
from enum import StrEnum
from random import Random
from typing import NamedTuple

import trio

from tests.crash.nodes import Cluster, ClusterNode, Cut

_LONGEST_PAUSE = 60.0
_STOPPING = 2.0  # seconds, within which something else happens


class Harm(StrEnum):
    """What happens, for people."""

    KILL = "kill -9"
    RESTART = "kill -9, and started at once"
    PAUSE = "paused"
    WIPE = "wiped"
    STOP = "SIGTERM"
    STANDBY = "kill -9 of a standby"
    CUT = "cut off from the store"
    STORE = "the store is away"
    FULL = "the disk is full"
    SUCCESSOR = "kill -9, and of its successor"
    WAKE = "paused until it is taken over"
    ALONE = "kill -9, with a standby cut off"
    STOP_ALL = "SIGTERM of all in turn"
    KILL_ALL = "kill -9 of all"


NEED_A_LINK = {Harm.CUT, Harm.STORE, Harm.ALONE}
KEEP_ALL = {Harm.STOP, Harm.STOP_ALL, Harm.STANDBY}  # also what one machine has confirmed


class Scene(NamedTuple):
    """Where it happens.

    Attributes:
        cluster: to which.
        leader, standbys: its nodes; of the standbys the first one is hurt.
        chance: decides what is left to it.
        seconds: after which a leader is taken over.
    """

    cluster: Cluster
    leader: ClusterNode
    standbys: list[ClusterNode]
    chance: Random
    seconds: int

    def anyone(self) -> ClusterNode:
        """A node, often the leader."""
        return self.chance.choice([self.leader, self.leader, self.standbys[0]])


async def _kill(at: Scene) -> None:
    at.leader.kill()
    await at.cluster.led_by_another(at.leader)


async def _restart(at: Scene) -> None:
    at.leader.kill()


async def _pause(at: Scene) -> None:
    victim = at.anyone()
    victim.signal_all(signal.SIGSTOP)
    await trio.sleep(_LONGEST_PAUSE ** at.chance.random())
    victim.signal_all(signal.SIGCONT)


async def _wipe(at: Scene) -> None:
    at.leader.kill()
    at.leader.disk.wipe()
    await at.cluster.led_by_another(at.leader)


async def _stop(at: Scene) -> None:
    await trio.to_thread.run_sync(at.leader.stop)
    await at.cluster.led_by_another(at.leader)


async def _kill_a_standby(at: Scene) -> None:
    at.standbys[0].kill()
    await trio.sleep(at.chance.uniform(0, at.seconds))


async def _cut_off(at: Scene) -> None:
    at.anyone().cut(at.chance.choice(list(Cut)))
    await trio.sleep(at.chance.uniform(1, 4 * at.seconds))


async def _lose_the_store(at: Scene) -> None:
    """It is away for all, killed or cut off from each, and back."""
    server = at.cluster.server
    if is_killed := at.chance.random() < 0.5:
        server.kill()
    else:
        how = at.chance.choice(list(Cut))
        for node in at.cluster.nodes:
            node.cut(how)
    await trio.sleep(at.chance.uniform(1, 4 * at.seconds))
    if is_killed:
        await trio.to_thread.run_sync(server.start)


async def _fill_the_disk(at: Scene) -> None:
    """It is full until another one leads, and for a while more."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(at.leader.disk.fill, list(at.leader.family()))
        await at.cluster.led_by_another(at.leader)
        await trio.sleep(at.chance.uniform(0, 2 * at.seconds))
        nursery.cancel_scope.cancel()


async def _kill_two(at: Scene) -> None:
    """The second one while it takes over; the first one may come back at that moment."""
    at.leader.kill()
    successor = await at.cluster.successor(at.leader)
    await trio.sleep(at.chance.uniform(0, _STOPPING))
    successor.kill()
    if at.chance.random() < 0.5:
        await trio.to_thread.run_sync(at.leader.start)


async def _wake(at: Scene) -> None:
    """It goes on while another one takes over, which may find that out and not do it."""
    at.leader.signal_all(signal.SIGSTOP)
    await at.cluster.successor(at.leader)
    await trio.sleep(at.chance.uniform(0, 2 * _STOPPING))
    at.leader.signal_all(signal.SIGCONT)


async def _leave_one(at: Scene) -> None:
    at.standbys[0].cut(at.chance.choice(list(Cut)))
    await trio.sleep(at.chance.uniform(0, at.seconds))
    at.leader.kill()
    await at.cluster.led_by_another(at.leader)


async def _stop_all(at: Scene) -> None:
    for node in at.cluster.nodes:
        await trio.to_thread.run_sync(node.stop)
        await at.cluster.mend()


async def _kill_all(at: Scene) -> None:
    for node in at.cluster.nodes:
        node.kill()


HARMS: dict[Harm, Callable[[Scene], Awaitable[None]]] = {
    Harm.KILL: _kill,
    Harm.RESTART: _restart,
    Harm.PAUSE: _pause,
    Harm.WIPE: _wipe,
    Harm.STOP: _stop,
    Harm.STANDBY: _kill_a_standby,
    Harm.CUT: _cut_off,
    Harm.STORE: _lose_the_store,
    Harm.FULL: _fill_the_disk,
    Harm.SUCCESSOR: _kill_two,
    Harm.WAKE: _wake,
    Harm.ALONE: _leave_one,
    Harm.STOP_ALL: _stop_all,
    Harm.KILL_ALL: _kill_all,
}
