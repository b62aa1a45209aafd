"""The commands of the stream protocol: plain data, declared once for both ends.

Fields stand in the order in which they are sent, after key and version. `correlation_id` ties a
response to its request. Two commands are not encoded through these declarations where speed
counts: see `publish.py` and `deliver.py`.

Source: rabbitmq/rabbitmq-server, deps/rabbitmq_stream/docs/PROTOCOL.adoc.
"""

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from streamd.wire.stream import fields as f

RESPONSE_BIT = 0x8000


@dataclass(frozen=True, slots=True)
class DeclarePublisher:
    """Announce a publisher; with a reference its messages are de-duplicated."""

    KEY: ClassVar[int] = 1
    correlation_id: f.U32
    publisher_id: f.U8
    reference: f.String
    stream: f.String


@dataclass(frozen=True, slots=True)
class DeclarePublisherResponse:
    """Answer to DeclarePublisher."""

    KEY: ClassVar[int] = 1 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16


@dataclass(frozen=True, slots=True)
class Publish:
    """Messages without filter values: `entries` are read by `publish.decode_entries`."""

    KEY: ClassVar[int] = 2
    VERSION: ClassVar[int] = 1
    publisher_id: f.U8
    num_entries: f.U32
    entries: f.Rest


@dataclass(frozen=True, slots=True)
class PublishFiltered:
    """Messages with filter values (Publish version 2)."""

    KEY: ClassVar[int] = 2
    VERSION: ClassVar[int] = 2
    publisher_id: f.U8
    num_entries: f.U32
    entries: f.Rest


@dataclass(frozen=True, slots=True)
class PublishConfirm:
    """Messages that are stored."""

    KEY: ClassVar[int] = 3
    publisher_id: f.U8
    publishing_ids: f.PublishingIds


@dataclass(frozen=True, slots=True)
class PublishError:
    """Messages that were not taken."""

    KEY: ClassVar[int] = 4
    publisher_id: f.U8
    faults: f.PublishFaults


@dataclass(frozen=True, slots=True)
class QueryPublisherSequence:
    """Ask for the highest publishing id of a reference."""

    KEY: ClassVar[int] = 5
    correlation_id: f.U32
    reference: f.String
    stream: f.String


@dataclass(frozen=True, slots=True)
class QueryPublisherSequenceResponse:
    """Answer to QueryPublisherSequence; 0 also where there is none."""

    KEY: ClassVar[int] = 5 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    sequence: f.U64 = 0


@dataclass(frozen=True, slots=True)
class DeletePublisher:
    """Delete a publisher."""

    KEY: ClassVar[int] = 6
    correlation_id: f.U32
    publisher_id: f.U8


@dataclass(frozen=True, slots=True)
class DeletePublisherResponse:
    """Answer to DeletePublisher."""

    KEY: ClassVar[int] = 6 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Begin reading a stream; `credit` is how many chunks may be sent unasked."""

    KEY: ClassVar[int] = 7
    correlation_id: f.U32
    subscription_id: f.U8
    stream: f.String
    offset: f.OffsetSpec
    credit: f.U16
    properties: f.SubscribeMap = ()


@dataclass(frozen=True, slots=True)
class SubscribeResponse:
    """Answer to Subscribe."""

    KEY: ClassVar[int] = 7 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16


@dataclass(frozen=True, slots=True)
class Deliver:
    """One chunk: its header and its data, without filter and trailer."""

    KEY: ClassVar[int] = 8
    VERSION: ClassVar[int] = 1
    subscription_id: f.U8
    chunk: f.Rest


@dataclass(frozen=True, slots=True)
class DeliverCommitted:
    """One chunk, and how far the stream is committed (Deliver version 2)."""

    KEY: ClassVar[int] = 8
    VERSION: ClassVar[int] = 2
    subscription_id: f.U8
    committed_chunk_id: f.U64
    chunk: f.Rest


@dataclass(frozen=True, slots=True)
class Credit:
    """Allow more chunks to be sent."""

    KEY: ClassVar[int] = 9
    subscription_id: f.U8
    credit: f.U16


@dataclass(frozen=True, slots=True)
class CreditResponse:
    """Answer to a Credit that failed; a successful one has no answer."""

    KEY: ClassVar[int] = 9 | RESPONSE_BIT
    code: f.U16
    subscription_id: f.U8


@dataclass(frozen=True, slots=True)
class StoreOffset:
    """Remember how far a consumer has come."""

    KEY: ClassVar[int] = 10
    reference: f.String
    stream: f.String
    offset: f.U64


@dataclass(frozen=True, slots=True)
class QueryOffset:
    """Ask for a stored offset."""

    KEY: ClassVar[int] = 11
    correlation_id: f.U32
    reference: f.String
    stream: f.String


@dataclass(frozen=True, slots=True)
class QueryOffsetResponse:
    """Answer to QueryOffset."""

    KEY: ClassVar[int] = 11 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    offset: f.U64 = 0


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Stop reading."""

    KEY: ClassVar[int] = 12
    correlation_id: f.U32
    subscription_id: f.U8


