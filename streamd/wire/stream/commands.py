"""The commands of the stream protocol: plain data, declared once for both ends.

Fields stand in the order in which they are sent, after key and version. `correlation_id` ties a
response to its request. Two commands are not encoded through these declarations where speed
counts: see `publish.py` and `deliver.py`.

Source: rabbitmq/rabbitmq-server, deps/rabbitmq_stream/docs/PROTOCOL.adoc.
"""

from typing import ClassVar, TypeAlias

from msgspec import Struct

from streamd.wire.stream import fields as f

RESPONSE_BIT = 0x8000


class DeclarePublisher(Struct, frozen=True):
    """Announce a publisher; with a reference its messages are de-duplicated."""

    KEY: ClassVar[int] = 1
    correlation_id: f.U32
    publisher_id: f.U8
    reference: f.String
    stream: f.String


class DeclarePublisherResponse(Struct, frozen=True):
    """Answer to DeclarePublisher."""

    KEY: ClassVar[int] = 1 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16


class Publish(Struct, frozen=True):
    """Messages without filter values: `entries` are read by `publish.decode_entries`."""

    KEY: ClassVar[int] = 2
    VERSION: ClassVar[int] = 1
    publisher_id: f.U8
    num_entries: f.U32
    entries: f.Rest


class PublishFiltered(Struct, frozen=True):
    """Messages with filter values (Publish version 2)."""

    KEY: ClassVar[int] = 2
    VERSION: ClassVar[int] = 2
    publisher_id: f.U8
    num_entries: f.U32
    entries: f.Rest


class PublishConfirm(Struct, frozen=True):
    """Messages that are stored."""

    KEY: ClassVar[int] = 3
    publisher_id: f.U8
    publishing_ids: f.PublishingIds


class PublishError(Struct, frozen=True):
    """Messages that were not taken."""

    KEY: ClassVar[int] = 4
    publisher_id: f.U8
    faults: f.PublishFaults


class QueryPublisherSequence(Struct, frozen=True):
    """Ask for the highest publishing id of a reference."""

    KEY: ClassVar[int] = 5
    correlation_id: f.U32
    reference: f.String
    stream: f.String


class QueryPublisherSequenceResponse(Struct, frozen=True):
    """Answer to QueryPublisherSequence; 0 also where there is none."""

    KEY: ClassVar[int] = 5 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    sequence: f.U64 = 0


class DeletePublisher(Struct, frozen=True):
    """Delete a publisher."""

    KEY: ClassVar[int] = 6
    correlation_id: f.U32
    publisher_id: f.U8


class DeletePublisherResponse(Struct, frozen=True):
    """Answer to DeletePublisher."""

    KEY: ClassVar[int] = 6 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16


class Subscribe(Struct, frozen=True):
    """Begin reading a stream; `credit` is how many chunks may be sent unasked."""

    KEY: ClassVar[int] = 7
    correlation_id: f.U32
    subscription_id: f.U8
    stream: f.String
    offset: f.OffsetSpec
    credit: f.U16
    properties: f.SubscribeMap = ()


class SubscribeResponse(Struct, frozen=True):
    """Answer to Subscribe."""

    KEY: ClassVar[int] = 7 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16


class Deliver(Struct, frozen=True):
    """One chunk: its header and its data, without filter and trailer."""

    KEY: ClassVar[int] = 8
    VERSION: ClassVar[int] = 1
    subscription_id: f.U8
    chunk: f.Rest


class DeliverCommitted(Struct, frozen=True):
    """One chunk, and how far the stream is committed (Deliver version 2)."""

    KEY: ClassVar[int] = 8
    VERSION: ClassVar[int] = 2
    subscription_id: f.U8
    committed_chunk_id: f.U64
    chunk: f.Rest


class Credit(Struct, frozen=True):
    """Allow more chunks to be sent."""

    KEY: ClassVar[int] = 9
    subscription_id: f.U8
    credit: f.U16


