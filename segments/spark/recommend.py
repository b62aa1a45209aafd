"""From what candidates did to a history to what is recommended. Pure: no Spark, no files."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from segments.format_constants import MAX_FILTER_SIZE, MIN_FILTER_SIZE
from segments.spark.replay import Row, added

SIZES = (*range(MIN_FILTER_SIZE, 249, 8), MAX_FILTER_SIZE)
SCALES = (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
NEIGHBOURS = 7  # sizes on both sides of the best one that are tried as well
_FLAT = 1.005  # costs within this count as equal: take the smallest size, or keep the present one
_WORTH_IT = 1.02  # a different chunk limit has to save more than this
MIN_RECORDS = 8  # fewer messages per chunk are not recommended


@dataclass(frozen=True)
class Prices:
    """What a byte costs, in any unit.

    Attributes:
        store: a byte that is stored beside the messages.
        deliver: a byte that a reader gets needlessly.
        chunk: the work on a chunk, as bytes stored: writing, indexing, skipping it.
    """

    store: float = 1.0
    deliver: float = 1.0
    chunk: float = 1000.0


@dataclass(frozen=True)
class Candidate:
    """One filter size with one chunk limit, and what it does; bytes of the whole history.

    Attributes:
        filter_size: bytes of a chunk's filter.
        chunk_records: messages per chunk.
        chunks: how many there are.
        false_positive_rate: share of the looks at chunks without the wanted value that deliver.
        expected_rate: the same by formula.
        filter_bytes: of all filters.
        stored_bytes: filters, headers, trailers and indexes.
        needed_bytes: of messages that readers want.
        delivered_bytes: of chunks that readers get.
        skipped_share: of the bytes that readers would get without filters.
        cost: by the prices.
    """

    filter_size: int
    chunk_records: int
    chunks: int
    false_positive_rate: float
    expected_rate: float
    filter_bytes: float
    stored_bytes: float
    needed_bytes: float
    delivered_bytes: float
    skipped_share: float
    cost: float

    @property
    def amplification(self) -> float | None:
        """Bytes delivered for a byte that is needed; None when nothing is needed."""
        return self.delivered_bytes / self.needed_bytes if self.needed_bytes else None


@dataclass(frozen=True)
class Confidence:
    """What the older part of the history would have recommended, tried on the newer part.

    Attributes:
        filter_size: fitted on the older part.
        fitted_rate: false positives there.
        tested_rate: false positives on the newer part.
        regret: how much more that costs on the newer part than the best size there; a share.
    """

    filter_size: int
    fitted_rate: float
    tested_rate: float
    regret: float


def candidate(row: Row, chunk_records: int, prices: Prices, readers: float) -> Candidate:
    """What a row means."""
    filter_bytes = row.size * row.chunks
    stored = filter_bytes + row.header_bytes
    vain = max(0.0, row.delivered - row.needed)
    everything = row.data_bytes * readers
    return Candidate(
        filter_size=row.size,
        chunk_records=chunk_records,
        chunks=round(row.chunks),
        false_positive_rate=row.positives / row.negatives if row.negatives else 0.0,
        expected_rate=row.expected / row.negatives if row.negatives else 0.0,
        filter_bytes=filter_bytes,
        stored_bytes=stored,
        needed_bytes=row.needed,
        delivered_bytes=row.delivered,
        skipped_share=1 - row.delivered / everything if everything else 0.0,
        cost=prices.store * (stored + prices.chunk * row.chunks) + prices.deliver * vain,
    )


def best(candidates: Sequence[Candidate], current_size: int | None = None) -> Candidate:
    """The smallest filter that costs next to nothing more than the cheapest one.

    Args:
        candidates: of one chunk limit.
        current_size: is kept when it is as good.
    """
    limit = _FLAT * min(found.cost for found in candidates)
    good = [found for found in candidates if found.cost <= limit]
    kept = [found for found in good if found.filter_size == current_size]
    return (kept or sorted(good, key=lambda found: found.filter_size))[0]


def best_scale(costs: Mapping[float, float]) -> float:
    """How many times as large chunks should be; 1 unless another size is clearly cheaper."""
    cheapest = min(costs.values())
    if costs[1.0] <= _WORTH_IT * cheapest:
        return 1.0
    return min(costs, key=lambda scale: (costs[scale], -scale))


def totals(rows: Iterable[Row]) -> list[Row]:
    """One row for each candidate, both parts of the history together."""

    def key(row: Row) -> tuple[float, int]:
        return row.scale, row.size

    return [added(group) for _, group in groupby(sorted(rows, key=key), key)]


def confidence(rows: Sequence[Row], prices: Prices, readers: float) -> Confidence | None:
    """Fit on the older part, test on the newer one; None when one of them is empty.

    Args:
        rows: of one chunk limit.
        prices: what a byte costs.
        readers: how many read the stream.
    """
    older, newer = (
        {
            row.size: candidate(row, 0, prices, readers)
            for row in totals(r for r in rows if r.is_newer == part)
        }
        for part in (False, True)
    )
    if not older or not newer:
        return None
    fitted = best(list(older.values()))
    tested = newer[fitted.filter_size]
    cheapest = min(found.cost for found in newer.values())
    return Confidence(
        fitted.filter_size,
        fitted.false_positive_rate,
        tested.false_positive_rate,
        tested.cost / cheapest - 1 if cheapest else 0.0,
    )
