"""Background tasks: a fault stays in its task, for every task that there is."""

import ast
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path

import pytest
import trio

from streamd.broker.supervisor import OverError, Supervisor
from streamd.wire.stream import commands as c
from tests.broker.tier.support import tiered
from tests.support.fake_store import FakeStore
from tests.support.server import FIRST, OK, Harness

ROOT = Path(__file__).parents[2]
# Where tasks may be started without the supervisor, and what contains their faults.
CONTAINED = {
    "streamd/broker/supervisor.py": "the supervisor itself",
    "streamd/broker/streams/flusher.py": "in a supervised task; Stream.flush raises nothing",
    "streamd/broker/streams/log_keeper.py": "in a supervised task",
    "streamd/broker/tier/patience.py": "what asks, at the start, waits for all of it",
    "streamd/broker/tier/uploader.py": "in a supervised task; a fault in a step is counted",
    "streamd/broker/nodes/node.py": "without heartbeats it is taken over, and so it ends",
    "streamd/broker/nodes/shards.py": "what it starts is supervised, each shard for itself",
    "streamd/connections/stream/node_link.py": "within what one client asks another node for",
    "streamd/connections/stream/forwarding.py": "within what is asked of this node",
    "streamd/connections/stream/remote.py": "in a supervised task of one stream",
    "streamd/broker/tier/wal.py": "in a supervised task, which begins with what it has left",
    "streamd/connections/base.py": "tasks of a connection: BaseConnection.run ends it alone",
    "streamd/connections/doorway.py": "within the guarded task that serves a door",
    "streamd/engine/stream_views.py": "within what a door or a connection asks for",
    "streamd/hop/door.py": "the other end of it",
    "streamd/processes/amqp.py": "a process of its own; what it accepts is guarded",
    "streamd/processes/doors.py": "a process of its own, which the parent begins anew",
    "streamd/net/poller.py": "tasks of the rounds, which run as long as the server",
    "streamd/net/passing.py": "within a connection that is passed on",
    "streamd/connections/passage.py": "within a connection, which ends alone",
    "streamd/http_api/to_leader.py": "within a request",
    "streamd/http_api/unsent.py": "within a request",
    "streamd/http_api/unread.py": "within a request",
    "streamd/http_api/serving.py": "within the supervised task that serves HTTP",
    "streamd/server.py": "accepting, and the orderly end; what is accepted is guarded",
}


def starts(file: Path) -> list[int]:
    """Lines in which a task is started."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "start_soon"
    ]


def kinds_in_source() -> set[str]:
    """What is started by the supervisor, by the names that stand in the source."""
    return {
        node.args[0].value
        for file in (ROOT / "streamd").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in ("start", "start_once")
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    }


def test_tasks_are_started_by_the_supervisor() -> None:
    found = {
        str(file.relative_to(ROOT))
        for file in sorted((ROOT / "streamd").rglob("*.py"))
        if starts(file) and "/cli/" not in str(file)
    }
    assert found <= set(CONTAINED), "a task without a supervisor can end the server"


async def test_a_task_that_fails_runs_again_after_growing_pauses(nursery: trio.Nursery) -> None:
    began_at: list[float] = []

    async def fail() -> None:
        began_at.append(trio.current_time())
        raise RuntimeError

    supervisor = Supervisor(nursery)
    supervisor.start("failing", fail)
    await trio.sleep(200)
    nursery.cancel_scope.cancel()
    pauses = [later - earlier for earlier, later in pairwise(began_at)]
    assert pauses[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert max(pauses) == pytest.approx(30)
    assert supervisor.faults == supervisor.faults_lately() == {"failing": len(began_at)}
    await trio.sleep(3_600)
    assert supervisor.faults == {"failing": len(began_at)}
    assert supervisor.faults_lately() == {}


# These have tests of their own.
ELSEWHERE = {
    "watching the leader",  # of a node: tests/broker/nodes
    "keeping shards",  # the same
    "keeping a shard",  # the same
    "removing what was deleted",  # the same
    "asking another node",  # the same
    "answering a node",  # the same
    "publishing to another node",  # the same
    "leading",  # the same
    "sorting out what an earlier lead has left",  # the same
    "asking for what is lost",  # needs cold segments: tests/broker/tier
    "fetching from the tier",  # the same
    "opening a log",  # is the fault of its stream: test_lifecycle.py
    "reading the log of metadata",  # of a read-only server: broker/nodes/test_shards_read.py
    "following the tier",  # of a read-only server: tier/test_follower.py
    "following write-ahead logs",  # the same: tier/test_wal_readers.py
    "serving HTTP",  # needs sockets: tests/e2e/test_serve.py
    "watching",  # begins with the listeners: tests/e2e/test_troubles.py
    "serving a door",  # needs somebody who asks: tests/hop
    "waiting for room on the disk",  # needs a full disk: test_lifecycle.py
}


async def use(server: Harness) -> None:
    """Something for every background task to do."""
    peer = await server.publisher(
        "s", is_new=True, stream_max_segment_size_bytes="1000", max_age="30s"
    )
    for number in range(5):
        await peer.store([bytes(600)], 2 * number, values=[b"v"])
        await peer.store([b"x"], 2 * number + 1, values=[b"other"])
    reader = await server.consumer("s", FIRST, 100, filter__0="v")
    await reader.bodies(1)
    await reader.send(c.Find(1, "s"))
    await trio.sleep(1)
    await reader.vanish()
    await trio.sleep(200)  # retention, and the log is closed
    await peer.store([b"y"], 100)
    await peer.create("t")
    assert await peer.code(c.Delete, "t") == OK
    await trio.sleep(1)


async def test_a_fault_in_any_task_leaves_the_rest_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: dict[str, None] = {}
    run = Supervisor._keep_running
    run_once = Supervisor._run_once
    failing = ""

    def failing_first(
        kind: str, task: Callable[[], Awaitable[None]]
    ) -> Callable[[], Awaitable[None]]:
        kinds[kind] = None
        num_runs = 0

        async def fail_once() -> None:
            nonlocal num_runs
            num_runs += 1
            if num_runs == 1 and kind == failing:
                raise RuntimeError("injected")
            await task()

        return fail_once

    async def keep_running(self: Supervisor, kind: str, task: object, *rest: object) -> None:
        await run(self, kind, failing_first(kind, task), *rest)  # type: ignore[arg-type]

    async def once(self: Supervisor, kind: str, task: object, *rest: object) -> None:
        await run_once(self, kind, failing_first(kind, task), *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Supervisor, "_keep_running", keep_running)
    monkeypatch.setattr(Supervisor, "_run_once", once)
    async with tiered(tmp_path / "whole", FakeStore()) as server:
        await use(server)
    assert set(kinds) | ELSEWHERE == kinds_in_source(), "a task that nothing here gives work to"
    for failing in [kind for kind in kinds if kind not in ELSEWHERE]:
        async with tiered(tmp_path / failing.replace(" ", "-"), FakeStore()) as server:
            await use(server)
            assert set(+server.server.broker.supervisor.faults) == {failing}


async def test_nothing_is_started_when_it_is_over() -> None:
    async with trio.open_nursery() as nursery:
        supervisor = Supervisor(nursery)
    for start in (supervisor.start, supervisor.start_once):
        with pytest.raises(OverError, match="emptying is over"):
            start("emptying", trio.sleep_forever)
