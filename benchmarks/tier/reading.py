"""Reading what only the store has: all of it, a hundredth of it, and the first message."""

import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median

from benchmarks.load import MARKER, Load, value
from benchmarks.raw_connection import RawConnection
from benchmarks.reading import FRAME
from benchmarks.tier.bench import MIB, STREAM, VALUES, Bench, Cold, Row, at_least, at_most
from benchmarks.tier.stores import Proxy
from segments.store.object_store import ObjectStore
from segments.store.stores import open_store
from streamd.wire.stream import commands as c
from streamd.wire.stream.fields import OffsetSpecification

_BLOCK_BYTES = 4 * MIB
_PARALLEL = 8  # blocks, as a consumer reads ahead
_CHUNK_BYTES = 30_000
_OFFSET = 4
_SIZE = struct.Struct(">I")


def reading_all(bench: Bench, cold: Cold) -> Iterator[Row]:
    """All of it, in turn with what the store gives to whoever asks it directly."""
    yield from _reading_all(bench, cold, "on this machine")
    if cold.place.endpoint:  # here it is the requests that take time, not the processors
        with Proxy(cold.place.endpoint, bench.size.far) as proxy:
            place = cold.place._replace(endpoint=proxy.endpoint)
            name = f"{bench.size.far * 1e3:.0f} ms away"
            yield from _reading_all(bench, cold._replace(place=place), name)


def _reading_all(bench: Bench, cold: Cold, where: str) -> Iterator[Row]:
    rates, of_store = [], []
    for _ in range(bench.size.rounds):
        of_store.append(_rate_of_store(cold))
        found, requests, fetched = cold.read()
        rates.append(found.bytes / found.seconds)
    mine, theirs = median(rates), median(of_store)
    name = f"a store {where} alone, 4 MiB a request, {_PARALLEL} at once"
    yield Row(name, f"{theirs / 1e6:,.0f} MB/s", theirs)
    text = f"{mine / 1e6:,.0f} MB/s, {requests:,} requests for {fetched / 1e6:,.0f} MB"
    yield Row("read all, cold", text, mine)
    yield Row("the same as a share", f"{mine / theirs:.2f}", mine / theirs, at_least(0.7))


def _rate_of_store(cold: Cold) -> float:
    """Bytes a second."""
    store = open_store(cold.place.url, cold.place.endpoint)
    ranges = [
        (segment.key(cold.manifest.stream, ".segment"), start)
        for segment in cold.manifest.segments
        for start in range(0, segment.size - _BLOCK_BYTES + 1, _BLOCK_BYTES)
    ] or [(cold.manifest.segments[0].key(cold.manifest.stream, ".segment"), 0)]
    size = min(_BLOCK_BYTES, cold.manifest.segments[0].size)
    began = time.perf_counter()
    with ThreadPoolExecutor(_PARALLEL) as pool:
        for _ in pool.map(lambda one: memoryview(store.get_range(one[0], one[1], size)), ranges):
            pass
    return len(ranges) * size / (time.perf_counter() - began)


def choosing(bench: Bench, cold: Cold) -> Iterator[Row]:
    """A value in a hundredth of the chunks, in turn with all of them."""
    wanted = value(Load(0, values=VALUES), VALUES // 2), MARKER
    some_seconds, all_seconds = [], []
    for _ in range(bench.size.rounds):
        some, requests, fetched = cold.read(wanted)
        some_seconds.append(some.seconds)
        all_seconds.append(cold.read()[0].seconds)
    chunks = [size for number, size in some.chunks if number < cold.manifest.next_offset]
    number = sum(segment.num_chunks for segment in cold.manifest.segments)
    name = f"a value in {len(chunks):,} of {number:,} chunks, {sum(chunks) / 1e6:.1f} MB, cold"
    yield Row(name, f"{fetched / 1e6:.1f} MB in {requests:,} requests", requests)
    ratio = fetched / sum(chunks)
    yield Row("bytes fetched, of those that match", f"{ratio:.2f}", ratio, at_most(1.3))
    share = median(some_seconds) / median(all_seconds)
    text = f"{median(some_seconds):.2f}; {median(all_seconds):.2f} s"
    yield Row("seconds; those of reading all", text, median(some_seconds))
    yield Row("the same as a share", f"{share:.3f}", share, at_most(0.1))


def first_messages(bench: Bench, cold: Cold) -> Iterator[Row]:
    """How long a consumer waits for its first message."""
    if not cold.place.endpoint:
        yield from _first_messages(bench, cold, "a folder")
        return
    for delay in (0.0, bench.size.delay):
        with Proxy(cold.place.endpoint, delay) as proxy:
            place = cold.place._replace(endpoint=proxy.endpoint)
            name = f"a store {delay * 1e3:.0f} ms away"
            yield from _first_messages(bench, cold._replace(place=place), name)


def _first_messages(bench: Bench, cold: Cold, name: str) -> Iterator[Row]:
    segments = cold.manifest.segments[: bench.size.firsts]
    store = open_store(cold.place.url, cold.place.endpoint)
    keys = [segment.key(cold.manifest.stream, ".segment") for segment in segments]
    small = median(_asked(store, key, _CHUNK_BYTES) for key in keys)
    block = median(
        _asked(store, key, min(_BLOCK_BYTES, one.size))
        for key, one in zip(keys, segments, strict=True)
    )
    waited = []
    with cold.target() as target:
        for segment in segments:
            with target.connect() as connection:
                waited.append(_seconds(partial(_first_chunk, connection, segment.base_offset)))
    first = median(waited)
    times = "; ".join(f"{seconds * 1e3:.1f}" for seconds in (first, small, block))
    yield Row(f"first message, cold, from {name}; 30 kB; 4 MiB of it", f"{times} ms", first)
    more = (first - small) * 1e3
    yield Row("more than the store took for 30 kB", f"{more:.1f} ms", more, at_most(20), "ms")


def _asked(store: ObjectStore, key: str, size: int) -> float:
    return _seconds(lambda: store.get_range(key, 0, size))


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _first_chunk(connection: RawConnection, offset: int) -> None:
    """Subscribe, and wait until a chunk begins to come."""
    where = OffsetSpecification(_OFFSET, offset)
    connection.send(c.Subscribe, 0, STREAM, where, 1, ())
    received, at = b"", 0
    while True:
        while at + FRAME.size > len(received):
            piece = connection.socket.recv(1 << 16)
            if not piece:
                raise ConnectionError("the server closed the connection")
            received += piece
        size, key, _ = FRAME.unpack_from(received, at)
        if key == c.Deliver.KEY:
            return
        at += _SIZE.size + size
