"""Fetching what is read of cold segments: one owner of all requests for it.

Theory of operation. Whoever meets a ColdError asks for what it needs through a `Demand`, which is
his, and reads again when he is told. What is asked for becomes jobs, one for each request to the
store; bytes that are on their way are not asked for again, whoever wants them. A job is in one of
these states:

    state    it                                        leaves it
    QUEUED   waits for its turn                        RUNNING; OVER when nobody wants it any more
    RUNNING  is fetched, in a thread                   OVER; RESTING when that has failed
    RESTING  is to be tried again in a while           QUEUED; OVER when nobody wants it any more
    OVER     its bytes are here, or never will be      never

Turns go round among the demands, so that one that wants much delays no other one; what somebody
waits for goes before what will be needed soon. There are limits on requests and bytes under way,
for all together; requests that fail halve the number, as on a slow line those that are made
together are all late, and each that is answered is one more. A store that is away, or slow, delays
those alone who wait for it: they wait until it is there again, or until they give up. The threads
are those of this module.

What has come is kept (`Pin`) for those who wait for it until they have read it: in a small cache
it might be gone before. The pins of a demand stay until it is told to `release` them, so that
somebody who needs bytes of several places gets them all.
"""

import errno
import logging
import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

import trio

from segments import SegmentsError, StorageError
from segments.segment import (
    DERIVED_SUFFIXES,
    FILTER_SUFFIX,
    INDEX_SUFFIX,
    KEYS_SUFFIX,
    KeyState,
    Segment,
)
from segments.store.cache import CachedSegment, ColdError, Pin, TierCache
from segments.store.manifest_store import still_names
from segments.store.object_store import CutError, MissingError, ObjectStore, TierError
from segments.tier.fetching import BadFileError, Fetched, fetch_file, fetch_range
from segments.tier.plan import Request, aligned
from streamd.broker.streams.fetch_jobs import (
    ColdStream,
    Job,
    JobState,
    JobTable,
    Turns,
)
from streamd.broker.supervisor import Supervisor
from streamd.net import threads

logger = logging.getLogger(__name__)

# As many small requests as a store answers well from one connection pool; each takes a thread.
MAX_REQUESTS = 64
MAX_BYTES = 256 << 20  # asked for at the same time, which are in memory when they come
_LONGEST_PAUSE = 30.0  # seconds, until a request that has failed is made again
_INDEX_SECONDS = 1.0  # after which it is looked whether a filter index is still being loaded
# That an object has to be missing, or cut, before it counts as lost; until it is looked again.
LOST_SECONDS, AGAIN_SECONDS = 30.0, 60.0

Result = TypeVar("Result")


class NoTierError(SegmentsError):
    """What is to be read is in the object store, and this server does not know that."""


