"""The heartbeat of this node: joining under its name, and renewing the object.

Theory of operation. A node has a name, and the object of that name in the store is its own. One
that joins takes it over from its own last start, of which it knows that it has ended; from a node
that has left; and from anybody whose heartbeats have stopped for as long as a leader's would have
to. Whoever goes on writing has the name, and the one that joins is refused: the data folder is a
copy, or two nodes were given one name.

From then on the object is replaced every 3 seconds, or more often where watchers wait for less
than 10, each time after the disk has taken a small file and the event loop has come round: a node
whose disk hangs is silent. A leader that has seen nobody else's heartbeat written for two minutes
does so once in 60 seconds, until it sees one.

Of a write that was not answered the object tells what became of it. An object of another start says
that this one was given up, and its name taken: then it is over.
"""

import logging
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import trio

from segments.disk import OsDisk
from segments.errors import SegmentsError
from segments.store.heartbeat import (
    FoundHeartbeat,
    Heartbeat,
    NodeRole,
    encode_heartbeat,
    read_heartbeat,
)
from segments.store.object_names import NODES_FOLDER, node_key
from segments.store.object_store import ConflictError, ObjectStore, TierError
from streamd.broker.nodes.watch import (
    BEAT_SECONDS,
    BEATS_IN_TIME,
    INTERVALS,
    LONE_BEATS,
    Watch,
    interval_of,
)
from streamd.broker.tier.requests import ask
from streamd.net import threads

logger = logging.getLogger(__name__)

_COMPANY = 40  # since another node's heartbeat was seen to change
_RETRY_SECONDS = 1.0
_LEAVE_SECONDS = 3.0  # that the last heartbeat may take
_ALIVE_FILE = "alive"  # of the data folder: what the disk has to take

# Gives what the node says, of its counter and of milliseconds from one heartbeat to the next.
Say = Callable[[int, int], Heartbeat]


class NameInUseError(SegmentsError):
    """Another server has the name of this node: one sentence."""


class Beats:
    """Renews the heartbeat of this node.

    Args:
        data: the data folder.
        store: where the object is.
        node: its name.
        start: random, of this process.
        say: gives what it says.
        seconds: that a watcher waits for, at least.
        went: hears of each heartbeat when it was begun, by trio's clock; of None for one that has
            failed.

    Attributes:
        may_rest: it may be silent for longer while it is alone.
        is_alone: no other node was seen for a while.
    """

    def __init__(
        self,
        data: str,
        store: ObjectStore,
        node: str,
        start: str,
        seconds: float,
        say: Say,
        went: Callable[[float | None], None],
    ) -> None:
        self.may_rest = self.is_alone = False
        self._path = str(Path(data, _ALIVE_FILE))
        self._store, self._node, self._start, self._seconds = store, node, start, seconds
        self._usual = min(BEAT_SECONDS, seconds / BEATS_IN_TIME)
        self._say, self._went = say, went
        self._etag = ""
        self._is_over: Callable[[Heartbeat], bool] = lambda _: False
        self._counter = 0
        self._hurry = trio.Event()
        self._others: dict[str, int] | None = None
        self._company_until = self._look_at = -1.0
        self._trouble = ""

    @property
    def interval(self) -> float:
        """Seconds between two heartbeats, now."""
        return self._usual * (LONE_BEATS if self.may_rest and self.is_alone else 1)

    async def join(self, is_over: Callable[[Heartbeat], bool]) -> None:
        """Take the name; whoever has it has to be silent for a while.

        Args:
            is_over: whether a heartbeat is that of a start that has ended for certain.

        Raises:
            NameInUseError: somebody else has it.
        """
        self._is_over = is_over
        found = await silent(self._store, self._node, self._seconds, is_over)
        self._etag = "" if found is None else found.etag
        self._company_until = trio.current_time() + _COMPANY * self._usual
        is_done = await self._beat()
        while not is_done:
            await trio.sleep(_RETRY_SECONDS)
            is_done = await self._beat()

    async def run(self) -> None:
        """Renew the heartbeat until cancelled.

        Raises:
            NameInUseError: another start has the name now.
        """
        while True:
            self._hurry = trio.Event()
            pause = self.interval  # that is said: nobody else may take a longer one for silence
            if not await self._beat():
                pause = _RETRY_SECONDS
            elif self.may_rest:
                await self._look_around()
            with trio.move_on_after(pause):
                await self._hurry.wait()

    def hurry(self) -> None:
        """What the node does has changed: say so now."""
        self._hurry.set()

    async def leave(self) -> None:
        """Say, for the last time, what it does; `say` gives that. The store may be away."""
        with trio.CancelScope(shield=True), trio.move_on_after(_LEAVE_SECONDS):
            await self._beat()

    async def _beat(self) -> bool:
        """Renew it once; whether that went well.

        Raises:
            NameInUseError: another start has the name now.
        """
        began_at = trio.current_time()
        self._counter += 1
        trouble = ""
        try:
            await threads.in_thread(_use_disk, self._path)
            said = self._say(self._counter, round(self.interval * 1_000))
            self._etag = await ask(self._write, said)
        except SegmentsError as error:
            if isinstance(error, NameInUseError):
                raise
            trouble = str(error)
        if trouble and not self._trouble:
            logger.warning("the heartbeat of node %s is not renewed: %s", self._node, trouble)
        elif self._trouble and not trouble:
            logger.info("the heartbeat of node %s is renewed again", self._node)
        self._trouble = trouble
        self._went(None if trouble else began_at)
        return not trouble

    def _write(self, said: Heartbeat) -> str:
        """Write the object; its etag. Blocks."""
        content = encode_heartbeat(said)
        try:
            if self._etag:
                return self._store.replace(said.key, content, self._etag)
            return self._store.create(said.key, content)
        except ConflictError:
            found = read_heartbeat(self._store, self._node)
        if found is None:  # somebody has made others forget this node
            return self._store.create(said.key, content)
        beat = found.heartbeat  # whoever has written what cannot be read, meets ours
        if beat is not None and beat.start != self._start and not self._is_over(beat):
            raise _in_use(self._node, beat)
        if beat == said:
            return found.etag
        return self._store.replace(said.key, content, found.etag)

    async def _look_around(self) -> None:
        """See now and then whether there is anybody else; the next heartbeat does not wait for it.

        There may be names of many nodes that have gone, so nothing is read but when each was
        written.
        """
        now = trio.current_time()
        if now < self._look_at:
            return
        self._look_at = now + LONE_BEATS * self._usual
        with trio.move_on_after(self._usual / 2), suppress(TierError):
            others = await ask(self._list_others)
            before, self._others = self._others, others
            if before is not None and others.items() - before.items():
                self._company_until = now + _COMPANY * self._usual
            self.is_alone = now > self._company_until

    def _list_others(self) -> dict[str, int]:
        mine = node_key(self._node)
        listed = self._store.listing(NODES_FOLDER)
        return {one.key: one.modified_ms for one in listed if one.key != mine}


