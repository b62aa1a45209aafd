"""The folders of the streams of one virtual host: made, opened, shortened, thrown away."""

import itertools
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from segments import Log, LogPolicy, SegmentsError
from segments.codec import Damage
from segments.disk import OsDisk
from segments.errors import LostCopyError, UnrestoredError
from segments.marks import WAL, marked, remove_mark
from segments.observer import LogObserver
from segments.recovery.tail import Tail
from segments.segment import Segment
from segments.store.local_copy import UNRESTORED_FILE
from segments.store.object_names import StreamKey
from segments.store.object_store import TierError
from streamd.broker.catalog.writer import Subject
from streamd.broker.declared.rows import StreamRow
from streamd.broker.orphans import has_messages, set_aside
from streamd.broker.resources import ServerResources
from streamd.broker.streams.flusher import FlushMode
from streamd.broker.streams.indexer import Indexer
from streamd.broker.streams.log_life import StreamState
from streamd.broker.streams.stream import Stream
from streamd.broker.streams.stream_table import StreamTable
from streamd.broker.tier.wal_reading import StoredTail
from streamd.net import threads
from streamd.operations.arguments import policy_of
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name, stream_folder

logger = logging.getLogger(__name__)

_TRASH = "trash"


class Found(NamedTuple):
    """What opening logs has found: how many were repaired, and how many have lost messages."""

    repaired: int
    losing: int


