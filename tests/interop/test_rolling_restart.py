"""Each node of a cluster is stopped and started again, twice around, while clients use it.

Nothing may be refused to them for good, lost or doubled, and no consumer may miss a message. The
stream is led by the leader of the cluster, or was placed at another node.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from clients import connect
from tests.crash import history
from tests.crash.history import Found, History
from tests.crash.ledger import read_all
from tests.crash.nodes import Cluster
from tests.crash.rstream import Rstream
from tests.interop.test_interop import HERE, LANGUAGES
from tests.support.process import ServerProcess

_STEP_SECONDS = 240
_ROUNDS = 2
_BETWEEN_SECONDS = 3
_OPTIONS = ("--confirm", "store", "--confirm-interval-ms", "50", "--takeover-seconds", "3")
pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]


@pytest.fixture(params=["led by the leader", "placed"])
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    options = ("--leader-locator", "balanced") if request.param == "placed" else ()
    made = Cluster(tmp_path, "file", *_OPTIONS, *options)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def _running(language: str, cluster: Cluster, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A program that publishes and reads, ready to do it."""
    (like,) = (one for one in LANGUAGES if one.folder == language)
    for tool in like.tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed, so {language} is not tried")
    shutil.copytree(HERE / f"rolling_{language}", folder)
    ports = ",".join(str(node.port) for node in cluster.nodes)
    environment = os.environ | {"STREAM_PORTS": ports, "STREAM": "s"}
    *steps, last = like.steps
    for step in steps:
        subprocess.run(step, cwd=folder, env=environment, check=True, timeout=_STEP_SECONDS)
    program = subprocess.Popen(
        last, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout is not None
        line = program.stdout.readline()
        while line and line != "ready\n":  # Go's client logs to its output
            line = program.stdout.readline()
        assert line == "ready\n"
        yield program
    finally:
        program.kill()
        program.wait()


async def _restart_all(
    cluster: Cluster, then: Callable[[ServerProcess], None] = lambda _leader: None
) -> None:
    """Restart each node, twice around; `then` hears of who leads after each."""
    for _ in range(_ROUNDS):
        for node in cluster.nodes:
            await trio.sleep(_BETWEEN_SECONDS)
            await trio.to_thread.run_sync(node.stop)
            await cluster.mend()
            then(await cluster.leader())


async def _create(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.spread()
    async with connect(cluster.nodes[0].uri) as client:
        await client.create("before")  # the first one that is placed is at the first node
        await client.create("s")


async def _read(cluster: Cluster) -> list[Found]:
    return await read_all((await cluster.leader()).uri, "s")


@pytest.mark.parametrize("language", ["go", "java"])
def test_a_rolling_restart(language: str, cluster: Cluster, tmp_path: Path) -> None:
    trio.run(_create, cluster)
    with _running(language, cluster, tmp_path / language) as program:
        trio.run(_restart_all, cluster)
        told = program.communicate("over\n", timeout=_STEP_SECONDS)[0]
    words = told.splitlines()[-1].split()
    found = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    assert found["sent"] > 0
    assert found["failed"] == 0, told
    assert [message.number for message in trio.run(_read, cluster)] == list(
        range(1, found["sent"] + 1)
    ), "numbers are missing, or doubled"
    assert found["read"] == found["sent"], "a consumer has missed some"


def test_a_rolling_restart_of_rstream(cluster: Cluster) -> None:
    """It ends when it loses its server, and sends nothing again: so it is started again."""
    trio.run(_create, cluster)
    told = History()
    program = Rstream(told, "s", "app", pause=0.1)
    starts = [0]

    def start(leader: ServerProcess) -> None:
        program.kill()
        starts.append(len(told.single))
        program.start(leader.port)

    start(cluster.nodes[0])
    trio.run(_restart_all, cluster, start)
    time.sleep(_BETWEEN_SECONDS)
    program.kill()
    messages = trio.run(_read, cluster)
    history.confirmed_at_all(messages, told.single)
    history.ascending(messages)
    assert len(told.single) > starts[-1] > starts[1], "it has not gone on"
