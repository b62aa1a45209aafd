"""The only code that calls the operating system about files.

`Disk` is an interface so that tests can put a faulty one in its place; `OsDisk` is the real one.
Every refusal becomes a StorageError that names the operation and the path. Files are written at
explicit positions: no call depends on where another one left off.
"""

import ctypes
import errno
import fcntl
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Protocol
from uuid import uuid4

from segments.errors import FLUSH, LockedError, StorageError, read_error

Buffer = bytes | bytearray | memoryview


class Readable(Protocol):
    """A file as somebody sees it who only reads."""

    def read(self, size: int, position: int) -> bytes:
        """Up to `size` bytes from `position`; fewer only at the end of the file.

        Raises:
            UnreadableError: the device cannot give some of them back.
            StorageError: the system refused for another reason.
        """


class File(Readable, Protocol):
    """One open file."""

    path: str

    def size(self) -> int:
        """Its size in bytes."""

    def write(self, parts: Sequence[Buffer], position: int) -> int:
        """Write all parts (at most 1,024) back to back at `position`; return how many bytes."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def sync(self) -> None:
        """Return once the file's bytes are on the device."""

    def fileno(self) -> int:
        """Its descriptor, for `os.sendfile`."""

    def close(self) -> None:
        """Release the descriptor; may be called again."""


class Lock(Protocol):
    """What keeps others out of a folder."""

    def release(self) -> None:
        """Let others in; may be called again."""


class Disk(Protocol):
    """What a log needs of a file system. Paths are absolute or relative to the process."""

    def create(self, path: str) -> File:
        """Open for reading and writing; the file must not exist yet."""

    def open(self, path: str, *, writable: bool) -> File:
        """Open a file that exists."""

    def list(self, folder: str) -> list[str]:
        """Names of the files in `folder`, sorted."""

    def make_folder(self, folder: str) -> None:
        """Create `folder` and its parents where they are missing."""

    def remove(self, path: str) -> None:
        """Remove a file; no trouble if somebody else has."""

    def remove_folder(self, folder: str) -> None:
        """Remove `folder` with everything in it."""

    def rename(self, old: str, new: str) -> None:
        """Give a file another name in the same file system, replacing what was there."""

    def lock(self, folder: str) -> Lock:
        """Keep everybody else who locks `folder` out of it, until released or the process ends.

        Raises:
            LockedError: somebody else has locked it, in this process or another one.
            StorageError: the system refused.
        """

    def sync_folder(self, folder: str) -> None:
        """Return once the folder's entries are on the device."""

    def boot(self) -> str:
        """What tells this run of the machine from others, which find what was synced, no more.

        It can be a part of a file's name.
        """


