"""A server that only reads: it follows what another one stores in the tier.

Theory of operation. What the store has is looked at again and again, and never written to:

    the cluster object    every POLL_SECONDS; it names the copy of the catalog, which is read when
                          it is another one
    folders of streams    every LIST_SECONDS, and with each copy of the catalog: new streams
    manifests             every POLL_SECONDS those of streams whose logs are open, and those that
                          have changed; the others more and more seldom, up to IDLE_SECONDS

A stream is there when the catalog has it, or a manifest that is not deleted. It is another one when
its creation id is another. Users and permissions are those of the catalog.

The log of a stream is opened when somebody wants it, from a folder that is made just then: a copy
of the manifest, and the journal of publishers and consumers (`prepare`). While it is open, it is
told of each manifest that is newer (`Log.follow`), and consumers at its end are woken. A log that
is opened while a newer manifest arrives is told with the next look.

An offset that a consumer stores here counts here, until the server ends. Those that are stored on
the server that writes are taken over where the consumer has stored none here.

All that is in the data folder is scratch, and goes with the next start.

A store that is away is asked again; consumers read what is in the cache, and wait for the rest.
A manifest that cannot be used keeps its stream as it was, or makes it unavailable if there was
nothing before; `streamd stream info` says so.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

import trio

from segments.atomic_write import replace_file
from segments.disk import Disk, OsDisk
from segments.errors import FormatError, SegmentsError, UnrestoredError
from segments.gaps import Gap, Gaps
from segments.journal import JOURNAL_NAME, journal_of, tracking_in
from segments.segment import MAX_OFFSET, SEGMENT_SUFFIX, parse_name
from segments.store.cluster import CatalogCopy
from segments.store.local_copy import MANIFEST_FILE
from segments.store.lookup import (
    BadObjectError,
    FoundManifest,
    by_stream,
    newest_manifest,
    read_changed,
    stream_folders,
)
from segments.store.manifest import Manifest, encode_manifest
from segments.store.manifest_store import check_not_older
from segments.store.object_names import StreamKey, names_in
from segments.store.object_store import MissingError, ObjectStore, TierError
from segments.tracking import Tracking
from streamd.broker.broker import Broker
from streamd.broker.catalog.catalog import CATALOG_FILE, CatalogError, Contents
from streamd.broker.declared.rows import PermissionRow, StreamRow, UserRow
from streamd.broker.read_only import ReadOnlyError
from streamd.broker.streams.log_figures import NO_FIGURES, LogFigures
from streamd.broker.streams.stream import Stream
from streamd.broker.tier import claims
from streamd.broker.tier.patience import each, retry_store
from streamd.broker.tier.requests import CountedStore, ask
from streamd.broker.tier.restore import (
    SCRATCH,
    SQLITE_SUFFIXES,
    STREAMS,
    RestoreError,
    Stored,
    catalog_copy,
    put_catalog,
    read_all,
    row_of,
    row_with,
    tracking_of,
    usable_catalog,
)
from streamd.net import threads
from streamd.net.turns import in_turns
from streamd.operations.names import Name, as_sent
from streamd.operations.tier_reports import (
    Collected,
    StreamTier,
    TierState,
    TierStatus,
    Uploaded,
    Verification,
)

logger = logging.getLogger(__name__)

POLL_SECONDS = 2.0
LIST_SECONDS = 10.0
IDLE_SECONDS = 60.0
_OPEN_SECONDS = 10.0  # that opening a log waits for the store
_NEW_CATALOG = "catalog-copy"  # a folder of the data folder


class Directory(Protocol):
    """Users and their permissions."""

    def follow(self, users: Sequence[UserRow], permissions: Sequence[PermissionRow]) -> None:
        """Know these, and nothing else."""


@dataclass
class _Followed:
    """A stream of the store, as it was when somebody looked last.

    Attributes:
        folders: of all of its lives, that created last first.
        manifest: None where all are deleted, or nothing could be read.
        fault: why the manifest cannot be used.
        looked_ms: when the store answered last, in ms since 1970.
        pause: seconds between two looks, while nothing changes.
        due_at: when to look again, by trio's clock.
        stored: offsets of consumers as the store had them when they were taken over last.
        num_resets: how often it had less than before: an older state of the store is back.
    """

    folders: list[str]
    manifest: Manifest | None = None
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
        return f"{_creation(self.manifest)}-{self.num_resets}" if self.manifest is not None else ""

    @property
    def names(self) -> tuple[Name, Name] | None:
        """Virtual host and stream; None where that is not known."""
        manifest = self.manifest
        found = names_in(self.folders[0]) if manifest is None else manifest.stream[:2]
        return None if found is None else (as_sent(found[0]), as_sent(found[1]))

    def looked(self, now_ms: int, *, has_changed: bool) -> None:
        """The store has answered; the less changes, the later it is asked again."""
        self.looked_ms = now_ms
        self.pause = POLL_SECONDS if has_changed else min(2 * self.pause, IDLE_SECONDS)
        self.due_at = trio.current_time() + self.pause


class _Copied(NamedTuple):
    """What a copy of the catalog says."""

    copy: CatalogCopy | None
    contents: Contents
    users: list[UserRow]
    permissions: list[PermissionRow]


class Follower:
    """Follows the server that writes; see the module.

    Args:
        now_ms: the wall clock.
    """

    _broker: Broker
    _directory: Directory
    _catalog: _Copied
    _held: claims.Held

    def __init__(self, data: str, store: ObjectStore, url: str, now_ms: Callable[[], int]) -> None:
        self._data = data
        self._store = CountedStore(store)
        self._url = url
        self._now_ms = now_ms
        self._streams: dict[str, _Followed] = {}  # by what their folders have in common
        self._shown: dict[tuple[Name, Name], tuple[StreamRow, str]] = {}
        self._list_at = 0.0
        self._looked_ms = 0
        self._has_changed = False  # which streams there are, perhaps
        self._away = ""
        self._writer = ""
        self._epoch = self._since = 0

    # -- the start

    async def prepare(self) -> None:
        """Make the data folder anew, with what the store has now.

        Raises:
            RestoreError: it cannot be done.
        """
        try:
            held = await retry_store(claims.look, self._store)
            self._looked_ms = self._now_ms()
            if held is None:
                raise RestoreError(
                    f"there is nothing in the tier {self._store} to read: start the server that "
                    "writes first, or look at the address"
                )
            await threads.in_thread(self._clear)
            self._held, self._since = held, held.cluster.since
            await self._read_catalog(held)
            await self._list()
            away = await self._look_at(list(self._streams.values()), seconds=60.0)
            if away is not None:
                raise away
            copy = Path(self._data, _NEW_CATALOG, CATALOG_FILE)
            content = await threads.in_thread(copy.read_bytes)
            followed = [(r, self._followed(r.virtual_host, r.name)) for r in self._rows()]
            stored = [Stored(row, None if one is None else one.manifest) for row, one in followed]
            await threads.in_thread(put_catalog, self._data, content, stored)
        except (SegmentsError, CatalogError, OSError) as error:
            raise RestoreError(f"cannot read the tier: {error}") from error

    def _clear(self) -> None:
        """Throw away what is in the folder.

        Raises:
            RestoreError: it is that of another server.
        """
        disk, marker = OsDisk(), Path(self._data, SCRATCH)
        catalog = Path(self._data, CATALOG_FILE)
        if not marker.exists():
            if catalog.exists() or any(Path(self._data, STREAMS).glob("*/*")):
                raise RestoreError(
                    f"the data folder {self._data} is that of a server that writes; a read-only "
                    "one throws its files away: choose another with --data"
                )
            replace_file(disk, str(marker), b"").close()
            disk.sync_folder(self._data)
        for name in (STREAMS, _NEW_CATALOG, "trash", "orphans"):
            if Path(self._data, name).exists():
                disk.remove_folder(str(Path(self._data, name)))
        for suffix in SQLITE_SUFFIXES:
            disk.remove(str(catalog) + suffix)

    def begin(self, broker: Broker, directory: Directory) -> None:
        """Follow from now on.

        Args:
            broker: has what the catalog says that `prepare` has made.
            directory: the same.
        """
        self._broker, self._directory = broker, directory
        broker.tier = self
        broker.fetcher.use(self._store)
        self._note_shown()
        self._tell_figures()
        broker.supervisor.start("following the tier", self.run)

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

    async def _look(self) -> None:
        held = await ask(claims.look_again, self._store, self._held)
        self._held, self._looked_ms = held, self._now_ms()
        if held.cluster.since != self._since:  # another server has taken over
            self._since = held.cluster.since
            for one in self._streams.values():
                one.due_at = 0.0
        if held.cluster.catalog != self._catalog.copy:
            await self._read_catalog(held)
            self._has_changed, self._list_at = True, 0.0
            self._directory.follow(self._catalog.users, self._catalog.permissions)
        if trio.current_time() >= self._list_at:
            await self._list()
        streams = in_turns(list(self._streams.values()))
        away = await self._look_at([one async for one in streams if self._is_due(one)])
        if self._has_changed:
            await self._show_streams()
        await self._show_manifests()
        if away is not None:  # perhaps for one stream alone: the others go on
            raise away

    async def _read_catalog(self, held: claims.Held) -> None:
        self._writer, self._epoch = held.cluster.writer, held.cluster.epoch
        content = await ask(catalog_copy, self._store, held.cluster.catalog)
        if content is None:
            raise TierError("there is no copy of the catalog yet; the server that writes makes one")
        self._catalog = await threads.in_thread(self._open_catalog, content, held.cluster.catalog)

    def _open_catalog(self, content: bytes, copy: CatalogCopy | None) -> _Copied:
        """What a copy of the catalog says; blocks."""
        disk, folder = OsDisk(), Path(self._data, _NEW_CATALOG)
        disk.make_folder(str(folder))
        for suffix in SQLITE_SUFFIXES:
            disk.remove(str(folder / CATALOG_FILE) + suffix)
        replace_file(disk, str(folder / CATALOG_FILE), content, is_synced=False).close()
        with usable_catalog(str(folder)) as catalog:
            return _Copied(copy, *read_all(catalog))

    async def _list(self) -> None:
        """See which streams there are in the store."""
        groups = by_stream(await ask(stream_folders, self._store))
        for prefix, folders in groups.items():
            one = self._streams.get(prefix)
            if one is None:
                self._streams[prefix] = _Followed(folders)
            elif one.folders != folders:
                one.folders, one.due_at = folders, 0.0
        for prefix in self._streams.keys() - groups.keys():
            if not self._is_named(self._streams[prefix]):
                del self._streams[prefix]
                self._has_changed = True
        self._list_at = trio.current_time() + LIST_SECONDS

    def _is_named(self, one: _Followed) -> bool:
        """The catalog has a stream of which the store had something: it was not deleted."""
        rows = self._catalog.contents.streams
        return one.manifest is not None and any(one.names == (r.virtual_host, r.name) for r in rows)

    def _is_due(self, one: _Followed) -> bool:
        if trio.current_time() >= one.due_at:
            return True
        stream = self._stream_of(one)
        return stream is not None and stream.is_open

    async def _look_at(self, due: Sequence[_Followed], seconds: float = 0.0) -> TierError | None:
        """Read the manifests of some streams; a store that is away is asked again so long.

        Returns:
            Why not all could be read; None where they were.
        """
        found = await each(self._read, due, seconds=seconds)
        if any(map(_is_doubtful, due, found)):  # the store may be another one since it was looked
            self._held = await ask(claims.look_again, self._store, self._held)
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

    def _read(self, one: _Followed) -> FoundManifest | None:
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
        elif missing and self._is_named(one):
            raise BadObjectError(missing, "it is not there; is all of the tier there?")
        return newest

    def _take_fault(self, one: _Followed, fault: str) -> None:
        if fault != one.fault:
            logger.error("%s", fault)
            one.fault = fault
            self._has_changed = True
        one.looked(self._now_ms(), has_changed=False)

    def _take(self, one: _Followed, found: FoundManifest | None) -> None:
        """A manifest was read, or there is none any more."""
        manifest, etag = (None, "") if found is None else found
        has_changed = etag != one.etag or manifest != one.manifest or bool(one.fault)
        if _creation(manifest) != _creation(one.manifest) or one.fault:
            self._has_changed = True
            one.stored = {} if _creation(manifest) != _creation(one.manifest) else one.stored
        if manifest is not None and one.manifest is not None and _is_less(manifest, one.manifest):
            logger.error("stream %s: the tier has less of it than before", manifest.stream.stream)
            one.num_resets += 1
            self._has_changed = True
        one.manifest, one.etag, one.fault = manifest, etag, ""
        one.looked(self._now_ms(), has_changed=has_changed)

    # -- showing

    def _rows(self) -> list[StreamRow]:
        """All streams: those of the catalog, and those that it does not know yet."""
        rows = {(row.virtual_host, row.name): row for row in self._catalog.contents.streams}
        for one in self._streams.values():
            names = one.names
            if names is None:
                continue
            if one.manifest is not None:
                rows[names] = row_with(one.manifest, rows.get(names))
            elif one.fault and names not in rows:
                rows[names] = StreamRow(*names, {}, has_files=True)
        return list(rows.values())

    def _life(self, row: StreamRow) -> str:
        one = self._followed(row.virtual_host, row.name)
        return "" if one is None else one.life

    def _followed(self, host: str, name: str) -> _Followed | None:
        return self._streams.get(StreamKey(host, name, "").folder.removesuffix("~"))

    def _stream_of(self, one: _Followed) -> Stream | None:
        names = one.names
        if names is None:
            return None
        host = self._broker.virtual_hosts.get(names[0])
        return None if host is None else host.get_stream(names[1])

    def _note_shown(self) -> None:
        rows = self._rows()
        self._shown = {(r.virtual_host, r.name): (r, self._life(r)) for r in rows}
        self._has_changed = False

    async def _show_streams(self) -> None:
        """Have the streams, exchanges and virtual hosts that there are now."""
        rows = self._rows()
        again = set()
        for row in rows:
            before, life = self._shown.get((row.virtual_host, row.name), (row, ""))
            is_another = bool(life) and self._life(row) != life
            if is_another or before.arguments != row.arguments:
                again.add((row.virtual_host, row.name))
        hosts = dict.fromkeys(self._catalog.contents.virtual_hosts)
        hosts |= dict.fromkeys(row.virtual_host for row in rows)
        contents = self._catalog.contents._replace(virtual_hosts=list(hosts), streams=rows)
        await self._broker.follow(contents, again)
        self._note_shown()

    async def _show_manifests(self) -> None:
        """Have open logs, and the figures of others, as the manifests say."""
        async for one in in_turns(list(self._streams.values())):
            stream, manifest = self._stream_of(one), one.manifest
            if stream is None or manifest is None:
                continue
            if not stream.is_open:
                if _ends(stream.figures) != (manifest.first_offset, manifest.next_offset):
                    stream.life.know(_figures(manifest))
            elif _state(stream.log.stored.manifest) != _state(manifest):
                await self._show(stream, one, manifest)

    async def _show(self, stream: Stream, one: _Followed, manifest: Manifest) -> None:
        try:
            tracking = await ask(tracking_of, self._store, manifest)
        except BadObjectError as error:
            logger.error("stream %s: %s; stored offsets are as before", stream.name, error)
            tracking = Tracking()
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
                stream.life.know(NO_FIGURES if one.manifest is None else _figures(one.manifest))

    # -- folders, see resources.FolderSource

    async def make_folder(self, virtual_host: Name, name: Name, folder: str) -> None:
        """See resources.FolderSource."""
        one = self._followed(virtual_host, name)
        if one is None or (one.manifest is None and not one.fault):
            await threads.in_thread(_make_folder, folder, None, {}, Tracking())
            return
        if one.manifest is None:
            raise UnrestoredError(one.fault)
        manifest = one.manifest
        tracking = await retry_store(tracking_of, self._store, manifest, seconds=_OPEN_SECONDS)
        stored = tracking.offsets()
        await threads.in_thread(_make_folder, folder, manifest, one.stored, tracking)
        one.stored = stored

    # -- reports, see reports.TierReports

    async def status(self) -> TierStatus:
        """See TierReports."""
        manifests = [one.manifest for one in self._streams.values() if one.manifest is not None]
        return TierStatus(
            url=self._url,
            state=TierState.AWAY if self._away else TierState.OK,
            sentence=self._away,
            epoch=self._epoch,
            writer=self._writer,
            num_streams=len(manifests),
            bytes_remote=sum(manifest.size for manifest in manifests),
            cache_bytes=self._broker.fetcher.cache.num_bytes,
            requests={**TierStatus().requests, **self._store.requests},
            transferred={**TierStatus().transferred, **self._store.transferred},
            errors=self._store.errors,
            looked_seconds=_seconds_between(self._looked_ms, self._now_ms()),
        )

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
            looked_seconds=_seconds_between(one.looked_ms, self._now_ms()),
        )

    async def verify(self, virtual_host: Name, name: Name) -> Verification:  # noqa: ARG002
        """See TierReports; the server that writes does it."""
        raise ReadOnlyError

    async def collect(self, *, dry_run: bool) -> Collected:  # noqa: ARG002
        """See TierReports; the server that writes does it."""
        raise ReadOnlyError

    async def upload(
        self,
        virtual_host: Name,  # noqa: ARG002
        names: Collection[Name],  # noqa: ARG002
        seconds: float,  # noqa: ARG002
    ) -> Uploaded:
        """See TierReports; the server that writes does it."""
        raise ReadOnlyError


def _ends(figures: LogFigures | None) -> tuple[int, int]:
    return (-1, -1) if figures is None else (figures.first_offset, figures.next_offset)


def _creation(manifest: Manifest | None) -> str:
    return "" if manifest is None else manifest.stream.creation


def _is_doubtful(one: _Followed, found: FoundManifest | SegmentsError | None) -> bool:
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
    for reference, offset in known.offsets().items():
        if before.get(reference) != offset:
            merged.store_offset(reference, offset)
    return merged


def _make_folder(
    folder: str, manifest: Manifest | None, before: dict[bytes, int], stored: Tracking
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
    if manifest is not None:
        next_offset = manifest.next_offset
        content = encode_manifest(manifest)
        replace_file(disk, str(Path(folder, MANIFEST_FILE)), content, is_synced=False).close()
    content = journal_of(_merged(known, before, stored), next_offset)
    replace_file(disk, str(journal), content, is_synced=False).close()


def _figures(manifest: Manifest) -> LogFigures:
    """What a log has that is as the manifest says."""
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


def _seconds_between(looked_ms: int, now_ms: int) -> float | None:
    return max(0, now_ms - looked_ms) / 1_000 if looked_ms else None
