"""Filters over several properties, for `python -m benchmarks.find`.

Publishing to streams whose filter values are taken by the server; and which chunks are sent for
`region = x AND kind = y`, of 10,000 with 10 messages each, where both have 50 values.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.load import Load, publish
from benchmarks.raw_connection import RawConnection
from benchmarks.reading import read
from benchmarks.target import Target
from segments.codec import CHUNK_HEADER_SIZE
from segments.disk import OsDisk
from segments.message import Message
from segments.pushed_down import matcher_of
from segments.recovery import recovery
from segments.segment import walk_headers
from segments.selector import Pushdown, parse_sql
from streamd.wire.stream import commands as c
from streamd.wire.stream.codec import encode
from streamd.wire.stream.fields import Pair
from streamd.wire.stream.publish import Outgoing, encode_entries
from streamd.wire.stream.subscribe_properties import property_pairs

VALUES = 50
_BODY = bytes(44)  # makes a message of 100 bytes
_FRAME = 100
_CHUNK = 10
_CHUNKS = 10_000
_PAIRS = 20  # that are asked for
_SEGMENT_BYTES = "2000000"  # some seven segments
_FOLDER = "streams/%2F"
_SEALED, _OPEN = "sealed", "open"


class Publishing(NamedTuple):
    """One way of publishing: messages per second, and CPU of the server for one."""

    name: str
    messages_per_second: float
    cpu_microseconds: float


class Sent(NamedTuple):
    """What was sent for some questions, chunks in sum.

    Attributes:
        name: where the stream stood.
        chunks: sent.
        true: that hold both values.
        matching: that hold a message with both.
    """

    name: str
    chunks: int
    true: int
    matching: int


def publishing(folder: Path, messages: int, rounds: int) -> Iterator[Publishing]:
    """How fast messages without filter values are published.

    Args:
        folder: for the server's data.
        messages: in a round.
        rounds: of which the median counts.
    """
    made = _frames(_rows(messages, random.Random(1)))  # noqa: S311 - the same each time
    kinds = (
        ("no filter property", ()),
        ("one, derived", _declared("region", derives=True)),
        ("two, the second taken", _declared("region,kind", derives=False)),
        ("two, derived and taken", _declared("region,kind", derives=True)),
    )
    rates: dict[str, list[tuple[float, float]]] = {}
    with Target(folder) as target:
        for _ in range(rounds):
            for name, arguments in kinds:
                with RawConnection(target.host, target.port) as connection:
                    connection.request(c.Create, "s", arguments)
                    before = target.cpu_seconds()
                    seconds = publish(connection, "s", Load(messages), made)
                    used = (target.cpu_seconds() - before) / messages
                    connection.request(c.Delete, "s")
                rates.setdefault(name, []).append((messages / seconds, used * 1e6))
    for name, found in rates.items():
        yield Publishing(name, median(r for r, _ in found), median(u for _, u in found))


def chunks_sent(folder: Path) -> Iterator[Sent]:
    """Which chunks are sent: of sealed segments, of the open one, and by filters alone.

    Args:
        folder: for the server's data.
    """
    chance = random.Random(2)  # noqa: S311 - the same each time
    rows = _rows(_CHUNK * _CHUNKS, chance)
    pairs = sorted(set(_rows(_PAIRS, chance)))
    chunks = [rows[n : n + _CHUNK] for n in range(0, len(rows), _CHUNK)]
    true = sum(
        any(r == x for r, _ in chunk) and any(k == y for _, k in chunk)
        for x, y in pairs
        for chunk in chunks
    )
    matching = sum((x, y) in chunk for x, y in pairs for chunk in chunks)
    with Target(folder) as target:
        for name, stream, segment_bytes in (
            ("sealed segments", _SEALED, _SEGMENT_BYTES),
            ("the open segment", _OPEN, "500000000"),
        ):
            with RawConnection(target.host, target.port) as connection:
                arguments = (
                    *_declared("region,kind", derives=True),
                    Pair("stream-max-segment-size-bytes", segment_bytes),
                    Pair("stream-filter-size-bytes", "auto"),
                    Pair("stream-chunk-max-records", str(_CHUNK)),
                )
                connection.request(c.Create, stream, arguments)
                publish(connection, stream, Load(len(rows)), _frames(rows))
            found = sum(_sent_for(target, stream, x, y) for x, y in pairs)
            yield Sent(name, found, true, matching)
    yield Sent("by filters alone", _by_filters(folder, pairs), true, matching)


def _sent_for(target: Target, stream: str, region: str, kind: str) -> int:
    """How many chunks come for two values, besides one that ends it."""
    with RawConnection(target.host, target.port) as connection:
        last = [(region, kind)]  # of the last message, so that there is one to wait for
        publish(connection, stream, Load(1), _frames(last))
        asked = _asked(region, kind)
        pairs = tuple(Pair(*pair) for pair in property_pairs(asked.properties))
        return len(read(connection, stream, [region.encode()], pairs).chunks) - 1


def _by_filters(folder: Path, pairs: Sequence[tuple[str, str]]) -> int:
    """How many chunks would be sent if there was no index, as where trailers have no history."""
    matchers = [matcher_of(_asked(*pair)) for pair in pairs]
    found = 0
    for segment in recovery.examine(OsDisk(), str(folder / _FOLDER / _OPEN)).segments:
        file = segment.acquire()
        for position, header in walk_headers(segment, file):
            filter_bytes = file.read(header.filter_size, position + CHUNK_HEADER_SIZE)
            is_marker = header.num_records == 1
            for matcher in () if is_marker else matchers:
                assert matcher is not None
                found += matcher.matches(header.filter_scheme, header.filter_size, filter_bytes)
        segment.release()
    return found


def _asked(region: str, kind: str) -> Pushdown:
    selector = parse_sql(f"region = '{region}' AND kind = '{kind}'")
    return selector.push_down(["region", "kind"], is_strict=True)


def _declared(names: str, *, derives: bool) -> tuple[Pair, ...]:
    property_names = Pair("stream-filter-property", names)
    return (property_names, Pair("stream-filter-derive", str(derives).lower()))


def _value(chance: random.Random) -> str:
    return f"v{chance.randrange(VALUES):02}"


def _rows(count: int, chance: random.Random) -> list[tuple[str, str]]:
    return [(_value(chance), _value(chance)) for _ in range(count)]


def _frames(rows: Sequence[tuple[str, str]]) -> list[bytes]:
    encoded = {
        row: Message(
            _BODY, application_properties={"region": row[0], "kind": row[1], "n": 1}
        ).encode()
        for row in set(rows)
    }
    made = []
    for start in range(0, len(rows), _FRAME):
        part = [encoded[row] for row in rows[start : start + _FRAME]]
        entries = encode_entries([Outgoing(start + n, raw) for n, raw in enumerate(part)])
        made.append(encode(c.Publish(0, len(part), entries)))
    return made
