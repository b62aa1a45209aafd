"""The other nodes of a cluster, by their heartbeats: who is there, and what each leads.

All heartbeats are read every few seconds, and watched as that of the leader is (watch.py). So what
is known here is a guess, for which nothing needs to be true.
"""

import logging
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import trio

from segments.store.heartbeat import FoundHeartbeat, Heartbeat, NodeRole, read_heartbeat
from segments.store.object_names import NODES_FOLDER
from segments.store.object_store import ObjectStore, TierError
from streamd.broker.nodes.watch import BEAT_SECONDS, Watch
from streamd.broker.tier.patience import each
from streamd.broker.tier.requests import ask

logger = logging.getLogger(__name__)

_LIST_SECONDS, _LONE_LIST_SECONDS = 10.0, 60.0


class Leading(NamedTuple):
    """Who leads a shard: the epoch of its claim, and the node."""

    epoch: int
    node: str


class Peer:
    """Another node.

    Attributes:
        watch: of its heartbeat.
        beat: the last one; None where it cannot be read, or there is none.
    """

    def __init__(self, seconds: float) -> None:
        self.watch = Watch(seconds)
        self.beat: Heartbeat | None = None

    @property
    def has_left(self) -> bool:
        """It has ended in order."""
        return self.beat is not None and self.beat.role is NodeRole.LEFT

    @property
    def is_there(self) -> bool:
        """It serves clients, as far as is known."""
        return (
            self.beat is not None
            and self.beat.role in (NodeRole.LEADER, NodeRole.STANDBY)
            and not self.watch.is_silent
        )


class Peers:
    """The other nodes.

    Args:
        name: of this node.
        store: where heartbeats are.
        seconds: that a node has to be silent for to be gone.
        is_alone: no other node was seen for a while: they are looked for more seldom.

    Attributes:
        nodes: by name.
        num_rounds: how often all of them were read.
        listed_at: when it was looked last which there are, by trio's clock.
    """

    def __init__(
        self, name: str, store: ObjectStore, seconds: float, is_alone: Callable[[], bool]
    ) -> None:
        self._is_alone = is_alone
        self.nodes: dict[str, Peer] = {}
        self.num_rounds = 0
        self._name, self._store, self._seconds = name, store, seconds
        self._list_at, self.listed_at = 0.0, -math.inf

    def list_soon(self) -> None:
        """There may be others: the next look is to see which."""
        self._list_at = 0.0

    @property
    def pause(self) -> float:
        """Seconds between two rounds."""
        return min(self._seconds / 5, BEAT_SECONDS)

    def beat(self, began_at: float | None) -> None:
        """This node has renewed its heartbeat, or could not."""
        for peer in self.nodes.values():
            if began_at is None:
                peer.watch.failed()
            else:
                peer.watch.beat(began_at)

    def leading(self, shard: str) -> Leading | None:
        """Who leads a shard, of those who are there."""
        return max(
            (
                Leading(peer.beat.shards[shard], name)
                for name, peer in self.nodes.items()
                if peer.is_there and peer.beat is not None and shard in peer.beat.shards
            ),
            default=None,
        )

    async def look(self) -> None:
        """Read all heartbeats once.

        Raises:
            TierError: the store does not answer.
        """
        now = trio.current_time()
        if now >= self._list_at:
            names = set(await ask(self._list)) - {self._name}
            for name in self.nodes.keys() - names:
                del self.nodes[name]  # somebody has made others forget it
            for name in names - self.nodes.keys():
                self.nodes[name] = Peer(self._seconds)
            self.listed_at = now
            self._list_at = now + (_LONE_LIST_SECONDS if self._is_alone() else _LIST_SECONDS)
        asked = trio.current_time()
        names_now = [name for name, peer in self.nodes.items() if self._is_due(peer)]
        found = await each(partial(read_heartbeat, self._store), names_now, seconds=0)
        answered = trio.current_time()
        for name, one in zip(names_now, found, strict=True):
            if isinstance(one, Exception):
                self.nodes[name].watch.failed()
            else:
                self._take(self.nodes[name], one, asked, answered)
        self.num_rounds += 1
        for one in found:
            if isinstance(one, TierError):
                raise one

    def _is_due(self, peer: Peer) -> bool:
        """Those who have been gone for long are looked at with each listing alone."""
        is_old = peer.watch.silent_seconds > 20 * self._seconds
        return not is_old or self.num_rounds % 5 == 0

    def _take(
        self, peer: Peer, found: FoundHeartbeat | None, asked: float, answered: float
    ) -> None:
        peer.watch.read(asked, answered, found)
        peer.beat = None if found is None else found.heartbeat

    def _list(self) -> Iterable[str]:
        return [
            one.key.removeprefix(f"{NODES_FOLDER}/") for one in self._store.listing(NODES_FOLDER)
        ]
