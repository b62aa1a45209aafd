"""What other filter sizes and chunk limits would have done to a stream's history.

Filters are built over the values that the chunks really held, with the hashes that the server
uses, and the subscribed values are tested against each. Chunks are joined with their neighbours,
or cut: then the messages of a chunk are taken to be well mixed, since a trailer says how many
messages have a value, not where they stand.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import mmh3
import numpy as np
import numpy.typing as npt

from segments import bloom
from segments.codec import CHUNK_HEADER_SIZE, INDEX_RECORD_SIZE
from segments.spark.headers import Mask, Numbers
from segments.spark.history import History

CHUNK_BYTES = CHUNK_HEADER_SIZE + INDEX_RECORD_SIZE  # what a chunk takes up beside its filter
ENTRY_BYTES = 10  # what a value takes up in a trailer beside itself
_BLOCK = 1024  # chunks whose filters are built together
_SURE = 8  # a value with so many messages per piece is in every piece
_SEED = 6


class Workload(NamedTuple):
    """What is subscribed to.

    Attributes:
        values: filter values.
        weights: how often the whole stream is read for each.
    """

    values: tuple[bytes, ...]
    weights: tuple[float, ...]


class Row(NamedTuple):
    """What one candidate did to some chunks; sums, so that rows can be added.

    Attributes:
        scale: how many times as large as now chunks are.
        size: bytes of a filter.
        is_newer: the chunks belong to the newer part of the history.
        chunks: how many there are.
        header_bytes: what they take up beside their messages and filters.
        negatives: readers' looks at chunks that do not hold what they want.
        positives: of these, how many chunks were delivered all the same.
        expected: the same, by formula.
        needed: bytes of messages that readers want.
        delivered: bytes of chunks that are delivered.
    """

    scale: float
    size: int
    is_newer: bool
    chunks: float
    header_bytes: float
    data_bytes: float
    negatives: float
    positives: float
    expected: float
    needed: float
    delivered: float

    def times(self, factor: float) -> "Row":
        """What that many histories like this one would give together."""
        return Row(*self[:3], *(number * factor for number in self[3:]))


def hashes(names: Sequence[bytes]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Both halves of each value's hash, as `bloom.bit_positions` reduces them."""
    found = np.frombuffer(b"".join([mmh3.hash_bytes(name) for name in names]), "<u8")
    pairs = found.astype(np.uint64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def bits_of(halves: npt.NDArray[np.uint64], size: int) -> Numbers:
    """The bit that a half of a hash stands for in a filter of `size` bytes."""
    return (halves % np.uint64(8 * size - 1)).astype(np.int64) + 1


def rescaled(history: History, scale: float) -> History:
    """The history with chunks joined (scale 2, 4, …) or cut (1/2, 1/4, …)."""
    if scale == 1 or not len(history.records):
        return history
    if scale > 1:
        groups = np.arange(len(history.records)) // int(scale)
        return _regrouped(history, groups, history.chunks, history.values, history.counts)
    pieces = np.minimum(round(1 / scale), history.records)
    first = np.cumsum(pieces) - pieces
    rng = np.random.default_rng(_SEED)
    share = pieces[history.chunks]
    draws = np.minimum(history.counts, _SURE * share)
    entry = np.repeat(np.arange(len(draws)), draws)
    nth = np.arange(len(entry)) - np.repeat(np.cumsum(draws) - draws, draws)
    # The draws of a value that is everywhere go round; those of others fall where they fall.
    is_sure = (draws == _SURE * share)[entry]
    place = np.where(is_sure, nth % share[entry], rng.integers(0, share[entry]))
    cut = history._replace(
        ordinals=np.repeat(history.ordinals, pieces),
        records=np.repeat(history.records / pieces, pieces),
        data_bytes=np.repeat(history.data_bytes / pieces, pieces),
        filter_sizes=np.repeat(history.filter_sizes, pieces),
    )
    chunks = first[history.chunks[entry]] + place
    counts = (history.counts / draws)[entry]
    return _regrouped(cut, np.arange(len(cut.records)), chunks, history.values[entry], counts)


def _regrouped(
    history: History, groups: Numbers, chunks: Numbers, values: Numbers, counts: Numbers
) -> History:
    """Chunks put together by `groups`, and their entries with them."""
    width = len(history.names) + 1
    keys, where = np.unique(groups[chunks] * width + values, return_inverse=True)
    firsts = np.flatnonzero(np.diff(groups, prepend=-1))
    return History(
        history.ordinals[firsts],
        np.add.reduceat(history.records, firsts),
        np.add.reduceat(history.data_bytes, firsts),
        history.filter_sizes[firsts],
        keys // width,
        keys % width,
        np.bincount(where, counts, len(keys)),
        history.names,
    )


class Replay:
    """Tries candidates on histories.

    Args:
        newer_from: chunks from this ordinal on are the newer part.
    """

    def __init__(self, workload: Workload, newer_from: int) -> None:
        self._workload = workload
        self._weights = np.array(workload.weights)
        self._newer_from = newer_from
        self._wanted = hashes(workload.values)
        self._place = {value: n for n, value in enumerate(workload.values)}

    def run(self, history: History, tried: Mapping[float, Iterable[int]]) -> Iterator[Row]:
        """A row for each scale, size, and part of the history.

        Args:
            history: some chunks.
            tried: filter sizes by how many times as large chunks are.
        """
        halves = hashes(history.names)
        subscribed = np.array([self._place.get(name, -1) for name in history.names], np.int64)
        lengths = np.array([len(name) for name in history.names], np.int64)
        for scale, sizes in tried.items():
            found = rescaled(history, scale)
            is_newer = found.ordinals >= self._newer_from
            for newer in (False, True):
                rows = np.flatnonzero(is_newer == newer)
                if len(rows):  # ordinals ascend: the rows are neighbours
                    part = _part(found, int(rows[0]), int(rows[-1]) + 1)
                    yield from self._tried(part, halves, subscribed, lengths, scale, sizes, newer)

    def _tried(
        self,
        history: History,
        halves: tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]],
        subscribed: Numbers,
        lengths: Numbers,
        scale: float,
        sizes: Iterable[int],
        newer: bool,
    ) -> Iterator[Row]:
        chunks = len(history.records)
        header_bytes = chunks * CHUNK_BYTES + float((lengths[history.values] + ENTRY_BYTES).sum())
        distinct = np.bincount(history.chunks, minlength=chunks)
        member = np.zeros((len(self._weights), chunks), np.bool_)
        asked = subscribed[history.values]
        mine = np.flatnonzero(asked >= 0)
        member[asked[mine], history.chunks[mine]] = True
        mean_size = history.data_bytes / np.maximum(history.records, 1)
        needed = self._weights[asked[mine]] @ (
            history.counts[mine] * mean_size[history.chunks[mine]]
        )
        weight_of_members = self._weights @ member
        negatives = self._weights.sum() - weight_of_members
        for size in sizes:
            false = self._false_positives(history, halves, member, size)
            expected = negatives @ _formula(distinct, size)
            yield Row(
                scale,
                size,
                newer,
                chunks,
                header_bytes,
                float(history.data_bytes.sum()),
                float(negatives.sum()),
                float(false.sum()),
                float(expected),
                float(needed),
                float(history.data_bytes @ (weight_of_members + false)),
            )

    def _false_positives(
        self,
        history: History,
        halves: tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]],
        member: Mask,
        size: int,
    ) -> npt.NDArray[np.float64]:
        """For each chunk the weight of the readers that get it needlessly."""
        first, second = (bits_of(half, size)[history.values] for half in halves)
        one, two = (bits_of(half, size) for half in self._wanted)
        chunks = len(history.records)
        false = np.zeros(chunks)
        bounds = np.searchsorted(history.chunks, np.arange(0, chunks + _BLOCK, _BLOCK))
        for n, start in enumerate(range(0, chunks, _BLOCK)):
            stop = min(start + _BLOCK, chunks)
            entries = slice(bounds[n], bounds[n + 1])
            filters = np.zeros((8 * size, stop - start), np.bool_)
            places = history.chunks[entries] - start
            filters[first[entries], places] = True
            filters[second[entries], places] = True
            hits = filters[one]
            hits &= filters[two]
            hits &= ~member[:, start:stop]
            false[start:stop] = self._weights @ hits
        return false


def _part(history: History, first: int, last: int) -> History:
    entries = slice(*np.searchsorted(history.chunks, (first, last)))
    rows = slice(first, last)
    return History(
        history.ordinals[rows],
        history.records[rows],
        history.data_bytes[rows],
        history.filter_sizes[rows],
        history.chunks[entries] - first,
        history.values[entries],
        history.counts[entries],
        history.names,
    )


def _formula(distinct: Numbers, size: int) -> npt.NDArray[np.float64]:
    """`bloom.false_positive_rate` of each chunk."""
    numbers, where = np.unique(distinct, return_inverse=True)
    rates = [bloom.false_positive_rate(number, size) for number in numbers.tolist()]
    found: npt.NDArray[np.float64] = np.array(rates)[where]
    return found


def added(rows: Iterable[Row]) -> Row:
    """The sum of rows of one candidate; it counts as newer when all of them are."""
    first, *rest = rows
    sums = [math.fsum(column) for column in zip(first[3:], *(row[3:] for row in rest), strict=True)]
    return Row(first.scale, first.size, all(r.is_newer for r in (first, *rest)), *sums)
