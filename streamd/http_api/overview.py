"""/api/overview, nodes, whoami and health checks."""

import os

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamd.http_api.caller import visitor_of
from streamd.http_api.description import ENTER, MONITORING, Operation, described
from streamd.http_api.messages import NotFound, Row, json_answer, part
from streamd.http_api.schemas import TEXT, about, row, some
from streamd.http_api.service import Service
from streamd.operations.routing import ExchangeType, ListExchanges
from streamd.operations.server import NODE, GetHealth, GetOverview
from streamd.version import COMPATIBLE_VERSION, PRODUCT, __version__

PRODUCT_FIELDS = {  # clients choose their requests by these
    "rabbitmq_version": COMPATIBLE_VERSION,
    "rabbit_version": COMPATIBLE_VERSION,
    "product_name": PRODUCT,
    "product_version": COMPATIBLE_VERSION,
    "streamd_version": __version__,
}


class OverviewPaths:
    """The server as a whole."""

    TITLE = "Server"

    def __init__(self, service: Service) -> None:
        self._ask = service.ask
        self.routes = [
            Route("/api/overview", self._overview),
            Route("/api/whoami", self._whoami),
            Route("/api/version", self._version),
            Route("/api/cluster-name", self._cluster_name),
            Route("/api/nodes", self._nodes),
            Route("/api/nodes/{name}", self._node),
            Route("/api/channels", self._no_channels),
            Route("/api/health/checks/alarms", self._alarms),
            Route("/api/health/checks/local-alarms", self._alarms),
            Route("/api/health/checks/port-listener/{port}", self._port_listener),
            Route("/api/aliveness-test/{vhost}", self._aliveness),
        ]

    @described(Operation(answer="Overview"))
    async def _overview(self, request: Request) -> Response:
        """The server, and how many things there are."""
        found = await self._ask(request, GetOverview())
        totals, server, node = found.totals, found.server, found.node
        about_server: Row = {}
        if server is not None:
            about_server = {
                "background_faults": sum(server.faults.values()),
                "listeners": [
                    {"node": NODE, "protocol": protocol, "ip_address": at.host, "port": at.port}
                    for protocol, at in server.listeners
                ],
            }
        return json_answer(
            {
                **PRODUCT_FIELDS,
                "management_version": COMPATIBLE_VERSION,
                "cluster_name": NODE,
                "node": NODE,
                "default_queue_type": "stream",
                "read_only": found.is_read_only,
                **({} if node is None else {"cluster": msgspec.to_builtins(node)}),
                "exchange_types": [{"name": name, "enabled": True} for name in ExchangeType],
                "message_stats": {},
                "queue_totals": message_counts(totals.messages),
                "object_totals": {
                    "channels": 0,
                    "connections": totals.connections,
                    "consumers": totals.consumers,
                    "exchanges": totals.exchanges,
                    "queues": totals.streams,
                },
                **about_server,
            }
        )

    @described(Operation(answer="WhoAmI"))
    async def _whoami(self, request: Request) -> Response:
        """The user that asks."""
        visitor = visitor_of(request)
        await visitor.look()
        return json_answer(
            {"name": visitor.name, "tags": list(visitor.tags), "is_internal_user": True}
        )

    @described(Operation(answer=TEXT))
    async def _version(self, _request: Request) -> Response:
        """The version of RabbitMQ that clients can take the server for."""
        return json_answer(COMPATIBLE_VERSION)

    @described(Operation(answer=row(name=TEXT)))
    async def _cluster_name(self, _request: Request) -> Response:
        """The name of the cluster, which is that of the node."""
        return json_answer({"name": NODE})

    @described(Operation(answer=some("Node"), needs=MONITORING))
    async def _nodes(self, request: Request) -> Response:
        """The nodes: this server."""
        return json_answer([await self._this_node(request)])

    @described(Operation(answer="Node", needs=MONITORING))
    async def _node(self, request: Request) -> Response:
        """This server as a node."""
        node = await self._this_node(request)
        if part(request, "name") != NODE:
            raise NotFound
        return json_answer(node)

    async def _this_node(self, request: Request) -> Row:
        visitor_of(request).require_all()
        found = await self._ask(request, GetOverview())
        server = found.server
        assert server is not None  # noqa: S101 - the user may look at everything
        return {
            "name": NODE,
            "type": "disc",
            "running": True,
            "os_pid": str(server.pid),
            "uptime": round(server.uptime * 1000),
            "processors": os.cpu_count(),
            "fd_total": server.max_files,
            "mem_used": server.memory,
            "mem_alarm": False,
            "disk_free": server.disk_free,
            "disk_free_alarm": found.has_alarms,
            "rates_mode": "none",
        }

    @described(Operation(answer=about({"type": "array"}, "Always empty.")))
    async def _no_channels(self, _request: Request) -> Response:
        """For clients that ask: AMQP channels are not listed."""
        return json_answer([])

    # -- health

    @described(Operation(answer="Health", failures={503: "Health"}))
    async def _alarms(self, request: Request) -> Response:
        """Whether all streams accept messages.

        Status 503 if some do not; those in virtual hosts that the user may enter are named.
        """
        found = await self._ask(request, GetOverview())
        if not found.has_alarms:
            return json_answer({"status": "ok"})
        troubles = [
            {"vhost": one.vhost, "queue": one.stream, "resource": one.reason}
            for one in found.troubles
            if one.reason
        ]
        reason = "some streams accept no messages"
        return json_answer({"status": "failed", "reason": reason, "alarms": troubles}, 503)

    @described(Operation(answer="Health", failures={503: "Health"}))
    async def _port_listener(self, request: Request) -> Response:
        """Whether somebody listens on a port."""
        wanted = part(request, "port")
        if wanted in map(str, (await self._ask(request, GetHealth())).ports.values()):
            return json_answer({"status": "ok", "port": int(wanted)})
        reason = f"no listener on port {wanted[:20]}"
        return json_answer({"status": "failed", "reason": reason, "missing": wanted[:20]}, 503)

    @described(Operation(answer="Health", needs=ENTER))
    async def _aliveness(self, request: Request) -> Response:
        """Whether the server answers."""
        await self._ask(request, ListExchanges(vhost=part(request, "vhost")))
        return json_answer({"status": "ok"})


def message_counts(messages: int) -> Row:
    """A number of messages in RabbitMQ's fields."""
    return {"messages": messages, "messages_ready": messages, "messages_unacknowledged": 0}