@dataclass(frozen=True, slots=True)
class UnsubscribeResponse:
    """Answer to Unsubscribe."""

    KEY: ClassVar[int] = 12 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16


@dataclass(frozen=True, slots=True)
class Create:
    """Create a stream."""

    KEY: ClassVar[int] = 13
    correlation_id: f.U32
    stream: f.String
    arguments: f.MapToEnd = ()


@dataclass(frozen=True, slots=True)
class CreateResponse:
    """Answer to Create."""

    KEY: ClassVar[int] = 13 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a stream."""

    KEY: ClassVar[int] = 14
    correlation_id: f.U32
    stream: f.String


@dataclass(frozen=True, slots=True)
class DeleteResponse:
    """Answer to Delete."""

    KEY: ClassVar[int] = 14 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16


@dataclass(frozen=True, slots=True)
class Metadata:
    """Ask where streams are."""

    KEY: ClassVar[int] = 15
    correlation_id: f.U32
    streams: f.StringsToEnd


@dataclass(frozen=True, slots=True)
class MetadataResponse:
    """Answer to Metadata: a code for each stream, none for the whole."""

    KEY: ClassVar[int] = 15 | RESPONSE_BIT
    correlation_id: f.U32
    brokers: f.Brokers
    streams: f.StreamsMetadata


@dataclass(frozen=True, slots=True)
class MetadataUpdate:
    """A stream that this connection uses is gone."""

    KEY: ClassVar[int] = 16
    code: f.U16
    stream: f.String


@dataclass(frozen=True, slots=True)
class PeerProperties:
    """Who the client is."""

    KEY: ClassVar[int] = 17
    correlation_id: f.U32
    properties: f.MapToEnd


@dataclass(frozen=True, slots=True)
class PeerPropertiesResponse:
    """Who the server is."""

    KEY: ClassVar[int] = 17 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    properties: f.Map = ()


@dataclass(frozen=True, slots=True)
class SaslHandshake:
    """Ask for the SASL mechanisms."""

    KEY: ClassVar[int] = 18
    correlation_id: f.U32


@dataclass(frozen=True, slots=True)
class SaslHandshakeResponse:
    """The SASL mechanisms."""

    KEY: ClassVar[int] = 18 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    mechanisms: f.Strings = ()


@dataclass(frozen=True, slots=True)
class SaslAuthenticate:
    """Log in. The data holds a password: it is left out of `repr`."""

    KEY: ClassVar[int] = 19
    correlation_id: f.U32
    mechanism: f.String
    data: f.Bytes

    def __repr__(self) -> str:
        return f"SaslAuthenticate({self.correlation_id}, {self.mechanism!r}, <secret>)"


@dataclass(frozen=True, slots=True)
class SaslAuthenticateResponse:
    """Answer to SaslAuthenticate; the challenge is present with code 10 only."""

    KEY: ClassVar[int] = 19 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    challenge: f.Rest = b""


@dataclass(frozen=True, slots=True)
class Tune:
    """Limits: the server proposes, the client answers with what it will keep to."""

    KEY: ClassVar[int] = 20
    frame_max: f.U32
    heartbeat_seconds: f.U32


@dataclass(frozen=True, slots=True)
class Open:
    """Enter a virtual host."""

    KEY: ClassVar[int] = 21
    correlation_id: f.U32
    virtual_host: f.String


@dataclass(frozen=True, slots=True)
class OpenResponse:
    """Answer to Open: the address to announce, and no other property (one client requires it)."""

    KEY: ClassVar[int] = 21 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    properties: f.Map = ()


@dataclass(frozen=True, slots=True)
class Close:
    """End the connection; either side may."""

    KEY: ClassVar[int] = 22
    correlation_id: f.U32
    code: f.U16
    reason: f.String


@dataclass(frozen=True, slots=True)
class CloseResponse:
    """Answer to Close."""

    KEY: ClassVar[int] = 22 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life; either side."""

    KEY: ClassVar[int] = 23


