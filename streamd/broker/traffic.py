"""What has gone through a server since its start: plain numbers, which metrics are made of.

Whoever does the work adds to them, for each frame, chunk or turn, never for each message of a
chunk: an addition to an attribute costs some 40 ns, and needs no lock, as all of it is on the event
loop. What costs more is left to whoever asks (streamd/metrics): how far consumers have come is
counted by their readers, which a stream merely knows.

Totals never fall: what a stream counted stays in those of the server when the stream is deleted,
and what a reader counted in those of its stream when the reader is closed.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol

SECONDS = tuple(
    float(f"{digit}e{exponent}") for exponent in range(-4, 2) for digit in (1, 2, 5)
)  # 0.0001 to 50
MESSAGE_BYTES = (100.0, 1e3, 1e4, 1e5, 1e6, 1e7, 5e7, 1e8)  # RabbitMQ's


class Histogram:
    """How often values of which size were seen.

    Args:
        bounds: the largest value of each bucket but the last, rising.

    Attributes:
        bounds: see above.
        counts: values in each bucket; the last has those beyond all bounds.
        sum: of all values.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """A value was seen, this many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def observe_all(self, values: Sequence[int]) -> None:
        """Values were seen; fast where all of them belong into one bucket."""
        low, high = bisect_left(self.bounds, min(values)), bisect_left(self.bounds, max(values))
        self.sum += sum(values)
        if low == high:
            self.counts[low] += len(values)
        else:
            for value in values:
                self.counts[bisect_left(self.bounds, value)] += 1

    def quantile(self, part: float, before: Sequence[int] | None = None) -> float | None:
        """The value below which a part of the values are, as far as buckets tell.

        Args:
            part: 0 to 1.
            before: earlier `counts`: values that were seen since then; None for all.
        """
        counts = self.counts
        if before is not None:
            counts = [now - then for now, then in zip(counts, before, strict=True)]
        rank, low, seen = part * sum(counts), 0.0, 0
        if not any(counts):
            return None
        for count, high in zip(counts, self.bounds, strict=False):
            if count and seen + count >= rank:
                return low + (high - low) * (rank - seen) / count
            seen += count
            low = high
        return self.bounds[-1]


class ProtocolTraffic:
    """What the clients of one protocol have done.

    Attributes:
        publishers, consumers: at the moment.
        messages_received: by the server; a batch of the stream protocol counts as one.
        messages_received_confirm: of them those whose publishers want to know that they are stored.
        messages_confirmed: to their publishers.
        messages_routed: to one stream or more, by exchanges.
        messages_unroutable_dropped, messages_unroutable_returned: that went to no stream.
        messages_delivered: to consumers.
        messages_acknowledged: by consumers.
        channels_opened, channels_closed: of AMQP.
        logins, logins_refused: attempts that were successful, and that were not.
        errors: what clients were told that went wrong, by the protocol's code.
    """

    __slots__ = (
        "channels_closed",
        "channels_opened",
        "consumers",
        "errors",
        "logins",
        "logins_refused",
        "messages_acknowledged",
        "messages_confirmed",
        "messages_delivered",
        "messages_received",
        "messages_received_confirm",
        "messages_routed",
        "messages_unroutable_dropped",
        "messages_unroutable_returned",
        "publishers",
    )

    def __init__(self) -> None:
        self.publishers = self.consumers = 0
        self.messages_received = self.messages_received_confirm = self.messages_confirmed = 0
        self.messages_routed = 0
        self.messages_unroutable_dropped = self.messages_unroutable_returned = 0
        self.messages_delivered = self.messages_acknowledged = 0
        self.channels_opened = self.channels_closed = 0
        self.logins = self.logins_refused = 0
        self.errors: Counter[int] = Counter()


class ReadProgress(Protocol):
    """How far a consumer has come; see segments.reader.ReadCounts."""

    chunks: int
    skipped_chunks: int
    skipped_bytes: int
    unfiltered_chunks: int
    lost_records: int


class ReadTotals(NamedTuple):
    """What consumers have read and skipped.

    Attributes:
        chunks: read to be sent, or for an AMQP consumer to be looked through.
        skipped_chunks, skipped_bytes: that a filter ruled out.
        unfiltered_chunks: of those, chunks in which no message has a filter value.
        lost_messages: that were damaged, or removed before they were read.
    """

    chunks: int = 0
    skipped_chunks: int = 0
    skipped_bytes: int = 0
    unfiltered_chunks: int = 0
    lost_messages: int = 0

    def plus(self, more: "ReadTotals") -> "ReadTotals":
        """Both together."""
        return ReadTotals(*(a + b for a, b in zip(self, more, strict=True)))

    @classmethod
    def of(cls, progress: ReadProgress) -> "ReadTotals":
        """What one consumer has read and skipped."""
        return cls(
            progress.chunks,
            progress.skipped_chunks,
            progress.skipped_bytes,
            progress.unfiltered_chunks,
            progress.lost_records,
        )


NOTHING_READ = ReadTotals()


class Traffic:
    """What has gone through a server.

    Attributes:
        messages_in, chunks_in, bytes_in: stored, in all streams.
        writes: appends to files, each of one or more chunks.
        messages_out, bytes_out: to consumers.
        chunks_in_vain: read for AMQP consumers, which wanted no message of them.
        queues_declared, queues_created, queues_deleted: streams, in RabbitMQ's words.
        confirm_seconds: from the arrival of the first message that is written with others to the
            confirm of them all; each counts.
        flush_seconds: that flushes to the device took.
        loop_delay_seconds: how late the event loop has come to a task that was due.
        new_sizes: of messages that AMQP clients have published, until they are counted.
        http_refused: requests and connections of HTTP, by the reason.
    """

    def __init__(self) -> None:
        self.messages_in = self.chunks_in = self.bytes_in = self.writes = 0
        self.messages_out = self.bytes_out = self.chunks_in_vain = 0
        self.queues_declared = self.queues_created = self.queues_deleted = 0
        self.confirm_seconds = Histogram(SECONDS)
        self.flush_seconds = Histogram(SECONDS)
        self.loop_delay_seconds = Histogram(SECONDS)
        self.new_sizes: list[int] = []
        self._message_bytes = Histogram(MESSAGE_BYTES)
        self.http_refused: Counter[str] = Counter()
        self._protocols: dict[str, ProtocolTraffic] = {}
        self._read = NOTHING_READ
        self._gone: set[StreamTraffic] = set()

    @property
    def message_bytes(self) -> Histogram:
        """Sizes of messages that AMQP clients have published."""
        self.count_sizes()
        return self._message_bytes

    def count_sizes(self) -> None:
        """Count the new sizes: many at once, as that costs less."""
        if self.new_sizes:
            self._message_bytes.observe_all(self.new_sizes)
            self.new_sizes.clear()

    def protocol(self, name: str) -> ProtocolTraffic:
        """What the clients of a protocol have done."""
        found = self._protocols.get(name)
        if found is None:
            found = self._protocols[name] = ProtocolTraffic()
        return found

    def read_of_the_gone(self) -> ReadTotals:
        """What consumers have read and skipped of streams that are deleted."""
        total = self._read
        for stream in self._gone:
            total = total.plus(stream.read())
        return total

    def stream_is_gone(self, stream: "StreamTraffic") -> None:
        """A stream is deleted; its last consumers may still have to learn that."""
        self._gone.add(stream)
        self.settle(stream)

    def settle(self, stream: "StreamTraffic") -> None:
        """A reader was closed: of a stream that is gone and has no other, nothing more comes."""
        if stream in self._gone and not stream.has_readers:
            self._gone.discard(stream)
            self._read = self._read.plus(stream.read())


class StreamTraffic:
    """What has gone through one stream since the server's start.

    Args:
        server: the traffic that this is a part of.

    Attributes:
        messages_in, chunks_in, bytes_in: stored.
        messages_out, bytes_out: to consumers.
        messages_acknowledged: by AMQP consumers.
        messages_out_amqp: to AMQP consumers.
        chunks_in_vain: see Traffic.
        sampled: what the last hour has seen of it, see history.py.
    """

    __slots__ = (
        "_readers",
        "_was_read",
        "bytes_in",
        "bytes_out",
        "chunks_in",
        "chunks_in_vain",
        "messages_acknowledged",
        "messages_in",
        "messages_out",
        "messages_out_amqp",
        "sampled",
        "server",
    )

    def __init__(self, server: Traffic) -> None:
        self.server = server
        self.messages_in = self.chunks_in = self.bytes_in = 0
        self.messages_out = self.bytes_out = 0
        self.messages_out_amqp = self.messages_acknowledged = self.chunks_in_vain = 0
        self.sampled: tuple[int, int, int, int] = (0, 0, 0, 0)
        self._was_read = NOTHING_READ
        self._readers: set[ReadProgress] | None = None

    def wrote(self, messages: int, chunks: int, size: int) -> None:
        """Chunks were appended in one turn."""
        self.messages_in += messages
        self.chunks_in += chunks
        self.bytes_in += size
        server = self.server
        server.messages_in += messages
        server.chunks_in += chunks
        server.bytes_in += size
        server.writes += 1

    def sent(self, messages: int, size: int) -> None:
        """A consumer was sent messages, or chunks with so many, in one turn."""
        self.messages_out += messages
        self.bytes_out += size
        server = self.server
        server.messages_out += messages
        server.bytes_out += size

    def in_vain(self) -> None:
        """An AMQP consumer wanted no message of a chunk that was read for it."""
        self.chunks_in_vain += 1
        self.server.chunks_in_vain += 1

    # -- what consumers read

    @property
    def has_readers(self) -> bool:
        """Somebody reads it."""
        return bool(self._readers)

    def begin_reading(self, progress: ReadProgress) -> None:
        """A consumer begins to read it."""
        if self._readers is None:
            self._readers = set()
        self._readers.add(progress)

    def end_reading(self, progress: ReadProgress) -> None:
        """A consumer reads no more: what it has read still counts."""
        if self._readers is None or progress not in self._readers:
            return
        self._readers.discard(progress)
        self._was_read = self._was_read.plus(ReadTotals.of(progress))
        self.server.settle(self)

    def read(self) -> ReadTotals:
        """What all of its consumers have read and skipped, also those that have ended."""
        if not self._readers:
            return self._was_read
        chunks, skipped, size, unfiltered, lost = self._was_read
        for one in self._readers:
            chunks += one.chunks
            skipped += one.skipped_chunks
            size += one.skipped_bytes
            unfiltered += one.unfiltered_chunks
            lost += one.lost_records
        return ReadTotals(chunks, skipped, size, unfiltered, lost)
