"""What the pages about running a server say to type, in a shell of this machine.

Only what needs root, systemd, a container engine or other machines is not done; of that the parts
that can be checked are: settings exist, files can be read.
"""

import asyncio
import importlib
import io
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pika
import pytest

from clients import connect
from clients.connection import open_connection
from clients.uri import parse_uri
from streamd.config import Config
from streamd.wire.stream import commands as c

ROOT = Path(__file__).parent.parent.parent
PAGES = ROOT / "docs" / "how-to"
UNIT = ROOT / "streamd" / "cli" / "streamd.service"
OURS = ("service", "containers", "operating", "tls", "backup-and-upgrade", "testing")
PORTS = ("5552", "5672", "15672", "5551", "5671", "15671")

PRELUDE = """
set -euo pipefail
SERVER=
streamd() { "$PYTHON" -m streamd "$@"; }
python() { "$PYTHON" "$@"; }
stop() { kill $SERVER && wait $SERVER; SERVER=; }
serve() {
    [ -z "$SERVER" ] || stop
    : > ready
    "$PYTHON" -m streamd serve --data data --stream-port $P5552 --amqp-port $P5672 \\
        --http-port $P15672 "$@" > ready 2>> log &
    SERVER=$!
    until grep -q ready ready; do kill -0 $SERVER; sleep 0.02; done
}
trap '[ -z "$SERVER" ] || kill $SERVER' EXIT
"""


