"""The streams and super streams of one virtual host: creating, finding, deleting them."""

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import trio

from segments import Log, SegmentsError
from segments.codec import Damage
from segments.disk import OsDisk
from segments.log import LogObserver
from segments.segment import Segment
from streamd.broker import threads
from streamd.broker.arguments import Arguments, policy_of, read_arguments
from streamd.broker.catalog import Change
from streamd.broker.catalog_rows import StreamRow
from streamd.broker.catalog_transaction import Transaction
from streamd.broker.catalog_writer import Turn
from streamd.broker.checks import checked_name
from streamd.broker.errors import Reason, Refused
from streamd.broker.filter_contract import contract_of
from streamd.broker.flusher import FlushMode
from streamd.broker.groups import Groups
from streamd.broker.indexer import Indexer
from streamd.broker.names import stream_folder
from streamd.broker.resources import ServerResources
from streamd.broker.routing.exchanges import Exchanges
from streamd.broker.routing.partitions import bindings_of, new_super_stream, partitions_of
from streamd.broker.routing.rules import as_super_stream
from streamd.broker.routing.super_streams import SuperStreams
from streamd.broker.standing_selectors import StandingSelector
from streamd.broker.stream import Stream
from streamd.broker.stream_settings import StreamSettings
from streamd.broker.stream_table import StreamTable

logger = logging.getLogger(__name__)

