"""Filter indexes of segments, built and opened beside the event loop, one segment at a time.

Until a segment has its index, readers skip chunks by looking at each header: slower, but never
wrong. So a failure here is logged, and left at that.

Which segment is next is decided here, for all streams; the work on its files belongs to the stream
(log_maintenance.py), so that nobody removes or renames them meanwhile.
"""

import logging
import resource
from collections import deque
from typing import Protocol
from weakref import ref

import trio

from segments.segment import Segment
from streamd.net.wakeup import Wakeup

logger = logging.getLogger(__name__)

_MOST_MAPPED = 30_000  # Linux lets a process have 65,530 maps of all kinds


class Indexed(Protocol):
    """A stream, as far as this module is concerned."""

    name: str

    def take_index_requests(self) -> list[Segment]:
        """Segments that need an index, or have one in memory that can be written."""

    async def build_index(self, segment: Segment) -> bool:
        """Give a segment its index; whether its file is mapped now."""


class Indexer:
    """Builds the filter indexes of segments, for all streams of a server."""

    def __init__(self) -> None:
        self._requesting: dict[Indexed, None] = {}
        self._work = Wakeup()
        self._mapped: deque[ref[Segment]] = deque()
        self._most_mapped = most_mapped()

    def index_requested(self, stream: Indexed) -> None:
        """A stream has segments that need an index."""
        self._requesting[stream] = None
        self._work.set()

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            while self._requesting:
                stream = next(iter(self._requesting))
                del self._requesting[stream]
                for segment in stream.take_index_requests():
                    if await stream.build_index(segment):
                        self._count(segment)
                    await trio.lowlevel.checkpoint()
            await self._work.wait()

    def _count(self, segment: Segment) -> None:
        """A file is mapped: unmap the oldest ones beyond the limit, until they are needed."""
        self._mapped.append(ref(segment))
        while len(self._mapped) > self._most_mapped:
            oldest = self._mapped.popleft()()
            if oldest is not None and oldest is not segment:
                oldest.drop_filters()


def most_mapped() -> int:
    """How many filter files may be mapped: each takes a descriptor, and others need some, too."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, min(soft // 8, _MOST_MAPPED))