class CreditResponse(Struct, frozen=True):
    """Answer to a Credit that failed; a successful one has no answer."""

    KEY: ClassVar[int] = 9 | RESPONSE_BIT
    code: f.U16
    subscription_id: f.U8


class StoreOffset(Struct, frozen=True):
    """Remember how far a consumer has come."""

    KEY: ClassVar[int] = 10
    reference: f.String
    stream: f.String
    offset: f.U64


class QueryOffset(Struct, frozen=True):
    """Ask for a stored offset."""

    KEY: ClassVar[int] = 11
    correlation_id: f.U32
    reference: f.String
    stream: f.String


class QueryOffsetResponse(Struct, frozen=True):
    """Answer to QueryOffset."""

    KEY: ClassVar[int] = 11 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    offset: f.U64 = 0


class Unsubscribe(Struct, frozen=True):
    """Stop reading."""

    KEY: ClassVar[int] = 12
    correlation_id: f.U32
    subscription_id: f.U8


class UnsubscribeResponse(Struct, frozen=True):
    """Answer to Unsubscribe."""

    KEY: ClassVar[int] = 12 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16


class Create(Struct, frozen=True):
    """Create a stream."""

    KEY: ClassVar[int] = 13
    correlation_id: f.U32
    stream: f.String
    arguments: f.MapToEnd = ()


class CreateResponse(Struct, frozen=True):
    """Answer to Create."""

    KEY: ClassVar[int] = 13 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16


class Delete(Struct, frozen=True):
    """Delete a stream."""

    KEY: ClassVar[int] = 14
    correlation_id: f.U32
    stream: f.String


class DeleteResponse(Struct, frozen=True):
    """Answer to Delete."""

    KEY: ClassVar[int] = 14 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16


class Metadata(Struct, frozen=True):
    """Ask where streams are."""

    KEY: ClassVar[int] = 15
    correlation_id: f.U32
    streams: f.StringsToEnd


class MetadataResponse(Struct, frozen=True):
    """Answer to Metadata: a code for each stream, none for the whole."""

    KEY: ClassVar[int] = 15 | RESPONSE_BIT
    correlation_id: f.U32
    brokers: f.Brokers
    streams: f.StreamsMetadata


class MetadataUpdate(Struct, frozen=True):
    """A stream that this connection uses is gone."""

    KEY: ClassVar[int] = 16
    code: f.U16
    stream: f.String


class PeerProperties(Struct, frozen=True):
    """Properties of the client."""

    KEY: ClassVar[int] = 17
    correlation_id: f.U32
    properties: f.MapToEnd


class PeerPropertiesResponse(Struct, frozen=True):
    """Properties of the server."""

    KEY: ClassVar[int] = 17 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    properties: f.Map = ()


class SaslHandshake(Struct, frozen=True):
    """Ask for the SASL mechanisms."""

    KEY: ClassVar[int] = 18
    correlation_id: f.U32


class SaslHandshakeResponse(Struct, frozen=True):
    """The SASL mechanisms."""

    KEY: ClassVar[int] = 18 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    mechanisms: f.Strings = ()


class SaslAuthenticate(Struct, frozen=True):
    """Log in. The data holds a password: it is left out of `repr`."""

    KEY: ClassVar[int] = 19
    correlation_id: f.U32
    mechanism: f.String
    data: f.Bytes

    def __repr__(self) -> str:
        return f"SaslAuthenticate({self.correlation_id}, {self.mechanism!r}, <secret>)"


class SaslAuthenticateResponse(Struct, frozen=True):
    """Answer to SaslAuthenticate; the challenge is present with code 10 only."""

    KEY: ClassVar[int] = 19 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    challenge: f.Rest = b""


class Tune(Struct, frozen=True):
    """Limits: the server proposes, the client answers with what it will keep to."""

    KEY: ClassVar[int] = 20
    frame_max: f.U32
    heartbeat_seconds: f.U32


