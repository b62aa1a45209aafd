"""What metrics are made of: the server, its streams, and what the system says of the process."""

import logging
import os
import resource
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from segments import Log, StorageError
from segments.codec import MAX_REFERENCE_SIZE
from segments.errors import FULL_DISK
from streamd.broker.streams.log_figures import LogFigures
from streamd.broker.streams.log_life import StreamState
from streamd.broker.streams.stream import Stream
from streamd.broker.traffic import Histogram, ProtocolTraffic
from streamd.engine.engine import Call, Handlers, Parts
from streamd.net import threads
from streamd.net.turns import in_turns
from streamd.operations import figures as f
from streamd.operations.connections import STREAM_PROTOCOL
from streamd.operations.figures import AMQP091, AMQP10
from streamd.operations.names import Name
from streamd.operations.tier_reports import TierStatus, status_of

logger = logging.getLogger(__name__)

PROTOCOLS = (STREAM_PROTOCOL, AMQP091, AMQP10, "http")
MAX_NAMES = 20_000  # of consumers in an answer; others count for their streams alone
_UNLIMITED = 1 << 60  # and more: what the kernel says where there is no limit

Key = TypeVar("Key")


class Figures:
    """What is counted.

    What fails in one stream is logged and counted and left out; the rest is told.

    Attributes:
        handlers: one for each operation.
    """

    def __init__(self, parts: Parts) -> None:
        self._broker, self._connections = parts.broker, parts.connections
        self._started = time.monotonic()
        self._process = f.Process()
        self.handlers: Handlers = {
            f.GetServerFigures: self._server,
            f.ListStreamFigures: self._streams,
            f.ListExchangeFigures: self._exchanges,
            f.CountRefusals: self._count_refusals,
        }

    async def _server(self, _call: Call, _request: f.GetServerFigures) -> f.ServerFigures:
        broker, traffic = self._broker, self._broker.traffic
        try:
            self._process = await threads.in_thread(_process, broker.data)
        except StorageError as error:  # no thread: what was known is told again
            broker.supervisor.failed("collecting metrics", "process", error)
        tier = TierStatus()
        with broker.supervisor.guarded("collecting metrics", "tier"):
            tier = await status_of(broker.tier)
        histograms = {
            "confirm_seconds": traffic.confirm_seconds,
            "flush_seconds": traffic.flush_seconds,
            "slot_seconds": traffic.slot_seconds,
            "loop_delay_seconds": traffic.loop_delay_seconds,
            "message_bytes": traffic.message_bytes,
        }
        return f.ServerFigures(
            uptime=time.monotonic() - self._started,
            connections=len(self._connections),
            opened=self._connections.opened,
            closed=self._connections.closed,
            streams=sum(len(host.streams()) for host in broker.virtual_hosts.values()),
            process=self._process,
            tier=tier,
            node=None if broker.node is None else broker.node.facts(),
            queues_declared=traffic.queues_declared,
            queues_created=traffic.queues_created,
            queues_deleted=traffic.queues_deleted,
            histograms={name: _distribution(found) for name, found in histograms.items()},
            faults=dict(broker.supervisor.faults),
            http_refused=dict(traffic.http_refused),
            searches_begun=broker.searches.num_begun,
            searches_refused=broker.searches.num_refused,
            searches_open=broker.searches.num_open,
            chunks_in_vain=traffic.chunks_in_vain,
            protocols={name: _protocol(traffic.protocol(name)) for name in PROTOCOLS},
            virtual_hosts=tuple(broker.virtual_hosts),
        )

    async def _count_refusals(self, _call: Call, request: f.CountRefusals) -> None:
        self._broker.traffic.http_refused.update(request.counts)

    async def _streams(self, _call: Call, request: f.ListStreamFigures) -> f.AllStreams:
        clients = await self._clients()
        chosen = [
            (name, stream)
            for name, host in self._broker.virtual_hosts.items()
            if not request.vhosts or name in request.vhosts
            for stream in host.streams()
        ]
        found: list[f.StreamFigures] = []
        gone = self._broker.traffic.flow_of_the_gone()  # of the same moment as the list
        async for name, stream in in_turns(chosen):
            with self._broker.supervisor.guarded("collecting metrics", stream.name):
                found.append(clients.figures(name, stream))
        consumers = [f.NamedReaders(*place, r) for place, r in clients.by_name.items()]
        return f.AllStreams(found, gone, consumers)

    async def _clients(self) -> "_Clients":
        """The clients of each stream; yields to other tasks in between."""
        found = _Clients()
        async for connection in in_turns(self._connections):
            host = Name(connection.virtual_host)
            publishers, consumers = connection.publishers(), connection.consumers()
            for publisher in publishers:
                place = (host, Name(publisher.stream))
                found.publishers[place] = found.publishers.get(place, 0) + 1
            for consumer in consumers:
                told = consumer.properties.get("name") or consumer.properties.get("identifier", "")
                name = told[:MAX_REFERENCE_SIZE]  # it may be as long as all properties together
                lag, seconds = consumer.lag, consumer.lag_seconds
                stream = Name(consumer.stream)
                found.of_stream.setdefault((host, stream), f.Readers()).add(lag, seconds)
                named = (host, stream, name)
                if named in found.by_name or len(found.by_name) < MAX_NAMES:
                    found.by_name.setdefault(named, f.Readers()).add(lag, seconds)
        return found

    async def _exchanges(
        self, _call: Call, _request: f.ListExchangeFigures
    ) -> list[f.ExchangeFigures]:
        return [
            f.ExchangeFigures(
                host.name, row.name, str(row.type), len(host.topology.bindings_from(row.name))
            )
            for host in list(self._broker.virtual_hosts.values())
            async for row in in_turns(host.topology.rows())
        ]


