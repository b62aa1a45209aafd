"""Thirteen troubles of a night, staged: `streamd status`, the console and the log name each.

The server's clock and its disk are those of this machine, but for what the files `clock` (seconds
to add) and `full` beside its data say; and it looks for troubles more often.
"""

import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from bs4 import BeautifulSoup

from tests.support.process import ServerProcess, wait_until

ROOT = Path(__file__).parent.parent.parent
_ODD_MACHINE = """
import errno, os, sys, time
from pathlib import Path

clock, full = Path({folder!r}, "clock"), Path({folder!r}, "full")
now_s, now_ns, write = time.time, time.time_ns, os.pwritev

def ahead():
    try:
        return int(clock.read_text())
    except (OSError, ValueError):
        return 0

def pwritev(descriptor, parts, position):
    if full.exists() and os.readlink(f"/proc/self/fd/{{descriptor}}").endswith(".segment"):
        raise OSError(errno.ENOSPC, "No space left on device")
    return write(descriptor, parts, position)

time.time = lambda: now_s() + ahead()
time.time_ns = lambda: now_ns() + ahead() * 1_000_000_000
os.pwritev = pwritev
if "serve" in sys.orig_argv:
    import trio
    sleep = trio.sleep
    trio.sleep = lambda seconds: sleep(min(seconds, 1))
"""


def is_in(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE) is not None


class Night:
    """A server, and what somebody sees who is called at night."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        ports = ("--http-port", "0", "--metrics-port", "0")
        self.process = ServerProcess(folder / "data", *ports, *options).start()

    def run(self, *words: str, stdin: bytes = b"", password: str = "guest") -> str:
        """What a command prints."""
        uri = self.process.uri.replace(":guest@", f":{password}@")
        command = [sys.executable, "-m", "streamd", *words, "--uri", uri]
        ended = subprocess.run(command, input=stdin, capture_output=True, check=False, cwd=ROOT)
        return (ended.stdout + ended.stderr).decode()

    def publish(self, stream: str, count: int = 1) -> None:
        assert "published" in self.run("publish", stream, stdin=b'{"body": "x"}\n' * count)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """A command that goes on."""
        return subprocess.Popen(
            [sys.executable, "-m", "streamd", *words, "--uri", self.process.uri],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
        )

    def page(self) -> str:
        """The console's first page; empty while nobody serves it."""
        with suppress(httpx.TransportError):
            return self._page()
        return ""

    def _page(self) -> str:
        base = f"http://localhost:{self.process.http_port}"
        with httpx.Client(base_url=base, follow_redirects=True, timeout=60) as browser:
            user = {"user": "guest", "password": "guest", "next": ""}
            browser.post("/login", data=user, headers={"origin": base})
            main = BeautifulSoup(browser.get("/").text, "html.parser").main
            return " ".join(main.get_text(" ").split()) if main is not None else ""

    def log(self) -> str:
        """Its last ten lines."""
        return "\n".join(self.process.log.read_text().splitlines()[-10:])

    def children(self) -> list[int]:
        """The processes of the server but the first, oldest first."""
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in found.split()]

    def status(self) -> str:
        return self.run("status")

    def see(self, told: str, logged: str = "") -> None:
        """All three name it; the log in other words, perhaps."""
        wait_until(lambda: is_in(logged or told, self.log()))
        wait_until(lambda: is_in(told, self.status()))
        wait_until(lambda: is_in(told, self.page()))


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Night]]:
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "sitecustomize.py").write_text(_ODD_MACHINE.format(folder=str(tmp_path)))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'odd'}:{ROOT}")
    with ExitStack() as ending:

        def start(*options: str) -> Night:
            night = Night(tmp_path, *options)
            ending.callback(night.process.end)
            return night

        yield start


