"""A new machine that goes on from the store, and one that only reads."""

import os
import selectors
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from benchmarks.latency import Chunks, Pace, Publisher, ready
from benchmarks.load import Load, frames, publish
from benchmarks.raw_connection import SIZE, RawConnection
from benchmarks.reading import CREDIT, FIRST, FRAME, filters
from benchmarks.target import Target
from benchmarks.tier.bench import (
    GB,
    LOOK_SECONDS,
    MIB,
    SEGMENT_BYTES,
    STREAM,
    VALUES,
    Bench,
    Row,
    at_most,
    at_once,
    has_catalog,
    let_others_go_first,
    messages_in,
    publish_all,
    status,
    stored,
    wait_until,
    wait_until_stored,
)
from segments.errors import SegmentsError
from segments.store.stores import open_store
from streamd.wire.stream import commands as c
from streamd.wire.stream.codec import encode
from streamd.wire.stream.fields import OffsetSpecification, Pair

_OFFSET = 4
_WAL_BYTES, _WINDOW = 50_000_000, 1_000_000
_SOON = ("--tier-roll-seconds", "1")  # so that all is stored soon
_RATE = 1_000
_LEAD_SECONDS = 0.05
_PATIENCE_SECONDS = 30
_IDS = struct.Struct(">BI")  # of a confirm: the publisher, and how many ids follow


def restoring(bench: Bench) -> Iterator[Row]:
    """A new machine: of a server that confirms by itself, and of one whose tier confirms."""
    yield from _restoring(bench, "")
    yield from _restoring(bench, "store")


