"""`python -m benchmarks.spark`: reading a stream in Spark, tuning, and how well it predicts.

Everything is made in a temporary folder: a stream of 256-byte messages to read, streams whose
chunks hold just their trailers' worth of filter values to tune, flights and three synthetic
distributions to predict and publish again.
"""

import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from segments import ChunkBuilder, Log, LogPolicy, bloom, codec
from segments.codec import CHUNK_HEADER_SIZE
from segments.format_constants import FILTER_VALUE, MAX_FILTER_SIZE, MIN_FILTER_SIZE
from segments.message import Message
from segments.spark import Prices, local_session, tune
from segments.spark.columns import columns_of
from segments.spark.files import read_headers
from segments.spark.headers import Numbers
from segments.spark.inventory import list_segments
from segments.spark.options import read_options
from segments.spark.recommend import SIZES
from segments.spark.source import StreamdReader
from streamd.cli.demo.flights import flights_file, read_flights

_CORES = 2
_MESSAGES = 1000  # per chunk of the stream that is read
_CHUNK = 100  # messages per chunk of the streams that are predicted
_BODY = 186  # bytes, which make a message of 256 bytes with its properties
_RARE = b"rare"


PARTS = ("reading", "tuning", "predictions")


@click.command()
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), default=PARTS)
@click.option("--gigabytes", default=1.1, show_default=True, help="Size of the stream to read.")
@click.option("--chunks", default=200_000, show_default=True, help="Of the stream to tune.")
@click.option("--many-chunks", default=1_000_000, show_default=True, help="Of the larger one.")
def main(parts: tuple[str, ...], gigabytes: float, chunks: int, many_chunks: int) -> None:
    """Measure; takes some minutes and a few gigabytes in the temporary folder."""
    with (
        tempfile.TemporaryDirectory(prefix="streamd-bench-") as folder,
        local_session(_CORES, memory="2g") as spark,
    ):
        if "reading" in parts:
            _show(_reading(spark, f"{folder}/read", gigabytes))
        if "tuning" in parts:
            _show(_tuning(spark, f"{folder}/tune", chunks, 50, "under 15 s"))
            _show(_tuning(spark, f"{folder}/many", many_chunks, 5, "in 2 GB"))
        if "predictions" in parts:
            for name, bodies, values in _streams():
                _show(_prediction(spark, f"{folder}/{name}", name, bodies, values))


def _show(rows: Sequence[tuple[str, str, str]]) -> None:
    load = f"load {os.getloadavg()[0]:.1f}"
    for what, goal, measured in rows:
        click.echo(f"{what:<58} {goal:<16} {measured:<70} {load}")


def _timed(work: Callable[[], object], times: int = 3) -> float:
    best = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best


