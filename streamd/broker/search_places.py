"""Where pages of searches are worked on: beside the engine, or in turns with everything else."""

import logging
from contextlib import closing
from typing import Protocol

import trio

from segments.search.handing import Failed, Fetched, Found, Job, Outcome, Patient, close
from segments.search.worker import decode, encode
from streamd.broker.search_session import Session
from streamd.net.wakeup import Wakeup
from streamd.net.worker import GARBAGE, WorkerDied, WorkerProcess
from streamd.operations.errors import Reason, Refused

logger = logging.getLogger(__name__)

_PROGRAM = (
    "from streamd.net.serve import serve; from segments.search.worker import work; serve(work, 5)"
)
_IDLE_SECONDS = 60.0  # until a process without a search is ended


class Place(Protocol):
    """Where a page is worked on."""

    async def page(self, job: Job, session: Session) -> Outcome:
        """Work on it; the session answers what it asks.

        Raises:
            Refused: it cannot be worked on.
            StorageError: the system refused.
        """

    async def run(self) -> None:
        """See to what is not needed any more, until cancelled."""


class InTurns:
    """In this process: the event loop goes round between two steps, however long they are.

    Attributes:
        rest_seconds: between two steps.
    """

    rest_seconds = 0.0

    async def page(self, job: Job, session: Session) -> Outcome:
        """See Place."""
        from segments.search.handed import conduct  # noqa: PLC0415 - elsewhere as a rule

        answer: Fetched | None = None
        with closing(conduct(job, session.now, trio.current_time)) as steps:
            while True:
                try:
                    asked = steps.send(answer)  # type: ignore[arg-type] # None at the beginning
                except StopIteration as end:
                    outcome: Outcome = end.value
                    return outcome
                answer = None if asked is None else await session.later(asked)
                await trio.sleep(self.rest_seconds)

    async def run(self) -> None:
        """See Place."""


class Beside:
    """In processes, one for each page that is worked on, which are used again.

    One that is cancelled is killed. One that ends otherwise has found a bug, or the system has
    taken its memory: the page is worked on once more.
    """

    def __init__(self) -> None:
        self._idle: list[WorkerProcess] = []
        self._since: dict[WorkerProcess, float] = {}
        self._rested = Wakeup()
        self._is_over = False

    async def page(self, job: Job, session: Session) -> Outcome:
        """See Place."""
        for is_last in (False, True):
            try:
                return await self._page(job, session)
            except WorkerDied as error:
                logger.error("a process that searched has ended: %s", error)
                if is_last:
                    text = "the process that searches has ended twice: search for less at a time"
                    raise Refused(Reason.NOT_AVAILABLE, text) from None
        raise AssertionError

    async def _page(self, job: Job, session: Session) -> Outcome:
        worker = await self._worker()
        try:
            message, files = encode(job)
            while True:
                try:
                    said = await worker.ask(message, [file.fileno() for file in files.values()])
                finally:
                    close(files)
                asked = decode(said)
                if isinstance(asked, Found | Failed):
                    break
                if isinstance(asked, Patient):
                    message, files = encode(await session.later(asked))
                else:
                    message, files = encode(session.now(asked))
        except ValueError as error:  # another version was installed meanwhile, say
            await worker.end()
            raise WorkerDied(GARBAGE) from error
        except BaseException:
            await worker.end()
            raise
        if self._is_over:
            await worker.end()
        else:
            self._idle.append(worker)
            self._since[worker] = trio.current_time()
            self._rested.set()
        return asked

    async def _worker(self) -> WorkerProcess:
        if self._idle:
            worker = self._idle.pop()
            del self._since[worker]
            return worker
        try:
            return await WorkerProcess.start(_PROGRAM)
        except (OSError, RuntimeError) as error:
            raise WorkerDied(str(error)) from error

    async def run(self) -> None:
        """See Place."""
        self._is_over = False
        try:
            while True:
                await self._rested.wait()
                while self._idle:
                    ends_at = self._since[self._idle[0]] + _IDLE_SECONDS
                    if trio.current_time() >= ends_at:
                        await self._end_first()
                    else:
                        await trio.sleep_until(ends_at)
        finally:
            self._is_over = True
            while self._idle:
                await self._end_first()

    async def _end_first(self) -> None:
        worker = self._idle.pop(0)
        del self._since[worker]
        await worker.end()
