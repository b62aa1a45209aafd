"""The port for Prometheus, with RabbitMQ's paths: /metrics, /metrics/per-object and so on.

Not a part of the API: it has a port of its own, so that it can be reached without a login from
where nothing else can. It names streams and consumers and shows no message. What a web page may not
do elsewhere, it may not do here (browsers.py): the name in Host has to be one of this server's.
"""

import logging

import trio
from starlette.applications import Starlette
from starlette.authentication import AuthenticationBackend
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from streamd.http_api.app import not_authenticated
from streamd.http_api.browsers import BrowserGuard
from streamd.http_api.entitled import Entitled
from streamd.http_api.messages import error_answer, refused_answer
from streamd.http_api.unread import UnreadBodies
from streamd.metrics.families import CONTENT_TYPE
from streamd.metrics.scrape import (
    MAX_ANSWER_BYTES,
    MAX_WAITING,
    Answer,
    BadQuery,
    Busy,
    Query,
    Scrapes,
    TooLarge,
)
from streamd.metrics.server_metrics import AGGREGATED, PER_OBJECT
from streamd.operations.errors import Reason, Refused
from streamd.operations.rights import ADMINISTRATOR, MONITORING

logger = logging.getLogger(__name__)

MAX_SENT_AT_ONCE = 8  # answers; the one that has been sent for longest makes room for another
SEND_SECONDS = 30.0  # a peer has this long to take one
_RETRY_SECONDS = "5"
_WATCH = frozenset((ADMINISTRATOR, MONITORING))
_INDEX = """streamd, metrics for Prometheus:
  /metrics                                          the server
  /metrics/per-object                               the server, and each stream and consumer
  /metrics/detailed?family=...&vhost=...&queue=...  what is asked for
"""


class MetricsPaths:
    """The paths for Prometheus.

    Attributes:
        routes: for the paths of this class.
    """

    def __init__(self, scrapes: Scrapes) -> None:
        self._scrapes = scrapes
        self._sending: dict[trio.CancelScope, None] = {}
        self.routes = [
            Route("/", self._index),
            Route("/metrics", self._aggregated),
            Route("/metrics/per-object", self._per_object),
            Route("/metrics/detailed", self._detailed),
        ]

    async def _index(self, _request: Request) -> Response:
        return PlainTextResponse(_INDEX)

    async def _aggregated(self, request: Request) -> Response:
        return await self._scrape(request, Query(AGGREGATED))

    async def _per_object(self, request: Request) -> Response:
        return await self._scrape(request, Query(PER_OBJECT))

    async def _detailed(self, request: Request) -> Response:
        asked = request.query_params.getlist
        try:
            query = Query.detailed(asked("family"), asked("vhost"), asked("queue"))
        except BadQuery as error:
            return error_answer(400, "bad_request", str(error))
        return await self._scrape(request, query)

    async def _scrape(self, request: Request, query: Query) -> Response:
        if "user" in request.scope and not _WATCH.intersection(request.user.tags):
            details = f"the user has neither the tag {ADMINISTRATOR} nor {MONITORING}"
            return refused_answer(Refused(Reason.ACCESS_REFUSED, details))
        try:
            answer = await self._scrapes.answer(query)
        except TooLarge:
            most = f"{MAX_ANSWER_BYTES >> 20} MiB"
            reason = f"it would be more than {most}, packed; ask /metrics/detailed for parts of it"
            return error_answer(503, "too_large", reason)
        except Busy:
            reason = f"{MAX_WAITING} scrapes wait for their turn; try again later"
            refusal = error_answer(503, "busy", reason)
            refusal.headers["retry-after"] = _RETRY_SECONDS
            return refusal
        return _Metrics(answer, self._sending, is_packed=_takes_gzip(request))


def _takes_gzip(request: Request) -> bool:
    for part in request.headers.get("accept-encoding", "").lower().split(","):
        name, _, quality = part.replace(" ", "").partition(";")
        if name == "gzip":
            return quality not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


class _Metrics(Response):
    """An answer on its way; a peer that does not take it in time is left."""

    def __init__(
        self, answer: Answer, sending: dict[trio.CancelScope, None], *, is_packed: bool
    ) -> None:
        self._answer = answer
        self._is_packed = is_packed
        self._sending = sending
        size = sum(map(len, answer.packed)) if is_packed else answer.size
        headers = {
            "content-type": CONTENT_TYPE,
            "content-length": str(size),
            "vary": "accept-encoding",
        }
        if is_packed:
            headers["content-encoding"] = "gzip"
        super().__init__(headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """See ASGI."""
        while len(self._sending) >= MAX_SENT_AT_ONCE:
            oldest = next(iter(self._sending))
            del self._sending[oldest]
            oldest.cancel()
        with trio.move_on_after(SEND_SECONDS) as limit:
            self._sending[limit] = None
            try:
                await self._send(send)
            finally:
                self._sending.pop(limit, None)

    async def _send(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        answer = self._answer
        for piece in answer.packed if self._is_packed else answer.pieces():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})


def make_metrics_app(
    scrapes: Scrapes, hosts: frozenset[str], backend: AuthenticationBackend | None
) -> ASGIApp:
    """The paths for Prometheus.

    Args:
        scrapes: of the server.
        hosts: its names, for browsers; see `known_hosts`.
        backend: lets users in, of whom one with the tag monitoring or administrator has to ask;
            None where nobody has to log in.
    """
    middleware = []
    if backend is not None:
        middleware.append(
            Middleware(AuthenticationMiddleware, backend=backend, on_error=not_authenticated)
        )
    app = Starlette(routes=MetricsPaths(scrapes).routes, middleware=middleware)
    app.router.redirect_slashes = False
    return UnreadBodies(BrowserGuard(Entitled(app), hosts, scrapes.refused))
