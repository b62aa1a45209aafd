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
from segments.recovery_steps import Plan
from segments.segment import INDEX_SUFFIX, Appended, Segment, SegmentWriter

# How much may follow a checkpoint: what has to be read through after a crash, a tenth of a second.
CHECKPOINT_BYTES = 64 << 20
CHECKPOINT_CHUNKS = 4_096


@dataclass
class Flush:
    """One flush of a log.

    Attributes:
        files: segments and journal, to be synced in this order.
        has_new_names: files were created or replaced.
        checkpoint: to be written afterwards, None for none.
        indexes: paths of index files that the checkpoint is about.
        num_held: groups of chunks that may be shown to readers afterwards.
        newest: the writer of the newest segment.
        newest_size: bytes of that segment that are synced.
        is_partial: the newest segment was left out.
        fault: why the checkpoint could not be written. Nothing depends on that but how long the
            next start takes.
    """

    disk: Disk
    folder: str
    files: Sequence[File]
    has_new_names: bool
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
            StorageError: the system refused. It must not be tried again: the system may have
                dropped what it could not write, and would say that all is well.
        """
        for file in self.files:
            file.sync()
        checkpoint = self.checkpoint
        is_empty = checkpoint is not None and checkpoint.next_offset == checkpoint.first_offset
        if self.has_new_names and not is_empty:  # of a new stream nothing can be missed
            self.disk.sync_folder(self.folder)
        if checkpoint is not None:
            try:
                self._write(checkpoint)
            except StorageError as error:
                self.fault = str(error)

    def _write(self, checkpoint: Checkpoint) -> None:
        for path in self.indexes:
            index = self.disk.open(path, writable=True)
            try:
                index.sync()
            finally:
                index.close()
        write_checkpoint(self.disk, self.folder, checkpoint)


class FlushState:
    """What of a log may not be on the device yet.

    Args:
        writer: of the newest segment.
        plan: what was found on opening.
        has_new_names: the newest segment was created just now.

    Attributes:
        held: what readers do not see before it is flushed.
        sealed: segments that were sealed, or read through, since the last flush.
    """

    def __init__(self, writer: SegmentWriter, plan: Plan, *, has_new_names: bool) -> None:
        self.held: list[Appended] = []
        self.sealed: list[Segment] = []
        self._writer = writer
        self._epoch = plan.last_epoch
        self._new_epoch = plan.last_epoch + 1
        self._checkpoint = plan.checkpoint
        self._has_new_names = has_new_names
        self._indexes: list[str] = []
        self._running: list[Segment] = []
        self._flushed_size = FILE_HEADER_SIZE  # of the newest segment
        at = plan.checkpoint
        if at is not None and at.segment == writer.segment.base_offset:
            self._flushed_size = at.position
        self._begun_size = self._flushed_size  # as far as a flush has begun
        self._sealed_bytes = 0
        self._counted_from = (writer.size, writer.num_chunks)  # at the last checkpoint
        for segment in plan.unflushed:
            if segment is not writer.segment:
                self._add_sealed(segment)

    def _add_sealed(self, segment: Segment) -> None:
        segment.acquire()  # the file stays open until it is synced
        self.sealed.append(segment)
        self._indexes.append(segment.path(INDEX_SUFFIX))

    def rolled(self, old: SegmentWriter, new: SegmentWriter) -> None:
        """A segment was sealed, and another one begun."""
        self._add_sealed(old.segment)
        self._sealed_bytes += old.size - self._begun_size
        self._epoch = self._new_epoch
        self._writer = new
        self._flushed_size = self._begun_size = FILE_HEADER_SIZE
        self._counted_from = (FILE_HEADER_SIZE, 0)
        self._has_new_names = True

    @property
    def unflushed_bytes(self) -> int:
        """Bytes that were appended since a flush has begun."""
        return self._sealed_bytes + self._writer.size - self._begun_size

    @property
    def is_dirty(self) -> bool:
        """Something has to be synced."""
        is_behind = self._writer.size > self._flushed_size
        return bool(self.sealed) or is_behind or self._has_new_names

    @property
    def wants_checkpoint(self) -> bool:
        """Opening the log would take long without a new one."""
        size, num_chunks = self._counted_from
        is_large = self._writer.size - size >= CHECKPOINT_BYTES
        return (
            bool(self.sealed)
            or is_large
            or self._writer.num_chunks - num_chunks >= CHECKPOINT_CHUNKS
        )

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
        return None if found == self._checkpoint and not self.is_dirty else found

    def without(self, gone: Sequence[Segment], first: Segment) -> Checkpoint:
        """The checkpoint to be written before segments are removed; `first` is the first then."""
        for segment in gone:
            if segment in self.sealed:
                self.sealed.remove(segment)
                segment.release()
            if segment.path(INDEX_SUFFIX) in self._indexes:
                self._indexes.remove(segment.path(INDEX_SUFFIX))
        base = first.base_offset
        last = self._checkpoint
        if last is None or last.segment < base:
            last = Checkpoint(base, base, FILE_HEADER_SIZE, 0, base, self._epoch, True)
        self._checkpoint = last._replace(first_offset=base)
        return self._checkpoint

    def begin(
        self,
        disk: Disk,
        folder: str,
        journal: File | None,
        checkpoint: Checkpoint | None,
        *,
        only_sealed: bool,
    ) -> Flush:
        """Collect what has to be synced."""
        writer, running = self._writer, self.sealed
        self.sealed = []
        files = [segment.acquire() for segment in running]
        for segment in running:
            segment.release()  # acquired twice now
        if not only_sealed and writer.size > self._flushed_size:
            files.append(writer.segment.acquire())
            running.append(writer.segment)
        if journal is not None:
            files.append(journal)
        indexes = list(self._indexes)
        if not only_sealed and writer.num_chunks:
            indexes.append(writer.segment.path(INDEX_SUFFIX))
        has_new_names, self._has_new_names = self._has_new_names, False
        if checkpoint is not None:
            self._counted_from = (writer.size, writer.num_chunks)
        self._sealed_bytes = 0
        if not only_sealed:
            self._begun_size = writer.size
        self._running = running
        num_held = 0 if only_sealed else len(self.held)
        size = self._flushed_size if only_sealed else writer.size
        return Flush(
            disk,
            folder,
            files,
            has_new_names,
            checkpoint,
            indexes,
            num_held,
            writer,
            size,
            only_sealed,
        )

    def end(self, flush: Flush) -> list[Appended]:
        """A flush has run; returns what readers may see now."""
        self.abandon()
        if flush.newest is self._writer:
            self._flushed_size = flush.newest_size
        if flush.checkpoint is not None and not flush.fault:
            self._checkpoint = flush.checkpoint
            self._indexes = [path for path in self._indexes if path not in flush.indexes]
        shown, self.held = self.held[: flush.num_held], self.held[flush.num_held :]
        return shown

    def abandon(self) -> None:
        """A flush has failed, or is over."""
        for segment in self._running:
            segment.release()
        self._running = []

    def release(self) -> None:
        """Nothing will be flushed any more."""
        for segment in self.sealed:
            segment.release()
        self.sealed = []
