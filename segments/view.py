"""A stream's folder as it was at one instant, for who reads beside the one that writes to it.

Nothing is locked or changed, and the writer knows nothing of it. All files are held open, so that
rolling, retention, truncation, eviction and the deletion of the stream take nothing away. The
newest segment ends with the last chunk that its index lists: an append writes the chunks first.
So what is seen is whole, and a prefix of what was appended. With `commits_on_flush` its last chunks
may still be awaiting the flush that confirms them.

The instant is one at which neither a file came or went, nor the checkpoint was replaced, from the
first look to the last; else all is looked at again.
"""

import errno
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import PurePath
from types import TracebackType

from segments import codec
from segments.atomic_write import TEMPORARY_SUFFIX
from segments.checkpoint import CHECKPOINT_NAME, read_checkpoint
from segments.codec import FILE_HEADER_SIZE
from segments.disk import Buffer, Disk, File, Lock
from segments.errors import FormatError, StorageError
from segments.index import Index, record_position, whole_records
from segments.journal import JOURNAL_NAME
from segments.segment import (
    INDEX_SUFFIX,
    SEGMENT_SUFFIX,
    beginning,
    file_path,
    files_by_base,
    parse_name,
    read_header,
)

_MOST_LOOKS = 1_000  # each takes milliseconds, and a file comes or goes a few times in a second


class Part:
    """The beginning of a file that somebody else closes; see disk.File. It cannot be changed."""

    def __init__(self, file: File) -> None:
        self.path, self._file = file.path, file
        self._size: int | None = None

    def end_at(self, size: int) -> None:
        """Show so many bytes of it."""
        self._size = size

    def size(self) -> int:  # noqa: D102 - see File
        return self._file.size() if self._size is None else self._size

    def read(self, size: int, position: int) -> bytes:  # noqa: D102 - see File
        if self._size is not None:
            size = max(0, min(size, self._size - position))
        return self._file.read(size, position)

    def write(self, parts: Sequence[Buffer], position: int) -> int:  # noqa: ARG002, D102 - see File
        raise _refusal(self.path)

    def truncate(self, size: int) -> None:  # noqa: ARG002, D102 - see File
        raise _refusal(self.path)

    def sync(self) -> None:  # noqa: D102 - see File
        raise _refusal(self.path)

    def fileno(self) -> int:  # noqa: D102 - see File
        return self._file.fileno()

    def close(self) -> None:
        """Nothing: it may be opened again."""

    def close_file(self) -> None:
        """Release the descriptor."""
        self._file.close()


def _refusal(path: str) -> StorageError:
    return StorageError("change", path, OSError(errno.EROFS, "a view changes nothing"))


class ReadOnlyDisk:
    """What is refused by a Disk of which can only be read."""

    def create(self, path: str) -> File:  # noqa: D102 - see Disk
        raise _refusal(path)

    def make_folder(self, folder: str) -> None:  # noqa: D102 - see Disk
        raise _refusal(folder)

    def remove(self, path: str) -> None:  # noqa: D102 - see Disk
        raise _refusal(path)

    def remove_folder(self, folder: str) -> None:  # noqa: D102 - see Disk
        raise _refusal(folder)

    def rename(self, old: str, new: str) -> None:  # noqa: ARG002, D102 - see Disk
        raise _refusal(old)

    def lock(self, folder: str) -> Lock:  # noqa: D102 - see Disk
        raise _refusal(folder)

    def sync_folder(self, folder: str) -> None:  # noqa: D102 - see Disk
        raise _refusal(folder)


class View(ReadOnlyDisk):
    """See above: a Disk with one folder, from which can be read; a context manager.

    Raises:
        StorageError: the system refused, or files came and went all the time.
    """

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk, self._folder = disk, folder
        self._files: dict[str, Part] = {}
        for _ in range(_MOST_LOOKS):
            with ExitStack() as failed:
                failed.callback(self.close)
                if self._look():
                    failed.pop_all()
                    return
        raise StorageError("view", folder, OSError(errno.EBUSY, "files come and go all the time"))

    def _look(self) -> bool:
        """Take the folder as it is; whether that was of one instant."""
        names = self._names()
        checkpoint = self._checkpoint()
        for name in names:
            path = str(PurePath(self._folder, name))
            try:
                self._files[name] = Part(self._disk.open(path, writable=False))
            except StorageError as error:
                if error.is_missing:
                    return False
                raise
        self._forget_what_goes(checkpoint)
        is_whole = self._end_newest()
        if JOURNAL_NAME in self._files:
            journal = self._files[JOURNAL_NAME]
            raw = journal.read(journal.size(), 0)
            _, used = codec.decode_journal(raw[FILE_HEADER_SIZE:])
            journal.end_at(min(len(raw), FILE_HEADER_SIZE + used))
        return is_whole and (names, checkpoint) == (self._names(), self._checkpoint())

    def _names(self) -> list[str]:
        names = self._disk.list(self._folder)
        return [name for name in names if not name.endswith(TEMPORARY_SUFFIX)]

    def _checkpoint(self) -> codec.Checkpoint | None:
        with suppress(FormatError):  # who reads the view reports it
            if CHECKPOINT_NAME in self._disk.list(self._folder):
                return read_checkpoint(self._disk, self._folder)
        return None

    def _forget_what_goes(self, checkpoint: codec.Checkpoint | None) -> None:
        """Leave out files that are being removed, or made, and are not part of the log."""
        files = files_by_base(self._files)
        first = beginning(files)
        if checkpoint is not None:
            first = max(first, checkpoint.first_offset)
        newest = max((base for base in files if SEGMENT_SUFFIX in files[base]), default=0)
        for name in list(self._files):
            parsed = parse_name(name)
            if parsed is not None and not first <= parsed[0] <= newest:
                self._files.pop(name).close_file()

    def _end_newest(self) -> bool:
        """Let the newest segment end with what its index lists; False if it is just being made."""
        files = files_by_base(self._files)
        newest = max((base for base in files if SEGMENT_SUFFIX in files[base]), default=None)
        if newest is None or INDEX_SUFFIX not in files[newest]:
            return True
        segment = self.open(file_path(self._folder, newest, SEGMENT_SUFFIX), writable=False)
        index = self.open(file_path(self._folder, newest, INDEX_SUFFIX), writable=False)
        num_chunks = whole_records(index.size())  # before the segment is looked at
        index.end_at(record_position(num_chunks))
        if not num_chunks:
            is_made = segment.size() >= FILE_HEADER_SIZE
            segment.end_at(FILE_HEADER_SIZE)
            return is_made
        with suppress(FormatError):  # who reads the view reports it
            last = Index(index, num_chunks).record(num_chunks - 1)
            header = read_header(segment, last.position, last.chunk_id)
            if header is not None:
                segment.end_at(last.position + header.total_size)
        return True

    def __enter__(self) -> "View":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the files; may be called again."""
        while self._files:
            self._files.popitem()[1].close_file()

    def open(self, path: str, *, writable: bool) -> Part:  # noqa: D102 - see Disk
        if writable:
            raise _refusal(path)
        found = self._files.get(PurePath(path).name)
        if found is None:
            raise StorageError("open", path, OSError(errno.ENOENT, "No such file or directory"))
        return found

    def list(self, folder: str) -> list[str]:  # noqa: ARG002, D102 - see Disk
        return sorted(self._files)

    def boot(self) -> str:  # noqa: D102 - see Disk
        return self._disk.boot()
