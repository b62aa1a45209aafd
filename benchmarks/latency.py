"""From when a message was due to its arrival at a consumer: a stall counts in full.

A message carries the moment it was due. The publisher sends what is due each time it looks, so a
frame holds what has become due since: one message at a slow pace, several at a fast one.
"""

import select
import selectors
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from benchmarks.raw_connection import SIZE, RawConnection
from benchmarks.reading import CREDIT, DELIVER_HEAD, FRAME, NEXT, filters
from benchmarks.target import Server
from segments.codec import CHUNK_HEADER_SIZE, decode_chunk_header
from streamd.wire.stream import commands as c
from streamd.wire.stream.codec import encode

VALUE = b"v1"
_OTHER_VALUE = b"nobody"
_BODY_BYTES = 100
_WARM_UP = 10  # one tenth of the messages, the first ones, is left out
_LEAD_SECONDS = 0.05
_PATIENCE_SECONDS = 30
_STAMP = struct.Struct(">dI")  # when it was due, its number
_ENTRY_BYTES = SIZE.size + _BODY_BYTES
_PUBLISH = struct.Struct(">IHHBI")
_LENGTH16 = struct.Struct(">h")
_BODY_SIZE = SIZE.pack(_BODY_BYTES)
_MAX_FRAME_MESSAGES = 4_000


