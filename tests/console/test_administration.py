"""Pages of administrators: connections, users, virtual hosts, permissions, routing, definitions."""

import json
from typing import Any

import httpx
import pytest
from bs4 import BeautifulSoup

from streamd.console.connection_rates import CONSUMED, LONGEST_MS, PUBLISHED, ConnectionRates
from streamd.console.listing import PAGE_SIZE
from streamd.engine.connections import connection_of as shown
from streamd.operations.connections import (
    MAX_REASON,
    ConnectionDetails,
    ConsumerFacts,
    PublisherFacts,
)
from tests.console.test_rights import connection_of
from tests.console.test_streams import HOSTILE
from tests.support.console import Visitor, entered, visitor
from tests.support.http import Http, add_user
from tests.support.server import Harness

NOT_YET = "\N{EN DASH}"  # a rate that is not known
HOST = "/exchanges/%2F"


def main_of(answer: httpx.Response) -> str:
    tree: Any = BeautifulSoup(answer.text, "html.parser")
    return " ".join(tree.main.get_text(" ").split())


async def followed(browser: Visitor, path: str, form: dict[str, Any]) -> str:
    """What the page says that a form leads to."""
    answer = await browser.send(path, form)
    assert answer.status_code == 303, main_of(answer)
    return await browser.text(answer.headers["location"])


async def refusal(browser: Visitor, path: str, form: dict[str, Any], status: int = 400) -> str:
    """What is said of a form that is wrong."""
    answer = await browser.send(path, form)
    assert answer.status_code == status, (answer.status_code, main_of(answer))
    tree: Any = BeautifulSoup(answer.text, "html.parser")
    text = " ".join(tree.find(class_="problem").get_text(" ").split())
    return text[:1].lower() + text[1:]  # pages begin sentences with a capital


async def rows(browser: Visitor, path: str, label: str) -> list[list[str]]:
    page = await browser.page(path)
    found = page.select(f"[aria-label='{label}'] tbody tr")
    return [[" ".join(cell.text.split()) for cell in row(["th", "td"])] for row in found]


# -- names


NAMES = [text[:120] for text in HOSTILE if text not in ("~", "\\", "'", "&amp;")]


async def test_names_are_shown_as_they_are(browser: Visitor) -> None:
    kinds: dict[str, tuple[str, dict[str, str]]] = {
        "user": ("/users", {"none": "1"}),
        "vhost": ("/vhosts", {}),
        "exchange": ("/exchanges", {"type": "direct", "vhost": "/"}),
        "super-stream": ("/super-streams", {"partitions": "1", "vhost": "/"}),
    }
    token = {"csrf": await browser.token()}
    for kind, (listed, fields) in kinds.items():
        for name in NAMES:
            form = {**fields, "name": name, **token}
            answer = await browser.send(f"/create-{kind}", form, with_token=False)
            assert answer.status_code == 303, (kind, name, main_of(answer))
        page = await browser.page(listed)
        links = {row.th.a.text: row.th.a["href"] for row in page.select("tbody tr")}
        assert set(NAMES) <= links.keys()
        is_safe(page)
        for name in NAMES:
            page = await browser.page(links[name])
            assert page.h1.bdi.text == name
            is_safe(page)
            path = f"{links[name]}/delete"
            answer = await browser.send(path, {"name": name, **token}, with_token=False)
            assert answer.headers["location"] == listed, main_of(answer)
    page = await browser.page("/users")
    assert len(page.select("tbody tr")) == 1


def is_safe(page: Any) -> None:
    assert page.main.find(["script", "img"]) is None
    assert page.find(attrs={"style": True}) is None
    assert page.find(attrs={"onerror": True}) is None


async def test_long_names(browser: Visitor) -> None:
    longest = "ö" * 127 + "x"
    for kind in ("user", "vhost"):
        form = {"name": longest, "none": "1"}
        assert longest in await followed(browser, f"/create-{kind}", form)
        problem = await refusal(browser, f"/create-{kind}", {"name": longest + "x", "none": "1"})
        assert "has 256 bytes" in problem
    for path in ("/permissions", "/set-permissions"):
        assert longest in await browser.text(path)


