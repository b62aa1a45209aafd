"""Parts of an object, read with few requests: neighbours together, several requests at a time.

A request takes some tens of milliseconds before its first byte comes, in which a megabyte or so
could have been read: so what lies between two parts is read with them where it is little. And one
connection is slow, whatever it reads, so several are read at once.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from segments.disk import Buffer
from segments.spark.headers import Numbers

MOST_BYTES = 8 << 20  # of one request, unless a chunk is larger
MOST_GAP = 256 << 10  # bytes between two parts that are read with them
AT_ONCE = 16  # requests of a task
_AHEAD_BYTES = 32 << 20  # of them all; so there are few where they are large

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


class Range(NamedTuple):
    """Bytes of an object; the end is not part of it."""

    start: int
    end: int

    @property
    def size(self) -> int:
        """In bytes."""
        return self.end - self.start


def merged(starts: Numbers, ends: Numbers) -> list[tuple[Range, int]]:
    """The requests for some parts of an object.

    Args:
        starts: of the parts, ascending.
        ends: of the parts; a part begins behind the end of the one before.

    Returns:
        Ranges, and how many parts there are in each; each part is in one of them.
    """
    found: list[tuple[Range, int]] = []
    start = end = count = 0
    for first, last in zip(starts.tolist(), ends.tolist(), strict=True):
        if count and first - end <= MOST_GAP and last - start <= MOST_BYTES:
            end, count = last, count + 1
            continue
        if count:
            found.append((Range(start, end), count))
        start, end, count = first, last, 1
    if count:
        found.append((Range(start, end), count))
    return found


def ask_in_order(
    ask: Callable[[_Item], _Answer],
    items: Iterable[_Item],
    size_of: Callable[[_Item], int] = lambda _item: 0,
) -> Iterator[_Answer]:
    """The answers to some requests in their order; those that come next are asked meanwhile.

    Args:
        ask: what a thread does for one of them; what it raises is raised in its turn.
        items: the requests.
        size_of: bytes of the answer, which bound how much is asked ahead.
    """
    waiting: deque[tuple[Future[_Answer], int]] = deque()
    ahead = 0
    pool = ThreadPoolExecutor(AT_ONCE, "streamd-store")
    try:
        for item in items:
            size = size_of(item)
            while waiting and (len(waiting) >= AT_ONCE or ahead + size > _AHEAD_BYTES):
                first, done = waiting.popleft()
                yield first.result()
                ahead -= done
            waiting.append((pool.submit(ask, item), size))
            ahead += size
        while waiting:
            yield waiting.popleft()[0].result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def read_in_order(read: Callable[[int, int], Buffer], ranges: Iterable[Range]) -> Iterator[Buffer]:
    """The bytes of some ranges, in their order; `read` takes start and size."""
    return ask_in_order(lambda part: read(part.start, part.size), ranges, lambda part: part.size)
