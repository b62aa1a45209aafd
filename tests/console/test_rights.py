"""Who may do what in the console: each route tried by everybody who may not."""

import re
from typing import Any, NamedTuple
from unittest.mock import MagicMock

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
    "GET /streams/{vhost}/{name}/delete": Case(),
    "POST /streams/{vhost}/{name}/delete": Case(right="configure", form={"name": "s"}),
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
    """Somebody with these tags, who may enter / and has this right there."""
    await add_user(server, "ada", *tags)
    patterns = [".*" if right == name else "" for name in ("configure", "write", "read")]
    await server.server.directory.put_permission(PermissionRow("ada", "/", *patterns))
    browser = visitor(server)
    await browser.log_in("ada")
    return browser


def test_every_route_is_in_the_table() -> None:
    assert set(CASES) | OPEN == ALL


@pytest.mark.parametrize("route", sorted(ALL - OPEN))
async def test_nothing_without_a_login(filled: Harness, route: str) -> None:
    browser, before = visitor(filled), await state(filled)
    verb, path = route.partition(" ")[0], path_of(route)
    form = CASES[route].form
    answer = await browser.client.request(verb, path, data=form)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/login")
    assert "www-authenticate" not in answer.headers
    basic = await browser.client.request(verb, path, data=form, auth=("guest", "guest"))
    assert basic.status_code == 303, "a password in each request is for the API"
    assert await state(filled) == before


@pytest.mark.parametrize("route", ACTIONS)
async def test_nothing_changes_without_the_token(filled: Harness, route: str) -> None:
    browser = visitor(filled)
    await browser.log_in()
    before, form = await state(filled), CASES[route].form
    other = visitor(filled)
    await other.log_in()
    for csrf in ({}, {"csrf": ""}, {"csrf": "x"}, {"csrf": "ü"}, {"csrf": await other.token()}):
        answer = await browser.client.post(path_of(route), data={**form, **csrf})
        assert answer.status_code == 400
        assert "load the page again" in answer.text
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        fields = {**form, "csrf": await browser.token()}
        answer = await browser.client.post(path_of(route), data=fields, headers=headers)
        assert answer.status_code == 403
    assert await state(filled) == before
    assert await browser.code("/") == 200


@pytest.mark.parametrize("route", [r for r in sorted(CASES) if "{vhost}" in r])
async def test_other_virtual_hosts_are_not_seen(filled: Harness, route: str) -> None:
    """Whether they exist, or what is in them, is not said either."""
    browser, before = await as_ada(filled, "management", right=CASES[route].right), None
    before = await state(filled)
    said = []
    for vhost, name in (("hidden", "s"), ("hidden", "missing"), ("missing", "s")):
        path = path_of(route, vhost=vhost, name=name)
        if route.startswith("GET"):
            answer = await browser.get(path)
        else:
            answer = await browser.send(path, CASES[route].form)
        assert answer.status_code == 403
        main = BeautifulSoup(answer.text, "html.parser").main
        assert main is not None
        said.append(main.get_text(" ").replace(vhost, "…"))
    assert len(set(said)) == 1
    assert await state(filled) == before


@pytest.mark.parametrize("route", [r for r in sorted(CASES) if CASES[r].right])
async def test_rights(filled: Harness, route: str) -> None:
    case, path = CASES[route], path_of(route)
    for right in ("", "configure", "write", "read"):
        if right != case.right:
            browser, before = await as_ada(filled, "management", right=right), await state(filled)
            answer = (
                await browser.get(path)
                if route.startswith("GET")
                else await browser.send(path, case.form)
            )
            assert answer.status_code == 403, right
            assert await state(filled) == before
    browser = await as_ada(filled, "management", right=case.right)
    answer = (
        await browser.get(path) if route.startswith("GET") else await browser.send(path, case.form)
    )
    assert answer.status_code in (200, 303)


@pytest.mark.parametrize("route", [r for r in sorted(CASES) if CASES[r].tags])
async def test_tags(filled: Harness, route: str) -> None:
    case, path = CASES[route], path_of(route)
    for tag in {"management", "policymaker", "monitoring"} - set(case.tags):
        browser, before = await as_ada(filled, tag), await state(filled)
        answer = (
            await browser.get(path)
            if route.startswith("GET")
            else await browser.send(path, case.form)
        )
        assert answer.status_code == 403, tag
        assert await state(filled) == before
    browser = visitor(filled)
    await browser.log_in()
    answer = (
        await browser.get(path) if route.startswith("GET") else await browser.send(path, case.form)
    )
    assert answer.status_code in (200, 303)


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