@pytest.mark.slow
def test_one_server(begin: Callable[..., Night], tmp_path: Path) -> None:
    night = begin()
    for stream in ("s", "gone"):
        night.run("stream", "create", stream)
    night.publish("s", 100_000)
    assert "all is well" in night.run("status")
    assert "all is well" in night.page()

    # A full disk.
    (tmp_path / "full").touch()
    waiting = night.start("publish", "s")

    assert waiting.stdin is not None
    waiting.stdin.write(b'{"body": "y"}\n')
    waiting.stdin.flush()
    night.see(
        "stream s.*takes no messages: the disk is full|s : takes no messages", "s: cannot wri"
    )
    (tmp_path / "full").unlink()
    waiting.communicate()
    assert waiting.returncode == 0

    # A consumer that does not read, of messages that are an hour old.
    (tmp_path / "clock").write_text("3600")
    slow = night.start("consume", "s", "--from-beginning")
    night.see("is 1 h 0 min behind")
    slow.kill()
    slow.communicate()

    # A clock that goes back by two hours.
    night.publish("s")
    (tmp_path / "clock").write_text("-7200")
    night.see("ahead of the clock: is the clock right")
    (tmp_path / "clock").unlink()

    night.run("stream", "delete", "gone")
    night.see("deleted stream gone")
    assert "authentication failure" in night.run("stream", "list", password="wrong")
    night.see("login refused, user 'guest'")

    # Processes that end.
    for door, ended in zip(("metrics", "HTTP"), reversed(night.children()), strict=False):
        os.kill(ended, signal.SIGKILL)
        night.see(f"process for {door} has gone")


@pytest.mark.slow
def test_what_settings_and_files_do(begin: Callable[..., Night], tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    tier = ("--tier", f"file://{store}")
    night = begin(*tier)
    night.run("stream", "create", "s")
    night.publish("s", 1_000)
    assert "all is well" in night.run("status")

    # Files run out.
    (engine,) = night.children()[:1]
    num_open = len(list(Path(f"/proc/{engine}/fd").iterdir()))
    before = resource.prlimit(engine, resource.RLIMIT_NOFILE)
    resource.prlimit(engine, resource.RLIMIT_NOFILE, (num_open + 2, before[1]))
    night.see("files are open: connections are refused")
    resource.prlimit(engine, resource.RLIMIT_NOFILE, before)

    # The object store is away.
    store.rename(tmp_path / "elsewhere")
    night.run("tier", "upload", "--timeout", "1")
    night.see("v1/~log/.*: the folder is gone; mount it again")
    (tmp_path / "elsewhere").rename(store)

    # Another server has taken the tier over.
    assert "uploaded" in night.run("tier", "upload")
    other = ServerProcess(tmp_path / "other" / "data", *tier, "--restore")
    try:
        other.data.parent.mkdir()
        other.start()
        night.publish("s")
        night.run("tier", "upload", "--timeout", "1")
        night.see("another server")
    finally:
        other.end()


@pytest.mark.slow
def test_the_store_is_away_while_publishers_wait_for_it(
    begin: Callable[..., Night], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    night = begin("--tier", f"file://{store}")
    night.run("stream", "create", "kept", "--confirm", "store")
    night.publish("kept")
    store.rename(tmp_path / "elsewhere")
    waiting = night.start("publish", "kept")
    assert waiting.stdin is not None
    waiting.stdin.write(b'{"body": "y"}\n')
    waiting.stdin.flush()
    night.see(r"confirms wait for the tier for .*\(1 message of 1 stream", "confirms wait for the")
    assert is_in("1 message wait", night.run("stream", "info", "kept"))
    (tmp_path / "elsewhere").rename(store)
    waiting.communicate()
    assert waiting.returncode == 0
    wait_until(lambda: "all is well" in night.status())
    assert is_in("confirms go on", night.process.log.read_text())
    assert is_in("slots .* stored", night.run("tier", "status"))


@pytest.mark.slow
def test_the_disk(begin: Callable[..., Night], tmp_path: Path) -> None:
    night = begin("--min-disk-free-bytes", str(1 << 60))
    night.run("stream", "create", "s")
    night.see("publishers wait: only .* are to stay free", "publishers wait")
    night.process.stop()
    night = begin()
    night.publish("s", 1_000)

    # Bytes of a segment have changed.
    night.process.stop()
    (segment,) = (tmp_path / "data" / "streams").rglob("*.segment")
    data = bytearray(segment.read_bytes())
    data[1_000] ^= 0xFF  # of the first chunk
    segment.write_bytes(data)
    night = begin()
    assert "1 chunk is damaged, " in night.run("find", "s", "--sql", "a = 1")
    night.see("messages in 1 damaged chunk")
