"""`python -m benchmarks.find`: finding messages by key and time, and what it costs publishers.

A stream of messages of 100 bytes, each with a key of its own, of which the sealed segments are
indexed. What is looked up is random, the same in each run. "cold" means that the pages of the index
file were dropped from the page cache before each lookup.
"""

import json
import os
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import NamedTuple

import click
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.load import Load, publish
from benchmarks.raw_connection import RawConnection
from benchmarks.several_properties import chunks_sent, publishing
from benchmarks.target import Target
from segments.chunk import ChunkBuilder
from segments.derived.key_files import keys_of
from segments.keys import forms_of_key, key_prints
from segments.log import Log
from segments.message import Message
from segments.policy import LogPolicy
from segments.search.request import SearchRequest
from segments.search.search import Search, run
from segments.segment import KEYS_SUFFIX, SEGMENT_SUFFIX, Segment
from streamd.wire.stream import commands as c
from streamd.wire.stream.codec import encode
from streamd.wire.stream.fields import Pair
from streamd.wire.stream.publish import Outgoing, encode_entries

_WIDTH = 110
_SIZE = 100  # bytes of a message
_FRAME = 256  # messages in a frame
_PART = 500_000  # messages whose frames are made at once
_PROPERTY = "order_id"
_KEYS = Pair("stream-key-properties", _PROPERTY)
_STREAM, _SHORT = "keyed", "short"
_LOOKUPS = 1_000
_DAY_SEGMENT_BYTES = 20_000_000
_ENTRY = struct.Struct(">I")
_PATIENCE_SECONDS = 900


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        name: what was measured.
        value: as it is shown.
        figure: for programs: seconds, messages a second, bytes, or a share.
        goal: as it is shown.
    """

    name: str
    value: str
    figure: float
    goal: str = ""


@click.command()
@click.option("--messages", default=10_000_000, show_default=True, help="In the stream.")
@click.option("--beside", default=1_000_000, show_default=True, help="In a round of publishing.")
@click.option("--rounds", default=5, show_default=True, help="Of publishing.")
@click.option("--segment-size", default=500_000_000, show_default=True, help="In bytes.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per row.")
def main(messages: int, beside: int, rounds: int, segment_size: int, *, as_json: bool) -> None:
    """Measure finding by key and time, the key index, and filters over several properties.

    \b
    Examples:
      python -m benchmarks.find
      python -m benchmarks.find --messages 1000000 --segment-size 50000000
    """
    rows = []
    with tempfile.TemporaryDirectory(prefix="streamd-bench-") as folder:
        for row in chain(
            _rows(Path(folder, "keys"), messages, beside, rounds, segment_size),
            _of_a_day(Path(folder, "day")),
            _of_several_properties(Path(folder)),
        ):
            rows.append(row)
            if as_json:
                sys.stdout.write(json.dumps(row._asdict()) + "\n")
                sys.stdout.flush()
    if not as_json:
        table = Table("", "measured", "goal", box=SIMPLE)
        for row in rows:
            table.add_row(row.name, row.value, row.goal)
        Console(width=_WIDTH).print(table)


def _rows(
    folder: Path, messages: int, beside: int, rounds: int, segment_size: int
) -> Iterator[Row]:
    sizes = Pair("stream-max-segment-size-bytes", str(segment_size))
    with Target(folder) as target, RawConnection(target.host, target.port) as connection:
        connection.request(c.Create, _STREAM, (_KEYS, sizes))
        before = target.resident_bytes()
        seconds = sum(
            _publish(connection, _STREAM, start, min(_PART, messages - start))
            for start in range(0, messages, _PART)
        )
        began = time.perf_counter()
        files = _wait_until_indexed(folder, before=0)
        waited = time.perf_counter() - began
        more = target.resident_bytes() - before
        data = sum(file.with_suffix(SEGMENT_SUFFIX).stat().st_size for file in files)
        size = sum(file.stat().st_size for file in files)
        yield Row(
            f"publish {messages:,} messages with a key property",
            f"{messages / seconds:,.0f} msg/s",
            messages / seconds,
        )
        yield Row("until all sealed segments are indexed, after that", f"{waited:.1f} s", waited)
        yield Row("index, of the data", f"{size / data:.1%}", size / data, "10 %")
        yield Row("memory of the server, more than before", f"{more / 1e6:.1f} MB", more, "50 MB")
        smaller = Pair(sizes.key, str(segment_size // 10))  # so that many are sealed
        yield from _with_keys(target, connection, beside, rounds, smaller)
        yield from _beside(target, connection, folder, beside, rounds, sizes)
    yield from _lookups(folder, messages)


def _with_keys(
    target: Target, connection: RawConnection, count: int, rounds: int, sizes: Pair
) -> Iterator[Row]:
    """Publishing with and without a key property in turn; what is published is indexed beside."""
    measured = _Publishing(target, connection, count)
    for number in range(rounds):
        for arguments in ((sizes,), (_KEYS, sizes)) if number % 2 else ((_KEYS, sizes), (sizes,)):
            connection.request(c.Create, _SHORT, arguments)
            measured.publish(_SHORT, 0, has_keys=len(arguments) > 1)
            connection.request(c.Delete, _SHORT)
            time.sleep(1)  # until nothing is indexed any more
    yield from measured.rows("its segments being indexed beside")


def _beside(
    target: Target,
    connection: RawConnection,
    folder: Path,
    count: int,
    rounds: int,
    sizes: Pair,
) -> Iterator[Row]:
    """Publishing while the whole stream is indexed anew, and without keys and indexing."""
    measured = _Publishing(target, connection, count)
    for number in range(rounds):
        connection.request(c.Create, _SHORT, (sizes,))
        measured.publish(_SHORT, 0, has_keys=False)
        connection.request(c.Delete, _SHORT)
        names = f"{_PROPERTY},more" if number % 2 == 0 else _PROPERTY
        changed = time.time()
        pairs = (Pair("stream", _STREAM), Pair(_KEYS.key, names))
        connection.request(c.Manage, "stream.set", pairs)
        time.sleep(1.5)  # until the process has begun
        measured.publish(_STREAM, count * number, has_keys=True)
        _wait_until_indexed(folder, before=changed)
    yield from measured.rows("all that is stored being indexed anew beside")


class _Publishing:
    """Rounds of publishing, without keys and with them.

    The time of the server's own process is shown as well: on a machine that has other things to do
    it says more than the speed.
    """

    def __init__(self, target: Target, connection: RawConnection, count: int) -> None:
        self._target = target
        self._connection = connection
        self._count = count
        self._figures: dict[bool, list[tuple[float, float]]] = {False: [], True: []}

    def publish(self, stream: str, start: int, *, has_keys: bool) -> None:
        """Publish, and keep the figures."""
        before = _own_cpu_seconds(self._target.pid)
        seconds = _publish(self._connection, stream, start, self._count)
        used = _own_cpu_seconds(self._target.pid) - before
        self._figures[has_keys].append((seconds, used))

    def rows(self, what: str) -> Iterator[Row]:
        """What came out."""
        (slow, used), (fast, cpu) = (
            (self._count / median(seconds), median(cpu) / self._count)
            for seconds, cpu in (zip(*self._figures[kind], strict=True) for kind in (True, False))
        )
        yield Row("publish without a key property", f"{fast:,.0f} msg/s", fast)
        yield Row(f"with one, {what}", f"{slow:,.0f} msg/s", slow)
        yield Row("the same as a share", f"{slow / fast:.2f}", slow / fast, "0.9")
        text = f"{cpu * 1e6:.2f} and {used * 1e6:.2f} µs/message"
        yield Row("the server's processor time, without and with", text, used / cpu)


def _own_cpu_seconds(pid: int) -> float:
    """User and system time of a process, without those that it has started."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def _publish(connection: RawConnection, stream: str, start: int, count: int) -> float:
    made = []
    for first in range(start, start + count, _FRAME):
        outgoing = [
            Outgoing(number, _message(number))
            for number in range(first, min(first + _FRAME, start + count))
        ]
        made.append(encode(c.Publish(0, len(outgoing), encode_entries(outgoing))))
    return publish(connection, stream, Load(count, _SIZE, _FRAME), made)


