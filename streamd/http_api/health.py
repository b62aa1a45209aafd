"""/healthz and /readyz, without a login: for orchestrators and load balancers.

They name no stream and no reason in words of the disk; `/api/health/checks/alarms` does, for users.
"""

import math

import trio
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route

from streamd.broker.broker import Broker
from streamd.http_api.description import Operation, described
from streamd.http_api.messages import json_answer

_LIVE, _READY = OPEN_PATHS = "/healthz", "/readyz"
_SECONDS = 1.0  # for which an answer holds: anybody may ask, and there may be thousands of streams


class HealthPaths:
    """Whether the server is alive, and whether all is well with its streams."""

    TITLE = "Health checks"

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._trouble = ""
        self._looked_at = -math.inf
        self.routes = [Route(_LIVE, self._live), Route(_READY, self._ready)]

    @described(Operation(answer="Health", is_open=True))
    async def _live(self, _request: Request) -> Response:
        """Whether the server answers at all."""
        return json_answer({"status": "ok"})  # the event loop turns

    @described(Operation(answer="Health", failures={503: "Health"}, is_open=True))
    async def _ready(self, _request: Request) -> Response:
        """Whether all streams have been opened since the start, and accept messages."""
        now = trio.current_time()
        if now - self._looked_at >= _SECONDS:
            self._looked_at, self._trouble = now, self._find_trouble()
        if self._trouble:
            return json_answer({"status": "failed", "reason": self._trouble}, 503)
        return json_answer({"status": "ok"})

    def _find_trouble(self) -> str:
        """Why the server is not ready; empty if it is."""
        if any(host.alarms() for host in self._broker.virtual_hosts.values()):
            return "some streams accept no messages"
        if not self._broker.has_looked:
            return "not all streams have been opened since the start"
        return ""


def needs_no_login(connection: HTTPConnection) -> bool:
    """Whether a request is for a path of `HealthPaths`."""
    path: str = connection.scope["path"]
    return path.removeprefix(connection.scope["root_path"]) in OPEN_PATHS
