"""The Spark jobs of tuning: a task handles neighbouring chunks and gives back sums.

Never a group per chunk or per stream: partial sums are few, and Spark adds them up.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest, nsmallest
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from segments.checksum import crc32
from segments.property_keys import key_of, mark_of, marks_among, meaning_of
from segments.spark.history import History, read_history
from segments.spark.plan import Piece
from segments.spark.replay import ENTRY_BYTES, Replay, Row, added

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TASK_CHUNKS = 8192
_RUN_CHUNKS = 512  # neighbours, where only some of the chunks are looked at
_TASKS_PER_CORE = 2
_MOST_FREQUENT, _OTHERS = 96, 32  # values that stand for all when each counts by its frequency
_MANY_VALUES = 250_000  # counted at once
_BATCH_ROWS = 10_000
_CENSUS = "value binary, distinct bigint, chunks bigint, messages double, data_bytes double"
_TYPES = {"is_newer": "boolean", "size": "bigint"}
_REPLAYED = ", ".join(f"`{name}` {_TYPES.get(name, 'double')}" for name in Row._fields)


class PropertyCost(NamedTuple):
    """What a filter property adds to chunks.

    Attributes:
        name: of the property, empty for the first one.
        values: how many different ones it has.
        keys_a_chunk: what it puts into a filter, on average.
        trailer_bytes: what that takes up in a trailer, on average.
    """

    name: str
    values: int
    keys_a_chunk: float
    trailer_bytes: float


@dataclass(frozen=True)
class Census:
    """What a history holds.

    Attributes:
        distinct: by the number of different filter values in a chunk, how many chunks there are
            and their bytes.
        frequencies: messages by filter value: the most frequent ones, and some others, each of
            which represents its share of all others.
        num_values: how many different filter values there are, those of further filter properties
            included.
    """

    chunks: int
    messages: int
    data_bytes: int
    distinct: dict[int, tuple[int, int]]
    frequencies: dict[bytes, float]
    num_values: int
    properties: tuple[PropertyCost, ...]


def take_census(spark: "SparkSession", listed: list[Piece], source: str | None) -> Census:
    """Count the filter values of a history; see history.read_history for `source`."""
    found = _mapped(spark, _tasks(listed, 1), _counted, _CENSUS, source).toArrow()
    # In the driver: a Spark on this machine alone would take longer to compile a job for it.
    is_value = pc.is_valid(found["value"])
    values = (
        found.filter(is_value)
        .group_by("value")
        .aggregate([("messages", "sum"), ("chunks", "sum")])
        .to_pydict()
    )
    names = values["value"]
    marks = marks_among(names)
    silent = marks | {key_of(meaning_of(mark).name or "", b"") for mark in marks}
    messages = {
        name: number
        for name, number in zip(names, values["messages_sum"], strict=True)
        if name not in silent
    }
    sums = [(name, "sum") for name in ("chunks", "messages", "data_bytes")]
    per_number = found.filter(pc.invert(is_value)).group_by("distinct").aggregate(sums)
    rows = per_number.sort_by("distinct").to_pylist()
    chunks = sum(row["chunks_sum"] for row in rows)
    return Census(
        chunks=chunks,
        messages=round(sum(row["messages_sum"] for row in rows)),
        data_bytes=round(sum(row["data_bytes_sum"] for row in rows)),
        distinct={
            row["distinct"]: (row["chunks_sum"], round(row["data_bytes_sum"])) for row in rows
        },
        frequencies=_frequencies(list(messages), list(messages.values())),
        num_values=len(messages),
        properties=tuple(
            _costs(dict(zip(names, values["chunks_sum"], strict=True)), marks, chunks)
        ),
    )


def _costs(held: dict[bytes, int], marks: set[bytes], chunks: int) -> Iterator[PropertyCost]:
    """What each property costs.

    Args:
        held: how many chunks hold which key.
        marks: of the further properties.
        chunks: how many there are.
    """
    groups: dict[str, dict[bytes, int]] = {"": {}}
    for key, number in held.items():
        name = meaning_of(key).name or ""
        is_known = mark_of(name) in marks
        groups.setdefault(name if is_known else "", {})[key] = number
    for name, keys in sorted(groups.items()):
        values = sum(1 for key in keys if not name or key not in (mark_of(name), key_of(name, b"")))
        size = sum((len(key) + ENTRY_BYTES) * number for key, number in keys.items())
        yield PropertyCost(name, values, sum(keys.values()) / chunks, size / chunks)


def _frequencies(values: Sequence[bytes], messages: Sequence[float]) -> dict[bytes, float]:
    """See Census."""
    most = nlargest(_MOST_FREQUENT, zip(messages, values, strict=True))
    found = {value: number for number, value in most}
    if len(values) > len(found):
        rest = sum(messages) - sum(found.values())
        # By their hash: any of them, and the same ones every time.
        others = (value for value in values if value not in found)
        some = nsmallest(_OTHERS, others, key=lambda value: (crc32(value), value))
        found |= dict.fromkeys(some, rest / len(some))
    return found


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

    def work(histories: Iterator[History]) -> Iterator[dict[str, Any]]:
        for history in histories:
            for row in tried.run(history, by_scale):
                yield row._asdict()

    parts = _mapped(spark, _tasks(listed, step), work, _REPLAYED, source)
    found: dict[tuple[float, int, bool], list[Row]] = {}
    for row in parts.collect():
        made = Row(*row)
        found.setdefault((made.scale, made.size, made.is_newer), []).append(made)
    return [added(rows) for _, rows in sorted(found.items())]


def _counted(histories: Iterator[History]) -> Iterator[dict[str, Any]]:
    """The census of some chunks: messages by value, chunks by their number of values."""
    messages: dict[bytes, tuple[float, int]] = {}
    for history in histories:
        numbers = np.bincount(history.values, history.counts, minlength=len(history.names))
        chunks = np.bincount(history.values, minlength=len(history.names))
        for value, number, holders in zip(
            history.names, numbers.tolist(), chunks.tolist(), strict=True
        ):
            if number:
                before, held = messages.get(value, (0, 0))
                messages[value] = before + number, held + holders
        distinct = np.bincount(history.chunks, minlength=len(history.records))
        for number in np.unique(distinct).tolist():
            same = distinct == number
            yield {
                "distinct": number,
                "chunks": int(same.sum()),
                "messages": float(history.records[same].sum()),
                "data_bytes": float(history.data_bytes[same].sum()),
            }
        if len(messages) > _MANY_VALUES:
            yield from _values(messages)
            messages = {}
    yield from _values(messages)


def _values(messages: dict[bytes, tuple[float, int]]) -> Iterator[dict[str, Any]]:
    for value, (number, chunks) in messages.items():
        yield {"value": value, "messages": number, "chunks": chunks}


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
    work: Callable[[Iterator[History]], Iterator[dict[str, Any]]],
    schema: str,
    source: str | None,
) -> "DataFrame":
    """Run `work` on the history of each task, a few tasks per core."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pa.set_cpu_count(1)
        found = work(_histories(batches, source))
        while rows := list(islice(found, _BATCH_ROWS)):
            yield pa.RecordBatch.from_pylist(rows, arrow)

    inputs = pa.table({"task": [pickle.dumps(task) for task in tasks]})
    frame = spark.createDataFrame(inputs)
    parts = min(len(tasks), _TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
    frame = frame.repartition(parts)
    arrow = _arrow_schema(schema)
    return frame.mapInArrow(run, schema)


def _histories(batches: Iterator[pa.RecordBatch], source: str | None) -> Iterator[History]:
    for batch in batches:
        for raw in batch.column("task").to_pylist():
            piece, ordinal = pickle.loads(raw)  # noqa: S301 - made a moment ago, by us
            yield from read_history(piece, ordinal, source)


def _arrow_schema(ddl: str) -> pa.Schema:
    kinds = {
        "binary": pa.binary(),
        "bigint": pa.int64(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
    }
    parts = (part.split() for part in ddl.split(", "))
    return pa.schema([(name.strip("`"), kinds[kind]) for name, kind in parts])
