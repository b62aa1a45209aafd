"""The list of streams and the page of a stream: what they show, and what their forms do."""

import itertools
from typing import Any
from unittest.mock import MagicMock
from urllib.parse import quote

import pytest
from bs4 import BeautifulSoup

from segments.gaps import NO_GAPS
from segments.message import Message
from segments.segment import Segment
from streamd.broker.streams.stream import Stream
from streamd.console.listing import PAGE_SIZE
from streamd.console.site import unmarked
from streamd.engine.segment_map import MAX_BLOCKS, segment_map
from streamd.wire.stream import commands as c
from tests.support.console import Visitor, entered
from tests.support.server import Harness, Peer
from tests.support.tier import FakeTier

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "a/b",
    "..",
    ".",
    "~",
    "~..",
    "%2F",
    "a?b=c#d",
    "{{ 7 * 7 }}",
    "\u202efdp.exe",
    "שלום",
    "a\\b",
    " ",
    "ö" * 500,
    "&amp;",
)


def address(name: str, *more: str) -> str:
    """As a browser would be sent there."""
    mark = "~" if name in (".", "..") or name.startswith("~") else ""
    return "/".join(["/streams/%2F", mark + quote(name, safe=""), *more])


async def rows(browser: Visitor, path: str) -> list[list[str]]:
    page = await browser.page(path)
    found = page.main.select("#list tbody tr")
    return [[" ".join(cell.text.split()) for cell in row(["th", "td"])] for row in found]


# -- the list


async def test_streams_are_sorted_searched_and_paged(server: Harness, browser: Visitor) -> None:
    names = [f"stream-{n:03}" for n in range(2 * PAGE_SIZE + 10)]
    await server.host.create_all([(name, []) for name in reversed(names)])
    peer = await server.peer()
    await peer.declare("stream-050")
    await peer.store([b"x", b"y"])
    found = await rows(browser, "/streams")
    assert [row[0] for row in found] == names[:PAGE_SIZE]
    assert [row[0] for row in await rows(browser, "/streams?page=3")] == names[2 * PAGE_SIZE :]
    assert [row[0] for row in await rows(browser, "/streams?page=99")] == names[2 * PAGE_SIZE :]
    assert [row[0] for row in await rows(browser, "/streams?desc=1")][:2] == names[:-3:-1]
    by_size = await rows(browser, "/streams?sort=messages&desc=1")
    assert by_size[0][:2] == ["stream-050", "2"]
    assert [row[0] for row in await rows(browser, "/streams?q=STREAM-05&desc=1&sort=name")] == (
        names[59:49:-1]
    )
    for odd in ("page=0", "page=-1", "page=x", "page=1%00", "sort=nothing", "desc=x", "q=%FF"):
        assert await browser.code(f"/streams?{odd}") == 200, odd
    links = [a["href"] for a in (await browser.page("/streams?q=stream&page=2")).select(".pager a")]
    assert len(links) == 4
    for link in links:
        assert "q=stream" in link
        assert await browser.code(link) == 200


async def test_an_empty_list_says_what_to_do(server: Harness, browser: Visitor) -> None:
    assert "There are no streams yet." in await browser.text("/streams")
    await server.host.create("s", [])
    assert "No stream has “ <b> ” in its name" in await browser.text("/streams?q=%3Cb%3E")


async def test_virtual_hosts_are_listed_where_there_are_several(
    server: Harness, browser: Visitor
) -> None:
    await server.host.create("s", [])
    broker = server.server.broker
    assert (await browser.page("/streams")).find("select") is None
    async with broker.catalog.turn() as turn:
        await broker.add_virtual_host(turn, "other")
    await broker.virtual_hosts["other"].create("t", [])
    assert [row[:2] for row in await rows(browser, "/streams")] == [["s", "/"], ["t", "other"]]
    assert [row[:2] for row in await rows(browser, "/streams?vhost=other")] == [["t", "other"]]
    ada = await entered(server, "ada", "management")
    assert [row[0] for row in await rows(ada, "/streams")] == ["s"]
    assert [row[0] for row in await rows(ada, "/streams?vhost=other")] == ["s"]