class Pace(NamedTuple):
    """What is published, and who reads it.

    Attributes:
        rate: messages per second.
        seconds: how long.
        batch: messages that become due together.
        consumers: that read everything.
        bystanders: consumers of a filter value that no message has; messages have another one then.
    """

    rate: int
    seconds: float
    batch: int = 1
    consumers: int = 1
    bystanders: int = 0

    @property
    def messages(self) -> int:
        """How many are published in all."""
        return max(int(self.rate * self.seconds) // self.batch, 1) * self.batch


class Latencies(NamedTuple):
    """What was measured.

    Attributes:
        seconds: of each message, or of one in each batch; ascending.
        cpu_seconds: what the server used meanwhile.
    """

    seconds: list[float]
    cpu_seconds: float

    def at(self, share: float) -> float:
        """Milliseconds within which this share of the messages arrived."""
        return self.seconds[min(int(share * len(self.seconds)), len(self.seconds) - 1)] * 1e3


def latencies(server: Server, stream: str, pace: Pace, reader: Server | None = None) -> Latencies:
    """Publish at a pace and measure.

    Args:
        server: that is published to.
        stream: of it.
        pace: see there.
        reader: that consumers read from, where that is another server.
    """
    reader = reader or server
    values = (VALUE,) if pace.bystanders else ()
    with ExitStack() as stack:
        producer = stack.enter_context(server.connect())
        producer.request(c.DeclarePublisher, 0, "", stream)
        consumers = [stack.enter_context(reader.connect()) for _ in range(pace.consumers)]
        for connection in consumers:
            connection.request(c.Subscribe, 0, stream, NEXT, CREDIT, filters(values))
        for _ in range(pace.bystanders):
            connection = stack.enter_context(reader.connect())
            connection.request(c.Subscribe, 0, stream, NEXT, CREDIT, filters((_OTHER_VALUE,)))
        before = server.cpu_seconds()
        begin = time.perf_counter() + _LEAD_SECONDS
        seen = _run(producer, consumers, pace, begin)
        return Latencies(seen, server.cpu_seconds() - before)


def _run(
    producer: RawConnection, connections: Sequence[RawConnection], pace: Pace, begin: float
) -> list[float]:
    publisher = Publisher(producer, pace, begin, (lambda _: VALUE) if pace.bystanders else None)
    consumers = [_Consumer(connection, pace) for connection in connections]
    give_up = begin + pace.seconds + _PATIENCE_SECONDS
    with selectors.EpollSelector() as selector:
        selector.register(producer.socket, selectors.EVENT_READ, publisher)
        for consumer in consumers:
            selector.register(consumer.socket, selectors.EVENT_READ, consumer)
        while not all(consumer.messages >= pace.messages for consumer in consumers):
            if time.perf_counter() > give_up:
                raise TimeoutError(f"not all messages came in {_PATIENCE_SECONDS} s")
            for key in ready(selector, publisher.send_due()):
                key.data.receive()
    return sorted(latency for consumer in consumers for latency in consumer.measured())


def ready(selector: selectors.EpollSelector, seconds: float) -> list[selectors.SelectorKey]:
    """What is ready within a time, which a selector alone would round up to milliseconds.

    Args:
        selector: made before many connections: its descriptor is below 1,024.
        seconds: to wait at most.
    """
    select.select([selector.fileno()], [], [], seconds)
    return [key for key, _ in selector.select(0)]


class Publisher:
    """Sends what is due.

    Args:
        connection: with a declared publisher.
        pace: how much, how fast.
        begin: when the first message is due, by time.perf_counter.
        value_of: the filter value of the message with a number; None for messages without.

    Attributes:
        sent: messages so far.
    """

    def __init__(
        self,
        connection: RawConnection,
        pace: Pace,
        begin: float,
        value_of: Callable[[int], bytes] | None = None,
    ) -> None:
        self.sent = 0
        self._socket = connection.socket
        self._pace = pace
        self._begin = begin
        self._value_of = value_of
        self._padding = bytes(_BODY_BYTES - _STAMP.size)
        self._version = c.PublishFiltered.VERSION if value_of else c.Publish.VERSION

    def send_due(self) -> float:
        """Send what is due; returns the seconds until more is, or a while."""
        pace = self._pace
        passed = time.perf_counter() - self._begin
        if passed >= 0 and self.sent < pace.messages:
            due = (int(passed * pace.rate) // pace.batch + 1) * pace.batch
            self._send(min(due, pace.messages, self.sent + _MAX_FRAME_MESSAGES))
        if self.sent == pace.messages:
            return 0.1
        return max(self._due(self.sent) - time.perf_counter(), 0)

    def _due(self, number: int) -> float:
        return self._begin + number // self._pace.batch * self._pace.batch / self._pace.rate

    def _send(self, end: int) -> None:
        count = end - self.sent
        if count <= 0:
            return
        entries = b"".join(map(self._entry, range(self.sent, end)))
        size = _PUBLISH.size - SIZE.size + len(entries)
        head = _PUBLISH.pack(size, c.Publish.KEY, self._version, 0, count)
        self._socket.sendall(head + entries)
        self.sent = end

    def _entry(self, number: int) -> bytes:
        value = self._value_of(number) if self._value_of else None
        between = b"" if value is None else _LENGTH16.pack(len(value)) + value
        stamp = _STAMP.pack(self._due(number), number)
        return number.to_bytes(8, "big") + between + _BODY_SIZE + stamp + self._padding

    def receive(self) -> None:
        """Confirms are not looked at."""
        if not self._socket.recv(1 << 20):
            raise ConnectionError("the server closed the connection")


class _Consumer:
    """Notes how late messages are.

    Attributes:
        socket: of its connection.
        messages: that arrived so far.
    """

    def __init__(self, connection: RawConnection, pace: Pace) -> None:
        self.messages = 0
        self.socket = connection.socket
        self._batch = pace.batch
        self._chunks = Chunks(connection)
        self._latencies: list[float] = []

    def measured(self) -> list[float]:
        """The latencies, without the first messages'."""
        return self._latencies[len(self._latencies) // _WARM_UP :]

    def receive(self) -> None:
        """Take in chunks, and give credit for them."""
        chunks = self._chunks.receive()
        for chunk in chunks:
            self.messages += chunk.messages
            self._latencies += [chunk.arrived - due for due, _ in chunk.stamps(self._batch)]
        if chunks:
            self.socket.sendall(encode(c.Credit(0, len(chunks))))


class Chunk(NamedTuple):
    """A chunk that has come.

    Attributes:
        subscription: its id.
        messages: in the chunk.
        arrived: when, by time.perf_counter.
        entries: the messages as a Publisher makes them.
    """

    subscription: int
    messages: int
    arrived: float
    entries: memoryview

    def stamps(self, step: int = 1) -> Iterator[tuple[float, int]]:
        """When messages were due, and their numbers: of each, or of one in each `step`."""
        for at in range(SIZE.size, len(self.entries), step * _ENTRY_BYTES):
            due, number = _STAMP.unpack_from(self.entries, at)
            yield due, number


class Chunks:
    """What a connection receives, as chunks; other commands are skipped."""

    def __init__(self, connection: RawConnection) -> None:
        self._socket = connection.socket
        self._received = b""

    def receive(self) -> list[Chunk]:
        """Receive once; the chunks that are complete now.

        Raises:
            ConnectionError: the server has closed the connection.
        """
        data = self._socket.recv(1 << 20)
        now = time.perf_counter()
        if not data:
            raise ConnectionError("the server closed the connection")
        received = self._received + data
        position, found = 0, []
        for start, end in _frames(received):
            position = end
            if FRAME.unpack_from(received, start)[1] == c.Deliver.KEY:
                found.append(_chunk(memoryview(received)[start:end], now))
        self._received = received[position:]
        return found


def _chunk(frame: memoryview, arrived: float) -> Chunk:
    body = DELIVER_HEAD + CHUNK_HEADER_SIZE
    header = decode_chunk_header(bytes(frame[DELIVER_HEAD:body]))
    entries = frame[body : body + header.data_size]
    return Chunk(frame[FRAME.size], header.num_records, arrived, entries)


def _frames(received: bytes) -> Iterator[tuple[int, int]]:
    """Where the whole frames in it begin and end."""
    start = 0
    while start + FRAME.size <= len(received):
        end = start + SIZE.size + SIZE.unpack_from(received, start)[0]
        if end > len(received):
            return
        yield start, end
        start = end
