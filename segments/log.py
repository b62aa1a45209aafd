"""The log of one stream: segments, tracking and their files, in one folder. Synchronous.

One owner appends, which a lock on the folder sees to; any number of readers follow.
`committed_offset` is how far readers may go: everything before it is whole, and nothing before it
changes except that retention drops the oldest segments. What is appended is committed at once or,
with `commits_on_flush`, when it is on the device: then nobody reads what a power failure can still
take away. Time comes from the caller.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import PurePath
from typing import NamedTuple

from segments.chunk import ChunkBuilder, EncodedChunk
from segments.chunk_search import chunk_holding
from segments.disk import Disk, Lock, OsDisk
from segments.errors import SegmentsError, StorageError, UndecidedError, UnreadableError
from segments.filter_demand import FilterDemand
from segments.flush import MOST_SEALED, Flush, Flushing
from segments.gaps import OFFSET_GAP, Gap
from segments.journal import Journal
from segments.log_indexes import LogIndexes
from segments.marks import AHEAD, LIFE, new_life, put_mark
from segments.observer import LogObserver
from segments.policy import (
    DEFAULT_SEGMENT_BYTES,
    MAX_SEGMENT_BYTES,
    MAX_SEGMENT_CHUNKS,
    LogPolicy,
)
from segments.recovery import recovery
from segments.recovery.steps import Plan
from segments.recovery.tail import Tail, TailChunk, append_tail
from segments.retention import Removal, expired
from segments.segment import (
    MAX_GROUP,
    Appended,
    KeyState,
    Segment,
    SegmentWriter,
    walk_headers,
)
from segments.segment_list import SegmentList
from segments.store.cache import TierCache
from segments.store.manifest import Manifest
from segments.stored_chunk import encoded
from segments.stored_part import StoredPart
from segments.tracking import Tracking
from segments.tracking_replay import restore_tracking

# How far the newest chunk may be ahead of the clock before the clock is believed again: less is a
# correction, or summer time set by hand.
MOST_AHEAD_MS = 3_600_000
# As many are of the declared size; then it doubles with each further thousand, up to the default.
_MANY_SEGMENTS, _SEGMENTS_PER_DOUBLING = 4_096, 1_024
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
        awaits_store: they do when a store has it, see `commit_to`.
        segments: that it consists of.
        committed_offset: the offset after the last record that readers may read.
        epoch: the writer's generation: of the server, or one more than the newest chunk that was
            found; never less than that one's.
        journal: what is known of publishers and consumers.
        flushing: what may not be on the device yet.
        indexes: of its segments.
        stored: what a store has of it.
        is_closed: nothing is written into its folder any more.
        next_offset: that the next record will get, after all that is appended.
        awaits_mark: the next `append` syncs a folder, unless `mark` is called before.
        life: of the stream, from its creation to its deletion: tells its offsets from those of
            another one of that name. Empty where another server writes it, and has stored nothing.
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
        self.commits_on_flush = self._commits_on_flush = commits_on_flush
        self.awaits_store = False
        self.epoch = max(epoch, plan.last_epoch)
        self._writer = writer
        self.next_offset = self.committed_offset = writer.next_offset
        segments = plan.segments if plan.has_tail else [*plan.segments, writer.segment]
        gaps = [Gap(plan.ends_at, writer.segment.base_offset)] if plan.gap else []
        self.segments = SegmentList(segments, gaps, observer.damage_found)
        self.awaits_mark = disk.boot() not in plan.boots
        self._last_timestamp_ms = self.segments.last_timestamp_ms or 0
        self.journal = journal
        self.flushing = Flushing(writer, journal, plan, epoch=self.epoch)
        self.is_closed = False
        self._removed_to = 0
        self._rolled = Written(-writer.next_offset, 0, 0)  # in segments that are full
        self._now_ms = 0  # the wall clock, as it was said last
        self.indexes = LogIndexes(self.segments, writer, observer)
        self._observer = observer
        self.life = plan.life
        self.stored = StoredPart(self.segments, cache, disk, folder)
        if plan.manifest is not None:
            self.stored.adopt(plan.manifest)
        self.filter_demand = FilterDemand(disk, folder)
        notes = restore_tracking(
            journal, segments, plan.checkpoint, plan.ends_at, salvages=plan.salvages
        )
        self.report = RecoveryReport((*map(str, plan.steps), *notes), tuple(map(str, plan.losses)))

    @classmethod
    def open(  # noqa: PLR0913 - what a log works with
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
        tail: Tail | None = None,
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
            tail: what a store has to follow it: what is not there is appended.

        Raises:
            HoleError: the tail does not follow it.
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
                tail=tail,
            )
        except UnreadableError as error:
            raise UndecidedError(error, str(PurePath(folder, recovery.SALVAGE_NAME))) from error

    @classmethod
    def _open(  # noqa: PLR0913 - as above
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
        tail: Tail | None,
    ) -> "Log":
        disk.make_folder(folder)
        with ExitStack() as opened:  # what fails behind them must not keep their descriptors
            lock = disk.lock(folder)
            opened.callback(lock.release)
            plan = recovery.examine(disk, folder)
            plan.apply(disk)
            if tail is not None and append_tail(disk, folder, plan, tail):
                plan = recovery.examine(disk, folder)
                plan.apply(disk)
            plan.write_again(disk)
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
        if self.flushing.obstacle is not None:
            raise self.flushing.obstacle
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
            if chunk_id - self.flushing.sure_offset > OFFSET_GAP:
                self._write(group)
                self.flushing.await_checkpoint()
            group.append(chunk)
            size += chunk.size
        self._write(group)

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
        self._observer.clock_was_ahead(self._last_timestamp_ms - now_ms)
        self._last_timestamp_ms = now_ms

    def _is_full(self, size: int, num_chunks: int) -> bool:
        """Whether the newest segment, of so many bytes and chunks, takes no more."""
        policy = self.policy
        if size < policy.max_segment_bytes and num_chunks < policy.max_segment_chunks:
            return False
        if not num_chunks:
            return False  # an empty segment would be rolled for ever
        if self.flushing.num_sealed >= MOST_SEALED:
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
        if self.commits_on_flush or self.awaits_store:
            for chunk in group:
                self.journal.tracking.ahead.update(chunk.sequences)
            self.flushing.held.append(appended)
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
                self.journal.tracking.set_sequences(chunk.header.chunk_id, chunk.sequences.items())
        self.committed_offset = segment.next_offset
        if self.policy.key_properties:
            size, num_chunks = self.indexes.keys_wanted_from
            if segment.size >= size or segment.num_chunks >= num_chunks:
                self.indexes.request_keys()

    def _show(self, writer: SegmentWriter) -> None:
        """Let readers have a new segment."""
        sealed = self.segments.shown[-1]
        self.segments.add(writer.segment)
        self.indexes.writer, self.indexes.keys_wanted_from = writer, (0, 0)
        if self.policy.key_properties:  # of the sealed one
            self.indexes.request_keys()
        if sealed.filters is not None:
            self.indexes.request(sealed)  # from memory to a file
        self.outlive(self._now_ms)

    def _roll(self, offset: int | None = None) -> None:
        """Seal the newest segment and start the next, where it ends or behind a gap."""
        self._writer.seal()
        offset = self.next_offset if offset is None else offset
        writer = SegmentWriter.create(self._disk, self.folder, offset)
        self.flushing.rolled(self._writer, writer)
        self._write_to(writer)

    def _write_to(self, writer: SegmentWriter) -> None:
        """Append to another segment from now on."""
        written, before = self.written, self._writer
        self._writer, self.next_offset = writer, writer.next_offset
        self._count_from(written)
        before.close()

    def _count_from(self, written: Written) -> None:
        """So much has been appended until now."""
        writer = self._writer
        self._rolled = Written(
            written.messages - writer.next_offset,
            written.chunks - writer.num_chunks + writer.start_chunks,
            written.size - writer.size + writer.start_size,
        )

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
        if self._removed_to and not self.segments.gone:  # a crash cannot bring them back any more
            self.journal.tracking.forget_offsets_below(self._removed_to)
            self._removed_to = 0
        outlived = self.segments.outlived
        number = next((n for n, one in enumerate(outlived) if one in busy), len(outlived))
        while number and not self.journal.is_covered(outlived[number - 1].next_offset):
            number -= 1
        if not (number or self.segments.gone):
            return Removal(self._disk, self.folder, [], None)
        removal = self._drop(number)
        self._removed_to = self.segments.first_offset  # stored offsets before it go afterwards
        return removal

    def _drop(self, number: int, rest: Segment | None = None) -> Removal:
        """Take so many of the oldest segments out; `rest` is in the place of the last of them."""
        segments = self.segments
        gone = segments.drop(number, rest)
        checkpoint = self.flushing.without(gone, segments.kept[0])
        return Removal(self._disk, self.folder, segments.gone, checkpoint)

    def follow(self, manifest: Manifest, tracking: Tracking) -> list[Segment]:
        """Show readers what a store has of a log that somebody else writes.

        Its newest segments begin behind what is stored, and have what `follow_tail` has brought of
        that. Readers of what is not stored any more go on where the log begins.

        Args:
            manifest: what the store has; not before what it had.
            tracking: of publishers and consumers, as of the manifest.

        Returns:
            Segments that are not part of it any more, whose files may be removed.

        Raises:
            StorageError: the system refused; it is as it was.
        """
        tail, gone = self._cut_tail(manifest.next_offset)
        for segment in gone:
            with suppress(StorageError):  # they are in the way when the log is opened the next time
                segment.remove()
        gone = self.stored.follow(manifest, tail)
        tracking.take_sequences(self.journal.tracking, manifest.next_offset)
        self.journal.tracking = tracking
        self.life = manifest.stream.creation
        self.committed_offset = self.next_offset
        return gone

    def _cut_tail(self, offset: int) -> tuple[list[Segment], list[Segment]]:
        """Let what no store has begin at an offset: the segments of that, and those that go."""
        tail = self.segments.local
        stays = [segment for segment in tail if segment.base_offset >= offset]
        goes = tail[: len(tail) - len(stays)]
        if goes and (goes[-1].next_offset > offset or not stays):
            rest = self._rest_of(goes[-1], offset)
            if stays:
                rest.close()
            else:
                self._replace_newest(rest)
            stays.insert(0, rest.segment)
        self.flushing.without(goes, stays[0])
        return stays, goes

    def _replace_newest(self, writer: SegmentWriter) -> None:
        self.flushing.replaced(writer)
        self.indexes.writer = writer
        self._write_to(writer)

    def _rest_of(self, segment: Segment, offset: int) -> SegmentWriter:
        """A new segment with the chunks of another one from an offset on."""
        writer = SegmentWriter.create(self._disk, self.folder, offset)
        file = segment.acquire()
        try:
            start = chunk_holding(segment, offset) if offset < segment.next_offset else None
            for position, header in walk_headers(segment, file, start) if start else ():
                if header.chunk_id == writer.next_offset:
                    raw = file.read(header.total_size, position)
                    writer.commit(writer.append([encoded(header, raw)]))
        except SegmentsError:
            writer.close()
            writer.segment.remove()
            raise
        finally:
            segment.release()
        return writer

    def follow_tail(self, chunks: Iterable[TailChunk], life: str) -> None:
        """Show readers chunks that a store has behind the manifest of a log that somebody writes.

        Args:
            chunks: that follow the log; those that it has are left out.
            life: of the stream.

        Raises:
            FormatError: a chunk cannot be used.
            StorageError: the system refused.
        """
        written, self.life = self.written, life
        for chunk in chunks:
            offset = chunk.header.chunk_id
            if offset < self.next_offset:
                continue
            if offset > self.next_offset:
                self._go_on_at(offset)
            self._commit(self._writer.append([encoded(chunk.header, chunk.raw)]))
            self.next_offset = self._writer.next_offset
        self._count_from(written)

    def _go_on_at(self, offset: int) -> None:
        """Behind the end there is a gap."""
        if self._writer.num_chunks:
            self._roll(offset)
            return
        before = self._writer.segment
        writer = SegmentWriter.create(self._disk, self.folder, offset)
        self._replace_newest(writer)
        self.segments.exchange((), (), [*self.segments.local[:-1], writer.segment])
        before.remove()

    def seal(self) -> bool:
        """Seal the newest segment, unless it is empty; readers see the new one at once.

        Returns:
            Whether the newest segment is empty now. It is not where something that was appended
            awaits a flush.

        Raises:
            StorageError: the system refused.
        """
        if self.flushing.held:
            if self.awaits_store and self._writer.num_chunks:
                self._roll()  # readers see the new one with its first chunk
            return False
        if self._writer.num_chunks:
            if self.flushing.obstacle is not None:
                raise self.flushing.obstacle
            self._roll()
        if self.indexes.writer is not self._writer:  # maybe it was rolled for an append that failed
            self._show(self._writer)
        return True

    def truncate(self, offset: int, rest: Segment | None = None) -> Removal:
        """Let the log begin at `offset`, where a segment begins or `rest` does.

        Stored offsets before it stay: their consumers are to go on with the first message.

        It is covered, see `Journal.is_covered`: flush with a checkpoint before. No flush may run,
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
            rest.key_state = KeyState.KNOWN  # it has no key file
        self.segments.begins_at = offset
        removal = self._drop(number, rest)
        if self.policy.key_properties:
            self.indexes.request_keys()
        return removal

    def keeps(self, segment: Segment) -> bool:
        """Its files are this log's: it has not been dropped, nor the log closed or deleted."""
        return not self.is_closed and self.segments.at(segment.base_offset) is segment

    def is_sure_of(self, offset: int) -> bool:
        """Opening it needs no file of a segment before `offset`, whatever happens."""
        return self.flushing.sure_offset >= offset and self.journal.is_covered(offset)

    def begin_flush(self, *, only_sealed: bool = False, with_checkpoint: bool = False) -> Flush:
        """What has to be synced now. Run it, then call `end_flush`; one at a time.

        Args:
            only_sealed: leave the newest segment and the journal to the system.
            with_checkpoint: write one in any case; otherwise when a segment was sealed or much
                was written since.

        Raises:
            StorageError: the system refused to write what belongs to it.
        """
        return self.flushing.begin(
            self.committed_offset,
            self.segments.kept_from,
            only_sealed=only_sealed,
            with_checkpoint=with_checkpoint,
            shows=self.commits_on_flush,
        )

    def end_flush(self, flush: Flush, error: StorageError | None = None) -> None:
        """A flush has run.

        Args:
            flush: from `begin_flush`.
            error: that it raised. Then nothing can be appended any more, or, where it is
                temporary, not before another flush has succeeded.
        """
        for appended in self.flushing.end(flush, error, shows=self.commits_on_flush):
            self._commit(appended)

    def await_store(self, *, awaits: bool) -> None:
        """Let readers see what is appended when a store has it, or as before.

        For the latter nothing may be held back.
        """
        self.awaits_store = awaits
        self.commits_on_flush = self._commits_on_flush and not awaits

    def commit_to(self, offset: int) -> None:
        """A store has what was appended before an offset: let readers have it."""
        held = self.flushing.held
        number = 0
        while number < len(held) and held[number].chunks[-1].header.next_offset <= offset:
            self._commit(held[number])
            number += 1
        del held[:number]

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
                    self.journal.write_pending(self.committed_offset)
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
            self.journal.close()
            self.flushing.release()
            self._writer.close()
            self._lock.release()