@cache
def _boot() -> str:
    """The boot id of Linux; elsewhere another one for each process, which is on the safe side."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
    return str(uuid4())


@contextmanager
def _refusals(operation: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(operation, path, error) from error


def _close(descriptor: int) -> None:
    """Release a descriptor: it is gone even if the system reports an error, which `sync` tells."""
    try:  # `suppress` takes as long as the call
        os.close(descriptor)
    except OSError:
        return


_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # of fallocate
_NO_WAIT: int | None = getattr(os, "RWF_NOWAIT", None)


def punch_hole(descriptor: int, start: int, size: int) -> bool:
    """Give back the room of some bytes of a file, which read as zeros then.

    Returns:
        False where the system or the file system cannot do that; then nothing was done.

    Source: Linux manual page fallocate(2), which Python has no call for.
    """
    call = _fallocate()
    if call is None:
        return False
    flags = _KEEP_SIZE | _PUNCH_HOLE
    return int(call(descriptor, flags, ctypes.c_int64(start), ctypes.c_int64(size))) == 0


@cache
def _fallocate() -> Any:  # noqa: ANN401 - a function of C
    has_64_bits = sys.maxsize > 1 << 32  # elsewhere positions are narrower
    if not (sys.platform.startswith("linux") and has_64_bits):
        return None
    return ctypes.CDLL(None, use_errno=True).fallocate


def read_into(file: File, buffer: memoryview, position: int) -> int:
    """Fill a buffer with bytes of a file of the operating system; how many there were.

    Raises:
        StorageError: see Readable.read.
    """
    got = 0
    try:
        while got < len(buffer):
            size = os.preadv(file.fileno(), [buffer[got:]], position + got)
            if not size:
                break
            got += size
    except OSError as error:
        raise read_error(file.path, error) from error
    return got


def read_ready(file: File, size: int, position: int) -> bytes | None:
    """The same as `read`, without waiting for a device.

    Returns:
        None where some of the bytes are not in memory, or the system cannot tell.

    Raises:
        StorageError: see Readable.read.

    Source: Linux manual page preadv2(2), RWF_NOWAIT.
    """
    if _NO_WAIT is None:
        return None
    buffer = bytearray(size)
    try:
        got = count = os.preadv(file.fileno(), [buffer], position, _NO_WAIT) if size else 0
        while count and got < size:
            part = memoryview(buffer)[got:]
            count = os.preadv(file.fileno(), [part], position + got, _NO_WAIT)
            got += count
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
            return None
        raise read_error(file.path, error) from error
    return bytes(buffer)[:got]


class OsFile:
    """A file of the operating system; see File."""

    def __init__(self, path: str, flags: int) -> None:
        self.path = path
        try:  # no context manager here either, see read
            self._fd = os.open(path, flags | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise StorageError("open", path, error) from error

    @classmethod
    def of(cls, descriptor: int, path: str) -> "OsFile":
        """One that is open already, and is closed with this."""
        file = cls.__new__(cls)
        file._fd, file.path = descriptor, path  # noqa: SLF001 - its own
        return file

    def size(self) -> int:  # noqa: D102 - see File
        with _refusals("look at", self.path):
            return os.fstat(self._fd).st_size

    def read(self, size: int, position: int) -> bytes:  # noqa: D102 - see File
        # No context manager here and in write: it would cost as much as the call itself.
        try:
            data = os.pread(self._fd, size, position)
            if len(data) == size or not data:
                return data
            parts, got = [data], len(data)
            while got < size and (data := os.pread(self._fd, size - got, position + got)):
                parts.append(data)
                got += len(data)
        except OSError as error:
            raise read_error(self.path, error) from error
        return b"".join(parts)

    def write(self, parts: Sequence[Buffer], position: int) -> int:  # noqa: D102 - see File
        wanted = sum(map(len, parts))
        try:
            written = os.pwritev(self._fd, parts, position)
            if written < wanted:  # a disk that fills up takes a part, then refuses the rest
                rest = memoryview(b"".join(parts))
                while written < wanted:
                    written += os.pwrite(self._fd, rest[written:], position + written)
        except OSError as error:
            raise StorageError("write", self.path, error) from error
        return wanted

    def truncate(self, size: int) -> None:  # noqa: D102 - see File
        with _refusals("cut", self.path):
            os.ftruncate(self._fd, size)

    def sync(self) -> None:  # noqa: D102 - see File
        with _refusals(FLUSH, self.path):
            os.fdatasync(self._fd)

    def fileno(self) -> int:  # noqa: D102 - see File
        return self._fd

    def close(self) -> None:  # noqa: D102 - see File
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            _close(descriptor)


class OsLock:
    """A lock on a folder itself, by flock: it adds no file, and a kill releases it; see Disk.lock.

    It goes with the folder where that is moved; a new folder of its name is another one.
    On a network file system it is of this machine alone.
    """

    def __init__(self, folder: str) -> None:
        with _refusals("lock", folder):
            self._fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _refusals("lock", folder):
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.path.samestat(os.fstat(self._fd), os.stat(folder)):
                    raise OSError(errno.ESTALE, "it was replaced meanwhile")
        except StorageError as error:
            holder = holder_of(folder)
            _close(self._fd)
            if isinstance(error.__cause__, BlockingIOError):
                raise LockedError(folder, holder) from error
            raise

    def release(self) -> None:  # noqa: D102 - see Lock
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            with suppress(OSError):  # a child that is just being started may have a copy of it
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            _close(descriptor)


def holder_of(folder: str) -> int | None:
    """The process that has locked a folder, where Linux says so; None for nobody as well.

    It does not say so of processes outside of the container that asks.

    Source: Linux manual page proc_locks(5).
    """
    with suppress(OSError, ValueError), open("/proc/locks", encoding="ascii") as lines:
        locked = os.stat(folder)
        file = f"{os.major(locked.st_dev):02x}:{os.minor(locked.st_dev):02x}:{locked.st_ino}"
        for fields in map(str.split, lines):
            if fields[1:2] == ["FLOCK"] and fields[5:6] == [file]:
                return int(fields[4])
    return None


class OsDisk:
    """The operating system's file system; see Disk."""

    def create(self, path: str) -> File:  # noqa: D102 - see Disk
        return OsFile(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def open(self, path: str, *, writable: bool) -> File:  # noqa: D102 - see Disk
        return OsFile(path, os.O_RDWR if writable else os.O_RDONLY)

    def list(self, folder: str) -> list[str]:  # noqa: D102 - see Disk
        with _refusals("list", folder), os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_file())

    def make_folder(self, folder: str) -> None:  # noqa: D102 - see Disk
        with _refusals("create", folder):
            os.makedirs(folder, mode=0o750, exist_ok=True)

    def remove(self, path: str) -> None:  # noqa: D102 - see Disk
        with _refusals("remove", path), suppress(FileNotFoundError):
            os.unlink(path)

    def remove_folder(self, folder: str) -> None:  # noqa: D102 - see Disk
        with _refusals("remove", folder):
            shutil.rmtree(folder)

    def rename(self, old: str, new: str) -> None:  # noqa: D102 - see Disk
        with _refusals("rename", old):
            os.replace(old, new)

    def lock(self, folder: str) -> Lock:  # noqa: D102 - see Disk
        return OsLock(folder)

    def sync_folder(self, folder: str) -> None:  # noqa: D102 - see Disk
        with _refusals("open", folder):
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _refusals(FLUSH, folder):
                os.fsync(fd)
        finally:
            _close(fd)

    def boot(self) -> str:  # noqa: D102 - see Disk
        return _boot()