async def silent(
    store: ObjectStore,
    node: str,
    seconds: float,
    is_over: Callable[[Heartbeat], bool] = lambda _: False,
) -> FoundHeartbeat | None:
    """Return when nobody writes heartbeats of a node; what is there then. The store may be away.

    Args:
        store: where they are.
        node: its name.
        seconds: that they have to stop for.
        is_over: whether one is that of a start that has ended for certain.

    Raises:
        NameInUseError: somebody writes them.
    """
    watch = Watch(seconds, own_beats=0)
    first: FoundHeartbeat | None = None
    while True:
        asked = trio.current_time()
        try:
            found = await ask(read_heartbeat, store, node)
        except TierError as error:
            watch.failed()
            logger.warning("cannot see who is node %s: %s; it is tried again", node, error)
        else:
            beat = None if found is None else found.heartbeat
            has_gone = beat is not None and (beat.role is NodeRole.LEFT or is_over(beat))
            if found is None or has_gone:
                return found
            if first is None:
                first = found
                wait = max(seconds, INTERVALS * interval_of(found))
                text = "waiting for up to %.0f s to see whether another server is node %s"
                logger.info(text, wait + watch.pause, node)
            if found.etag != first.etag:
                raise _in_use(node, beat)
            watch.read(asked, trio.current_time(), found)
            if watch.is_gone:
                return found
        await trio.sleep(watch.pause)


def _in_use(node: str, found: Heartbeat | None) -> NameInUseError:
    where = None if found is None else found.stream_address
    return NameInUseError(
        f"the name of the node, {node}, is in use: another server"
        f"{f' at {where}' if where else ''} renews its heartbeat; give this one another --node and "
        "a data folder of its own that is no copy, or stop that one"
    )


def _use_disk(path: str) -> None:
    """See that the disk takes something that needs room.

    Raises:
        StorageError: it does not.
    """
    disk = OsDisk()
    disk.remove(path)  # of a process that was killed here
    with closing(disk.create(path)) as file:
        file.write([b"alive\n"], 0)
        file.sync()
    disk.remove(path)
