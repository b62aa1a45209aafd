"""What another node of the cluster does for the users of this one.

What is declared changes at the node that leads the cluster; what belongs to a stream, as offsets
that consumers have stored, is with the one that leads its shard. Both are asked over a connection
for that one request: they are rare, and nothing of it can be out of date.
"""

import base64
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, starmap
from typing import Any

import msgspec
import trio

from segments.gaps import Gap, Gaps
from streamd.auth.users import NODE
from streamd.broker.broker import Broker
from streamd.broker.catalog.catalog import DEFAULT_HOST
from streamd.broker.streams.log_figures import LogFigures
from streamd.broker.virtual_host import VirtualHost
from streamd.connections.stream.management import KIND
from streamd.connections.stream.node_link import open_link
from streamd.connections.stream.response_codes import code_of
from streamd.hop.declared import answer_of
from streamd.hop.messages import encode, refusal
from streamd.net.turns import in_turns
from streamd.operations.cluster import LeaderFacts, ListLed, ReadOn
from streamd.operations.declaration import At, Operation
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.fields import Pair

logger = logging.getLogger(__name__)

_FIGURES_SECONDS = 2.0  # that figures of other nodes are good for, and waited for
_PART = 24_000  # characters of base64 in one string
_REASONS = {code_of(Refused(reason, "")): reason for reason in reversed(Reason)}
CHANGES = (c.Create, c.Delete, c.CreateSuperStream, c.DeleteSuperStream)


