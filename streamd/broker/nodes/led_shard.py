"""A shard that this node leads: streams with a tier of their own, below the tier of the cluster.

Theory of operation. All streams of a shard are confirmed by the store. So nothing that is on a disk
counts: whoever begins to lead a shard restores it into an empty folder, as a new machine does that
takes over a server (tier/restore.py). That claims its tier, which fences whoever has led it, and
reads and ends the write-ahead logs. From then on it is written as the tier of a server is.

Which streams there are, the catalog of the cluster says. It is read to its end once nobody else can
write the shard: so it has all of which there is something. They work with the tier from then on,
before its write-ahead logs are read, which have what follows their segments. What the store has of
other streams, or of earlier ones of their names, was deleted, and goes.
"""

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import trio

from segments.disk import OsDisk
from segments.marks import LIFE, marked
from segments.store.cache import TierCache
from segments.store.local_copy import MANIFEST_FILE
from segments.store.metadata_log import read_root
from segments.store.object_store import ObjectStore, TierError
from streamd.broker.catalog.catalog import Catalog
from streamd.broker.catalog.writer import CatalogWriter
from streamd.broker.declared.rows import StreamRow
from streamd.broker.resources import ServerResources
from streamd.broker.streams.fetcher import Fetcher
from streamd.broker.tier.folding import catch_up
from streamd.broker.tier.identity import begin_epoch
from streamd.broker.tier.patience import retry_store
from streamd.broker.tier.removals import copy_of
from streamd.broker.tier.restore import restore
from streamd.broker.tier.tier import Tier
from streamd.config import Config
from streamd.net import threads
from streamd.operations.names import Name, stream_folder


class LedShard(NamedTuple):
    """A shard that this node leads.

    Attributes:
        tier: of it.
        resources: that its streams work with.
        begin: takes the tier, when they do; raises SegmentsError where it is another node's.
    """

    tier: Tier
    resources: ServerResources
    begin: Callable[[], Awaitable[None]]


# Gives the streams that the cluster has placed at a node, read to the end of its log.
Placed = Callable[[str], Awaitable[list[StreamRow]]]


@asynccontextmanager
async def lead(
    shard: str,
    config: Config,
    store: ObjectStore,
    base: ServerResources,
    placed: Placed,
) -> AsyncIterator[LedShard]:
    """Lead a shard in this block.

    Args:
        shard: the node that its streams were placed at.
        config: of this node.
        store: that the shard is in.
        base: what other streams of this node work with.
        placed: gives its streams.

    Raises:
        RestoreError: it cannot be restored; OvertakenError where another node was faster.
        SegmentsError: the same of a store, or a disk.
    """
    data = await threads.in_thread(empty_folder, base.data, shard, "led")
    if await retry_store(read_root, store) is not None:
        await restore(data, store, config.node)
    elif await placed(shard):
        raise TierError(
            f"the shard of node {shard} is not in the tier {store}, and streams were placed there: "
            "is the right store mounted?"
        )
    identity = await threads.in_thread(partial(begin_epoch, data, node=config.node))
    writer = CatalogWriter(Catalog(data))
    with closing(writer):
        await catch_up(data, lambda: store, identity)
        async with trio.open_nursery() as nursery:
            supervisor = base.supervisor.within(nursery)
            fetcher = Fetcher(cache_in(data, config), supervisor)
            of_shard = replace(config, data=data, restore=False, read_only=False, is_standby=False)
            parts = supervisor, fetcher, writer, base.traffic
            tier = Tier(of_shard, identity, base.now_ms, *parts, lambda: store)
            await tier.removals.open()
            await placed(shard)
            resources = base._replace(
                data=data,
                supervisor=supervisor,
                fetcher=fetcher,
                has_tier=True,
                epoch=lambda: tier.ownership.identity.epoch,
                tier=tier,
                follower=None,
                is_scratch=True,
            )
            yield LedShard(tier, resources, partial(_begin, data, tier, partial(placed, shard)))
            nursery.cancel_scope.cancel()


def empty_folder(data: str, shard: str, what: str) -> str:
    """A folder for a shard, with nothing in it; blocks."""
    folder = Path(data, "shards", shard, what)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return str(folder)


def cache_in(data: str, config: Config) -> TierCache:
    """A cache for what is read from the tier, in the folder of a shard."""
    folder = Path(data, "tier-cache")
    folder.mkdir(exist_ok=True)
    return TierCache(str(folder), config.tier_cache_bytes)


async def _begin(data: str, tier: Tier, placed: Callable[[], Awaitable[list[StreamRow]]]) -> None:
    """See LedShard."""
    rows = await placed()
    await _remove_deleted(data, tier, rows)
    await tier.start()
    await tier.ownership.settled()
    while tier.ownership.may_write:
        with suppress(TierError):  # it takes longer
            return await tier.confirms.read()
    raise TierError(tier.ownership.sentence)


async def _remove_deleted(data: str, tier: Tier, rows: Iterable[StreamRow]) -> None:
    """Remove what was restored of streams that are none of these, nor of their lives."""
    lives = {(row.virtual_host, row.name): row.life for row in rows}
    with closing(Catalog(data)) as catalog:
        restored = await threads.in_thread(catalog.streams)
    for row in restored:
        folder = stream_folder(data, row.virtual_host, row.name)
        if await threads.in_thread(_life_in, folder) != lives.get((row.virtual_host, row.name)):
            await _remove(tier, row.virtual_host, row.name, folder)


async def _remove(tier: Tier, virtual_host: Name, name: Name, folder: str) -> None:
    deletion = await tier.removals.will_delete({name: folder}, virtual_host)
    tier.removals.note(deletion)
    await threads.in_thread(partial(shutil.rmtree, folder, ignore_errors=True))


def _life_in(folder: str) -> str:
    """The life of the stream that a folder is of; blocks."""
    if not Path(folder).is_dir():
        return ""
    disk = OsDisk()
    names = disk.list(folder)
    if MANIFEST_FILE in names:
        copy = copy_of(disk, folder)
        return "" if copy is None else copy.stream.creation
    return next(iter(marked(names, LIFE)), "")
