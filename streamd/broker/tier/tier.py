"""The tier of a server: the store, whose it is, and everything that is done with it.

Theory of operation. The server starts whether the store answers or not. A task takes the tier when
the store does: it opens the store, tries whether it can compare-and-set, and claims it (claims.py);
until then nothing is written. From then on it looks now and then whether the tier is still ours,
and at once when a stream's request has failed:

    state                leaves it
    AWAY                 the right store answers: OK, FENCED, NO_COMPARE_AND_SET
    OK                   a look fails, or the store is not the right one: AWAY; another server is
                         named: FENCED
    NO_COMPARE_AND_SET   the store can, when it is tried again after a while
    FENCED               never: another server has it

Another task gives streams their turns (uploader.py), one more removes what is not needed in the
store. None of them touches publishing; what a stream takes part with is TieredStream.
"""

import logging
import os
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import PurePath

import trio

from segments import SegmentsError, StorageError
from segments.disk import Disk, OsDisk
from segments.errors import FormatError, LostCopyError, UnrestoredError
from segments.segment import SEGMENT_SUFFIX, file_path, files_by_base
from segments.store import stores
from segments.store.local_copy import copy_in, write_copy
from segments.store.lookup import folders_of
from segments.store.manifest import Manifest
from segments.store.manifest_store import KeptManifest, OvertakenError, look_up
from segments.store.object_names import StreamKey
from segments.store.object_store import TierError
from segments.store.stores import probe
from streamd.broker import threads
from streamd.broker.catalog.writer import CatalogWriter
from streamd.broker.declared.names import Name, stream_folder
from streamd.broker.declared.rows import StreamRow
from streamd.broker.errors import Reason, Refused
from streamd.broker.steps import in_turns
from streamd.broker.streams.fetcher import Fetcher
from streamd.broker.supervisor import Supervisor
from streamd.broker.tier import claims, lifecycle
from streamd.broker.tier.backlog import Backlog
from streamd.broker.tier.catalog_copy import CatalogCopies
from streamd.broker.tier.claims import FencedError, Held, WrongStoreError
from streamd.broker.tier.deletions import Deletion, Deletions
from streamd.broker.tier.identity import Identity, keep_epoch, random_name
from streamd.broker.tier.line import Line
from streamd.broker.tier.reports import (
    Collected,
    Kind,
    StreamTier,
    TierState,
    TierStatus,
    Uploaded,
    Verification,
)
from streamd.broker.tier.requests import CountedStore, ask
from streamd.broker.tier.restore import restore_stream
from streamd.broker.tier.stream_tier import TieredStream
from streamd.broker.tier.upload_requests import RequestState, UploadRequest, what_is_missing
from streamd.broker.tier.uploader import Uploader, next_pause, shortened
from streamd.config import Config

logger = logging.getLogger(__name__)

_BUSY_SECONDS, _IDLE_SECONDS = 10.0, 60.0  # between two looks at whose the tier is
_UNFIT_SECONDS = 600.0  # until a store that cannot compare-and-set is tried again
_LONGEST_SWEEP, _SHORTEST_SWEEP = 15.0, 0.5  # seconds between two looks at the ages of segments
_STREAMS_A_TURN = 500  # whose ages are looked at
_COPY_SECONDS = 10.0  # that the start of a log waits for its manifest
_DELETED_AT_ONCE = 1_000  # objects
BEGIN_FILE = "begin-tier"  # of the data folder: a tier is begun where there is none, see claims.py
_UNABLE = (TierState.FENCED, TierState.NO_COMPARE_AND_SET)  # to upload, for long