# -- connections


async def test_connections_are_sorted_searched_and_paged(server: Harness, browser: Visitor) -> None:
    await add_user(server, "ada", "management")
    known = server.server.connections
    for number in range(2 * PAGE_SIZE + 1):
        about: dict[str, Any] = {"connected_at_ms": number * 1000}
        if number == 7:
            about["properties"] = {"connection_name": "<b>billing</b>"}
        if number == 8:
            facts = ConsumerFacts(0, "s", {}, 1, 2, 3, 4_321, 60.0, False, True)
            about["consumers"] = lambda: [facts]  # noqa: B023 - there is one
        user = "ada" if number == 9 else "guest"
        known.add(connection_of(server, user, port=number + 1, **about))
    found = await rows(browser, "/connections", "List of connections")
    assert [row[0] for row in found] == [
        f"10.0.0.1:{n}{'<b>billing</b>' if n == 8 else ''}" for n in range(1, PAGE_SIZE + 1)
    ]
    assert len(await rows(browser, "/connections?page=3", "List of connections")) == 1
    found = await rows(browser, "/connections?sort=lag&desc=1", "List of connections")
    assert found[0][-1] == "4,3211 min 0 s"
    for text, number in (("BILLING", 8), ("ada", 10), ("0.1:101", 101)):
        found = await rows(browser, f"/connections?q={text}", "List of connections")
        assert [row[0].partition("<")[0] for row in found] == [f"10.0.0.1:{number}"]
    assert "No connection has “ <i> ”" in await browser.text("/connections?q=%3Ci%3E")
    ada = await entered(server, "ada")
    (row,) = await rows(ada, "/connections", "List of connections")
    assert row[:2] == ["10.0.0.1:10", "ada"]


async def test_a_connection_is_shown_and_closed(server: Harness, browser: Visitor) -> None:
    peer = await server.peer(connection_name="<till>")
    await peer.create("s")
    await peer.declare("s", reference="<ref>")
    await peer.store([b"a", b"b"])
    await peer.subscribe("s", credit=1, name="<reader>")
    await peer.chunk()
    page = await browser.page("/connections")
    link = page.select_one("tbody th a")["href"]
    page = await browser.page(link)
    assert page.h1.text == "<till>"
    (publisher,) = await rows(browser, link, "Publishers")
    assert publisher == ["<ref>", "s", "2", NOT_YET, "2", "0"]
    (consumer,) = await rows(browser, link, "Consumers")
    assert consumer == ["<reader>", "s", "reading", "2", NOT_YET, "2", "0", "0 s", "0"]
    await peer.subscribe("s", subscription_id=3, credit=0)
    names = [cells[0] for cells in await rows(browser, link, "Consumers")]
    assert names == ["<reader>", "subscription 3"]
    text = await followed(browser, f"{link}/close", {"reason": "maintenance \x07<now>" + "y" * 300})
    assert "of guest is being closed." in text
    await peer.ended()
    text = await browser.text(link, 404)
    assert "There is no connection" in text
    assert "somebody may have deleted" not in text
    assert "there is no connection" in await refusal(browser, f"{link}/close", {}, 404)
    answer = await browser.get(link, **{"HX-Request": "true"})
    assert answer.status_code == 200
    assert "This connection is closed." in answer.text


async def test_the_reason_is_that_of_http(server: Harness, browser: Visitor) -> None:
    for reason in ("", "maintenance", "a\tb<i>" + "x" * 300):
        connection = connection_of(server, "guest")
        server.server.connections.add(connection)
        await browser.send(f"/connections/{PATH}/close", {"reason": reason})
        said: Any = connection.end
        (told,) = said.call_args.args
        assert told == {
            "": "closed through the management console",
            "maintenance": "maintenance",
        }.get(reason, ("ab<i>" + "x" * 300)[:MAX_REASON])