_TRASH = "trash"
_AT_ONCE = 16  # streams that are created at the same time


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
        name: see above.
        groups: the single active consumers.
        settings: changes to streams that exist.
        exchanges: of AMQP 0-9-1, super streams included.
        super_streams: a view of those exchanges that are super streams.
    """

    def __init__(self, name: str, resources: ServerResources) -> None:
        self.name = name
        self.groups = Groups()
        self._resources = resources
        self._streams = StreamTable(name)
        self._observers: set[StreamObserver] = set()
        self._writers: dict[str, trio.CancelScope] = {}
        self.settings = StreamSettings(name, self._streams, resources.catalog)
        self.exchanges = Exchanges(name, self._streams, resources.catalog)
        self.super_streams = SuperStreams(name, self.exchanges)

    # -- observers

    @property
    def observers(self) -> frozenset[StreamObserver]:
        """Everything that learns when a stream is gone."""
        return frozenset(self._observers)

    def add_observer(self, observer: StreamObserver) -> None:
        """From now on, tell an observer when a stream is gone."""
        self._observers.add(observer)

    def remove_observer(self, observer: StreamObserver) -> None:
        """Stop telling an observer; an unknown one is ignored."""
        self._observers.discard(observer)

    # -- opening

    async def open_stream(self, row: StreamRow, standing: Sequence[StandingSelector] = ()) -> None:
        """Open a stream of the catalog. One that cannot be opened is set aside and reported."""
        try:
            log = await threads.in_thread(self._open_existing, row)
        except (SegmentsError, OSError) as error:
            logger.error("stream %s is not available: %s", row.name, error)
            self._streams.add_unavailable(row, str(error))
            self._resources.quota.count_new()
            return
        for line in log.report.steps:
            logger.warning("stream %s: %s", row.name, line)
        for line in log.report.losses:
            logger.error("stream %s: %s", row.name, line)
        stream = self._start(row, log, standing)
        await stream.expire()

    def _open_existing(self, row: StreamRow) -> Log:
        folder = self.folder(row.name)
        if not Path(folder).is_dir():
            raise FileNotFoundError(f"its folder {folder} is missing")
        return self._open_log(row)

    def _open_log(self, row: StreamRow) -> Log:
        return Log.open(
            self.folder(row.name),
            policy_of(row.effective),
            observer=_LogObserver(row.name, self._resources.indexer),
            commits_on_flush=self._resources.flusher.mode is FlushMode.ALWAYS,
        )

    def _start(self, row: StreamRow, log: Log, standing: Sequence[StandingSelector] = ()) -> Stream:
        contract = contract_of(row.arguments)
        shared = self._resources
        stream = Stream(
            row.name, log, shared.now_ms, shared.rounds, shared.flusher, contract, standing
        )
        scope = trio.CancelScope()
        self._streams.add(row, stream)
        self._resources.quota.count_new()
        self._writers[row.name] = scope
        self.exchanges.note_change()
        self._resources.nursery.start_soon(_run_in, scope, stream)
        return stream

    def folder(self, name: str) -> str:
        """Where a stream's files are."""
        return stream_folder(self._resources.data, self.name, name)

    # -- finding

    def names(self) -> list[str]:
        """All streams, available or not, in order of their names."""
        return self._streams.names()

    def has_stream(self, name: str) -> bool:
        """Whether there is a stream of that name, available or not."""
        return name in self._streams

    def streams(self) -> list[Stream]:
        """All streams that are available."""
        return self._streams.all_open()

    def alarms(self) -> dict[str, str]:
        """Why streams do not accept messages, by name."""
        return self._streams.alarms()

    def arguments(self, name: str) -> Arguments:
        """The arguments that stream `name`, which exists, was declared with."""
        return self._streams.arguments(name)

    def row(self, name: str) -> StreamRow:
        """The row of stream `name`, which exists, in the catalog."""
        return self._streams.row(name)

    def find(self, name: str) -> Stream:
        """The stream `name`.

        Raises:
            Refused: it does not exist, or is not available.
        """
        return self._streams.find(name)

    # -- creating

    async def create(self, name: str, arguments: Iterable[tuple[str, str]]) -> None:
        """Create a stream.

        Raises:
            Refused: bad name or arguments, it exists (with equal arguments: STREAM_EXISTS), or
                the disk refused.
        """
        row = StreamRow(self.name, checked_name(name), read_arguments(arguments))
        async with self._resources.catalog.turn() as turn:
            self._check_new(row)
            await self._create(turn, [row])
        logger.info("created stream %s", row.name)

    def _check_new(self, row: StreamRow) -> None:
        existing = self._streams.find_row(row.name)
        if existing is None:
            return
        if existing.arguments == row.arguments:
            raise Refused(Reason.ALREADY_EXISTS, row.name)
        raise Refused(
            Reason.PRECONDITION_FAILED,
            f"{row.name} exists with arguments {existing.arguments}, not {row.arguments}",
        )

    async def create_super_stream(
        self,
        name: str,
        keys: Iterable[tuple[str, str]],
        arguments: Iterable[tuple[str, str]],
    ) -> None:
        """Create a super stream and its partitions, all or none.

        Args:
            name: of the super stream.
            keys: routing key and partition, in order.
            arguments: of every partition.

        Raises:
            Refused: bad names or arguments, too many partitions or one twice, it or one of them
                exists, or the disk refused.
        """
        row = new_super_stream(self.name, name, keys)
        partitions = partitions_of(row)
        declared = read_arguments(arguments)
        exchange, bindings = as_super_stream(self.name, row.name), bindings_of(row)

        def add(catalog: Transaction) -> None:
            catalog.add_exchange(exchange)
            for binding in bindings:
                catalog.put_binding(binding)

        async with self._resources.catalog.turn() as turn:
            if self.exchanges.has(row.name):  # super streams are exchanges, too
                raise Refused(Reason.ALREADY_EXISTS, row.name)
            for taken in filter(self.has_stream, partitions):
                raise Refused(Reason.ALREADY_EXISTS, taken)
            self.exchanges.check_room()
            self.exchanges.check_room_for_bindings(len(partitions))
            rows = [StreamRow(self.name, n, declared) for n in partitions]
            await self._create(turn, rows, add)
            self.exchanges.add(exchange, bindings)
        logger.info("created super stream %s with %s partitions", row.name, len(partitions))

    async def _create(self, turn: Turn, rows: Sequence[StreamRow], *more: Change) -> None:
        """Create streams; `more` are changes of the catalog that belong to them.

        Files first: a stream in the catalog always has its folder.
        """
        self._streams.check_there()
        self._resources.quota.check(len(rows))
        try:
            logs = await threads.in_thread(self._create_files, rows)
        except (SegmentsError, OSError) as error:
            logger.error("cannot create stream %s: %s", rows[0].name, error)
            raise Refused(Reason.INTERNAL_ERROR, str(error)) from error
        try:
            await turn.commit(lambda catalog: catalog.add_streams(rows), *more)
        except BaseException as error:
            logger.error("cannot create stream %s: %s", rows[0].name, error)
            await threads.in_thread(self._remove_files, rows, logs)
            raise
        for row, log in zip(rows, logs, strict=True):
            self._start(row, log)

    def _create_files(self, rows: Sequence[StreamRow]) -> list[Log]:
        with ThreadPoolExecutor(_AT_ONCE) as pool:  # each waits for the disk
            opening = [pool.submit(self._create_log, row) for row in rows]
        try:
            logs = [opened.result() for opened in opening]
            # So that a power failure cannot take the folders away, or bring back the folder of an
            # earlier stream of that name.
            for parent in itertools.islice(Path(self.folder(rows[0].name)).parents, 4):
                OsDisk().sync_folder(str(parent))
        except BaseException:
            made = [pair for pair in zip(rows, opening, strict=True) if not pair[1].exception()]
            self._remove_files([row for row, _ in made], [opened.result() for _, opened in made])
            raise
        return logs

    def _remove_files(self, rows: Iterable[StreamRow], logs: Iterable[Log]) -> None:
        for row, log in zip(rows, logs, strict=True):
            log.abandon()
            OsDisk().remove_folder(self.folder(row.name))

    def _create_log(self, row: StreamRow) -> Log:
        folder = self.folder(row.name)
        if Path(folder).exists():  # left by a stop half-way, while this server runs
            OsDisk().remove_folder(folder)
        return self._open_log(row)

    # -- deleting

    async def delete(self, name: str, answer: Callable[[], None]) -> None:
        """Delete a stream.

        Args:
            name: of the stream.
            answer: called when it is gone, before the users of the stream are told.

        Raises:
            Refused: it does not exist, or the disk refused.
        """
        async with self._resources.catalog.turn() as turn:
            if name not in self._streams:
                raise Refused(Reason.NOT_FOUND, name)
            gone = await self._delete(turn, [name])
            logger.info("deleted stream %s", name)
            self._answer_and_tell(answer, gone)

    async def delete_super_stream(self, name: str, answer: Callable[[], None]) -> None:
        """Delete a super stream with its partitions; see `delete`."""
        async with self._resources.catalog.turn() as turn:
            names = list(dict.fromkeys(partitions_of(self.super_streams.find(name))))
            gone = await self._delete(turn, names, name)
            logger.info("deleted super stream %s", name)
            self._answer_and_tell(answer, gone)

    async def _delete(
        self, turn: Turn, names: Sequence[str], super_stream: str | None = None
    ) -> list[Stream]:
        """Delete streams that exist; returns those that somebody may use."""

        def remove(catalog: Transaction) -> None:
            catalog.remove_streams(self.name, names)
            if super_stream is not None:
                catalog.remove_exchange(self.name, super_stream)

        await turn.commit(remove)
        await self._stop(names)
        gone = [stream for name in names if (stream := self._forget(name)) is not None]
        if super_stream is not None:
            self.exchanges.forget(super_stream)
        self.exchanges.forget_streams(names)
        return gone

    async def _stop(self, names: Iterable[str]) -> None:
        """Write nothing more into the folders of streams: other streams may soon have them."""
        for name in names:
            stream = self._streams.find_open(name)
            if stream is not None:
                await stream.stop()

    def _forget(self, name: str) -> Stream | None:
        stream = self._streams.remove(name)
        self._resources.quota.count_gone()
        if stream is not None:
            self._writers.pop(name).cancel()
            stream.remove()
            stream.log.abandon()
        self._move_to_trash(name)
        return stream

    def _move_to_trash(self, name: str) -> None:
        """Move its folder away in one step, so that a new stream of that name starts empty."""
        trash = trash_folder(self._resources.data) / uuid4().hex
        try:
            trash.parent.mkdir(exist_ok=True)
            Path(self.folder(name)).rename(trash)
        except OSError as error:
            logger.warning("files of the deleted stream %s are left: %s", name, error)
        else:
            self._resources.nursery.start_soon(_empty_trash, str(trash))

    def _answer_and_tell(self, answer: Callable[[], None], gone: Iterable[Stream]) -> None:
        try:
            answer()
        finally:  # others have to know even if the peer that asked can get no answer
            self._tell(gone)

    def _tell(self, gone: Iterable[Stream]) -> None:
        for stream in gone:
            self.groups.stream_is_gone(stream.name)
            for observer in self.observers:
                with _reported(observer):
                    observer.stream_is_gone(stream)

    async def remove(self) -> None:
        """Drop everything in it: the catalog has the virtual host no longer."""
        self._streams.close()
        self.exchanges.clear()
        await self._stop(self.names())
        self._tell([s for name in self.names() if (s := self._forget(name)) is not None])
        for observer in self.observers:
            with _reported(observer):
                observer.host_is_gone()

    # -- all streams

    async def expire(self) -> None:
        """Apply age limits to streams that nobody writes to."""
        for stream in self.streams():
            await stream.expire()

    def close(self) -> None:
        """Write what is pending and release all files."""
        for stream in self.streams():
            try:
                stream.log.close()
            except SegmentsError as error:
                logger.error("stream %s: %s", stream.name, error)


