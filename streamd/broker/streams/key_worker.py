"""The process that makes key tables: started for the first job, ended when there is none for long.

It may be killed at any time, and cannot end the server: its job is tried again in a new process. A
job that is cancelled ends the process, too: when that is over, nothing is done with the files any
more. See streamd/net/worker.py.
"""

import sys

from segments import StorageError
from segments.derived.key_files import KeyJob
from segments.derived.key_worker import Answer, decode_answer, encode_job
from streamd.net import threads
from streamd.net.worker import GARBAGE, WorkerDied, WorkerProcess

_PROGRAM = (
    "from streamd.net.serve import serve; from segments.derived.key_worker import NICE, answered; "
    "serve(answered, NICE)"
)


async def _start() -> WorkerProcess:
    try:
        return await WorkerProcess.start(_PROGRAM)
    except OSError as error:
        raise StorageError("start", sys.executable, error) from error
    except RuntimeError as error:
        raise threads.NoThread from error


class KeyWorker:
    """Has key tables made, one at a time."""

    def __init__(self) -> None:
        self._process: WorkerProcess | None = None

    @property
    def pid(self) -> int | None:
        """The process id; None while there is no process."""
        return self._process.pid if self._process is not None else None

    async def make(self, job: KeyJob) -> Answer:
        """Do a job; when this raises, and when it is cancelled, nothing is done with it any more.

        Raises:
            WorkerDied: the process has ended meanwhile, or the system gives none.
        """
        try:
            if self._process is None:
                self._process = await _start()
            return decode_answer(await self._process.ask(encode_job(job)))
        except StorageError as error:
            if not error.is_temporary:
                raise WorkerDied(str(error)) from error
            return Answer(str(error), is_temporary=True)
        except (ValueError, TypeError) as error:  # another version was installed meanwhile, say
            await self.end()
            raise WorkerDied(GARBAGE) from error
        except BaseException:
            await self.end()
            raise

    async def end(self) -> None:
        """End the process; a new one is started for the next job."""
        process, self._process = self._process, None
        if process is not None:
            await process.end()
