"""Which key table of a log is to be made next, and taking it in when it is made.

The newest sealed segment without a table comes first, then the segment that grows: a table for what
has come since the last one, when that is much, or when nothing more comes. So that there are never
many, a table takes in the ones before it that are not larger: their number grows with the logarithm
of the segment's size, and each pair is written as often.
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

# Of a segment that grows, without a table: a search looks through 1 MB in half a millisecond.
MUCH_BYTES = 16 << 20  # are worth a table at once
FEW_BYTES = 1 << 18  # when nothing more comes


class Task(NamedTuple):
    """A job, and the segment that it is for."""

    segment: Segment
    job: KeyJob


def next_task(log: Log, *, is_quiet: bool) -> Task | None:
    """The next table to make; None while nothing is worth it.

    Args:
        log: whose keys are indexed.
        is_quiet: nothing has come for a while.
    """
    sealed = next_sealed(log, reversed(log.segments.shown))
    return sealed or next_growing(log, is_quiet=is_quiet)


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


def next_growing(log: Log, *, is_quiet: bool) -> Task | None:
    """The next table of the segment that grows, if it is worth one."""
    newest, wanted = log.segments.shown[-1], FEW_BYTES if is_quiet else MUCH_BYTES
    if not has_tail(log) or newest.size - _known_bytes(log) < wanted:
        return None
    return Task(newest, _job(newest, log.policy.key_properties, is_sealed=False))


def has_tail(log: Log) -> bool:
    """There will be a table to make when nothing more comes."""
    return bool(log.policy.key_properties) and log.segments.shown[-1].size >= tail_from(log)


def tail_from(log: Log) -> int:
    """Bytes of the newest segment from which on there is a tail; endless where none can be."""
    return _known_bytes(log) + FEW_BYTES if _is_possible(log.segments.shown[-1]) else sys.maxsize


def _known_bytes(log: Log) -> int:
    """Bytes of the newest segment that tables know."""
    known = log.segments.shown[-1].keys
    if known is None or not _is_usable(known, log.policy.key_properties):
        return FILE_HEADER_SIZE
    return known.end.position


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
        """Those of an open log; None where it has no key properties."""
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
    """It is of these properties, and can be asked."""
    return known.properties == properties and not known.fault


def _job(segment: Segment, properties: tuple[str, ...], *, is_sealed: bool) -> KeyJob:
    known = segment.keys
    end = end_of(segment)
    start, tables, position = Place(0, FILE_HEADER_SIZE, segment.base_offset), [], 0
    if known is not None and _is_usable(known, properties):
        start, tables = known.end, list(known.tables)
        if not is_sealed:
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


def _taken_in(tables: list[KeyTable], num_chunks: int) -> list[KeyTable]:
    """The last tables, those that are not larger than what comes behind them."""
    at = len(tables)
    while at and tables[at - 1].num_chunks <= num_chunks:
        at -= 1
        num_chunks += tables[at].num_chunks
    return tables[at:]
