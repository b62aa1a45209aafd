"""The server in a process of its own: started, killed, stopped, paused, looked at."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.stores import StoreServer

_READY = re.compile(r"streamd ready stream=\S+:(\d+) amqp=\S+:(\d+) http=\S+:(\d+)")
_SERVE = (sys.executable, "-m", "streamd", "serve")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_STOP_SECONDS = 30


class Sample(NamedTuple):
    """The server at one moment: seconds since the beginning, which life, bytes, descriptors."""

    at: float
    life: int
    memory: int
    descriptors: int


class Fault(NamedTuple):
    """Something done to the server."""

    at: float
    kind: str


class Child:
    """`streamd serve`, on the same ports after each restart.

    Args:
        data: its data folder.
        options: of the command.
        store: of its tier, None without one; it is killed as well.

    Attributes:
        stream_port, amqp_port, http_port: where it listens.
        lives: how often it was started.
        recoveries: seconds from each start until it was ready.
        exits: how it ended when it was asked to; 0 is in order.
        samples, faults: over time.
    """

    def __init__(self, data: Path, *options: str, store: StoreServer | None = None) -> None:
        self.stream_port = self.amqp_port = self.http_port = 0
        self.lives = 0
        self.recoveries: list[float] = []
        self.exits: list[int] = []
        self.samples: list[Sample] = []
        self.faults: list[Fault] = []
        self.log = data.with_suffix(".log")
        self._data = data
        self._options = options
        self._store = store
        self._began = time.monotonic()
        self._process: subprocess.Popen[str] | None = None
        self._is_ready = False

    def start(self) -> None:
        """Start it, and wait until it is ready.

        Raises:
            RuntimeError: it did not start.
        """
        began = time.monotonic()
        ports = ("stream", self.stream_port), ("amqp", self.amqp_port), ("http", self.http_port)
        arguments = [part for name, port in ports for part in (f"--{name}-port", str(port))]
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [*_SERVE, "--data", str(self._data), *arguments, *self._options],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        match = _READY.match(self._process.stdout.readline())
        if match is None:
            raise RuntimeError(f"the server did not start: {self.log.read_text()[-2000:]}")
        self.stream_port, self.amqp_port, self.http_port = map(int, match.groups())
        self.recoveries.append(time.monotonic() - began)
        self.lives += 1
        self._is_ready = True

    def end(self, how: signal.Signals) -> None:
        """Kill it, or have it end in order; waits until it has."""
        assert self._process is not None
        self._is_ready = False
        self._process.send_signal(how)
        try:
            code = self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if how != signal.SIGKILL:
            self.exits.append(code)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    @property
    def is_running(self) -> bool:
        """It has not ended by itself."""
        return self._process is not None and self._process.poll() is None

    def disturb(self, chance: random.Random, kinds: Sequence[str]) -> None:
        """Kill, restart or pause it, or kill its store.

        Args:
            chance: chooses.
            kinds: from which: kill, stop, pause, store.
        """
        kind = chance.choice(kinds)
        self.faults.append(Fault(self.seconds, kind))
        if kind == "pause":
            assert self._process is not None
            self._process.send_signal(signal.SIGSTOP)
            time.sleep(chance.uniform(0.2, 3))
            self._process.send_signal(signal.SIGCONT)
            return
        if kind == "store":
            assert self._store is not None
            self._store.kill()
            time.sleep(chance.uniform(0.2, 3))
            self._store.start()
            return
        self.end(signal.SIGKILL if kind == "kill" else signal.SIGTERM)
        self.start()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    def look(self) -> None:
        """Take a sample."""
        process = self._process
        if process is None or not self._is_ready:
            return
        folder = Path("/proc", str(process.pid))
        try:
            memory = int(Path(folder, "statm").read_text().split()[1]) * _PAGE
            descriptors = len(os.listdir(Path(folder, "fd")))
        except (OSError, IndexError):
            return  # it is being killed
        self.samples.append(Sample(self.seconds, self.lives, memory, descriptors))
