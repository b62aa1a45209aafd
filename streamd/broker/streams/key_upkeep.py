"""The key indexes of one log: what is made next, what becomes of it, and when to stop trying.

Searches look through chunks that are not indexed, so a failure here makes them slower, and is said
once. A process that dies at its job, as one that is short of memory does, is given the job a few
times.
"""

import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Protocol

import trio

from segments import Log, SegmentsError, StorageError
from segments.atomic_write import TEMPORARY_SUFFIX
from segments.derived.key_files import KeyJob, keys_of
from segments.derived.key_schedule import (
    Task,
    adopt,
    next_growing,
    next_sealed,
    next_unknown,
    oldest_unknown,
    tail_from,
    tidy_up,
)
from segments.derived.key_worker import Answer
from segments.segment import KEYS_SUFFIX, KeyState, Segment
from streamd.broker.streams.log_maintenance import LogMaintenance
from streamd.net import threads
from streamd.net.turns import in_turns
from streamd.net.worker import WorkerDied

logger = logging.getLogger(__name__)

_ATTEMPTS = 3
_FILES_AT_ONCE = 64  # are looked at for somebody who waits; some ms each
# Between two tables of a segment that grows. What comes meanwhile is searched chunk by chunk: some
# 12 µs for each, 2 ms when 200 have come. A table costs some ms of a processor, and 8 KB.
GROWING_SECONDS = 1.0
_SHORTAGE_SECONDS = 30.0  # until a job is tried again for which there was no room, say


class TableMaker(Protocol):
    """Makes key tables beside the event loop."""

    async def make(self, job: KeyJob) -> Answer:
        """Do a job; nothing is done with it any more when this returns, raises or is cancelled.

        Raises:
            WorkerDied: it may be done by another try.
        """


class Progress(Enum):
    """What a step has come to."""

    MADE = "something was done, and there may be more"
    WAITS = "there will be something to do in a while"
    DONE = "there is nothing to do until it is requested again"


