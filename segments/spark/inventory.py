"""What a stream holds: its segments, and where their chunks are. Here of a stream's folder.

Writes nothing.

A segment's index says where chunks begin; the headers have to agree. Where they do not, it goes on
header by header, and what cannot be read at all is a Gap. The newest segment may be growing: a
chunk counts once it is whole. A chunk that the index lists was whole once: if it is not, it is a
Gap as well.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import unquote

import numpy as np

from segments import codec
from segments.chunk_check import check_chunk
from segments.codec import CHUNK_HEADER_SIZE, FILE_HEADER_SIZE
from segments.disk import File, OsDisk
from segments.errors import CorruptError, FormatError, StorageError
from segments.format_constants import USER
from segments.gaps import end_before
from segments.marks import LIFE, marked
from segments.segment import (
    INDEX_SUFFIX,
    SEGMENT_SUFFIX,
    beginning,
    file_path,
    files_by_base,
    parse_name,
)
from segments.spark import headers as columns
from segments.spark.files import LocalSegment, SegmentFile, content_of
from segments.spark.headers import HEADER_DTYPE, Headers, Mask, Numbers
from segments.spark.screen import Screen, by_filters


class NotAStream(Exception):
    """A folder that holds no stream; one sentence with what to give instead."""


class NothingYet(NotAStream):
    """Nothing is at a place where a stream can be: it has no message yet, or is still to come."""


class Bounds(NamedTuple):
    """Which segments are worth listing; those outside may be listed as well.

    Attributes:
        start_offset, end_offset: the end is not part of it, None for all.
        needs_filters: chunks will be chosen by their filter values.
    """

    start_offset: int = 0
    end_offset: int | None = None
    needs_filters: bool = False


EVERYTHING = Bounds()


class Gap(NamedTuple):
    """A part of a segment that cannot be read.

    Attributes:
        position, end: in bytes; the end is not part of it.
        first_offset, next_offset: the offsets that are lost with it; equal when none is.
    """

    path: str
    position: int
    end: int
    first_offset: int
    next_offset: int
    reason: str

    def error(self) -> CorruptError:
        """The error for a caller that cannot go on without it."""
        return CorruptError(self.path, self.position, self.reason)


class Listing(NamedTuple):
    """The chunks of one segment, in order.

    Attributes:
        positions, sizes: where each chunk begins, and its bytes.
        chunk_ids, chunk_ends: the offset of each chunk's first message, and that after its last.
        timestamps: of each chunk, in ms since 1970.
        is_user: which chunks hold messages of users.
        screen: says which chunks may have a filter value.
        next_offset: the offset after the last chunk or gap.
    """

    file: SegmentFile
    base_offset: int
    positions: Numbers
    sizes: Numbers
    chunk_ids: Numbers
    chunk_ends: Numbers
    timestamps: Numbers
    is_user: Mask
    screen: Screen
    gaps: list[Gap]
    next_offset: int


class Stream(Protocol):
    """A stream, wherever it is.

    Attributes:
        path: where it is, as errors say it.
        life: from its creation to its deletion, see segments/marks.py; empty where it is not known.
    """

    @property
    def name(self) -> str: ...  # noqa: D102 - see above
    @property
    def path(self) -> str: ...  # noqa: D102 - see above
    @property
    def life(self) -> str: ...  # noqa: D102 - see above

    def listings(
        self, bounds: Bounds = EVERYTHING, *, only_indexed: bool = False
    ) -> Iterator[Listing]:
        """Its segments, oldest first; one that retention removes meanwhile is left out.

        Args:
            bounds: segments outside of them may be left out.
            only_indexed: of a segment that grows take only chunks that its index lists, which are
                those that were appended; with `flush = always` the last ones may not be confirmed
                as yet. Otherwise whole chunks behind them as well, as a crash leaves them.

        Raises:
            StorageError, TierError: they cannot be read.
        """

    def ends(self) -> tuple[int, int]:
        """The first offset that is kept, and the one behind the last.

        Raises:
            NotAStream: there is nothing.
            StorageError, TierError: it cannot be read.
        """

    def sealed_end(self) -> int | None:
        """The offset behind the last message where that is known without a look at its chunks."""

    def refreshed(self) -> "Stream":
        """The stream as it is now.

        Raises:
            NotAStream: it is no more.
            TierError: the store refused, or could not be reached.
        """


class StreamFolder(NamedTuple):
    """A stream's folder on this machine; see Stream."""

    name: str
    path: str

    @property
    def life(self) -> str:  # noqa: D102 - see Stream
        return max(marked(OsDisk().list(self.path), LIFE), default="")

    def listings(  # noqa: D102 - see Stream
        self, bounds: Bounds = EVERYTHING, *, only_indexed: bool = False
    ) -> Iterator[Listing]:
        from_offset = bounds.start_offset
        return list_segments(self.path, only_indexed=only_indexed, from_offset=from_offset)

    def ends(self) -> tuple[int, int]:  # noqa: D102 - see Stream
        bases = segment_bases(self.path)
        newest = Bounds(bases[-1] if bases else 0)
        listings = list(self.listings(newest, only_indexed=True))
        if not listings:
            raise NotAStream(f"{self.path} was emptied while it was looked at; is it deleted?")
        return bases[0], listings[-1].next_offset

    def sealed_end(self) -> int | None:  # noqa: D102 - see Stream
        return None

    def refreshed(self) -> "StreamFolder":  # noqa: D102 - see Stream
        find_folders(self.path)
        return self