# -- names


async def test_names_are_shown_as_they_are(server: Harness, browser: Visitor) -> None:
    await server.host.create_all([(name, []) for name in HOSTILE])
    page = await browser.page("/streams")
    found = {row.th.a.bdi.text: row.th.a["href"] for row in page.select("#list tbody tr")}
    assert found.keys() == set(HOSTILE)
    for name, link in found.items():
        for more in ("", "/filters", "/change", "/truncate", "/delete"):
            page = await browser.page(link + more)
            assert page.h1.bdi.text == name
            assert page.main.find(["script", "img"]) is None
            assert page.main.find(attrs={"onerror": True}) is None
            assert page.find(attrs={"style": True}) is None
        answer = await browser.send(f"{link}/delete", {"name": name})
        assert answer.status_code == 303, answer.text
        assert not server.host.has_stream(name)


def test_marks_of_names_are_undone() -> None:
    assert unmarked("/streams/%2F/~../x") == "/streams/%2F/../x"
    assert unmarked("/streams/%2F/~~") == "/streams/%2F/~"


# -- creating, changing, deleting


async def test_a_stream_is_created_with_its_arguments(server: Harness, browser: Visitor) -> None:
    page = await browser.page("/create-stream")
    described = [field.get("aria-describedby") for field in page.main(["input", "select"])]
    assert sum(text is not None for text in described) >= 12
    assert all(page.find(id=text) is not None for text in described if text)
    fields = {
        "name": "orders",
        "vhost": "/",
        "max-age": "7D",
        "max-length-bytes": "",
        "stream-filter-property": "region",
        "stream-filter-derive": "true",
    }
    answer = await browser.send("/create-stream", fields)
    assert answer.headers["location"] == "/streams/%2F/orders"
    found = dict(server.host.arguments("orders"))
    assert str(found.pop("max-age")) == "7D"
    assert found == {"stream-filter-property": "region", "stream-filter-derive": True}
    text = await browser.text("/streams/%2F/orders")
    assert "The stream orders was created." in text
    assert "The stream orders was created." not in await browser.text("/streams/%2F/orders")


async def test_limits_are_taken_as_they_are_typed_and_shown_back(
    server: Harness, browser: Visitor
) -> None:
    fields = {"vhost": "/", "max-age": "7 days", "max-length-bytes": "1.5 GB"}
    answer = await browser.send("/create-stream", {"name": "s", **fields})
    text = await shown(browser, answer)
    assert "The stream s was created. It keeps messages for 7 d and up to 1.5 GB." in text
    found = server.host.arguments("s")
    assert (str(found["max-age"]), found["max-length-bytes"]) == ("7D", 1_500_000_000)
    change = {"max-age": "2 weeks", "was-max-age": "7D", "max-length-bytes": "1.5 GB"}
    await browser.send("/streams/%2F/s/change", {**change, "was-max-length-bytes": "1500000000"})
    found = server.host.row("s").effective
    assert (str(found["max-age"]), found["max-length-bytes"]) == ("14D", 1_500_000_000)


