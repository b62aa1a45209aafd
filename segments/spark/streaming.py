"""`spark.readStream.format("streamd")`: a stream that grows, as micro-batches.

A position is the life of the stream and the offset of the next message, always where a chunk
begins; Spark keeps it in its checkpoint. Only chunks that the segment's index lists are taken:
these are committed. A batch is made of exactly the offsets between two positions, and if some of
them are not there any more the query stops and says which. A stream that nothing was read of may
still have to be made.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from segments.gaps import OFFSET_GAP, num_lost
from segments.spark.columns import Column
from segments.spark.inventory import Bounds, Listing, NotAStream, NothingYet, Stream
from segments.spark.options import Options
from segments.spark.plain_errors import plainly
from segments.spark.plan import pieces
from segments.spark.reading import read_task, tasks_of
from segments.spark.streams import find_streams

_VERSION = 2  # 1 had no life

_log = logging.getLogger(__name__)


class DataLost(Exception):
    """Retention, or somebody else, took messages before they were read; says which."""


class _Position(NamedTuple):
    """How far a query has come.

    Attributes:
        life: of the stream; empty where it is not known, which may be any.
    """

    offset: int
    life: str = ""

    @classmethod
    def read(cls, kept: dict[str, Any]) -> "_Position":
        """From what Spark has kept."""
        return cls(kept["offset"], kept.get("life", ""))

    def kept(self) -> dict[str, Any]:
        """For Spark to keep."""
        return {"v": _VERSION, "life": self.life, "offset": self.offset}

    def is_in(self, life: str) -> bool:
        """Whether it may be a position in this life."""
        return not (self.life and life) or self.life == life


class StreamdStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches of one stream; lives as long as the query."""

    def __init__(self, options: Options, wanted_columns: tuple[Column, ...]) -> None:
        self._columns = wanted_columns
        self._until: int | None = None
        self._found: Stream | None = None
        if options.starting_offset.isdigit():  # may be within a chunk, whose beginning is left out
            start = max(int(options.starting_offset), options.start_offset or 0)
            options = replace(options, start_offset=start)
        self._options = options

    @plainly
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a query begins that has no checkpoint yet."""
        stream = self._stream(_Position(0))
        if stream is None:
            return _Position(0).kept()
        first, end = stream.ends()
        wanted = self._options.starting_offset
        number = {"earliest": first, "latest": end}.get(wanted)
        if number is None:
            number = max(first, min(int(wanted), end))
        return _Position(number, stream.life).kept()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """As much as `maxBytesPerTrigger` allows."""
        size = self._options.max_bytes_per_trigger
        return ReadAllAvailable() if size is None else ReadMaxBytes(size)

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Take what there is now, and nothing that comes later."""
        stream = self._stream(_Position(0))
        self._until = 0 if stream is None else stream.ends()[1]

    @plainly
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far the next batch goes: at least one chunk when there is one.

        Raises:
            DataLost: the stream is another, or shorter than it was.
            CorruptError: what comes next is damaged to the end and the mode is not permissive.
        """
        begin = _Position.read(start)
        stream = self._stream(begin)
        if stream is None:
            return begin.kept()
        reached = offset = self._first(stream, begin)
        life = stream.life or begin.life
        room = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        end = stream.sealed_end()
        if end is not None and room is None:  # no need to look at all chunks for that
            until = end if self._until is None else min(end, self._until)
            return _Position(max(offset, until), life).kept()
        for listing in stream.listings(Bounds(offset), only_indexed=True):
            reached, room = _advance(listing, reached, room, self._until)
            if reached == offset and not self._options.permissive:
                _check_end(listing, reached)
            if room is not None and room <= 0:
                break
        return _Position(reached, life).kept()

    @plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a batch.

        Raises:
            DataLost: some of its offsets are gone.
            CorruptError: something is damaged and the mode is not permissive.
        """
        begin, until = _Position.read(start), _Position.read(end)
        stream = None if begin.offset == until.offset == 0 else self._stream(begin)
        if stream is None:
            return []
        if self._first(stream, until) != until.offset:  # of what is gone nothing can be read again
            return []
        first, last = self._first(stream, begin), until.offset
        listings = list(stream.listings(Bounds(first, last), only_indexed=True))
        if self._options.fail_on_data_loss:
            _check_cover(stream.name, listings, first, last)
        low = max(first, self._options.start_offset or 0)
        high = last if self._options.end_offset is None else min(last, self._options.end_offset)
        wanted = replace(self._options.wanted(), start_offset=low, end_offset=high)
        return tasks_of(list(pieces(stream.name, listings, wanted)), self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of one task."""
        return read_task(partition, self._options, self._columns)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to do: reading removes nothing."""

    def _stream(self, position: _Position) -> Stream | None:
        """The stream as it is now; None where it may still come, as nothing was read of it."""
        if self._found is not None:
            self._found = self._found.refreshed()
            return self._found
        paths, endpoint = self._options.paths, self._options.endpoint
        try:
            found = [stream for path in paths for stream in find_streams(path, endpoint)]
        except NothingYet:
            if position.offset or position.life:
                raise
            return None
        if len(found) != 1:
            raise NotAStream(
                f"{', '.join(paths)} holds {len(found)} streams; a streaming query reads one, "
                "so give the folder of one"
            )
        self._found = found[0]
        return self._found

    def _first(self, stream: Stream, position: _Position) -> int:
        """The offset in the stream as it is now from which on nothing was read.

        Raises:
            DataLost: it is not the position's, unless that is to be no failure.
        """
        first, end = stream.ends()
        is_same = position.is_in(stream.life)
        if is_same and position.offset <= end:
            return position.offset
        trouble = (
            f"the checkpoint is at offset {position.offset:,}, stream {stream.name} ends at {end:,}"
            if is_same
            else f"stream {stream.name} was deleted and created again since the checkpoint was made"
        )
        if self._options.fail_on_data_loss:
            raise DataLost(
                f"{trouble}: it is not what was read before; start again with a new checkpoint, "
                "or go on with what there is with the option failOnDataLoss=false"
            )
        # Of the same life it has lost its end. What is not known to be is taken for another stream.
        is_known = is_same and bool(position.life and stream.life)
        offset = end if is_known else first
        _log.warning("%s; the query goes on with offset %d of what there is", trouble, offset)
        return offset


def _check_cover(name: str, listings: list[Listing], first: int, last: int) -> None:
    """Raise DataLost unless the segments hold all offsets from the first to before the last."""
    end = first
    # They are listed one by one, and some may have gone meanwhile.
    for base, next_offset in [*((one.base_offset, one.next_offset) for one in listings), (last, 0)]:
        missing = num_lost(end, base)
        if missing >= OFFSET_GAP // 2:
            missing = 0  # it begins in a gap, with what was read before a machine lost it
        lost_to = min(end + missing, last)
        if end < lost_to:
            raise DataLost(
                f"offsets {end} to {lost_to - 1} of stream {name} were "
                "removed by retention before they were read; start again with a new checkpoint, or "
                "go on with what is left with the option failOnDataLoss=false"
            )
        end = max(end, next_offset)


def _check_end(listing: Listing, reached: int) -> None:
    """Raise CorruptError when there are no more chunks in a segment, but there were."""
    is_last = not (listing.chunk_ends > reached).any()
    for gap in listing.gaps:
        if is_last and gap.first_offset == reached < gap.next_offset:
            raise gap.error()


def _advance(
    listing: Listing, reached: int, room: int | None, until: int | None
) -> tuple[int, int | None]:
    """Take chunks of a segment from `reached` on; returns how far, and the room that is left."""
    ends = listing.chunk_ends
    ahead = ends > reached
    if until is not None:
        ahead &= listing.chunk_ids < until
    rows = np.flatnonzero(ahead)
    if not len(rows):
        return reached, room
    if room is None:
        return int(ends[rows[-1]]), None
    taken = np.cumsum(listing.sizes[rows])
    count = max(int(np.searchsorted(taken, room, side="right")), 1)
    left = room - int(taken[count - 1]) if count == len(rows) else 0
    return int(ends[rows[count - 1]]), left
