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

`StreamManifest` meets and follows (stream_manifest.py), `SegmentUploads` and `Eviction` have the
next two steps (segment_uploads.py, eviction.py).
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import trio

from segments import Log
from segments.policy import LogPolicy
from segments.store.manifest import Manifest
from segments.store.object_names import StreamKey
from segments.tier.planning import is_stored_to
from streamd.broker.declared.rows import StreamRow
from streamd.broker.streams.log_life import StreamState
from streamd.broker.streams.open_log import OpenLog
from streamd.broker.streams.stream import Stream
from streamd.broker.tier.eviction import SHORTAGE_SECONDS, Eviction
from streamd.broker.tier.line import Line
from streamd.broker.tier.ownership import Ownership
from streamd.broker.tier.segment_uploads import SegmentUploads
from streamd.broker.tier.stream_manifest import StreamManifest, TieredLog
from streamd.broker.tier.upload_requests import RequestState, UploadRequest
from streamd.broker.tier.wal import StoreConfirms, WalStream
from streamd.operations.arguments import CONFIRM, STORE
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name
from streamd.operations.tier_reports import StreamTier

logger = logging.getLogger(__name__)

_TRUNCATED_SECONDS = 20.0  # that an answer waits; clients wait 30 s
_FAULT_SECONDS = 30.0  # until it is looked again whether somebody has mended what is wrong


