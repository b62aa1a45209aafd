"""What an open connection may ask for: one method per command."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from segments import Log, Matcher, OffsetSpec, Reader, SegmentsError, Start, StorageError
from segments.codec import MAX_REFERENCE_SIZE
from segments.offsets import FIRST
from streamd.broker import Broker
from streamd.config import MAX_IDS
from streamd.delivery import Delivery, Interest, Subscription
from streamd.errors import Refused
from streamd.outbox import Outbox
from streamd.publishing import Publication, Publisher
from streamd.stream import Stream
from streamd.wire import ResponseCode, codec, commands as c
from streamd.wire.fields import (
    NO_LEADER,
    Broker as BrokerAddress,
    CommandVersions,
    OffsetSpecification,
    Pair,
    Statistic,
    StreamDescription,
    StreamMetadata,
)
from streamd.wire.publish import (
    decode_entries,
    decode_filtered_entries,
    encode_refusal,
    publishing_ids_of,
)

logger = logging.getLogger(__name__)

OK = ResponseCode.OK
_FILTER_PREFIX = "filter."
_MATCH_UNFILTERED = "match-unfiltered"
_NO_CHUNK = -1

# What clients may send, with versions, in RabbitMQ's order: one client finds Publish by its place.
_VERSIONS = tuple(
    CommandVersions(kind.KEY, 1, 2 if kind is c.Publish else 1)
    for kind in (
        c.DeclarePublisher,
        c.Publish,
        c.QueryPublisherSequence,
        c.DeletePublisher,
        c.Subscribe,
        c.Credit,
        c.StoreOffset,
        c.QueryOffset,
        c.Unsubscribe,
        c.Create,
        c.Delete,
        c.Metadata,
        c.Close,
        c.Heartbeat,
        c.StreamStats,
        c.ResolveOffsetSpec,
    )
)


class Session:
    """The publishers and subscriptions of one connection, and its requests.

    Args:
        broker: where the streams are.
        outbox: where answers go.
        delivery: the connection's subscriptions.
        address: host and port to announce.
    """

    def __init__(
        self, broker: Broker, outbox: Outbox, delivery: Delivery, address: tuple[str, int]
    ) -> None:
        self._broker = broker
        self._outbox = outbox
        self._delivery = delivery
        self._address = address
        self._publishers: dict[int, tuple[Publisher, Stream]] = {}
        self._handlers: Mapping[type[Any], Callable[[Any], Awaitable[None]]] = {
            c.Publish: self._publish,
            c.PublishFiltered: self._publish,
            c.Credit: self._credit,
            c.DeclarePublisher: self._declare_publisher,
            c.QueryPublisherSequence: self._query_publisher_sequence,
            c.DeletePublisher: self._delete_publisher,
            c.Subscribe: self._subscribe,
            c.StoreOffset: self._store_offset,
            c.QueryOffset: self._query_offset,
            c.Unsubscribe: self._unsubscribe,
            c.Create: self._create,
            c.Delete: self._delete,
            c.Metadata: self._metadata,
            c.ExchangeCommandVersions: self._exchange_command_versions,
            c.StreamStats: self._stream_stats,
            c.ResolveOffsetSpec: self._resolve_offset_spec,
            c.DescribeStreams: self._describe_streams,
            c.DescribeSubscription: self._describe_subscription,
        }
        delivery.on_failure = lambda subscription: self.stream_is_gone(subscription.stream)
        broker.users.add(self)

    async def handle(self, command: c.ClientCommand) -> None:
        """Carry out one command; answers are in the outbox on return.

        Raises:
            RemoteProtocolError: the command's body is not what it should be.
        """
        handler = self._handlers.get(type(command))
        if handler is not None:  # heartbeats need none
            await handler(command)

    async def settled(self) -> None:
        """Return when everything the connection has published is stored or refused."""
        for _, stream in list(self._publishers.values()):
            await stream.settled()

    def close(self) -> None:
        """The connection ended: give everything back."""
        self._broker.users.discard(self)
        self._delivery.close()
        for publisher, _ in self._publishers.values():
            publisher.is_deleted = True
        self._publishers.clear()

    def stream_is_gone(self, stream: Stream) -> None:
        """Drop what used the stream, and tell the client once; see broker.User."""
        publishers = [n for n, (_, used) in self._publishers.items() if used is stream]
        subscriptions = [n for n, s in self._delivery.subscriptions.items() if s.stream is stream]
        for number in publishers:
            self._publishers.pop(number)[0].is_deleted = True
        for number in subscriptions:
            self._delivery.remove(number)
        if publishers or subscriptions:
            self._answer(c.MetadataUpdate(ResponseCode.STREAM_NOT_AVAILABLE, stream.name))

    def _answer(self, command: c.ServerCommand) -> None:
        self._outbox.put(codec.encode(command))

    # -- publishing

    async def _publish(self, command: c.Publish | c.PublishFiltered) -> None:
        filtered = isinstance(command, c.PublishFiltered)
        found = self._publishers.get(command.publisher_id)
        if found is None:
            ids = publishing_ids_of(command.entries, command.num_entries, filtered=filtered)
            code = ResponseCode.PUBLISHER_DOES_NOT_EXIST
            self._outbox.put(encode_refusal(command.publisher_id, ids, code))
            return
        publisher, stream = found
        decode = decode_filtered_entries if filtered else decode_entries
        decoded = decode(command.entries, command.num_entries)
        for entries in decoded.groups:
            stream.publish(Publication(publisher, entries))
        if decoded.refused_ids:
            publisher.refuse(decoded.refused_ids, ResponseCode.PRECONDITION_FAILED)
        await stream.room()

    async def _declare_publisher(self, command: c.DeclarePublisher) -> None:
        try:
            self._add_publisher(command)
            code = OK
        except Refused as refused:
            code = refused.code
        self._answer(c.DeclarePublisherResponse(command.correlation_id, code))

    def _add_publisher(self, command: c.DeclarePublisher) -> None:
        reference = command.reference
        _check_reference(reference)
        named = {(p.reference, s.name) for p, s in self._publishers.values() if p.reference}
        if (
            len(self._publishers) >= MAX_IDS
            or command.publisher_id in self._publishers
            or (reference.encode(), command.stream) in named
        ):
            raise Refused(ResponseCode.PRECONDITION_FAILED)
        stream = self._broker.find(command.stream)
        stream.check_writable()
        publisher = Publisher(command.publisher_id, reference, self._outbox)
        self._publishers[command.publisher_id] = (publisher, stream)

    async def _query_publisher_sequence(self, command: c.QueryPublisherSequence) -> None:
        sequence, code = 0, OK
        try:
            _check_reference(command.reference)
            stream = self._broker.find(command.stream)
            await stream.settled()  # what this connection sent before counts
            sequence = stream.log.tracking.sequence(command.reference.encode()) or 0
        except Refused as refused:
            code = refused.code
        corr = command.correlation_id
        self._answer(c.QueryPublisherSequenceResponse(corr, code, sequence))

    async def _delete_publisher(self, command: c.DeletePublisher) -> None:
        found = self._publishers.pop(command.publisher_id, None)
        code = OK if found else ResponseCode.PUBLISHER_DOES_NOT_EXIST
        if found:
            found[0].is_deleted = True
        self._answer(c.DeletePublisherResponse(command.correlation_id, code))

    # -- consuming

    async def _subscribe(self, command: c.Subscribe) -> None:
        try:
            subscription = self._add_subscription(command)
        except Refused as refused:
            self._answer(c.SubscribeResponse(command.correlation_id, refused.code))
            return
        self._answer(c.SubscribeResponse(command.correlation_id, OK))
        subscription.check()  # only now: no chunk before the answer

    def _add_subscription(self, command: c.Subscribe) -> Subscription:
        used = self._delivery.subscriptions
        properties = dict(command.properties)
        if len(used) >= MAX_IDS:
            raise Refused(ResponseCode.PRECONDITION_FAILED)
        _check_reference(properties.get("name", ""))
        stream = self._broker.find(command.stream)
        if command.subscription_id in used:
            raise Refused(ResponseCode.SUBSCRIPTION_ID_EXISTS)
        interest = Interest(_offset_spec(command.offset), _matcher(command.properties))
        try:
            return self._delivery.add(command.subscription_id, stream, interest, command.credit)
        except StorageError as error:
            logger.error("stream %s cannot be read: %s", stream.name, error)
            raise Refused(ResponseCode.STREAM_NOT_AVAILABLE) from error

    async def _credit(self, command: c.Credit) -> None:
        subscription = self._delivery.subscriptions.get(command.subscription_id)
        if subscription is None:
            code = ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST
            self._answer(c.CreditResponse(code, command.subscription_id))
        else:
            subscription.add_credit(command.credit)

    async def _unsubscribe(self, command: c.Unsubscribe) -> None:
        code = ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST
        if command.subscription_id in self._delivery.subscriptions:
            self._delivery.remove(command.subscription_id)
            code = OK
        self._answer(c.UnsubscribeResponse(command.correlation_id, code))

    async def _describe_subscription(self, command: c.DescribeSubscription) -> None:
        corr = command.correlation_id
        subscription = self._delivery.subscriptions.get(command.subscription_id)
        if subscription is None:
            code = ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST
            self._answer(c.DescribeSubscriptionResponse(corr, code))
            return

        def tell() -> None:
            code = OK
            if subscription.is_closed:
                code = ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST
            figures = _progress(subscription.reader)
            self._answer(c.DescribeSubscriptionResponse(corr, code, figures))

        try:
            subscription.watch(command.awaited_offset, tell)
        except Refused as refused:
            self._answer(c.DescribeSubscriptionResponse(corr, refused.code))

    async def _store_offset(self, command: c.StoreOffset) -> None:
        try:  # there is no answer: what cannot be stored is ignored
            self._broker.find(command.stream).store_offset(command.reference, command.offset)
        except (Refused, ValueError) as error:
            logger.debug("offset not stored: %s", error)

    async def _query_offset(self, command: c.QueryOffset) -> None:
        offset, code = None, OK
        try:
            _check_reference(command.reference)
            tracking = self._broker.find(command.stream).log.tracking
            offset = tracking.offset(command.reference.encode())
            code = ResponseCode.NO_OFFSET if offset is None else OK
        except Refused as refused:
            code = refused.code
        self._answer(c.QueryOffsetResponse(command.correlation_id, code, offset or 0))

    # -- streams

    async def _create(self, command: c.Create) -> None:
        code = OK
        try:
            await self._broker.create(command.stream, command.arguments)
        except Refused as refused:
            logger.info("stream %s not created: %s", command.stream, refused)
            code = refused.code
        self._answer(c.CreateResponse(command.correlation_id, code))

    async def _delete(self, command: c.Delete) -> None:
        corr = command.correlation_id
        try:
            answer = c.DeleteResponse(corr, OK)
            await self._broker.delete(command.stream, lambda: self._answer(answer))
        except Refused as refused:
            self._answer(c.DeleteResponse(corr, refused.code))

    async def _metadata(self, command: c.Metadata) -> None:
        streams = tuple(
            StreamMetadata(name, code, 0 if code == OK else NO_LEADER, ())
            for name, code in ((name, self._code(name)) for name in dict.fromkeys(command.streams))
        )
        brokers = (BrokerAddress(0, *self._address),)
        self._answer(c.MetadataResponse(command.correlation_id, brokers, streams))

    def _code(self, name: str) -> ResponseCode:
        try:
            self._broker.find(name)
        except Refused as refused:
            return refused.code
        return OK

    async def _exchange_command_versions(self, command: c.ExchangeCommandVersions) -> None:
        self._delivery.with_committed = any(
            key == c.Deliver.KEY and max_version >= c.DeliverCommitted.VERSION
            for key, _, max_version in command.versions
        )
        corr = command.correlation_id
        self._answer(c.ExchangeCommandVersionsResponse(corr, OK, _VERSIONS))

    async def _stream_stats(self, command: c.StreamStats) -> None:
        corr = command.correlation_id
        try:
            stream = self._broker.find(command.stream)
            await stream.settled()
        except Refused as refused:
            self._answer(c.StreamStatsResponse(corr, refused.code))
            return
        self._answer(c.StreamStatsResponse(corr, OK, _statistics(stream.log)))

    async def _resolve_offset_spec(self, command: c.ResolveOffsetSpec) -> None:
        corr, code, offset = command.correlation_id, OK, 0
        try:
            log = self._broker.find(command.stream).log
            offset = log.find(_offset_spec(command.offset)).offset
        except Refused as refused:
            code = refused.code
        except SegmentsError as error:
            logger.error("stream %s cannot be read: %s", command.stream, error)
            code = ResponseCode.NO_OFFSET
        found = OffsetSpecification(Start.OFFSET, offset)
        self._answer(c.ResolveOffsetSpecResponse(corr, code, found))

    async def _describe_streams(self, command: c.DescribeStreams) -> None:
        names = command.streams or self._broker.names()
        streams = tuple(map(self._describe, dict.fromkeys(names)))
        self._answer(c.DescribeStreamsResponse(command.correlation_id, OK, streams))

    def _describe(self, name: str) -> StreamDescription:
        try:
            stream = self._broker.find(name)
        except Refused as refused:
            return StreamDescription(name, refused.code, (), ())
        arguments = tuple(
            Pair(key, str(value).lower() if isinstance(value, bool) else str(value))
            for key, value in self._broker.arguments(name).items()
        )
        return StreamDescription(name, OK, arguments, _description(stream.log))


def _check_reference(reference: str) -> None:
    if len(reference.encode()) > MAX_REFERENCE_SIZE:
        raise Refused(ResponseCode.PRECONDITION_FAILED, "reference longer than 255 bytes")


def _offset_spec(sent: OffsetSpecification) -> OffsetSpec:
    try:
        return OffsetSpec(Start(sent.type), sent.value)
    except ValueError:
        details = f"offset type is {sent.type}, expected 1 to 5"
        raise Refused(ResponseCode.PRECONDITION_FAILED, details) from None


def _matcher(properties: Iterable[tuple[str, str]]) -> Matcher | None:
    """The filter a subscription asks for; match-unfiltered alone asks for none."""
    values = [value.encode() for key, value in properties if key.startswith(_FILTER_PREFIX)]
    if not values:
        return None
    match_unfiltered = (_MATCH_UNFILTERED, "true") in list(properties)
    try:
        return Matcher(values, match_unfiltered=match_unfiltered)
    except ValueError as error:
        raise Refused(ResponseCode.PRECONDITION_FAILED, str(error)) from error


def _statistics(log: Log) -> tuple[Statistic, ...]:
    last = log.last_chunk_id
    first = _NO_CHUNK if last is None else log.find(FIRST).offset
    return (
        Statistic("first_chunk_id", first),
        Statistic("last_chunk_id", _NO_CHUNK if last is None else last),
        Statistic("committed_chunk_id", _NO_CHUNK if last is None else last),
        Statistic("committed_offset", _NO_CHUNK if last is None else log.committed_offset - 1),
    )


def _progress(reader: Reader) -> tuple[Statistic, ...]:
    counts = reader.counts
    return (
        Statistic("next_offset", reader.next_offset),
        Statistic("chunks", counts.chunks),
        Statistic("messages", counts.records),
        Statistic("skipped_chunks", counts.skipped_chunks),
        Statistic("skipped_bytes", counts.skipped_bytes),
        Statistic("lost_messages", counts.lost_records),
    )


def _description(log: Log) -> tuple[Statistic, ...]:
    first_time = next(
        (s.first_timestamp_ms for s in log.segments if s.first_timestamp_ms is not None), 0
    )
    return (
        *_statistics(log),
        Statistic("messages", log.committed_offset - log.first_offset),
        Statistic("chunks", log.num_chunks),
        Statistic("bytes", log.size),
        Statistic("segments", len(log.segments)),
        Statistic("first_timestamp_ms", first_time),
        Statistic("last_timestamp_ms", log.last_timestamp_ms or 0),
    )
