"""The last hour: rates, latencies and delays, in bounded memory."""

from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest
import trio

from streamd.broker.streams import history as module
from streamd.broker.streams.history import History, Moment
from streamd.broker.traffic import SECONDS, Histogram
from streamd.wire.stream import commands as c
from tests.support.server import OK, Harness, Peer, harness


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Harness]:
    async with harness(tmp_path, beat_seconds=0.25) as running:
        yield running


@pytest.fixture
def history(server: Harness) -> History:
    return server.server.broker.history


async def publish(peer: Peer, count: int, first_id: int) -> None:
    await peer.store([b"x" * 100] * count, first_id=first_id)


async def test_rates_of_the_server_and_of_a_stream(
    server: Harness, peer: Peer, history: History
) -> None:
    await peer.begin("s")
    await trio.sleep(20.05)
    await publish(peer, 50, 1)
    await peer.subscribe("s")
    await peer.bodies(50)
    await trio.sleep(20)
    moments = history.server()
    assert len(moments) == 8
    assert all(b.at_ms - a.at_ms in range(4_900, 5_200) for a, b in pairwise(moments))
    busy: list[Moment] = [m for m in moments if m.messages_in]
    assert len(busy) == 1
    assert busy[0].messages_in == pytest.approx(10, rel=0.05)
    assert busy[0].messages_out == pytest.approx(10, rel=0.05)
    assert busy[0].bytes_in > 50 * 100 / 5
    assert busy[0].bytes_out > 50 * 100 / 5
    assert busy[0].confirm_p50 is not None
    assert busy[0].confirm_p99 is not None
    assert 0 < busy[0].confirm_p50 <= busy[0].confirm_p99
    assert moments[-1].confirm_p50 is None
    stream = history.stream(server.host.find("s"))
    assert [round(one.messages_in, 1) for one in stream] == [2.5]
    assert stream[0].bytes_out > 0


async def test_an_hour_and_no_more(server: Harness, peer: Peer, history: History) -> None:
    await peer.begin("s")
    stream = server.host.find("s")
    for n in range(400):
        if n < 200:
            stream.traffic.sent_to_amqp(20, 100)
        for _ in range(4):
            history.sample()
        await history.sample_streams()
        if n == 199:
            assert len(history.stream(stream)) == 180
            assert len(history.server()) == 720
    assert history.stream(stream) == []  # nothing for more than an hour
    assert len(history.server()) == 720


async def test_streams_that_are_gone_are_forgotten(
    server: Harness, peer: Peer, history: History
) -> None:
    for name in ("s", "t"):
        await peer.create(name)
        server.host.find(name).traffic.sent_to_amqp(1, 1)
    stream = server.host.find("s")
    await history.sample_streams()
    assert len(history._of_streams) == 2
    assert await peer.code(c.Delete, "s") == OK
    await history.sample_streams()
    assert history.stream(stream) == []
    assert len(history._of_streams) == 1


async def test_so_many_streams_and_no_more(
    server: Harness, peer: Peer, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_STREAMS", 3)
    for n in range(5):
        await peer.create(f"s{n}")
        server.host.find(f"s{n}").traffic.sent_to_amqp(1, 1)
    await history.sample_streams()
    shown = [len(history.stream(server.host.find(f"s{n}"))) for n in range(5)]
    assert sorted(shown) == [0, 0, 1, 1, 1]


async def test_delays_of_the_loop_are_seen(server: Harness, history: History) -> None:
    traffic = server.server.broker.traffic
    await trio.sleep(10)
    seen = sum(traffic.loop_delay_seconds.counts)
    assert 36 <= seen <= 41
    history._longest_delay = 0.25
    history.sample()
    assert history.server()[-1].loop_delay == 0.25


def test_quantiles() -> None:
    histogram = Histogram(SECONDS)
    assert histogram.quantile(0.5) is None
    for _ in range(99):
        histogram.observe(0.0015)
    histogram.observe(3.0)
    half = histogram.quantile(0.5)
    assert half is not None
    assert 0.001 < half <= 0.002
    most = histogram.quantile(1)
    assert most is not None
    assert 2 < most <= 5
    before = list(histogram.counts)
    assert histogram.quantile(0.5, before) is None
    histogram.observe(100.0)
    assert histogram.quantile(0.5, before) == SECONDS[-1]


def test_many_values_at_once() -> None:
    one, other = Histogram((10.0, 100.0)), Histogram((10.0, 100.0))
    for values in ([5, 6, 7], [5, 50, 500], [10, 11]):
        one.observe_all(values)
        for value in values:
            other.observe(value)
    assert (one.counts, one.sum) == (other.counts, other.sum)
