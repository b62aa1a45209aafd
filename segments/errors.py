"""What can go wrong with stored streams, sorted by who has to act."""

import errno
import os
from collections.abc import Iterator

FULL_DISK = "the disk is full"
_SHORTAGES = {
    errno.ENOSPC: (FULL_DISK, "free some space"),
    errno.EDQUOT: (FULL_DISK, "free some space"),
    errno.EMFILE: ("too many files are open", "raise the limit (ulimit -n, LimitNOFILE)"),
    errno.ENFILE: ("too many files are open in the system", "raise the limit (fs.file-max)"),
    errno.ENOMEM: ("memory is short", "free some memory"),
    errno.EAGAIN: ("threads are short", "raise the limit (ulimit -u, TasksMax)"),
}
FLUSH = "flush"  # the operation after whose failure nothing is certain
UNREADABLE = (errno.EIO, errno.EBADMSG)  # of reading: the device cannot give bytes back


class SegmentsError(Exception):
    """Root of everything this package raises on purpose."""


class FormatError(SegmentsError):
    """Bytes do not have the form they claim; says which rule they break, not where they are."""


class VersionError(FormatError):
    """A file was written in a version of its format that this program does not know."""


class CorruptError(SegmentsError):
    """Stored bytes failed a check: the operator looks at the disk, the stream is not writable.

    Attributes:
        path: the file.
        position: byte position in it of the structure that failed.
        reason: what was found and what was expected.
    """

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path} is damaged at byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


class OtherVersionError(SegmentsError):
    """A file was written by another version of this program, which alone can read it."""

    def __init__(self, path: str, reason: VersionError) -> None:
        super().__init__(f"cannot use {path}: {reason}; start the program that wrote it")
        self.path = path


class UnrestoredError(SegmentsError):
    """A stream's folder was made of what a store has, and something was missing there."""


class LostCopyError(SegmentsError):
    """The copy of a stream's manifest is not what was written; the store has it.

    A log that was opened without it would begin behind the segments that only the store has.

    Attributes:
        creation: id under which the stream is in the store.
    """

    def __init__(self, path: str, what: str, creation: str) -> None:
        super().__init__(
            f"{path}, which says what of the stream is in the tier alone, {what}; the server "
            "fetches it from the tier"
        )
        self.creation = creation


class StorageError(SegmentsError):
    """The operating system refused a file operation; `__cause__` is its OSError.

    Attributes:
        shortage: what there is not enough of at the moment; empty when it is something else.
        is_full: the disk or the quota is used up.
        is_temporary: nothing was done for a shortage, so the same operation may succeed later.
            Never true of a flush: the system may have dropped what it could not write.
        is_flush: it was one.
        is_missing: the file is not there.
        errno, reason: of the OSError.
    """

    def __init__(self, operation: str, path: str, cause: OSError) -> None:
        self.shortage, advice = _SHORTAGES.get(cause.errno or 0, ("", ""))
        self.is_full = self.shortage == FULL_DISK
        self.is_flush = operation == FLUSH
        self.is_temporary = bool(self.shortage) and not self.is_flush
        self.is_missing = cause.errno == errno.ENOENT
        self.errno, self.reason = cause.errno, cause.strerror or str(cause)
        reason = f"{self.reason}; {advice}" if advice else self.reason
        super().__init__(f"cannot {operation} {path}: {reason}")
        self.path = path
        self.__cause__ = cause


class CheckpointDueError(StorageError):
    """A flush with a checkpoint has to come first: of the log, or of so many offsets."""

    def __init__(self, path: str) -> None:
        reason = "a checkpoint of what is there has to be on the device before"
        super().__init__("append to", path, OSError(errno.EAGAIN, reason))
        self.shortage, self.args = "a checkpoint is due", (f"cannot append to {path}: {reason}",)


class LockedError(SegmentsError):
    """A log is not opened: somebody has it open, and one at a time may.

    Args:
        folder: of the stream.
        holder: id of the process that has it, None where that is not known.
    """

    def __init__(self, folder: str, holder: int | None) -> None:
        who = "another process" if holder is None else f"process {holder}"
        if holder == os.getpid():
            who = f"this process ({holder})"
        super().__init__(
            f"cannot open the log in {folder}: {who} has it open, and may write to it; close it "
            "there first, or read it without opening it (python -m segments dump, or Spark)"
        )


class UnreadableError(FormatError, StorageError):
    """The device cannot give back some bytes of a file.

    Readers take them for damage, as wrong bytes are. But it may give them back the next time: see
    recovery.py for what must not rest on it.
    """


class UndecidedError(StorageError):
    """A log is not opened: the device refuses to read what decides how much of it is kept.

    Args:
        refusal: what it refused.
        salvage: path of the file with which an operator decides; see recovery.py.
    """

    def __init__(self, refusal: UnreadableError, salvage: str) -> None:
        super().__init__("read", refusal.path, OSError(refusal.errno, refusal.reason))
        advice = f"if the disk stays as it is, create the file {salvage} to keep what can be read"
        message = f"{refusal}; nothing was cut, and opening the stream is tried again; {advice}"
        self.args = (message,)


def read_error(path: str, cause: OSError) -> StorageError:
    """The error for a file that cannot be read."""
    kind = UnreadableError if cause.errno in UNREADABLE else StorageError
    return kind("read", path, cause)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """An error, or those in a group and the groups in it."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error
