"""Filter indexes of segments, built and opened beside the event loop, one segment at a time.

Until a segment has its index, readers skip its chunks by looking at each header: slower, but
never wrong. So a failure here is logged, and nothing else happens.
"""

import logging
import resource
from collections import deque
from weakref import ref

import trio

from segments import Log, SegmentsError
from segments.filter_files import load_or_build, save
from segments.filter_index import FilterFile, FilterIndex, Index
from segments.segment import Segment
from streamd.broker import threads
from streamd.net.wakeup import Wakeup

logger = logging.getLogger(__name__)

_MOST_MAPPED = 30_000  # Linux lets a process have 65,530 maps of all kinds


class Indexer:
    """Builds the filter indexes of segments, for all streams of a server."""

    def __init__(self) -> None:
        self._logs: dict[str, Log] = {}
        self._work = Wakeup()
        self._mapped: deque[ref[Segment]] = deque()
        self._most_mapped = most_mapped()

    def index_requested(self, log: Log) -> None:
        """A log has segments that need an index, or that are sealed with one in memory."""
        self._logs[log.folder] = log
        self._work.set()

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._work.wait()
            logs, self._logs = self._logs, {}
            for log in logs.values():
                for segment in log.take_index_requests():
                    await self._give(log, segment)
                    segment.index_done()

    async def _give(self, log: Log, segment: Segment) -> None:
        size = log.indexed_size(segment)
        in_memory = segment.filters if log.is_sealed(segment) else None
        try:
            if isinstance(in_memory, FilterIndex):
                filters: Index | None = await threads.in_thread(save, segment, in_memory)
            else:
                is_sealed = log.is_sealed(segment)
                filters = await threads.in_thread(load_or_build, segment, size, is_sealed)
        except SegmentsError as error:
            if log.keeps(segment):  # retention, or a deletion, may have been faster
                logger.warning("no filter index for %s: %s", segment.path(), error)
            segment.index_failed()
            return
        except Exception:  # a bug: without an index filters are slower, but correct
            logger.exception("no filter index for %s", segment.path())
            segment.index_failed()
            return
        if log.is_closed:
            return  # in a folder that may be another stream's by now
        if not log.keeps(segment):
            await threads.in_thread(segment.remove)
        elif filters is not None:
            log.adopt_filters(segment, filters, size)
            if segment.filters is filters and isinstance(filters, FilterFile):
                self._count(segment)
        await trio.lowlevel.checkpoint()

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
    return max(1, min(soft // 4, _MOST_MAPPED))
