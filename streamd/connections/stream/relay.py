"""Streams that another node leads, for a client of the stream protocol that has come to this one.

Clients are told by Metadata where a stream is led, and go there. What one asks for here all the
same, the node that leads is asked, over a connection of this client's own, as its user: it declares
publishers and subscriptions there, and what that node says about them is sent on. So they have the
same numbers at both, and that node knows all that is to be known of them.

The connection ends with the client, or when another node leads. The client hears then, as always
when a stream has another leader, that its publishers and consumers are over.
"""

import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

import trio

from streamd.connections.stream.context import Context
from streamd.connections.stream.forwarding import Forwarding
from streamd.connections.stream.node_link import ANSWER_SECONDS, NodeLink, open_link
from streamd.connections.stream.response_codes import OK, code_of
from streamd.operations.cluster import LeaderFacts
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name, as_sent
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.codec import answer_to

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0  # between two looks whether that node still leads
_FIRST_NUMBER = 1 << 31  # of requests of the server; its own are smaller

_PUBLISHER, _CONSUMER = "publisher_id", "subscription_id"
_DECLARES: dict[Any, str] = {c.DeclarePublisher: _PUBLISHER, c.Subscribe: _CONSUMER}
_ENDS: dict[Any, str] = {c.DeletePublisher: _PUBLISHER, c.Unsubscribe: _CONSUMER}
_USES: dict[Any, str] = {
    c.Publish: _PUBLISHER,
    c.PublishFiltered: _PUBLISHER,
    c.Credit: _CONSUMER,
    c.DescribeSubscription: _CONSUMER,
}
_OF_STREAM = (
    *(c.DeclarePublisher, c.Subscribe, c.QueryPublisherSequence, c.QueryOffset, c.StoreOffset),
    *(c.StreamStats, c.ResolveOffsetSpec, c.Find),
)
# What takes long is waited for beside all else, so many of one client; more are read later.
_BESIDE: dict[Any, int] = {c.DescribeSubscription: 1_024, c.Find: 2}


class _Used(NamedTuple):
    """A publisher or a subscription at another node."""

    way: "_Way"
    stream: Name


class _Way:
    """The connection to one node; None for the link until it is open, and once it is gone."""

    def __init__(self, node: LeaderFacts) -> None:
        self.node = node
        self.link: NodeLink | None = None
        self.opened = trio.Event()
        self.scope = trio.CancelScope()


