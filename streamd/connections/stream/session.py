"""The requests of an open connection, and who carries out which command."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import trio

from streamd.broker.streams.stream import Stream
from streamd.connections.stream.context import Context, Handlers, HandlersAtOnce
from streamd.connections.stream.finding import Finding
from streamd.connections.stream.forwarding import CHANGES, Forwarding
from streamd.connections.stream.management import Management
from streamd.connections.stream.publishers import Publishers
from streamd.connections.stream.relay import Relay
from streamd.connections.stream.response_codes import OK, code_of
from streamd.connections.stream.streams import Streams
from streamd.connections.stream.subscriptions import Consumers
from streamd.hop.declared import by_name
from streamd.operations.cluster import ListLed, ReadOn
from streamd.operations.connections import ConsumerFacts, PublisherFacts
from streamd.operations.errors import Refused
from streamd.operations.names import as_sent
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.codec import answer_to
from streamd.wire.stream.fields import CommandVersions

__all__ = ["Context", "Session"]

logger = logging.getLogger(__name__)

_UNREAD_SECONDS = 5.0  # that the log is not read for an offset, after it could not be
_OF_NODES = (ListLed.NAME, ReadOn.NAME)  # which are of no stream

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
        c.Route,
        c.Partitions,
        c.StreamStats,
        c.CreateSuperStream,
        c.DeleteSuperStream,
        c.ResolveOffsetSpec,
    )
)


class Session:
    """The publishers and subscriptions of one connection, and its requests.

    Args:
        end: ends the connection in order, for the reason given.
    """

    def __init__(self, context: Context, end: Callable[[str], None]) -> None:
        self._context = context
        self._end = end
        self._publishers = Publishers(context)
        self._consumers = Consumers(context)
        own: Handlers = {c.ExchangeCommandVersions: self._exchange_command_versions}
        self._streams, self._finding = Streams(context), Finding(context)
        self._management = Management(context)
        self._forwarding = Forwarding(context.broker)
        self._relay = Relay(context, self._forwarding)
        self._has_others = context.broker.shards is not None and not context.is_node
        parts = (
            self._publishers,
            self._consumers,
            self._streams,
            self._finding,
            self._management,
        )
        self._handlers: Handlers = {k: h for part in parts for k, h in part.handlers.items()} | own
        at_once = self._publishers.at_once | self._consumers.at_once | self._finding.at_once
        self._at_once: HandlersAtOnce = at_once
        self._unread_until = 0.0
        context.host.add_observer(self)

    def handle_at_once(self, command: c.ClientCommand) -> bool:
        """Carry out a command that needs no waiting; False when it does, and nothing was done.

        Raises:
            RemoteProtocolError: the command's body is malformed.
        """
        if self._has_others and self._relay.is_for_others(command):
            return False
        if isinstance(command, c.StoreOffset) and self._is_member and self._is_unknown(command):
            return trio.current_time() < self._unread_until  # nobody waits for its answer
        handler = self._at_once.get(type(command))
        return handler is not None and not self._context.outbox.is_full and handler(command)

    async def handle(self, command: c.ClientCommand) -> None:
        """Carry out one command; answers are in the outbox on return.

        Raises:
            RemoteProtocolError: the command's body is malformed.
        """
        if isinstance(command, c.Delete | c.DeleteSuperStream):
            with self._context.deleting(command):
                await self._carry_out(command)
        else:
            await self._carry_out(command)

    async def _carry_out(self, command: c.ClientCommand) -> None:
        if self._is_member:
            may_be_done = await self._look_elsewhere(command)
            if not may_be_done:
                self._refuse(command)
                return
        if self._has_others:
            if isinstance(command, CHANGES) and self._forwarding.leader() is not None:
                await self._forward([command])
                return
            if not self._has_here(command) and await self._relay.carry_out(command):
                return
        handler = self._handlers.get(type(command))
        if handler is not None:
            await handler(command)
            return
        at_once = self._at_once.get(type(command))
        if at_once is not None and not at_once(command):  # heartbeats need none
            assert isinstance(command, c.Publish | c.PublishFiltered)  # noqa: S101
            await self._publishers.publish_in_turns(command)

    async def create_all(self, commands: Sequence[c.Create]) -> None:
        """Carry out requests to create streams; answers are in the outbox on return."""
        if self._has_others and self._forwarding.leader() is not None:
            await self._forward(commands)
        else:
            await self._streams.create_all(commands)

    async def _forward(self, commands: Sequence[c.ClientCommand]) -> None:
        """Have the node that leads carry out what changes what is declared."""
        context = self._context
        user, host = context.rights.user, context.host.name
        try:
            answers = await self._forwarding.commands(user, host, commands)
        except Refused as refused:
            logger.info("not done: %s", refused.details)
            code = code_of(refused)
            answers = [answer_to(type(one))(one.correlation_id, code) for one in commands]  # type: ignore[misc, union-attr]
        for answer in answers:
            context.answer(answer)

    def _has_here(self, command: c.ClientCommand) -> bool:
        """A publisher or a subscription of that number is here: another one is refused."""
        match command:
            case c.DeclarePublisher():
                return self._publishers.has(command.publisher_id)
            case c.Subscribe():
                return self._consumers.has(command.subscription_id)
            case _:
                return False

    async def _look_elsewhere(self, command: c.ClientCommand) -> bool:
        """Another node may just have declared a stream that is not here, or declared it again.

        Returns:
            Whether the command can be carried out: what is confirmed or changed in an earlier life
            of a stream would be lost.
        """
        match command:
            case c.Manage(_, name, _):
                is_asked = self._context.is_node and name not in _OF_NODES
                operation = by_name().get(name)
                changes = is_asked and (operation is None or operation.CHANGES)
            case _:
                changes = isinstance(command, c.DeclarePublisher)
                is_asked = changes or isinstance(command, c.Subscribe)
        if not (is_asked or self._is_unknown(command)):
            return True
        is_read = await self._context.broker.read_on()
        self._unread_until = 0.0 if is_read else trio.current_time() + _UNREAD_SECONDS
        return is_read or not changes

    @property
    def _is_member(self) -> bool:
        """Another node declares what there is, and this one may lead some of it."""
        context = self._context
        return context.broker.shards is not None and context.host.read_only is not None

    def _is_unknown(self, command: c.ClientCommand) -> bool:
        """It names a stream that is not here."""
        named = [getattr(command, "stream", None), getattr(command, "super_stream", None)]
        named += getattr(command, "streams", ())
        host = self._context.host
        names = (as_sent(name) for name in named if name)
        return any(not host.has_stream(n) and not host.topology.has(n) for n in names)

    def _refuse(self, command: Any) -> None:  # noqa: ANN401 - of any kind that is answered
        logger.info("not done: the log of metadata cannot be read at the moment")
        code, answer = ResponseCode.STREAM_NOT_AVAILABLE, answer_to(type(command))
        assert answer is not None  # noqa: S101 - publishers are declared, operations asked for
        self._context.answer(answer(command.correlation_id, code))

    async def settled(self) -> None:
        """Return when everything the connection has published is stored or refused."""
        await self._publishers.settled()

    def publishers(self) -> list[PublisherFacts]:
        """The publishers at the moment."""
        return self._publishers.facts()

    def consumers(self) -> list[ConsumerFacts]:
        """The subscriptions at the moment."""
        return self._consumers.facts()

    @property
    def must_end(self) -> bool:
        """Whether the client owes an answer for too long."""
        return self._consumers.is_overdue

    def is_patient(self) -> bool:
        """Whether the connection has consumers alone, and none of them needs anything soon."""
        return self._publishers.are_none and self._context.delivery.is_patient

    def host_is_gone(self) -> None:
        """See virtual_host.StreamObserver."""
        self._end(f"vhost '{self._context.host.name}' is deleted")

    def close(self) -> None:
        """The connection ended: give everything back."""
        self._context.host.remove_observer(self)
        self._consumers.close()
        self._publishers.close()
        self._finding.close()
        self._management.close()
        self._relay.close()

    def stream_is_gone(self, stream: Stream) -> None:
        """Drop what used the stream, and tell the client once; see virtual_host.StreamObserver."""
        has_published = self._publishers.forget(stream)
        if self._consumers.forget(stream) or has_published:
            self._context.tell_gone(stream.name)

    def check_rights(self) -> None:
        """Rights may have changed: drop what is not allowed any more, and tell the client."""
        for stream in self._publishers.without_right() | self._consumers.without_right():
            self.stream_is_gone(stream)

    async def _exchange_command_versions(self, command: c.ExchangeCommandVersions) -> None:
        self._context.delivery.with_committed = any(
            key == c.Deliver.KEY and max_version >= c.DeliverCommitted.VERSION
            for key, _, max_version in command.versions
        )
        corr = command.correlation_id
        self._context.answer(c.ExchangeCommandVersionsResponse(corr, OK, _VERSIONS))
