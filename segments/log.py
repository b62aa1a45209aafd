"""The log of one stream: segments, tracking and their files, in one folder. Synchronous.

One owner appends, which a lock on the folder sees to; any number of readers follow.
`committed_offset` is how far readers may go: everything before it is whole, and nothing before it
changes except that retention drops the oldest segments. What is appended is committed at once or,
with `commits_on_flush`, when it is on the device: then nobody reads what a power failure can still
take away. Time comes from the caller.
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import PurePath
from typing import NamedTuple

from segments.chunk import ChunkBuilder, EncodedChunk
from segments.codec import Checkpoint, Damage
from segments.disk import Disk, Lock, OsDisk
from segments.errors import CheckpointDueError, StorageError, UndecidedError, UnreadableError
from segments.filter_demand import FilterDemand
from segments.filter_index import FilterIndex, Index as FilterIndexForm
from segments.flush import MOST_SEALED, Flush, FlushState
from segments.gaps import OFFSET_GAP, Gap
from segments.journal import Journal
from segments.marks import AHEAD, LIFE, new_life, put_mark
from segments.policy import (
    DEFAULT_SEGMENT_BYTES,
    MAX_SEGMENT_BYTES,
    MAX_SEGMENT_CHUNKS,
    LogPolicy,
)
from segments.recovery import recovery
from segments.recovery.steps import Plan
from segments.retention import Removal, expired
from segments.segment import MAX_GROUP, Appended, KeyState, Segment, SegmentWriter
from segments.segment_list import SegmentList
from segments.store.cache import TierCache
from segments.store.manifest import Manifest, StoredSegment, changed_segments
from segments.tracking import Tracking
from segments.tracking_replay import restore_tracking

# How far the newest chunk may be ahead of the clock before the clock is believed again: less is a
# correction, or summer time set by hand.
MOST_AHEAD_MS = 3_600_000
# As many are of the declared size; then it doubles with each further thousand, up to the default.
_MANY_SEGMENTS, _SEGMENTS_PER_DOUBLING = 4_096, 1_024
_SEGMENTS_AHEAD = 32  # whose filter indexes are made ready for a reader
_base_offset = attrgetter("base_offset")


@dataclass(frozen=True)
class RecoveryReport:
    """What opening a log found and did.

    Attributes:
        steps: repairs, a sentence each.
        losses: what cannot be read any more, a sentence each.
    """

    steps: tuple[str, ...]
    losses: tuple[str, ...]


class LogObserver:
    """Learns what happens to a log while it is read. This one ignores it."""

    def index_requested(self, log: "Log") -> None:
        """A filter index is requested; see `Log.take_index_requests`."""

    def keys_requested(self, log: "Log") -> None:
        """There are keys to index; see derived/key_schedule.py."""

    def damage_found(self, segment: Segment, damage: Damage) -> None:
        """A reader has found damage."""

    def clock_was_ahead(self, log: "Log", ahead_ms: int) -> None:
        """The newest chunk is so far ahead of the clock that times follow the clock again."""


def _open_writer(disk: Disk, folder: str, plan: Plan) -> SegmentWriter:
    """The writer of the newest segment, or of a new one where nothing may be appended to that."""
    if plan.has_tail:
        return SegmentWriter.resume(plan.segments[-1])
    return SegmentWriter.create(disk, folder, plan.new_base)


class Written(NamedTuple):
    """What was appended to a log.

    Attributes:
        messages, chunks: how many.
        size: of the chunks, in bytes.
    """

    messages: int
    chunks: int
    size: int


class Log:
    """A stream's log, open for appending and reading. Made by `Log.open`.

    Attributes:
        policy: its limits; may be replaced, with effect from the next chunk on.
        commits_on_flush: readers see what is appended when it is flushed.
        segments: that it consists of.
        committed_offset: the offset after the last record that readers may read.
        epoch: the writer's generation: of the server, or one more than the newest chunk that was
            found; never less than that one's.
        tracking: publisher sequences of what readers may read, and stored offsets.
        is_closed: nothing is written into its folder any more.
        next_offset: that the next record will get, after all that is appended.
        awaits_mark: the next `append` syncs a folder, unless `mark` is called before.
        keys_requested: somebody is about to index keys; it says when that is done.
        life: of the stream, from its creation to its deletion: tells its offsets from those of
            another one of that name. Empty where another server writes it, and has stored nothing.
        manifest: what a store has of it, as the copy in its folder says; None for nothing.
        keys_wanted_from: bytes of the newest segment from which on there is something to index;
            said by whoever found that there is nothing more before.
    """

    _lock: Lock  # from `open`

    def __init__(
        self,
        policy: LogPolicy,
        plan: Plan,
        writer: SegmentWriter,
        journal: Journal,
        observer: LogObserver,
        cache: TierCache,
        *,
        epoch: int,
        commits_on_flush: bool,
    ) -> None:
        disk, folder = writer.segment.disk, writer.segment.folder
        self._disk = disk
        self.folder = folder
        self.policy = policy
        self.commits_on_flush = commits_on_flush
        self.epoch = max(epoch, plan.last_epoch)
        self._writer = self._shown = writer  # _shown: of the last segment that readers may read
        self.next_offset = self.committed_offset = writer.next_offset
        segments = plan.segments if plan.has_tail else [*plan.segments, writer.segment]
        gaps = [Gap(plan.ends_at, writer.segment.base_offset)] if plan.gap else []
        self.segments = SegmentList(segments, gaps)
        self.awaits_mark = disk.boot() not in plan.boots
        self._last_timestamp_ms = self.segments.last_timestamp_ms or 0
        self._ahead: dict[bytes, int] = {}
        self._state = FlushState(writer, plan, epoch=self.epoch)
        self.is_closed = self.keys_requested = False
        self.keys_wanted_from = 0
        self._rolled = Written(-writer.next_offset, 0, 0)  # in segments that are full
        self._obstacle: StorageError | None = None
        self._now_ms = 0  # the wall clock, as it was said last
        self._index_requests: list[Segment] = []
        self._observer = observer
        for segment in segments:
            segment.report_damage_to(observer.damage_found)
        self._cache = cache
        self.life = plan.life
        self.manifest: Manifest | None = None
        if plan.manifest is not None:
            self.adopt_manifest(plan.manifest)
        self.filter_demand = FilterDemand(disk, folder)
        self._journal = journal
        self.tracking, notes = restore_tracking(
            journal, segments, plan.checkpoint, plan.ends_at, salvages=plan.salvages
        )
        self.report = RecoveryReport((*map(str, plan.steps), *notes), tuple(map(str, plan.losses)))

    @classmethod
    def open(
        cls,
        folder: str,
        policy: LogPolicy | None = None,
        disk: Disk | None = None,
        observer: LogObserver | None = None,
        cache: TierCache | None = None,
        *,
        epoch: int | None = None,
        life: str | None = "",
        commits_on_flush: bool = False,
    ) -> "Log":
        """Open the log in `folder`, creating it where there is none, repairing what a crash left.

        What it holds is on the device on return. Nobody else can open it until it is closed, or
        this process and those that it has forked have ended.

        Args:
            folder: of the stream.
            policy: its limits.
            disk: where the folder is; default the operating system's.
            observer: learns what happens while it is read; default nobody.
            cache: for its cold segments; default one that has nothing.
            epoch: of who appends to it; default one that no chunk of it has.
            life: of a stream that has none yet; default a new one. None where somebody else writes
                it, see `follow`: nothing is ever appended to it here.
            commits_on_flush: readers get to see what is appended after the flush that covers it;
                else at once.

        Raises:
            LockedError: it is open, here or in another process; nothing was changed.
            CorruptError: a segment file is not one.
            OtherVersionError: another version of this program wrote it.
            UndecidedError: the device refuses to read what decides how much of it is kept.
            StorageError: the system refused.
        """
        disk, observer = disk or OsDisk(), observer or LogObserver()
        policy, cache = policy or LogPolicy(), cache or TierCache(disk=disk)
        try:
            return cls._open(
                folder,
                policy,
                disk,
                observer,
                cache,
                epoch=epoch,
                life=life,
                commits_on_flush=commits_on_flush,
            )
        except UnreadableError as error:
            raise UndecidedError(error, str(PurePath(folder, recovery.SALVAGE_NAME))) from error

    @classmethod
    def _open(
        cls,
        folder: str,
        policy: LogPolicy,
        disk: Disk,
        observer: LogObserver,
        cache: TierCache,
        *,
        epoch: int | None,
        life: str | None,
        commits_on_flush: bool,
    ) -> "Log":
        disk.make_folder(folder)
        with ExitStack() as opened:  # what fails behind them must not keep their descriptors
            lock = disk.lock(folder)
            opened.callback(lock.release)
            plan = recovery.examine(disk, folder)
            plan.apply(disk)
            if life is not None and not plan.has_life:
                plan.life = plan.life or life or new_life()
                put_mark(disk, folder, LIFE, plan.life)
                if not plan.has_files:  # where it takes no sync of its own
                    put_mark(disk, folder, AHEAD, disk.boot())
                    plan.boots = [disk.boot()]
            writer = _open_writer(disk, folder, plan)
            opened.callback(writer.close)
            journal = Journal.open(disk, folder, salvages=plan.salvages)
            opened.callback(journal.close)
            log = cls(
                policy,
                plan,
                writer,
                journal,
                observer,
                cache,
                epoch=plan.last_epoch + 1 if epoch is None else epoch,
                commits_on_flush=commits_on_flush,
            )
            log._lock = lock
            log.flush(with_checkpoint=True)
            log._forget_crash(plan)
            if plan.salvages:
                disk.remove(str(PurePath(folder, recovery.SALVAGE_NAME)))
            opened.pop_all()
        return log

    def _forget_crash(self, plan: Plan) -> None:
        """What a crash has left, and what has been seen to, is on the device."""
        here = self._disk.boot()
        with suppress(StorageError):  # the next opening sees to it once more
            for segment in plan.empty:
                segment.remove()
            for boot in plan.boots:
                if boot != here:
                    self._disk.remove(str(PurePath(self.folder, AHEAD + boot)))

    @property
    def written(self) -> Written:
        """What has been appended since it was opened."""
        writer, rolled = self._writer, self._rolled
        return Written(
            rolled.messages + writer.next_offset,
            rolled.chunks + writer.num_chunks - writer.start_chunks,
            rolled.size + writer.size - writer.start_size,
        )

    def sequence(self, reference: bytes) -> int | None:
        """Highest publishing id of a publisher in all that is appended, None when it has none."""
        ahead = self._ahead.get(reference)
        return self.tracking.sequence(reference) if ahead is None else ahead

    def append(self, builders: Sequence[ChunkBuilder], now_ms: int) -> None:
        """Write chunks, sealing segments that are full.

        Readers see them on return or, with `commits_on_flush`, once they are flushed.

        Args:
            builders: what each chunk holds, at least one entry.
            now_ms: wall clock. Chunk timestamps do not decrease, even if the clock does, unless
                it was ahead by more than MOST_AHEAD_MS: then they follow it in a new segment.

        Raises:
            StorageError: the system refused. `next_offset` says how many of the first chunks were
                appended nevertheless.
        """
        self.check_obstacle()
        if self.awaits_mark:
            self.mark()
        self._now_ms = now_ms
        if self._last_timestamp_ms - now_ms > MOST_AHEAD_MS:
            self._believe(now_ms)
        timestamp_ms = max(now_ms, self._last_timestamp_ms)
        chunk_id = self.next_offset
        group: list[EncodedChunk] = []
        size = self._writer.size
        for builder in builders:
            if self._is_full(size, self._writer.num_chunks + len(group)):
                self._write(group)
                self._roll()
                group, size = [], self._writer.size
            elif len(group) == MAX_GROUP:
                self._write(group)
                group = []
            chunk = builder.encode(
                chunk_id=chunk_id, timestamp_ms=timestamp_ms, epoch=self.epoch, policy=self.policy
            )
            chunk_id += builder.num_records
            if chunk_id - self._state.sure_offset > OFFSET_GAP:
                self._write(group)
                self._await_checkpoint()
            group.append(chunk)
            size += chunk.size
        self._write(group)

    def _await_checkpoint(self) -> None:
        """Give out no more offsets than a gap makes up for, see gaps.py."""
        self._obstacle = CheckpointDueError(self._writer.segment.path())
        raise self._obstacle

    def mark(self) -> None:
        """Note on the device that readers may see what is not there yet. May run in a thread.

        Also with `commits_on_flush`: who reads the files sees what is not committed, too.

        Raises:
            StorageError: the system refused.
        """
        if self.awaits_mark:
            put_mark(self._disk, self.folder, AHEAD, self._disk.boot())
            self._disk.sync_folder(self.folder)
            self.awaits_mark = False

    def _believe(self, now_ms: int) -> None:
        """The clock was ahead: go on in a segment whose times increase by themselves."""
        if self._writer.num_chunks:
            self._roll()
        self._observer.clock_was_ahead(self, self._last_timestamp_ms - now_ms)
        self._last_timestamp_ms = now_ms

    def check_obstacle(self) -> None:
        """Raise the StorageError that kept a flush from being completed, until one is."""
        obstacle = self._obstacle or self._journal.obstacle
        if obstacle is not None:
            raise obstacle

    def _is_full(self, size: int, num_chunks: int) -> bool:
        """Whether the newest segment, of so many bytes and chunks, takes no more."""
        policy = self.policy
        if size < policy.max_segment_bytes and num_chunks < policy.max_segment_chunks:
            return False
        if not num_chunks:
            return False  # an empty segment would be rolled for ever
        if self._state.num_sealed >= MOST_SEALED:
            return size >= MAX_SEGMENT_BYTES or num_chunks >= MAX_SEGMENT_CHUNKS
        return size >= self.segment_bytes or num_chunks >= policy.max_segment_chunks

    @property
    def segment_bytes(self) -> int:
        """A segment that has reached this is sealed, unless too many wait for a flush.

        In a log of very many segments it is more than was declared: each keeps memory, and takes
        time when the log is opened, however little is in it.
        """
        declared, more = self.policy.max_segment_bytes, len(self.segments.shown) - _MANY_SEGMENTS
        if more <= 0 or declared >= DEFAULT_SEGMENT_BYTES:
            return declared
        doublings = -(-more // _SEGMENTS_PER_DOUBLING)
        return min(declared << min(doublings, 32), DEFAULT_SEGMENT_BYTES)

    def _write(self, group: Sequence[EncodedChunk]) -> None:
        """Append a group to the newest segment."""
        if not group:
            return
        appended = self._writer.append(group)
        self.next_offset = self._writer.next_offset
        self._last_timestamp_ms = group[-1].header.timestamp_ms
        if self.commits_on_flush:
            for chunk in group:
                self._ahead.update(chunk.sequences)
            self._state.held.append(appended)
        else:
            self._commit(appended)

    def _commit(self, appended: Appended) -> None:
        """Let readers have what was appended."""
        segment = appended.writer.segment
        appended.writer.commit(appended)
        if segment is not self.segments.shown[-1]:
            self._show(appended.writer)
        for chunk in appended.chunks:
            if chunk.sequences:
                self._commit_sequences(chunk)
        self.committed_offset = segment.next_offset
        if self.policy.key_properties and segment.size >= self.keys_wanted_from:
            self.request_keys()

    def _show(self, writer: SegmentWriter) -> None:
        """Let readers have a new segment."""
        sealed = self.segments.shown[-1]
        self.segments.add(writer.segment)
        self._shown = writer
        self.keys_wanted_from = 0
        self.request_keys()  # of the sealed one
        if sealed.filters is not None:
            self.request_index(sealed)  # from memory to a file
        self.outlive(self._now_ms)

    def _commit_sequences(self, chunk: EncodedChunk) -> None:
        self.tracking.set_sequences(chunk.header.chunk_id, chunk.sequences.items())
        for reference, last in chunk.sequences.items():
            if self._ahead.get(reference) == last:
                del self._ahead[reference]

    def _roll(self) -> None:
        """Seal the newest segment and start the next."""
        writer = SegmentWriter.create(self._disk, self.folder, self.next_offset)
        writer.segment.report_damage_to(self._observer.damage_found)
        self._state.rolled(self._writer, writer)
        self._rolled = self.written._replace(messages=self._rolled.messages)  # by offsets
        self._writer.close()
        self._writer = writer

    def store_offset(self, reference: bytes, offset: int) -> None:
        """Remember how far a consumer has come; written with the next `write_tracking`.

        Raises:
            ValueError: the reference is empty or longer than 255 bytes.
        """
        self.tracking.store_offset(reference, offset)

    def delete_offset(self, reference: bytes) -> bool:
        """Forget a stored offset; whether there was one. On the device after the next flush."""
        is_known = self.tracking.delete_offset(reference)
        if is_known and self._journal.exists:
            self._journal.must_be_rewritten()
        return is_known

    def write_tracking(self) -> None:
        """Put stored offsets that are not written yet into the journal; nothing is synced.

        While a flush rewrites the journal they stay pending until it has ended.

        Raises:
            StorageError: the system refused; they stay pending.
        """
        if self.tracking.has_pending:
            self._journal.write_pending(self.tracking, self.committed_offset)

    def outlive(self, now_ms: int) -> bool:
        """Let the log begin where the policy allows, which it also does when a segment is sealed.

        Returns:
            Whether there are files to be removed: flush with a checkpoint, then `expire`.
        """
        self._now_ms = now_ms
        segments = self.segments
        segments.hide(expired(segments.shown, segments.size, self.policy, now_ms))
        return bool(segments.outlived)

    def expire(self, now_ms: int, busy: Collection[Segment] = ()) -> Removal:
        """Take segments that have outlived the policy out of the log.

        Files of segments that the last flush with a checkpoint has not covered stay: after a power
        failure the tracking may have to be read from them.

        Args:
            now_ms: wall clock.
            busy: segments whose files are needed: theirs stay, and those of later ones.

        Returns:
            The removal of their files, and of those that an earlier one could not remove; to be run
            in a thread if the caller likes, without segments where all stay. Readers on them can
            finish. No flush may be going on meanwhile.
        """
        self.outlive(now_ms)
        outlived = self.segments.outlived
        number = next((n for n, one in enumerate(outlived) if one in busy), len(outlived))
        while number and not self.is_covered(outlived[number - 1].next_offset):
            number -= 1
        if not (number or self.segments.gone):
            return Removal(self._disk, self.folder, [], None)
        removal = self._drop(number)
        self.tracking.forget_offsets_below(self.segments.first_offset)
        return removal

    def _drop(self, number: int, rest: Segment | None = None) -> Removal:
        """Take so many of the oldest segments out; `rest` is in the place of the last of them."""
        segments = self.segments
        gone = segments.drop(number, rest)
        checkpoint = self._state.without(gone, segments.kept[0])
        return Removal(self._disk, self.folder, segments.gone, checkpoint)

    # -- the store

    def adopt_manifest(self, manifest: Manifest) -> None:
        """A store has what a manifest says, and the copy of it is on the device."""
        removed, added = self._changes(manifest)
        self.manifest = manifest
        for one in removed:
            segment = self.segments.at(one.base_offset)
            if segment is not None and segment.cold is None:
                self.segments.forget_stored(segment)
        for one in added:
            segment = self.segments.at(one.base_offset)
            if segment is None:
                continue
            if segment.cold is not None:
                segment.stored = one
                segment.make_cold(self._cache.segment(manifest.stream, one, self.folder))
            elif self.segments.is_sealed(segment) and segment.is_as_stored(one):
                segment.stored = one

    def _changes(
        self, manifest: Manifest
    ) -> tuple[tuple[StoredSegment, ...], tuple[StoredSegment, ...]]:
        """What the manifest lists no more, and what it has not listed before."""
        before = self.manifest.segments if self.manifest is not None else ()
        return changed_segments(before, manifest.segments)

    def forget_cold(self) -> None:
        """It is deleted: nothing of it is to stay in the cache."""
        for segment in self.segments.kept:
            if segment.cold is not None:
                segment.cold.forget()

    def follow(self, manifest: Manifest, tracking: Tracking) -> list[Segment]:
        """Show readers what a store has of a log that somebody else writes.

        Nothing is ever appended to it here: its newest segment is empty, and begins behind what is
        stored. Readers of what is not stored any more go on where the log begins.

        Args:
            manifest: what the store has; not before what it had.
            tracking: of publishers and consumers.

        Returns:
            Segments that are not part of it any more, whose files may be removed.

        Raises:
            StorageError: the system refused; it is as it was.
        """
        removed, added = self._changes(manifest)
        if manifest.next_offset > self._writer.segment.base_offset:
            self._begin_at(manifest.next_offset)
        new = [self._cold_segment(manifest, stored) for stored in added]
        bases = {stored.base_offset for stored in removed}
        gone = self.segments.exchange(bases, new, self._writer.segment)
        self.manifest, self.tracking = manifest, tracking
        self.life = manifest.stream.creation
        self.committed_offset = manifest.next_offset
        used = set(map(_base_offset, new))
        return [one for one in gone if one.base_offset not in used]

    def _cold_segment(self, manifest: Manifest, stored: StoredSegment) -> Segment:
        disk, folder = self._disk, self.folder
        segment = Segment.of_store(disk, folder, manifest.stream, stored, self._cache)
        segment.report_damage_to(self._observer.damage_found)
        return segment

    def _begin_at(self, offset: int) -> None:
        """Let the newest segment, which is empty, begin at a later offset."""
        old, new = self._writer, SegmentWriter.create(self._disk, self.folder, offset)
        new.segment.report_damage_to(self._observer.damage_found)
        self._state.replaced(new)
        self._rolled = self._rolled._replace(
            messages=self._rolled.messages - (new.next_offset - old.next_offset)
        )
        self._writer = self._shown = new
        self.next_offset = offset
        old.close()
        with suppress(StorageError):  # they are in the way when the log is opened the next time
            old.segment.remove()

    def make_cold(self, segment: Segment) -> None:
        """Read a segment from the store from now on; who reads its file can finish.

        It is sealed, on the device, and in the manifest. Its file is then to be removed, by
        `remove_file` of the segment, in a thread if the caller likes.
        """
        stored, manifest = segment.stored, self.manifest
        assert stored is not None and manifest is not None  # noqa: S101, PT018 - see above
        segment.make_cold(self._cache.segment(manifest.stream, stored, self.folder))

    def seal(self) -> bool:
        """Seal the newest segment, unless it is empty; readers see the new one at once.

        Returns:
            Whether the newest segment is empty now. It is not where something that was appended
            awaits a flush.

        Raises:
            StorageError: the system refused.
        """
        if self._state.held:
            return False
        if self._writer.num_chunks:
            self.check_obstacle()
            self._roll()
        if self._shown is not self._writer:  # maybe it was rolled for an append that failed
            self._show(self._writer)
        return True

    def is_covered(self, offset: int) -> bool:
        """What is known of publishers and consumers needs no chunk before `offset`."""
        return not self._has_tracking or self._journal.covers >= offset

    def truncate(self, offset: int, rest: Segment | None = None) -> Removal:
        """Let the log begin at `offset`, where a segment begins or `rest` does.

        Stored offsets before it stay: their consumers are to go on with the first message.

        It is covered, see `is_covered`: flush with a checkpoint before. No flush may be going on,
        nor an index be built of one of the segments that go.

        Args:
            offset: a base offset.
            rest: a segment that takes the place of the older ones, finished; see `truncation.Rest`.

        Returns:
            The removal of files, as of `expire`.
        """
        number = bisect_left(self.segments.kept, offset, key=_base_offset)
        if self.segments.at(offset) is not None:
            rest = None
        if rest is not None:
            rest.report_damage_to(self._observer.damage_found)
            rest.key_state = KeyState.KNOWN  # it has no key file
        self.segments.begins_at = offset
        removal = self._drop(number, rest)
        self.request_keys()
        return removal

    @property
    def _has_tracking(self) -> bool:
        """The tracking is not empty, perhaps because of chunks that are not committed yet."""
        return self._journal.exists or bool(self._ahead) or not self.tracking.is_empty

    def request_index(self, segment: Segment) -> None:
        """Ask for the filter index of this segment, with which a reader could skip chunks.

        The reader will soon need those of the next segments, so they are requested as well.
        """
        if segment.index_requested or not segment.is_indexable or segment.damage:
            return  # readers ask again for every chunk
        for one in self.segments.following(segment, _SEGMENTS_AHEAD):
            is_possible = one.is_indexable and not one.damage and not one.index_requested
            if is_possible and (one is segment or one.filters is None):
                one.index_requested = True
                self._index_requests.append(one)
        if self._index_requests:
            self._observer.index_requested(self)

    def request_keys(self) -> None:
        """Ask for the key indexes that are missing."""
        if self.policy.key_properties and not self.keys_requested:
            self.keys_requested = True
            self._observer.keys_requested(self)

    def take_index_requests(self) -> list[Segment]:
        """Segments that need a filter index, or have one in memory that can be written."""
        requested, self._index_requests = self._index_requests, []
        return [segment for segment in requested if self.keeps(segment)]

    def keeps(self, segment: Segment) -> bool:
        """Its files are this log's: it has not been dropped, nor the log closed or deleted."""
        return not self.is_closed and self.segments.at(segment.base_offset) is segment

    def indexed_size(self, segment: Segment) -> int:
        """Bytes of a segment that an index has to be made for; its writer knows the rest."""
        return segment.size if self.segments.is_sealed(segment) else self._shown.start_size

    def adopt_filters(self, segment: Segment, filters: FilterIndexForm, size: int) -> None:
        """Give readers the filter index of a segment's first `size` bytes."""
        if self.segments.is_sealed(segment):
            if size == segment.size:
                segment.filters = filters
        elif isinstance(filters, FilterIndex) and segment.filters is None:
            self._shown.adopt(filters)

    # -- flushing

    @property
    def unflushed_bytes(self) -> int:
        """Bytes that were appended and may not be on the device."""
        return self._state.unflushed_bytes

    @property
    def failed(self) -> StorageError | None:
        """Why nothing can be appended any more."""
        return self._writer.failed

    @property
    def is_flushed(self) -> bool:
        """Everything that was written is on the device."""
        return not (self._state.is_dirty or self._journal.is_dirty)

    @property
    def needs_upkeep(self) -> bool:
        """A flush in the background would be good even if nobody asks for safety."""
        return self.has_unflushed_seals or self._journal.is_large or self._state.is_far_ahead

    @property
    def awaits_flush(self) -> bool:
        """Nothing can be appended before a flush has succeeded."""
        return self._obstacle is not None or self._journal.obstacle is not None

    @property
    def has_unflushed_seals(self) -> bool:
        """A segment was sealed that may not be on the device."""
        return bool(self._state.sealed)

    def begin_flush(self, *, only_sealed: bool = False, with_checkpoint: bool = False) -> Flush:
        """What has to be synced now. Run it, then call `end_flush`; one at a time.

        Args:
            only_sealed: leave the newest segment and the journal to the system.
            with_checkpoint: write one in any case; otherwise when a segment was sealed or much
                was written since.

        Raises:
            StorageError: the system refused to write what belongs to it.
        """
        if self._writer.failed is not None:
            raise self._writer.failed
        state, journal = self._state, self._journal
        only_sealed = only_sealed and not state.is_far_ahead
        with_checkpoint = with_checkpoint or self._obstacle is not None
        rewrite = journal.rewrite(self.tracking, self.committed_offset)
        checkpoint = None
        if with_checkpoint or state.wants_checkpoint:
            try:
                checkpoint = self._next_checkpoint(only_sealed=only_sealed)
            except StorageError:
                journal.end_rewrite()
                raise
        return state.begin(
            self._disk, self.folder, journal, checkpoint, rewrite, only_sealed=only_sealed
        )

    def _next_checkpoint(self, *, only_sealed: bool) -> Checkpoint | None:
        """What can be said after a flush, with a snapshot of the tracking; None for nothing new."""
        has_tracking = self._has_tracking
        checkpoint = self._state.next_checkpoint(
            self.segments.kept_from, has_tracking=has_tracking, only_sealed=only_sealed
        )
        if checkpoint is not None and has_tracking and not self._journal.is_rewriting:
            try:
                self._journal.add_snapshot(self.tracking, self.committed_offset)
            except StorageError as error:
                if not error.is_temporary:
                    raise
                return None  # there will be another
        return checkpoint

    def end_flush(self, flush: Flush, error: StorageError | None = None) -> None:
        """A flush has run.

        Args:
            flush: from `begin_flush`.
            error: that it raised. Then nothing can be appended any more, or, where it is
                temporary, not before another flush has succeeded.
        """
        is_done = error is None and self._writer.failed is None
        has_new_journal = self._journal.end_rewrite() or flush.has_new_journal
        is_temporary = error is not None and error.is_temporary and self._writer.failed is None
        self._obstacle = error if is_temporary else None
        if is_temporary:
            self._journal.flush_failed(is_new=has_new_journal)
        self._journal.give_back(is_safe=is_done and not flush.is_partial)
        if is_done:
            for appended in self._state.end(flush):
                self._commit(appended)
        elif is_temporary:
            self._state.take_back(flush)
        else:
            self._writer.failed = self._writer.failed or error
            self._state.abandon()

    def flush(self, *, with_checkpoint: bool = False) -> None:
        """Return once everything written so far is on the device.

        Raises:
            StorageError: the system refused; then nothing can be appended any more.
        """
        flush = self.begin_flush(with_checkpoint=with_checkpoint)
        try:
            flush.run()
        except StorageError as error:
            self.end_flush(flush, error)
            raise
        self.end_flush(flush)

    def close(self) -> None:
        """Write stored offsets, flush, and release the files; readers keep what they have open.

        Raises:
            StorageError: the system refused; the files are released nevertheless.
        """
        try:
            if not self.is_closed and self._writer.failed is None:
                with suppress(StorageError):  # nothing depends on it
                    self.filter_demand.write()
                self._remove_growing_keys()
                try:
                    self.write_tracking()
                finally:  # messages first of all
                    self.flush(with_checkpoint=True)
                if not self.awaits_mark:
                    with suppress(StorageError):  # there will be a gap, which does no harm
                        self._disk.remove(str(PurePath(self.folder, AHEAD + self._disk.boot())))
        finally:
            self.abandon()

    def _remove_growing_keys(self) -> None:
        """Remove files that are of no use when the log is opened again, and would be reported."""
        for segment in self.segments.kept:
            if segment.keys is not None and not segment.keys.is_final:
                with suppress(StorageError):
                    self._disk.remove(segment.keys.path)

    def abandon(self) -> None:
        """Release the files as they are, because they are about to be removed."""
        if not self.is_closed:
            self.is_closed = True
            for segment in self.segments.kept:
                segment.drop_filters()
                segment.drop_keys()
            self._journal.close()
            self._state.release()
            self._writer.close()
            self._lock.release()
