"""What has gone through a server since its start: plain numbers, which metrics are made of.

Whoever does the work adds to them, for each frame or turn, never for each message of a chunk: an
addition to an attribute costs some 40 ns, and needs no lock, as all of it is on the event loop.
What costs more is left to whoever asks (streamd/metrics, history.py): what was written is known to
a stream's log, and how far consumers have come to their readers.

Totals never fall: what a stream counted stays in those of the server when the stream is deleted,
and what a reader counted in those of its stream when the reader is closed.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from streamd.operations.figures import Flow

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
        loop_held, loop_held_seconds: how often one of them held everybody up, and for how long.
    """

    __slots__ = (
        "channels_closed",
        "channels_opened",
        "consumers",
        "errors",
        "logins",
        "logins_refused",
        "loop_held",
        "loop_held_seconds",
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
        self.loop_held, self.loop_held_seconds = 0, 0.0


class ReadProgress(Protocol):
    """How far a consumer has come; see segments.reader.ReadCounts."""

    chunks: int
    records: int
    data_bytes: int
    skipped_chunks: int
    skipped_bytes: int
    unfiltered_chunks: int
    lost_records: int


class WrittenLog(Protocol):
    """An open log; see segments.Log."""

    @property
    def written(self) -> tuple[int, int, int]:
        """Messages, chunks and bytes that were appended since it was opened."""


NOTHING = Flow()


class Traffic:
    """What has gone through a server.

    Attributes:
        queues_declared, queues_created, queues_deleted: streams, in RabbitMQ's words.
        confirm_seconds: from the arrival of the first message that is written with others to the
            confirm of them all; each counts.
        flush_seconds: that flushes to the device took.
        slot_seconds: that slots of the write-ahead log took, from when each was made.
        loop_delay_seconds: how late the event loop has come to a task that was due.
        new_sizes: of messages that AMQP clients have published, until they are counted.
        http_refused: requests and connections of HTTP, by the reason.
        chunks_in_vain: read for AMQP consumers, which wanted no message of them.
    """

    def __init__(self) -> None:
        self.queues_declared = self.queues_created = self.queues_deleted = 0
        self.confirm_seconds = Histogram(SECONDS)
        self.flush_seconds = Histogram(SECONDS)
        self.slot_seconds = Histogram(SECONDS)
        self.loop_delay_seconds = Histogram(SECONDS)
        self.new_sizes: list[int] = []
        self._message_bytes = Histogram(MESSAGE_BYTES)
        self.http_refused: Counter[str] = Counter()
        self.chunks_in_vain = 0
        self._protocols: dict[str, ProtocolTraffic] = {}
        self._past = NOTHING
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

    def flow_of_the_gone(self) -> Flow:
        """What has gone through streams that are deleted."""
        total = self._past
        for stream in self._gone:
            total = total.plus(stream.flow())
        return total

    def stream_is_gone(self, stream: "StreamTraffic") -> None:
        """A stream is deleted; its last consumers may still have to learn that."""
        stream.log_closed()
        self._gone.add(stream)
        self.settle(stream)

    def settle(self, stream: "StreamTraffic") -> None:
        """A reader was closed: of a stream that is gone and has no other, nothing more comes."""
        if stream in self._gone and not stream.has_readers:
            self._gone.discard(stream)
            self._past = self._past.plus(stream.flow())


class StreamTraffic:
    """What has gone through one stream since the server's start.

    Nothing is counted here that its log and its readers know: they are asked.

    Args:
        server: the traffic that this is a part of.

    Attributes:
        server: see above.
        messages_acknowledged: by AMQP consumers.
        messages_out_amqp, bytes_out_amqp: to AMQP consumers.
        chunks_in_vain: see Traffic.
        sampled: what the last hour has seen of it, see history.py.
    """

    __slots__ = (
        "_log",
        "_past",
        "_readers",
        "bytes_out_amqp",
        "chunks_in_vain",
        "messages_acknowledged",
        "messages_out_amqp",
        "sampled",
        "server",
    )

    def __init__(self, server: Traffic) -> None:
        self.server = server
        self.messages_out_amqp = self.bytes_out_amqp = 0
        self.messages_acknowledged = self.chunks_in_vain = 0
        self.sampled = NOTHING
        self._past = NOTHING
        self._log: WrittenLog | None = None
        self._readers: dict[ReadProgress, bool] | None = None

    def sent_to_amqp(self, messages: int, size: int) -> None:
        """An AMQP consumer was sent messages, in one turn."""
        self.messages_out_amqp += messages
        self.bytes_out_amqp += size

    def in_vain(self, chunks: int) -> None:
        """An AMQP consumer wanted no message of so many chunks that were read for it."""
        self.chunks_in_vain += chunks
        self.server.chunks_in_vain += chunks

    # -- who knows more

    def log_opened(self, log: WrittenLog) -> None:
        """Its log is open: nothing has been appended yet."""
        self._log = log

    def log_closed(self) -> None:
        """Nothing more is appended to its log: what was still counts."""
        if self._log is not None:
            self._past = self._past.plus(Flow(*self._log.written))
            self._log = None

    @property
    def has_readers(self) -> bool:
        """Somebody reads it."""
        return bool(self._readers)

    def begin_reading(self, progress: ReadProgress, *, sends: bool) -> None:
        """A consumer begins to read it.

        Args:
            progress: how far it is.
            sends: whether it is sent what it reads; AMQP consumers are sent some of it.
        """
        if self._readers is None:
            self._readers = {}
        self._readers[progress] = sends

    def end_reading(self, progress: ReadProgress) -> None:
        """A consumer reads no more: what it has read still counts."""
        sends = None if self._readers is None else self._readers.pop(progress, None)
        if sends is not None:
            self._past = self._past.plus(_read(progress, sends=sends))
            self.server.settle(self)

    def flow(self) -> Flow:
        """What has gone through it."""
        total = self._past
        if self._log is not None:
            total = total.plus(Flow(*self._log.written))
        for progress, sends in (self._readers or _NO_READERS).items():
            total = total.plus(_read(progress, sends=sends))
        if self.messages_out_amqp:
            out, size = self.messages_out_amqp, self.bytes_out_amqp
            total = total.plus(Flow(messages_out=out, bytes_out=size))
        return total


_NO_READERS: dict[ReadProgress, bool] = {}


def _read(progress: ReadProgress, *, sends: bool) -> Flow:
    return Flow(
        0,
        0,
        0,
        progress.records if sends else 0,
        progress.data_bytes if sends else 0,
        progress.chunks,
        progress.skipped_chunks,
        progress.skipped_bytes,
        progress.unfiltered_chunks,
        progress.lost_records,
    )
