"""Who uses a cluster while its nodes are harmed.

    at each node    a publisher with a name of its own, which stays connected to that node however
                    long it stands still, and a consumer
    anywhere        a publisher and a consumer that stores offsets, which look for a node that does
                    something for them
    rstream         with a name, and without one
    a declarer      which declares streams and deletes some

All publish a few messages a second, and have in them who they are and a number.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random

import trio

from clients import Client, NoOffset, StreamError, StreamNotAvailable, connect
from tests.crash import history
from tests.crash.history import Found, History
from tests.crash.ledger import ARGUMENTS, PATIENCE, read_all
from tests.crash.nodes import Cluster, ClusterNode
from tests.crash.rstream import Rstream

STORED, LOCAL, NAMED, UNNAMED = "s", "l", "r", "u"  # the streams
_MOST_SILENCE = 1.5  # seconds, after which a client tries another node
_PAUSE = 0.3  # between two batches
_RETRY = 0.5  # until a client asks a node again that has refused
_RSTREAM_PAUSE = 1.0
_DECLARE_PAUSE, _MOST_DECLARED = 1, 10
_STORES_EVERY = 20  # messages
_ARGUMENTS = {**ARGUMENTS, "stream-max-segment-size-bytes": "50000"}
_ANYWHERE, _READER = "p", "reader"


class Clients:
    """All of them.

    Attributes:
        told: what they were told, by stream.
        longest: seconds without a confirm, at most, since `begin_round`.
        declared, deleted: streams of the declarer of which that was answered.
        num_compared: messages that were read.
    """

    def __init__(self, cluster: Cluster, chance: Random, *, has_local: bool) -> None:
        self.told = {name: History() for name in (STORED, NAMED, UNNAMED)}
        if has_local:
            self.told[LOCAL] = History()
        self.longest = 0.0
        self.declared: set[str] = set()
        self.deleted: set[str] = set()
        self.num_compared = 0
        self._cluster, self._chance = cluster, chance
        self._last_confirm = 0.0
        self._num_declared = 0
        self._rstream = [
            Rstream(self.told[NAMED], NAMED, "app", _RSTREAM_PAUSE),
            Rstream(self.told[UNNAMED], UNNAMED, "", _RSTREAM_PAUSE),
        ]

    async def create(self, client: Client) -> None:
        """Create the streams; those of rstream it creates itself."""
        await client.create(STORED, arguments=_ARGUMENTS)
        if LOCAL in self.told:
            await client.create(LOCAL, arguments={**_ARGUMENTS, "stream-confirm": "local"})

    async def run(self) -> None:
        """Publish and read, for ever."""
        async with trio.open_nursery() as nursery:
            for node in self._cluster.nodes:
                nursery.start_soon(self._there, node, self._publisher(STORED, node.name))
                nursery.start_soon(self._there, node, self._follower(STORED))
            for stream in self.told.keys() & {STORED, LOCAL}:
                nursery.start_soon(self._anywhere, self._publisher(stream, _ANYWHERE))
            if LOCAL in self.told:
                nursery.start_soon(self._anywhere, self._follower(LOCAL))
            nursery.start_soon(self._at_the_leader, self._store_offsets)
            nursery.start_soon(self._anywhere, self._declare)

    def begin_round(self, port: int) -> None:
        """Count from now on; rstream is started."""
        self.longest = 0.0
        for one in self._rstream:
            one.kill()
            one.start(port)

    def end_round(self) -> None:
        """rstream is ended, so that it is known what it was told."""
        for one in self._rstream:
            one.kill()

    async def confirmed(self) -> None:
        """Wait until something is confirmed."""
        known = self._last_confirm
        with trio.fail_after(PATIENCE):
            while self._last_confirm == known:
                await trio.sleep(0.01)

    # -- where they do it

    async def _there(self, node: ClusterNode, work: "_Work") -> None:
        """Do it at one node, however long that stands still."""
        while True:
            if node.is_running:
                await _use(node, work, _Progress())
            await trio.sleep(_RETRY)

    async def _anywhere(self, work: "_Work") -> None:
        """Do it wherever it is done, one node after the other."""
        while True:
            for node in self._cluster.nodes:
                if node.is_running:
                    await self._while_it_goes(node, work)
            await trio.sleep(_PAUSE)

    async def _at_the_leader(self, work: "_Work") -> None:
        """Do it where the store says that somebody leads: a server that only reads keeps offsets.

        Those that it has are its own, and nobody was told that they are stored.
        """
        while True:
            node = await self._cluster.leader()
            if node.is_running:
                await self._while_it_goes(node, work)
            await trio.sleep(_PAUSE)

    async def _while_it_goes(self, node: ClusterNode, work: "_Work") -> None:
        progress = _Progress()
        async with trio.open_nursery() as nursery:

            async def use() -> None:
                await _use(node, work, progress)
                nursery.cancel_scope.cancel()

            nursery.start_soon(use)
            while not await progress.is_over():
                pass
            nursery.cancel_scope.cancel()

    # -- what they do

    def _publisher(self, stream: str, name: str) -> "_Work":
        told = self.told[stream]

        async def publish(client: Client, progress: "_Progress") -> None:
            async with client.producer(stream, name=name) as producer:
                number = producer.last_publishing_id
                while True:
                    for _ in range(self._chance.choice((1, 5, 20))):
                        number += 1
                        padding = bytes(self._chance.randrange(80))
                        await producer.send(b"%d %s " % (number, name.encode()) + padding)
                    await producer.flush()
                    told.confirm(name, number)
                    if stream == STORED:
                        self._confirm()
                    progress.made()
                    await trio.sleep(_PAUSE)

        return publish

    def _confirm(self) -> None:
        now = trio.current_time()
        if self._last_confirm:
            self.longest = max(self.longest, now - self._last_confirm)
        self._last_confirm = now

    def _follower(self, stream: str) -> "_Work":
        told = self.told[stream]

        async def follow(client: Client, progress: "_Progress") -> None:
            start = max(told.seen, default=-1) + 1
            async with client.consumer(stream, offset=start) as messages:
                async for message in messages:
                    told.take(history.found(message.offset, bytes(message.body)))
                    self.num_compared += 1
                    progress.made()

        return follow

    async def _store_offsets(self, client: Client, progress: "_Progress") -> None:
        """Go on behind the offset that is stored, and store more."""
        told, num = self.told[STORED], 0
        async with client.consumer(STORED, offset="stored", name=_READER) as messages:
            async for message in messages:
                told.take(history.found(message.offset, bytes(message.body)))
                told.handled.add(message.offset)
                self.num_compared += 1
                progress.made()
                num += 1
                if num % _STORES_EVERY == 0:
                    await messages.store_offset()
                    with suppress(NoOffset):
                        stored = await client.query_offset(STORED, _READER)
                        told.answered = max(told.answered, stored)

    async def _declare(self, client: Client, progress: "_Progress") -> None:
        """Declare streams, and delete some; each name is used once."""
        while True:
            self._num_declared += 1
            name = f"d{self._num_declared}"
            await client.create(name)
            self.declared.add(name)
            progress.made()
            if len(self.declared) > _MOST_DECLARED:
                victim = self._chance.choice(sorted(self.declared))
                self.declared.discard(victim)  # until it is answered, it may be either
                await client.delete(victim)
                self.deleted.add(victim)
            await trio.sleep(_DECLARE_PAUSE)

    # -- whether it is as it should be

    async def check(self, node: ClusterNode) -> None:
        """Read all at a node, and compare it with what was told before."""
        confirmed = {name: dict(told.confirmed) for name, told in self.told.items()}
        seen = {name: told.there() for name, told in self.told.items()}
        declared, deleted = set(self.declared), set(self.deleted)
        for name in self.told.keys() - {LOCAL}:
            told = self.told[name]
            messages = await self._read(node, name) if name == STORED or _was_told(told) else []
            history.confirmed_once(messages if name == STORED else [], confirmed[name])
            history.confirmed_at_all(messages, told.single)
            if name == NAMED:
                history.ascending(messages)
            history.nothing_read_is_gone(messages, seen[name])
            history.gaps_are_whole(messages)
            if name == STORED:
                await self._check_stored(node, messages)
        async with connect(node.uri) as client:
            there = {one for one in declared | deleted if await client.exists(one)}
        history.declared_is_there(there, declared & self.declared, deleted)

    async def _check_stored(self, node: ClusterNode, messages: list[Found]) -> None:
        told, stored = self.told[STORED], -1
        answered = told.answered
        async with connect(node.uri) as client:
            with suppress(NoOffset):
                stored = await _stored(client)
        history.stored_stays(stored, answered)
        history.passes_over_nothing(messages, told.handled, stored)

    async def check_local(self, node: ClusterNode, uploaded: int, *, is_kept: bool) -> None:
        """Compare the stream that one machine confirms.

        Args:
            node: where it is read.
            uploaded: behind what of it was uploaded before something was harmed.
            is_kept: nothing of it may be lost.
        """
        told = self.told[LOCAL]
        confirmed, seen = dict(told.confirmed), told.there()
        messages = await self._read(node, LOCAL)
        history.confirmed_once(messages, confirmed if is_kept else {})
        if is_kept:
            history.nothing_read_is_gone(messages, seen)
        history.uploaded_is_kept(messages, seen, uploaded)
        history.gaps_are_whole(messages)
        told.gone |= seen.keys() - {one.offset for one in messages}
        if not is_kept:
            told.confirmed = {one.publisher: one.number for one in messages}

    async def _read(self, node: ClusterNode, stream: str) -> list[Found]:
        messages = await read_all(node.uri, stream)
        for one in messages:
            self.told[stream].take(one)
        self.num_compared += len(messages)
        return messages


async def _stored(client: Client) -> int:
    """The stored offset, however long it takes until somebody leads the stream."""
    with trio.fail_after(PATIENCE):
        while True:
            with suppress(StreamNotAvailable):
                return await client.query_offset(STORED, _READER)
            await trio.sleep(1)


class _Progress:
    """Whether something comes of what a client does."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def made(self) -> None:
        self._event.set()

    async def is_over(self) -> bool:
        """Wait until something came of it; whether it takes too long."""
        with trio.move_on_after(_MOST_SILENCE) as waiting:
            await self._event.wait()
            self._event = trio.Event()
            await trio.sleep(0.01)
        return waiting.cancelled_caught


_Work = Callable[[Client, _Progress], Awaitable[None]]


def _was_told(told: History) -> bool:
    return bool(told.confirmed or told.single or told.seen)


async def _use(node: ClusterNode, work: _Work, progress: _Progress) -> None:
    """Do it until the server has gone, or refuses."""
    try:
        async with connect(node.uri, retry_seconds=0) as client:
            await work(client, progress)
    except* (StreamError, OSError):
        pass
