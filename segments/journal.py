"""The tracking journal: one file per stream, a snapshot first, then what was stored since.

Records are appended: stored offsets as they come, a snapshot now and then so that opening the log
does not have to read all chunks. When enough has gathered the file is replaced by a fresh snapshot
under its own name in one step. A torn last record is cut off on opening.

A snapshot may cover chunks that a power failure then takes away. So the last earlier snapshot whose
chunks are all on the device stays in the file; segments that it does not cover are kept.
"""

from pathlib import PurePath

from segments import codec
from segments.atomic_write import replace_file
from segments.codec import FILE_HEADER_SIZE, JournalRecord
from segments.disk import Disk, File
from segments.errors import FormatError, OtherVersionError, VersionError
from segments.format_constants import JOURNAL_DELTA, JOURNAL_SNAPSHOT
from segments.tracking import Tracking

JOURNAL_NAME = "tracking"
_NONE = JournalRecord(JOURNAL_SNAPSHOT, 0, b"")
_COMPACT_BYTES = 1 << 20  # deltas that gather beyond the snapshot before the file is rewritten


class Journal:
    """The open journal of one stream.

    Attributes:
        records: what was found on opening, in order; empty for a new journal.
        fault: why part of it could not be read, None when all of it could.
        is_dirty: some of it may not be on the device yet.
    """

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._path = str(PurePath(folder, JOURNAL_NAME))
        self._file: File | None = None
        self._size = 0
        self._snapshot_size = 0
        self._borrowed: File | None = None
        self._latest = self._borrowed_snapshot = self._safe = _NONE
        self.is_dirty = False
        self.records: list[JournalRecord] = []
        self.fault: str | None = None

    @classmethod
    def open(cls, disk: Disk, folder: str) -> "Journal":
        """Read the journal of the stream in `folder`; a torn end is cut, damage is reported.

        Raises:
            OtherVersionError: another version of this program wrote it.
            StorageError: the file cannot be read or cut.
        """
        journal = cls(disk, folder)
        if JOURNAL_NAME in disk.list(folder):
            journal._load(disk.open(journal._path, writable=True))
        return journal

    def _load(self, file: File) -> None:
        try:
            raw = file.read(file.size(), 0)
            codec.check_file_header(raw, codec.TRACKING_HEADER)
        except VersionError as error:
            file.close()
            raise OtherVersionError(self._path, error) from error
        except FormatError as error:
            self.fault = str(error)
            file.close()
            return
        self.records, used = codec.decode_journal(raw[FILE_HEADER_SIZE:])
        for record in self.records:
            if record.kind == JOURNAL_SNAPSHOT:
                self._latest = record
        self._file, self._size = file, FILE_HEADER_SIZE + used
        if self._size < len(raw):
            self.fault = f"the last {len(raw) - self._size} bytes are not a whole record"
            file.truncate(self._size)

    @property
    def exists(self) -> bool:
        """There is a journal file."""
        return self._file is not None

    def write_pending(self, tracking: Tracking, next_offset: int) -> None:
        """Write the stored offsets that are not written yet.

        Raises:
            StorageError: the system refused; they stay pending.
        """
        if self._file is None or self._size > self._snapshot_size + _COMPACT_BYTES:
            self.replace(tracking, next_offset)
            return
        body = codec.encode_blocks(tracking.pending_blocks())
        self._append(self._file, JournalRecord(JOURNAL_DELTA, next_offset, body))
        tracking.pending_written()

    def add_snapshot(self, tracking: Tracking, next_offset: int) -> None:
        """Write everything, as of `next_offset`.

        Raises:
            StorageError: the system refused; the old journal stays.
        """
        if self._file is None or self._size > self._snapshot_size + _COMPACT_BYTES:
            self.replace(tracking, next_offset)
            return
        record = _snapshot(tracking, next_offset)
        self._append(self._file, record)
        self._latest = record
        tracking.pending_written()

    def _append(self, file: File, record: JournalRecord) -> None:
        self.is_dirty = True
        self._size += file.write([codec.encode_journal_record(record)], self._size)

    def replace(self, tracking: Tracking, next_offset: int, *, keeps_safe: bool = True) -> None:
        """Rewrite the journal as a snapshot as of `next_offset`; its name is on the device then.

        Args:
            tracking: the state.
            next_offset: of the stream; no later chunk is in it.
            keeps_safe: put before it the last snapshot whose chunks are all on the device.

        Raises:
            StorageError: the system refused; the old journal stays.
        """
        record = _snapshot(tracking, next_offset)
        parts = [codec.TRACKING_HEADER, codec.encode_journal_record(record)]
        if keeps_safe and self._safe.next_offset:
            parts.insert(1, codec.encode_journal_record(self._safe))
        content = b"".join(parts)
        file = replace_file(self._disk, self._path, content)
        self._disk.sync_folder(str(PurePath(self._path).parent))
        self.close()
        self._file, self._size = file, len(content)
        self._snapshot_size = self._size
        self._latest = record
        self.is_dirty = False
        tracking.pending_written()

    @property
    def covers(self) -> int:
        """The offset before which no chunk is needed to know the tracking, whatever happens."""
        return self._safe.next_offset

    def borrow(self) -> File | None:
        """The file if it has to be synced, maybe in a thread; stays open until `give_back`."""
        self._borrowed_snapshot = self._latest
        if not self.is_dirty:
            return None
        self.is_dirty = False
        self._borrowed = self._file
        return self._file

    def give_back(self, *, is_safe: bool) -> None:
        """What was borrowed is synced.

        Args:
            is_safe: and all chunks that were there when it was borrowed.
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


def _snapshot(tracking: Tracking, next_offset: int) -> JournalRecord:
    body = codec.encode_blocks(tracking.snapshot_blocks())
    return JournalRecord(JOURNAL_SNAPSHOT, next_offset, body)
