"""Metrics count what happens, and never backwards."""

import errno
import itertools
from collections.abc import Iterator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from streamd.broker.declared.standing_selectors import parse_standing
from streamd.broker.streams import log_writer
from streamd.engine import DoorCaller, figures
from streamd.metrics.stream_metrics import COLUMNS, Table
from streamd.operations.figures import AllStreams, ListStreamFigures
from streamd.operations.names import Name
from streamd.operations.tier_reports import TierState, TierStatus
from streamd.wire.amqp091 import methods as m
from streamd.wire.stream import commands as c
from tests.support.amqp import Delivery, open_peer
from tests.support.metrics import Metrics, Scraped
from tests.support.server import NEXT, OK, Harness, Peer
from tests.support.tier import FakeTier

STREAM, AMQP = {"protocol": "stream"}, {"protocol": "amqp091"}
QUEUE_TYPE = {"queue_type": "rabbit_stream_queue"}


@pytest.fixture
def metrics(server: Harness) -> Metrics:
    return Metrics(server)


async def test_the_stream_protocol(metrics: Metrics, peer: Peer) -> None:
    await peer.begin("s")
    await peer.store([b"x" * 90] * 7)
    await peer.store([b"y"] * 3, first_id=8)
    await peer.subscribe("s")
    await peer.bodies(10)
    found = await metrics.scrape()
    assert found.of("rabbitmq_connections") == 1
    assert found.of("rabbitmq_connections_opened_total") == 1
    assert found.of("rabbitmq_consumers") == 1
    assert found.of("rabbitmq_queues") == found.of("rabbitmq_queues_created_total") == 1
    assert found.of("rabbitmq_global_publishers", **STREAM) == 1
    assert found.of("rabbitmq_global_consumers", **STREAM) == 1
    for name in ("received", "received_confirm", "confirmed"):
        assert found.of(f"rabbitmq_global_messages_{name}_total", **STREAM) == 10
    assert found.of("rabbitmq_global_messages_delivered_total", **STREAM, **QUEUE_TYPE) == 10
    assert found.of("rabbitmq_queue_messages") == found.of("rabbitmq_queue_messages_ready") == 10
    assert found.of("streamd_stored_messages_total") == found.of("streamd_sent_messages_total")
    assert found.of("streamd_stored_chunks_total") == 2
    assert found.of("streamd_chunks_sent_total") == 2
    written = found.of("streamd_stored_bytes_total")
    assert found.of("rabbitmq_io_write_bytes_total") == written
    assert 0 <= found.of("streamd_stream_bytes") - written < 100  # the file's header
    assert found.of("streamd_confirm_seconds_count") == 10
    assert found.of("rabbitmq_auth_attempts_succeeded_total", **STREAM) == 1

    await peer.vanish()
    await wait_all_tasks_blocked()
    after = await metrics.scrape()
    assert after.of("rabbitmq_global_publishers", **STREAM) == 0
    assert after.of("rabbitmq_global_consumers", **STREAM) == 0
    assert after.of("rabbitmq_connections") == 0
    assert after.of("rabbitmq_connections_closed_total") == 1
    assert falling(found, after) == []


