"""The Spark jobs of tuning: a task handles neighbouring chunks and gives back sums.

Never a group per chunk or per stream: partial sums are few, and Spark adds them up.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from segments.spark.history import History, read_history
from segments.spark.plan import Piece
from segments.spark.replay import Replay, Row, added

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TASK_CHUNKS = 8192
_RUN_CHUNKS = 512  # neighbours, where only some of the chunks are looked at
_TASKS_PER_CORE = 2
_MOST_FREQUENT, _OTHERS = 96, 32  # values that stand for all when each counts by its frequency
_CENSUS = "value binary, distinct bigint, chunks bigint, messages double, data_bytes double"
_TYPES = {"is_newer": "boolean", "size": "bigint"}
_REPLAYED = ", ".join(f"`{name}` {_TYPES.get(name, 'double')}" for name in Row._fields)


@dataclass(frozen=True)
class Census:
    """What a history holds.

    Attributes:
        chunks: in all.
        messages: in all.
        data_bytes: in all.
        distinct: by the number of different filter values in a chunk, how many chunks there are
            and their bytes.
        frequencies: messages by filter value: the most frequent ones, and some others, each of
            which stands for its share of all others.
        num_values: how many different filter values there are.
    """

    chunks: int
    messages: int
    data_bytes: int
    distinct: dict[int, tuple[int, int]]
    frequencies: dict[bytes, float]
    num_values: int


def take_census(spark: "SparkSession", listed: list[Piece], source: str | None) -> Census:
    """Count the filter values of a history; see history.read_history for `source`."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as everybody calls it; an extra

    parts = _mapped(spark, _tasks(listed, 1), _counted, _CENSUS, source)
    sums = [F.sum(name).alias(name) for name in ("chunks", "messages", "data_bytes")]
    counted = parts.groupBy("value", "distinct").agg(*sums).persist()
    try:
        per_number = counted.where("value is null").orderBy("distinct").collect()
        values = counted.where("value is not null")
        num_values, messages = values.agg(F.count("*"), F.sum("messages")).first()  # type: ignore[misc]
        top = values.orderBy(F.desc("messages"), "value").limit(_MOST_FREQUENT)
        frequencies = {bytes(row.value): row.messages for row in top.collect()}
        if num_values > len(frequencies):
            rest = messages - sum(frequencies.values())
            # By their hash: any of them, and the same ones every time.
            others = values.orderBy(F.xxhash64("value"), "value")
            found = others.limit(_OTHERS + _MOST_FREQUENT).select("value").collect()
            some = [bytes(row.value) for row in found if bytes(row.value) not in frequencies]
            some = some[:_OTHERS]
            frequencies |= dict.fromkeys(some, rest / len(some))
    finally:
        counted.unpersist()
    return Census(
        chunks=sum(row.chunks for row in per_number),
        messages=round(sum(row.messages for row in per_number)),
        data_bytes=round(sum(row.data_bytes for row in per_number)),
        distinct={row.distinct: (row.chunks, round(row.data_bytes)) for row in per_number},
        frequencies=frequencies,
        num_values=num_values,
    )


def replay(
    spark: "SparkSession",
    listed: list[Piece],
    tried: Replay,
    candidates: Sequence[tuple[float, int]],
    step: int,
    source: str | None,
) -> list[Row]:
    """What candidates would have done, summed over the history.

    Args:
        spark: the session.
        listed: the chunks.
        tried: does the work.
        candidates: scales with filter sizes.
        step: 1 for all chunks; of every `step` runs of neighbours only one.
        source: see history.read_history.
    """
    by_scale: dict[float, list[int]] = {}
    for scale, size in candidates:
        by_scale.setdefault(scale, []).append(size)

    def work(history: History) -> Iterator[dict[str, Any]]:
        for scale, sizes in by_scale.items():
            for row in tried.run(history, scale, sizes):
                yield row._asdict()

    parts = _mapped(spark, _tasks(listed, step), work, _REPLAYED, source)
    found: dict[tuple[float, int, bool], list[Row]] = {}
    for row in parts.collect():
        made = Row(*row)
        found.setdefault((made.scale, made.size, made.is_newer), []).append(made)
    return [added(rows) for _, rows in sorted(found.items())]


def _counted(history: History) -> Iterator[dict[str, Any]]:
    """The census of some chunks."""
    size = len(history.names)
    chunks = np.bincount(history.values, minlength=size)
    messages = np.bincount(history.values, history.counts, minlength=size)
    for value in np.flatnonzero(chunks).tolist():
        yield {
            "value": history.names[value],
            "distinct": None,
            "chunks": int(chunks[value]),
            "messages": float(messages[value]),
            "data_bytes": 0.0,
        }
    distinct = np.bincount(history.chunks, minlength=len(history.records))
    for number in np.unique(distinct).tolist():
        same = distinct == number
        yield {
            "value": None,
            "distinct": number,
            "chunks": int(same.sum()),
            "messages": float(history.records[same].sum()),
            "data_bytes": float(history.data_bytes[same].sum()),
        }


def _tasks(listed: list[Piece], step: int) -> list[tuple[Piece, int]]:
    """Runs of neighbours, with the ordinal in the stream of their first chunk."""
    found: list[tuple[Piece, int]] = []
    ordinal = 0
    run = _TASK_CHUNKS if step == 1 else _RUN_CHUNKS
    number = 0
    for piece in listed:
        for first in range(0, len(piece.positions), run):
            if number % step == 0:
                found.append((piece.part(first, first + run), ordinal + first))
            number += 1
        ordinal += len(piece.positions)
    return found


def _mapped(
    spark: "SparkSession",
    tasks: list[tuple[Piece, int]],
    work: Callable[[History], Iterator[dict[str, Any]]],
    schema: str,
    source: str | None,
) -> "DataFrame":
    """Run `work` on the history of each task, a few tasks per core."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pa.set_cpu_count(1)
        for batch in batches:
            for raw in batch.column("task").to_pylist():
                piece, ordinal = pickle.loads(raw)  # noqa: S301 - made a moment ago, by us
                for history in read_history(piece, ordinal, source):
                    rows = list(work(history))
                    if rows:
                        yield pa.RecordBatch.from_pylist(rows, arrow)

    inputs = pa.table({"task": [pickle.dumps(task) for task in tasks]})
    frame = spark.createDataFrame(inputs)
    parts = min(len(tasks), _TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
    frame = frame.repartition(parts)
    arrow = _arrow_schema(schema)
    return frame.mapInArrow(run, schema)


def _arrow_schema(ddl: str) -> pa.Schema:
    kinds = {
        "binary": pa.binary(),
        "bigint": pa.int64(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
    }
    parts = (part.split() for part in ddl.split(", "))
    return pa.schema([(name.strip("`"), kinds[kind]) for name, kind in parts])