def _key(number: int) -> str:
    return f"order-{number:09}"


def _message(number: int) -> bytes:
    head, tail = _TEMPLATE
    return head + _key(number).encode() + tail


def _template() -> tuple[bytes, bytes]:
    def message(filling: int) -> bytes:
        return Message(b"x" * filling, application_properties={_PROPERTY: _key(0)}).encode()

    head, _, tail = message(_SIZE - len(message(0))).partition(_key(0).encode())
    return head, tail


_TEMPLATE = _template()


def _wait_until_indexed(folder: Path, before: float) -> list[Path]:
    """Return when all sealed segments have key files that are not older; the paths of those."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < end:
        sealed = sorted(folder.glob(f"streams/*/{_STREAM}/*{SEGMENT_SUFFIX}"))[:-1]
        files = [file.with_suffix(KEYS_SUFFIX) for file in sealed]
        if all(file.exists() and file.stat().st_mtime >= before for file in files):
            if not files:
                raise click.ClickException("no segment was sealed: give a smaller --segment-size")
            return files
        time.sleep(0.05)
    raise TimeoutError(f"not indexed within {_PATIENCE_SECONDS} s")


def _lookups(folder: Path, messages: int) -> Iterator[Row]:
    (path,) = folder.glob(f"streams/*/{_STREAM}")
    with closing(Log.open(str(path))) as log:
        segments = log.segments.shown[:-1]
        known = min(segments[-1].next_offset, messages)
        chance = random.Random(1)  # noqa: S311 - the same keys each time
        wanted = [_key(chance.randrange(known)) for _ in range(_LOOKUPS)]
        search = partial(_search, log, segments[-1].next_offset)
        for name, drops, find in (
            ("look a key up in all sealed segments, warm", False, partial(_look_up, segments)),
            ("the same, cold", True, partial(_look_up, segments)),
            ("find the message of a key in them, warm", False, search),
            ("the same, cold", True, search),
        ):
            found = [_timed(segments, key, find, drops=drops) for key in wanted]
            yield from _times(name, found, 0.020 if drops else 0.001)
    with Target(folder) as target, RawConnection(target.host, target.port) as connection:
        _wait_until_all_is_indexed(connection, wanted[0])
        ask = partial(_ask, connection)
        found = [_timed((), key, ask, drops=False) for key in wanted]
        yield from _times("ask a server for it, warm", found, 0.001)


def _times(name: str, found: Sequence[float], goal: float) -> Iterator[Row]:
    p50, p99 = sorted(found)[len(found) // 2], sorted(found)[len(found) * 99 // 100]
    yield Row(f"{name}, p50", f"{p50 * 1e3:.3f} ms", p50, f"{goal * 1e3:.0f} ms")
    yield Row(f"{name}, p99", f"{p99 * 1e3:.3f} ms", p99, f"{goal * 5e3:.0f} ms")


def _ask(connection: RawConnection, key: str) -> int:
    """Ask a server for the messages with a key, the newest first: how many there are."""
    words = Pair("key", key), Pair("order", "newest")
    answer = connection.request(c.Find, _STREAM, words)
    if answer.cut:
        raise click.ClickException(f"a search for {key} takes more than a page: {answer.cut}")
    return len(answer.messages)


def _wait_until_all_is_indexed(connection: RawConnection, key: str) -> None:
    """Return when the segment that grows is indexed, too, which begins with the first search."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < end:
        answer = connection.request(c.Find, _STREAM, (Pair("key", key),))
        looked_at = {one.name: one.value for one in answer.looked_at}
        if not answer.cut and looked_at["segments"] == looked_at["segments_indexed"]:
            return
        time.sleep(0.5)
    raise TimeoutError(f"not indexed within {_PATIENCE_SECONDS} s")


