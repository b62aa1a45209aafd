"""What is asked of the cluster."""

from contextlib import suppress
from typing import Any

from streamd.auth.users import NODE
from streamd.engine.engine import Call, Handlers, Parts
from streamd.net.turns import in_turns
from streamd.operations.cluster import (
    ClusterFacts,
    ForgetNode,
    GetCluster,
    GetServedBy,
    LeaderFacts,
    LedStream,
    ListLed,
    MoveShard,
    ReadOn,
    node_of,
)
from streamd.operations.errors import Reason, Refused
from streamd.operations.tier_reports import store_errors_refuse


class Cluster:
    """The nodes that share a tier.

    Attributes:
        handlers: one for each operation.
    """

    def __init__(self, parts: Parts) -> None:
        self._broker = parts.broker
        self.handlers: Handlers = {
            GetCluster: self._get,
            GetServedBy: self._served_by,
            ForgetNode: self._forget,
            MoveShard: self._move,
            ListLed: self._led,
            ReadOn: self._read_on,
        }

    async def _get(self, _call: Call, _request: GetCluster) -> ClusterFacts:
        with store_errors_refuse():
            return await node_of(self._broker.node).cluster()

    async def _served_by(self, _call: Call, _request: GetServedBy) -> LeaderFacts | None:
        node = self._broker.node
        return None if node is None else node.served_by()

    async def _read_on(self, call: Call, _request: ReadOn) -> None:
        _check_node(call)
        if not await self._broker.read_on():
            details = "the log of metadata cannot be read at the moment"
            raise Refused(Reason.NOT_AVAILABLE, details)

    async def _led(self, call: Call, request: ListLed) -> list[LedStream]:
        _check_node(call)
        if request.streams:
            of = None if request.vhost is None else self._broker.virtual_hosts.get(request.vhost)
            named = () if of is None else map(of.find_row, request.streams)
            rows = [row for row in named if row is not None]
        else:
            rows = list(self._broker.rows())
        found = []
        async for row in in_turns(rows):
            host = self._broker.virtual_hosts.get(row.virtual_host)
            stream = None if host is None else host.get_stream(row.name)
            is_led = host is not None and host.writer(row.name) is None
            if stream is None or not is_led or not (row.shard or request.streams):
                continue
            f = stream.figures
            if request.streams:
                with suppress(Refused):
                    f = await stream.read_figures()
            if f is not None:
                life = row.life or f.life
                parts: tuple[Any, ...] = (*row[:2], life, *f[:10], tuple(f.gaps))
                found.append(LedStream(*parts))
        return found

    async def _move(self, _call: Call, request: MoveShard) -> None:
        shards = self._broker.shards
        if shards is None:
            details = "this server is no node that streams are placed at: see --confirm store"
            raise Refused(Reason.PRECONDITION_FAILED, details)
        await shards.move_here(request.shard)

    async def _forget(self, _call: Call, request: ForgetNode) -> None:
        with store_errors_refuse():
            await node_of(self._broker.node).forget(request.name)


def _check_node(call: Call) -> None:
    if call.caller.name != NODE:
        raise Refused(Reason.ACCESS_REFUSED, "it is for other nodes of the cluster")
