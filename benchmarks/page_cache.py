"""Cold reading: a server's files are taken out of the page cache.

A file's pages are written to the disk and given up (`posix_fadvise`). The kernel keeps those that a
process has mapped, as RocketMQ does with all it stores, so these are paged out of the process
(`process_madvise`), which root may do. What the disk itself or a hypervisor caches stays there.
"""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks.target import family_of

_PROCESS_MADVISE = 440  # the number of the system call, the same on all architectures
_MADV_PAGEOUT = 21
_libc = ctypes.CDLL(None, use_errno=True)


class _Range(ctypes.Structure):
    """Addresses of a process, as a struct iovec."""

    _fields_ = (("start", ctypes.c_void_p), ("size", ctypes.c_size_t))


def drop(folder: Path, pid: int) -> None:
    """Take the files below a folder out of the page cache.

    Args:
        folder: of a server.
        pid: its process.

    Raises:
        PermissionError: it is another's, or this is not root.
    """
    files = [path for path in folder.resolve().rglob("*") if path.is_file()]
    for path in files:
        _give_up(path)
    for process in family_of(pid):
        _page_out(process, {str(path) for path in files})
    for path in files:  # what was mapped until now
        _give_up(path)


def _give_up(path: Path) -> None:
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # removed meanwhile
        return
    try:
        os.fdatasync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def _page_out(pid: int, files: set[str]) -> None:
    descriptor = os.pidfd_open(pid)
    try:
        for start, end in _mapped(pid, files):
            addresses = _Range(start, end - start)
            number = ctypes.c_size_t(1)
            if (
                _libc.syscall(
                    _PROCESS_MADVISE, descriptor, ctypes.byref(addresses), number, _MADV_PAGEOUT, 0
                )
                < 0
            ):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(descriptor)


def _mapped(pid: int, files: set[str]) -> Iterator[tuple[int, int]]:
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        fields = line.split(None, 5)
        if fields[5:] and fields[5] in files:
            start, _, end = fields[0].partition("-")
            yield int(start, 16), int(end, 16)