def trash_folder(data: str) -> Path:
    """Where deleted streams are until their files are gone."""
    return Path(data, _TRASH)


class _LogObserver(LogObserver):
    """Passes requests on to the indexer, and reports damage.

    Args:
        name: of the stream.
        indexer: builds filter indexes.
    """

    def __init__(self, name: str, indexer: Indexer) -> None:
        self._name = name
        self._indexer = indexer

    def index_requested(self, log: Log) -> None:
        """See LogObserver."""
        self._indexer.index_requested(log)

    def damage_found(self, segment: Segment, damage: Damage) -> None:
        """See LogObserver."""
        lost = damage.next_offset - damage.first_offset
        logger.error(
            "stream %s: %s is damaged at byte %s, a reader found that: %s messages from offset "
            "%s on are lost; look at the disk, and at `python -m segments verify`",
            self._name,
            segment.path(),
            damage.position,
            lost,
            damage.first_offset,
        )


@contextmanager
def _reported(observer: StreamObserver) -> Iterator[None]:
    """Tell an observer; a fault in it must not keep others from learning the same."""
    try:
        yield
    except Exception:
        logger.exception("%s could not be told that a stream is gone", observer)


async def _run_in(scope: trio.CancelScope, stream: Stream) -> None:
    with scope:
        await stream.run()


async def _empty_trash(folder: str) -> None:
    try:
        await threads.in_thread(OsDisk().remove_folder, folder)
    except SegmentsError as error:
        logger.warning("%s; it goes at the next start", error)