def _restoring(bench: Bench, confirm: str) -> Iterator[Row]:
    size, place = bench.size, bench.place()
    each = size.restore // size.streams
    segment = Pair(SEGMENT_BYTES, str(max(each // 4, MIB)))
    more = (Pair("stream-confirm", confirm),) if confirm else ()
    names = [f"{STREAM}-{number}" for number in range(size.streams)]
    load = Load(messages_in(each))
    made = frames(load)
    with Target(bench.data(), *at_once(place, *_SOON)) as target, target.connect() as connection:
        for name in names:
            connection.request(c.Create, name, (segment, *more))
            publish(connection, name, load, made)
        least = len(names) * load.messages * load.size
        wait_until("all was stored", lambda: status(connection).bytes_remote >= least)
        wait_until_stored(connection)
        found = status(connection).bytes_remote / GB
        for name in names if confirm else []:
            last = load._replace(messages=messages_in(_WAL_BYTES // len(names)), window=_WINDOW)
            publish(connection, name, last, frames(last))
        log = status(connection).slot_bytes_kept / MIB
    began = time.perf_counter()
    with Target(bench.data(), *place.options, "--restore") as target:
        seconds = time.perf_counter() - began
        name = f"restore {len(names)} streams of {found:.2f} GB: until it is ready"
        if confirm:
            name = f"the same with {log:.0f} MiB of messages that only the tier confirmed"
        yield Row(name, f"{seconds:.2f} s", seconds, at_most(3), "s")
        with target.connect() as connection:
            connection.send(c.Subscribe, 0, names[len(names) // 2], FIRST, 1, ())
            connection.wait_for(c.Deliver)
        seconds = time.perf_counter() - began
        yield Row("until the first message of one of them", f"{seconds:.2f} s", seconds)


def reading_elsewhere(bench: Bench) -> Iterator[Row]:
    """What a server that only reads, and its consumers, do to the one that writes."""
    size, data, place = bench.size, bench.data(), bench.place()
    found: dict[bool, list[float]] = {False: [], True: []}
    with Target(data, *at_once(place, *_SOON)) as target, target.connect() as connection:
        connection.request(c.Create, STREAM, bench.arguments())
        publish_all(connection, messages_in(size.cold // 10), values=VALUES)
        wait_until_stored(connection)
        store = open_store(place.url, place.endpoint)
        wait_until("the catalog was stored", lambda: has_catalog(store))
        with Target(bench.data(), *place.options, "--read-only") as other:
            late = [_behind(connection, other, data) for _ in range(min(size.rounds, 3))]
        for number in range(size.rounds):
            for has_readers in (False, True) if number % 2 else (True, False):
                if not has_readers:
                    found[False].append(_slowest_confirms(target, size.seconds))
                    continue
                with Target(bench.data(), *place.options, "--read-only") as other:
                    let_others_go_first(other.pid)
                    with _readers(other, size.consumers):
                        found[True].append(_slowest_confirms(target, size.seconds))
    off, on = (median(found[kind]) * 1e3 for kind in (False, True))
    yield Row("confirms of 1,000 messages a second, 99th percentile", f"{off:.2f} ms", off)
    name = f"the same beside a read-only server with {size.consumers} filtered consumers"
    yield Row(name, f"{on:.2f} ms", on)
    yield Row("the same as a share", f"{on / off:.2f}", on / off, at_most(1.1))
    yield Row("from stored to delivered by it", f"{median(late):.2f} s", median(late))


def _behind(connection: RawConnection, other: Target, data: Path) -> float:
    """Seconds from the moment that a message is stored until the other server delivers it."""
    before = stored(data).next_offset
    with other.connect() as consumer:
        where = OffsetSpecification(_OFFSET, before)
        consumer.request(c.Subscribe, 0, STREAM, where, 1, ())
        publish_all(connection, 1)
        wait_until("it was stored", lambda: _next_offset(data) > before, pause=LOOK_SECONDS)
        began = time.perf_counter()
        consumer.wait_for(c.Deliver)
        return time.perf_counter() - began


def _next_offset(data: Path) -> int:
    try:
        return stored(data).next_offset
    except SegmentsError:  # it is being replaced
        return 0


class _Confirmed(Publisher):
    """Publishes at a pace, and notes how long after it was due a message was confirmed.

    Attributes:
        waited: seconds.
    """

    def __init__(self, connection: RawConnection, pace: Pace, begin: float) -> None:
        super().__init__(connection, pace, begin, _value)
        self.waited: list[float] = []
        self._connection, self._received = connection, b""

    def receive(self) -> None:
        """Take in confirms."""
        piece = self._connection.socket.recv(1 << 20)
        now = time.perf_counter()
        if not piece:
            raise ConnectionError("the server closed the connection")
        received, at = self._received + piece, 0
        while at + FRAME.size <= len(received):
            size, key, _ = FRAME.unpack_from(received, at)
            if at + SIZE.size + size > len(received):
                break
            if key == c.PublishConfirm.KEY:
                _, count = _IDS.unpack_from(received, at + FRAME.size)
                ids = struct.unpack_from(f">{count}Q", received, at + FRAME.size + _IDS.size)
                self.waited += [now - self._due(number) for number in ids]
            at += SIZE.size + size
        self._received = received[at:]


def _value(number: int) -> bytes:
    return b"v%02d" % (number % VALUES)


def _slowest_confirms(target: Target, seconds: float) -> float:
    """Publish for so long: how long one in a hundred messages waits at least, in seconds."""
    pace = Pace(_RATE, seconds)
    with selectors.EpollSelector() as selector, target.connect() as connection:
        connection.request(c.DeclarePublisher, 0, "", STREAM)
        begin = time.perf_counter() + _LEAD_SECONDS
        publisher = _Confirmed(connection, pace, begin)
        selector.register(connection.socket, selectors.EVENT_READ)
        while len(publisher.waited) < pace.messages:
            if time.perf_counter() > begin + seconds + _PATIENCE_SECONDS:
                raise TimeoutError(f"not all was confirmed in {_PATIENCE_SECONDS} s")
            for _ in ready(selector, publisher.send_due()):
                publisher.receive()
    waited = sorted(publisher.waited[len(publisher.waited) // 10 :])  # warm
    return waited[len(waited) * 99 // 100]


@contextmanager
def _readers(target: Target, consumers: int) -> Iterator[None]:
    """Consumers of a filter value each, from the beginning on, in a process of their own."""
    reader = get_context("spawn").Process(
        target=_replay, args=(target.host, target.port, consumers), daemon=True
    )
    reader.start()
    try:
        time.sleep(1)  # until it has begun
        yield
        if not reader.is_alive():
            raise RuntimeError("the consumers have ended before the measurement")
    finally:
        reader.kill()
        reader.join()


def _replay(host: str, port: int, consumers: int) -> None:
    let_others_go_first(os.getpid())
    with RawConnection(host, port) as connection:
        for number in range(consumers):
            wanted = filters((_value(number),))
            connection.request(c.Subscribe, number, STREAM, FIRST, 0, wanted)
        for number in range(consumers):
            connection.socket.sendall(encode(c.Credit(number, CREDIT)))
        chunks = Chunks(connection)
        while True:
            for chunk in chunks.receive():
                connection.socket.sendall(encode(c.Credit(chunk.subscription, 1)))
