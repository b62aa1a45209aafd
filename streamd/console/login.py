"""Logging in and out."""

import logging

from starlette.authentication import AuthenticationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamd.console.forms import Form, read_form
from streamd.console.sessions import Session
from streamd.console.site import SESSION, Site, session_of
from streamd.http_api.browsers import is_inside_tls
from streamd.http_api.caller import client_host, log_in, note_entered

logger = logging.getLogger(__name__)

LOGIN = "/login"
_MAX_COOKIES = 10


class LoginPages:
    """Logging in and out."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.routes = [
            Route(LOGIN, self._ask, methods=["GET"]),
            Route(LOGIN, self._log_in, methods=["POST"]),
            site.action("/logout", self._log_out),
        ]

    async def _ask(self, request: Request) -> Response:
        wanted = request.query_params.get("next", "")
        if SESSION in request.scope:
            return self._site.go(request, self._target(wanted))
        return await self._show(request, wanted)

    async def _show(
        self, request: Request, wanted: str, user: str = "", problem: str = ""
    ) -> Response:
        """The form; with status 200 also when a login was refused: for 401, browsers complain."""
        return await self._site.show(
            request, "login.html", wanted=wanted, user=user, problem=problem
        )

    async def _log_in(self, request: Request) -> Response:
        form = await read_form(request, None)
        name, password, wanted = form.name("user"), form.raw("password"), form.raw("next")
        try:
            caller = await log_in(self._site.service.link.enter, request, name, password.encode())
        except AuthenticationError as error:
            return await self._show(request, wanted, name, str(error))
        note_entered(request, caller)
        old: Session | None = request.scope.get(SESSION)
        if old is not None:
            self._site.sessions.end(old)
        session = self._site.sessions.begin(caller)
        logger.info("%s: %s has logged in to the console", client_host(request), caller.name)
        answer = self._site.go(request, self._target(wanted))
        self._set_cookie(request, answer, session.identity)
        return answer

    async def _log_out(self, request: Request, _form: Form) -> Response:
        self._site.sessions.end(session_of(request))
        answer = self._site.go(request, self._site.url("login"))
        self._set_cookie(request, answer, "")
        return answer

    def _target(self, wanted: str) -> str:
        return wanted if self._site.is_own(wanted) else self._site.url()

    def _set_cookie(self, request: Request, answer: Response, value: str) -> None:
        """Let the browser keep a session, or forget it: until it is closed, and for no script."""
        answer.set_cookie(
            cookie_name(request),
            value,
            max_age=None if value else 0,
            path=self._site.prefix or "/",
            secure=is_inside_tls(request.scope),
            httponly=True,
            samesite="strict",
        )


def identities(request: Request) -> list[str]:
    """What the cookies say that may be of a session here.

    Several servers may be at one host, as a proxy shows them: of one with another prefix, browsers
    send a cookie of the same name as well.
    """
    name = cookie_name(request)
    found: dict[str, None] = {}
    for header in request.headers.getlist("cookie"):
        for cookie in header.split(";"):
            key, _, value = cookie.partition("=")
            if key.strip() == name:
                found[value.strip()] = None
    return list(found)[:_MAX_COOKIES]


def cookie_name(request: Request) -> str:
    """The name of the cookie: browsers share cookies between all ports of a host."""
    server = request.scope.get("server")
    return f"streamd_session_{server[1] if server else ''}"
