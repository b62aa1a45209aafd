"""Metrics of the server as a whole, in RabbitMQ's names and in ours.

What a server of streams never does, as getting single messages, is there and 0: dashboards add such
metrics to others.

Source of names, types and texts: rabbitmq/rabbitmq-server,
deps/rabbitmq_prometheus/src/collectors/prometheus_rabbitmq_core_metrics_collector.erl,
deps/rabbit/src/rabbit_global_counters.erl and
deps/rabbitmq_stream/include/rabbit_stream_metrics.hrl.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from streamd.metrics.families import COUNTER, GAUGE, HISTOGRAM, UNTYPED, Family, Number, Sample
from streamd.operations.cluster import NodeFacts
from streamd.operations.connections import STREAM_PROTOCOL
from streamd.operations.figures import (
    AMQP091,
    AMQP10,
    ExchangeFigures,
    ProtocolFigures,
    ServerFigures,
)
from streamd.operations.tier_reports import Kind, TierState, TierStatus
from streamd.version import COMPATIBLE_VERSION, PRODUCT, __version__
from streamd.wire.stream import ResponseCode

PROTOCOLS = (STREAM_PROTOCOL, AMQP091, AMQP10)
STREAM_QUEUE = "rabbit_stream_queue"
AGGREGATED, PER_OBJECT, DETAILED = "aggregated", "per-object", "detailed"
OWN_GROUP = "streamd_server"


# The codes that RabbitMQ counts, by their names in its metrics.
ERROR_NAMES = {
    ResponseCode.ACCESS_REFUSED: "access_refused",
    ResponseCode.AUTHENTICATION_FAILURE: "authentication_failure",
    ResponseCode.FRAME_TOO_LARGE: "frame_too_large",
    ResponseCode.INTERNAL_ERROR: "internal_error",
    ResponseCode.PRECONDITION_FAILED: "precondition_failed",
    ResponseCode.PUBLISHER_DOES_NOT_EXIST: "publisher_does_not_exist",
    ResponseCode.AUTHENTICATION_FAILURE_LOOPBACK: "sasl_authentication_failure_loopback",
    ResponseCode.SASL_CHALLENGE: "sasl_challenge",
    ResponseCode.SASL_ERROR: "sasl_error",
    ResponseCode.SASL_MECHANISM_NOT_SUPPORTED: "sasl_mechanism_not_supported",
    ResponseCode.STREAM_EXISTS: "stream_already_exists",
    ResponseCode.STREAM_DOES_NOT_EXIST: "stream_does_not_exist",
    ResponseCode.STREAM_NOT_AVAILABLE: "stream_not_available",
    ResponseCode.SUBSCRIPTION_ID_EXISTS: "subscription_id_already_exists",
    ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST: "subscription_id_does_not_exist",
    ResponseCode.UNKNOWN_FRAME: "unknown_frame",
    ResponseCode.VIRTUAL_HOST_ACCESS_FAILURE: "vhost_access_failure",
}


class ScrapeContext(NamedTuple):
    """What one scrape works on.

    Attributes:
        server: what is counted of it.
        node: its name.
        endpoint: AGGREGATED, PER_OBJECT or DETAILED.
        faults: failures in making metrics, here.
        exchanges: of all virtual hosts, where they are asked for.
    """

    server: ServerFigures
    node: str
    endpoint: str
    faults: Mapping[str, int]
    exchanges: Sequence[ExchangeFigures] = ()


Values: TypeAlias = Number | Iterable[Sample]


class Metric(NamedTuple):
    """A family and where its values come from."""

    family: Family
    values: Callable[[ScrapeContext], Values]

    def samples(self, asked: ScrapeContext) -> Iterable[Sample]:
        """Its values."""
        found = self.values(asked)
        return (Sample({}, found),) if isinstance(found, int | float) else found


def _one(
    name: str, kind: str, text: str, group: str, values: Callable[[ScrapeContext], Number]
) -> Metric:
    return Metric(Family(name, kind, text, groups=(group,) if group else ()), values)


# -- RabbitMQ's


def _build_info(_asked: ScrapeContext) -> Iterator[Sample]:
    labels = {
        "rabbitmq_version": COMPATIBLE_VERSION,
        "prometheus_plugin_version": COMPATIBLE_VERSION,
        "prometheus_client_version": COMPATIBLE_VERSION,
        "erlang_version": "none",
        "product_name": PRODUCT,
        "product_version": COMPATIBLE_VERSION,
    }
    yield Sample(labels, 1)


def _identity_info(asked: ScrapeContext) -> Iterator[Sample]:
    node = asked.node
    labels = {
        "rabbitmq_node": node,
        "rabbitmq_cluster": node,
        "rabbitmq_cluster_permanent_id": node,
        "rabbitmq_endpoint": asked.endpoint,
    }
    yield Sample(labels, 1)


IDENTITY = (
    Metric(
        Family(
            "rabbitmq_build_info",
            UNTYPED,
            "The version of RabbitMQ that clients can take the server for",
            (
                "rabbitmq_version",
                "prometheus_plugin_version",
                "prometheus_client_version",
                "erlang_version",
                "product_name",
                "product_version",
            ),
        ),
        _build_info,
    ),
    Metric(
        Family(
            "rabbitmq_identity_info",
            UNTYPED,
            "The server, and the path that was asked for: dashboards join all metrics with it",
            (
                "rabbitmq_node",
                "rabbitmq_cluster",
                "rabbitmq_cluster_permanent_id",
                "rabbitmq_endpoint",
            ),
        ),
        _identity_info,
    ),
)


def _protocol(asked: ScrapeContext, name: str) -> ProtocolFigures:
    return asked.server.protocols[name]


def _of_protocols(name: str, kind: str, text: str) -> Metric:
    attribute = name.removesuffix("_total")

    def values(asked: ScrapeContext) -> Iterator[Sample]:
        for protocol in PROTOCOLS:
            # In the stream protocol, all publishers get confirms.
            is_all = protocol == STREAM_PROTOCOL and attribute == "messages_received_confirm"
            found = "messages_received" if is_all else attribute
            yield Sample({"protocol": protocol}, getattr(_protocol(asked, protocol), found))

    return Metric(Family(f"rabbitmq_global_{name}", kind, text, ("protocol",)), values)


def _of_queue_types(name: str, text: str, value: Callable[[str, ProtocolFigures], int]) -> Metric:
    def values(asked: ScrapeContext) -> Iterator[Sample]:
        for protocol in PROTOCOLS:
            number = value(protocol, _protocol(asked, protocol))
            yield Sample({"protocol": protocol, "queue_type": STREAM_QUEUE}, number)

    family = Family(f"rabbitmq_global_{name}", COUNTER, text, ("protocol", "queue_type"))
    return Metric(family, values)


def _never(_protocol: str, _traffic: ProtocolFigures) -> int:
    return 0


def _delivered(_protocol: str, traffic: ProtocolFigures) -> int:
    return traffic.messages_delivered


def _delivered_to_amqp(protocol: str, traffic: ProtocolFigures) -> int:
    return traffic.messages_delivered if protocol == AMQP091 else 0


def _acknowledged(_protocol: str, traffic: ProtocolFigures) -> int:
    return traffic.messages_acknowledged


def _stream_error(code: int, name: str) -> Metric:
    def values(asked: ScrapeContext) -> Iterator[Sample]:
        count = _protocol(asked, STREAM_PROTOCOL).errors.get(code, 0)
        yield Sample({"protocol": STREAM_PROTOCOL}, count)

    text = f"Errors that stream clients were told: {name.replace('_', ' ')}"
    family = Family(f"rabbitmq_global_stream_error_{name}_total", COUNTER, text, ("protocol",))
    return Metric(family, values)


def _message_sizes(asked: ScrapeContext) -> Iterator[Sample]:
    yield Sample({"protocol": AMQP091}, asked.server.histograms["message_bytes"])


def _login_attempts(name: str, text: str, value: Callable[[ProtocolFigures], int]) -> Metric:
    def values(asked: ScrapeContext) -> Iterator[Sample]:
        for protocol in (*PROTOCOLS, "http"):
            yield Sample({"protocol": protocol}, value(_protocol(asked, protocol)))

    return Metric(Family(name, COUNTER, text, ("protocol",), ("auth_attempt_metrics",)), values)


_CHURN, _COARSE, _NODE, _DISK = (
    "connection_churn_metrics",
    "node_coarse_metrics",
    "node_metrics",
    "node_persister_metrics",
)

RABBITMQ = (
    _one(
        "rabbitmq_connections",
        GAUGE,
        "Connections currently open",
        "",
        lambda a: a.server.connections,
    ),
    _one(
        "rabbitmq_channels",
        GAUGE,
        "Channels currently open",
        "",
        lambda a: _protocol(a, AMQP091).channels_opened - _protocol(a, AMQP091).channels_closed,
    ),
    _one(
        "rabbitmq_consumers",
        GAUGE,
        "Consumers currently connected",
        "",
        lambda a: sum(_protocol(a, name).consumers for name in PROTOCOLS),
    ),
    _one("rabbitmq_queues", GAUGE, "Queues available", "", lambda a: a.server.streams),
    _one(
        "rabbitmq_connections_opened_total",
        COUNTER,
        "Total number of connections opened",
        _CHURN,
        lambda a: a.server.opened,
    ),
    _one(
        "rabbitmq_connections_closed_total",
        COUNTER,
        "Total number of connections closed or terminated",
        _CHURN,
        lambda a: a.server.closed,
    ),
    _one(
        "rabbitmq_channels_opened_total",
        COUNTER,
        "Total number of channels opened",
        _CHURN,
        lambda a: _protocol(a, AMQP091).channels_opened,
    ),
    _one(
        "rabbitmq_channels_closed_total",
        COUNTER,
        "Total number of channels closed",
        _CHURN,
        lambda a: _protocol(a, AMQP091).channels_closed,
    ),
    _one(
        "rabbitmq_queues_declared_total",
        COUNTER,
        "Total number of queues declared",
        _CHURN,
        lambda a: a.server.queues_declared,
    ),
    _one(
        "rabbitmq_queues_created_total",
        COUNTER,
        "Total number of queues created",
        _CHURN,
        lambda a: a.server.queues_created,
    ),
    _one(
        "rabbitmq_queues_deleted_total",
        COUNTER,
        "Total number of queues deleted",
        _CHURN,
        lambda a: a.server.queues_deleted,
    ),
    _one(
        "rabbitmq_process_open_fds",
        GAUGE,
        "Open file descriptors",
        _COARSE,
        lambda a: a.server.process.open_files,
    ),
    _one(
        "rabbitmq_process_resident_memory_bytes",
        GAUGE,
        "Memory used in bytes",
        _COARSE,
        lambda a: a.server.process.resident_bytes,
    ),
    _one(
        "rabbitmq_disk_space_available_bytes",
        GAUGE,
        "Disk space available in bytes",
        _COARSE,
        lambda a: a.server.process.disk_free,
    ),
    _one(
        "rabbitmq_process_max_fds",
        GAUGE,
        "Open file descriptors limit",
        _NODE,
        lambda a: a.server.process.max_files,
    ),
    _one(
        "rabbitmq_resident_memory_limit_bytes",
        GAUGE,
        "Memory of the machine, or of its container, in bytes: there is no other limit here",
        _NODE,
        lambda a: a.server.process.memory_limit,
    ),
    _one(
        "rabbitmq_disk_space_available_limit_bytes",
        GAUGE,
        "Free disk space low watermark in bytes: 0, as publishers wait when the disk is full",
        _NODE,
        lambda _: 0,
    ),
    _one("rabbitmq_erlang_uptime_seconds", GAUGE, "Node uptime", _NODE, lambda a: a.server.uptime),
    _one(
        "rabbitmq_io_sync_ops_total",
        COUNTER,
        "Total number of I/O sync operations: flushes of streams to the device",
        _DISK,
        lambda a: sum(a.server.histograms["flush_seconds"].counts),
    ),
    _one(
        "rabbitmq_io_sync_time_seconds_total",
        COUNTER,
        "Total I/O sync time",
        _DISK,
        lambda a: a.server.histograms["flush_seconds"].sum,
    ),
    _login_attempts(
        "rabbitmq_auth_attempts_total",
        "Total number of authentication attempts",
        lambda t: t.logins + t.logins_refused,
    ),
    _login_attempts(
        "rabbitmq_auth_attempts_succeeded_total",
        "Total number of successful authentication attempts",
        lambda t: t.logins,
    ),
    _login_attempts(
        "rabbitmq_auth_attempts_failed_total",
        "Total number of failed authentication attempts",
        lambda t: t.logins_refused,
    ),
    _of_protocols("publishers", GAUGE, "Current number of publishers"),
    _of_protocols("consumers", GAUGE, "Current number of consumers"),
    _of_protocols(
        "messages_received_total", COUNTER, "Total number of messages received from publishers"
    ),
    _of_protocols(
        "messages_received_confirm_total",
        COUNTER,
        "Total number of messages received from publishers expecting confirmations",
    ),
    _of_protocols(
        "messages_routed_total", COUNTER, "Total number of messages routed to queues or streams"
    ),
    _of_protocols(
        "messages_unroutable_dropped_total",
        COUNTER,
        "Total number of messages published as non-mandatory into an exchange and dropped as "
        "unroutable",
    ),
    _of_protocols(
        "messages_unroutable_returned_total",
        COUNTER,
        "Total number of messages published as mandatory into an exchange and returned to the "
        "publisher as unroutable",
    ),
    _of_protocols(
        "messages_confirmed_total", COUNTER, "Total number of messages confirmed to publishers"
    ),
    _of_queue_types(
        "messages_delivered_total", "Total number of messages delivered to consumers", _delivered
    ),
    _of_queue_types(
        "messages_delivered_consume_manual_ack_total",
        "Total number of messages delivered to consumers using basic.consume with manual "
        "acknowledgment",
        _delivered_to_amqp,
    ),
    _of_queue_types(
        "messages_delivered_consume_auto_ack_total",
        "Total number of messages delivered to consumers using basic.consume with automatic "
        "acknowledgment: none, streams do not have it",
        _never,
    ),
    _of_queue_types(
        "messages_delivered_get_manual_ack_total",
        "Total number of messages delivered to consumers using basic.get with manual "
        "acknowledgment: none, streams do not have it",
        _never,
    ),
    _of_queue_types(
        "messages_delivered_get_auto_ack_total",
        "Total number of messages delivered to consumers using basic.get with automatic "
        "acknowledgment: none, streams do not have it",
        _never,
    ),
    _of_queue_types(
        "messages_get_empty_total",
        "Total number of times basic.get operations fetched no message: none",
        _never,
    ),
    _of_queue_types(
        "messages_redelivered_total",
        "Total number of messages redelivered to consumers: none, streams do not",
        _never,
    ),
    _of_queue_types(
        "messages_acknowledged_total",
        "Total number of messages acknowledged by consumers",
        _acknowledged,
    ),
    *(_stream_error(code, name) for code, name in ERROR_NAMES.items()),
    Metric(
        Family(
            "rabbitmq_message_size_bytes",
            HISTOGRAM,
            "Size of messages received from AMQP publishers",
            ("protocol",),
        ),
        _message_sizes,
    ),
    _one(
        "rabbitmq_alarms_memory_used_watermark",
        UNTYPED,
        "is 1 if VM memory watermark alarm is in effect: never, what clients can use is bounded",
        "",
        lambda _: 0,
    ),
    _one(
        "rabbitmq_unreachable_cluster_peers_count",
        GAUGE,
        "Number of peers in the cluster the current node cannot reach: there are none",
        "",
        lambda _: 0,
    ),
)


# -- those of a virtual host, for /metrics/detailed alone


def _vhost_status(asked: ScrapeContext) -> Iterator[Sample]:
    for name in asked.server.virtual_hosts:
        yield Sample({"vhost": name}, 1)


def _exchanges(asked: ScrapeContext, *, counts: bool) -> Iterator[Sample]:
    for one in asked.exchanges:
        labels = {"vhost": one.vhost, "exchange": one.name, "type": one.type}
        yield Sample(labels, one.bindings if counts else 1)


CLUSTER = (
    Metric(
        Family(
            "rabbitmq_cluster_vhost_status",
            GAUGE,
            "Whether a given vhost is running",
            ("vhost",),
            ("vhost_status",),
        ),
        _vhost_status,
    ),
    Metric(
        Family(
            "rabbitmq_cluster_exchange_bindings",
            GAUGE,
            "Number of bindings for an exchange",
            ("vhost", "exchange", "type"),
            ("exchange_bindings",),
        ),
        lambda a: _exchanges(a, counts=True),
    ),
    Metric(
        Family(
            "rabbitmq_cluster_exchange_name",
            GAUGE,
            "Enumerates exchanges without any additional info",
            ("vhost", "exchange", "type"),
            ("exchange_names",),
        ),
        lambda a: _exchanges(a, counts=False),
    ),
)


# -- ours


def _own(name: str, kind: str, text: str, values: Callable[[ScrapeContext], Number]) -> Metric:
    return _one(f"streamd_{name}", kind, text, OWN_GROUP, values)


def _counted(
    name: str, text: str, label: str, values: Callable[[ScrapeContext], Iterable[tuple[str, float]]]
) -> Metric:
    def samples(asked: ScrapeContext) -> Iterator[Sample]:
        for key, count in sorted(values(asked)):
            yield Sample({label: key}, count)

    return Metric(Family(f"streamd_{name}", COUNTER, text, (label,), (OWN_GROUP,)), samples)


def _both(*counts: Mapping[str, int]) -> Iterable[tuple[str, int]]:
    """Counts of the engine and of this process together."""
    together: Counter[str] = Counter()
    for some in counts:
        together.update(some)
    return together.items()


def _histogram(name: str, text: str) -> Metric:
    def samples(asked: ScrapeContext) -> Iterator[Sample]:
        yield Sample({}, asked.server.histograms[name])

    return Metric(Family(f"streamd_{name}", HISTOGRAM, text, (), (OWN_GROUP,)), samples)


def _own_build_info(_asked: ScrapeContext) -> Iterator[Sample]:
    yield Sample({"version": __version__}, 1)


def _of_tier(
    name: str, kind: str, text: str, value: Callable[[TierStatus], Number | None]
) -> Metric:
    """A number about the tier; a server without one has none."""

    def samples(asked: ScrapeContext) -> Iterator[Sample]:
        found = None if asked.server.tier.state == TierState.OFF else value(asked.server.tier)
        if found is not None:
            yield Sample({}, found)

    return Metric(Family(f"streamd_tier_{name}", kind, text, (), (OWN_GROUP,)), samples)


def _of_node(name: str, text: str, value: Callable[[NodeFacts], float]) -> Metric:
    """A metric of a node of a cluster; there is none where there is no node."""

    def samples(asked: ScrapeContext) -> Iterator[Sample]:
        node = asked.server.node
        if node is not None:
            yield Sample({}, value(node))

    return Metric(Family(f"streamd_node_{name}", GAUGE, text, (), (OWN_GROUP,)), samples)


TIER = (
    _of_tier("stored_bytes", GAUGE, "Bytes of segments in the tier", lambda t: t.bytes_remote),
    _of_tier(
        "waiting_bytes",
        GAUGE,
        "Bytes of full segments that are not in the tier yet",
        lambda t: t.bytes_waiting,
    ),
    _of_tier(
        "oldest_waiting_seconds",
        GAUGE,
        "Since when the oldest of those is full; 0 when none waits",
        lambda t: t.oldest_waiting_seconds or 0,
    ),
    _of_tier(
        "upload_bytes_per_second",
        GAUGE,
        "Bytes a second that were uploaded lately, while something was; 0 as long as nothing was",
        lambda t: t.upload_rate or 0,
    ),
    _of_tier(
        "uploaded_bytes_total",
        COUNTER,
        "Bytes that were put into the store",
        lambda t: t.transferred.get(Kind.PUT, 0),
    ),
    _of_tier(
        "fetched_bytes_total",
        COUNTER,
        "Bytes that were got from the store",
        lambda t: t.transferred.get(Kind.GET, 0),
    ),
    _counted(
        "tier_requests_total",
        "Requests to the store, those that failed as well: get, put, list, delete",
        "kind",
        lambda a: () if a.server.tier.state == TierState.OFF else a.server.tier.requests.items(),
    ),
    _of_tier("errors_total", COUNTER, "Requests to the store that failed", lambda t: t.errors),
    _of_tier(
        "cache_bytes",
        GAUGE,
        "Bytes on the disk that were fetched from the store",
        lambda t: t.cache_bytes,
    ),
    _of_tier(
        "fenced",
        GAUGE,
        "Is 1 when another server has taken the tier over: this one uploads no more",
        lambda t: int(t.state == TierState.FENCED),
    ),
)
NODE = (
    _of_node("leads", "Is 1 when this node leads its cluster", lambda n: int(n.role == "leader")),
    _of_node(
        "leader_silent_seconds",
        "How old the leader's last heartbeat is, as far as this node has seen",
        lambda n: n.silent_seconds,
    ),
)
CONFIRMS = (
    _of_tier(
        "unconfirmed_messages",
        GAUGE,
        "Messages of streams with stream-confirm=store that wait for the tier",
        lambda t: t.messages_unconfirmed,
    ),
    _of_tier(
        "unconfirmed_bytes",
        GAUGE,
        "Bytes of chunks that wait for the tier to be confirmed",
        lambda t: t.bytes_unconfirmed,
    ),
    _of_tier(
        "oldest_unconfirmed_seconds",
        GAUGE,
        "Since when the oldest slot that is not confirmed waits, or nothing can be stored; 0 when "
        "nothing waits",
        lambda t: t.oldest_unconfirmed_seconds or 0,
    ),
    _of_tier(
        "kept_slots",
        GAUGE,
        "Slots of the write-ahead log that a start would read",
        lambda t: t.slots_kept,
    ),
    _of_tier("kept_slot_bytes", GAUGE, "Bytes of those slots", lambda t: t.slot_bytes_kept),
)
REFUSALS = ("browser", "connections", "scrapes")

OWN = (
    Metric(
        Family("streamd_build_info", GAUGE, "The version of streamd", ("version",), (OWN_GROUP,)),
        _own_build_info,
    ),
    _histogram(
        "confirm_seconds",
        "From the arrival of the first message that is written with others to the confirm of them "
        "all; each of them counts, though of many writes in a millisecond only some are measured",
    ),
    _histogram("flush_seconds", "What flushes of streams to the device have taken"),
    _histogram(
        "slot_seconds",
        "What slots of the write-ahead log in the tier have taken, from when each was made",
    ),
    _histogram(
        "loop_delay_seconds",
        "How late the event loop came to a task that was due, looked at four times a second",
    ),
    _counted(
        "background_faults_total",
        "Failures of background tasks that were contained; see the log",
        "task",
        lambda a: _both(a.server.faults, a.faults),
    ),
    _counted(
        "http_refused_total",
        "HTTP requests and connections that were refused: those of foreign pages (browser), for "
        "want of room (connections), scrapes that had to wait for too many others (scrapes)",
        "reason",
        lambda a: _both(dict.fromkeys(REFUSALS, 0), a.server.http_refused),
    ),
    _counted(
        "errors_total",
        "Errors that clients of the stream protocol were told, in RabbitMQ's words: the metrics "
        "rabbitmq_global_stream_error_* in one",
        "error",
        lambda a: [
            (n, _protocol(a, STREAM_PROTOCOL).errors.get(c, 0)) for c, n in ERROR_NAMES.items()
        ],
    ),
    _counted(
        "loop_held_total",
        "Commands of clients that held everybody up for more than 50 ms; see the log",
        "protocol",
        lambda a: [(name, _protocol(a, name).loop_held) for name in PROTOCOLS],
    ),
    _counted(
        "loop_held_seconds_total",
        "For how long these did, in seconds",
        "protocol",
        lambda a: [(name, _protocol(a, name).loop_held_seconds) for name in PROTOCOLS],
    ),
    _own(
        "searches_total",
        COUNTER,
        "Pages of searches for single messages that were begun",
        lambda a: a.server.searches_begun,
    ),
    _own(
        "searches_refused_total",
        COUNTER,
        "Searches that were refused as too many were waiting",
        lambda a: a.server.searches_refused,
    ),
    _own(
        "searches_running",
        GAUGE,
        "Searches that run at the moment",
        lambda a: a.server.searches_open,
    ),
    *TIER,
    *NODE,
    *CONFIRMS,
)

SERVER = (*RABBITMQ, *OWN)
