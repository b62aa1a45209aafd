"""What an open connection does: its sessions, and who carries out what is asked for on them."""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress

from streamd.broker.streams.stream import Stream
from streamd.connections.amqp10.attaching import Links
from streamd.connections.amqp10.context import Context
from streamd.connections.amqp10.delivery import LinkConsumer
from streamd.connections.amqp10.publishing import Begun
from streamd.connections.unacked import MOST_SETTLED, Unacked
from streamd.net.turns import next_turn
from streamd.operations.connections import ConsumerFacts, PublisherFacts
from streamd.wire.amqp10 import performatives as p
from streamd.wire.amqp10.codec import frame
from streamd.wire.amqp10.connection import Broken, Detached, Event, Messages, Request
from streamd.wire.amqp10.errors import Condition, ConnectionFault, Fault, LinkFault, SessionFault
from streamd.wire.amqp10.session import Link, Session as WireSession, serial_gap

logger = logging.getLogger(__name__)

_SETTLED_A_MESSAGE = 32  # that take as long as publishing a message
_CHECKED_A_MESSAGE = 8  # consumers that are looked at, the same
_STATES = (p.Accepted, p.Rejected, p.Released, p.Modified, p.Received)


class Session:
    """The sessions of one connection.

    Args:
        who: the peer, for the log.
        end: ends the connection, for the reason given.
    """

    def __init__(self, context: Context, who: str, end: Callable[[str], None]) -> None:
        self._context = context
        self._who = who
        self._end = end
        self._traffic = context.traffic
        publishing = context.publishing
        self.flush, self.settled = publishing.flush, publishing.settled
        self.has_room = publishing.has_room
        self._unacked = Unacked(self._check_consumers, context.traffic)
        self._sessions: dict[WireSession, Links] = {}
        # Of the messages that have begun: how many were taken, and the next one if that has, too.
        self._left: tuple[int, Begun | None] = 0, None
        context.host.add_observer(self)

    # -- at once

    def handle_at_once(self, event: Event) -> int:
        """Carry out what needs no waiting.

        Returns:
            How much work that was, in messages; 0 for what `handle` has to carry out, or the rest
            of.

        Raises:
            ConnectionFault: it ends the connection.
        """
        work = 1
        match event:
            case Messages():
                work = self._publish(event, 0)
                if work:
                    self._refill(event)
            case Broken(session, link, fault):
                self._break(session, link, fault)
            case Detached(session, link, detach):
                self._sessions[session].detached(link, detach)
            case Request(channel, p.Disposition() as disposition):
                work = self._settle(self._links(channel), disposition)
            case Request(channel, p.Flow() as flow):
                work += self._flow(self._links(channel), flow)
            case Request(channel, p.Begin()):
                self._begin(self._context.connection.sessions[channel])
            case _:
                work = 0
        return work

    def _links(self, channel: int) -> Links:
        return self._sessions[self._context.connection.sessions[channel]]

    def _publish(self, messages: Messages, taken: int) -> int:
        session, link, arrived, parts = messages
        links = self._sessions[session]
        publisher = links.publishers.get(link)
        if publisher is None:
            self._left = taken, None
            return 0 if arrived and links.pair(link) is not None else 1 + parts
        try:
            count, work, begun = self._context.publishing.publish(publisher, arrived[taken:])
        except Fault as fault:
            self._break(session, link, fault)
            return 1
        self._left = taken + count, begun
        return 0 if taken + count < len(arrived) else work + parts or 1

    def _refill(self, messages: Messages) -> None:
        """Have more transfers come after these, where there is little left of what may."""
        links = self._sessions.get(messages.session)
        if links is not None and (granted := links.refill(messages.link)):
            self._context.outbox.put_now(granted)

    def _flow(self, links: Links, flow: p.Flow) -> int:
        """Take a flow; how much work that was besides."""
        links.window_opened()
        link = None if flow.handle is None else links.session.links[flow.handle]
        if link is not None:
            consumer = links.consumers.get(link)
            if consumer is not None:
                consumer.take_flow(flow)
            elif not link.is_incoming:
                link.take_flow(flow)
            elif flow.echo:
                self._send(links.session, links.session.flow(link))
        return len(links.consumers) // _CHECKED_A_MESSAGE

    def _settle(self, links: Links, disposition: p.Disposition) -> int:
        """Nothing is ever delivered again, so all outcomes mean the same."""
        if disposition.role is not p.RECEIVER:
            return 1  # of a sender: nobody here waits for it
        state = disposition.state
        if state is not None and not isinstance(state, _STATES):
            fault = SessionFault(Condition.INVALID_FIELD, "the state of a delivery is not known")
            self._break(links.session, None, fault)
            return 1
        first = disposition.first
        last = first if disposition.last is None else disposition.last
        if serial_gap(first, last) < 0:
            return 1
        if serial_gap(first, last) >= MOST_SETTLED:
            return 0
        count, _ = links.sending.settle(first, last)
        self._settled(links, disposition, count)
        return 1 + serial_gap(first, last) // _SETTLED_A_MESSAGE

    def _settled(self, links: Links, disposition: p.Disposition, count: int) -> None:
        """A client that does not settle itself wants to hear that we do."""
        if count and not disposition.settled:
            self._send(links.session, disposition._replace(role=p.SENDER, settled=True))

    def _send(self, session: WireSession, performative: p.Performative) -> None:
        self._context.outbox.put(frame(session.channel, performative))

    # -- what waits

    async def handle(self, event: Event) -> None:
        """Carry out one event; answers are in the outbox on return.

        Raises:
            ConnectionFault: it ends the connection.
        """
        self.flush()
        if isinstance(event, Messages):
            await self._go_on(event)
            self._refill(event)
            return
        assert isinstance(event, Request)  # noqa: S101 - see handle_at_once
        session = self._context.connection.sessions.get(event.channel)
        links = None if session is None else self._sessions.get(session)
        if session is None or links is None:
            return  # the server has ended it meanwhile
        try:
            match event.performative:
                case p.Attach() as attach:
                    await links.attach(attach)
                case p.Disposition() as disposition:
                    await self._settle_many(links, disposition)
                case p.End():
                    self._end_session(session, None)
        except SessionFault as fault:
            self._break(session, None, fault)

    async def _go_on(self, messages: Messages) -> None:
        """Take the rest of messages, others have their turn meanwhile."""
        session, link, arrived, _ = messages
        try:
            while links := self._links_with(session, link):
                taken, begun = self._left
                if pair := links.pair(link):
                    await pair.answer(arrived[taken])
                    taken += 1
                elif begun is not None:
                    await self._context.publishing.go_on(links.publishers[link], begun)
                    taken += 1
                await self.room()
                await next_turn()
                if taken == len(arrived) or not self._links_with(session, link):
                    return
                if self._publish(messages, taken):
                    return
        except Fault as fault:
            self._break(session, link, fault)

    def _links_with(self, session: WireSession, link: Link) -> Links | None:
        """The links of a session; None where it, or the link, has gone meanwhile."""
        is_there = session.links.get(link.handle) is link and not link.is_detached
        return self._sessions.get(session) if is_there else None

    async def _settle_many(self, links: Links, disposition: p.Disposition) -> None:
        assert disposition.last is not None  # noqa: S101 - see _settle
        count, rest = links.sending.settle(disposition.first, disposition.last)
        while rest is not None:
            await next_turn()
            found, rest = links.sending.settle(rest, disposition.last)
            count += found
        self._settled(links, disposition, count)

    async def room(self) -> None:
        """Return when the streams that were written to can take more."""
        await self._context.publishing.room(self._block)

    def _block(self, is_blocked: bool) -> None:
        """Tell the client to send nothing for now, or that it may again."""
        for session, links in self._sessions.items():
            if not links.publishers and not session.is_blocked:
                continue
            session.is_blocked = is_blocked
            self._send(session, session.flow())
            for publisher in links.publishers.values():
                if granted := publisher.grant():
                    self._context.outbox.put(granted)

    # -- beginning and ending

    def _begin(self, session: WireSession) -> None:
        self._sessions[session] = Links(self._context, session, self._unacked)
        self._traffic.channels_opened += 1
        self._send(session, session.answer())

    def _break(self, session: WireSession, link: Link | None, fault: Fault) -> None:
        """End a link or a session because of a fault; what was published before it is stored."""
        self.flush()
        links = self._sessions.get(session)
        if links is None:
            return
        if isinstance(fault, ConnectionFault):
            raise fault
        if link is not None and isinstance(fault, LinkFault):
            links.detach(link, fault)
        else:
            logger.info("%s: %s", self._who, fault)
            self._end_session(session, fault)

    def _end_session(self, session: WireSession, fault: Fault | None) -> None:
        links = self._sessions.pop(session, None)
        if links is not None:
            links.close()
            self._traffic.channels_closed += 1
            self._context.outbox.put(self._context.connection.end_session(session, fault))

    def close(self) -> None:
        """The connection ended: give everything back."""
        self._context.host.remove_observer(self)
        for links in self._sessions.values():
            links.close()
        self._traffic.channels_closed += len(self._sessions)
        self._sessions.clear()

    # -- who looks

    def _consumers(self) -> Iterator[LinkConsumer]:
        for links in self._sessions.values():
            yield from links.consumers.values()

    def _check_consumers(self) -> None:
        """More may be sent again."""
        for consumer in list(self._consumers()):
            consumer.check()

    def publishers(self) -> list[PublisherFacts]:
        """The publishers at the moment."""
        found = (one for links in self._sessions.values() for one in links.publishers.values())
        return [publisher.facts(number) for number, publisher in enumerate(found)]

    def consumers(self) -> list[ConsumerFacts]:
        """The consumers at the moment."""
        return [consumer.facts(number) for number, consumer in enumerate(self._consumers())]

    # -- see virtual_host.StreamObserver

    def stream_is_gone(self, stream: Stream) -> None:
        """Links that read it, or publish there alone, end."""
        for links in list(self._sessions.values()):
            links.stream_is_gone(stream)

    def host_is_gone(self) -> None:
        """See virtual_host.StreamObserver."""
        self._end(f"vhost '{self._context.host.name}' is deleted")

    def check_rights(self) -> None:
        """Rights may have changed: end the sessions that use one that is not there any more."""
        for session, links in list(self._sessions.items()):
            try:
                for consumer in links.consumers.values():
                    self._context.require_read(consumer.stream.name)
                for publisher in links.publishers.values():
                    if publisher.destination is not None:
                        with suppress(LinkFault):  # there is no such place any more
                            self._context.publishing.require(publisher.destination)
            except SessionFault as fault:
                self._break(session, None, fault)
