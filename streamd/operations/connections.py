"""The open connections with their publishers and consumers."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from streamd.net.transport import Address
from streamd.operations.declaration import At, Enter, OfStream, Operation
from streamd.operations.names import Name

STREAM_PROTOCOL, AMQP_PROTOCOL = "stream", "AMQP 0-9-1"
AMQP10_PROTOCOL = "AMQP 1-0"  # as RabbitMQ names it
MAX_REASON = 200  # characters that a client is told


class PublisherFacts(NamedTuple):
    """One publisher as it is at the moment; counts are messages, or entries where batched."""

    publisher_id: int
    reference: str
    stream: str
    published: int
    confirmed: int
    refused: int


class ConsumerFacts(NamedTuple):
    """One subscription as it is at the moment.

    Attributes:
        subscription_id: its number on the connection.
        stream: what it reads.
        properties: what it was subscribed with.
        credit: chunks that may still be sent.
        consumed: messages sent.
        next_offset: where it is.
        lag: messages in the stream from there on.
        lag_seconds: how old the first of them is at most, as far as that is known without reading.
        is_single_active: it is in a group in which one consumer at a time gets messages.
        is_active: it gets messages.
    """

    subscription_id: int
    stream: str
    properties: Mapping[str, str]
    credit: int
    consumed: int
    next_offset: int
    lag: int
    lag_seconds: float
    is_single_active: bool
    is_active: bool


class Connection(msgspec.Struct, frozen=True):
    """An open connection.

    Attributes:
        peer: host and port of the other end.
        local: host and port of this end.
        protocol: STREAM_PROTOCOL, AMQP_PROTOCOL or AMQP10_PROTOCOL.
        is_tls: it is inside TLS.
        user: that has logged in.
        mechanism: the SASL mechanism that was used.
        virtual_host: the one that was entered.
        properties: what the client says about itself.
        frame_max: agreed, in bytes.
        heartbeat_seconds: agreed; 0 for none.
        connected_at_ms: when it was opened, in ms since 1970.
    """

    peer: Address
    local: Address
    protocol: str
    is_tls: bool
    user: Name
    mechanism: str
    virtual_host: Name
    properties: dict[str, Any]
    frame_max: int
    heartbeat_seconds: int
    connected_at_ms: int

    @property
    def name(self) -> str:
        """As RabbitMQ names connections."""
        return f"{self.peer} -> {self.local}"


class ConnectionDetails(msgspec.Struct, frozen=True):
    """A connection, and what it has at the moment.

    Attributes:
        may_end: the user may end it.
    """

    connection: Connection
    publishers: tuple[PublisherFacts, ...]
    consumers: tuple[ConsumerFacts, ...]
    may_end: bool


class ListConnections(Operation[list[ConnectionDetails]], frozen=True, kw_only=True):
    """Open connections: all for who may look at everything, else the user's own.

    Attributes:
        vhost: to this virtual host alone.
        user: of this user alone.
        protocol: with this one alone; empty for all.
    """

    NAME = "connection.list"
    AT = At.ALL

    vhost: Name | None = None
    user: Name | None = None
    protocol: str = ""


class GetConnection(Operation[ConnectionDetails], frozen=True, kw_only=True):
    """An open connection; those of others are for who may look at everything.

    Attributes:
        name: see Connection.
        vhost: it has to be to this virtual host.
    """

    NAME = "connection.get"
    AT = At.ALL

    name: str
    vhost: Name | None = None


class CloseConnections(Operation[int], frozen=True, kw_only=True):
    """Close connections; those of others are for administrators. Returns how many.

    Attributes:
        name: of the connection; empty for all that the user sees.
        vhost: see GetConnection.
        user: of this user alone.
        reason: what the client is told; what is not printable is left out.
    """

    NAME = "connection.close"
    CHANGES = True
    AT = At.ALL

    name: str = ""
    vhost: Name | None = None
    user: Name | None = None
    reason: str


class Reader(msgspec.Struct, frozen=True):
    """A consumer of a stream, and its connection."""

    connection: Connection
    facts: ConsumerFacts


class ListReaders(OfStream[list[Reader]], frozen=True, kw_only=True):
    """Consumers of a stream: for users with any tag those of all connections, else one's own."""

    NAME = "reader.list"
    AT = At.ALL
    NEEDS = Enter()
