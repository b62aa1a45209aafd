"""The links of one session: attaching and detaching them.

A link that is refused is attached all the same, with nothing at our end, and detached at once: that
is how its client learns why.

Source: OASIS AMQP 1.0 part 2 (transport), 2.6.3; rabbitmq/rabbitmq-server,
deps/rabbit/src/rabbit_amqp_session.erl.
"""

import logging
from itertools import islice

import trio

from segments import StorageError
from segments.amqp10 import Opaque, Symbol
from segments.errors import FormatError
from streamd.broker.declared.checks import check_properties, properties_size, recorded
from streamd.broker.streams.fetcher import NoTierError
from streamd.broker.streams.stream import Stream
from streamd.config import MAX_NAME_BYTES
from streamd.connections.amqp10.addresses import read_source, read_target
from streamd.connections.amqp10.context import Context
from streamd.connections.amqp10.delivery import LinkConsumer, OutgoingSession
from streamd.connections.amqp10.faults import fault_of, not_implemented
from streamd.connections.amqp10.management_link import (
    MAX_PAIRS,
    MAX_REQUEST_BYTES,
    ManagementPair,
    check_half,
    is_management,
)
from streamd.connections.amqp10.publisher import PublisherLink
from streamd.connections.amqp10.source_filters import CAPABILITIES, Filters, read_filters
from streamd.connections.unacked import Unacked
from streamd.operations.errors import Refused
from streamd.operations.names import Name
from streamd.wire.amqp10 import performatives as p
from streamd.wire.amqp10.codec import encode_composite, frame
from streamd.wire.amqp10.errors import Condition, Fault, LinkFault
from streamd.wire.amqp10.session import MAX_MESSAGE_BYTES, Link, Session
from streamd.wire.amqp10.values import Entry, map_of, read_entries

logger = logging.getLogger(__name__)

MAX_LINKS = 4_096  # of one connection
MAX_CONSUMERS = 1_024  # of one connection: each may hold a chunk
_MAX_WARNINGS = 4  # for one consumer
_MOMENT = 0.005  # seconds
_OUTCOMES = tuple(
    Symbol(f"amqp:{name}:list") for name in ("accepted", "rejected", "released", "modified")
)
_DEFAULT_OUTCOME = Opaque(encode_composite(p.Released()))


