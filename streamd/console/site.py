"""What all pages share: addresses, templates, who may see a page, and forms that were sent."""

import functools
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamd.console import words
from streamd.console.assets import Assets
from streamd.console.forms import MAX_FORM_BYTES, Form, read_form
from streamd.console.sessions import Session, Sessions
from streamd.console.tables import columns
from streamd.http_api.caller import visitor_of
from streamd.http_api.service import Service
from streamd.net import threads
from streamd.net.turns import in_turns
from streamd.operations.errors import Refused
from streamd.operations.rights import TagHolder
from streamd.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment, Template

Page: TypeAlias = Callable[[Request], Awaitable[Response]]
Action: TypeAlias = Callable[[Request, Form], Awaitable[Response]]
Needs: TypeAlias = Callable[[TagHolder], None]

_SEE_OTHER = 303
_TEMPLATES = Path(__file__).parent / "templates"
_HTML = "text/html"


@dataclass(frozen=True, slots=True)
class NavigationItem:
    """A page that each page leads to.

    Attributes:
        path: after the prefix.
        needs: raises Refused for users that do not see it; None where all do.
    """

    title: str
    path: str
    needs: Needs | None = None


class Site:
    """What all pages share.

    Args:
        prefix: begins every path; may be empty.

    Attributes:
        assets: styles and scripts.
        navigation: pages that each page leads to, in order.
    """

    def __init__(self, service: Service, prefix: str) -> None:
        self.service = service
        self.prefix = prefix
        self.sessions = Sessions()
        self.assets = Assets(prefix)
        self.navigation: list[NavigationItem] = []

    # -- routes

    def page(self, path: str, handler: Page, needs: Needs | None = None) -> Route:
        """A route to a page, for whoever is logged in.

        Args:
            path: as Starlette writes it; names in it are percent-encoded parts.
            handler: makes the page.
            needs: raises Refused for users that may not see it.
        """

        async def answer(request: Request) -> Response:
            if needs is not None:
                needs(visitor_of(request))
            return await handler(request)

        return Route(path, answer, methods=["GET"])

    def action(
        self, path: str, handler: Action, needs: Needs | None = None, most: int = MAX_FORM_BYTES
    ) -> Route:
        """A route for a form that changes something; it is one of this session, or refused.

        Args:
            path: see `page`.
            handler: gets the form.
            needs: see `page`.
            most: limit of the form's size, in bytes.
        """

        async def answer(request: Request) -> Response:
            if needs is not None:
                needs(visitor_of(request))
            return await handler(request, await read_form(request, session_of(request).csrf, most))

        return Route(path, answer, methods=["POST"])

    # -- addresses

    def url(self, *parts: str, **query: object) -> str:
        """The address of a page.

        Args:
            parts: of its path, such as "streams", the virtual host and the stream, unencoded.
            query: what stands behind the path; None and "" are left out.
        """
        path = "".join(f"/{_segment(part)}" for part in parts) or "/"
        asked = [(name, value) for name, value in query.items() if value not in (None, "")]
        behind = f"?{urlencode(asked, doseq=True, errors='surrogatepass')}" if asked else ""
        return f"{self.prefix}{path}{behind}"

    def is_own(self, address: str) -> bool:
        """Whether an address, which a request has brought, is one of a page of this console."""
        return (
            re.fullmatch(r"/(?![/\\])[!-\[\]-~]*", address) is not None
            and f"{address.partition('?')[0]}/".startswith(f"{self.prefix}/")
            and not address.startswith(f"{self.prefix}/login")
        )

    # -- answers

    async def show(
        self, request: Request, template: str, status: int = 200, **values: object
    ) -> Response:
        """A page.

        Args:
            request: what asked for it.
            template: a file in the folder of templates.
            status: of the answer.
            values: for the template.
        """
        found = await _template(template)
        session: Session | None = request.scope.get(SESSION)
        values |= {
            "request": request,
            "url": self.url,
            "static": self.assets.address,
            "version": __version__,
            "now_ms": self.service.now_ms(),
            "path": request.scope["path"].removeprefix(self.prefix) or "/",
            "session": session,
            "caller": session.caller if session else None,
            "navigation": self._navigation_of(session),
            "notice": session.take_notice() if session and not is_poll(request) else "",
        }
        pieces = found.generate(values)
        html = "".join([piece async for piece in in_turns(pieces)])
        return Response(html.encode(errors="backslashreplace"), status, media_type=_HTML)

    def _navigation_of(self, session: Session | None) -> list[NavigationItem]:
        if session is None:
            return []
        return [item for item in self.navigation if may(session.caller, item.needs)]

    def go(self, request: Request, address: str, notice: str = "") -> Response:
        """Send the browser to a page after a form was carried out.

        Args:
            request: that brought the form.
            address: of the page, as `url` gives it.
            notice: what that page says; one sentence.
        """
        if notice:
            session_of(request).notice = notice
        return Response(status_code=_SEE_OTHER, headers={"location": address})


@functools.cache
def _environment() -> "Environment":
    from jinja2 import (  # noqa: PLC0415 - only when a page is shown
        Environment,
        FileSystemLoader,
        StrictUndefined,
    )

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        cache_size=-1,  # all
    )
    environment.filters.update(words.FILTERS)
    environment.globals["columns"] = columns
    return environment


async def _template(name: str) -> "Template":
    """A template; it is compiled when it is shown first, which takes a while, beside the loop."""
    if name not in _compiled:
        await threads.in_thread(_compile, name)
    return _environment().get_template(name)


_compiled: set[str] = set()


def _compile(name: str) -> None:
    """Compile a template, and all that it refers to."""
    from jinja2 import meta  # noqa: PLC0415 - as above

    if name in _compiled:
        return
    environment = _environment()
    source, _, _ = environment.loader.get_source(environment, name)  # type: ignore[union-attr]
    for other in meta.find_referenced_templates(environment.parse(source)):
        if other is not None:
            _compile(other)
    environment.get_template(name)
    _compiled.add(name)


SESSION = "streamd.console.session"  # in the scope of a request


def session_of(request: Request) -> Session:
    """The session of a request."""
    session = request.scope[SESSION]
    assert isinstance(session, Session)  # noqa: S101 - app.py lets nobody else in
    return session


def is_poll(request: Request) -> bool:
    """Whether a page asks by itself for what is new on it."""
    return "hx-request" in request.headers


def may(caller: TagHolder, needs: Needs | None) -> bool:
    """Whether a user has what a page needs."""
    try:
        if needs is not None:
            needs(caller)
    except Refused:
        return False
    return True


def _segment(name: str) -> str:
    """A part of a path. Browsers drop "." and ".." however they are encoded; "~" is put before."""
    mark = "~" if name in (".", "..") or name.startswith("~") else ""
    return mark + quote(name, safe="", errors="surrogatepass")


def unmarked(path: str) -> str:
    """A path without the signs that `Site.url` puts before some parts."""
    return "/".join(part.removeprefix("~") for part in path.split("/"))
