"""/api/overview, nodes, whoami and health checks."""

import os
import resource
import shutil
import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamd.broker.virtual_host import VirtualHost
from streamd.connections.stream.login import COMPATIBLE_VERSION, PRODUCT
from streamd.engine import Caller
from streamd.http_api.caller import caller_of
from streamd.http_api.description import ENTER, MONITORING, Operation, described
from streamd.http_api.messages import NotFound, Row, json_answer, part
from streamd.http_api.schemas import TEXT, about, row, some
from streamd.http_api.service import NODE, Service
from streamd.net.turns import in_turns
from streamd.operations.routing import ExchangeType
from streamd.version import __version__

_CONNECTIONS_A_TURN = 10

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
        self._service = service
        self._started = time.monotonic()
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
        caller = caller_of(request)
        hosts = [
            h for name, h in self._service.broker.virtual_hosts.items() if caller.sees_host(name)
        ]
        connections = [
            c for c in self._service.connections if caller.sees_all or c.user == caller.name
        ]
        messages = sum(map(count_messages, hosts))
        about_server: Row = {}
        if caller.sees_all:
            about_server = {
                "background_faults": self._service.broker.supervisor.num_faults,
                "listeners": [
                    {"node": NODE, "protocol": protocol, "ip_address": at.host, "port": at.port}
                    for protocol, at in self._service.listeners()
                ],
            }
        num_consumers = 0
        async for connection in in_turns(connections, _CONNECTIONS_A_TURN):
            num_consumers += len(connection.consumers())
        return json_answer(
            {
                **PRODUCT_FIELDS,
                "management_version": COMPATIBLE_VERSION,
                "cluster_name": NODE,
                "node": NODE,
                "default_queue_type": "stream",
                "read_only": self._service.broker.is_read_only,
                "exchange_types": [{"name": name, "enabled": True} for name in ExchangeType],
                "message_stats": {},
                "queue_totals": message_counts(messages),
                "object_totals": {
                    "channels": 0,
                    "connections": len(connections),
                    "consumers": num_consumers,
                    "exchanges": sum(1 + h.exchanges.num_exchanges() for h in hosts),
                    "queues": sum(len(h.names()) for h in hosts),
                },
                **about_server,
            }
        )

    @described(Operation(answer="WhoAmI"))
    async def _whoami(self, request: Request) -> Response:
        """The user that asks."""
        name = caller_of(request).name
        user = self._service.directory.find_user(name)
        tags = list(user.tags) if user else []
        return json_answer({"name": name, "tags": tags, "is_internal_user": True})

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
        caller_of(request).require_all()
        return json_answer([self._this_node()])

    @described(Operation(answer="Node", needs=MONITORING))
    async def _node(self, request: Request) -> Response:
        """This server as a node."""
        caller_of(request).require_all()
        if part(request, "name") != NODE:
            raise NotFound
        return json_answer(self._this_node())

    def _this_node(self) -> Row:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "name": NODE,
            "type": "disc",
            "running": True,
            "os_pid": str(os.getpid()),
            "uptime": round((time.monotonic() - self._started) * 1000),
            "processors": os.cpu_count(),
            "fd_total": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            "mem_used": usage.ru_maxrss * 1024,
            "mem_alarm": False,
            "disk_free": shutil.disk_usage(self._service.broker.data).free,
            "disk_free_alarm": any(
                host.alarms() for host in self._service.broker.virtual_hosts.values()
            ),
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
        caller = caller_of(request)
        hosts = self._service.broker.virtual_hosts.values()
        if not any(host.alarms() for host in hosts):
            return json_answer({"status": "ok"})
        troubles = [
            {"vhost": host.name, "queue": name, "resource": shown_trouble(caller, trouble)}
            for host in hosts
            if caller.sees_host(host.name)
            for name, trouble in host.alarms().items()
        ]
        reason = "some streams accept no messages"
        return json_answer({"status": "failed", "reason": reason, "alarms": troubles}, 503)

    @described(Operation(answer="Health", failures={503: "Health"}))
    async def _port_listener(self, request: Request) -> Response:
        """Whether somebody listens on a port."""
        wanted = part(request, "port")
        if any(str(at.port) == wanted for _, at in self._service.listeners()):
            return json_answer({"status": "ok", "port": int(wanted)})
        reason = f"no listener on port {wanted[:20]}"
        return json_answer({"status": "failed", "reason": reason, "missing": wanted[:20]}, 503)

    @described(Operation(answer="Health", needs=ENTER))
    async def _aliveness(self, request: Request) -> Response:
        """Whether the server answers."""
        host = part(request, "vhost")
        caller_of(request).require_host(host)
        if host not in self._service.broker.virtual_hosts:
            raise NotFound
        return json_answer({"status": "ok"})


def shown_trouble(caller: Caller, trouble: str) -> str:
    """Why a stream takes no messages; the paths in it are for those who may look at the server."""
    return trouble if caller.sees_all else "the storage of the stream has failed or is full"


def message_counts(messages: int) -> Row:
    """A number of messages in RabbitMQ's fields."""
    return {"messages": messages, "messages_ready": messages, "messages_unacknowledged": 0}


def count_messages(host: VirtualHost) -> int:
    """Messages in all streams of a virtual host, as far as they were looked at since the start."""
    figures = (stream.figures for stream in host.streams())
    return sum(known.num_messages for known in figures if known is not None)