def blocks(page: str, language: str) -> list[str]:
    text = (PAGES / f"{page}.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


class Shell:
    """Runs parts of a page: where it starts and stops a server, one is started and stopped.

    Attributes:
        ports: free ones, by those that the pages name.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with ExitStack() as stack:
            self.ports = {}
            for port in PORTS:
                taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
                self.ports[port] = str(taken.getsockname()[1])

    def run(self, *parts: str) -> str:
        script = PRELUDE + "\n".join(self._here(part) for part in parts)
        uri = f"rabbitmq-stream://localhost:{self.ports['5552']}"
        paths = {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "STREAMD_URI": uri}
        result = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | paths | {f"P{name}": port for name, port in self.ports.items()},
        )
        assert result.returncode == 0, (result, self._log())
        return result.stdout + result.stderr

    def _log(self) -> str:
        log = self.folder / "log"
        return log.read_text() if log.exists() else ""

    def _here(self, part: str) -> str:
        part = part.replace("\\\n", " ")
        part = re.sub(r"^streamd serve\b(.*?)&?\s*(#.*)?$", r"serve \1", part, flags=re.MULTILINE)
        part = re.sub(r"^kill \$SERVER\b.*$", "stop", part, flags=re.MULTILINE)
        port = re.compile(rf"\b({'|'.join(PORTS)})\b(?=[/?\s\"]|$)", re.MULTILINE)
        return port.sub(lambda found: self.ports[found[0]], part)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl")
def test_tls(shell: Shell) -> None:
    make, start, ping, curl, renew, client, use = blocks("tls", "sh")
    example = f'python "{ROOT}/examples/tls_%s.py" %s ca.pem'
    certificate = (
        'echo | openssl s_client -connect "localhost:$P5551" 2>/dev/null | openssl x509 -noout'
    )
    renewed = f"""
        OLD=$({certificate} -serial)
        {renew}
        NEW=$(openssl x509 -noout -serial -in server.pem)
        [ "$OLD" != "$NEW" ]
        until [ "$({certificate} -serial)" = "$NEW" ]; do sleep 0.02; done
    """
    said = shell.run(
        make,
        start,
        ping,
        curl,
        example % ("rstream", "5551"),
        example % ("pika", "5671"),
        renewed,
        client,
        use,
        "stop",
    )
    assert "answers: streamd" in said
    assert '{"name":"guest"' in said
    assert said.count("stored\n") == 2
    assert re.search(r"^over-tls\b", said, re.MULTILINE), "listed with a certificate alone"


def test_backup(shell: Shell) -> None:
    """Everything, definitions, and one stream under another name."""
    everything, mark, export, import_, copy, _install = blocks("backup-and-upgrade", "sh")
    for part in (export, import_):
        assert "localhost:15672/" in part
    fill = 'echo \'{"body": "late"}\' | streamd publish flights'
    said = shell.run(
        "serve",
        "streamd stream create flights",
        fill,
        everything,
        "diff -r backup/streams data/streams",
        mark.replace("data/", "backup/"),
        "ls backup/streams/%2F/flights/ahead-backup",
        export,
        "streamd stream delete flights",
        "streamd stream create other",
        import_,
        "streamd stream list",
        copy,
        'python -m segments verify "data/streams/%2F/flights-of-2013"',
        "stop",
    )
    assert re.search(r"^flights +0", said, re.MULTILINE), "declared again, without its messages"
    assert '"body": "late"' in said
    assert "whole: 2 segments, 1 chunk" in said, "the copy goes on behind a gap"


def test_salvage_is_what_the_server_looks_for() -> None:
    (touch, *_rest) = [b for b in blocks("operating", "sh") if "salvage" in b]
    name = Path(touch.split()[-1]).name
    assert any(f'"{name}"' in file.read_text() for file in (ROOT / "segments").rglob("*.py"))


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze")
def test_changes_of_the_unit(tmp_path: Path) -> None:
    unit = UNIT.read_text().replace("/opt/streamd/bin/streamd", sys.executable)
    (tmp_path / "streamd.service").write_text(unit)
    changes = tmp_path / "streamd.service.d" / "override.conf"
    changes.parent.mkdir()
    found = blocks("service", "ini")
    assert len(found) == 3
    for block in found:
        changes.write_text(block)
        verify = ["systemd-analyze", "verify", str(tmp_path / "streamd.service")]
        result = subprocess.run(verify, capture_output=True, text=True, check=False)
        assert (result.returncode, result.stderr) == (0, "")


def values(found: Any, key: str) -> Iterator[Any]:
    """All values of a key, however deep."""
    for name, value in found.items() if isinstance(found, dict) else enumerate(found):
        if name == key:
            yield value
        if isinstance(value, dict | list):
            yield from values(value, key)


def test_manifests() -> None:
    """They are YAML, and what they say of the image is so."""
    yaml = pytest.importorskip("yaml")
    image = (ROOT / "Containerfile").read_text()
    (folder,) = re.findall(r"^VOLUME (\S+)$", image, re.MULTILINE)
    (user,) = re.findall(r"^USER (\d+):0$", image, re.MULTILINE)
    compose, kubernetes = blocks("containers", "yaml")
    (of_compose,) = yaml.safe_load_all(compose)
    server = of_compose["services"]["streamd"]
    assert (ROOT / server["build"]["dockerfile"]).is_file()
    assert server["volumes"] == [f"data:{folder}"]
    service, stateful_set = yaml.safe_load_all(kubernetes)
    config = Config()
    ports = [config.stream_port, config.amqp_port, config.http_port, config.metrics_port]
    assert list(values(service, "port")) == list(values(stateful_set, "containerPort")) == ports
    assert [probe["port"] for probe in values(stateful_set, "httpGet")] == [config.http_port] * 2
    assert {probe["path"] for probe in values(stateful_set, "httpGet")} == {"/healthz", "/readyz"}
    assert list(values(stateful_set, "mountPath")) == [folder]
    assert list(values(stateful_set, "fsGroup")) == [int(user)]
    (workflow,) = [yaml.safe_load(block) for block in blocks("testing", "yaml")]
    assert workflow["jobs"]["test"]["services"]["streamd"]["ports"] == ["5552:5552", "5672:5672"]


def test_manifests_of_a_cluster() -> None:
    yaml = pytest.importorskip("yaml")
    (kubernetes,) = blocks("several-servers", "yaml")
    clients, nodes, stateful_set = yaml.safe_load_all(kubernetes)
    config = Config()
    ports = [config.stream_port, config.amqp_port, config.http_port]
    assert list(values(clients, "port")) == list(values(stateful_set, "containerPort")) == ports
    assert stateful_set["spec"]["serviceName"] == nodes["metadata"]["name"]
    (container,) = stateful_set["spec"]["template"]["spec"]["containers"]
    given = {one["name"]: one.get("value", "x") for one in container["env"]}
    known = {f"STREAMD_{name.upper()}" for name in Config.__dataclass_fields__}
    assert given.keys() <= known
    assert given["STREAMD_ADVERTISED_HOST"].endswith(f".{nodes['metadata']['name']}")
    probes = list(values(stateful_set, "httpGet"))
    assert [(one["path"], one["port"]) for one in probes] == [
        ("/healthz", config.http_port),
        ("/readyz", config.http_port),
    ]


def test_unittest() -> None:
    loader = unittest.TestLoader()
    tests = loader.discover(str(ROOT / "examples"), "test_with_unittest.py")
    result = unittest.TextTestRunner(stream=io.StringIO()).run(tests)
    assert result.testsRun == 1
    assert result.wasSuccessful(), result.failures + result.errors


class FakeEngine:
    """An engine for testcontainers whose image is this checkout: a container is a process.

    Attributes:
        ports: of the container, and where they are on this machine.
    """

    def __init__(self, **_: Any) -> None:
        self.client = self
        self.ports: dict[str, int] = {}

    def create(self, image: str, *, environment: Any, ports: Any, **_: Any) -> "FakeEngine":
        assert image == "streamd"
        self._environment = os.environ | environment | {"PYTHONPATH": str(ROOT)}
        for name, port in ports.items():
            with socket.create_server(("127.0.0.1", port or 0)) as free:
                self.ports[name] = free.getsockname()[1]
        return self

    def start(self, _container: object) -> None:
        self._folder = tempfile.TemporaryDirectory()
        names = {"5552": "stream", "5672": "amqp", "15672": "http"}
        listen = [f"--{names[name]}-port={port}" for name, port in self.ports.items()]
        command = [sys.executable, "-m", "streamd", "serve", *listen]
        self._output = Path(self._folder.name, "output")
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdout=output, cwd=self._folder.name, env=self._environment
            )

    def logs(self, *, stdout: bool = True, **_: object) -> bytes:
        return self._output.read_bytes() if stdout else b""

    def reload(self) -> None:
        self.status = "running" if self._process.poll() is None else "exited"

    def get_connection_mode(self) -> Any:
        from testcontainers.core.config import ConnectionMode  # noqa: PLC0415 - may be missing

        return ConnectionMode.docker_host

    def port(self, _container_id: str, port: int) -> int:
        return self.ports[str(port)]

    def remove(self, **_: object) -> None:
        self._process.terminate()
        assert self._process.wait() == 0
        self._folder.cleanup()

    id = short_id = "fake"

    def close(self) -> None:
        pass


def test_the_recipe_for_testcontainers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its classes are the real ones; only the engine below them is not."""
    pytest.importorskip("testcontainers")
    from testcontainers.core import config, container  # noqa: PLC0415 - as above

    monkeypatch.setattr(config.testcontainers_config, "ryuk_disabled", True)
    monkeypatch.setattr(container, "DockerClient", FakeEngine)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    recipe = importlib.import_module("streamd_container")

    async def use(uri: str) -> list[bytes]:
        async with connect(uri) as client:
            await client.create("s")
            async with client.producer("s") as producer:
                await producer.send_all([b"x"])
            async with client.consumer("s", offset="first", until_end=True) as messages:
                return [message.body async for message in messages]

    with recipe.StreamdContainer() as streamd:
        assert asyncio.run(use(streamd.uri)) == [b"x"]
        assert asyncio.run(told(streamd.uri)) == ("localhost", streamd.stream_port)
        with pika.BlockingConnection(pika.URLParameters(streamd.amqp_uri)) as connection:
            assert connection.is_open


async def told(uri: str) -> tuple[str, int]:
    """Where RabbitMQ's clients are told to connect for a stream."""
    async with open_connection(parse_uri(uri), "test", 60, print) as connection:
        (broker,) = (await connection.request(c.Metadata, ("s",))).brokers
        return broker.host, broker.port