class StreamLogs:
    """Where the logs of a virtual host's streams come from; see stream.LogStore.

    Args:
        virtual_host: its name.
        streams: that there are.
        resources: shared by all virtual hosts.

    Attributes:
        found: what opening logs has found.
        resources: see above.
    """

    def __init__(
        self, virtual_host: Name, streams: StreamTable, resources: ServerResources
    ) -> None:
        self.found = Found(0, 0)
        self._virtual_host = virtual_host
        self._streams = streams
        self._resources = self.resources = resources

    async def open_log(self, stream: Stream) -> Log:
        """See stream.LogStore."""
        row = self._streams.row(stream.name)
        resources = self._resources
        if row.shard and resources.shards is None:
            raise UnrestoredError(
                f"it was placed at node {row.shard} of a cluster, and this server is no node of it "
                "that places streams: start it with --node, and with --confirm store"
            )
        if resources.follower is not None:
            tail = await resources.follower.make_folder(
                self._virtual_host, row.name, self.folder(row.name)
            )
            chunks = None if tail is None else tail.chunks
            log = await threads.in_thread(self._open_files, row, stream, chunks)
            if tail is not None:
                log.stored.note_marks(tail.marks)
        elif resources.is_scratch:
            # Nothing is confirmed of a stream that another machine would not know.
            await resources.catalog.tell_of([Subject(self._virtual_host, row.name)])
            is_there = await threads.in_thread(_has_files, self.folder(row.name))
            if is_there or (await self._tail(row)) is not None:
                log = await self._open_whole(row, stream)
            else:
                log = await threads.in_thread(self._create_folder, row, stream)
        elif not row.has_files:
            log = await self._create_files(row, stream)
        else:
            log = await self._open_whole(row, stream)
        await self._confirm(row, log)
        log.policy = self.policy(self._streams.row(stream.name))  # changed meanwhile
        report, found = log.report, self.found
        for line in report.steps:
            logger.warning("stream %s: %s", row.name, line)
        for line in report.losses:
            logger.error("stream %s: %s", row.name, line)
        self.found = Found(found.repaired + bool(report.steps), found.losing + bool(report.losses))
        return log

    async def _tail(self, row: StreamRow) -> StoredTail | None:
        """What a store has to follow its log; None for nothing."""
        tier, folder = self._resources.tier, self.folder(row.name)
        may_have_tail = partial(_may_have_tail, folder, has_tier=tier is not None)
        is_named = await threads.in_thread(may_have_tail)
        if not (is_named or self.policy(row).confirms_in_store):
            return None
        if tier is None:
            raise TierError(
                "its messages are confirmed by a tier, and this server has none: start it with "
                "--tier, or change the stream's argument stream-confirm there"
            )
        return await tier.tail(self._virtual_host, row.name)

    async def _confirm(self, row: StreamRow, log: Log) -> None:
        """Have the store confirm what is written to it, if that is wanted."""
        tier = self._resources.tier
        if tier is None or not self.policy(row).confirms_in_store:
            return
        try:
            await tier.confirm(self._virtual_host, row.name, log)
        except BaseException:
            log.abandon()
            raise

    def policy(self, row: StreamRow) -> LogPolicy:
        """The limits of a stream's log."""
        policy = policy_of(
            {**self._resources.retention, **row.effective}, has_tier=self._resources.has_tier
        )
        if self._resources.follower is not None:  # that server drops what is old
            return replace(policy, max_length_bytes=None, max_age_ms=None)
        return policy

    async def _open_whole(self, row: StreamRow, stream: Stream) -> Log:
        """Its log, with all segments that only the tier has."""
        tier, tail = self._resources.tier, await self._tail(row)
        try:
            return await threads.in_thread(self._open_existing, row, stream, tail)
        except LostCopyError as error:
            if tier is None:
                raise
            key = StreamKey(self._virtual_host, row.name, error.creation)
            await tier.lost_copies.fetch_copy(key, self.folder(row.name), error)
        except UnrestoredError as error:
            if tier is None:
                raise
            restore_again = tier.lost_copies.restore_again
            tail = await restore_again(self._virtual_host, row.name, error, tail)
        return await threads.in_thread(self._open_existing, row, stream, tail)

    def _open_existing(self, row: StreamRow, stream: Stream, tail: StoredTail | None) -> Log:
        folder = self.folder(row.name)
        if not Path(folder).is_dir():
            raise FileNotFoundError(f"its folder {folder} is missing")
        log = self._open_files(row, stream, None if tail is None else tail.chunks())
        if tail is not None:
            try:
                _take_offsets(log, tail)
            except BaseException:
                log.abandon()
                raise
            assert self._resources.tier is not None  # noqa: S101 - it gave the tail
            self._resources.tier.confirms.forget_tail(tail)
        if not self.policy(row).confirms_in_store:
            try:
                if tail is not None:
                    log.flush()
                remove_mark(OsDisk(), folder, WAL + log.life)  # all of it is on this device now
            except BaseException:
                log.abandon()
                raise
        return log

    def _open_files(self, row: StreamRow, stream: Stream, tail: Tail | None = None) -> Log:
        fetcher, known = self._resources.fetcher, stream.figures
        life = row.life or ("" if known is None else known.life)
        return Log.open(
            self.folder(row.name),
            self.policy(row),
            observer=_LogObserver(stream, self._resources.indexer),
            cache=fetcher.cache if fetcher is not None else None,
            epoch=self._resources.epoch(),
            life=life if self._resources.follower is None else None,
            commits_on_flush=self._resources.flusher.mode is FlushMode.ALWAYS,
            tail=tail,
        )

    async def _create_files(self, row: StreamRow, stream: Stream) -> Log:
        """The files of a new stream, on the device before the catalog says that they exist."""
        log = await threads.in_thread(self._create_folder, row, stream)
        stream.life.waits_for_turn()
        try:
            async with self._resources.catalog.turn(is_answered=False) as turn:
                if self._streams.get(row.name) is not stream:
                    raise Refused(Reason.NOT_FOUND, row.name)
                await turn.commit(lambda catalog: catalog.put_files(self._virtual_host, row.name))
                current = self._streams.row(row.name)
                self._streams.replace_row(current._replace(has_files=True))
        except BaseException:
            log.abandon()
            raise
        return log

    def _create_folder(self, row: StreamRow, stream: Stream) -> Log:
        """Create the folder of a new stream; one that a stop left there half-way goes.

        One with messages may be that of an earlier stream, brought back by a power failure, or a
        copy that somebody has put there: it is moved to the orphans.

        Its parents are synced, so that no power failure takes it away, or brings the folder of an
        earlier stream of that name back.
        """
        folder = self.folder(row.name)
        if has_messages(Path(folder)):
            set_aside(self._resources.data, Path(folder))
        elif Path(folder).exists():
            OsDisk().remove_folder(folder)
        log = self._open_files(row, stream)
        try:
            for parent in itertools.islice(Path(folder).parents, 4):
                OsDisk().sync_folder(str(parent))
        except BaseException:
            log.abandon()
            raise
        return log

    def folder(self, name: Name) -> str:
        """Where a stream's files are."""
        return stream_folder(self._resources.data, self._virtual_host, name)

    async def take_away(self, names: Sequence[Name]) -> None:
        """Give the folders of streams that are gone names of their own, in one step each.

        Nobody reads or writes them by their old names any more: work on them has ended, and
        consumers were told. So a new stream of that name starts empty, whatever happens to these.
        """
        try:
            trashed = await threads.in_thread(self._move_to_trash, names)
            empty = partial(_empty_trash, trashed)
            self._resources.supervisor.start_once("emptying the trash", empty)
        except SegmentsError as error:  # a new stream of that name removes them, or the next start
            logger.warning("files of deleted streams are left: %s", error)

    def _move_to_trash(self, names: Iterable[Name]) -> list[str]:
        trash = trash_folder(self._resources.data)
        moved = []
        for name in names:
            folder = Path(self.folder(name))
            if not folder.exists():
                continue  # it was never used
            place = trash / uuid4().hex
            try:
                trash.mkdir(exist_ok=True)
                folder.rename(place)
            except OSError as error:  # a full disk, say: then they have to go where they are
                logger.info("files of the deleted stream %s are not moved: %s", name, error)
                _remove_at_once(name, folder)
            else:
                moved.append(str(place))
        return moved

    async def expire(self, stream: Stream) -> None:
        """Apply age limits to a stream that nobody writes to, perhaps."""
        if stream.is_open:
            await stream.life.held.expire()
        elif self._has_outlived(stream):
            with suppress(Refused):  # its log says why
                async with stream.opened():
                    await stream.life.held.expire()

    def _has_outlived(self, stream: Stream) -> bool:
        """A stream whose log is closed has a segment that is too old."""
        figures, row = stream.figures, self._streams.find_row(stream.name)
        if figures is None or figures.oldest_ends_ms is None or row is None:
            return False
        max_age_ms = self.policy(row).max_age_ms
        if max_age_ms is None:
            return False
        return figures.oldest_ends_ms < self._resources.now_ms() - max_age_ms


