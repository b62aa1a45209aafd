"""A new machine: the data folder of a server that is gone, made of what the store has.

Theory of operation. `restore` works on an empty folder whose lock it has:

1. The file `restoring` is made. While it is there no server starts on the folder, but one that is
   to restore: that one removes what is there, and begins anew.
2. The tier is claimed in its log, with a higher epoch. Nothing is done where it is empty. One of an
   earlier version gets a log, which begins with the newest copy of the catalog that can be read.
3. Each manifest is written again with that epoch, whoever has written it before. From then on the
   server that is gone, should it wake up, meets a conflict with all that it writes: it is fenced.
   So what the manifest says now is what the stream has, for good.
4. A stream's folder gets a copy of its manifest, and the journal of what is known of its publishers
   and consumers. All of its segments are cold: nothing of them is read here.
5. Write-ahead logs are read to their ends, and ended (wal_reading.py): the server that is gone
   confirms nothing more. Streams of which nothing but that is stored get a folder, too; what the
   logs have of any stream is put back when it is opened.
6. The catalog is put there, as the log of metadata has it, with the streams that only manifests or
   write-ahead logs know.
7. The tier, if it is still ours, says that manifests of earlier epochs do not count. What the
   server that is gone may still begin to store for streams of which nothing was stored, without a
   conflict, is nobody's then. `restoring` is removed.

A server then starts on the folder as on any other. What comes to an end before the last step, for
whatever reason, can be begun again.

An object that is missing or damaged costs its stream only: it is there, and not available, and says
why: see `local_copy.unrestored`. A store that is away, or a full disk, ends the restore.
"""

import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import trio

from segments.atomic_write import replace_file
from segments.disk import OsDisk
from segments.errors import FormatError, SegmentsError
from segments.gaps import RESTORE_GAP
from segments.journal import JOURNAL_NAME, journal_of, tracking_in
from segments.marks import AHEAD, LIFE, RESTORED, WAL, put_mark
from segments.store.bad_object import BadObjectError
from segments.store.cluster import CatalogCopy, EarlierRoot
from segments.store.local_copy import forget_unrestored, write_copy, write_unrestored
from segments.store.lookup import (
    FoundManifest,
    by_stream,
    newest_manifest,
    read_folder,
    read_object,
    stream_folders,
)
from segments.store.manifest import Manifest, StoredFile, encode_manifest
from segments.store.metadata_log import Found, Held, read_root
from segments.store.object_names import CATALOG_FOLDER, names_in
from segments.store.object_store import MissingError, ObjectStore, TierError
from segments.tracking import Tracking
from segments.words import plural
from streamd.broker.catalog.catalog import CATALOG_FILE, Catalog, CatalogError, Contents
from streamd.broker.catalog.transaction import Transaction
from streamd.broker.catalog.unlogged import Unlogged, rows_of
from streamd.broker.declared.filter_contract import contract_of
from streamd.broker.declared.rows import PermissionRow, StreamRow, UserRow
from streamd.broker.tier import claims
from streamd.broker.tier.claims import FencedError
from streamd.broker.tier.folding import make_catalog
from streamd.broker.tier.identity import Identity, begin_epoch, keep_epoch
from streamd.broker.tier.patience import each, retry_store
from streamd.broker.tier.requests import ask
from streamd.broker.tier.wal_reading import StoredTail, Tails
from streamd.net import threads
from streamd.operations.arguments import (
    CONFIRM,
    STORE,
    arguments_from_json,
    plain_arguments,
    policy_of,
)
from streamd.operations.names import Name, as_sent, stream_folder

logger = logging.getLogger(__name__)

RESTORING = "restoring"  # files of the data folder
SCRATCH = "read-only"
STREAMS = "streams"
CATALOG_COPY, TAILS = SCRATCH_FOLDERS = ("catalog-copy", "tails")  # of one that only reads
_MOST_CATALOG = 512 << 20  # bytes of a copy of the catalog; 10,000 streams have 2 MB
_START_SECONDS = 10.0  # that a start waits for a store to say whose it is
SQLITE_SUFFIXES = ("", "-wal", "-shm", "-journal")


class RestoreError(Exception):
    """A data folder cannot be restored, or cannot be used; one sentence with what to do."""


