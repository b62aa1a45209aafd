"""Uploading the sealed segments of one stream, the oldest first.

A segment is uploaded so, and a stop between any two lines loses and doubles nothing:

    it is on the device, and its filter index is made       else they are waited for
    it is read through                                      packing.py
    its objects are written, under names of their own       until then: orphans, which gc finds
    the manifest, by compare-and-set                        from here on it is stored
    the copy of the manifest in the stream's folder         else `meet` writes it the next time
    the log is told: it may leave the disk after a while    eviction.py
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

import trio

from segments import SegmentsError
from segments.checksum import crc32
from segments.errors import FormatError, StorageError
from segments.filter_index import FilterFile
from segments.journal import journal_of, tracking_in
from segments.segment import KEYS_SUFFIX, KeyState, Segment
from segments.store.manifest import Manifest, StoredFile, StoredSegment, StoredTracking
from segments.store.object_names import StreamKey
from segments.store.object_store import MissingError, TierError
from segments.tier.packing import Packed, pack, stored_keys
from segments.tier.planning import kept_segments, next_unstored
from segments.tracking import Tracking, as_of
from streamd.broker.tier.claims import NotThereError
from streamd.broker.tier.identity import random_name
from streamd.broker.tier.line import Line
from streamd.broker.tier.ownership import Ownership
from streamd.broker.tier.requests import ask
from streamd.broker.tier.stream_manifest import StreamManifest, TieredLog
from streamd.net import threads
from streamd.operations.names import Name

logger = logging.getLogger(__name__)

SOON_SECONDS = 0.1  # until it is looked again whether an index is made
_KEYS_SECONDS = 60.0  # that a key index is waited for
_KEPT_TRACKING_BYTES = 16 << 10  # in memory; larger ones are read from the store


@dataclass
class _Upload:
    """A segment on its way.

    Attributes:
        tracking: as of its end, and its content; None while there is nothing to know.
        done: suffixes of objects that are stored.
    """

    segment: Segment
    packed: Packed
    tracking: StoredTracking | None
    tracking_content: bytes
    done: set[str] = field(default_factory=set)


class SegmentUploads:
    """Uploads segments of one stream.

    Args:
        ownership: gives the store, and knows whose it is.
        line: to the store.
        delete_later: these objects are not needed.

    Attributes:
        waits_for_index: the next one goes when its filter index is made.
    """

    def __init__(
        self,
        name: Name,
        ownership: Ownership,
        manifest: StreamManifest,
        line: Line,
        delete_later: Callable[[set[str]], Awaitable[None]],
    ) -> None:
        self.waits_for_index = False
        self._name, self._ownership, self._manifest = name, ownership, manifest
        self._line, self._delete_later = line, delete_later
        self._upload: _Upload | None = None
        self._asked: Segment | None = None
        self._keys_since: tuple[Segment, float] | None = None
        self._tracking: tuple[str, bytes] | None = None

    def log_closes(self) -> None:
        """What was asked of the log is to be asked again."""
        self._asked = None

    def keys_in_work(self, key: StreamKey | None) -> set[str]:
        """Objects that a manifest is about to name; `key` is the place of the stream."""
        if key is None or self._upload is None:
            return set()
        return _keys_of(key, self._upload, self._upload.packed.stored.files)

    def take_stored(self) -> StoredSegment | None:
        """What was on its way, once the manifest names it."""
        upload, kept = self._upload, self._manifest.kept
        if upload is None or kept is None or not _names(kept.manifest, upload):
            return None
        self._upload = None
        if upload.tracking is not None:
            content = upload.tracking_content
            is_small = len(content) <= _KEPT_TRACKING_BYTES
            self._tracking = (upload.tracking.uid, content) if is_small else None
        return upload.packed.stored

    async def step(self, tiered: TieredLog) -> float | None:
        """Upload the oldest segment that is not stored.

        Returns:
            Seconds until the next one can be; 0 when none waits, None when one was uploaded.
        """
        segment = next_unstored(tiered.log)
        if segment is None:
            return 0.0
        if not self._manifest.is_known and not await self._manifest.meet(tiered):
            return None
        if not await self._is_flushed(tiered):
            return SOON_SECONDS if tiered.log.flushing.failed is None else 0.0
        self.waits_for_index = not self._has_filters(tiered, segment)
        if self.waits_for_index or not self._has_keys(tiered, segment):
            return SOON_SECONDS
        if self._upload is None:  # or something would be stored where nobody looks for it
            await self._ownership.check()
        upload = await self._packed(tiered, segment)
        if upload is None or not await self._put_all(tiered, upload):
            await self._drop(tiered)
            return None
        await self._check_stored(tiered, upload)
        wanted = self._manifest_with(tiered, upload)
        if wanted is not None:
            await self._manifest.write(tiered, self._manifest.kept, wanted)
        return None

    async def _is_flushed(self, tiered: TieredLog) -> bool:
        """Full segments are on the device; where a flush has failed, nobody knows of any."""
        flushing = tiered.log.flushing
        if flushing.num_sealed:
            await tiered.work.maintenance.flush(only_sealed=True)
        return not flushing.num_sealed and flushing.failed is None

    def _has_filters(self, tiered: TieredLog, segment: Segment) -> bool:
        """Its filter index is made, or will not be."""
        if not segment.is_indexable or segment.damage or isinstance(segment.filters, FilterFile):
            return True
        if segment.index_requested:
            return False
        if self._asked is segment:
            return True  # it was made, and is in memory no more
        self._asked = segment
        tiered.log.indexes.request(segment)
        return not segment.index_requested

    def _has_keys(self, tiered: TieredLog, segment: Segment) -> bool:
        """Its key index is made, or is not waited for any longer."""
        if not tiered.log.policy.key_properties or has_final_keys(segment):
            return True
        since = self._keys_since
        if since is None or since[0] is not segment:
            since = self._keys_since = (segment, trio.current_time())
        return trio.current_time() - since[1] >= _KEYS_SECONDS

    async def _packed(self, tiered: TieredLog, segment: Segment) -> _Upload | None:
        known, mine = self._upload, self._ownership.identity
        if known is not None:
            if known.segment is segment and known.packed.stored.epoch == mine.epoch:
                return known
            await self._drop(tiered)
        tracking = await self._tracking_before()
        now = tiered.log.journal.tracking.snapshot_blocks()
        uid = random_name()
        try:
            packed = await threads.in_thread(pack, segment, mine.epoch, uid, tracking)
        except SegmentsError:
            if tiered.log.keeps(segment):
                raise  # else its files have gone while they were read
        if not tiered.log.keeps(segment):
            return None
        end = as_of(segment.next_offset, packed.tracking, now)
        stored, content = None, b""
        if not end.is_empty:
            content = journal_of(end, segment.next_offset)
            file = StoredFile(len(content), crc32(content))
            stored = StoredTracking(segment.next_offset, mine.epoch, uid, file)
        self._upload = _Upload(segment, packed, stored, content)
        return self._upload

    async def _tracking_before(self) -> Tracking:
        """What is known as of what is stored."""
        kept = self._manifest.kept
        manifest = kept.manifest if kept is not None else None
        at = manifest.tracking if manifest is not None else None
        if manifest is None or at is None:
            return Tracking()
        try:
            if self._tracking is not None and self._tracking[0] == at.uid:
                return tracking_in(self._tracking[1], at.next_offset)
            found = await ask(self._ownership.store.get, manifest.tracking_key)
            if crc32(found.content) == at.file.crc:
                return tracking_in(found.content, at.next_offset)
            reason = "its checksum is wrong"
        except (MissingError, FormatError) as error:
            reason = str(error)
        logger.warning(
            "stream %s: tracking in the tier is unreadable; using the local log only: %s",
            self._name,
            reason,
        )
        return Tracking()

    async def store_offsets(self, tiered: TieredLog) -> None:
        """Store what consumers have stored since the last segment was, without a segment."""
        kept = self._manifest.kept
        if kept is None:
            return
        at, before = kept.manifest.next_offset, await self._tracking_before()
        now = as_of(at, before, tiered.log.journal.tracking.snapshot_blocks())
        if now.offsets() == before.offsets():
            return
        content, uid = journal_of(now, at), random_name()
        file = StoredFile(len(content), crc32(content))
        tracking = StoredTracking(at, self._ownership.identity.epoch, uid, file)
        key = _tracking_key(tiered.key, tracking)
        await ask(self._ownership.store.put, key, content)
        await self._ownership.check_stored({key: len(content)})
        before_it = kept.manifest
        manifest = self._manifest.following(tiered, before_it, before_it.stream, before_it.segments)
        await self._manifest.write(tiered, kept, replace(manifest, tracking=tracking))

    async def _put_all(self, tiered: TieredLog, upload: _Upload) -> bool:
        """Write what is not written yet of a segment; False when it is not needed any more."""
        files = upload.packed.stored.files.items()
        left = sum(file.size for suffix, file in files if suffix not in upload.done)
        try:
            return await self._line.send(left, partial(self._put_files, tiered, upload))
        except SegmentsError as error:
            if not _is_wanted(tiered, upload):
                return False  # its file is gone with its segment, or the upload has ended for that
            if isinstance(error, StorageError) and not await _has_still_keys(upload):
                return False
            raise

    async def _put_files(self, tiered: TieredLog, upload: _Upload, at_once: int) -> bool:
        store, packed = self._ownership.store, upload.packed

        def go_on(_size: int) -> None:  # in a thread: no list that may change meanwhile
            if tiered.is_over or tiered.log.segments.kept_from > upload.segment.base_offset:
                raise TierError(f"a segment of {self._name} is not needed any more")

        for suffix, file in packed.stored.files.items():
            if suffix in upload.done:
                continue
            if not _is_wanted(tiered, upload):
                return False
            key = upload.packed.stored.key(tiered.key, suffix)
            if suffix in packed.contents:
                await ask(store.put, key, packed.contents[suffix])
            else:
                await ask(store.put_file, key, packed.paths[suffix], file.size, at_once, go_on)
            if suffix == KEYS_SUFFIX and not await _has_still_keys(upload):
                return False
            upload.done.add(suffix)
        if upload.tracking is not None and "tracking" not in upload.done:
            key = _tracking_key(tiered.key, upload.tracking)
            await ask(store.put, key, upload.tracking_content)
            upload.done.add("tracking")
        return _is_wanted(tiered, upload)

    async def _check_stored(self, tiered: TieredLog, upload: _Upload) -> None:
        """See that its objects are where the manifest is; what is not is written again."""
        key, stored, at = tiered.key, upload.packed.stored, upload.tracking
        sizes = {stored.key(key, suffix): file.size for suffix, file in stored.files.items()}
        if at is not None:
            sizes[_tracking_key(key, at)] = at.file.size
        try:
            await self._ownership.check_stored(sizes)
        except NotThereError:
            upload.done.clear()
            raise

    def _manifest_with(self, tiered: TieredLog, upload: _Upload) -> Manifest | None:
        """The manifest that names a segment whose objects are there."""
        kept = self._manifest.kept
        before = kept.manifest if kept is not None else None
        segments = kept_segments(
            tiered.log, before.segments if before else (), upload.packed.stored
        )
        wanted = self._manifest.following(tiered, before, tiered.key, segments)
        tracking = upload.tracking or wanted.tracking
        is_newest = segments and segments[-1].uid == upload.packed.stored.uid
        return replace(wanted, tracking=tracking) if is_newest else wanted

    async def _drop(self, tiered: TieredLog) -> None:
        """What was uploaded of a segment is not needed: the log has dropped it."""
        upload, self._upload = self._upload, None
        if upload is not None and upload.done and not tiered.is_gone:
            await self._delete_later(_keys_of(tiered.key, upload, upload.packed.stored.files))


async def _has_still_keys(upload: _Upload) -> bool:
    """The key index is the one that was packed; it may be rebuilt at any time."""
    packed = upload.packed.stored.files.get(KEYS_SUFFIX)
    return await threads.in_thread(stored_keys, upload.segment) == packed


def _is_wanted(tiered: TieredLog, upload: _Upload) -> bool:
    """Whether a segment is still to be stored."""
    return not tiered.is_over and tiered.log.keeps(upload.segment)


def _keys_of(key: StreamKey, upload: _Upload, suffixes: Iterable[str]) -> set[str]:
    found = {upload.packed.stored.key(key, suffix) for suffix in suffixes}
    at = upload.tracking
    if at is not None:
        found.add(_tracking_key(key, at))
    return found


def _tracking_key(key: StreamKey, at: StoredTracking) -> str:
    return key.object(at.next_offset, at.epoch, at.uid, ".tracking")


def _names(manifest: Manifest, upload: _Upload) -> bool:
    return any(one.uid == upload.packed.stored.uid for one in reversed(manifest.segments))


def has_final_keys(segment: Segment) -> bool:
    """A sealed segment has its key index, as far as is known, or will not get one."""
    if segment.damage or segment.key_state is not KeyState.KNOWN:
        return True
    return segment.keys is not None and segment.keys.is_final