async def test_amqp(server: Harness, metrics: Metrics) -> None:
    amqp = await open_peer(server)
    await amqp.declare("s")
    await amqp.declare("s")
    await amqp.store("s", b"x" * 50, b"y" * 5_000)
    await amqp.publish("s", b"z" * 60)
    await amqp.publish("nowhere", b"dropped")
    await amqp.publish("nowhere", b"returned", mandatory=True)
    await amqp.expect(Delivery)
    await amqp.consume("s", "c", prefetch=2, x_stream_offset="first")
    first = (await amqp.deliveries(2))[0]
    found = await metrics.scrape("/per-object")
    received = "rabbitmq_global_messages_received_total"
    assert found.of(received, **AMQP) == 5
    assert found.of("rabbitmq_global_messages_routed_total", **AMQP) == 3
    assert found.of("rabbitmq_global_messages_confirmed_total", **AMQP) == 2
    for kind in ("dropped", "returned"):
        assert found.of(f"rabbitmq_global_messages_unroutable_{kind}_total", **AMQP) == 1
    bucket = "rabbitmq_message_size_bytes_bucket"
    counts = [found.of(bucket, **AMQP, le=le) for le in ("100.0", "1000.0", "10000.0", "+Inf")]
    assert counts == [4, 4, 5, 5]
    assert found.of("rabbitmq_message_size_bytes_sum", **AMQP) == 5_110 + 15
    assert found.of("rabbitmq_queues_declared_total") == 2
    assert found.of("rabbitmq_queues_created_total") == 1
    assert found.of("rabbitmq_channels") == 1
    assert found.of("rabbitmq_global_publishers", **AMQP) == 1
    delivered = "rabbitmq_global_messages_delivered_consume_manual_ack_total"
    assert found.of(delivered, **AMQP, **QUEUE_TYPE) == 2
    assert found.of("rabbitmq_queue_messages_delivered_ack_total", vhost="/", queue="s") == 2

    await amqp.send(m.BasicAck(first.method.delivery_tag, False))
    await amqp.deliveries(1)
    await amqp.stream.aclose()
    await wait_all_tasks_blocked()
    after = await metrics.scrape("/per-object")
    acknowledged = "rabbitmq_global_messages_acknowledged_total"
    assert after.of(acknowledged, **AMQP, **QUEUE_TYPE) == 1
    assert after.of("rabbitmq_queue_messages_acked_total", vhost="/", queue="s") == 1
    assert after.of("rabbitmq_channels") == after.of("rabbitmq_global_publishers", **AMQP) == 0
    assert after.of("rabbitmq_global_consumers", **AMQP) == 0
    assert falling(found, after) == []


async def test_chunks_that_a_filter_rules_out(metrics: Metrics, peer: Peer) -> None:
    await peer.begin("s")
    for n, value in enumerate((b"a", b"b", b"c", None)):
        await peer.store([b"m"] * 4, first_id=1 + 4 * n, values=[value] * 4)
    await peer.subscribe("s", filter__0="b")
    await peer.bodies(4)
    await wait_all_tasks_blocked()
    found = await metrics.scrape("/per-object")
    of = {"vhost": "/", "stream": "s"}
    assert found.of("streamd_chunks_sent_total", **of) == 1
    assert found.of("streamd_chunks_skipped_total", **of) == 3
    assert found.of("streamd_unfiltered_chunks_skipped_total", **of) == 1
    assert found.of("streamd_bytes_not_sent_total", **of) > 3 * 4 * 5
    before = await metrics.scrape()
    assert await peer.code(c.Delete, "s") == OK
    await wait_all_tasks_blocked()
    after = await metrics.scrape()
    assert after.of("streamd_chunks_skipped_total") == 3
    assert after.of("rabbitmq_queues_deleted_total") == 1
    assert falling(before, after) == []


async def test_counters_do_not_fall_while_consumers_learn_that_their_stream_is_gone(
    server: Harness, metrics: Metrics, peer: Peer
) -> None:
    """A reader outlives its stream for a moment: what it has read counts all the time."""
    await peer.begin("s")
    await peer.store([b"m"] * 4)
    await peer.subscribe("s")
    await peer.bodies(4)
    stream = server.host.find("s")
    before = await metrics.scrape()
    stream.remove()  # its observers are told later
    server.host._streams.remove("s")
    assert falling(before, await metrics.scrape()) == []
    for observer in server.host.observers:
        observer.stream_is_gone(stream)
    after = await metrics.scrape()
    assert after.of("streamd_chunks_sent_total") == 1
    assert falling(before, after) == []
    assert not server.server.broker.traffic._gone


