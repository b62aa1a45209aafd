"""Getting what a log has written onto the device: what to sync, and in which order.

`Log.begin_flush` collects it, `Flush.run` may take its time in a thread while the log is appended
to, `Log.end_flush` notes what is safe now. The segments come in their order, then the tracking
journal, the names in the folder, and at last the checkpoint that says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from segments.checkpoint import write_checkpoint
from segments.codec import FILE_HEADER_SIZE, Checkpoint
from segments.disk import Disk, File
from segments.errors import StorageError
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

    disk: Disk
    folder: str
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
            self.disk.sync_folder(self.folder)
        if checkpoint is None:
            return
        try:
            self._write(checkpoint)
        except StorageError as error:
            self.fault = str(error)
            if self.has_new_names and is_new:
                self.disk.sync_folder(self.folder)

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
        write_checkpoint(self.disk, self.folder, checkpoint)

    def _sync(self, path: str, *, writable: bool) -> None:
        file = self.disk.open(path, writable=writable)
        try:
            file.sync()
        finally:
            file.close()


# What FlushState knows, and how it moves
# ======================================
#
# A segment with bytes that may not be on the device is in one of three places:
#
#     newest   the writer's; grows with every append
#     sealed   full; all of it is synced by the next flush
#     running  handed to the flush that is going on, of which there is at most one
#
#     newest --rolled--> sealed --begin--> running --end or abandon--> nowhere
#                               <--take back--
#     newest --begin, if it has grown--> running, and stays the newest
#
# Segments that were found on opening, and of which no checkpoint says that they are on the
# device, are in `_found` until the first flush. Nothing was written to them through a descriptor
# of ours, so none has to be kept for an error that it would report.
#
# A segment in `sealed` or `running` has been acquired, so that its file stays open; `end` and
# `abandon` release what is running, `release` what is sealed. A segment that is rolled
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


class FlushState:
    """What of a log may not be on the device yet; see above.

    Args:
        epoch: of what is appended from now on.

    Attributes:
        held: what readers do not see before it is flushed.
        sealed: segments that were sealed since the last flush, and their files.
        sure_offset: that of the checkpoint on the device; offsets before it are never used again.
    """

    def __init__(self, writer: SegmentWriter, plan: Plan, *, epoch: int) -> None:
        self.held: list[Appended] = []
        self.sealed: dict[Segment, File] = {}
        self._running: dict[Segment, File] = {}
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
        self.sure_offset = 0 if plan.checkpoint is None else plan.checkpoint.next_offset
        self._counted_from = (writer.size, writer.num_chunks)
        self._indexes: dict[str, None] = {}
        self._epoch = plan.last_epoch
        self._new_epoch = epoch
        found = [segment for segment in plan.unflushed if segment is not writer.segment]
        self._found = [segment.path() for segment in found]
        self._indexes.update(dict.fromkeys(segment.path(INDEX_SUFFIX) for segment in found))

    def rolled(self, old: SegmentWriter, new: SegmentWriter) -> None:
        """A segment was sealed, and another one begun."""
        self.sealed[old.segment] = old.segment.acquire()
        self._indexes[old.segment.path(INDEX_SUFFIX)] = None
        self._sealed_bytes += old.size - self._begun_size
        self._epoch = self._new_epoch
        self._writer = new
        self._flushed_size = self._begun_size = FILE_HEADER_SIZE
        self._counted_from = (FILE_HEADER_SIZE, 0)
        self._has_new_names = True

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
    def is_dirty(self) -> bool:
        """Something has to be synced."""
        is_behind = self._writer.size > self._flushed_size
        return bool(self.sealed or self._found) or is_behind or self._has_new_names

    @property
    def wants_checkpoint(self) -> bool:
        """Opening the log would take long without a new one."""
        size, num_chunks = self._counted_from
        is_large = self._writer.size - size >= CHECKPOINT_BYTES
        return (
            bool(self.sealed or self._found)
            or is_large
            or self.is_far_ahead
            or self._writer.num_chunks - num_chunks >= CHECKPOINT_CHUNKS
        )

    @property
    def is_far_ahead(self) -> bool:
        """Many offsets have been given out that the checkpoint on the device does not have."""
        return self._writer.next_offset - self.sure_offset >= CHECKPOINT_OFFSETS

    def next_checkpoint(
        self, first_offset: int, *, has_tracking: bool, only_sealed: bool
    ) -> Checkpoint | None:
        """What can be said after a flush; None when it was said before."""
        writer = self._writer
        if writer.size > writer.start_size:
            self._epoch = self._new_epoch
        base = writer.segment.base_offset
        reached = (writer.size, writer.num_chunks, writer.next_offset)
        if only_sealed:
            reached = (FILE_HEADER_SIZE, 0, base)
        found = Checkpoint(first_offset, base, *reached, self._epoch, has_tracking)
        is_said = found == self._checkpoint and self._is_written
        return None if is_said and not self.is_dirty else found

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
        disk: Disk,
        folder: str,
        journal: Journal,
        checkpoint: Checkpoint | None,
        rewrite: Rewrite | None,
        *,
        only_sealed: bool,
    ) -> Flush:
        """Collect what has to be synced.

        Args:
            disk: where the log is.
            folder: of the log.
            journal: the tracking journal.
            checkpoint: to be written when all is synced, None for none.
            rewrite: of the journal, None for none.
            only_sealed: leave out the newest segment.
        """
        writer = self._writer
        running, self.sealed = self.sealed, {}
        found, self._found = self._found, []
        indexes, size, num_held = list(self._indexes), self._flushed_size, 0
        if not only_sealed:
            if writer.size > self._flushed_size:
                running[writer.segment] = writer.segment.acquire()
            if writer.num_chunks:
                indexes.append(writer.segment.path(INDEX_SUFFIX))
            size = self._begun_size = writer.size
            num_held = len(self.held)
        self._sealed_bytes = 0
        self._running = running
        if checkpoint is not None:
            self._counted_from = (writer.size, writer.num_chunks)
        has_new_names, self._has_new_names = self._has_new_names, False
        has_new_journal, journal_file = journal.has_new_name, journal.borrow()
        return Flush(
            disk,
            folder,
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

    def end(self, flush: Flush) -> list[Appended]:
        """A flush has run; returns what readers may see now."""
        self.abandon()
        if flush.newest is self._writer:
            self._flushed_size = flush.newest_size
        if flush.checkpoint is not None and not flush.fault:
            self._checkpoint, self._is_written = flush.checkpoint, True
            self.sure_offset = flush.checkpoint.next_offset
            for path in flush.indexes:
                self._indexes.pop(path, None)
        shown, self.held = self.held[: flush.num_held], self.held[flush.num_held :]
        return shown

    def take_back(self, flush: Flush) -> None:
        """A flush could not be completed, and everything is to be flushed again."""
        self._found = [*flush.found, *self._found]
        self._has_new_names = self._has_new_names or flush.has_new_names
        again = {}
        for segment, file in self._running.items():
            if segment is flush.newest.segment:
                segment.release()
            else:
                again[segment] = file
        self._running, self.sealed = {}, {**again, **self.sealed}

    def abandon(self) -> None:
        """A flush has failed, or is over."""
        for segment in self._running:
            segment.release()
        self._running = {}

    def release(self) -> None:
        """Nothing will be flushed any more."""
        for segment in self.sealed:
            segment.release()
        self.sealed = {}
