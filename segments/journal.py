"""The tracking journal: one file per stream, a snapshot first, then what was stored since.

Records are appended: stored offsets as they come, a snapshot now and then so that opening the log
does not have to read all chunks. When enough has gathered a flush replaces the file by a fresh
snapshot under its own name in one step. A torn last record is cut off on opening.

Nothing here waits for the device: flushes do, in threads.

A snapshot may cover chunks that a power failure then takes away. So the last earlier snapshot whose
chunks are all on the device stays in the file; segments that it does not cover are kept.
"""

from pathlib import PurePath

from segments import codec
from segments.atomic_write import replace_file, write_again
from segments.codec import FILE_HEADER_SIZE, Checkpoint, JournalRecord
from segments.disk import Disk, File
from segments.errors import (
    FormatError,
    OtherVersionError,
    StorageError,
    UnreadableError,
    VersionError,
)
from segments.format_constants import JOURNAL_DELTA, JOURNAL_SNAPSHOT
from segments.tracking import Tracking

JOURNAL_NAME = "tracking"
_NONE = JournalRecord(JOURNAL_SNAPSHOT, 0, b"")
_COMPACT_BYTES = 1 << 20  # deltas that gather beyond the snapshot before the file is rewritten


class Rewrite:
    """A fresh journal to replace one; `run` may take its time in a thread.

    Attributes:
        file: the new file under the journal's name; None until `run` has made it.
        refusal: why it could not be made for now; then the old journal stays.
    """

    def __init__(self, disk: Disk, path: str, content: bytes, record: JournalRecord) -> None:
        self._disk = disk
        self._path = path
        self.content = content
        self.record = record
        self.file: File | None = None
        self.refusal: StorageError | None = None

    def run(self) -> None:
        """Write it; the folder has to be synced afterwards.

        Raises:
            StorageError: the system refused, and would do so again.
        """
        try:
            self.file = replace_file(self._disk, self._path, self.content)
        except StorageError as error:
            if not (error.is_full or error.is_temporary):
                raise
            self.refusal = error


