"""A server that only reads: it follows what another one stores in the tier.

Theory of operation. The log of metadata is looked at every POLL_SECONDS, from where it was read to;
the rows that it has are written into a copy of the catalog here. What there is of streams, see
stream_follower.py. Nothing is ever written into the store.

A stream is there when the catalog has it, or a manifest that is not deleted. It is another one when
its creation id is another. Users and permissions are those of the catalog.

All that is in the data folder is scratch, and goes with the next start.
"""

import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from segments.atomic_write import replace_file
from segments.disk import OsDisk
from segments.errors import SegmentsError
from segments.store.metadata_log import Entry, Found
from segments.store.object_store import ObjectStore
from streamd.broker.broker import Broker
from streamd.broker.catalog.catalog import CATALOG_FILE, CatalogError, Contents
from streamd.broker.catalog.unlogged import Unlogged
from streamd.broker.declared.rows import PermissionRow, StreamRow, UserRow
from streamd.broker.nodes.leftovers import Kept, together
from streamd.broker.read_only import ReadOnly
from streamd.broker.stream_follower import Followed, StreamFollower, seconds_between
from streamd.broker.tier import claims
from streamd.broker.tier.folding import make_catalog
from streamd.broker.tier.patience import retry_store
from streamd.broker.tier.requests import CountedStore
from streamd.broker.tier.restore import (
    CATALOG_COPY,
    SCRATCH,
    SQLITE_SUFFIXES,
    STREAMS,
    TAILS,
    RestoreError,
    Stored,
    put_streams,
    read_all,
    row_with,
    usable_catalog,
)
from streamd.net import threads
from streamd.operations.arguments import CONFIRM, STORE
from streamd.operations.names import Name
from streamd.operations.tier_reports import (
    Collected,
    TierState,
    TierStatus,
    Uploaded,
    Verification,
)


class Directory(Protocol):
    """Users and their permissions."""

    def follow(self, users: Sequence[UserRow], permissions: Sequence[PermissionRow]) -> None:
        """Know these, and nothing else."""


class _Copied(NamedTuple):
    """What the catalog says."""

    contents: Contents
    users: list[UserRow]
    permissions: list[PermissionRow]