PATH = "10.0.0.1%3A1%20-%3E%2010.0.0.2%3A2"


async def test_one_may_close_ones_own_connections(server: Harness) -> None:
    await add_user(server, "ada", "management")
    mine = connection_of(server, "ada")
    server.server.connections.add(mine)
    ada = await entered(server, "ada")
    assert (await ada.page(f"/connections/{PATH}")).find("button", string="Close")
    assert (await ada.send(f"/connections/{PATH}/close")).status_code == 303
    end: Any = mine.end
    assert end.call_count == 1
    eve = await entered(server, "eve", "monitoring")
    assert (await eve.page(f"/connections/{PATH}")).find("button", string="Close") is None


async def test_rates_are_made_of_two_looks(server: Harness) -> None:
    rates = ConnectionRates()
    start = 1_000_000
    connection = shown(connection_of(server, "guest", connected_at_ms=start))

    def look(at: float, published: int, consumed: int = 0, number: int = 1) -> Any:
        publishers = (PublisherFacts(number, "", "s", published, 0, 0),)
        consumers = (ConsumerFacts(7, "s", {}, 1, consumed, 0, 0, 0.0, False, True),)
        found = ConnectionDetails(connection, publishers, consumers, may_end=True)
        return rates.look(found, start + at)

    assert look(1_000, 50).published is None, "too short"
    found = look(10_000, 500, 180)
    assert (found.published, found.consumed) == (50, 20)
    assert found.each == {(PUBLISHED, 1): 50, (CONSUMED, 7): 20}
    assert look(20_000, 500, 180).published == 0
    assert look(21_000, 1_500, 180).published == pytest.approx(1_000 / 11), "since the last but one"
    assert look(26_000, 10, 180).published == pytest.approx(10 / 6), "a new publisher"
    assert look(26_000 + LONGEST_MS + 1, 9_999).published is None, "too long ago"
    assert look(26_000 + LONGEST_MS + 10_001, 10_099).published == 10


# -- users


async def test_a_user_is_created_and_logs_in(server: Harness, browser: Visitor) -> None:
    form = {"name": "ada", "password": " sëcret ", "again": " sëcret ", "others": "a, <b>"}
    text = await followed(browser, "/create-user", {**form, "tag": ["monitoring", "management"]})
    assert "The user ada was created." in text
    assert "This user may do nothing" in text
    row = server.server.directory.find_user("ada")
    assert row is not None
    assert row.tags == ("<b>", "a", "management", "monitoring")
    ada = visitor(server)
    answer = await ada.log_in("ada", " sëcret ")
    assert answer.headers["location"] == "/"
    (found,) = [row for row in await rows(browser, "/users", "List of users") if row[0] == "ada"]
    assert found == ["ada", "<b> a management monitoring", "set", "0", "0"]


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ({"name": "ada"}, "the password is missing"),
        ({"name": "ada", "password": "x", "again": "y"}, "are not the same"),
        ({"name": "ada", "password": "x", "again": "x", "none": "1"}, "there is to be none"),
        ({"name": "", "none": "1"}, "has 0 bytes"),
        ({"name": "guest", "none": "1"}, "there is a user guest already"),
    ],
)
async def test_a_user_that_cannot_be_created(
    server: Harness, browser: Visitor, form: dict[str, str], problem: str
) -> None:
    before = server.server.directory.users()
    answer = await browser.send("/create-user", {**form, "tag": "monitoring"})
    assert answer.status_code == 400
    assert problem in main_of(answer)
    page: Any = BeautifulSoup(answer.text, "html.parser")
    assert page.find(id="name")["value"] == form["name"]
    assert page.find(attrs={"name": "password", "value": True})["value"] == ""
    ticked = [box["value"] for box in page.select("input[name=tag][checked]")]
    assert ticked == ["monitoring"]
    assert server.server.directory.users() == before


