"""`spark.readStream.format("streamd")`: a stream that grows, as micro-batches.

A position is the offset of the next message, always where a chunk begins; Spark keeps it in its
checkpoint. Only chunks that the segment's index lists are taken: these are committed. A batch is
made of exactly the offsets between two positions, and if some of them are not there any more the
query stops and says which.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from segments.spark.columns import Column
from segments.spark.inventory import Bounds, Listing, NotAStream, Stream
from segments.spark.options import Options
from segments.spark.plan import pieces
from segments.spark.reading import read_task, tasks_of
from segments.spark.streams import find_streams

_VERSION = 1


class DataLost(Exception):
    """Retention, or somebody else, took messages before they were read; says which."""


class StreamdStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches of one stream; lives as long as the query.

    Args:
        options: of the source.
        wanted_columns: of the batches.
    """

    def __init__(self, options: Options, wanted_columns: tuple[Column, ...]) -> None:
        self._columns = wanted_columns
        self._until: int | None = None
        self._found: Stream | None = None
        if options.starting_offset.isdigit():  # may be within a chunk, whose beginning is left out
            start = max(int(options.starting_offset), options.start_offset or 0)
            options = replace(options, start_offset=start)
        self._options = options

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Where a query begins that has no checkpoint yet."""
        first, end = self._ends()
        wanted = self._options.starting_offset
        if wanted == "earliest":
            return _position(first)
        return _position(end if wanted == "latest" else max(first, min(int(wanted), end)))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """As much as `maxBytesPerTrigger` allows."""
        size = self._options.max_bytes_per_trigger
        return ReadAllAvailable() if size is None else ReadMaxBytes(size)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Take what there is now, and nothing that comes later."""
        self._until = self._ends()[1]

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """How far the next batch goes: at least one chunk when there is one.

        Raises:
            CorruptError: what comes next is damaged to the end and the mode is not permissive.
        """
        offset = start["offset"]
        room = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        reached = offset
        stream = self._stream()
        end = stream.sealed_end()
        if end is not None and room is None:  # no need to look at all chunks for that
            return _position(max(offset, end if self._until is None else min(end, self._until)))
        for listing in stream.listings(Bounds(offset), only_indexed=True):
            reached, room = _advance(listing, reached, room, self._until)
            if reached == offset and not self._options.permissive:
                _check_end(listing, reached)
            if room is not None and room <= 0:
                break
        return _position(reached)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """The tasks of a batch.

        Raises:
            DataLost: some of its offsets are gone.
            CorruptError: something is damaged and the mode is not permissive.
        """
        first, last = start["offset"], end["offset"]
        if first == last:
            return []
        stream = self._stream()
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

    def _stream(self) -> Stream:
        """The stream as it is now."""
        if self._found is None:
            paths, endpoint = self._options.paths, self._options.endpoint
            found = [stream for path in paths for stream in find_streams(path, endpoint)]
            if len(found) != 1:
                raise NotAStream(
                    f"{', '.join(paths)} holds {len(found)} streams; a streaming query reads one, "
                    "so give the folder of one"
                )
            self._found = found[0]
        else:
            self._found = self._found.refreshed()
        return self._found

    def _ends(self) -> tuple[int, int]:
        """The first offset that is kept, and the one behind the last."""
        return self._stream().ends()


def _check_cover(name: str, listings: list[Listing], first: int, last: int) -> None:
    """Raise DataLost unless the segments hold all offsets from the first to before the last."""
    end = first
    for listing in listings:  # they are listed one by one, and some may have gone meanwhile
        if end < listing.base_offset and end < last:
            raise DataLost(
                f"offsets {end} to {min(listing.base_offset, last) - 1} of stream {name} were "
                "removed by retention before they were read; start again with a new checkpoint, or "
                "go on with what is left with the option failOnDataLoss=false"
            )
        end = max(end, listing.next_offset)
    if end < last:
        raise DataLost(
            f"the checkpoint is at offset {last}, stream {name} ends at {end}: it is not the "
            "stream that was read before; start again with a new checkpoint"
        )


def _position(offset: int) -> dict[str, Any]:
    return {"v": _VERSION, "offset": offset}


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
