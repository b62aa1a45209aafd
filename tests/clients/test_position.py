"""Where consumers read on, when the connection was lost and the stream is not the one of before."""

import shutil
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from clients import Client, Consumer, NoOffset
from clients.connection import ClientConnection
from streamd.wire.stream import commands as c
from tests.clients.conftest import given_by
from tests.support.client import Network
from tests.support.server import Harness, harness

SECONDS = 1_000  # of virtual time: nothing waits for ever
CHUNKS = {"stream-chunk-max-records": "3"}
STARTS: list[Any] = ["first", "last", "next", "stored", 2, datetime(2023, 1, 1, tzinfo=UTC)]


class Servers:
    """A server in memory that is ended and started again while clients live on."""

    def __init__(self, nursery: trio.Nursery, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        self._nursery = nursery
        self._end = trio.Event()
        self._has_ended = trio.Event()

    async def start(self, folder: Path) -> Harness:
        self._end, self._has_ended = trio.Event(), trio.Event()
        started: Harness = await self._nursery.start(self._serve, folder)
        return started

    async def end(self) -> None:
        self._end.set()
        await self._has_ended.wait()

    async def _serve(self, folder: Path, task_status: Any) -> None:
        async with harness(folder, is_polled=True, flush="os") as server:
            task_status.started(server)
            await self._end.wait()
        self._has_ended.set()


Work = Callable[[Network, Client], Awaitable[None]]


def run(work: Work, folder: Path) -> None:
    """Run `work` with a server that has an empty stream, and a client whose connection holds."""

    async def main() -> None:
        with pytest.MonkeyPatch.context() as patch, trio.fail_after(SECONDS):
            async with harness(folder, is_polled=True, flush="os") as server:
                network = Network(server, patch)
                async with network.client() as client:
                    await client.create("s", arguments=CHUNKS)
                    await work(network, client)

    trio.run(main, clock=MockClock(autojump_threshold=0))


def run_several(work: Callable[[Servers], Awaitable[None]], patch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with trio.fail_after(SECONDS):
            async with trio.open_nursery() as nursery:
                await work(Servers(nursery, patch))

    trio.run(main, clock=MockClock(autojump_threshold=0))


with_servers = given_by(run_several, "monkeypatch", "servers")
with_server = given_by(run, "tmp_path", "network", "other")


async def publish(client: Client, *numbers: int) -> None:
    async with client.producer("s") as producer:
        await producer.send_all([b"%d" % number for number in numbers])


async def taken(consumer: Consumer, count: int) -> list[int]:
    return [int((await anext(consumer)).body) for _ in range(count)]


async def first_new(consumer: Consumer) -> list[int]:
    """The first number of the other stream, behind those that had arrived."""
    while (found := await taken(consumer, 1))[0] < 1_000:
        pass
    return found


async def lose(network: Network) -> None:
    """Break the newest connection; nobody can connect until `come_back`."""
    network.is_away = True
    network.streams[-1].kill()
    await wait_all_tasks_blocked()


async def come_back(network: Network, client: Client) -> None:
    network.is_away = False
    await client.exists("s")


class TestSingleActiveConsumers:
    @given(
        st.sampled_from(STARTS),
        st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.booleans()), max_size=6),
        st.integers(1, 4),
    )
    def test_go_on_where_they_were(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        offset: Any,
        steps: list[tuple[int, int, bool]],
        credit: int,
    ) -> None:
        """A lone one gets each message once, also what comes while it is away."""

        async def work(network: Network, other: Client) -> None:
            await publish(other, *range(5))
            if offset == "stored":
                await other.set_offset("s", "g", 1)
            async with (
                network.client() as client,
                client.consumer(
                    "s", offset=offset, name="g", single_active=True, credit=credit
                ) as messages,
            ):
                await wait_all_tasks_blocked()
                await publish(other, 5)
                end = 6
                found = await taken(messages, 1)
                assert found[0] in {"first": [0], "last": [3], "next": [5]}.get(
                    str(offset), [2] if offset in ("stored", 2) else [0]
                )
                for more, count, is_lost in steps:
                    if is_lost:
                        await lose(network)
                    await publish(other, *range(end, end + more))
                    if is_lost:
                        await come_back(network, client)
                    end += more
                    found += await taken(messages, min(count, end - found[-1] - 1))
                found += await taken(messages, end - found[-1] - 1)
                assert found == list(range(found[0], end))
                assert messages.moved is None

        run(work, tmp_path_factory.mktemp("group"))

    @with_server
    async def test_miss_nothing_that_comes_while_they_are_away(
        self, network: Network, other: Client
    ) -> None:
        options: Any = {"name": "g", "single_active": True, "offset": "next"}
        async with network.client() as client, client.consumer("s", **options) as messages:
            await wait_all_tasks_blocked()
            network.streams[-1].kill()
            await publish(other, 0, 1)
            assert await taken(messages, 2) == [0, 1]

    @pytest.mark.parametrize(("offset", "expected"), [("stored", [7, 8]), ("first", [3, 4])])
    @with_server
    async def test_go_on_behind_what_another_has_stored(
        self, network: Network, other: Client, offset: str, expected: list[int]
    ) -> None:
        """If they begin there."""
        options: Any = {"name": "g", "single_active": True, "offset": offset}
        async with network.client() as client, client.consumer("s", **options) as messages:
            await wait_all_tasks_blocked()
            await publish(other, *range(10))
            assert await taken(messages, 3) == [0, 1, 2]
            await messages.store_offset(0)
            async with other.consumer("s", **options) as others:
                await lose(network)
                await taken(others, 7)
                await others.store_offset(6)
                await come_back(network, client)
            assert await taken(messages, 2) == expected