class AwayError(SegmentsError):
    """The tier has not answered in time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"this is in the tier, which has not answered within {seconds:g} s; try again later"
        )


class Demand:
    """What one reader wants of the store; made by `Fetcher.demand`, and to be cancelled at last."""

    def __init__(self, fetcher: "Fetcher", stream: ColdStream) -> None:
        self.stream = stream
        self.needed: deque[Job] = deque()
        self.soon: deque[Job] = deque()
        self._fetcher = fetcher
        self._jobs: dict[Job, None] = {}
        self._waits_for: set[Job] = set()
        self._error: ColdError | None = None
        self._callback: Callable[[], None] | None = None
        self._pins: list[Pin] = []

    def want(
        self, error: ColdError, callback: Callable[[], None], requests: Iterable[Request] = ()
    ) -> None:
        """Have fetched what an error asks for; then, or when that cannot be, `callback` is called.

        It is called once, later, unless this is cancelled before. Then it is to be tried again what
        has raised the error.

        Args:
            error: what is needed.
            callback: neither waits nor raises.
            requests: that bring it, and what will be needed soon; see `Reader.missing`.

        Raises:
            NoTierError: the server knows no store.
        """
        self._fetcher.check(self.stream, error)
        self._waits_for.clear()
        self._error, self._callback = error, callback
        for request in requests:
            self._add(request)
        if not error.suffix:
            self._pins.append(error.cached.hold_some(*error.wanted))
            if not self._covers(error):
                self._add_missing(error)
        elif not self._waits_for:
            self._add(Request(error.cached, suffix=error.suffix))
        if not self._waits_for:  # somebody else was faster
            self._fetcher.soon(partial(self._tell, error))
        self._fetcher.schedule()

    def ahead(self, requests: Iterable[Request]) -> None:
        """Have fetched what will be needed soon."""
        for request in requests:
            self._add(request)
        self._fetcher.schedule()

    async def fetch(self, error: ColdError, requests: Iterable[Request] = ()) -> None:
        """Return when what an error asks for is here, or never will be; see `want`.

        Raises:
            NoTierError: see `want`.
        """
        done = trio.Event()
        try:
            self.want(error, done.set, requests)
            await done.wait()
        except BaseException:
            self._callback = None
            raise

    def release(self) -> None:
        """What was needed has been read."""
        pins, self._pins = self._pins, []
        for pin in pins:
            pin.release()
        self._fetcher.pinned.remove(self)

    def stop(self) -> None:
        """Nothing is needed at the moment: nobody is told."""
        self._callback = self._error = None
        self._forget_jobs()
        self.release()

    cancel = stop

    @property
    def is_waiting(self) -> bool:
        """Whether it is still to be told."""
        return self._callback is not None

    def _covers(self, error: ColdError) -> bool:
        """Whether what is here, and the jobs that it waits for, are all that an error asks for."""
        left = error.cached.missing(*error.wanted)
        jobs = [job.where for job in self._waits_for]
        return all(
            any(one.start <= gap.start and gap.end <= one.end for one in jobs) for gap in left
        )

    def _add_missing(self, error: ColdError) -> None:
        segment = self._fetcher.segment_of(self.stream, error.cached)
        if segment is None:
            return  # it is not in the log any more
        try:
            self._add(Request(error.cached, aligned(segment, error.wanted)))
        except ColdError as other:
            self._add(Request(other.cached, suffix=other.suffix), is_needed=True)
        except SegmentsError as fault:
            logger.error("stream %s: %s", self.stream.name, fault)

    def _add(self, request: Request, *, is_needed: bool = False) -> None:
        for job in self._fetcher.jobs.bringing(self.stream, request):
            job.users[self] = None
            self._jobs[job] = None
            is_needed = is_needed or self._needs(job)
            if is_needed:
                self._waits_for.add(job)
            (self.needed if is_needed else self.soon).append(job)
            self._fetcher.turns.add(self, is_needed=is_needed)

    def _needs(self, job: Job) -> bool:
        error = self._error
        if error is None or self._callback is None or job.cached is not error.cached:
            return False
        if job.suffix or error.suffix:
            return job.suffix in (error.suffix, INDEX_SUFFIX)
        return job.overlaps(error.wanted)

    def job_done(self, job: Job, pin: Pin | None) -> None:
        """A job of its own is over."""
        self._jobs.pop(job, None)
        if job not in self._waits_for:
            return
        self._waits_for.discard(job)
        if pin is not None:
            self._pins.append(pin.again())
        if not self._waits_for and self._error is not None:
            self._tell(self._error)

    def _tell(self, error: ColdError) -> None:
        callback = self._callback
        if callback is not None and self._error is error:
            self._callback = self._error = None
            self._fetcher.pinned.add(self)
            callback()

    def _forget_jobs(self) -> None:
        jobs, self._jobs = self._jobs, {}
        self._waits_for.clear()
        self.needed.clear()
        self.soon.clear()
        self._fetcher.turns.remove(self)
        for job in jobs:
            job.users.pop(self, None)
            self._fetcher.left(job)


class Pinned:
    """Demands that have what they waited for and have not read it, the oldest first.

    Those that do not come to read it, as their peers take nothing, are not to fill the disk.
    """

    def __init__(self, cache: TierCache) -> None:
        self._cache = cache
        self._kept: dict[Demand, None] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, demand: Demand) -> None:
        """A demand has what it has waited for, and keeps it until it has been read."""
        self.remove(demand)
        self._kept[demand] = None
        cache = self._cache
        while self._kept and cache.num_bytes > cache.max_bytes + MAX_BYTES:
            oldest = next(iter(self._kept))
            if oldest is demand:
                return
            oldest.release()
            cache.shrink(cache.max_bytes)

    def remove(self, demand: Demand) -> None:
        """A demand has read what it has waited for."""
        self._kept.pop(demand, None)


class Fetcher:
    """Fetches for all readers of a server.

    Attributes:
        num_requests, num_bytes, num_errors: since the start.
        jobs: requests that have not been answered yet.
        turns: whose turn it is.
        pinned: who has what was asked for.
        store_known: it can fetch, as far as is known.
    """

    def __init__(self, cache: TierCache, supervisor: Supervisor) -> None:
        self.cache = cache
        self.num_requests = self.num_bytes = self.num_errors = 0
        self._supervisor = supervisor
        self._store: ObjectStore | None = None
        self.store_known = trio.Event()
        self._limiter = trio.CapacityLimiter(MAX_REQUESTS)
        self.jobs = JobTable()
        self.turns = Turns()
        self.pinned = Pinned(cache)
        self._held_back: Job | None = None
        self._running = self._running_bytes = 0
        self._most = MAX_REQUESTS
        self._is_away = self._is_full = False
        self._told: list[Callable[[], None]] = []
        self._index_loaded = trio.lowlevel.ParkingLot()
        self._lost: list[Job] = []

    def use(self, store: ObjectStore) -> None:
        """Fetch from this store from now on."""
        self._store = store
        self.store_known.set()

    def demand(self, stream: ColdStream) -> Demand:
        """What a reader of a stream wants, nothing as yet."""
        return Demand(self, stream)

    async def retry_cold_read(
        self,
        stream: ColdStream,
        work: Callable[..., Result],
        *arguments: object,
        seconds: float = math.inf,
    ) -> Result:
        """What some work gives that does not wait: all that it needs is fetched, as it comes to it.

        Args:
            stream: whose log it reads; it is held open.
            work: is done anew from its beginning each time.
            arguments: of the work.
            seconds: how long it may take.

        Raises:
            AwayError: it takes longer.
            NoTierError: the server knows no store.
            StorageError: the stream was deleted meanwhile.
        """
        with self.demanded(stream) as demand, trio.move_on_after(seconds):
            while True:
                try:
                    return work(*arguments)
                except ColdError as error:
                    await demand.fetch(error)
                if not stream.is_open:
                    cause = OSError(errno.ENOENT, "the stream was deleted")
                    raise StorageError("read", stream.name, cause)
        raise AwayError(seconds)

    @contextmanager
    def demanded(self, stream: ColdStream) -> Iterator[Demand]:
        """A demand that is cancelled after the block."""
        demand = self.demand(stream)
        try:
            yield demand
        finally:
            demand.cancel()

    def index_loaded(self) -> None:
        """A filter index was loaded, or cannot be."""
        self._index_loaded.unpark_all()

    # -- for demands

    def check(self, stream: ColdStream, error: ColdError) -> None:
        """Raise NoTierError where there is no store."""
        if self._store is None:
            last = error.cached.stored.next_offset
            log = stream.log
            cold = [one.next_offset for one in log.segments.shown if one.cold is not None]
            raise NoTierError(
                f"offsets {log.segments.first_offset} to {max(cold, default=last) - 1} of "
                f"{stream.name} are in the object store; start the server with --tier"
            )

    def soon(self, do: Callable[[], None]) -> None:
        """Do something when those that run have had their turn."""
        self._told.append(do)
        if len(self._told) == 1:
            self._supervisor.start_once("fetching from the tier", self._tell)

    async def _tell(self) -> None:
        told, self._told = self._told, []
        for do in told:
            with self._supervisor.guarded("fetching from the tier"):
                do()

    def segment_of(self, stream: ColdStream, cached: CachedSegment) -> Segment | None:
        """The segment of the log; None where it is not in it any more."""
        if not stream.is_open:
            return None
        segment = stream.log.segments.holding(cached.stored.base_offset)
        return segment if segment.cold is cached else None

    def left(self, job: Job) -> None:
        """Somebody does not want a job any more."""
        if not job.users and job.state in (JobState.QUEUED, JobState.RESTING):
            self._end(job, None)

    # -- turns

    def schedule(self) -> None:
        """Begin as much as may be under way."""
        while self._running < min(self._most, MAX_REQUESTS):
            job = self._held_back or self.turns.next()
            self._held_back = None
            if job is None:
                return
            if job.state is not JobState.QUEUED or not job.users:
                continue
            if self._running and self._running_bytes + job.size > MAX_BYTES:
                self._held_back = job
                return
            job.state = JobState.RUNNING
            self._running += 1
            self._running_bytes += job.size
            self._supervisor.start_once(
                "fetching from the tier", partial(self._run, job), job.stream.name
            )

    async def _run(self, job: Job) -> None:
        threads.use(self._limiter)
        fetched: Fetched | None = None
        is_here = False
        try:
            fetched = await self._fetch(job)
            is_here = True
        except (MissingError, CutError) as error:
            await self._note_missing(job, error)
        except BadFileError as error:
            self._reject(job, str(error))
        except Exception as error:  # noqa: BLE001 - the store's, the disk's, or a bug
            if isinstance(error, StorageError):
                with suppress(SegmentsError):
                    await threads.in_thread(self.cache.shrink, self.cache.num_bytes // 2)
            self._retry_later(job, error)
        finally:
            self._running -= 1
            self._running_bytes -= job.size
        self.schedule()
        if is_here:
            self._accept(job, fetched)
            if job.suffix == FILTER_SUFFIX:
                await self._load_filters(job)
            self._end(job, fetched.pin if fetched is not None else None)
            if fetched is not None:
                fetched.pin.release()
        elif job.state is JobState.RESTING:
            await self._rest(job)

    async def _fetch(self, job: Job) -> Fetched | None:
        store = self._store
        assert store is not None  # noqa: S101 - or nobody could ask
        self.num_requests += 1
        if not job.suffix:
            return await threads.in_thread(fetch_range, store, job.cached, job.where)
        segment = self.segment_of(job.stream, job.cached)
        if segment is None:  # what is beside it is gone, too
            job.cached.is_gone = job.stream.is_open
        elif job.suffix != FILTER_SUFFIX or not _has_file(segment):
            is_wanted = partial(job.stream.log.keeps, segment)
            await threads.in_thread(
                fetch_file, segment.disk, store, job.cached, job.suffix, is_wanted
            )
        return None

    async def _load_filters(self, job: Job) -> None:
        """Wait until a filter index is in memory, or it is known that it cannot be."""
        while (segment := self.segment_of(job.stream, job.cached)) is not None and job.users:
            if segment.filters is not None or segment.damage or not segment.is_indexable:
                return
            job.stream.log.indexes.request(segment)
            with trio.move_on_after(_INDEX_SECONDS):
                await self._index_loaded.park()

    async def _rest(self, job: Job) -> None:
        await trio.sleep(job.pause * random.uniform(0.5, 1))  # noqa: S311 - no secret
        job.pause = min(2 * job.pause, _LONGEST_PAUSE)
        if job.state is JobState.RESTING:
            job.state = JobState.QUEUED
            for demand in job.users:
                demand.needed.append(job)
                self.turns.add(demand, is_needed=True)
            self.schedule()

    # -- what came of it

    def _accept(self, job: Job, fetched: Fetched | None) -> None:
        self.num_bytes += job.size
        self._most = min(self._most + 1, MAX_REQUESTS)
        if self._is_away:
            self._is_away = False
            logger.info("the tier can be read again")
        self._is_full = False
        if fetched is not None and fetched.fault:
            self.num_errors += 1
            logger.error("stream %s: the tier has damaged %s", job.stream.name, fetched.fault)

    async def _note_missing(self, job: Job, error: TierError) -> None:
        """An object is not there, or cut: its segment has left the log, or it is lost, or comes."""
        try:
            is_lost = await self._is_lost(job)
        except Exception as doubt:  # noqa: BLE001 - the store's, or a bug
            job.missing_since = None
            self._retry_later(job, doubt)
            return
        if self.segment_of(job.stream, job.cached) is None:
            job.cached.is_gone = job.stream.is_open
            self._end(job, None)
            return
        now = trio.current_time()
        if job.missing_since is None:
            job.missing_since = now
        if now - job.missing_since < LOST_SECONDS:  # a log that follows another's does so by then
            self._let_rest(job)
        elif is_lost:
            self._lose(job, error)
        else:
            job.cached.is_gone = True
            self._end(job, None)

    async def _is_lost(self, job: Job) -> bool:
        """See `still_names`; False where the log does not have the segment any more."""
        if self.segment_of(job.stream, job.cached) is None:
            return False
        known, store = job.stream.log.stored.manifest, self._store
        assert known is not None and store is not None  # noqa: S101, PT018 - or it was not cold
        return await threads.in_thread(still_names, store, known, job.cached.stored)

    def _lose(self, job: Job, error: TierError) -> None:
        """An object is lost, as far as is known; it is done without, and asked for now and then."""
        segment = self.segment_of(job.stream, job.cached)
        if job.suffix in DERIVED_SUFFIXES or segment is None:
            self._reject(job, str(error))
            return
        if not job.cached.is_gone:
            self.num_errors += 1
            logger.error("stream %s: %s", job.stream.name, error)
            if isinstance(error, CutError):
                with suppress(SegmentsError):
                    segment.mark_missing(*job.where)
            else:
                segment.mark_all_damaged()
                job.cached.is_gone = True
            self._ask_later(job)
        self._end(job, None)

    def _ask_later(self, job: Job) -> None:
        self._lost.append(job)
        if len(self._lost) == 1:
            self._supervisor.start_once("asking for what is lost", self._ask_again)

    async def _ask_again(self) -> None:
        """Somebody may put back what counts as lost: then it is read again."""
        while self._lost:
            await trio.sleep(AGAIN_SECONDS)
            for job in list(self._lost):
                segment = self.segment_of(job.stream, job.cached)
                if segment is None or await self._is_back(job):
                    self._lost.remove(job)

    async def _is_back(self, job: Job) -> bool:
        threads.use(self._limiter)
        try:
            fetched = await self._fetch(job)
        except Exception:  # noqa: BLE001 - the store's, the disk's, or a bug: it is still lost
            return False
        if fetched is not None:
            fetched.pin.release()
        segment = self.segment_of(job.stream, job.cached)
        if segment is not None:
            segment.mark_as_stored()
            job.cached.is_gone = False
            logger.info(
                "stream %s: offsets %s to %s, which were lost, can be read again",
                *(job.stream.name, segment.base_offset, segment.next_offset - 1),
            )
        return True

    def _reject(self, job: Job, reason: str) -> None:
        """A file beside a segment cannot be had: it is done without, if it can be."""
        self.num_errors += 1
        logger.error("stream %s: %s", job.stream.name, reason)
        segment = self.segment_of(job.stream, job.cached)
        if segment is not None and job.suffix == FILTER_SUFFIX:
            segment.index_failed()
        elif segment is not None and job.suffix == KEYS_SUFFIX:
            segment.key_state = KeyState.KNOWN
        elif segment is not None:
            segment.mark_all_damaged()
            job.cached.is_gone = True
            self._ask_later(job)
        self._end(job, None)

    def _retry_later(self, job: Job, error: Exception) -> None:
        """A request has failed: it is made again in a while, if somebody still wants it."""
        self.num_errors += 1
        if isinstance(error, TierError):
            self._most = max(self._most // 2, 1)
        if isinstance(error, StorageError):
            if not error.is_temporary:
                logger.error("stream %s: %s", job.stream.name, error)
            elif not self._is_full:
                self._is_full = True
                logger.error("%s; shrinking the cache of the tier", error)
        elif not isinstance(error, TierError):
            self._supervisor.failed("fetching from the tier", job.stream.name, error)
        elif not self._is_away:
            self._is_away = True
            logger.error("the tier cannot be read; readers keep waiting for it: %s", error)
        self._let_rest(job)

    def _let_rest(self, job: Job) -> None:
        job.state = JobState.RESTING
        self.left(job)

    def _end(self, job: Job, pin: Pin | None) -> None:
        job.state = JobState.OVER
        self.jobs.remove(job)
        users, job.users = job.users, {}
        for demand in users:
            with self._supervisor.guarded("fetching from the tier", job.stream.name):
                demand.job_done(job, pin)


def _has_file(segment: Segment) -> bool:
    """Whether a segment's filter file is here."""
    try:
        segment.open_beside(FILTER_SUFFIX).close()
    except ColdError:
        return False
    return True
