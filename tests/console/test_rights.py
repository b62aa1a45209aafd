"""Who may do what in the console: each route tried by everybody who may not."""

import json
import re
from dataclasses import fields
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import httpx
import pytest
from bs4 import BeautifulSoup
from starlette.routing import Route

from streamd.broker.declared.rows import PermissionRow
from streamd.console.app import Console
from streamd.console.site import Site
from streamd.engine.registry import LiveConnection
from streamd.net.transport import Address
from streamd.operations.connections import STREAM_PROTOCOL
from streamd.operations.names import as_sent
from tests.support.console import Visitor, console_of, entered, visitor
from tests.support.http import add_user
from tests.support.server import Harness

ROUTES: list[Route] = Console(Site(MagicMock(), "")).routes
OPEN = {"GET /login", "POST /login", "GET /static/{name}", "GET /favicon.ico"}
FILLED = {
    "vhost": "%2F",
    "name": "s",
    "user": "bob",
    "connection": "10.0.0.1%3A1%20-%3E%2010.0.0.2%3A2",
    "offset": "0",
    "part": "body",
}


class Case(NamedTuple):
    """What a route needs besides a session.

    Attributes:
        tags: one of them.
        right: to the stream s: configure, write or read.
        form: that would change something.
        does: the status of the answer to those who may.
    """

    tags: tuple[str, ...] = ()
    right: str = ""
    form: Any = None
    does: int = 303


ADMINISTRATOR = ("administrator",)
SEES_ALL = ("administrator", "monitoring")
BOUND = {"kind": "stream", "destination": "s-0", "binding": "0"}
PATTERNS = json.dumps(["^b", "^b", "^b"])
# Every route that is not open; those that say nothing need the virtual host at most.
CASES: dict[str, Case] = {
    "GET /": Case(),
    "GET /streams": Case(),
    "GET /create-stream": Case(),
    "POST /create-stream": Case(right="configure", form={"name": "s2", "vhost": "/"}),
    "GET /streams/{vhost}/{name}": Case(),
    "GET /streams/{vhost}/{name}/filters": Case(right="read"),
    "GET /streams/{vhost}/{name}/change": Case(right="configure"),
    "POST /streams/{vhost}/{name}/change": Case(right="configure", form={"max-age": "7D"}),
    "GET /streams/{vhost}/{name}/publish": Case(right="write"),
    "POST /streams/{vhost}/{name}/publish": Case(right="write", form={"body": "b"}),
    "GET /streams/{vhost}/{name}/truncate": Case(right="configure"),
    "POST /streams/{vhost}/{name}/truncate": Case(
        right="configure", form={"name": "s", "before": "0"}
    ),
    "GET /streams/{vhost}/{name}/delete": Case(right="configure"),
    "POST /streams/{vhost}/{name}/delete": Case(right="configure", form={"name": "s"}),
    "POST /streams/{vhost}/{name}/offsets": Case(
        right="read", form={"reference": "r", "offset": "7", "sure": "1"}, does=200
    ),
    "POST /streams/{vhost}/{name}/selectors": Case(
        right="configure", form={"group": "g", "dialect": "union", "text": "a = 1"}
    ),
    "GET /super-streams": Case(),
    "GET /create-super-stream": Case(),
    "POST /create-super-stream": Case(
        right="all", form={"name": "s2", "vhost": "/", "partitions": "2"}
    ),
    "GET /super-streams/{vhost}/{name}": Case(),
    "GET /super-streams/{vhost}/{name}/delete": Case(right="all"),
    "POST /super-streams/{vhost}/{name}/delete": Case(right="all", form={"name": "s"}),
    "GET /exchanges": Case(),
    "GET /bindings": Case(),
    "GET /create-exchange": Case(),
    "POST /create-exchange": Case(
        right="configure", form={"name": "x", "vhost": "/", "type": "topic"}
    ),
    "GET /exchanges/{vhost}/{name}": Case(),
    "POST /exchanges/{vhost}/{name}/bind": Case(
        right="all", form={"kind": "stream", "destination": "s", "key": "7"}
    ),
    "POST /exchanges/{vhost}/{name}/unbind": Case(right="all", form=BOUND),
    "GET /exchanges/{vhost}/{name}/delete": Case(right="configure"),
    "POST /exchanges/{vhost}/{name}/delete": Case(right="configure", form={"name": "s"}),
    "GET /connections": Case(),
    "GET /connections/{connection}": Case(tags=SEES_ALL),
    "POST /connections/{connection}/close": Case(tags=ADMINISTRATOR, form={"reason": "x"}),
    "GET /users": Case(tags=ADMINISTRATOR),
    "GET /create-user": Case(tags=ADMINISTRATOR),
    "POST /create-user": Case(tags=ADMINISTRATOR, form={"name": "eve", "none": "1"}),
    "GET /users/{user}": Case(tags=ADMINISTRATOR),
    "POST /users/{user}/tags": Case(tags=ADMINISTRATOR, form={"tag": "management"}),
    "POST /users/{user}/password": Case(tags=ADMINISTRATOR, form={"none": "1"}),
    "GET /users/{user}/delete": Case(tags=ADMINISTRATOR),
    "POST /users/{user}/delete": Case(tags=ADMINISTRATOR, form={"name": "bob"}),
    "GET /vhosts": Case(),
    "GET /create-vhost": Case(tags=ADMINISTRATOR),
    "POST /create-vhost": Case(tags=ADMINISTRATOR, form={"name": "new"}),
    "GET /vhosts/{vhost}": Case(),
    "GET /vhosts/{vhost}/delete": Case(tags=ADMINISTRATOR),
    "POST /vhosts/{vhost}/delete": Case(tags=ADMINISTRATOR, form={"name": "/"}),
    "GET /permissions": Case(),
    "GET /set-permissions": Case(tags=ADMINISTRATOR),
    "GET /permissions/{vhost}/{user}": Case(tags=ADMINISTRATOR),
    "POST /permissions/{vhost}/{user}/set": Case(
        tags=ADMINISTRATOR, form={"was": PATTERNS, "read": ".*"}
    ),
    "POST /permissions/{vhost}/{user}/clear": Case(tags=ADMINISTRATOR, form={"was": PATTERNS}),
    "GET /definitions": Case(tags=ADMINISTRATOR),
    "GET /definitions/download": Case(tags=ADMINISTRATOR),
    "POST /definitions": Case(tags=ADMINISTRATOR, form={"vhost": ""}, does=400),
    "GET /streams/{vhost}/{name}/messages": Case(right="read"),
    "GET /streams/{vhost}/{name}/messages/download": Case(right="read"),
    "GET /streams/{vhost}/{name}/messages/{offset}": Case(right="read"),
    "GET /streams/{vhost}/{name}/messages/{offset}/{part}": Case(right="read"),
    "POST /logout": Case(form={"x": "y"}),
}