class KeyUpkeep:
    """Keeps the key indexes of one log.

    Args:
        name: of the stream, for messages to people.
        maintenance: of the same log, which knows whether it may still be touched.
    """

    def __init__(self, name: str, log: Log, maintenance: LogMaintenance) -> None:
        self._name = name
        self._log = log
        self._maintenance = maintenance
        self._attempts: Counter[int] = Counter()  # by base offset
        self._reads_all = self._has_begun = False
        self._looked_at: Segment | None = None  # the newest one when all sealed ones had a table
        self._not_before = self._growing_from = 0.0
        self._has_warned = False

    def properties_changed(self) -> None:
        """Other properties are keys now: look at the files of all segments."""
        self._reads_all = True
        self._attempts.clear()
        self.look_again()
        for segment in self._log.segments.shown:
            if segment.key_state is KeyState.FAILED:
                segment.key_state = KeyState.KNOWN

    def look_again(self) -> None:
        """Sealed segments may lack a table that had one."""
        self._looked_at = None

    async def look_at_some(self) -> None:
        """Look at the key files that nobody has looked at: at some now, at the others soon."""
        for _ in range(_FILES_AT_ONCE):
            segment = next_unknown(self._log)
            if segment is None or self._log.is_closed or self._maintenance.held.is_stopped:
                return
            await self.load(segment)
            if segment.key_state is KeyState.UNKNOWN:
                return  # it has gone
        self._reads_all = True
        self.look_again()

    async def load(self, segment: Segment) -> None:
        """Look at the key file of a segment, so that `keys_of` need not."""
        if segment.key_state is not KeyState.UNKNOWN:
            return
        async with self._maintenance.held.holding(segment) as is_held:
            if is_held:
                with suppress(threads.NoThread):  # rebuilt then
                    await threads.in_thread(keys_of, segment)
                if segment.key_state is KeyState.UNKNOWN:  # it cannot be opened now
                    segment.key_state = KeyState.KNOWN

    async def step(self, maker: TableMaker) -> Progress:
        """Do the next piece of work, if there is one."""
        try:
            progress = await self._step(maker)
        except Exception:
            self._log.indexes.keys_requested = False
            raise
        if progress is Progress.DONE:
            self._log.indexes.keys_requested = False
            self._log.indexes.keys_wanted_from = tail_from(self._log)
            self.look_again()
        return progress

    async def _step(self, maker: TableMaker) -> Progress:
        log = self._log
        if log.is_closed or self._maintenance.held.is_stopped:
            return Progress.DONE
        if trio.current_time() < self._not_before or self._maintenance.is_truncating:
            return Progress.WAITS
        if not self._has_begun:
            self._has_begun = True
            await self._look_at_oldest()
        if self._reads_all:
            segment = next_unknown(log)
            if segment is not None:
                await self.load(segment)
                return Progress.MADE
            self._reads_all = False
        newest = log.segments.shown[-1]
        task = None if self._looked_at is newest else await self._next_sealed()
        if task is None:
            if log.segments.shown[-1] is not newest:
                return Progress.MADE  # one was sealed meanwhile
            self._looked_at = newest
            return await self._grow(maker)
        await self._make(maker, task)
        return Progress.MADE

    async def _grow(self, maker: TableMaker) -> Progress:
        """Make the next table of the segment that grows, if there is one, and it is time."""
        task = next_growing(self._log)
        if task is None:
            return Progress.DONE
        if trio.current_time() < self._growing_from:
            return Progress.WAITS
        await self._make(maker, task)
        self._growing_from = trio.current_time() + GROWING_SECONDS
        return Progress.MADE

    async def _look_at_oldest(self) -> None:
        """Find out whether other properties became keys, and not all was indexed for them.

        The oldest segment is the last one for which that is done.
        """
        oldest = oldest_unknown(self._log)
        if oldest is not None:
            await self.load(oldest)
            known, properties = oldest.keys, self._log.policy.key_properties
            if known is not None and known.properties != properties:
                self._reads_all = True

    async def _next_sealed(self) -> Task | None:
        """The table of the newest sealed segment that has none; others have their turns."""
        async for segment in in_turns(self._log.segments.shown[::-1]):
            self._say_fault(segment)
            task = next_sealed(self._log, (segment,))
            if task is not None:
                return task
        return None

    def _say_fault(self, segment: Segment) -> None:
        index = segment.keys
        fault = segment.key_fault or (index.fault if index is not None else "")
        if fault:
            path = segment.path(KEYS_SUFFIX) if index is None else index.path
            logger.warning("rebuilding %s: %s", path, fault)
            segment.key_fault, segment.keys = "", None

    async def _make(self, maker: TableMaker, task: Task) -> None:
        answers: list[Answer] = []  # none when it was stopped
        async with self._maintenance.held.holding(task.segment) as is_held:
            if is_held:
                answers.append(await self._answer(maker, task))
        for answer in answers:
            if answer.fault:
                self._failed(task, answer)
            else:
                self._attempts.pop(task.segment.base_offset, None)
                self._has_warned = False

    async def _answer(self, maker: TableMaker, task: Task) -> Answer:
        is_made = False
        try:
            answer = await maker.make(task.job)
            is_made = not answer.fault
        except WorkerDied as error:
            return Answer(str(error), has_died=True)
        finally:
            if not is_made:
                with trio.CancelScope(shield=True):
                    await self._carry_out(_clean_up, task)
        return await self._adopt(task) if is_made else answer

    async def _adopt(self, task: Task) -> Answer:
        try:
            index = await threads.in_thread(adopt, task)
        except SegmentsError as error:
            return Answer(str(error), isinstance(error, StorageError) and error.is_temporary)
        if self._log.keeps(task.segment):
            task.segment.keys = index
        await self._carry_out(tidy_up, task)
        return Answer()

    def _may_try_again(self, segment: Segment) -> bool:
        self._attempts[segment.base_offset] += 1
        return self._attempts[segment.base_offset] < _ATTEMPTS

    def _failed(self, task: Task, answer: Answer) -> None:
        segment, path = task.segment, task.job.path
        if answer.is_temporary:
            if not self._has_warned:
                logger.warning("%s will be built later: %s", path, answer.fault)
            self._has_warned = True
            self._not_before = trio.current_time() + _SHORTAGE_SECONDS
        elif (task.job.tables or answer.has_died) and self._may_try_again(segment):
            segment.keys = None  # perhaps its tables are damaged
        else:
            level = logging.ERROR if answer.is_bug else logging.WARNING
            logger.log(level, "no key index for %s: %s", segment.path(), answer.fault)
            segment.drop_keys()

    async def _carry_out(self, work: Callable[[Task], None], task: Task) -> None:
        """Remove files in a thread."""
        try:
            await threads.in_thread(work, task)
        except StorageError as error:
            logger.warning("stream %s: %s", self._name, error)


def _clean_up(task: Task) -> None:
    """Remove what a process may have left that has not done its job."""
    task.segment.disk.remove(task.job.path + TEMPORARY_SUFFIX)
