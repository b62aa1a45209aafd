"""`python -m benchmarks.selectors`: how fast selectors are, alone and through a server.

Alone: messages of five properties and 100 bytes, chunks of 256, on one core. Through a server: a
stream of small events in which next to nothing matches, read with the client library.
"""

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import anyio
import click
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.load import Load, publish
from benchmarks.raw_connection import RawConnection
from benchmarks.target import Target
from clients import connect
from segments.codec import simple_ends
from segments.message import Message
from segments.selector import parse_sql
from streamd.wire.stream import commands as c
from streamd.wire.stream.codec import encode
from streamd.wire.stream.fields import Pair
from streamd.wire.stream.publish import Outgoing, encode_entries, encode_filtered_entries

_WIDTH = 110
_CHUNK = 256
_RARE = 2_000  # one message in so many is of carrier HA
_EXPRESSIONS = (
    ("1 term", "dep_delay > 60"),
    ("2 terms, text and number", "dest = 'LAX' AND dep_delay > 60"),
    ("2 terms, numbers", "dep_delay > 60 AND distance > 1000"),
    (
        "6 terms",
        (
            "dep_delay > 60 AND distance > 1000 AND origin = 'JFK' AND dest <> 'BOS' "
            "AND carrier IN ('UA', 'DL') AND dep_delay < 100"
        ),
    ),
    ("1 term, screened", "carrier = 'HA'"),
    ("3 terms, screened", "carrier = 'HA' AND dep_delay > 60 AND distance > 1000"),
    ("LIKE, screened", "carrier LIKE 'HA%'"),
)
_EVENT_FRAME = 100
_EVENT = 1_000_000  # one event in so many matches


class Row(NamedTuple):
    """One figure."""

    name: str
    messages: int
    seconds: float
    matched: int

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--messages", default=50_000, show_default=True, help="For the evaluation alone.")
@click.option(
    "--events", default=10_000_000, show_default=True, help="In the stream; 0: leave out."
)
@click.option("--rounds", default=5, show_default=True, help="Rounds; the median is shown.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of the table.")
def main(messages: int, events: int, rounds: int, *, as_json: bool) -> None:
    """Measure selectors: messages per second, alone and through a server."""
    rows = list(_alone(messages, rounds))
    if events:
        with tempfile.TemporaryDirectory(prefix="streamd-bench-") as folder:
            rows += _through_a_server(Path(folder), events, rounds)
            rows += _writing(Path(folder), rounds)
    if as_json:
        click.echo(json.dumps([row._asdict() | {"rate": row.rate} for row in rows]))
        return
    table = Table(title="selectors", title_justify="left", box=SIMPLE)
    table.add_column("")
    for heading in ("messages", "matched", "seconds", "thousand msg/s"):
        table.add_column(heading, justify="right")
    for row in rows:
        values = (f"{row.messages:,}", f"{row.matched:,}", f"{row.seconds:.3f}")
        table.add_row(row.name, *values, f"{row.rate / 1000:,.0f}")
    Console(width=None if sys.stdout.isatty() else _WIDTH).print(table)


def _alone(count: int, rounds: int) -> Iterator[Row]:
    chunks = _chunks(count)
    for name, expression in _EXPRESSIONS:
        selector = parse_sql(expression)

        def run(selector=selector) -> int:  # type: ignore[no-untyped-def]  # noqa: ANN001
            matcher = selector.matcher()
            for data, ends in chunks:
                matcher.select_in(data, ends)
            return int(matcher.matched)

        yield _timed(name, count, rounds, run)


def _timed(name: str, count: int, rounds: int, run: Callable[[], int]) -> Row:
    seconds, matched = [], 0
    for _ in range(rounds):
        began = time.perf_counter()
        matched = run()
        seconds.append(time.perf_counter() - began)
    return Row(name, count, median(seconds), matched)


def _chunks(count: int) -> list[tuple[bytes, Sequence[int]]]:
    chance = random.Random(1)  # noqa: S311 - the same messages each time
    bodies = [_message(chance) for _ in range(count)]
    made: list[tuple[bytes, Sequence[int]]] = []
    for start in range(0, count, _CHUNK):
        some = bodies[start : start + _CHUNK]
        data = b"".join(len(body).to_bytes(4, "big") + body for body in some)
        made.append((data, simple_ends(data) or ()))
    return made


