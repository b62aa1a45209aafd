"""All streams of the server by name: creating, finding, deleting, and telling who uses them."""

import logging
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import trio

from segments import Log, LogPolicy, SegmentsError
from segments.disk import OsDisk
from streamd import threads
from streamd.arguments import Arguments, policy_of, read_arguments
from streamd.catalog import Catalog, CatalogError, StreamRow
from streamd.config import RETENTION_SECONDS
from streamd.errors import Refused
from streamd.names import stream_folder
from streamd.stream import Stream
from streamd.wire import ResponseCode

logger = logging.getLogger(__name__)

VIRTUAL_HOST = "/"  # the only one so far
_RESERVED_PREFIX = "amq."
_TRASH = "trash"


class User(Protocol):
    """Somebody who uses streams and must know when one is gone."""

    def stream_is_gone(self, stream: Stream) -> None:
        """The stream was deleted or cannot be used any more."""


class Unavailable:
    """A stream in the catalog that could not be opened."""

    def __init__(self, row: StreamRow, reason: str) -> None:
        self.row = row
        self.reason = reason


def wall_clock_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Broker:
    """The streams in one data folder.

    Args:
        data: the folder; exists.
        catalog: of that folder; closed with the broker.
        nursery: in which the writers of the streams run.
        now_ms: the wall clock.

    Attributes:
        users: who is told when a stream is gone.
    """

    def __init__(
        self,
        data: str,
        catalog: Catalog,
        nursery: trio.Nursery,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self.users: set[User] = set()
        self._data = data
        self._nursery = nursery
        self._now_ms = now_ms
        self._catalog = catalog
        self._streams: dict[str, Stream] = {}
        self._rows: dict[str, StreamRow] = {}
        self._unavailable: dict[str, Unavailable] = {}
        self._writers: dict[str, trio.CancelScope] = {}
        self._changes = trio.Lock()

    async def open(self, rows: Collection[StreamRow]) -> None:
        """Open the catalog's streams. One that cannot be opened is set aside and reported."""
        for row in rows:
            await self._open_stream(row)
        await threads.in_thread(self._set_orphans_aside, rows)
        self._nursery.start_soon(self._expire_now_and_then)

    async def _open_stream(self, row: StreamRow) -> None:
        folder = self._folder(row.name)
        try:
            log = await threads.in_thread(_open_existing, folder, policy_of(row.arguments))
        except (SegmentsError, OSError) as error:
            logger.error("stream %s is not available: %s", row.name, error)
            self._unavailable[row.name] = Unavailable(row, str(error))
            self._rows[row.name] = row
            return
        for line in log.report.steps:
            logger.warning("stream %s: %s", row.name, line)
        for line in log.report.losses:
            logger.error("stream %s: %s", row.name, line)
        stream = self._start(row, log)
        await stream.expire()

    def _start(self, row: StreamRow, log: Log) -> Stream:
        stream = Stream(row.name, log, self._now_ms)
        scope = trio.CancelScope()
        self._streams[row.name], self._rows[row.name] = stream, row
        self._writers[row.name] = scope
        self._nursery.start_soon(_run_in, scope, stream)
        return stream

    def _folder(self, name: str) -> str:
        return stream_folder(self._data, VIRTUAL_HOST, name)

    def _set_orphans_aside(self, rows: Iterable[StreamRow]) -> None:
        """Move folders that no stream refers to out of the way, so that none comes back to life.

        A stop between two steps of creating or deleting leaves them. They are kept: if it was
        the catalog that got lost, they are all there is.
        """
        known = {self._folder(row.name) for row in rows}
        for folder in Path(self._data, "streams").glob("*/*"):
            if str(folder) not in known:
                aside = Path(self._data, "orphans", f"{folder.name}-{uuid4().hex[:8]}")
                aside.parent.mkdir(exist_ok=True)
                folder.rename(aside)
                logger.warning("%s belongs to no stream; it is now %s", folder, aside)
        trash = Path(self._data, _TRASH)
        if trash.is_dir():
            OsDisk().remove_folder(str(trash))

    def names(self) -> list[str]:
        """All streams, available or not, in order of their names."""
        return sorted(self._rows)

    def arguments(self, name: str) -> Arguments:
        """What stream `name`, which exists, was declared with."""
        return self._rows[name].arguments

    def find(self, name: str) -> Stream:
        """The stream `name`.

        Raises:
            Refused: there is none, or it is not available.
        """
        stream = self._streams.get(name)
        if stream is not None:
            return stream
        if name in self._unavailable:
            reason = self._unavailable[name].reason
            raise Refused(ResponseCode.STREAM_NOT_AVAILABLE, reason)
        raise Refused(ResponseCode.STREAM_DOES_NOT_EXIST, name)

    async def create(self, name: str, arguments: Iterable[tuple[str, str]]) -> None:
        """Create a stream.

        Raises:
            Refused: bad name or arguments, it exists (with equal arguments: STREAM_EXISTS), or
                the disk refused.
        """
        name = name.replace("\r", "").replace("\n", "")
        if not name or name.startswith(_RESERVED_PREFIX):
            details = f"{name!r} is no name for a stream"
            raise Refused(ResponseCode.PRECONDITION_FAILED, details)
        row = StreamRow(VIRTUAL_HOST, name, read_arguments(arguments))
        async with self._changes:
            self._check_new(row)
            try:
                log = await threads.in_thread(self._create_files, row)
            except (SegmentsError, CatalogError, OSError) as error:
                logger.error("cannot create stream %s: %s", name, error)
                raise Refused(ResponseCode.INTERNAL_ERROR, str(error)) from error
            self._start(row, log)
        logger.info("created stream %s", name)

    def _check_new(self, row: StreamRow) -> None:
        existing = self._rows.get(row.name)
        if existing is None:
            return
        if existing.arguments == row.arguments:
            raise Refused(ResponseCode.STREAM_EXISTS, row.name)
        raise Refused(
            ResponseCode.PRECONDITION_FAILED,
            f"{row.name} exists with arguments {existing.arguments}, not {row.arguments}",
        )

    def _create_files(self, row: StreamRow) -> Log:
        """Files first: a stream in the catalog always has its folder."""
        folder = self._folder(row.name)
        if Path(folder).exists():  # left by a stop half-way, while this server runs
            OsDisk().remove_folder(folder)
        log = Log.open(folder, policy_of(row.arguments))
        try:
            self._catalog.add_stream(row)
        except CatalogError:
            log.close()
            OsDisk().remove_folder(folder)
            raise
        return log

    async def delete(self, name: str, answer: Callable[[], None]) -> None:
        """Delete a stream.

        Args:
            name: of the stream.
            answer: called when it is gone, before the users of the stream are told.

        Raises:
            Refused: there is none, or the disk refused.
        """
        async with self._changes:
            if name not in self._rows:
                raise Refused(ResponseCode.STREAM_DOES_NOT_EXIST, name)
            try:
                await threads.in_thread(self._catalog.remove_stream, VIRTUAL_HOST, name)
            except CatalogError as error:
                raise Refused(ResponseCode.INTERNAL_ERROR, str(error)) from error
            stream = self._forget(name)
            self._move_to_trash(name)
        logger.info("deleted stream %s", name)
        answer()
        if stream is not None:
            for user in list(self.users):
                user.stream_is_gone(stream)

    def _forget(self, name: str) -> Stream | None:
        del self._rows[name]
        self._unavailable.pop(name, None)
        stream = self._streams.pop(name, None)
        if stream is not None:
            self._writers.pop(name).cancel()
            stream.remove()
            with suppress(SegmentsError):  # its files go anyway
                stream.log.close()
        return stream

    def _move_to_trash(self, name: str) -> None:
        """Out of the way in one step, so that a new stream of that name starts empty."""
        trash = Path(self._data, _TRASH, uuid4().hex)
        try:
            trash.parent.mkdir(exist_ok=True)
            Path(self._folder(name)).rename(trash)
        except OSError as error:
            logger.warning("files of the deleted stream %s are left: %s", name, error)
        else:
            self._nursery.start_soon(_empty_trash, str(trash))

    async def _expire_now_and_then(self) -> None:
        """Apply age limits to streams that nobody writes to."""
        while True:
            await trio.sleep(RETENTION_SECONDS)
            for stream in list(self._streams.values()):
                await stream.expire()

    def close(self) -> None:
        """Write what is pending and release all files."""
        for stream in self._streams.values():
            try:
                stream.log.close()
            except SegmentsError as error:
                logger.error("stream %s: %s", stream.name, error)
        self._catalog.close()


def _open_existing(folder: str, policy: LogPolicy) -> Log:
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"its folder {folder} is missing")
    return Log.open(folder, policy)


async def _run_in(scope: trio.CancelScope, stream: Stream) -> None:
    with scope:
        await stream.run()


async def _empty_trash(folder: str) -> None:
    try:
        await threads.in_thread(OsDisk().remove_folder, folder)
    except SegmentsError as error:
        logger.warning("%s; it goes at the next start", error)
