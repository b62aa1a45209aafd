"""The console as an application: who is let in, what pages may do, and refusals as pages.

Theory of operation. A browser that is not logged in gets the login page for every path but those of
styles and scripts; never a Basic challenge, for which a page's own requests would wait forever.
Requests that would change something have passed BrowserGuard, which refuses those of other sites;
beyond that each form has to bring the token of its session (`Site.action`).
"""

import logging

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streamd.console.connections import ConnectionPages
from streamd.console.definitions import DefinitionPages
from streamd.console.exchanges import ExchangePages
from streamd.console.login import LOGIN, LoginPages, identities
from streamd.console.messages import MessagePages
from streamd.console.overview import OverviewPages
from streamd.console.permissions import PermissionPages
from streamd.console.publishing import PublishPages
from streamd.console.site import SESSION, Site, is_poll, unmarked
from streamd.console.stream import StreamPages
from streamd.console.stream_changes import StreamChanges
from streamd.console.streams import StreamsPages
from streamd.console.super_streams import SuperStreamPages
from streamd.console.users import UserPages
from streamd.console.virtual_hosts import VirtualHostPages
from streamd.http_api.caller import client_host, note_entered
from streamd.http_api.messages import BadRequest, NotFound
from streamd.http_api.service import Service
from streamd.operations.errors import NoSuch, Reason, Refused

logger = logging.getLogger(__name__)

_MEANWHILE = ": somebody may have deleted it meanwhile"

_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    b"connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_SECURITY = (
    (b"content-security-policy", _POLICY),
    (b"referrer-policy", b"same-origin"),  # with none, forms would say Origin: null
    (b"cross-origin-resource-policy", b"same-origin"),
)
_STATUS = {
    Reason.NOT_FOUND: 404,
    Reason.ACCESS_REFUSED: 403,
    Reason.PRECONDITION_FAILED: 400,
    Reason.ALREADY_EXISTS: 400,
    Reason.NOT_AVAILABLE: 503,
}
_UNAUTHORIZED, _NOT_FOUND, _SEE_OTHER = 401, 404, 303
_MAX_WANTED = 8_000  # bytes of an address; it grows threefold in that of the login page


def make_console(service: Service, prefix: str) -> ASGIApp:
    """The console over a running server.

    Args:
        service: the server.
        prefix: begins every path; may be empty.
    """
    return Console(Site(service, prefix))


class Console:
    """The console; expects paths as they were sent, as http_api.app routes them.

    Args:
        site: what its pages share.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        parts = (
            LoginPages(site),
            OverviewPages(site),
            StreamsPages(site),
            StreamPages(site),
            StreamChanges(site),
            SuperStreamPages(site),
            ExchangePages(site),
            ConnectionPages(site),
            UserPages(site),
            VirtualHostPages(site),
            PermissionPages(site),
            DefinitionPages(site),
            MessagePages(site),
            PublishPages(site),
        )
        self.routes = [route for part in parts for route in part.routes] + site.assets.routes
        self._app = Starlette(
            routes=self.routes,
            exception_handlers={
                NoSuch: self._no_such,
                Refused: self._refused,
                NotFound: self._not_found,
                BadRequest: self._bad_request,
                HTTPException: self._http,
                Exception: self._failed,
            },
        )
        self._app.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_SECURITY]
            await send(message)

        path = unmarked(scope["path"].removeprefix(self.site.prefix)) or "/"
        scope = {**scope, "path": f"{self.site.prefix}{path}"}
        request = Request(scope)
        app: ASGIApp = self._app
        if not path.startswith("/static/") and path != "/favicon.ico":
            is_let_in = await self._let_in(request)
            if not is_let_in and path != LOGIN:
                app = self._to_login(request)
        await app(scope, receive, answer)

    async def _let_in(self, request: Request) -> bool:
        """Find the session of a request; False if there is none."""
        sessions, address = self.site.sessions, client_host(request)
        for identity in identities(request):
            session = await sessions.find(identity, address)
            if session is not None:
                break
        else:
            return False
        request.scope[SESSION] = session
        request.scope["user"] = session.caller
        note_entered(request, session.caller)
        return True

    def _to_login(self, request: Request) -> Response:
        """What somebody gets who is not logged in."""
        if is_poll(request):  # a part of a page, which would show the login page inside itself
            headers = {"hx-redirect": self.site.url("login")}
            return Response("not logged in", _UNAUTHORIZED, headers, media_type="text/plain")
        wanted = ""
        if request.method in ("GET", "HEAD") and request.scope["path"] != self.site.url():
            query = request.scope["query_string"].decode("latin-1")
            raw = request.scope["raw_path"].partition(b"?")[0].decode("latin-1")
            wanted = raw + (f"?{query}" if query else "")
        if len(wanted) > _MAX_WANTED:
            wanted = ""
        location = self.site.url("login", next=wanted)
        return Response(status_code=_SEE_OTHER, headers={"location": location})

    # -- refusals

    async def _say(self, request: Request, status: int, title: str, reason: str) -> Response:
        logger.info("%s %s: %s", request.method, request.scope["path"], reason)
        return await self.site.show(request, "refused.html", status, title=title, reason=reason)

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)  # noqa: S101 - by registration
        status = _STATUS.get(error.reason, 500)
        title = {403: "Not allowed", 404: "Not found"}.get(status, "Not done")
        return await self._say(request, status, title, error.details)

    async def _no_such(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, NoSuch)  # noqa: S101 - by registration
        says_why = ": " in error.details
        reason = error.details if says_why else f"{error.details}{_MEANWHILE}"
        return await self._say(request, _NOT_FOUND, "Not found", reason)

    async def _not_found(self, request: Request, _error: Exception) -> Response:
        reason = "there is no such page, or what it shows was deleted"
        return await self._say(request, _NOT_FOUND, "Not found", reason)

    async def _bad_request(self, request: Request, error: Exception) -> Response:
        return await self._say(request, 400, "Not done", str(error))

    async def _http(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - by registration
        if error.status_code == _NOT_FOUND:
            return await self._not_found(request, error)
        return await self._say(request, error.status_code, "Not done", error.detail)

    async def _failed(self, request: Request, _error: Exception) -> Response:
        reason = "a fault of the server, whose log says more"
        return await self._say(request, 500, "Not done", reason)