def find_folders(path: str) -> list[StreamFolder]:
    """The streams in a folder: itself, or those below it.

    Raises:
        NothingYet: there is no such folder in one that there is, or it holds no segments.
        NotAStream: it is no place for streams.
    """
    if not Path(path).is_dir():
        is_place = not Path(path).exists() and Path(path).parent.is_dir()
        raise (NothingYet if is_place else NotAStream)(
            f"{path} is not a folder; give a stream's folder, or a folder of streams"
        )
    found = [
        StreamFolder(unquote(Path(folder).resolve().name), folder)
        for folder, _, names in os.walk(path)
        if any(name.endswith(SEGMENT_SUFFIX) and parse_name(name) for name in names)
    ]
    if not found:
        raise NothingYet(
            f"{path} holds no segment files, expected a stream's folder such as "
            "data/streams/%2F/NAME, or a folder of streams"
        )
    return sorted(found)


def segment_bases(folder: str) -> list[int]:
    """Base offsets of a stream's segments, oldest first.

    Raises:
        StorageError: the folder cannot be listed.
    """
    files = files_by_base(OsDisk().list(folder))
    begins_at = beginning(files)
    return sorted(base for base in files if SEGMENT_SUFFIX in files[base] and base >= begins_at)


def list_segments(
    folder: str, *, only_indexed: bool = False, from_offset: int = 0
) -> Iterator[Listing]:
    """The segments of a stream, oldest first; one that retention removes meanwhile is left out.

    Args:
        folder: the stream's.
        only_indexed: of the newest segment take only chunks that its index lists; see
            Stream.listings.
        from_offset: segments that end before it are left out.

    Raises:
        StorageError: the system refused to read.
    """
    bases = segment_bases(folder)
    for n, base in enumerate(bases):
        next_base = bases[n + 1] if n + 1 < len(bases) else None
        if next_base is not None and next_base <= from_offset:
            continue
        try:
            yield list_segment(folder, base, next_base, only_indexed=only_indexed)
        except StorageError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise


def list_segment(
    folder: str, base_offset: int, next_base: int | None, *, only_indexed: bool = False
) -> Listing:
    """The chunks of one segment; see list_segments.

    Args:
        folder: the stream's.
        base_offset: of the segment.
        next_base: of the segment after it, None for the newest.
        only_indexed: see list_segments.
    """
    # The index first: whatever it lists is in the segment by then.
    index = _read_index(folder, base_offset)
    file = OsDisk().open(file_path(folder, base_offset, SEGMENT_SUFFIX), writable=False)
    try:
        return _Lister(file, index, base_offset, next_base).run(only_indexed=only_indexed)
    finally:
        file.close()


def _read_index(folder: str, base_offset: int) -> bytes:
    path = Path(file_path(folder, base_offset, INDEX_SUFFIX))
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StorageError("read", str(path), error) from error


def _file_fault(file: File) -> str:
    """What is wrong with a segment's file header, empty for nothing."""
    raw = file.read(FILE_HEADER_SIZE, 0)
    if len(raw) < FILE_HEADER_SIZE or not raw.strip(b"\0"):
        return ""  # just being created, or lost in a crash: the chunks decide
    try:
        codec.check_file_header(raw, codec.SEGMENT_HEADER)
    except FormatError as error:
        return str(error)
    return ""


