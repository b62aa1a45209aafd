"""Scrapes: what may be asked, who waits for whom, and what goes wrong in one of them."""

import gzip
import math
import re
from collections import Counter
from functools import partial
from hashlib import sha256

import httpx
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from streamd.broker.declared.rows import PermissionRow
from streamd.broker.streams.stream import Stream
from streamd.broker.virtual_host import VirtualHost
from streamd.engine import DoorCaller
from streamd.http_api import metrics as paths
from streamd.metrics import scrape as scrapes_module, server_metrics, stream_metrics
from streamd.metrics.families import bound, lines
from streamd.metrics.scrape import MAX_PATTERN_BYTES, MAX_WAITING, Query, Scrapes
from streamd.operations.names import Name
from streamd.wire.stream import commands as c
from tests.support.http import add_user
from tests.support.metrics import Metrics, Scraped
from tests.support.server import OK, Harness, Peer, harness

ODD = ('"quoted"', "back\\slash", "curly{}=,", "ünï☃", "r" * 255, "#", "a b", "$(x)`y`")


def streams(found: Scraped, name: str = "streamd_stream_messages") -> set[tuple[str, str]]:
    return {(labels["vhost"], labels["stream"]) for labels, _ in found.like(name)}


@pytest.fixture
def metrics(server: Harness) -> Metrics:
    return Metrics(server)


async def test_odd_names_of_streams_hosts_and_consumers(server: Harness, peer: Peer) -> None:
    for name in ODD:
        await peer.create(name)
    for n, name in enumerate((*ODD, "line\nend", "\r", "\0", "\u2028", "'")):
        await peer.subscribe("#", subscription_id=n, name=name[:255])
    found = await Metrics(server).scrape("/per-object")
    assert streams(found) == {("/", name) for name in ODD}
    told = {labels["consumer"] for labels, _ in found.like("streamd_named_consumers")}
    assert told == {*ODD, "line\nend", "\r", "\0", "\u2028", "'"}


async def test_a_long_name_of_a_consumer_is_cut(server: Harness, peer: Peer) -> None:
    """An answer has 20,000 of them, and goes from process to process in one piece."""
    await peer.create("s")
    await peer.subscribe("s", identifier="x" * 60_000)
    found = await Metrics(server).scrape("/per-object")
    assert [labels["consumer"] for labels, _ in found.like("streamd_named_consumers")] == [
        "x" * 255
    ]


async def test_names_that_are_no_text(server: Harness) -> None:
    """Such a name cannot be created any more; one that is there must not end a scrape."""
    broker = server.server.broker
    odd = Name("half\ud800")
    broker.virtual_hosts[odd] = VirtualHost(odd, server.host._resources)
    found = await Metrics(server).scrape("/detailed?family=vhost_status")
    assert found.of("rabbitmq_cluster_vhost_status", vhost="half?") == 1


async def test_what_is_asked_for_in_detail(metrics: Metrics, peer: Peer) -> None:
    for name in ("orders.a", "orders.b", "logs"):
        await peer.create(name)
    await peer.subscribe("logs", name="reader")
    nothing = await metrics.scrape("/detailed")
    assert {name for name, _ in nothing} == {"rabbitmq_build_info", "rabbitmq_identity_info"}
    coarse = await metrics.scrape("/detailed?family=queue_coarse_metrics&queue=^orders")
    queues = {labels["queue"] for labels, _ in coarse.like("rabbitmq_detailed_queue_messages")}
    assert queues == {"orders.a", "orders.b"}
    assert len([*coarse.like("rabbitmq_detailed_queue_info", membership="leader")]) == 2
    assert not [*coarse.like("rabbitmq_detailed_queue_consumers")]
    both = "/detailed?family=queue_consumer_count&family=connection_churn_metrics&vhost=none"
    found = await metrics.scrape(both)
    assert found.of("rabbitmq_detailed_connections_opened_total") == 1
    assert not [*found.like("rabbitmq_detailed_queue_consumers")]
    own = await metrics.scrape("/detailed?family=streamd_consumer&vhost=/&queue=log")
    assert own.of("streamd_named_consumers", vhost="/", stream="logs", consumer="reader") == 1
    assert (await metrics.scrape("/detailed?family=no_such")).keys() == nothing.keys()


async def test_exchanges(server: Harness, peer: Peer) -> None:
    assert await peer.code(c.CreateSuperStream, "super", ("a", "b"), ("a", "b"), ()) == OK
    path = "/detailed?family=exchange_bindings&family=exchange_names"
    found = await Metrics(server).scrape(path)
    labels = {"vhost": "/", "exchange": "super", "type": "direct"}
    assert found.of("rabbitmq_cluster_exchange_bindings", **labels) == 2
    assert found.of("rabbitmq_cluster_exchange_name", **labels) == 1


