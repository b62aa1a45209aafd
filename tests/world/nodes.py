"""Three nodes of a cluster: each has a machine and a way to the store of its own.

Clients reach any of them, and harm meets any of them. All streams are confirmed by the store, so
nothing of what somebody was told may be lost, whatever becomes of machines. In the end there is one
leader, and all nodes have the same to say.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import Any

import trio

from clients import Client, ConnectionLost, Message
from segments.store.heartbeat import NodeRole
from streamd.net import passing
from streamd.net.transport import Transport
from streamd.server import AMQP, STREAM, ServedProtocol
from streamd.wire.stream import commands as c
from tests.support.client import MemoryByteStream
from tests.support.server import MemoryTransport, Peer
from tests.world import peers
from tests.world.box import Box
from tests.world.lives import Lives
from tests.world.messages import LAST, STREAM as MESSAGES, Messages, message_of
from tests.world.store import Trouble
from tests.world.stored import LASTS, SharedStore
from tests.world.witness import Follower, Seen, Sent, Witness, read
from tests.world.witness_tier import Read, mixed_lives
from tests.world.world import Program, World

_BOXES = {"a": "", "b": "b", "c": "c"}  # by node
_STREAMS = {"n0": "balanced", "n1": "client-local"}
_AMQP_PORT = 5672
_INTERVALS_MS = (1, 20, 200)
_TAKEOVERS = (2, 4, 10)  # seconds
_SETTLED = (0, 3, 20)  # seconds that nodes are given before streams are placed
_TROUBLED_SECONDS = 60.0  # after a trouble of the store, in which a start may fail
_PAUSES = (0.3, 3, 15, 40)  # seconds
_SKEWS_MS = (0, 0, -3_600_000, -5_000, 5_000, 3_600_000)
_WHOLE_SECONDS = 200.0  # in which a cluster that nothing harms is whole again
_WAITS = (0, 0.1, 1, 3)


class Nodes:
    """A part of the world: see above."""

    is_kept = False

    def __init__(self, world: World) -> None:
        self._world = world
        chance = self._chance = world.chance_of("nodes")
        self._shared = SharedStore(world, _BOXES.values(), confirms=True)
        self._troubled_at = -_TROUBLED_SECONDS
        self._publishing: set[str] = set()
        self._declared: dict[str, bool] = {}  # streams, whether they are there or are gone
        settings: dict[str, Any] = {
            "confirm": "store",
            "flush": world.witness.flushes,
            "tier_roll_seconds": chance.choice((1, 4, 20)),
            "tier_delete_delay_seconds": chance.choice((0, 0, 3)),
            "confirm_interval_ms": chance.choice(_INTERVALS_MS),
            "takeover_seconds": chance.choice(_TAKEOVERS),
            "takeover_local_seconds": 0,
            "leader_locator": chance.choice(("balanced", "balanced", "client-local")),
        }
        self._boxes: dict[str, Box] = {}
        for node, name in _BOXES.items():
            self._shared.lead_to(name, "s3://bucket")
            box = self._boxes[node] = world.boxes[name]
            box.settings |= settings | {"node": node, "advertised_host": node}
            box.may_refuse = self._may_refuse
        world.pick = self._pick
        world.contexts.append(self._connecting())
        world.witness.confirm_in_store(0)
        self._reads: list[Read] = []
        self._lives = Lives(world, self._reads, **{"queue-leader-locator": "balanced"})
        world.witness.judges.append(lambda _: mixed_lives(self._reads))
        self._told = {name: world.witness.of_another(name) for name in _STREAMS}
        for told in self._told.values():
            told.confirm_in_store(0)
        world.witness.judges.append(lambda _: self._store_faults())

    def _pick(self, host: str) -> Box:
        """The node that is meant, or any that is up."""
        if host in self._boxes:
            return self._boxes[host]
        up = [box for box in self._boxes.values() if box.server is not None]
        return self._chance.choice(up or list(self._boxes.values()))

    def _may_refuse(self) -> bool:
        store, now = self._shared.store, trio.current_time()
        last = max(self._troubled_at, store.troubled_at)
        return not store.is_calm or bool(self._shared.ways) or now - last < _TROUBLED_SECONDS

    @contextmanager
    def _connecting(self) -> Iterator[None]:
        """In this block nodes reach each other."""
        connect, passing.connect = passing.connect, self._connect
        try:
            yield
        finally:
            passing.connect = connect

    async def _connect(self, host: str, port: int, _certificate: str = "") -> Transport:
        await trio.lowlevel.checkpoint()
        service: ServedProtocol = AMQP if port == _AMQP_PORT else STREAM
        try:
            return MemoryTransport(self._boxes[host].dial(service).stream)
        except ConnectionLost as error:
            raise ConnectionRefusedError(str(error)) from error

    # -- the part

    async def prepare(self) -> None:
        """Start the others; then streams are placed, perhaps before each leads its shard."""
        world = self._world
        for box in self._boxes.values():
            if box is not world.boxes[""]:
                await world.nursery.start(box.live)
        await trio.sleep(self._chance.choice(_SETTLED))

        async def work(client: Client) -> None:
            for name, locator in _STREAMS.items():
                if not await client.exists(name):
                    arguments = {"queue-leader-locator": locator}
                    await client.create(name, arguments=arguments)

        await world.repeat("prepare nodes", work)

    def programs(self) -> dict[str, Program]:
        lives = self._lives
        found: dict[str, Program] = {"lives": lives.live, "declare": self._declare}
        for who in ("read t", "read t too"):
            found[who] = partial(lives.read, who, "", is_at_once=False)
        for name in _STREAMS:
            found[f"{name} p"] = partial(self._publish, name)
            found[f"{name} f"] = partial(self._follow, name)
        if self._has_messages:
            reach = partial(self._leader_of, MESSAGES)
            found["at the leader"] = partial(self._publish_there, reach)
            found["from the leader"] = partial(
                peers.follow, self._world, MESSAGES, "from the leader", LAST, reach
            )
        return found

    @property
    def _has_messages(self) -> bool:
        return any(isinstance(part, Messages) for part in self._world.parts)

    def harms(self) -> dict[str, Program]:
        return self._shared.harms() | {
            "pause": self._pause,
            "way cut": partial(self._break_way, Trouble(refused=1)),
            "answers lost": partial(self._break_way, Trouble(unanswered=1)),
            "wipe": self._wipe,
            "own clock": self._set_clock,
            "move": self._move,
        }

    # -- programs

    async def _leader_of(self, stream: str) -> AbstractAsyncContextManager[Peer]:
        """A connection to the node that leads a stream, as Metadata says, as RabbitMQ's clients do.

        Raises:
            Refused: nobody does.
        """
        async with self._world.box.peer() as peer:
            found = await peer.ask(c.Metadata, (stream,))
        hosts = {number: host for number, host, _ in found.brokers}
        (one,) = found.streams
        if one.leader not in hosts:
            raise peers.Refused(one)
        return self._boxes[hosts[one.leader]].peer()

    async def _publish_there(self, reach: peers.Reach) -> None:
        await peers.publish_named(self._world, MESSAGES, "at the leader", message_of, 0, reach)

    async def _declare(self) -> None:
        """Streams that are there for all once that is answered, and some that are gone."""
        world, chance, number = self._world, self._world.chance_of("declare"), 0

        async def work(client: Client) -> None:
            nonlocal number
            while not world.is_ending:
                number += 1
                name = f"x{number}"
                locator = chance.choice(("balanced", "client-local"))
                await client.create(name, arguments={"queue-leader-locator": locator})
                self._declared[name] = True
                if chance.random() < 0.5:
                    async with client.producer(name) as producer:
                        await producer.send(Message(b"x"))
                if chance.random() < 0.5:
                    del self._declared[name]  # while that is not answered, nobody knows
                    await client.delete(name)
                    self._declared[name] = False
                    if await client.exists(name):
                        world.witness.faults.append(f"{name} was deleted, and is there")
                await trio.sleep(chance.choice(_WAITS))

        await world.repeat("declare", work)

    async def _publish(self, stream: str) -> None:
        """Publish numbered messages to a stream of its own."""
        told, chance = self._told[stream], self._world.chance_of(f"{stream} p")
        told.named.add("p")
        self._publishing.add(stream)

        async def work(client: Client) -> None:
            async with client.producer(stream, name="p") as producer:
                following = producer.last_publishing_id + 1
                _confirm(told, following)
                while not self._world.is_ending:
                    for number in range(following, following + chance.choice((1, 1, 5))):
                        sent = Sent("p", number)
                        told.sent.setdefault(sent, trio.current_time())
                        body = str(sent).encode()
                        await producer.send(Message(body), publishing_id=number)
                        following = number + 1
                    await producer.flush()
                    _confirm(told, following)
                    await trio.sleep(chance.choice(_WAITS))

        await self._world.repeat(f"{stream} p", work)
        self._publishing.discard(stream)

    async def _follow(self, stream: str) -> None:
        """Read it until the world ends, wherever the next connection leads to."""
        told, chance = self._told[stream], self._world.chance_of(f"{stream} f")
        follower = told.followers[f"{stream} f"] = Follower(lambda _: True)

        async def work(client: Client) -> None:
            asked = follower.seen[-1].offset + 1 if follower.seen else 0
            follower.begins(asked)
            async with client.consumer(stream, offset=asked or "first") as consumer:
                with trio.move_on_after(chance.choice((1, 10, 60))):
                    async for received in consumer:
                        follower.seen.append(read(received.offset, bytes(received.body)))

        while not self._world.is_ending or stream in self._publishing or _lacks(follower, told):
            await self._world.attempt(f"{stream} f", work)
            await trio.sleep(chance.choice(_WAITS))

    # -- what goes wrong

    async def _pause(self) -> None:
        """As SIGSTOP: what a node has asked of disk and store it hears of when it goes on."""
        box, chance = self._world.box, self._world.chance
        machine, event = box.machine, trio.Event()
        machine.pause()
        for line in box.lines:
            if isinstance(line, MemoryByteStream):
                line.moves = event

        def go_on() -> None:
            machine.go_on()
            event.set()

        self._later(chance.choice(_PAUSES), go_on)
        await trio.sleep(chance.choice(_WAITS))

    async def _break_way(self, trouble: Trouble) -> None:
        """A node alone does not reach the store, or hears nothing from it."""
        chance, ways = self._world.chance, self._shared.ways
        name = chance.choice(list(_BOXES.values()))
        ways[name] = trouble

        def mend() -> None:
            ways.pop(name, None)
            self._troubled_at = trio.current_time()

        self._later(chance.choice(LASTS), mend)
        await trio.sleep(chance.choice(_WAITS))

    def _later(self, seconds: float, do: Callable[[], object]) -> None:
        async def wait() -> None:
            await trio.sleep(seconds)
            do()

        self._world.nursery.start_soon(wait)

    async def _wipe(self) -> None:
        """A machine is lost; its node begins on an empty one."""
        self._world.box.wipe()

    async def _set_clock(self) -> None:
        """The clock of one of them is wrong, or right again."""
        self._world.box.skew_ms = self._world.chance.choice(_SKEWS_MS)

    async def _move(self) -> None:
        """What was placed at one node is led by another one."""
        chance = self._world.chance
        shard, node = chance.choice(list(_BOXES)), chance.choice(list(_BOXES))

        async def work(client: Client) -> None:
            await client.manage("cluster.move", shard=shard, node=node)

        await self._world.attempt("move", work, retry_seconds=0)

    # -- the end

    async def finish(self) -> None:
        """All are there, reach the store, and go on."""
        self._shared.calm()
        self._shared.store.land(1)
        self._shared.ways.clear()
        self._troubled_at = trio.current_time()
        for box in self._boxes.values():
            box.machine.go_on()

    async def settle(self) -> None:
        """The cluster is whole, and each node has the same to say."""
        with trio.move_on_after(_WHOLE_SECONDS) as limit:
            while not self._is_whole():
                await trio.sleep(0.5)
        if limit.cancelled_caught:
            self._world.witness.faults.append(f"a cluster becomes whole again: {self._roles()}")
            return
        for node in _BOXES:
            await self._world.repeat(f"list at {node}", partial(self._list, node), uri=_uri(node))
        for stream, told in self._told.items():
            for node in _BOXES:
                log = await self._log_of(stream, node)
                if told.log and log != told.log:
                    self._world.witness.faults.append(
                        f"all nodes say the same: {node} has {len(log)} messages of {stream}, "
                        f"another one {len(told.log)}"
                    )
                told.log = told.log or log

    def _roles(self) -> dict[str, str]:
        return {
            name: "" if box.server is None else str(box.server.server.node.role)  # type: ignore[union-attr]
            for name, box in self._boxes.items()
        }

    def _is_whole(self) -> bool:
        roles = sorted(self._roles().values())
        return roles == [NodeRole.LEADER, NodeRole.STANDBY, NodeRole.STANDBY]

    async def _log_of(self, stream: str, node: str) -> list[Seen]:
        """What a node says is in a stream."""
        log: list[Seen] = []

        async def work(client: Client) -> None:
            async with client.consumer(stream, offset="first", until_end=True) as consumer:
                log[:] = [read(one.offset, bytes(one.body)) async for one in consumer]

        await self._world.repeat(f"read {stream} at {node}", work, uri=_uri(node))
        return log

    async def _list(self, node: str, client: Client) -> None:
        for name, is_there in self._declared.items():
            if await client.exists(name) != is_there:
                was = "declared" if is_there else "deleted"
                self._world.witness.faults.append(f"{name} was {was}, and node {node} says not")

    def _store_faults(self) -> Iterator[str]:
        store = self._shared.store
        for key in store.unstored:
            yield f"a manifest names what is there: {key} was not"
        for key in store.removed:
            yield f"what a manifest names is not removed: {key}"


def _uri(node: str) -> str:
    return f"rabbitmq-stream://guest:guest@{node}:5552/"


def _lacks(follower: Follower, told: Witness) -> bool:
    """It has not been given everything yet."""
    return bool(told.confirmed.keys() - {seen.message for seen in follower.seen})


def _confirm(told: Witness, following: int) -> None:
    """All up to a number is stored."""
    told.confirm([m for m in told.sent if m.number < following], trio.current_time())