def _entries(bodies: Sequence[bytes]) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def _reading(spark: SparkSession, folder: str, gigabytes: float) -> list[tuple[str, str, str]]:
    rng = random.Random(1)  # noqa: S311 - no secret
    bodies = [
        Message(
            os.urandom(_BODY + rng.randrange(-20, 21)),
            application_properties={"carrier": f"C{n % 50:02}", "delay": n, "dest": "LAX"},
        ).encode()
        for n in range(_MESSAGES)
    ]
    data = _entries(bodies)
    log = Log.open(folder, LogPolicy(filter_size=64))
    count = round(gigabytes * 1e9 / len(data))
    for n in range(count):
        builder = ChunkBuilder()
        values = [b"v%d" % rng.randrange(5000) for _ in range(30)]
        values += [_RARE if n == count // 2 else b"common"] * (_MESSAGES - 30)
        builder.add(data, _MESSAGES, _MESSAGES, values)
        log.append([builder], n)
    log.close()
    size = sum(path.stat().st_size for path in Path(folder).iterdir())

    def frame(**options: str) -> DataFrame:
        return spark.read.format("streamd").options(**options).load(folder)

    def rate(frame_of: Callable[[], DataFrame]) -> float:
        def write() -> None:
            frame_of().write.format("noop").mode("overwrite").save()

        return _timed(write)

    def speed(seconds: float) -> str:
        return f"{size / seconds / 1e6:.0f} MB/s"

    spark.dataSource.register(_from_memory(count * _MESSAGES, _BODY))
    memory = rate(lambda: spark.read.format("memory").load())
    plain = rate(lambda: frame(columns="offset,timestamp,body"))
    began = time.process_time()
    _decoding(folder, "offset,timestamp,body")
    decoding = time.process_time() - began
    unchecked = rate(lambda: frame(columns="offset,timestamp,body", verifyChecksums="false"))
    mapped = rate(lambda: frame(columns="offset,body,application_properties"))
    typed = rate(lambda: frame(columns="offset,body", properties="carrier string, delay bigint"))
    rare = rate(lambda: frame(columns="offset,timestamp,body", filterValues='["rare"]'))
    return [
        (
            f"offset, timestamp, body of {size / 1e9:.2f} GB",
            "500 MB/s",
            speed(plain),
        ),
        ("- as many bytes from memory: Spark's own part", "", speed(memory)),
        ("- decoded without Spark, on one core", "", speed(decoding)),
        ("- without checksums", "", speed(unchecked)),
        ("with application properties", "60 MB/s", speed(mapped)),
        ("with two properties as columns", "", speed(typed)),
        ("one rare filter value", "10 times faster", f"{plain / rare:.0f} times, {rare:.2f} s"),
    ]


def _tuning(
    spark: SparkSession, folder: str, chunks: int, values: int, goal: str
) -> list[tuple[str, str, str]]:
    rng = random.Random(2)  # noqa: S311 - no secret
    names = [b"value-%d" % n for n in range(20_000)]
    weights = [1 / (n + 1) for n in range(len(names))]
    drawn = rng.choices(names, weights, k=values * 4000)
    log = Log.open(folder, LogPolicy(filter_size=64))
    data = _entries([b"x" * 20] * values)
    for n in range(chunks):
        builder = ChunkBuilder()
        start = rng.randrange(len(drawn) - values)
        builder.add(data, values, values, drawn[start : start + values])
        log.append([builder], n)
    log.close()
    seconds = _timed(lambda: tune(spark, folder), times=2)
    what = f"tuning {chunks:,} chunks of {values} messages with filter values"
    return [(what, goal, f"{seconds:.1f} s")]


# -- predictions


def _streams() -> Sequence[tuple[str, list[bytes], list[bytes]]]:
    flights = list(read_flights(flights_file()))
    bodies = [flight.encoded for flight in flights]
    tails = [json.loads(f.encoded[f.encoded.index(b'{"year') :])["tailnum"] or "" for f in flights]
    rng = random.Random(5)  # noqa: S311 - no secret
    many = len(flights)
    plain = [b"m" * 300] * many
    zipf = rng.choices(range(2000), [1 / (n + 1) for n in range(2000)], k=many)
    bursts: list[int] = []
    while len(bursts) < many:
        bursts += [rng.randrange(5000)] * rng.randrange(1, 40)
    return (
        ("carrier", bodies, [flight.carrier.encode() for flight in flights]),
        ("dest", bodies, [flight.dest.encode() for flight in flights]),
        ("tailnum", bodies, [tail.encode() for tail in tails]),
        ("even", plain, [b"v%d" % rng.randrange(500) for _ in range(many)]),
        ("zipf", plain, [b"v%d" % n for n in zipf]),
        ("bursts", plain, [b"v%d" % n for n in bursts[:many]]),
    )


def _publish(
    folder: str, bodies: list[bytes], values: list[bytes], size: int, records: int
) -> None:
    log = Log.open(folder, LogPolicy(filter_size=size))
    for first in range(0, len(bodies), records):
        part = bodies[first : first + records]
        builder = ChunkBuilder()
        builder.add(_entries(part), len(part), len(part), values[first : first + records])
        log.append([builder], first)
    log.close()


def _prediction(
    spark: SparkSession, folder: str, name: str, bodies: list[bytes], values: list[bytes]
) -> list[tuple[str, str, str]]:
    _publish(f"{folder}-now", bodies, values, 16, _CHUNK)
    found = tune(spark, f"{folder}-now")
    then = found.recommended
    _publish(f"{folder}-then", bodies, values, then.filter_size, then.chunk_records)
    total = sum(found.census.frequencies.values())
    weights = {value: n / total for value, n in found.census.frequencies.items() if value}
    sizes = {*SIZES, *range(then.filter_size - 7, then.filter_size + 8)}
    costs = {
        size: _observed(f"{folder}-then", weights, size, found.prices)
        for size in sorted(sizes & set(range(MIN_FILTER_SIZE, MAX_FILTER_SIZE + 1)))
    }
    rate, cost = costs[then.filter_size]
    best = min(cost for _, cost in costs.values())
    what = f"{name}: {then.filter_size} bytes, {then.chunk_records} messages per chunk"
    said = f"{then.false_positive_rate:.2%} predicted, {rate:.2%} observed"
    tried = f"{cost / best - 1:+.2%} of the best of {len(costs)} sizes, tried for real"
    return [(what, "1 point, 1 %", f"{said}; cost {tried}")]


def _observed(
    folder: str, weights: dict[bytes, float], size: int, prices: Prices
) -> tuple[float, float]:
    """False positives and cost with the filters that the server would build, chunk by chunk."""
    chunks, names, entries = _chunks(folder)
    place = {value: n for n, value in enumerate(names)}
    bits = np.array([bloom.bit_positions(name, size) for name in names])
    share = np.array(list(weights.values()))
    wanted = [place[bloom.history_form(value)] for value in weights]
    number, value, count = entries.T
    filters = np.zeros((len(chunks), 8 * size), np.bool_)
    filters[number, bits[value, 0]] = filters[number, bits[value, 1]] = True
    counts = np.zeros((len(wanted), len(chunks)))
    for n, asked in enumerate(wanted):
        mine = value == asked
        counts[n, number[mine]] = count[mine]
    negatives = positives = delivered = 0.0
    for weight, asked, held in zip(share.tolist(), wanted, counts, strict=True):
        has = held > 0
        passed = filters[:, bits[asked, 0]] & filters[:, bits[asked, 1]] & ~has
        negatives += weight * int((~has).sum())
        positives += weight * int(passed.sum())
        wasted = chunks[:, _DATA] * (1 - held / chunks[:, _RECORDS])
        delivered += weight * float(wasted[has | passed].sum())
    stored = len(chunks) * (size + 77 + prices.chunk) + float(chunks[:, _TRAILER].sum())
    cost = prices.store * stored + prices.deliver * delivered
    return positives / max(negatives, 1e-9), cost


_RECORDS, _DATA, _TRAILER = range(3)


@cache
def _chunks(folder: str) -> tuple[Numbers, list[bytes], Numbers]:
    """A stream's chunks, its values, and which chunk has which value how often."""
    chunks: list[tuple[int, int, int]] = []
    names: dict[bytes, int] = {}
    entries: list[tuple[int, int, int]] = []
    for listing in list_segments(folder):
        raw = Path(listing.file.path).read_bytes()
        headers = read_headers(listing.file, listing.positions)
        for position, header in zip(listing.positions.tolist(), headers, strict=True):
            data_size = int(header["data_size"])
            start = position + CHUNK_HEADER_SIZE + int(header["filter_size"]) + data_size
            trailer = raw[start : start + int(header["trailer_size"])]
            for block in codec.decode_blocks(trailer):
                if block.kind == FILTER_VALUE and block.id:
                    number = names.setdefault(block.id, len(names))
                    entries.append((len(chunks), number, block.value))
            chunks.append((int(header["num_records"]), data_size, len(trailer)))
    return np.array(chunks), list(names), np.array(entries)


# -- what reading would cost without the decoder, and the decoder without Spark


def _decoding(folder: str, columns: str) -> None:
    """Decode a stream in this process, on one core."""
    options = read_options({"path": folder, "columns": columns})
    reader = StreamdReader(options, columns_of(options))
    for task in reader.partitions():
        for _ in reader.read(task):
            pass


def _from_memory(rows: int, body: int) -> type[DataSource]:
    """A source of about so many rows, the same batch again and again: all that is left is Spark.

    Its classes are made here so that they travel to the workers as they are.
    """
    per_batch, tasks = 16_384, 2 * 3

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(n) for n in range(tasks)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
            numbers = pa.array(np.arange(per_batch))
            places = pa.py_buffer(np.arange(per_batch + 1, dtype=np.int32) * body)
            content = pa.py_buffer(os.urandom(per_batch * body))
            arrays = [
                numbers,
                numbers.cast(pa.timestamp("us", "UTC")),
                pa.Array.from_buffers(pa.binary(), per_batch, [None, places, content]),
            ]
            batch = pa.RecordBatch.from_arrays(arrays, ["offset", "timestamp", "body"])
            for _ in range(rows // per_batch // tasks):
                yield batch

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "memory"

        def schema(self) -> str:
            return "offset bigint, timestamp timestamp, body binary"

        def reader(self, schema: StructType) -> Reader:  # noqa: ARG002 - Spark's signature
            return Reader()

    return Source


if __name__ == "__main__":
    main()
