"""Everything in one data folder: the virtual hosts with their streams, and the catalog."""

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import trio

from segments.disk import OsDisk
from segments.errors import SegmentsError
from segments.store.cache import TierCache
from segments.words import plural
from streamd.broker.catalog.catalog import Change, Contents
from streamd.broker.catalog.writer import CatalogWriter, Turn
from streamd.broker.declared.rows import StreamRow
from streamd.broker.disk_floor import DiskFloor
from streamd.broker.orphans import set_aside
from streamd.broker.read_only import ReadOnly
from streamd.broker.resources import FolderSource, ServerResources, Shards, StreamQuota
from streamd.broker.search_places import InTurns, Place
from streamd.broker.searches import Searches
from streamd.broker.stream_logs import trash_folder
from streamd.broker.streams.fetcher import Fetcher
from streamd.broker.streams.flusher import Flusher, FlushMode
from streamd.broker.streams.history import History
from streamd.broker.streams.indexer import Indexer
from streamd.broker.streams.key_indexer import KeyIndexer
from streamd.broker.streams.log_keeper import LogKeeper
from streamd.broker.streams.log_life import LogLife
from streamd.broker.streams.stream import Stream
from streamd.broker.supervisor import Supervisor
from streamd.broker.tier.identity import Identity
from streamd.broker.tier.index_files import IndexFiles
from streamd.broker.tier.tier import Tier
from streamd.broker.traffic import Traffic
from streamd.broker.virtual_host import VirtualHost
from streamd.config import RETENTION_SECONDS
from streamd.net import threads
from streamd.net.clock import wall_clock_ms
from streamd.net.poller import open_poller
from streamd.net.rounds import Rounds
from streamd.operations.argument_kinds import Value
from streamd.operations.cluster import NodeReports
from streamd.operations.errors import NoSuch
from streamd.operations.names import Name, stream_folder
from streamd.operations.routing import Binding, ExchangeRow
from streamd.operations.tier_reports import TierReports

logger = logging.getLogger(__name__)

_FEW_STREAMS = 100  # are looked at each time
_ALARM_SECONDS = 50e-6  # that it is good for, for each of the others: a hundred times what it takes

Row = TypeVar("Row", StreamRow, ExchangeRow, Binding)


