"""`spark.read.format("streamd")`: a stream as a DataFrame.

Skipping of chunks is driven by options, not by the query's conditions: with filter pushdown Spark
4.3 loses rows when one DataFrame serves two queries (its plan is shared by all scans of a loaded
relation). Every load sees the chunks that were whole when a query on it was first planned.
"""

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from segments.spark.columns import Column, columns_of, ddl_of
from segments.spark.options import Options, read_options
from segments.spark.plain_errors import plainly
from segments.spark.plan import Piece, pieces
from segments.spark.reading import read_task, tasks_of
from segments.spark.streaming import StreamdStreamReader
from segments.spark.streams import find_streams


class StreamdSource(DataSource):
    """The messages of a stream, in a folder or in a store, or of all streams below a folder.

    The options are those of `segments.spark.options.Options`; README, "The log as a DataFrame",
    has them in a table. Reading writes nothing.
    """

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "streamd"

    @plainly
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

    def streamReader(self, schema: StructType) -> StreamdStreamReader:  # noqa: ARG002, N802
        """For `spark.readStream`."""
        return StreamdStreamReader(self._options, self._columns)


class StreamdReader(DataSourceReader):
    """Plans in the driver, reads in the tasks; holds nothing open."""

    def __init__(self, options: Options, columns: tuple[Column, ...]) -> None:
        self._options = options
        self._columns = columns

    @plainly
    def partitions(self) -> list[InputPartition]:
        """Chunks of about equal bytes for each task.

        Raises:
            NotAStream: there is no stream at the path.
            TierError: the store refused, or could not be reached.
            CorruptError: something is damaged and the mode is not permissive.
        """
        options = self._options
        wanted = options.wanted()
        found: list[Piece] = []
        for path in options.paths:
            for stream in find_streams(path, options.endpoint):
                found += pieces(stream.name, stream.listings(wanted.bounds), wanted)
        return tasks_of(found, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of one task."""
        return read_task(partition, self._options, self._columns)