async def test_two_who_change_tags_at_once(server: Harness, browser: Visitor) -> None:
    await add_user(server, "ada", "monitoring")
    directory = server.server.directory
    page = await browser.page("/users/ada")
    was = [field["value"] for field in page.select("input[name=was]")]
    assert was == ["monitoring"]
    await directory.put_user("ada", tags=["management"])
    form = {"was": was, "tag": ["administrator"], "others": ""}
    problem = await refusal(browser, "/users/ada/tags", form)
    assert "changed the tags of ada meanwhile, to management" in problem
    row = directory.find_user("ada")
    assert row is not None
    assert row.tags == ("management",)
    text = await followed(browser, "/users/ada/tags", {**form, "was": ["management"]})
    assert "The tags of ada are administrator now." in text
    await directory.remove_user("ada")
    for action in ("tags", "password", "delete"):
        problem = await refusal(browser, f"/users/ada/{action}", {"none": "1"}, 404)
        assert "there is no user ada: somebody may have deleted it meanwhile" in problem


async def test_the_last_administrator_stays(browser: Visitor) -> None:
    form = {"was": "administrator", "tag": "monitoring"}
    assert "guest is the last administrator" in await refusal(browser, "/users/guest/tags", form)
    problem = await refusal(browser, "/users/guest/delete", {"name": "guest"})
    assert "guest is the last administrator" in problem


async def test_one_who_changes_oneself(server: Harness) -> None:
    ada = visitor(server)
    for tags, begins in ((["monitoring"], "Overview"), ([], "Log in")):
        await add_user(server, "ada", "administrator")
        await ada.log_in("ada")
        assert "this is you" in await ada.text("/users/ada")
        answer = await ada.send("/users/ada/tags", {"was": "administrator", "tag": tags})
        assert answer.status_code == 303
        answer = await ada.client.get(answer.headers["location"], follow_redirects=True)
        assert answer.status_code == 200
        text = main_of(answer)
        assert begins in text
        assert ("The tags of ada are monitoring now." in text) == bool(tags)
        assert server.server.directory.find_user("ada").tags == tuple(tags)  # type: ignore[union-attr]
    await add_user(server, "ada", "administrator")
    await ada.log_in("ada")
    await ada.send("/users/ada/password", {"password": "ada-new", "again": "ada-new"})
    assert (await ada.get("/users")).headers["location"].startswith("/login")
    await ada.log_in("ada", "ada-new")
    assert "This is you: you will be logged out." in await ada.text("/users/ada/delete")
    answer = await ada.send("/users/ada/delete", {"name": "ada"})
    assert answer.status_code == 303
    answer = await ada.client.get(answer.headers["location"], follow_redirects=True)
    assert "Log in" in main_of(answer)
    assert server.server.directory.find_user("ada") is None


# -- virtual hosts and permissions


async def test_virtual_hosts(server: Harness, browser: Visitor) -> None:
    text = await followed(browser, "/create-vhost", {"name": "a/b"})
    assert "The virtual host a/b was created." in text
    hosts = server.server.broker.virtual_hosts
    await hosts["a/b"].create("s", [])
    assert "a/b already" in await refusal(browser, "/create-vhost", {"name": "a/b"})
    found = await rows(browser, "/vhosts", "List of virtual hosts")
    assert [row[0] for row in found] == ["/", "a/b"]
    assert found[1][1].startswith("1 ")
    link = "/vhosts/a%2Fb"
    assert "1 stream with 0 messages go with it." in await browser.text(f"{link}/delete")
    for wrong in ("", "a", "A/B", "a/b "):
        problem = await refusal(browser, f"{link}/delete", {"name": wrong})
        assert "nothing was deleted" in problem
    assert "a/b" in hosts
    assert "a/b was deleted" in await followed(browser, f"{link}/delete", {"name": "a/b"})
    assert "a/b" not in hosts
    for path in (link, f"{link}/delete"):
        assert "There is no virtual host a/b" in await browser.text(path, 404)
    form = {"name": "x", "vhost": "a/b", "partitions": "1", "type": "direct"}
    for kind in ("super-stream", "exchange"):
        problem = await refusal(browser, f"/create-{kind}", form, 404)
        assert "there is no virtual host a/b" in problem


