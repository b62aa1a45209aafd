"""What keeps web pages out: a browser sends what any page asks it to, with the user's password.

A page of another site may have a browser send GET, HEAD and POST here without asking first, POST
with the types of forms and of reports; for all else a browser asks first, with OPTIONS, in vain.
Browsers say where such a request comes from, in Origin and Sec-Fetch-Site, which pages cannot
change. A page may also give its own name this server's address, and is then no other site for the
browser ("DNS rebinding"): so the name in Host has to be one of this server's.

Programs that are no browsers send neither header, and notice nothing.

Source: WHATWG Fetch, "CORS-safelisted request-header" and "append a request Origin header"; W3C
Fetch Metadata Request Headers; OWASP/CheatSheetSeries,
cheatsheets/Cross-Site_Request_Forgery_Prevention_Cheat_Sheet.md.
"""

import ipaddress
import logging
import re
import socket
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

import trio
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streamd.config import ALL_HOSTS
from streamd.http_api.messages import error_answer

logger = logging.getLogger(__name__)

Headers = Iterable[tuple[bytes, bytes]]

# Answers are data: no page shows them, runs them, keeps them, or learns where it was before.
SECURITY_HEADERS = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
_SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
_OWN_SITE = frozenset(("same-origin", "none"))  # none: the user, not a page
_JSON = "application/json"
_DEFAULT_PORTS = {"http": 80, "https": 443}
_AUTHORITY = re.compile(
    r"(?:\[(?P<ipv6>[0-9a-f:.]+)\]|(?P<name>[^\[\]:@/\s]+))(?::(?P<port>\d{0,5}))?"
)
_LOOKUP_SECONDS = 1.0
_SHOWN = 100  # characters of a header in an answer


class _Authority(NamedTuple):
    """A host and, unless it is the default, a port, as Host and Origin have them."""

    name: str
    port: int | None
    is_address: bool


class BrowserGuard:
    """Refuses what pages of other sites have a browser send; adds what browsers heed to answers.

    Args:
        hosts: names of this server, in small letters; see `known_hosts`.
        refused: gets the number of requests that were refused, as "browser".
    """

    def __init__(
        self, app: ASGIApp, hosts: frozenset[str], refused: Counter[str] | None = None
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._refused: Counter[str] = Counter() if refused is None else refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = with_security(message.get("headers", ()))
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            self._refused["browser"] += 1
            await refusal(scope, receive, answer)
        else:
            await self._app(scope, receive, answer)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = scope["headers"]
        hosts = _values(headers, b"host")
        host = _authority(hosts[0]) if len(hosts) == 1 else None
        if hosts and not self._knows(host):  # only HTTP/1.0 has none; no browser speaks it
            return _forbidden(scope, _unknown_host(hosts))
        if scope["method"] in _SAFE_METHODS:
            return None
        for site in _values(headers, b"sec-fetch-site"):
            if site not in _OWN_SITE:
                return _forbidden(scope, _foreign_site(site))
        for origin in _values(headers, b"origin"):
            if not _is_of(origin, host, scope["scheme"]):
                return _forbidden(scope, _foreign_origin(origin, hosts))
        return None

    def _knows(self, host: _Authority | None) -> bool:
        if ALL_HOSTS in self._hosts:
            return True
        return host is not None and (host.is_address or host.name in self._hosts)


def is_inside_tls(scope: Scope) -> bool:
    """Whether the browser speaks TLS, with this server or with a proxy before it.

    BrowserGuard has found Origin to be this server's.
    """
    origins = _values(scope["headers"], b"origin")
    scheme = scope.get("scheme", "http")
    return scheme == "https" or any(o.lower().startswith("https://") for o in origins)


def with_security(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The headers of an answer with those of SECURITY_HEADERS that it does not set itself."""
    own = list(headers)
    names = {name.lower() for name, _ in own}
    return own + [header for header in SECURITY_HEADERS if header[0] not in names]


def known_hosts(*names: str) -> frozenset[str]:
    """These names and localhost, as they are compared; `*` among them stands for all."""
    return frozenset(_plain(name) for name in ("localhost", *names) if name)


async def machine_names() -> list[str]:
    """What this machine is called, with and without its domain as far as that is soon found out."""
    name = socket.gethostname()
    names = [name, name.partition(".")[0]]
    with suppress(OSError, UnicodeError), trio.move_on_after(_LOOKUP_SECONDS):
        found = await trio.socket.getaddrinfo(name, None, flags=socket.AI_CANONNAME)
        names.append(found[0][3])
    return names


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")


def _values(headers: Headers, wanted: bytes) -> list[str]:
    return [value.decode("latin-1").strip().lower() for name, value in headers if name == wanted]


def _authority(text: str) -> _Authority | None:
    """A host with a port or without; None if it is something else."""
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        return None
    port = int(match["port"]) if match["port"] else None
    kind = ipaddress.IPv6Address if match["ipv6"] else ipaddress.IPv4Address
    name = match["ipv6"] or _plain(match["name"])
    try:
        return _Authority(str(kind(name)), port, is_address=True)
    except ValueError:
        return None if match["ipv6"] else _Authority(name, port, is_address=False)


def _is_of(origin: str, host: _Authority | None, scheme: str) -> bool:
    """Whether an origin is the host that the request came to.

    A proxy may have taken off TLS: then the origin is https although the request is not.
    """
    begin, _, rest = origin.partition("://")
    found = _authority(rest)
    if found is None or host is None or begin not in {scheme, "https"}:
        return False
    default = _DEFAULT_PORTS.get(begin)
    return found.name == host.name and (found.port or default) == (host.port or default)


def form_refusal(scope: Scope) -> Response | None:
    """An answer if the body is not said to be JSON: for any page, a browser sends those of forms.

    Without a type it may be a page's as well, from a Blob; but then Origin came with it, and was
    ours.
    """
    if scope["method"] != "POST":
        return None
    for value in _values(scope["headers"], b"content-type"):
        kind = value.partition(";")[0].strip()
        if kind not in ("", _JSON):
            reason = (
                f"Content-Type is {kind[:_SHOWN]!r}, expected {_JSON}; curl takes "
                f"-H 'content-type: {_JSON}'"
            )
            return error_answer(415, "unsupported_media_type", reason)
    return None


def _forbidden(scope: Scope, reason: str) -> Response:
    logger.info("%s %s: %s", scope["method"], scope["path"], reason)
    return error_answer(403, "forbidden", reason)


def _unknown_host(hosts: list[str]) -> str:
    found = ", ".join(hosts)[:_SHOWN]
    return (
        f"the request is for the host {found!r}, expected an address, localhost or a name of this "
        "server; --http-allowed-host adds names"
    )


def _foreign_site(site: str) -> str:
    return (
        f"the request comes from a page of another site (Sec-Fetch-Site is {site[:_SHOWN]!r}); "
        "only pages of this server may change things"
    )


def _foreign_origin(origin: str, hosts: list[str]) -> str:
    own = ", ".join(hosts)[:_SHOWN]
    return (
        f"the request comes from a page of {origin[:_SHOWN]!r}, expected one of {own!r}, which it "
        "is for; a proxy has to hand on the Host header as it is"
    )