@pytest.mark.parametrize(
    ("queue", "reason"),
    [
        ("(", "no regular expression that RE2 knows: missing )"),
        ("(?=a)", "no regular expression that RE2 knows: "),
        ("a" * (MAX_PATTERN_BYTES + 1), "queue has 2,001 bytes, expected"),
        ("a{1000}{1000}", "no regular expression that RE2 knows: "),
        ("(.?){1000}", "no regular expression that RE2 knows: pattern too large"),
    ],
)
async def test_bad_patterns(metrics: Metrics, queue: str, reason: str) -> None:
    answer = await metrics.client.get("/metrics/detailed", params={"queue": queue})
    assert answer.status_code == 400
    assert reason in answer.json()["reason"]
    assert (await metrics.ask("/detailed?queue=a&queue=b")).status_code == 400


async def test_packed_and_not_it_is_the_same(metrics: Metrics) -> None:
    for accepted, is_packed in (
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("identity", False),
        ("gzip;q=0", False),
    ):
        request = metrics.client.stream("GET", "/metrics", headers={"accept-encoding": accepted})
        async with request as answer:
            raw = b"".join([piece async for piece in answer.aiter_raw()])
        assert int(answer.headers["content-length"]) == len(raw)
        assert (answer.headers.get("content-encoding") == "gzip") == is_packed
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert answer.headers["cache-control"] == "no-store"
        text = gzip.decompress(raw) if is_packed else raw
        assert text.startswith(b"# HELP rabbitmq_build_info")
        assert text.endswith(b"\n")


async def test_a_browser_page_of_another_name_reads_nothing(metrics: Metrics) -> None:
    answer = await metrics.ask("", host="rebound.example")
    assert answer.status_code == 403
    assert "--http-allowed-host" in answer.json()["reason"]
    assert (await metrics.ask("", host="127.0.0.1:15692")).status_code == 200
    assert (await metrics.scrape()).of("streamd_http_refused_total", reason="browser") == 1


async def test_other_paths_and_methods(metrics: Metrics) -> None:
    assert (await metrics.client.get("/")).status_code == 200
    assert (await metrics.client.get("/api/overview")).status_code == 404
    assert (await metrics.client.head("/metrics")).status_code == 200
    assert (await metrics.client.post("/metrics")).status_code == 405


async def test_with_a_login(tmp_path: pytest.TempPathFactory) -> None:
    async with harness(tmp_path, metrics_login="on") as server:  # type: ignore[arg-type]
        await add_user(server, "watcher", "monitoring")
        await add_user(server, "manager", "management")
        await server.server.directory.put_permission(
            PermissionRow(Name("manager"), Name("/"), "", "", "")
        )
        metrics = Metrics(server)

        async def code(*login: str) -> int:
            auth = httpx.BasicAuth(*login) if login else None
            return (await metrics.client.get("/metrics", auth=auth)).status_code

        assert await code() == 401
        assert await code("watcher", "wrong") == 401
        assert await code("manager", "manager-secret") == 401
        assert await code("watcher", "watcher-secret") == await code("guest", "guest") == 200


# -- many at once


@pytest.fixture
def scrapes(server: Harness) -> Scrapes:
    door = DoorCaller(server.server.directory, "metrics")
    return Scrapes(partial(server.server.engine.ask, door), "n", Counter())


async def test_those_who_wait_for_the_same_share_it(
    scrapes: Scrapes, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    async def slowly(_: Scrapes, _page: object, query: Query, _server: object) -> None:
        made.append(query)
        await trio.sleep(1)

    monkeypatch.setattr(Scrapes, "_add_streams", slowly)
    answers = []

    async def ask(endpoint: str) -> None:
        answers.append(await scrapes.answer(Query(endpoint)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, "aggregated")
        await trio.sleep(0.5)
        for _ in range(5):
            nursery.start_soon(ask, "aggregated")
        await wait_all_tasks_blocked()
        nursery.start_soon(ask, "per-object")
    # The first was begun before the others asked: they share a second one.
    assert sorted(query.endpoint for query in made) == ["aggregated", "aggregated", "per-object"]
    assert len({id(answer) for answer in answers}) == 3
    assert not scrapes._answers
    assert not scrapes._asking


async def test_too_many_wait(scrapes: Scrapes) -> None:
    async with trio.open_nursery() as nursery:
        await scrapes._turn.acquire()
        for _ in range(MAX_WAITING):
            nursery.start_soon(scrapes.answer, Query("aggregated"))
        await wait_all_tasks_blocked()
        with pytest.raises(scrapes_module.Busy):
            await scrapes.answer(Query("aggregated"))
        nursery.cancel_scope.cancel()
    scrapes._turn.release()
    await scrapes.answer(Query("aggregated"))
    assert scrapes._num_waiting == 0
    assert scrapes.refused["scrapes"] == 1


async def test_who_goes_away_while_waiting_leaves_nothing(scrapes: Scrapes) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scrapes.answer, Query("per-object"))
        nursery.start_soon(scrapes.answer, Query("per-object"))
        await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert not scrapes._turn.locked()
    assert not scrapes._asking
    assert (await scrapes.answer(Query("per-object"))).size > 1_000


async def test_one_who_takes_nothing_is_left(server: Harness) -> None:
    sent: list[object] = []
    app = server.server.metrics_app()

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def take_nothing(message: object) -> None:
        sent.append(message)
        await trio.sleep_forever()

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/metrics",
        "raw_path": b"/metrics",
        "root_path": "",
        "scheme": "http",
        "query_string": b"",
        "headers": [],
        "client": ("127.0.0.1", 1),
    }
    with trio.fail_after(paths.SEND_SECONDS + 5):
        await app(scope, receive, take_nothing)  # type: ignore[arg-type]
    assert len(sent) == 1
    async with trio.open_nursery() as nursery:  # newcomers do not wait for those who take nothing
        for _ in range(paths.MAX_SENT_AT_ONCE + 3):
            nursery.start_soon(app, scope, receive, take_nothing)  # type: ignore[arg-type]
        await wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == paths.MAX_SENT_AT_ONCE
        nursery.cancel_scope.cancel()