class Follower(StreamFollower):
    """Follows the server that writes; see the module.

    Args:
        data: the data folder.
        store: the tier.
        url: of it.
        now_ms: the wall clock.
        read_only: says how changes are refused here.
        keeps_orphans: those in the data folder are of an earlier life of it.
    """

    _directory: Directory
    _catalog: _Copied

    def __init__(
        self,
        data: str,
        store: ObjectStore,
        url: str,
        now_ms: Callable[[], int],
        read_only: ReadOnly | None = None,
        *,
        keeps_orphans: bool = False,
    ) -> None:
        super().__init__(data, CountedStore(store), now_ms, read_only or ReadOnly())
        self._keeps_orphans, self._url = keeps_orphans, url
        self._shown: dict[tuple[Name, Name], tuple[StreamRow, str]] = {}

    # -- the start

    async def prepare(self) -> None:
        """Make the data folder anew, with what the store has now.

        Raises:
            RestoreError: it cannot be done.
        """
        try:
            found = await retry_store(claims.find, self._store)
            self._looked_ms = self._now_ms()
            if found is None:
                raise RestoreError(
                    f"there is nothing in the tier {self._store} to read: start the server that "
                    "writes first, or look at the address"
                )
            if found.held.earlier is not None:
                raise RestoreError(
                    f"the tier {self._store} is of an earlier version: start the server that "
                    "writes with this version first"
                )
            await threads.in_thread(self._clear)
            await threads.in_thread(self._make_catalog, found)
            await self._prepare_streams(found)
            followed = [(r, self._followed(r.virtual_host, r.name)) for r in self._rows()]
            stored = [Stored(row, None if one is None else one.manifest) for row, one in followed]
            await threads.in_thread(self._put_catalog, stored)
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
        kept = () if self._keeps_orphans else ("orphans",)
        for name in (STREAMS, CATALOG_COPY, TAILS, "trash", *kept):
            if Path(self._data, name).exists():
                disk.remove_folder(str(Path(self._data, name)))
        disk.make_folder(str(Path(self._data, TAILS)))
        for suffix in SQLITE_SUFFIXES:
            disk.remove(str(catalog) + suffix)

    def begin(self, broker: Broker, directory: Directory) -> None:
        """Follow from now on.

        Args:
            broker: has what the catalog says that `prepare` has made.
            directory: the same.
        """
        self._directory = directory
        broker.tier = self
        self._start(broker, broker.supervisor, broker.fetcher)
        self._shown = self._to_show(self._rows())

    async def settled(self) -> None:
        """Return when all is known that the store has now: first what slots have."""
        await self._have_slots.wait()
        for one in self._streams.values():
            one.due_at = 0.0
        wanted = self._num_looks + 2  # the next one may have begun
        while self._num_looks < wanted:
            await self._looked.park()

    def has_local(self, confirm: str) -> bool:
        """Whether there are streams that do not wait for the store; `confirm` is the default."""
        rows = self._catalog.contents.streams
        return any(row.effective.get(CONFIRM, confirm) != STORE for row in rows)

    def kept(self, virtual_host: Name, name: Name) -> Kept:
        """What the store has of a stream."""
        one = self._followed(virtual_host, name)
        if one is None or not one.creation or one.fault:  # all of it is kept then
            return Kept("", [])
        ranges = [] if one.tail is None else one.tail.ranges
        if one.manifest is not None:
            ranges += [(part.base_offset, part.next_offset) for part in one.manifest.segments]
        return Kept(one.creation, together(ranges))

    def _has_row(self, one: Followed) -> bool:
        """See StreamFollower; one without files is another one, declared under its name."""
        rows = [row for row in self._catalog.contents.streams if row.has_files]
        return one.manifest is not None and any(one.names == (r.virtual_host, r.name) for r in rows)

    async def _read_entries(self, entries: Sequence[Entry]) -> None:
        """See StreamFollower."""
        if any(entry.rows for entry in entries):
            await threads.in_thread(self._read_rows, entries)
            self._has_changed, self._list_at = True, 0.0
            self._directory.follow(self._catalog.users, self._catalog.permissions)

    def _make_catalog(self, found: Found) -> None:
        """Make a copy of the catalog of the server that writes; blocks."""
        folder = str(Path(self._data, CATALOG_COPY))
        OsDisk().make_folder(folder)
        make_catalog(folder, found)
        self._read_rows(())

    def _read_rows(self, entries: Iterable[Entry]) -> None:
        """Have in it what entries say, and know what it says then; blocks."""
        folder = str(Path(self._data, CATALOG_COPY))
        with usable_catalog(folder) as catalog:
            Unlogged(folder).apply(entries)
            self._catalog = _Copied(*read_all(catalog))

    def _put_catalog(self, stored: Sequence[Stored]) -> None:
        """Make the catalog of this server; blocks."""
        shutil.copyfile(
            Path(self._data, CATALOG_COPY, CATALOG_FILE), Path(self._data, CATALOG_FILE)
        )
        put_streams(self._data, stored)

    async def _show_streams(self) -> None:
        """Have the streams, exchanges and virtual hosts that there are now."""
        rows = self._rows()
        shown, again = self._to_show(rows), set()
        for names, (row, life) in shown.items():
            before, earlier = self._shown.get(names, (row, ""))
            is_another = bool(earlier) and life != earlier
            if is_another or (before.arguments, before.life) != (row.arguments, row.life):
                again.add(names)
        hosts = dict.fromkeys(self._catalog.contents.virtual_hosts)
        hosts |= dict.fromkeys(row.virtual_host for row in rows)
        contents = self._catalog.contents._replace(virtual_hosts=list(hosts), streams=rows)
        await self._broker.follow(contents, again)
        self._shown = shown

    async def status(self) -> TierStatus:
        """See TierReports."""
        manifests = [one.manifest for one in self._streams.values() if one.manifest is not None]
        return TierStatus(
            url=self._url,
            state=TierState.AWAY if self._away else TierState.OK,
            sentence=self._away or self._slot_fault,
            epoch=self._held.cluster.epoch,
            writer=self._held.cluster.writer,
            num_streams=len(manifests),
            bytes_remote=sum(manifest.size for manifest in manifests),
            cache_bytes=self._broker.fetcher.cache.num_bytes,
            requests={**TierStatus().requests, **self._store.requests},
            transferred={**TierStatus().transferred, **self._store.transferred},
            errors=self._store.errors,
            looked_seconds=seconds_between(self._looked_ms, self._now_ms()),
        )

    async def verify(self, virtual_host: Name, name: Name) -> Verification:  # noqa: ARG002
        """See TierReports; the server that writes does it."""
        raise self.read_only.refusal()

    async def collect(self, *, dry_run: bool) -> Collected:  # noqa: ARG002
        """See TierReports; the server that writes does it."""
        raise self.read_only.refusal()

    async def upload(
        self,
        virtual_host: Name,  # noqa: ARG002
        names: Collection[Name],  # noqa: ARG002
        seconds: float,  # noqa: ARG002
    ) -> Uploaded:
        """See TierReports; the server that writes does it."""
        raise self.read_only.refusal()

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

    def _to_show(self, rows: Iterable[StreamRow]) -> dict[tuple[Name, Name], tuple[StreamRow, str]]:
        return {(r.virtual_host, r.name): (r, self._life(r)) for r in rows}
