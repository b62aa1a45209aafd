"""`python -m benchmarks.many`: many connections at once, each with a publisher and a consumer.

Shows whether every connection is served, by the spread of messages per second over the connections,
confirmed and delivered, and the server's memory per connection.
"""

import selectors
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import click
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.load import Load, frames
from benchmarks.raw_connection import SIZE, RawConnection
from benchmarks.target import Target
from segments.codec import CHUNK_HEADER_SIZE, decode_chunk_header
from streamd.wire.stream import commands as c
from streamd.wire.stream.codec import encode
from streamd.wire.stream.fields import OffsetSpecification

_WIDTH = 100
_CREDIT = 10
_NEXT = OffsetSpecification(3)
_ONE_CREDIT = encode(c.Credit(0, 1))
_KEY = slice(4, 6)
_CONFIRM_COUNT = 9  # where a PublishConfirm says how many
_DELIVER_HEAD = 9


class Member:
    """One connection; sends its next frame when the one before is confirmed.

    Attributes:
        socket: of its connection.
        confirmed, delivered: messages so far.
    """

    def __init__(self, connection: RawConnection, frame: bytes) -> None:
        self.confirmed = self.delivered = 0
        self.socket = connection.socket
        self._frame = frame
        self._received = bytearray()

    def begin(self) -> None:
        """Publish the first frame."""
        self.socket.setblocking(False)
        self.socket.sendall(self._frame)

    def receive(self) -> None:
        """Take in what arrived, and answer it."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the server closed a connection")
        received = self._received
        received += data
        position = 0
        while position + 6 <= len(received):
            end = position + SIZE.size + SIZE.unpack_from(received, position)[0]
            if end > len(received):
                break
            self._take(memoryview(received)[position:end])
            position = end
        del received[:position]

    def _take(self, frame: memoryview) -> None:
        key = int.from_bytes(frame[_KEY], "big")
        if key == c.PublishConfirm.KEY:
            self.confirmed += SIZE.unpack_from(frame, _CONFIRM_COUNT)[0]
            self.socket.sendall(self._frame)
        elif key == c.Deliver.KEY:
            header = bytes(frame[_DELIVER_HEAD : _DELIVER_HEAD + CHUNK_HEADER_SIZE])
            self.delivered += decode_chunk_header(header).num_records
            self.socket.sendall(_ONE_CREDIT)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--connections", default=500, show_default=True)
@click.option("--streams", default=50, show_default=True, help="The connections share them.")
@click.option("--batch", default=10, show_default=True, help="Messages per Publish frame.")
@click.option("--seconds", default=10.0, show_default=True)
def main(connections: int, streams: int, batch: int, seconds: float) -> None:
    """Measure many connections, each with a publisher and a consumer on one of the streams.

    Each sends a frame of 100-byte messages when the one before is confirmed, and reads all that
    goes into its stream. Generator and server share this machine's cores.
    """
    with tempfile.TemporaryDirectory(prefix="streamd-bench-") as folder, Target(Path(folder)) as it:
        before = it.resident_bytes()
        frame = frames(Load(batch, batch=batch))[0]
        members = [Member(_enter(it, n, streams), frame) for n in range(connections)]
        connected = it.resident_bytes()
        _run(members, seconds)
        console = Console(width=None if sys.stdout.isatty() else _WIDTH)
        console.print(_table(members, seconds))
        console.print(
            f"memory per connection: {(connected - before) / connections / 1e3:.0f} kB connected, "
            f"{(it.peak_resident_bytes() - before) / connections / 1e3:.0f} kB at work",
            highlight=False,
        )


def _enter(target: Target, number: int, streams: int) -> RawConnection:
    connection = RawConnection(target.host, target.port)
    stream = f"many-{number % streams}"
    if number < streams:
        connection.request(c.Create, stream, ())
    connection.request(c.DeclarePublisher, 0, "", stream)
    connection.request(c.Subscribe, 0, stream, _NEXT, _CREDIT, ())
    return connection


def _run(members: Sequence[Member], seconds: float) -> None:
    with selectors.DefaultSelector() as selector:
        for member in members:
            selector.register(member.socket, selectors.EVENT_READ, member.receive)
        for member in members:
            member.begin()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for key, _ in selector.select(1):
                key.data()


def _table(members: Sequence[Member], seconds: float) -> Table:
    title = f"{len(members)} connections, messages per second of each"
    table = Table(title=title, title_justify="left", box=SIMPLE)
    table.add_column("")
    for heading in ("all", "least", "5 %", "median", "95 %", "most"):
        table.add_column(heading, justify="right")
    counts: dict[str, Callable[[Member], int]] = {
        "confirmed": lambda member: member.confirmed,
        "delivered": lambda member: member.delivered,
    }
    for name, count in counts.items():
        rates = sorted(count(member) / seconds for member in members)
        spread = rates[0], _at(rates, 0.05), median(rates), _at(rates, 0.95), rates[-1]
        table.add_row(name, *(f"{rate:,.0f}" for rate in (sum(rates), *spread)))
    return table


def _at(rates: Sequence[float], share: float) -> float:
    return rates[round(share * (len(rates) - 1))]


if __name__ == "__main__":
    main()
