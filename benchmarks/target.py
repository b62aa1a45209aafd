"""The server that is measured: a process of its own, and what the kernel tells of it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Self

_TICKS = os.sysconf("SC_CLK_TCK")
_PORTS = ("--stream-port", "0", "--http-port", "off", "--amqp-port", "off")


class Target:
    """`streamd serve` on a free port; a context that ends it.

    Args:
        data: its data folder.
        options: more of them.

    Attributes:
        host, port: where it listens.
        amqp: host and port of AMQP 0-9-1, where the options ask for it.
        pid: its process.
    """

    def __init__(self, data: Path, *options: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "streamd", "serve", "--data", str(data), *_PORTS, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()
        address = ready.partition("stream=")[2].partition(" ")[0]
        if not address:
            raise RuntimeError("the server did not start: try `streamd serve`")
        self.host, _, port = address.rpartition(":")
        self.port = int(port)
        self.amqp = ready.partition("amqp=")[2].partition(" ")[0]
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)

    def cpu_seconds(self) -> float:
        """User and system time so far, in steps of 10 ms."""
        return cpu_seconds(self.pid)

    def peak_resident_bytes(self) -> int:
        """The most memory it ever held."""
        return self._status_bytes("VmHWM:")

    def resident_bytes(self) -> int:
        """The memory it holds now."""
        return self._status_bytes("VmRSS:")

    def _status_bytes(self, name: str) -> int:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith(name))
        return int(line.split()[1]) * 1024


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, in steps of 10 ms."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / _TICKS