class Open(Struct, frozen=True):
    """Enter a virtual host."""

    KEY: ClassVar[int] = 21
    correlation_id: f.U32
    virtual_host: f.String


class OpenResponse(Struct, frozen=True):
    """Answer to Open: the address to announce, and no other property (one client requires it)."""

    KEY: ClassVar[int] = 21 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    properties: f.Map = ()


class Close(Struct, frozen=True):
    """End the connection; either side may."""

    KEY: ClassVar[int] = 22
    correlation_id: f.U32
    code: f.U16
    reason: f.String


class CloseResponse(Struct, frozen=True):
    """Answer to Close."""

    KEY: ClassVar[int] = 22 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16


class Heartbeat(Struct, frozen=True):
    """A sign of life; either side."""

    KEY: ClassVar[int] = 23


class Route(Struct, frozen=True):
    """Ask which partitions of a super stream a routing key leads to."""

    KEY: ClassVar[int] = 24
    correlation_id: f.U32
    routing_key: f.String
    super_stream: f.String


class RouteResponse(Struct, frozen=True):
    """Answer to Route; empty when the key leads nowhere."""

    KEY: ClassVar[int] = 24 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    streams: f.Strings = ()


class Partitions(Struct, frozen=True):
    """Ask for the partitions of a super stream, in their order."""

    KEY: ClassVar[int] = 25
    correlation_id: f.U32
    super_stream: f.String


class PartitionsResponse(Struct, frozen=True):
    """Answer to Partitions."""

    KEY: ClassVar[int] = 25 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    streams: f.Strings = ()


class ConsumerUpdate(Struct, frozen=True):
    """Tell a single active consumer that it is active (1) or no longer (0). Sent by the server."""

    KEY: ClassVar[int] = 26
    correlation_id: f.U32
    subscription_id: f.U8
    active: f.U8


class ConsumerUpdateResponse(Struct, frozen=True):
    """Answer to ConsumerUpdate: where to begin; type 0 leaves it at what Subscribe said.

    Some clients send eight more bytes whatever the type is.
    """

    KEY: ClassVar[int] = 26 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    offset: f.OffsetSpec


class ExchangeCommandVersions(Struct, frozen=True):
    """Which versions of which commands the client understands."""

    KEY: ClassVar[int] = 27
    correlation_id: f.U32
    versions: f.Versions


class ExchangeCommandVersionsResponse(Struct, frozen=True):
    """Which versions of which commands the server understands."""

    KEY: ClassVar[int] = 27 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    versions: f.Versions = ()


class StreamStats(Struct, frozen=True):
    """Ask for figures about a stream."""

    KEY: ClassVar[int] = 28
    correlation_id: f.U32
    stream: f.String


class StreamStatsResponse(Struct, frozen=True):
    """Answer to StreamStats."""

    KEY: ClassVar[int] = 28 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    statistics: f.Statistics = ()


class CreateSuperStream(Struct, frozen=True):
    """Create streams that are partitions of one, each found by its binding key."""

    KEY: ClassVar[int] = 29
    correlation_id: f.U32
    name: f.String
    partitions: f.Names
    binding_keys: f.Names
    arguments: f.MapToEnd = ()


class CreateSuperStreamResponse(Struct, frozen=True):
    """Answer to CreateSuperStream."""

    KEY: ClassVar[int] = 29 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16


class DeleteSuperStream(Struct, frozen=True):
    """Delete a super stream with its partitions."""

    KEY: ClassVar[int] = 30
    correlation_id: f.U32
    name: f.String


class DeleteSuperStreamResponse(Struct, frozen=True):
    """Answer to DeleteSuperStream."""

    KEY: ClassVar[int] = 30 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16


