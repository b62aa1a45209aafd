"""Finding the messages that columns choose, in many chunks at once.

A column says which messages may be wanted, and beside it stands where each 32nd message begins. So
the walk from length to length begins there, and only where a wanted message follows; all such walks
advance together, a message per step. Each has to arrive where the next begins: where one does not,
the chunk is not what its columns are of.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from segments.columns import POSITION_STEP, Columns
from segments.spark.headers import Bytes, Mask, Numbers
from segments.spark.walk import words

_LENGTH_SIZE = 4

# By a chunk's columns, the messages that may be wanted, see Columns.rows; None for all.
RowTest: TypeAlias = Callable[[Columns], int | None]


class ChosenChunk(NamedTuple):
    """A chunk of which some messages are wanted.

    Attributes:
        start, end: of its data section in the buffer.
        wanted: see Columns.rows.
    """

    start: int
    end: int
    columns: Columns
    wanted: int


class Places(NamedTuple):
    """Where some messages of some chunks are, in order.

    Attributes:
        chunks: the number of each message's chunk.
        places: the number of each in its chunk.
    """

    starts: Numbers
    ends: Numbers
    chunks: Numbers
    places: Numbers

    def of_chunks(self, first: int, end: int) -> "Places":
        """Those of the chunks from one to another, which are counted anew."""
        some = slice(*np.searchsorted(self.chunks, (first, end)))
        starts, ends, chunks, places = (column[some] for column in self)
        return Places(starts, ends, chunks - first, places)


class _Walks(NamedTuple):
    """Where messages are walked, and which wanted ones each walk comes to.

    Attributes:
        starts, limits: where each walk begins and has to arrive.
        counts: after how many messages.
        chunks: the number of each walk's chunk.
        rows: of each wanted message, its walk.
        places: of each wanted message, its number in the chunk.
    """

    starts: Numbers
    limits: Numbers
    counts: Numbers
    chunks: Numbers
    rows: Numbers
    places: Numbers


def wanted_mask(wanted: int, num_records: int) -> Mask:
    """Messages by their bits, see Columns.rows, as a mask."""
    size = -(-num_records // 8)
    bits = np.unpackbits(np.frombuffer(wanted.to_bytes(size, "big"), np.uint8))
    mask: Mask = bits[8 * size - num_records :].view(np.bool_)
    return mask


def open_wanted(buffer: Bytes, chosen: Sequence[ChosenChunk]) -> tuple[Places, Mask]:
    """Find the wanted messages of chunks whose columns say where messages begin.

    Args:
        buffer: holds the chunks in order, and some bytes more.
        chosen: the chunks.

    Returns:
        The messages, and which chunks are what their columns are of: the others have none here.
    """
    walks = _together([_walks_in(number, chunk) for number, chunk in enumerate(chosen)])
    taken, arrived = _walk(buffer, walks)
    fits = np.ones(len(chosen), np.bool_)
    fits[walks.chunks[~arrived]] = False
    within = walks.places % POSITION_STEP
    ends = taken[within, walks.rows]
    starts = np.where(within, taken[within - 1, walks.rows], walks.starts[walks.rows])
    chunks = walks.chunks[walks.rows]
    keep = fits[chunks]
    starts += _LENGTH_SIZE
    return Places(starts[keep], ends[keep], chunks[keep], walks.places[keep]), fits


def _walks_in(number: int, chunk: ChosenChunk) -> _Walks:
    columns = chunk.columns
    places = np.flatnonzero(wanted_mask(chunk.wanted, columns.num_records))
    begins = np.array([*columns.begins, chunk.end - chunk.start], np.int64) + chunk.start
    parts, rows = np.unique(places // POSITION_STEP, return_inverse=True)
    counts = np.minimum(columns.num_records - parts * POSITION_STEP, POSITION_STEP)
    own = np.full(len(parts), number)
    return _Walks(begins[parts], begins[parts + 1], counts, own, rows, places)


def _together(found: Sequence[_Walks]) -> _Walks:
    if not found:
        return _Walks(*[np.empty(0, np.int64)] * len(_Walks._fields))
    firsts = np.cumsum([0, *(len(walks.starts) for walks in found[:-1])])
    joined = _Walks(*(np.concatenate(part) for part in zip(*found, strict=True)))
    shift = np.repeat(firsts, [len(walks.rows) for walks in found])
    return joined._replace(rows=joined.rows + shift)


def _walk(buffer: Bytes, walks: _Walks) -> tuple[Numbers, Mask]:
    """Where each message of each walk ends, step by step; and which walks arrive."""
    numbers = words(buffer)
    last, position = len(numbers) - 1, walks.starts
    taken = np.empty((POSITION_STEP, len(position)), np.int64)
    for step in range(POSITION_STEP):
        # What is not as the columns have it leads elsewhere, perhaps out of the buffer.
        position = numbers[np.minimum(position, last)] + position
        position += _LENGTH_SIZE
        taken[step] = position
    arrived: Mask = taken[walks.counts - 1, np.arange(len(position))] == walks.limits
    return taken, arrived