class _Lister:
    """Walks one segment."""

    def __init__(self, file: File, index: bytes, base_offset: int, next_base: int | None) -> None:
        self._file = file
        self._size = file.size()
        self._base, self._next_base = base_offset, next_base
        self._position, self._offset = FILE_HEADER_SIZE, base_offset
        self._positions: list[Numbers] = []
        self._headers: list[Headers] = []
        self._gaps: list[Gap] = []
        self._fault = ""
        fault = _file_fault(file)
        if fault:  # the chunks behind it may be whole: each is checked by itself
            self._gaps.append(Gap(file.path, 0, FILE_HEADER_SIZE, base_offset, base_offset, fault))
        self._load_index(index)

    def _load_index(self, raw: bytes) -> None:
        positions, ids = columns.index_columns(raw)
        self._listed_positions, self._listed_ids = positions, ids
        usable = positions + CHUNK_HEADER_SIZE <= self._size
        self._index_positions, self._index_ids = positions[usable], ids[usable]
        headers = columns.gather(content_of(self._file, self._size), self._index_positions)
        ends = self._index_positions + columns.total_sizes(headers)
        self._index_headers, self._index_ends = headers, ends
        self._sound = (
            columns.are_sound(headers)
            & (headers["chunk_id"] == self._index_ids)
            & (ends <= self._size)
        )
        # One that the next record does not follow is suspect: its counts may be damaged.
        follows = (ends[:-1] == self._index_positions[1:]) & (
            columns.next_offsets(headers)[:-1] == self._index_ids[1:]
        )
        self._sound[:-1] &= follows
        self._unsound = np.flatnonzero(~self._sound)

    def run(self, *, only_indexed: bool) -> Listing:
        while self._position < self._size:
            if self._take_run():
                continue
            if only_indexed and self._is_behind_index():
                break
            if not self._take_one():
                break
        if self._next_base is None:
            self._check_last()
        elif (end := end_before(self._offset, self._next_base)) != self._offset:
            reason = f"ends at offset {self._offset}, the next segment begins at {self._next_base}"
            self._add_gap(self._size, end, reason)
        headers = np.concatenate([np.empty(0, HEADER_DTYPE), *self._headers])
        positions = np.concatenate([np.empty(0, np.int64), *self._positions])
        return self._listing(positions, headers)

    def _listing(self, positions: Numbers, headers: Headers) -> Listing:
        file = LocalSegment(self._file.path)
        return Listing(
            file,
            self._base,
            positions,
            columns.total_sizes(headers),
            headers["chunk_id"].astype(np.int64),
            columns.next_offsets(headers),
            headers["timestamp_ms"].astype(np.int64),
            headers["chunk_type"] == USER,
            by_filters(file, positions, headers),
            self._gaps,
            self._offset,
        )

    def _take_run(self) -> bool:
        """Take all chunks that index and headers agree on from here."""
        at = int(np.searchsorted(self._index_positions, self._position))
        is_known = (
            at < len(self._index_positions)
            and self._index_positions[at] == self._position
            and self._index_ids[at] == self._offset
            and self._sound[at]
        )
        if not is_known:
            return False
        unsound = self._unsound[np.searchsorted(self._unsound, at) :]
        end = int(unsound[0]) if len(unsound) else len(self._index_positions)
        self._positions.append(self._index_positions[at:end])
        self._headers.append(self._index_headers[at:end])
        self._position = int(self._index_ends[end - 1])
        self._offset = int(columns.next_offsets(self._index_headers[end - 1 : end])[0])
        return True

    def _check_last(self) -> None:
        """Note what the newest segment has lost: chunks that its index lists beyond its end."""
        here = (self._listed_positions == self._position) & (self._listed_ids == self._offset)
        found = np.flatnonzero(here)
        if not len(found):
            return
        ids, positions = self._listed_ids[found[0] :], self._listed_positions[found[0] :]
        last = -1 if (np.diff(ids) > 0).all() else 0  # else only the first of them is believed
        next_offset = self._end_of(int(ids[last]), int(positions[last]))
        reason = self._fault or "the file ends, its index lists another chunk"
        self._add_gap(max(self._size, self._position), next_offset, reason)

    def _end_of(self, chunk_id: int, position: int) -> int:
        """The offset after a chunk, of which only its header may be left."""
        try:
            header = codec.decode_chunk_header(self._file.read(CHUNK_HEADER_SIZE, position))
        except FormatError:
            return chunk_id + 1
        return header.next_offset if header.chunk_id == chunk_id else chunk_id + 1

    def _is_behind_index(self) -> bool:
        return not len(self._index_positions) or self._position > self._index_positions[-1]

    def _take_one(self) -> bool:
        """Take a chunk that is in no index, every byte of it checked; False at the end."""
        try:
            header = check_chunk(self._file, self._size, self._position, self._offset)
        except FormatError as error:
            return self._step_over(str(error))
        raw = self._file.read(CHUNK_HEADER_SIZE, self._position)
        self._headers.append(np.frombuffer(raw, HEADER_DTYPE))
        self._positions.append(np.array([self._position], np.int64))
        self._position += header.total_size
        self._offset = header.next_offset
        return True

    def _step_over(self, reason: str) -> bool:
        """Go on with the next chunk that the index knows; False when there is none."""
        later = (
            self._sound
            & (self._index_positions > self._position)
            & (self._index_ids >= self._offset)
        )
        found = np.flatnonzero(later)
        if len(found):
            end, offset = int(self._index_positions[found[0]]), int(self._index_ids[found[0]])
            self._add_gap(end, offset, reason)
            return True
        self._fault = reason
        if self._next_base is not None:  # else torn, or being written: `_check_last` knows
            self._add_gap(self._size, end_before(self._offset, self._next_base), reason)
        return False

    def _add_gap(self, end: int, next_offset: int, reason: str) -> None:
        gap = Gap(self._file.path, self._position, end, self._offset, next_offset, reason)
        self._gaps.append(gap)
        self._position, self._offset = end, next_offset
