"""Programs that share the work on streams, and publishers that number their messages themselves.

The first ones are about the stream of the part `messages`: consumers of which one at a time is
active, a group with a selector that comes and goes, an AMQP publisher. The others have streams of
their own: one whose contract refuses messages, and a super stream that loses a partition.
"""

import itertools
import math
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any

import trio

from clients import Client, Message, NoRoute, PartitionsFailed, PublishFailed, StreamError
from segments.message import MessageView
from streamd.wire.amqp091 import methods as m
from streamd.wire.stream import commands as c
from streamd.wire.stream.fields import OffsetSpecification
from tests.support.amqp import AmqpPeer, fields
from tests.support.server import FIRST, NEXT, Harness, Peer
from tests.world.box import GONE, Line
from tests.world.messages import KINDS, LAST, SQL, STREAM, TONES, Messages, has, seen_of
from tests.world.witness import Block, Follower, Sent, Witness, parse, read
from tests.world.world import Program, World

_TEAM, _GROUP = "team", "big"
_STRICT, _SUPER, _PARTITIONS = "strict", "sales", 3
_OFFSET = 4  # the type of an offset specification
_ARGUMENTS = {"stream-filter-property": "kind", "stream-filter-contract": "strict"}
_WAITS = (0.01, 0.1, 0.6, 2)


