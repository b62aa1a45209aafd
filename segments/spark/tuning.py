"""`tune`: the filter size and chunk limit that a stream's own history asks for.

Two passes over the chunks' trailers, each a Spark job in which a task handles neighbouring chunks
and gives back sums: first which filter values there are, then what candidates would have done.
Nothing but a few thousand sums comes back to the driver.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from segments.bloom import false_positive_rate, history_form, smallest_size
from segments.format_constants import MIN_FILTER_SIZE
from segments.selector import parse_property
from segments.spark.files import read_headers
from segments.spark.inventory import NotAStream, Stream
from segments.spark.jobs import Census, replay, take_census
from segments.spark.plan import ChunkCriteria, Piece, pieces
from segments.spark.recommend import (
    MIN_RECORDS,
    NEIGHBOURS,
    SCALES,
    SIZES,
    Candidate,
    Confidence,
    Prices,
    best,
    best_scale,
    candidate,
    confidence,
    totals,
)
from segments.spark.replay import Replay, Row, Workload
from segments.spark.streams import find_streams

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEWER_SHARE = 0.3  # of the history, to test on
_MIN_RATE, _MAX_RATE = 0.0001, 0.5  # no recommendation goes beyond these
_NEWEST, _NEWEST_SEGMENTS = 101, 16  # chunks, of so many segments, tell the present filter size
_EXPLORED_CHUNKS = 4_000  # on so many chunk limits are compared, on
_REPLAYED_CHUNKS = 25_000  # so many filter sizes; the two that matter on all


class NothingToTune(Exception):
    """A stream's history says nothing of filter values; one sentence with what to do."""


@dataclass(frozen=True)
class Tuning:
    """What was found for one stream.

    Attributes:
        stream: its name.
        source: where filter values were found: trailers, or a property.
        census: what the history holds.
        current: what it has now, or would have with the newest filter size.
        recommended: the best candidate.
        sizes: all sizes that were tried with the recommended chunk limit, smallest first.
        limits: the best size with each chunk limit that was tried.
        confidence: from splitting the history in time; None for too short a one.
        sampled_share: of the chunks, that other filter sizes than the present and the
            recommended one were tried on.
        workload: what was taken to be subscribed to, in a word.
        wanted: the same, value by value.
        prices: what a byte was taken to cost.
        warnings: what the reader of the result has to know.
    """

    stream: str
    source: str
    census: Census
    current: Candidate
    recommended: Candidate
    sizes: tuple[Candidate, ...]
    limits: tuple[Candidate, ...]
    confidence: Confidence | None
    sampled_share: float
    workload: str
    wanted: Workload
    prices: Prices
    warnings: tuple[str, ...]

    @property
    def error_rate(self) -> float:
        """What the recommended size stands for, as x-stream-filter-error-rate means it.

        With a filter size of auto and this rate the server sizes each chunk's filter by the
        formula, smaller ones for chunks with fewer values.
        """
        rate = min(max(self.recommended.expected_rate, _MIN_RATE), _MAX_RATE)
        return float(f"{rate:.2g}")

    def size_without(self, name: str) -> int:
        """The filter size that would do as well if chunks had not the keys of a filter property."""
        total = sum(found.keys_a_chunk for found in self.census.properties)
        mine = sum(found.keys_a_chunk for found in self.census.properties if found.name == name)
        rate = false_positive_rate(round(total), self.recommended.filter_size)
        return smallest_size(round(total - mine), rate, self.recommended.filter_size)

    @property
    def limit_changes(self) -> bool:
        """Whether another chunk limit is recommended than the stream has."""
        return self.recommended.chunk_records != self.current.chunk_records


