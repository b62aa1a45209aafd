"""Metrics of streams and of consumers by name, and their totals.

There may be ten thousand streams: what is known of one is put into columns of plain numbers, which
the garbage collector need not look at, and lines are made of those, a few thousand in a turn.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from streamd.metrics.families import COUNTER, GAUGE, UNTYPED, Family, Number, Sample
from streamd.operations.figures import Flow, LogState, Readers, ServerFigures, StreamFigures
from streamd.operations.names import Name

QUEUE, STREAM = ("vhost", "queue"), ("vhost", "stream")
OWN_GROUP, CONSUMER_GROUP = "streamd_stream", "streamd_consumer"
_COARSE, _COUNT, _QUEUES, _DELIVERIES, _CONSUMERS = (
    "queue_coarse_metrics",
    "queue_consumer_count",
    "queue_metrics",
    "queue_delivery_metrics",
    "stream_consumer_metrics",
)
QUEUE_GROUPS = frozenset((_COARSE, _COUNT, _QUEUES))  # that come with queue_info


def _log(stream: StreamFigures) -> LogState:
    assert stream.log is not None  # noqa: S101 - others are not in the table
    return stream.log


class Column(NamedTuple):
    """A family with a value for each stream.

    Attributes:
        family: its labels are QUEUE or STREAM.
        value: of a stream.
        total: for the server, in place of the sum, where streams that are deleted count as well.
        is_highest: the total is the highest value, not the sum.
        has_total: it makes sense for all streams together.
        is_float: values are not whole numbers.
    """

    family: Family
    value: Callable[[StreamFigures], Number]
    total: Callable[[ServerFigures, Flow], int] | None = None
    is_highest: bool = False
    has_total: bool = True
    is_float: bool = False


def _queue(
    name: str,
    kind: str,
    text: str,
    groups: Sequence[str],
    value: Callable[[StreamFigures], Number],
    *,
    is_highest: bool = False,
    has_total: bool = True,
) -> Column:
    family = Family(f"rabbitmq_{name}", kind, text, QUEUE, tuple(groups))
    return Column(family, value, is_highest=is_highest, has_total=has_total)


def _own(
    name: str,
    kind: str,
    text: str,
    value: Callable[[StreamFigures], Number],
    total: Callable[[ServerFigures, Flow], int] | None = None,
    *,
    is_highest: bool = False,
    has_total: bool = True,
    is_float: bool = False,
) -> Column:
    family = Family(f"streamd_{name}", kind, text, STREAM, (OWN_GROUP,))
    return Column(family, value, total, is_highest, has_total, is_float)


COLUMNS = (
    _queue(
        "queue_messages_ready",
        GAUGE,
        "Messages ready to be delivered to consumers: all that a stream keeps",
        [_COARSE],
        lambda r: _log(r).messages,
    ),
    _queue(
        "queue_messages_unacked",
        GAUGE,
        "Messages delivered to consumers but not yet acknowledged: 0, as in streams of RabbitMQ",
        [_COARSE],
        lambda _: 0,
    ),
    _queue(
        "queue_messages",
        GAUGE,
        "Sum of ready and unacknowledged messages - total queue depth",
        [_COARSE],
        lambda r: _log(r).messages,
    ),
    _queue(
        "queue_consumers",
        GAUGE,
        "Consumers on a queue",
        [_COUNT, _QUEUES],
        lambda r: r.consumers.count,
    ),
    _queue(
        "queue_messages_bytes",
        GAUGE,
        "Size in bytes of ready and unacknowledged messages, in their chunks",
        [_QUEUES],
        lambda r: _log(r).size,
    ),
    _queue(
        "queue_head_message_timestamp",
        GAUGE,
        "Timestamp of the first message in the queue, if any",
        [_QUEUES],
        lambda r: _log(r).first_ms // 1_000,
        has_total=False,
    ),
    _queue(
        "stream_segments",
        GAUGE,
        "Total number of stream segment files",
        [_QUEUES],
        lambda r: _log(r).segments,
    ),
    _queue(
        "stream_consumer_max_offset_lag",
        GAUGE,
        "Highest consumer offset lag",
        [_CONSUMERS],
        lambda r: r.consumers.lag,
        is_highest=True,
    ),
    _queue(
        "queue_messages_delivered_ack_total",
        COUNTER,
        "Total number of messages delivered from a queue to AMQP consumers, which acknowledge them",
        [_DELIVERIES],
        lambda r: r.messages_out_amqp,
        has_total=False,
    ),
    _queue(
        "queue_messages_delivered_total",
        COUNTER,
        "Total number of messages delivered from a queue to consumers of the stream protocol",
        [_DELIVERIES],
        lambda r: r.flow.messages_out - r.messages_out_amqp,
        has_total=False,
    ),
    _queue(
        "queue_messages_acked_total",
        COUNTER,
        "Total number of messages acknowledged by consumers on a queue",
        [_DELIVERIES],
        lambda r: r.messages_acknowledged,
        has_total=False,
    ),
    _own("stream_messages", GAUGE, "Messages that are kept", lambda r: _log(r).messages),
    _own("stream_bytes", GAUGE, "Bytes of all segment files", lambda r: _log(r).size),
    _own("stream_segments", GAUGE, "Segments that are kept", lambda r: _log(r).segments),
    _own("stream_chunks", GAUGE, "Chunks that are kept", lambda r: _log(r).chunks),
    _own(
        "stream_first_timestamp_seconds",
        GAUGE,
        "When the oldest chunk was written, in seconds since 1970; 0 in an empty stream",
        lambda r: _log(r).first_ms / 1_000,
        has_total=False,
        is_float=True,
    ),
    _own(
        "stream_last_timestamp_seconds",
        GAUGE,
        "When the newest chunk was written, in seconds since 1970; 0 in an empty stream",
        lambda r: _log(r).last_ms / 1_000,
        is_highest=True,
        is_float=True,
    ),
    _own(
        "stream_key_indexes",
        GAUGE,
        "Segments whose key index is in memory",
        lambda r: _log(r).key_indexes,
    ),
    _own("damage_places", GAUGE, "Damaged places that are known", lambda r: _log(r).damage),
    _own("damaged_messages", GAUGE, "Messages known to be damaged", lambda r: _log(r).lost),
    _own(
        "stream_in_trouble",
        GAUGE,
        "1 when the stream accepts no messages at the moment",
        lambda r: int(r.is_in_trouble),
    ),
    _own("stream_is_open", GAUGE, "1 when the log is in memory", lambda r: int(r.is_open)),
    _own(
        "stream_publishers",
        GAUGE,
        "Publishers of the stream protocol",
        lambda r: r.publishers,
    ),
    _own("stream_consumers", GAUGE, "Consumers of all protocols", lambda r: r.consumers.count),
    _own(
        "stream_lag_messages",
        GAUGE,
        "Messages that the consumer furthest behind has not got",
        lambda r: r.consumers.lag,
        is_highest=True,
    ),
    _own(
        "stream_lag_seconds",
        GAUGE,
        "How old the oldest message is that some consumer has not got",
        lambda r: r.consumers.lag_seconds,
        is_highest=True,
        is_float=True,
    ),
    _own(
        "stored_messages_total",
        COUNTER,
        "Messages that were stored",
        lambda r: r.flow.messages_in,
        lambda _, flow: flow.messages_in,
    ),
    _own(
        "stored_chunks_total",
        COUNTER,
        "Chunks that were stored",
        lambda r: r.flow.chunks_in,
        lambda _, flow: flow.chunks_in,
    ),
    _own(
        "stored_bytes_total",
        COUNTER,
        "Bytes of the chunks that were stored",
        lambda r: r.flow.bytes_in,
        lambda _, flow: flow.bytes_in,
    ),
    _own(
        "sent_messages_total",
        COUNTER,
        "Messages sent to consumers, each to as many as get it",
        lambda r: r.flow.messages_out,
        lambda _, flow: flow.messages_out,
    ),
    _own(
        "sent_bytes_total",
        COUNTER,
        "Bytes of chunks, and of frames with messages, sent to consumers",
        lambda r: r.flow.bytes_out,
        lambda _, flow: flow.bytes_out,
    ),
    _own(
        "chunks_sent_total",
        COUNTER,
        "Chunks read to be sent to a consumer, or to be looked through for an AMQP consumer",
        lambda r: r.flow.chunks,
        lambda _, flow: flow.chunks,
    ),
    _own(
        "chunks_skipped_total",
        COUNTER,
        "Chunks that a consumer's filter ruled out: they were not sent",
        lambda r: r.flow.skipped_chunks,
        lambda _, flow: flow.skipped_chunks,
    ),
    _own(
        "chunks_in_vain_total",
        COUNTER,
        "Chunks that were read for an AMQP consumer, which wanted no message of them; consumers of "
        "the stream protocol look through chunks themselves",
        lambda r: r.chunks_in_vain,
        lambda server, _: server.chunks_in_vain,
    ),
    _own(
        "unfiltered_chunks_skipped_total",
        COUNTER,
        "Of the chunks that were ruled out, those in which no message has a filter value",
        lambda r: r.flow.unfiltered_chunks,
        lambda _, flow: flow.unfiltered_chunks,
    ),
    _own(
        "bytes_not_sent_total",
        COUNTER,
        "Bytes of chunks that a consumer's filter ruled out",
        lambda r: r.flow.skipped_bytes,
        lambda _, flow: flow.skipped_bytes,
    ),
    _own(
        "lost_messages_total",
        COUNTER,
        "Messages that consumers did not get: they were damaged, or removed by retention first",
        lambda r: r.flow.lost_messages,
        lambda _, flow: flow.lost_messages,
    ),
)

QUEUE_INFO = Family(
    "rabbitmq_queue_info",
    GAUGE,
    "A metric with a constant '1' value and labels that provide some queue details.",
    ("vhost", "queue", "queue_type", "membership"),
)
QUEUE_INFO_LABELS = 'queue_type="rabbit_stream_queue",membership="leader"'

BY_NAME: tuple[tuple[Family, Callable[[Readers], Number]], ...] = (
    (
        Family(
            "streamd_named_consumers",
            GAUGE,
            "Consumers of that name; a consumer's name is what it is called, or its tag",
            (*STREAM, "consumer"),
            (CONSUMER_GROUP,),
        ),
        lambda readers: readers.count,
    ),
    (
        Family(
            "streamd_consumer_lag_messages",
            GAUGE,
            "Messages that a consumer has not got: the one of that name furthest behind",
            (*STREAM, "consumer"),
            (CONSUMER_GROUP,),
        ),
        lambda readers: readers.lag,
    ),
    (
        Family(
            "streamd_consumer_lag_seconds",
            GAUGE,
            "How old the oldest message is that a consumer of that name has not got, at most",
            (*STREAM, "consumer"),
            (CONSUMER_GROUP,),
        ),
        lambda readers: readers.lag_seconds,
    ),
)

WRITTEN = Family(
    "rabbitmq_io_write_bytes_total",
    COUNTER,
    "Total number of I/O bytes written to streams",
)
DISK_ALARM = Family(
    "rabbitmq_alarms_free_disk_space_watermark",
    UNTYPED,
    "is 1 if a stream waits for room on the disk",
)
KNOWN = Family(
    "streamd_streams_known",
    GAUGE,
    "Streams whose log has been looked at since the start, or is new: soon all of them",
)

MATCHES = Family(
    "streamd_standing_selector_matches_total",
    COUNTER,
    "Chunks with a message that the standing selector of a group matches",
    (*STREAM, "group"),
    (OWN_GROUP,),
)


def standing_matches(stream: StreamFigures) -> Iterator[Sample]:
    """How often the standing selectors of a stream have matched."""
    for group, matches in stream.matches:
        yield Sample({"vhost": stream.vhost, "stream": stream.name, "group": group}, matches)


class Table:
    """All streams of a scrape in columns.

    Args:
        columns: what is wanted of each stream.
        gone: what has gone through streams that are deleted.

    Attributes:
        hosts, names: of each stream.
        with_selectors: streams with standing selectors.
        flow: what has gone through all streams that are and were.
        is_disk_full: one of them waits for room on the disk.
    """

    def __init__(self, columns: Sequence[Column], gone: Flow) -> None:
        self.hosts: list[Name] = []
        self.names: list[Name] = []
        self.with_selectors: list[StreamFigures] = []
        self.flow = gone
        self.is_disk_full = False
        self._columns = columns
        self._values: list[array[Any]] = [
            array("d" if column.is_float else "q") for column in columns
        ]

    def __len__(self) -> int:
        return len(self.names)

    def add(self, stream: StreamFigures) -> None:
        """Take down a stream; one that nobody has looked at since the start is not there yet."""
        self.flow = self.flow.plus(stream.flow)
        if stream.log is None:
            return
        values = [column.value(stream) for column in self._columns]
        self.is_disk_full |= stream.is_disk_full
        self.hosts.append(stream.vhost)
        self.names.append(stream.name)
        for column, value in zip(self._values, values, strict=True):
            column.append(value)
        if stream.matches:
            self.with_selectors.append(stream)

    def column(self, number: int) -> Sequence[Number]:
        """The values of a column, in the order of the streams."""
        return self._values[number]

    def total(self, number: int, server: ServerFigures) -> Number:
        """The value of a column for the server."""
        column, values = self._columns[number], self._values[number]
        if column.total is not None:
            return column.total(server, self.flow)
        return max(values, default=0) if column.is_highest else sum(values)