class ResolveOffsetSpec(Struct, frozen=True):
    """Ask where a subscription would begin."""

    KEY: ClassVar[int] = 31
    correlation_id: f.U32
    stream: f.String
    offset: f.OffsetSpec
    properties: f.OptionalMap = ()


class ResolveOffsetSpecResponse(Struct, frozen=True):
    """Answer to ResolveOffsetSpec; the offset is of type 4."""

    KEY: ClassVar[int] = 31 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    offset: f.OffsetSpec = f.NO_OFFSET


class DescribeStreams(Struct, frozen=True):
    """Ask for arguments and figures of streams; of all when none is named.

    Not in RabbitMQ. Send it only to a server that says `streamd` in its peer properties: others
    close the connection, as they do at any command they do not know.
    """

    KEY: ClassVar[int] = 0x0401
    correlation_id: f.U32
    streams: f.StringsToEnd = ()


class DescribeStreamsResponse(Struct, frozen=True):
    """Answer to DescribeStreams."""

    KEY: ClassVar[int] = 0x0401 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    streams: f.Descriptions = ()


class DescribeSubscription(Struct, frozen=True):
    """Ask how far a subscription has come; answered once everything before an offset is done.

    Chunks that a filter skips leave no trace on the wire, so without this a consumer cannot
    know that there is nothing for it. Not in RabbitMQ; see DescribeStreams.
    """

    KEY: ClassVar[int] = 0x0402
    correlation_id: f.U32
    subscription_id: f.U8
    awaited_offset: f.U64


class DescribeSubscriptionResponse(Struct, frozen=True):
    """Answer to DescribeSubscription, after all chunks that it counts."""

    KEY: ClassVar[int] = 0x0402 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    statistics: f.Statistics = ()


class Manage(Struct, frozen=True):
    """Look at or change users, permissions and virtual hosts. For administrators.

    Not in RabbitMQ; see DescribeStreams. An argument may be a password: `repr` leaves them out.
    """

    KEY: ClassVar[int] = 0x0403
    correlation_id: f.U32
    operation: f.String
    arguments: f.Map = ()

    def __repr__(self) -> str:
        return f"Manage({self.correlation_id}, {self.operation!r}, <secret>)"


class ManageResponse(Struct, frozen=True):
    """Answer to Manage: why it was refused, or the result."""

    KEY: ClassVar[int] = 0x0403 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    reason: f.String = ""
    rows: f.Maps = ()


class DescribeFilters(Struct, frozen=True):
    """Ask how well the chunk filters of a stream work. Not in RabbitMQ; see DescribeStreams."""

    KEY: ClassVar[int] = 0x0404
    correlation_id: f.U32
    stream: f.String


class DescribeFiltersResponse(Struct, frozen=True):
    """Answer to DescribeFilters: counts, and shares in parts per million."""

    KEY: ClassVar[int] = 0x0404 | RESPONSE_BIT
    correlation_id: f.U32
    code: f.U16
    statistics: f.Statistics = ()


class Find(Struct, frozen=True):
    """Search a stream for single messages; a new one ends the one before on its connection.

    Words are key, property, filter, each perhaps several times, from, to, by, sql, dialect, tags,
    offset, order, limit, after, latest. Not in RabbitMQ; see DescribeStreams.
    """

    KEY: ClassVar[int] = 0x0405
    correlation_id: f.U32
    stream: f.String
    words: f.Map = ()


class FindResponse(Struct, frozen=True):
    """Answer to Find: why it was refused, or a page of what was found.

    Of a page without messages `reason` says what may be wrong with the question, if that is known.
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


class DeliverStored(Struct, frozen=True):
    """One chunk as it is stored: with its filter, and the trailer that has its columns.

    In place of Deliver where a Subscribe has asked for it. Not in RabbitMQ.
    """

    KEY: ClassVar[int] = 0x0406
    subscription_id: f.U8
    chunk: f.Rest


Delivered: TypeAlias = Deliver | DeliverCommitted | DeliverStored

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
    | Delivered
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
