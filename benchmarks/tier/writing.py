"""Publishing beside an upload, uploading alone, and how much stays on the disk."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median

from benchmarks.load import Load, frames, publish
from benchmarks.raw_connection import RawConnection
from benchmarks.target import Target
from benchmarks.tier.bench import (
    GB,
    LOOK_SECONDS,
    STREAM,
    VALUES,
    Bench,
    Row,
    at_least,
    at_most,
    at_once,
    folder_of,
    go_on_as_all,
    let_others_go_first,
    messages_in,
    of_stream,
    publish_all,
    status,
    stored,
    wait_until,
    wait_until_ready,
    wait_until_stored,
)
from benchmarks.tier.stores import Proxy
from segments.errors import SegmentsError
from segments.store.local_copy import MANIFEST_FILE
from streamd.wire.stream import commands as c

_IDLE_SECONDS = 1
_COUNTED = 4  # segments, the newest one as well, of which requests are counted
_NETWORK = 100e6  # bytes a second that an upload may take besides
_BLOCK = 512  # bytes, in which the system counts what a file takes up


_OFF, _HERE, _ELSEWHERE = "no tier", "the store here", "the store elsewhere"


def publishing(bench: Bench) -> Iterator[Row]:
    """Publishing with and without a tier, in turn."""
    kinds = [_OFF, _HERE, *([_ELSEWHERE] if bench.store.server.pid else [])]
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    used: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(bench.size.rounds):
        for kind in kinds[:: 1 if number % 2 else -1]:
            if kind == _ELSEWHERE:
                let_others_go_first(bench.store.server.pid)
            elif bench.store.server.pid:
                go_on_as_all(bench.store.server.pid)
            rate, cpu = _publishing(bench, has_tier=kind != _OFF)
            rates[kind].append(rate)
            used[kind].append(cpu)
    off = median(rates[_OFF])
    yield Row("publish 100 B without a tier", f"{off:,.0f} msg/s", off)
    for kind, name in (
        (_HERE, "with one"),
        (_ELSEWHERE, "with one, the store at the lowest priority"),
    ):
        if kind in kinds:
            on = median(rates[kind])
            yield Row(f"{name}, uploading beside it", f"{on:,.0f} msg/s", on)
            yield Row("the same as a share", f"{on / off:.2f}", on / off, at_least(0.9))
    without, with_ = (median(used[kind]) * 1e6 for kind in (_OFF, _HERE))
    text = f"{without:.2f} and {with_:.2f} µs/message"
    yield Row("processor time of the server, without and with", text, with_ / without)


def _publishing(bench: Bench, *, has_tier: bool) -> tuple[float, float]:
    """Messages a second, and processor time of the server for each, until all is stored."""
    options = at_once(bench.place()) if has_tier else ()
    with Target(bench.data(), *options) as target, target.connect() as connection:
        connection.request(c.Create, STREAM, bench.arguments())
        before = target.cpu_seconds()
        seconds = publish_all(connection, bench.size.publish)
        cpu = target.cpu_seconds() - before
        if has_tier:
            wait_until_stored(connection)
        connection.request(c.Delete, STREAM)
    return bench.size.publish / seconds, cpu / bench.size.publish


def uploading(bench: Bench) -> Iterator[Row]:
    """Uploading what was published before there was a tier."""
    data = bench.data()
    with Target(data) as target, target.connect() as connection:
        connection.request(c.Create, STREAM, bench.arguments())
        publish_all(connection, messages_in(bench.size.upload))
    with Target(data) as target:
        time.sleep(_IDLE_SECONDS)
        idle = target.cpu_seconds()
    with Target(data, *bench.place().options) as target, target.connect() as connection:
        began = time.perf_counter()
        wait_until("something was stored", lambda: bool(status(connection).bytes_remote))
        wait_until_stored(connection)
        seconds, cpu = time.perf_counter() - began, target.cpu_seconds() - idle
        found = status(connection)
    size = found.bytes_remote / GB
    yield Row("upload, alone", f"{size / seconds * 1e3:,.0f} MB/s", size / seconds)
    text = f"{cpu / size:.2f} s"
    yield Row("processor time for each GB", text, cpu / size, at_most(0.6), "s")
    yield from _requests(bench)


def _requests(bench: Bench) -> Iterator[Row]:
    """What a store is asked for, request by request: an upload of a segment is several."""
    place = bench.place()
    if not place.endpoint:
        return
    with (
        Proxy(place.endpoint) as proxy,
        Target(bench.data(), *place._replace(endpoint=proxy.endpoint).options) as target,
        target.connect() as connection,
    ):
        connection.request(c.Create, STREAM, bench.arguments())
        wait_until_ready(connection)
        before = proxy.count()
        publish_all(connection, messages_in(_COUNTED * bench.size.segment), values=VALUES)
        wait_until("some was stored", lambda: of_stream(connection).segments_remote > 1)
        wait_until_stored(connection)
        found, size = proxy.count().since(before), status(connection).bytes_remote / GB
    kinds = ", ".join(f"{number / size:,.0f} {kind}" for kind, number in found.requests.items())
    more = found.sent / GB / size - 1
    name = "requests for each GB; bytes besides the segments"
    yield Row(name, f"{kinds}; {more:.1%}", found.requests.total() / size)


def staying_small(bench: Bench) -> Iterator[Row]:
    """Ten times more than may be local, at a pace: how soon it is stored, and what is local."""
    size, data = bench.size, bench.data()
    limit = size.local * size.segment
    with Target(data, *at_once(bench.place())) as target, target.connect() as connection:
        connection.request(c.Create, STREAM, bench.arguments(limit))
        publish_all(connection, 1)
        with _Watch(data) as watch:
            _publish_at(connection, 10 * limit, size.rate)
            wait_until_stored(connection)
            time.sleep(10 * LOOK_SECONDS)
    seconds = sorted(seconds for seconds, _ in watch.delays)
    text = f"{median(seconds):.2f}; {seconds[-1]:.2f} s"
    yield Row("from full to stored, median; longest", text, seconds[-1])
    late = max(seconds - number / _NETWORK for seconds, number in watch.delays)
    text = f"{late:.2f} s"
    yield Row("the longest, less its size at 100 MB/s", text, late, at_most(2), "s")
    above = (watch.most - limit) / size.segment
    name = f"most that was local, in segments above a limit of {size.local}"
    yield Row(name, f"{above:.2f}", above, at_most(2))


def _publish_at(connection: RawConnection, size: int, rate: int) -> None:
    """Publish at a pace of so many bytes a second, in tenths of a second."""
    load = Load(messages_in(rate // 10))
    made = frames(load)
    began = time.perf_counter()
    for number in range(messages_in(size) // load.messages + 1):
        time.sleep(max(began + number / 10 - time.perf_counter(), 0))
        publish(connection, STREAM, load, made)


class _Watch:
    """Looks at a stream's folder, and at the cache, while the stream is published to.

    Attributes:
        delays: of each segment from when it was full until it was stored: seconds, and its bytes.
        most: bytes of segments and of the cache that were there at once.
    """

    def __init__(self, data: Path) -> None:
        self.delays: list[tuple[float, int]] = []
        self.most = 0
        self._data, self._folder = data, folder_of(data)
        self._full: dict[int, tuple[float, int]] = {}
        self._newest, self._changed = -1, 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "_Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.wait(LOOK_SECONDS):
            now = time.perf_counter()
            sizes = {int(path.stem): _size(path) for path in self._folder.glob("*.segment")}
            cached = sum(map(_size, (self._data / "tier-cache").glob("*")))
            self.most = max(self.most, sum(sizes.values()) + cached)
            for base in sorted(base for base in sizes if base > self._newest):
                if self._newest in sizes:
                    self._full[self._newest] = now, sizes[self._newest]
                self._newest = base
            self._look_at_manifest(now)

    def _look_at_manifest(self, now: float) -> None:
        with suppress(OSError, SegmentsError):  # before the first, or while it is replaced
            changed = (self._folder / MANIFEST_FILE).stat().st_mtime_ns
            if changed == self._changed:
                return
            for segment in stored(self._data).segments:
                if (full := self._full.pop(segment.base_offset, None)) is not None:
                    self.delays.append((now - full[0], full[1]))
            self._changed = changed


def _size(path: Path) -> int:
    """Bytes that a file takes up; a file of the cache has holes."""
    try:
        return path.stat().st_blocks * _BLOCK
    except FileNotFoundError:
        return 0
