"""The overview, and the charts: what they show to whom."""

import json
import shutil
from types import SimpleNamespace
from typing import Any

import pytest

from streamd.broker.streams.history import Moment
from streamd.broker.streams.log_figures import NO_FIGURES
from streamd.broker.streams.stream import Stream
from streamd.console.charts import Chart, make_chart
from tests.support.console import Visitor, entered
from tests.support.server import FIRST, Harness


async def tiles(browser: Any, path: str = "/") -> dict[str, str]:
    page = await browser.page(path)
    return {
        tile.dt.text: " ".join(tile.dd.stripped_strings) for tile in page.select(".tiles > div")
    }


async def test_what_there_is(server: Harness, browser: Visitor) -> None:
    assert "There are no streams yet: create the first one ." in await browser.text("/")
    peer = await server.peer()
    await peer.create("<s>")
    await peer.declare("<s>")
    await peer.store([b"x"] * 5)
    await peer.subscribe("<s>", FIRST, credit=0, name="<reader>")
    for _ in range(2):
        server.server.broker.history.sample()
    found = await tiles(browser)
    assert found["Streams"] == "1"
    assert found["Messages kept"].startswith("5 ")
    assert found["Connections"] == "1 1 publisher, 1 consumer"
    assert {"Disk free", "Memory", "Running for", "Published/s", "Delivered/s"} <= found.keys()
    text = await browser.text("/")
    assert "all is well The stream takes messages." in text
    assert "<reader> <s> 5" in text
    page = await browser.page("/")
    for figure in page.select("[data-chart]"):
        data = json.loads(figure.script.string)
        assert len(data["times"]) == 2
        assert all(len(line["values"]) == 2 for line in data["series"])


async def test_trouble_is_said_first(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimpleNamespace(total=1_000, free=99)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk)
    browser = await entered(server)
    for name in ("fine", "<bad>"):
        await server.host.create(name, [])
    server.host.find("<bad>").life._cannot_open("/place: no such <folder>")
    for _ in range(3):
        server.server.broker.supervisor.failed("emptying <b>", "", OSError())
    text = await browser.text("/")
    assert text.startswith("Overview Trouble 3 things to look at")
    assert "Only 9.9 % of the disk is free: 99 B of 1.0 kB; streams take no messages" in text
    disk.free = 100
    assert "2 things to look at" in await browser.text("/")
    assert "3 faults were contained since the start (emptying <b>: 3)" in text
    assert "<bad> : Takes no messages: /place: no such <folder>." in text
    assert "all is well" not in text
    assert (await tiles(browser))["Streams"] == "2 1 in trouble"


async def test_damage_is_trouble_though_the_stream_takes_messages(
    server: Harness, browser: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.host.create("<torn>", [])
    lost = 1_200
    monkeypatch.setattr(Stream, "figures", property(lambda _: NO_FIGURES._replace(num_lost=lost)))
    text = await browser.text("/")
    assert "1 thing to look at <torn> : 1,200 messages are damaged and cannot be read" in text
    assert "all is well" not in text
    lost = 1
    assert "<torn> : 1 message is damaged" in await browser.text("/")


async def test_a_user_sees_what_is_its_own(server: Harness) -> None:
    broker = server.server.broker
    async with broker.catalog.turn() as turn:
        await broker.add_virtual_host(turn, "other")
    await broker.virtual_hosts["other"].create("hidden", [])
    broker.virtual_hosts["other"].find("hidden").life._cannot_open("secret")
    peer = await server.peer()
    await peer.create("s")
    await peer.subscribe("s", name="reader")
    ada = await entered(server, "ada", "management")
    assert await tiles(ada) == {
        "Streams": "1",
        "Messages kept": "0 8 B",
        "Connections": "0 0 publishers, 0 consumers",
    }, "and nothing of the machine"
    text = await ada.text("/")
    assert "all is well" in text
    assert not any(word in text for word in ("hidden", "secret", "reader", "Ports"))
    await server.server.directory.put_user("ada", tags=["monitoring"])
    assert (await tiles(ada))["Streams"] == "2 1 in trouble"


# -- charts


def moment(seconds: int, rate: float, confirm: float | None = None) -> Moment:
    return Moment(seconds * 1000, rate, 0, 0, 0, confirm, confirm, 0.0)


def chart(moments: list[Moment], **options: Any) -> Chart:
    lines = [("in", lambda m: m.messages_in), ("p99", lambda m: m.confirm_p99)]
    return make_chart("x", "X", "rate", moments, lines, **options)


@pytest.mark.parametrize("count", [0, 1, 2, 239, 240, 241, 720])
def test_a_chart_has_few_points_and_the_newest(count: int) -> None:
    found = chart([moment(n * 5, n) for n in range(count)])
    assert len(found.times) <= 240
    assert [len(line.values) for line in found.series] == [len(found.times)] * 2
    assert found.times == sorted(found.times)
    if count:
        assert found.times[-1] == (count - 1) * 5000
    assert sum(1 for _ in found.steps) == -(-count // 60)


def test_points_are_means_or_the_most() -> None:
    moments = [moment(n * 5, n % 3, 0.1 * (n % 3)) for n in range(720)]
    assert set(chart(moments).series[0].values) == {1}
    assert set(chart(moments, reduce=max).series[0].values) == {2}
    gaps = chart([moment(5, 1), moment(10, 3), moment(15, 5, 0.25)])
    assert gaps.series[1].values == [None, None, 0.25]
    assert gaps.steps == [(0, [3, 0.25])]


def test_what_a_script_gets_ends_no_element() -> None:
    found = make_chart(
        "x", "X", "rate", [moment(5, 1 / 3)], [("</script>", lambda m: m.messages_in)]
    )
    assert "</" not in found.data
    data = json.loads(found.data)
    assert data["series"] == [{"label": "</script>", "values": [0.333333]}]