async def test_permissions_are_set_and_cleared(server: Harness, browser: Visitor) -> None:
    directory = server.server.directory
    await directory.put_user("ada", tags=["management"])
    link = "/permissions/%2F/ada"
    answer = await browser.get("/set-permissions?user=ada&vhost=/")
    assert answer.headers["location"] == link
    assert "no user eve" in await browser.text("/set-permissions?user=eve&vhost=/", 400)
    assert "no virtual host x" in await browser.text("/set-permissions?user=ada&vhost=x", 400)
    page = await browser.page(link)
    form = {field["name"]: field.get("value", "") for field in page.select("form.large input")}
    assert form.pop("csrf")
    assert form == {"was": "[]", "configure": "", "write": "", "read": ""}
    form |= {"write": "^<o>$", "read": ".*"}
    assert "The permissions of ada in / are set." in await followed(browser, f"{link}/set", form)
    row = directory.permission("ada", "/")
    assert row is not None
    assert row[2:] == ("", "^<o>$", ".*")
    problem = await refusal(browser, f"{link}/set", {**form, "read": ""})
    expected = "changed what ada may do in / meanwhile, to configure '', write '^<o>$', read '.*'"
    assert expected in problem
    form["was"] = (await browser.page(link)).find(attrs={"name": "was"})["value"]
    problem = await refusal(browser, f"{link}/set", {**form, "read": "(", "write": "w"})
    assert "'(' is not a regular expression" in problem
    assert directory.permission("ada", "/") == row
    found = await rows(browser, "/permissions?q=ada", "List of permissions")
    assert [cells[:5] for cells in found] == [["ada", "/", "nothing", "^<o>$", ".*"]]
    assert "changed what ada may do" in await refusal(browser, f"{link}/clear", {"was": "x"})
    text = await followed(browser, f"{link}/clear", {"was": form["was"]})
    assert "ada may do nothing in / any more" in text
    assert directory.permission("ada", "/") is None
    problem = await refusal(browser, f"{link}/clear", {"was": "[]"}, 404)
    assert "ada has no permissions in /" in problem
    await directory.remove_user("ada")
    for action in ("set", "clear"):
        problem = await refusal(browser, f"{link}/{action}", form, 404)
        assert "there is no user ada" in problem


async def test_permissions_are_tried(server: Harness, browser: Visitor) -> None:
    await add_user(server, "ada", "management", patterns="^orders$")
    path = "/permissions?user={}&vhost=/&name={}"
    tried = {
        ("ada", "orders"): "ada may configure and write and read orders in the virtual host / .",
        ("ada", "order"): "ada may not configure or write or read order in",
        ("<b>", "x"): "there is no user <b>",
        ("guest", ""): "guest may configure",
    }
    for (user, name), expected in tried.items():
        assert expected in await browser.text(path.format(user.replace("<b>", "%3Cb%3E"), name))
    assert "may do nothing in the virtual host x" in await browser.text(
        "/permissions?user=ada&vhost=x&name=orders"
    )
    ada = await entered(server, "ada")
    text = await ada.text(path.format("guest", "x"))
    assert "ada may not configure" in text, "of others nothing is said"
    assert "guest" not in text


# -- super streams