class TestAnotherStream:
    """It was deleted and created again while the connection was lost."""

    @pytest.mark.parametrize("offset", STARTS, ids=str)
    @pytest.mark.parametrize("is_single", [False, True])
    @with_server
    async def test_is_read_from_its_first_message_on(
        self,
        network: Network,
        other: Client,
        offset: Any,
        caplog: pytest.LogCaptureFixture,
        *,
        is_single: bool,
    ) -> None:
        await publish(other, *range(100))
        async with (
            network.client() as client,
            client.consumer("s", offset=offset, name="c", single_active=is_single) as messages,
        ):
            await wait_all_tasks_blocked()
            await publish(other, 100)
            old = (await taken(messages, 1))[0]
            await messages.store_offset()
            await lose(network)
            await anew(other)
            await publish(other, *range(1_000, 1_005))
            await come_back(network, client)
            assert messages.moved is not None
            assert messages.moved.is_other_stream
            assert messages.moved.begins == 0
            assert "stream s was deleted and created again" in caplog.text
            await messages.store_offset(old)  # done with it only now
            found = await first_new(messages)
            await messages.store_offset(50)  # of the old one: too large for the new one
            with pytest.raises(NoOffset):
                await client.query_offset("s", "c")
            found += await taken(messages, 4)
            assert found == list(range(1_000, 1_005))
            await messages.store_offset()
            assert await client.query_offset("s", "c") == 4

    @pytest.mark.parametrize("is_single", [False, True])
    @with_server
    async def test_is_read_from_behind_what_is_stored_in_it(
        self, network: Network, other: Client, *, is_single: bool
    ) -> None:
        await publish(other, *range(10))
        async with (
            network.client() as client,
            client.consumer("s", offset="stored", name="c", single_active=is_single) as messages,
        ):
            await taken(messages, 10)
            await lose(network)
            await anew(other)
            await publish(other, *range(100, 110))
            await other.set_offset("s", "c", 4)
            await come_back(network, client)
            assert await taken(messages, 1) == [105]

    @with_server
    async def test_has_nothing_of_what_was_there_at_the_beginning(
        self, network: Network, other: Client
    ) -> None:
        await publish(other, *range(10))
        async with (
            network.client() as client,
            client.consumer("s", offset="first", until_end=True, credit=1) as messages,
        ):
            assert await taken(messages, 1) == [0]
            await lose(network)
            await anew(other)
            await publish(other, *range(100, 150))
            await come_back(network, client)
            assert [int(m.body) async for m in messages] == [1, 2]  # they had arrived

    @pytest.mark.parametrize("is_first", [True, False])
    @with_server
    async def test_is_noticed_if_it_was_made_just_now(
        self, network: Network, other: Client, monkeypatch: pytest.MonkeyPatch, *, is_first: bool
    ) -> None:
        """After the consumer has looked for its place, before it asks for messages."""
        again = Again(monkeypatch, other, c.Subscribe, is_before=True)
        again.is_due = is_first
        await publish(other, *range(10))
        async with network.client() as client, client.consumer("s", offset=7) as messages:
            if not is_first:
                assert await taken(messages, 1) == [7]
                await lose(network)
                again.is_due = True
                await come_back(network, client)
            assert await first_new(messages) == [1_000]
            assert messages.moved is not None
            assert messages.moved.is_other_stream

    @pytest.mark.parametrize("is_single", [False, True])
    @with_server
    async def test_gets_no_offset_of_the_one_before(
        self, network: Network, other: Client, monkeypatch: pytest.MonkeyPatch, *, is_single: bool
    ) -> None:
        """It was stored while the connection was lost, and the stream is made again just then."""
        again = Again(monkeypatch, other, c.DescribeStreams, is_before=False)
        await publish(other, *range(10))
        async with (
            network.client() as client,
            client.consumer("s", offset="stored", name="c", single_active=is_single) as messages,
        ):
            await taken(messages, 8)
            await lose(network)
            await messages.store_offset(7)
            again.is_due = True
            await come_back(network, client)
            assert await first_new(messages) == [1_000]
            assert not again.is_due
            with pytest.raises(NoOffset):
                await other.query_offset("s", "c")


class Again:
    """Makes the stream again, once it is due, before a request of a kind or after its answer."""

    def __init__(
        self, patch: pytest.MonkeyPatch, other: Client, wanted: type[Any], *, is_before: bool
    ) -> None:
        self.is_due = False
        request = ClientConnection.request

        async def interrupted(connection: Any, kind: type[Any], *given: Any, **options: Any) -> Any:
            if is_before:
                await make(kind)
            answer = await request(connection, kind, *given, **options)
            if not is_before:
                await make(kind)
            return answer

        async def make(kind: type[Any]) -> None:
            if kind is wanted and self.is_due:
                self.is_due = False
                await anew(other)
                await publish(other, *range(1_000, 1_020))

        patch.setattr(ClientConnection, "request", interrupted)


