"""Finding the messages of many chunks at once.

An entry begins where the one before ends, so a chunk can only be walked from its start. But it
can be walked from several places at once when these are guessed well: a guess is a place from
which some entries follow each other, and it is right when the walk from the place before arrives
exactly there. All walks advance together, an entry per step; a chunk with a wrong guess is walked
again without any.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from segments import codec
from segments.errors import FormatError
from segments.spark.headers import Bytes, Mask, Numbers

_LENGTH_SIZE = 4
_LANE = 64  # entries that one walk should take: more are slow in steps, fewer in guesses
_SLACK = 4  # so many times more, and the walk gives up
_SAMPLE = 16  # entries that say how long entries are
_LOOK = 8  # steps after which to see who has arrived
_HOPS = 3  # entries that must follow each other from a guess
_FEW = 8  # with fewer walks a plain loop is as fast
_WINDOW = 16 << 10  # bytes to look through for a guess, at most


def words(buffer: Bytes) -> Numbers:
    """The 32-bit number at every byte of a buffer but the last three; nothing is copied."""
    return np.ndarray((len(buffer) - 3,), ">u4", buffer, strides=(1,))


class Counts(Protocol):
    """How many entries there are, and how many messages in them."""

    @property
    def num_entries(self) -> int: ...  # noqa: D102

    @property
    def num_records(self) -> int: ...  # noqa: D102


class Ends(NamedTuple):
    """Where messages end; each begins 4 bytes behind the one before, the first 4 behind its chunk.

    Attributes:
        ends: of the messages of all chunks that `is_simple`, in order.
        counts: how many messages that is for each chunk; 0 where it is not.
        is_simple: false for chunks with sub-batches, or whose entries do not fit their size:
            `codec.walk_entries` looks into these.
    """

    ends: Numbers
    counts: Numbers
    is_simple: Mask


class _Lanes(NamedTuple):
    """Walks in order of place: where each begins, where it must arrive, of which chunk it is."""

    starts: Numbers
    limits: Numbers
    chunks: Numbers


class _Found(NamedTuple):
    """Chunks that were walked, how many messages each has, and the ends of all of these."""

    chunks: Numbers
    counts: Numbers
    ends: Numbers


def message_ends(buffer: Bytes, starts: Numbers, ends: Numbers, headers: Sequence[Counts]) -> Ends:
    """Find the messages of each data section.

    Args:
        buffer: holds the data sections in order, and some bytes more.
        starts: of the data sections in it.
        ends: of the data sections in it.
        headers: of the chunks, or what counts as they do.
    """
    entries = np.array([header.num_entries for header in headers], np.int64)
    records = np.array([header.num_records for header in headers], np.int64)
    rest = np.flatnonzero(entries == records)  # with sub-batches there are more records
    found: list[_Found] = []
    for lanes_of in (_guessed, _one_each):
        if len(rest) < _FEW:
            break
        lanes = lanes_of(buffer, starts, ends, entries, rest)
        usual = -(-int(entries[rest].sum()) // len(lanes.starts))
        found.append(_walk(buffer, lanes, _SLACK * usual))
        rest = np.setdiff1d(rest, found[-1].chunks)
    for chunk in rest.tolist():
        found += _walk_one(buffer, chunk, int(starts[chunk]), int(ends[chunk]))
    return _together(found, len(headers))


def _together(found: list[_Found], chunks: int) -> Ends:
    counts, is_simple = np.zeros(chunks, np.int64), np.zeros(chunks, np.bool_)
    for part in found:
        counts[part.chunks], is_simple[part.chunks] = part.counts, True
    if len(found) == 1:
        return Ends(found[0].ends, counts, is_simple)
    first = np.cumsum(counts) - counts
    flat = np.empty(int(counts.sum()), np.int64)
    for part in found:
        shift = first[part.chunks] - (np.cumsum(part.counts) - part.counts)
        flat[np.repeat(shift, part.counts) + np.arange(len(part.ends))] = part.ends
    return Ends(flat, counts, is_simple)


def _walk_one(buffer: Bytes, chunk: int, start: int, end: int) -> Iterator[_Found]:
    try:
        simple = codec.simple_ends(buffer.data[start:end])
    except FormatError:
        return
    if simple is not None:
        ends = np.array(simple, np.int64) + start
        yield _Found(np.array([chunk]), np.array([len(simple)]), ends)


def _walk(buffer: Bytes, lanes: _Lanes, limit: int) -> _Found:
    """Walk all lanes, at most `limit` entries each; finds the chunks all of whose lanes arrive."""
    numbers = words(buffer)
    last = len(numbers) - 1
    position = lanes.starts
    steps: list[Numbers] = []
    while len(steps) < limit and (len(steps) % _LOOK or (position < lanes.limits).any()):
        # What is damaged or a sub-batch leads past where it must arrive, perhaps out of the buffer.
        position = numbers[np.minimum(position, last)] + position
        position += _LENGTH_SIZE
        steps.append(position)
    taken = np.array(steps, np.int64).reshape(len(steps), len(position)).T
    inside = taken <= lanes.limits[:, None]
    counts = np.count_nonzero(inside, axis=1)
    arrived = counts > 0
    arrived[arrived] = taken[arrived, counts[arrived] - 1] == lanes.limits[arrived]
    if not arrived.all():
        good = ~np.isin(lanes.chunks, lanes.chunks[~arrived])
        lanes = _Lanes(*(column[good] for column in lanes))
        taken, inside, counts = taken[good], inside[good], counts[good]
    chunks, first = np.unique(lanes.chunks, return_index=True)
    per_chunk = np.add.reduceat(counts, first) if len(chunks) else counts
    return _Found(chunks, per_chunk, taken[inside])


def _one_each(
    _buffer: Bytes, starts: Numbers, ends: Numbers, _entries: Numbers, chunks: Numbers
) -> _Lanes:
    return _Lanes(starts[chunks], ends[chunks], chunks)


def _guessed(
    buffer: Bytes, starts: Numbers, ends: Numbers, entries: Numbers, chunks: Numbers
) -> _Lanes:
    """Lanes of about _LANE entries, as far as it is known where entries begin."""
    more = np.maximum(entries[chunks] // _LANE - 1, 0)  # lanes beside the first
    low, high = _lengths(buffer, starts[chunks], ends[chunks])
    width = high // 2 + _LENGTH_SIZE  # an entry begins in it, or is longer than usual
    all_starts, all_chunks = starts[chunks], chunks
    if width <= _WINDOW:
        of_chunk = np.repeat(chunks, more)
        number = np.arange(len(of_chunk)) - np.repeat(np.cumsum(more) - more, more) + 1
        share = (ends[chunks] - starts[chunks]) // (more + 1)
        places = starts[of_chunk] + np.repeat(share, more) * number
        fits = places + width <= len(buffer) - _LENGTH_SIZE
        rows, found = _entries_in(buffer, places[fits], width, low, high)
        of_chunk = of_chunk[fits][rows]
        inside = found < ends[of_chunk]
        all_starts = np.concatenate((all_starts, found[inside]))
        all_chunks = np.concatenate((all_chunks, of_chunk[inside]))
        all_starts, only = np.unique(all_starts, return_index=True)
        all_chunks = all_chunks[only]
    limits = np.append(all_starts[1:], 0)
    is_last = np.append(all_chunks[1:] != all_chunks[:-1], True)
    limits[is_last] = ends[all_chunks[is_last]]
    return _Lanes(all_starts, limits, all_chunks)


def _lengths(buffer: Bytes, starts: Numbers, ends: Numbers) -> tuple[int, int]:
    """Between which lengths entries are taken to be, from the first ones of the middle chunk."""
    if not len(starts):
        return 1, 1
    middle = len(starts) // 2
    position, end = int(starts[middle]), int(ends[middle])
    numbers = words(buffer)
    found: list[int] = []
    while position < end and len(found) < _SAMPLE:
        found.append(int(numbers[position]))
        position += _LENGTH_SIZE + found[-1]
    return max(1, min(found, default=1) // 2), 2 * max(found, default=1)


def _entries_in(
    buffer: Bytes, places: Numbers, width: int, low: int, high: int
) -> tuple[Numbers, Numbers]:
    """The first place in each of some windows from which entries seem to follow each other.

    Returns:
        The windows where there is one, and these places.
    """
    if not len(places):
        return places, places
    windows = np.lib.stride_tricks.sliding_window_view(buffer, width + 1)[places]
    # Lengths begin with zeros; comparing bytes is many times faster than comparing numbers.
    may_be = (windows[:, :-1] == 0) & (windows[:, 1:] <= high >> 16)
    rows, columns = np.divmod(np.flatnonzero(may_be), width)
    found = places[rows] + columns
    numbers = words(buffer)
    position = found
    keep = np.ones(len(found), np.bool_)
    for _ in range(_HOPS):
        length = numbers[np.minimum(position, len(numbers) - 1)].astype(np.int64)
        keep &= (length >= low) & (length <= high)
        position = position + length + _LENGTH_SIZE
    rows, found = rows[keep], found[keep]
    is_first = np.append(True, rows[1:] != rows[:-1])[: len(rows)]
    return rows[is_first], found[is_first]
