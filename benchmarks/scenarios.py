"""What is done to a server for the rows of the comparison; each gives its figures by name.

A scenario makes the streams it needs and deletes them. `scale` is its share of the full size.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from itertools import count

from benchmarks.crowd import Crowd, serve
from benchmarks.latency import Pace, latencies
from benchmarks.load import MARKER, Load, frames, mark, publish, publish_together
from benchmarks.reading import CREDIT, FIRST, Read, filters, read
from benchmarks.target import Server
from streamd.wire.stream import commands as c
from streamd.wire.stream.fields import Pair

Figures = dict[str, float]
_NUMBERS = count()
_READINGS = 10  # one of large chunks takes too little for the CPU clock's steps
_ONE_IN = 1_000  # frames has the wanted value
_WANTED = b"rare!"  # as long as the others
_FIRST_VALUE = slice(23, 28)  # where a frame has it
_SEALED_SHARE = 0.8  # of the stream; the last segment begins later
_SEGMENTS = 100
_made = lru_cache(maxsize=1)(frames)


class Skipped(Exception):
    """A row that cannot be measured on a server, and why."""


def scaled(load: Load, scale: float, members: int = 1) -> Load:
    """A share of a load, in whole frames, for each of some members."""
    batches = round(load.messages * scale / members / load.batch)
    return load._replace(messages=max(batches, 1) * load.batch)


@contextmanager
def streams(server: Server, number: int = 1, **arguments: int) -> Iterator[list[str]]:
    """New streams, with arguments as of Create."""
    names = [f"compare-{os.getpid()}-{next(_NUMBERS)}" for _ in range(number)]
    pairs = tuple(Pair(f"stream-{k.replace('_', '-')}", str(v)) for k, v in arguments.items())
    with server.connect() as connection:
        for name in names:
            connection.request(c.Create, name, pairs)
    try:
        yield names
    finally:
        with server.connect() as connection:
            for name in names:
                connection.request(c.Delete, name)


def publishing(
    load: Load, connections: int = 1, number_of_streams: int = 1
) -> Callable[[Server, float], Figures]:
    """Publish from some connections into one stream, or into one each."""

    def work(server: Server, scale: float) -> Figures:
        part = scaled(load, scale, connections)
        made = _made(part)
        with streams(server, number_of_streams) as names, ExitStack() as stack:
            opened = [stack.enter_context(server.connect()) for _ in range(connections)]
            members = [(connection, names[n % len(names)]) for n, connection in enumerate(opened)]
            before = server.cpu_seconds()
            seconds = publish_together(members, part, made)
            cpu = server.cpu_seconds() - before
        total = part.messages * connections
        return {"rate": total / seconds, "cpu": cpu / total * 1e6}

    return work


def reading_large_chunks(server: Server, scale: float) -> Figures:
    """Read a stream of large chunks several times."""
    load = scaled(Load(1_000_000), scale)
    with streams(server) as (stream,), server.connect() as connection:
        publish(connection, stream, load, _made(load))
        before = server.cpu_seconds()
        times = [_read(server, stream) for _ in range(_READINGS)]
        cpu = server.cpu_seconds() - before
    megabytes = sum(it.bytes for it in times) / 1e6
    return {"rate": megabytes / sum(it.seconds for it in times), "cpu": cpu / megabytes * 1e3}


def small_chunks(load: Load) -> Callable[[Server, float], Figures]:
    """Publish a chunk at a time; read all; read past all of them, to the marker."""

    def work(server: Server, scale: float) -> Figures:
        part = scaled(load, scale)
        made = _made(part)
        with streams(server) as (stream,), server.connect() as connection:
            before = server.cpu_seconds()
            seconds = publish(connection, stream, part, made)
            cpu = server.cpu_seconds() - before
            mark(connection, stream)
            everything = _read(server, stream)
            passed = _read(server, stream, MARKER)
            answered = _answer_seconds(server, stream)
        return {
            "rate": part.messages / seconds,
            "cpu": cpu / len(made) * 1e6,
            "read": everything.messages / everything.seconds,
            "skip": passed.seconds * 1e3,
            "stats": answered * 1e3,
        }

    return work


def _read(server: Server, stream: str, *values: bytes) -> Read:
    with server.connect() as connection:
        return read(connection, stream, values)


def _answer_seconds(server: Server, stream: str) -> float:
    """How long a StreamStats takes that follows a Subscribe for the marker."""
    with server.connect() as connection:
        connection.send(c.Subscribe, 0, stream, FIRST, CREDIT, filters((MARKER,)))
        began = time.perf_counter()
        connection.send(c.StreamStats, stream)
        connection.wait_for(c.StreamStatsResponse)
        return time.perf_counter() - began


def sealed_segments(server: Server, scale: float) -> Figures:
    """Chunks of ten values, one in a thousand with the wanted one: what else is delivered."""
    load = scaled(Load(200_000, batch=10, values=10_000, window=10), scale)
    made = _made(load)
    wanted = set(range(min(_ONE_IN, len(made)) // 2, len(made), _ONE_IN))
    some = [_with_wanted(it) if n in wanted else it for n, it in enumerate(made)]
    segment_bytes = sum(map(len, made)) // _SEGMENTS
    with (
        streams(server, max_segment_size_bytes=segment_bytes) as (stream,),
        server.connect() as connection,
    ):
        publish(connection, stream, load, some)
        mark(connection, stream)
        chunks = _read(server, stream, _WANTED, MARKER).chunks
    sealed = [(first, size) for first, size in chunks if first < load.messages * _SEALED_SHARE]
    beyond = [size for first, size in sealed if first // load.batch not in wanted]
    return {
        "beyond": sum(beyond) / 1e3,
        "share": 100 * sum(beyond) / sum(size for _, size in sealed),
    }


def _with_wanted(frame: bytes) -> bytes:
    """A frame whose first message has the wanted filter value."""
    return frame[: _FIRST_VALUE.start] + _WANTED + frame[_FIRST_VALUE.stop :]


def at_a_pace(pace: Pace) -> Callable[[Server, float], Figures]:
    """Messages end to end."""

    def work(server: Server, scale: float) -> Figures:
        part = pace._replace(seconds=max(pace.seconds * scale, 0.2))
        with streams(server) as (stream,):
            found = latencies(server, stream, part)
        return {
            "p50": found.at(0.5),
            "p99": found.at(0.99),
            "p99.9": found.at(0.999),
            "cpu": found.cpu_seconds / part.messages * 1e6,
        }

    return work


def narrow(crowd: Crowd) -> Callable[[Server, float], Figures]:
    """Consumers of a stream, each for a filter value of its own."""

    def work(server: Server, scale: float) -> Figures:
        part = crowd._replace(seconds=max(crowd.seconds * scale, 0.2))
        with streams(server) as (stream,):
            return serve(server, stream, part)._asdict()

    return work


def resident(server: Server, _scale: float) -> Figures:
    """The memory that the server holds now."""
    return {"resident": server.resident_bytes() / 1e6}


def starting(server: Server, scale: float) -> Figures:
    """Start with a stream of many segments, and without one."""
    if not server.can_restart:
        raise Skipped("it was running already, so it is not restarted")
    load = scaled(Load(100_000, batch=10, values=100, window=10), scale)
    made = _made(load)
    server.stop()
    without = server.seconds_to_start()
    segment_bytes = sum(map(len, made)) // _SEGMENTS
    with streams(server, max_segment_size_bytes=segment_bytes) as (stream,):
        with server.connect() as connection:
            publish(connection, stream, load, made)
        server.stop()
        seconds = server.seconds_to_start(stream)
    return {"ready": seconds * 1e3, "more": (seconds - without) * 1e3}
