"""A server in a process of its own, to be talked to over real sockets, stopped and killed."""

import copy
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

_READY = re.compile(
    r"streamd ready stream=(?:(.+):(\d+)|off) amqp=(\S+) http=(\S+) metrics=(\S+)"
    r"(?: tls=\S+:(\d+))?(?: amqp-tls=\S+:(\d+))?(?: https=\S+:(\d+))?"
    r"(?: metrics-tls=\S+:(\d+))?(?: node=(\S+) role=(\S+))?\n"
)
# That something real may take: a machine may be busy with other things, and nothing that is waited
# for takes longer where it comes at all.
PATIENCE_SECONDS = 120.0


class ServerProcess:
    """`streamd serve` on a free port.

    Attributes:
        data: its data folder.
        port: where it listens; the same after a restart.
        tls_port: the same for TLS, 0 without.
        http_port, https_port: the same for the HTTP API, 0 unless the options ask for it.
        amqp_port, amqp_tls_port: the same for AMQP 0-9-1.
        metrics_port, metrics_tls_port: the same for metrics, 0 unless the options ask for it.
        virtual_host: the one of the addresses.
        log: what it writes to stderr.
        ready_line: what it printed when it was ready.
        role: what it said that it is then, as a node of a cluster; empty for none.
    """

    def __init__(self, data: Path, *options: str, module: str = "streamd") -> None:
        self.data = data
        self.virtual_host = "/"
        self.port = 0
        self.tls_port = 0
        self.http_port = self.https_port = self.amqp_port = self.amqp_tls_port = 0
        self.metrics_port = self.metrics_tls_port = 0
        self.ready_line = self.role = ""
        self.log = data.with_suffix(".log")
        self._options = options
        self._module = module
        self._process: subprocess.Popen[str] | None = None

    @property
    def uri(self) -> str:
        return f"rabbitmq-stream://guest:guest@localhost:{self.port}/{self._path}"

    @property
    def amqp_uri(self) -> str:
        return f"amqp://guest:guest@localhost:{self.amqp_port}/{self._path}"

    @property
    def _path(self) -> str:
        return "" if self.virtual_host == "/" else self.virtual_host

    def within(self, virtual_host: str) -> "ServerProcess":
        """The same running server, with addresses of another virtual host."""
        seen = copy.copy(self)
        seen.virtual_host = virtual_host
        return seen

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def has_ended(self) -> bool:
        """Whether it has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *options: str) -> "ServerProcess":
        arguments = ["serve", "--data", str(self.data), "--stream-port", str(self.port)]
        arguments += ["--amqp-port", str(self.amqp_port), "--http-port", "off"]
        arguments += ["--metrics-port", "off", *options]
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, *arguments, *self._options],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        line = self._first_line()
        match = _READY.fullmatch(line)
        code = self._process.poll()  # None while it runs
        assert match, f"{line!r}, exit code {code}, and in the log: {self.log.read_text()}"
        self.port = int(match[2] or 0)
        self.amqp_port, self.http_port, self.metrics_port = map(_port, match.group(3, 4, 5))
        tls = [int(found or 0) for found in match.group(6, 7, 8, 9)]
        self.tls_port, self.amqp_tls_port, self.https_port, self.metrics_tls_port = tls
        self.ready_line, self.role = line, match[11] or ""
        return self

    def __enter__(self) -> "ServerProcess":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.end()

    def _first_line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(PATIENCE_SECONDS):
                return ""
        return self._process.stdout.readline()

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()
        self.wait()

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Until it has ended; returns the exit code."""
        assert self._process is not None
        assert self._process.stdout is not None
        code = self._process.wait(PATIENCE_SECONDS)
        self._process.stdout.close()
        self._process = None
        return code

    def end(self) -> None:
        """Whatever state it is in."""
        if self._process is not None:
            self.kill()

    def resident_bytes(self) -> int:
        """Memory that the process holds."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def _port(address: str) -> int:
    return 0 if address == "off" else int(address.rpartition(":")[2])


def run_streamd(
    *arguments: str, code: int | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, to its end.

    Args:
        arguments: of `streamd`.
        code: that it has to end with, if any will not do.
        environment: besides this process's.
    """
    ended = subprocess.run(
        [sys.executable, "-m", "streamd", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        env=os.environ | environment,
    )
    assert code in (None, ended.returncode), ended
    return ended


def wait_until(condition: object, seconds: float = PATIENCE_SECONDS) -> None:
    """Poll a callable until it is true."""
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.02)