@dataclass(frozen=True, slots=True)
class Route:
    """Ask which partitions of a super stream a routing key leads to."""

    KEY: ClassVar[int] = 24
    correlation_id: f.U32
    routing_key: f.String
    super_stream: f.String


@dataclass(frozen=True, slots=True)
class RouteResponse:
    """Answer to Route; empty when the key leads nowhere."""

    KEY: ClassVar[int] = 24 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    streams: f.Strings = ()


@dataclass(frozen=True, slots=True)
class Partitions:
    """Ask for the partitions of a super stream, in their order."""

    KEY: ClassVar[int] = 25
    correlation_id: f.U32
    super_stream: f.String


@dataclass(frozen=True, slots=True)
class PartitionsResponse:
    """Answer to Partitions."""

    KEY: ClassVar[int] = 25 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    streams: f.Strings = ()


@dataclass(frozen=True, slots=True)
class ConsumerUpdate:
    """Tell a single active consumer that it is active (1) or no longer (0). Sent by the server."""

    KEY: ClassVar[int] = 26
    correlation_id: f.U32
    subscription_id: f.U8
    active: f.U8


@dataclass(frozen=True, slots=True)
class ConsumerUpdateResponse:
    """Answer to ConsumerUpdate: where to begin; type 0 leaves it at what Subscribe said.

    Some clients send eight more bytes whatever the type is.
    """

    KEY: ClassVar[int] = 26 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    offset: f.OffsetSpec


@dataclass(frozen=True, slots=True)
class ExchangeCommandVersions:
    """Which versions of which commands the client understands."""

    KEY: ClassVar[int] = 27
    correlation_id: f.U32
    versions: f.Versions


@dataclass(frozen=True, slots=True)
class ExchangeCommandVersionsResponse:
    """Which versions of which commands the server understands."""

    KEY: ClassVar[int] = 27 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    versions: f.Versions = ()


@dataclass(frozen=True, slots=True)
class StreamStats:
    """Ask for figures about a stream."""

    KEY: ClassVar[int] = 28
    correlation_id: f.U32
    stream: f.String


@dataclass(frozen=True, slots=True)
class StreamStatsResponse:
    """Answer to StreamStats."""

    KEY: ClassVar[int] = 28 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    statistics: f.Statistics = ()


@dataclass(frozen=True, slots=True)
class CreateSuperStream:
    """Create streams that are partitions of one, each found by its binding key."""

    KEY: ClassVar[int] = 29
    correlation_id: f.U32
    name: f.String
    partitions: f.Names
    binding_keys: f.Names
    arguments: f.MapToEnd = ()


@dataclass(frozen=True, slots=True)
class CreateSuperStreamResponse:
    """Answer to CreateSuperStream."""

    KEY: ClassVar[int] = 29 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16


@dataclass(frozen=True, slots=True)
class DeleteSuperStream:
    """Delete a super stream with its partitions."""

    KEY: ClassVar[int] = 30
    correlation_id: f.U32
    name: f.String


@dataclass(frozen=True, slots=True)
class DeleteSuperStreamResponse:
    """Answer to DeleteSuperStream."""

    KEY: ClassVar[int] = 30 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16


@dataclass(frozen=True, slots=True)
class ResolveOffsetSpec:
    """Ask where a subscription would begin."""

    KEY: ClassVar[int] = 31
    correlation_id: f.U32
    stream: f.String
    offset: f.OffsetSpec
    properties: f.OptionalMap = ()


@dataclass(frozen=True, slots=True)
class ResolveOffsetSpecResponse:
    """Answer to ResolveOffsetSpec; the offset is of type 4."""

    KEY: ClassVar[int] = 31 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    offset: f.OffsetSpec = f.NO_OFFSET


@dataclass(frozen=True, slots=True)
class DescribeStreams:
    """Ask for arguments and figures of streams; of all when none is named.

    Not in RabbitMQ. Send it only to a server that says `streamd` in its peer properties: others
    close the connection, as they do at any command they do not know.
    """

    KEY: ClassVar[int] = 0x0401
    correlation_id: f.U32
    streams: f.StringsToEnd = ()


@dataclass(frozen=True, slots=True)
class DescribeStreamsResponse:
    """Answer to DescribeStreams."""

    KEY: ClassVar[int] = 0x0401 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    streams: f.Descriptions = ()


@dataclass(frozen=True, slots=True)
class DescribeSubscription:
    """Ask how far a subscription has come; answered once everything before an offset is done.

    Chunks that a filter skips leave no trace on the wire, so without this a consumer cannot
    know that there is nothing for it. Not in RabbitMQ; see DescribeStreams.
    """

    KEY: ClassVar[int] = 0x0402
    correlation_id: f.U32
    subscription_id: f.U8
    awaited_offset: f.U64


