"""A server in several processes: who ends, who is started again, and what others notice of it."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from clients import connect
from streamd.processes import parent
from tests.processes.conftest import Start
from tests.processes.impatient import MODULE, SECONDS
from tests.support.process import PATIENCE_SECONDS, ServerProcess

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


def children(pid: int) -> list[int]:
    """Processes that a process has started and that still run, the oldest first."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            _, _, rest = stat.read_text().rpartition(") ")
        except OSError:
            continue
        state, ppid, *_ = rest.split()
        if int(ppid) == pid and state != "Z":
            found.append(int(stat.parent.name))
    return sorted(found)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def eventually(look: object) -> None:
    assert callable(look)
    end = time.monotonic() + PATIENCE_SECONDS
    while not look():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def server(start: Start) -> ServerProcess:
    return start("--metrics-port", "0")


@pytest.fixture
def impatient(start: Start) -> ServerProcess:
    return start("--metrics-port", "0", module=MODULE)


def scrape(server: ServerProcess) -> str:
    url = f"http://127.0.0.1:{server.metrics_port}/metrics"
    return httpx.get(url, timeout=PATIENCE_SECONDS).text


async def publish(server: ServerProcess, number: int) -> None:
    async with connect(server.uri) as client:
        await client.create("s", exist_ok=True)
        async with client.producer("s") as producer:
            for n in range(number):
                await producer.send(b"%d" % n)


def told(server: ServerProcess, name: str) -> float:
    (line,) = [line for line in scrape(server).splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])


async def test_a_door_that_ends_is_begun_anew_and_the_streams_go_on(server: ServerProcess) -> None:
    engine, door = children(server.pid)
    await publish(server, 100)
    assert told(server, "streamd_stored_messages_total") == 100
    os.kill(door, signal.SIGKILL)
    await publish(server, 50)
    assert told(server, "streamd_stored_messages_total") == 150
    assert [pid for pid in children(server.pid) if pid == engine]
    assert door not in children(server.pid)
    assert "the process for metrics has ended by SIGKILL" in server.log.read_text()


def test_a_door_that_a_signal_without_a_name_ends(server: ServerProcess) -> None:
    _, door = children(server.pid)
    os.kill(door, signal.SIGRTMIN + 5)
    assert told(server, "streamd_stored_messages_total") == 0
    assert f"by signal {signal.SIGRTMIN + 5}" in server.log.read_text()