class Relay:
    """What one client has at other nodes.

    Args:
        context: of its connection.
        forwarding: knows who leads what.
    """

    def __init__(self, context: Context, forwarding: Forwarding) -> None:
        self._context, self._forwarding = context, forwarding
        self._ways: dict[str, _Way] = {}  # by the start of the node
        self._used: dict[tuple[str, int], _Used] = {}
        self._asked: dict[int, tuple[_Way, int]] = {}
        self._last = _FIRST_NUMBER
        self._places = {kind: trio.Semaphore(number) for kind, number in _BESIDE.items()}
        self._versions: c.ExchangeCommandVersions | None = None

    def is_for_others(self, command: c.ClientCommand) -> bool:
        """It is about something that another node has."""
        if isinstance(command, c.ConsumerUpdateResponse):
            return command.correlation_id in self._asked
        if isinstance(command, c.StoreOffset | c.Find):
            host = self._context.host
            return self._forwarding.node_of(host, as_sent(command.stream)) is not None
        kind = type(command)
        field = _USES.get(kind) or _ENDS.get(kind)
        return field is not None and (field, getattr(command, field)) in self._used

    async def carry_out(self, command: c.ClientCommand) -> bool:
        """Have another node carry out a command; False where this one does."""
        if isinstance(command, c.ExchangeCommandVersions):
            self._versions = command
        elif isinstance(command, c.ConsumerUpdateResponse):
            return await self._answer(command)
        elif self._is_taken(command):
            self._refuse(command, Refused(Reason.PRECONDITION_FAILED, "its number is in use"))
            return True
        elif isinstance(command, _OF_STREAM):
            host, name = self._context.host, as_sent(command.stream)
            if not isinstance(command, c.StoreOffset):  # which has no answer to wait for
                await host.led_soon([name])
            node = self._forwarding.node_of(host, name)
            if node is None:
                return False
            await self._do(command, partial(self._ask, node, command))
            return True
        elif self.is_for_others(command):
            kind = type(command)
            field = _USES.get(kind) or _ENDS[kind]
            used = self._used[field, getattr(command, field)]
            await self._do(command, partial(self._carry_out, used.way, command))
            return True
        return False

    async def _do(self, command: c.ClientCommand, ask: Callable[[], Awaitable[None]]) -> None:
        places = self._places.get(type(command))
        if places is None:
            await ask()
            return
        await places.acquire()

        async def run() -> None:
            try:
                await ask()
            finally:
                places.release()

        self._context.broker.supervisor.start_once("asking another node", run)

    def _is_taken(self, command: c.ClientCommand) -> bool:
        field = _DECLARES.get(type(command))
        return field is not None and (field, getattr(command, field)) in self._used

    async def _ask(self, node: LeaderFacts, command: c.ClientCommand) -> None:
        try:
            way = await self._way_to(node)
        except Refused as refused:
            self._refuse(command, refused)
            return
        await self._carry_out(way, command)

    async def _carry_out(self, way: _Way, command: Any) -> None:  # noqa: ANN401 - of any kind
        link, kind = way.link, type(command)
        try:
            if link is None:
                raise Refused(Reason.NOT_AVAILABLE, "the node that leads is gone")
            if answer_to(kind) is None:
                await link.send(command)
                return
            seconds = math.inf if kind is c.DescribeSubscription else ANSWER_SECONDS
            await link.ask(command, partial(self._answered, way, command), seconds)
        except Refused as refused:
            self._refuse(command, refused)

    def _answered(self, way: _Way, command: Any, answer: Any) -> None:  # noqa: ANN401 - as above
        """Pass an answer on, before what was said behind it."""
        kind = type(command)
        if kind in _DECLARES and answer.code == OK:
            field = _DECLARES[kind]
            self._used[field, getattr(command, field)] = _Used(way, as_sent(command.stream))
        elif kind in _DECLARES and answer.code == ResponseCode.STREAM_NOT_AVAILABLE:
            self._forwarding.look_soon()
        elif kind in _ENDS:
            self._used.pop((_ENDS[kind], getattr(command, _ENDS[kind])), None)
        self._context.answer(answer)

    def _refuse(self, command: Any, refused: Refused) -> None:  # noqa: ANN401 - of any kind
        logger.info("not done at another node: %s", refused.details)
        answer = answer_to(type(command))
        if answer is not None:
            self._context.answer(answer(command.correlation_id, code_of(refused)))

    async def _answer(self, command: c.ConsumerUpdateResponse) -> bool:
        asked = self._asked.pop(command.correlation_id, None)
        if asked is None:
            return False
        way, number = asked
        if way.link is not None:
            sent = c.ConsumerUpdateResponse(number, command.code, command.offset)
            await self._carry_out(way, sent)
        return True

    # -- the way to another node

    async def _way_to(self, node: LeaderFacts) -> _Way:
        """An open connection to a node.

        Raises:
            Refused: it is not reached, or nobody leads.
        """
        if not node.name:
            raise Refused(Reason.NOT_AVAILABLE, "nobody leads it at the moment")
        way = self._ways.get(node.start)
        if way is None:
            way = self._ways[node.start] = _Way(node)

            async def run() -> None:
                with way.scope:
                    await self._run(way)

            self._context.broker.supervisor.start_once("asking another node", run, node.name)
        await way.opened.wait()
        if way.link is None:
            raise Refused(Reason.NOT_AVAILABLE, f"node {node.name} is not reached")
        return way

    async def _run(self, way: _Way) -> None:
        context, own = self._context, self._context.broker.node
        assert own is not None  # noqa: S101 - or there were no other nodes
        user, host = context.rights.user, context.host.name
        try:
            take, room = partial(self._take, way), context.outbox.room
            opened = open_link(way.node, own.secret, user, host, take, room)
            async with opened as link:
                if self._versions is not None:
                    await link.ask(self._versions)
                way.link = link
                way.opened.set()
                while not link.is_lost and self._leads(way):
                    with trio.move_on_after(_LOOK_SECONDS):
                        await link.lost()
        except* Refused:
            pass
        finally:
            way.link = None
            way.opened.set()
            if self._ways.get(way.node.start) is way:
                del self._ways[way.node.start]
            self._end(way)

    def _leads(self, way: _Way) -> bool:
        """The node is there, and still leads all that this client has there."""
        of_host, shards = self._context.host, self._context.broker.shards
        there = None if shards is None else shards.facts(way.node.name)
        known = {one.start for one in (there, self._forwarding.leader()) if one is not None}
        if way.node.start not in known:
            return False
        streams = {used.stream for used in self._used.values() if used.way is way}
        nodes = (self._forwarding.node_of(of_host, name) for name in streams)
        return all(node is not None and node.start == way.node.start for node in nodes)

    def _end(self, way: _Way, stream: Name | None = None) -> None:
        """What the client has there, of one stream or of all, is over; it is told."""
        found = {k: used for k, used in self._used.items() if used.way is way}
        if stream is not None:
            found = {k: used for k, used in found.items() if used.stream == stream}
        self._forwarding.look_soon()
        for key in found:
            del self._used[key]
        for name in dict.fromkeys(used.stream for used in found.values()):
            self._context.tell_gone(name)

    def _take(self, way: _Way, command: c.Command) -> None:
        """The node says something that was not asked for."""
        match command:
            case c.ConsumerUpdate(number, subscription, active):
                self._last += 1
                self._asked[self._last] = way, number
                self._context.answer(c.ConsumerUpdate(self._last, subscription, active))
            case c.MetadataUpdate(_, stream):
                self._end(way, as_sent(stream))
            case (
                c.PublishConfirm()
                | c.PublishError()
                | c.Deliver()
                | c.DeliverCommitted()
                | c.DeliverStored()
                | c.CreditResponse()
            ):
                self._context.answer(command)
            case c.Close():
                way.scope.cancel()
            case _:
                pass

    def close(self) -> None:
        """The client has gone."""
        self._used.clear()
        for way in list(self._ways.values()):
            way.scope.cancel()
