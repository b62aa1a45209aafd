"""Making, opening and asking for the key indexes of segments. All of it may run in a thread.

Making one takes seconds, so the server has it done in a process of its own (key_worker.py), which
is told by a `KeyJob` all it needs to know. What a `.keys` file has to fit is told as for a filter
file (filter_files.py).
"""

from array import array
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import NamedTuple

from segments.atomic_write import replace_with
from segments.checksum import crc32
from segments.codec import ChunkHeader
from segments.derived.filter_files import shape_of
from segments.disk import Disk, File, Readable
from segments.errors import FormatError, StorageError
from segments.filter_index import Shape
from segments.format_constants import USER
from segments.keys.extraction import ANY_MESSAGE, KeyExtractor
from segments.keys.index import KeyIndex, Place
from segments.keys.table import (
    MAX_CHUNKS,
    NUMBER_BITS,
    PLACE_BITS,
    KeyTable,
    TableHead,
    number_bits,
    write_table,
)
from segments.segment import (
    GROWING_KEYS_SUFFIX,
    KEYS_SUFFIX,
    KeyState,
    Segment,
    file_path,
    walk_headers,
)

_RUN_PAIRS = 1 << 20  # sorted at once


class KeyJob(NamedTuple):
    """A table that is to be made.

    Attributes:
        end: the table is to know what lies before this.
        tables: where those begin in the file that become part of it.
        start: where the chunks begin that none of those knows.
        position: where in the file it is to stand, in bytes; 0 for a new file, in the place of the
            one that is there.
        is_sealed: the segment does not grow any more, and the table is to know all of it.
    """

    folder: str
    base_offset: int
    end: Place
    properties: tuple[str, ...]
    tables: tuple[int, ...]
    start: Place
    position: int
    is_sealed: bool

    @property
    def path(self) -> str:
        """The path of the file for the table."""
        return file_path(
            self.folder, self.base_offset, KEYS_SUFFIX if self.is_sealed else GROWING_KEYS_SUFFIX
        )

    @property
    def tables_path(self) -> str:
        """The path of the file with the tables that become part of it."""
        return file_path(self.folder, self.base_offset, GROWING_KEYS_SUFFIX)

    def segment(self, disk: Disk) -> Segment:
        """The segment, as far as it counts."""
        segment = Segment(disk, self.folder, self.base_offset)
        segment.num_chunks, segment.size, segment.next_offset = self.end
        return segment


def make_table(disk: Disk, job: KeyJob) -> None:
    """Write a table.

    Raises:
        FormatError: the segment is damaged, or one of the tables is.
        StorageError: the system refused.
    """
    segment = job.segment(disk)
    if job.end.num_chunks > MAX_CHUNKS:
        raise FormatError(f"{job.end.num_chunks:,} chunks are too many, at most {MAX_CHUNKS:,}")
    pairs, first = _Pairs(number_bits(job.end.num_chunks)), job.start.num_chunks
    if job.tables:
        with _opened(disk, job.tables_path) as file:
            for position in job.tables:
                first = min(first, pairs.take(KeyTable(file, position), file))
    with _opened(disk, segment.path()) as file:
        _extract(segment, file, job, pairs)
    head = TableHead(
        job.end.position,
        job.base_offset,
        first,
        job.end.num_chunks,
        shape_of(segment).content_crc if job.is_sealed else 0,
        len(pairs.uncertain),
        pairs.count,
        job.properties,
    )

    def write(file: File) -> None:
        write_table(file, job.position, head, pairs.runs(), pairs.uncertain)

    if not job.position:
        replace_with(disk, job.path, write, is_synced=job.is_sealed).close()
        return
    with _opened(disk, job.path, writable=True) as file:
        file.truncate(job.position)
        write(file)


class _Pairs:
    """Pairs of prints and places, in runs that are sorted.

    Args:
        bits: of a place that are the number of a message.
    """

    def __init__(self, bits: int) -> None:
        self._bits, self._most = bits, (1 << bits) - 1
        self.uncertain: list[int] = []
        self.count = 0
        self._runs: list[array[int]] = []
        self._open: array[int] = array("Q")

    def take(self, table: KeyTable, file: Readable) -> int:
        """Add what a table has, which is in order; returns its first chunk."""
        self._close()
        self._runs.append(table.pairs(file, self._bits))
        self.count += len(self._runs[-1])
        self.uncertain += table.uncertain
        return table.head.first_chunk

    def add(self, ordinal: int, told: set[int] | None) -> None:
        """Add a chunk, see `KeyExtractor.told`."""
        if told is None:
            self.uncertain.append(ordinal)
            return
        chunk, most = ordinal << self._bits, self._most
        if most < ANY_MESSAGE:
            told = {one & ~ANY_MESSAGE | min(one & ANY_MESSAGE, most) for one in told}
        key_at = PLACE_BITS - NUMBER_BITS
        self._open.extend(
            [(one & ~ANY_MESSAGE) << key_at | chunk | one & ANY_MESSAGE for one in told]
        )
        self.count += len(told)
        if len(self._open) >= _RUN_PAIRS:
            self._close()

    def runs(self) -> "Sequence[array[int]]":
        """All of them."""
        self._close()
        return self._runs

    def _close(self) -> None:
        if self._open:
            self._runs.append(array("Q", sorted(self._open)))
            self._open = array("Q")


