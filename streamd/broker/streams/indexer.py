"""Filter indexes of segments, built and opened beside the event loop, one segment at a time.

Until a segment has its index, readers skip chunks by looking at each header: slower, but never
wrong. So a failure here is logged, and left at that.

Which segment is next is decided here, for all streams; the work on its files belongs to the stream
(log_maintenance.py), so that nobody removes or renames them meanwhile.
"""

import logging
from collections import deque
from weakref import ref

import trio

from segments.filter_index import FilterFile
from segments.segment import Segment
from streamd.broker.streams.open_log import OpenLog
from streamd.config import FILTER_INDEX_BYTES
from streamd.net.wakeup import Wakeup

logger = logging.getLogger(__name__)

_OBJECTS_BYTES = 2 << 10  # that an index takes besides its numbers


class Indexer:
    """Builds the filter indexes of segments, for all streams of a server.

    Args:
        max_bytes: that the indexes of sealed segments may take in memory; the newest one stays
            even if it is larger.
    """

    def __init__(self, max_bytes: int = FILTER_INDEX_BYTES) -> None:
        self._requesting: dict[OpenLog, None] = {}
        self._work = Wakeup()
        self._loaded: deque[ref[Segment]] = deque()
        self._loaded_bytes = 0
        self._max_bytes = max_bytes

    def index_requested(self, opened: OpenLog) -> None:
        """A stream has segments that need an index."""
        self._requesting[opened] = None
        self._work.set()

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            while self._requesting:
                opened = next(iter(self._requesting))
                del self._requesting[opened]
                for segment in opened.log.indexes.take_requests():
                    if await opened.build_index(segment):
                        self._count(segment)
                    await trio.lowlevel.checkpoint()
            await self._work.wait()

    def _count(self, segment: Segment) -> None:
        """An index was loaded: release the oldest ones beyond the limit, until they are needed.

        A quarter more than has to go, so that this is not done for each one.
        """
        self._loaded.append(ref(segment))
        self._loaded_bytes += _size(segment)
        if self._loaded_bytes <= self._max_bytes:
            return
        found = dict.fromkeys(one for at in self._loaded if (one := at()) is not None)
        self._loaded_bytes = sum(map(_size, found))  # some were released elsewhere
        for oldest in list(found):
            if self._loaded_bytes <= self._max_bytes * 3 // 4 or oldest is segment:
                break
            self._loaded_bytes -= _size(oldest)
            oldest.drop_filters()
        self._loaded = deque(ref(one) for one in found if _size(one))


def _size(segment: Segment) -> int:
    """Bytes that the loaded index of a sealed segment takes."""
    filters = segment.filters
    return filters.num_bytes + _OBJECTS_BYTES if isinstance(filters, FilterFile) else 0