class TierParts(NamedTuple):
    """What streams need of the tier.

    Attributes:
        ownership: gives the store, and knows whose it is.
        line: to the store.
        now_ms: the wall clock.
        roll_ms: age at which a segment is sealed.
        delay_ms: that a segment stays on the disk after it was stored.
        confirms: through the store.
        confirms_all: everything is answered when the store has it.
        is_shard: which streams there are, the log of the cluster says: one that was deleted here
            goes when that has it.
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
    confirms: StoreConfirms
    delete_later: Callable[[set[str]], Awaitable[None]]
    note_open: Callable[["TieredStream", bool], None]
    confirms_all: bool
    is_shard: bool


class _Numbers(NamedTuple):
    """Figures of a log; see reports.StreamTier."""

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
        self._wal: WalStream | None = None
        self._key: StreamKey | None = None
        self._is_split = False
        self._newest, self._newest_ms = -1, 0  # its offset, and since when it is known to grow
        owner, delete_later = parts.ownership, parts.delete_later
        self._manifest = StreamManifest(
            owner, virtual_host, name, row, self._refuse, self._accept, delete_later
        )
        self._uploads = SegmentUploads(name, owner, self._manifest, parts.line, delete_later)
        self._eviction = Eviction(name, owner, self._manifest, parts.now_ms, parts.delay_ms)
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

    def log_opened(self, opened: OpenLog) -> None:
        """Its log is open."""
        self._log = log = opened.log
        if self._wal is not None:
            self._parts.confirms.opened(self._wal, opened)
        for request in self._requests:
            if request.end is None:
                request.end = log.committed_offset
        self._parts.note_open(self, True)
        self._parts.wants(self)

    def log_closes(self) -> None:
        """Its log is about to be closed: what is in it will be due some time."""
        if self.is_gone:
            self._end_requests()
        if self.is_removed:
            self._parts.confirms.deleted(self.virtual_host, self.name)
        log = self._log
        if log is None:
            return
        self._key = self.key
        self._numbers = self._count(log)
        due_ms = self._roll_due_ms(log)
        if due_ms is not None:
            self._parts.wants_at(self, max(0, due_ms - self._parts.now_ms()) / 1_000)
        self._log = None
        self._wal = None
        self._uploads.log_closes()
        self._parts.note_open(self, False)

    def changed(self) -> None:
        """A segment was sealed, or some were dropped."""
        self._parts.wants(self)

    async def truncated(self, opened: OpenLog) -> None:
        """Return when the manifest begins where the log does, so that no machine has more of it.

        What slots have before its end is not read then either.

        Raises:
            Refused: the store does not have it for long.
        """
        if not (self.is_on and (self._parts.confirms_all or opened.log.awaits_store)):
            return
        with self.requested() as request:
            with trio.move_on_after(_TRUNCATED_SECONDS):
                await request.ended()
        if request.is_waiting or request.state is RequestState.FAILED:
            why = request.reason or "the tier takes long"
            details = f"it is done, and would come back if the machine was lost: {why}"
            raise Refused(Reason.NOT_AVAILABLE, details)

    def store_is_wrong(self) -> None:
        """The store is another one: what was written last may be there."""
        self._manifest.store_is_wrong()

    def index_made(self) -> None:
        """A filter index was made, or cannot be."""
        if self._uploads.waits_for_index:
            self._parts.wants(self)

    # -- confirms, see wal.py

    @property
    def is_confirmed_by_store(self) -> bool:
        """Nothing of it is confirmed that the store does not have."""
        row, confirms_all = self._row(), self._parts.confirms_all
        confirm = None if row is None else row.effective.get(CONFIRM, STORE if confirms_all else "")
        return confirm == STORE

    def begin_confirms(self, log: Log) -> WalStream:
        """What is written to its log, which was opened, is confirmed when the store has it."""
        key = StreamKey(self.virtual_host, self.name, log.life)
        manifest = log.stored.manifest
        after = 0 if manifest is None else manifest.next_offset
        log.await_store(awaits=True)
        self._wal = self._parts.confirms.stream(key, self._row, log, after)
        return self._wal

    def confirm_in_store(self, opened: OpenLog) -> None:
        """From now on its messages are confirmed when the store has them."""
        wal = self.begin_confirms(opened.log)
        self._parts.confirms.opened(wal, opened, is_changed=True)

    def may_write(self, opened: OpenLog) -> bool:
        """The store keeps up; where it does not, the log is told when it does."""
        if self._parts.confirms.is_behind:
            self._parts.confirms.wait_for_room(opened)
            return False
        return True

    def wrote(self, opened: OpenLog) -> None:
        """Something was written that is confirmed when the store has it."""
        if self._wal is not None:
            self._parts.confirms.wrote(self._wal, opened)

    @property
    def trouble(self) -> str:
        """Why nothing is confirmed through the store at the moment; empty while it is."""
        return self._parts.confirms.watch.trouble

    @property
    def life(self) -> str | None:
        """The life of the stream; None where nobody has looked, empty where it has no files yet."""
        row = self._row()
        if row is not None and row.life:
            return row.life
        figures = None if self._stream is None else self._stream.figures
        if figures is not None:
            return figures.life or None
        return "" if row is not None and not row.has_files else None

    @property
    def manifest(self) -> Manifest | None:
        """What the store has of it, as far as is known."""
        kept = self._manifest.kept
        return None if kept is None else kept.manifest

    @property
    def bytes_waiting(self) -> int:
        """Bytes of full segments that wait to be stored, while its log is open."""
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
            alarm = "" if self._stream is None else self._stream.alarm
            request.reason = request.reason or self.fault or alarm

    def _end_requests(self) -> None:
        for request in self._requests:
            request.cancel()

    def _fail_requests(self, reason: str) -> None:
        for request in self._requests:
            request.fail(reason)

    async def _tell_requests(self, tiered: TieredLog) -> None:
        """Tell those whose messages are stored, once the offsets of consumers are, too."""
        log = tiered.log
        waiting = [one for one in self._requests if one.is_waiting]
        stored = [one for one in waiting if one.end is not None and is_stored_to(log, one.end)]
        if stored:
            await self._uploads.store_offsets(tiered)
        kept = self._manifest.kept
        next_offset = kept.manifest.next_offset if kept is not None else 0
        for request in stored:
            request.complete(next_offset, self.uploaded_bytes)

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
    def is_removed(self) -> bool:
        """The same, and no catalog elsewhere may say otherwise, see TierParts."""
        return self.is_gone and not self._parts.is_shard

    @property
    def key(self) -> StreamKey | None:
        """Where it is in the store; None where it is not, or nobody has looked."""
        if self._log is not None and self._log.stored.manifest is not None:
            self._key = self._log.stored.manifest.stream
        return self._key

    @property
    def keys_in_work(self) -> set[str]:
        """Objects that a manifest is about to name."""
        return self._uploads.keys_in_work(self.key) | self._manifest.keys_in_work

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
            async with stream.opened():
                work = stream.life.held
                return await self._work(TieredLog(stream, work, self._parts.ownership))
        except Refused as refused:
            self._fail_requests(refused.details)
            return None  # it is gone, or its log says why

    async def _work(self, tiered: TieredLog) -> float | None:
        log, manifest = tiered.log, self._manifest
        is_met = await manifest.meet(tiered)
        self._take_stored()
        if not is_met:
            is_outside = log.stored.manifest is None and not log.policy.tier
            if is_outside or tiered.is_over:
                return None
            return _FAULT_SECONDS if self.fault else SHORTAGE_SECONDS
        kept = manifest.kept
        if (
            kept is not None and log.stored.manifest != kept.manifest
        ):  # there was no room for the copy
            is_there = await tiered.keep(kept.manifest)
            return 0.0 if is_there else SHORTAGE_SECONDS
        if await manifest.follow(tiered):
            self._eviction.forget_before(log.segments.kept_from)
            return 0.0
        return await self._store_and_evict(tiered) if log.policy.tier else None

    async def _store_and_evict(self, tiered: TieredLog) -> float | None:
        await self._tell_requests(tiered)
        waits = await self._uploads.step(tiered)
        self._take_stored()
        evicts = None
        if not tiered.is_over:  # also while there is always one more to upload
            evicts = await self._eviction.step(tiered)
        if tiered.is_over:
            return None
        if waits is None:
            return 0.0
        found = [waits or None, evicts, await self._roll(tiered)]
        return min((one for one in found if one is not None), default=None)

    def _take_stored(self) -> None:
        stored = self._uploads.take_stored()
        if stored is not None:
            self._eviction.note_stored(stored.base_offset)
            self.uploaded_bytes += sum(file.size for file in stored.files.values())

    def _accept(self) -> None:
        self._is_split, self.fault = False, ""

    def _refuse(self, reason: str, is_split: bool) -> None:
        if reason != self.fault:
            logger.error("stream %s is not uploaded to the tier: %s", self.name, reason)
        self.fault, self._is_split = reason, is_split
        self._fail_requests(reason)

    # -- roll

    async def _roll(self, tiered: TieredLog) -> float | None:
        """Seal the newest segment when it is old; seconds until it is, None for an empty one."""
        stream, log = tiered.stream, tiered.log
        due_ms = self._roll_due_ms(log)
        if due_ms is None:
            return None
        left_ms = due_ms - self._parts.now_ms()
        if left_ms > 0:
            return left_ms / 1_000
        newest = log.segments.shown[-1]
        await tiered.work.seal()
        if log.segments.shown[-1] is not newest:
            return 0.0
        if stream.failed:
            self._fail_requests(stream.failed)
        return SHORTAGE_SECONDS

    def _roll_due_ms(self, log: Log) -> int | None:
        first_ms = log.segments.shown[-1].first_timestamp_ms
        if first_ms is None or not log.policy.tier:
            return None
        newest, now_ms = log.segments.shown[-1].base_offset, self._parts.now_ms()
        if newest != self._newest or self._newest_ms > now_ms:  # the clock was set back
            self._newest, self._newest_ms = newest, now_ms
        is_waited_for = any(request.is_beyond(newest) for request in self._requests)
        return 0 if is_waited_for else min(first_ms, self._newest_ms) + self._parts.roll_ms

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
        stream = self._stream
        # It may take no messages at all, whatever the tier does.
        failure = "" if stream is None or self.is_gone else stream.failed or ""
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
            sentence=(self.is_on and self._parts.ownership.fence) or self.fault or failure,
            messages_unconfirmed=0 if self._wal is None else self._wal.num_unconfirmed,
        )

    def _count(self, log: Log) -> _Numbers:
        local, manifest = log.segments.local, log.stored.manifest
        waiting = log.segments.unstored if log.policy.tier else []
        return _Numbers(
            sum(segment.size for segment in local),
            len(local),
            0 if manifest is None else manifest.size,
            0 if manifest is None else len(manifest.segments),
            sum(segment.size for segment in waiting),
            len(waiting),
            waiting[0].last_timestamp_ms if waiting else None,
        )
