"""No page leads nowhere, and whoever follows its links sees nothing but pages of the console."""

import re
from collections import deque

from bs4 import BeautifulSoup

from tests.support.console import Visitor, entered
from tests.support.http import add_user
from tests.support.server import FIRST, Harness

_MOST = 400
NAME = "<b>\"a'/b%?#~"


async def fill(server: Harness) -> None:
    peer = await server.peer()
    await peer.create(NAME, stream_filter_property="region")
    await peer.declare(NAME, reference="<till>")
    await peer.store([b"x"] * 3, values=[b"EU", None, b"US"])
    await peer.subscribe(NAME, FIRST, credit=0, name="<reader>")
    server.host.find(NAME).store_offset("<stored>", 1)
    await server.host.create_super_stream("super", [("0", "super-0")], [])
    for _ in range(2):
        server.server.broker.history.sample()
        await server.server.broker.history.sample_streams()


async def follow_all(browser: Visitor) -> dict[str, int]:
    """The statuses of all pages that can be reached, by their addresses."""
    found: dict[str, int] = {}
    left = deque(["/"])
    while left and len(found) < _MOST:
        address = left.popleft()
        if address in found:
            continue
        answer = await browser.get(address)
        found[address] = answer.status_code
        if not answer.headers.get("content-type", "").startswith("text/html"):
            continue
        page = BeautifulSoup(answer.text, "html.parser")
        for link in page.find_all("a", href=True):
            target = re.sub(r"#.*", "", str(link["href"]))
            if target.startswith("/") and not target.startswith("//"):
                left.append(target)
            else:
                assert not target, f"{address} leads to {target}"
    return found


async def test_every_link_leads_somewhere(server: Harness) -> None:
    await fill(server)
    browser = await entered(server)
    found = await follow_all(browser)
    assert {a: status for a, status in found.items() if status != 200} == {}
    assert len(found) > 15
    assert any(NAME in text for text in [await browser.text("/streams")])


async def test_others_are_led_only_where_they_may_go(server: Harness) -> None:
    await fill(server)
    for tag, patterns in (("management", ""), ("management", ".*"), ("monitoring", "")):
        await add_user(server, "ada", tag, patterns=patterns)
        browser = await entered(server, "ada")
        found = await follow_all(browser)
        wrong = {a: status for a, status in found.items() if status != 200}
        assert wrong == {}, (tag, patterns)