async def test_streams_come_and_go_meanwhile(server: Harness, metrics: Metrics, peer: Peer) -> None:
    """Whole lines, no stream twice, and those that are there all the time."""
    for n in range(120):
        await peer.create(f"stays-{n}")
    is_over = False

    async def churn(number: int) -> None:
        other, n = await server.peer(), 0
        while not is_over:
            n += 1
            await other.begin(f"goes-{number}-{n}")
            await other.store([b"m"], first_id=n)
            await other.subscribe(f"goes-{number}-{n}")
            await other.code(c.Delete, f"goes-{number}-{n}")
            await other.code(c.DeletePublisher, 1)
            other.unasked.clear()

    before: dict[str, float] = {}
    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(churn, number)
        for _ in range(4):
            found = await metrics.scrape("/per-object")
            names = {name for _, name in streams(found)}
            assert names >= {f"stays-{n}" for n in range(120)}
            total = await metrics.scrape()
            for name, value in before.items():
                assert total.of(name) >= value, name
            before = {
                name: v for (name, key), v in total.items() if name.endswith("_total") and not key
            }
        is_over = True
    assert before["rabbitmq_queues_deleted_total"] > 0
    assert before["streamd_chunks_sent_total"] > 0


async def test_an_answer_that_is_too_large(
    server: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrapes_module, "MAX_ANSWER_BYTES", 5_000)
    for n in range(200):
        await peer.create(sha256(b"%d" % n).hexdigest())
    metrics = Metrics(server)
    answer = await metrics.ask("/per-object")
    assert answer.status_code == 503
    assert "ask /metrics/detailed" in answer.json()["reason"]
    assert (await metrics.ask("/detailed?family=queue_consumer_count&queue=a")).status_code == 200


# -- faults


async def test_a_metric_that_fails_is_left_out(
    server: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> int:
        raise ZeroDivisionError

    first = server_metrics.OWN[1]
    broken = [first._replace(values=fail) if one is first else one for one in server_metrics.SERVER]
    monkeypatch.setattr(scrapes_module, "SERVER", broken)
    metrics = Metrics(server)
    found = await metrics.scrape()
    assert found.of("rabbitmq_connections") == 0
    assert first.family.name not in found.text
    assert f"collecting metrics ({first.family.name}) failed" in caplog.text
    again = await metrics.scrape()
    assert again.of("streamd_background_faults_total", task="collecting metrics") == 2


async def test_a_stream_that_fails_is_left_out(
    server: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await peer.create("good")
    await peer.create("bad")
    alarm = Stream.alarm.fget  # type: ignore[attr-defined]

    def fails_for_one(stream: Stream) -> str:
        if stream.name == "bad":
            raise ZeroDivisionError
        return str(alarm(stream))

    monkeypatch.setattr(Stream, "alarm", property(fails_for_one))
    found = await Metrics(server).scrape("/per-object")
    assert streams(found) == {("/", "good")}
    assert found.of("rabbitmq_queues") == 2


# -- the format


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0001, "0.0001"),
        (0.5, "0.5"),
        (100.0, "100.0"),
        (1e5, "100000.0"),
        (1e6, "1e+06"),
        (5e7, "5e+07"),
        (2.5e6, "2.5e+06"),
    ],
)
def test_bounds_are_written_as_dashboards_ask_for_them(value: float, text: str) -> None:
    assert bound(value) == text
    from prometheus_client.utils import floatToGoString  # noqa: PLC0415

    assert floatToGoString(value) == text


async def test_all_families_have_a_head_and_keep_together(server: Harness, peer: Peer) -> None:
    await peer.create("s")
    for path in ("", "/per-object", "/detailed?family=streamd_stream&family=queue_metrics"):
        found = await Metrics(server).scrape(path)
        heads = re.findall(r"^# TYPE (\S+) (\S+)$", found.text, re.MULTILINE)
        assert len({name for name, _ in heads}) == len(heads)
        for name, kind in heads:
            if kind == "counter":
                assert name.endswith("_total"), name
        assert not any(math.isnan(value) for value in found.values())


def test_every_family_is_declared_once() -> None:
    families = [metric.family for metric in (*server_metrics.SERVER, *server_metrics.CLUSTER)]
    families += [column.family for column in stream_metrics.COLUMNS]
    names = [family.name for family in families]
    assert len(set(names)) == len(names)
    assert all(family.help and "\n" not in family.help for family in families)
    assert [*lines("x", ())] == []
