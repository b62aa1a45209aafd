"""Checks what `make dist` has built: contents, and what the wheel does in an empty environment.

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
from collections.abc import Iterable
from pathlib import Path

from streamd import __version__

ROOT = Path(__file__).parent.parent
PACKAGES = ("streamd", "segments", "clients")
FILES = f"streamd_server-{__version__}"
READY = re.compile(
    r"streamd ready stream=127\.0\.0\.1:\d+ amqp=off http=127\.0\.0\.1:\d+ metrics=\S+\n"
)
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


def check_wheel(path: Path) -> None:
    info = f"{FILES}.dist-info"
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"{info}/METADATA").decode()
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
    same("modules of the wheel", {n for n in names if not n.startswith(info)}, expected_modules())
    assert f"{info}/licenses/LICENSE" in names, names
    for line in ("Name: streamd-server", "License-Expression: Apache-2.0"):
        assert f"\n{line}\n" in metadata, metadata
    for line in ("streamd = streamd.__main__:run", "streamd-server = streamd.__main__:run"):
        assert f"\n{line}\n" in entry_points, entry_points


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


def check_installed(wheel: Path, folder: Path) -> None:
    """Install the wheel alone, and use it where nothing else is."""
    venv.create(folder / "venv", with_pip=True)
    scripts = folder / "venv" / "bin"
    python, streamd = str(scripts / "python"), str(scripts / "streamd")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]

    def run(*command: str, code: int = 0) -> str:
        result = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, env={"PATH": "/bin"}
        )
        assert result.returncode == code, result
        assert "Traceback" not in result.stderr, result.stderr
        return result.stdout + result.stderr

    run(*install, str(wheel))
    for command in (streamd, str(scripts / "streamd-server")):
        assert run(command, "--version").startswith(f"streamd {__version__}\n")
    assert "verify" in run(python, "-m", "segments", "--help")
    assert "all flights" in run(streamd, "demo", "--help")
    (what_is_missing,) = run(streamd, "demo", code=1).splitlines()
    assert "pip install" in what_is_missing
    assert f"ExecStart={streamd} serve" in run(streamd, "print", "unit")
    check_serving(streamd, folder)
    run(*install, f"{wheel}[testing]")
    (folder / "clients").mkdir()
    (folder / "clients" / "__init__.py").write_text("raise RuntimeError('not ours')")
    (folder / "test_foreign.py").write_text(FOREIGN_TEST)
    assert "1 passed" in run(python, "-m", "pytest", "-q", "test_foreign.py")


def check_serving(streamd: str, folder: Path) -> None:
    ports = ("--stream-port", "0", "--amqp-port", "off", "--http-port", "0")
    began = time.perf_counter()
    with (folder / "log").open("w+") as log:
        command = [streamd, "serve", *ports]
        server = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True
        )
        assert server.stdout is not None
        with server:
            line = server.stdout.readline()
            print(f"ready after {time.perf_counter() - began:.2f} s")
            server.terminate()
        log.seek(0)
        said = log.read()
    assert READY.fullmatch(line), (line, said)
    assert server.returncode == 0, said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where wheel and sdist are")
    folder = parser.parse_args().folder.absolute()
    wheel, sdist = folder / f"{FILES}-py3-none-any.whl", folder / f"{FILES}.tar.gz"
    same("files", {f.name for f in folder.iterdir()}, {wheel.name, sdist.name})
    check_wheel(wheel)
    check_sdist(sdist)
    scratch = Path(tempfile.mkdtemp(prefix="streamd-dist-"))
    try:
        check_installed(wheel, scratch)
    finally:
        shutil.rmtree(scratch)
    print(
        f"{wheel.name} and {sdist.name} are as they should be, on Python {sys.version.split()[0]}"
    )


if __name__ == "__main__":
    main()
