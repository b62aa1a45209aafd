"""A cluster of three whose nodes are harmed in many ways; every message is compared.

    python -m tests.crash.node_kills --kills 20 --seed 3 --store gofakes3

While nodes are killed, paused, wiped and stopped, cut off from the store or left without room,
clients go on (node_clients.py). Afterwards all nodes have to be there again, one of them as the
leader, and what clients were told has to be true: the checks are in history.py. Half of the
clusters have a stream, too, that is confirmed by one machine alone. How long nothing was confirmed
is told at the end.
"""

import argparse
import logging
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import trio

from clients import StreamError, connect
from tests.crash.harms import HARMS, KEEP_ALL, NEED_A_LINK, Harm, Scene
from tests.crash.node_clients import LOCAL, Clients
from tests.crash.nodes import Cluster
from tests.support.stores import KINDS

_ROUNDS = 25  # of a cluster: all is read after each, so it stays little
_LOCAL_SECONDS = 2


class NodeRun:
    """Rounds of harm to one cluster.

    Attributes:
        clients: what they were told.
        seconds: the longest time without a confirm, of each round, by what happened.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        kind: str,
        takeover_seconds: int,
        *,
        has_local: bool,
        has_small_disks: bool,
        is_placed: bool,
    ) -> None:
        self.seconds: dict[Harm, list[float]] = {harm: [] for harm in Harm}
        self._seconds, self._chance = takeover_seconds, Random(seed)
        options = ["--tier-roll-seconds", "3", "--tier-delete-delay-seconds", "0"]
        options += ["--confirm", "store", "--confirm-interval-ms", "200"]
        options += ["--takeover-seconds", str(takeover_seconds)]
        options += ["--takeover-local-seconds", str(_LOCAL_SECONDS)]
        self._num_before = seed % 3  # streams, so that each of the nodes leads those of clients
        self._is_placed = is_placed
        if is_placed:
            options += ["--leader-locator", "balanced"]
        self._cluster = Cluster(folder, kind, *options, has_small_disks=has_small_disks)
        self.clients = Clients(self._cluster, self._chance, has_local=has_local)
        self._has_links = kind != "file"

    async def run(self, kills: int, harms: tuple[Harm, ...], tell: Callable[[str], None]) -> None:
        """Harm something so many times; raises AssertionError when all is not as it should be."""
        harms = tuple(harm for harm in harms if self._has_links or harm not in NEED_A_LINK)
        cluster = self._cluster
        try:
            await cluster.start()
            if self._is_placed:
                await cluster.spread()
            async with connect(cluster.nodes[0].uri) as client:
                for number in range(self._num_before if self._is_placed else 0):
                    await client.create(f"before-{number}")
                await self.clients.create(client)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.clients.run)
                await self.clients.confirmed()
                deck: list[Harm] = []
                for number in range(kills):
                    if not deck:
                        deck = list(harms)
                        self._chance.shuffle(deck)
                    harm = deck.pop()
                    tell(f"{number + 1}: {harm}")
                    await self._round(harm)
                    tell(f"{number + 1}: {harm}: {self.seconds[harm][-1]:.1f} s without a confirm")
                nursery.cancel_scope.cancel()
        finally:
            self.clients.end_round()
            cluster.close()
        for node in cluster.nodes:
            assert "Traceback" not in node.log.read_text(), f"{node.log}"

    async def _round(self, harm: Harm) -> None:
        clients, cluster = self.clients, self._cluster
        before = await cluster.facts()
        leader = await cluster.leader()
        clients.begin_round(leader.port)
        await trio.sleep(self._chance.uniform(1, 2.5))
        uploaded = await trio.to_thread.run_sync(cluster.uploaded, LOCAL)
        standbys = [node for node in cluster.nodes if node is not leader]
        self._chance.shuffle(standbys)
        await HARMS[harm](Scene(cluster, leader, standbys, self._chance, self._seconds))
        await cluster.mend()
        await clients.confirmed()
        self.seconds[harm].append(clients.longest)
        await trio.sleep(1)
        clients.end_round()
        leader = await cluster.leader()
        await clients.check(leader)
        if LOCAL in clients.told:
            is_led_on = (await cluster.facts()).epoch == before.epoch
            await clients.check_local(leader, uploaded, is_kept=is_led_on or harm in KEEP_ALL)


def kill_many(
    folder: Path,
    kills: int,
    seed: int = 1,
    kind: str = "file",
    takeover_seconds: int = 2,
    harms: tuple[Harm, ...] = tuple(Harm),
    tell: Callable[[str], None] = lambda _text: None,
    *,
    is_placed: bool = False,
) -> str:
    """Harm something so many times; fails when all is not as it should be. Returns a summary."""
    seconds: dict[Harm, list[float]] = {harm: [] for harm in Harm}
    compared, failures = 0, list[ExceptionGroup]()
    for number, rounds in enumerate(_sizes(kills)):
        parts = folder / str(number), seed + number, kind, takeover_seconds
        has = {"has_local": number % 2 == 1, "has_small_disks": Harm.FULL in harms}
        has |= {"is_placed": is_placed}
        run = NodeRun(*parts, **has)
        try:
            trio.run(run.run, rounds, harms, tell)
        except* (AssertionError, trio.TooSlowError, StreamError) as error:
            failures.append(error)
            tell("".join(traceback.format_exception(error)))
        compared += run.clients.num_compared
        for harm, found in run.seconds.items():
            seconds[harm] += found
    lines = [f"{kills} times a node was harmed; {compared:,} messages compared"]
    for harm, found in seconds.items():
        if found:
            found.sort()
            half, most = found[len(found) // 2], found[min(len(found) - 1, len(found) * 99 // 100)]
            lines.append(
                f"{harm}, {len(found)}: no confirm for {half:.1f} s (p50), {most:.1f} s (p99)"
            )
    summary = "\n".join(lines)
    if failures:
        raise ExceptionGroup(f"clusters that were not as they should be: {summary}", failures)
    return summary


def _sizes(kills: int) -> Iterator[int]:
    """How many rounds each cluster has."""
    for done in range(0, kills, _ROUNDS):
        yield min(_ROUNDS, kills - done)


def main() -> None:
    parser = argparse.ArgumentParser(description="Harm to three nodes: kill -9, SIGSTOP and more.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", choices=KINDS, default="file")
    parser.add_argument("--takeover-seconds", type=int, default=10)
    parser.add_argument("--placed", action="store_true", help="streams are spread over the nodes")
    parser.add_argument("--harm", choices=[harm.name for harm in Harm], nargs="*")
    parser.add_argument("--keep", type=Path, help="leave data and logs in this folder")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)  # errors of clients whose server is gone
    harms = tuple(Harm[name] for name in given.harm or Harm.__members__)
    arguments = given.kills, given.seed, given.store, given.takeover_seconds, harms

    def tell(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        print(kill_many(given.keep or Path(folder), *arguments, tell, is_placed=given.placed))


if __name__ == "__main__":
    main()
