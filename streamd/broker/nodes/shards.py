"""Shards: the streams that were placed at a node, and who leads them.

Theory of operation. A stream whose messages are confirmed by the tier can be placed at a node when
it is declared (`place`). All that were placed at one node are a shard, with a tier of its own below
that of the cluster: the node leads it, and where that is gone another one does. One task keeps each
shard:

    follows    another node leads it, or nobody: its streams are read, see shard_follower.py
               `_wants` says that this node is to lead it: leads
    leads      see led_shard.py
               another node has claimed it: follows

A node leads its own shard once it has started, whoever has led it until then, and others that
nobody leads: when the node that did has left, or is gone (watch.py), or has not said for as long
that it does. Of those who are there, one begins after the other, in an order that depends on the
shard. Two that claim one at the same time do no harm: the tier of the shard fences all but one.

Who leads what, each node says in its heartbeat, and clients are told so.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from hashlib import blake2b

import trio

from segments.errors import SegmentsError, leaves
from segments.store.object_names import shard_prefix
from segments.store.object_store import TierError
from segments.store.prefixed import PrefixedStore
from streamd.broker.broker import Broker
from streamd.broker.catalog.catalog import CatalogError
from streamd.broker.declared.rows import StreamRow
from streamd.broker.elsewhere import Elsewhere
from streamd.broker.nodes.led_shard import LedShard, lead
from streamd.broker.nodes.node import Node
from streamd.broker.nodes.peers import Peers
from streamd.broker.nodes.shard_follower import follow
from streamd.broker.resources import ServerResources
from streamd.broker.streams.publication import Remote
from streamd.broker.supervisor import Supervisor
from streamd.broker.tier.pauses import next_pause
from streamd.broker.tier.requests import CountedStore
from streamd.broker.tier.restore import RestoreError
from streamd.config import Config
from streamd.net.wakeup import Wakeup
from streamd.operations.arguments import (
    CLIENT_LOCAL,
    CONFIRM,
    LOCATOR,
    STORE,
    TIER,
    Arguments,
)
from streamd.operations.cluster import LeaderFacts
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name

logger = logging.getLogger(__name__)

_MOVE_SECONDS, _LOOK_SECONDS = 20.0, 0.02
_LEADER_SECONDS = 2.0  # that a client waits for somebody who leads, as at a node that stands by
_SILENT_SECONDS = 5.0  # that a node is not asked again which has not read the log
_SHORTEST_PAUSE = 0.2  # seconds between two looks at the other nodes, whoever waits for them
_TROUBLE = (RestoreError, SegmentsError, CatalogError, OSError)
_LONGEST_PAUSE = 5.0  # seconds before it is tried again to lead a shard


def _nothing(_host: Name, _name: Name, _shard: str) -> None:
    """Nobody publishes elsewhere."""


async def _nobody_reads(_node: LeaderFacts) -> None:
    """There are no other nodes."""


class _Reading:
    """Has another node read the log of metadata; all who ask while it does share the next time.

    One that does not is left alone for a while: it reads the log by itself every two seconds.

    Args:
        read: has it do so; raises Refused where it does not.
    """

    def __init__(self, read: Callable[[LeaderFacts], Awaitable[None]]) -> None:
        self._read = read
        self._turn = trio.Lock()
        self._num_begun = self._num_done = 0
        self._silent_until = 0.0

    async def done(self, node: LeaderFacts) -> None:
        """Return when it has read what there is now, if that is soon."""
        wanted = self._num_begun + 1
        async with self._turn:
            if self._num_done >= wanted or trio.current_time() < self._silent_until:
                return
            self._num_begun += 1
            number = self._num_begun
            with trio.move_on_after(_LEADER_SECONDS) as waiting:
                while self._num_done < number:
                    try:
                        await self._read(node)
                        self._num_done = number
                    except Refused:
                        await trio.sleep(_SHORTEST_PAUSE)
            if waiting.cancelled_caught:
                self._silent_until = trio.current_time() + _SILENT_SECONDS


class Shards:
    """The shards of a cluster, as one node has them.

    Args:
        config: of the node.
        node: it.

    Attributes:
        peers: the other nodes.
        remote: gives what publishes to a stream of a virtual host and a shard.
        have_node_read: see resources.Shards.
    """

    def __init__(self, config: Config, node: Node) -> None:
        self._config, self._node = config, node
        self._seconds = float(config.takeover_seconds)
        self.peers = Peers(node.name, node.store, self._seconds, lambda: node.is_alone)
        self.remote: Callable[[Name, Name, str], Remote | None] = _nothing
        self.have_node_read: Callable[[LeaderFacts], Awaitable[None]] = _nobody_reads
        self._readings: dict[str, _Reading] = {}
        self._led: dict[str, LedShard] = {}
        self._begun: set[str] = set()  # of these, those whose tier is this node's
        self._elsewhere: dict[str, ServerResources] = {}
        self._loaded: dict[str, ServerResources] = {}  # that streams work with now
        self._wishes: set[str] = {node.name}
        self._keepers: dict[str, trio.Event] = {}  # set when something has changed
        self._led_by: dict[str, str] = {}  # the node that was seen to lead it last
        self._orphaned_at: dict[str, float] = {}
        self._base: ServerResources
        self._broker: Broker
        self._read_on: Callable[[], Awaitable[None]]
        self._look_wanted, self._looked = Wakeup(), trio.lowlevel.ParkingLot()

    # -- what streams work with, see resources.Shards

    def use(self, base: ServerResources) -> None:
        """What streams of this node work with that were placed nowhere."""
        self._base = base

    def resources(self, shard: str) -> ServerResources:
        """See resources.Shards."""
        led = self._led.get(shard)
        if led is not None:
            return led.resources
        found = self._elsewhere.get(shard)
        if found is None:

            def address(is_tls: bool) -> tuple[str, int] | None:
                return self.address(shard, is_tls=is_tls)

            follower = Elsewhere(shard, address, self._remote)
            found = self._base._replace(follower=follower, tier=None, fetcher=None)
            self._elsewhere[shard] = found
        return found

    def _remote(self, host: Name, name: Name, shard: str) -> Remote | None:
        return self.remote(host, name, shard)  # which is known later than what asks for it

    def place(self, arguments: Arguments, beside: Counter[str]) -> str:
        """See resources.Shards."""
        confirm = arguments.get(CONFIRM, self._config.confirm)
        locator = arguments.get(LOCATOR, self._config.leader_locator)
        is_stored = confirm == STORE and arguments.get(TIER, True)
        there = self._there()
        if not is_stored or locator == CLIENT_LOCAL or len(there) < 2:  # noqa: PLR2004 - others
            return ""
        return min(there, key=lambda shard: (self._placed[shard] + beside[shard], shard))

    def _there(self) -> list[str]:
        """Shards of nodes that are there, and that lead them."""
        mine = [self._node.name] if self._node.name in self._led else []
        others = (name for name, peer in self.peers.nodes.items() if peer.is_there)
        return [*mine, *(name for name in others if self.leader(name) == name)]

    # -- who leads

    @property
    def led(self) -> Mapping[str, int]:
        """Shards that this node leads, and with which epochs."""
        return {
            shard: led.tier.ownership.identity.epoch
            for shard, led in self._led.items()
            if shard in self._begun and not led.tier.ownership.fence
        }

    @property
    def _placed(self) -> Counter[str]:
        """How many streams were placed at nodes."""
        return self._base.quota.placed

    @property
    def has_streams(self) -> bool:
        """See resources.Shards."""
        return bool(self._placed)

    def leader(self, shard: str) -> str:
        """The node that leads a shard, as far as is known; empty for none."""
        led = self.led
        found = self.peers.leading(shard)
        if shard in led and (found is None or found.epoch <= led[shard]):
            return self._node.name
        return "" if found is None else found.node

    def node(self, shard: str) -> LeaderFacts | None:
        """See resources.Shards."""
        return self.facts(self.leader(shard))

    async def have_read(self) -> None:
        """See resources.Shards."""
        async with trio.open_nursery() as nursery:
            for name in list(self.peers.nodes):
                node = self.facts(name)
                if node is not None and node.name:
                    reading = self._readings.setdefault(name, _Reading(self.have_node_read))
                    nursery.start_soon(reading.done, node)

    async def know_nodes(self) -> None:
        """See resources.Shards."""
        since = trio.current_time() - _SHORTEST_PAUSE
        with trio.move_on_after(_LEADER_SECONDS):
            while self.peers.listed_at < since:
                self.peers.list_soon()
                self._look_wanted.set()
                await self._looked.park()

    def look_soon(self) -> None:
        """See resources.Shards."""
        self._look_wanted.set()

    async def led_soon(self, shards: Collection[str]) -> None:
        """See resources.Shards."""
        with trio.move_on_after(_LEADER_SECONDS):
            while not all(map(self.leader, shards)):
                self._look_wanted.set()
                await self._looked.park()

    def others(self) -> list[LeaderFacts]:
        """See resources.Shards."""
        leaders = set(map(self.leader, self._placed))
        found = (self.facts(name) for name in leaders - {self._node.name, ""})
        return [one for one in found if one is not None and one.name]

    def nodes(self) -> list[LeaderFacts]:
        """See resources.Shards."""
        found = map(self.facts, sorted(self.peers.nodes))
        return [one for one in found if one is not None and one.name]

    def facts(self, node: str) -> LeaderFacts | None:
        """See resources.Shards."""
        if node == self._node.name:
            return None
        peer = self.peers.nodes.get(node)
        if peer is None or peer.beat is None or not peer.is_there:
            return LeaderFacts()
        beat = peer.beat
        return LeaderFacts(beat.node, beat.start, dict(beat.addresses), beat.certificate)

    async def move_here(self, shard: str) -> None:
        """See resources.Shards."""
        if shard not in self._all():
            details = f"nothing was placed at a node {shard}"
            raise Refused(Reason.NOT_FOUND, details)
        self._wishes.add(shard)
        with trio.move_on_after(_MOVE_SECONDS):
            while shard not in self.led:
                if shard in self._keepers:
                    self._wake(shard)
                await trio.sleep(_LOOK_SECONDS)
            return
        self._wishes.discard(shard)
        details = (
            f"node {self._node.name} does not lead what was placed at {shard} yet: see its log"
        )
        raise Refused(Reason.NOT_AVAILABLE, details)

    def address(self, shard: str, *, is_tls: bool) -> tuple[str, int] | None:
        """Where clients of the stream protocol reach who leads a shard; None where nobody does."""
        peer = self.peers.nodes.get(self.leader(shard))
        if peer is None or peer.beat is None:
            return None
        return peer.beat.addresses.get("stream/ssl" if is_tls else "stream")

    # -- the tasks

    async def run(self, broker: Broker, read_on: Callable[[], Awaitable[None]]) -> None:
        """Keep all shards until cancelled.

        Args:
            broker: has their streams.
            read_on: returns when all streams are known that the cluster has.
        """
        self._broker, self._read_on = broker, read_on
        self._node.shards = self
        try:
            async with trio.open_nursery() as nursery:
                self._keepers.clear()
                await self._look(broker.supervisor.within(nursery))
        finally:
            self._node.shards = None

    async def _look(self, supervisor: Supervisor) -> None:
        """Look who is there, again and again, and have each shard kept by a task."""
        told = ""
        while True:
            try:
                await self.peers.look()
                told = ""
            except TierError as error:
                if not told:
                    logger.warning("cannot see the other nodes at the moment: %s", error)
                told = str(error)
            self._note_leaders()
            for shard in self._all() - self._keepers.keys():
                self._keepers[shard] = trio.Event()
                supervisor.start("keeping a shard", partial(self._keep, shard), shard)
            for shard in list(self._keepers):
                self._wake(shard)
            self._looked.unpark_all()
            await trio.sleep(_SHORTEST_PAUSE)
            with trio.move_on_after(self.peers.pause - _SHORTEST_PAUSE):
                await self._look_wanted.wait()

    def _all(self) -> set[str]:
        return {self._node.name, *self._placed}

    def _note_leaders(self) -> None:
        now = trio.current_time()
        for shard in self._all():
            leader = self.leader(shard)
            if shard in self.led and leader != self._node.name:
                self._led[shard].tier.ownership.look()  # it may have been taken over
            if leader:
                self._led_by[shard] = leader
                self._orphaned_at.pop(shard, None)
            else:
                self._orphaned_at.setdefault(shard, now)

    def _wake(self, shard: str) -> None:
        self._keepers[shard].set()
        self._keepers[shard] = trio.Event()

    def _wants(self, shard: str) -> bool:
        """Whether this node is to lead a shard."""
        if shard in self._wishes:
            return True
        orphaned_at = self._orphaned_at.get(shard)
        if orphaned_at is None or not self.peers.num_rounds:
            return False
        before = self._led_by.get(shard)
        peer = None if before is None else self.peers.nodes.get(before)
        if peer is not None and not (peer.has_left or peer.watch.is_gone) and not peer.is_there:
            return False  # it is silent, and not for long enough
        waits = 0.0 if peer is not None and not peer.is_there else self._seconds
        waits += 2 * self.peers.pause * self._rank(shard)
        return trio.current_time() >= orphaned_at + waits

    def _rank(self, shard: str) -> int:
        """How many nodes that are there come before this one."""

        def place(node: str) -> bytes:
            return blake2b(f"{shard}\0{node}".encode()).digest()

        mine = place(self._node.name)
        others = (name for name, peer in self.peers.nodes.items() if peer.is_there)
        return sum(place(name) < mine for name in others)

    async def _keep(self, shard: str) -> None:
        pause = 0.0
        while True:
            await self._load(shard)  # an earlier attempt may have ended anywhere
            is_wanted, why = self._wants(shard), ""
            try:
                await (self._lead(shard) if is_wanted else self._follow(shard))
                pause = 0.0
            except* _TROUBLE as group:
                why = str(next(leaves(group)))
            if why:
                what = "lead" if is_wanted else "follow"
                logger.warning("cannot %s the shard of node %s: %s", what, shard, why)
                if is_wanted:
                    self._orphaned_at.pop(shard, None)  # another one may do, meanwhile
                pause = min(next_pause(pause), _LONGEST_PAUSE)
                await trio.sleep(pause)

    async def _load(self, shard: str) -> None:
        """Have the streams of a shard work with what there is for them now."""
        resources = self.resources(shard)
        if self._loaded.get(shard, self._base) is not resources:
            self._loaded[shard] = resources
            await self._broker.load_again(shard)

    def _store(self, shard: str) -> CountedStore:
        return CountedStore(PrefixedStore(self._node.store, shard_prefix(shard)))

    async def _follow(self, shard: str) -> None:
        """Follow a shard until this node is to lead it; for as long as there is no stream, wait."""
        while not (self._wants(shard) or shard in self._placed):
            await self._keepers[shard].wait()
        if self._wants(shard):
            return
        elsewhere = self.resources(shard).follower
        assert elsewhere is not None  # noqa: S101 - this node does not lead it
        parts = self._config, self._store(shard), self._base, self._broker, elsewhere
        async with follow(shard, *parts) as resources:
            self._elsewhere[shard] = resources
            try:
                await self._load(shard)
                while not self._wants(shard):
                    await self._keepers[shard].wait()
            finally:
                del self._elsewhere[shard]
            await self._load(shard)

    async def _lead(self, shard: str) -> None:
        parts = self._config, self._store(shard), self._base, self._rows
        async with lead(shard, *parts) as led:
            self._led[shard] = led
            try:
                await self._load(shard)
                await led.begin()
                self._begun.add(shard)
                self._wishes.discard(shard)
                self._orphaned_at.pop(shard, None)
                self._led_by[shard] = self._node.name
                self._node.hurry()
                self._looked.unpark_all()
                epoch = led.tier.ownership.identity.epoch
                text = "node %s leads the shard of node %s, epoch %s"
                logger.info(text, self._node.name, shard, epoch)
                supervisor = led.resources.supervisor
                lives = partial(self._broker.lives, shard)
                inspect = partial(self._base.keeper.inspect, lives)
                supervisor.start_once("looking at all streams", partial(inspect, supervisor), shard)
                await led.tier.ownership.fenced()
                logger.warning("another node leads the shard of node %s from now on", shard)
            finally:
                del self._led[shard]
                self._begun.discard(shard)
            self.look_soon()
            await self._load(shard)
            self._node.hurry()

    async def _rows(self, shard: str) -> list[StreamRow]:
        await self._read_on()
        return [row for row in self._broker.rows() if row.shard == shard]
