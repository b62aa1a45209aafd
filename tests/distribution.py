"""Checks what `make dist` has built: contents, and what the wheels do in empty environments.

python -m tests.distribution dist
"""

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from streamd import __version__
from wheels import CLIENT, CLIENT_NEEDS

ROOT = Path(__file__).parent.parent
PACKAGES = ("streamd", "segments", "clients")
FILES = f"streamd_server-{__version__}"
CLIENT_FILES = f"streamd_client-{__version__}"
READY = re.compile(
    r"streamd ready stream=127\.0\.0\.1:(\d+) amqp=off http=127\.0\.0\.1:\d+ metrics=\S+\n"
)
# As somebody uses the client where there is no server.
PROGRAM = """
import asyncio
import sys

from streamd import Message, connect

async def main():
    async with connect(sys.argv[1]) as client:
        await client.create("s", filter_size=16)
        async with client.producer("s") as producer:
            await producer.send(Message(b"hello", application_properties={"n": 1}))
        async with client.consumer("s", offset="first", sql="n = 1", until_end=True) as messages:
            async for message in messages:
                print(message.offset, message.body)

asyncio.run(main())
"""
# As somebody uses the fixture in whose project other modules have the names of ours.
FOREIGN_TEST = """
import asyncio
import socket
import sys

def test_it_is_there(streamd_server):
    socket.create_connection(("localhost", streamd_server.stream_port)).close()
    assert "streamd.server" not in sys.modules
"""


def expected_modules() -> set[str]:
    """The files of the packages in this checkout."""
    found = {f.relative_to(ROOT) for package in PACKAGES for f in (ROOT / package).rglob("*.py")}
    printed = {
        f"streamd/cli/{name}" for name in ("streamd.service", "dashboard.json", "alerts.yaml")
    }
    others = {f"{package}/py.typed" for package in PACKAGES} | printed
    console = ROOT / "streamd" / "console"
    shown = [f for folder in ("templates", "static") for f in (console / folder).rglob("*.*")]
    return {str(path) for path in found} | others | {str(f.relative_to(ROOT)) for f in shown}


def check_client_wheel(path: Path) -> None:
    metadata, _ = read_wheel(path, {n for n in expected_modules() if n.startswith(CLIENT)})
    needed = set(re.findall(r"^Requires-Dist: ([\w-]+)", metadata, re.MULTILINE))
    same("what the client requires", needed, CLIENT_NEEDS)
    assert "Provides-Extra" not in metadata, metadata


def check_wheel(path: Path) -> None:
    modules = {n for n in expected_modules() if not n.startswith(CLIENT)}
    metadata, entry_points = read_wheel(path, modules)
    assert f"\nRequires-Dist: streamd-client=={__version__}\n" in metadata, metadata
    for line in ("streamd = streamd.__main__:run", "streamd-server = streamd.__main__:run"):
        assert f"\n{line}\n" in entry_points, entry_points


def read_wheel(path: Path, modules: Iterable[str]) -> tuple[str, str]:
    """Its metadata and entry points, if there are just these modules in it."""
    stem = path.name.removesuffix("-py3-none-any.whl")
    info = f"{stem}.dist-info"
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"{info}/METADATA").decode()
        points = f"{info}/entry_points.txt"
        entry_points = archive.read(points).decode() if points in names else ""
    same(f"modules of {path.name}", {n for n in names if not n.startswith(info)}, modules)
    assert f"{info}/licenses/LICENSE" in names, names
    name = stem.partition("-")[0].replace("_", "-")
    for line in (f"Name: {name}", "License-Expression: Apache-2.0"):
        assert f"\n{line}\n" in metadata, metadata
    return metadata, entry_points


def check_sdist(path: Path) -> None:
    with tarfile.open(path) as archive:
        names = {m.name.removeprefix(f"{FILES}/") for m in archive.getmembers() if m.isfile()}
    places = {name.partition("/")[0] for name in names if "/" in name}
    same("folders of the sdist", places, {*PACKAGES, "examples", "streamd_server.egg-info"})
    wanted = expected_modules() | {
        "LICENSE",
        "README.md",
        "SECURITY.md",
        "CHANGELOG.md",
        "Containerfile",
    }
    same("missing in the sdist", wanted - names, set())


