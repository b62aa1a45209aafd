"""Segments as the tasks of a query read them, wherever they are: a folder here, a store elsewhere.

A segment file is a value that travels to the tasks; it opens what it needs when it is read.
"""

import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from segments.codec import CHUNK_HEADER_SIZE
from segments.disk import File, OsDisk
from segments.errors import CorruptError, StorageError
from segments.spark import headers as columns
from segments.spark.headers import Bytes, Headers, Numbers
from segments.spark.messages import PADDING


class SegmentGone(CorruptError):
    """A segment is not there any more: retention, or somebody else, took it."""

    def __init__(self, path: str) -> None:
        super().__init__(path, 0, "it was removed since it was listed, by retention or by hand")


class Window(Protocol):
    """A part of a segment, of which only what is asked for is read.

    Attributes:
        content: its bytes, those that were not loaded are anything.
    """

    start: int
    content: Bytes

    def load(self, starts: Numbers, ends: Numbers) -> None:
        """Have the bytes between these positions of the segment, those of `content` excepted.

        Raises:
            SegmentGone: see there.
            StorageError, TierError: they cannot be read.
        """


class SegmentFile(Protocol):
    """A segment's file; can be pickled, and has nothing secret in its repr."""

    @property
    def path(self) -> str: ...  # noqa: D102 - see above

    def blocks(
        self, positions: Numbers, sizes: Numbers, blocks: Sequence[range]
    ) -> Iterator[Bytes]:
        """Chunks, many at a time.

        Args:
            positions: of the chunks, ascending.
            sizes: of the chunks, in bytes.
            blocks: by their number in the above, which chunks are wanted together.

        Yields:
            For each block the bytes of its chunks back to back, with PADDING zeros behind; zeros
            as well where the file ends before.

        Raises:
            SegmentGone: see there.
            StorageError, TierError: it cannot be read.
        """

    def window(self, start: int, end: int) -> Window:
        """The part from one position to another.

        Raises:
            SegmentGone: see there.
            StorageError: it cannot be opened.
        """


def read_headers(file: SegmentFile, positions: Numbers) -> Headers:
    """The headers of the chunks at some positions, ascending; raises as `Window.load`."""
    if not len(positions):
        return columns.gather(np.empty(0, np.uint8), positions)
    window = file.window(int(positions[0]), int(positions[-1]) + CHUNK_HEADER_SIZE)
    window.load(positions, positions + CHUNK_HEADER_SIZE)
    return columns.gather(window.content, positions - window.start)


def runs_of(positions: Numbers, sizes: Numbers) -> list[Numbers]:
    """The numbers of chunks in runs that stand back to back."""
    breaks = np.flatnonzero(positions[1:] != positions[:-1] + sizes[:-1]) + 1
    return np.split(np.arange(len(positions)), breaks)


@dataclass(slots=True)
class Loaded:
    """A part that is there, or a part of a file that is mapped; see Window."""

    start: int
    content: Bytes

    def load(self, starts: Numbers, ends: Numbers) -> None:
        """See Window; nothing is missing."""


@dataclass(frozen=True, slots=True)
class LocalSegment:
    """A file of a folder on this machine; see SegmentFile."""

    path: str

    def blocks(  # noqa: D102 - see SegmentFile
        self, positions: Numbers, sizes: Numbers, blocks: Sequence[range]
    ) -> Iterator[Bytes]:
        file = self._open()
        try:
            for rows in blocks:
                some = slice(rows.start, rows.stop)
                yield _read_chunks(file, positions[some], sizes[some])
        finally:
            file.close()

    def window(self, start: int, end: int) -> Window:  # noqa: D102 - see SegmentFile
        file = self._open()
        try:
            return Loaded(start, content_of(file, end)[start:])
        finally:
            file.close()

    def _open(self) -> File:
        try:
            return OsDisk().open(self.path, writable=False)
        except StorageError as error:
            if error.is_missing:
                raise SegmentGone(self.path) from error
            raise


def content_of(file: File, size: int) -> Bytes:
    """The first `size` bytes of a segment file, mapped: only the parts that are used are read.

    Chunks that an index lists are never cut off again, so the mapping stays valid.
    """
    if not size:
        return np.empty(0, np.uint8)
    return np.frombuffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ), np.uint8)


def _read_chunks(file: File, positions: Numbers, sizes: Numbers) -> Bytes:
    """The bytes of some chunks back to back; neighbours in the file from one read."""
    buffer = np.empty(int(sizes.sum()) + PADDING, np.uint8)
    buffer[-PADDING:] = 0
    view, start = buffer.data, 0
    for run in runs_of(positions, sizes):
        size = int(sizes[run].sum())
        try:
            read = os.preadv(file.fileno(), [view[start : start + size]], int(positions[run[0]]))
        except OSError as error:
            raise StorageError("read", file.path, error) from error
        buffer[start + read : start + size] = 0  # what is missing at the end fails its checks
        start += size
    return buffer
