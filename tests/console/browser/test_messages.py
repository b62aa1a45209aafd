"""The messages page in a real browser: search, cancel, tail, permalink, download, copying."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from clients import Message, Properties, connect
from tests.support.browser import Tab, beside, needs_browser
from tests.support.process import ServerProcess

pytestmark = needs_browser

PATH = "/streams/%2F/searched/messages"
HOSTILE = (
    "<script>window.hacked = 1</script>",
    '"><img src=x onerror="window.hacked = 1">',
    "</code></td><style>* { display: none }</style>",
    "\u202egnp.exe \u2066 שלום مرحبا",
    "a\x00\x1b[31m\x7f\u2028\u2029",
    "{{ 7 * 7 }} ${7 * 7}",
    "x" * 900_000,
)


def fill(uri: str, stream: str, bodies: list[Message], **arguments: str) -> None:
    async def publish() -> None:
        async with connect(uri) as client:
            named = {name.replace("_", "-"): value for name, value in arguments.items()}
            await client.create(stream, arguments=named, exist_ok=True)
            async with client.producer(stream) as producer:
                await producer.send_all(bodies)

    beside(publish())


def order(number: int) -> Message:
    properties: dict[str, Any] = {"order_id": number, "region": "EU" if number % 2 else "US"}
    return Message(b'{"order": %d}' % number, application_properties=properties)


@pytest.fixture(scope="module")
def searched(served: ServerProcess) -> ServerProcess:
    """A server with 300 orders in the stream that is searched."""
    arguments = {
        "stream_filter_property": "region",
        "stream_filter_derive": "true",
        "stream_key_properties": "order_id",
        "stream_chunk_max_records": "50",
    }
    fill(served.uri, "searched", [order(n) for n in range(300)], **arguments)
    return served


@pytest.fixture
def page(tab: Tab, searched: ServerProcess) -> Iterator[Any]:  # noqa: ARG001 - it is there
    yield tab.page
    assert tab.complaints == []


def offsets(page: Any) -> list[str]:
    return [text.replace(",", "") for text in page.locator("#rows th a").all_inner_texts()]


def test_searching(tab: Tab, page: Any) -> None:
    tab.go("/streams/%2F/searched")
    page.get_by_role("link", name="Messages").click()
    page.get_by_label("SQL", exact=True).fill("region = 'EU' AND order_id > 290")
    page.locator("#form summary").click()
    page.get_by_label("Starting at", exact=True).select_option("first")
    page.get_by_role("button", name="Search").click()
    page.get_by_text("That is all:").wait_for()
    assert offsets(page) == ["291", "293", "295", "297", "299"]
    tab.check()
    address = page.url
    page.get_by_label("Limit", exact=True).fill("2")
    page.get_by_label("Key", exact=True).fill("7")
    page.get_by_label("SQL", exact=True).fill("")
    page.get_by_role("button", name="Search").click()
    page.get_by_text("1 message found").wait_for()
    assert offsets(page) == ["7"]
    page.go_back()
    assert page.url == address
    assert offsets(page) == ["291", "293", "295", "297", "299"]
    tab.go(address)
    assert page.get_by_label("SQL", exact=True).input_value() == "region = 'EU' AND order_id > 290"
    assert len(offsets(page)) == 5
    page.get_by_role("link", name="293").click()
    page.get_by_role("heading", name="Message 293").wait_for()
    page.get_by_role("link", name="Next").click()
    page.get_by_role("heading", name="Message 294").wait_for()
    for view in ("Text", "Hex", "JSON"):
        page.get_by_role("link", name=view, exact=True).click()
    assert '"order": 294' in page.locator("pre.body").inner_text()
    tab.check()


@pytest.mark.parametrize("width", [1400, 400])
def test_columns_and_others_with_a_value(tab: Tab, page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    tab.go(f"{PATH}?sql=region+%3D+'EU'&columns=region,order_id&limit=3")
    assert page.locator("#rows mark").all_inner_texts() == ["EU"] * 3
    tab.check()
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= width, "nothing is beside the screen"
    tab.go(f"{PATH}/7")
    page.get_by_role("button", name="Copy the body").click()
    page.get_by_role("button", name="Copied").wait_for()
    tab.check()
    page.get_by_role("link", name="with this value of order_id").click()
    page.get_by_text("1 message found").wait_for()
    assert offsets(page) == ["7"]


def test_what_is_wrong(tab: Tab, page: Any) -> None:
    tab.go(f"{PATH}?sql={quote('region = = <b>')}")
    assert "found =" in page.get_by_role("alert").inner_text()
    text, caret = page.locator("pre.caret").inner_text().rstrip("\n").split("\n")
    assert text[caret.index("^")] == "="
    assert page.locator("#sql").get_attribute("aria-invalid") == "true"
    tab.check()


def slow_pieces(tab: Tab, pieces: int) -> None:
    """Answer a script with so many pages that are not all, before it gets to the server."""
    left = [pieces]

    def answer(route: Any) -> None:
        answer = route.fetch()
        body = answer.text()
        left[0] -= 1
        if left[0] > 0:
            body = body.replace('data-state="all" data-piece=""', GOING)
        route.fulfill(response=answer, body=body)

    tab.page.route("**/messages?**", answer)


GOING = f'data-state="going" data-piece="{PATH}?sql=order_id%3D7"'


def test_the_rest_comes_by_itself(tab: Tab, page: Any) -> None:
    slow_pieces(tab, 4)
    tab.go(f"{PATH}?sql=order_id%3D7")
    page.locator("#summary[data-state=all]").wait_for()
    assert offsets(page) == ["7"] * 4, "the rows of each piece"
    assert not page.locator("#cancel").is_visible()


def test_a_search_is_cancelled_and_goes_on(tab: Tab, page: Any) -> None:
    waiting = []

    def hold(route: Any) -> None:
        if "hx-request" in route.request.headers and not waiting:
            waiting.append(route)
            return
        answer = route.fetch()
        body = answer.text()
        if not waiting:
            body = body.replace('data-state="all" data-piece=""', GOING)
        route.fulfill(response=answer, body=body)

    page.route("**/messages?**", hold)
    tab.go(f"{PATH}?sql=order_id%3D7")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("Cancelled. 1 message found so far").wait_for()
    tab.check()
    page.get_by_role("button", name="Go on").click()
    page.locator("#summary[data-state=all]").wait_for()
    assert offsets(page) == ["7", "7"]


def test_without_script(browser: Any, searched: ServerProcess) -> None:
    base = f"http://127.0.0.1:{searched.http_port}"
    tab = Tab(browser, base, java_script_enabled=False)
    tab.log_in()
    tab.go(f"{PATH}?limit=120")
    found = offsets(tab.page)
    while tab.page.get_by_text("Stopped at the limit").count():
        tab.go(tab.page.get_by_role("link", name="Next 120 messages").get_attribute("href"))
        found += offsets(tab.page)
    assert found == [str(n) for n in range(299, -1, -1)]
    assert not tab.page.get_by_role("button", name="Cancel").is_visible()
    tab.go(f"{PATH}?live=1")
    assert "Load the page again" in tab.page.locator("#state").inner_text()
    tab.close()


def test_the_tail(tab: Tab, page: Any, served: ServerProcess) -> None:
    fill(served.uri, "tail", [order(n) for n in range(5)])
    tab.go("/streams/%2F/tail/messages")
    page.get_by_role("button", name="Live tail").click()
    page.get_by_text("Live. 5 messages shown.").wait_for()
    fill(served.uri, "tail", [order(5)])
    page.get_by_text("Live. 6 messages shown.").wait_for()
    assert offsets(page)[0] == "5"
    page.get_by_role("button", name="Pause").click()
    page.get_by_text("Paused. 6 messages shown.").wait_for()
    fill(served.uri, "tail", [order(n) for n in range(6, 106)])
    page.wait_for_timeout(1_200)
    assert len(offsets(page)) == 6, "it keeps what it showed"
    page.get_by_role("button", name="Resume").click()
    page.get_by_text("Live. 26 messages shown. 80 messages not looked at").wait_for()
    assert offsets(page)[:21] == [*(str(n) for n in range(105, 85, -1)), "5"]
    tab.check()


def test_downloads(tab: Tab, page: Any, tmp_path: Path) -> None:
    tab.go(f"{PATH}?sql=order_id+%3C+3&start=first&limit=1")
    for title in ("JSON lines", "CSV"):
        with page.expect_download() as begun:
            page.get_by_role("link", name=title).click()
        file = tmp_path / begun.value.suggested_filename
        begun.value.save_as(file)
        assert file.stem == "searched"
        assert len(file.read_text().splitlines()) == 3 + (title == "CSV")
    assert json.loads((tmp_path / "searched.jsonl").read_text().splitlines()[2])["offset"] == 2
    tab.go(f"{PATH}/7")
    with page.expect_download() as begun:
        page.get_by_role("link", name="Download the body").click()
    assert begun.value.suggested_filename == "searched-7-body.bin"


def test_copying(tab: Tab, page: Any) -> None:
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.go(f"{PATH}?key=7")
    page.get_by_text("Copy as: Command line").click()
    page.get_by_role("button", name="Copy Command line").click()
    page.get_by_role("button", name="Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("streamd find --key 7 --limit 50 --newest --uri")
    for title in ("rstream", "pika"):
        page.get_by_text(f"Copy as: Python, {title}").click()
    tab.check()


def test_hostile_messages(tab: Tab, page: Any, served: ServerProcess) -> None:
    raws = [
        Message(text.encode(), Properties(subject=text[:900]), {text[:90]: text[:900]})
        for text in HOSTILE
    ]
    raws.append(Message(bytes(range(256)) * 40, application_properties={"b": b"\xff\x00"}))
    for raw in raws:
        fill(served.uri, "<b>hostile", [raw])
    path = f"/streams/%2F/{quote('<b>hostile', safe='')}/messages"
    tab.go(f"{path}?start=first")
    page.get_by_text("That is all: 8 messages").wait_for()
    tab.check()
    width = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert width <= 0, "the page does not grow beyond the window"
    for number in range(len(raws)):
        tab.go(f"{path}/{number}")
        assert page.evaluate("window.hacked") is None
        assert page.get_by_role("heading", name=f"Message {number}").is_visible()
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        if number in (0, 7):
            tab.check()
    for text in HOSTILE[:6]:
        tab.go(f"{path}?key={quote(text)}&where=subject")
        assert page.evaluate("window.hacked") is None
    tab.check()


def test_a_session_that_ends_ends_the_tail(tab: Tab, page: Any) -> None:
    tab.go(f"{PATH}?live=1")
    page.get_by_text("Live. 20 messages shown.").wait_for()
    tab.context.clear_cookies()
    page.wait_for_url("**/login**")
    tab.complaints.clear()  # of the answer with status 401
