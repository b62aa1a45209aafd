"""Each operation is cancelled at each of its steps, and meets a connection that breaks there.

What is left is the state before or after, never one between: no number is in use at one end only,
every message that was taken is stored once, no credit is lost, and the connection can be used.
"""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pytest
import trio

from clients import (
    Client,
    ConnectionLost,
    Consumer,
    Message,
    NoOffset,
    Producer,
    SuperConsumer,
    SuperProducer,
)
from tests.support.client import Disturbance, Network, disturbed
from tests.support.server import harness

STREAM, CHUNK = "s", "stream-chunk-max-records"
COUNT = 20
BODIES = [b"%d" % number for number in range(COUNT)]
MOST_EMPTY = 50
STRIDES = {Disturbance.CANCELLED: 1, Disturbance.KILLED: 5, Disturbance.BOTH: 11}


@dataclass
class Scene:
    """One try: the client, what is open before the disturbance, what has happened so far."""

    network: Network
    client: Client
    name: str
    stack: AsyncExitStack
    consumer: Consumer | SuperConsumer | None = None
    producer: Producer | None = None
    super_producer: SuperProducer | None = None
    taken: list[bytes] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def is_known(self) -> tuple[set[int], set[int]]:
        """The ids of publishers and consumers that the server knows."""
        live = list(self.network.server.server.connections)
        publishers = {facts.publisher_id for one in live for facts in one.publishers()}
        return publishers, {f.subscription_id for one in live for f in one.consumers()}

    def in_use(self) -> tuple[set[int], set[int]]:
        """The ids that the client has in use."""
        connection = self.client._connection
        return set(connection.publishers.places), set(connection.consumers.places)


Action: TypeAlias = Callable[[Scene], Awaitable[object]]


async def nothing(_: Scene) -> None:
    pass


@dataclass(frozen=True)
class Operation:
    """Something to be disturbed: what goes before, what is disturbed, what has to hold after."""

    act: Action
    before: Action = nothing
    after: Action = nothing
    stride: int = 1


# -- opening and closing


async def use_producer(scene: Scene, **options: str) -> None:
    async with scene.client.producer(STREAM, **options):  # type: ignore[arg-type]
        pass


async def use_consumer(scene: Scene, **options: object) -> None:
    async with scene.client.consumer(STREAM, **options):  # type: ignore[arg-type]
        pass


async def use_super_producer(scene: Scene) -> None:
    async with scene.client.super_producer("super", lambda _: "key") as producer:
        await producer.send(b"x")


async def use_super_consumer(scene: Scene) -> None:
    async with scene.client.super_consumer("super", offset="first", name="g", single_active=True):
        pass


# -- messages


async def open_producer(scene: Scene) -> None:
    producer = scene.client.producer(STREAM, name=scene.name, window=40)
    scene.producer = await scene.stack.enter_async_context(producer)
    scene.counts = await counts(scene, STREAM)


async def counts(scene: Scene, *streams: str) -> list[int]:
    """Messages in each."""
    return [(await scene.client.stats(stream))["committed_offset"] + 1 for stream in streams]