class Journal:
    """The open journal of one stream, and what is known of its publishers and consumers.

    Attributes:
        tracking: sequences of what readers may read, and stored offsets.
        records: what was found on opening, in order; empty for a new journal.
        fault: why part of it could not be read, None when all of it could.
        is_dirty: some of it may not be on the device yet.
        has_new_name: nor its name in the folder.
        obstacle: why it could not be rewritten although what it says is not true; nothing may be
            appended to the log before a flush has done that.
    """

    def __init__(self, disk: Disk, folder: str) -> None:
        self.tracking = Tracking()
        self._disk = disk
        self._path = str(PurePath(folder, JOURNAL_NAME))
        self._file: File | None = None
        self._size = 0
        self._rewrite_at = _COMPACT_BYTES
        self._rewrite: Rewrite | None = None
        self._is_wrong = self._rewrites_wrong = False
        self._borrowed: File | None = None
        self._latest = self._borrowed_snapshot = self._safe = _NONE
        self.is_dirty = self.has_new_name = False
        self.obstacle: StorageError | None = None
        self.records: list[JournalRecord] = []
        self.fault: str | None = None

    @classmethod
    def open(cls, disk: Disk, folder: str, *, salvages: bool = False) -> "Journal":
        """Read the journal of the stream in `folder`; a torn end is cut, damage is reported.

        Args:
            disk: the file system.
            folder: the stream's folder.
            salvages: one that the device refuses to read is damaged.

        Raises:
            UnreadableError: the device refuses to read it.
            OtherVersionError: another version of this program wrote it.
            StorageError: the file cannot be read or cut.
        """
        journal = cls(disk, folder)
        if JOURNAL_NAME in disk.list(folder):
            file = disk.open(journal._path, writable=True)
            try:
                journal._load(file, salvages=salvages)
            finally:
                if not journal.exists:
                    file.close()
        return journal

    def _load(self, file: File, *, salvages: bool) -> None:
        try:
            raw = file.read(file.size(), 0)
            self.records, used = codec.decode_journal(raw[FILE_HEADER_SIZE:])
            codec.check_file_header(raw, codec.TRACKING_HEADER, is_sound=bool(self.records))
        except VersionError as error:
            raise OtherVersionError(self._path, error) from error
        except FormatError as error:
            if isinstance(error, UnreadableError) and not salvages:
                raise
            self.records, self.fault = [], str(error)
            return
        for record in self.records:
            if record.kind == JOURNAL_SNAPSHOT:
                self._latest = record
        self._size = FILE_HEADER_SIZE + used
        if self._size < len(raw):
            self.fault = f"the last {len(raw) - self._size} bytes are not a whole record"
            file.truncate(self._size)
            self.is_dirty = True
        self._file = file

    def flush_unless(self, checkpoint: Checkpoint | None) -> None:
        """What was found is for the next flush, unless a checkpoint was written after it.

        A process that was killed leaves what it wrote and did not sync, a fresh name included. A
        flush with a checkpoint syncs a snapshot of the same offset first.

        Raises:
            StorageError: the system refused.
        """
        last = self.records[-1] if self.records else _NONE
        is_flushed = (
            checkpoint is not None
            and checkpoint.has_tracking
            and last.kind == JOURNAL_SNAPSHOT
            and last.next_offset == checkpoint.next_offset
        )
        if self.exists and not is_flushed:
            write_again(self._disk, self._path, 0)  # see `Plan.write_again`
            self.is_dirty = self.has_new_name = True

    @property
    def exists(self) -> bool:
        """There is a journal file."""
        return self._file is not None

    @property
    def is_large(self) -> bool:
        """Whether so much has gathered that it should be rewritten."""
        return self._file is not None and self._size > self._rewrite_at

    @property
    def has_tracking(self) -> bool:
        """Something is known, perhaps because of chunks that are not committed yet."""
        return self.exists or not self.tracking.is_empty

    def is_covered(self, offset: int) -> bool:
        """What is known needs no chunk before `offset`, whatever happens."""
        return not self.has_tracking or self._safe.next_offset >= offset

    def delete_offset(self, reference: bytes) -> bool:
        """Forget a stored offset; whether there was one. On the device after the next flush."""
        is_known = self.tracking.delete_offset(reference)
        if is_known and self.exists:
            self.must_be_rewritten()
        return is_known

    def write_pending(self, next_offset: int) -> None:
        """Write the stored offsets that are not written yet, at `next_offset`; nothing is synced.

        While the journal is rewritten they stay pending: what is written to the old file then
        would go with it.

        Raises:
            StorageError: the system refused; they stay pending.
        """
        if self._rewrite is not None or not self.tracking.has_pending:
            return
        if self._file is None:
            self._create(next_offset)
        else:
            body = codec.encode_blocks(self.tracking.pending_blocks())
            self._append(self._file, JournalRecord(JOURNAL_DELTA, next_offset, body))
        self.tracking.pending_written()

    def add_snapshot(self, next_offset: int) -> None:
        """Write everything, as of `next_offset`; nothing is synced.

        Raises:
            StorageError: the system refused; the old journal stays.
        """
        if self._file is None:
            self._create(next_offset)
        else:
            record = _snapshot(self.tracking, next_offset)
            self._append(self._file, record)
            self._latest = record
        self.tracking.pending_written()

    def _append(self, file: File, record: JournalRecord) -> None:
        self.is_dirty = True
        self._size += file.write([codec.encode_journal_record(record)], self._size)

    def _create(self, next_offset: int) -> None:
        """Begin the journal. Its content and name are synced by the next flush."""
        record = _snapshot(self.tracking, next_offset)
        content = codec.TRACKING_HEADER + codec.encode_journal_record(record)
        file = replace_file(self._disk, self._path, content, is_synced=False)
        self._use(file, len(content), record)
        self.is_dirty = self.has_new_name = True

    def _use(self, file: File, size: int, latest: JournalRecord) -> None:
        self.close()
        self._file, self._size, self._latest = file, size, latest
        self._rewrite_at = size + _COMPACT_BYTES

    @property
    def is_rewriting(self) -> bool:
        """A fresh journal is being made."""
        return self._rewrite is not None

    def must_be_rewritten(self) -> None:
        """What it says is not true: the next flush rewrites it."""
        self._is_wrong = True
        self._latest = _NONE  # it may know chunks that are lost

    def rewrite(self, next_offset: int) -> "Rewrite | None":
        """A fresh journal in place of this one, None where that will do; then call `end_rewrite`.

        Args:
            next_offset: of the stream; no later chunk is in it.
        """
        if not (self._is_wrong or self.is_large):
            return None
        record = _snapshot(self.tracking, next_offset)
        parts = [codec.TRACKING_HEADER, codec.encode_journal_record(record)]
        if self._safe.next_offset:  # the last snapshot whose chunks are all on the device
            parts.insert(1, codec.encode_journal_record(self._safe))
        self._rewrite = Rewrite(self._disk, self._path, b"".join(parts), record)
        self._rewrites_wrong, self._is_wrong = self._is_wrong, False
        return self._rewrite

    def end_rewrite(self) -> bool:
        """A rewrite has run, or the flush failed before it; whether there is a fresh journal."""
        rewrite, self._rewrite = self._rewrite, None
        if rewrite is None:
            return False
        if rewrite.file is not None:
            self._use(rewrite.file, len(rewrite.content), rewrite.record)
            self._borrowed_snapshot = rewrite.record
            self.obstacle = None  # what became wrong meanwhile is for the next one
        else:
            self._is_wrong = self._is_wrong or self._rewrites_wrong
            self._rewrite_at = self._size + _COMPACT_BYTES  # not with every flush
            self.obstacle = rewrite.refusal if self._is_wrong else None
        return rewrite.file is not None

    def borrow(self) -> File | None:
        """The file if it has to be synced, maybe in a thread; stays open until `give_back`."""
        self._borrowed_snapshot = self._latest
        self.has_new_name = False
        if not self.is_dirty:
            return None
        self.is_dirty = False
        self._borrowed = self._file
        return self._file

    def flush_failed(self, *, is_new: bool) -> None:
        """What was borrowed has to be flushed again; before it is given back.

        Args:
            is_new: so has its name.
        """
        self.is_dirty = self.is_dirty or self._borrowed is not None
        self.has_new_name = self.has_new_name or is_new

    def give_back(self, *, is_safe: bool) -> None:
        """What was borrowed is synced, or the flush has failed.

        Args:
            is_safe: it is, and so are all chunks that were there when it was borrowed.
        """
        if is_safe:
            self._safe = self._borrowed_snapshot
        borrowed, self._borrowed = self._borrowed, None
        if borrowed is not None and borrowed is not self._file:
            borrowed.close()

    def close(self) -> None:
        """Release the file."""
        if self._file is not None and self._file is not self._borrowed:
            self._file.close()
        self._file = None