def trash_folder(data: str) -> Path:
    """Where deleted streams are until their files are gone."""
    return Path(data, _TRASH)


class _LogObserver(LogObserver):
    """Passes requests on to the indexers, and reports damage.

    Args:
        indexer: builds filter indexes.
    """

    def __init__(self, stream: Stream, indexer: Indexer) -> None:
        self._stream = stream
        self._indexer = indexer

    def index_requested(self) -> None:
        """See LogObserver."""
        if self._stream.life.opened_log is not None:
            self._indexer.index_requested(self._stream.life.opened_log)

    def keys_requested(self) -> None:
        """See LogObserver."""
        self._stream.life.keys_requested()

    def damage_found(self, segment: Segment, damage: Damage) -> None:
        """See LogObserver."""
        if self._stream.state is StreamState.GONE:
            return  # its files are being removed
        lost = damage.next_offset - damage.first_offset
        logger.error(
            "stream %s: %s is damaged at byte %s, a reader found that: %s messages from offset "
            "%s on are lost; look at %s",
            self._stream.name,
            segment.path(),
            damage.position,
            lost,
            damage.first_offset,
            "the store, and at `streamd tier verify`"
            if segment.cold is not None
            else "the disk, and at `python -m segments verify`",
        )

    def clock_was_ahead(self, ahead_ms: int) -> None:
        """See LogObserver."""
        logger.warning(
            "stream %s: its newest message is %s s ahead of the clock, which was wrong then or is "
            "wrong now; times of new messages follow the clock",
            self._stream.name,
            f"{ahead_ms // 1_000:,}",
        )


def _has_files(folder: str) -> bool:
    return Path(folder).is_dir() and any(Path(folder).iterdir())


def _may_have_tail(folder: str, *, has_tier: bool) -> bool:
    """Whether what is confirmed of a stream may be in a store alone."""
    names = OsDisk().list(folder) if Path(folder).is_dir() else []
    return bool(marked(names, WAL)) or (has_tier and UNRESTORED_FILE in names)


def _take_offsets(log: Log, tail: StoredTail) -> None:
    """What a store knows of consumers' offsets is newer than what the disk does, or the same.

    So it is as long as the folder says that it needs the store's log.
    """
    for reference, offset in tail.offsets.items():
        if offset is None:
            log.journal.delete_offset(reference)
        else:
            log.journal.tracking.store_offset(reference, offset)
    log.journal.write_pending(log.committed_offset)  # only what is written is answered, and kept


def _remove_at_once(name: str, folder: Path) -> None:
    try:
        OsDisk().remove_folder(str(folder))
    except SegmentsError as error:
        logger.warning("files of the deleted stream %s are left: %s", name, error)


async def _empty_trash(folders: Iterable[str]) -> None:
    for folder in folders:
        try:
            await threads.in_thread(OsDisk().remove_folder, folder)
        except SegmentsError as error:
            logger.warning("%s; it will be removed at the next start", error)