async def send(scene: Scene) -> None:
    """Two tasks send, so that one waits behind the other's frame."""
    assert scene.producer is not None
    body = itertools.count()

    async def some() -> None:
        assert scene.producer is not None
        for _ in range(120):
            number = await scene.producer.send(b"%d" % next(body))
            assert number == len(scene.taken) + 1
            scene.taken.append(b"%d" % number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(some)
        nursery.start_soon(some)


async def all_taken_are_stored(scene: Scene) -> None:
    assert scene.producer is not None
    assert scene.producer.last_publishing_id == len(scene.taken)
    await scene.producer.flush()
    assert await counts(scene, STREAM) == [scene.counts[0] + len(scene.taken)]


async def fill_queue(scene: Scene) -> None:
    await open_producer(scene)
    assert scene.producer is not None
    for number in range(30):
        await scene.producer.send(b"%d" % number)
        scene.taken.append(b"%d" % number)


async def flush(scene: Scene) -> None:
    assert scene.producer is not None
    await scene.producer.flush()


async def send_sub_batches(scene: Scene) -> None:
    assert scene.producer is not None
    for _ in range(3):
        await scene.producer.send_sub_batch([b"x"] * 5)
        scene.taken += [b"x"] * 5


async def open_super_producer(scene: Scene) -> None:
    """Of two partitions that one key leads to."""
    producer = scene.client.super_producer("both", lambda _: "key", by_key=True, window=5)
    scene.super_producer = await scene.stack.enter_async_context(producer)
    scene.counts = await counts(scene, "both-0", "both-1")


async def send_to_both(scene: Scene) -> None:
    assert scene.super_producer is not None
    for _ in range(12):
        await scene.super_producer.send(Message(b"x"))
        scene.taken.append(b"x")


async def both_have_all(scene: Scene) -> None:
    """Unnamed producers repeat what was not confirmed, so only what is confirmed is counted."""
    assert scene.super_producer is not None
    await scene.super_producer.flush()
    for producer in scene.super_producer.producers.values():
        assert producer.last_publishing_id == len(scene.taken)
    found = await counts(scene, "both-0", "both-1")
    assert all(f - b >= len(scene.taken) for f, b in zip(found, scene.counts, strict=True))


async def open_consumer(scene: Scene) -> None:
    consumer = scene.client.consumer(STREAM, offset="first", name=scene.name, credit=2)
    scene.consumer = await scene.stack.enter_async_context(consumer)


async def read(scene: Scene) -> None:
    assert scene.consumer is not None
    while len(scene.taken) < COUNT:
        scene.taken.append((await anext(scene.consumer)).body)


async def each_came_once(scene: Scene) -> None:
    await read(scene)
    assert scene.taken == BODIES


async def open_super_consumer(scene: Scene) -> None:
    consumer = scene.client.super_consumer("filled", offset="first", credit=1)
    scene.consumer = await scene.stack.enter_async_context(consumer)


async def each_of_both_came_once(scene: Scene) -> None:
    await read(scene)
    assert sorted(map(int, scene.taken)) == list(range(COUNT))


async def poll(scene: Scene) -> None:
    """Each wait is cancelled by a time limit, all over again."""
    assert scene.consumer is not None
    num_empty = 0
    while len(scene.taken) < COUNT:
        num_empty += 1
        with trio.move_on_after(0):
            scene.taken.append((await anext(scene.consumer)).body)
            num_empty = 0
        if num_empty < MOST_EMPTY:
            await trio.lowlevel.checkpoint()
        else:
            await trio.sleep(0.01)  # the clock stands still while a task runs


# -- offsets


async def open_stored(scene: Scene) -> None:
    await open_consumer(scene)
    assert scene.consumer is not None
    await scene.consumer.store_offset(3)
    assert await scene.client.query_offset(STREAM, scene.name) == 3


async def store(scene: Scene) -> None:
    assert scene.consumer is not None
    await scene.consumer.store_offset(7)


async def stored_or_not(scene: Scene) -> None:
    assert scene.consumer is not None
    wanted = scene.consumer._to_store  # None when it is known to be stored
    await scene.stack.aclose()
    assert await scene.client.query_offset(STREAM, scene.name) in (
        (3, 7) if wanted is None else (wanted,)
    )


async def query(scene: Scene) -> None:
    with pytest.raises(NoOffset):
        await scene.client.query_offset(STREAM, "nobody")


# -- streams


async def create(scene: Scene) -> None:
    await scene.client.create(f"{scene.name}-new")


async def repeated(change: Callable[[], Awaitable[object]]) -> None:
    """A connection that was killed just now may be found so by this change, which is not lost."""
    while True:
        with suppress(ConnectionLost):
            await change()
            return


async def create_again(scene: Scene) -> None:
    await repeated(partial(scene.client.create, f"{scene.name}-new", exist_ok=True))
    assert await scene.client.exists(f"{scene.name}-new")


async def delete(scene: Scene) -> None:
    await scene.client.delete(f"{scene.name}-new")


async def delete_again(scene: Scene) -> None:
    await repeated(partial(scene.client.delete, f"{scene.name}-new", missing_ok=True))
    assert not await scene.client.exists(f"{scene.name}-new")


async def create_super_stream(scene: Scene) -> None:
    await scene.client.create_super_stream(f"{scene.name}-super", 2)


async def all_partitions_or_none(scene: Scene) -> None:
    names = [f"{scene.name}-super-{n}" for n in range(2)]
    found = {await scene.client.exists(name) for name in names}
    assert len(found) == 1
    if found == {True}:
        assert await scene.client.partitions(f"{scene.name}-super") == names


async def delete_super_stream(scene: Scene) -> None:
    await scene.client.delete_super_stream(f"{scene.name}-super")


OPERATIONS = {
    "a producer": Operation(use_producer),
    "a producer with a name": Operation(lambda s: use_producer(s, name="p")),
    "a consumer": Operation(use_consumer),
    "a consumer that has an end": Operation(
        lambda s: use_consumer(s, until_end=True, name="c", offset="stored")
    ),
    "a single active consumer": Operation(
        lambda s: use_consumer(s, single_active=True, name="c", offset="stored")
    ),
    "a super stream's producer": Operation(use_super_producer, stride=2),
    "a super stream's consumer": Operation(use_super_consumer, stride=2),
    "send": Operation(send, open_producer, all_taken_are_stored, 4),
    "flush": Operation(flush, fill_queue, all_taken_are_stored),
    "send sub-batches": Operation(send_sub_batches, open_producer),
    "send to two partitions": Operation(send_to_both, open_super_producer, both_have_all, 3),
    "read": Operation(read, open_consumer, each_came_once, 3),
    "poll": Operation(poll, open_consumer, each_came_once, 5),
    "read a super stream": Operation(read, open_super_consumer, each_of_both_came_once, 3),
    "poll a super stream": Operation(poll, open_super_consumer, each_of_both_came_once, 5),
    "store an offset": Operation(store, open_stored, stored_or_not),
    "query an offset": Operation(query),
    "create": Operation(create, after=create_again),
    "delete": Operation(delete, create, delete_again),
    "create a super stream": Operation(create_super_stream, after=all_partitions_or_none),
    "delete a super stream": Operation(
        delete_super_stream, create_super_stream, all_partitions_or_none
    ),
}


@asynccontextmanager
async def stage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Network]:
    """A server with streams to use."""
    async with harness(folder, is_polled=True, flush="os") as server:
        await server.host.create_super_stream("super", [("0", "super-0"), ("1", "super-1")], [])
        await server.host.create_super_stream("both", [("key", "both-0"), ("key", "both-1")], [])
        await server.host.create_super_stream(
            "filled", [("0", "filled-0"), ("1", "filled-1")], [(CHUNK, "3")]
        )
        network = Network(server, monkeypatch)
        async with network.client() as client:
            await client.create(STREAM, arguments={CHUNK: "3"})
            async with client.producer(STREAM) as producer:
                await producer.send_all(BODIES)
            for partition in range(2):
                async with client.producer(f"filled-{partition}") as producer:
                    await producer.send_all(BODIES[partition::2])
        yield network