async def test_super_streams(server: Harness, browser: Visitor) -> None:
    form = {"name": "a", "vhost": "/", "partitions": "3", "keys": "", "max-age": "7D"}
    assert "The super stream a was created." in await followed(
        browser, "/create-super-stream", form
    )
    assert server.host.names() == ["a-0", "a-1", "a-2"]
    assert str(server.host.arguments("a-1")["max-age"]) == "7D"
    form |= {"name": "b", "keys": "eu\r\n us \r\n\r\n<b>", "max-age": ""}
    await followed(browser, "/create-super-stream", form)
    found = [(p.key, p.stream) for p in server.host.super_streams.find("b").partitions]
    assert found == [("eu", "b-eu"), ("us", "b-us"), ("<b>", "b-<b>")]
    peer = await server.peer()
    await peer.declare("b-us")
    await peer.store([b"x"])
    cells = await rows(browser, "/super-streams/%2F/b", "Partitions")
    assert [row[:3] for row in cells] == [
        ["b-eu", "eu", "0"],
        ["b-us", "us", "1"],
        ["b-<b>", "<b>", "0"],
    ]
    wrong = {
        "0": "expected 1 to 1,000",
        "1001": "expected 1 to 1,000",
        "x": "'x', expected a number",
        "": "'', expected",
        "99999": "expected 1 to 1,000",
    }
    for partitions, problem in wrong.items():
        sent = {"name": "c", "vhost": "/", "partitions": partitions}
        assert problem.replace(",", "") in (
            await refusal(browser, "/create-super-stream", sent)
        ).replace(",", "")
    sent = {"name": "a", "vhost": "/", "partitions": "1"}
    assert "an exchange a already" in await refusal(browser, "/create-super-stream", sent)
    page = await browser.page("/super-streams?sort=messages&desc=1")
    assert [row.th.text for row in page.select("tbody tr")] == ["b", "a"]
    link = "/super-streams/%2F/b"
    assert "3 partitions with 1 message go with it." in await browser.text(f"{link}/delete")
    assert "nothing was deleted" in await refusal(browser, f"{link}/delete", {"name": "a"})
    assert "b was deleted" in await followed(browser, f"{link}/delete", {"name": "b"})
    assert server.host.names() == ["a-0", "a-1", "a-2"]
    assert "there is no super stream b" in await refusal(browser, f"{link}/delete", {}, 404)


# -- exchanges


async def test_exchanges_are_created_and_bound(server: Harness, browser: Visitor) -> None:
    await server.host.create("orders", [])
    form = {"name": "logs", "vhost": "/", "type": "topic", "durable": "1", "alternate": "lost"}
    assert "The exchange logs was created." in await followed(browser, "/create-exchange", form)
    row = server.host.topology.find("logs")
    assert (row.type, row.is_durable, row.alternate) == ("topic", True, "lost")
    assert "logs already, with the same" in await refusal(browser, "/create-exchange", form)
    problem = await refusal(browser, "/create-exchange", {**form, "type": "fanout"})
    assert "inequivalent arg 'type'" in problem
    problem = await refusal(browser, "/create-exchange", {**form, "name": "amq.x"})
    assert "contains reserved prefix" in problem
    assert "invalid exchange type" in await refusal(
        browser, "/create-exchange", {**form, "type": "x"}
    )
    plain = {"name": "plain", "vhost": "/", "type": "direct", "auto_delete": "1"}
    await followed(browser, "/create-exchange", plain)
    row = server.host.topology.find("plain")
    assert (row.is_durable, row.auto_delete, row.is_super_stream) == (False, True, False)

    bound = {"kind": "stream", "destination": "orders", "key": "a.#", "arguments": '{"n": 1}'}
    text = await followed(browser, f"{HOST}/logs/bind", bound)
    assert "orders is bound to logs." in text
    assert "bound to logs already" in await followed(browser, f"{HOST}/logs/bind", bound)
    (binding,) = server.host.topology.bindings_from("logs")
    assert (binding.key, dict(binding.arguments)) == ("a.#", {"n": 1})
    (cells,) = await rows(browser, f"{HOST}/logs", "Bindings")
    assert cells[:3] == ["orders", "a.#", "n 1"]
    for wrong in ("[1]", "{", '{"a": [1]}', '"x"', '{"a": "\\ud800"}'):
        await refusal(browser, f"{HOST}/logs/bind", {**bound, "arguments": wrong})
    problem = await refusal(browser, f"{HOST}/logs/bind", {**bound, "destination": "<x>"})
    assert "no queue '<x>' in vhost '/'" in problem
    problem = await refusal(browser, f"{HOST}/logs/bind", {**bound, "key": "k" * 2000})
    assert "expected at most" in problem
    assert server.host.topology.bindings_from("logs") == [binding]
    await followed(
        browser, f"{HOST}/plain/bind", {"kind": "exchange", "destination": "logs", "key": ""}
    )
    assert "from plain" in await browser.text(f"{HOST}/logs")
    found = await rows(browser, "/bindings", "List of bindings")
    assert [cells[:3] for cells in found] == [
        ["logs", "orders", "a.#"],
        ["plain", "logs exchange", ""],
    ]