class Links:
    """The links of one session.

    Attributes:
        publishers, consumers: by link: another one may have the same handle later.
        sending: what it sends.
    """

    def __init__(self, context: Context, session: Session, unacked: Unacked) -> None:
        self._context = context
        self.session = session
        self.sending = OutgoingSession(session, context.deliveries, unacked)
        self.publishers: dict[Link, PublisherLink] = {}
        self.consumers: dict[Link, LinkConsumer] = {}
        self._pairs: dict[str, ManagementPair] = {}

    # -- attaching

    async def attach(self, attach: p.Attach) -> None:
        """Attach a link, or refuse it; the answer is in the outbox on return.

        Raises:
            ConnectionFault, SessionFault: more than the link has to end.
        """
        link = self.session.attach(attach)
        try:
            self._check_room()
            _check(attach)
            if is_management(attach):
                self._attach_half(link, attach)
            elif attach.role is p.SENDER:
                self._attach_publisher(link, attach)
            else:
                await self._attach_consumer(link, attach)
        except Refused as refused:
            fault = fault_of(refused)
            if not isinstance(fault, LinkFault):
                raise fault from refused
            self._refuse(link, attach, fault)
        except LinkFault as fault:
            self._refuse(link, attach, fault)

    def _check_room(self) -> None:
        sessions = self._context.connection.sessions.values()
        if sum(len(session.links) for session in sessions) > MAX_LINKS:
            text = f"the connection has {MAX_LINKS:,} links, the most there can be"
            raise LinkFault(Condition.RESOURCE_LIMIT_EXCEEDED, text)

    def _send(self, performative: p.Performative) -> None:
        self._context.outbox.put(frame(self.session.channel, performative))

    def _refuse(self, link: Link, attach: p.Attach, fault: Fault) -> None:
        if attach.role is p.SENDER:
            answer = p.Attach(attach.name, attach.handle, p.RECEIVER, source=attach.source)
        else:
            answer = p.Attach(
                *(attach.name, attach.handle, p.SENDER),
                target=attach.target,
                initial_delivery_count=0,
            )
        self._send(answer)
        self._context.outbox.put(self._context.connection.detach(self.session, link, fault))

    def _attach_publisher(self, link: Link, attach: p.Attach) -> None:
        target = attach.target
        destination = read_target(None if target is None else target.address)
        if destination is not None:
            self._context.publishing.require(destination)
        publisher = PublisherLink(
            *(self.session, link, destination, self._context.outbox),
            self._detach_publisher,
            self._context.traffic,
        )
        self.publishers[link] = publisher
        self._send(
            attach._replace(
                role=p.RECEIVER,
                rcv_settle_mode=p.FIRST,
                unsettled=None,
                initial_delivery_count=None,
                max_message_size=MAX_MESSAGE_BYTES,
                offered_capabilities=CAPABILITIES,
                desired_capabilities=(),
                properties=None,
            )
        )
        publisher.begin()

    async def _attach_consumer(self, link: Link, attach: p.Attach) -> None:
        context, source = self._context, attach.source
        if source is None or source.address is None:
            raise not_implemented("the source has no address; expected /queues/:queue")
        if context.deliveries.num_consumers >= MAX_CONSUMERS:
            text = f"the connection has {MAX_CONSUMERS:,} consumers, the most there can be"
            raise LinkFault(Condition.RESOURCE_LIMIT_EXCEEDED, text)
        name = read_source(source.address)
        context.require_read(name)
        stream = self._find(name)
        async with stream.opened():
            if context.connection.sessions.get(self.session.channel) is not self.session:
                return  # it has ended meanwhile: nobody would close the consumer
            context.require_read(name)  # it may have gone meanwhile
            consumer, filters = self._open(link, source, stream)
        self.consumers[link] = consumer
        mode = p.SETTLED if consumer.is_settled else p.UNSETTLED
        in_effect = map_of(filters.in_effect) if source.filter is not None else None
        self._send(
            attach._replace(
                role=p.SENDER,
                snd_settle_mode=mode,
                source=source._replace(
                    filter=in_effect,
                    distribution_mode=Symbol("copy"),
                    default_outcome=_DEFAULT_OUTCOME,
                    outcomes=source.outcomes or _OUTCOMES,
                    capabilities=(),
                ),
                unsettled=None,
                initial_delivery_count=0,
                offered_capabilities=CAPABILITIES,
                desired_capabilities=(),
                properties=None,
            )
        )
        # RabbitMQ's Python client gives credit with its attach, and loses its way when messages
        # come in one read with the answer: they come a moment later, as from RabbitMQ.
        await trio.sleep(_MOMENT)

    def _find(self, name: Name) -> Stream:
        host = self._context.host
        if not host.has_stream(name):
            raise LinkFault(Condition.NOT_FOUND, f"no queue '{name}' in vhost '{host.name}'")
        return host.find(name)

    def _open(self, link: Link, source: p.Source, stream: Stream) -> tuple[LinkConsumer, Filters]:
        context = self._context
        declared = context.host.arguments(stream.name)
        filters = read_filters(
            _entries(source), stream.name, declared, context.now_ms, stream.standing
        )
        shown, deliveries = filters.shown, context.deliveries
        check_properties(properties_size(shown.items()), deliveries.properties_size)
        if filters.wanted.matcher is not None:
            stream.log.filter_demand.add(recorded(filters.wanted.matcher.asked))
        for sentence in islice(filters.left_out, _MAX_WARNINGS):
            logger.warning("stream %s, consumer %r: %s", stream.name, link.name, sentence)
        try:
            consumer = deliveries.add(self.sending, link, stream, filters, shown, self.end_consumer)
        except (StorageError, NoTierError) as error:
            logger.error("stream %s cannot be read: %s", stream.name, error)
            text = f"queue '{stream.name}' cannot be read"
            raise LinkFault(Condition.INTERNAL_ERROR, text) from error
        return consumer, filters

    def _attach_half(self, link: Link, attach: p.Attach) -> None:
        check_half(attach)
        context = self._context
        pair = self._pairs.get(link.name)
        if link.is_incoming:
            link.max_message_bytes = MAX_REQUEST_BYTES
        if pair is None:
            if len(self._pairs) >= MAX_PAIRS:
                text = f"the session has {MAX_PAIRS} link pairs, the most there can be"
                raise LinkFault(Condition.RESOURCE_LIMIT_EXCEEDED, text)
            most = context.deliveries.frame_max
            pair = ManagementPair(self.sending, context.management, context.outbox, most)
            self._pairs[link.name] = pair
        pair.attach(link)
        self._send(
            attach._replace(
                role=not attach.role,
                rcv_settle_mode=p.FIRST,
                initial_delivery_count=None if link.is_incoming else 0,
                max_message_size=link.max_message_bytes,
            )
        )
        pair.grant()

    def pair(self, link: Link) -> ManagementPair | None:
        """The pair that a link is a half of."""
        pair = self._pairs.get(link.name)
        return pair if pair is not None and link in (pair.incoming, pair.outgoing) else None

    def refill(self, link: Link) -> bytes:
        """Transfers have come on a link: what lets more come there, and on the others."""
        publisher, session = self.publishers.get(link), self.session
        granted = b"" if publisher is None else publisher.grant()
        if granted or not session.needs_window:
            return granted
        return frame(session.channel, session.flow())

    def window_opened(self) -> None:
        """More transfers may be sent."""
        self.sending.opened()
        for pair in self._pairs.values():
            pair.grant()
        for consumer in list(self.consumers.values()):
            consumer.check()

    # -- detaching

    def detached(self, link: Link, detach: p.Detach) -> None:
        """The client has detached a link."""
        self.forget(link)
        self._send(p.Detach(link.handle, detach.closed))

    def detach(self, link: Link, fault: Fault) -> None:
        """Detach a link because of a fault."""
        if self.session.links.get(link.handle) is link and not link.is_detached:
            self.forget(link)
            self._context.outbox.put(self._context.connection.detach(self.session, link, fault))

    def _detach_publisher(self, publisher: PublisherLink, fault: Fault) -> None:
        self.detach(publisher.link, fault)

    def end_consumer(self, consumer: LinkConsumer, text: str) -> None:
        """End a consumer on the server's side."""
        self.detach(consumer.link, LinkFault(Condition.RESOURCE_DELETED, text))

    def forget(self, link: Link) -> None:
        """A link is gone: give back what it has."""
        publisher = self.publishers.pop(link, None)
        if publisher is not None:
            publisher.close()
        consumer = self.consumers.pop(link, None)
        if consumer is not None:
            consumer.close()
            self.sending.forget(consumer)
        pair = self.pair(link)
        if pair is not None and pair.detach(link):
            del self._pairs[link.name]
        if self.sending.drop(link):
            self.window_opened()

    def stream_is_gone(self, stream: Stream) -> None:
        """A stream was deleted, or cannot be read any more: its links end."""
        text = f"queue '{stream.name}' in vhost '{self._context.host.name}' is gone"
        gone = LinkFault(Condition.RESOURCE_DELETED, text)
        for consumer in list(self.consumers.values()):
            if consumer.stream is stream:
                self.detach(consumer.link, gone)
        for publisher in list(self.publishers.values()):
            destination = publisher.destination
            if destination is not None and destination.queue == stream.name:
                self.detach(publisher.link, gone)

    def close(self) -> None:
        """The session has ended: give everything back."""
        for publisher in self.publishers.values():
            publisher.close()
        for consumer in list(self.consumers.values()):
            consumer.close()
        for pair in self._pairs.values():
            pair.close()
        self.publishers.clear()
        self.consumers.clear()
        self._pairs.clear()
        self.sending.close()