class Sharing:
    """See above."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._witness = world.witness
        # Those that were told so, by which server, with so many refusals of its disk.
        self._active: dict[str, tuple[Line, tuple[Harness | None, int]]] = {}
        self._strict = world.witness.of_another(_STRICT)
        self._sales = [world.witness.of_another(f"{_SUPER}-{n}") for n in range(_PARTITIONS)]
        self._is_deleted = False
        self._tag = 0  # of the last message of the AMQP publisher
        self._waiting: list[Sent] = []  # for their confirms

    async def prepare(self, client: Client) -> None:
        """Make its own streams."""
        await client.create(_STRICT, arguments=_ARGUMENTS)
        await client.create_super_stream(_SUPER, _PARTITIONS)

    def programs(self) -> dict[str, Program]:
        """What there is to do in a world with these parts."""
        found: dict[str, Program] = {"strict": self._publish_again, "sales": self._sell}
        if any(isinstance(part, Messages) for part in self._world.parts):
            missing, follower = set(LAST), Follower(lambda _: True)
            for who in ("team-a", "team-b"):
                found[who] = partial(self._take_part, who, missing, follower)
            found |= {
                "lone": self._work_alone,
                _GROUP: self._follow_group,
                "selector": self._change_selector,
                "amqp-p": self._publish_amqp,
            }
        return found

    # -- consumers of which one is active

    async def _take_part(self, who: str, missing: set[Sent], follower: Follower) -> None:
        """One of a team that reads everything."""
        self._witness.followers[_TEAM] = follower
        chance = self._world.chance_of(who)

        async def work() -> None:
            async with self._world.box.peer() as peer:
                words = {"single-active-consumer": "true", "name": _TEAM}
                await peer.subscribe(STREAM, NEXT, 3, **words)
                while missing:
                    with trio.move_on_after(1):
                        await self._hear(who, peer, missing, follower, chance)

        while missing:
            await self._connected(who, work)
            self._active.pop(who, None)
            await trio.sleep(chance.choice((0.01, 0.3)))

    async def _hear(
        self, who: str, peer: Peer, missing: set[Sent], follower: Follower, chance: Random
    ) -> None:
        command = await peer.next()
        if isinstance(command, c.ConsumerUpdate):
            start = NEXT
            self._world.note(f"{who} is told {command.active}")
            if command.active:
                box = self._world.box
                told_by = box.server, box.machine.num_refused  # then it may have closed the stream
                others = [
                    other
                    for other, (line, by) in self._active.items()
                    if other != who and not line.is_killed and by == told_by
                ]
                if others and box.server is not None:  # else all connections end
                    self._witness.faults.append(f"one at a time is active: {who} beside {others}")
                self._active[who] = box.line_of(peer), told_by
                found = await peer.ask(c.QueryOffset, _TEAM, STREAM)
                start = OffsetSpecification(_OFFSET, found.offset + 1) if found.code == 1 else FIRST
            else:
                self._active.pop(who, None)
            await peer.send(c.ConsumerUpdateResponse(command.correlation_id, 1, start))
        elif isinstance(command, c.Delivered):
            peer.unasked.insert(0, command)
            chunk = await peer.chunk()
            for at, body in enumerate(chunk.bodies, chunk.header.chunk_id):
                follower.seen.append(read(at, bytes(MessageView(body).body)))
                missing.discard(follower.seen[-1].message)
            await peer.send(c.Credit(1, 1))
            if chance.random() < 0.3:
                await peer.send(c.StoreOffset(_TEAM, STREAM, chunk.header.next_offset - 1))
                await trio.sleep(chance.choice(_WAITS))
        elif isinstance(command, c.MetadataUpdate):  # the stream cannot be read, for now
            raise AssertionError(f"{command}: it subscribes again")

    async def _work_alone(self) -> None:
        """A group of one, which goes on behind what it had when its connection was lost."""
        chance = self._world.chance_of("lone")

        async def work(client: Client) -> None:
            block = Block("lone")
            while not (block.seen and block.seen[-1].message in LAST):
                self._witness.blocks.append(block := Block("lone"))
                start = chance.choice(("first", "next", "stored"))
                # Who begins with the next message may miss the last ones.
                with trio.move_on_after(5 if start == "next" else math.inf):
                    await self._read_block(client, start, block)

        await self._world.repeat("lone", work, retry_seconds=100)

    async def _read_block(self, client: Client, start: Any, block: Block) -> None:
        async with client.consumer(
            STREAM, offset=start, name="lone", single_active=True
        ) as consumer:
            async for received in consumer:
                block.seen.append(seen_of(received))
                if block.seen[-1].message in LAST:
                    return

    # -- a group with a selector

    async def _follow_group(self) -> None:
        """Read what the selector of a group wants, while it comes and goes."""
        wants = has(kind=2, tone=1)
        follower = self._witness.followers[_GROUP] = Follower(wants)
        own = -1
        missing = {sent for sent in LAST if wants(sent)}

        async def work(client: Client) -> None:
            nonlocal own
            start: Any = own + 1 if own >= 0 else "first"
            await client.register_selector(STREAM, _GROUP, sql=SQL)
            async with client.consumer(STREAM, offset=start, group=_GROUP) as consumer:
                while missing:
                    with trio.move_on_after(2):  # and leave, so that the selector can be deleted
                        async for received in consumer:
                            follower.seen.append(seen_of(received))
                            own = received.offset
                            missing.discard(follower.seen[-1].message)
                    if not self._world.is_ending and missing:
                        raise StreamError("it is the turn of the selector")

        await self._world.repeat(_GROUP, work)

    async def _change_selector(self) -> None:
        """Register and delete the group's selector."""
        chance = self._world.chance_of("selector")

        async def work(client: Client) -> None:
            while not self._world.is_ending:
                await client.register_selector(STREAM, _GROUP, sql=SQL)
                await trio.sleep(chance.choice((0, 0.05, 0.5, 2)))
                await client.unregister_selector(STREAM, _GROUP)
                await trio.sleep(chance.choice((0, 0.05, 0.5)))

        await self._world.repeat("selector", work)

    # -- publishers

    async def _publish_amqp(self) -> None:
        """Publish with confirms; what is stored when the server ends in order was confirmed."""
        chance = self._world.chance_of("amqp-p")
        numbers = itertools.count(1)
        server: Harness | None = None

        async def work() -> None:
            nonlocal server
            self._tag, self._waiting = 0, []
            async with self._world.box.amqp() as peer:
                server = self._world.box.server
                await peer.confirm()
                try:
                    while not self._world.is_ending or self._waiting:
                        count = 0 if self._world.is_ending else chance.choice((0, 1, 1, 5))
                        for number in itertools.islice(numbers, count):
                            await self._publish_one(peer, Sent("amqp-p", number))
                        with trio.move_on_after(chance.choice(_WAITS)):
                            await self._hear_acks(peer)
                        await trio.sleep(chance.choice(_WAITS))
                except GONE:  # it may have been told more before
                    await self._hear_acks(peer)

        while not self._world.is_ending:
            server = None
            was_cancelled = await self._connected("amqp-p", work)
            has_stopped = server is not None and server is self._world.box.drained
            if has_stopped and not was_cancelled and not self._world.keeps_confirms():
                self._witness.unconfirmed.update(self._waiting)
            await trio.sleep(chance.choice((0.01, 0.3)))

    async def _hear_acks(self, peer: AmqpPeer) -> None:
        while self._waiting:
            found = await peer.expect(m.BasicAck)
            before = self._tag - len(self._waiting)
            count = found.delivery_tag - before if found.multiple else 1
            self._witness.confirm(self._waiting[:count], trio.current_time())
            del self._waiting[:count]

    async def _publish_one(self, peer: AmqpPeer, sent: Sent) -> None:
        self._tag += 1
        self._waiting.append(sent)
        self._witness.sent[sent] = trio.current_time()
        kind, tone = f"k{sent.number % KINDS}", f"t{sent.number % TONES}"
        words = fields(kind=kind, tone=tone, number=sent.number, key=str(sent))
        await peer.publish(STREAM, str(sent).encode(), headers=words)

    async def _publish_again(self) -> None:
        """A program that is run again and again, from its first message on, some of them wrong."""
        chance = self._world.chance_of(_STRICT)
        told = self._strict
        told.named.add(_STRICT)
        wrong = {number for number in range(500) if chance.random() < 0.05}
        end = 0

        def value(message: Message) -> str:  # which has to be that of its property
            return "another" if parse(bytes(message.body)).number in wrong else "k"

        async def work(client: Client) -> None:
            async with client.producer(_STRICT, name=_STRICT, filter_value=value) as producer:
                for number in range(end):
                    sent = Sent(_STRICT, number)
                    told.sent.setdefault(sent, trio.current_time())
                    message = Message(str(sent).encode(), application_properties={"kind": "k"})
                    await producer.send(message, publishing_id=number)
                    if chance.random() < 0.05:
                        await trio.sleep(chance.choice(_WAITS))
            _confirm(told, _STRICT, end)

        async def run(client: Client) -> None:
            try:
                await work(client)
            except PublishFailed as failed:
                first = min(number for number, _ in failed.refused)
                _confirm(told, _STRICT, first)
                wrong.discard(first)

        while not self._world.is_ending or wrong & set(range(end)):
            end += 0 if self._world.is_ending else chance.choice((0, 1, 6))
            await self._world.attempt(_STRICT, run)
            await trio.sleep(chance.choice(_WAITS))

    async def _sell(self) -> None:
        """Publish to a super stream, one partition of which is deleted at some time."""
        chance = self._world.chance_of(_SUPER)
        number, run = 0, 0

        async def work(client: Client) -> None:
            nonlocal number
            given: list[Sent] = []
            gone: list[str] = []
            try:
                async with client.super_producer(_SUPER, _key, by_key=True) as producer:
                    for _ in range(chance.choice((1, 3, 12))):
                        number += 1
                        sent = Sent(f"run{run}", number)
                        self._sales[number % _PARTITIONS].sent[sent] = trio.current_time()
                        try:
                            await producer.send(Message(str(sent).encode()))
                        except NoRoute:
                            continue
                        given.append(sent)
                    await trio.sleep(chance.choice(_WAITS))
            except PartitionsFailed as failed:
                gone = list(failed.errors)
            except StreamError:
                return  # of a message that has not been taken, or of the connection
            self._world.note("sales stored", f"{given}, but not in {gone}")
            for n, told in enumerate(self._sales):
                if f"{_SUPER}-{n}" not in gone:
                    told.confirm([s for s in given if s in told.sent], trio.current_time())

        while not self._world.is_ending:
            run += 1
            await self._world.attempt(_SUPER, work)
            if not self._is_deleted and chance.random() < 0.1:
                await self._world.attempt(_SUPER, self._delete_partition)
            await trio.sleep(chance.choice(_WAITS))

    async def _delete_partition(self, client: Client) -> None:
        self._is_deleted = True
        await client.delete(f"{_SUPER}-{_PARTITIONS - 1}")

    # -- the end

    async def settle(self) -> None:
        """Read its own streams; with a lost machine they may have gone."""
        if self._world.box.was_wiped:
            self._witness.others.clear()
            return
        if self._is_deleted:
            self._sales[-1].confirmed.clear()
        names = {_STRICT: self._strict}
        names |= {f"{_SUPER}-{n}": told for n, told in enumerate(self._sales)}
        for name, told in names.items():
            if not (self._is_deleted and told is self._sales[-1]):
                await self._world.repeat(f"read {name}", partial(_read, name, told))

    async def _connected(self, who: str, work: Callable[[], Awaitable[None]]) -> bool:
        """Run a program of a connection of its own; whether the world has ended it."""
        was_ended = True
        try:
            was_ended = not await self._world.guarded(who, work)
        except* GONE:
            was_ended = False
            self._world.note(f"{who} lost its connection")
        except* AssertionError as refusals:  # it was told something else than it asked
            was_ended = False
            self._world.note(f"{who} refused", str(refusals.exceptions[0]))
        return was_ended


def _key(message: Message) -> str:
    return str(parse(bytes(message.body)).number % _PARTITIONS)


def _confirm(told: Witness, who: str, end: int) -> None:
    told.confirm([Sent(who, number) for number in range(end)], trio.current_time())


async def _read(name: str, told: Witness, client: Client) -> None:
    async with client.consumer(name, offset="first", until_end=True) as consumer:
        told.log = [seen_of(received) async for received in consumer]
