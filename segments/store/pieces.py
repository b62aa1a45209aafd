"""A file in pieces, for uploads, and the memory that they are read into."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from segments.errors import StorageError, read_error


def new_buffer(size: int) -> memoryview:
    """Memory that nobody has used."""
    return memoryview(bytearray(size))


class Buffers:
    """Memory of one size, used again when the one who was given it has let go of it.

    New memory costs the system more time than everything else that an upload does: each page is
    cleared. A view that somebody still looks at cannot be released, which is how one knows.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._views: list[memoryview] = []

    def take(self, size: int) -> memoryview:
        """Memory for at most as many bytes as each of these has."""
        for n, view in enumerate(self._views):
            whole = view.obj
            try:
                view.release()
            except BufferError:  # it is still being sent, if only by a connection that broke
                continue
            self._views[n] = memoryview(whole)[:size]
            return self._views[n]
        self._views.append(memoryview(bytearray(self._size))[:size])
        return self._views[-1]


class IdleBuffers:
    """Buffers of one upload, kept for the next; uploads at the same time have their own."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._idle: list[Buffers] = []

    @contextmanager
    def borrowed(self) -> Iterator[Buffers]:
        """Buffers that nobody else takes from."""
        try:
            buffers = self._idle.pop()
        except IndexError:
            buffers = Buffers(self._size)
        try:
            yield buffers
        finally:
            self._idle[:] = [buffers]


def file_pieces(
    path: str, size: int, most: int, take: Callable[[int], memoryview] = new_buffer
) -> Iterator[memoryview]:
    """The first `size` bytes of a file, in pieces of at most `most` bytes.

    They are read, not mapped: what a mapped file cannot give back ends the process.

    Args:
        path: of the file.
        size: how many bytes are wanted.
        most: bytes in a piece.
        take: gives memory for a piece.

    Raises:
        StorageError: the file cannot be read, or is shorter.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise read_error(path, error) from error
    try:
        for start in range(0, size, most):
            piece = take(min(most, size - start))
            got = _fill(path, descriptor, piece, start)
            if got < len(piece):
                short = f"it ends after {start + got} bytes, not {size}"
                raise StorageError("read", path, OSError(errno.EIO, short))
            yield piece
    finally:
        os.close(descriptor)


def _fill(path: str, descriptor: int, piece: memoryview, start: int) -> int:
    """Read from a position until the piece is full, or the file ends; how much it was."""
    got = 0
    try:
        while got < len(piece):
            with piece[got:] as rest:  # released, or the piece never is
                read = os.preadv(descriptor, [rest], start + got)
            if not read:
                break
            got += read
    except OSError as error:
        raise read_error(path, error) from error
    return got
