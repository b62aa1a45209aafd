"""A shard that another node leads, or nobody: its streams can be read here, as they grow.

Which streams there are, and of which life, the catalog of the cluster says; what the store has of
others was deleted, or is not known here yet.

What is in no manifest yet is read while a log is open here. What the streams have got, and how much
it is, their leader is asked for (connections/stream/forwarding.py).
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from segments.store.object_store import TierError
from streamd.broker.broker import Broker
from streamd.broker.declared.rows import StreamRow
from streamd.broker.nodes.led_shard import cache_in, empty_folder
from streamd.broker.resources import FolderSource, Following, ServerResources
from streamd.broker.stream_follower import Followed, StreamFollower
from streamd.broker.streams.fetcher import Fetcher
from streamd.broker.streams.publication import Remote
from streamd.broker.streams.stream import Stream
from streamd.broker.tier import claims
from streamd.broker.tier.patience import retry_store
from streamd.broker.tier.requests import CountedStore
from streamd.broker.tier.restore import TAILS
from streamd.config import Config
from streamd.net import threads
from streamd.operations.names import Name

_IDLE_SECONDS = 60.0  # that write-ahead logs are read for after the last log was open
_OPEN_SECONDS = 10.0  # that opening a log waits for them


class ShardFollower(StreamFollower):
    """Follows one shard; made by `follow`.

    Args:
        shard: the node that its streams were placed at.
        broker: has them.
    """

    def __init__(
        self,
        shard: str,
        broker: Broker,
        data: str,
        store: CountedStore,
        now_ms: Callable[[], int],
        elsewhere: FolderSource,
    ) -> None:
        super().__init__(data, store, now_ms, elsewhere.read_only)
        self._shard, self._broker, self._elsewhere = shard, broker, elsewhere
        self._read_until = 0.0  # write-ahead logs, by trio's clock
        self._opened = set[tuple[Name, Name]]()  # perhaps still

    async def prepare(self) -> None:
        """Know what the store has now.

        Raises:
            TierError: it is away, or nobody has begun the shard.
        """
        found = await retry_store(claims.find, self._store)
        if found is None:
            raise TierError(f"nothing of the shard of node {self._shard} is in the tier yet")
        await self._prepare_streams(found)

    def start(self, resources: ServerResources, fetcher: Fetcher) -> None:
        """Follow from now on."""
        self._start(self._broker, resources.supervisor, fetcher)

    def _row(self, one: Followed) -> StreamRow | None:
        """The row of what is followed, where it is of the life that the catalog has."""
        names = one.names
        host = None if names is None else self._broker.virtual_hosts.get(names[0])
        row = None if host is None or names is None else host.find_row(names[1])
        is_it = row is not None and row.shard == self._shard
        return row if is_it and row is not None and one.creation in ("", row.life) else None

    def _has_row(self, one: Followed) -> bool:
        """See StreamFollower."""
        return one.manifest is not None and self._row(one) is not None

    def _stream_of(self, one: Followed) -> Stream | None:
        """See StreamFollower; None also for one of another life."""
        return None if self._row(one) is None else super()._stream_of(one)

    def _needs_slots(self) -> bool:
        """See StreamFollower; else each node would read all that the others write."""
        now = trio.current_time()
        if any(self._is_open(*one) for one in self._opened):
            self._read_until = now + _IDLE_SECONDS
        if now >= self._read_until:  # until then, one may be being opened
            self._opened.clear()
        return now < self._read_until

    def _is_open(self, host: Name, name: Name) -> bool:
        one = self._followed(host, name)
        stream = None if one is None else self._stream_of(one)
        return stream is not None and stream.is_open

    async def make_folder(self, virtual_host: Name, name: Name, folder: str) -> Following | None:
        """See resources.FolderSource."""
        self._opened.add((virtual_host, name))
        self._read_until = trio.current_time() + _IDLE_SECONDS
        with trio.move_on_after(_OPEN_SECONDS) as waiting:
            await self.read_slots()
        if waiting.cancelled_caught:
            raise TierError("what the tier has of it is being read; try again")
        return await super().make_folder(virtual_host, name, folder)

    def _tell(self, stream: Stream, one: Followed) -> None:
        """See StreamFollower; its leader may have said more than manifests have."""
        known = stream.figures
        if known is None or known.next_offset < one.stored_to:
            super()._tell(stream, one)

    def remote(self, virtual_host: Name, name: Name) -> Remote | None:
        """See resources.FolderSource."""
        return self._elsewhere.remote(virtual_host, name)

    def _followed(self, host: str, name: str) -> Followed | None:
        """See StreamFollower; None also for one of another life."""
        one = super()._followed(host, name)
        return None if one is None or self._row(one) is None else one


@asynccontextmanager
async def follow(
    shard: str,
    config: Config,
    store: CountedStore,
    base: ServerResources,
    broker: Broker,
    elsewhere: FolderSource,
) -> AsyncIterator[ServerResources]:
    """Follow a shard in this block; gives what its streams work with.

    Args:
        shard: the node that its streams were placed at.
        config: of this node.
        store: that the shard is in.
        base: what other streams of this node work with.
        broker: has the streams.
        elsewhere: says who leads it, and publishes there.

    Raises:
        TierError: nothing of it can be read yet.
    """
    data = await threads.in_thread(empty_folder, base.data, shard, "followed")
    await threads.in_thread(Path(data, TAILS).mkdir)
    follower = ShardFollower(shard, broker, data, store, base.now_ms, elsewhere)
    await follower.prepare()
    async with trio.open_nursery() as nursery:
        supervisor = base.supervisor.within(nursery)
        fetcher = Fetcher(cache_in(data, config), supervisor)
        resources = base._replace(
            data=data, supervisor=supervisor, fetcher=fetcher, tier=None, follower=follower
        )
        follower.start(resources, fetcher)
        yield resources
        nursery.cancel_scope.cancel()
