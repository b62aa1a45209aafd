"""Two nodes as processes: sequences of events under which passing on breaks what was promised."""

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.test_nodes import GUEST, _Two, two
from tests.support.process import ServerProcess, run_streamd

__all__ = ["two"]


@pytest.fixture
def started() -> Iterator[list[ServerProcess]]:
    nodes: list[ServerProcess] = []
    yield nodes
    for node in nodes:
        node.end()


def _node(folder: Path, name: str, *options: str) -> ServerProcess:
    (folder / "tier").mkdir(exist_ok=True)
    tier = ("--tier", (folder / "tier").as_uri(), "--confirm", "store")
    return ServerProcess(folder / name, *tier, "--node", name, *options)


def _pids(node: ServerProcess) -> list[int]:
    pids = [node.pid]
    for pid in pids:
        pids += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return pids


def _num_files(node: ServerProcess) -> int:
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in _pids(node))


def test_the_default_of_advertised_host_makes_no_loop(
    tmp_path: Path, started: list[ServerProcess]
) -> None:
    """As on two machines, of which each is localhost to itself."""
    a = _node(tmp_path, "a", "--host", "127.0.0.2", "--http-port", "0")
    started.append(a.start())
    more = ("--max-connections", "100", "--max-http-connections", "50")
    b = _node(tmp_path, "b", "--host", "127.0.0.1", "--http-port", str(a.http_port), *more)
    b.port = a.port
    started.append(b.start())
    assert (a.role, b.role) == ("leader", "standby")
    most = _num_files(b)
    before = most
    with socket.create_connection(("127.0.0.1", b.port)):
        for _ in range(100):
            time.sleep(0.05)
            most = max(most, _num_files(b))
    assert most - before < 20
    http = httpx.get(f"http://127.0.0.1:{b.http_port}/api/overview", auth=GUEST, timeout=30)
    assert http.status_code == 200
    assert "50 connections are open" not in b.log.read_text()


@pytest.mark.parametrize(
    ("words", "code", "said"), [(["cluster", "status"], None, "node"), (["ping"], 0, "answers")]
)
def test_the_cluster_can_be_looked_at_while_nobody_leads(
    tmp_path: Path, started: list[ServerProcess], words: list[str], code: int | None, said: str
) -> None:
    """The image's HEALTHCHECK pings: three times in vain, and who is to take over is ended."""
    slow = ("--takeover-seconds", "600")
    started.append(_node(tmp_path, "a", *slow).start())
    started.append(_node(tmp_path, "b", *slow).start())
    started[0].kill()
    found = run_streamd(*words, "--uri", started[1].uri, code=code)
    assert said in found.stdout, found.stderr


def test_a_leader_that_is_paused_keeps_nobody_waiting(
    tmp_path: Path, started: list[ServerProcess]
) -> None:
    more = ("--takeover-seconds", "600", "--http-port", "0")
    started.append(_node(tmp_path, "a", *more).start())
    started.append(_node(tmp_path, "b", *more).start())
    stopped = _pids(started[0])
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        url = f"http://localhost:{started[1].http_port}/api/overview"
        assert httpx.get(url, auth=GUEST, timeout=30).status_code == 200
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def test_a_standby_has_descriptors_for_all_that_it_takes(
    tmp_path: Path, started: list[ServerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection that is passed on takes two."""
    started.append(_node(tmp_path, "a").start())
    limited = tmp_path / "limited"
    limited.write_text(f'#!/bin/sh\nulimit -n 256\nexec {sys.executable} "$@"\n')
    limited.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(limited))
    started.append(_node(tmp_path, "b", "--http-port", "0").start())
    b = started[1]
    opened = [socket.create_connection(("localhost", b.port)) for _ in range(128)]
    time.sleep(5)
    for one in opened:
        one.close()
    log = b.log.read_text()
    assert "Too many open files" not in log
    assert "Errno 24" not in log


def test_a_browser_without_tls_can_log_in_at_a_standby(two: _Two) -> None:
    """Where the leader has a port inside TLS, it is asked there, but the browser is not."""
    url = f"http://localhost:{two.standby.http_port}/login"
    form = {"user": "guest", "password": "guest"}
    answer = httpx.post(url, data=form, headers={"origin": url.removesuffix("/login")})
    assert "streamd_session" in answer.headers["set-cookie"]
    assert "secure" not in answer.headers["set-cookie"].lower()


@pytest.mark.parametrize("asked", ["leader", "standby"])
def test_peers_without_a_password_do_not_end_requests_of_users(
    tmp_path: Path, started: list[ServerProcess], asked: str
) -> None:
    for name in ("a", "b"):
        more = (
            "--http-port",
            "0",
            "--max-http-connections",
            "8" if (name == "a") == (asked == "leader") else "50",
        )
        started.append(_node(tmp_path, name, *more).start())
    node = started[asked == "standby"]
    line = f"POST /api/definitions HTTP/1.1\r\nhost: localhost:{node.http_port}\r\n"
    head = line + "authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\ncontent-type: application/json\r\n"
    with socket.create_connection(("localhost", node.http_port)) as user:
        user.sendall(f"{head}content-length: 2\r\n\r\n".encode())
        time.sleep(3)
        others = [socket.create_connection(("localhost", node.http_port)) for _ in range(12)]
        time.sleep(3)
        user.settimeout(30)
        user.sendall(b"{}")
        answer = user.recv(1_000)
        for one in others:
            one.close()
    assert answer.startswith(b"HTTP/1.1 20")
