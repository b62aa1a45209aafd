"""What metrics are made of: the server, and what the system says of it."""

import os
import resource
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import trio

from streamd.broker import threads
from streamd.broker.broker import Broker
from streamd.engine.registry import AMQP091, STREAM_PROTOCOL, ConnectionRegistry
from streamd.version import __version__

PROTOCOLS = (STREAM_PROTOCOL, AMQP091)
MAX_NAMES = 20_000  # of consumers in an answer; others count for their streams alone
_CLIENTS_A_TURN = 200  # publishers and consumers; a connection counts as one more
_UNLIMITED = 1 << 60  # and more: what the kernel says where there is no limit


Key = TypeVar("Key")


class Process(NamedTuple):
    """The process as the system sees it.

    Attributes:
        open_files, max_files: descriptors.
        resident_bytes, memory_limit: of memory; the limit is that of the machine or its container.
        disk_free: bytes in the file system of the data folder.
    """

    open_files: int
    max_files: int
    resident_bytes: int
    memory_limit: int
    disk_free: int


NO_PROCESS = Process(0, 0, 0, 0, 0)


class ReadersOf:
    """The consumers of one name, or all of one stream.

    Attributes:
        count: how many.
        lag: messages that the one that is furthest behind has not got.
        lag_seconds: how old the first of them is.
    """

    __slots__ = ("count", "lag", "lag_seconds")

    def __init__(self) -> None:
        self.count = self.lag = 0
        self.lag_seconds = 0.0

    def add(self, lag: int, lag_seconds: float) -> None:
        """There is one more."""
        self.count += 1
        self.lag = max(self.lag, lag)
        self.lag_seconds = max(self.lag_seconds, lag_seconds)


NOBODY = ReadersOf()


class Clients:
    """Who uses which stream.

    Attributes:
        of_stream: consumers, by virtual host and stream.
        by_name: the same by virtual host, stream and the consumer's name, MAX_NAMES of them.
        publishers: how many, by virtual host and stream; of the stream protocol alone.
    """

    def __init__(self) -> None:
        self.of_stream: dict[tuple[str, str], ReadersOf] = {}
        self.by_name: dict[tuple[str, str, str], ReadersOf] = {}
        self.publishers: dict[tuple[str, str], int] = {}


class Source(NamedTuple):
    """A server, for its metrics.

    Attributes:
        broker, connections: of the server.
        node: its name.
        started: when, by `time.monotonic`.
    """

    broker: Broker
    connections: ConnectionRegistry
    node: str
    started: float

    @property
    def version(self) -> str:
        """Of streamd."""
        return __version__

    @property
    def uptime(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def num_streams(self) -> int:
        """Streams in all virtual hosts."""
        return sum(len(host.streams()) for host in self.broker.virtual_hosts.values())

    async def process(self) -> Process:
        """The process as the system sees it, asked for in a thread: disks may let one wait."""
        return await threads.in_thread(_process, self.broker.data)

    async def clients(self) -> Clients:
        """Who uses which stream; others have their turn meanwhile."""
        found, seen = Clients(), 0
        for connection in self.connections:
            if seen >= _CLIENTS_A_TURN:
                seen = 0
                await trio.lowlevel.checkpoint()
            host = connection.virtual_host
            publishers, consumers = connection.publishers(), connection.consumers()
            seen += 1 + len(publishers) + len(consumers)
            for publisher in publishers:
                place = (host, publisher.stream)
                found.publishers[place] = found.publishers.get(place, 0) + 1
            for consumer in consumers:
                name = consumer.properties.get("name") or consumer.properties.get("identifier", "")
                lag, seconds = consumer.lag, consumer.lag_seconds
                stream = consumer.stream
                _of(found.of_stream, (host, stream)).add(lag, seconds)
                named = (host, stream, name)
                if named in found.by_name or len(found.by_name) < MAX_NAMES:
                    _of(found.by_name, named).add(lag, seconds)
        return found


def _of(known: dict[Key, ReadersOf], key: Key) -> ReadersOf:
    found = known.get(key)
    if found is None:
        found = known[key] = ReadersOf()
    return found


def _process(data: str) -> Process:
    return Process(
        open_files=_or_zero(lambda: len(os.listdir("/proc/self/fd"))),
        max_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        resident_bytes=_resident_bytes(),
        memory_limit=_memory_limit(),
        disk_free=_or_zero(lambda: shutil.disk_usage(data).free),
    )


def _or_zero(look: Callable[[], int]) -> int:
    with suppress(OSError, ValueError, IndexError):
        return look()
    return 0


def _page_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE")


def _resident_bytes() -> int:
    return _or_zero(lambda: int(Path("/proc/self/statm").read_text().split()[1]) * _page_bytes())


def _memory_limit() -> int:
    """What the machine has, or the container's limit where that is less."""
    whole = _or_zero(lambda: os.sysconf("SC_PHYS_PAGES") * _page_bytes())
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        limit = _or_zero(lambda path=path: int(Path(path).read_text()))  # type: ignore[misc]
        if 0 < limit < _UNLIMITED:
            return min(limit, whole or limit)
    return whole
