"""What becomes of objects: whole streams are removed, what nothing names is found, all is verified.

A stream is deleted so: its manifest says that it is, then its objects go, the manifest last. So a
stop in between is finished by whoever finds the manifest, and until the last object is gone nobody
takes what is left for a stream.

An object that no manifest names is an orphan if nobody is about to name it: it is of an earlier
epoch than that of this server, or more than a day old, and not of an upload that is under way. The
manifest is read after the objects were listed, so what was named in between is not taken for one.
Of slots of write-ahead logs slots.py says which nobody needs.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import NamedTuple

from segments.checksum import crc32
from segments.errors import FormatError
from segments.store.lookup import had_manifest
from segments.store.manifest import StoredFile, decode_manifest
from segments.store.manifest_store import look_up, put_manifest
from segments.store.object_names import (
    CATALOG_FOLDER,
    MANIFEST_NAME,
    NO_HOSTS,
    SNAPSHOT_FOLDER,
    VERSION,
    StreamKey,
    parse_object,
    snapshot_folder,
)
from segments.store.object_store import Listed, MissingError, ObjectStore
from streamd.broker.tier import claims
from streamd.broker.tier.catalog_log import old_snapshots
from streamd.broker.tier.identity import Identity
from streamd.broker.tier.requests import ask
from streamd.broker.tier.slots import check_slot, unneeded
from streamd.net.turns import in_turns
from streamd.operations.tier_reports import MOST_TOLD, Collected, Fault, Orphan, Verification

_DAY_MS = 24 * 3_600_000
_AT_ONCE = 1_000  # objects that are deleted in a request
_RANGE_BYTES = 4 << 20


def delete_stream(store: ObjectStore, key: StreamKey, me: Identity) -> None:
    """Remove everything of one life of a stream; in a thread, as often as it takes.

    Raises:
        TierError: the store did not answer; some of it may be gone.
    """
    kept = look_up(store, key)
    if kept is not None and not kept.manifest.is_deleted:
        manifest = kept.manifest
        if manifest.epoch > me.epoch:
            return  # it is another server's now
        put_manifest(
            store,
            kept,
            replace(
                manifest,
                revision=manifest.revision + 1,
                epoch=me.epoch,
                writer=me.name,
                is_deleted=True,
            ),
        )
    found = {one.key for one in store.listing(key.folder)}
    if kept is not None:
        found |= kept.manifest.keys()  # a listing may be old
    _remove(store, sorted(found - {key.manifest}))
    if kept is not None:
        store.delete([key.manifest])


def _remove(store: ObjectStore, keys: list[str]) -> None:
    for start in range(0, len(keys), _AT_ONCE):
        store.delete(keys[start : start + _AT_ONCE])


# -- verify


async def verify(
    store: ObjectStore,
    key: StreamKey,
    slots: Callable[[], Collection[str]],
    *,
    has_manifest: bool = True,
) -> Verification:
    """Read all objects of a stream, and compare sizes and checksums.

    Args:
        store: the store.
        key: of the stream.
        slots: keys of slots that have something of it, and count.
        has_manifest: else only slots have something of it so far.

    Raises:
        TierError: the store cannot be asked.
    """
    found = _Findings()
    files = await ask(_files, store, key, found) if has_manifest else {}
    if files:
        sizes = await ask(_sizes, store, key)
        async for name, file in in_turns(files.items()):
            await _verify(store, name, file, sizes.get(name), found)
        # Retention may have removed some since the manifest was read.
        named = await ask(_named, store, key, found) if found.missing else set()
        async for name in in_turns(found.missing):
            if name in named:
                found.add(name, "it is not there")
    await _verify_slots(store, key, slots, found)
    return Verification(
        num_objects=found.num_objects,
        num_bytes=found.num_bytes,
        num_faults=found.num_faults,
        faults=tuple(found.faults),
    )


class _Findings:
    def __init__(self) -> None:
        self.num_objects = self.num_bytes = self.num_faults = 0
        self.faults: list[Fault] = []
        self.missing: list[str] = []

    def add(self, key: str, sentence: str) -> None:
        self.num_faults += 1
        if len(self.faults) < MOST_TOLD:
            self.faults.append(Fault(key, sentence))


def _sizes(store: ObjectStore, key: StreamKey) -> dict[str, int]:
    return {one.key: one.size for one in store.listing(key.folder)}


def _files(store: ObjectStore, key: StreamKey, found: _Findings) -> dict[str, StoredFile]:
    """What the manifest names; nothing where it cannot be read, which is a fault."""
    try:
        content = store.get(key.manifest).content
        found.num_objects, found.num_bytes = 1, len(content)
        manifest = decode_manifest(content, key)
    except MissingError:
        found.add(key.manifest, "it is not there")
        return {}
    except FormatError as error:
        found.add(key.manifest, str(error))
        return {}
    files = {
        segment.key(manifest.stream, suffix): file
        for segment in manifest.segments
        for suffix, file in segment.files.items()
    }
    if manifest.tracking is not None:
        files[manifest.tracking_key] = manifest.tracking.file
    return files


async def _verify(
    store: ObjectStore, key: str, file: StoredFile, size: int | None, found: _Findings
) -> None:
    if size is None:
        found.missing.append(key)
        return
    found.num_objects += 1
    if size != file.size:
        found.add(key, f"it has {size} bytes, expected {file.size}")
        return
    crc = 0
    for start in range(0, size, _RANGE_BYTES):
        wanted = min(_RANGE_BYTES, size - start)
        try:
            crc = crc32(await ask(store.get_range, key, start, wanted), crc)
        except MissingError:
            found.missing.append(key)
            return
        found.num_bytes += wanted
    if crc != file.crc:
        found.add(key, "its checksum is wrong")


async def _verify_slots(
    store: ObjectStore, key: StreamKey, slots: Callable[[], Collection[str]], found: _Findings
) -> None:
    async for slot in in_turns(sorted(slots())):
        try:
            size = await ask(check_slot, store, slot, key)
        except (MissingError, FormatError) as error:
            if slot in slots():  # else it is not needed any more
                found.num_objects += 1
                missing = isinstance(error, MissingError)
                found.add(slot, "it is not there" if missing else str(error))
        else:
            found.num_objects += 1
            found.num_bytes += size


def _named(store: ObjectStore, stream: StreamKey, found: _Findings) -> set[str]:
    """Keys of all objects that the manifest names now; that it is gone is a fault."""
    now = look_up(store, stream)
    if now is None:
        found.add(stream.manifest, "it is not there any more")
        return set(found.missing)
    return now.manifest.keys() if not now.manifest.is_deleted else set()


# -- orphans


class Known(NamedTuple):
    """What the server knows of its streams.

    Attributes:
        is_orphan: a stream in the store is an earlier one of a name that there is.
        is_used: it is that of the catalog, or may be: what the store says may be old.
        in_work: keys of objects of uploads that are under way.
        named: keys of objects that its own copy of the manifest in a folder names; None where it
            cannot be read.
    """

    is_orphan: Callable[[StreamKey], bool]
    is_used: Callable[[StreamKey], bool]
    in_work: Callable[[], Collection[str]]
    named: Callable[[str], Collection[str] | None]


async def collect(
    store: ObjectStore, me: Identity, now_ms: int, known: Known, *, is_dry: bool
) -> Collected:
    """Look for orphans, and remove them unless it is a dry run.

    Raises:
        TierError: the store cannot be asked; some may be removed.
    """
    search = _Search(store, me, now_ms, known, is_dry)
    await ask(search.look_at_snapshots)
    await ask(search.look_at_slots)
    for host in await ask(store.folders, VERSION):
        if host in NO_HOSTS:
            continue
        for folder in await ask(store.folders, host):
            await ask(search.look_at, folder)
    return Collected(
        num_orphans=search.num_orphans,
        num_bytes=search.num_bytes,
        is_removed=not is_dry,
        orphans=tuple(search.orphans),
    )


class _Search:
    """A search for orphans; all methods block."""

    def __init__(
        self, store: ObjectStore, me: Identity, now_ms: int, known: Known, is_dry: bool
    ) -> None:
        self.num_orphans = self.num_bytes = 0
        self.orphans: list[Orphan] = []
        self._store, self._me, self._known = store, me, known
        self._old_ms = now_ms - _DAY_MS
        self._in_work: set[str] = set()
        self._is_dry = is_dry
        self._since = 0

    def look_at(self, folder: str) -> None:
        """Find the orphans in the folder of one life of a stream."""
        listed = list(self._store.listing(folder))
        # What was listed, and is in work no more, is named by the manifest that is read after this.
        self._in_work = set(self._known.in_work())
        manifest_key = f"{folder}/{MANIFEST_NAME}"
        try:
            manifest = decode_manifest(self._store.get(manifest_key).content)
        except MissingError:
            if not had_manifest(listed) and self._known.named(folder) == ():
                # Else not all of the tier may be there.
                self._take([one for one in listed if one.key != manifest_key and self._is_old(one)])
            return
        except FormatError:
            return  # of a later version, or damaged: nothing is certain
        if manifest.epoch > self._me.epoch or manifest.stream.folder != folder:
            return
        is_late = manifest.epoch < self._since and not self._known.is_used(manifest.stream)
        if manifest.is_deleted or is_late or self._known.is_orphan(manifest.stream):
            self._take(listed, manifest.stream)
            return
        mine = self._known.named(folder)
        if mine is None:
            return
        named = manifest.keys().union(mine, (manifest_key,))
        self._take([one for one in listed if one.key not in named and self._is_old(one)])

    def look_at_slots(self) -> None:
        """Find slots of write-ahead logs that nobody needs."""
        marks = claims.check(self._store, self._me).cluster.wals
        self._take(list(unneeded(self._store, marks, self._me.epoch)))

    def look_at_snapshots(self) -> None:
        """Find snapshots of the catalog that are not the newest, and copies of earlier versions."""
        held = claims.check(self._store, self._me)
        self._since = held.cluster.since
        folder = snapshot_folder(held.cluster.tier)
        kept = {one.key for one in self._store.listing(folder)}
        kept -= set(old_snapshots(list(kept)))
        listed = [*self._store.listing(SNAPSHOT_FOLDER), *self._store.listing(CATALOG_FOLDER)]
        self._take(
            [one for one in listed if one.key not in kept and one.modified_ms < self._old_ms]
        )

    def _is_old(self, one: Listed) -> bool:
        """Nobody is about to name it."""
        name = parse_object(one.key.rpartition("/")[2])
        if name is None:
            return False  # not ours
        return name.epoch < self._me.epoch or one.modified_ms < self._old_ms

    def _take(self, found: list[Listed], stream: StreamKey | None = None) -> None:
        in_work = self._in_work.union(self._known.in_work())
        found = [one for one in found if one.key not in in_work]
        self.num_orphans += len(found)
        self.num_bytes += sum(one.size for one in found)
        room = MOST_TOLD - len(self.orphans)
        self.orphans += [Orphan(one.key, one.size) for one in found[:room]]
        if self._is_dry or not found:
            return
        if stream is None:
            _remove(self._store, [one.key for one in found])
        else:
            delete_stream(self._store, stream, self._me)
