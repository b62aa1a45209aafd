"""Work in threads, when the system gives none."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from segments.errors import StorageError
from streamd.net import threads


@pytest.mark.parametrize("num_refused", [0, 1, 3])
async def test_what_is_computed_waits_for_a_thread(
    monkeypatch: pytest.MonkeyPatch, num_refused: int
) -> None:
    asked_at: list[float] = []

    async def run_sync(work: Callable[[], Any]) -> Any:
        await trio.lowlevel.checkpoint()
        asked_at.append(trio.current_time())
        if len(asked_at) <= num_refused:
            raise RuntimeError("can't start new thread")
        return work()

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
    assert await threads.compute(lambda: 7) == 7
    assert [time - asked_at[0] for time in asked_at] == list(range(num_refused + 1))


async def test_a_fault_of_the_work_is_not_tried_again() -> None:
    num_runs = 0

    def work() -> None:
        nonlocal num_runs
        num_runs += 1
        raise StorageError("read", "a file", OSError(5, "no"))

    with pytest.raises(StorageError, match="cannot read a file"):
        await threads.compute(work)
    assert num_runs == 1


async def test_work_in_threads_of_its_own_is_abandoned() -> None:
    """A store that does not answer keeps neither the end of the server nor anybody's thread."""
    limiter, goes_on = trio.CapacityLimiter(1), threading.Event()
    default = trio.to_thread.current_default_thread_limiter()

    async def work() -> None:
        threads.use(limiter)
        await threads.in_thread(goes_on.wait, 60)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            await wait_all_tasks_blocked()
            assert (limiter.borrowed_tokens, default.borrowed_tokens) == (1, 0)
            nursery.cancel_scope.cancel()
        assert not goes_on.is_set()
    finally:
        goes_on.set()


@pytest.mark.parametrize("num_threads", range(5))
def test_what_is_asked_together_needs_no_thread(
    monkeypatch: pytest.MonkeyPatch, num_threads: int
) -> None:
    """Where the system gives fewer threads than there are items, or none."""
    start, begun = threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        if len(begun) == num_threads:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert threads.together(lambda item: item * item, range(4)) == [0, 1, 4, 9]
