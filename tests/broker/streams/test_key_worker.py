"""The process that makes key tables: a real one, that is killed, cancelled and left alone."""

import os
import signal
import subprocess
import sys
from errno import EAGAIN, EMFILE
from pathlib import Path

import pytest
import trio

from segments import Log, LogPolicy
from segments.codec import FILE_HEADER_SIZE
from segments.derived.key_files import KeyJob, keys_of
from segments.derived.key_schedule import adopt, next_task
from segments.derived.key_worker import Answer
from segments.keys.index import Place
from streamd.broker.streams import key_worker
from streamd.broker.streams.key_worker import KeyWorker
from streamd.net.worker import WorkerDied
from tests.segments.derived.test_key_files import chunks_with, message
from tests.support.logs import append

START = Place(0, FILE_HEADER_SIZE, 0)


def endless(folder: Path) -> KeyJob:
    """A job that waits for what never comes."""
    os.mkfifo(folder / f"{0:020d}.segment")
    return KeyJob(str(folder), 0, Place(1, 100, 1), ("k",), (), START, 0, is_sealed=True)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


async def test_it_makes_tables_one_after_the_other(tmp_path: Path) -> None:
    log = Log.open(str(tmp_path), LogPolicy(max_segment_chunks=4, key_properties=("k",)))
    for number in range(10):
        append(log, [message(number)])
    worker = KeyWorker()
    assert worker.pid is None
    pids = set()
    while (task := next_task(log)) is not None:
        assert await worker.make(task.job) == Answer()
        pids.add(worker.pid)
        task.segment.keys = adopt(task)
    assert [chunks_with(segment, 5) for segment in log.segments.shown[:2]] == [[], [1]]
    assert (await worker.make(task_of_nowhere(tmp_path))).fault
    (pid,) = pids
    assert pid is not None
    assert os.getpriority(os.PRIO_PROCESS, pid) >= min(19, os.getpriority(os.PRIO_PROCESS, 0) + 12)
    assert worker.pid == pid
    await worker.end()
    assert not is_alive(pid)
    await worker.end()
    assert all(keys_of(segment) for segment in log.segments.shown[:2])
    log.close()


def task_of_nowhere(folder: Path) -> KeyJob:
    return KeyJob(str(folder / "x"), 0, Place(1, 100, 1), ("k",), (), START, 0, is_sealed=True)


async def test_one_that_may_not_lower_its_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the unit for systemd, which allows no call of that kind."""
    refusing = "def refuse(*_): raise PermissionError(1, 'x')\nimport os; os.nice = refuse\n"
    monkeypatch.setattr(key_worker, "_PROGRAM", refusing + key_worker._PROGRAM)
    worker = KeyWorker()
    answer = await worker.make(task_of_nowhere(tmp_path))
    assert answer.fault
    assert not answer.is_bug
    assert Path(f"/proc/{worker.pid}/oom_score_adj").read_text() == "1000\n"
    await worker.end()


async def test_one_that_is_killed(tmp_path: Path) -> None:
    worker, job = KeyWorker(), endless(tmp_path)
    async with trio.open_nursery() as nursery:

        async def kill() -> None:
            while worker.pid is None:
                await trio.lowlevel.checkpoint()
            os.kill(worker.pid, signal.SIGKILL)

        nursery.start_soon(kill)
        with pytest.raises(WorkerDied):
            await worker.make(job)
    assert worker.pid is None
    assert (await worker.make(task_of_nowhere(tmp_path))).fault, "there is another one"
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - it is dead
    with pytest.raises(WorkerDied):
        await worker.make(job)
    await worker.end()


async def test_one_whose_job_is_cancelled(tmp_path: Path) -> None:
    """When that is over, nothing is done with the files any more."""
    worker, job = KeyWorker(), endless(tmp_path)
    pids: list[int] = []
    async with trio.open_nursery() as nursery:

        async def cancel() -> None:
            while worker.pid is None:
                await trio.lowlevel.checkpoint()
            pids.append(worker.pid)
            nursery.cancel_scope.cancel()

        nursery.start_soon(cancel)
        await worker.make(job)
    assert pids
    assert not is_alive(pids[0])
    assert worker.pid is None


async def test_one_that_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = KeyWorker()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(WorkerDied, match="No such file"):
        await worker.make(task_of_nowhere(tmp_path))


@pytest.mark.parametrize("error", [OSError(EAGAIN, "x"), OSError(EMFILE, "x"), RuntimeError()])
async def test_one_for_which_there_is_no_room_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It is no fault of the job, which is tried again for as long as that lasts."""

    async def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(trio.lowlevel, "open_process", refuse)
    answer = await KeyWorker().make(task_of_nowhere(tmp_path))
    assert answer.is_temporary
    assert answer.fault


@pytest.mark.parametrize(
    "said", ["b'garbage'", "b'5'", "b'[1, 2, 3, 4, 5, 6]'", "b'x' * (2 << 20)", "b'\\xff'"]
)
async def test_one_that_answers_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    program = f"from streamd.net.serve import serve; serve(lambda *_: {said}, 0)"
    monkeypatch.setattr(key_worker, "_PROGRAM", program)
    worker = KeyWorker()
    with pytest.raises(WorkerDied, match="something else"):
        await worker.make(task_of_nowhere(tmp_path))
    assert worker.pid is None


_PARENT = """
import sys, trio
from streamd.broker.streams.key_worker import KeyWorker
from tests.broker.streams.test_key_worker import endless
from pathlib import Path
async def main():
    worker = KeyWorker()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.make, endless(Path(sys.argv[1])))
        while worker.pid is None:
            await trio.sleep(0.01)
        print(worker.pid, flush=True)
trio.run(main)
"""


def test_it_ends_with_the_server(tmp_path: Path) -> None:
    """Whatever it is at, and however that has ended."""
    command = [sys.executable, "-c", _PARENT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    descriptor = os.pidfd_open(pid) if is_alive(pid) else -1
    if descriptor >= 0:  # it becomes readable when the process has ended
        import select  # noqa: PLC0415 - only where it is still there

        select.select([descriptor], [], [])
        os.close(descriptor)
    assert not is_alive(pid)
