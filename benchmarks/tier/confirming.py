"""Confirms through the store: how many messages, what they cost, and how long they take."""

import time
from collections.abc import Iterator
from statistics import median, quantiles

from benchmarks.latency import Pace, latencies
from benchmarks.load import Load, frames, publish
from benchmarks.raw_connection import RawConnection
from benchmarks.target import Target
from benchmarks.tier.bench import (
    STREAM,
    Bench,
    Row,
    at_least,
    at_most,
    at_once,
    go_on_as_all,
    has_catalog,
    let_others_go_first,
    publish_all,
    status,
    wait_until,
    wait_until_ready,
    wait_until_stored,
)
from benchmarks.tier.stores import Place, Proxy
from segments.store.stores import open_store
from streamd.wire.stream import commands as c
from streamd.wire.stream.fields import Pair

_WINDOW = 1_000_000  # messages on their way: an interval has as many
_LATENCIES, _RATE = 300, 50  # messages whose confirms are timed, and how many a second
_UNTIL_READ = 5.0  # seconds: a read-only server has what was there before
_STORE = Pair("stream-confirm", "store")


def confirming(bench: Bench) -> Iterator[Row]:
    """The same stream, confirmed by this machine and by the store, in turn."""
    yield from _publishing(bench, "the store here", 0.6)
    if bench.store.server.pid:
        let_others_go_first(bench.store.server.pid)
        yield from _publishing(bench, "the store at the lowest priority", 0.9)
        go_on_as_all(bench.store.server.pid)
    for interval in (20, 200):
        for delay in (0.0, 0.01, 0.03, 0.1) if bench.store.endpoint else (0.0,):
            yield from _latencies(bench, interval, delay)
    yield from _requests(bench)
    yield from _read_elsewhere(bench)


def _publishing(bench: Bench, where: str, goal: float) -> Iterator[Row]:
    rates: dict[bool, list[float]] = {False: [], True: []}
    used: dict[bool, list[float]] = {False: [], True: []}
    for number in range(bench.size.rounds):
        for by_store in (False, True)[:: 1 if number % 2 else -1]:
            rate, cpu = _publish(bench, by_store=by_store)
            rates[by_store].append(rate)
            used[by_store].append(cpu * 1e6)
    local, store = median(rates[False]), median(rates[True])
    name = f"publish 100 B, {where}: confirmed by this machine, by the store"
    yield Row(name, f"{local:,.0f}; {store:,.0f} msg/s", store)
    yield Row("the same as a share", f"{store / local:.2f}", store / local, at_least(goal))
    more = median(used[True]) - median(used[False])
    text = f"{median(used[False]):.2f}; {median(used[True]):.2f} µs"
    yield Row("processor time of the server, a message", text, more, at_most(0.1), "µs more")


def _publish(bench: Bench, *, by_store: bool) -> tuple[float, float]:
    """Messages a second, and processor time of the server for each, until all is stored."""
    with (
        Target(bench.data(), *at_once(bench.place())) as target,
        target.connect() as connection,
    ):
        arguments = (*bench.arguments(), *([_STORE] if by_store else []))
        connection.request(c.Create, STREAM, arguments)
        wait_until_ready(connection)
        publish_all(connection, 1)
        before, began = target.cpu_seconds(), time.perf_counter()
        load = Load(bench.size.publish // 4, window=_WINDOW)
        made = frames(load)
        for _ in range(4):
            publish(connection, STREAM, load, made)
        seconds = time.perf_counter() - began
        wait_until_stored(connection)
        cpu = target.cpu_seconds() - before
        connection.request(c.Delete, STREAM)
    return bench.size.publish / seconds, cpu / bench.size.publish


def _latencies(bench: Bench, interval: int, delay: float) -> Iterator[Row]:
    """How long single messages wait for their confirms, and what a request takes beside it."""
    place = bench.place()
    if not place.endpoint:
        yield from _timed(bench, place, interval, delay)
        return
    with Proxy(place.endpoint, delay) as proxy:
        yield from _timed(bench, place._replace(endpoint=proxy.endpoint), interval, delay)


def _timed(bench: Bench, place: Place, interval: int, delay: float) -> Iterator[Row]:
    options = (*place.options, "--confirm-interval-ms", str(interval))
    with Target(bench.data(), *options) as target, target.connect() as connection:
        connection.request(c.Create, STREAM, (_STORE,))
        wait_until_ready(connection)
        waited = _wait_times(connection)
    half, last = median(waited) * 1e3, quantiles(waited, n=100)[98] * 1e3
    name = f"confirm, interval {interval} ms, store {delay * 1e3:.0f} ms away: p50; p99"
    limit = delay * 1e3 + interval + 5
    yield Row(name, f"{half:.1f}; {last:.1f} ms", half, at_most(limit), "ms")


def _wait_times(connection: RawConnection) -> list[float]:
    """Seconds that messages waited, of a publisher that sends some a second."""
    load = Load(1, batch=1, window=1)
    made = frames(load)
    publish(connection, STREAM, load, made)
    waited, began = [], time.perf_counter()
    for number in range(_LATENCIES):
        time.sleep(max(began + number / _RATE - time.perf_counter(), 0))
        waited.append(publish(connection, STREAM, load, made))
    return waited


def _requests(bench: Bench) -> Iterator[Row]:
    """Requests a second while a message comes now and then, and while none does."""
    options = (*bench.place().options, "--confirm-interval-ms", "200")
    with Target(bench.data(), *options) as target, target.connect() as connection:
        connection.request(c.Create, STREAM, (_STORE,))
        wait_until_ready(connection)
        for rate in (1, 100, 0):
            before = sum(status(connection).requests.values())
            seconds, load = 10.0, Load(1, batch=1, window=1)
            made, end = frames(load), time.perf_counter() + 10.0
            while time.perf_counter() < end:
                if rate:
                    publish(connection, STREAM, load, made)
                time.sleep(1 / rate if rate else 1)
            more = (sum(status(connection).requests.values()) - before) / seconds
            name = f"requests an hour at {rate} messages a second, one after the other"
            yield Row(name, f"{more * 3_600:,.0f}", more)


def _read_elsewhere(bench: Bench) -> Iterator[Row]:
    """From when a message is due here until a read-only server delivers it."""
    place = bench.place()
    with Target(bench.data(), *place.options) as target, target.connect() as connection:
        connection.request(c.Create, STREAM, (_STORE,))
        wait_until_ready(connection)
        publish_all(connection, 1)
        store = open_store(place.url, place.endpoint)
        wait_until("the catalog was stored", lambda: has_catalog(store))
        with Target(bench.data(), *place.options, "--read-only") as other:
            time.sleep(_UNTIL_READ)
            found = latencies(target, STREAM, Pace(1_000, bench.size.seconds * 10), other)
    name = "1,000 messages a second: until a read-only server delivers them, p50; p99"
    half, last = found.at(0.5) / 1e3, found.at(0.99) / 1e3
    yield Row(name, f"{half:.2f}; {last:.2f} s", last, at_most(2), "s")
