"""Getting what a log has written onto the device: what to sync, and in which order.

`Log.begin_flush` collects it, `Flush.run` may take its time in a thread while the log is appended
to, `Log.end_flush` notes what is safe now. The segments come in their order, then the tracking
journal, the names in the folder, and at last the checkpoint that says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from segments.checkpoint import write_checkpoint
from segments.codec import FILE_HEADER_SIZE, Checkpoint
from segments.disk import File
from segments.errors import CheckpointDueError, StorageError
from segments.gaps import OFFSET_GAP
from segments.journal import Journal, Rewrite
from segments.recovery.steps import Plan
from segments.segment import INDEX_SUFFIX, Appended, Segment, SegmentWriter

# How much may follow a checkpoint: what has to be read through after a crash, a tenth of a second.
CHECKPOINT_BYTES = 64 << 20
CHECKPOINT_CHUNKS = 4_096
CHECKPOINT_OFFSETS = OFFSET_GAP // 2  # given out beyond it, see gaps.py
MOST_SEALED = 16


@dataclass
class Flush:
    """One flush of a log.

    Attributes:
        found: paths of segments that were found on opening, to be synced first. Each is opened
            for it and closed again: there may be more than a process can have open.
        files: segments and journal, to be synced in this order.
        rewrite: of the journal, None for none.
        has_new_names: files were created or replaced.
        has_new_journal: and the journal is one of them.
        checkpoint: to be written afterwards, None for none.
        indexes: paths of index files that the checkpoint is about.
        num_held: groups of chunks that may be shown to readers afterwards.
        newest_size: bytes of that segment that are synced.
        is_partial: the newest segment was left out.
        fault: why the checkpoint could not be written, or a journal that has grown large could
            not be rewritten. Only the duration of the next start depends on it.
    """

    found: Sequence[str]
    files: Sequence[File]
    rewrite: Rewrite | None
    has_new_names: bool
    has_new_journal: bool
    checkpoint: Checkpoint | None
    indexes: Sequence[str]
    num_held: int
    newest: SegmentWriter
    newest_size: int
    is_partial: bool
    fault: str = field(default="", init=False)

    def run(self) -> None:
        """Sync everything.

        Raises:
            StorageError: the system refused. Unless it is temporary it must not be tried again:
                the system may have dropped what it could not write, and would then report success.
        """
        for path in self.found:
            self._sync(path, writable=False)
        for file in self.files:
            file.sync()
        checkpoint = self.checkpoint
        # Writing the checkpoint syncs the folder. Of a new stream nothing can be missed before.
        is_new = checkpoint is not None and checkpoint.next_offset == checkpoint.first_offset
        has_new_names = self.has_new_names and not is_new
        if self._rewrite_journal() or self.has_new_journal or has_new_names:
            self.newest.segment.disk.sync_folder(self.newest.segment.folder)
        if checkpoint is None:
            return
        try:
            self._write(checkpoint)
        except StorageError as error:
            if error.is_flush:
                raise  # the next one would be of the same names and indexes, and succeed
            self.fault = str(error)
            if self.has_new_names and is_new:
                self.newest.segment.disk.sync_folder(self.newest.segment.folder)

    def _rewrite_journal(self) -> bool:
        rewrite = self.rewrite
        if rewrite is None:
            return False
        rewrite.run()
        if rewrite.refusal is not None:
            self.fault = str(rewrite.refusal)
        return rewrite.file is not None

    def _write(self, checkpoint: Checkpoint) -> None:
        for path in self.indexes:
            self._sync(path, writable=True)
        write_checkpoint(self.newest.segment.disk, self.newest.segment.folder, checkpoint)

    def _sync(self, path: str, *, writable: bool) -> None:
        file = self.newest.segment.disk.open(path, writable=writable)
        try:
            file.sync()
        finally:
            file.close()


# What Flushing knows, and how it moves
# =====================================
#
# A segment with bytes that may not be on the device is in one of three places:
#
#     newest   the writer's; grows with every append
#     sealed   full; all of it is synced by the next flush
#     running  handed to the flush that is going on, of which there is at most one
#
#     newest --rolled--> sealed --begin--> running --end--> nowhere
#     newest --begin, if it has grown--> running, and stays the newest
#
# Segments that were found on opening, and of which no checkpoint says that they are on the
# device, are in `_found` until the first flush. Nothing was written to them through a descriptor
# of ours, so none has to be kept for an error that it would report.
#
# A segment in `sealed` or `running` has been acquired, so that its file stays open; `end` releases
# what is running, `release` what is sealed. A segment that is rolled
# while it is running is in both places and acquired twice: its last bytes came after `begin`.
#
# It must stay open: Linux tells of a failed write-back to those who had the file open then. Who
# opens it later hears of it only if nobody has before, and if the system still remembers the file
# (which it may forget, as its pages count as clean). So files are not closed to be opened again for
# the sync. Instead the log seals no more segments while MOST_SEALED wait for a flush: the newest
# one grows beyond its size, up to what its index can address.
#
# How far the newest segment has got, in bytes, always in this order:
#
#     _flushed_size <= _begun_size <= writer.size
#     a flush has ended   one has begun   appended
#
# `unflushed_bytes` are those that no flush has begun with: behind `_begun_size` in the newest
# segment, and `_sealed_bytes`, which were behind it when their segment was sealed. A flush of
# sealed segments only leaves both sizes alone: it takes nothing of the newest one.
#
# Appends that readers do not see yet (`held`, in order) are numbered when a flush begins: the
# first `num_held` of them may be shown when it ends, later ones came too late for it.
#
# The checkpoint has fields of its own. `_checkpoint` is the one on the device, or, unless
# `_is_written`, the one that retention was given to write, which may have failed; none is written
# that says the same again. `_counted_from` is where the newest segment stood when the last one was
# begun: from there is counted what the next start would have to read. `_indexes` are index files
# of sealed segments that no checkpoint speaks for yet; they are synced with the next one, because
# the checkpoint says that they can be trusted. The epoch in it is the highest in the log: that of
# recovery until this writer has appended something, then its own.
#
# After a flush that failed none of this is true any more: the log refuses all that follows.


class Flushing:
    """What of a log may not be on the device yet; see above.

    Attributes:
        held: what readers do not see before it is flushed.
        sealed: segments that were sealed since the last flush, and their files.
        sure_offset: that of the checkpoint on the device; offsets before it are never used again.
    """

    def __init__(self, writer: SegmentWriter, journal: Journal, plan: Plan, *, epoch: int) -> None:
        self.held: list[Appended] = []
        self.sealed: dict[Segment, File] = {}
        self._running: dict[Segment, File] = {}
        self._journal = journal
        self._obstacle: StorageError | None = None
        # How far it has got.
        self._writer = writer
        self._flushed_size = FILE_HEADER_SIZE
        at = plan.checkpoint
        if at is not None and at.segment == writer.segment.base_offset:
            self._flushed_size = at.position
        self._begun_size = self._flushed_size
        self._sealed_bytes = 0
        self._has_new_names = not (plan.knows_newest and plan.has_life)
        # The checkpoint.
        self._checkpoint, self._is_written = plan.checkpoint, True
        self._has_checkpoint = plan.checkpoint is not None
        self.sure_offset = 0 if plan.checkpoint is None else plan.checkpoint.next_offset
        self._counted_from = (writer.size, writer.num_chunks)
        self._indexes: dict[str, None] = {}
        self._epoch = plan.last_epoch
        self._new_epoch = epoch
        found = [segment for segment in plan.unflushed if segment is not writer.segment]
        self._found = [segment.path() for segment in found]
        self._indexes.update(dict.fromkeys(segment.path(INDEX_SUFFIX) for segment in found))

    @property
    def failed(self) -> StorageError | None:
        """Why nothing can be appended any more."""
        return self._writer.failed

    @property
    def obstacle(self) -> StorageError | None:
        """Why nothing can be appended before a flush has succeeded."""
        return self._obstacle or self._journal.obstacle

    def await_checkpoint(self) -> NoReturn:
        """Give out no more offsets than a gap makes up for, see gaps.py."""
        self._obstacle = CheckpointDueError(self._writer.segment.path())
        raise self._obstacle

    def rolled(self, old: SegmentWriter, new: SegmentWriter) -> None:
        """A segment was sealed, and another one begun."""
        self.sealed[old.segment] = old.segment.acquire()
        self._indexes[old.segment.path(INDEX_SUFFIX)] = None
        self._sealed_bytes += old.size - self._begun_size
        self._epoch = self._new_epoch
        self.replaced(new)

    def replaced(self, new: SegmentWriter) -> None:
        """The newest segment, which was empty, is gone, and another one is in its place."""
        self._writer = new
        self._flushed_size = self._begun_size = FILE_HEADER_SIZE
        self._counted_from = (FILE_HEADER_SIZE, 0)
        self._has_new_names = True

    @property
    def num_sealed(self) -> int:
        """Segments that are full and not on the device: each keeps its file open."""
        return len(self.sealed) + len(self._running)

    @property
    def unflushed_bytes(self) -> int:
        """Bytes that were appended since a flush has begun."""
        return self._sealed_bytes + self._writer.size - self._begun_size

    @property
    def _is_dirty(self) -> bool:
        """Something has to be synced, the journal aside."""
        is_behind = self._writer.size > self._flushed_size
        return bool(self.sealed or self._found) or is_behind or self._has_new_names

    @property
    def is_flushed(self) -> bool:
        """Everything that was written is on the device."""
        return not (self._is_dirty or self._journal.is_dirty or self.failed)

    @property
    def needs_upkeep(self) -> bool:
        """A flush in the background would be good even if nobody asks for safety."""
        return bool(self.sealed) or self._journal.is_large or self._is_far_ahead

    @property
    def _wants_checkpoint(self) -> bool:
        """Opening the log would take long without a new one."""
        size, num_chunks = self._counted_from
        is_large = self._writer.size - size >= CHECKPOINT_BYTES
        return (
            bool(self.sealed or self._found)
            or is_large
            or self._is_far_ahead
            or self._writer.num_chunks - num_chunks >= CHECKPOINT_CHUNKS
        )

    @property
    def _is_far_ahead(self) -> bool:
        """Many offsets have been given out that the checkpoint on the device does not have."""
        return self._writer.next_offset - self.sure_offset >= CHECKPOINT_OFFSETS

    def _next_checkpoint(
        self, next_offset: int, first_offset: int, *, only_sealed: bool
    ) -> Checkpoint | None:
        """What can be said after a flush, with a snapshot of the tracking; None for nothing new."""
        writer, journal = self._writer, self._journal
        if writer.size > writer.start_size:
            self._epoch = self._new_epoch
        base, has_tracking = writer.segment.base_offset, journal.has_tracking
        reached = (writer.size, writer.num_chunks, writer.next_offset)
        if only_sealed:
            reached = (FILE_HEADER_SIZE, 0, base)
        found = Checkpoint(first_offset, base, *reached, self._epoch, has_tracking)
        if found == self._checkpoint and self._is_written and not self._is_dirty:
            return None
        if has_tracking and not journal.is_rewriting:
            try:
                journal.add_snapshot(next_offset)
            except StorageError as error:
                if not error.is_temporary:
                    raise
                return None  # there will be another
        return found

    def without(self, gone: Sequence[Segment], first: Segment) -> Checkpoint:
        """The checkpoint to be written before segments are removed; `first` is the first then."""
        for segment in gone:
            if segment in self.sealed:
                del self.sealed[segment]
                segment.release()
        behind = first.path(INDEX_SUFFIX)  # names are in the order of offsets
        self._indexes = {path: None for path in self._indexes if path >= behind}
        base = first.base_offset
        last = self._checkpoint
        if last is None or last.segment < base:
            last = Checkpoint(base, base, FILE_HEADER_SIZE, 0, base, self._epoch, True)
        self._checkpoint, self._is_written = last._replace(first_offset=base), False
        return self._checkpoint

    def begin(
        self,
        next_offset: int,
        first_offset: int,
        *,
        only_sealed: bool,
        with_checkpoint: bool,
        shows: bool,
    ) -> Flush:
        """Collect what has to be synced; see `Log.begin_flush`, which says where the log ends.

        With `shows`, readers may see what is held back once it is synced.
        """
        writer, journal = self._writer, self._journal
        if writer.failed is not None:
            raise writer.failed
        only_sealed = only_sealed and not self._is_far_ahead
        rewrite, checkpoint = journal.rewrite(next_offset), None
        if with_checkpoint or self._obstacle is not None or self._wants_checkpoint:
            try:
                checkpoint = self._next_checkpoint(
                    next_offset, first_offset, only_sealed=only_sealed
                )
            except StorageError:
                journal.end_rewrite()
                raise
        running, self.sealed = self.sealed, {}
        found, self._found = self._found, []
        indexes, size, num_held = list(self._indexes), self._flushed_size, 0
        if not only_sealed:
            if writer.size > self._flushed_size:
                running[writer.segment] = writer.segment.acquire()
            if writer.num_chunks:
                indexes.append(writer.segment.path(INDEX_SUFFIX))
            size = self._begun_size = writer.size
            num_held = len(self.held) if shows else 0
        self._sealed_bytes = 0
        self._running = running
        if checkpoint is not None:
            self._counted_from = (writer.size, writer.num_chunks)
        has_new_names, self._has_new_names = self._has_new_names, False
        has_new_journal, journal_file = journal.has_new_name, journal.borrow()
        return Flush(
            found=found,
            files=[*running.values(), *([] if journal_file is None else [journal_file])],
            rewrite=rewrite,
            has_new_names=has_new_names,
            has_new_journal=has_new_journal,
            checkpoint=checkpoint,
            indexes=indexes,
            num_held=num_held,
            newest=writer,
            newest_size=size,
            is_partial=only_sealed,
        )

    def end(self, flush: Flush, error: StorageError | None, *, shows: bool) -> list[Appended]:
        """A flush has run; returns what readers may see now. See `Log.end_flush`.

        Without `shows` that is nothing: by now they are to see what a store has.
        """
        writer, journal = self._writer, self._journal
        is_done = error is None and writer.failed is None
        has_new_journal = journal.end_rewrite() or flush.has_new_journal
        is_temporary = error is not None and error.is_temporary and writer.failed is None
        self._obstacle = error if is_temporary else None
        if is_temporary:
            journal.flush_failed(is_new=has_new_journal)
        journal.give_back(is_safe=is_done and not flush.is_partial)
        for segment in self._running:
            segment.release()
        self._running = {}
        if is_temporary:  # only names are missing: they are synced behind all files
            self._has_new_names = self._has_new_names or flush.has_new_names
            return []
        if not is_done:
            writer.failed = writer.failed or error
            return []
        if flush.newest is writer:
            self._flushed_size = flush.newest_size
        if flush.checkpoint is not None and not flush.fault:
            self._checkpoint, self._is_written = flush.checkpoint, True
            self._has_checkpoint = True
            self.sure_offset = flush.checkpoint.next_offset
            growing = flush.newest.segment.path(INDEX_SUFFIX)  # it may have been sealed meanwhile
            for path in flush.indexes:
                if path != growing:
                    self._indexes.pop(path, None)
        if not self._has_checkpoint:  # a torn end would count as damage of what was there
            self._obstacle = CheckpointDueError(writer.segment.path())
        num_shown = flush.num_held if shows else 0
        shown, self.held = self.held[:num_shown], self.held[num_shown:]
        return shown

    def release(self) -> None:
        """Nothing will be flushed any more."""
        for segment in self.sealed:
            segment.release()
        self.sealed = {}
