"""/healthz and /readyz, without a login: for orchestrators and load balancers.

They name no stream and no reason in words of the disk; `/api/health/checks/alarms` does, for users.
"""

import math

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamd.http_api.caller import LIVE, READY
from streamd.http_api.description import Operation, described
from streamd.http_api.messages import json_answer
from streamd.http_api.service import Service
from streamd.operations.server import GetHealth

_SECONDS = 1.0  # for which an answer holds: anybody may ask, and there may be thousands of streams


class HealthPaths:
    """Whether the server is alive, and whether all is well with its streams."""

    TITLE = "Health checks"

    def __init__(self, service: Service) -> None:
        self._door = service.link.door
        self._trouble = self._role = ""
        self._looked_at = -math.inf
        self.routes = [Route(LIVE, self._live), Route(READY, self._ready)]

    @described(Operation(answer="Health", is_open=True))
    async def _live(self, _request: Request) -> Response:
        """Whether the server answers at all."""
        await self._look()
        return json_answer({"status": "ok", **self._as()})  # the engine answers

    @described(Operation(answer="Health", failures={503: "Health"}, is_open=True))
    async def _ready(self, _request: Request) -> Response:
        """Whether all streams have been opened since the start, and accept messages."""
        await self._look()
        if self._trouble:
            return json_answer({"status": "failed", "reason": self._trouble, **self._as()}, 503)
        return json_answer({"status": "ok", **self._as()})

    def _as(self) -> dict[str, str]:
        """What the server is as a node of a cluster; nothing where it is in none."""
        return {"role": self._role} if self._role else {}

    async def _look(self) -> None:
        now = trio.current_time()
        if now - self._looked_at >= _SECONDS:
            found = await self._door.ask(GetHealth())
            self._trouble, self._role = found.trouble, found.role
            self._looked_at = now