class Tier:
    """The tier of a server.

    Args:
        config: its settings.
        identity: who it is.
        now_ms: the wall clock.
        supervisor: runs its tasks.
        fetcher: reads from the store, once that is known.
        catalog: of which there is to be a copy in the store.

    Attributes:
        identity: see above; its epoch is higher once the store has seen that one.
        state: see TierState.
        sentence: what is wrong and what to do; empty when nothing is.
        line, now_ms, roll_ms, delay_ms: for streams.
    """

    def __init__(
        self,
        config: Config,
        identity: Identity,
        now_ms: Callable[[], int],
        supervisor: Supervisor,
        fetcher: Fetcher,
        catalog: CatalogWriter,
    ) -> None:
        self.identity = identity
        self.state, self.sentence = TierState.AWAY, ""
        self.line = Line()
        self._backlog = Backlog(self.line)
        self.now_ms = now_ms
        self.roll_ms = config.tier_roll_seconds * 1_000
        self.delay_ms = config.tier_delete_delay_seconds * 1_000
        self._url, self._data = config.tier, config.data
        self._disk = OsDisk()
        self._begins = str(PurePath(config.data, BEGIN_FILE))
        self._fetcher = fetcher
        self._catalog = catalog
        self._open_store = partial(stores.open_store, config.tier, config.tier_endpoint)
        self._store: CountedStore | None = None
        self._held: Held | None = None
        self._fence = ""
        self._is_fit = False
        self._copies: CatalogCopies | None = None
        self._supervisor = supervisor
        self._uploader = Uploader(supervisor, lambda: self.may_write, self._store_failed)
        self._streams: dict[tuple[Name, Name], TieredStream] = {}
        self._open: dict[TieredStream, None] = {}
        self._deletions = Deletions(config.data, self._disk)
        self._pending: list[Deletion] = []
        self._waits: set[trio.CancelScope] = set()  # of those who wait for uploads
        self._look = trio.Event()
        self._changed = trio.lowlevel.ParkingLot()
        self._has_pending = trio.Event()

    async def open(self) -> None:
        """Prepare what is on the disk, before logs are opened.

        Raises:
            StorageError: the system refused.
        """
        self._pending = await threads.in_thread(self._deletions.load)

    async def start(self) -> None:
        """Begin with its tasks; all streams of the catalog are known.

        Raises:
            StorageError: the system refused.
        """
        await self._forget_stale()
        start = self._supervisor.start
        start("taking the tier", self._claim)
        start("uploading to the tier", self._uploader.run)
        start("looking at ages in the tier", self._sweep)
        start("removing from the tier", self._remove)
        start("copying the catalog to the tier", self._copy_catalog)

    # -- for streams

    def stream(self, virtual_host: Name, name: Name) -> StreamTier | None:
        """See TierReports."""
        found = self._streams.get((virtual_host, name))
        return None if found is None else found.report()

    def add_stream(
        self, virtual_host: Name, name: Name, row: Callable[[], StreamRow | None]
    ) -> TieredStream:
        """A stream of the catalog."""
        stream = TieredStream(self, virtual_host, name, row)
        self._streams[virtual_host, name] = stream
        return stream

    @property
    def store(self) -> CountedStore:
        """The store, once it could be opened.

        Raises:
            TierError: it could not yet.
        """
        if self._store is None:
            raise TierError(self.sentence or "the tier was not reached yet")
        return self._store

    @property
    def fence(self) -> str:
        """Why nothing may be written any more; empty while this server has the tier."""
        return self._fence

    @property
    def may_write(self) -> bool:
        """This server has the tier, as far as is known."""
        return self.state is TierState.OK and self._held is not None

    def wants(self, stream: TieredStream) -> None:
        """A stream has something to do."""
        self._uploader.wants(stream)

    def wants_at(self, stream: TieredStream, seconds: float) -> None:
        """A stream will have something to do in a while."""
        self._uploader.wants_at(stream, seconds)

    def note_open(self, stream: TieredStream, *, is_open: bool) -> None:
        """The log of a stream was opened, or is closed."""
        if is_open:
            self._open[stream] = None
        else:
            self._open.pop(stream, None)

    @property
    def since(self) -> int:
        """Manifests of earlier epochs do not count: they are of an earlier tier, or server."""
        return 0 if self._held is None else self._held.cluster.since

    async def check(self) -> None:
        """Ask the store whose the tier is, after something that another one may have done.

        Raises:
            TierError: the store did not answer, or is not the right one.
        """
        if not self._fence and self._held is not None:
            try:
                await self._check()
            except TierError as error:
                self._is_away(error)
                self._look.set()
                raise

    async def is_overtaken(self) -> None:
        """A manifest is another's: ask the store whose the tier is."""
        with suppress(TierError):  # then it is looked at later
            await self.check()

    async def delete_later(self, keys: set[str]) -> None:
        """Remove objects that no manifest names any more, after the grace time."""
        try:
            await self._add_deletion(self.now_ms() + self.delay_ms, keys=keys)
        except SegmentsError as error:
            logger.warning("%s objects are left in the tier, see `tier gc`: %s", len(keys), error)

    async def fetch_copy(self, key: StreamKey, folder: str, lost: LostCopyError) -> None:
        """Put the copy of a manifest, which is lost, back into a stream's folder; it is not open.

        Args:
            key: of the stream.
            folder: of the stream.
            lost: what became of the copy.

        Raises:
            TierError: the store does not answer, or has nothing that this log goes on from. The
                stream must not be opened then: consumers would miss messages, and others would
                get their offsets.
            StorageError: the system refused.
        """
        reason = ""
        with trio.move_on_after(_COPY_SECONDS) as limit:
            try:
                await self.taken()
                found = await ask(look_up, self.store, key)
                reason = await threads.in_thread(self._put_back, key, folder, found)
            except TierError as error:
                reason = str(error)
        if limit.cancelled_caught:
            reason = self.sentence or "the tier does not answer"
        if reason:
            raise TierError(f"{lost}, which cannot be done: {reason}")
        logger.warning("stream %s: %s: done", key.stream, lost)

    async def restore_again(self, host: Name, name: Name, unrestored: UnrestoredError) -> None:
        """Restore a stream that could not be, as something was missing in the store.

        Args:
            host: where it is.
            name: of it; it is not open.
            unrestored: why it was not restored before.

        Raises:
            UnrestoredError: it cannot be restored now either.
            StorageError: the system refused.
        """
        reason = ""
        with trio.move_on_after(_COPY_SECONDS) as limit:
            try:
                await self.taken()
                if not await ask(self._restore_stream, host, name):
                    reason = "the tier does not have it any more"
            except (TierError, FormatError) as error:
                reason = str(error)
        if limit.cancelled_caught:
            reason = f"{unrestored}, and it cannot be tried again: "
            reason += self.sentence or "the tier does not answer"
        if reason:
            raise UnrestoredError(reason)
        logger.warning("stream %s: %s: it is restored now", name, unrestored)

    def _restore_stream(self, host: Name, name: Name) -> bool:
        folders = folders_of(self.store, host, name)
        arguments = self._data, self.store, self.identity, self.since, folders
        return restore_stream(*arguments) is not None

    def _put_back(self, key: StreamKey, folder: str, found: KeptManifest | None) -> str:
        """Write a copy of what the store has; why it cannot be, empty when it is done; blocks."""
        files = files_by_base(self._disk.list(folder)).items()
        if found is None:
            if any(SEGMENT_SUFFIX not in suffixes for _, suffixes in files):
                return "the tier has no manifest of it: is it the right store?"
            mine = self.identity
            manifest = Manifest(stream=key, revision=0, epoch=mine.epoch, writer=mine.name)
        else:
            manifest = found.manifest
        if manifest.is_deleted:
            return "it is deleted in the tier"
        if self.identity.is_overtaken_by(manifest.writer, manifest.epoch):
            return "another server has written its manifest"
        newest = max((base for base, found in files if SEGMENT_SUFFIX in found), default=0)
        if newest < manifest.next_offset:
            return (
                f"the tier has messages up to offset {manifest.next_offset}, and no segment in "
                "the data folder goes on from there; start on an empty folder with --restore"
            )
        write_copy(self._disk, folder, manifest)
        named = {one.base_offset for one in manifest.segments}
        for base, suffixes in files:  # what is left of others would say that it is older again
            if base not in named and SEGMENT_SUFFIX not in suffixes:
                for suffix in suffixes:
                    self._disk.remove(file_path(folder, base, suffix))
        return ""

    # -- whose it is

    async def _claim(self) -> None:
        """Take the tier, and look whether it is still ours."""
        pause = 0.0
        while not self._fence:
            try:
                await self._look_once()
                pause = 0.0
            except TierError as error:
                self._is_away(error)
                pause = next_pause(pause)
            seconds = shortened(pause) if pause else self._seconds_to_look()
            self._look = trio.Event()
            with trio.move_on_after(seconds):
                await self._look.wait()
                if pause:
                    await trio.sleep(shortened(pause))

    def _seconds_to_look(self) -> float:
        if self.state is TierState.NO_COMPARE_AND_SET:
            return _UNFIT_SECONDS
        return _BUSY_SECONDS if self._uploader.is_busy else _IDLE_SECONDS

    async def _look_once(self) -> None:
        if self._store is None:
            self._store = CountedStore(await ask(self._open_store))
            self._fetcher.use(self._store)
        if self._held is not None:
            await self._check()
            return
        try:
            found = await ask(claims.examine, self._store, self.identity, self._begins)
            if not self._is_fit:  # only now: nothing is written into another store
                told = await ask(probe, self._store)
                if told:
                    sentence = f"{told}; nothing is uploaded"
                    self._set_state(TierState.NO_COMPARE_AND_SET, sentence)
                    return
                self._is_fit = True
            await self._take(await ask(claims.take, self._store, self.identity, found))
        except FencedError as error:
            self._is_fenced(error)

    async def _take(self, held: Held) -> None:
        """The tier is this server's from now on."""
        cluster = held.cluster
        epoch, revision = cluster.epoch, cluster.revision
        await self._keep(
            self.identity._replace(epoch=epoch, tier=cluster.tier, claimed=epoch, revision=revision)
        )
        await threads.in_thread(self._disk.remove, self._begins)
        self._held = held
        self._set_state(TierState.OK, "")

    async def _keep(self, wanted: Identity) -> None:
        """Write down who this server is, and what it knows of its tier."""
        if wanted != self.identity:
            await threads.in_thread(keep_epoch, self._data, wanted, self._disk)
            self.identity = wanted

    async def _is_named(self, held: Held) -> None:
        """The store has a newer copy of the catalog."""
        with suppress(StorageError):  # the next time, then
            await self._keep(self.identity._replace(revision=held.cluster.revision))

    async def _check(self) -> None:
        try:
            self._held = await ask(claims.check, self.store, self.identity, self._held)
        except FencedError as error:
            self._is_fenced(error)
            return
        self._set_state(TierState.OK, "")

    def _is_fenced(self, error: FencedError) -> None:
        epoch = error.cluster.epoch
        self._fence = (
            f"another server, epoch {epoch}, has taken over the tier; this one, epoch "
            f"{self.identity.epoch}, takes no more messages for streams in it: read what is on its "
            "disk alone, then stop it"
        )
        self._set_state(TierState.FENCED, self._fence)

    def _is_away(self, error: TierError) -> None:
        if isinstance(error, WrongStoreError):
            for stream in self._streams.values():
                stream.is_astray()
        self._set_state(TierState.AWAY, str(error))

    def _set_state(self, state: TierState, sentence: str) -> None:
        if self.state is TierState.FENCED:
            return  # an answer from before that was late
        before, self.state = self.state, state
        has_news = state is not before or sentence != self.sentence
        self.sentence = sentence
        if state is TierState.OK:
            if before is not TierState.OK:
                logger.info("the tier %s is used, epoch %s", self._store, self.identity.epoch)
        elif has_news:
            level = logging.ERROR if state is TierState.FENCED else logging.WARNING
            logger.log(level, "tier: %s", sentence)
        if state in _UNABLE:
            for wait in self._waits:
                wait.cancel()
        self._uploader.look()
        self._has_pending.set()
        self._changed.unpark_all()

    def _store_failed(self, _error: TierError) -> None:
        """A stream's request has failed: is it the store, or that stream alone?"""
        self._look.set()

    async def taken(self) -> None:
        """Return when this server has the tier."""
        while not self.may_write:
            await self._changed.park()

    async def _copy_catalog(self) -> None:
        """Keep a copy of the catalog in the store."""
        await self.taken()
        copies = CatalogCopies(
            self._data, self.store, lambda: self.identity, self._is_fenced, self._is_named
        )
        self._copies = copies
        self._changed.unpark_all()
        self._catalog.tell(copies.changed)
        await copies.run()

    # -- ages

    async def _sweep(self) -> None:
        """Find segments that have become old, of logs that are open, and see what waits."""
        seconds = min(max(self.roll_ms / 10_000, _SHORTEST_SWEEP), _LONGEST_SWEEP)
        while True:
            await trio.sleep(seconds)
            waiting = 0
            async for stream in in_turns(list(self._open), _STREAMS_A_TURN):
                waiting += stream.bytes_waiting
                if stream.is_old:
                    self.wants(stream)
            self._look_at_backlog(waiting)

    def _look_at_backlog(self, waiting: int) -> None:
        """Say once that uploads do not keep up, and once that they do again."""
        if not self.may_write:
            self._backlog.forget()
            return
        backlog, was_behind = self._backlog, bool(self._backlog.sentence)
        stored = sum(stream.uploaded_bytes for stream in self._streams.values())
        moved = self._store.transferred[Kind.PUT] if self._store is not None else 0
        backlog.look(trio.current_time(), waiting, stored, moved)
        if backlog.sentence and not was_behind:
            logger.warning("tier: %s", backlog.sentence)
        elif was_behind and not backlog.sentence:
            logger.info("tier: uploads keep up again")

    # -- removing

    async def _add_deletion(self, due_ms: int, keys: Iterable[str]) -> None:
        add = partial(self._deletions.add, keys=tuple(keys))
        self._pending.append(await threads.in_thread(add, due_ms))
        self._has_pending.set()

    async def will_delete(self, folders: dict[Name, str], virtual_host: Name) -> Deletion | None:
        """Streams are about to be deleted: write down what is in the store of them.

        Args:
            folders: of the streams, by name.
            virtual_host: where they are.
        """
        keys = []
        for name, folder in folders.items():
            stream = self._streams.get((virtual_host, name))
            key = stream.key if stream is not None else None
            if key is None:
                key = await threads.in_thread(_key_in, self._disk, folder, virtual_host, name)
            if key is not None:
                keys.append(key)
        if not keys:
            return None
        return await self._note_deletion(keys)

    async def _note_deletion(self, keys: Iterable[StreamKey]) -> Deletion:
        """Write down streams that are to be removed; a full disk keeps nobody from deleting."""
        add = partial(self._deletions.add, streams=tuple(keys))
        try:
            return await threads.in_thread(add, self.now_ms())
        except StorageError as error:
            names = ", ".join(key.stream for key in keys)
            logger.warning("if this server ends soon, %s stays in the tier: %s", names, error)
            return Deletion(f"{random_name()}.json", self.now_ms(), streams=tuple(keys))

    async def is_deleted(
        self, deletion: Deletion | None, virtual_host: Name, names: Iterable[Name]
    ) -> None:
        """They are."""
        gone = [self._streams.pop((virtual_host, name), None) for name in names]
        keys = {key for stream in gone if stream is not None and (key := stream.key) is not None}
        if deletion is not None:
            self._pending.append(deletion)
            self._has_pending.set()
            keys -= set(deletion.streams)
        if keys:  # their first upload has begun meanwhile
            self._pending.append(await self._note_deletion(sorted(keys)))
            self._has_pending.set()

    async def is_kept(self, deletion: Deletion | None) -> None:
        """They were not deleted after all."""
        if deletion is not None:
            await threads.in_thread(self._deletions.done, deletion)

    async def _forget_stale(self) -> None:
        """Streams that were to be deleted, and were not: the server was killed before."""
        for deletion in [one for one in self._pending if one.streams]:
            streams = [key for key in deletion.streams if not await self._is_there(key)]
            self._pending.remove(deletion)
            if streams:
                self._pending.append(deletion._replace(streams=tuple(streams)))
            else:
                await threads.in_thread(self._deletions.done, deletion)

    async def _is_there(self, key: StreamKey) -> bool:
        host, name = Name(key.virtual_host), Name(key.stream)
        if (host, name) not in self._streams:
            return False
        folder = stream_folder(self._data, host, name)
        try:
            copy = await threads.in_thread(_copy_in, self._disk, folder)
        except SegmentsError as error:  # what is in doubt is not removed
            logger.warning("stream %s stays in the tier: %s", name, error)
            return True
        return copy is not None and copy.stream == key

    async def _remove(self) -> None:
        pause = 0.0
        while True:
            self._has_pending = trio.Event()
            try:
                while self.may_write and (deletion := self._due()) is not None:
                    await self._carry_out(deletion)
                pause = 0.0
            except SegmentsError as error:
                if isinstance(error, OvertakenError):
                    await self.is_overtaken()
                if not (pause or self._fence):
                    logger.warning("what is not needed is removed from the tier later: %s", error)
                pause = next_pause(pause)
            seconds = shortened(pause) if pause else self._seconds_to_remove()
            with trio.move_on_after(seconds):
                if pause:
                    await trio.sleep_forever()
                await self._has_pending.wait()

    def _due(self) -> Deletion | None:
        now_ms = self.now_ms()
        return next((one for one in self._pending if one.due_ms <= now_ms), None)

    def _seconds_to_remove(self) -> float:
        if not self._pending or not self.may_write:
            return float("inf")
        first_ms = min(deletion.due_ms for deletion in self._pending)
        return max(0.0, (first_ms - self.now_ms()) / 1_000)

    async def _carry_out(self, deletion: Deletion) -> None:
        self._pending.remove(deletion)
        self._pending.append(deletion)  # others are not kept waiting when this fails
        store = self.store
        for start in range(0, len(deletion.keys), _DELETED_AT_ONCE):
            await ask(store.delete, list(deletion.keys[start : start + _DELETED_AT_ONCE]))
        for key in deletion.streams:
            for stream in list(self._uploader.streams):
                if stream.key == key:
                    await self._uploader.left(stream)
            await ask(lifecycle.delete_stream, store, key, self.identity)
        await self.check()  # else nothing of it was there to be removed
        await threads.in_thread(self._deletions.done, deletion)
        self._pending.remove(deletion)
        self._changed.unpark_all()

    # -- uploads that somebody waits for

    async def upload(self, virtual_host: Name, names: Collection[Name], seconds: float) -> Uploaded:
        """See TierReports."""
        self._check_able()
        streams = self._named(virtual_host, names) if names else list(self._streams.values())
        num_outside = sum(not stream.is_on for stream in streams)
        async with self._catalog.turn():  # what is about to be deleted was
            deletions = [one for one in self._pending if one.streams and not names]
        with ExitStack() as waiting:
            requests = [
                waiting.enter_context(stream.requested())
                async for stream in in_turns(streams, _STREAMS_A_TURN)
                if stream.is_on
            ]
            with trio.move_on_after(seconds) as wait:
                self._waits.add(wait)
                waiting.callback(self._waits.discard, wait)
                for request in requests:
                    await request.ended()
                await self._catalog_is_stored()
                while any(one in self._pending for one in deletions):
                    await self._changed.park()
                await self._is_still_ours()
        self._check_able()
        if names:  # one of them may have been deleted
            self._named(virtual_host, names)
        self._check_stored(requests, seconds, is_over=wait.cancelled_caught)
        reports = tuple(one.report for one in requests if one.state is RequestState.STORED)
        return Uploaded(
            num_streams=len(reports),
            num_bytes=sum(report.num_bytes for report in reports),
            num_outside=num_outside,
            streams=reports,
        )

    def _named(self, virtual_host: Name, names: Iterable[Name]) -> list[TieredStream]:
        found = []
        for name in dict.fromkeys(names):
            stream = self._streams.get((virtual_host, name))
            if stream is None or stream.is_gone:
                raise Refused(Reason.NOT_FOUND, name)
            if not stream.is_on:
                details = f"{name} is not uploaded to the tier: its argument stream-tier is false"
                raise Refused(Reason.PRECONDITION_FAILED, details)
            found.append(stream)
        return found

    def _check_able(self) -> None:
        if self._fence:
            raise Refused(Reason.PRECONDITION_FAILED, self._fence)
        if self.state in _UNABLE:
            raise TierError(self.sentence)

    async def _catalog_is_stored(self) -> None:
        while self._copies is None:
            await self._changed.park()
        await self._copies.stored()

    async def _is_still_ours(self) -> None:
        """Return when the store has said that it is; whoever waits is cancelled if it is not."""
        pause = 0.0
        while True:
            try:
                await self._check()
            except TierError as error:
                self._store_failed(error)
            else:
                return
            pause = next_pause(pause)
            await trio.sleep(shortened(pause))

    def _check_stored(
        self, requests: Collection[UploadRequest], seconds: float, *, is_over: bool
    ) -> None:
        trouble = "" if self.state is TierState.OK else self.sentence
        missing = what_is_missing(requests, trouble)
        if is_over:
            is_behind = self._copies is None or self._copies.is_behind
            what = missing or ("the catalog" if is_behind else "the end of deleted streams")
            what += f": {trouble}" if trouble and not missing else ""
            details = f"after {seconds:g} seconds the tier does not have everything: {what}"
            raise Refused(Reason.NOT_AVAILABLE, details)
        if missing:
            details = f"the tier does not get everything: {missing}"
            raise Refused(Reason.NOT_AVAILABLE, details)

    # -- reports

    async def status(self) -> TierStatus:
        """See TierReports."""
        reports = []
        async for stream in in_turns(list(self._streams.values()), _STREAMS_A_TURN):
            report = stream.report()
            if report is not None:
                reports.append(report)
        waits = [r.oldest_waiting_seconds for r in reports if r.oldest_waiting_seconds is not None]
        store, backlog = self._store, self._backlog
        waiting = sum(report.bytes_waiting for report in reports)
        is_behind = self.state is TierState.OK and backlog.sentence
        none = TierStatus()
        return TierStatus(
            url=self._url,
            state=TierState.BEHIND if is_behind else self.state,
            sentence=backlog.sentence if is_behind else self.sentence,
            epoch=self.identity.epoch,
            writer=self.identity.name,
            num_streams=len(reports),
            bytes_local=sum(report.bytes_local for report in reports),
            bytes_remote=sum(report.bytes_remote for report in reports),
            bytes_waiting=waiting,
            oldest_waiting_seconds=max(waits, default=None),
            upload_rate=backlog.rate,
            upload_seconds=backlog.seconds_left(waiting),
            cache_bytes=self._fetcher.cache.num_bytes,
            requests={**none.requests, **(store.requests if store else {})},
            transferred={**none.transferred, **(store.transferred if store else {})},
            errors=store.errors if store else 0,
        )

    async def verify(self, virtual_host: Name, name: Name) -> Verification:
        """See TierReports."""
        stream = self._streams.get((virtual_host, name))
        if stream is None:
            raise Refused(Reason.NOT_FOUND, name)
        folder = stream_folder(self._data, virtual_host, name)
        try:
            copy = await threads.in_thread(_copy_in, self._disk, folder)
        except SegmentsError as error:
            raise Refused(Reason.NOT_AVAILABLE, str(error)) from error
        if copy is None:
            raise Refused(Reason.PRECONDITION_FAILED, f"{name} is not in the tier")
        if not copy.revision:
            raise Refused(Reason.PRECONDITION_FAILED, f"nothing of {name} is in the tier yet")
        return await lifecycle.verify(self.store, copy.stream)

    async def collect(self, *, dry_run: bool) -> Collected:
        """See TierReports."""
        if self._fence:
            raise Refused(Reason.PRECONDITION_FAILED, self._fence)
        if not self.may_write:
            raise TierError(self.sentence or "the tier was not taken yet")
        await self._check()
        if self._fence:
            raise Refused(Reason.PRECONDITION_FAILED, self._fence)

        known = lifecycle.Known(self._is_orphan, self._is_used, self._in_work)
        return await lifecycle.collect(
            self.store, self.identity, self.now_ms(), known, is_dry=dry_run
        )

    def _is_orphan(self, key: StreamKey) -> bool:
        """A stream in the store is an earlier one of a name that there is.

        One that the catalog does not know is none: what was deleted is known by its manifest, and
        in a data folder from an older backup whatever was created since is missing.
        """
        stream = self._streams.get((Name(key.virtual_host), Name(key.stream)))
        if stream is None:
            logger.warning(
                "stream %s is in the tier, and not in the catalog; what is there of it is left",
                key.stream,
            )
            return False
        return stream.key is not None and key.creation < stream.key.creation

    def _is_used(self, key: StreamKey) -> bool:
        """A stream in the store is the one of the catalog, or may be; blocks."""
        host, name = Name(key.virtual_host), Name(key.stream)
        stream = self._streams.get((host, name))
        if stream is None or stream.key is not None:
            return stream is not None and stream.key == key
        try:
            copy = _copy_in(self._disk, stream_folder(self._data, host, name))
        except SegmentsError:
            return True
        return copy is not None and copy.stream == key

    def _in_work(self) -> set[str]:
        """Objects that are about to be named."""
        return {key for stream in list(self._streams.values()) for key in stream.keys_in_work}


def _key_in(disk: Disk, folder: str, virtual_host: Name, name: Name) -> StreamKey | None:
    """Where a stream is in the store, by its folder; None also where that cannot be read."""
    try:
        copy = _copy_in(disk, folder)
    except LostCopyError as error:
        return StreamKey(virtual_host, name, error.creation)
    except SegmentsError:
        return None
    return None if copy is None else copy.stream


def _copy_in(disk: Disk, folder: str) -> Manifest | None:
    """The copy of a stream's manifest in its folder; None where there is none.

    Raises:
        SegmentsError: it cannot be read.
    """
    return copy_in(disk, folder, disk.list(folder)) if os.path.isdir(folder) else None
