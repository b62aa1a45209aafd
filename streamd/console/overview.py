"""The server at a glance: is all well, how much goes through, how long does it take."""

import heapq
import os
import resource
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from segments.words import plural
from streamd.broker.broker import Broker
from streamd.broker.virtual_host import VirtualHost
from streamd.console import words
from streamd.console.charts import Chart, make_chart
from streamd.console.people import consumer_name
from streamd.console.site import NavigationItem, Site
from streamd.engine import Caller
from streamd.http_api.caller import caller_of
from streamd.http_api.overview import shown_trouble
from streamd.net.turns import in_turns
from streamd.operations.names import Name

_STREAMS_A_TURN, _CONNECTIONS_A_TURN = 100, 10
_MOST_TROUBLES = 20
_FURTHEST = 5  # consumers
_LITTLE_FREE = 0.1  # of the disk


class Trouble(NamedTuple):
    """Something that somebody has to look at.

    Attributes:
        stream: virtual host and name of the stream that it is about; None for the server.
    """

    what: str
    stream: tuple[Name, Name] | None = None


class Totals(NamedTuple):
    """How many things there are, as far as a user may see them."""

    streams: int
    unavailable: int
    messages: int
    size: int
    connections: int = 0
    publishers: int = 0
    consumers: int = 0


class Behind(NamedTuple):
    """A consumer that has not read everything."""

    seconds: float
    messages: int
    who: str
    vhost: str
    stream: str


class OverviewPages:
    """The server at a glance."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._service = site.service
        self._broker: Broker = site.service.broker
        self._started_ms = self._broker.now_ms()
        site.navigation.append(NavigationItem("Overview", "/"))
        self.routes = [site.page("/", self._show)]

    async def _show(self, request: Request) -> Response:
        caller, broker = caller_of(request), self._broker
        hosts = [host for name, host in broker.virtual_hosts.items() if caller.sees_host(name)]
        totals, troubles = await self._look(caller, hosts)
        totals, behind = await self._look_at_connections(caller, totals)
        disk = shutil.disk_usage(broker.data) if caller.sees_all else None
        if disk is not None and disk.free < _LITTLE_FREE * disk.total:
            troubles.insert(0, Trouble(_little_room(disk.free, disk.total)))
        moments = broker.history.server() if caller.sees_all else []
        if caller.sees_all and broker.supervisor.num_faults:
            troubles.insert(0, Trouble(_faults(broker.supervisor.faults)))
        return await self._site.show(
            request,
            "overview.html",
            totals=totals,
            troubles=troubles[:_MOST_TROUBLES],
            num_more_troubles=max(0, len(troubles) - _MOST_TROUBLES),
            behind=behind,
            is_looking=not broker.has_looked,
            disk=disk,
            now=moments[-1] if moments else None,
            charts=charts_of(broker) if caller.sees_all else [],
            listeners=self._service.listeners() if caller.sees_all else [],
            memory=_resident_bytes() if caller.sees_all else None,
            started_ms=self._started_ms,
            num_files=_num_open_files() if caller.sees_all else None,
            max_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        )

    async def _look(self, caller: Caller, hosts: list[VirtualHost]) -> tuple[Totals, list[Trouble]]:
        """How much there is, and what is wrong with streams."""
        num_streams = num_unavailable = num_messages = size = 0
        troubles: list[Trouble] = []
        streams = [(host, stream) for host in hosts for stream in host.streams()]
        async for host, stream in in_turns(streams, _STREAMS_A_TURN):
            num_streams += 1
            figures = stream.figures
            if figures is not None:
                num_messages += figures.num_messages
                size += figures.size
                if figures.num_lost:
                    troubles.append(Trouble(_damage(figures.num_lost), (host.name, stream.name)))
            reason = stream.alarm
            if reason:
                num_unavailable += 1
                where = host.name, stream.name
                troubles.append(Trouble(shown_trouble(caller, reason), where))
        return Totals(num_streams, num_unavailable, num_messages, size), troubles

    async def _look_at_connections(
        self, caller: Caller, totals: Totals
    ) -> tuple[Totals, list[Behind]]:
        """How many there are, and which consumers are furthest behind."""
        num_connections = num_publishers = num_consumers = 0
        behind: list[Behind] = []
        async for connection in in_turns(self._service.connections, _CONNECTIONS_A_TURN):
            if not caller.sees_all and connection.user != caller.name:
                continue
            num_connections += 1
            num_publishers += len(connection.publishers())
            found = connection.consumers()
            num_consumers += len(found)
            behind += [
                Behind(
                    facts.lag_seconds,
                    facts.lag,
                    consumer_name(connection, facts),
                    connection.virtual_host,
                    facts.stream,
                )
                for facts in found
                if facts.lag and facts.is_active
            ]
            behind = heapq.nlargest(_FURTHEST, behind)
        people = {"connections": num_connections, "publishers": num_publishers}
        return totals._replace(**people, consumers=num_consumers), behind


def charts_of(broker: Broker) -> list[Chart]:
    """The last hour of the server."""
    moments = broker.history.server()
    return [
        make_chart(
            "messages",
            "Messages",
            "rate",
            moments,
            [("stored", lambda m: m.messages_in), ("sent", lambda m: m.messages_out)],
        ),
        make_chart(
            "bytes",
            "Bytes",
            "bytes",
            moments,
            [("stored", lambda m: m.bytes_in), ("sent", lambda m: m.bytes_out)],
        ),
        make_chart(
            "confirms",
            "Time to confirm",
            "duration",
            moments,
            [
                ("half within", lambda m: m.confirm_p50),
                ("99 % within", lambda m: m.confirm_p99),
            ],
            max,
        ),
        make_chart(
            "loop",
            "Delay of the event loop",
            "duration",
            moments,
            [("longest", lambda m: m.loop_delay)],
            max,
        ),
    ]


def _little_room(free: int, total: int) -> str:
    share = free / total if total else 0
    return (
        f"only {words.percent(share)} of the disk is free: {words.size(free)} of "
        f"{words.size(total)}; streams take no messages when it is full"
    )


def _damage(num_lost: int) -> str:
    are = "is" if num_lost == 1 else "are"
    return f"{plural(num_lost, 'message')} {are} damaged and cannot be read; the log says where"


def _faults(faults: Mapping[str, int]) -> str:
    kinds = ", ".join(f"{kind}: {count:,}" for kind, count in sorted(faults.items()) if count)
    total = sum(faults.values())
    were = "fault was" if total == 1 else "faults were"
    return f"{total:,} {were} contained since the start ({kinds}); the log says more"


def _resident_bytes() -> int:
    """Memory that the process holds now; the most it has held where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def _num_open_files() -> int | None:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return None
