"""The tier of a server: everything that is done with an object store.

Theory of operation. Each part has tasks or state of its own, and knows only those before it:

    Ownership     takes the tier, and knows whose it is           ownership.py
    TieredStream  one stream: uploads, evicts, follows            stream_tier.py
    Uploader      gives streams their turns                       uploader.py
    Removals      removes what is not needed in the store         removals.py
    LostCopies    brings back what opening a log needs            lost_copies.py
    StoreConfirms writes what is confirmed by the store           wal.py

What a stream takes part with is TieredStream.
"""

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import trio

from segments import Log, SegmentsError
from segments.disk import OsDisk
from segments.store.metadata_log import Held
from segments.store.object_names import StreamKey, names_in
from segments.store.object_store import ObjectStore, TierError
from streamd.broker.catalog.unlogged import Unlogged
from streamd.broker.catalog.writer import CatalogWriter, Subject
from streamd.broker.declared.rows import StreamRow
from streamd.broker.streams.fetcher import Fetcher
from streamd.broker.supervisor import Supervisor
from streamd.broker.tier import lifecycle
from streamd.broker.tier.backlog import Backlog
from streamd.broker.tier.catalog_log import CatalogLog
from streamd.broker.tier.confirm_watch import Unconfirmed
from streamd.broker.tier.identity import Identity
from streamd.broker.tier.line import Line
from streamd.broker.tier.lost_copies import LostCopies
from streamd.broker.tier.ownership import Ownership
from streamd.broker.tier.removals import Removals, copy_of
from streamd.broker.tier.requests import CountedStore
from streamd.broker.tier.stream_tier import TieredStream, TierParts
from streamd.broker.tier.upload_requests import RequestState, UploadRequest, what_is_missing
from streamd.broker.tier.uploader import Uploader
from streamd.broker.tier.wal import StoreConfirms
from streamd.broker.tier.wal_reading import StoredTail
from streamd.broker.traffic import Traffic
from streamd.config import Config
from streamd.net import threads
from streamd.net.turns import in_turns
from streamd.operations.arguments import STORE
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name, stream_folder
from streamd.operations.tier_reports import (
    Collected,
    StreamTier,
    TierState,
    TierStatus,
    Uploaded,
    Verification,
)

logger = logging.getLogger(__name__)

_CATCH_UP_SECONDS = 20.0
_LONGEST_SWEEP, _SHORTEST_SWEEP = 15.0, 0.5  # seconds between two looks at the ages of segments