async def anew(client: Client) -> None:
    await client.delete("s")
    await client.create("s", arguments=CHUNKS)


class TestGone:
    @with_server
    async def test_what_was_to_be_read_next(
        self, network: Network, other: Client, caplog: pytest.LogCaptureFixture
    ) -> None:
        await publish(other, *range(30))
        async with (
            network.client() as client,
            client.consumer("s", offset="first", credit=1) as messages,
        ):
            assert await taken(messages, 3) == [0, 1, 2]
            await lose(network)
            await other.truncate("s", before=21)
            await come_back(network, client)
            found = await taken(messages, 9)
            assert found[-9:] == list(range(21, 30))
            assert messages.moved is not None
            assert messages.moved[1:] == (3, 21, False)
            assert "nothing at offsets 3 to 20 any more" in caplog.text

    @with_server
    async def test_what_was_stored_or_asked_for(self, other: Client) -> None:
        await publish(other, *range(30))
        await other.set_offset("s", "c", 5)
        await other.truncate("s", before=21)
        starts: list[Any] = ["first", "stored", 8]
        for offset, expected in zip(starts, (None, 6, 8), strict=True):
            async with other.consumer("s", offset=offset, name="c") as messages:
                assert await taken(messages, 1) == [21]
                moved = messages.moved
                assert (None if moved is None else moved.expected) == expected


class TestGaps:
    """Offsets that were left out after the machine went down, see segments/gaps.py."""

    @with_servers
    @pytest.mark.parametrize("is_lost", [False, True])
    async def test_only_what_was_lost_is_told(
        self, servers: Servers, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_lost: bool
    ) -> None:
        network = Network(await servers.start(tmp_path / "a"), servers.patch)
        async with network.client() as client:
            await client.create("s", arguments=CHUNKS)
            await publish(client, *range(9))
            await servers.end()
            shutil.copytree(tmp_path / "a", tmp_path / "b")
            network.server = await servers.start(tmp_path / "a")
            if is_lost:
                await publish(client, 9, 10, 11)
            num_read = 12 if is_lost else 9
            async with client.consumer("s", offset="first") as messages:
                assert await taken(messages, num_read) == list(range(num_read))
                network.is_away = True
                await servers.end()
                (tmp_path / "b/streams/%2F/s/ahead-another-boot").touch()
                network.server = await servers.start(tmp_path / "b")
                network.is_away = False
                await publish(client, 100, 101)
                assert (await taken(messages, 2))[-2:] == [100, 101]
                assert (messages.moved is not None) == is_lost
                assert ("any more" in caplog.text) == is_lost
        await servers.end()


class TestShorter:
    """A folder that was put back from a copy: in one life, other messages at the same offsets."""

    @with_servers
    @pytest.mark.parametrize(
        ("until_end", "is_single"), [(False, False), (False, True), (True, False)]
    )
    async def test_is_read_on_where_it_ends(
        self, servers: Servers, tmp_path: Path, *, until_end: bool, is_single: bool
    ) -> None:
        network = Network(await servers.start(tmp_path / "a"), servers.patch)
        async with network.client() as client:
            await client.create("s", arguments=CHUNKS)
            await publish(client, *range(10))
            await servers.end()
            shutil.copytree(tmp_path / "a", tmp_path / "b")
            network.server = await servers.start(tmp_path / "a")
            await publish(client, *range(10, 20))
            async with client.consumer(
                "s",
                offset="first",
                name="c",
                until_end=until_end,
                single_active=is_single,
                credit=5 if until_end else 20,
            ) as messages:
                await taken(messages, 13)
                await messages.store_offset()
                network.is_away = True
                await servers.end()
                network.server = await servers.start(tmp_path / "b")
                network.is_away = False
                await publish(client, *range(100, 105))
                if until_end:
                    rest = [int(message.body) async for message in messages]
                    assert set(rest) <= {*range(13, 20), *range(100, 105)}
                else:
                    found = await taken(messages, 5)
                    while found[-1] != 104:
                        found += await taken(messages, 1)
                    assert found[-5:] == list(range(100, 105))
                assert messages.moved is not None
                assert messages.moved.begins == 10
            with pytest.raises(NoOffset):
                await client.query_offset("s", "c")
        await servers.end()


class TestStoredOffsets:
    @with_server
    async def test_are_stored_again_once(self, network: Network, other: Client) -> None:
        """What somebody else has set back since stays, once the consumer's own was there."""
        await publish(other, *range(10))
        async with network.client() as client, client.consumer("s", name="c") as messages:
            await lose(network)
            await messages.store_offset(7)
            await come_back(network, client)
            assert await other.query_offset("s", "c") == 7
            await lose(network)
            await other.set_offset("s", "c", 2)
            await come_back(network, client)
        assert await other.query_offset("s", "c") == 2