class Broker:
    """The virtual hosts in one data folder.

    Args:
        data: the folder; exists.
        catalog: changes the catalog of that folder; closed with the broker.
        now_ms: the wall clock.
        max_streams: limit on the streams in all virtual hosts together.
        flusher: flushes what streams write; by default the system does, when it likes.
        has_tier: sealed segments go to a tier.
        identity: who this server is; None where nobody asks.
        follower: makes the folders of streams, where another server writes them.
        cache_bytes: of what was read from the tier, on the disk.
        search_place: where pages of searches are worked on; default in turns with everything else.
        make_tier: makes what uploads to the tier; None where nothing does.
        shards: where streams are that were placed at a node; None where none can be.

    Attributes:
        virtual_hosts: by name.
        now_ms: the wall clock.
        has_looked: each stream has been opened since the start, or could not be.
        catalog: changes the catalog.
        rounds: streams write at the end of each.
        poller: waits for connections; None on systems without one.
        supervisor: runs background tasks, and counts their faults.
        history: the same over the last hour.
        tier: what the tier tells of itself; None without one.
        node: what the node tells that this server is of a cluster; None where it is none.
        fetcher: fetches what is read of cold segments, once it knows a store.
        floor: how much of the disk is to stay free.
        shards: see above.
        read_on: returns when what another node has declared is known here, if that is soon; whether
            it is.
    """

    def __init__(  # noqa: PLR0913 - parts of the server
        self,
        data: str,
        catalog: CatalogWriter,
        nursery: trio.Nursery,
        now_ms: Callable[[], int] = wall_clock_ms,
        max_streams: int = 10_000,
        flusher: Flusher | None = None,
        max_open_logs: int | None = None,
        *,
        has_tier: bool = False,
        identity: Identity | None = None,
        follower: FolderSource | None = None,
        cache_bytes: int = 1 << 30,
        search_place: Place | None = None,
        min_disk_free: int = 0,
        retention: Mapping[str, Value] = MappingProxyType({}),
        make_tier: Callable[[Supervisor, Fetcher, CatalogWriter, Traffic], Tier] | None = None,
        shards: Shards | None = None,
    ) -> None:
        self.virtual_hosts: dict[Name, VirtualHost] = {}
        self._identity = identity
        self.now_ms = now_ms
        self.data = data
        self.has_looked = False
        self.catalog = catalog
        self.supervisor = Supervisor(nursery)
        self.rounds = Rounds()
        self.poller = open_poller(self.rounds)
        cache = TierCache(str(Path(data, "tier-cache")), cache_bytes)
        self.fetcher = Fetcher(cache, self.supervisor)
        self.traffic = Traffic()
        parts = self.supervisor, self.fetcher, catalog, self.traffic
        tier = None if make_tier is None else make_tier(*parts)
        self.tier: TierReports | None = tier
        self.node: NodeReports | None = None
        self.searches = Searches(now_ms, search_place or InTurns())
        self.floor = DiskFloor(data, min_disk_free)
        self.history = History(self.traffic, self.streams, now_ms)
        self._resources = ServerResources(
            data,
            catalog,
            self.supervisor,
            LogKeeper(max_open_logs),
            now_ms,
            Indexer(),
            KeyIndexer(),
            flusher or Flusher(FlushMode.OS, 1),
            self.rounds,
            StreamQuota(max_streams),
            self.traffic,
            self.fetcher,
            has_tier,
            self._epoch,
            tier,
            follower,
            self.floor,
            retention,
            shards,
        )
        self.shards = shards
        if shards is not None:
            shards.use(self._resources)
        self.read_on: Callable[[], Awaitable[bool]] = _all_is_known
        self._has_alarms, self._alarms_until = False, 0.0
        self._changing = trio.Lock()  # which streams there are, and what they work with

    @property
    def has_alarms(self) -> bool:
        """Some stream accepts no messages; where there are many, as it was a moment ago.

        Each login asks for it: of 10,000 streams, a look at all of them takes as long as ten.
        """
        now = trio.current_time()
        if now >= self._alarms_until:
            self._has_alarms = any(host.alarms() for host in self.virtual_hosts.values())
            many = max(0, self._resources.quota.used - _FEW_STREAMS)
            self._alarms_until = now + _ALARM_SECONDS * many
        return self._has_alarms

    @property
    def read_only(self) -> ReadOnly | None:
        """Another server writes everything that is here; None where this one does."""
        follower = self._resources.follower
        return None if follower is None else follower.read_only

    @property
    def is_read_only(self) -> bool:
        """Another server writes everything that is here."""
        return self.read_only is not None

    def _epoch(self) -> int | None:
        tier = self._resources.tier
        if tier is not None:
            return tier.ownership.identity.epoch
        return None if self._identity is None else self._identity.epoch

    async def open(self, contents: Contents, *, says_what_it_finds: bool = False) -> None:
        """Take what the catalog knows, and begin; logs are opened when they are wanted.

        Args:
            contents: of the catalog.
            says_what_it_finds: log what was found when all streams were looked at.
        """
        tier = self._resources.tier
        if tier is not None:
            await tier.removals.open()
        trash = await threads.in_thread(_clean_up, self.data, contents.streams)
        await threads.in_thread(self.fetcher.cache.clear)
        for name in contents.virtual_hosts:
            self.virtual_hosts[name] = VirtualHost(name, self._resources)
        for host in self.virtual_hosts.values():
            host.topology.load(
                (row for row in contents.exchanges if row.virtual_host == host.name),
                (row for row in contents.bindings if row.virtual_host == host.name),
            )
        for row in contents.streams:
            standing = contents.selectors.get((row.virtual_host, row.name), ())
            self.virtual_hosts[row.virtual_host].load_stream(row, standing)
        start, resources = self.supervisor.start, self._resources
        if tier is not None:
            await tier.start()
            index_files = IndexFiles(self._folders, self.fetcher)
            self.supervisor.start_once("fetching index files", index_files.run)
        start("expiring segments", self._expire_now_and_then)
        start("looking how full the disk is", self.floor.run)
        start("building filter indexes", resources.indexer.run)
        start("indexing keys", resources.keys.run)
        start("flushing", resources.flusher.run)
        start("closing logs", resources.keeper.run)
        start("keeping the last hour", self.history.run)
        start("ending processes that searched", self.searches.place.run)
        inspect = partial(self._inspect, says_what_it_finds=says_what_it_finds)
        self.supervisor.start_once("looking at all streams", inspect)
        empty_trash = partial(threads.in_thread, _remove_folders, trash)
        self.supervisor.start_once("emptying the old trash", empty_trash)
        if self.poller is not None:
            start("polling connections", self.poller.run)

    def _folders(self) -> Iterable[tuple[Stream, str]]:
        """All streams, and where their files are."""
        for host in list(self.virtual_hosts.values()):
            yield from ((stream, host.folder(stream.name)) for stream in host.streams())

    async def _inspect(self, *, says_what_it_finds: bool) -> None:
        await self._resources.keeper.inspect(self.lives, self.supervisor)
        self.has_looked = True
        if says_what_it_finds:
            found = [host.found() for host in self.virtual_hosts.values()]
            repaired, losing = (sum(one) for one in zip((0, 0), *found, strict=True))
            streams = plural(len(self.streams()), "stream")
            text = "looked at %s: %s repaired, %s with lost messages"
            logger.warning(text, streams, repaired or "none", losing or "none")

    def streams(self) -> list[Stream]:
        """All streams of all virtual hosts."""
        return [stream for host in self.virtual_hosts.values() for stream in host.streams()]

    def check_virtual_host(self, name: Name) -> None:
        """Raise Refused when there is no virtual host of that name."""
        if name not in self.virtual_hosts:
            raise NoSuch(f"there is no virtual host {name}")

    async def add_virtual_host(self, turn: Turn, name: Name, *more: Change) -> None:
        """Add a virtual host that does not exist yet.

        Args:
            turn: of the change that this belongs to.
            name: of the virtual host.
            more: changes of the catalog to commit with it.

        Raises:
            Refused: the catalog cannot be written.
        """
        await turn.commit(lambda catalog: catalog.add_virtual_host(name), *more)
        self.virtual_hosts[name] = VirtualHost(name, self._resources)

    async def remove_virtual_host(self, turn: Turn, name: Name) -> None:
        """Remove a virtual host with everything in it, and the permissions of users there.

        Raises:
            Refused: it does not exist, or the catalog cannot be written.
        """
        self.check_virtual_host(name)
        host = self.virtual_hosts[name]
        host.end_in(turn, host.names())
        async with host.deleting(host.names()) as folders:
            await turn.commit(lambda catalog: catalog.remove_virtual_host(name))
            await self.virtual_hosts.pop(name).remove(folders)

    async def follow(self, contents: Contents, again: Collection[tuple[Name, Name]]) -> None:
        """Have what the server has that writes; see tier/follower.py.

        Args:
            contents: of its catalog.
            again: virtual host and name of streams that were created again.
        """
        async with self._changing:
            await self._follow(contents, again)

    async def _follow(self, contents: Contents, again: Collection[tuple[Name, Name]]) -> None:
        for name in self.virtual_hosts.keys() - set(contents.virtual_hosts):
            host = self.virtual_hosts.pop(name)
            async with host.deleting(host.names()) as folders:
                await host.remove(folders)
        for name in contents.virtual_hosts:
            if name not in self.virtual_hosts:
                self.virtual_hosts[name] = VirtualHost(name, self._resources)
        streams = _by_host(contents.streams)
        exchanges, bindings = _by_host(contents.exchanges), _by_host(contents.bindings)
        for host in list(self.virtual_hosts.values()):
            rows = streams[host.name]
            known = {row.name for row in rows}
            gone = [n for n in host.names() if n not in known or (host.name, n) in again]
            await host.follow(gone, rows, contents.selectors)
            host.topology.follow(exchanges[host.name], bindings[host.name])

    def rows(self) -> Iterator[StreamRow]:
        """All streams of all virtual hosts, as the catalog has them."""
        for host in list(self.virtual_hosts.values()):
            yield from (host.row(name) for name in host.names())

    def lives(self, shard: str = "") -> list[LogLife]:
        """Those of the streams that were placed at a node; at none by default."""
        hosts = list(self.virtual_hosts.values())
        found = ((host.find_row(one.name), one) for host in hosts for one in host.streams())
        return [one.life for row, one in found if row is not None and row.shard == shard]

    async def load_again(self, shard: str) -> None:
        """Another node leads a shard from now on, or this one: its streams begin anew."""
        async with self._changing, self.catalog.turn(is_answered=False):
            for host in list(self.virtual_hosts.values()):
                await host.load_again(shard)

    async def _expire_now_and_then(self) -> None:
        while True:
            await trio.sleep(RETENTION_SECONDS)
            for host in list(self.virtual_hosts.values()):
                await host.expire()

    async def close(self) -> None:
        """Write what is pending and release all files."""
        for host in self.virtual_hosts.values():
            await host.close()
        self._resources.catalog.close()
        if self.poller is not None:
            self.poller.close()


