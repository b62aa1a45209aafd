"""Takes turns: a few streams at once, one step each, in the order in which they asked.

A stream that fails waits, twice as long each time, with some of it by chance; it keeps no other
waiting. While the store itself is away nobody has a turn: `may_work` says so.
"""

import heapq
import itertools
import logging
from collections import deque
from collections.abc import Callable

import trio

from segments import SegmentsError
from segments.store.object_store import TierError
from streamd.broker.supervisor import Supervisor
from streamd.broker.tier.pauses import FIRST_PAUSE, LONGEST_PAUSE, next_pause, shortened
from streamd.broker.tier.stream_tier import TieredStream
from streamd.net.wakeup import Wakeup

logger = logging.getLogger(__name__)

AT_ONCE = 4  # streams
UPLOADING = "uploading to the tier"


class Uploader:
    """Gives streams their turns.

    Args:
        may_work: this server has the tier, and the store answers.
        failed: hears of a store that has refused, or did not answer.

    Attributes:
        streams: of whom a step is being done.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        may_work: Callable[[], bool],
        failed: Callable[[TierError], None],
    ) -> None:
        self.streams: dict[TieredStream, None] = {}
        self._supervisor = supervisor
        self._may_work = may_work
        self._failed = failed
        self._ready: deque[TieredStream] = deque()
        self._timed: list[tuple[float, int, TieredStream]] = []
        self._count = itertools.count()
        self._work = Wakeup()
        self._has_left = trio.lowlevel.ParkingLot()

    def wants(self, stream: TieredStream) -> None:
        """A stream has something to do; while it is paused after a failure it has to wait."""
        if stream.pause and stream.due_at is not None:
            return
        if not stream.is_queued:
            stream.is_queued = True
            self._ready.append(stream)
            self._work.set()

    def wants_at(self, stream: TieredStream, seconds: float) -> None:
        """A stream will have something to do."""
        due_at = trio.current_time() + seconds
        if stream.due_at is None or due_at < stream.due_at:
            stream.due_at = due_at
            heapq.heappush(self._timed, (due_at, next(self._count), stream))
            self._work.set()

    def look(self) -> None:
        """Whether anybody may work has changed."""
        self._work.set()

    @property
    def is_busy(self) -> bool:
        """Somebody has a turn, or waits for one."""
        return bool(self._ready or self.streams)

    async def left(self, stream: TieredStream) -> None:
        """Return when no step of a stream is being done."""
        while stream in self.streams:
            await self._has_left.park()

    async def run(self) -> None:
        """Give turns until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._take_due()
                while self._ready and len(self.streams) < AT_ONCE and self._may_work():
                    self._begin(nursery)
                with trio.move_on_at(self._timed[0][0] if self._timed else float("inf")):
                    await self._work.wait()

    def _take_due(self) -> None:
        now = trio.current_time()
        while self._timed and self._timed[0][0] <= now:
            due_at, _, stream = heapq.heappop(self._timed)
            if stream.due_at == due_at:
                stream.due_at = None
                if not stream.is_queued:
                    stream.is_queued = True
                    self._ready.append(stream)

    def _begin(self, nursery: trio.Nursery) -> None:
        """Begin a step of the next stream, unless one is being done: then it is the last again."""
        for _ in range(len(self._ready)):
            stream = self._ready.popleft()
            if stream not in self.streams:
                stream.is_queued = False
                self.streams[stream] = None
                nursery.start_soon(self._step, stream, name=UPLOADING)
                return
            self._ready.append(stream)
        self._waiting_only()

    def _waiting_only(self) -> None:
        """All that are ready have a step that is being done; they follow when it ends."""
        for stream in self._ready:
            stream.is_queued = False
            stream.asked_again = True
        self._ready.clear()

    async def _step(self, stream: TieredStream) -> None:
        again: float | None = None
        try:
            again = await stream.step()
            self._went_well(stream)
        except TierError as error:
            again = self._pause(stream)
            self._failed(error)
            self._say(stream, error)
        except SegmentsError as error:
            again = self._pause(stream)
            self._say(stream, error)
        except Exception as error:  # noqa: BLE001 - a bug: it stays in this stream
            again = LONGEST_PAUSE
            self._supervisor.failed(UPLOADING, stream.name, error)
        finally:
            self.streams.pop(stream, None)
            self._has_left.unpark_all()
            self._work.set()
        asked_again, stream.asked_again = stream.asked_again, False
        if again is not None and again > 0 and not stream.is_gone:
            self.wants_at(stream, again)
        if (asked_again or again == 0) and not stream.is_gone:
            self.wants(stream)

    def _went_well(self, stream: TieredStream) -> None:
        if stream.pause:
            logger.info("stream %s is uploaded to the tier again", stream.name)
            stream.pause, stream.fault = 0.0, ""

    def _pause(self, stream: TieredStream) -> float:
        stream.due_at = None  # an earlier time is of no use
        pause = next_pause(stream.pause)
        stream.pause = pause
        return shortened(pause)

    def _say(self, stream: TieredStream, error: SegmentsError) -> None:
        stream.fault = str(error)
        if not stream.is_fenced and stream.pause == FIRST_PAUSE:
            logger.warning("stream %s will be uploaded to the tier later: %s", stream.name, error)