async def test_exchanges_are_unbound_and_deleted(server: Harness, browser: Visitor) -> None:
    await server.host.create("s", [])
    form = {"vhost": "/", "type": "direct", "name": "x", "auto_delete": "1"}
    await followed(browser, "/create-exchange", form)
    for key in ("a/b", "~", ""):
        sent = {"kind": "stream", "destination": "s", "key": key}
        await followed(browser, f"{HOST}/x/bind", sent)
    for left in (2, 1, 0):
        page = await browser.page(f"{HOST}/x")
        buttons = page.select("form[action$=unbind]")
        assert len(buttons) == left + 1
        sent = {field["name"]: field["value"] for field in buttons[0]("input")}
        text = await followed(browser, f"{HOST}/x/unbind", sent)
        assert "s is no longer bound to x in that way." in text
    assert not server.host.topology.has("x"), "it goes with its last binding"
    assert "there is no exchange x" in await refusal(browser, f"{HOST}/x/unbind", sent, 404)
    await followed(browser, "/create-exchange", {**form, "name": "y"})
    assert "there is no binding to s" in await refusal(browser, f"{HOST}/y/unbind", sent, 404)
    assert "nothing was deleted" in await refusal(browser, f"{HOST}/y/delete", {"name": "x"})
    assert "y was deleted" in await followed(browser, f"{HOST}/y/delete", {"name": "y"})
    for action in ("bind", "delete"):
        problem = await refusal(browser, f"{HOST}/y/{action}", {"name": "y"}, 404)
        assert "there is no exchange y: somebody may have deleted it" in problem


async def test_exchanges_that_are_always_there(server: Harness, browser: Visitor) -> None:
    await server.host.create("s", [])
    text = await browser.text(f"{HOST}/amq.default")
    assert "It leads to each stream by its name, and to nothing else." in text
    assert "Bind to it" not in text
    (cells,) = await rows(browser, f"{HOST}/amq.default", "Bindings")
    assert cells[:2] == ["s", "s"]
    for name in ("amq.default", "amq.topic"):
        page = await browser.page(f"{HOST}/{name}")
        assert page.find("a", string="Delete") is None
    sent = {"name": "amq.topic"}
    answer = await browser.send(f"{HOST}/amq.topic/delete", sent)
    assert answer.status_code == 403
    assert server.host.topology.has("amq.topic")


async def test_buttons_are_for_those_who_may(server: Harness, browser: Visitor) -> None:
    await server.host.create("s", [])
    sent = {"kind": "stream", "destination": "s", "key": ""}
    await browser.send(f"{HOST}/amq.topic/bind", sent)
    ada = await entered(server, "ada", "management", patterns="^nothing$")
    text = str((await ada.page(f"{HOST}/amq.topic")).main)
    assert ">s<" in text
    assert "Unbind" not in text
    assert "Bind to it" not in text
    for path in ("/vhosts", "/vhosts/%2F", "/permissions"):
        text = str((await ada.page(path)).main)
        for word in ("Create", "Delete", "Change", "guest", "Download"):
            assert word not in text, (path, word)


# -- definitions


async def upload(browser: Visitor, content: object, vhost: str = "") -> httpx.Response:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return await browser.client.post(
        "/definitions",
        data={"csrf": await browser.token(), "vhost": vhost},
        files={"file": ("definitions.json", data)},
        headers={"origin": "http://localhost"},
    )


