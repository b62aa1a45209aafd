"""`spark.read.format("streamd")`: a stream's folder as a DataFrame.

Skipping of chunks is driven by options, not by the query's conditions: with filter pushdown Spark
4.3 loses rows when one DataFrame serves two queries (its plan is shared by all scans of a loaded
relation). Every load sees the chunks that were whole when a query on it was first planned.
"""

import time
from collections.abc import Iterator, Mapping
from os import cpu_count

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from segments.spark.columns import Column, Decoder, columns_of, ddl_of
from segments.spark.entries import Block, read_piece
from segments.spark.headers import Numbers
from segments.spark.inventory import find_streams, list_segments
from segments.spark.options import Options, read_options
from segments.spark.plan import Piece, deal, pieces

_MIN_PARTITION_BYTES = 4 << 20
_TASKS_PER_CORE = 3


class StreamdSource(DataSource):
    """The messages of a stream, or of all streams below a folder.

    The options are those of `segments.spark.options.Options`; README, "The log as a DataFrame",
    has them in a table. Reading writes nothing.
    """

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "streamd"

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)  # type: ignore[arg-type] # as Spark passes it
        self._options = read_options(options)
        self._columns = columns_of(self._options)
        self._options.wanted()  # raises for what cannot be meant

    def schema(self) -> str:
        """As DDL: every column may be null."""
        return ddl_of(self._columns)

    def reader(self, schema: StructType) -> "StreamdReader":  # noqa: ARG002 - Spark's signature
        """For `spark.read`."""
        return StreamdReader(self._options, self._columns)


class Task(InputPartition):
    """What one task reads."""

    def __init__(self, parts: tuple[Piece, ...]) -> None:
        super().__init__(None)
        self.parts = parts


class StreamdReader(DataSourceReader):
    """Plans in the driver, reads in the tasks; holds nothing open."""

    def __init__(self, options: Options, columns: tuple[Column, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        """Chunks of about equal bytes for each task.

        Raises:
            NotAStream: there is no stream at the path.
            CorruptError: something is damaged and the mode is not permissive.
        """
        options = self._options
        wanted = options.wanted()
        found: list[Piece] = []
        for path in options.paths:
            for stream in find_streams(path):
                found += pieces(stream, list_segments(stream.path), wanted)
        return tasks_of(found, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of one task."""
        return read_task(partition, self._options, self._columns)


def tasks_of(found: list[Piece], options: Options) -> list[InputPartition]:
    """Deal pieces out to tasks: a few per core, none too large.

    Raises:
        CorruptError: one of them is damage and the mode is not permissive.
    """
    for piece in found:
        if piece.gap is not None and not options.permissive:
            raise piece.gap.error()
    total = sum(piece.size for piece in found)
    share = total // (_TASKS_PER_CORE * (cpu_count() or 1))
    size = min(options.partition_bytes, max(share, _MIN_PARTITION_BYTES))
    return [Task(group) for group in deal(found, size)]


def read_task(
    partition: InputPartition, options: Options, columns: tuple[Column, ...]
) -> Iterator[pa.RecordBatch]:
    """Batches of about `options.batch_bytes`.

    Raises:
        CorruptError: a chunk is damaged and the mode is not permissive.
    """
    pa.set_cpu_count(1)  # one task per core is what Spark counts with
    picker = Picker(options)
    for piece in partition.parts if isinstance(partition, Task) else ():
        decoder = Decoder(piece.stream, columns)
        for found in read_piece(piece, verify=options.verify_checksums):
            if isinstance(found, Block):
                for block in picker.pick(found).split(options.batch_bytes):
                    yield decoder.batch(block)
            elif options.permissive:
                yield decoder.damage(found)
            else:
                raise found.error()


class Picker:
    """Leaves of a block what is asked for, message by message.

    Args:
        options: offsets and selector count; chunks were chosen before.
    """

    def __init__(self, options: Options) -> None:
        self._start = options.start_offset
        self._end = options.end_offset
        selector = options.selector()
        self._matcher = None if selector is None else selector.matcher()
        if self._matcher is not None:
            self._matcher.clock.now_ms = time.time_ns() // 1_000_000  # for UTC()

    def pick(self, block: Block) -> Block:
        """The block with the messages that are wanted."""
        rows: Numbers | None = None
        if self._start is not None or self._end is not None:
            keep = np.ones(len(block.offsets), np.bool_)
            if self._start is not None:
                keep &= block.offsets >= self._start
            if self._end is not None:
                keep &= block.offsets < self._end
            rows = np.flatnonzero(keep)
        block = block if rows is None else block.rows(rows)
        if self._matcher is None:
            return block
        raw = block.buffer.tobytes()
        bodies = [
            raw[start:end]
            for start, end in zip(block.starts.tolist(), block.ends.tolist(), strict=True)
        ]
        return block.rows(np.array(self._matcher.select(bodies), np.int64))