async def test_what_few_need_is_folded(browser: Visitor) -> None:
    page = await browser.page("/create-stream")
    folded = page.main.select_one("details")
    first = [f["name"] for f in page.main("input") if f.get("type") != "hidden"]
    advanced = {field["name"] for field in folded(["input", "select"])}
    assert [name for name in first if name not in advanced] == [
        *("name", "max-age", "max-length-bytes", "stream-key-properties", "stream-filter-property")
    ]
    assert not folded.has_attr("open")
    wrong = {"name": "t", "vhost": "/", "stream-chunk-max-records": "many"}
    answer = await browser.send("/create-stream", wrong)
    assert BeautifulSoup(answer.text, "html.parser").select_one("details[open]")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": ""}, "has 0 bytes"),
        ({"name": "s"}, "there is a stream s already"),
        ({"name": "s", "max-age": "7D"}, "exists with other arguments"),
        ({"name": "t", "max-age": "soon <b>"}, "max-age is 'soon <b>', expected a number and"),
        ({"name": "t", "stream-filter-derive": "true"}, "needs stream-filter-property"),
        ({"name": "line\nend"}, "has the character U+000A"),
    ],
)
async def test_a_form_that_is_wrong_comes_back(
    server: Harness, browser: Visitor, fields: dict[str, str], problem: str
) -> None:
    await server.host.create("s", [])
    answer = await browser.send("/create-stream", {"vhost": "/", **fields})
    assert answer.status_code == 400
    page = Page(answer.text)
    assert problem in page.problem()
    for name, value in fields.items():
        assert page.value(name) == value.replace("\n", "")
    assert server.host.names() == ["s"]


async def test_settings_are_changed(server: Harness, browser: Visitor) -> None:
    await server.host.create("s", [("max-age", "7D"), ("stream-filter-size-bytes", "32")])
    path = "/streams/%2F/s/change"
    page = await browser.page(path)
    form = {field["name"]: field.get("value", "") for field in page.main("input")}
    form.pop("csrf")
    assert form["max-age"] == "7D"
    assert "stream-filter-property" not in form, "which cannot be changed"
    assert "Nothing was changed." in await shown(browser, await browser.send(path, form))
    form |= {"max-age": "", "stream-filter-size-bytes": "auto", "stream-chunk-max-records": "5"}
    await browser.send(path, form)
    row = server.host.row("s")
    assert row.settings == {
        "max-age": "",
        "stream-filter-size-bytes": "auto",
        "stream-chunk-max-records": 5,
    }
    assert row.effective == {"stream-filter-size-bytes": "auto", "stream-chunk-max-records": 5}
    text = await browser.text("/streams/%2F/s")
    assert "stream-filter-size-bytes 32 auto changed" in text
    answer = await browser.send(path, {**form, "stream-filter-size-bytes": "1"})
    assert answer.status_code == 400
    assert "expected" in Page(answer.text).problem()
    assert Page(answer.text).value("stream-filter-size-bytes") == "1"
    page = await browser.page(f"{path}?stream-filter-size-bytes=64")
    assert page.find(id="stream-filter-size-bytes")["value"] == "64"
    assert server.host.row("s").settings["stream-filter-size-bytes"] == "auto"


