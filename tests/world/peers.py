"""Clients that are not ours: consumers and publishers that know frames, and do nothing else.

What our client library makes good, they notice: a chunk that comes before the answer to its
subscription, or without credit; what is stored of frames that were sent behind one that is refused.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Any, TypeAlias

import trio

from clients import Message
from segments.message import MessageView
from streamd.wire.amqp091.methods import BasicAck
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.fields import OffsetSpecification
from streamd.wire.stream.publish import encode_filtered_entry
from tests.support.amqp import AmqpPeer, fields
from tests.support.server import FIRST, Chunk, Peer
from tests.world.box import GONE
from tests.world.witness import Follower, Sent, read
from tests.world.world import Program, World

Reach: TypeAlias = Callable[[], Awaitable[AbstractAsyncContextManager[Peer]]]

_AT_OFFSET = 4
_PAUSES = (0.01, 0.3, 2)  # seconds until one is started again
_COUNTS = (1, 1, 3, 10)
_AFTER_A_RESTART = 1_000  # numbers: what became of the others is not known


class Refused(Exception):
    """The server says no."""


async def repeat(world: World, name: str, work: Program, chance: Random) -> None:
    """Run a program that fails, or is ended, until it has done its work."""
    is_done = False

    async def go_through() -> None:
        nonlocal is_done
        await work()
        is_done = True

    while not is_done:
        try:
            await world.guarded(name, go_through)
        except* GONE:
            world.note(f"{name} lost its connection")
        except* (Refused, AssertionError) as refusals:
            world.note(f"{name} refused", str(refusals.exceptions[0]))
        await trio.sleep(chance.choice(_PAUSES))


async def follow(
    world: World, stream: str, name: str, last: list[Sent], reach: Reach | None = None
) -> None:
    """Read all messages, by offsets that it keeps itself, until the last ones have come."""
    follower = world.witness.followers[name] = Follower(lambda _: True)
    chance, missing = world.chance_of(name), set(last)

    async def work() -> None:
        async with await reach() if reach else world.box.peer() as peer:
            asked = follower.seen[-1].offset + 1 if follower.seen else 0
            start = OffsetSpecification(_AT_OFFSET, asked) if asked else FIRST
            follower.begins(asked)
            credit = chance.choice(_COUNTS)
            await _subscribe(world, peer, stream, start, credit)
            while missing:
                chunk = await _next(peer)
                credit -= 1
                if credit < 0:
                    world.witness.faults.append(f"credit: {name} got a chunk too many")
                for offset, raw in enumerate(chunk.bodies, chunk.header.chunk_id):
                    if offset >= asked:
                        follower.seen.append(read(offset, MessageView(raw).body))
                        missing.discard(follower.seen[-1].message)
                if not credit or chance.random() < 0.5:
                    more = chance.choice(_COUNTS)
                    await peer.send(c.Credit(1, more))
                    credit += more

    await repeat(world, name, work, chance)


async def _subscribe(
    world: World, peer: Peer, stream: str, start: OffsetSpecification, credit: int
) -> None:
    code = await peer.code(c.Subscribe, 1, stream, start, credit, ())
    if any(isinstance(command, c.Delivered) for command in peer.unasked):
        world.witness.faults.append("order: a chunk came before its subscription was answered")
    if code != ResponseCode.OK:
        raise Refused(code)


async def _next(peer: Peer) -> Chunk:
    """The next chunk."""
    command = await peer.next()
    if not isinstance(command, c.Delivered):
        raise Refused(command)
    peer.unasked.insert(0, command)
    return await peer.chunk()


async def publish(
    world: World,
    stream: str,
    name: str,
    properties_of: Callable[[Sent], dict[str, Any]],
    pause: Callable[[int, Random], float],
) -> None:
    """Publish over AMQP, with confirms, until the world is ending."""
    chance, following = world.chance_of(name), 1 - _AFTER_A_RESTART

    async def work() -> None:
        nonlocal following
        following += _AFTER_A_RESTART
        async with world.box.amqp() as peer:
            await peer.confirm()
            tag = 0  # of the last message
            while not world.is_ending:
                first, following = following, following + chance.choice(_COUNTS)
                some = [Sent(name, number) for number in range(first, following)]
                now = trio.current_time()
                world.witness.sent |= dict.fromkeys(some, now)
                for one in some:
                    headers = fields(**properties_of(one))
                    await peer.publish(stream, str(one).encode(), headers=headers)
                await _confirmed(peer, set(range(tag + 1, tag + 1 + len(some))))
                tag += len(some)
                world.witness.confirm(some, trio.current_time())
                await trio.sleep(pause(following, chance))

    await repeat(world, name, work, chance)


async def publish_named(
    world: World,
    stream: str,
    name: str,
    message_of: Callable[[Sent], Message],
    share: float,
    reach: Reach | None = None,
) -> None:
    """Publish under a name, frame after frame without a wait, until the world is ending.

    Args:
        world: it lives in.
        stream: it publishes to.
        name: of the publisher.
        message_of: makes a message.
        share: of messages that have another filter value than they say, and are refused.
        reach: a connection to the server that it publishes at.
    """
    chance, witness = world.chance_of(name), world.witness
    witness.named.add(name)
    first = 1  # of which it is not known that it is stored

    async def work() -> None:
        nonlocal first
        async with await reach() if reach else world.box.peer() as peer:
            if await peer.code(c.DeclarePublisher, 1, name, stream) != ResponseCode.OK:
                raise Refused("no publisher")
            begins, refusals = first, world.num_refused()
            following = first
            while not world.is_ending or first < following:
                for _ in range(0 if world.is_ending else chance.choice((0, 1, 4))):
                    last = following + chance.choice(_COUNTS)
                    some = [Sent(name, number) for number in range(following, last)]
                    following = last
                    for one in some:
                        witness.sent.setdefault(one, trio.current_time())
                    await peer.send(_frame(some, message_of, chance, share))
                if following > begins and chance.random() < 0.2:
                    stored = await _sequence(peer, name, stream)
                    refused = [found for found in peer.unasked if isinstance(found, c.PublishError)]
                    is_fine = refusals == world.num_refused() and not refused
                    if stored < following - 1 and is_fine:
                        witness.faults.append(f"what was published before counts: {following - 1}")
                with trio.move_on_after(chance.choice((0, 0.1, 2))):
                    while first < following:
                        some = [Sent(name, number) for number in await _stored(peer)]
                        first = max(first, *(one.number + 1 for one in some))
                        witness.confirm(some, trio.current_time())
                await trio.sleep(chance.choice((0, 0.1, 2)) * (1 + following / 60))

    await repeat(world, name, work, chance)


def _frame(
    some: list[Sent], message_of: Callable[[Sent], Message], chance: Random, share: float
) -> c.PublishFiltered:
    entries = b""
    for one in some:
        message = message_of(one)
        value = "wrong" if chance.random() < share else message.application_properties["kind"]
        entries += encode_filtered_entry(one.number, message.encode(), str(value).encode())
    return c.PublishFiltered(1, len(some), entries)


async def _sequence(peer: Peer, name: str, stream: str) -> int:
    """What a server says that it has of a publisher."""
    found = await peer.ask(c.QueryPublisherSequence, name, stream)
    if found.code != ResponseCode.OK:
        raise Refused(found)
    return int(found.sequence)


async def _stored(peer: Peer) -> Sequence[int]:
    """The messages that are confirmed next."""
    found = await peer.next()
    if not isinstance(found, c.PublishConfirm):
        raise Refused(found)
    return found.publishing_ids


async def store(world: World, stream: str, name: str) -> None:
    """Store offsets that somebody has come to, and ask for them at once, until the world ends."""
    chance, witness, count = world.chance_of(name), world.witness, 0

    async def work() -> None:
        nonlocal count
        async with world.box.peer() as peer:
            while not world.is_ending:
                stats = dict((await peer.ask(c.StreamStats, stream)).statistics)
                if (offset := stats.get("committed_chunk_id", -1)) > 0:
                    await peer.send(c.StoreOffset(name, stream, offset))
                found = await peer.ask(c.QueryOffset, name, stream)
                is_known = found.code == ResponseCode.OK
                if not is_known and found.code != ResponseCode.NO_OFFSET:
                    raise Refused(found)
                count += 1
                offset = found.offset if is_known else None
                witness.hear_stored(name, trio.current_time(), offset)
                await trio.sleep(chance.choice(_PAUSES) * (1 + count / 20))

    await repeat(world, name, work, chance)


async def _confirmed(peer: AmqpPeer, tags: set[int]) -> None:
    """Return when these are confirmed."""
    while tags:
        match await peer.next():
            case BasicAck(number, multiple):
                tags -= set(range(1, number + 1)) if multiple else {number}
            case other:
                raise Refused(other)