def _check(attach: p.Attach) -> None:
    """Raise LinkFault for what streams cannot do."""
    size = len(attach.name.encode())
    if size > MAX_NAME_BYTES:
        text = f"the name of a link has {size:,} bytes, expected at most {MAX_NAME_BYTES:,}"
        raise LinkFault(Condition.INVALID_FIELD, text)
    source, target = attach.source, attach.target
    if isinstance(target, p.Coordinator):
        raise not_implemented("there are no transactions")
    if not isinstance(source, p.Source | None) or not isinstance(target, p.Target | None):
        raise LinkFault(Condition.INVALID_FIELD, "source or target is something else")
    if attach.unsettled or attach.incomplete_unsettled:
        raise not_implemented("links do not go on with deliveries of an earlier attachment")
    if attach.rcv_settle_mode == p.SECOND and attach.snd_settle_mode != p.SETTLED:
        raise not_implemented("rcv-settle-mode second; expected first")
    if any(terminus is not None and terminus.dynamic for terminus in (source, target)):
        raise not_implemented("dynamic nodes; declare a stream and name it")
    if source is not None and not set(source.outcomes) <= set(_OUTCOMES):
        raise not_implemented(f"outcomes other than {', '.join(_OUTCOMES)}")


def _entries(source: p.Source) -> list[Entry]:
    if source.filter is None:
        return []
    try:
        return read_entries(source.filter.raw)
    except FormatError as error:
        raise LinkFault(Condition.INVALID_FIELD, f"the filter is malformed: {error}") from None