class Restored(NamedTuple):
    """What was restored.

    Attributes:
        streams: that the store has.
        num_unavailable: of them, those that cannot be used.
    """

    streams: int
    num_unavailable: int
    num_bytes: int


class Stored(NamedTuple):
    """A stream of the store.

    Attributes:
        row: for a catalog that does not know it.
        manifest: of the stream; None for one that cannot be used.
    """

    row: StreamRow
    manifest: Manifest | None


class OvertakenError(RestoreError):
    """Another server has taken the tier meanwhile."""


class _TakenOverError(SegmentsError):
    """Another server restores, or has restored, at the same time, and was later."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"another server, epoch {epoch}, has taken over the tier meanwhile")


def check_not_scratch(data: str) -> None:
    """Raise RestoreError where a folder is that of a server that only reads."""
    if Path(data, SCRATCH).exists():
        raise RestoreError(
            f"the data folder {data} is that of a read-only server, whose files are thrown away: "
            "start with --read-only, or choose another folder with --data"
        )


def check_whole(data: str) -> None:
    """Raise RestoreError where a folder is not all that a server needs: see above."""
    check_not_scratch(data)
    if not is_used(data) and any(Path(data, STREAMS).glob("*/*")):
        raise RestoreError(
            f"the data folder {data} has streams and no catalog: put its file {CATALOG_FILE} back "
            f"from a backup, start on an empty folder with --restore where there is a tier, or "
            f"move the folder {STREAMS} away to start afresh"
        )
    if Path(data, RESTORING).exists():
        raise RestoreError(
            f"the restore of the data folder {data} was interrupted: begin it again with --restore"
        )


def check_empty(data: str) -> None:
    """Raise RestoreError where a folder has something that a restore would replace."""
    found = ""
    if Path(data, CATALOG_FILE).exists():
        found = "a catalog"
    elif any(Path(data, STREAMS).glob("*/*")):
        found = "streams"
    if found and not Path(data, RESTORING).exists():
        raise RestoreError(
            f"cannot restore into the data folder {data}: it has {found}; start without --restore, "
            "or choose an empty folder with --data"
        )


async def check_is_ours(data: str, store: ObjectStore) -> None:
    """See that a new data folder does not begin on what another server has stored.

    Whose the tier of a folder is that was used before, claiming it will tell. A store that does not
    answer keeps nobody from starting.

    Raises:
        RestoreError: the folder is new, and the tier is not.
    """
    if is_used(data):
        return
    found, reason = None, f"it has not answered within {_START_SECONDS:g} s"
    try:
        with trio.move_on_after(_START_SECONDS):
            found, reason = await ask(read_root, store), ""
    except (TierError, FormatError) as error:
        reason = str(error)
    if reason:
        logger.warning("cannot find out who owns the tier: %s", reason)
        return
    if found is not None:
        raise RestoreError(
            f"the data folder {data} is empty, and the tier {store} belongs to another server: "
            "start with --restore to take it over with all its streams, with --read-only to read "
            "them, or choose another prefix"
        )


def is_used(data: str) -> bool:
    """A server has run on this folder."""
    return any(Path(data, name).exists() for name in (CATALOG_FILE, RESTORING))


async def restore(
    data: str, store: ObjectStore, node: str = "", over: int | None = None
) -> Restored:
    """Make an empty data folder that of the server that has written into a store.

    Args:
        data: the folder; exists, and is locked.
        store: the store.
        node: see Identity.
        over: epoch of the claim that is taken over, if it is still the last one; None for any.

    Raises:
        OvertakenError: another server has taken the tier meanwhile.
        RestoreError: it cannot be done; it can be tried again.
    """
    check_empty(data)
    began_at = trio.current_time()
    try:
        restored = await _Restore(data, store, node, over).run()
    except (FencedError, _TakenOverError) as error:
        raise OvertakenError(f"cannot restore the data folder {data}: {error}") from error
    except (SegmentsError, CatalogError, OSError) as error:
        raise RestoreError(f"cannot restore the data folder {data}: {error}") from error
    seconds = trio.current_time() - began_at
    logger.info(
        "restored %s with %s bytes from %s in %.1f s",
        *(plural(restored.streams, "stream"), f"{restored.num_bytes:,}", store, seconds),
    )
    return restored


def restore_stream(
    data: str, store: ObjectStore, me: Identity, since: int, folders: list[str]
) -> Stored | None:
    """Make a stream's folder of what the store has; None where all of that name are deleted.

    Args:
        data: the data folder.
        store: the store.
        me: this server, which has the tier.
        since: manifests of earlier epochs do not count.
        folders: of the stream in the store, that created last first.

    Raises:
        BadObjectError: it cannot be restored.
        SegmentsError: nothing can be, at the moment.
    """
    found = newest_manifest(store, folders, since)
    if found is None:
        return None
    try:
        manifest = _take(store, me, found)
    except MissingError:  # it was deleted meanwhile
        return None
    row = row_of(manifest)
    content = journal_of(tracking_of(store, manifest), manifest.next_offset)
    folder = stream_folder(data, manifest.stream.virtual_host, manifest.stream.stream)
    disk = OsDisk()
    disk.make_folder(folder)
    put_mark(disk, folder, AHEAD, RESTORED)
    replace_file(disk, str(Path(folder, JOURNAL_NAME)), content).close()
    write_copy(disk, folder, manifest)
    forget_unrestored(disk, folder)
    return Stored(row, manifest)


def _take(store: ObjectStore, me: Identity, found: FoundManifest) -> Manifest:
    """Write a manifest with our epoch, so that nobody else can change it any more.

    Raises:
        _TakenOverError: a server with a higher epoch has it.
        BadObjectError: somebody has damaged it meanwhile.
        TierError: the store is away; try again.
    """
    while True:
        manifest = found.manifest
        if manifest.epoch > me.epoch:
            raise _TakenOverError(manifest.epoch)
        wanted = replace(manifest, revision=manifest.revision + 1, epoch=me.epoch, writer=me.name)
        if manifest.epoch < me.epoch:  # else it is begun again, before there was a log
            goes_on = max(manifest.goes_on, manifest.next_offset) + RESTORE_GAP
            wanted = replace(wanted, goes_on=goes_on)
        key = manifest.stream.manifest
        try:
            store.replace(key, encode_manifest(wanted), found.etag)
        except TierError as error:
            found = read_folder(store, manifest.stream.folder)
            if found.manifest != wanted and found.manifest == manifest:
                raise TierError(str(error)) from error  # to be tried again after a while
            if found.manifest != wanted:
                continue
        return wanted


class _Restore:
    def __init__(self, data: str, store: ObjectStore, node: str, over: int | None) -> None:
        self._data = data
        self._store = store
        self._node, self._over = node, over
        self._me = Identity("", 0, "")
        self._since = 0
        self._has_faults = False

    async def run(self) -> Restored:
        if await retry_store(read_root, self._store) is None:
            raise RestoreError(
                f"there is nothing in the tier {self._store} to restore: is it mounted, and is "
                "its address right? Without --restore, a server begins an empty tier there"
            )
        await threads.in_thread(self._begin)
        held = await retry_store(self._claim)
        epoch, tier = held.cluster.epoch, held.cluster.tier
        self._me = self._me._replace(epoch=epoch, tier=tier, claimed=epoch)
        self._since = held.cluster.since
        await threads.in_thread(keep_epoch, self._data, self._me)
        log = await retry_store(claims.find, self._store)
        if log is None:
            raise TierError(f"the tier {self._store} is empty: is it mounted?")
        folders = by_stream(await retry_store(stream_folders, self._store))
        streams = await self._restore_all(folders)
        tails = Tails(lambda _: None)
        await tails.read(self._store, held.cluster.wals, self._me)
        streams = await self._with_tails(streams, tails)
        await self._write_catalog(log, streams)
        await retry_store(self._finish)
        await threads.in_thread(self._end)
        manifests = [one.manifest for one in streams if one.manifest is not None]
        num_bytes = sum(manifest.size for manifest in manifests)
        return Restored(len(streams), len(streams) - len(manifests), num_bytes)

    def _claim(self) -> Held:
        if self._over is not None:
            held = claims.look(self._store)
            if held is None:
                raise TierError(f"the tier {self._store} is empty: is it mounted?")
            if held.cluster.writer != self._me.name and held.cluster.epoch != self._over:
                raise FencedError(held.cluster)
            return claims.take(self._store, self._me, held)[0]
        return claims.claim(self._store, self._me, takes_over=True, catalog=self._earlier_catalog)

    def _earlier_catalog(self, earlier: EarlierRoot | None) -> claims.Catalog:
        """What a version without a log has left."""
        content = None if earlier is None else catalog_copy(self._store, earlier.catalog)
        return claims.Catalog(content or b"")

    def _finish(self) -> None:
        """See that the tier is still ours, and what counts in it from now on."""
        held = claims.check(self._store, self._me)
        if self._has_faults:
            return  # a manifest may be one that a later version can read
        if held.cluster.since != self._me.epoch:
            claims.begin_since(self._store, held, self._me)

    def _begin(self) -> None:
        """The folder is not to be used from here on, and empty."""
        disk, marker = OsDisk(), Path(self._data, RESTORING)
        if marker.exists():
            if Path(self._data, STREAMS).exists():
                disk.remove_folder(str(Path(self._data, STREAMS)))
            for suffix in SQLITE_SUFFIXES:
                disk.remove(str(Path(self._data, CATALOG_FILE + suffix)))
        else:
            replace_file(disk, str(marker), b"").close()
            disk.sync_folder(self._data)
        self._me = begin_epoch(self._data, node=self._node)

    def _end(self) -> None:
        disk = OsDisk()
        streams = Path(self._data, STREAMS)
        for folder in (*streams.glob("*"), streams):
            if folder.is_dir():
                disk.sync_folder(str(folder))
        disk.sync_folder(self._data)  # before the marker goes
        disk.remove(str(Path(self._data, RESTORING)))
        disk.sync_folder(self._data)

    # -- streams

    async def _restore_all(self, folders: dict[str, list[str]]) -> list[Stored]:
        groups = list(folders.values())
        found: list[Stored] = []
        for group, outcome in zip(groups, await each(self._restore_one, groups), strict=True):
            stream = outcome
            if isinstance(stream, BadObjectError):
                self._has_faults = True
                stream = await threads.in_thread(self._unavailable, group, str(outcome))
            if isinstance(stream, SegmentsError):
                raise stream
            if stream is not None:
                found.append(stream)
        return found

    def _restore_one(self, group: list[str]) -> Stored | None:
        return restore_stream(self._data, self._store, self._me, self._since, group)

    def _unavailable(self, group: list[str], reason: str) -> Stored | None:
        """Make the folder of a stream that cannot be used; None where its name is not known."""
        logger.error("%s", reason)
        names = names_in(group[0])
        if names is None:
            return None
        folder, disk = stream_folder(self._data, *names), OsDisk()
        disk.make_folder(folder)
        write_unrestored(disk, folder, reason)
        return Stored(StreamRow(as_sent(names[0]), as_sent(names[1]), {}), None)

    async def _with_tails(self, streams: list[Stored], tails: Tails) -> list[Stored]:
        """These streams, and those of which only write-ahead logs have something."""
        found = {(one.row.virtual_host, one.row.name): one for one in streams}
        of_names: dict[tuple[Name, Name], list[StoredTail]] = {}
        for key, tail in sorted(tails.streams.items()):  # of a name, that created last is the last
            name = (as_sent(key.virtual_host), as_sent(key.stream))
            of_names.setdefault(name, []).append(tail)

        def put(name: tuple[Name, Name]) -> Stored | None:
            one = found.get(name)
            for tail in of_names[name]:
                one = self._with_tail(one, tail)
            return one

        for name, outcome in zip(of_names, await each(put, of_names, asks=False), strict=True):
            if isinstance(outcome, SegmentsError):
                raise outcome
            if outcome is not None:
                found[name] = outcome
        return list(found.values())

    def _with_tail(self, known: Stored | None, tail: StoredTail) -> Stored | None:
        """What there is of a stream, with what write-ahead logs have of one of its lives."""
        if tail.is_deleted or (known is not None and known.manifest is None):
            return known  # or it cannot be used
        manifest, key = None if known is None else known.manifest, tail.key
        creation = "" if manifest is None else manifest.stream.creation
        if key.creation > creation:
            known = self._begin_in_log(tail)
        elif manifest is not None and key.creation == creation:
            known = _with_settings(manifest, tail)
        if key.creation >= creation:
            folder, disk = stream_folder(self._data, *key[:2]), OsDisk()
            put_mark(disk, folder, WAL, key.creation)
            if {**tail.arguments, **tail.settings}.get(CONFIRM) != STORE:
                disk.sync_folder(folder)  # else opening it needs the log anyhow
        return known

    def _begin_in_log(self, tail: StoredTail) -> Stored:
        """Of this stream only a write-ahead log has something."""
        folder, disk = stream_folder(self._data, *tail.key[:2]), OsDisk()
        if Path(folder).exists():
            disk.remove_folder(folder)  # of an earlier stream of that name
        begin_without_manifest(folder, self._me.epoch, tail)
        manifest = Manifest(
            stream=tail.key,
            revision=0,
            epoch=self._me.epoch,
            writer=self._me.name,
            arguments=tail.arguments,
            settings=tail.settings,
        )
        return Stored(row_of(manifest), manifest)

    # -- the catalog

    async def _write_catalog(self, log: Found, streams: list[Stored]) -> None:
        unstored = await threads.in_thread(self._make_catalog, log, streams)
        for outcome in await each(self._begin_unstored, unstored, asks=False):
            if outcome is not None:
                raise outcome
        await threads.in_thread(put_streams, self._data, streams, unstored)

    def _make_catalog(self, log: Found, streams: list[Stored]) -> list[StreamRow]:
        """Make the catalog that the log has; the streams in it that the store does not have."""
        make_catalog(self._data, log)
        Unlogged(self._data).begin(self._me.start)  # what manifests know better is logged
        names = {(one.row.virtual_host, one.row.name) for one in streams}
        with usable_catalog(self._data) as catalog:
            rows = list(catalog.streams())
        known = (row for row in rows if not row.shard)  # others are in tiers of their own
        return [row for row in known if (row.virtual_host, row.name) not in names]

    def _begin_unstored(self, row: StreamRow) -> None:
        folder = stream_folder(self._data, row.virtual_host, row.name)
        begin_without_manifest(folder, self._me.epoch, None)


def begin_without_manifest(folder: str, epoch: int, tail: StoredTail | None) -> None:
    """Make the folder of a stream of which no segment is stored; blocks.

    Readers may have seen what it had. So it begins behind all that may have been given out since it
    was made, as many epochs ago.

    Args:
        folder: of the stream.
        epoch: of this server.
        tail: what write-ahead logs have of it.

    Raises:
        StorageError: the system refused.
    """
    disk = OsDisk()
    disk.make_folder(folder)
    if tail is not None:  # under another life the log's messages would be nobody's
        put_mark(disk, folder, LIFE, tail.key.creation)
        put_mark(disk, folder, WAL, tail.key.creation)
    put_mark(disk, folder, AHEAD, f"{RESTORED}-{epoch}")
    disk.sync_folder(folder)
    forget_unrestored(disk, folder)


def _with_settings(manifest: Manifest, tail: StoredTail) -> Stored:
    """A stream with the settings of its latest messages."""
    if tail.next_offset > manifest.next_offset:
        manifest = replace(manifest, settings=tail.settings)
    return Stored(row_of(manifest), manifest)


def put_streams(
    data: str,
    stored: Iterable[Stored],
    begun: Iterable[StreamRow] = (),
) -> None:
    """Have streams in the catalog of a data folder that a store has; blocks.

    Args:
        data: the folder.
        stored: streams that the store has: these have files. See `row_with` for those that the
            catalog knows, too.
        begun: streams that only the catalog knows, and that have files, too.

    Raises:
        CatalogError: it is of a later version, or no catalog.
        StorageError: the system refused.
    """
    with usable_catalog(data) as catalog:
        hosts = set(catalog.virtual_hosts())
        known = {(row.virtual_host, row.name): row for row in catalog.streams()}
        wanted = []
        for row, manifest in stored:
            there = known.get((row.virtual_host, row.name))
            wanted.append(row_with(manifest, there) if manifest is not None else there or row)

        names = {(row.virtual_host, row.name) for row in (*wanted, *begun)}

        def put(transaction: Transaction) -> None:
            for host in sorted({row.virtual_host for row in wanted} - hosts):
                transaction.add_virtual_host(host)
            new = [row for row in wanted if (row.virtual_host, row.name) not in known]
            transaction.add_streams(new)
            for row in wanted:
                if row is not known.get((row.virtual_host, row.name)):
                    transaction.put_arguments(row)
            transaction.put_all_files(names)

        catalog.apply(put)
        read_all(catalog)  # or the next start would find what is wrong with it


@contextmanager
def usable_catalog(folder: str) -> Iterator[Catalog]:
    """A copy of a catalog, whatever is in it.

    Raises:
        CatalogError: it is of a later version, or no catalog, or what is in it is wrong.
    """
    try:
        with closing(Catalog(folder)) as catalog:
            yield catalog
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise CatalogError(
            f"the copy of the catalog in {folder} cannot be used: {error}"
        ) from error


def read_all(catalog: Catalog) -> tuple[Contents, list[UserRow], list[PermissionRow]]:
    """What a catalog says."""
    return catalog.contents(), catalog.users(), catalog.permissions()


def row_of(manifest: Manifest) -> StreamRow:
    """The row of a stream that the catalog does not know.

    Raises:
        BadObjectError: nobody can have declared it like that.
    """
    key = manifest.stream
    try:
        arguments, settings = (
            arguments_from_json(json.dumps(dict(found)))
            for found in (manifest.arguments, manifest.settings)
        )
        contract_of(arguments)
        policy_of({**arguments, **settings})
    except (ValueError, TypeError, KeyError) as error:
        raise BadObjectError(key.manifest, f"its arguments are wrong: {error}") from error
    return StreamRow(
        as_sent(key.virtual_host), as_sent(key.stream), arguments, settings, has_files=True
    )


def row_with(manifest: Manifest, known: StreamRow | None) -> StreamRow:
    """The row of a stream that the store has.

    A copy of the catalog may be of another moment than a manifest, and know an earlier stream of
    that name. What a stream was declared with never changes, and a manifest says it of the very
    segments that it names: where the catalog says something else, it means another stream.

    Args:
        manifest: of the stream.
        known: what the catalog says of its name.

    Raises:
        BadObjectError: see `row_of`.
    """
    if known is not None and plain_arguments(known.arguments) == manifest.arguments:
        return known
    return row_of(manifest)


def tracking_of(store: ObjectStore, manifest: Manifest) -> Tracking:
    """What the store knows of a stream's publishers and consumers.

    Raises:
        BadObjectError: the object is missing or damaged.
        TierError: the store refused.
    """
    if manifest.tracking is None:
        return Tracking()
    content = read_object(store, manifest.tracking_key, manifest.tracking.file)
    try:
        return tracking_in(content, manifest.next_offset)
    except FormatError as error:
        raise BadObjectError(manifest.tracking_key, error) from error


def catalog_copy(store: ObjectStore, copy: CatalogCopy | None) -> bytes | None:
    """The newest copy of the catalog of an earlier version that can be read; None for none.

    Raises:
        TierError: the store refused.
    """
    if copy is None:
        return None
    try:
        content = read_object(store, copy.key, StoredFile(copy.size, copy.crc), _MOST_CATALOG)
        rows_of(content)
    except (BadObjectError, CatalogError) as error:
        logger.error("%s; looking for an older copy of the catalog", error)
    else:
        return content
    keys = {_revision_of(found.key): found.key for found in store.listing(CATALOG_FOLDER)}
    for revision in sorted(keys, reverse=True):
        if revision < copy.revision:
            with suppress(MissingError, CatalogError):
                content = store.get(keys[revision], _MOST_CATALOG).content
                rows_of(content)
                return content
    logger.error("there is no copy of the catalog: users, exchanges and bindings are not restored")
    return None


def _revision_of(key: str) -> int:
    """The revision in the key of a copy; -1 for any other key."""
    first = key.rpartition("/")[2].partition(".")[0]
    return int(first) if first.isdecimal() else -1
