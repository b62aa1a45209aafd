"""A server that is a node of a cluster: what it is now, and when it becomes something else.

Theory of operation. All nodes are started alike. What one is, the store and its data folder say
when it starts (`settle`), and it stays that until it ends:

    leads        the folder's server has the last claim in the log; or the store is empty
    takes over   it has seen that the leader is gone: the folder is restored from the store, with a
                 claim above that of the leader
    stands by    otherwise: it only reads, and watches the leader (watch.py)

A leader that finds itself fenced is over, and so is a standby that finds the leader gone, which it
notes in its folder. Then `over` is set: the server ends, and starts anew. So there is one way into
each role. A node that is wrong about another claims the tier, and nothing else: the log orders
claims, and the fences of the log, of manifests and of write-ahead logs do the rest.

Its heartbeats (beats.py) begin before it claims anything, so that a takeover that takes long is
seen by the others.
"""

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Protocol

import trio

from segments.store import stores
from segments.store.cluster import Cluster
from segments.store.heartbeat import (
    FoundHeartbeat,
    Heartbeat,
    NodeAddress,
    NodeRole,
    reached_at,
    read_heartbeat,
)
from segments.store.object_store import DeniedError, TierError
from streamd.broker.nodes import folder
from streamd.broker.nodes.beats import Beats, NameInUseError, silent
from streamd.broker.nodes.folder import Facts, NodeFile, NotOursError, Standing
from streamd.broker.nodes.peers import Peers
from streamd.broker.nodes.report import forget_node, read_cluster
from streamd.broker.nodes.secret import read_secret
from streamd.broker.nodes.watch import BEAT_SECONDS, INTERVALS, LeaderWatch, has_left
from streamd.broker.tier import claims
from streamd.broker.tier.identity import begin_epoch, random_name
from streamd.broker.tier.patience import retry_store
from streamd.broker.tier.pauses import next_pause
from streamd.broker.tier.requests import CountedStore, ask
from streamd.config import Config
from streamd.net import threads
from streamd.operations.cluster import ClusterFacts, LeaderFacts, NodeFacts
from streamd.version import __version__

logger = logging.getLogger(__name__)

_LONGEST_WAIT = 5.0  # seconds between two looks at a store that says nothing, or is not ours
_LATE = 0.7  # of the time after which a node is taken over

_SAID = {
    Standing.LEADS: "begins as the leader",
    Standing.TAKES_OVER: "takes over",
    Standing.STANDS_BY: "stands by",
}


class ShardsLed(Protocol):
    """What a node leads of what was placed at nodes; see shards.py."""

    @property
    def led(self) -> Mapping[str, int]:
        """Shards, and with which epochs."""

    @property
    def peers(self) -> Peers:
        """The other nodes."""


