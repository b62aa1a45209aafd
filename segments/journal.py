"""The tracking journal: one file per stream, a snapshot first, then what was stored since.

Records are appended; when enough has gathered the file is replaced by a fresh snapshot under its
own name in one step. A torn last record is cut off on opening.
"""

from pathlib import PurePath

from segments import codec
from segments.codec import FILE_HEADER_SIZE, JournalRecord
from segments.disk import Disk, File
from segments.errors import FormatError
from segments.layout import JOURNAL_DELTA, JOURNAL_SNAPSHOT
from segments.tracking import Tracking

JOURNAL_NAME = "tracking"
TEMPORARY_SUFFIX = ".tmp"
_COMPACT_BYTES = 1 << 20  # deltas that gather beyond the snapshot before it is written anew


class Journal:
    """The open journal of one stream.

    Attributes:
        records: what was found on opening, in order; empty for a new journal.
        fault: why what was found is not all that was there, None when it is.
    """

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._path = str(PurePath(folder, JOURNAL_NAME))
        self._file: File | None = None
        self._size = 0
        self._snapshot_size = 0
        self.records: list[JournalRecord] = []
        self.fault: str | None = None

    @classmethod
    def open(cls, disk: Disk, folder: str) -> "Journal":
        """Read the journal of the stream in `folder`; a torn end is cut, damage is reported.

        Raises:
            StorageError: the file cannot be read or cut.
        """
        journal = cls(disk, folder)
        if JOURNAL_NAME in disk.list(folder):
            journal._load(disk.open(journal._path, writable=True))
        return journal

    def _load(self, file: File) -> None:
        raw = file.read(file.size(), 0)
        try:
            codec.check_file_header(raw, codec.TRACKING_HEADER)
        except FormatError as error:
            self.fault = str(error)
            file.close()
            return
        self.records, used = codec.decode_journal(raw[FILE_HEADER_SIZE:])
        self._file, self._size = file, FILE_HEADER_SIZE + used
        if self._size < len(raw):
            self.fault = f"the last {len(raw) - self._size} bytes are not a whole record"
            file.truncate(self._size)

    @property
    def exists(self) -> bool:
        """There is a journal file."""
        return self._file is not None

    def write_pending(self, tracking: Tracking, next_offset: int) -> None:
        """Put the stored offsets that are not on disk yet there.

        Raises:
            StorageError: the system refused; they stay pending.
        """
        if self._file is None or self._size > self._snapshot_size + _COMPACT_BYTES:
            self.write_snapshot(tracking, next_offset)
            return
        body = codec.encode_blocks(tracking.pending_blocks())
        record = codec.encode_journal_record(JournalRecord(JOURNAL_DELTA, next_offset, body))
        self._size += self._file.write([record], self._size)
        tracking.pending_written()

    def write_snapshot(self, tracking: Tracking, next_offset: int) -> None:
        """Replace the journal by a snapshot as of `next_offset`.

        Raises:
            StorageError: the system refused; the old journal stays.
        """
        body = codec.encode_blocks(tracking.snapshot_blocks())
        record = JournalRecord(JOURNAL_SNAPSHOT, next_offset, body)
        content = codec.TRACKING_HEADER + codec.encode_journal_record(record)
        file = replace_file(self._disk, self._path, content)
        self.close()
        self._file, self._size = file, len(content)
        self._snapshot_size = self._size
        tracking.pending_written()

    def sync(self) -> None:
        """Return once the journal is on the device."""
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        """Release the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def replace_file(disk: Disk, path: str, content: bytes) -> File:
    """Give `path` new content in one step: written beside it, synced, renamed over it.

    Returns:
        The new file, open for writing.

    Raises:
        StorageError: the system refused; the old file stays.
    """
    temporary = path + TEMPORARY_SUFFIX
    if PurePath(temporary).name in disk.list(str(PurePath(path).parent)):
        disk.remove(temporary)
    file = disk.create(temporary)
    try:
        file.write([content], 0)
        file.sync()
        disk.rename(temporary, path)
    except BaseException:
        file.close()
        raise
    file.path = path
    return file