def _message(chance: random.Random) -> bytes:
    is_rare = chance.random() < 1 / _RARE
    properties = {
        "carrier": "HA" if is_rare else chance.choice(("AA", "UA", "DL", "B6", "EV", "MQ")),
        "origin": "JFK",
        "dest": chance.choice(("LAX", "BOS", "ATL", "ORD")),
        "dep_delay": chance.randint(-10, 200),
        "distance": chance.randint(100, 3_000),
    }
    return Message(b"x" * 100, application_properties=properties).encode()


def _through_a_server(folder: Path, events: int, rounds: int) -> list[Row]:
    """RabbitMQ's published scenario: many small events, few of them wanted."""
    with Target(folder / "data") as target:
        _publish_events(target, events)
        uri = f"rabbitmq-stream://{target.host}:{target.port}/"
        selectors = (
            ("events through a server, filter and SQL", "kind = 'wanted' AND size > 0"),
            ("events through a server, SQL alone", "size > 5"),
        )
        return [
            _timed(name, events, rounds if number == 0 else 1, lambda sql=sql: _consume(uri, sql))  # type: ignore[misc]
            for number, (name, sql) in enumerate(selectors)
        ]


def _publish_events(target: Target, events: int) -> None:
    common, wanted = (
        Message(b"", application_properties={"kind": kind, "size": size}).encode()
        for kind, size in (("other", 1), ("wanted", 9))
    )
    arguments = (
        Pair("stream-filter-property", "kind"),
        Pair("stream-filter-contract", "lenient"),
    )
    with RawConnection(target.host, target.port) as connection:
        connection.request(c.Create, "events", arguments)
        made = []
        for start in range(0, events, _EVENT_FRAME):
            is_wanted = start % _EVENT == _EVENT // 2
            messages = [Outgoing(start + n, common, b"other") for n in range(_EVENT_FRAME)]
            if is_wanted:
                messages[7] = Outgoing(start + 7, wanted, b"wanted")
            entries = encode_filtered_entries(messages)
            made.append(encode(c.PublishFiltered(0, len(messages), entries)))
        publish(connection, "events", Load(events), made)


def _consume(uri: str, sql: str) -> int:
    async def work() -> int:
        async with (
            connect(uri) as client,
            client.consumer("events", offset="first", sql=sql, until_end=True) as messages,
        ):
            async for _ in messages.batches():
                pass
            return messages.counts.matched

    return anyio.run(work, backend="trio")


def _writing(folder: Path, rounds: int) -> Iterator[Row]:
    """What deriving filter values and standing selectors cost the writer."""
    count = 200_000
    body = Message(b"x" * 100, application_properties={"carrier": "UA", "delay": 7}).encode()
    plain = [
        encode(c.Publish(0, _EVENT_FRAME, encode_entries(list(_outgoing(body, start)))))
        for start in range(0, count, _EVENT_FRAME)
    ]
    with Target(folder / "writing") as target:
        for name, arguments, selectors in (
            ("publish, nothing to do", (), ()),
            (
                "publish, filter value derived",
                (Pair("stream-filter-property", "carrier"), Pair("stream-filter-derive", "true")),
                (),
            ),
            ("publish, 1 standing selector, screened", (), ("carrier = 'HA'",)),
            ("publish, 1 standing selector, none matches", (), ("delay > 9",)),
            (
                "publish, 16 standing selectors, none matches",
                (),
                tuple(f"delay > {n}" for n in range(9, 25)),
            ),
        ):
            yield _timed_publishing(target, name, arguments, selectors, plain, rounds)


def _outgoing(body: bytes, start: int) -> Iterator[Outgoing]:
    for number in range(start, start + _EVENT_FRAME):
        yield Outgoing(number, body)


def _timed_publishing(
    target: Target,
    name: str,
    arguments: tuple[Pair, ...],
    selectors: tuple[str, ...],
    made: Sequence[bytes],
    rounds: int,
) -> Row:
    count = len(made) * _EVENT_FRAME
    seconds = []
    for _ in range(rounds):
        with RawConnection(target.host, target.port) as connection:
            connection.request(c.Create, "writing", arguments)
            for number, sql in enumerate(selectors):
                pairs = {"stream": "writing", "group": f"g{number}", "text": sql}
                connection.request(
                    c.Manage, "selector.add", tuple(map(Pair, pairs, pairs.values()))
                )
            seconds.append(publish(connection, "writing", Load(count), made))
            connection.request(c.Delete, "writing")
    return Row(name, count, median(seconds), 0)


if __name__ == "__main__":
    main()
