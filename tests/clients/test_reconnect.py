"""Connections that are lost and restored: no message is lost, and none duplicated needlessly."""

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from clients import (
    Client,
    ConnectionLost,
    LoginRefused,
    Message,
    StreamDoesNotExist,
    StreamNotAvailable,
    connect,
    reconnecting,
)
from segments.disk import OsDisk
from segments.verify import verify
from tests.clients.conftest import given_by
from tests.support.process import PATIENCE_SECONDS, ServerProcess
from tests.support.proxy import Cut, CuttingProxy

COUNT = 300
BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])

cuts = st.lists(
    st.builds(
        Cut,
        st.none() | st.integers(0, 20_000),
        st.none() | st.integers(0, 20_000),
        st.booleans(),
    ),
    min_size=1,
    max_size=4,
)
EXAMPLES = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@asynccontextmanager
async def through(proxy: CuttingProxy, **options: Any) -> AsyncIterator[Client]:
    """A client whose connections are cut; the first ones may fail to open."""
    uri = f"rabbitmq-stream://guest:guest@127.0.0.1:{proxy.port}/"
    while True:
        try:
            async with connect(uri, **options) as client:
                yield client
            return
        except ConnectionLost as error:
            if "login" not in str(error) and "cannot connect" not in str(error):
                raise


def run(work: Callable[[], Awaitable[None]], backend: str) -> None:
    async def main() -> None:
        with anyio.fail_after(PATIENCE_SECONDS):
            await work()

    anyio.run(main, backend=backend)


@pytest.fixture
def backend() -> str:
    return "trio"


in_time = given_by(run, "backend")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data") as process:
        yield process


async def everything(uri: str, stream: str) -> list[bytes]:
    async with connect(uri) as client, client.consumer(stream, offset="first", until_end=True) as m:
        return [message.body async for message in m]


bodies = [b"%d %s" % (number, b"x" * (number % 97)) for number in range(COUNT)]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnecting, "_FIRST_PAUSE", 0.005)


