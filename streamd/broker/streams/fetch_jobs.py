"""Requests to the store that are made for readers of cold segments, and whose turn it is."""

from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import Protocol

from segments import Log
from segments.store.cache import CachedSegment, Pin, Range
from segments.tier.plan import Request

FIRST_PAUSE = 0.1  # seconds, until a request that has failed is made again


class ColdStream(Protocol):
    """A stream, as far as this module is concerned."""

    @property
    def name(self) -> str:
        """For messages to people."""

    @property
    def is_open(self) -> bool:
        """Whether its log is open."""

    @property
    def log(self) -> Log:
        """Its log, while it is open."""


class JobState(Enum):
    """See the table in fetcher.py."""

    QUEUED = "queued"
    RUNNING = "running"
    RESTING = "resting"
    OVER = "over"


class Job:
    """One request to the store, or a file; see the table in fetcher.py."""

    def __init__(self, stream: ColdStream, request: Request) -> None:
        self.stream = stream
        self.cached, self.where, self.suffix = request
        self.state = JobState.QUEUED
        self.users: dict[Asker, None] = {}
        self.pause = FIRST_PAUSE
        self.missing_since: float | None = None

    @property
    def size(self) -> int:
        """Bytes that are asked for."""
        if self.suffix:
            return self.cached.stored.files[self.suffix].size
        return self.where.end - self.where.start

    def overlaps(self, where: Range) -> bool:
        """Whether it brings some of these bytes."""
        return self.where.start < where.end and where.start < self.where.end


class Asker(Protocol):
    """A party that asks for jobs; see `Demand`.

    Attributes:
        needed: that it waits for, of which some may be over.
        soon: that it will need.
    """

    needed: deque[Job]
    soon: deque[Job]

    def job_done(self, job: Job, pin: Pin | None) -> None:
        """A job of its own is over."""


class JobTable:
    """The jobs that are not over."""

    def __init__(self) -> None:
        self._ranges: dict[CachedSegment, list[Job]] = {}
        self._files: dict[tuple[CachedSegment, str], Job] = {}

    def __len__(self) -> int:
        return len(self._files) + sum(map(len, self._ranges.values()))

    def bringing(self, stream: ColdStream, request: Request) -> list[Job]:
        """The jobs that bring what is asked for, as far as it is not here; new ones are made."""
        cached, where, suffix = request
        if suffix:
            job = self._files.get((cached, suffix)) or Job(stream, request)
            self._files[cached, suffix] = job
            return [job]
        if cached.is_gone:
            return []
        pending = self._ranges.get(cached, ())
        found = [job for job in pending if job.overlaps(where)]
        for gap in cached.missing(*where):
            for part in _without(gap, found):
                job = Job(stream, Request(cached, part))
                self._ranges.setdefault(cached, []).append(job)
                found.append(job)
        return found

    def remove(self, job: Job) -> None:
        """Remove a job that is over."""
        if job.suffix:
            self._files.pop((job.cached, job.suffix), None)
            return
        jobs = self._ranges.get(job.cached)
        if jobs is not None and job in jobs:
            jobs.remove(job)
            if not jobs:
                del self._ranges[job.cached]


class Turns:
    """Chooses the job to begin next: round robin, jobs that somebody waits for first."""

    def __init__(self) -> None:
        self._needed: dict[Asker, None] = {}  # in the order of their turns
        self._soon: dict[Asker, None] = {}

    def __len__(self) -> int:
        return len(self._needed) + len(self._soon)

    def add(self, demand: Asker, *, is_needed: bool) -> None:
        """A demand has a job, that it waits for or not."""
        (self._needed if is_needed else self._soon)[demand] = None

    def remove(self, demand: Asker) -> None:
        """A demand wants nothing any more: it has no turn."""
        self._needed.pop(demand, None)
        self._soon.pop(demand, None)

    def next(self) -> Job | None:
        """The next job to begin."""
        for ring, is_needed in ((self._needed, True), (self._soon, False)):
            while ring:
                demand = next(iter(ring))
                del ring[demand]
                queue = demand.needed if is_needed else demand.soon
                job = _first_queued(queue)
                if queue:
                    ring[demand] = None
                if job is not None:
                    return job
        return None


def _first_queued(queue: deque[Job]) -> Job | None:
    while queue:
        job = queue.popleft()
        if job.state is JobState.QUEUED:
            return job
    return None


def _without(gap: Range, jobs: Iterable[Job]) -> list[Range]:
    """What is left of some bytes without those that jobs bring."""
    left: list[Range] = []
    start = gap.start
    for where in sorted(job.where for job in jobs if job.overlaps(gap)):
        if where.start > start:
            left.append(Range(start, where.start))
        start = max(start, where.end)
    if start < gap.end:
        left.append(Range(start, gap.end))
    return left