def verbs(route: Route) -> set[str]:
    return set(route.methods or ()) - {"HEAD"}


ALL = {f"{verb} {route.path}" for route in ROUTES for verb in verbs(route)}
PAGES = sorted(name for name in ALL - OPEN if name.startswith("GET "))
ACTIONS = sorted(name for name in ALL - OPEN if name.startswith("POST "))


def path_of(route: str, **other: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda m: {**FILLED, **other}[m[1]], route.partition(" ")[2])


@pytest.fixture
async def filled(server: Harness) -> Harness:
    """The virtual host / has a stream and a super stream s, the user bob, and a connection.

    The virtual host hidden has a stream, too, and only guest may enter it.
    """
    await server.host.create("s", [])
    await server.host.create_super_stream("s", [("0", "s-0")], [])
    await add_user(server, "bob", patterns="^b")
    peer = await server.peer()
    await peer.declare("s")
    await peer.store([b"x"])
    broker = server.server.broker
    server.server.connections.add(connection_of(server, "bob"))
    async with broker.catalog.turn() as turn:
        await broker.add_virtual_host(turn, "hidden")
    await broker.virtual_hosts["hidden"].create("s", [])
    return server


def connection_of(server: Harness, user: str, port: int = 1, **more: Any) -> LiveConnection:
    """A connection that is open, as far as anybody can see."""
    account = server.server.directory.account(as_sent(user))
    assert account is not None
    about: dict[str, Any] = {field.name: MagicMock() for field in fields(LiveConnection)}
    about |= {"peer": Address("10.0.0.1", port), "local": Address("10.0.0.2", 2)}
    about |= {"publishers": list, "consumers": list, "connected_at_ms": 0, "frame_max": 0}
    about |= {"protocol": STREAM_PROTOCOL, "virtual_host": "/", "properties": {}}
    about |= {"is_tls": False, "mechanism": "PLAIN", "is_node": False, "heartbeat_seconds": 0}
    return LiveConnection(**about | {"account": account} | more)


async def as_ada(server: Harness, *tags: str, right: str = "") -> Visitor:
    """Somebody with these tags, who may enter / and has this right, or all of them, there."""
    await add_user(server, "ada", *tags)
    patterns = [".*" if right in (name, "all") else "" for name in ("configure", "write", "read")]
    await server.server.directory.put_permission(PermissionRow("ada", "/", *patterns))
    return await entered(server, "ada")


def test_every_route_is_in_the_table() -> None:
    assert set(CASES) | OPEN == ALL


async def sent(browser: Visitor, route: str, path: str = "") -> httpx.Response:
    """The answer to a request as pages of the console make it."""
    path = path or path_of(route)
    if route.startswith("GET"):
        return await browser.get(path)
    return await browser.send(path, CASES[route].form)


async def test_nothing_without_a_login(filled: Harness) -> None:
    browser, before = visitor(filled), await state(filled)
    for route in sorted(ALL - OPEN):
        verb, path, form = route.partition(" ")[0], path_of(route), CASES[route].form
        answer = await browser.client.request(verb, path, data=form)
        assert answer.status_code == 303, route
        assert answer.headers["location"].startswith("/login")
        assert "www-authenticate" not in answer.headers
        basic = await browser.client.request(verb, path, data=form, auth=("guest", "guest"))
        assert basic.status_code == 303, "a password in each request is for the API"
        assert await state(filled) == before, route