async def test_definitions_are_those_of_http(server: Harness, browser: Visitor) -> None:
    await server.host.create("s", [("max-age", "7D")])
    http = Http(server)
    for query, path in (("", "definitions"), ("?vhost=%2F", "definitions/%2F")):
        answer = await browser.get(f"/definitions/download{query}")
        assert answer.json() == await http.get(path)
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["content-disposition"].startswith("attachment; filename=")
    assert await browser.code("/definitions/download?vhost=x") == 404


async def test_definitions_are_taken_over(server: Harness, browser: Visitor) -> None:
    stream = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    document = {
        "vhosts": [{"name": "/"}, {"name": "new"}],
        "users": [{"name": "ada", "password_hash": "", "tags": ""}],
        "permissions": [{"user": "ada", "vhost": "/", "configure": "", "write": "", "read": ""}],
        "queues": [
            {"name": "s", "vhost": "/", **stream},
            {"name": "<q>", "vhost": "new", "durable": True, "type": "classic"},
        ],
        "exchanges": [{"name": "x", "vhost": "/", "type": "topic", "durable": True}],
        "bindings": [
            {
                "source": "x",
                "vhost": "/",
                "destination": "s",
                "destination_type": "queue",
                "routing_key": "k",
                "arguments": {},
            }
        ],
        "policies": [{"name": "p"}],
    }
    answer = await upload(browser, document)
    assert answer.status_code == 200
    assert table(answer) == [
        ["Virtual hosts", "1", "1"],
        ["Users", "1", "0"],
        ["Permissions", "1", "0"],
        ["Streams", "1", "0"],
        ["Exchanges", "1", "0"],
        ["Bindings", "1", "0"],
    ]
    assert "policies queue <q>: not a stream" in main_of(answer)
    assert server.host.has_stream("s")
    answer = await upload(browser, document)
    assert [row[1:] for row in table(answer)] == [["0", "2"]] + [["0", "1"]] * 5
    answer = await upload(browser, {"queues": [{"name": "t", **stream}]}, "new")
    assert server.server.broker.virtual_hosts["new"].names() == ["t"]
    assert "was taken over." in main_of(answer)


async def test_ones_own_definitions_do_not_log_one_out(server: Harness, browser: Visitor) -> None:
    """The password stays the same, and so does what was entered with it."""
    document = (await browser.get("/definitions/download")).json()
    assert (await upload(browser, document)).status_code == 200
    assert await browser.code("/definitions") == 200
    document["users"][0] |= {"password": "another", "password_hash": None}
    assert (await upload(browser, document)).status_code == 200
    assert (await browser.get("/definitions")).headers["location"].startswith("/login")
    assert server.server.directory.users()[0].tags == ("administrator",)


async def test_definitions_that_are_wrong(server: Harness, browser: Visitor) -> None:
    for content, problem in (
        (b"", "there is no file"),
        (b"[1]", "is not a JSON object"),
        (b"{", "is not a JSON object"),
        (b"\xff{}", "is not a JSON object"),
        ({"queues": 1}, "queues is not a list of JSON objects"),
    ):
        answer = await upload(browser, content)
        assert answer.status_code == 400
        assert problem in main_of(answer)
    rows_of = [{"name": "a"}, {"name": "<b>\n"}, {"name": "c"}]
    answer = await upload(browser, {"vhosts": rows_of})
    assert answer.status_code == 400
    assert "vhosts, '<b>\\n'" in main_of(answer)
    assert table(answer)[0] == ["Virtual hosts", "1", "0"]
    assert set(server.server.broker.virtual_hosts) == {"/", "a"}
    assert (await upload(browser, {"vhosts": []}, "gone")).status_code == 404


def table(answer: httpx.Response) -> list[list[str]]:
    tree: Any = BeautifulSoup(answer.text, "html.parser")
    return [[cell.text for cell in row(["th", "td"])] for row in tree.select("tbody tr")]
