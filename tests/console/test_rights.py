"""Who may do what in the console: each route tried by everybody who may not."""

import re
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import httpx
import pytest
from bs4 import BeautifulSoup
from starlette.routing import Route

from streamd.broker.catalog_rows import PermissionRow
from streamd.console.app import Console
from streamd.console.site import Site
from tests.support.console import Visitor, console_of, visitor
from tests.support.http import add_user
from tests.support.server import Harness

ROUTES: list[Route] = Console(Site(MagicMock(), "")).routes
OPEN = {"GET /login", "POST /login", "GET /static/{name}", "GET /favicon.ico"}
FILLED = {"vhost": "%2F", "name": "s"}


class Case(NamedTuple):
    """What a route needs besides a session.

    Attributes:
        tags: one of them.
        right: to the stream s: configure, write or read.
        form: that would change something.
    """

    tags: tuple[str, ...] = ()
    right: str = ""
    form: Any = None


ADMINISTRATOR = ("administrator",)
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
    "GET /streams/{vhost}/{name}/truncate": Case(right="configure"),
    "POST /streams/{vhost}/{name}/truncate": Case(
        right="configure", form={"name": "s", "before": "0"}
    ),
    "GET /streams/{vhost}/{name}/delete": Case(right="configure"),
    "POST /streams/{vhost}/{name}/delete": Case(right="configure", form={"name": "s"}),
    "POST /streams/{vhost}/{name}/offsets": Case(
        right="read", form={"reference": "r", "offset": "7"}
    ),
    "POST /streams/{vhost}/{name}/selectors": Case(
        right="configure", form={"group": "g", "dialect": "union", "text": "a = 1"}
    ),
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
    """The virtual host / has the stream s; hidden has one, too, and only guest may enter it."""
    await server.host.create("s", [])
    broker = server.server.broker
    async with broker.catalog.turn() as turn:
        await broker.add_virtual_host(turn, "hidden")
    await broker.virtual_hosts["hidden"].create("s", [])
    return server


async def as_ada(server: Harness, *tags: str, right: str = "") -> Visitor:
    """Somebody with these tags, who may enter / and has this right, or all of them, there."""
    await add_user(server, "ada", *tags)
    patterns = [".*" if right in (name, "all") else "" for name in ("configure", "write", "read")]
    await server.server.directory.put_permission(PermissionRow("ada", "/", *patterns))
    browser = visitor(server)
    await browser.log_in("ada")
    return browser


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
    answer = await sent(browser, route)
    assert answer.status_code == 303, answer.text


async def test_pages_are_shown_to_those_who_may_see_them(filled: Harness) -> None:
    for case in sorted({CASES[route] for route in PAGES if CASES[route].form is None}):
        browser = await as_ada(filled, *(case.tags or ("management",)), right=case.right)
        for route in [r for r in PAGES if CASES[r] == case]:
            answer = await sent(browser, route)
            assert answer.status_code == 200, (route, answer.text)


async def state(server: Harness) -> object:
    """What there is: streams, users, permissions."""
    broker, directory = server.server.broker, server.server.directory
    streams = {
        (host.name, name): dict(host.arguments(name))
        for host in broker.virtual_hosts.values()
        for name in host.names()
    }
    return streams, directory.users(), directory.permissions()


async def test_the_navigation_shows_what_a_user_may_see(filled: Harness) -> None:
    _, console = console_of(filled)
    all_titles = {item.title for item in console.site.navigation}
    browser = visitor(filled)
    await browser.log_in()
    assert {a.text for a in (await browser.page("/")).header.nav("a")} == all_titles
    browser = await as_ada(filled, "management")
    for link in (await browser.page("/")).header.nav("a"):
        assert await browser.code(str(link["href"])) == 200