def _of_a_day(folder: Path) -> Iterator[Row]:
    """The first message of one second of a day: a chunk of ten messages each second."""
    day = 86_400
    with closing(Log.open(str(folder), LogPolicy(max_segment_bytes=_DAY_SEGMENT_BYTES))) as log:
        entries = b"".join(_ENTRY.pack(_SIZE) + _message(number) for number in range(10))
        for second in range(day):
            chunk = ChunkBuilder()
            chunk.add(entries, 10, 10, None)
            log.append([chunk], second * 1000)
        chance = random.Random(2)  # noqa: S311 - the same each time
        found = []
        for second in (chance.randrange(day) for _ in range(_LOOKUPS)):
            request = SearchRequest(from_ms=second * 1000, to_ms=second * 1000 + 999, limit=1)
            began = time.perf_counter()
            page = run(Search(log, request, 0, 0))
            found.append(time.perf_counter() - began)
            if [message.offset for message in page.messages] != [10 * second]:
                raise click.ClickException(f"the messages of second {second} are not found")
    p50, p99 = sorted(found)[_LOOKUPS // 2], sorted(found)[_LOOKUPS * 99 // 100]
    yield Row("first message of one second of a day, p50", f"{p50 * 1e3:.3f} ms", p50, "5 ms")
    yield Row("the same, p99", f"{p99 * 1e3:.3f} ms", p99)


def _of_several_properties(folder: Path) -> Iterator[Row]:
    for made in publishing(folder / "publishing", 300_000, 3):
        goal = "0.4 M" if made.name.startswith("two") else ""
        rate = made.messages_per_second
        text = f"{rate:,.0f} msg/s; {made.cpu_microseconds:.2f} µs/message"
        yield Row(f"publish with filters: {made.name}", text, rate, goal)
    for sent in chunks_sent(folder / "sent"):
        share = sent.chunks / sent.true
        goal = {"sealed segments": "1", "the open segment": "1.2"}.get(sent.name, "")
        name = f"chunks sent for a = x AND b = y, of true ones: {sent.name}"
        yield Row(name, f"{share:.3f}", share, goal)


def _timed(
    segments: Sequence[Segment], key: str, find: Callable[[str], int], *, drops: bool
) -> float:
    if drops:
        for segment in segments:
            with Path(segment.path(KEYS_SUFFIX)).open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    began = time.perf_counter()
    number = find(key)
    seconds = time.perf_counter() - began
    if not number:
        raise click.ClickException(f"{key} is not found")
    return seconds


def _look_up(segments: Sequence[Segment], key: str) -> int:
    """How many chunks may have a key."""
    prints, number = key_prints([_PROPERTY], forms_of_key(key)), 0
    for segment in segments:
        index = keys_of(segment)
        found = index.chunks_with(prints) if index else None
        if found is None:
            raise click.ClickException(f"{segment.path()} is not indexed")
        number += len(found)
    return number


def _search(log: Log, end: int, key: str) -> int:
    """Find the messages with a key before an offset, the newest first, as the server does."""
    request = SearchRequest(keys=(key,), properties=(_PROPERTY,), newest=True, offset=end - 1)
    return len(run(Search(log, request, 0, 0)).messages)


if __name__ == "__main__":
    main()
