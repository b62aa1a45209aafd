"""Streaming queries: each message once, across restarts, limits and retention."""

import shutil
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from segments import Log, LogPolicy
from tests.support.logs import append


class Query:
    """A streaming query on a folder, run until it has taken what there is."""

    def __init__(self, spark: SparkSession, folder: Path, **options: str) -> None:
        self._spark = spark
        self._stream = str(folder / "stream")
        self._checkpoint = str(folder / "checkpoint")
        self._options = options
        self.batches: list[list[int]] = []

    def run(self) -> list[list[int]]:
        """The offsets of each batch of this run."""
        self.batches = []

        def take(frame: DataFrame, _batch: int) -> None:
            self.batches.append(sorted(row.offset for row in frame.collect()))

        source = self._spark.readStream.format("streamd").options(columns="offset", **self._options)
        writer = source.load(self._stream).writeStream.foreachBatch(take)
        query = writer.option("checkpointLocation", self._checkpoint).trigger(availableNow=True)
        running = query.start()
        try:
            running.awaitTermination()
        finally:
            running.stop()
        return [batch for batch in self.batches if batch]


def fill(log: Log, count: int) -> None:
    for _ in range(count):
        append(log, [b"x" * 100] * 10)


def test_each_message_comes_once_also_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    log = Log.open(str(tmp_path / "stream"), LogPolicy(max_segment_chunks=4))
    fill(log, 6)
    query = Query(spark, tmp_path)
    assert query.run() == [list(range(60))]
    assert query.run() == []
    fill(log, 3)
    (segment,) = [max((tmp_path / "stream").glob("*.segment"))]
    with segment.open("ab") as file:  # not committed: in no index
        file.write(b"\x50 torn")
    assert query.run() == [list(range(60, 90))]
    log.close()


def test_a_stream_is_followed_from_before_its_first_message_until_it_is_another(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path)
    assert query.run() == []
    for count, life in ((2, "1" * 16), (3, "2" * 16)):
        shutil.rmtree(tmp_path / "stream", ignore_errors=True)
        log = Log.open(str(tmp_path / "stream"), LogPolicy(), life=life)
        fill(log, count)
        log.close()
        if life == "2" * 16:
            with pytest.raises(StreamingQueryException, match="was deleted and created again"):
                query.run()
            query = Query(spark, tmp_path, failOnDataLoss="false")
        assert query.run() == [list(range(10 * count))]
