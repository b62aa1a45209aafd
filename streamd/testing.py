"""Tests against a real server: a pytest plugin with the fixture `streamd_server`.

pytest finds the plugin by itself where streamd is installed. The server is a process of its own,
ready in less than half a second, on free ports of this machine, with its data in a temporary
folder. One server is there for all tests of a session (with pytest-xdist, for those of a worker):
each test takes names of its own for streams. It ends with the session, and also when pytest is
killed. Tests may be plain functions, or use asyncio, trio or anyio in any way.

    async def test_orders(streamd_server):
        async with clients.connect(streamd_server.uri) as client:
            await client.create("test_orders")

Settings of the server stand in pytest's configuration, in the form of its TOML file:

    [tool.pytest.ini_options]
    streamd_settings = ["max_streams = 100", 'default_queue_type = "stream"']

The environment (STREAMD_MAX_STREAMS, ...) wins over them, except for folder and ports. For a server
of another scope, use `run_server` in a fixture.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

_READY = re.compile(r"(\w+)=\S+:(\d+)")
_FREE_PORTS = ("stream_port", "amqp_port", "http_port", "metrics_port")
_STOP_SECONDS = 10  # the server itself gives connections 5


@dataclass(frozen=True, slots=True)
class StreamdServer:
    """A running server.

    Attributes:
        uri: for clients of the stream protocol: rabbitmq-stream://user:password@localhost:port/
        amqp_uri: for clients of AMQP 0-9-1, in its default virtual host.
        stream_port, amqp_port, http_port, metrics_port: where it listens; 0 for one that the
            settings turn off.
        data: its data folder.
        log: the file with what it says.
        user, password: of its first user, who may do everything.
    """

    stream_port: int
    amqp_port: int
    http_port: int
    metrics_port: int
    data: Path
    log: Path
    user: str
    password: str

    @property
    def uri(self) -> str:  # noqa: D102 - above
        return f"rabbitmq-stream://{self._login}@localhost:{self.stream_port}/"

    @property
    def amqp_uri(self) -> str:  # noqa: D102 - above
        return f"amqp://{self._login}@localhost:{self.amqp_port}/%2F"

    @property
    def _login(self) -> str:
        return f"{quote(self.user, safe='')}:{quote(self.password, safe='')}"


class ServerNotStarted(Exception):
    """The server has ended instead of getting ready; says why."""


@contextmanager
def run_server(folder: Path, **settings: int | str) -> Iterator[StreamdServer]:
    """A server in a process of its own, until the block is left.

    Args:
        folder: gets the data folder, the log and the file with the settings.
        settings: as in the server's TOML file, where they are not the defaults. Ports that are not
            among them are free ones.

    Raises:
        ConfigError: a setting is unknown or out of range.
        ServerNotStarted: the server cannot start with them.
    """
    from streamd.config import load  # noqa: PLC0415 - pytest loads this module in each session

    file, log = folder / "streamd.toml", folder / "streamd.log"
    lines = [f"{n} = {json.dumps(value, ensure_ascii=False)}\n" for n, value in settings.items()]
    file.write_text("".join(lines))
    free = {port: 0 for port in _FREE_PORTS if port not in settings}
    fixed: dict[str, int | str] = {"data": str(folder / "data"), **free}
    config = load(file, None, **fixed)
    process = _start(["--config", str(file), *_options(fixed)], log)
    try:
        ports = _ports(process, log)
        yield StreamdServer(
            stream_port=ports.get("stream", 0),
            amqp_port=ports.get("amqp", 0),
            http_port=ports.get("http", 0),
            metrics_port=ports.get("metrics", 0),
            data=folder / "data",
            log=log,
            user=config.user,
            password=config.password,
        )
    finally:
        _stop(process)


def _options(settings: Mapping[str, int | str]) -> Iterator[str]:
    for name, value in settings.items():
        yield from (f"--{name.replace('_', '-')}", str(value))


def _start(options: list[str], log: Path) -> subprocess.Popen[str]:
    # -P: modules in the current folder may have the names of ours. The process group: Ctrl-C is
    # pytest's, which ends the server when it has ended its tests.
    command = [sys.executable, "-P", "-m", "streamd", "serve", "--until-stdin-ends", *options]
    with log.open("w") as errors:
        return subprocess.Popen(  # noqa: S603 - ourselves
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            process_group=0,
            env=os.environ,
        )


def _ports(process: subprocess.Popen[str], log: Path) -> dict[str, int]:
    """Where the server listens, once it is ready."""
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    line = process.stdout.readline()
    if not line:
        said = log.read_text().strip().rpartition("\n")[2]
        raise ServerNotStarted(f"streamd has not started: {said}")
    return {name: int(port) for name, port in _READY.findall(line)}


def _stop(process: subprocess.Popen[str]) -> None:
    with process:  # closes the pipes, so stdin too, and waits
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        process.stdin.close()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the setting in pytest's configuration."""
    text = "settings of the fixture streamd_server, as in the server's TOML file, one in a line"
    parser.addini("streamd_settings", text, type="linelist", default=[])


@pytest.fixture(scope="session")
def streamd_server(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StreamdServer]:
    """A running streamd server for the tests of the session: uri, ports and data folder."""
    settings = tomllib.loads("\n".join(pytestconfig.getini("streamd_settings")))
    with run_server(tmp_path_factory.mktemp("streamd"), **settings) as server:
        yield server
