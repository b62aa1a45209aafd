"""The process that makes key tables: started for the first job, ended when there is none for long.

It may be killed at any time, and cannot end the server: its job is tried again in a new process. It
ends with the server, as it reads jobs from it (segments/derived/key_worker.py). A job that is
cancelled ends the process, too: when that is over, nothing is done with the files any more.
"""

import subprocess
import sys

import trio

from segments import StorageError
from segments.derived.key_files import KeyJob
from segments.derived.key_worker import Answer, decode_answer, encode_job
from streamd.net import threads

# It finds modules where this process does.
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[1:]; from segments.derived.key_worker import main; main()"
)
_READ_BYTES = 1 << 16
_MOST_BYTES = 1 << 20  # of an answer, with a traceback
_GARBAGE = "the process has answered something else than was expected; restart the server"


class WorkerDied(Exception):
    """The process has ended, or cannot be started: its job may be tried again."""


async def _start() -> trio.Process:
    try:
        return await trio.lowlevel.open_process(
            [sys.executable, "-c", _PROGRAM, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        raise StorageError("start", sys.executable, error) from error
    except RuntimeError as error:  # trio starts it in a thread
        raise threads.NoThread from error


def _read(line: bytes) -> Answer:
    try:
        return decode_answer(line)
    except (ValueError, TypeError) as error:  # another version was installed meanwhile, say
        raise trio.BrokenResourceError(_GARBAGE) from error


class KeyWorker:
    """Has key tables made, one at a time."""

    def __init__(self) -> None:
        self._process: trio.Process | None = None

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return self._process.pid if self._process is not None else None

    async def make(self, job: KeyJob) -> Answer:
        """Do a job; when this raises, and when it is cancelled, nothing is done with it any more.

        Raises:
            WorkerDied: the process has ended meanwhile, or the system gives none.
        """
        try:
            process = await self._running()
            assert process.stdin is not None  # noqa: S101 - both are pipes
            await process.stdin.send_all(encode_job(job))
            return _read(await self._line(process))
        except StorageError as error:
            if not error.is_temporary:
                raise WorkerDied(str(error)) from error
            return Answer(str(error), is_temporary=True)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            await self.end()
            raise WorkerDied(str(error) or type(error).__name__) from error
        except BaseException:
            await self.end()
            raise

    async def _running(self) -> trio.Process:
        process = self._process
        if process is None:
            with trio.CancelScope(shield=True):  # or one might run that nobody knows
                self._process = process = await _start()
        assert process is not None  # noqa: S101 - the scope is never cancelled
        return process

    async def _line(self, process: trio.Process) -> bytes:
        assert process.stdout is not None  # noqa: S101 - as above
        line = b""
        while not line.endswith(b"\n"):
            more = await process.stdout.receive_some(_READ_BYTES)
            if not more:
                code = await process.wait()
                raise trio.BrokenResourceError(f"the process has ended with {code}")
            line += more
            if len(line) > _MOST_BYTES:
                raise trio.BrokenResourceError(_GARBAGE)
        return line

    async def end(self) -> None:
        """End the process; a new one is started for the next job."""
        process, self._process = self._process, None
        if process is None:
            return
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    await pipe.aclose()