async def test_nothing_changes_without_the_token(filled: Harness) -> None:
    browser, other = visitor(filled), visitor(filled)
    await browser.log_in()
    await other.log_in()
    before, token, foreign = await state(filled), await browser.token(), await other.token()
    for route in ACTIONS:
        form = CASES[route].form
        for csrf in ({}, {"csrf": ""}, {"csrf": "x"}, {"csrf": "ü"}, {"csrf": foreign}):
            answer = await browser.client.post(path_of(route), data={**form, **csrf})
            assert answer.status_code == 400, route
            assert "load the page again" in answer.text
        for headers in (
            {"origin": "http://evil.example"},
            {"origin": "null"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
        ):
            fields = {**form, "csrf": token}
            answer = await browser.client.post(path_of(route), data=fields, headers=headers)
            assert answer.status_code == 403, route
        assert await state(filled) == before, route
        assert await browser.code("/login") == 303, "the session goes on"


async def test_other_virtual_hosts_are_not_seen(filled: Harness) -> None:
    """Whether they exist, or what is in them, is not said either."""
    browser, before = await as_ada(filled, "management", right="all"), await state(filled)
    for route in [r for r in sorted(CASES) if "{vhost}" in r and not CASES[r].tags]:
        said = set()
        for vhost, name in (("hidden", "s"), ("hidden", "missing"), ("missing", "s")):
            answer = await sent(browser, route, path_of(route, vhost=vhost, name=name))
            assert answer.status_code == 403, route
            main = BeautifulSoup(answer.text, "html.parser").main
            assert main is not None
            said.add(main.get_text(" ").replace(vhost, "…"))
        assert len(said) == 1, route
    assert await state(filled) == before


async def test_what_is_refused(filled: Harness) -> None:
    """Each right but the one that is needed, each tag but those that are needed."""
    for right in ("", "configure", "write", "read"):
        browser = await as_ada(filled, "management", right=right)
        before = await state(filled)
        for route in [r for r in sorted(CASES) if CASES[r].right not in ("", right)]:
            assert (await sent(browser, route)).status_code == 403, (right, route)
            assert await state(filled) == before, (right, route)
    for tag in ("management", "policymaker", "monitoring"):
        browser = await as_ada(filled, tag, right="all")
        before = await state(filled)
        for route in [r for r in sorted(CASES) if CASES[r].tags and tag not in CASES[r].tags]:
            assert (await sent(browser, route)).status_code == 403, (tag, route)
            assert await state(filled) == before, (tag, route)


@pytest.mark.parametrize("route", [r for r in ACTIONS if CASES[r].right or CASES[r].tags])
async def test_what_is_allowed(filled: Harness, route: str) -> None:
    """So that what is refused is not refused for another reason."""
    case = CASES[route]
    browser = await as_ada(filled, *(case.tags or ("management",)), right=case.right)
    before = await state(filled)
    answer = await sent(browser, route)
    assert answer.status_code == case.does, answer.text
    if case.does == 303 and not route.endswith(("/truncate", "/offsets", "/publish")):
        assert await state(filled) != before


async def test_pages_are_shown_to_those_who_may_see_them(filled: Harness) -> None:
    for case in sorted({CASES[route] for route in PAGES if CASES[route].form is None}):
        browser = await as_ada(filled, *(case.tags or ("management",)), right=case.right)
        for route in [r for r in PAGES if CASES[r] == case]:
            answer = await sent(browser, route)
            assert answer.status_code == 200, (route, answer.text)


async def state(server: Harness) -> object:
    """What there is: streams, users, permissions."""
    broker, directory = server.server.broker, server.server.directory
    hosts = broker.virtual_hosts.values()
    streams = {
        (host.name, name): (dict(host.arguments(name)), host.row(name).settings)
        for host in hosts
        for name in host.names()
    }
    stream = broker.virtual_hosts["/"].get_stream("s") if "/" in broker.virtual_hosts else None
    return (
        streams,
        [host.topology.rows() for host in hosts],
        [host.topology.bindings_from("s") for host in hosts],
        stream and stream.standing.rows(),
        directory.users(),
        directory.permissions(),
        [getattr(connection.end, "call_count", 0) for connection in server.server.connections],  # type: ignore[attr-defined]
    )


async def test_the_navigation_shows_what_a_user_may_see(filled: Harness) -> None:
    _, console = console_of(filled)
    all_titles = {item.title for item in console.site.navigation}
    browser = visitor(filled)
    await browser.log_in()
    assert {a.text for a in (await browser.page("/")).header.nav("a")} == all_titles
    browser = await as_ada(filled, "management")
    for link in (await browser.page("/")).header.nav("a"):
        assert await browser.code(str(link["href"])) == 200