async def test_lag_in_messages_and_seconds(server: Harness, metrics: Metrics, peer: Peer) -> None:
    slow = await server.peer()
    await peer.begin("s")
    await peer.store([b"m"])
    await slow.subscribe("s", credit=1, name="reader")
    await slow.bodies(1)
    await slow.subscribe("s", NEXT, subscription_id=2, name="at the end")
    await trio.sleep(3_000)
    first = itertools.count(2)
    await peer.store([b"m"] * 5, first_id=next(first))
    await trio.sleep(40)
    found = await metrics.scrape("/per-object")
    of = {"vhost": "/", "stream": "s"}
    assert found.of("streamd_consumer_lag_messages", **of, consumer="reader") == 5
    # From the end of the pause on, not from the last chunk that it got.
    assert found.of("streamd_consumer_lag_seconds", **of, consumer="reader") == 40
    assert found.of("streamd_consumer_lag_seconds", **of, consumer="at the end") == 0
    assert found.of("streamd_stream_lag_seconds", **of) == 40
    assert (await metrics.scrape()).of("streamd_stream_lag_seconds") == 40


async def test_what_stream_clients_are_told_goes_wrong(
    server: Harness, metrics: Metrics, peer: Peer
) -> None:
    await peer.create("s")
    await peer.code(c.Create, "s", ())
    await peer.code(c.Delete, "t")
    await peer.code(c.Unsubscribe, 9)
    await peer.subscribe("s")
    await peer.code(c.Subscribe, 1, "s", NEXT, 1, ())
    await peer.publish([b"m"] * 3, publisher_id=77)
    await peer.next()
    stranger = server.connect()
    await stranger.code(c.PeerProperties, ())
    await stranger.code(c.SaslHandshake)
    await stranger.code(c.SaslAuthenticate, "PLAIN", b"\0guest\0wrong")
    found = await metrics.scrape()

    def count(name: str) -> float:
        return found.of(f"rabbitmq_global_stream_error_{name}_total", **STREAM)

    for name in (
        "stream_already_exists",
        "stream_does_not_exist",
        "subscription_id_does_not_exist",
        "subscription_id_already_exists",
        "publisher_does_not_exist",
        "authentication_failure",
    ):
        assert count(name) == 1, name
    assert count("internal_error") == count("access_refused") == 0
    told = [(labels["error"], value) for labels, value in found.like("streamd_errors_total")]
    assert sum(value for _, value in told) == 6
    assert len(told) == 17
    assert found.of("rabbitmq_auth_attempts_failed_total", **STREAM) == 1


def falling(before: Scraped, after: Scraped) -> list[str]:
    """Counters that are lower than they were, or gone."""
    counters = _counters(before)
    return [
        name for name, labels in counters if after.get((name, labels), -1) < before[name, labels]
    ]


def _counters(found: Scraped) -> Iterator[tuple[str, frozenset[tuple[str, str]]]]:
    for name, labels in found:
        if name.endswith(("_total", "_count", "_bucket")):
            yield name, labels


async def test_standing_selectors(server: Harness, metrics: Metrics, peer: Peer) -> None:
    await peer.create("s")
    await server.host.settings.put_selector("s", parse_standing("group", "union", "TRUE"))
    await peer.declare("s")
    await peer.store([b"\x00\x53\x75\xa0\x01x"])
    found = await metrics.scrape("/per-object")
    labels = {"vhost": "/", "stream": "s", "group": "group"}
    assert found.of("streamd_standing_selector_matches_total", **labels) == 1


async def test_amqp_consumers_that_read_in_vain(server: Harness, metrics: Metrics) -> None:
    amqp = await open_peer(server)
    await amqp.declare("s")
    await amqp.store("s", b"x", b"y")
    await amqp.consume("s", x_stream_offset="first", x_stream_sql="kind = 'none'")
    await wait_all_tasks_blocked()
    found = await metrics.scrape()
    assert found.of("streamd_chunks_in_vain_total") == 1


