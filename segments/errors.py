"""What can go wrong with stored streams, sorted by who has to act."""

import errno

_FULL = (errno.ENOSPC, errno.EDQUOT)
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


class StorageError(SegmentsError):
    """The operating system refused a file operation; `__cause__` is its OSError.

    Attributes:
        is_full: the disk or the quota is used up, so the same write may succeed later.
        is_missing: the file is not there.
    """

    def __init__(self, operation: str, path: str, cause: OSError) -> None:
        self.is_full = cause.errno in _FULL
        self.is_missing = cause.errno == errno.ENOENT
        advice = "; free some space" if self.is_full else ""
        super().__init__(f"cannot {operation} {path}: {cause.strerror or cause}{advice}")
        self.path = path
        self.__cause__ = cause


class UnreadableError(FormatError, StorageError):
    """The device cannot give back some bytes of a file. They are damage, as wrong bytes are."""


def read_error(path: str, cause: OSError) -> StorageError:
    """The error for a file that cannot be read."""
    kind = UnreadableError if cause.errno in UNREADABLE else StorageError
    return kind("read", path, cause)
