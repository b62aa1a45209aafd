"""The server as a service: a manager that listens to it, its unit, pings, and its log as JSON."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streamd import __version__
from streamd.config import Config, describe, load
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.codec import encode
from streamd.wire.stream.fields import Pair
from tests.support import seccomp
from tests.support.process import ServerProcess, run_streamd
from tests.support.tls import TlsServer

UNIT = Path(__file__).parent.parent.parent / "streamd" / "cli" / "streamd.service"
LOW_PRIORITY = 12  # of the process that indexes keys, than that of the server
KEYS = ["time", "level", "logger", "message"]
ABOUT = {"stream", "connection", "user", "vhost", "protocol", "exception"}


streamd = partial(run_streamd, code=0)


class TestManager:
    def test_a_life(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As with Type=notify: ready, alive, reloaded and stopped are all told."""
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        process = ServerProcess(tmp_path / "data")

        def hear(*wanted: str) -> None:
            rest = list(wanted)
            while rest:
                for line in manager.recv(4_096).decode().split("\n"):
                    if rest and re.fullmatch(rest[0], line):
                        rest.pop(0)

        with manager, process:
            hear("READY=1")
            hear("STATUS=0 streams, 0 connections")
            hear("WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1")
            process.signal(signal.SIGHUP)
            hear("RELOADING=1", r"MONOTONIC_USEC=\d+", "READY=1", "WATCHDOG=1")
            assert process.stop() == 0
            hear("STOPPING=1", r"EXTEND_TIMEOUT_USEC=\d+")

    def test_nobody_listens(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nowhere"))
        process = ServerProcess(tmp_path / "data").start()
        assert process.stop() == 0
        assert "the service manager cannot be told anything" in process.log.read_text()


class TestUnit:
    @pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze")
    def test_systemd_accepts_it(self, tmp_path: Path) -> None:
        text = streamd("print", "unit").stdout
        unit = tmp_path / "streamd.service"
        unit.write_text(re.sub("(?<=^ExecStart=)[^ ]+", sys.executable, text, flags=re.MULTILINE))
        verify = ["systemd-analyze", "verify", str(unit)]
        result = subprocess.run(verify, capture_output=True, text=True, check=False)
        assert (result.returncode, result.stderr) == (0, "")
        security = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(unit)]
        result = subprocess.run(security, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result

    def test_it_starts_the_program_that_prints_it(self, tmp_path: Path) -> None:
        program = tmp_path / "a folder" / "bin" / "streamd"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!{sys.executable}\nfrom streamd.__main__ import run\nrun()\n")
        program.chmod(0o755)
        text = subprocess.run(
            [program, "print", "unit"], stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        escaped = str(program).replace(" ", r"\x20")
        (line,) = re.findall("^ExecStart=.*$", text, re.MULTILINE)
        assert line == f"ExecStart={escaped} serve --config ${{CREDENTIALS_DIRECTORY}}/streamd.toml"
        with_program = UNIT.read_text().replace("/opt/streamd/bin/streamd", escaped)
        assert text == with_program

    @pytest.mark.skipif(not seccomp.is_possible(), reason="no libseccomp, or no systemd-analyze")
    def test_the_server_works_under_its_filter(self, tmp_path: Path) -> None:
        hello = UNIT.parent.parent.parent / "examples" / "hello.py"
        wrapped = [sys.executable, "-m", "tests.support.seccomp", str(UNIT), sys.executable]
        ports = [
            "--stream-port",
            "0",
            "--amqp-port",
            "0",
            "--http-port",
            "0",
            "--metrics-port",
            "0",
        ]
        command = [*wrapped, "-m", "streamd", "serve", "--data", str(tmp_path / "data"), *ports]
        log = tmp_path / "log"
        with (
            log.open("w") as stderr,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as server,
        ):
            try:
                assert server.stdout is not None
                port = re.findall(r"stream=\S+:(\d+)", server.stdout.readline())[0]
                uri = f"rabbitmq-stream://guest:guest@localhost:{port}"
                said = subprocess.run(
                    [sys.executable, hello, uri], capture_output=True, text=True, check=False
                )
                assert said.stdout == "0 HA aloha\n2 HA aloha\n", said
                self.index_keys(
                    server.pid, uri, tmp_path / "data" / "streams" / "%2F" / "orders", log
                )
            finally:
                server.terminate()
        assert server.returncode == 0

    def index_keys(self, server: int, uri: str, folder: Path, log: Path) -> None:
        """In the process that the server starts for it, which others go before."""
        create = ("--key-property", "id", "--segment-size", "1", "--uri", uri)
        streamd("stream", "create", "orders", *create)
        for number in range(2):
            (folder.parents[2] / "order").write_text(json.dumps({"id": number}))
            streamd("publish", "orders", str(folder.parents[2] / "order"), "--uri", uri)
        while not list(folder.glob("*.keys")):
            assert "no key index" not in log.read_text()
            time.sleep(0.01)
        engine = min(_children(server))  # it was started before the doors
        (worker,) = _children(engine)
        own = os.getpriority(os.PRIO_PROCESS, 0)
        expected = min(19, own + LOW_PRIORITY)
        assert os.getpriority(os.PRIO_PROCESS, worker) == expected


def _children(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task").iterdir()
    return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]


class TestPing:
    def test_a_server(self, server: ServerProcess) -> None:
        for user in ("", "nobody:wrong@"):
            uri = f"rabbitmq-stream://{user}localhost:{server.port}"
            said = f"localhost:{server.port} answers: streamd {__version__}\n"
            assert streamd("ping", "--uri", uri).stdout == said
            assert streamd("ping", STREAMD_URI=uri).stdout == said

    def test_inside_tls(self, tmp_path: Path) -> None:
        tls = TlsServer(tmp_path, "--tls-port")
        with tls.running():
            uri = f"rabbitmq-stream+tls://localhost:{tls.server.tls_port}"
            assert "answers" in streamd("ping", "--uri", f"{uri}?cacertfile={tls.ca}").stdout
            self.check_failure("not trusted", uri)
            plain = f"rabbitmq-stream+tls://localhost:{tls.server.port}"
            self.check_failure("is it a port for TLS", plain)

    def check_failure(self, reason: str, uri: str, *more: str) -> None:
        result = streamd("ping", "--uri", uri, *more, code=1)
        assert result.stdout == ""
        assert result.stderr.count("\n") == 1
        assert reason in result.stderr

    def test_nobody_there(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        self.check_failure("Connection refused", f"rabbitmq-stream://127.0.0.1:{port}")

    def test_one_that_does_not_answer(self) -> None:
        """The kernel connects, and then nothing comes: as a server does that stands still."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            uri = f"rabbitmq-stream://127.0.0.1:{port}"
            reason = f"127.0.0.1:{port} does not answer within 0.1 s"
            self.check_failure(reason, uri, "--timeout", "0.1")

    def test_a_server_of_something_else(self, server: ServerProcess) -> None:
        uri = f"rabbitmq-stream://localhost:{server.amqp_port}"
        self.check_failure("does not speak the stream protocol", uri)

    def test_a_server_that_says_what_a_terminal_obeys(self) -> None:
        """Of what a server says of itself nothing can end the line or move the cursor."""
        said = (Pair("product", "other\nall is well"), Pair("version", "\x1b[2J\u202e1"))
        with socket.create_server(("127.0.0.1", 0)) as lying, ThreadPoolExecutor() as pool:
            uri = f"rabbitmq-stream://127.0.0.1:{lying.getsockname()[1]}"
            result = pool.submit(streamd, "ping", "--uri", uri)
            client, _ = lying.accept()
            with client:
                client.sendall(encode(c.PeerPropertiesResponse(1, ResponseCode.OK, said)))
                line = result.result().stdout
        assert line.endswith(r" answers: other\nall is well \x1b[2J\u202e1" + "\n")

    def test_what_is_no_address(self) -> None:
        assert "is not an address" in streamd("ping", "--uri", "localhost", code=2).stderr


class TestSettingsFile:
    def test_it_says_what_the_defaults_are(self, tmp_path: Path) -> None:
        file = tmp_path / "streamd.toml"
        text = streamd("print", "config").stdout
        file.write_text(text)
        assert load(file, {}) == Config()
        names = re.findall(r"^# (\w+) =", text, re.MULTILINE)
        assert names == [setting.name for setting in describe()]
        file.write_text(re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE))
        assert len(tomllib.loads(file.read_text())) == len(names) - 2, "all but two have a value"
        assert load(file, {}) == Config()
        for setting in describe():
            assert setting.help[:40].lower() in text.lower()


def objects(log: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in log.splitlines()]
    assert found
    for entry in found:
        assert list(entry)[:4] == KEYS
        assert entry.keys() <= {*KEYS, *ABOUT}
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry["time"])
    return found


class TestJsonLog:
    def test_a_life(self, tmp_path: Path) -> None:
        with ServerProcess(
            tmp_path / "data", "--log-format", "json", "--http-port", "0"
        ) as process:
            stream = (sys.executable, "-m", "streamd", "stream", "create", "flights")
            subprocess.run(stream, env=os.environ | {"STREAMD_URI": process.uri}, check=True)
            with socket.create_connection(("localhost", process.port)) as peer:
                peer.sendall(b"GET / HTTP/1.0\r\n\r\n")
                peer.recv(100)
            assert process.stop() == 0
        found = objects(process.log.read_text())
        assert found[0]["message"].startswith(f"streamd {__version__}, data in ")
        (created,) = [entry for entry in found if entry["message"] == "created stream flights"]
        assert created["stream"] == "flights"
        connections = [entry["connection"] for entry in found if "connection" in entry]
        assert all(re.fullmatch(r"127\.0\.0\.1:\d+", peer) for peer in connections)
        assert len(set(connections)) == 2
        # What is said of the peer may come a moment later: it hears first.
        assert "SIGTERM: stopping" in [entry["message"] for entry in found[-2:]]

    @pytest.mark.parametrize(
        ("options", "reason", "code"),
        [
            (["--data", "/proc/streamd"], "cannot use the data folder", 1),
            (["--heartbeat", "0"], "heartbeat is 0, expected", 2),
        ],
    )
    def test_a_start_that_fails(self, options: list[str], reason: str, code: int) -> None:
        ports = ["--stream-port", "0", "--amqp-port", "off", "--http-port", "off"]
        ports += ["--metrics-port", "off"]
        result = streamd("serve", "--log-format", "json", *ports, *options, code=code)
        last = objects(result.stderr)[-1]
        assert last["level"] == "critical"
        assert last["message"].startswith(reason)

    def test_a_format_in_the_file(self, tmp_path: Path) -> None:
        (tmp_path / "streamd.toml").write_text(
            'log_format = "json"\ndata = "/proc/streamd"\nmetrics_port = 0\n'
        )
        result = streamd("serve", "--config", str(tmp_path / "streamd.toml"), code=1)
        assert len(objects(result.stderr)) == 2

    def test_a_format_there_is_not(self) -> None:
        result = streamd("serve", "--log-format", "xml", code=2)
        assert "log_format is 'xml', expected text or json" in result.stderr