async def test_sizes_of_messages_that_go_nowhere_do_not_pile_up(server: Harness) -> None:
    amqp, traffic = await open_peer(server), server.server.broker.traffic
    for _ in range(5):
        await amqp.publish("nowhere", *[b"x" * 10] * 900)
        await wait_all_tasks_blocked()
        assert len(traffic.new_sizes) < 2_000
    found = await Metrics(server).scrape()
    assert found.of("rabbitmq_message_size_bytes_count", **AMQP) == 4_500
    assert found.of("rabbitmq_global_messages_received_total", **AMQP) == 4_500
    assert traffic.new_sizes == []


async def test_what_is_stored_counts_also_when_segments_and_logs_come_and_go(
    server: Harness, metrics: Metrics, peer: Peer
) -> None:
    await peer.begin("s", stream_max_segment_size_bytes="1000", max_length_bytes="4000")
    stream = server.host.find("s")
    for n in range(30):
        await peer.store([b"x" * 400] * 2, first_id=1 + 2 * n)
        if n % 10 == 9:
            await wait_all_tasks_blocked()
            await stream.life.close()
            assert not stream.is_open
    assert await peer.code(c.DeletePublisher, 1) == OK
    found = await metrics.scrape()
    assert found.of("streamd_stored_messages_total") == 60
    assert found.of("streamd_stored_chunks_total") == 30
    written = found.of("streamd_stored_bytes_total")
    assert 30 * 2 * 400 < written < 30 * (2 * 410 + 100)
    assert found.of("streamd_stream_messages") < 60  # retention has taken some
    assert await peer.code(c.Delete, "s") == OK
    after = await metrics.scrape()
    assert after.of("streamd_stored_bytes_total") == written
    assert after.of("rabbitmq_io_write_bytes_total") == written
    assert falling(found, after) == []


async def test_streams_that_take_no_messages(server: Harness, metrics: Metrics) -> None:
    for name in "abc":
        await server.host.create(name, [])
    server.host.find("a").life._cannot_open("a fault")
    found = await metrics.scrape()
    assert found.of("streamd_stream_in_trouble") == 1
    assert found.of("streamd_streams_known") == 3
    assert found.of("rabbitmq_alarms_free_disk_space_watermark") == 0
    full = OSError(errno.ENOSPC, "full")
    server.host.find("b").life._wait_for_disk(full)
    found = await metrics.scrape("/per-object")
    assert found.of("streamd_stream_in_trouble", vhost="/", stream="b") == 1
    assert found.of("streamd_stream_in_trouble", vhost="/", stream="c") == 0
    assert found.of("rabbitmq_alarms_free_disk_space_watermark") == 1


async def test_a_stream_that_nobody_has_looked_at_is_not_told_as_empty(
    server: Harness, peer: Peer
) -> None:
    await peer.create("s")
    server.host.find("s").life._figures = None  # as it is for a moment after the start
    found = await Metrics(server).scrape("/per-object")
    assert not [*found.like("streamd_stream_messages")]
    assert found.of("rabbitmq_queues") == 1
    assert found.of("streamd_streams_known") == 0


async def test_of_many_turns_in_a_millisecond_a_few_are_measured_for_all(
    server: Harness, peer: Peer
) -> None:
    seen = server.server.broker.traffic.confirm_seconds
    await peer.begin("s")
    for n in range(10):
        await peer.store([b"m"], first_id=1 + n)
    assert sum(seen.counts) == 2
    for n in range(3):
        await trio.sleep(0.01)
        await peer.store([b"m"], first_id=11 + n)
    assert sum(seen.counts) == 13
    assert 0 < seen.sum < 60


