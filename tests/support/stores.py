"""Real object stores for tests: processes that speak S3's protocol, and a folder.

    python -m tests.support.stores          builds those that are missing, with Go; `make stores`

gofakes3 is small and lenient: it takes any credentials. versitygw checks signatures and checksums,
and keeps its objects in a folder. Both are built through the module proxy, each version once, into
the user's cache. Tests that need one which is not there are skipped, and say how to get it.
"""

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self
from uuid import uuid4

from tests.support.process import PATIENCE_SECONDS

if TYPE_CHECKING:
    import pytest

KEY_ID, SECRET, BUCKET = "streamd", "a-secret-of-tests", "tier"
KINDS = ("file", "gofakes3", "versitygw")
_PROCESSES = 64  # that run tests side by side, at most
_BUILD_SECONDS = 1_200
_RANDOM = random.SystemRandom()  # the same for no two test processes


class Program(NamedTuple):
    """A program that is built from its source."""

    name: str
    module: str
    version: str

    @property
    def path(self) -> Path:
        """Where it is once it has been built."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cache / "streamd-tests" / "bin" / f"{self.name}-{self.version}"


PROGRAMS = {
    program.name: program
    for program in (
        Program("gofakes3", "github.com/johannesboyne/gofakes3/cmd/gofakes3", "v1.2.0"),
        Program("versitygw", "github.com/versity/versitygw/cmd/versitygw", "v1.8.0"),
    )
}


def go() -> str | None:
    """Where the Go toolchain is; also where its own installer puts it."""
    return shutil.which("go") or shutil.which("/usr/local/go/bin/go")


def build(program: Program) -> None:
    """Build a program, unless it is there.

    Raises:
        OSError, subprocess.SubprocessError: it cannot be built.
    """
    command = go()
    if program.path.exists() or command is None:
        return
    folder = program.path.with_suffix(f".{uuid4().hex}")  # two may build it at once
    folder.mkdir(parents=True)
    try:
        environment = os.environ | {"GOBIN": str(folder), "GOFLAGS": "-trimpath"}
        source = f"{program.module}@{program.version}"
        subprocess.run(
            [command, "install", source], check=True, env=environment, timeout=_BUILD_SECONDS
        )
        (folder / program.name).rename(program.path)
    finally:
        shutil.rmtree(folder)


def _program(name: str) -> Path:
    """A program's path; without it the test is skipped."""
    program = PROGRAMS[name]
    if os.environ.get("STREAMD_BUILD_STORES"):
        build(program)
    if not program.path.exists():
        needed = "make stores builds it" if go() else "make stores builds it, and needs Go"
        import pytest  # noqa: PLC0415 - the demo has none

        pytest.skip(f"{name} is not there: {needed}")
    return program.path


class StoreServer:
    """A store that tests can start, kill and start again.

    Args:
        kind: one of KINDS.
        folder: for all that it writes.
        options: more words for its command line.
        is_lasting: it has its objects when it is started again; gofakes3 takes longer then.

    Attributes:
        kind: one of KINDS.
        endpoint: for `--tier-endpoint`; empty of a folder.
        environment: what a process needs to use it.
    """

    def __init__(self, kind: str, folder: Path, *options: str, is_lasting: bool = True) -> None:
        self.kind = kind
        self.endpoint = ""
        self.environment: dict[str, str] = {}
        self._folder = folder
        self._options, self._is_lasting = options, is_lasting
        self._process: subprocess.Popen[str] | None = None

    def url(self, prefix: str) -> str:
        """The address of a tier in it."""
        if self.kind != "file":
            return f"s3://{BUCKET}/{prefix}"
        path = self._folder / prefix
        path.mkdir(parents=True, exist_ok=True)
        return f"file://{path}"

    @property
    def pid(self) -> int:
        """Of its process; 0 of a folder."""
        return 0 if self._process is None else self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def start(self) -> Self:
        """Start it; after `kill` at the same port."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if self.kind == "file":
            return self
        port = self.endpoint.rpartition(":")[2] or str(_free_port())
        self.endpoint = f"http://127.0.0.1:{port}"
        self.environment = {
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
        }
        command = [str(_program(self.kind)), *self._arguments(port)]
        with (self._folder / "log").open("a") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, text=True)
        self._wait_until_ready(int(port))
        return self

    def _arguments(self, port: str) -> list[str]:
        address = f"127.0.0.1:{port}"
        if self.kind == "gofakes3":
            lasting = ["bolt", "-bolt.db", str(self._folder / "bolt")]
            kept = ["-backend", *(lasting if self._is_lasting else ["memory"])]
            return [*kept, "-host", address, "-initialbucket", BUCKET, "-quiet", *self._options]
        buckets = self._folder / "buckets"
        (buckets / BUCKET).mkdir(parents=True, exist_ok=True)
        users = ["--access", KEY_ID, "--secret", SECRET]
        return ["--port", address, *users, "--quiet", *self._options, "posix", str(buckets)]

    def _wait_until_ready(self, port: int) -> None:
        assert self._process is not None
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                log = (self._folder / "log").read_text()
                assert self._process.poll() is None, f"{self.kind} has ended: {log}"
                assert time.monotonic() < end, f"{self.kind} is not ready: {log}"
                time.sleep(0.01)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; of a folder nothing happens."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9; of a folder nothing happens."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Tier(NamedTuple):
    """A tier of a test's own, in a store that others use, too.

    Attributes:
        kind: of the store.
        url, endpoint: for `open_store`, and the server's options.
        environment: what a process needs to use it; this one has it already.
        server: the store.
    """

    kind: str
    url: str
    endpoint: str
    environment: dict[str, str]
    server: StoreServer


def started(kind: str, folder: Path, *options: str) -> Iterator[StoreServer]:
    """A store, ended at last; for fixtures that want one of their own."""
    server = StoreServer(kind, folder, *options).start()
    try:
        yield server
    finally:
        server.kill()


def tier_in(server: StoreServer, patch: "pytest.MonkeyPatch") -> Tier:
    """A tier with a new prefix, and this process with the environment for it."""
    for name in [name for name in os.environ if re.match("AWS_|GOOGLE_|AZURE_", name)]:
        patch.delenv(name)
    for name, value in server.environment.items():
        patch.setenv(name, value)
    url = server.url(f"test-{uuid4().hex[:8]}")
    return Tier(server.kind, url, server.endpoint, server.environment, server)


def _free_port() -> int:
    """A port that is free, and that nobody else takes before it is used.

    The system gives it to nobody who asks for any, nor does another process of the same tests.
    """
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    while True:
        port = _RANDOM.randrange(15_000 + process % _PROCESSES, 32_000, _PROCESSES)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port


def main() -> None:
    """Build all that are missing."""
    if go() is None:
        sys.exit("Go is not installed, so the object stores for tests cannot be built")
    for program in PROGRAMS.values():
        print(f"{program.path}{'' if program.path.exists() else ': building it'}", flush=True)
        build(program)


if __name__ == "__main__":
    main()
