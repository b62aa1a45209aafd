"""Messages of a chunk by their places: each has 4 bytes of length before it, none is packed."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

_LENGTH_SIZE = 4


def body_at(data: bytes, ends: Sequence[int], place: int) -> bytes:
    """The message at a place.

    Args:
        data: the chunk's messages.
        ends: where each message ends in `data`, in order.
        place: its number, from 0.
    """
    return data[(ends[place - 1] if place else 0) + _LENGTH_SIZE : ends[place]]


def holding(ends: Sequence[int], positions: Sequence[int]) -> Iterator[int]:
    """The places of the messages in which positions of the data are, each once.

    Args:
        ends: as above.
        positions: in order.
    """
    place = -1
    for position in positions:
        if place < 0 or position >= ends[place]:
            place = bisect_right(ends, position, place + 1)
            yield place
