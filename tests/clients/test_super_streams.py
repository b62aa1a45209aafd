"""Super streams and single active consumers with our own client."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import anyio
import pytest

from clients import Client, Message, StreamDoesNotExist, StreamExists, connect
from clients.super_stream import NoRoute, partition_number
from tests.clients.conftest import Runner, program
from tests.support.process import PATIENCE_SECONDS


def key_of(message: Message) -> str:
    return str(message.application_properties["key"])


def order(number: int) -> Message:
    return Message(b"%d" % number, application_properties={"key": f"customer-{number % 7}"})


async def fill(client: Client, name: str, numbers: range, **options: bool) -> None:
    async with client.super_producer(name, key_of, **options) as producer:  # type: ignore[arg-type]
        for number in numbers:
            await producer.send(order(number))


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        while not condition():
            await anyio.sleep(0.02)


def test_the_hash_is_that_of_other_clients() -> None:
    """Vectors from the hash strategy tests of RabbitMQ's clients: 'hello0'... over 3 partitions."""
    counts = [0] * 3
    for number in range(20):
        counts[partition_number(f"hello{number}", 3)] += 1
    assert counts == [9, 7, 4]


class TestSuperStreams:
    @program
    async def test_there_and_back(self, client: Client, stream: str) -> None:
        await client.create_super_stream(stream, 3)
        assert await client.partitions(stream) == [f"{stream}-{n}" for n in range(3)]
        assert await client.route(stream, "1") == [f"{stream}-1"]
        await fill(client, stream, range(500))
        got: dict[str, list[int]] = {}
        async with client.super_consumer(stream, offset="first", until_end=True) as messages:
            async for message in messages:
                got.setdefault(message.stream, []).append(int(message.body))
        assert sorted(n for numbers in got.values() for n in numbers) == list(range(500))
        for name, numbers in got.items():
            assert numbers == sorted(numbers)
            number = int(name.rpartition("-")[2])
            assert {partition_number(f"customer-{n % 7}", 3) for n in numbers} == {number}
        await client.delete_super_stream(stream)
        with pytest.raises(StreamDoesNotExist):
            await client.partitions(stream)

    @program
    async def test_routed_by_key(self, client: Client, stream: str) -> None:
        await client.create_super_stream(stream, [f"customer-{n}" for n in range(5)])
        async with client.super_producer(stream, key_of, by_key=True) as producer:
            for number in range(5):
                await producer.send(order(number))
            with pytest.raises(NoRoute, match="'customer-5' leads to no partition"):
                await producer.send(order(5))
        async with client.super_consumer(stream, offset="first", until_end=True) as messages:
            async for message in messages:
                assert message.stream == f"{stream}-customer-{int(message.body)}"

    @program
    async def test_refusals(self, client: Client, stream: str) -> None:
        await client.create_super_stream(stream, 2)
        with pytest.raises(StreamExists):
            await client.create_super_stream(stream, 2)
        with pytest.raises(StreamDoesNotExist):
            async with client.super_consumer("none"):
                pass


class Worker:
    """A consumer of a group that stores an offset for each message it has handled."""

    def __init__(self, run: Runner, stream: str) -> None:
        self.done: list[tuple[str, int]] = []
        self._run = run
        self._stream = stream
        self.leaving = anyio.Event()

    async def work(self) -> None:
        async with (
            connect(self._run.uri) as client,
            client.super_consumer(
                self._stream, name="app", offset="stored", single_active=True
            ) as messages,
            anyio.create_task_group() as tasks,
        ):

            async def handle() -> None:
                async for message in messages:
                    self.done.append((message.stream, int(message.body)))
                    await messages.store_offset(message)

            tasks.start_soon(handle)
            await self.leaving.wait()
            tasks.cancel_scope.cancel()


class TestSingleActive:
    @program
    async def test_needs_a_name_and_no_end(self, client: Client, stream: str) -> None:
        await client.create(stream)
        for options in ({}, {"name": "app", "until_end": True}):
            with pytest.raises(ValueError, match="needs a name and has no end"):
                async with client.consumer(stream, single_active=True, **options):  # type: ignore[arg-type]
                    pass

    def test_the_next_one_goes_on(self, run: Runner, stream: str) -> None:
        async def work(client: Client) -> None:
            await client.create(stream)
            async with client.producer(stream) as producer:
                await producer.send_all(b"%d" % n for n in range(100))
            options = {"name": "app", "offset": "stored", "single_active": True}
            async with connect(run.uri) as other, AsyncExitStack() as leaving:
                first = await leaving.enter_async_context(client.consumer(stream, **options))  # type: ignore[arg-type]
                got = [int((await anext(first)).body) for _ in range(30)]
                async with other.consumer(stream, **options) as second:  # type: ignore[arg-type]
                    with anyio.move_on_after(0.3):
                        await anext(second)
                        raise AssertionError("it was not its turn")
                    assert (first.is_active, second.is_active) == (True, False)
                    await first.store_offset()
                    await leaving.aclose()
                    got += [int((await anext(second)).body) for _ in range(70)]
                    assert got == list(range(100))

        run(work)

    def test_partitions_are_shared_and_nothing_is_done_twice(
        self, run: Runner, stream: str
    ) -> None:
        async def work(client: Client) -> None:
            await client.create_super_stream(stream, 4)
            first, second = Worker(run, stream), Worker(run, stream)
            steps: list[Callable[[], Awaitable[None]]] = [first.work, second.work]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(steps[0])
                await fill(client, stream, range(200))
                await until(lambda: len(first.done) == 200)
                tasks.start_soon(steps[1])
                await anyio.sleep(0.5)
                await fill(client, stream, range(200, 400))
                await until(lambda: len(first.done) + len(second.done) == 400)
                assert second.done
                assert {name for name, _ in second.done}.isdisjoint(
                    {name for name, number in first.done if number >= 200}
                )
                first.leaving.set()
                await anyio.sleep(0.5)
                await fill(client, stream, range(400, 600))
                await until(lambda: len(first.done) + len(second.done) == 600)
                second.leaving.set()
            done = [number for _, number in first.done + second.done]
            assert sorted(done) == list(range(600))

        run(work)