def same(what: str, found: Iterable[str], expected: Iterable[str]) -> None:
    too_many, missing = set(found) - set(expected), set(expected) - set(found)
    assert not too_many | missing, f"{what}: {too_many} too many, {missing} missing"


class Environment:
    """An empty virtual environment, and what is done in it; a command gets nothing else."""

    def __init__(self, wheels: Path, folder: Path) -> None:
        self.folder = folder
        venv.create(folder / "venv", with_pip=True)
        self.scripts = folder / "venv" / "bin"
        self.python, self.streamd = (str(self.scripts / name) for name in ("python", "streamd"))
        self._wheels = wheels

    def run(self, *command: str, code: int = 0) -> str:
        """What a command prints that ends with this code."""
        result = subprocess.run(
            command,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": "/bin"},
        )
        assert result.returncode == code, result
        assert "Traceback" not in result.stderr or code, result.stderr
        return result.stdout + result.stderr

    def pip(self, *words: str) -> str:
        return self.run(self.python, "-m", "pip", "--quiet", "--disable-pip-version-check", *words)

    def install(self, name: str) -> None:
        self.pip("install", "--find-links", str(self._wheels), name)


def check_installed(server: Environment, client: Environment) -> None:
    """Install server and client, each where nothing else is, and use them."""
    server.install("streamd-server")
    client.install("streamd-client")
    assert "trio" not in client.pip("list", "--format", "freeze")
    client.pip("check")
    check_commands(server)
    with serving(server) as port:
        uri = f"rabbitmq-stream://guest:guest@127.0.0.1:{port}"
        assert client.run(client.python, "-c", PROGRAM, uri) == "0 b'hello'\n"
    server.install("streamd-server[testing]")
    (server.folder / "clients").mkdir()
    (server.folder / "clients" / "__init__.py").write_text("raise RuntimeError('not ours')")
    (server.folder / "test_foreign.py").write_text(FOREIGN_TEST)
    assert "1 passed" in server.run(server.python, "-m", "pytest", "-q", "test_foreign.py")
    shutil.rmtree(server.folder / "clients")
    server.pip("uninstall", "--yes", "streamd-server")
    server.run(server.python, "-c", "from streamd import Message, connect")
    server.run(server.python, "-c", "import streamd.server", code=1)


def check_commands(server: Environment) -> None:
    python, streamd, run = server.python, server.streamd, server.run
    for command in (streamd, str(server.scripts / "streamd-server")):
        assert run(command, "--version").startswith(f"streamd {__version__}\n")
    assert "verify" in run(python, "-m", "segments", "--help")
    assert "all flights" in run(streamd, "demo", "--help")
    (what_is_missing,) = run(streamd, "demo", code=1).splitlines()
    assert "pip install" in what_is_missing
    assert f"ExecStart={streamd} serve" in run(streamd, "print", "unit")


@contextmanager
def serving(environment: Environment) -> Iterator[str]:
    """A server, by its port."""
    folder = environment.folder
    ports = ("--stream-port", "0", "--amqp-port", "off", "--http-port", "0")
    began = time.perf_counter()
    with (folder / "log").open("w+") as log:
        command = [environment.streamd, "serve", *ports]
        server = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True
        )
        assert server.stdout is not None
        with server:
            line = server.stdout.readline()
            print(f"ready after {time.perf_counter() - began:.2f} s")
            found = READY.fullmatch(line)
            try:
                assert found, (line, (folder / "log").read_text())
                yield found[1]
            finally:
                server.terminate()
        log.seek(0)
        said = log.read()
    assert server.returncode == 0, said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where wheel and sdist are")
    folder = parser.parse_args().folder.absolute()
    wheel, sdist = folder / f"{FILES}-py3-none-any.whl", folder / f"{FILES}.tar.gz"
    client = folder / f"{CLIENT_FILES}-py3-none-any.whl"
    same("files", {f.name for f in folder.iterdir()}, {client.name, wheel.name, sdist.name})
    check_client_wheel(client)
    check_wheel(wheel)
    check_sdist(sdist)
    scratch = Path(tempfile.mkdtemp(prefix="streamd-dist-"))
    try:
        for name in ("server", "client"):
            (scratch / name).mkdir()
        check_installed(
            Environment(folder, scratch / "server"), Environment(folder, scratch / "client")
        )
    finally:
        shutil.rmtree(scratch)
    names = ", ".join(path.name for path in (client, wheel, sdist))
    print(f"{names} are as they should be, on Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