@contextmanager
def few_files(pid: int) -> Iterator[None]:
    """In this block, a process can open no more files."""
    before = resource.prlimit(
        pid, resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


async def test_a_door_that_cannot_be_started_is_tried_again(server: ServerProcess) -> None:
    engine, door = children(server.pid)
    with few_files(server.pid):
        os.kill(door, signal.SIGKILL)
        eventually(lambda: "the process for metrics cannot be started" in server.log.read_text())
        await publish(server, 10)
    assert told(server, "streamd_stored_messages_total") == 10
    assert engine in children(server.pid)


async def test_a_door_that_does_not_reach_the_engine_is_begun_anew(server: ServerProcess) -> None:
    engine, door = children(server.pid)
    with few_files(engine):  # it gets the door's message, and not the socket in it
        os.kill(door, signal.SIGKILL)
        eventually(lambda: "ended with code 0" in server.log.read_text())
    eventually(lambda: answers(server))


def answers(server: ServerProcess) -> bool:
    try:
        return "streamd_stored_messages_total" in scrape(server)
    except httpx.HTTPError:
        return False


async def test_a_door_that_does_not_answer_is_ended(impatient: ServerProcess) -> None:
    _, door = children(impatient.pid)
    os.kill(door, signal.SIGSTOP)
    await publish(impatient, 10)
    assert told(impatient, "streamd_stored_messages_total") == 10
    assert "has not answered for 3 s" in impatient.log.read_text()


def test_a_parent_that_stood_still_blames_no_door(impatient: ServerProcess) -> None:
    found = children(impatient.pid)
    impatient.signal(signal.SIGSTOP)
    time.sleep(SECONDS + 1)
    impatient.signal(signal.SIGCONT)
    impatient.signal(signal.SIGHUP)  # it looks at once
    time.sleep(parent.BEAT_SECONDS)
    assert children(impatient.pid) == found
    assert "not answered" not in impatient.log.read_text()


def test_an_engine_that_can_be_told_nothing_more_hears_that_it_has_to_stop(
    server: ServerProcess,
) -> None:
    engine, _ = children(server.pid)
    os.kill(engine, signal.SIGSTOP)
    for _ in range(600):
        server.signal(signal.SIGHUP)
        time.sleep(0.003)
    server.signal(signal.SIGTERM)
    eventually(lambda: "SIGTERM: stopping" in server.log.read_text())
    os.kill(engine, signal.SIGCONT)
    assert server.wait() == 0


def test_the_parent_sleeps_while_the_engine_stops(server: ServerProcess) -> None:
    engine, door = children(server.pid)
    os.kill(engine, signal.SIGSTOP)
    server.signal(signal.SIGTERM)
    eventually(lambda: "SIGTERM: stopping" in server.log.read_text())
    os.kill(door, signal.SIGKILL)
    eventually(lambda: not is_running(door))
    used = processor_seconds(server.pid)
    time.sleep(1)
    assert processor_seconds(server.pid) - used < 0.1
    os.kill(engine, signal.SIGCONT)
    assert server.wait() == 0


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_no_process_and_no_lock_outlives_the_parent(server: ServerProcess) -> None:
    found = children(server.pid)
    server.kill()
    eventually(lambda: not any(map(is_running, found)))
    server.start()
    assert scrape(server)


def test_the_engine_ends_the_parent_and_the_doors(server: ServerProcess) -> None:
    engine, door = children(server.pid)
    os.kill(engine, signal.SIGKILL)
    assert server.wait() == 128 + signal.SIGKILL
    assert not is_running(door)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_all_in_order(server: ServerProcess, number: signal.Signals) -> None:
    found = children(server.pid)
    server.signal(number)
    assert server.wait() == 0
    assert not any(map(is_running, found))
    text = server.log.read_text()
    assert f"{number.name}: stopping" in text
    assert "ERROR" not in text


def test_ctrl_c_reaches_all_processes_and_stops_once(server: ServerProcess) -> None:
    """A terminal sends SIGINT to all of them: children leave it to the parent."""
    for pid in (*children(server.pid), server.pid):
        os.kill(pid, signal.SIGINT)
    assert server.wait() == 0
    assert server.log.read_text().count("stopping") == 1


async def test_the_api_and_the_console_are_a_door_of_their_own(start: Start) -> None:
    server = start("--metrics-port", "0", "--http-port", "0")
    engine, api, metrics = children(server.pid)
    url = f"http://127.0.0.1:{server.http_port}"
    login = ("guest", "guest")
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS, auth=login) as http:
        os.kill(api, signal.SIGSTOP)  # so that it cannot answer, nor end
        await publish(server, 10)
        assert told(server, "streamd_stored_messages_total") == 10
        os.kill(api, signal.SIGKILL)
        (stream,) = (await http.get("/api/queues")).json()
        assert (stream["name"], stream["messages"]) == ("s", 10)
        assert (await http.delete("/api/queues/%2F/s")).status_code == 204
        assert (await http.get("/healthz")).status_code == 200
    now = children(server.pid)
    assert {engine, metrics} < set(now)
    assert len(now) == 3
    assert "the process for HTTP has ended by SIGKILL" in server.log.read_text()


@pytest.mark.parametrize("options", [(), ("--single-process",)])
def test_with_a_login(start: Start, options: tuple[str, ...]) -> None:
    settings = ("--metrics-port", "0", "--metrics-login", "on")
    server = start(*settings, *options, module="tests.support.impatient")
    assert len(children(server.pid)) == (0 if options else 2)
    url = f"http://127.0.0.1:{server.metrics_port}/metrics"
    assert httpx.get(url).status_code == 401
    assert httpx.get(url, auth=("guest", "wrong")).status_code == 401
    answer = httpx.get(url, auth=("guest", "guest"))
    assert answer.status_code == 200
    assert 'rabbitmq_auth_attempts_failed_total{protocol="http"} 1\n' in answer.text


def test_what_cannot_start_says_so_once(server: ServerProcess) -> None:
    command = ["serve", "--data", str(server.data), "--stream-port", "0", "--amqp-port", "off"]
    found = subprocess.run(
        [sys.executable, "-m", "streamd", *command, "--http-port", "off", "--metrics-port", "0"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 1
    assert found.stderr.count("another server uses the data folder") == 1
    assert found.stdout == ""
