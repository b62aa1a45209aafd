"""The server as a whole."""

import heapq
import os
import resource
import shutil
import time
from pathlib import Path

from streamd.engine import diagnosis
from streamd.engine.caller import Caller
from streamd.engine.connections import connection_of, sees_connection
from streamd.engine.engine import Call, Handlers, Parts
from streamd.net.actor import recent
from streamd.net.turns import in_turns
from streamd.operations import server as s
from streamd.operations.connections import Connection, ConsumerFacts
from streamd.operations.tier_reports import TierStatus

FURTHEST = 5  # consumers
_RECENT_SECONDS = 3_600
HIDDEN = "the storage of the stream has failed or is full"


class Overview:
    """The server as a whole.

    Attributes:
        handlers: one for each operation.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts, self._broker = parts, parts.broker
        self._started, self._started_ms = time.monotonic(), parts.broker.now_ms()
        self.handlers: Handlers = {s.GetOverview: self._get, s.GetHealth: self._health}

    async def _get(self, call: Call, _request: s.GetOverview) -> s.Overview:
        caller, broker = call.caller, self._broker
        hosts = [host for name, host in broker.virtual_hosts.items() if caller.sees_host(name)]
        num_messages = size = newest_ms = 0
        troubles: list[s.StreamTrouble] = []
        streams = [(host, stream) for host in hosts for stream in host.streams()]
        async for host, stream in in_turns(streams):
            figures, reason = stream.figures, shown_trouble(caller, stream.alarm)
            lost = 0
            if figures is not None:
                num_messages += figures.num_messages
                size += figures.size
                lost = figures.num_lost
                newest_ms = max(newest_ms, figures.last_timestamp_ms)
            if reason or lost:
                troubles.append(s.StreamTrouble(host.name, stream.name, reason, lost))
        num_connections = num_publishers = num_consumers = 0
        behind: list[s.Behind] = []
        async for connection in in_turns(self._parts.connections):
            if not sees_connection(caller, connection):
                continue
            num_connections += not connection.is_node
            num_publishers += len(connection.publishers())
            found = connection.consumers()
            num_consumers += len(found)
            shown = connection_of(connection)
            behind += [
                s.Behind(
                    facts.lag_seconds,
                    facts.lag,
                    consumer_name(shown, facts),
                    connection.virtual_host,
                    facts.stream,
                )
                for facts in found
                if facts.lag and facts.is_active
            ]
            behind = heapq.nlargest(FURTHEST, behind)
        totals = s.Totals(
            streams=len(streams),
            messages=num_messages,
            size=size,
            exchanges=sum(1 + host.topology.num_exchanges() for host in hosts),
            connections=num_connections,
            publishers=num_publishers,
            consumers=num_consumers,
        )
        wrong: list[s.Trouble] = []
        server = None
        if caller.sees_all:
            tier = TierStatus() if broker.tier is None else await broker.tier.status()
            server = self._server(tier)
            wrong += diagnosis.of_server(server, tier, newest_ms, broker.now_ms())
        wrong += [*diagnosis.of_streams(troubles), *diagnosis.of_consumers(behind)]
        return s.Overview(
            totals,
            wrong,
            troubles,
            broker.has_alarms,
            broker.has_looked,
            broker.is_read_only,
            None if broker.node is None else broker.node.facts(),
            behind,
            server,
        )

    def _server(self, tier: TierStatus) -> s.ServerFacts:
        disk = shutil.disk_usage(self._broker.data)
        return s.ServerFacts(
            pid=os.getpid(),
            started_ms=self._started_ms,
            uptime=time.monotonic() - self._started,
            memory=_resident_bytes(),
            files=_num_open_files(),
            max_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            disk_free=disk.free,
            disk_total=disk.total,
            disk_floor=self._broker.floor.least,
            faults=self._broker.supervisor.faults_lately(),
            listeners=list(self._parts.listeners.items()),
            doors=list(self._parts.doors.values()),
            tier=tier.state,
            recent=recent.since(_RECENT_SECONDS),
            history=self._broker.history.server(),
        )

    async def _health(self, _call: Call, _request: s.GetHealth) -> s.Health:
        trouble = ""
        if self._broker.has_alarms:
            trouble = "some streams accept no messages"
        elif not self._broker.has_looked:
            trouble = "not all streams have been opened since the start"
        node = self._broker.node
        role = "" if node is None else node.facts().role
        return s.Health(
            trouble, role, {name: at.port for name, at in self._parts.listeners.items()}
        )


def shown_trouble(caller: Caller, trouble: str) -> str:
    """Why a stream takes no messages; the paths in it are for those who may look at the server."""
    return trouble if caller.sees_all or not trouble else HIDDEN


def consumer_name(connection: Connection, facts: ConsumerFacts) -> str:
    """The name that a consumer has given itself, or else where it is."""
    named = facts.properties.get("name") or facts.properties.get("identifier")
    return named or f"{connection.user}, {connection.peer}, subscription {facts.subscription_id}"


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
