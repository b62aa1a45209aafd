"""The application: its routes, authentication, and errors as answers."""

import logging
from collections.abc import Iterable

from h11 import ProtocolError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from streamd.http_api.bindings import BindingPaths
from streamd.http_api.browsers import BrowserGuard, form_refusal
from streamd.http_api.caller import OPEN_PATHS, BasicAuthentication
from streamd.http_api.connections import ConnectionPaths
from streamd.http_api.definitions import DefinitionPaths
from streamd.http_api.entitled import Entitled
from streamd.http_api.exchanges import ExchangePaths
from streamd.http_api.found_messages import MessagePaths
from streamd.http_api.health import HealthPaths
from streamd.http_api.messages import (
    BadRequest,
    NotFound,
    error_answer,
    not_found_answer,
    refused_answer,
)
from streamd.http_api.openapi import DescriptionPaths
from streamd.http_api.overview import OverviewPaths
from streamd.http_api.queue_messages import QueueMessagePaths
from streamd.http_api.queues import QueuePaths
from streamd.http_api.service import Service
from streamd.http_api.tier import TierPaths
from streamd.http_api.to_leader import ToLeader
from streamd.http_api.tracking import TrackingPaths
from streamd.http_api.unread import UnreadBodies
from streamd.http_api.users import UserPaths
from streamd.operations.errors import NoSuch, Refused, ReservedName

logger = logging.getLogger(__name__)

_NOT_FOUND = 404
_CHALLENGE = {"www-authenticate": 'Basic realm="streamd"'}


class _Front:
    """Routes by the path as it was sent, so that %2F, the default virtual host, is one part.

    Errors of our own are logged here; a peer that breaks its connection is not such an error.

    Args:
        prefix: begins every path, as "/streamd"; may be empty.
        pages: has all paths that the API has not; None for nobody.
    """

    def __init__(self, app: ASGIApp, prefix: str, pages: ASGIApp | None) -> None:
        self._app = app
        self._prefix = prefix
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if "raw_path" in scope:
            raw = scope["raw_path"].partition(b"?")[0].decode("latin-1")
            scope = {**scope, "path": raw.rstrip("/") or "/"}
        if not f"{scope['path']}/".startswith(f"{self._prefix}/"):
            await not_found_answer()(scope, receive, send)
            return
        scope = {**scope, "root_path": self._prefix}
        try:
            await self._app_for(scope)(scope, receive, send)
        except ProtocolError:
            raise
        except Exception:
            logger.exception("%s %s failed", scope["method"], scope["path"])
            raise

    def _app_for(self, scope: Scope) -> ASGIApp:
        path = scope["path"].removeprefix(self._prefix)
        if (
            self._pages is not None
            and path not in OPEN_PATHS
            and not f"{path}/".startswith("/api/")
        ):
            return self._pages  # which has forms of its own, and knows them again
        return form_refusal(scope) or self._app


def routes_of(service: Service) -> list[Route]:
    """The paths of the API over a server, those of its description last."""
    parts = (
        HealthPaths(service),
        OverviewPaths(service),
        ConnectionPaths(service),
        QueuePaths(service),
        TrackingPaths(service),
        TierPaths(service),
        MessagePaths(service),
        QueueMessagePaths(service),
        ExchangePaths(service),
        BindingPaths(service),
        UserPaths(service),
        DefinitionPaths(service),
    )
    routes = [route for part in parts for route in part.routes]
    return [*routes, *DescriptionPaths(routes).routes]


def make_app(
    service: Service,
    hosts: frozenset[str],
    prefix: str = "",
    pages: ASGIApp | None = None,
    *,
    is_node: bool = False,
) -> ASGIApp:
    """The API over a running server.

    Args:
        service: the server.
        hosts: its names, for browsers; see `known_hosts`.
        prefix: begins every path, as "/streamd"; may be empty.
        pages: answers what is asked for outside of the API; None where the API does.
        is_node: the server is a node of a cluster; another one may answer.
    """
    app = Starlette(
        routes=list(_sorted(routes_of(service))),
        middleware=[
            Middleware(
                AuthenticationMiddleware,
                backend=BasicAuthentication(service.link.enter),
                on_error=not_authenticated,
            )
        ],
        exception_handlers={
            ReservedName: _reserved,
            NoSuch: _no_such,
            Refused: _refused,
            NotFound: _not_found,
            BadRequest: _bad_request,
            HTTPException: _http,
        },
    )
    app.router.redirect_slashes = False
    # What is refused leaves its body to UnreadBodies, and nobody has asked for a password yet.
    guarded: ASGIApp = Entitled(_Front(app, prefix, pages))
    if is_node:
        guarded = ToLeader(guarded, service.link, prefix)
    return UnreadBodies(BrowserGuard(guarded, hosts, service.refused))


def _sorted(routes: Iterable[Route]) -> list[Route]:
    """Sort paths with fixed parts before those that have a parameter in their place."""
    return sorted(
        routes, key=lambda route: [part.startswith("{") for part in route.path.split("/")]
    )


def not_authenticated(_connection: HTTPConnection, error: Exception) -> Response:
    """Ask for a name and a password."""
    answer = error_answer(401, "not_authorized", str(error))
    answer.headers.update(_CHALLENGE)
    return answer


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)  # noqa: S101 - by registration
    logger.info("%s %s: %s", request.method, request.scope["path"], error)
    return refused_answer(error)


async def _reserved(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ReservedName)  # noqa: S101 - by registration
    return error_answer(403, "forbidden", error.details)  # to anybody: no other password helps


async def _no_such(_request: Request, error: Exception) -> Response:
    assert isinstance(error, NoSuch)  # noqa: S101 - by registration
    return error_answer(404, "Object Not Found", error.details)  # it was there a moment ago


async def _not_found(_request: Request, _error: Exception) -> Response:
    return not_found_answer()


async def _bad_request(_request: Request, error: Exception) -> Response:
    return error_answer(400, "bad_request", str(error))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - by registration
    if error.status_code == _NOT_FOUND:
        return not_found_answer()
    allowed = ", ".join(sorted(_methods_of(request)))
    answer = error_answer(error.status_code, "method_not_allowed", f"the path takes {allowed}")
    answer.headers["allow"] = allowed
    return answer


def _methods_of(request: Request) -> set[str]:
    """The methods of a path; the router names those of its first route alone."""
    routes = (route for route in request.app.routes if isinstance(route, Route))
    matching = (route for route in routes if route.matches(request.scope)[0] is not Match.NONE)
    return {method for route in matching for method in route.methods or ()}