async def attempt(network: Network, operation: Operation, how: Disturbance, number: int) -> bool:
    """Disturb an operation after a number of steps; whether it had ended by then."""

    async def act() -> None:
        try:
            await operation.act(scene)
        except ConnectionLost:  # what changes something is not repeated
            assert how is not Disturbance.CANCELLED

    with trio.fail_after(10_000):
        async with network.client() as client, AsyncExitStack() as stack:
            scene = Scene(network, client, f"{how.name}-{number}", stack)
            await operation.before(scene)
            was_through = await disturbed(network, act, how, number)
            await operation.after(scene)
            await stack.aclose()
            await trio.testing.wait_all_tasks_blocked()
            assert scene.in_use() == scene.is_known() == (set(), set())
            await check_usable(scene)
            assert client._connection._connection._answers == {}
    assert len(network.server.server.connections) == 0
    return was_through


async def check_usable(scene: Scene) -> None:
    client = scene.client
    async with (
        client.producer(STREAM) as producer,
        client.consumer(STREAM) as consumer,
    ):
        await producer.send(b"the connection can be used")
        assert (await anext(consumer)).body == b"the connection can be used"
        assert scene.in_use() == scene.is_known() == ({0}, {0})


@pytest.mark.parametrize("how", Disturbance, ids=lambda how: how.value)
@pytest.mark.parametrize("name", OPERATIONS)
async def test_at_each_step(
    tmp_path: Path, name: str, how: Disturbance, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(tmp_path, monkeypatch) as network:
        operation = OPERATIONS[name]
        stride = operation.stride * STRIDES[how]
        for number in itertools.count(0, stride):
            if await attempt(network, operation, how, number):
                break
        assert number > 0


async def test_connecting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is cancelled while it connects, or whose connection breaks, leaves nothing."""
    async with stage(tmp_path, monkeypatch) as network:

        async def act() -> None:
            try:
                async with network.client():
                    pass
            except ConnectionLost:
                pass

        for how in Disturbance:
            for number in itertools.count():
                network.streams.clear()
                was_through = await disturbed(network, act, how, number)
                await trio.testing.wait_all_tasks_blocked()
                assert len(network.server.server.connections) == 0
                if was_through:
                    break
