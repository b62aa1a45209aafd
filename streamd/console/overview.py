"""The server at a glance."""

import shutil

from starlette.requests import Request
from starlette.responses import Response

from streamd.broker.steps import in_turns
from streamd.console.site import NavigationItem, Site
from streamd.http_api.caller import caller_of
from streamd.http_api.overview import count_messages, shown_trouble

_HOSTS_A_TURN, _CONNECTIONS_A_TURN = 1, 10


class OverviewPages:
    """The server at a glance.

    Attributes:
        routes: for the paths of this class.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._service = site.service
        site.navigation.append(NavigationItem("Overview", "/"))
        self.routes = [site.page("/", self._show)]

    async def _show(self, request: Request) -> Response:
        caller = caller_of(request)
        broker = self._service.broker
        hosts = [host for name, host in broker.virtual_hosts.items() if caller.sees_host(name)]
        num_messages = 0
        async for host in in_turns(hosts, _HOSTS_A_TURN):
            num_messages += count_messages(host)
        connections = [
            c for c in self._service.connections if caller.sees_all or c.user == caller.name
        ]
        num_consumers = num_publishers = 0
        async for connection in in_turns(connections, _CONNECTIONS_A_TURN):
            num_consumers += len(connection.consumers())
            num_publishers += len(connection.publishers())
        troubles = [
            (host.name, name, shown_trouble(caller, trouble))
            for host in hosts
            for name, trouble in host.alarms().items()
        ]
        return await self._site.show(
            request,
            "overview.html",
            totals=[
                ("Streams", sum(len(host.names()) for host in hosts)),
                ("Messages", num_messages),
                ("Connections", len(connections)),
                ("Publishers", num_publishers),
                ("Consumers", num_consumers),
            ],
            troubles=troubles,
            disk=shutil.disk_usage(broker.data) if caller.sees_all else None,
            listeners=self._service.listeners() if caller.sees_all else [],
            num_faults=broker.supervisor.num_faults if caller.sees_all else 0,
        )