class Forwarding:
    """Asks other nodes.

    Args:
        broker: knows the node that it is of, and where streams are.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._refreshing, self._fresh_until = trio.Lock(), 0.0

    def leader(self) -> LeaderFacts | None:
        """Who leads the cluster; None where this server does, or is no node of one with shards."""
        node = self._broker.node
        if node is None or self._broker.shards is None or not self._broker.is_read_only:
            return None
        return node.served_by()

    def _node_for(self, request: Operation[Any]) -> LeaderFacts | None:
        """Who carries out an operation; None for this server."""
        at = request.AT or (At.LEADER if request.CHANGES else At.HERE)
        if at is At.LEADER:
            return self.leader()
        shards = self._broker.shards
        if at is At.NODE and shards is not None:
            node = shards.facts(request.node)  # type: ignore[attr-defined]
            if node is not None and not node.name:
                name = request.node[:40]  # type: ignore[attr-defined]
                details = f"there is no node {name!r}, or it is gone; `streamd cluster status` "
                raise Refused(Reason.NOT_FOUND, details + "shows which there are")
            return node
        host = None
        if at is At.WRITER:
            host = self._broker.virtual_hosts.get(request.vhost)  # type: ignore[attr-defined]
        return None if host is None else self.node_of(host, request.stream)  # type: ignore[attr-defined]

    def node_of(self, host: VirtualHost, stream: Name) -> LeaderFacts | None:
        """Who leads a stream; None for this server, and where there is none of that name."""
        shards, row = self._broker.shards, host.find_row(stream)
        if shards is None or row is None:
            return None
        return shards.node(row.shard) if row.shard else self.leader()

    def look_soon(self) -> None:
        """Another node may lead by now what one has led."""
        if self._broker.shards is not None:
            self._broker.shards.look_soon()

    async def operation(self, request: Operation[Any]) -> Callable[[Name], Awaitable[Any]] | None:
        """What carries out an operation for a user; None where this server does."""
        if request.AT is At.WRITER:
            is_read = await self._broker.read_on()
            if request.CHANGES and not is_read:  # it may be another stream since
                details = "the log of metadata cannot be read at the moment"
                raise Refused(Reason.NOT_AVAILABLE, details)
            host = self._broker.virtual_hosts.get(request.vhost)  # type: ignore[attr-defined]
            if host is not None:
                await host.led_soon([request.stream])  # type: ignore[attr-defined]
        node = self._node_for(request)
        if node is None:
            return None

        async def ask(user: Name) -> Any:  # noqa: ANN401 - of any kind
            return await self._ask(node, user, request)

        return ask

    async def everywhere(
        self, user: Name, request: Operation[Any], here: Callable[[], Awaitable[Any]]
    ) -> Any:  # noqa: ANN401 - of any kind
        """See Engine.everywhere; a node that does not answer soon is left out of what is shown."""
        shards = self._broker.shards
        nodes = [] if shards is None else shards.nodes()
        if not nodes:
            return await here()
        refused: list[Refused] = []
        found: dict[str, Any] = {}
        silent = {node.name for node in nodes}
        try:
            found[""] = await here()
        except Refused as error:
            refused.append(error)

        async def ask(node: LeaderFacts) -> None:
            try:
                found[node.name] = await self._ask(node, user, request)
            except Refused as error:
                refused.append(error)
                if error.reason is Reason.NOT_AVAILABLE:
                    return
            except (msgspec.MsgspecError, ValueError) as error:  # of another version
                logger.warning("what node %s says cannot be read: %s", node.name, error)
                return
            silent.discard(node.name)

        with trio.move_on_after(_FIGURES_SECONDS):
            async with trio.open_nursery() as nursery:
                for node in nodes:
                    nursery.start_soon(ask, node)
        is_done = bool(found) and bool(getattr(request, "name", None))  # one thing that was there
        if request.CHANGES and silent and not is_done:
            details = f"{', '.join(sorted(silent))} did not answer; look whether it is done there"
            raise Refused(Reason.NOT_AVAILABLE, details)
        if not found:  # who may not have it says more than those that do not
            is_there = (one for one in refused if one.reason is Reason.ACCESS_REFUSED)
            raise next(is_there, refused[0])
        return _joined([found[name] for name in sorted(found)])

    async def have_read(self, node: LeaderFacts) -> None:
        """See resources.Shards.have_node_read."""
        await self._ask(node, NODE, ReadOn())

    async def refresh(
        self, host: Name | None = None, streams: Collection[Name] = ()
    ) -> Mapping[Name, LogFigures | None]:
        """See Engine.refresh."""
        shards = self._broker.shards
        if shards is None:
            return {}
        of = None if host is None else self._broker.virtual_hosts.get(host)
        if of is not None and streams:
            await of.led_soon(streams)
            wanted = {name: self.node_of(of, name) for name in streams}
            found = await self._read_all(_asked_about(of.name, wanted))
            return {name: found.get(name) for name, node in wanted.items() if node is not None}
        async with self._refreshing:
            if trio.current_time() >= self._fresh_until:
                await self._read_all((node, ListLed()) for node in shards.others())
                self._fresh_until = trio.current_time() + _FIGURES_SECONDS
        return {}

    async def _read_all(
        self, asked: Iterable[tuple[LeaderFacts, ListLed]]
    ) -> dict[Name, LogFigures]:
        """Ask nodes for figures; those that they have told."""
        found: dict[Name, LogFigures] = {}
        with trio.move_on_after(_FIGURES_SECONDS):
            async with trio.open_nursery() as nursery:
                for node, request in asked:
                    nursery.start_soon(self._read_figures, node, request, found)
        return found

    async def _read_figures(
        self, node: LeaderFacts, request: ListLed, found: dict[Name, LogFigures]
    ) -> None:
        with suppress(Refused):  # it is not there: they stay as they are
            async for one in in_turns(await self._ask(node, NODE, request)):
                host = self._broker.virtual_hosts.get(one.vhost)
                row = None if host is None else host.find_row(one.stream)
                stream = None if host is None else host.get_stream(one.stream)
                is_it = row is not None and row.life in ("", one.life)
                if host is None or stream is None or not is_it or host.writer(one.stream) is None:
                    continue
                numbers, gaps = msgspec.structs.astuple(one)[3:-1], Gaps(starmap(Gap, one.gaps))
                figures = LogFigures._make((*numbers, None, 0, None, one.life, gaps))
                stream.life.know(figures)  # while its log is open here, that is shown all the same
                found[one.stream] = figures

    async def _ask(self, node: LeaderFacts, user: Name, request: Operation[Any]) -> Any:  # noqa: ANN401
        text = base64.b64encode(encode(request)).decode("ascii")
        parts = [text[at : at + _PART] for at in range(0, len(text), _PART)] or [""]
        pairs = tuple(Pair(f"fields.{number:09}", part) for number, part in enumerate(parts))
        pairs = (Pair("fields", pairs[0].value), *pairs[1:])
        host = getattr(request, "vhost", None) or next(
            iter(self._broker.virtual_hosts), DEFAULT_HOST
        )
        commands = [c.Manage(0, request.NAME, pairs)]
        declares = request.CHANGES and request.AT is not At.ALL
        (answer,) = await self._carry_out(node, user, host, commands, declares=declares)
        if answer.code != ResponseCode.OK:
            kind = next((value for row in answer.rows for key, value in row if key == KIND), "")
            raise refusal(_REASONS.get(answer.code, Reason.INTERNAL_ERROR), answer.reason, kind)
        found = "".join(value for row in answer.rows for _, value in row)
        content = base64.b64decode(found)
        return msgspec.msgpack.decode(content, type=answer_of(type(request)))

    async def commands(self, user: Name, host: Name, commands: Sequence[Any]) -> list[Any]:
        """The answers of the leader to commands that change what is declared."""
        leader = self.leader()
        if leader is None:
            raise Refused(Reason.NOT_AVAILABLE, "this node leads since")
        return await self._carry_out(leader, user, host, commands)

    async def _carry_out(
        self,
        node: LeaderFacts,
        user: Name,
        host: Name,
        commands: Sequence[Any],
        *,
        declares: bool = True,
    ) -> list[Any]:
        own = self._broker.node
        if own is None or not node.name:
            raise Refused(Reason.NOT_AVAILABLE, "nobody leads at the moment; ask again")
        refused: Refused | None = None
        answers: list[Any] = []
        async with open_link(node, own.secret, user, host) as link:
            try:
                answers = [await link.ask(command) for command in commands]
            except Refused as error:
                refused = error
        if refused is not None:
            raise refused
        if declares:
            await self._broker.read_on()  # who has been answered finds it here, too
        return answers


def _joined(answers: list[Any]) -> Any:  # noqa: ANN401 - of any kind
    """What several nodes say, as one: rows, a number of things, or what one of them has."""
    match answers[0]:
        case list():
            return list(chain.from_iterable(answers))
        case int():
            return sum(answers)
        case first:
            return first


def _asked_about(
    host: Name, streams: Mapping[Name, LeaderFacts | None]
) -> Iterator[tuple[LeaderFacts, ListLed]]:
    """The nodes that lead some streams, and what each is asked."""
    found: dict[str, tuple[LeaderFacts, list[Name]]] = {}
    for name, node in streams.items():
        if node is not None and node.name:
            found.setdefault(node.name, (node, []))[1].append(name)
    for node, names in found.values():
        yield node, ListLed(vhost=host, streams=tuple(names))
