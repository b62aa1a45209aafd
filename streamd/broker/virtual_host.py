"""The streams and super streams of one virtual host: creating, finding, deleting them."""

import itertools
import logging
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Protocol, TypeAlias

import trio

from segments import LogPolicy, SegmentsError
from segments.marks import placed_life
from streamd.broker.catalog.catalog import Change
from streamd.broker.catalog.transaction import Transaction
from streamd.broker.catalog.writer import Check, Subject, Turn, permitted
from streamd.broker.declared.checks import check_stream_name
from streamd.broker.declared.filter_contract import contract_of
from streamd.broker.declared.partitions import bindings_of, new_super_stream, partitions_of
from streamd.broker.declared.rows import StreamRow
from streamd.broker.declared.standing_selectors import StandingSelector, StandingSelectors
from streamd.broker.read_only import ReadOnly
from streamd.broker.resources import FolderSource, ServerResources
from streamd.broker.routing.exchanges import Exchanges
from streamd.broker.routing.super_streams import SuperStreams
from streamd.broker.routing.topology import Topology
from streamd.broker.stream_logs import Found, StreamLogs
from streamd.broker.streams.groups import Groups
from streamd.broker.streams.publication import Remote
from streamd.broker.streams.stream import Stream, StreamServices
from streamd.broker.streams.stream_settings import StreamSettings
from streamd.broker.streams.stream_table import StreamTable
from streamd.broker.tier.deletions import Deletion
from streamd.broker.tier.stream_tier import TieredStream
from streamd.broker.tier.tier import Tier
from streamd.net.actor import CHANGE
from streamd.net.turns import in_turns
from streamd.operations.arguments import (
    FILTER_CONTRACT,
    SHARD,
    SHARD_LIFE,
    STRICT,
    Arguments,
    as_created,
    as_kept,
    check_confirm,
    filter_properties,
    read_arguments,
)
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name
from streamd.operations.routing import as_super_stream

logger = logging.getLogger(__name__)

# Streams whose folders are of no use any more.
Folders: TypeAlias = Mapping[StreamLogs, Sequence[Name]]


def _permitted(_names: object) -> None:
    """Nobody asks for the change: the server makes it."""


class StreamObserver(Protocol):
    """Uses streams and must know when one is gone."""

    def stream_is_gone(self, stream: Stream) -> None:
        """The stream was deleted or cannot be used any more."""

    def host_is_gone(self) -> None:
        """The virtual host was deleted; `stream_is_gone` was called for all of its streams."""


