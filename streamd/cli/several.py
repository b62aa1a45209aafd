"""`streamd serve --nodes 4`: several nodes of a cluster on one machine, one process family each.

Theory of operation. Each node is `streamd serve` with settings of its own: a name, a folder in the
data folder, and ports. The first one has the ports that were asked for; the stream port of each
further one is one higher, and all others of its ports are free ones: whoever comes to the first
node is served, wherever a stream is led. They share a tier, by default a folder beside theirs.

This process starts them, and starts one again that ends; it prints a ready line when all of them
are. When it is told to stop, or is killed, they stop, too: their stdin ends.
"""

import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from segments.errors import SegmentsError
from streamd.cli.terminal import Failed, ReaderLeft, write
from streamd.config import OFF, PORTS, Config, ConfigError, Value
from streamd.operations.arguments import STORE

logger = logging.getLogger("streamd")

_PAUSE_SECONDS = 1.0  # before one that has ended is started again
_STOP_SECONDS = 60.0
_LOOK_SECONDS = 0.5  # between two looks at the tier
_READY = "streamd ready "
_READ_BYTES = 4_096


class _NodeProcess:
    """One node, as long as it is to be there."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.ready = ""
        self._arguments = arguments
        self._read = b""
        self._due = 0.0
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        self.ready = ""
        return subprocess.Popen(  # noqa: S603 - it is this program
            [sys.executable, "-m", "streamd", "serve", "--until-stdin-ends", *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def look(self) -> None:
        """Take what it has said; start it again a while after it has ended."""
        assert self.process.stdout is not None  # noqa: S101 - it is piped
        readable, _, _ = select.select([self.process.stdout], [], [], 0)
        if readable:
            self._read += os.read(self.process.stdout.fileno(), _READ_BYTES)
            *lines, self._read = self._read.split(b"\n")
            for line in lines:
                if line.decode().startswith(_READY):
                    self.ready = line.decode()
        if self.process.poll() is None:
            self._due = 0.0
        elif not self._due:
            self._due = time.monotonic() + _PAUSE_SECONDS
            logger.error("a node has ended with code %s", self.process.returncode)
        elif time.monotonic() > self._due:
            self.process = self._start()

    def stop(self) -> None:
        """Have it stop; see `wait`."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> None:
        """Wait for its end, and kill it where that does not come."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def settings_of_nodes(settings: Config, flags: Mapping[str, Value]) -> list[dict[str, Value]]:
    """The settings of each node, as its command line has them.

    Args:
        settings: those that were given, and the defaults.
        flags: those of the command line.

    Raises:
        ConfigError: they do not fit several nodes.
    """
    data = Path(settings.data).absolute()
    tier = settings.tier or f"file://{data / 'tier'}"
    first: dict[str, Value] = {"confirm": STORE, "leader_locator": "balanced", "tier": tier}
    first |= {name: value for name, value in flags.items() if value not in (None, ())}
    if settings.read_only or settings.restore:
        raise ConfigError("nodes is for servers that publish, and read_only or restore is set")
    if first["confirm"] != STORE:
        raise ConfigError(
            f"confirm is {first['confirm']}, and several nodes need {STORE}: only what is "
            "confirmed by the tier can be led by any of them"
        )
    found = []
    for number in range(1, settings.nodes + 1):
        name = f"{settings.node}-{number}" if settings.node else f"node-{number}"
        own: dict[str, Value] = {"node": name, "data": str(data / name), "nodes": 1}
        if number > 1:
            for port in PORTS:
                given = getattr(settings, port)
                if given is not None and port in ("stream_port", "tls_port") and given:
                    own[port] = given + number - 1
                elif given is not None:
                    own[port] = OFF if port.startswith("metrics") else 0
        found.append(first | own)
    return found


def run_nodes(settings: Config, file: Sequence[str], flags: Mapping[str, Value]) -> None:
    """Run them until this process is told to stop.

    Args:
        settings: see Config; `nodes` of them.
        file: the option that names a file with settings, which all of them read, or none.
        flags: the settings of the command line, which all of them get.

    Raises:
        ConfigError: see `settings_of_nodes`.
        Failed: one of them does not start.
    """
    wanted = settings_of_nodes(settings, flags)
    if not settings.tier:
        (Path(settings.data) / "tier").mkdir(mode=0o750, parents=True, exist_ok=True)
    stops: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        stops.append(number)

    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, stop)
    nodes: list[_NodeProcess] = []
    try:
        is_told = False
        while not stops:
            begun = wanted if nodes and nodes[0].ready else wanted[:1]  # it is to lead the cluster
            nodes += [_NodeProcess([*file, *_options(one)]) for one in begun[len(nodes) :]]
            for node in nodes:
                node.look()
                if not is_told and node.process.poll() is not None:
                    raise Failed("a node of the cluster does not start; its log says why")
            are_ready = len(nodes) == len(wanted) and all(node.ready for node in nodes)
            if not is_told and are_ready and _lead_all(wanted, settings.tier_endpoint):
                _say_ready(f"{nodes[0].ready} nodes={len(nodes)}")
                is_told = True
            time.sleep(0.05)
    finally:
        end = time.monotonic() + _STOP_SECONDS
        for node in reversed(nodes):  # the first one leads, in most cases
            node.stop()
        for node in nodes:
            node.wait(max(0.1, end - time.monotonic()))


def _lead_all(wanted: Sequence[Mapping[str, Value]], endpoint: str) -> bool:
    """Each node leads streams of its own, so that those that are declared now are spread.

    Where they do not yet, it takes a while: each look at a store is paid for.
    """
    from segments.store.stores import open_store  # noqa: PLC0415 - where several nodes are asked for
    from streamd.broker.nodes.report import read_cluster  # noqa: PLC0415 - as above

    try:
        found = read_cluster(open_store(str(wanted[0]["tier"]), endpoint), _now_ms())
    except SegmentsError:
        time.sleep(_LOOK_SECONDS)
        return False
    leading = {one.name for one in found.nodes if one.is_there and one.name in one.shards}
    do_all = leading.issuperset(str(one["node"]) for one in wanted)
    if not do_all:
        time.sleep(_LOOK_SECONDS)
    return do_all


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _say_ready(line: str) -> None:
    try:
        write(line)
    except (Failed, ReaderLeft):  # as a daemon has it
        logger.warning("nobody reads stdout; %s", line)


def _options(settings: Mapping[str, Value]) -> list[str]:
    found = []
    for name, value in settings.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            found += [option] if value else []
        else:
            for one in value if isinstance(value, tuple) else (value,):
                found += [option, str(one)]
    return found
