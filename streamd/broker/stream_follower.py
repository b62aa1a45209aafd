"""Streams that another server writes: what it stores of them in the tier, as it grows.

Theory of operation. What the store has is looked at again and again, and never written to:

    manifests             every POLL_SECONDS those of streams whose logs are open, and those that
                          have changed; the others more and more seldom, up to IDLE_SECONDS
    log of metadata       with every look, and when somebody must know all that it has (`read_on`)
    folders of streams    every LIST_SECONDS, and with each change of the catalog: new streams
    write-ahead logs      while the log of metadata names some, the next slot every SLOT_SECONDS or,
                          when there was none for a minute, every POLL_SECONDS; and those behind it

One task reads the log of metadata and nobody else: those who must know what it has wait for it, and
one who goes away stops nothing half-way. A reading that is under way may have seen less than there
is now, so everyone waits for one that begins later; all who wait share it.

The log of a stream is opened when somebody wants it, from a folder that is made just then: a copy
of the manifest, and the journal of publishers and consumers (`prepare`). While it is open, it is
told of each manifest that is newer (`Log.follow`), and consumers at its end are woken. A log that
is opened while a newer manifest arrives is told with the next look.

What slots have of a stream is kept (tier/wal_following.py), and shown behind what its manifest has:
a log is opened with it, and an open one gets it when a slot was read. When a manifest names it, it
is shown from there: what is in no manifest is then behind that (`Log.follow`). Where something is
missing before it, as slots have gone, it waits for the manifest that has that.

An offset that a consumer stores here counts here, until the server ends. Those that are stored on
the server that writes are taken over where the consumer has stored none here.

A store that is away is asked again; consumers read what is in the cache, and wait for the rest.
A slot that cannot be used is no end: nothing behind it is shown until the log begins behind it.
A manifest that cannot be used keeps its stream as it was, or makes it unavailable if there was
nothing before; `streamd stream info` says so.

Which streams there are, and what else the log of metadata says, those know that are made of this:
follower.py for all that a server has, nodes/shard_follower.py for what was placed at a node.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

import trio

from segments.atomic_write import replace_file
from segments.codec import Block
from segments.disk import Disk, OsDisk
from segments.errors import FormatError, SegmentsError, UnrestoredError
from segments.format_constants import OFFSET
from segments.gaps import Gap, Gaps
from segments.journal import JOURNAL_NAME, journal_of, tracking_in
from segments.marks import LIFE, put_mark
from segments.segment import MAX_OFFSET, SEGMENT_SUFFIX, parse_name
from segments.store.bad_object import BadObjectError
from segments.store.cluster import Cluster, WalMark
from segments.store.local_copy import MANIFEST_FILE
from segments.store.lookup import (
    FoundManifest,
    by_stream,
    newest_manifest,
    read_changed,
    stream_folders,
)
from segments.store.manifest import Manifest, encode_manifest
from segments.store.manifest_store import check_not_older
from segments.store.metadata_log import Entry, Found, Held
from segments.store.object_names import StreamKey, names_in
from segments.store.object_store import MissingError, TierError
from segments.store.wal import Section
from segments.tracking import Tracking
from streamd.broker.broker import Broker
from streamd.broker.catalog.catalog import CatalogError
from streamd.broker.read_only import ReadOnly
from streamd.broker.resources import Following
from streamd.broker.streams.fetcher import Fetcher
from streamd.broker.streams.log_figures import NO_FIGURES, LogFigures
from streamd.broker.streams.publication import Remote
from streamd.broker.streams.stream import Stream
from streamd.broker.supervisor import Supervisor
from streamd.broker.tier import claims
from streamd.broker.tier.patience import each, retry_store
from streamd.broker.tier.requests import CountedStore, ask
from streamd.broker.tier.restore import (
    TAILS,
    row_of,
    tracking_of,
)
from streamd.broker.tier.wal_following import GrowingLogs
from streamd.broker.tier.wal_reading import ReadSlot, StoredTail
from streamd.net import threads
from streamd.net.turns import in_turns
from streamd.net.wakeup import Wakeup
from streamd.operations.names import Name, as_sent
from streamd.operations.tier_reports import (
    StreamTier,
)

logger = logging.getLogger(__name__)

POLL_SECONDS = 2.0
LIST_SECONDS = 10.0
IDLE_SECONDS = 60.0
SLOT_SECONDS = 1.0
_SLOTS_IDLE_SECONDS = 60.0  # without a slot
_MOST_TAILS = 2 << 30  # bytes on the disk; then slots wait for manifests
_BEING_READ = math.inf  # when a stream is due whose manifest is on its way
_OPEN_SECONDS = 10.0  # that opening a log waits for the store


@dataclass
class Followed:
    """A stream of the store, as it was when somebody looked last.

    Attributes:
        folders: of all of its lives, that created last first.
        manifest: None where all are deleted, or nothing could be read.
        tail: what write-ahead logs have behind it, or of a later life; None for nothing.
        fault: why the manifest cannot be used.
        looked_ms: when the store answered last, in ms since 1970.
        pause: seconds between two looks, while nothing changes.
        due_at: when to look again, by trio's clock.
        stored: offsets of consumers as the store had them when they were taken over last.
        num_resets: how often it had less than before: an older state of the store is back.
    """

    folders: list[str]
    manifest: Manifest | None = None
    tail: StoredTail | None = None
    etag: str = ""
    fault: str = ""
    looked_ms: int = 0
    pause: float = POLL_SECONDS
    due_at: float = 0.0
    stored: dict[bytes, int] = field(default_factory=dict)
    num_resets: int = 0

    @property
    def life(self) -> str:
        """Tells it from others of that name; empty while there is none."""
        return f"{self.creation}-{self.num_resets}" if self.creation else ""

    @property
    def creation(self) -> str:
        """Creation id of the life that is shown; empty for none."""
        tail = "" if self.tail is None else self.tail.key.creation
        return tail if self.manifest is None else self.manifest.stream.creation

    @property
    def stored_to(self) -> int:
        """Offset behind what the manifest has."""
        return 0 if self.manifest is None else self.manifest.next_offset

    @property
    def names(self) -> tuple[Name, Name] | None:
        """Virtual host and stream; None where that is not known."""
        if self.manifest is not None:
            found: tuple[str, str] | None = self.manifest.stream[:2]
        elif self.tail is not None:
            found = self.tail.key[:2]
        else:
            found = names_in(self.folders[0]) if self.folders else None
        return None if found is None else (as_sent(found[0]), as_sent(found[1]))

    def looked(self, now_ms: int, *, has_changed: bool) -> None:
        """The store has answered; the less changes, the later it is asked again."""
        self.looked_ms = now_ms
        self.pause = POLL_SECONDS if has_changed else min(2 * self.pause, IDLE_SECONDS)
        if self.due_at == _BEING_READ:  # else it may be another one since
            self.due_at = trio.current_time() + self.pause


class StreamFollower:
    """Follows the streams of a store; see the module.

    Args:
        data: a folder for what is made here.
        store: which.
        now_ms: the wall clock.
        read_only: says how changes are refused here.

    Attributes:
        read_only: see above.
    """

    _broker: Broker
    _held: Held
    _old_files: list[str]

    def __init__(
        self, data: str, store: CountedStore, now_ms: Callable[[], int], read_only: ReadOnly
    ) -> None:
        self.read_only = read_only
        self._data, self._store, self._now_ms = data, store, now_ms
        self._streams: dict[str, Followed] = {}  # by what their folders have in common
        self._list_at = 0.0
        self._looked_ms = 0
        self._has_changed = False  # which streams there are, perhaps
        self._away = ""
        self._since = 0
        self._logs, self._wals_changed = GrowingLogs(), Wakeup()
        self._tails_turn = trio.Lock()  # who changes tails
        self._slots_turn = trio.Lock()  # who reads slots
        self._num_tails, self._old_files, self._slot_fault = 0, [], ""
        self._log_wanted, self._log_was_read = Wakeup(), trio.lowlevel.ParkingLot()
        self._num_begun, self._num_read, self._log_fault = 0, 0, ""  # readings of the log
        self._showing = trio.Lock()  # who shows which streams there are
        self._num_looks, self._looked = 0, trio.lowlevel.ParkingLot()
        self._have_slots = trio.Event()
        self._began_at = -math.inf

    @property
    def cluster(self) -> Cluster:
        """What is known of the tier, once it was prepared."""
        return self._held.cluster

    # -- what those know that are made of this

    def _has_row(self, one: Followed) -> bool:
        """The catalog has a stream of which the store had something: it was not deleted."""
        raise NotImplementedError

    def _needs_slots(self) -> bool:
        """Somebody wants to know what is in no manifest yet."""
        return True

    async def _read_entries(self, entries: Sequence[Entry]) -> None:
        """The log of metadata has these, too."""

    async def _show_streams(self) -> None:
        """Have the streams that there are now."""

    async def _prepare_streams(self, found: Found) -> None:
        """Know what the store has now.

        Raises:
            TierError: it is away.
        """
        self._held, self._since = found.held, found.held.cluster.since
        await self._list()
        away = await self._look_at(list(self._streams.values()), seconds=60.0)
        if away is not None:
            raise away

    def _start(self, broker: Broker, supervisor: Supervisor, fetcher: Fetcher) -> None:
        """Follow from now on: fill in what others ask a broker for."""
        self._broker, self._began_at = broker, trio.current_time()
        fetcher.use(self._store)
        self._tell_figures()
        supervisor.start("reading the log of metadata", self.run_log)
        supervisor.start("following the tier", self.run)
        supervisor.start("following write-ahead logs", self.run_slots)

    # -- looking

    async def run(self) -> None:
        """Look at the store again and again, until cancelled."""
        while True:
            await trio.sleep(POLL_SECONDS)
            try:
                await self._look()
            except (TierError, CatalogError, FormatError) as error:
                if not self._away:
                    logger.warning("cannot look at the tier at the moment: %s", error)
                self._away = str(error)
            else:
                if self._away:
                    logger.info("the tier answers again")
                self._away = ""
                self._num_looks += 1
                self._looked.unpark_all()

    async def read_on(self) -> None:
        """Return when all is known and shown that the log of metadata has now.

        Raises:
            TierError: it cannot be read at the moment.
        """
        wanted = self._num_begun + 1
        self._log_wanted.set()
        while self._num_read < wanted:
            await self._log_was_read.park()
        if self._log_fault:
            raise TierError(self._log_fault)

    async def run_log(self) -> None:
        """Read the log of metadata whenever it is wanted, until cancelled."""
        while True:
            await self._log_wanted.wait()
            self._num_begun += 1
            fault = "the log of metadata could not be read; see the log of the server"
            try:
                await self._read_log()
                await self._show_what_changed()
                fault = ""
            except (SegmentsError, CatalogError) as error:
                fault = str(error)
            finally:
                self._num_read, self._log_fault = self._num_begun, fault
                self._log_was_read.unpark_all()

    async def _read_log(self) -> None:
        held, entries = await ask(claims.go_on, self._store, self._held)
        await self._read_entries(entries)
        if held.cluster.wals != self._held.cluster.wals:  # manifests have what is in none of them
            for one in self._streams.values():
                one.due_at = one.due_at if one.tail is None else 0.0
            self._wals_changed.set()
        self._held, self._looked_ms = held, self._now_ms()
        if held.cluster.since != self._since:  # another server has taken over
            self._since = held.cluster.since
            for one in self._streams.values():
                one.due_at = 0.0

    async def _show_what_changed(self) -> None:
        async with self._showing:
            if not self._has_changed:
                return
            self._has_changed = False
            try:
                await self._show_streams()
            except BaseException:
                self._has_changed = True
                raise

    async def _look(self) -> None:
        await self.read_on()
        held = self._held  # manifests that are read from now on have what it has no slots of
        if trio.current_time() >= self._list_at:
            await self._list()
        streams = in_turns(list(self._streams.values()))
        away = await self._look_at([one async for one in streams if self._is_due(one)])
        await self._show_what_changed()
        await self._show_manifests()
        await self._cut_tails(held, is_away=away is not None)
        if away is not None:  # perhaps for one stream alone: the others go on
            raise away

    async def _list(self) -> None:
        """See which streams there are in the store."""
        groups = by_stream(await ask(stream_folders, self._store))
        for prefix, folders in groups.items():
            one = self._streams.get(prefix)
            if one is None:
                self._streams[prefix] = Followed(folders)
            elif one.folders != folders:
                one.folders, one.due_at = folders, 0.0
        for prefix in self._streams.keys() - groups.keys():
            one = self._streams[prefix]
            if one.tail is None and not self._has_row(one):
                del self._streams[prefix]
                self._has_changed = True
        self._list_at = trio.current_time() + LIST_SECONDS

    def _is_due(self, one: Followed) -> bool:
        if trio.current_time() >= one.due_at:
            return True
        stream = self._stream_of(one)
        return stream is not None and stream.is_open

    async def _look_at(self, due: Sequence[Followed], seconds: float = 0.0) -> TierError | None:
        """Read the manifests of some streams; a store that is away is asked again so long.

        Returns:
            Why not all could be read; None where they were.
        """
        for one in due:
            one.due_at = _BEING_READ
        try:
            found = await each(self._read, due, seconds=seconds)
            if any(map(_is_doubtful, due, found)):  # the store may be another one since then
                await ask(claims.go_on, self._store, self._held)
            return self._take_all(due, found)
        finally:
            for one in due:
                one.due_at = 0.0 if one.due_at == _BEING_READ else one.due_at

    def _take_all(
        self, due: Sequence[Followed], found: Sequence[FoundManifest | SegmentsError | None]
    ) -> TierError | None:
        away: TierError | None = None
        for one, outcome in zip(due, found, strict=True):
            if isinstance(outcome, BadObjectError):
                self._take_fault(one, str(outcome))
            elif isinstance(outcome, TierError):
                away = outcome
            elif isinstance(outcome, SegmentsError):
                self._take_fault(one, str(outcome))
            else:
                self._take(one, outcome)
        return away

    def _read(self, one: Followed) -> FoundManifest | None:
        manifest, missing = one.manifest, ""
        if manifest is not None and manifest.stream.folder == one.folders[0]:
            try:
                found = read_changed(self._store, FoundManifest(manifest, one.etag))
            except MissingError:
                missing = manifest.stream.manifest
            else:
                check_not_older(self._store, manifest, found.manifest)
                if not found.manifest.is_deleted and found.manifest.epoch >= self._since:
                    row_of(found.manifest)  # it can be shown
                    return found
        newest = newest_manifest(self._store, one.folders, self._since)
        if newest is not None:
            row_of(newest.manifest)
        elif missing and self._has_row(one):
            raise BadObjectError(missing, "it is not there; is all of the tier there?")
        return newest

    def _take_fault(self, one: Followed, fault: str) -> None:
        if fault != one.fault:
            logger.error("%s", fault)
            one.fault = fault
            self._has_changed = True
        one.looked(self._now_ms(), has_changed=False)

    def _take(self, one: Followed, found: FoundManifest | None) -> None:
        """A manifest was read, or there is none any more."""
        tail = one.tail
        if found is not None and tail is not None and found.manifest.stream != tail.key:
            if found.manifest.stream.creation < tail.key.creation:
                found = None  # of an earlier life
            else:
                self._drop_tail(one)
        elif found is None and one.manifest is not None:
            self._drop_tail(one)  # it was deleted
        manifest, etag = (None, "") if found is None else found
        creation = one.creation
        has_changed = etag != one.etag or manifest != one.manifest or bool(one.fault)
        if manifest is not None and one.manifest is not None and _is_less(manifest, one.manifest):
            logger.error("stream %s: the tier has less of it than before", manifest.stream.stream)
            one.num_resets += 1
            self._has_changed = True
        had_fault = one.fault
        one.manifest, one.etag, one.fault = manifest, etag, ""
        if one.creation != creation or had_fault:
            self._has_changed = True
            one.stored = {} if one.creation != creation else one.stored
        one.looked(self._now_ms(), has_changed=has_changed)

    def _followed(self, host: str, name: str) -> Followed | None:
        return self._streams.get(_prefix(StreamKey(host, name, "")))

    def _stream_of(self, one: Followed) -> Stream | None:
        names = one.names
        if names is None:
            return None
        host = self._broker.virtual_hosts.get(names[0])
        return None if host is None else host.get_stream(names[1])

    async def _show_manifests(self) -> None:
        """Have open logs, and the figures of others, as the manifests say."""
        async for one in in_turns(list(self._streams.values())):
            stream, manifest = self._stream_of(one), one.manifest
            if stream is None or manifest is None:
                continue
            if not stream.is_open:
                self._tell(stream, one)
            elif _state(stream.log.stored.manifest) != _state(manifest):
                await self._show(stream, one, manifest)

    def _tell(self, stream: Stream, one: Followed) -> None:
        """Have the figures of a stream whose log is not open."""
        first = one.stored_to if one.manifest is None else one.manifest.first_offset
        last = one.tail.behind(one.stored_to)[-1:] if one.tail is not None else []
        end = last[0].next_offset if last else one.stored_to
        if _ends(stream.figures) != (first, end):
            stream.life.know(_figures(one))

    async def _show(self, stream: Stream, one: Followed, manifest: Manifest) -> None:
        try:
            tracking = await ask(tracking_of, self._store, manifest)
        except BadObjectError as error:
            logger.error("stream %s: %s; stored offsets are as before", stream.name, error)
            tracking = Tracking()
        _take_offsets(tracking, one)
        stored = tracking.offsets()
        opened = stream.life.opened_log
        if opened is not None and await opened.follow(
            manifest, lambda known: _merged(known, one.stored, tracking)
        ):
            one.stored = stored

    def _tell_figures(self) -> None:
        for one in self._streams.values():
            stream = self._stream_of(one)
            if stream is not None:
                stream.life.know(_figures(one))

    async def run_slots(self) -> None:
        """Read slots, and show what they have, again and again, until cancelled."""
        try:
            await self._follow_slots()
        finally:  # whoever opens a log is shielded, and would wait in vain
            self._have_slots.set()

    async def _follow_slots(self) -> None:
        used_at = -math.inf
        while True:
            fault = ""
            try:
                if self._needs_slots() and await self.read_slots():
                    used_at = trio.current_time()
                self._have_slots.set()
            except SegmentsError as error:
                fault = f"write-ahead logs are not followed at the moment: {error}"
            if fault and not self._slot_fault:
                logger.error("%s", fault)
            elif self._slot_fault and not fault:
                logger.info("write-ahead logs are followed again")
            self._slot_fault = fault
            is_idle = trio.current_time() - used_at > _SLOTS_IDLE_SECONDS
            with trio.move_on_after(POLL_SECONDS if is_idle else SLOT_SECONDS):
                await self._wals_changed.wait()

    async def read_slots(self) -> bool:
        """Read and show what there is; whether there was something.

        Raises:
            BadObjectError: a slot cannot be used.
            TierError: the store is away.
        """
        async with self._slots_turn:
            return await self._read_slots()

    async def _read_slots(self) -> bool:
        has_some = False
        while True:
            used = sum(one.tail.size for one in self._streams.values() if one.tail is not None)
            if used > _MOST_TAILS:
                raise TierError(
                    f"they have {used:,} bytes that are in no manifest, expected {_MOST_TAILS:,} "
                    "at most; does the server that writes upload?"
                )
            slots = await self._logs.read(self._store, self._held.cluster)
            async with self._tails_turn:
                for slot in slots:
                    await self._take_slot(slot)
            await self._show_tails()
            if not slots:
                return has_some
            has_some = True

    async def _take_slot(self, slot: ReadSlot) -> None:
        at, taken = WalMark(slot.slot.epoch, slot.slot.slot), []
        for section, chunks in zip(slot.slot.sections, slot.parts, strict=True):
            one = self._streams.setdefault(_prefix(section.key), Followed([]))
            is_stored = section.next_offset <= one.stored_to and not section.offsets
            if section.creation < one.creation or (is_stored and section.creation == one.creation):
                continue
            if section.is_deleted:
                self._drop_tail(one)
                self._has_changed = True
            else:
                taken.append((self._tail_of(one, section.key), section, chunks))
        await threads.in_thread(_add, at, taken)

    def _tail_of(self, one: Followed, key: StreamKey) -> StoredTail:
        """The tail of a life of a stream, which is shown from now on."""
        if one.tail is None or one.tail.key != key:
            self._drop_tail(one)
            creation = one.creation
            if creation != key.creation:
                one.manifest, one.etag, one.stored = None, "", {}
                self._has_changed = True
            self._num_tails += 1
            one.tail = StoredTail(key, str(Path(self._data, TAILS, f"{self._num_tails}.0")))
        return one.tail

    def _drop_tail(self, one: Followed) -> None:
        if one.tail is not None:
            self._old_files.append(one.tail.path)
            one.tail = None

    async def _cut_tails(self, held: Held, *, is_away: bool) -> None:
        """Forget what manifests have."""
        begins = min(held.cluster.wals, default=WalMark(held.cluster.epoch + 1, 0))
        async with self._tails_turn:
            gone, self._old_files = self._old_files, []  # readers of those have had their time
            for one in list(self._streams.values()):
                tail = one.tail
                if tail is None or one.manifest is None:
                    continue
                if tail.has_before(one.stored_to):
                    self._old_files.append(await threads.in_thread(tail.cut, one.stored_to))
                if tail.is_empty and tail.last_slot < begins and not is_away:
                    self._drop_tail(one)
        await threads.in_thread(_remove, gone)

    async def _show_tails(self) -> None:
        """Have open logs, and the figures of others, as the tails say."""
        for one in [one for one in self._streams.values() if one.tail is not None]:
            stream, tail = self._stream_of(one), one.tail
            if stream is None or tail is None:
                continue
            if stream.is_open:
                await self._show_tail(stream, one, tail)
            else:
                self._tell(stream, one)

    async def _show_tail(self, stream: Stream, one: Followed, tail: StoredTail) -> None:
        opened, life = stream.life.opened_log, tail.key.creation
        while opened is not None and opened.log.life in ("", life):
            end = opened.log.next_offset
            parts = tail.behind(end)[:1]
            if not parts:
                changed, tail.changed_offsets = tail.changed_offsets, {}
                _store_offsets(opened.log.journal.tracking, one.stored, changed)
                return
            chunks = await threads.in_thread(lambda read: list(read()), tail.chunks(parts))
            if (
                not await opened.follow_tail(chunks, life, tail.marks)
                or opened.log.next_offset == end
            ):
                return

    def remote(self, virtual_host: Name, name: Name) -> Remote | None:  # noqa: ARG002 - of others
        """See resources.FolderSource."""
        return None

    async def make_folder(self, virtual_host: Name, name: Name, folder: str) -> Following | None:
        """See resources.FolderSource."""
        # Before that it would end before what an earlier life of this server has shown.
        with trio.move_on_at(self._began_at + _OPEN_SECONDS):
            await self._have_slots.wait()
        one = self._followed(virtual_host, name) or Followed([])
        manifest, tracking = one.manifest, Tracking()
        if manifest is not None:
            try:
                wait = partial(retry_store, seconds=_OPEN_SECONDS)
                tracking = await wait(tracking_of, self._store, manifest)
            except BadObjectError:
                one.due_at = 0.0  # a newer manifest has another one, and this one was removed
                raise
        elif one.fault:
            raise UnrestoredError(one.fault)
        _take_offsets(tracking, one)
        stored, tail, life = tracking.offsets(), one.tail, one.creation
        parts = [] if tail is None else tail.behind(0 if manifest is None else manifest.next_offset)
        found = None if tail is None else Following(tail.chunks(parts), tail.marks)
        await threads.in_thread(_make_folder, folder, manifest, life, one.stored, tracking)
        one.stored = stored
        return found

    def stream(self, virtual_host: Name, name: Name) -> StreamTier | None:
        """See TierReports."""
        one = self._followed(virtual_host, name)
        if one is None:
            return None
        manifest = one.manifest
        return StreamTier(
            name=name,
            vhost=virtual_host,
            bytes_local=0,
            segments_local=0,
            bytes_remote=0 if manifest is None else manifest.size,
            segments_remote=0 if manifest is None else len(manifest.segments),
            bytes_waiting=0,
            segments_waiting=0,
            oldest_waiting_seconds=None,
            sentence=one.fault,
            looked_seconds=seconds_between(one.looked_ms, self._now_ms()),
        )


def _ends(figures: LogFigures | None) -> tuple[int, int]:
    return (-1, -1) if figures is None else (figures.first_offset, figures.next_offset)


def _prefix(key: StreamKey) -> str:
    """What the folders of all lives of a stream have in common."""
    return key._replace(creation="").folder.removesuffix("~")


def _add(at: WalMark, taken: Iterable[tuple[StoredTail, Section, memoryview]]) -> None:
    for tail, section, chunks in taken:
        tail.add(at, section, chunks)


def _remove(paths: Iterable[str]) -> None:
    for path in paths:
        OsDisk().remove(path)


def _is_doubtful(one: Followed, found: FoundManifest | SegmentsError | None) -> bool:
    """The store has less of a stream than before."""
    if one.manifest is None or isinstance(found, SegmentsError):
        return False
    return found is None or _is_less(found.manifest, one.manifest)


def _is_less(now: Manifest, before: Manifest) -> bool:
    """A manifest of the same stream ends before one that was there earlier."""
    return now.stream == before.stream and now.next_offset < before.next_offset


def _state(manifest: Manifest | None) -> tuple[str, int, int]:
    """What differs after every change of a manifest."""
    return (
        ("", 0, 0)
        if manifest is None
        else (
            manifest.stream.creation,
            manifest.epoch,
            manifest.revision,
        )
    )


def _merged(known: Tracking, before: dict[bytes, int], stored: Tracking) -> Tracking:
    """What is stored, and the offsets that consumers have stored here.

    Args:
        known: what was known here.
        before: offsets that were taken over from the store.
        stored: what the store has now.
    """
    merged = Tracking.from_snapshot(stored.snapshot_blocks())
    pending = {block.id for block in known.pending_blocks()}
    for reference, offset in known.offsets().items():
        if before.get(reference) == offset:
            continue
        if reference in pending:
            merged.store_offset(reference, offset)
        else:
            merged.apply([Block(OFFSET, reference, offset)], 0)
    return merged


def _make_folder(
    folder: str,
    manifest: Manifest | None,
    life: str,
    before: dict[bytes, int],
    stored: Tracking,
) -> None:
    """Make what a log is opened from; indexes that are there stay. Blocks.

    Raises:
        StorageError: the system refused.
    """
    disk: Disk = OsDisk()
    disk.make_folder(folder)
    journal = Path(folder, JOURNAL_NAME)
    known = Tracking()
    if journal.exists():
        known = tracking_in(journal.read_bytes(), MAX_OFFSET)
    bases = {one.base_offset for one in manifest.segments} if manifest is not None else set()
    for name in disk.list(folder):
        parsed = parse_name(name)
        if parsed is None or parsed[1] == SEGMENT_SUFFIX or parsed[0] not in bases:
            disk.remove(str(Path(folder, name)))
    next_offset = 0
    if life:
        put_mark(disk, folder, LIFE, life)
    if manifest is not None:
        next_offset = manifest.next_offset
        content = encode_manifest(manifest)
        replace_file(disk, str(Path(folder, MANIFEST_FILE)), content, is_synced=False).close()
    content = journal_of(_merged(known, before, stored), next_offset)
    replace_file(disk, str(journal), content, is_synced=False).close()


def _take_offsets(tracking: Tracking, one: Followed) -> None:
    """Note offsets that write-ahead logs have, later than the manifest."""
    if one.tail is not None:
        _store_offsets(tracking, tracking.offsets(), one.tail.offsets)
        one.tail.changed_offsets = {}


def _store_offsets(
    tracking: Tracking, before: dict[bytes, int], changed: Mapping[bytes, int | None]
) -> None:
    """Note offsets of consumers that have stored none here.

    Args:
        tracking: what is known here.
        before: offsets that were taken over from the store; gets the others, too.
        changed: None for those that were forgotten.
    """
    for reference, offset in changed.items():
        is_of_store = tracking.offset(reference) == before.pop(reference, None)
        if offset is not None:
            before[reference] = offset
            if is_of_store:
                tracking.apply([Block(OFFSET, reference, offset)], 0)  # nothing is to be written
        elif is_of_store:
            tracking.delete_offset(reference)


def _figures(one: Followed) -> LogFigures:
    """What a log has that is as the manifest says, and the tail."""
    found = NO_FIGURES if one.manifest is None else _stored_figures(one.manifest)
    tail = one.tail
    parts = [] if tail is None else tail.behind(one.stored_to)
    if tail is None or not parts:
        return found
    first, first_ms = found.first_chunk_id, found.first_timestamp_ms
    return found._replace(
        next_offset=parts[-1].next_offset,
        first_chunk_id=parts[0].first if first is None else first,
        last_chunk_id=tail.last_chunk_id,
        num_chunks=found.num_chunks + sum(part.num_chunks for part in parts),
        size=found.size + sum(part.size for part in parts),
        first_timestamp_ms=first_ms or tail.last_timestamp_ms or 0,
        last_timestamp_ms=tail.last_timestamp_ms or 0,
        life=tail.key.creation,
        gaps=found.gaps.and_more(part.gap for part in parts),
    )


def _stored_figures(manifest: Manifest) -> LogFigures:
    segments = manifest.segments
    if not segments:
        return NO_FIGURES._replace(
            first_offset=manifest.next_offset,
            next_offset=manifest.next_offset,
            life=manifest.stream.creation,
        )
    lost = sum(d.next_offset - d.first_offset for one in segments for d in one.damage)
    last = [one.last_chunk_id for one in segments if one.last_chunk_id is not None]
    return LogFigures(
        segments[0].base_offset,
        manifest.next_offset,
        segments[0].base_offset if last else None,
        last[-1] if last else None,
        lost,
        sum(one.num_chunks for one in segments),
        len(segments) + 1,
        manifest.size,
        next((one.first_timestamp_ms for one in segments if one.first_timestamp_ms), 0),
        next((one.last_timestamp_ms for one in reversed(segments) if one.last_timestamp_ms), 0),
        None,
        0,
        life=manifest.stream.creation,
        gaps=Gaps(Gap.between(a.next_offset, b.base_offset) for a, b in pairwise(segments)),
    )


def seconds_between(looked_ms: int, now_ms: int) -> float | None:
    """How long ago the store answered; None where it never has."""
    return max(0, now_ms - looked_ms) / 1_000 if looked_ms else None