def _extract(segment: Segment, file: File, job: KeyJob, pairs: _Pairs) -> None:
    """Add what the chunks have that no table knows."""
    extractor = KeyExtractor(job.properties)
    ordinal, position, offset = job.start
    for at, header in walk_headers(segment, file, (position, offset)):
        if segment.damage:
            break
        pairs.add(ordinal, _told(file, at, header, extractor))
        ordinal += 1
    if segment.damage or ordinal != job.end.num_chunks:
        raise FormatError("the segment is damaged")


def _told(file: File, at: int, header: ChunkHeader, extractor: KeyExtractor) -> set[int] | None:
    if header.chunk_type != USER:
        return set()
    data = file.read(header.data_size, at + header.data_start)
    if len(data) != header.data_size or crc32(data) != header.data_crc:
        raise FormatError(f"the chunk at byte {at} fails its checksum")
    return extractor.told(data)


def load(segment: Segment) -> KeyIndex:
    """Open a sealed segment's key file.

    Raises:
        FormatError: it is missing, damaged or stale.
        StorageError: the system refused.
    """
    if segment.damage:
        raise FormatError("the segment is damaged")
    path = segment.path(KEYS_SUFFIX)
    try:
        with closing(segment.open_beside(KEYS_SUFFIX)) as file:
            table, size = KeyTable(file), file.size()
    except StorageError as error:
        if error.is_missing:
            raise FormatError(str(error)) from error
        raise
    head = table.head
    if segment.cold is None:
        shape = shape_of(segment)
    else:  # nothing was added to it or cut from it since it was stored
        shape = Shape(segment.size, segment.base_offset, segment.num_chunks, head.content_crc)
    if (head.size, head.base_offset, head.end_chunk, head.content_crc) != shape or head.first_chunk:
        raise FormatError("the key file is that of another segment, or of an older state")
    if size < table.end:
        raise FormatError("the key file is cut off")
    return KeyIndex(segment.disk, path, [table], end_of(segment), is_final=True)


def check(segment: Segment) -> None:
    """Test each block of a sealed segment's key file.

    Raises:
        FormatError: it is missing, damaged or stale.
        StorageError: the system refused.
    """
    index = load(segment)
    with _opened(segment.disk, segment.path(KEYS_SUFFIX)) as file:
        for table in index.tables:
            table.check(file)


def end_of(segment: Segment) -> Place:
    """What readers see of a segment lies before this."""
    return Place(segment.num_chunks, segment.size, segment.next_offset)


def opened_tables(disk: Disk, job: KeyJob, before: Sequence[KeyTable]) -> KeyIndex:
    """The index of a segment after a job was done.

    Args:
        disk: where it is.
        job: that was done.
        before: the tables that are still asked, those of the job left out.

    Raises:
        FormatError: there is no table.
        StorageError: the system refused.
    """
    with _opened(disk, job.path) as file:
        table = KeyTable(file, job.position)
    if table.head.end_chunk != job.end.num_chunks or table.head.properties != job.properties:
        raise FormatError("the key file has another table")
    return KeyIndex(disk, job.path, [*before, table], job.end, is_final=job.is_sealed)


def keys_of(segment: Segment) -> KeyIndex | None:
    """The key index of a segment as it is now; None where it is not known, so any chunk may match.

    The first time its file is opened, and its index read, which may take milliseconds.
    """
    if segment.damage:
        return None
    if segment.keys is None and segment.key_state is KeyState.UNKNOWN:
        try:
            segment.keys = load(segment)
        except FormatError as error:
            segment.key_state, segment.key_fault = KeyState.KNOWN, str(error)
        except StorageError:
            return None  # perhaps the next time
        else:
            segment.key_state = KeyState.KNOWN
    found = segment.keys
    return found if found is not None and not found.fault else None


@contextmanager
def _opened(disk: Disk, path: str, *, writable: bool = False) -> Iterator[File]:
    file = disk.open(path, writable=writable)
    try:
        yield file
    finally:
        file.close()
