"""Finding the messages of many chunks at once: all chunks advance together, an entry per step."""

import numpy as np

from segments import codec
from segments.codec import ChunkHeader
from segments.errors import FormatError
from segments.spark.headers import Bytes, Numbers

_LENGTH_SIZE = 4
_SUB_BATCH = 0x80000000  # the bit in an entry's first four bytes
_FEW = 8  # with fewer chunks a loop over their entries is as fast
_UNEVEN = 4  # chunks with so many times more entries than usual are walked by themselves


def words(buffer: Bytes) -> Numbers:
    """The 32-bit number at every byte of a buffer but the last three; nothing is copied."""
    return np.ndarray((len(buffer) - 3,), ">u4", buffer, strides=(1,))


def message_ends(
    buffer: Bytes, starts: Numbers, ends: Numbers, headers: list[ChunkHeader]
) -> list[Numbers | None]:
    """Where the messages of each data section end; each begins 4 bytes behind the one before.

    Args:
        buffer: holds the data sections, and some bytes more.
        starts: of the data sections in it.
        ends: of the data sections in it.
        headers: of the chunks.

    Returns:
        For each chunk its messages' ends; None when it has sub-batches or its entries do not fit
        its size, which `codec.walk_entries` looks into.
    """
    counts = np.array([header.num_entries for header in headers], np.int64)
    found: list[Numbers | None] = [None] * len(headers)
    together = np.flatnonzero(counts <= _UNEVEN * np.median(counts)) if len(counts) else counts
    if len(together) < _FEW:
        together = together[:0]
    else:
        _walk_together(buffer, starts, ends, counts, together, found)
    for lane in np.setdiff1d(np.arange(len(headers)), together).tolist():
        section = buffer.data[starts[lane] : ends[lane]]
        try:
            simple = codec.simple_ends(section)
        except FormatError:
            continue
        if simple is not None:
            found[lane] = np.array(simple, np.int64) + starts[lane]
    return found


def _walk_together(
    buffer: Bytes,
    starts: Numbers,
    ends: Numbers,
    counts: Numbers,
    lanes: Numbers,
    found: list[Numbers | None],
) -> None:
    lanes = lanes[np.argsort(-counts[lanes], kind="stable")]  # who goes on is always in front
    limit = len(buffer) - _LENGTH_SIZE
    numbers = words(buffer)
    counts = counts[lanes]
    first = np.cumsum(counts) - counts
    flat = np.empty(int(counts.sum()), np.int64)
    position = starts[lanes].copy()
    has_sub_batch = np.zeros(len(lanes), np.bool_)
    active = len(lanes)
    for step in range(int(counts[0])):
        while counts[active - 1] <= step:
            active -= 1
        here = position[:active]
        size = numbers[here]
        has_sub_batch[:active] |= size >= _SUB_BATCH
        here += size
        here += _LENGTH_SIZE
        flat[first[:active] + step] = here
        np.minimum(here, limit, out=here)
    is_whole = (flat[first + counts - 1] == ends[lanes]) & ~has_sub_batch
    for n in np.flatnonzero(is_whole).tolist():
        found[lanes[n]] = flat[first[n] : first[n] + counts[n]]
