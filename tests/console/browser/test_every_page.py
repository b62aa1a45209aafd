"""Every page of the console on a wide screen and on a phone, in light and in dark."""

import json
import re
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock
from urllib.parse import quote

import pika
import pytest
from playwright.sync_api import expect

from clients import Message, connect
from streamd.console.app import Console
from streamd.console.site import Site
from tests.support.browser import Tab, beside, needs_browser
from tests.support.process import ServerProcess

pytestmark = needs_browser

WIDE, PHONE = 1400, 320
NAME = "<script>alert(1)</script>\"'-of-everybody-in-the-western-regions"
HERE = {
    "/super-streams": "parted",
    "/exchanges": "routes",
}
PARTS = {
    "vhost": "%2F",
    "name": quote(NAME, safe=""),
    "user": "guest",
    "offset": "7",
    "connection": "CONNECTION",
}
NO_PAGES = re.compile(r"/download$|\{part\}|^/static/|^/favicon|^/login$")
MAIN = re.compile(r"(?<=<main id=\"main\" tabindex=\"-1\">).*(?=</main>)", re.DOTALL)
LONG = "a-key-of-some-length."


def pages() -> list[str]:
    """The address of each page that there is."""
    service = MagicMock()
    found = []
    for route in Console(Site(service, "")).routes:
        if "GET" in (route.methods or ()) and not NO_PAGES.search(route.path):
            name = next((HERE[h] for h in HERE if h in route.path), PARTS["name"])
            names = {**PARTS, "name": name}
            found.append(route.path.format(**names))
    return found


QUERIES = [
    "/streams?q=%3Cscript%3E&sort=size&desc=1",
    "/streams/{vhost}/{name}/publish?again=7".format(**PARTS),
]


@pytest.fixture(scope="module")
def filled(served: ServerProcess) -> Iterator[None]:
    """Something on every page, and a program that is connected."""
    beside(fill(served.uri))
    address = pika.ConnectionParameters("127.0.0.1", served.amqp_port, heartbeat=0)
    client = pika.BlockingConnection(address)
    channel = client.channel()
    channel.exchange_declare("routes", "headers", durable=True)
    for n in range(3):
        arguments = {"x-match": "all", "region": f"region-{n}"}
        channel.queue_bind(NAME, "routes", f"{LONG * 4}{n}", arguments)
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(NAME, lambda *_: None, arguments={"x-stream-offset": "first"})
    client.process_data_events(0)
    yield
    client.close()


async def fill(uri: str) -> None:
    arguments = {"stream-filter-property": "region", "stream-max-segment-size-bytes": "3000"}
    async with connect(uri) as client:
        await client.create(NAME, arguments=arguments)
        await client.create_super_stream("parted", 2)
        async with client.producer(NAME) as producer:
            for n in range(300):
                region = f"<b>{n % 9}"
                message = Message(b'{"a": 1}' * 20, application_properties={"region": region})
                await producer.send(message, filter_value=region)
        for n in range(6):
            await client.set_offset(NAME, f"</td><script>-with-a-name-{n}", 10 * n)
        selector = "region = '<b>' AND total > 100"
        await client.register_selector(NAME, '"><img src=x>', sql=selector)


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("width", [WIDE, PHONE])
@pytest.mark.parametrize("path", [*pages(), *QUERIES])
def test_everything_fits_and_can_be_read(tab: Tab, path: str, width: int) -> None:
    tab.page.set_viewport_size({"width": width, "height": 800})
    if "CONNECTION" in path:
        tab.go("/connections")
        tab.page.locator("tbody th a").first.click()
    else:
        tab.go(path)
    expect(tab.page.locator("h1")).to_have_count(1)
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
    for details in tab.page.locator("main details").all():
        details.locator("summary").click()
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width, "unfolded"
    tab.check()
    if width == PHONE:
        sideways = "[...document.querySelectorAll('.cards')].filter(one => one.scrollWidth > one."
        assert tab.page.evaluate(f"{sideways}parentElement.clientWidth).length") == 0


@pytest.mark.usefixtures("filled")
def test_on_a_phone_the_menu_is_folded(tab: Tab, browser: Any, login: Any) -> None:
    """Without scripts as well."""
    plain = Tab(browser, tab.page.url, storage_state=login, java_script_enabled=False)
    for one in (tab, plain):
        one.page.set_viewport_size({"width": PHONE, "height": 800})
        one.go("/")
        link = one.page.get_by_role("link", name="Users", exact=True)
        expect(link).to_be_hidden()
        one.page.get_by_text("Menu", exact=True).click()
        expect(one.page.get_by_role("button", name="Log out")).to_be_visible()
        link.click()
        expect(one.page.get_by_role("heading", name="Users")).to_be_visible()
        one.page.set_viewport_size({"width": WIDE, "height": 800})
        expect(one.page.get_by_role("link", name="Streams", exact=True)).to_be_visible()
        expect(one.page.get_by_text("Menu", exact=True)).to_be_hidden()
    plain.close()


@pytest.mark.usefixtures("filled")
def test_a_card_begins_with_how_it_is(tab: Tab) -> None:
    tab.page.set_viewport_size({"width": PHONE, "height": 800})
    tab.go("/streams")
    card = tab.page.locator(".cards tbody tr").first
    places = {
        cell.get_attribute("data-label"): cell.bounding_box() for cell in card.locator("> *").all()
    }
    first = sorted(places, key=lambda label: (places[label]["y"], places[label]["x"]))
    assert first[:2] == ["Name", "State"]


def test_charts_beside_a_spike_and_under_the_pointer(tab: Tab) -> None:
    """The scale ends where nearly all values are, and the spike is told; so are values on hover."""
    page = tab.page
    values = [10 + n % 3 for n in range(60)]
    values[20] = 5_000
    data = {
        "unit": "rate",
        "times": [1_700_000_000 + 5 * n for n in range(60)],
        "series": [{"label": "published", "values": values}],
    }
    page.add_init_script(
        "window.drawn = []; const before = CanvasRenderingContext2D.prototype.fillText;"
        "CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {"
        "window.drawn.push(text); return before.call(this, text, ...rest); };"
    )
    figure = (
        '<figure data-chart="x"><p class="latest"><strong>12/s</strong><span class="at">now</span>'
        '</p><div class="plot"></div><script type="application/json">'
        f"{json.dumps(data)}</script></figure>"
    )

    def serve(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=MAIN.sub(lambda _: figure, answer.text()))

    page.route(re.compile(r"/$"), serve)
    tab.go("/")
    page.wait_for_function("window.drawn.includes('5,000/s')")
    ticks = {float(text[:-2]) for text in page.evaluate("window.drawn") if text[:-2].isdigit()}
    assert max(ticks) < 30
    plot = page.locator("[data-chart=x] .u-over")
    plot.hover()
    latest = page.locator("[data-chart=x] .latest")
    expect(latest.locator(".at")).to_have_text(re.compile(r"at \d\d:\d\d:\d\d"))
    assert latest.locator("strong").inner_text() in {"10/s", "11/s", "12/s"}
    page.mouse.move(0, 0)
    expect(latest).to_have_text("12/snow")
