"""What a server counts, as metrics are made of it."""

from operator import add
from typing import NamedTuple

import msgspec

from streamd.operations.cluster import NodeFacts
from streamd.operations.declaration import DOORS, WATCHERS, Operation
from streamd.operations.names import Name
from streamd.operations.tier_reports import TierStatus

AMQP091, AMQP10 = "amqp091", "amqp10"  # as metrics name them


class Flow(NamedTuple):
    """What has gone through a stream, or through all of a server.

    Attributes:
        messages_in, chunks_in, bytes_in: stored.
        messages_out, bytes_out: to consumers.
        chunks: read to be sent, or for an AMQP consumer to be looked through.
        skipped_chunks, skipped_bytes: that a consumer's filter ruled out.
        unfiltered_chunks: of those, chunks in which no message has a filter value.
        lost_messages: that were damaged, or removed before they were read.
    """

    messages_in: int = 0
    chunks_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    chunks: int = 0
    skipped_chunks: int = 0
    skipped_bytes: int = 0
    unfiltered_chunks: int = 0
    lost_messages: int = 0

    def plus(self, more: "Flow") -> "Flow":
        """Both together."""
        return Flow(*map(add, self, more))


class Distribution(msgspec.Struct, frozen=True, array_like=True):
    """The numbers of a histogram.

    Attributes:
        bounds: the upper bounds of all buckets but the last one.
        counts: values in each bucket.
        sum: of all values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


class ProtocolFigures(msgspec.Struct, frozen=True):
    """What the clients of one protocol have done; see `streamd.broker.traffic.ProtocolTraffic`."""

    publishers: int
    consumers: int
    messages_received: int
    messages_received_confirm: int
    messages_confirmed: int
    messages_routed: int
    messages_unroutable_dropped: int
    messages_unroutable_returned: int
    messages_delivered: int
    messages_acknowledged: int
    channels_opened: int
    channels_closed: int
    logins: int
    logins_refused: int
    loop_held: int
    loop_held_seconds: float
    errors: dict[int, int]


class Process(msgspec.Struct, frozen=True):
    """The engine's process as the system sees it.

    Attributes:
        open_files, max_files: descriptors.
        resident_bytes, memory_limit: of memory; the limit is that of the machine or its container.
        disk_free: bytes in the file system of the data folder.
    """

    open_files: int = 0
    max_files: int = 0
    resident_bytes: int = 0
    memory_limit: int = 0
    disk_free: int = 0


class ServerFigures(msgspec.Struct, frozen=True):
    """What is counted of the server as a whole.

    Attributes:
        uptime: seconds since the start.
        connections: open now; `opened` and `closed` since the start.
        streams: in all virtual hosts.
        process: see Process; zeros where it could not be asked.
        tier: how it does.
        node: that it is of a cluster; None where it is in none.
        queues_declared, queues_created, queues_deleted: since the start.
        histograms: confirm_seconds, flush_seconds, slot_seconds, loop_delay_seconds,
            message_bytes.
        faults: failures of background tasks, by what they do.
        http_refused: requests and connections over HTTP that were refused, by why.
        searches_begun, searches_refused, searches_open: pages of searches.
        chunks_in_vain: chunks that were read for an AMQP consumer for nothing.
        protocols: what their clients have done, by name.
        virtual_hosts: by name.
    """

    uptime: float
    connections: int
    opened: int
    closed: int
    streams: int
    process: Process
    tier: TierStatus
    node: NodeFacts | None
    queues_declared: int
    queues_created: int
    queues_deleted: int
    histograms: dict[str, Distribution]
    faults: dict[str, int]
    http_refused: dict[str, int]
    searches_begun: int
    searches_refused: int
    searches_open: int
    chunks_in_vain: int
    protocols: dict[str, ProtocolFigures]
    virtual_hosts: tuple[Name, ...]


class GetServerFigures(Operation[ServerFigures], frozen=True, kw_only=True):
    """What is counted of the server as a whole."""

    NAME = "figures.server"
    NEEDS = WATCHERS


class Readers(msgspec.Struct, array_like=True):
    """The consumers of one name, or all of one stream.

    Attributes:
        count: how many.
        lag: messages that the one that is furthest behind has not got.
        lag_seconds: how old the first of them is.
    """

    count: int = 0
    lag: int = 0
    lag_seconds: float = 0.0

    def add(self, lag: int, lag_seconds: float) -> None:
        """There is one more."""
        self.count += 1
        self.lag = max(self.lag, lag)
        self.lag_seconds = max(self.lag_seconds, lag_seconds)


class LogState(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a log, without a look at the disk."""

    messages: int
    size: int
    chunks: int
    segments: int
    first_ms: int
    last_ms: int
    lost: int
    damage: int
    key_indexes: int


class StreamFigures(msgspec.Struct, frozen=True, array_like=True):
    """What is counted of a stream.

    Attributes:
        vhost, name: which stream.
        log: None where nobody has looked at it since the start; then only `flow` is known.
        flow: what has gone through it.
        messages_out_amqp, messages_acknowledged: to AMQP consumers, and by them.
        chunks_in_vain: read for an AMQP consumer for nothing.
        consumers: of all protocols.
        publishers: of the stream protocol.
        is_in_trouble: it accepts no messages at the moment.
        is_disk_full: because there is no room on the disk.
        is_open: its log is in memory.
        matches: of the standing selector of each group.
    """

    vhost: Name
    name: Name
    log: LogState | None
    flow: Flow
    messages_out_amqp: int
    messages_acknowledged: int
    chunks_in_vain: int
    consumers: Readers
    publishers: int
    is_in_trouble: bool
    is_disk_full: bool
    is_open: bool
    matches: tuple[tuple[str, int], ...]


class NamedReaders(msgspec.Struct, frozen=True, array_like=True):
    """The consumers of one name in a stream."""

    vhost: Name
    stream: Name
    name: str
    readers: Readers


class AllStreams(msgspec.Struct, frozen=True):
    """What is counted of all streams, and of consumers by their names.

    Attributes:
        streams: by virtual host; of one that is deleted meanwhile only `flow` is known.
        gone: what had gone through streams that were deleted before; with `streams` this never
            falls.
        consumers: those of MAX_NAMES names; others count for their streams alone.
    """

    streams: list[StreamFigures]
    gone: Flow
    consumers: list[NamedReaders]


class ListStreamFigures(Operation[AllStreams], frozen=True, kw_only=True):
    """What is counted of all streams.

    Attributes:
        vhosts: of these virtual hosts; empty for all.
    """

    NAME = "figures.streams"
    SHOWS_FIGURES = True
    NEEDS = WATCHERS

    vhosts: tuple[Name, ...] = ()


class ExchangeFigures(msgspec.Struct, frozen=True, array_like=True):
    """An exchange, and how many bindings begin at it."""

    vhost: Name
    name: Name
    type: str
    bindings: int


class ListExchangeFigures(Operation[list[ExchangeFigures]], frozen=True, kw_only=True):
    """What is counted of exchanges."""

    NAME = "figures.exchanges"
    NEEDS = WATCHERS


class CountRefusals(Operation[None], frozen=True, kw_only=True):
    """Count requests and connections over HTTP that a door has refused.

    Attributes:
        counts: since the last time, by why.
    """

    NAME = "refusals.count"
    NEEDS = DOORS
    CHANGES = True

    counts: dict[str, int]