def tune(
    spark: "SparkSession",
    path: str,
    *,
    workload: Mapping[str, float] | None = None,
    prices: Prices | None = None,
    filter_property: str | None = None,
    keep_limit: bool = False,
    endpoint: str = "",
) -> Tuning:
    """Find the filter size and chunk limit that would have cost least over a stream's history.

    Args:
        spark: any session whose workers have this package.
        path: a stream's folder, or a stream in an object store: s3://BUCKET/PREFIX/VHOST/STREAM.
        workload: filter values that readers ask for, and how often the stream is read for each.
            None: one reader for each message, who wants messages with the same value; all of
            them together read the stream once.
        prices: what a byte costs; None for the usual ones.
        filter_property: where the trailers say nothing, the property whose values stand in.
        keep_limit: try only filter sizes.
        endpoint: URL of the store's server, empty for what the environment says.

    Raises:
        NotAStream: the folder holds none, or several.
        NothingToTune: nothing is known of filter values.
        TierError: the store refused, or could not be reached.
        ValueError: the workload is empty, or there is no such property.
    """
    prices = prices or Prices()
    stream, listed, size_now, gaps = _listed(path, endpoint)
    if not listed:
        raise NothingToTune(f"stream {stream.name} holds no messages yet; publish some first")
    source, census = _found(spark, stream.name, listed, filter_property)
    wanted, words = _workload(census, workload)
    total = sum(len(piece.positions) for piece in listed)
    search = _Search(
        spark=spark,
        listed=listed,
        replay=Replay(wanted, newer_from=round(total * (1 - NEWER_SHARE))),
        source=source,
        records=max(1, round(census.messages / total)),
        prices=prices,
        readers=sum(wanted.weights),
    )
    scale, limits = (1.0, ()) if keep_limit else search.limits(total // _EXPLORED_CHUNKS)
    step = max(1, round(total / min(1.0, scale)) // _REPLAYED_CHUNKS)
    rows = search.sizes(scale, size_now, step)
    chosen = best(search.candidates(rows, scale), size_now if scale == 1 else None)
    if step > 1:
        rows = search.exact(rows, {(1.0, size_now), (scale, chosen.filter_size)})
    found = search.candidates(rows, scale)
    today = search.candidates(rows, 1.0)
    return Tuning(
        stream=stream.name,
        source=source or "trailers",
        census=census,
        current=next(c for c in today if c.filter_size == size_now),
        recommended=next(c for c in found if c.filter_size == chosen.filter_size),
        sizes=tuple(found),
        limits=limits,
        confidence=confidence([r for r in rows if r.scale == scale], prices, search.readers),
        sampled_share=1 / step,
        workload=words,
        wanted=wanted,
        prices=prices,
        warnings=tuple(_warnings(census, source, scale, total, gaps)),
    )


@dataclass(frozen=True)
class _Search:
    spark: "SparkSession"
    listed: list[Piece]
    replay: Replay
    source: str | None
    records: int
    prices: Prices
    readers: float

    def _run(self, tried: Sequence[tuple[float, int]], step: int = 1) -> list[Row]:
        rows = replay(self.spark, self.listed, self.replay, tried, step, self.source)
        chunks = sum(row.chunks for row in rows if (row.scale, row.size) == tuple(tried[0]))
        total = sum(len(piece.positions) for piece in self.listed) / tried[0][0]
        return rows if step == 1 else [row.times(total / chunks) for row in rows]

    def candidates(self, rows: Sequence[Row], scale: float) -> list[Candidate]:
        records = max(1, round(self.records * scale))
        return [
            candidate(row, records, self.prices, self.readers)
            for row in totals(rows)
            if row.scale == scale
        ]

    def limits(self, step: int) -> tuple[float, tuple[Candidate, ...]]:
        """How many times as large chunks should be, and the best size with each."""
        step = max(1, step)
        scales = [s for s in SCALES if s >= 1 or self.records * s >= MIN_RECORDS]
        rows = self._run([(scale, size) for scale in scales for size in SIZES[::3]], step)
        found = {scale: best(self.candidates(rows, scale)) for scale in scales}
        return best_scale({s: c.cost for s, c in found.items()}), tuple(found.values())

    def sizes(self, scale: float, size_now: int, step: int) -> list[Row]:
        """Every size with one chunk limit, all those near the best one; and the present state."""
        now = {(1.0, size_now)}
        rows = self._run(sorted({(scale, size) for size in SIZES} | now), step)
        chosen = best(self.candidates(rows, scale)).filter_size
        near = range(max(chosen - NEIGHBOURS, SIZES[0]), min(chosen + NEIGHBOURS, SIZES[-1]) + 1)
        more = {(scale, size) for size in near if size not in SIZES} - now
        return rows + (self._run(sorted(more), step) if more else [])

    def exact(self, rows: Sequence[Row], wanted: set[tuple[float, int]]) -> list[Row]:
        """The rows, those of some candidates replaced by what they do to all chunks."""
        kept = [row for row in rows if (row.scale, row.size) not in wanted]
        return kept + self._run(sorted(wanted))


def _listed(path: str, endpoint: str) -> tuple[Stream, list[Piece], int, int]:
    """The stream, its chunks, the filter size of its newest ones, and how many gaps it has."""
    streams = find_streams(path, endpoint)
    if len(streams) > 1:
        names = ", ".join(stream.path for stream in streams[:3])
        raise NotAStream(f"{path} holds {len(streams)} streams, expected one, such as {names}")
    found: list[Piece] = []
    gaps = 0
    for listing in streams[0].listings():
        listed = pieces(streams[0].name, [listing], ChunkCriteria())
        found += [piece for piece in listed if piece.gap is None]
        gaps += len(listing.gaps)
    return streams[0], found, _filter_size(found), gaps


def _filter_size(listed: list[Piece]) -> int:
    """The usual filter size of the newest chunks that have one."""
    sizes = np.empty(0, np.int64)
    for piece in reversed(listed[-_NEWEST_SEGMENTS:]):
        headers = read_headers(piece.file, piece.positions[-_NEWEST:])
        given = headers["filter_size"].astype(np.int64)
        sizes = np.concatenate((given[given > 0], sizes))[-_NEWEST:]
        if len(sizes) == _NEWEST:
            break
    return int(np.median(sizes)) if len(sizes) else MIN_FILTER_SIZE


def _found(
    spark: "SparkSession", name: str, listed: list[Piece], filter_property: str | None
) -> tuple[str | None, Census]:
    """Where the filter values are, None for the trailers; and what they are."""
    census = take_census(spark, listed, None)
    if census.num_values:
        return None, census
    if filter_property:
        parse_property(filter_property)  # says so here, not in a task
        census = take_census(spark, listed, filter_property)
        if census.num_values:
            return filter_property, census
    raise NothingToTune(_nothing(name, filter_property))


def _workload(census: Census, given: Mapping[str, float] | None) -> tuple[Workload, str]:
    if given is not None:
        if not given or not all(given) or not all(0 < w < math.inf for w in given.values()):
            raise ValueError("the workload needs filter values with finite weights above 0")
        values = tuple(history_form(value.encode()) for value in given)
        return Workload(values, tuple(given.values())), "as given"
    total = sum(census.frequencies.values())
    weights = tuple(messages / total for messages in census.frequencies.values())
    words = "every value, as often as it occurs"
    if census.num_values > len(census.frequencies):
        words += f"; {len(census.frequencies)} of {census.num_values:,} stand for all"
    return Workload(tuple(census.frequencies), weights), words


def _nothing(name: str, filter_property: str | None) -> str:
    if filter_property:
        return (
            f"no message of stream {name} has a text, bytes or a number as its property "
            f"{filter_property}"
        )
    return (
        f"the chunks of stream {name} tell no filter values: publish with filter values, or name "
        "the property that they would be the values of, with --filter-property"
    )


def _warnings(
    census: Census, source: str | None, scale: float, total: int, gaps: int
) -> Iterator[str]:
    if gaps:
        yield f"{gaps} damaged places were left out; python -m segments verify names them"
    if source is not None:
        yield f"the chunks tell no filter values; those of the property {source} stand in"
    if scale < 1:
        yield "chunks were cut as if their messages were well mixed"
    if total < 20:  # noqa: PLR2004 - a handful
        yield f"{total} chunk{'s' * (total > 1)} {'are' if total > 1 else 'is'} too few to rely on"
    if census.num_values == 1:
        yield "there is one filter value: no filter can leave anything out"
