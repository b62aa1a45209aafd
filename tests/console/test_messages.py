"""The messages of a stream without a browser: found, followed, one in full, and as files."""

import csv
import io
import json
import struct
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import trio
from bs4 import BeautifulSoup
from starlette.types import ASGIApp

from segments.message import Message, Properties
from segments.search.page import FoundMessage
from streamd.broker import searches
from streamd.broker.declared.rows import PermissionRow
from streamd.broker.search_places import InTurns
from streamd.console import downloads, messages
from streamd.console.app import Console
from streamd.console.message_view import SHOWN_HEX, SHOWN_TEXT, full_of, hex_dump, row_of, visible
from tests.support.console import Visitor, console_of, entered
from tests.support.http import going_away, scope_of
from tests.support.odd_messages import VALUES
from tests.support.orders import order, store_orders
from tests.support.server import Harness, Peer

PATH = "/streams/%2F/s/messages"
POLL = {"hx-request": "true"}
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "{{ 7 * 7 }}",
    "\u202efdp.exe",
    "a\x00\x1b[31mb\x7f\u2028",
    "שלום",
    "</pre></bdi></td>",
    "&amp;",
)


@pytest.fixture
def application(server: Harness) -> tuple[ASGIApp, Console]:
    return console_of(server)


@pytest.fixture
async def browser(peer: Peer, application: tuple[ASGIApp, Console]) -> Visitor:
    """Somebody who looks at the stream s: 30 orders in several segments."""
    await store_orders(peer, stream_key_properties="order_id")
    found = Visitor(application[0])
    await found.log_in()
    return found


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches rest for long whenever they have done something."""
    monkeypatch.setattr(InTurns, "rest_seconds", 1)
    monkeypatch.setattr("segments.search.span_reader.SPAN_BYTES", 1)


def end_sessions(console: Console) -> None:
    for session in list(console.site.sessions._open.values()):
        console.site.sessions.end(session)


async def store(peer: Peer, name: str, raws: list[bytes], **arguments: str) -> None:
    await peer.create(name, **arguments)
    await peer.declare(name, 7)
    await peer.store(raws, 0, 7)


async def polled(browser: Visitor, path: object) -> BeautifulSoup:
    """What a script gets."""
    answer = await browser.get(str(path), **POLL)
    assert answer.status_code == 200, answer.text
    return BeautifulSoup(answer.text, "html.parser")


def offsets(page: BeautifulSoup) -> list[int]:
    return [int(row.th.a.text.replace(",", "")) for row in page.select("#rows tr")]


def state(page: BeautifulSoup) -> str:
    return " ".join(page.select_one("#state").text.split())  # type: ignore[union-attr]


def table(page: BeautifulSoup) -> dict[str, str]:
    """What was looked at."""
    rows = page.select("#summary table tbody tr")
    return {" ".join(row.th.text.split()): row.td.text for row in rows}


# -- searching


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", list(range(29, -1, -1))),
        ("start=first&limit=2", [0, 1]),
        ("start=newest&limit=2", [29, 28]),
        ("start=offset&offset=27", [27, 28, 29]),
        ("offset=1_0&limit=1", [10]),
        ("start=time&time=2023-11-14 22:13:29", [27, 28, 29]),
        ("start=time&time=2023-11-14T22:13:29Z", [27, 28, 29]),
        ("start=time&time=1700000009000", [27, 28, 29]),
        ("start=first&sql=order_id > 27", [28, 29]),
        ("sql= order_id IN (3, 4) ", [4, 3]),
        ("tags=b || c&limit=2", [29, 27]),
        ("filter=EU&limit=2", [29, 27]),
        ("key=17", [17]),
        ("key=id-3&where=properties.message_id", [3]),
        ("key=3&sql=order_id > 3", []),
        ("start=odd&limit=1", [29]),
        ("live=1", list(range(29, 9, -1))),
        ("live=1&limit=3&start=offset&offset=7", [29, 28, 27]),
        ("live=1&sql=order_id < 2", [1, 0]),
    ],
)
async def test_what_is_found(browser: Visitor, query: str, expected: list[int]) -> None:
    page = await browser.page(f"{PATH}?{quote(query, safe='=&')}")
    assert offsets(page) == expected
    link = page.find("a", string=lambda text: bool(text) and "Link to this" in text)
    assert offsets(await browser.page(link["href"])) == expected, "the permalink finds the same"


async def test_the_form_shows_what_was_asked_for(browser: Visitor) -> None:
    page = await browser.page(f"{PATH}?sql=a+%3D+1&start=time&time=2023-11-14&limit=7&key=+k+")
    assert {label.text for label in page.select("#form label")} == {
        *("SQL", "Tags", "Filter value", "Key", "In property"),
        *("Starting at", "Offset", "Time", "Limit", "Columns"),
    }
    for label in page.select("#form label"):
        assert page.find(id=label["for"]) is not None
    values = {field["name"]: field["value"] for field in page.select("#form input")}
    assert (values["sql"], values["time"], values["limit"], values["key"]) == (
        *("a = 1", "2023-11-14", "7", " k "),
    )
    assert page.select_one("#start option[selected]").text == "time"  # type: ignore[union-attr]
    assert [b.text for b in page.select("#form button")] == ["Search", "Live tail"]


@pytest.mark.parametrize(
    ("query", "ends"),
    [
        ("", "That is all: 30 messages."),
        ("start=offset&offset=20", "That is all: 10 messages. What is before the start was not"),
        ("sql=order_id = 3", "That is all: 1 message found."),
        ("sql=order_id = 33", "No messages match."),
        (
            "sql=ordr_id = 3",
            "No messages match. Perhaps: none of 30 messages that were looked into",
        ),
        ("limit=4", "Stopped at the limit: 4 messages. There may be more. Next 4 messages"),
    ],
)
async def test_the_end_is_said(browser: Visitor, query: str, ends: str) -> None:
    assert state(await browser.page(f"{PATH}?{quote(query, safe='=&')}")).startswith(ends)


async def test_what_few_ask_for_is_folded(browser: Visitor) -> None:
    for query, is_open in (("", False), ("sql=a+%3D+1", False), ("key=1", True), ("limit=x", True)):
        page = await browser.page(f"{PATH}?{query}")
        assert page.select_one("#form details").has_attr("open") is is_open, query  # type: ignore[union-attr]


async def test_fields_are_completed_with_what_was_seen(browser: Visitor, peer: Peer) -> None:
    page = await browser.page(f"{PATH}?limit=2")

    def choices(identity: str) -> list[str]:
        return [option["value"] for option in page.select(f"#{identity} option")]

    assert choices("seen-names") == ["order_id", "region", "TAGS"]
    assert "region = 'EU'" in choices("seen-conditions")
    page = await browser.page(f"{PATH}?sql=order_id+%3E+3&limit=2")
    assert "order_id > 3 AND TAGS = 'b'" in choices("seen-conditions")
    page = await browser.page(f"{PATH}?sql=order_id+%3E+3+or+order_id+=+1&limit=2")
    assert choices("seen-conditions") == []  # AND would not be about all of it
    raws = [Message(application_properties={text: text}).encode() for text in HOSTILE]
    await store(peer, "hostile", raws)
    page = await browser.page("/streams/%2F/hostile/messages")
    for condition in choices("seen-conditions"):
        query = urlencode({"sql": condition})
        assert len(offsets(await browser.page(f"/streams/%2F/hostile/messages?{query}"))) == 1


async def test_columns_are_chosen(browser: Visitor) -> None:
    page = await browser.page(f"{PATH}?limit=1&columns=region,properties.message_id,none")
    titles = [" ".join(th.text.split()) for th in page.select("thead th")][:5]
    assert titles == ["Offset", "Stored", "region", "properties.message_id", "none"]
    assert [cell.text for cell in page.select("#rows .cell")] == ["EU", "id-29", ""]
    assert "columns=region" in page.find("a", string="Next 1 messages")["href"]
    for wrong, said in (("a,a", "columns"), (",".join("abcdefghi"), "there are 9 columns")):
        page = await browser.page(f"{PATH}?columns={wrong}")
        assert said in page.select_one(".problem").text  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("query", "marked"),
    [
        ("sql=order_id = 3", ["3"]),
        ("sql=order_id = 3 AND region = 'EU'", ["3", "EU"]),
        ("key=3", ["3"]),
        ("filter=EU&limit=1", ["EU"]),
        ("sql=region = 'EU'&columns=region,TAGS&limit=1", ["EU"]),
        ("limit=1", []),
    ],
)
async def test_what_was_asked_for_is_marked(
    browser: Visitor, query: str, marked: list[str]
) -> None:
    page = await browser.page(f"{PATH}?{quote(query, safe='=&')}")
    assert [mark.text for mark in page.select("#rows mark")] == marked


async def test_others_with_a_value_are_found(browser: Visitor, peer: Peer) -> None:
    page = await browser.page(f"{PATH}/7")
    links = {a.text: a["href"] for a in page.select("a.others")}
    found = await browser.page(links["Find others with this value of region"])
    assert len(offsets(found)) == 15
    found = await browser.page(links["Find others with this value of message_id"])
    assert offsets(found) == [7]
    raws = [Message(application_properties={text: text}).encode() for text in HOSTILE]
    await store(peer, "hostile", raws)
    for number in range(len(HOSTILE)):
        page = await browser.page(f"/streams/%2F/hostile/messages/{number}")
        for link in page.select("a.others"):
            assert offsets(await browser.page(link["href"])) == [number]


async def test_an_empty_stream(browser: Visitor, peer: Peer) -> None:
    await peer.create("empty")
    page = await browser.page("/streams/%2F/empty/messages")
    assert state(page) == "No messages are there."
    assert "the stream is empty" in await browser.text("/streams/%2F/empty/messages/0", 404)
    assert await browser.code("/streams/%2F/nothing/messages") == 404


async def test_pages_without_script(browser: Visitor) -> None:
    for query in ("limit=4", "limit=4&start=first&sql=order_id+%3C+30"):
        found, path = [], f"{PATH}?{query}"
        while True:
            page = await browser.page(path)
            found += offsets(page)
            following = page.select_one("#state a[rel=next]")
            if following is None:
                break
            path = str(following["href"])
        assert sorted(found) == list(range(30))
        assert found in (sorted(found), sorted(found, reverse=True))


@pytest.mark.usefixtures("slowly")
async def test_the_rest_as_a_script_asks_for_it(browser: Visitor) -> None:
    """Page by page, and the figures are those of the whole search."""
    page = await browser.page(f"{PATH}?sql=order_id+IN+(3,17)&start=first&limit=4")
    found, states, done = offsets(page), [], []
    while (summary := page.select_one("#summary"))["data-piece"]:  # type: ignore[index]
        states.append(summary["data-state"])  # type: ignore[index]
        done.append(float(page.progress["value"]))  # type: ignore[index]
        assert "Not all yet: " in state(page)
        page = await polled(browser, summary["data-piece"])  # type: ignore[index]
        found += offsets(page)
    assert found == [3, 17]
    assert len(states) > 3
    assert set(states) == {"going"}
    assert done == sorted(done)
    assert 0 < done[0] < done[-1] < 1
    assert state(page) == "That is all: 2 messages found."
    ours = table(page)
    for name in ("Messages tested one by one", "Messages ruled out", "Bytes read"):
        assert name in ours
    assert ours["read, with a message that was found"] == "2"
    assert int(ours["Messages tested one by one"]) >= 2


@pytest.mark.usefixtures("slowly")
async def test_a_script_stops_after_a_while(
    browser: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "MAX_SECONDS", 3.0)
    page = await browser.page(f"{PATH}?sql=order_id+%3D+99")
    while (summary := page.select_one("#summary"))["data-state"] == "going":  # type: ignore[index]
        page = await polled(browser, summary["data-piece"])  # type: ignore[index]
    assert summary["data-state"] == "stopped"  # type: ignore[index]
    assert state(page).startswith("Stopped: 0 messages found")
    page = await polled(browser, summary["data-piece"])  # type: ignore[index]
    assert page.select_one("#summary")["data-state"] in ("going", "all")  # type: ignore[index]


async def test_pieces_end_at_the_limit(browser: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "PIECE", 2)
    monkeypatch.setattr("streamd.broker.searches.PAGE_BYTES", 1)  # one message each
    page = await browser.page(f"{PATH}?limit=5")
    found = offsets(page)
    while (summary := page.select_one("#summary"))["data-state"] == "going":  # type: ignore[index]
        page = await polled(browser, summary["data-piece"])  # type: ignore[index]
        found += offsets(page)
    assert found == [29, 28, 27, 26, 25]
    assert state(page).startswith("Stopped at the limit: 5 messages.")
    assert page.select_one("#state a") is not None
    following = await browser.page(str(page.select_one("#state a")["href"]))  # type: ignore[index]
    assert offsets(following)[0] == 24


@pytest.mark.parametrize(
    ("query", "field", "reason"),
    [
        ("sql=a = = 1", "sql", "column 5: found ="),
        ("sql=" + "(" * 100, "sql", "column"),
        ("tags=||", "tags", "column"),
        ("sql=a = 1&tags=a", "tags", "fill in SQL or Tags, not both"),
        ("start=offset", "offset", "the offset is empty, expected a number from 0 to"),
        ("start=offset&offset=-1", "offset", "the offset is '-1', expected"),
        ("start=time&time=yesterday", "time", "the time is 'yesterday', expected a time as"),
        ("start=time&time=", "time", "the time is empty, expected"),
        ("limit=0", "limit", "the limit is '0', expected a number from 1 to 1,000"),
        ("limit=1001", "limit", "the limit is '1001'"),
        ("key=a&where=properties.x", "where", "property is 'properties.x'"),
        ("key=" + "k" * 2000, "key", "a key has 2,000 bytes"),
        ("after=x", "", "after is no token"),
    ],
)
async def test_what_is_wrong_is_named(
    browser: Visitor, query: str, field: str, reason: str
) -> None:
    page = await browser.page(f"{PATH}?{quote(query, safe='=&')}")
    said = page.select_one("[role=alert]").text  # type: ignore[union-attr]
    assert reason in " ".join(said.split())
    wrong = [found["name"] for found in page.select("#form [aria-invalid]")]
    assert wrong == ([field] if field else [])
    assert page.select_one("#rows") is None


async def test_the_place_of_an_error_is_marked(browser: Visitor) -> None:
    page = await browser.page(f"{PATH}?{urlencode({'sql': 'region = <b> EU'})}")
    text, caret = page.select_one("pre.caret").text.rstrip("\n").split("\n")  # type: ignore[union-attr]
    assert text == "region = <b> EU"
    assert text[caret.index("^")] == page.select_one("pre mark").text[0]  # type: ignore[union-attr]
    for hostile in HOSTILE:
        page = await browser.page(f"{PATH}?{urlencode({'sql': f'a = = {hostile}'})}")
        assert page.main.find(["script", "img"]) is None
        mark = page.select_one("pre mark")
        assert mark is not None
        assert mark.text == "="


async def test_fields_that_streams_do_not_have(browser: Visitor, peer: Peer) -> None:
    await store(peer, "plain", [order(1)])
    path = "/streams/%2F/plain/messages"
    assert "no filter property" in await browser.text(f"{path}?filter=EU")
    assert "declares no key property: say here" in await browser.text(f"{path}?key=1")
    assert offsets(await browser.page(f"{path}?key=1&where=order_id")) == [0]
    assert await browser.code(f"{path}?sql={'x' * 20_001}") == 400


# -- why it was fast


async def test_what_was_looked_at(browser: Visitor, peer: Peer) -> None:
    raws = [Message(b"", application_properties={"region": "EU"}).encode()] * 3
    await peer.create(
        "f",
        stream_chunk_max_records="3",
        stream_filter_property="region",
        stream_filter_derive="true",
        stream_filter_contract="strict",
    )
    await peer.declare("f", 7)
    for n in range(4):
        if n == 2:
            raws = [Message(b"", application_properties={"region": "US"}).encode()] * 3
        await peer.store(raws, 3 * n, 7)
    path = "/streams/%2F/f/messages"
    page = await browser.page(f"{path}?sql=region+%3D+'US'+AND+x+IS+NULL")
    found = table(page)
    assert found["read, with a message that was found"] == "2"
    assert found["skipped by their filter"] == "2"
    title = page.select_one("#summary svg title").text  # type: ignore[union-attr]
    assert "2 chunks skipped by their filter" in title
    widths = [float(str(rect["width"]).rstrip("%")) for rect in page.select("#summary rect.part")]
    assert [width for width in widths if width != 12] == [50, 50]
    plan = page.select_one(".plan").text  # type: ignore[union-attr]
    assert "only where region is “US”. By their filters, 2 chunks were skipped" in plan
    assert "not narrow region" in await browser.text(f"{path}?sql=x+%3D+1")
    assert "nothing is read" in await browser.text(f"{path}?sql=region='a'+AND+region='b'")
    assert "By their filters, 2 chunks were" in " ".join(
        (await browser.text(f"{path}?filter=US")).split()
    ).replace("by their filters", "By their filters")
    assert "goes straight to the place" in await browser.text(f"{path}?start=time&time=2023-11-14")


async def test_figures_that_an_address_makes_up(browser: Visitor) -> None:
    for odd in ("x", "1.2", ".".join(["9" * 16] * 14), ".".join(["-1"] * 14), ".".join("²" * 14)):
        answer = await browser.get(f"{PATH}?{urlencode({'so_far': odd})}", **POLL)
        assert answer.status_code == 200
        assert "30 messages" in answer.text


# -- bounds


@pytest.mark.usefixtures("slowly")
async def test_searches_of_a_user_take_turns(
    browser: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tabs go on together; a search of the API waits for none."""
    monkeypatch.setattr(messages, "WAIT_SECONDS", 15.0)
    monkeypatch.setattr(messages, "FIRST_SECONDS", 3.0)
    ended: list[tuple[int, int]] = []

    async def ask(number: int) -> None:
        ended.append((number, await browser.code(f"{PATH}?sql=order_id+%3D+{number}")))

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(ask, number)
            await trio.sleep(0.1)
        answer = await browser.client.get("/api/stream/%2F/s/messages", auth=("guest", "guest"))
        assert answer.status_code == 429
    assert ended == [(0, 200), (1, 200), (2, 200)]