async def test_deleting_asks_for_the_name(server: Harness, browser: Visitor) -> None:
    await server.host.create("s", [])
    for name in ("", "S", "s ", "other"):
        answer = await browser.send("/streams/%2F/s/delete", {"name": name})
        assert answer.status_code == 400
        assert "nothing was done" in Page(answer.text).problem()
    assert server.host.has_stream("s")
    answer = await browser.send("/streams/%2F/s/delete", {"name": "s"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/streams")
    assert not server.host.has_stream("s")
    assert "The stream s was deleted." in await browser.text("/streams")
    assert await browser.code("/streams/%2F/s") == 404


async def test_arguments_of_the_tier_are_changed(server: Harness, browser: Visitor) -> None:
    await server.host.create("s", [("stream-tier", "false"), ("stream-local-max-age", "1D")])
    path = "/streams/%2F/s/change"
    page = await browser.page(path)
    form = {field["name"]: field.get("value", "") for field in page.main("input")}
    form.pop("csrf")
    (chosen,) = page.select("select[name=stream-tier] option[selected]")
    assert chosen["value"] == "false"
    assert form["stream-local-max-age"] == "1D"
    form |= {"stream-tier": "true", "stream-local-max-length-bytes": "5"}
    await browser.send(path, form)
    changed = {"stream-tier": True, "stream-local-max-length-bytes": 5}
    assert server.host.row("s").settings == changed
    text = await browser.text("/streams/%2F/s")
    assert "stream-tier false true changed" in text
    assert "stream-local-max-length-bytes not declared 5 changed" in text
    assert "stream-local-max-age 1D 1D" in text


async def test_what_is_in_the_tier(server: Harness, browser: Visitor) -> None:
    await server.host.create("s", [])
    assert "In the tier" not in await browser.text("/streams/%2F/s")
    server.server.broker.tier = tier = FakeTier()
    tier.sentence = "the store /mnt/<i> is away"
    text = await browser.text("/streams/%2F/s")
    assert "In the tier 2.0 MB 12 segments" in text
    assert "Not uploaded yet 300 B 1 full segment" in text
    assert "The tier: The store /mnt/<i> is away." in text


# -- a stream


@pytest.fixture
async def orders(server: Harness) -> Peer:
    """The stream s with 30 messages in several segments, and a peer."""
    peer = await server.peer()
    await peer.create(
        "s",
        stream_max_segment_size_bytes="1000",
        stream_chunk_max_records="3",
        stream_filter_property="region",
        stream_filter_derive="true",
    )
    await peer.declare("s", reference="<till>")
    for n in range(0, 30, 3):
        bodies = [
            Message(b"x" * 60, application_properties={"region": f"r{(n + k) % 4}"}).encode()
            for k in range(3)
        ]
        await peer.store(bodies, n + 1)
    return peer


@pytest.fixture
async def stocked(server: Harness, orders: Peer) -> Harness:
    """A server with that stream."""
    assert orders
    return server


async def test_who_reads_and_writes_a_stream(browser: Visitor, orders: Peer) -> None:
    await orders.subscribe("s", credit=1, name="<reader>")
    await orders.chunk()
    text = await browser.text("/streams/%2F/s")
    assert "Messages 30" in text
    assert "<till>" in text
    page = await browser.page("/streams/%2F/s")
    cells = [cell.text.strip() for cell in page.select("[aria-label=Consumers] tbody tr > *")]
    assert cells[0] == "<reader>"
    assert cells[3:5] == ["3", "27"]
    cells = [cell.text.strip() for cell in page.select("[aria-label=Publishers] tbody tr > *")]
    assert cells[0] == "<till>"
    assert cells[2:] == ["30", "30", "0"]
    marks = page.select("svg path.consumer title")
    assert [mark.text for mark in marks] == ["<reader>: next offset 3"]
    x = float(marks[0].find_parent("svg")["x"].rstrip("%"))
    assert x == pytest.approx(10)


async def test_consumers_without_a_name(browser: Visitor, orders: Peer) -> None:
    await orders.subscribe("s", credit=1, subscription_id=3)
    page = await browser.page("/streams/%2F/s")
    cells = [cell.text.strip() for cell in page.select("[aria-label=Consumers] tbody tr > *")]
    assert cells[0] == "subscription 3"


async def test_others_see_that_there_are_more(server: Harness, orders: Peer) -> None:
    await orders.subscribe("s", credit=1, name="reader")
    ada = await entered(server, "ada", "management")
    text = await ada.text("/streams/%2F/s")
    assert "reader" not in text
    assert "1 consumer of other users is not shown." in text
    assert "1 publisher of other users is not shown." in text


async def test_the_map_shows_all_segments(stocked: Harness, browser: Visitor) -> None:
    page = await browser.page("/streams/%2F/s")
    log = stocked.host.find("s").log
    blocks = page.select("rect.block")
    assert len(blocks) == len(log.segments.shown) > 2
    ends = [
        (float(b["x"].rstrip("%")), float(b["x"].rstrip("%")) + float(b["width"].rstrip("%")))
        for b in blocks
    ]
    assert ends[0][0] == 0
    assert ends[-1][1] == pytest.approx(100, abs=0.1)
    assert all(a[1] == pytest.approx(b[0], abs=0.1) for a, b in itertools.pairwise(ends))
    table = page.select("[aria-label=Segments] tbody tr")
    assert [int(row.td.text) for row in table] == [s.base_offset for s in log.segments.shown]


@pytest.mark.parametrize("count", [1, 2, MAX_BLOCKS, MAX_BLOCKS + 1, 12_345])
def test_very_many_segments_are_few_blocks(count: int) -> None:
    disk = MagicMock()
    segments = [Segment(disk, "", n * 7) for n in range(count)]
    for segment in segments:
        segment.next_offset, segment.size, segment.num_chunks = segment.base_offset + 7, 100, 2
    found = segment_map(segments, NO_GAPS, count * 7, [(0, "a"), (count * 7, "b")], [])
    assert len(found.blocks) <= MAX_BLOCKS
    assert sum(block.num_segments for block in found.blocks) == count
    assert sum(block.num_messages for block in found.blocks) == count * 7
    assert sum(block.size for block in found.blocks) == count * 100
    assert [block.is_last for block in found.blocks].index(True) == len(found.blocks) - 1
    assert [mark.x for mark in found.consumers] == [0, 100]


async def test_stored_offsets_are_set_and_forgotten(stocked: Harness, browser: Visitor) -> None:
    stocked.host.find("s").store_offset("<r>", 9)
    path = "/streams/%2F/s/offsets"
    page = await browser.page("/streams/%2F/s")
    (row,) = page.select("[aria-label='Stored offsets'] tbody tr")
    assert [cell.text.strip() for cell in row(["th", "td"])][:3] == ["<r>", "9", "20"]
    assert len(page.select("svg path.stored title")) == 1
    tracking = stocked.host.find("s").log.journal.tracking
    asked = await browser.send(path, {"reference": "<r>", "offset": "20", "way": "set"})
    assert "It is offset 9, and becomes offset 20." in asked.text
    assert tracking.offsets() == {b"<r>": 9}, "one click changes nothing"
    for typed, now in (("20", 20), ("-5", 15), ("+2", 17), ("<r>", 17), ("2100-01-01", 29)):
        await browser.send(path, {"reference": "<r>", "offset": typed, "sure": "1"})
        assert tracking.offsets() == {b"<r>": now}
    for wrong, code in (("", 400), ("x", 404), ("1" * 30, 400), ("-99", 400)):
        answer = await browser.send(path, {"reference": "<r>", "offset": wrong})
        assert answer.status_code == code
    done = await browser.send(path, {"reference": "<r>", "way": "forget", "sure": "1"})
    assert "It was offset 29, now it is no stored offset." in done.text
    assert tracking.offsets() == {}
    answer = await browser.send(path, {"reference": "<r>", "way": "forget"})
    assert answer.status_code == 404
    await browser.send(path, {"reference": "<r>", "way": "undo", "sure": "1"})
    assert tracking.offsets() == {b"<r>": 29}
    await browser.send(path, {"reference": "<r>", "way": "forget", "sure": "1"})
    assert "No consumer has stored an offset." in await browser.text("/streams/%2F/s")


async def test_selectors_are_registered_and_removed(stocked: Harness, browser: Visitor) -> None:
    path = "/streams/%2F/s/selectors"
    form = {"group": "<g>", "dialect": "union", "text": "total  > 3 AND region = '<b>'"}
    assert (await browser.send(path, form)).status_code == 303
    (row,) = stocked.host.find("s").standing.rows()
    text = await browser.text("/streams/%2F/s")
    assert row.group == "<g>"
    assert row.text in text
    answer = await browser.send(path, {**form, "text": "total >"})
    assert answer.status_code == 400
    assert (await browser.send(path, {**form, "group": ""})).status_code == 400
    await browser.send(path, {"group": "<g>", "delete": "1"})
    assert stocked.host.find("s").standing.rows() == []


async def test_a_stream_is_truncated(stocked: Harness, browser: Visitor) -> None:
    path = "/streams/%2F/s/truncate"
    for wrong in ({"before": "12", "name": "t"}, {"before": "x", "name": "s"}, {"name": "s"}):
        assert (await browser.send(path, wrong)).status_code == 400
    assert stocked.host.find("s").log.segments.first_offset == 0
    await browser.send(path, {"before": "12", "name": "s"})
    assert stocked.host.find("s").log.segments.first_offset == 12
    assert "The stream begins at offset 12 now." in await browser.text("/streams/%2F/s")
    await browser.send(path, {"before": "2100-01-01T00:00:00Z", "name": "s"})
    assert stocked.host.find("s").log.committed_offset == 30
    assert "The stream is empty" in await browser.text("/streams/%2F/s")


async def test_how_well_filters_work(server: Harness, browser: Visitor, orders: Peer) -> None:
    text = await browser.text("/streams/%2F/s/filters")
    assert "Of the newest 10 chunks with filter values." in text
    figures = await orders.ask(c.DescribeFilters, "s")
    told = {item.name: item.value for item in figures.statistics}
    assert f"Different filter values {told['values']}" in text
    assert f"predicted {told['predicted_ppm'] / 10_000:.3g} %" in text
    assert f"observed {told['observed_ppm'] / 10_000:.3g} %" in text
    assert "16 B now" in text
    assert "No consumer has read anything." in text
    await orders.subscribe("s", credit=20, filter__0="r1")
    await orders.bodies(3 * sum(1 for n in range(0, 30, 3) if 1 in {(n + k) % 4 for k in range(3)}))
    read = server.host.find("s").traffic.flow()
    text = await browser.text("/streams/%2F/s/filters")
    assert read.skipped_chunks > 0
    looked_at = read.chunks + read.skipped_chunks
    assert f"Chunks skipped {read.skipped_chunks} " in text
    assert f" of {looked_at} Not sent" in text
    assert f"Chunks read {read.chunks} " in text
    await server.host.create("plain", [])
    await server.host.create("it's; rm *", [])
    text = await browser.text(address("it's; rm *", "filters"))
    assert "streamd tune 'it'\"'\"'s; rm *' --workload recorded --apply" in text
    assert "streamd publish plain" in await browser.text("/streams/%2F/plain")
    assert "The stream is empty. For filters to work" in await browser.text(
        "/streams/%2F/plain/filters"
    )
    peer = await server.peer()
    await peer.declare("plain")
    await peer.store([b"x"])
    assert "The only chunk has no filter values" in await browser.text("/streams/%2F/plain/filters")


async def test_a_stream_that_cannot_be_opened(server: Harness, browser: Visitor) -> None:
    await server.host.create("s", [])
    stream = server.host.find("s")
    stream.life._cannot_open("/secret/place: <gone>")
    text = await browser.text("/streams/%2F/s")
    assert "It is not available: /secret/place: <gone>" in text
    assert "in trouble" in await browser.text("/streams")
    ada = await entered(server, "ada", "management")
    for path in ("/streams/%2F/s", "/streams", "/"):
        assert "secret" not in str(await ada.page(path))


class Page:
    """A page that came back."""

    def __init__(self, html: str) -> None:
        self._tree: Any = BeautifulSoup(html, "html.parser")

    def problem(self) -> str:
        return str(self._tree.find(class_="problem").text)

    def value(self, name: str) -> str:
        field = self._tree.find(attrs={"name": name})
        if field.name == "select":
            return str(field.find("option", selected=True)["value"])
        return str(field["value"]).replace("\n", "")


async def shown(browser: Visitor, answer: Any) -> str:
    return await browser.text(answer.headers["location"])


async def test_a_full_disk_passes(
    server: Harness, browser: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.host.create("s", [])
    monkeypatch.setattr(Stream, "alarm", property(lambda _: "the disk is full"))
    text = await browser.text("/streams/%2F/s")
    assert "It takes no messages: The disk is full. Publishers wait, and go on" in text
    monkeypatch.setattr(Stream, "failed", property(lambda _: "broken"))
    text = await browser.text("/streams/%2F/s")
    assert "It takes no messages: The disk is full." in text
    assert "Publishers wait" not in text, "what has failed stays so"