class VirtualHost:
    """One virtual host.

    Args:
        name: unique in the server.
        resources: shared by all virtual hosts.

    Attributes:
        settings: changes to streams that exist.
        topology: exchanges of AMQP 0-9-1, super streams included, and their bindings.
        exchanges: changes to them.
        super_streams: a view of those exchanges that are super streams.
    """

    def __init__(self, name: Name, resources: ServerResources) -> None:
        self.name = name
        self.groups = Groups()
        self._resources = resources
        self._streams = StreamTable(name)
        self._observers: dict[StreamObserver, None] = {}
        self._is_gone = False
        self._logs: dict[str, StreamLogs] = {}  # by shard
        self.settings = StreamSettings(
            name, self._streams, resources.catalog, self.policy, has_tier=resources.has_tier
        )
        self.topology = Topology(name, self._streams)
        self.exchanges = Exchanges(self.topology, self._streams, resources.catalog)
        self.super_streams = SuperStreams(name, self.topology)

    # -- observers

    @property
    def observers(self) -> tuple[StreamObserver, ...]:
        """Everything that learns when a stream is gone."""
        return tuple(self._observers)

    def add_observer(self, observer: StreamObserver) -> None:
        """From now on, tell an observer when a stream is gone; at once, when the host is."""
        self._observers[observer] = None
        if self._is_gone:  # since it was entered
            observer.host_is_gone()

    def remove_observer(self, observer: StreamObserver) -> None:
        """Stop telling an observer; an unknown one is ignored."""
        self._observers.pop(observer, None)

    # -- loading

    def load_stream(self, row: StreamRow, standing: Sequence[StandingSelector] = ()) -> None:
        """Take a stream of the catalog; its log is opened when somebody wants it."""
        shared, logs = self._resources.of(row.shard), self._logs_of(row.shard)
        tiered, source = None, shared.follower
        if shared.tier is not None:
            name = row.name
            tiered = shared.tier.add_stream(self.name, name, lambda: self._streams.find_row(name))
        services = StreamServices(
            shared.now_ms,
            shared.rounds,
            shared.flusher,
            logs,
            shared.keeper,
            shared.supervisor,
            shared.keys,
            shared.traffic,
            shared.fetcher,
            tiered,
            _read_only(shared),
            shared.floor,
            partial(_remote, source, self.name, row.name),
        )
        is_strict = row.arguments.get(FILTER_CONTRACT) == STRICT
        selectors = StandingSelectors(
            standing, filter_properties(row.arguments), is_strict=is_strict
        )
        stream = Stream(row.name, services, contract_of(row.arguments), selectors)
        if tiered is not None:
            tiered.belongs_to(stream)
            tiered.policy_changed(logs.policy(row))
        if not row.has_files and not row.shard:
            stream.life.know_empty(is_read_only=shared.follower is not None)
        self._streams.add(row, stream)
        shared.quota.count_new(row.shard)
        self.topology.note_change()

    def _logs_of(self, shard: str) -> StreamLogs:
        """Where the logs of the streams of a shard come from."""
        resources = self._resources.of(shard)
        found = self._logs.get(shard)
        if found is None or found.resources is not resources:
            found = self._logs[shard] = StreamLogs(self.name, self._streams, resources)
        return found

    def policy(self, row: StreamRow) -> LogPolicy:
        """The limits of a stream's log."""
        return self._logs_of(row.shard).policy(row)

    def folder(self, name: Name) -> str:
        """Where the files of stream `name` are, which exists."""
        return self._logs_of(self._streams.row(name).shard).folder(name)

    def found(self) -> Found:
        """What opening logs has found."""
        all_found = (one.found for one in self._logs.values())
        repaired, losing = zip(Found(0, 0), *all_found, strict=True)
        return Found(sum(repaired), sum(losing))

    async def expire(self) -> None:
        """Apply age limits to streams that nobody writes to."""
        async for stream in in_turns(self.streams()):
            row = self._streams.find_row(stream.name)
            if row is not None:
                with self._resources.supervisor.guarded("dropping old segments", stream.name):
                    await self._logs_of(row.shard).expire(stream)

    # -- finding

    def names(self) -> list[Name]:
        """All streams, available or not, in order of their names."""
        return self._streams.names()

    def has_stream(self, name: Name) -> bool:
        """Whether there is a stream of that name, available or not."""
        return name in self._streams

    def streams(self) -> list[Stream]:
        """All streams, available or not."""
        return self._streams.all()

    def alarms(self) -> dict[Name, str]:
        """Why streams do not accept messages, by name."""
        return self._streams.alarms()

    def arguments(self, name: Name) -> Arguments:
        """The arguments that stream `name`, which exists, was declared with."""
        return self._streams.arguments(name)

    def row(self, name: Name) -> StreamRow:
        """The row of stream `name`, which exists, in the catalog."""
        return self._streams.row(name)

    def find_row(self, name: Name) -> StreamRow | None:
        """The row of stream `name` in the catalog, if it exists."""
        return self._streams.find_row(name)

    def get_stream(self, name: Name) -> Stream | None:
        """The stream `name` where it exists, available or not."""
        return self._streams.get(name)

    def find(self, name: Name) -> Stream:
        """The stream `name`.

        Raises:
            Refused: it does not exist, or is not available.
        """
        return self._streams.find(name)

    # -- creating

    async def create(
        self, name: Name, arguments: Iterable[tuple[str, str]], check: Check = permitted
    ) -> None:
        """Create a stream; see CatalogWriter.turn for `check`.

        Raises:
            Refused: bad name or arguments, it exists (with equal arguments: ALREADY_EXISTS), or
                the disk refused.
        """
        check()
        (refused,) = await self.create_all([(name, arguments)], lambda _: check())
        if refused is not None:
            raise refused

    async def create_all(
        self,
        wanted: Sequence[tuple[Name, Iterable[tuple[str, str]]]],
        check: Callable[[Name], None] = _permitted,
    ) -> list[Refused | None]:
        """Create streams, each or not; all that can be created share one change of the catalog.

        Args:
            wanted: name and arguments of each.
            check: raises Refused unless a stream of that name may still be created; called in the
                turn of the change.

        Returns:
            For each why it was refused, None for a stream that was created; see `create`.
        """
        outcomes: list[Refused | None] = []
        if not all(self.has_stream(name) for name, _ in wanted):
            await self._know_nodes()
        try:
            await self._create_wanted(wanted, check, outcomes)
        except Refused as refused:
            told = Reason.ALREADY_EXISTS
            return [refused if one is None or one.reason is told else one for one in outcomes]
        return outcomes

    async def _create_wanted(
        self,
        wanted: Sequence[tuple[Name, Iterable[tuple[str, str]]]],
        check: Callable[[Name], None],
        outcomes: list[Refused | None],
    ) -> None:
        """The same; raises Refused where what is told of is not in the tier."""
        rows: dict[Name, StreamRow] = {}
        placed: list[StreamRow] = []
        async with self._resources.catalog.turn() as turn:
            for name, arguments in wanted:
                try:
                    check_stream_name(name)
                    self._streams.check_there()
                    check(name)
                    declared = read_arguments(arguments)
                    row = StreamRow(self.name, name, as_created(declared))
                    self._check_new(name, declared, rows.get(row.name))
                    check_confirm(declared, has_tier=self._resources.has_tier)
                    self._resources.quota.check(len(rows) + 1)
                except Refused as refused:
                    outcomes.append(refused)
                    if refused.reason is Reason.ALREADY_EXISTS:
                        turn.found.add(Subject(self.name, name))
                else:
                    rows[row.name] = row
                    outcomes.append(None)
            if rows:
                placed = self._placed(rows.values())
                try:
                    await self._create(turn, placed)
                except Refused as refused:
                    outcomes[:] = [one or refused for one in outcomes]
                    return
                for name in rows:
                    logger.info("created stream %s", name, extra=CHANGE)
        if placed:  # who declares what is there is told at once
            await self._tell_leaders(is_placed=any(row.shard for row in placed))

    def _check_new(self, name: Name, declared: Arguments, beside: StreamRow | None) -> None:
        existing = self._streams.find_row(name) or beside
        if existing is None:
            return
        wanted, known = as_kept(declared, existing.arguments), existing.arguments
        if known == wanted:
            raise Refused(Reason.ALREADY_EXISTS, name)
        differing = [
            f"{key} is {known.get(key, 'not set')}, not {wanted.get(key, 'left out')}"
            for key in sorted({*wanted, *known})
            if wanted.get(key) != known.get(key)
        ]
        details = f"{name} exists with other arguments: {'; '.join(differing)}"
        raise Refused(Reason.PRECONDITION_FAILED, details)

    async def create_super_stream(
        self,
        name: Name,
        keys: Iterable[tuple[str, Name]],
        arguments: Iterable[tuple[str, str]],
        check: Check = permitted,
    ) -> None:
        """Create a super stream and its partitions, all or none.

        Args:
            name: of the super stream.
            keys: routing key and partition, in order.
            arguments: of every partition.
            check: see CatalogWriter.turn.

        Raises:
            Refused: bad names or arguments, too many partitions or one twice, it or one of them
                exists, or the disk refused.
        """
        row = new_super_stream(self.name, name, keys)
        partitions = partitions_of(row)
        declared = as_created(read_arguments(arguments))
        check_confirm(declared, has_tier=self._resources.has_tier)
        exchange, bindings = as_super_stream(self.name, row.name), bindings_of(row)

        def add(catalog: Transaction) -> None:
            catalog.add_exchange(exchange)
            for binding in bindings:
                catalog.put_binding(binding)

        await self._know_nodes()
        async with self._resources.catalog.turn(self._streams.while_there(check)) as turn:
            turn.found.update(Subject(self.name, one) for one in (row.name, *partitions))
            if self.topology.has(row.name):  # super streams are exchanges, too
                raise Refused(Reason.ALREADY_EXISTS, row.name)
            for taken in filter(self.has_stream, partitions):
                raise Refused(Reason.ALREADY_EXISTS, taken)
            self.topology.check_room()
            self.topology.check_room_for_bindings(len(partitions))
            rows = self._placed([StreamRow(self.name, n, declared) for n in partitions])
            await self._create(turn, rows, add)
            turn.made |= turn.found
            self.topology.add(exchange, bindings)
        await self._tell_leaders(is_placed=any(one.shard for one in rows))
        logger.info(
            "created super stream %s with %s partitions", row.name, len(partitions), extra=CHANGE
        )

    async def _know_nodes(self) -> None:
        """Before streams are placed, so that one that has just joined gets some, too."""
        if self._resources.shards is not None:
            await self._resources.shards.know_nodes()

    def _placed(self, rows: Iterable[StreamRow]) -> list[StreamRow]:
        """The same streams, each at the node that is to lead it."""
        shared, found = self._resources, []
        beside: Counter[str] = Counter()
        for row in rows:
            shard = "" if shared.shards is None else shared.shards.place(row.arguments, beside)
            if shard:
                beside[shard] += 1
                settings: Arguments = {SHARD: shard, SHARD_LIFE: placed_life(shared.epoch() or 0)}
                found.append(row._replace(settings=settings))
            else:
                found.append(row)
        return found

    async def _create(self, turn: Turn, rows: Sequence[StreamRow], *more: Change) -> None:
        """Create streams; `more` are changes of the catalog that belong to them.

        They get their files when somebody wants them.
        """
        self._resources.quota.check(len(rows))
        try:
            await turn.commit(lambda catalog: catalog.add_streams(rows), *more)
        except Refused as refused:
            logger.error("cannot create stream %s: %s", rows[0].name, refused)
            raise
        turn.made.update(Subject(self.name, row.name) for row in rows)
        self._resources.traffic.queues_declared += len(rows)
        self._resources.traffic.queues_created += len(rows)
        async for row in in_turns(rows):
            self.load_stream(row)

    async def declared_again(self, name: Name) -> None:
        """A client has declared a stream that was there, as it should be.

        Raises:
            Refused: see `tell_of`.
        """
        await self.tell_of(name)
        self._resources.traffic.queues_declared += 1

    async def tell_of(self, name: Name) -> None:
        """Return when a client may be told that a stream or an exchange is there.

        Raises:
            Refused: see CatalogWriter.tell_of.
        """
        await self._resources.catalog.tell_of([Subject(self.name, name)])

    # -- deleting

    async def delete(
        self, name: Name, answer: Callable[[], None], check: Check = permitted
    ) -> None:
        """Delete a stream.

        Args:
            name: of the stream.
            answer: called when it is gone, before the observers of the stream are told, or when the
                tier knows it, where that confirms.
            check: see CatalogWriter.turn.

        Raises:
            Refused: it does not exist, or the disk refused; or it is gone, and the tier does not
                know that for long.
        """
        check = self._streams.while_there(check)
        async with self._resources.catalog.turn(check, is_answered=False) as turn:
            turn.found.add(Subject(self.name, name))
            if name not in self._streams:
                raise Refused(Reason.NOT_FOUND, name)
            is_placed = bool(self._shards_of([name]))
            await self._delete(turn, [name], answer)
        if turn.ended:
            await self._tell_leaders(is_placed=is_placed)
            answer()

    async def delete_super_stream(
        self,
        name: Name,
        answer: Callable[[], None],
        check: Callable[[Sequence[Name]], None] = _permitted,
    ) -> None:
        """Delete a super stream with its partitions; see `delete`.

        Args:
            name: of the super stream.
            answer: called when it is gone, before the observers of its partitions are told.
            check: raises Refused unless it and these partitions may still be deleted; called in
                the turn of the change, before which there may have been others.

        Raises:
            Refused: it does not exist, may not be deleted, or the disk refused.
        """
        check_there = self._streams.check_there
        async with self._resources.catalog.turn(check_there, is_answered=False) as turn:
            turn.found.add(Subject(self.name, name))
            names = list(dict.fromkeys(partitions_of(self.super_streams.find(name))))
            check(names)
            is_placed = bool(self._shards_of(names))
            await self._delete(turn, names, answer, name)
        if turn.ended:
            await self._tell_leaders(is_placed=is_placed)
            answer()

    def _shards_of(self, names: Iterable[Name]) -> set[str]:
        rows = map(self._streams.find_row, names)
        return {row.shard for row in rows if row is not None and row.shard}

    async def _tell_leaders(self, *, is_placed: bool) -> None:
        """Who leads streams that were placed confirms nothing more to those that are gone.

        Also before it is answered that one was created, perhaps in the place of one of those: who
        has deleted that may have gone before others were told.
        """
        shards = self._resources.shards
        if shards is not None and (is_placed or shards.has_streams):
            await shards.have_read()

    async def _delete(
        self,
        turn: Turn,
        names: Sequence[Name],
        answer: Callable[[], None],
        super_stream: Name | None = None,
    ) -> None:
        """Delete streams that exist, and a super stream; answers unless the tier is to know it."""
        self.end_in(turn, names)
        exchanges = [] if super_stream is None else [super_stream]
        exchanges += self.topology.emptied(names, exchanges)

        def remove(catalog: Transaction) -> None:
            catalog.remove_streams(self.name, names)
            catalog.remove_exchanges(self.name, exchanges)

        async with self.deleting(names) as folders:
            await turn.commit(remove)
            gone = await self._end_all(names)
            self.topology.forget(exchanges)
            self.topology.forget_streams(names)
            logger.info("deleted stream %s", super_stream or ", ".join(names), extra=CHANGE)
            try:
                if not turn.ended:
                    answer()
            finally:  # others have to know even if the peer that asked can get no answer
                await self._tell(gone)
                await take_away(folders)

    def end_in(self, turn: Turn, names: Iterable[Name]) -> None:
        """Streams end in a turn: that is answered when the tier knows it, where that confirms."""
        tier, row = self._resources.tier, self._streams.row
        if tier is None:
            return
        names = list(names)
        told = tier.tells_ends(self.name, names)
        ended = {
            Subject(self.name, name)
            for name in names
            if name in told or row(name).shard or self.policy(row(name)).confirms_in_store
        }
        turn.ended |= ended
        turn.found |= ended

    @asynccontextmanager
    async def deleting(self, names: Iterable[Name]) -> AsyncIterator[Folders]:
        """Streams are deleted in the block: what is in the tier of them will be removed there.

        That is written down before, as the catalog will not know them any more.

        Yields:
            Their folders, which are to be taken away at last.
        """
        of_shards: dict[StreamLogs, dict[Name, str]] = defaultdict(dict)
        lives: dict[Name, str] = {}
        for name in names:
            row = self._streams.row(name)
            logs, lives[name] = self._logs_of(row.shard), row.life
            of_shards[logs][name] = logs.folder(name)
        async with AsyncExitStack() as stack:
            for logs, folders in of_shards.items():
                if logs.resources.tier is not None:
                    is_scratch = logs.resources.is_scratch
                    parts = logs.resources.tier, folders, lives
                    removed = self._removing(*parts, is_scratch=is_scratch)
                    await stack.enter_async_context(removed)
            yield {logs: list(folders) for logs, folders in of_shards.items()}

    @asynccontextmanager
    async def _removing(
        self, tier: Tier, folders: dict[Name, str], lives: Mapping[Name, str], *, is_scratch: bool
    ) -> AsyncIterator[None]:
        deletion = await tier.removals.will_delete(folders, self.name)
        try:
            yield
        finally:
            with trio.CancelScope(shield=True):
                gone = [name for name in folders if name not in self._streams]
                if gone and is_scratch:  # when the log of the cluster has it
                    ended = {name: (lives[name], tier.stream_of(self.name, name)) for name in gone}
                    remove = partial(self._remove_later, tier, deletion, ended)
                    self._resources.supervisor.start_once("removing what was deleted", remove)
                elif gone:
                    await tier.removals.deleted(deletion, self.name, gone)
                else:
                    await tier.removals.withdraw_deletion(deletion)

    async def _remove_later(
        self,
        tier: Tier,
        deletion: Deletion | None,
        ended: Mapping[Name, tuple[str, TieredStream | None]],
    ) -> None:
        """Remove what a shard has of streams, once no other node may find them in the log."""
        await self._resources.catalog.stored()
        for name, (life, stream) in ended.items():  # another one of that name may be there since
            tier.confirms.deleted(self.name, name, life)
            if stream is not None and tier.stream_of(self.name, name) is stream:
                await tier.removals.deleted(None, self.name, [name])
        tier.removals.note(deletion)

    async def _end_all(self, names: Sequence[Name]) -> list[Stream]:
        """Streams that are out of the catalog: end all work on their files, and forget them."""
        gone = []
        async for name in in_turns(names):
            stream = self._streams.get(name)
            if stream is not None:
                await stream.life.stop()
                self._resources.quota.count_gone(self._streams.row(name).shard)
                self._streams.remove(name)
                self._resources.traffic.queues_deleted += 1
                stream.remove()
                gone.append(stream)
        return gone

    async def _tell(self, gone: Sequence[Stream]) -> None:
        self.groups.streams_are_gone({stream.name for stream in gone})
        pairs = itertools.product(gone, self.observers)
        async for stream, observer in in_turns(pairs):
            with _reported(observer):
                observer.stream_is_gone(stream)

    async def remove(self, folders: Folders) -> None:
        """Drop everything in it, see `deleting`: the virtual host is out of the catalog."""
        self._streams.close()
        self.topology.clear()
        await self._tell(await self._end_all(self.names()))
        self._is_gone = True
        async for observer in in_turns(self.observers):
            with _reported(observer):
                observer.host_is_gone()
        await take_away(folders)

    # -- following another server, see tier/follower.py

    async def follow(
        self,
        gone: Sequence[Name],
        rows: Iterable[StreamRow],
        selectors: Mapping[tuple[str, str], Sequence[StandingSelector]],
    ) -> None:
        """Have the streams that the server has that writes.

        Args:
            gone: that it has no more, or that were created again.
            rows: of all that it has.
            selectors: standing ones, by virtual host and stream.
        """
        if gone:
            async with self.deleting(gone) as folders:
                ended = await self._end_all(gone)
            self.topology.forget_streams(gone)
            await self._tell(ended)
            await take_away(folders)
        async for row in in_turns(rows):
            standing = selectors.get((row.virtual_host, row.name), ())
            stream = self._streams.get(row.name)
            if stream is None:
                self.load_stream(row, standing)
                continue
            stream.standing.follow(standing)
            if self._streams.row(row.name) != row:
                self._streams.replace_row(row)
                stream.set_policy(self.policy(row))

    @property
    def read_only(self) -> ReadOnly | None:
        """Another server changes it; None where this one does."""
        return _read_only(self._resources)

    def writer(self, name: Name) -> ReadOnly | None:
        """Who writes a stream that exists; None where this server does."""
        return _read_only(self._resources.of(self._streams.row(name).shard))

    def check_led(self, name: Name) -> None:
        """Raise Refused where another node leads a stream: it may have more of it by now."""
        if name in self._streams and self.writer(name) is not None:
            raise Refused(Reason.NOT_AVAILABLE, "another node leads it since; ask again")

    async def led_soon(self, names: Iterable[Name]) -> None:
        """Return when somebody leads each of some streams, if that is soon."""
        shards = self._resources.shards
        if shards is not None:
            await shards.led_soon(self._shards_of(names))

    async def load_again(self, shard: str) -> None:
        """Another node leads a shard from now on, or this one: its streams begin anew."""
        names = [name for name in self.names() if self._streams.row(name).shard == shard]
        gone = []
        async for name in in_turns(names):
            row, stream = self._streams.find_row(name), self._streams.get(name)
            if row is not None and stream is not None:
                await stream.life.stop()
                self._resources.quota.count_gone(shard)
                self._streams.remove(name)
                stream.remove(Reason.NOT_AVAILABLE)
                self.load_stream(row, stream.standing.rows())
                gone.append(stream)
        await self._tell(gone)

    async def close(self) -> None:
        """Write what is pending and release all files."""
        for stream in self.streams():
            with self._resources.supervisor.guarded("closing a log", stream.name):
                try:
                    await stream.life.shut_down()
                except SegmentsError as error:
                    logger.error("stream %s: %s", stream.name, error)


def _remote(source: FolderSource | None, host: Name, name: Name) -> Remote | None:
    return None if source is None else source.remote(host, name)


def _read_only(resources: ServerResources) -> ReadOnly | None:
    return None if resources.follower is None else resources.follower.read_only


async def take_away(folders: Folders) -> None:
    """Have nobody find the folders of streams that are gone, see StreamLogs.take_away."""
    for logs, names in folders.items():
        await logs.take_away(names)


@contextmanager
def _reported(observer: StreamObserver) -> Iterator[None]:
    """Tell an observer; a fault in it must not keep others from learning the same."""
    try:
        yield
    except Exception:
        logger.exception("%s could not be told that a stream is gone", observer)