def journal_of(tracking: Tracking, next_offset: int) -> bytes:
    """The content of a journal that begins with what is known as of `next_offset`."""
    return codec.TRACKING_HEADER + codec.encode_journal_record(_snapshot(tracking, next_offset))


def tracking_in(content: bytes, next_offset: int) -> Tracking:
    """What the content of a journal says, of chunks before `next_offset` alone.

    Raises:
        FormatError: it is no journal, or not whole.
    """
    codec.check_file_header(content, codec.TRACKING_HEADER)
    records, used = codec.decode_journal(content[FILE_HEADER_SIZE:])
    if FILE_HEADER_SIZE + used < len(content):
        raise FormatError(f"the last {len(content) - FILE_HEADER_SIZE - used} bytes are no record")
    tracking = Tracking()
    for record in records:
        is_snapshot = record.kind == JOURNAL_SNAPSHOT
        blocks = codec.decode_blocks(record.body, snapshot=is_snapshot)
        if is_snapshot:
            tracking = Tracking.from_snapshot(blocks, before=next_offset)
        else:
            tracking.apply(blocks, record.next_offset)
    tracking.cut_offsets(next_offset)
    return tracking


def _snapshot(tracking: Tracking, next_offset: int) -> JournalRecord:
    body = codec.encode_blocks(tracking.snapshot_blocks())
    return JournalRecord(JOURNAL_SNAPSHOT, next_offset, body)