async def _all_is_known() -> bool:
    """There is no other node that declares anything."""
    await trio.lowlevel.checkpoint()
    return True


def _by_host(rows: Iterable[Row]) -> dict[Name, list[Row]]:
    found: dict[Name, list[Row]] = defaultdict(list)
    for row in rows:
        found[row.virtual_host].append(row)
    return found


def _remove_folders(folders: Iterable[str]) -> None:
    for folder in folders:
        try:
            OsDisk().remove_folder(folder)
        except SegmentsError as error:
            logger.warning("%s; it will be removed at the next start", error)


def _clean_up(data: str, rows: Iterable[StreamRow]) -> list[str]:
    """Move folders that no stream refers to out of the way, so that none comes back to life.

    A stop between two steps of creating or deleting a stream leaves them. They are kept: if the
    catalog got lost, they are all there is. Before anything is served, so that no stream of the
    same name has begun to use one.

    Returns:
        Folders of deleted streams that are still there.
    """
    known = {stream_folder(data, row.virtual_host, row.name) for row in rows}
    for folder in Path(data, "streams").glob("*/*"):
        if str(folder) not in known:
            _set_aside(data, folder)
    trash = trash_folder(data)
    return [str(folder) for folder in trash.iterdir()] if trash.is_dir() else []


def _set_aside(data: str, folder: Path) -> None:
    try:
        set_aside(data, folder)
    except OSError as error:
        logger.warning("%s belongs to no stream, and cannot be moved: %s", folder, error)