@pytest.mark.usefixtures("slowly")
async def test_a_search_that_gets_no_turn_says_so(
    browser: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "WAIT_SECONDS", 1.0)
    monkeypatch.setattr(messages, "FIRST_SECONDS", 8.0)
    codes = []

    async def ask() -> None:
        codes.append(await browser.code(f"{PATH}?sql=order_id+%3D+1"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.sleep(0.1)
        assert "there may be one at a time" in await browser.text(f"{PATH}?sql=a=1", 429)
    assert codes == [200]
    monkeypatch.setattr(searches, "MAX_OF_A_USER", 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.sleep(0.1)
        before = trio.current_time()
        assert await browser.code(f"{PATH}?sql=a=1") == 429
        assert trio.current_time() == before, "the queue was full"


@pytest.mark.usefixtures("slowly")
async def test_a_search_ends_with_its_session_and_its_right(
    browser: Visitor,
    application: tuple[ASGIApp, Console],
    server: Harness,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages, "FIRST_SECONDS", 5.0)

    async def log_out() -> None:
        await trio.sleep(1)
        end_sessions(application[1])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(log_out)
        assert "The login has ended" in await browser.text(f"{PATH}?sql=order_id=1", 403)
    answer = await browser.get(f"{PATH}?after=x", **POLL)
    assert answer.status_code == 401

    bob = await entered(server, "bob", "management")

    async def take() -> None:
        await trio.sleep(1)
        row = PermissionRow("bob", "/", ".*", ".*", "")  # type: ignore[arg-type]
        await server.server.directory.put_permission(row)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        assert await bob.code(f"{PATH}?sql=order_id=1") == 403


@pytest.mark.usefixtures("slowly")
async def test_a_search_ends_when_its_tab_is_closed(
    browser: Visitor,
    application: tuple[ASGIApp, Console],
    server: Harness,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages, "FIRST_SECONDS", 60.0)
    (cookie,) = (f"streamd_session_1={value}" for value in browser.client.cookies.values())
    scope = scope_of(PATH, (b"cookie", cookie.encode()), query=b"sql=order_id=99")
    stream = server.host.find("s")  # type: ignore[arg-type]
    before = stream.life._num_holds
    async with going_away(application[0], scope) as gone:
        assert stream.life._num_holds == before + 1
        gone.set()
        await trio.sleep(0.1)
        assert stream.life._num_holds == before
    assert await browser.code(PATH) == 200


# -- the tail


async def test_the_tail_shows_what_comes(browser: Visitor, peer: Peer) -> None:
    page = await browser.page(f"{PATH}?live=1&sql=region+%3D+'EU'")
    assert offsets(page)[0] == 29
    shown: list[int] = []
    for first in (30, 33, 36):
        await peer.store([order(first + k) for k in range(3)], first)
        page = await tail(browser, page)
        shown = offsets(page) + shown
    assert shown == [37, 35, 33, 31]
    assert offsets(await tail(browser, page)) == []
    assert page.select_one("#summary")["data-passed"] == "0"  # type: ignore[index]


async def tail(browser: Visitor, page: BeautifulSoup) -> BeautifulSoup:
    """The next turn of the tail."""
    return await polled(browser, page.select_one("#summary")["data-tail"])  # type: ignore[index]


@pytest.mark.parametrize(
    ("query", "shown"),
    [("", range(89, 69, -1)), ("&sql=order_id+%3C+1000", range(49, 29, -1))],
)
async def test_the_tail_passes_over_what_is_too_much(
    browser: Visitor, peer: Peer, query: str, shown: range
) -> None:
    page = await browser.page(f"{PATH}?live=1{query}")
    await peer.store([order(n) for n in range(30, 90)], 30)
    page = await tail(browser, page)
    assert offsets(page) == list(shown)
    assert page.select_one("#summary")["data-passed"] == "40"  # type: ignore[index]
    await peer.store([order(90)], 90)
    page = await tail(browser, page)
    assert offsets(page) == [90]
    assert page.select_one("#summary")["data-passed"] == "0"  # type: ignore[index]


async def test_a_tail_of_a_stream_that_begins_anew(browser: Visitor) -> None:
    page = await polled(browser, f"{PATH}?live=1&next=1000")
    assert offsets(page) == []
    assert str(page.select_one("#summary")["data-tail"]).endswith("next=30")  # type: ignore[index]
    assert (await browser.get(f"{PATH}?live=1&next=x", **POLL)).status_code == 404


# -- one message


async def test_a_message_in_full(browser: Visitor) -> None:
    page = await browser.page(f"{PATH}/7")
    groups = {
        section.h3.text: [
            tuple(cell.text.partition(" Find others")[0] for cell in row(["th", "td"]))
            for row in section.select("tbody tr")
        ]
        for section in page.select("section.sheet:has(table)")
    }
    assert groups == {
        "Application properties": [
            ("order_id", "long", "7"),
            ("region", "string", "EU"),
            ("TAGS", "string", "b"),
        ],
        "Properties": [("message_id", "string", "id-7")],
    }
    about = " ".join(page.select_one("dl").get_text(" ").split())  # type: ignore[union-attr]
    for fact in (
        "Offset 7",
        "Stored 2023-11-14 22:13:22",
        "Chunk 6 : 3 messages to offset 8,",
        "with a filter of 16 bytes",
        "Filter value EU , in region",
    ):
        assert fact in about
    assert page.select_one("pre.body").text == '{\n  "order": 7\n}'  # type: ignore[union-attr]
    for view in ("text", "json", "hex"):
        assert page.find("a", href=f"{PATH}/7?as={view}") is not None
    page = await browser.page(f"{PATH}/7?as=hex")
    assert "7b 22 6f 72" in page.select_one("pre.body").text  # type: ignore[union-attr]
    assert (await browser.get(f"{PATH}/7/body")).content == b'{"order": 7}'
    answer = await browser.get(f"{PATH}/7/bytes")
    assert answer.content == order(7)
    assert answer.headers["content-disposition"].startswith("attachment;")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_messages_that_are_not_there(browser: Visitor) -> None:
    assert "no message 30 yet, the newest is 29" in await browser.text(f"{PATH}/30", 404)
    for odd in ("x", "-1", "1" * 20, "%31x", "0/other"):
        assert await browser.code(f"{PATH}/{odd}") == 404
    assert await browser.code(f"{PATH}/99/body") == 503


def everything(page: BeautifulSoup) -> str:
    return str(page.main.text)


async def test_hostile_messages(browser: Visitor, peer: Peer) -> None:
    raws = [
        Message(
            text.encode(),
            Properties(message_id=text, subject=text, user_id=text.encode()),
            {text: text, "n": [text, {text: text}]},
            {"x-odd": text},
        ).encode()
        for text in HOSTILE
    ]
    await store(peer, "h", raws, stream_filter_property="n")
    path = "/streams/%2F/h/messages"
    page = await browser.page(f"{path}?start=first")
    assert len(offsets(page)) == len(HOSTILE)
    pages = [page, *[await browser.page(f"{path}/{n}") for n in range(len(HOSTILE))]]
    for number, page in enumerate(pages):
        assert page.main.find(["script", "img"]) is None
        assert page.find(attrs={"onerror": True}) is None
        assert page.find(attrs={"onmouseover": True}) is None
        assert page.find(attrs={"style": True}) is None
        for character in "\u202e\x00\x1b\x7f\u2028":
            assert character not in str(page)
        if number:
            body = page.select_one("pre.body").text  # type: ignore[union-attr]
            assert body == visible(HOSTILE[number - 1], keeps_lines=True)
            answer = await browser.get(f"{path}/{number - 1}/body")
            assert answer.content == HOSTILE[number - 1].encode()


async def test_large_binary_and_damaged_messages(browser: Visitor, peer: Peer) -> None:
    large = Message(b"x" * 1_000_000).encode()
    binary = Message(bytes(range(256)) * 64, application_properties={"b": b"\xff\x00"}).encode()
    many = Message(b"m", application_properties={f"p{n}": n for n in range(3_000)}).encode()
    broken = b"\x00\x53\x74\xc1\x08\x02\xa1\x01k\xa1\x02\xff\xff" + Message(b"").encode()
    raws = [large, binary, many, b"no AMQP \xff", broken]
    await peer.create("t")
    await peer.declare("t", 7)
    for number, raw in enumerate(raws):
        await peer.store([raw], number, 7)
    path = "/streams/%2F/t/messages"
    assert offsets(await browser.page(f"{path}?start=first&limit=2")) == [0, 1]
    page = await browser.page(f"{path}?start=offset&offset=2")
    assert offsets(page) == [2, 3, 4]
    assert "Cannot be read: " in page.select_one("#rows").text  # type: ignore[union-attr]
    page = await browser.page(f"{path}/0")
    assert len(page.select_one("pre.body").text) == SHOWN_TEXT  # type: ignore[union-attr]
    assert "Download all of it, 1.0 MB" in everything(page)
    assert len((await browser.get(f"{path}/0/body")).content) == 1_000_000
    page = await browser.page(f"{path}/1")
    lines = page.select_one("pre.body").text.split("\n")  # type: ignore[union-attr]
    assert len(lines) == SHOWN_HEX // 16
    assert "0xff00" in everything(page)
    assert "It is no text in UTF-8" in await browser.text(f"{path}/1?as=text")
    assert "2,500 more are not shown" in await browser.text(f"{path}/2")
    assert "no AMQP 1.0 message" in await browser.text(f"{path}/3")
    assert len((await browser.get(f"{path}/0")).content) < 150_000


def test_every_type_has_its_name() -> None:
    for name, (encoding, *_) in VALUES.items():
        key = b"\xa1\x01k"
        pairs = key + encoding
        raw = (
            b"\x00\x53\x74\xd1"
            + struct.pack(">II", len(pairs) + 4, 2)
            + pairs
            + Message(b"body").encode()
        )
        found = full_of(raw, "")
        if found.damage:
            assert "not UTF-8" in name or "half" in name, name
            continue
        (row,) = found.groups[0].rows
        kind = name.partition(",")[0].removeprefix("half a ").removeprefix("small ")
        kind = kind.removesuffix(" 0").removesuffix(" beyond")
        expected = {"true": "boolean", "false": "boolean", "nan": "double"}.get(kind, kind)
        assert row.kind == expected or row.kind in expected or expected in row.kind, name


def bodies() -> Iterator[tuple[bytes, str, str]]:
    yield b'{"a": [1, "\xc3\xbc"]}', "json", '{\n  "a": [\n    1,\n    "ü"\n  ]\n}'
    yield b"[" * 5000, "text", "[" * 5000
    yield b"4711", "text", "4711"
    yield b"\xff", "hex", hex_dump(b"\xff")
    yield b'{"n": ' + b"9" * 5000 + b"}", "text", '{"n": ' + "9" * 5000 + "}"
    yield b'{"s": "\\ud800"}', "json", '{\n  "s": "\\u{d800}"\n}'
    yield b"tab\tline\r\n", "text", "tab\tline␍\n"


@pytest.mark.parametrize(("body", "view", "text"), list(bodies()))
def test_bodies(body: bytes, view: str, text: str) -> None:
    found = full_of(Message(body).encode(), "").body
    assert (found.view, found.text, found.size) == (view, text, len(body))


@pytest.mark.parametrize("value", ["text", 5, 2.5, True, [1, "a"], {"k": b"\xff"}, b"{}"])
def test_bodies_that_are_values(value: Any) -> None:
    found = full_of(Message(value=value).encode(), "").body
    assert found.kind in ("string", "long", "double", "boolean", "list", "map", "binary")
    assert found.text
    assert row_of(FoundMessage(0, 1, Message(value=value).encode(), 0)).body


def test_rows_cut_characters_nowhere() -> None:
    raw = Message(("ü" * 5_000).encode(), application_properties={"x": "y" * 1000}).encode()
    row = row_of(FoundMessage(0, 1, raw, 0))
    assert set(row.body) == {"ü"}
    assert row.is_cut
    assert not row.is_binary
    assert len(row.pairs[0][1]) <= 80
    for size in range(955, 962):
        row = row_of(FoundMessage(0, 1, Message(b"a" * size + "€".encode() * 9).encode(), 0))
        assert not row.is_binary


# -- files


async def lines_of(browser: Visitor, query: str) -> list[dict[str, Any]]:
    answer = await browser.get(f"{PATH}/download?{query}")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-disposition"].startswith('attachment; filename="messages.')
    return [json.loads(line) for line in answer.text.splitlines()]


async def test_json_lines(browser: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_DOWNLOAD_PIECE", 4)
    found = await lines_of(browser, "start=first&sql=region+%3D+'EU'&limit=1")
    assert [line["offset"] for line in found] == list(range(1, 30, 2)), "all, not the limit"
    api = await browser.client.get(
        "/api/stream/%2F/s/messages?sql=region='EU'", auth=("guest", "guest")
    )
    assert found == api.json()["messages"], "as everywhere"
    monkeypatch.setattr(downloads, "MAX_MESSAGES", 6)
    found = await lines_of(browser, "start=first")
    assert [line.get("offset") for line in found] == [0, 1, 2, 3, 4, 5, None]
    assert found[-1]["incomplete"] == "stopped after 6 messages"
    more = await browser.page(f"{PATH}?start=first&limit=2&after={found[-1]['after']}")
    assert offsets(more) == [6, 7]
    monkeypatch.setattr(downloads, "MAX_MESSAGES", 30)
    assert len(await lines_of(browser, "start=first")) == 30, "that is all: no last line"
    monkeypatch.setattr(downloads, "MAX_BYTES", 1)
    assert "MiB" in (await lines_of(browser, ""))[-1]["incomplete"]
    assert await browser.code(f"{PATH}/download?format=exe") == 400
    assert await browser.code(f"{PATH}/download?sql=a+%3D+%3D") == 400


FORMULAS = ["=1+1", "+1", "-1", "@x", "\t=1", " =1", "\r=1", "'x", "\uff1d1", '=cmd|"/C calc"!A1']


async def test_csv_is_no_program(browser: Visitor, peer: Peer) -> None:
    raws = [Message(text.encode(), Properties(subject=text)).encode() for text in FORMULAS]
    raws += [Message(value=text).encode() for text in FORMULAS]
    raws += [Message(b'plain, "quoted"\nline').encode(), Message(value=-5).encode()]
    await store(peer, "c", raws)
    answer = await browser.get("/streams/%2F/c/messages/download?format=csv&start=first")
    assert answer.content.startswith(b"\xef\xbb\xbfoffset,")
    rows = list(csv.DictReader(io.StringIO(answer.content.decode("utf-8-sig"), newline="")))
    for row in rows:
        for name, cell in row.items():
            assert not cell.strip(" \t\r\n").startswith(("=", "+", "-", "@", "\uff1d")), name
    texts = [row["body"].removeprefix("'") for row in rows]
    assert texts == [*FORMULAS, *FORMULAS, 'plain, "quoted"\nline', "-5"]
    assert json.loads(rows[0]["message_properties"]) == {"subject": "=1+1"}


async def test_one_download_at_a_time(browser: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InTurns, "rest_seconds", 2)
    monkeypatch.setattr(messages, "WAIT_SECONDS", 60.0)
    codes = []

    async def ask() -> None:
        codes.append(await browser.code(f"{PATH}/download"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.sleep(0.5)
        assert "one at a time" in await browser.text(f"{PATH}/download", 503)
        assert await browser.code(f"{PATH}?limit=1") == 200, "a search takes its turn"
    assert codes == [200]
    assert await browser.code(f"{PATH}/download") == 200


async def test_a_download_ends_with_its_session(
    browser: Visitor, application: tuple[ASGIApp, Console], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says so: nobody takes what has come for all of it."""
    monkeypatch.setattr(messages, "_DOWNLOAD_PIECE", 4)
    written = []

    def log_out(message: FoundMessage) -> bytes:
        written.append(message)
        end_sessions(application[1])
        return b"{}\n"

    monkeypatch.setattr(downloads, "writers", lambda _: (b"", log_out, downloads.json_end))
    *rest, last = await lines_of(browser, "")
    assert last["incomplete"] == "the login has ended"
    assert len(written) == len(rest) == 4
    await browser.log_in()
    monkeypatch.undo()
    assert len(await lines_of(browser, "")) == 30, "the next one is not refused"
