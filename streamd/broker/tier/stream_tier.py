"""One stream and the tier: what is uploaded next, what leaves the disk, what leaves the store.

Theory of operation. `step` does the next piece of work and says when there will be more;
uploader.py decides whose turn it is, so of one stream one step runs at a time. What a step finds
decides what it does, in this order:

    meet     the stream's manifest is read from the store, once after the start, and compared with
             the log: it may be one step ahead of the copy in the stream's folder
    follow   segments that the log has dropped leave the manifest; their objects go later
    upload   the oldest sealed segment that is not stored: its objects, then the manifest
    evict    segment files that are not needed here go
    roll     a segment that has become old is sealed, or one that somebody waits for

A segment is uploaded so, and a stop between any two lines loses and doubles nothing:

    it is on the device, and its filter index is made       else they are waited for
    it is read through                                      packing.py
    its objects are written, under names of their own       until then: orphans, which gc finds
    the manifest, by compare-and-set                        from here on it is stored
    the copy of the manifest in the stream's folder         else `meet` writes it the next time
    the log is told: it may leave the disk after a while    `evict`

The manifest that was to be written is remembered until it is known what became of it; the same is
tried again, byte for byte, so an answer that got lost is recognised when the store has done it.
When it is another's, the store is asked whose the tier is (claims.py). So it is when a stream's
first manifest was written: there was none that a server which has taken the tier over meanwhile
could have changed, so nothing but that tells whether that server has seen it.

What comes from the store is never believed against the log: a manifest that cannot be of this log,
because the data folder is from an older backup say, keeps the stream from being uploaded, and from
taking messages, which would get offsets that others have in the tier.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import trio

from segments import Log, SegmentsError
from segments.checksum import crc32
from segments.errors import FormatError, StorageError
from segments.filter_index import FilterFile
from segments.journal import journal_of, tracking_in
from segments.policy import DEFAULT_LOCAL_BYTES, LogPolicy
from segments.segment import KEYS_SUFFIX, KeyState, Segment
from segments.store.manifest import Manifest, StoredFile, StoredTracking
from segments.store.manifest_store import (
    KeptManifest,
    OvertakenError,
    check_not_older,
    is_there,
    look_up,
    put_manifest,
)
from segments.store.object_names import StreamKey
from segments.store.object_store import MissingError, ObjectStore, TierError
from segments.tier.packing import Packed, pack, stored_keys
from segments.tier.planning import conflict, is_stored_to, kept_segments, next_unstored
from segments.tracking import Tracking, as_of
from streamd.broker import threads
from streamd.broker.declared.arguments import arguments_to_json
from streamd.broker.declared.rows import StreamRow
from streamd.broker.streams.stream import Stream, StreamState
from streamd.broker.tier.identity import random_name
from streamd.broker.tier.line import Line
from streamd.broker.tier.ownership import Ownership
from streamd.broker.tier.requests import ask
from streamd.broker.tier.upload_requests import UploadRequest
from streamd.operations.errors import Refused
from streamd.operations.names import Name
from streamd.operations.tier_reports import StreamTier

logger = logging.getLogger(__name__)

_SOON_SECONDS = 0.1  # until it is looked again whether an index is made
_FAULT_SECONDS = 30.0  # until it is looked again whether somebody has mended what is wrong
_SHORTAGE_SECONDS = 1.0
_KEYS_SECONDS = 60.0  # that a key index is waited for
# A stream may exceed its local limit by so many segments while files have to stay; another one may
# be on its way to the store.
_MOST_OVER = 1
_KEPT_TRACKING_BYTES = 16 << 10  # in memory; larger ones are read from the store


class TierParts(NamedTuple):
    """What streams need of the tier.

    Attributes:
        ownership: gives the store, and knows whose it is.
        line: to the store.
        now_ms: the wall clock.
        roll_ms: age at which a segment is sealed.
        delay_ms: that a segment stays on the disk after it was stored.
        wants: a stream has something to do.
        wants_at: it will have something to do in so many seconds.
        delete_later: no manifest names these objects any more.
        note_open: its log was opened, or is closed.
    """

    ownership: Ownership
    line: Line
    now_ms: Callable[[], int]
    roll_ms: int
    delay_ms: int
    wants: Callable[["TieredStream"], None]
    wants_at: Callable[["TieredStream", float], None]
    delete_later: Callable[[set[str]], Awaitable[None]]
    note_open: Callable[["TieredStream", bool], None]


@dataclass
class _Upload:
    """A segment on its way.

    Attributes:
        segment: which.
        packed: what is stored of it.
        tracking: as of its end, and its content; None while there is nothing to know.
        done: suffixes of objects that are stored.
    """

    segment: Segment
    packed: Packed
    tracking: StoredTracking | None
    tracking_content: bytes
    done: set[str] = field(default_factory=set)


class _Attempt(NamedTuple):
    """A manifest of which nobody knows whether it was written, and its forerunner."""

    before: KeptManifest | None
    wanted: Manifest


class _Numbers(NamedTuple):
    """Of a log; see reports.StreamTier."""

    bytes_local: int
    segments_local: int
    bytes_remote: int
    segments_remote: int
    bytes_waiting: int
    segments_waiting: int
    waits_since_ms: int | None


_NOTHING = _Numbers(0, 0, 0, 0, 0, 0, None)


class TieredStream:
    """One stream and the tier.

    Args:
        parts: of the tier.
        virtual_host: where the stream is.
        name: of it.
        row: its row in the catalog, None once it is gone.

    Attributes:
        is_on: its sealed segments go to the tier.
        is_queued: for the uploader: it waits for a turn.
        asked_again: for the uploader: it has asked for a turn while it had one.
        due_at: for the uploader: when there is something to do, by trio's clock.
        pause: for the uploader: seconds until the next try after a failure.
        fault: why it is not uploaded; empty while it is.
        uploaded_bytes: of segments that were stored, since the start.
    """

    def __init__(
        self,
        parts: TierParts,
        virtual_host: Name,
        name: Name,
        row: Callable[[], StreamRow | None],
    ) -> None:
        self.virtual_host, self.name = virtual_host, name
        self.is_on = False
        self.is_queued = self.asked_again = False
        self.due_at: float | None = None
        self.pause = 0.0
        self.fault = ""
        self._parts = parts
        self._row = row
        self._stream: Stream | None = None
        self._log: Log | None = None
        self._key: StreamKey | None = None
        self._kept: KeptManifest | None = None
        self._has_met = self._is_split = self._waits_for_index = False
        self._attempt: _Attempt | None = None
        self._upload: _Upload | None = None
        self._asked: Segment | None = None
        self._keys_since: tuple[Segment, float] | None = None
        self._stored_ms: dict[int, int] = {}
        self._tracking: tuple[str, bytes] | None = None
        self._numbers = _NOTHING
        self._requests: list[UploadRequest] = []
        self.uploaded_bytes = 0

    def __repr__(self) -> str:
        return f"<tier of {self.name}>"

    # -- what the stream tells

    def belongs_to(self, stream: Stream) -> None:
        """The stream itself, which is made with this."""
        self._stream = stream

    def policy_changed(self, policy: LogPolicy) -> None:
        """The stream has these limits from now on."""
        self.is_on = policy.tier
        if not self.is_on:
            self._end_requests()
        if self._log is not None:
            self._parts.wants(self)

    def log_opened(self, log: Log) -> None:
        """Its log is open."""
        self._log = log
        for request in self._requests:
            if request.end is None:
                request.end = log.committed_offset
        self._parts.note_open(self, True)
        self._parts.wants(self)

    def log_closes(self) -> None:
        """Its log is about to be closed: what is in it will be due some time."""
        if self.is_gone:
            self._end_requests()
        log = self._log
        if log is None:
            return
        self._key = self.key
        self._numbers = self._count(log)
        due_ms = self._roll_due_ms(log)
        if due_ms is not None:
            self._parts.wants_at(self, max(0, due_ms - self._parts.now_ms()) / 1_000)
        self._log, self._asked = None, None
        self._parts.note_open(self, False)

    def changed(self) -> None:
        """A segment was sealed, or some were dropped."""
        self._parts.wants(self)

    def is_astray(self) -> None:
        """The store is another one: what was written last may be there."""
        if self._upload is not None:
            self._upload.done.clear()
        if self._attempt is not None:  # whose objects may be there, too: see what the right one has
            self._attempt, self._has_met = None, False

    def index_made(self) -> None:
        """A filter index was made, or cannot be."""
        if self._waits_for_index:
            self._parts.wants(self)

    @property
    def bytes_waiting(self) -> int:
        """Of full segments that are to be stored; its log is open."""
        return 0 if self._log is None else self._count(self._log).bytes_waiting

    # -- requests, see upload_requests.py

    @contextmanager
    def requested(self) -> Iterator[UploadRequest]:
        """Somebody waits in the block for all that is confirmed now to be stored."""
        end = None if self._log is None else self._log.committed_offset
        request = UploadRequest(self.virtual_host, self.name, end, self.uploaded_bytes)
        self._requests.append(request)
        self._parts.wants(self)
        try:
            yield request
        finally:
            self._requests.remove(request)
            request.reason = request.reason or self._trouble

    @property
    def _trouble(self) -> str:
        """What keeps it from being uploaded at the moment; empty where that is not known."""
        return self.fault or ("" if self._stream is None else self._stream.alarm)

    def _end_requests(self) -> None:
        for request in self._requests:
            request.is_gone()

    def _fail_requests(self, reason: str) -> None:
        for request in self._requests:
            request.has_failed(reason)

    async def _tell_requests(self, stream: Stream, log: Log) -> None:
        """Tell those whose messages are stored, once the offsets of consumers are, too."""
        waiting = [one for one in self._requests if one.is_waiting]
        stored = [one for one in waiting if one.end is not None and is_stored_to(log, one.end)]
        if stored:
            await self._store_offsets(stream, log)
        next_offset = self._kept.manifest.next_offset if self._kept is not None else 0
        for request in stored:
            request.is_stored(next_offset, self.uploaded_bytes)

    # -- what others ask

    @property
    def fence(self) -> str:
        """Why it takes no messages; empty while it does."""
        if not self.is_on:
            return ""
        return self._parts.ownership.fence or (self.fault if self._is_split else "")

    @property
    def is_fenced(self) -> bool:
        """Another server has the tier."""
        return bool(self._parts.ownership.fence)

    @property
    def is_gone(self) -> bool:
        """The stream was deleted."""
        return self._stream is None or self._stream.state is StreamState.GONE

    @property
    def key(self) -> StreamKey | None:
        """Where it is in the store; None where it is not, or nobody has looked."""
        if self._log is not None and self._log.manifest is not None:
            self._key = self._log.manifest.stream
        return self._key

    @property
    def keys_in_work(self) -> set[str]:
        """Objects that a manifest is about to name."""
        found: set[str] = set()
        key, upload, attempt = self.key, self._upload, self._attempt
        if key is not None and upload is not None:
            found |= self._keys_of(key, upload, upload.packed.stored.files)
        if attempt is not None:
            found |= attempt.wanted.keys()
        return found

    @staticmethod
    def _keys_of(key: StreamKey, upload: _Upload, suffixes: Iterable[str]) -> set[str]:
        found = {upload.packed.stored.key(key, suffix) for suffix in suffixes}
        at = upload.tracking
        if at is not None:
            found.add(key.object(at.next_offset, at.epoch, at.uid, ".tracking"))
        return found

    # -- steps

    async def step(self) -> float | None:
        """Do the next piece of work.

        Returns:
            Seconds until there is more to do, None for nothing that is known.

        Raises:
            SegmentsError: what could not be done; to be tried again.
        """
        stream = self._stream
        if stream is None or self.is_gone or self._parts.ownership.fence:
            return None
        try:
            async with stream.opened() as log:
                return await self._work(stream, log)
        except Refused as refused:
            self._fail_requests(refused.details)
            return None  # it is gone, or its log says why

    async def _work(self, stream: Stream, log: Log) -> float | None:
        if not await self._meet(stream, log):
            is_outside = log.manifest is None and not log.policy.tier
            if is_outside or self._is_over(log):
                return None
            return _FAULT_SECONDS if self.fault else _SHORTAGE_SECONDS
        kept = self._kept
        if kept is not None and log.manifest != kept.manifest:  # there was no room for the copy
            return 0.0 if await stream.keep_manifest(kept.manifest) else _SHORTAGE_SECONDS
        if await self._follow(stream, log):
            return 0.0
        return await self._store_and_evict(stream, log) if log.policy.tier else None

    async def _store_and_evict(self, stream: Stream, log: Log) -> float | None:
        await self._tell_requests(stream, log)
        waits = await self._upload_next(stream, log)
        if self._is_over(log):
            return None
        evicts = await self._evict(stream, log)  # also while there is always one more to upload
        if self._is_over(log):
            return None
        if waits is None:
            return 0.0
        found = [waits or None, evicts, await self._roll(stream, log)]
        return min((one for one in found if one is not None), default=None)

    def _is_over(self, log: Log) -> bool:
        return self.is_gone or log.is_closed or bool(self._parts.ownership.fence)

    # -- meet

    async def _meet(self, stream: Stream, log: Log) -> bool:
        """Know what the store has of it; whether it is in the tier, or is to be."""
        if self._has_met and self._attempt is None:
            return self._kept is not None or log.manifest is not None or log.policy.tier
        if log.manifest is None:
            if not log.policy.tier or next_unstored(log) is None:
                return log.policy.tier
            if not await self._begin(stream, log):
                return False
        assert log.manifest is not None  # noqa: S101 - see above
        if self._attempt is not None:
            return await self._try_again(stream, log)
        known = log.manifest
        found = await ask(look_up, self._parts.ownership.store, known.stream, known.segments)
        return await self._take(stream, log, found)

    async def _begin(self, stream: Stream, log: Log) -> bool:
        """Give it a place in the store, before anything is there."""
        key = self._key = StreamKey(self.virtual_host, self.name, log.life)
        manifest = self._next_manifest(None, key, ())
        return await stream.keep_manifest(replace(manifest, revision=0))

    async def _take(self, stream: Stream, log: Log, found: KeptManifest | None) -> bool:
        """Go on from what the store has."""
        known = log.manifest
        assert known is not None  # noqa: S101 - see `_meet`
        if found is not None and self._is_overtaken_by(found.manifest):
            await self._parts.ownership.check_ownership()
            return self._refuse("another server has written its manifest")
        reason = self._doubt(log, known, found)
        if reason:
            return self._refuse(reason)
        if found is None:
            found_manifest = replace(known, revision=0, segments=(), tracking=None)
        else:
            found_manifest = found.manifest
            reason = conflict(log, found_manifest)
            if reason:
                advice = "it takes no messages: start on an empty data folder with --restore"
                return self._refuse(f"{reason}; {advice}", is_split=True)
        if found_manifest != known and not await stream.keep_manifest(found_manifest):
            return False
        self._kept, self._has_met = found, True
        self._is_split, self.fault = False, ""
        return True

    def _is_overtaken_by(self, found: Manifest) -> bool:
        return self._parts.ownership.identity.is_overtaken_by(found.writer, found.epoch)

    def _doubt(self, log: Log, known: Manifest, found: KeptManifest | None) -> str:
        """Why what the store has cannot be gone on from, and is asked for again; else empty."""
        if found is None:
            is_new = not known.revision or known.epoch < self._parts.ownership.since
            if is_new and all(segment.cold is None for segment in log.segments):
                return ""
            return "the tier has no manifest of it: is it the right store, and is all of it there?"
        if found.manifest.is_deleted:
            return "it is deleted in the tier"
        try:
            check_not_older(self._parts.ownership.store, known, found.manifest)
        except TierError as error:
            return str(error)
        return ""

    def _refuse(self, reason: str, *, is_split: bool = False) -> bool:
        if reason != self.fault:
            logger.error("stream %s is not uploaded to the tier: %s", self.name, reason)
        self.fault, self._is_split = reason, is_split
        self._fail_requests(reason)
        return False

    async def _try_again(self, stream: Stream, log: Log) -> bool:
        """Find out what became of a manifest whose answer was lost, or write it."""
        attempt = self._attempt
        assert attempt is not None  # noqa: S101 - the caller has looked
        await self._write(stream, log, attempt.before, attempt.wanted)
        return not self._is_over(log)

    # -- manifests

    def _next_manifest(
        self, before: Manifest | None, key: StreamKey, segments: tuple[Any, ...]
    ) -> Manifest:
        mine, stream = self._parts.ownership.identity, self._stream
        assert stream is not None  # noqa: S101 - its log is open
        if before is None:
            before = Manifest(stream=key, revision=0, epoch=mine.epoch, writer=mine.name)
        wanted = replace(
            before,
            revision=before.revision + 1,
            epoch=mine.epoch,
            writer=mine.name,
            next_offset=max([before.next_offset, *(one.next_offset for one in segments[-1:])]),
            segments=segments,
            marked=stream.standing.marked(),
        )
        row = None if self.is_gone else self._row()  # not that of a later stream of its name
        if row is None:
            return wanted
        return replace(wanted, arguments=_plain(row.arguments), settings=_plain(row.settings))

    async def _write(
        self, stream: Stream, log: Log, before: KeptManifest | None, wanted: Manifest
    ) -> bool:
        """Write a manifest, and its copy; whether it is the one in the store."""
        self._attempt = _Attempt(before, wanted)
        try:
            kept, gone = await ask(_replace, self._parts.ownership.store, before, wanted)
        except OvertakenError:
            self._attempt, self._has_met = None, False  # look at it anew
            await self._parts.ownership.check_ownership()
            raise
        if before is None:
            await self._parts.ownership.check()
            if self._parts.ownership.fence:
                return False  # whoever has taken the tier over may not have seen it
        self._attempt, self._kept, self._has_met = None, kept, True
        if self._upload is not None and self._is_in(wanted, self._upload):
            self._has_stored(self._upload)
        if gone:
            await self._parts.delete_later(gone)
        if not self._is_over(log):
            await stream.keep_manifest(wanted)
        return True

    @staticmethod
    def _is_in(manifest: Manifest, upload: _Upload) -> bool:
        return any(one.uid == upload.packed.stored.uid for one in reversed(manifest.segments))

    def _has_stored(self, upload: _Upload) -> None:
        stored = upload.packed.stored
        self._stored_ms[stored.base_offset] = self._parts.now_ms()
        self.uploaded_bytes += sum(file.size for file in stored.files.values())
        self._upload = None
        if upload.tracking is not None:
            content = upload.tracking_content
            is_small = len(content) <= _KEPT_TRACKING_BYTES
            self._tracking = (upload.tracking.uid, content) if is_small else None

    async def _follow(self, stream: Stream, log: Log) -> bool:
        """Take segments out of the manifest that the log has dropped; whether there were any."""
        kept, first = self._kept, log.kept_from
        if kept is None or kept.manifest.first_offset >= first:
            return False
        self._stored_ms = {at: ms for at, ms in self._stored_ms.items() if at >= first}
        segments = kept_segments(log, kept.manifest.segments)
        if segments == kept.manifest.segments:
            return False
        wanted = self._next_manifest(kept.manifest, kept.manifest.stream, segments)
        return await self._write(stream, log, kept, wanted)

    # -- upload

    async def _upload_next(self, stream: Stream, log: Log) -> float | None:
        """Upload the oldest segment that is not stored.

        Returns:
            Seconds until the next one can be; 0 when none waits, None when one was uploaded.
        """
        segment = next_unstored(log)
        if segment is None:
            return 0.0
        if not self._has_met and not await self._meet(stream, log):
            return None
        if log.has_unflushed_seals:
            await stream.flush(only_sealed=True)
            if log.has_unflushed_seals:
                return _SOON_SECONDS
        self._waits_for_index = not self._has_filters(log, segment)
        if self._waits_for_index or not self._has_keys(log, segment):
            return _SOON_SECONDS
        if self._upload is None:  # or something would be stored where nobody looks for it
            await self._parts.ownership.check()
        upload = await self._packed(log, segment)
        if upload is None or not await self._put_all(log, upload):
            await self._drop_upload()
            return None
        wanted = self._manifest_with(log, upload)
        if wanted is not None:
            await self._write(stream, log, self._kept, wanted)
        return None

    def _has_filters(self, log: Log, segment: Segment) -> bool:
        """Its filter index is made, or will not be."""
        if not segment.is_indexable or segment.damage or isinstance(segment.filters, FilterFile):
            return True
        if segment.index_requested:
            return False
        if self._asked is segment:
            return True  # it was made, and is in memory no more
        self._asked = segment
        log.request_index(segment)
        return not segment.index_requested

    def _has_keys(self, log: Log, segment: Segment) -> bool:
        """Its key index is made, or is not waited for any longer."""
        if not log.policy.key_properties or has_final_keys(segment):
            return True
        since = self._keys_since
        if since is None or since[0] is not segment:
            since = self._keys_since = (segment, trio.current_time())
        return trio.current_time() - since[1] >= _KEYS_SECONDS

    async def _packed(self, log: Log, segment: Segment) -> _Upload | None:
        known, mine = self._upload, self._parts.ownership.identity
        if known is not None:
            if known.segment is segment and known.packed.stored.epoch == mine.epoch:
                return known
            await self._drop_upload()
        tracking = await self._tracking_before()
        now = log.tracking.snapshot_blocks()
        uid = random_name()
        try:
            packed = await threads.in_thread(pack, segment, mine.epoch, uid, tracking)
        except SegmentsError:
            if log.keeps(segment):
                raise  # else its files have gone while they were read
        if not log.keeps(segment):
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
        manifest = self._kept.manifest if self._kept is not None else None
        at = manifest.tracking if manifest is not None else None
        if manifest is None or at is None:
            return Tracking()
        try:
            if self._tracking is not None and self._tracking[0] == at.uid:
                return tracking_in(self._tracking[1], at.next_offset)
            found = await ask(self._parts.ownership.store.get, manifest.tracking_key)
            if crc32(found.content) == at.file.crc:
                return tracking_in(found.content, at.next_offset)
            reason = "its checksum is wrong"
        except (MissingError, FormatError) as error:
            reason = str(error)
        logger.warning(
            "stream %s: what the tier knows of its publishers is taken from here alone: %s",
            self.name,
            reason,
        )
        return Tracking()

    async def _store_offsets(self, stream: Stream, log: Log) -> None:
        """Store what consumers have stored since the last segment was, without a segment."""
        kept = self._kept
        if kept is None:
            return
        at, before = kept.manifest.next_offset, await self._tracking_before()
        now = as_of(at, before, log.tracking.snapshot_blocks())
        if now.offsets() == before.offsets():
            return
        content, uid = journal_of(now, at), random_name()
        file = StoredFile(len(content), crc32(content))
        tracking = StoredTracking(at, self._parts.ownership.identity.epoch, uid, file)
        await ask(self._parts.ownership.store.put, self._tracking_key(log, tracking), content)
        manifest = self._next_manifest(kept.manifest, kept.manifest.stream, kept.manifest.segments)
        await self._write(stream, log, kept, replace(manifest, tracking=tracking))

    async def _put_all(self, log: Log, upload: _Upload) -> bool:
        """Write what is not written yet of a segment; False when it is not needed any more."""
        files = upload.packed.stored.files.items()
        left = sum(file.size for suffix, file in files if suffix not in upload.done)
        try:
            return await self._parts.line.send(left, partial(self._put_files, log, upload))
        except SegmentsError as error:
            if not self._is_wanted(log, upload):
                return False  # its file is gone with its segment, or the upload has ended for that
            if isinstance(error, StorageError) and not await self._has_still_keys(upload):
                return False
            raise

    async def _put_files(self, log: Log, upload: _Upload, at_once: int) -> bool:
        store, packed = self._parts.ownership.store, upload.packed

        def go_on(_size: int) -> None:  # in a thread: no list that may change meanwhile
            if self._is_over(log) or log.kept_from > upload.segment.base_offset:
                raise TierError(f"a segment of {self.name} is not needed any more")

        for suffix, file in packed.stored.files.items():
            if suffix in upload.done:
                continue
            if not self._is_wanted(log, upload):
                return False
            key = self._key_of(log, upload, suffix)
            if suffix in packed.contents:
                await ask(store.put, key, packed.contents[suffix])
            else:
                await ask(store.put_file, key, packed.paths[suffix], file.size, at_once, go_on)
            if suffix == KEYS_SUFFIX and not await self._has_still_keys(upload):
                return False
            upload.done.add(suffix)
        if upload.tracking is not None and "tracking" not in upload.done:
            key = self._tracking_key(log, upload.tracking)
            await ask(store.put, key, upload.tracking_content)
            upload.done.add("tracking")
        return self._is_wanted(log, upload)

    @staticmethod
    async def _has_still_keys(upload: _Upload) -> bool:
        """The key index is the one that was packed; it may be made anew at any time."""
        packed = upload.packed.stored.files.get(KEYS_SUFFIX)
        return await threads.in_thread(stored_keys, upload.segment) == packed

    def _is_wanted(self, log: Log, upload: _Upload) -> bool:
        """Whether a segment is still to be stored."""
        return not self._is_over(log) and log.keeps(upload.segment)

    @staticmethod
    def _key_of(log: Log, upload: _Upload, suffix: str) -> str:
        assert log.manifest is not None  # noqa: S101 - it has a place in the store
        return upload.packed.stored.key(log.manifest.stream, suffix)

    @staticmethod
    def _tracking_key(log: Log, at: StoredTracking) -> str:
        assert log.manifest is not None  # noqa: S101 - as above
        return log.manifest.stream.object(at.next_offset, at.epoch, at.uid, ".tracking")

    def _manifest_with(self, log: Log, upload: _Upload) -> Manifest | None:
        """The manifest that names a segment whose objects are there."""
        assert log.manifest is not None  # noqa: S101 - as above
        before = self._kept.manifest if self._kept is not None else None
        segments = kept_segments(log, before.segments if before else (), upload.packed.stored)
        wanted = self._next_manifest(before, log.manifest.stream, segments)
        tracking = upload.tracking or wanted.tracking
        is_newest = segments and segments[-1].uid == upload.packed.stored.uid
        return replace(wanted, tracking=tracking) if is_newest else wanted

    async def _drop_upload(self) -> None:
        """What was uploaded of a segment is not needed: the log has dropped it."""
        upload, self._upload = self._upload, None
        key = self.key
        if upload is None or key is None or self.is_gone:
            return
        if upload.done:
            await self._parts.delete_later(self._keys_of(key, upload, upload.packed.stored.files))

    # -- evict

    async def _evict(self, stream: Stream, log: Log) -> float | None:
        """Remove segment files that the local limits do not leave room for.

        Returns:
            Seconds until there is more to remove; None while that is not known.
        """
        going, again_ms = self._evictable(log)
        if not going:
            return None if again_ms is None else again_ms / 1_000
        there = await self._there(log, going)
        is_short, going = len(there) < len(going), there
        if not all(log.is_covered(segment.next_offset) for segment in going):
            await stream.flush(with_checkpoint=True)
        await stream.evict([one for one in going if log.is_covered(one.next_offset)])
        for segment in going:
            if segment.cold is not None:
                self._stored_ms.pop(segment.base_offset, None)
        if any(log.keeps(one) and one.cold is None for one in going):
            return _SHORTAGE_SECONDS  # somebody works on it, or the disk refused
        if is_short:
            return 0.0
        return None if again_ms is None else again_ms / 1_000

    async def _there(self, log: Log, going: Sequence[Segment]) -> list[Segment]:
        """The first of some segments, as far as the store has them now.

        Whatever it has confirmed, it may be another one by now, or not all of it may be there. A
        segment of which something is missing is stored again.
        """
        kept = self._kept
        assert kept is not None  # noqa: S101 - something is stored
        there: list[Segment] = []
        for segment in going:
            assert segment.stored is not None  # noqa: S101 - it may go
            try:
                if await ask(is_there, self._parts.ownership.store, kept, segment.stored):
                    there.append(segment)
                    continue
                await self._parts.ownership.check()
            except TierError:
                self._has_met = False  # the manifest may be another one by now: look at it anew
                if there:
                    break
                raise
            logger.error(
                "stream %s: the tier does not have all objects of the segment from offset %s on, "
                "which its manifest names; it is uploaded again",
                *(self.name, segment.base_offset),
            )
            log.is_not_stored(segment)
            self._stored_ms.pop(segment.base_offset, None)
            break
        return there

    def _evictable(self, log: Log) -> tuple[list[Segment], int | None]:
        policy, now_ms = log.policy, self._parts.now_ms()
        most, age_ms = policy.local_max_length_bytes, policy.local_max_age_ms
        if most is None and age_ms is None:
            most = DEFAULT_LOCAL_BYTES
        over = 0 if most is None else log.local_size - most
        going: list[Segment] = []
        for segment in log.local:
            if not segment.num_chunks:
                continue
            if not log.is_sealed(segment):
                break
            old_ms = None if age_ms is None else (segment.last_timestamp_ms or 0) + age_ms - now_ms
            if over <= 0 and (old_ms is None or old_ms > 0):
                return going, old_ms
            if segment.stored is None or not self._is_ready(log, segment):
                return going, None
            since_ms = self._stored_ms.setdefault(segment.base_offset, now_ms)
            # The limit is worth more than the delay.
            is_much = over > _MOST_OVER * log.segment_bytes
            if since_ms + self._parts.delay_ms > now_ms and not is_much:
                return going, since_ms + self._parts.delay_ms - now_ms
            going.append(segment)
            over -= segment.size
        return going, None

    @staticmethod
    def _is_ready(log: Log, segment: Segment) -> bool:
        """Nothing has to be made from its file any more."""
        return not log.policy.key_properties or has_final_keys(segment)

    # -- roll

    async def _roll(self, stream: Stream, log: Log) -> float | None:
        """Seal the newest segment when it is old; seconds until it is, None for an empty one."""
        due_ms = self._roll_due_ms(log)
        if due_ms is None:
            return None
        left_ms = due_ms - self._parts.now_ms()
        if left_ms > 0:
            return left_ms / 1_000
        newest = log.segments[-1]
        await stream.seal()
        if log.segments[-1] is not newest:
            return 0.0
        if stream.failed:
            self._fail_requests(stream.failed)
        return _SHORTAGE_SECONDS

    def _roll_due_ms(self, log: Log) -> int | None:
        first_ms = log.segments[-1].first_timestamp_ms
        if first_ms is None or not log.policy.tier:
            return None
        newest = log.segments[-1].base_offset
        is_waited_for = any(request.is_beyond(newest) for request in self._requests)
        return first_ms if is_waited_for else first_ms + self._parts.roll_ms

    @property
    def is_old(self) -> bool:
        """Its log is open, and its newest segment is to be sealed, or a file to be removed."""
        due_ms = None if self._log is None else self._roll_due_ms(self._log)
        return due_ms is not None and due_ms <= self._parts.now_ms()

    # -- reports

    def report(self) -> StreamTier | None:
        """See TierReports.stream."""
        numbers = self._numbers if self._log is None else self._count(self._log)
        if not (self.is_on or numbers.segments_remote):
            return None
        since_ms = numbers.waits_since_ms
        waits = None if since_ms is None else max(0, self._parts.now_ms() - since_ms) / 1_000
        return StreamTier(
            name=self.name,
            vhost=self.virtual_host,
            bytes_local=numbers.bytes_local,
            segments_local=numbers.segments_local,
            bytes_remote=numbers.bytes_remote,
            segments_remote=numbers.segments_remote,
            bytes_waiting=numbers.bytes_waiting,
            segments_waiting=numbers.segments_waiting,
            oldest_waiting_seconds=waits,
            sentence=(self._parts.ownership.fence if self.is_on else "")
            or self.fault
            or self._failure,
        )

    @property
    def _failure(self) -> str:
        """Why the stream takes no messages at all, whatever the tier does; empty while it does."""
        stream = self._stream
        return "" if stream is None or self.is_gone else stream.failed or ""

    def _count(self, log: Log) -> _Numbers:
        local, manifest = log.local, log.manifest
        waiting = log.unstored if log.policy.tier else []
        return _Numbers(
            sum(segment.size for segment in local),
            len(local),
            0 if manifest is None else manifest.size,
            0 if manifest is None else len(manifest.segments),
            sum(segment.size for segment in waiting),
            len(waiting),
            waiting[0].last_timestamp_ms if waiting else None,
        )


def _replace(
    store: ObjectStore, before: KeptManifest | None, wanted: Manifest
) -> tuple[KeptManifest, set[str]]:
    """Write a manifest; gives it, and the keys that it does not name any more."""
    kept = put_manifest(store, before, wanted)
    return kept, set() if before is None else before.manifest.keys_without(wanted)


def has_final_keys(segment: Segment) -> bool:
    """A sealed segment has its key index, as far as is known, or will not get one."""
    if segment.damage or segment.key_state is not KeyState.KNOWN:
        return True
    return segment.keys is not None and segment.keys.is_final


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(arguments_to_json(arguments))
    return found