async def test_latency_is_that_of_each_message(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.count(1)
    monkeypatch.setattr(log_writer.time, "monotonic", lambda: float(next(ticks)))
    peer, seen = await server.peer(), server.server.broker.traffic.confirm_seconds
    await peer.begin("s")
    for n in range(3):
        await trio.sleep(0.01)
        await peer.store([b"m"] * 2, first_id=1 + 2 * n)
    assert (sum(seen.counts), seen.sum) == (6, 6.0)  # a tick each


async def test_so_many_names_of_consumers_and_no_more(
    server: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "MAX_NAMES", 3)
    await peer.create("s")
    for n in range(5):
        await peer.subscribe("s", subscription_id=n, name=f"n{n}")
    found = await Metrics(server).scrape("/per-object")
    assert len([*found.like("streamd_named_consumers")]) == 3
    assert found.of("streamd_stream_consumers", vhost="/", stream="s") == 5


async def test_totals_are_sums_or_the_highest(metrics: Metrics, peer: Peer) -> None:
    for n, name in enumerate("st"):
        await peer.begin(name, n)
        await peer.store([b"m"] * (2 + n), publisher_id=n)
        await peer.subscribe(name, credit=0, subscription_id=n)
    found = await metrics.scrape()
    assert found.of("streamd_stream_messages") == 5
    assert found.of("streamd_stream_lag_messages") == 3
    assert found.of("rabbitmq_stream_consumer_max_offset_lag") == 3


async def test_a_stream_that_goes_while_a_scrape_comes_to_it(
    server: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not told, but what has gone through it counts: once."""
    monkeypatch.setattr("streamd.net.turns._TURN_SECONDS", -1)  # others have it after each stream
    told = list[AllStreams]()
    await peer.begin("s")
    await peer.store([b"m"] * 7)
    for n in range(100):
        await peer.create(f"before-{n}")
    hosts = server.server.broker.virtual_hosts
    last = server.host.streams()[-1].name
    await peer.declare(last, publisher_id=2)
    await peer.store([b"m"] * 5, publisher_id=2)

    async def ask() -> None:
        door = DoorCaller(server.server.directory, "metrics")
        told.append(await server.server.engine.ask(door, ListStreamFigures()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.lowlevel.checkpoint()
        await hosts[Name("/")].delete(last, lambda: None)
    table = Table(COLUMNS, told[0].gone)
    for stream in told[0].streams:
        table.add(stream)
    assert table.flow.messages_in == 12
    assert len(table) == len(told[0].streams) - (last in [s.name for s in told[0].streams])


async def test_the_tier(server: Harness, metrics: Metrics) -> None:
    assert not [name for name, _ in await metrics.scrape() if name.startswith("streamd_tier_")]
    server.server.broker.tier = tier = FakeTier()
    found = await metrics.scrape()
    assert {name: n for (name, labels), n in found.items() if "_tier_" in name and not labels} == {
        "streamd_tier_stored_bytes": 2_000_000,
        "streamd_tier_waiting_bytes": 300,
        "streamd_tier_oldest_waiting_seconds": 4.5,
        "streamd_tier_upload_bytes_per_second": 150.0,
        "streamd_tier_uploaded_bytes_total": 7_000,
        "streamd_tier_fetched_bytes_total": 6_000,
        "streamd_tier_errors_total": 8,
        "streamd_tier_cache_bytes": 77,
        "streamd_tier_fenced": 0,
        "streamd_tier_unconfirmed_messages": 6,
        "streamd_tier_unconfirmed_bytes": 700,
        "streamd_tier_oldest_unconfirmed_seconds": 0.25,
        "streamd_tier_kept_slots": 30,
        "streamd_tier_kept_slot_bytes": 4_000,
    }
    requests = {row["kind"]: n for row, n in found.like("streamd_tier_requests_total")}
    assert requests == {"get": 5, "put": 1, "list": 0, "delete": 2}
    tier.told = TierStatus(state=TierState.FENCED)
    found = await metrics.scrape()
    assert found.of("streamd_tier_fenced") == 1
    assert found.of("streamd_tier_oldest_waiting_seconds") == 0


async def test_a_tier_that_fails_takes_no_other_metric_away(server: Harness) -> None:
    server.server.broker.tier = tier = FakeTier()
    tier.error = OSError("a bug")
    metrics = Metrics(server)
    found = await metrics.scrape()
    assert found.of("streamd_streams_known") == 0
    assert server.server.broker.supervisor.faults["collecting metrics"]
