"""`python -m benchmarks.soak`: the run, its report, and exit code 1 when something is wrong."""

import asyncio
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path

import click

from benchmarks.soak import queues, streams
from benchmarks.soak.child import Child
from benchmarks.soak.ledger import Ledger, Reader, Told
from benchmarks.soak.picture import draw, slope
from clients import Client, connect
from segments.disk import OsDisk
from segments.verify import verify
from tests.support.stores import KINDS, StoreServer

_STREAMS = ("plain", "named", "filtered")
_KEPT_BYTES, _SEGMENT_BYTES = 2_000_000, 150_000  # so that retention has to work
_ARGUMENTS = {"stream-filter-property": "kind", "stream-local-max-length-bytes": "300000"}
_BETWEEN_FAULTS = (4.0, 15.0)
_LAST_SECONDS = 60  # for consumers to come to the end when publishing has stopped
_MOST_MEMORY = 300e6
_MOST_GROWTH = 3e6 / 60  # bytes per second, in a life that is long
_CALM_SHARE, _CALM_KINDS = 1 / 3, ("pause",)  # at the end it is only paused, to see what grows
_SQL = "kind IN ('k3', 'k4') AND large = TRUE"


class Soak:
    """One run.

    Args:
        child: the server.
        chance: when which fault happens.
        seconds: how long.
        kinds: of faults to choose from.
    """

    def __init__(
        self, child: Child, chance: random.Random, seconds: float, kinds: Sequence[str]
    ) -> None:
        self.child = child
        self.ledger = Ledger()
        self.readers: list[Reader] = []
        self.messages: list[tuple[float, int, int]] = []
        self._chance = chance
        self._seconds = seconds
        self._kinds = kinds
        self._stop_publishing, self._stop = asyncio.Event(), asyncio.Event()
        self._stop_publishing_in_threads, self._stop_in_threads = (threading.Event() for _ in "12")
        self._threads: list[tuple[threading.Thread, bool]] = []
        self._publishers: list[asyncio.Task[None]] = []
        self._consumers: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Run everything, until all that was confirmed has arrived."""
        uri = f"rabbitmq-stream://guest:guest@127.0.0.1:{self.child.stream_port}/"
        async with (
            connect(uri, name="out", retry_seconds=inf, heartbeat=5) as out,
            connect(uri, name="in", retry_seconds=inf, heartbeat=5) as back,
        ):
            for name in _STREAMS:
                await out.create(
                    name,
                    filter_size=64,
                    max_length_bytes=_KEPT_BYTES,
                    segment_size=_SEGMENT_BYTES,
                    arguments=_ARGUMENTS,
                )
            self._begin(out, back)
            looking = asyncio.create_task(self._look(back))
            await self._disturb()
            self._stop_publishing.set()
            self._stop_publishing_in_threads.set()
            await self._finish(self._publishers, publishers=True)
            await self._arrive()
            self._stop.set()
            self._stop_in_threads.set()
            looking.cancel()
            for task in self._consumers:
                task.cancel()
            await asyncio.gather(*self._consumers, looking, return_exceptions=True)
            await self._finish([], publishers=False)
            self.ledger.judge_gaps(await _first_offsets(back))

    # -- what runs

    def _begin(self, out: Client, back: Client) -> None:
        ledger, child = self.ledger, self.child
        stop = self._stop_publishing
        named = ledger.add("own-named", "named", may_repeat=False)
        plain = ledger.add("own-plain", "plain", may_repeat=True)
        valued = ledger.add("own-valued", "filtered", may_repeat=False)
        numbered = ledger.add("rstream", "named", may_repeat=False)
        self._publishers = [
            asyncio.create_task(streams.publish(out, plain, stop)),
            asyncio.create_task(streams.publish(out, named, stop, with_sub_batches=True)),
            asyncio.create_task(streams.publish(out, valued, stop, with_values=True)),
            asyncio.create_task(streams.publish_with_rstream(child.stream_port, numbered, stop)),
        ]
        for name, stream in (("pika-plain", "plain"), ("pika-valued", "filtered")):
            producer = ledger.add(name, stream, may_repeat=True)
            self._thread(
                queues.publish, child.amqp_port, producer, self._stop_publishing_in_threads
            )
        for stream in _STREAMS:
            self._read(back, self._reader("all", stream))
        stored = self._reader("stored", "plain")
        self._consumers.append(
            asyncio.create_task(streams.read_from_stored(back, stored, self._stop))
        )
        two = ("k1", "k2")
        by_value = self._reader("values", "filtered", lambda told: told.kind in two)
        self._read(back, by_value, filter_values=two, filter_value=_kind_of)
        self._read(back, self._reader("sql", "filtered", _selected), sql=_SQL)
        for name, stream, wants, arguments in (
            ("pika", "plain", lambda _: True, {}),
            ("pika value", "filtered", lambda told: told.kind == "k1", {"x-stream-filter": "k1"}),
            ("pika sql", "filtered", _selected, {"x-stream-sql": _SQL}),
        ):
            reader = self._reader(name, stream, wants)
            self._thread(queues.read, child.amqp_port, reader, self._stop_in_threads, arguments)

    def _reader(
        self, name: str, stream: str, wants: Callable[[Told], bool] = lambda _: True
    ) -> Reader:
        reader = Reader(self.ledger, name, stream, wants)
        self.readers.append(reader)
        return reader

    def _read(self, client: Client, reader: Reader, **options: object) -> None:
        reading = streams.read(client, reader, self._stop, **options)
        self._consumers.append(asyncio.create_task(reading))

    def _thread(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        thread.start()
        self._threads.append((thread, work is queues.publish))

    # -- what happens

    async def _disturb(self) -> None:
        end = time.monotonic() + self._seconds
        while (left := end - time.monotonic()) > 0:
            pause = self._chance.uniform(*_BETWEEN_FAULTS)
            await asyncio.sleep(min(pause, left))
            self._check_alive()
            if pause < left:
                kinds = _CALM_KINDS if left < _CALM_SHARE * self._seconds else self._kinds
                await asyncio.to_thread(self.child.disturb, self._chance, kinds)

    def _check_alive(self) -> None:
        if not self.child.is_running:
            raise RuntimeError(f"the server has ended: {self.child.log.read_text()[-2000:]}")
        for task in (*self._publishers, *self._consumers):
            if task.done():
                task.result()
                raise RuntimeError("a client has ended by itself")

    async def _look(self, client: Client) -> None:
        while True:
            self.child.look()
            confirmed = sum(producer.confirmed for producer in self.ledger.producers.values())
            received = sum(reader.received for reader in self.readers)
            self.messages.append((self.child.seconds, confirmed, received))
            await asyncio.sleep(0.5)
            if self.ledger.gaps:
                self.ledger.judge_gaps(await _first_offsets(client))

    async def _finish(self, tasks: list[asyncio.Task[None]], *, publishers: bool) -> None:
        for task in tasks:
            await asyncio.wait_for(task, _LAST_SECONDS)
        for thread, publishes in self._threads:
            if publishes is publishers:
                await asyncio.to_thread(thread.join, _LAST_SECONDS)
                if thread.is_alive():
                    self.ledger.violations.append("a pika client does not come to its end")

    async def _arrive(self) -> None:
        """Wait until every reader has got everything."""
        end = time.monotonic() + _LAST_SECONDS
        while time.monotonic() < end:
            if all(reader.has_all() for reader in self.readers):
                return
            await asyncio.sleep(0.2)
        for reader in self.readers:
            self.ledger.violations += reader.missing()


def _selected(told: Told) -> bool:
    return told.kind in {"k3", "k4"} and told.is_large


def _kind_of(message: object) -> str:
    return str(message.application_properties["kind"])  # type: ignore[attr-defined]


async def _first_offsets(client: Client) -> dict[str, int]:
    return {name: (await client.stats(name))["first_chunk_id"] for name in _STREAMS}


async def _read_again(child: Child, ledger: Ledger) -> int:
    """Read what is left once more, after the last restart; how much that was."""
    uri = f"rabbitmq-stream://guest:guest@127.0.0.1:{child.stream_port}/"
    readers = [Reader(ledger, "again", stream) for stream in _STREAMS]
    async with connect(uri) as client:
        for reader in readers:
            async with client.consumer(reader.stream, offset="first", until_end=True) as messages:
                async for message in messages:
                    streams.take(reader, message)
        ledger.judge_gaps(await _first_offsets(client))
    for reader in readers:
        ledger.violations += reader.missing()
    return sum(reader.received for reader in readers)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seconds", default=600.0, show_default=True)
@click.option("--seed", type=int, help="When which fault happens; else another one each time.")
@click.option(
    "--faults",
    default="kill,kill,stop,pause",
    show_default=True,
    help="From which is chosen; with pause only, memory over a long life can be seen.",
)
@click.option("--flush", default="interval", show_default=True, help="The server's setting.")
@click.option(
    "--store", type=click.Choice(KINDS), help="With a tier in such a store; it is killed as well."
)
@click.option("--chart", type=click.Path(path_type=Path, dir_okay=False), help="A PNG file.")
def main(
    seconds: float,
    seed: int | None,
    faults: str,
    flush: str,
    store: str | None,
    chart: Path | None,
) -> None:
    """Mixed load on a server that is killed, restarted and paused; each message is checked."""
    seed = time.time_ns() % 1_000_000_000 if seed is None else seed
    click.echo(f"seed {seed}, {seconds:.0f} seconds")
    for name in ("pika", "rstream", "asyncio"):  # they tell of each connection that they lose
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="streamd-soak-") as folder:
        kinds, options = faults.split(","), ["--flush", flush]
        server = None
        if store is not None:
            server = StoreServer(store, Path(folder, "store")).start()
            os.environ.update(server.environment)
            options += ["--tier", server.url("soak"), "--tier-delete-delay-seconds", "1"]
            options += ["--tier-endpoint", server.endpoint] if server.endpoint else []
            kinds.append("store")
        child = Child(Path(folder, "data"), *options, store=server)
        child.start()
        soak = Soak(child, random.Random(seed), seconds, kinds)  # noqa: S311
        try:
            asyncio.run(soak.run())
            child.end(signal.SIGTERM)
            violations = soak.ledger.violations
            for path in sorted(Path(folder, "data", "streams").glob("*/*")):
                violations += [f"{path.name}: {finding}" for finding in verify(OsDisk(), str(path))]
            child.start()
            again = asyncio.run(_read_again(child, soak.ledger))
            child.end(signal.SIGTERM)
        finally:
            if child.is_running:
                child.end(signal.SIGKILL)
            if server is not None:
                server.kill()
        _report(soak, again)
        if chart is not None:
            sent = soak.messages[-1][1]
            title = f"{sent:,} messages, {len(child.faults)} faults, {len(violations)} violations"
            draw(chart, child.samples, child.faults, soak.messages, title)
            click.echo(f"picture: {chart}")
    sys.exit(bool(violations))


def _report(soak: Soak, again: int) -> None:
    child, ledger = soak.child, soak.ledger
    took = soak.messages[-1][0]
    for producer in ledger.producers.values():
        click.echo(f"{producer.name} to {producer.stream}: {producer.confirmed:,} confirmed")
    for reader in soak.readers:
        click.echo(
            f"{reader.name} from {reader.stream}: {reader.received:,}, {reader.repeated} twice"
        )
    confirmed, received = soak.messages[-1][1:]
    click.echo(
        f"{confirmed:,} confirmed and {received:,} received in {took:.0f} s, {again:,} read again "
        f"at the end; {ledger.taken} gaps are retention's"
    )
    kinds = [fault.kind for fault in child.faults]
    counts = ", ".join(f"{kinds.count(kind)} × {kind}" for kind in sorted(set(kinds)))
    click.echo(f"survived: {counts}; longest start {max(child.recoveries):.2f} s")
    highest = max(sample.memory for sample in child.samples)
    descriptors = max(sample.descriptors for sample in child.samples)
    growth = slope(child.samples)
    shown = "too short a run for a slope"
    if growth is not None:
        shown = f"slope {growth * 60 / 1e6:+.2f} MB per minute"
    click.echo(
        f"memory: {highest / 1e6:.0f} MB at most, {shown}; {descriptors} descriptors at most"
    )
    if growth is not None and growth > _MOST_GROWTH:
        ledger.violations.append(f"memory grows: {shown}")
    log = child.log.read_text()
    if highest > _MOST_MEMORY:
        ledger.violations.append(f"{highest:,} bytes of memory, at most {_MOST_MEMORY:,.0f} may be")
    ledger.violations += [f"ended with {code} after SIGTERM" for code in child.exits if code]
    wrong = [line for line in log.splitlines() if " ERROR " in line]
    if "store" in kinds:  # it is told of a store that is away
        wrong = [line for line in wrong if "the tier cannot be read" not in line]
    ledger.violations += [f"the log: {line}" for line in wrong]
    if "Traceback" in log:
        ledger.violations.append(f"a traceback in the log: {log[log.index('Traceback') :][:2000]}")
    for text in ledger.violations[:50]:
        click.echo(f"VIOLATION {text}")
    click.echo(f"violations: {len(ledger.violations)}")


if __name__ == "__main__":
    main()