@dataclass(frozen=True, slots=True)
class DescribeSubscriptionResponse:
    """Answer to DescribeSubscription, after all chunks that it counts."""

    KEY: ClassVar[int] = 0x0402 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    statistics: f.Statistics = ()


@dataclass(frozen=True, slots=True)
class Manage:
    """Look at or change users, permissions and virtual hosts. For administrators.

    Not in RabbitMQ; see DescribeStreams. An argument may be a password: `repr` leaves them out.
    """

    KEY: ClassVar[int] = 0x0403
    correlation_id: f.U32
    operation: f.String
    arguments: f.Map = ()

    def __repr__(self) -> str:
        return f"Manage({self.correlation_id}, {self.operation!r}, <secret>)"


@dataclass(frozen=True, slots=True)
class ManageResponse:
    """Answer to Manage: why it was refused, or the result."""

    KEY: ClassVar[int] = 0x0403 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    reason: f.String = ""
    rows: f.Maps = ()


@dataclass(frozen=True, slots=True)
class DescribeFilters:
    """Ask how well the chunk filters of a stream work. Not in RabbitMQ; see DescribeStreams."""

    KEY: ClassVar[int] = 0x0404
    correlation_id: f.U32
    stream: f.String


@dataclass(frozen=True, slots=True)
class DescribeFiltersResponse:
    """Answer to DescribeFilters: counts, and shares in parts per million."""

    KEY: ClassVar[int] = 0x0404 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    statistics: f.Statistics = ()


@dataclass(frozen=True, slots=True)
class Find:
    """Search a stream for single messages; a new one ends the one before on its connection.

    Words are key, property, filter, each perhaps several times, from, to, by, sql, dialect, tags,
    offset, order, limit, after, latest. Not in RabbitMQ; see DescribeStreams.
    """

    KEY: ClassVar[int] = 0x0405
    correlation_id: f.U32
    stream: f.String
    words: f.Map = ()


@dataclass(frozen=True, slots=True)
class FindResponse:
    """Answer to Find: why it was refused, or a page of what was found.

    `cut` says why there may be more: limit, size or budget; empty when this is all. Then `after`
    is the word to go on with.
    """

    KEY: ClassVar[int] = 0x0405 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    reason: f.String = ""
    messages: f.FoundMessages = ()
    cut: f.String = ""
    after: f.String = ""
    looked_at: f.Statistics = ()


ClientCommand: TypeAlias = (
    DeclarePublisher
    | Publish
    | PublishFiltered
    | QueryPublisherSequence
    | DeletePublisher
    | Subscribe
    | Credit
    | StoreOffset
    | QueryOffset
    | Unsubscribe
    | Create
    | Delete
    | Metadata
    | PeerProperties
    | SaslHandshake
    | SaslAuthenticate
    | Tune
    | Open
    | Close
    | CloseResponse
    | Heartbeat
    | Route
    | Partitions
    | ConsumerUpdateResponse
    | ExchangeCommandVersions
    | StreamStats
    | CreateSuperStream
    | DeleteSuperStream
    | ResolveOffsetSpec
    | DescribeStreams
    | DescribeSubscription
    | DescribeFilters
    | Find
    | Manage
)

ServerCommand: TypeAlias = (
    DeclarePublisherResponse
    | PublishConfirm
    | PublishError
    | QueryPublisherSequenceResponse
    | DeletePublisherResponse
    | SubscribeResponse
    | Deliver
    | DeliverCommitted
    | CreditResponse
    | QueryOffsetResponse
    | UnsubscribeResponse
    | CreateResponse
    | DeleteResponse
    | MetadataResponse
    | MetadataUpdate
    | PeerPropertiesResponse
    | SaslHandshakeResponse
    | SaslAuthenticateResponse
    | Tune
    | OpenResponse
    | Close
    | CloseResponse
    | Heartbeat
    | RouteResponse
    | PartitionsResponse
    | ConsumerUpdate
    | ExchangeCommandVersionsResponse
    | StreamStatsResponse
    | CreateSuperStreamResponse
    | DeleteSuperStreamResponse
    | ResolveOffsetSpecResponse
    | DescribeStreamsResponse
    | DescribeSubscriptionResponse
    | DescribeFiltersResponse
    | FindResponse
    | ManageResponse
)

Command: TypeAlias = ClientCommand | ServerCommand