class Tier:
    """The tier of a server.

    Args:
        now_ms: the wall clock.
        fetcher: reads from the store, once that is known.
        catalog: whose changes are logged in the store.
        traffic: what is counted of it.
        open_store: gives the store; default that of the settings.

    Attributes:
        now_ms: the wall clock.
    """

    def __init__(
        self,
        config: Config,
        identity: Identity,
        now_ms: Callable[[], int],
        supervisor: Supervisor,
        fetcher: Fetcher,
        catalog: CatalogWriter,
        traffic: Traffic,
        open_store: Callable[[], ObjectStore] | None = None,
    ) -> None:
        line = Line()
        self._backlog = Backlog(line)
        self.now_ms = now_ms
        self._roll_ms = config.tier_roll_seconds * 1_000
        delay_ms = config.tier_delete_delay_seconds * 1_000
        self._url, self._data = config.tier, config.data
        self._disk = disk = OsDisk()
        self._fetcher = fetcher
        self._catalog = catalog
        self._supervisor = supervisor
        self._log: CatalogLog | None = None
        self._streams: dict[tuple[Name, Name], TieredStream] = {}
        self._open: dict[TieredStream, None] = {}
        self._waits: set[trio.CancelScope] = set()  # of those who wait for uploads
        self._catching_up: set[trio.CancelScope] = set()  # logs that are opened, see `confirm`
        self._confirms_have_ended = False
        self._has_log = trio.Event()
        self.ownership = ownership = Ownership(config, identity, disk, self, open_store)
        self.uploader = Uploader(supervisor, lambda: ownership.may_write, ownership.look_again)
        self.removals = Removals(
            config.data,
            disk,
            ownership,
            self.uploader,
            self._streams,
            self._is_end_told,
            now_ms,
            delay_ms,
        )
        self.lost_copies = LostCopies(config.data, disk, ownership)
        self._confirms_all = config.confirm == STORE
        interval = config.confirm_interval_ms / 1_000
        self.confirms = StoreConfirms(
            config.data,
            ownership,
            self._find,
            interval,
            traffic.slot_seconds,
            self.removals.look,
            may_move=ownership.may_move,
        )
        self._parts = TierParts(
            ownership,
            line,
            now_ms,
            self._roll_ms,
            delay_ms,
            self.uploader.wants,
            self.uploader.wants_at,
            self.confirms,
            self.removals.delete_later,
            self._note_open,
            self._confirms_all,
            open_store is not None,
        )

    async def start(self) -> None:
        """Begin with its tasks; all streams of the catalog are known.

        Raises:
            StorageError: the system refused.
        """
        await self.removals.forget_stale()
        if self._confirms_all:
            self._catalog.answer_when(self._catalog_stored)
        self._catalog.answer_ends_when(self._ends_stored)
        start = self._supervisor.start
        start("taking the tier", self.ownership.run)
        start("uploading to the tier", self.uploader.run)
        start("confirming through the tier", self._run_confirms)
        start("looking at ages in the tier", self._sweep)
        start("removing from the tier", self.removals.run)
        start("logging the catalog in the tier", self._log_catalog)

    # -- what `Ownership` tells

    @property
    def is_busy(self) -> bool:
        """Something is uploaded."""
        return self.uploader.is_busy

    def store_opened(self, store: CountedStore) -> None:
        """The store can be asked."""
        self._fetcher.use(store)

    def store_is_wrong(self) -> None:
        """The store is a different one: what was written last may be there."""
        for stream in self._streams.values():
            stream.store_is_wrong()

    def log_grew(self, held: Held) -> None:
        """The log has another entry, perhaps."""
        if self._log is not None:
            self._log.grew(held)

    def ownership_changed(self) -> None:
        """The state may be another one."""
        if not self.ownership.is_able:
            for wait in self._waits:
                wait.cancel()
        self.uploader.look()
        self.removals.look()

    # -- for streams

    def stream(self, virtual_host: Name, name: Name) -> StreamTier | None:
        """See TierReports."""
        found = self._streams.get((virtual_host, name))
        return None if found is None else found.report()

    def add_stream(
        self, virtual_host: Name, name: Name, row: Callable[[], StreamRow | None]
    ) -> TieredStream:
        """A stream of the catalog."""
        stream = TieredStream(self._parts, virtual_host, name, row)
        self._streams[virtual_host, name] = stream
        return stream

    def stream_of(self, virtual_host: Name, name: Name) -> TieredStream | None:
        """A stream of that name, as it is known here."""
        return self._streams.get((virtual_host, name))

    def _find(self, virtual_host: str, name: str) -> TieredStream | None:
        return self._streams.get((Name(virtual_host), Name(name)))

    async def tail(self, virtual_host: Name, name: Name) -> StoredTail | None:
        """What the store has to follow the log of a stream, which is about to be opened.

        Raises:
            TierError: that is not known yet.
        """
        with self._while_confirming(math.inf) as waiting:
            await self.confirms.read()
        if waiting.cancelled_caught:
            raise TierError("what the tier has to follow it is not read any more")
        return self.confirms.tail(virtual_host, name)

    async def confirm(self, virtual_host: Name, name: Name, log: Log) -> None:
        """Confirm by the store what is written to a log that was opened, and store what is there.

        Raises:
            TierError: the store has not answered for a while.
        """
        stream = self._streams[virtual_host, name].begin_confirms(log)
        with self._while_confirming(_CATCH_UP_SECONDS):
            await stream.caught_up()
        if not stream.is_caught_up:
            reason = self.confirms.watch.cause or self.ownership.sentence or "it takes long"
            raise TierError(f"what its disk has is not in the tier yet: {reason}")

    @contextmanager
    def _while_confirming(self, seconds: float) -> Iterator[trio.CancelScope]:
        """A wait for what `_run_confirms` does, so long, which ends with it."""
        with trio.move_on_after(seconds) as waiting:
            if self._confirms_have_ended:
                waiting.cancel()
            self._catching_up.add(waiting)
            try:
                yield waiting
            finally:
                self._catching_up.discard(waiting)

    async def _run_confirms(self) -> None:
        """Confirm until cancelled; who opens a log is shielded, and would wait in vain then."""
        self._confirms_have_ended = False
        try:
            await self.confirms.run()
        finally:
            self._confirms_have_ended = True
            for waiting in self._catching_up:
                waiting.cancel()

    def _note_open(self, stream: TieredStream, is_open: bool) -> None:
        """The log of a stream was opened, or is closed."""
        if is_open:
            self._open[stream] = None
        else:
            self._open.pop(stream, None)

    async def _log_catalog(self) -> None:
        """Have what changes in the catalog in the log."""
        owner = self.ownership
        await owner.taken()
        self._log = CatalogLog(
            Unlogged(self._data),
            owner.store,
            lambda: owner.identity,
            owner.give_up,
            owner.read,
            may_move=owner.may_move,
        )
        self._has_log.set()
        self._catalog.tell(self._log.changed)
        await self._log.run()

    async def _catalog_stored(self) -> None:
        """Return when the store has what is committed to the catalog now."""
        await self._has_log.wait()
        if self._log is not None:
            await self._log.stored()

    def tells_ends(self, virtual_host: Name, names: Iterable[Name]) -> set[str]:
        """Streams whose end is answered when the store knows it, however they confirm now."""
        return set(names) if self._confirms_all else self.confirms.known_of(virtual_host, names)

    async def _ends_stored(self, ended: set[Subject]) -> None:
        """Return when no machine that begins with the store has these streams, which are gone."""
        deletions = [
            one
            for one in self.removals.of_streams
            if any(key[:2] in ended for key in one.streams)  # others may take for ever
        ]
        await self.confirms.ends_stored()
        await self.removals.carried_out(deletions)
        await self._catalog_stored()

    def _is_end_told(self, key: StreamKey) -> bool:
        return self.confirms.is_end_told(key)

    # -- ages

    async def _sweep(self) -> None:
        """Find segments that have become old, of logs that are open, and see what waits."""
        seconds = min(max(self._roll_ms / 10_000, _SHORTEST_SWEEP), _LONGEST_SWEEP)
        while True:
            await trio.sleep(seconds)
            waiting = 0
            async for stream in in_turns(list(self._open)):
                waiting += stream.bytes_waiting
                if stream.is_old:
                    self.uploader.wants(stream)
            self._look_at_backlog(waiting)

    def _look_at_backlog(self, waiting: int) -> None:
        """Say once that uploads do not keep up, and once that they do again."""
        if not self.ownership.may_write:
            self._backlog.forget()
            return
        backlog, was_behind = self._backlog, bool(self._backlog.sentence)
        stored = sum(stream.uploaded_bytes for stream in self._streams.values())
        store = self.ownership.counted
        moved = store.file_bytes if store is not None else 0
        backlog.look(trio.current_time(), waiting, stored, moved)
        if backlog.sentence and not was_behind:
            logger.warning("tier: %s", backlog.sentence)
        elif was_behind and not backlog.sentence:
            logger.info("tier: uploads keep up again")

    # -- uploads that somebody waits for

    async def upload(self, virtual_host: Name, names: Collection[Name], seconds: float) -> Uploaded:
        """See TierReports."""
        self._check_able()
        streams = self._named(virtual_host, names) if names else list(self._streams.values())
        num_outside = sum(not stream.is_on for stream in streams)
        async with self._catalog.turn():  # what is about to be deleted was
            deletions = [] if names else self.removals.of_streams
        with ExitStack() as waiting:
            requests = [
                waiting.enter_context(stream.requested())
                async for stream in in_turns(streams)
                if stream.is_on
            ]
            with trio.move_on_after(seconds) as wait:
                self._waits.add(wait)
                waiting.callback(self._waits.discard, wait)
                for request in requests:
                    await request.ended()
                await self._catalog_stored()
                await self.removals.carried_out(deletions)
                await self.ownership.confirmed()
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

    @property
    def has_local(self) -> bool:
        """Whether there are streams of which this machine alone may have confirmed something."""
        return any(map(_is_local, self._streams.values()))

    async def hand_over(self, seconds: float) -> None:
        """Store what this machine alone has confirmed, before another node goes on with it.

        Raises:
            Refused: not all of it is there in time.
            TierError: the store does not answer, or another server has the tier.
        """
        with trio.move_on_after(seconds) as waiting:
            await self._catalog_stored()
        if waiting.cancelled_caught:
            raise TierError("the store does not have what was declared last")
        names: dict[Name, list[Name]] = defaultdict(list)
        async for stream in in_turns(list(self._streams.values())):
            if _is_local(stream):
                names[stream.virtual_host].append(stream.name)
        for host, found in names.items():
            await self.upload(host, found, seconds)

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
        if self.ownership.fence:
            raise Refused(Reason.PRECONDITION_FAILED, self.ownership.fence)
        if not self.ownership.is_able:
            raise TierError(self.ownership.sentence)

    def _check_stored(
        self, requests: Collection[UploadRequest], seconds: float, *, is_over: bool
    ) -> None:
        trouble = "" if self.ownership.state is TierState.OK else self.ownership.sentence
        missing = what_is_missing(requests, trouble)
        if is_over:
            is_behind = self._log is None or self._log.is_behind
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
        async for stream in in_turns(list(self._streams.values())):
            report = stream.report()
            if report is not None:
                reports.append(report)
        waits = [r.oldest_waiting_seconds for r in reports if r.oldest_waiting_seconds is not None]
        store, backlog = self.ownership.counted, self._backlog
        waiting = sum(report.bytes_waiting for report in reports)
        is_behind = self.ownership.state is TierState.OK and backlog.sentence
        none = TierStatus()
        confirms, watch = self.confirms, self.confirms.watch
        unconfirmed = [r.messages_unconfirmed for r in reports if r.messages_unconfirmed]
        behind = Unconfirmed(len(unconfirmed), sum(unconfirmed), confirms.bytes_behind)
        waits_for = watch.seconds(confirms.oldest_seconds, trio.current_time())
        slot, slowest = watch.last_seconds or (None, None)
        kept_slots, kept_bytes = confirms.kept_slots
        return TierStatus(
            url=self._url,
            state=TierState.BEHIND if is_behind else self.ownership.state,
            sentence=backlog.sentence if is_behind else self.ownership.sentence,
            epoch=self.ownership.identity.epoch,
            writer=self.ownership.identity.name,
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
            confirm_sentence=watch.sentence(waits_for, behind),
            streams_unconfirmed=behind.streams,
            messages_unconfirmed=behind.messages,
            bytes_unconfirmed=behind.num_bytes,
            oldest_unconfirmed_seconds=waits_for,
            slots_stored=watch.num_stored,
            slot_seconds=slot,
            slowest_slot_seconds=slowest,
            slots_kept=kept_slots,
            slot_bytes_kept=kept_bytes,
        )

    async def verify(self, virtual_host: Name, name: Name) -> Verification:
        """See TierReports."""
        stream = self._streams.get((virtual_host, name))
        if stream is None:
            raise Refused(Reason.NOT_FOUND, name)
        folder = stream_folder(self._data, virtual_host, name)
        try:
            copy = await threads.in_thread(copy_of, self._disk, folder)
        except SegmentsError as error:
            raise Refused(Reason.NOT_AVAILABLE, str(error)) from error
        key = StreamKey(virtual_host, name, stream.life or "") if copy is None else copy.stream
        slots = partial(self.confirms.slots_of, key)
        has_manifest = copy is not None and copy.revision > 0
        if not (has_manifest or slots()):
            details = f"{name} is not in the tier"
            if copy is not None:
                details = f"nothing of {name} is in the tier yet"
            raise Refused(Reason.PRECONDITION_FAILED, details)
        return await lifecycle.verify(self.ownership.store, key, slots, has_manifest=has_manifest)

    async def collect(self, *, dry_run: bool) -> Collected:
        """See TierReports."""
        if self.ownership.fence:
            raise Refused(Reason.PRECONDITION_FAILED, self.ownership.fence)
        if not self.ownership.may_write:
            raise TierError(self.ownership.sentence or "the tier was not taken yet")
        await self.ownership.check()
        if self.ownership.fence:
            raise Refused(Reason.PRECONDITION_FAILED, self.ownership.fence)

        known = lifecycle.Known(self._is_orphan, self._is_used, self._in_work, self._mine)
        return await lifecycle.collect(
            self.ownership.store, self.ownership.identity, self.now_ms(), known, is_dry=dry_run
        )

    def _is_orphan(self, key: StreamKey) -> bool:
        """A stream in the store is an earlier one of a name that there is.

        One that the catalog does not know is none: what was deleted is known by its manifest, and
        in a data folder from an older backup whatever was created since is missing.
        """
        stream = self._streams.get((Name(key.virtual_host), Name(key.stream)))
        if stream is None:
            logger.warning(
                "stream %s is in the tier but not in the catalog; its objects stay there",
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
            copy = copy_of(self._disk, stream_folder(self._data, host, name))
        except SegmentsError:
            return True
        return copy is not None and copy.stream == key

    def _mine(self, folder: str) -> Collection[str] | None:
        """What a manifest names, as far as is known here: the store may have an older one."""
        names = names_in(folder)
        if names is None:
            return ()
        host, name = map(Name, names)
        stream = self._streams.get((host, name))
        if stream is None:
            return ()
        manifest = stream.manifest
        if manifest is None:
            try:
                manifest = copy_of(self._disk, stream_folder(self._data, host, name))
            except SegmentsError:
                return None
        if manifest is None or not manifest.revision or manifest.stream.folder != folder:
            return ()  # the store never had one
        return manifest.keys()

    def _in_work(self) -> set[str]:
        """Objects that are about to be named."""
        return {key for stream in list(self._streams.values()) for key in stream.keys_in_work}


def _is_local(stream: TieredStream) -> bool:
    return stream.is_on and not stream.is_gone and not stream.is_confirmed_by_store