class Node:
    """This node; made by `open_node`.

    Args:
        config: settings of the server.
        addresses: where clients reach it, by the names of listeners.
        now_ms: the wall clock.
        certificate: gives the fingerprint of its certificate, see Heartbeat.

    Attributes:
        name: of the node.
        config: settings of a server that is what this node begins as.
        over_epoch: epoch of the claim that it takes over; None for any.
        role: what it is.
        leader: heartbeat of the leader, as a standby has read it last; None for none.
        over: set when it is that no longer, and the server has to start anew.
        has_handed_over: the store has all that this node has confirmed as the leader.
        shards: that it leads; None while it can lead none.
        secret: by which nodes know each other, once it has joined.
    """

    def __init__(
        self,
        config: Config,
        addresses: Mapping[str, NodeAddress],
        now_ms: Callable[[], int],
        certificate: Callable[[], str] = lambda: "-",
    ) -> None:
        self.name, self.config = config.node, config
        self.over_epoch: int | None = None
        self.role, self._since_ms = NodeRole.STARTING, now_ms()
        self.leader: Heartbeat | None = None
        self.over = trio.Event()
        self.has_handed_over = False
        self.shards: ShardsLed | None = None
        self.secret = ""
        self._addresses, self._now_ms = dict(addresses), now_ms
        self._certificate = certificate
        self._data, self._seconds = config.data, float(config.takeover_seconds)
        self._local_seconds = float(config.takeover_local_seconds)
        self._look: Callable[[], None] = lambda: None
        self._has_local: Callable[[], bool] = lambda: False
        self._leads: LeaderFacts | None = None
        self._leader_changed = trio.lowlevel.ParkingLot()
        self._seen = ""  # the heartbeat under the leader's name that was read last, by its etag
        self._start, self._writer, self._tier = random_name(), "-", ""
        self._watch = LeaderWatch(self._seconds)
        self._view: Callable[[], Cluster | None] = lambda: None
        self._epoch, self._beat_at = 0, trio.current_time()
        self._beats: Beats | None = None
        self._has_joined, self._beating = trio.Event(), trio.CancelScope()
        self._store: CountedStore | None = None

    @property
    def store(self) -> CountedStore:
        """The store; it was there when the node settled."""
        assert self._store is not None  # noqa: S101 - see above
        return self._store

    # -- reports, see operations.cluster.NodeReports

    def facts(self) -> NodeFacts:
        """See NodeReports."""
        if self.role is NodeRole.LEADER:
            address = reached_at(self._addresses)
            silent_for = max(0.0, trio.current_time() - self._beat_at)
            return NodeFacts(self.name, self.role, self.name, _shown(address), silent_for)
        cluster, leader = self._view(), self.leader
        return NodeFacts(
            self.name,
            self.role,
            "" if cluster is None else cluster.node,
            _shown(None if leader is None else leader.stream_address),
            self._watch.silent_seconds,
        )

    def served_by(self) -> LeaderFacts | None:
        """See NodeReports."""
        claimed = self._view() if self.role is NodeRole.STANDBY else None
        if claimed is None or not claimed.node:  # who leads has no name, and is not looked at
            return None
        beat = self.leader
        if beat is None or beat.role is not NodeRole.LEADER or beat.node == self.name:
            return LeaderFacts()
        if self._watch.is_silent:  # it may hold whoever comes to it
            return LeaderFacts()
        return LeaderFacts(beat.node, beat.start, dict(beat.addresses), beat.certificate)

    async def leader_changed(self) -> None:
        """See NodeReports."""
        await self._leader_changed.park()

    async def cluster(self) -> ClusterFacts:
        """See NodeReports."""
        return await ask(read_cluster, self.store, self._now_ms())

    async def forget(self, name: str) -> None:
        """See NodeReports."""
        await ask(forget_node, self.store, name, self._now_ms())

    # -- what it begins as

    async def settle(self) -> None:
        """Find out what this node is, and make its folder that; it waits for its store.

        Raises:
            NameInUseError: another server has its name, or its data folder is a copy.
            RestoreError: its data folder cannot be used.
            SegmentsError: the same.
        """
        pause, told = 0.0, ""
        while True:
            try:
                return await self._settle_once()
            except (TierError, NotOursError) as error:
                if isinstance(error, DeniedError) and self._store is None:
                    raise  # the address is wrong, or something is not installed
                if str(error) != told:
                    told = str(error)
                    logger.warning("node %s waits for its cluster: %s", self.name, told)
            pause = min(next_pause(pause), _LONGEST_WAIT)
            await trio.sleep(pause)

    async def _settle_once(self) -> None:
        if self._store is None:
            opened = await ask(stores.open_store, self.config.tier, self.config.tier_endpoint)
            self._store = CountedStore(opened)
        held = await ask(claims.look, self._store)
        facts = await threads.in_thread(folder.look_into, self._data)
        standing = folder.decide(facts, held, self._data, repr(self._store))
        if standing is Standing.STANDS_BY:
            is_new = facts.file is None and not (facts.has_catalog or facts.is_scratch)
            if self.config.restore and is_new:
                standing, facts = Standing.TAKES_OVER, replace(facts, over=-1)
            elif facts.file is not None and facts.file.node != self.name:
                facts = await threads.in_thread(folder.be_another, self._data, facts)
        elif standing is Standing.TAKES_OVER and held is not None:
            standing = await self._still(facts, held.cluster)
        self._writer = facts.writer or (await threads.in_thread(begin_epoch, self._data)).name
        if held is not None:
            self._tier = held.cluster.tier
            if standing is Standing.LEADS and held.cluster.node not in ("", self.name):
                await silent(self._store, held.cluster.node, self._seconds)  # or it is a copy
            await self._join(partial(_has_ended, self._data, facts.file))
        config = replace(self.config, restore=standing is Standing.TAKES_OVER)
        if standing is Standing.STANDS_BY:
            await threads.in_thread(folder.stand_down, self._data)
            config = replace(config, read_only=True, is_standby=True)
        elif standing is Standing.TAKES_OVER:
            self.over_epoch = None if facts.over == -1 else facts.over
            await threads.in_thread(folder.be_replaced, self._data)
        self.config = config
        logger.info("node %s %s", self.name, _SAID[standing])

    async def _still(self, facts: Facts, claimed: Cluster) -> Standing:
        """Whether it takes over, as is noted: the leader may have gone on since."""
        if facts.writer != claimed.writer:  # else it has claimed the tier
            found = await ask(read_heartbeat, self.store, claimed.node)
            if facts.seen != _etag(found):
                return Standing.STANDS_BY
        return Standing.TAKES_OVER

    async def _join(self, is_over: Callable[[Heartbeat], bool]) -> None:
        """Have the name, and be seen from now on."""
        if self._beats is None:
            parts = self._data, self.store, self.name, self._start, self._seconds
            beats = Beats(*parts, self._say, self._went)
            await beats.join(is_over)
            self._beats = beats
        self.secret = await retry_store(read_secret, self.store)
        note = folder.note_node
        await threads.in_thread(note, self._data, self.name, self._tier, self._start)
        self._has_joined.set()

    # -- what it is

    async def leads(self, view: Callable[[], Cluster], look: Callable[[], None]) -> None:
        """It has claimed the tier; `view` gives what is known of it.

        Args:
            view: what is known of the tier.
            look: called when another may have claimed it.

        Raises:
            NameInUseError: another server has its name.
        """
        self._epoch, self._tier = view().epoch, view().tier
        self._look = look
        self._begin(NodeRole.LEADER, view)
        await self._join(lambda _: False)  # it has begun the cluster
        assert self._beats is not None  # noqa: S101 - it has joined
        self._beats.may_rest = True
        self._beats.hurry()
        logger.info("node %s leads, epoch %s", self.name, self._epoch)

    def stands_by(
        self, view: Callable[[], Cluster], has_local: Callable[[], bool] = lambda: False
    ) -> None:
        """It follows the leader.

        Args:
            view: what is known of the tier.
            has_local: whether there are streams that do not wait for the store.
        """
        self._has_local = has_local
        self._begin(NodeRole.STANDBY, view)

    def _begin(self, role: NodeRole, view: Callable[[], Cluster]) -> None:
        self.role, self._since_ms, self._view = role, self._now_ms(), view
        self.hurry()

    @property
    def is_alone(self) -> bool:
        """No other node was seen for a while."""
        return self._beats is not None and self._beats.is_alone

    def hurry(self) -> None:
        """What it does has changed: its heartbeat says so now."""
        if self._beats is not None:
            self._beats.hurry()

    def end(self, reason: str) -> None:
        """It is what it was no longer."""
        if not self.over.is_set():
            logger.warning("node %s: %s", self.name, reason)
            self.over.set()

    async def beat(self) -> None:
        """Renew the heartbeat until cancelled, or until somebody else has this node's name."""
        await self._has_joined.wait()
        assert self._beats is not None  # noqa: S101 - it has joined
        with self._beating:
            try:
                await self._beats.run()
            except NameInUseError as error:
                self.end(str(error))

    async def give_way(self) -> None:
        """It cannot take over: be silent for so long that another one does, if there is one."""
        self._beating.cancel()
        await trio.sleep(self._seconds + self._local_seconds + INTERVALS * BEAT_SECONDS)

    async def has_standby(self) -> bool:
        """Whether another node would take over at once, as far as the store answers."""
        try:
            found = await self.cluster()
        except TierError:
            return False
        return any(one.role == NodeRole.STANDBY and one.is_there for one in found.nodes)

    async def leave(self) -> None:
        """Say that this node has gone, in order, and that the others have all that it had.

        It says nothing where it starts anew; the store may be away.
        """
        is_left = self.has_handed_over or self.role is not NodeRole.LEADER
        if self._beats is not None and not self.over.is_set() and is_left:
            self.role = NodeRole.LEFT
            await self._beats.leave()

    def _say(self, counter: int, interval_ms: int) -> Heartbeat:
        cluster = self._view()
        return Heartbeat(
            tier=self._tier,
            node=self.name,
            writer=self._writer,
            start=self._start,
            counter=counter,
            interval_ms=interval_ms,
            role=self.role,
            since_ms=self._since_ms,
            epoch=self._epoch,
            revision=0 if cluster is None else cluster.revision,
            addresses=self._addresses,
            certificate=self._certificate(),
            shards={} if self.shards is None else dict(self.shards.led),
            program=__version__,
        )

    def _went(self, began_at: float | None) -> None:
        """A heartbeat of this node went well, or not."""
        if self.shards is not None:
            self.shards.peers.beat(began_at)
        if began_at is None:
            self._watch.failed()
            return
        before, self._beat_at = self._beat_at, began_at
        self._watch.beat(began_at)
        usual = 0.0 if self._beats is None else self._beats.interval
        if began_at - before > usual + _LATE * self._seconds:
            self._look()  # others may have taken this for silence

    # -- watching the leader

    async def watch(self) -> None:
        """Watch the leader until it is gone; then this node is over."""
        known: Cluster | None = None
        while not self.over.is_set():
            claimed = self._view()
            if claimed is not None and (known is None or claimed.epoch != known.epoch):
                known, self._watch = claimed, LeaderWatch(self._seconds, claimed)
                self.leader = None
                logger.info("node %s follows %s", self.name, _leader(claimed))
            if known is not None and known.node:
                why = await self._look_at(known)
                if why and await self._has_last_claim(known):
                    note = folder.note_takeover
                    await threads.in_thread(note, self._data, known.epoch, self._seen)
                    self.end(f"{_leader(known)} {why}; this node takes over")
            self._tell_of_leader()
            await trio.sleep(self._watch.pause)

    def _tell_of_leader(self) -> None:
        before, self._leads = self._leads, self.served_by()
        if self._leads is None or self._leads.start not in ("", before and before.start):
            self._leader_changed.unpark_all()

    async def _look_at(self, claimed: Cluster) -> str:
        """Read the leader's heartbeat; why it is to be taken over, empty while it is not."""
        asked = trio.current_time()
        try:
            there = await ask(read_heartbeat, self.store, claimed.node)
        except TierError:
            self._watch.failed()
            return ""
        found, self._seen = self._watch.of_leader(there, asked), _etag(there)
        self._watch.read(asked, trio.current_time(), found)
        self.leader = None if found is None else found.heartbeat
        if has_left(found):
            return "has left"
        seconds = self._watch.silent_seconds
        is_short = seconds < self._seconds + self._local_seconds
        if not self._watch.is_gone or (is_short and self._has_local()):
            return ""
        return f"has been silent for {seconds:.1f} s"

    async def _has_last_claim(self, claimed: Cluster) -> bool:
        """Nobody was faster, as far as the store answers."""
        try:
            held = await ask(claims.look, self.store)
        except TierError:
            return False
        return held is not None and held.cluster.epoch == claimed.epoch


def _etag(found: FoundHeartbeat | None) -> str:
    return "" if found is None else found.etag


def _shown(address: NodeAddress | None) -> str:
    return "" if address is None else str(address)


def _leader(claimed: Cluster) -> str:
    name = f"node {claimed.node}" if claimed.node else "a server without --node"
    return f"{name}, which leads since epoch {claimed.epoch}"


def _has_ended(data: str, file: NodeFile | None, found: Heartbeat) -> bool:
    """A heartbeat is of the last process of this folder, which has ended."""
    return file is not None and file.start == found.start and file.is_of(data)


@asynccontextmanager
async def open_node(
    config: Config,
    addresses: Mapping[str, NodeAddress],
    now_ms: Callable[[], int],
    certificate: Callable[[], str],
) -> AsyncIterator[Node]:
    """The node of a data folder, which has settled, and whose heartbeats go on in the block.

    See `Node` for the arguments, and `Node.settle` for what it raises.
    """
    node = Node(config, addresses, now_ms, certificate)
    await node.settle()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.beat)
        yield node
        nursery.cancel_scope.cancel()
    await node.leave()
