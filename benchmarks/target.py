"""The servers that are measured, and what the kernel says about their processes."""

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Self

from benchmarks.raw_connection import RawConnection
from streamd.wire.stream import commands as c

_TICKS = os.sysconf("SC_CLK_TCK")
_SERVE = (sys.executable, "-m", "streamd", "serve")
_PORTS = (
    *("--stream-port", "0", "--http-port", "off"),
    *("--amqp-port", "off", "--metrics-port", "off"),
)
_ENDED_CPU_FIELDS = slice(13, 15)  # user and system time of children that were waited for
_PARENT_FIELD = 1
_ALL_THREADS = 2  # as clock_getcpuclockid() makes the number of a process's clock
_PATIENCE_SECONDS = 120


class Server:
    """A server of the stream protocol on this machine.

    Attributes:
        host, port: where it listens.
        pid: its process; that of those it starts counts as its own.
        can_restart: whether stop() and start() work.
    """

    can_restart = False

    def __init__(self, host: str, port: int, pid: int) -> None:
        self.host, self.port, self.pid = host, port, pid

    def connect(self) -> RawConnection:
        """A new connection."""
        return RawConnection(self.host, self.port)

    def stop(self) -> None:
        """End it."""
        raise NotImplementedError

    def start(self) -> None:
        """Start it again, on the same data; it need not be ready yet."""
        raise NotImplementedError

    def settle(self) -> None:
        """What is left to do when it is ready."""

    def seconds_to_start(self, stream: str | None = None) -> float:
        """Start it again; seconds until it takes connections and answers about a stream."""
        began = time.perf_counter()
        self.start()
        while not self._answers(stream):
            if time.perf_counter() > began + _PATIENCE_SECONDS:
                raise TimeoutError(f"not started within {_PATIENCE_SECONDS} s")
            time.sleep(0.005)
        seconds = time.perf_counter() - began
        self.settle()
        return seconds

    def _answers(self, stream: str | None) -> bool:
        try:
            with self.connect() as connection:
                if stream:
                    connection.request(c.StreamStats, stream)
        except (OSError, RuntimeError):
            return False
        return True

    def cpu_seconds(self) -> float:
        """User and system time so far."""
        return cpu_seconds(self.pid)

    def peak_resident_bytes(self) -> int:
        """The most memory it ever held."""
        return self._status_bytes("VmHWM:")

    def resident_bytes(self) -> int:
        """The memory it holds now."""
        return self._status_bytes("VmRSS:")

    def _status_bytes(self, name: str) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith(name))
        return int(line.split()[1]) * 1024


class Target(Server):
    """`streamd serve` on a free port; a context that ends it.

    Args:
        data: its data folder.
        options: more of them.

    Attributes:
        amqp: host and port of AMQP 0-9-1, where the options ask for it.
    """

    can_restart = True

    def __init__(self, data: Path, *options: str) -> None:
        self._data = data
        self._options = options
        self.start()

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._process = subprocess.Popen(
            [*_SERVE, "--data", str(self._data), *_PORTS, *self._options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            # As peers are: Linux deals a busy processor out to sessions, and this one has the load.
            start_new_session=True,
        )
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()
        address = ready.partition("stream=")[2].partition(" ")[0]
        if not address:
            raise RuntimeError("the server did not start: try `streamd serve`")
        self.amqp = ready.partition("amqp=")[2].partition(" ")[0]
        host, _, port = address.rpartition(":")
        super().__init__(host, int(port), self._process.pid)

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def kill(self) -> None:
        """With all its processes, as if the machine was gone."""
        os.killpg(self.pid, signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and of all it has started."""
    ticks, children = _processes()
    family = _family(pid, children)
    return sum(map(_clock_of, family)) + sum(ticks.get(it, 0) for it in family) / _TICKS


def family_of(pid: int) -> list[int]:
    """A process and all it has started."""
    return _family(pid, _processes()[1])


def _family(pid: int, children: Mapping[int, list[int]]) -> list[int]:
    found = [pid]
    for it in found:
        found += children.get(it, ())
    return found


def _clock_of(pid: int) -> float:
    """The CPU clock of a process, which is finer than what /proc says; 0 if it has ended."""
    try:
        return time.clock_gettime(~pid << 3 | _ALL_THREADS)
    except OSError:
        return 0


def busy_seconds() -> float:
    """CPU time that this machine has spent on anything so far, all cores together."""
    fields = [int(it) for it in Path("/proc/stat").read_text().split(None, 9)[1:9]]
    idle, waiting = fields[3:5]
    return (sum(fields) - idle - waiting) / _TICKS


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """This process and those it starts have these values meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def other_version(folder: str) -> AbstractContextManager[None]:
    """Let programs that are started meanwhile import from there, not from their own folder."""
    return environment({"PYTHONPATH": folder, "PYTHONSAFEPATH": "1"})


def _processes() -> tuple[dict[int, int], defaultdict[int, list[int]]]:
    """The children of every process, and the CPU ticks of those of them that have ended."""
    ticks: dict[int, int] = {}
    children: defaultdict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text()
        except OSError:  # it has ended
            continue
        fields = stat.rpartition(")")[2].split()
        pid, parent = int(folder.name), int(fields[_PARENT_FIELD])
        ticks[pid] = sum(map(int, fields[_ENDED_CPU_FIELDS]))
        children[parent].append(pid)
    return ticks, children
