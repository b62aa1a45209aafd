"""Logging in to the console: who is let in, what a session is, and how it ends."""

from pathlib import Path
from typing import Any

import pytest
import trio

from streamd.console.sessions import IDLE_SECONDS, MAX_OF_A_USER, MAX_SESSIONS, SECONDS, Sessions
from streamd.hop.door import Session
from streamd.operations.names import Name
from tests.support.console import Visitor, console_of, visitor
from tests.support.http import add_user
from tests.support.server import Harness, harness

COOKIE = "streamd_session"


async def test_a_login_leads_to_the_page_that_was_wanted(server: Harness) -> None:
    browser = visitor(server)
    answer = await browser.get("/streams?q=a%2Fb&sort=name")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/login?next=%2Fstreams%3Fq%3Da%252Fb%26sort%3Dname"
    page = await browser.page(answer.headers["location"])
    assert [label.text for label in page.main("label")] == ["User name", "Password"]
    assert page.main.button.text == "Log in"
    wanted = page.find("input", {"name": "next"})["value"]
    answer = await browser.log_in(wanted=wanted)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/streams?q=a%2Fb&sort=name"
    assert (await browser.page(answer.headers["location"])).h1.text == "Streams"


@pytest.mark.parametrize(
    "wanted",
    [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "/\t/evil.example",
        "javascript:alert(1)",
        "streams",
        "/login",
        "/login?next=/login",
        "/\r\nset-cookie: a=b",
        "/ö",
        "",
    ],
)
async def test_a_login_leads_nowhere_else(server: Harness, wanted: str) -> None:
    answer = await visitor(server).log_in(wanted=wanted)
    assert answer.headers["location"] == "/"


async def test_the_cookie_is_for_nobody_else(server: Harness) -> None:
    browser = visitor(server)
    cookie = (await browser.log_in()).headers["set-cookie"]
    assert cookie.startswith(COOKIE)
    assert {part.strip().lower() for part in cookie.split(";")[1:]} == {
        "httponly",
        "samesite=strict",
        "path=/",
    }
    cookie = (await visitor(server, scheme="https").log_in()).headers["set-cookie"]
    assert "; secure" in cookie.lower()
    app = console_of(server)[0]
    behind_proxy = Visitor(app)
    form = {"user": "guest", "password": "guest"}
    answer = await behind_proxy.client.post(
        "/login", data=form, headers={"origin": "https://localhost", "host": "localhost:443"}
    )
    assert "; secure" in answer.headers["set-cookie"].lower()


async def test_under_a_prefix_the_cookie_is_for_that_alone(tmp_path: Path) -> None:
    async with harness(tmp_path, http_path_prefix="/a/b") as server:
        browser = visitor(server, prefix="/a/b")
        answer = await browser.log_in()
        assert "path=/a/b" in answer.headers["set-cookie"].lower()
        assert answer.headers["location"] == "/a/b/"
        for path in ("", "/", "/streams", "/create-stream"):
            page = await browser.page(path)
            found = [e.get("href") or e.get("src") or e.get("action") for e in page.find_all(True)]
            local = [address for address in found if address and not address.startswith("#")]
            assert local
            assert {address.startswith("/a/b") for address in local} == {True}
        assert (await browser.client.get("/streams")).status_code == 404


async def test_a_refused_login_waits_and_says_so(server: Harness) -> None:
    browser = visitor(server)
    await add_user(server, "ada")  # without a tag
    for user, password in (("guest", "guess"), ("nobody", "x"), ("guest", "")):
        before = trio.current_time()
        answer = await browser.send(
            "/login", {"user": user, "password": password}, with_token=False
        )
        assert answer.status_code == 200
        assert "User or password is wrong." in answer.text
        assert f'value="{user}"' in answer.text
        assert trio.current_time() - before >= 3
        assert "www-authenticate" not in answer.headers
        assert "set-cookie" not in answer.headers
    answer = await browser.log_in("ada")
    assert answer.status_code == 200
    assert "set-cookie" not in answer.headers
    assert "none of the tags" in answer.text


