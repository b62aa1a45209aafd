"""Which key table of a log is to be made next, and taking it in when it is made.

The newest sealed segment without a table comes first, then the segment that grows: a table for what
has come since the last one, as soon as searching that takes time, in chunks or in bytes. How soon
the next one may follow is up to the caller. So that there are never many, a table takes in the ones
before it that are not larger: their number grows with the logarithm of the segment's size, and each
pair is written as often. What they leave behind in the file is given back by a table that takes in
all of them, in a new file, when it is as much as they are: so each byte is moved once more.
"""

import sys
from collections.abc import Iterable
from typing import NamedTuple

from segments.codec import FILE_HEADER_SIZE
from segments.derived.key_files import KeyJob, end_of, opened_tables
from segments.keys.index import KeyIndex, Place
from segments.keys.table import KeyTable
from segments.log import Log
from segments.segment import KeyState, Segment

# Of a segment that grows, without a table: a search looks through 40 chunks, or 1 MB, in half a
# millisecond. As much as this, of the one or the other, is worth a table.
FEW_BYTES = 1 << 18
FEW_CHUNKS = 64
SPARE_BYTES = 1 << 20  # of a file, that tables which were taken in may always leave behind


class Task(NamedTuple):
    """A job, and the segment that it is for."""

    segment: Segment
    job: KeyJob


def next_task(log: Log) -> Task | None:
    """The next table to make; None while nothing is worth it."""
    return next_sealed(log, reversed(log.segments.shown)) or next_growing(log)


def next_sealed(log: Log, segments: Iterable[Segment]) -> Task | None:
    """The table of the first of some segments that is sealed and has none."""
    properties = log.policy.key_properties
    for segment in segments if properties else ():
        known = segment.keys
        if known is not None and known.is_final and _is_usable(known, properties):
            continue
        if segment.num_chunks and _is_possible(segment) and log.segments.is_sealed(segment):
            return Task(segment, _job(segment, properties, is_sealed=True))
    return None


def next_growing(log: Log) -> Task | None:
    """The next table of the segment that grows, if it is worth one."""
    newest, properties = log.segments.shown[-1], log.policy.key_properties
    size, num_chunks = tail_from(log)
    if not properties or (newest.size < size and newest.num_chunks < num_chunks):
        return None
    return Task(newest, _job(newest, properties, is_sealed=False))


def tail_from(log: Log) -> tuple[int, int]:
    """Bytes and chunks of the newest segment: with either, what no table knows is worth one.

    Endless where there can be none.
    """
    newest = log.segments.shown[-1]
    if not _is_possible(newest):
        return sys.maxsize, sys.maxsize
    known, end = newest.keys, _start_of(newest)
    if known is not None and _is_usable(known, log.policy.key_properties):
        end = known.end
    return end.position + FEW_BYTES, end.num_chunks + FEW_CHUNKS


class KeyFigures(NamedTuple):
    """How far the key index of a log has come, as far as is known in memory.

    Attributes:
        num_sealed: segments that nothing is added to any more.
        num_indexed: of those, with an index.
        num_unknown: of those, whose key file nobody has looked at since the log was opened.
        size: of key files, in bytes.
    """

    num_sealed: int
    num_indexed: int
    num_unknown: int
    size: int

    @classmethod
    def of(cls, log: Log) -> "KeyFigures | None":
        """The figures of an open log; None where it has no key properties."""
        properties = log.policy.key_properties
        if not properties:
            return None
        sealed = [one for one in log.segments.shown[:-1] if one.num_chunks]
        indexed = [s for s in sealed if s.keys is not None and _is_usable(s.keys, properties)]
        known = [segment.keys for segment in log.segments.shown if segment.keys is not None]
        return cls(
            len(sealed),
            sum(one.keys is not None and one.keys.is_final for one in indexed),
            sum(one.key_state is KeyState.UNKNOWN and not one.damage for one in sealed),
            sum(index.tables[-1].end for index in known),
        )


def next_unknown(log: Log) -> Segment | None:
    """A segment whose key file nobody has looked at yet."""
    unknown = (one for one in reversed(log.segments.shown) if one.key_state is KeyState.UNKNOWN)
    here = (one for one in unknown if one.cold is None)  # else when they are searched
    return next((one for one in here if not one.damage and log.segments.is_sealed(one)), None)


def oldest_unknown(log: Log) -> Segment | None:
    """The oldest sealed segment, if nobody has looked at its key file yet."""
    oldest = log.segments.shown[0]
    is_unknown = oldest.key_state is KeyState.UNKNOWN and not oldest.damage
    is_here = oldest.cold is None
    return oldest if is_unknown and is_here and log.segments.is_sealed(oldest) else None


def adopt(task: Task) -> KeyIndex:
    """The index of a segment whose table was made; may run in a thread.

    Raises:
        FormatError: there is no table.
        StorageError: the system refused.
    """
    segment, job = task
    known = segment.keys
    kept: list[KeyTable] = []
    if known is not None and job.position:
        kept = [table for table in known.tables if table.position not in job.tables]
    return opened_tables(segment.disk, job, kept)


def tidy_up(task: Task) -> None:
    """Remove the tables that nobody needs when the segment's keys are replaced; may be in a thread.

    Raises:
        StorageError: the system refused; the next start does it.
    """
    if task.job.is_sealed:
        task.segment.disk.remove(task.job.tables_path)


def _is_possible(segment: Segment) -> bool:
    is_here = segment.cold is None
    return is_here and not segment.damage and segment.key_state is KeyState.KNOWN


def _is_usable(known: KeyIndex, properties: tuple[str, ...]) -> bool:
    """Whether it covers these properties and can be asked."""
    return known.properties == properties and not known.fault


def _job(segment: Segment, properties: tuple[str, ...], *, is_sealed: bool) -> KeyJob:
    known = segment.keys
    end = end_of(segment)
    start, tables, position = _start_of(segment), [], 0
    if known is not None and _is_usable(known, properties):
        start, tables = known.end, list(known.tables)
        if not is_sealed and not _is_sparse(tables):
            tables, position = _taken_in(tables, end.num_chunks - start.num_chunks), tables[-1].end
    return KeyJob(
        segment.folder,
        segment.base_offset,
        end,
        properties,
        tuple(table.position for table in tables),
        start,
        position,
        is_sealed,
    )


def _start_of(segment: Segment) -> Place:
    return Place(0, FILE_HEADER_SIZE, segment.base_offset)


def _is_sparse(tables: list[KeyTable]) -> bool:
    """More of their file is nobody's than theirs."""
    size = sum(table.end - table.position for table in tables)
    return tables[-1].end > 2 * size + SPARE_BYTES


def _taken_in(tables: list[KeyTable], num_chunks: int) -> list[KeyTable]:
    """The last tables, those that are not larger than what comes behind them."""
    at = len(tables)
    while at and tables[at - 1].num_chunks <= num_chunks:
        at -= 1
        num_chunks += tables[at].num_chunks
    return tables[at:]