class _Clients:
    """The clients of each stream.

    Attributes:
        of_stream: consumers, by virtual host and stream.
        by_name: the same by virtual host, stream and the consumer's name, MAX_NAMES of them.
        publishers: how many, by virtual host and stream; of the stream protocol alone.
    """

    def __init__(self) -> None:
        self.of_stream: dict[tuple[Name, Name], f.Readers] = {}
        self.by_name: dict[tuple[Name, Name, str], f.Readers] = {}
        self.publishers: dict[tuple[Name, Name], int] = {}

    def figures(self, host: Name, stream: Stream) -> f.StreamFigures:
        """What is counted of a stream."""
        place, alarm, log = (host, stream.name), stream.alarm, None
        life = stream.life
        if life.state is StreamState.GONE:
            pass
        elif (opened := life.opened_log) is not None:
            log = _state_of(opened.log)
        elif (figures := life.figures) is not None:
            log = _known_state(figures)
        standing = stream.standing
        return f.StreamFigures(
            host,
            stream.name,
            log,
            stream.traffic.flow(),
            stream.traffic.messages_out_amqp,
            stream.traffic.messages_acknowledged,
            stream.traffic.chunks_in_vain,
            self.of_stream.get(place, f.Readers()),
            self.publishers.get(place, 0),
            bool(alarm),
            alarm == FULL_DISK,
            life.state is StreamState.OPEN,
            tuple((row.group, standing.matches[row.token]) for row in standing.rows()),
        )


def _state_of(log: Log) -> f.LogState:
    segments = log.segments.shown
    times = (s.first_timestamp_ms for s in segments if s.first_timestamp_ms is not None)
    return f.LogState(
        log.segments.gaps.num_between(log.segments.first_offset, log.committed_offset),
        log.segments.size,
        log.segments.num_chunks,
        len(segments),
        next(times, 0),
        log.segments.last_timestamp_ms or 0,
        log.segments.num_lost,
        sum(len(segment.damage) for segment in log.segments.damaged),
        len([segment for segment in segments if segment.keys is not None]),
    )


def _known_state(figures: LogFigures) -> f.LogState:
    """The state of a log that is not open; its count of damaged places is unknown."""
    return f.LogState(
        figures.num_messages,
        figures.size,
        figures.num_chunks,
        figures.num_segments,
        figures.first_timestamp_ms,
        figures.last_timestamp_ms,
        figures.num_lost,
        int(figures.num_lost > 0),
        0,
    )


def _distribution(histogram: Histogram) -> f.Distribution:
    return f.Distribution(tuple(histogram.bounds), tuple(histogram.counts), histogram.sum)


def _protocol(traffic: ProtocolTraffic) -> f.ProtocolFigures:
    names = f.ProtocolFigures.__struct_fields__
    found = {name: getattr(traffic, name) for name in names if name != "errors"}
    return f.ProtocolFigures(**found, errors=dict(traffic.errors))


def _process(data: str) -> f.Process:
    return f.Process(
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