async def test_guest_comes_from_this_machine_only(server: Harness) -> None:
    assert "wrong" in (await visitor(server, address="192.0.2.1").log_in()).text
    app, _ = console_of(server)
    near, far = Visitor(app), Visitor(app, "192.0.2.1")
    await near.log_in()
    far.client.cookies = near.client.cookies
    assert await far.code("/") == 303
    assert await near.code("/") == 303, "and the session that has been elsewhere has ended"


async def test_each_login_has_a_session_of_its_own(server: Harness) -> None:
    browser = visitor(server)
    browser.client.cookies.set(f"{COOKIE}_", "chosen-by-somebody", domain="localhost.local")
    first = (await browser.log_in()).cookies
    old = dict(browser.client.cookies)
    assert "chosen-by-somebody" not in first.values()
    await browser.log_in()
    assert dict(browser.client.cookies) != old
    other = visitor(server)
    other.client.cookies.update(old)
    assert await other.code("/") == 303


async def test_log_out(browser: Visitor) -> None:
    kept = dict(browser.client.cookies)
    answer = await browser.send("/logout")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    browser.client.cookies.update(kept)
    assert await browser.code("/") == 303
    assert (await browser.get("/logout")).status_code == 303


async def test_a_session_ends_with_what_it_stands_for(server: Harness) -> None:
    directory = server.server.directory

    async def logged_in() -> Visitor:
        await add_user(server, "ada", "management")
        browser = visitor(server)
        assert (await browser.log_in("ada")).status_code == 303
        assert await browser.code("/") == 200
        return browser

    browser = await logged_in()
    await directory.put_user("ada", b"another")
    assert await browser.code("/") == 303

    browser = await logged_in()
    await directory.put_user("ada", tags=["monitoring"])
    assert await browser.code("/") == 200
    await directory.put_user("ada", tags=[])
    assert await browser.code("/") == 303

    browser = await logged_in()
    await directory.remove_user("ada")
    await add_user(server, "ada", "management")
    assert await browser.code("/") == 303


class _Engine:
    """Lets everybody go on who has entered."""

    async def ask(self, _session: int, _operation: object) -> tuple[str, ...]:
        return ("management",)

    def leave(self, _session: int) -> None:
        pass


def visitor_named(name: str) -> Session:
    link: Any = _Engine()
    return Session(link, 1, Name(name), ("management",))


async def test_a_session_ends_with_time() -> None:
    sessions, caller = Sessions(), visitor_named("ada")

    async def goes_on() -> bool:
        return await sessions.find(session.identity, "") is session

    session = sessions.begin(caller)
    await trio.sleep(IDLE_SECONDS - 1)
    assert await goes_on()
    await trio.sleep(IDLE_SECONDS - 1)
    assert sessions.goes_on(session)
    assert await goes_on()
    await trio.sleep(IDLE_SECONDS)
    assert not sessions.goes_on(session)
    assert not await goes_on()
    session = sessions.begin(caller)
    for _ in range(SECONDS // IDLE_SECONDS * 2 - 1):
        await trio.sleep(IDLE_SECONDS / 2)
        assert await goes_on()
    await trio.sleep(IDLE_SECONDS / 2)
    assert not await goes_on()
    assert len(sessions) == 0


async def test_there_are_so_many_sessions_at_most() -> None:
    sessions = Sessions()
    opened = [sessions.begin(visitor_named("ada")) for _ in range(MAX_OF_A_USER)]
    assert await sessions.find(opened[0].identity, "") is opened[0]  # so the second is the oldest
    sessions.begin(visitor_named("ada"))
    assert len(sessions) == MAX_OF_A_USER
    assert [s.has_ended for s in opened[:3]] == [False, True, False]
    for n in range(MAX_SESSIONS // MAX_OF_A_USER):
        for _ in range(MAX_OF_A_USER):
            sessions.begin(visitor_named(f"user-{n}"))
        assert len(sessions) <= MAX_SESSIONS
    assert len(sessions) == MAX_SESSIONS
    assert all(session.has_ended for session in opened)


async def test_a_page_that_polls_is_sent_to_the_login(server: Harness) -> None:
    answer = await visitor(server).get("/streams", **{"hx-request": "true"})
    assert answer.status_code == 401
    assert answer.headers["hx-redirect"] == "/login"
    assert "www-authenticate" not in answer.headers