def test_trying_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Days without a server: the pauses stay short, and nobody gives up."""
    monkeypatch.setattr(reconnecting.anyio, "current_time", lambda: 0.0)
    retry = reconnecting._Retry(math.inf)
    pauses = [retry.pause() for _ in range(10_000)]
    assert all(pause is not None and 0 < pause <= 5 for pause in pauses)
    assert pauses[-1] >= 2.5


class TestProducers:
    @EXAMPLES
    @given(cuts=cuts)
    @example(cuts=[Cut(to_server=0), Cut(to_client=0), Cut(to_server=700, reset=True)])
    @in_time
    async def test_with_sub_batches_and_filter_values(
        self, running_server: ServerProcess, cuts: list[Cut]
    ) -> None:
        stream = await fresh_stream(running_server)
        with CuttingProxy(running_server.port, cuts) as proxy:
            async with through(proxy) as client, client.producer(stream, name="p") as producer:
                for start in range(0, COUNT, 60):
                    await producer.send_sub_batch(bodies[start : start + 20], "gzip")
                    for body in bodies[start + 20 : start + 40]:
                        await producer.send(body)
                    for body in bodies[start + 40 : start + 60]:
                        await producer.send(body, filter_value="v")
        assert await everything(running_server.uri, stream) == bodies

    @in_time
    async def test_of_a_stream_that_was_deleted_meanwhile_fail(
        self, running_server: ServerProcess
    ) -> None:
        async def publish_for_ever(client: Client, stream: str, proxy: CuttingProxy) -> None:
            async with client.producer(stream) as producer:
                proxy.cut()
                await delete(running_server, stream)
                while True:
                    await producer.send(b"x")
                    await anyio.sleep(0.01)

        stream = await fresh_stream(running_server)
        with CuttingProxy(running_server.port) as proxy:
            async with through(proxy) as client:
                # Not available: it reconnected before the stream was deleted, and heard of it.
                with pytest.raises((StreamDoesNotExist, StreamNotAvailable)):
                    await publish_for_ever(client, stream, proxy)
                assert not await client.exists(stream)  # the client goes on


class TestConsumers:
    @EXAMPLES
    @given(cuts=cuts, offset=st.sampled_from(["first", 17, "stored"]), credit=st.integers(1, 5))
    @in_time
    async def test_get_each_message_once_in_order(
        self, running_server: ServerProcess, cuts: list[Cut], offset: int | str, credit: int
    ) -> None:
        stream = await filled_stream(running_server)
        begin = offset if isinstance(offset, int) else 0
        with CuttingProxy(running_server.port, cuts) as proxy:
            async with (
                through(proxy) as client,
                client.consumer(
                    stream, offset=offset, name="c", until_end=True, credit=credit
                ) as messages,
            ):
                found = []
                async for message in messages:
                    found.append(message.body)
                    if message.offset % 40 == 0:
                        await messages.store_offset()
        assert found == bodies[begin:]
        async with connect(running_server.uri) as client:
            assert await client.query_offset(stream, "c") == COUNT - COUNT % 40

    @BACKENDS
    @in_time
    async def test_that_begin_with_what_comes_next_miss_nothing(
        self, running_server: ServerProcess
    ) -> None:
        stream = await filled_stream(running_server)
        with CuttingProxy(running_server.port) as proxy:
            async with through(proxy) as client, client.consumer(stream) as messages:
                proxy.cut()
                await publish(running_server, stream, [b"while it was away"])
                assert (await anext(messages)).body == b"while it was away"
                assert proxy.num_connections == 2

    @in_time
    async def test_ask_by_what_a_stream_declares_that_was_created_anew(
        self, running_server: ServerProcess
    ) -> None:
        stream = await fresh_stream(running_server)
        with CuttingProxy(running_server.port) as proxy:
            async with (
                connect(running_server.uri) as admin,
                through(proxy) as client,
                client.consumer(stream, offset="first", sql="region = 'EU'") as selected,
                client.consumer(
                    stream, offset="first", filter_values=["EU"], filter_value="region"
                ) as filtered,
            ):
                proxy.target = 1  # where nobody listens
                proxy.cut()
                await admin.delete(stream)
                arguments = {"stream-filter-property": "kind,region"}
                derived = {"stream-filter-derive": "true"}
                await admin.create(stream, arguments=arguments | derived)
                async with admin.producer(stream) as producer:
                    for region in ("US", "EU"):
                        given = {"kind": "late", "region": region}
                        message = Message(region.encode(), application_properties=given)
                        await producer.send(message)
                        await producer.flush()
                proxy.target = running_server.port
                assert (await anext(selected)).body == (await anext(filtered)).body == b"EU"
                assert "those of kind" in "\n".join(selected.explain())
                assert selected.counts.chunks == filtered.counts.chunks == 1


class TestRequests:
    @BACKENDS
    @in_time
    async def test_wait_while_the_connection_is_lost(self, server: ServerProcess) -> None:
        def restart() -> None:
            server.start()

        async with connect(server.uri) as client, anyio.create_task_group() as tasks:
            await client.create("s")
            server.kill()
            tasks.start_soon(anyio.to_thread.run_sync, restart)
            with suppress(ConnectionLost):  # on its way, and may be done; else it waits, too
                await client.create("t")
            await client.stats("s")
            assert await client.exists("s")

    @in_time
    async def test_fail_once_it_is_gone_for_good(self, server: ServerProcess) -> None:
        async with connect(server.uri, retry_seconds=0.5) as client:
            await client.create("s")
            async with client.consumer("s") as messages:
                server.kill()
                with pytest.raises(ConnectionLost, match="refused"):
                    await anext(messages)
                with pytest.raises(ConnectionLost):
                    await client.stats("s")

    @in_time
    async def test_fail_when_the_user_may_not_enter_again(
        self, running_server: ServerProcess
    ) -> None:
        async with connect(running_server.uri) as admin:
            await admin.manage("user.add", name="eve", password="x")
            await admin.manage("permission.set", user="eve", vhost="/", read=".*")
            with CuttingProxy(running_server.port) as proxy:
                uri = f"rabbitmq-stream://eve:x@127.0.0.1:{proxy.port}/"
                async with connect(uri) as client:
                    await admin.manage("user.delete", name="eve")
                    proxy.cut()
                    with pytest.raises(LoginRefused):
                        await client.exists("s")


@pytest.mark.slow
@in_time
async def test_a_server_that_is_killed_again_and_again(server: ServerProcess) -> None:
    """A producer and a consumer with names go on through it all."""
    total = 20_000
    found: list[int] = []

    async def publish_all() -> None:
        async with (
            connect(server.uri, retry_seconds=math.inf) as client,
            client.producer("s", name="p", window=200) as producer,
        ):
            for number in range(total):
                await producer.send(b"%d" % number)
                if number % 200 == 0:
                    await anyio.sleep(0.01)

    async def consume_all() -> None:
        async with (
            connect(server.uri, retry_seconds=math.inf) as client,
            client.consumer("s", offset="first", name="c") as messages,
        ):
            async for message in messages:
                found.append(int(message.body))
                if len(found) == total:
                    return

    async with connect(server.uri) as client:
        await client.create("s", segment_size=50_000)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(publish_all)
        tasks.start_soon(consume_all)
        for _ in range(4):
            await anyio.sleep(0.3)
            server.kill()
            await anyio.to_thread.run_sync(server.start)
    assert server.stop() == 0
    (folder,) = server.data.glob("streams/*/s")
    assert len(list(folder.glob("*.segment"))) > 1
    assert list(verify(OsDisk(), str(folder))) == []
    assert found == list(range(total))


# -- help


_numbers: Iterator[int] = iter(range(1_000_000))


async def fresh_stream(server: ServerProcess) -> str:
    name = f"reconnect-{next(_numbers)}"
    async with connect(server.uri) as client:
        await client.create(name, arguments={"stream-chunk-max-records": "20"})
    return name


async def filled_stream(server: ServerProcess) -> str:
    name = await fresh_stream(server)
    await publish(server, name, bodies)
    return name


async def publish(server: ServerProcess, stream: str, messages: list[bytes]) -> None:
    async with connect(server.uri) as client, client.producer(stream) as producer:
        await producer.send_all(messages)


async def delete(server: ServerProcess, stream: str) -> None:
    async with connect(server.uri) as client:
        await client.delete(stream)
