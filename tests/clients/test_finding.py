"""Programs that search: pages are fetched as needed, also over connections that break."""

from datetime import UTC, datetime
from uuid import UUID

import anyio
import pytest
from hypothesis import given

from clients import (
    Client,
    Finding,
    Message,
    PreconditionFailed,
    Properties,
    SelectorError,
    StreamDoesNotExist,
    connect,
    finding,
    reconnecting,
)
from tests.clients.conftest import program
from tests.clients.test_reconnect import EXAMPLES, cuts, fresh_stream, run as run_in_time, through
from tests.support.process import ServerProcess
from tests.support.proxy import Cut, CuttingProxy

COUNT = 120


async def fill(client: Client, stream: str, count: int = COUNT) -> None:
    await client.create(stream)
    async with client.producer(stream) as producer:
        for number in range(count):
            await producer.send(order(number))


def order(number: int) -> Message:
    region = "EU" if number % 3 else "US"
    return Message(b"%d" % number, application_properties={"order_id": number, "region": region})


async def offsets(found: Finding) -> list[int]:
    return [message.offset async for message in found]


@program
async def test_pages_are_one_list(
    client: Client, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "PAGE", 25)
    await fill(client, stream)
    found = client.find(stream)
    assert await offsets(found) == list(range(COUNT))
    assert (found.is_all, found.cut, found.after) == (True, None, "")
    assert found.looked_at["messages_tested"] == COUNT
    found = client.find(stream, newest=True, limit=10)
    assert await offsets(found) == list(range(COUNT))[:-11:-1]
    assert (found.is_all, found.cut) == (False, "limit")
    found = client.find(stream, newest=True, after=found.after)
    assert await offsets(found) == list(range(COUNT - 10))[::-1]
    assert found.is_all
    assert await offsets(client.find(stream, sql="region = 'US'", offset=100)) == [
        n for n in range(100, COUNT) if n % 3 == 0
    ]


@program
async def test_what_is_looked_for(client: Client, stream: str) -> None:
    an_id = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
    when = datetime(2026, 11, 21, 9, tzinfo=UTC)
    await fill(client, stream, 10)
    async with client.producer(stream) as producer:
        await producer.send(Message(b"id", Properties(message_id=an_id, creation_time=when)))
        await producer.send(Message(b"t", application_properties={"order_id": "5", "a": True}))
        await producer.send(Message(b"k", application_properties={"KEYS": "a b", "TAGS": "x"}))
    by = {"properties": ["order_id"]}
    assert await offsets(client.find(stream, key=5, **by)) == [5, 11]
    assert await offsets(client.find(stream, key="5.0", **by)) == [5]
    assert await offsets(client.find(stream, key=["3", 4], **by)) == [3, 4]
    assert await offsets(client.find(stream, key=["3", 5], latest=True, **by)) == [11, 3]
    ids = {"properties": ["properties.message_id"]}
    assert await offsets(client.find(stream, key=an_id, **ids)) == [10]
    assert await offsets(client.find(stream, key=True, properties=["a"])) == [11]
    assert await offsets(client.find(stream, key="b", properties=["KEYS"])) == [12]
    assert await offsets(client.find(stream, tags="y || x")) == [12]
    assert await offsets(client.find(stream, start=when, end=when, by_creation_time=True)) == [10]
    found = [m async for m in client.find(stream, offset=10, limit=1)]
    assert (found[0].body, found[0].stream) == (b"id", stream)
    begin = found[0].timestamp
    assert 10 in await offsets(client.find(stream, start=begin, end=begin.isoformat()))
    assert await offsets(client.find(stream, start=begin.replace(year=2090))) == []


@program
async def test_what_cannot_be_found(client: Client, stream: str) -> None:
    await fill(client, stream, 2)
    with pytest.raises(StreamDoesNotExist, match="cannot search nothing"):
        await offsets(client.find("nothing"))
    with pytest.raises(PreconditionFailed, match="declares no key property"):
        await offsets(client.find(stream, key="1"))
    with pytest.raises(PreconditionFailed, match="token"):
        await offsets(client.find(stream, after="x"))
    for wrong in ({"limit": 0}, {"properties": "order_id"}, {"filter_values": "v"}):
        with pytest.raises(ValueError, match=r"expected|lists"):
            client.find(stream, **wrong)  # type: ignore[arg-type]
    with pytest.raises(SelectorError):
        client.find(stream, sql="a =")
    found = client.find(stream, limit=1, seconds=0)  # each page gets further nevertheless
    assert await offsets(found) == [0]


@program
async def test_time_that_is_used_up(
    client: Client, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "PAGE", 30)
    await fill(client, stream)
    found, all_of_it, after = client.find(stream, seconds=0), [], ""
    while not found.is_all:
        found = client.find(stream, seconds=0, after=after)
        all_of_it += await offsets(found)
        assert found.is_all or found.cut == "budget"
        after = found.after
    assert all_of_it == list(range(COUNT))


@program
async def test_searches_of_one_client_at_once(
    client: Client, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "PAGE", 20)
    await fill(client, stream)
    found: list[list[int]] = []

    async def search() -> None:
        found.append(await offsets(client.find(stream)))

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(search)
    assert found == [list(range(COUNT))] * 3


@EXAMPLES
@given(cuts)
def test_a_search_goes_on_over_connections_that_break(
    running_server: ServerProcess, cuts: list[Cut]
) -> None:
    async def main() -> None:
        stream = await fresh_stream(running_server)
        async with connect(running_server.uri) as client, client.producer(stream) as producer:
            for number in range(COUNT):
                await producer.send(order(number))
        with CuttingProxy(running_server.port, cuts) as proxy:
            async with through(proxy) as client:
                found = client.find(stream, limit=COUNT + 1)
                assert await offsets(found) == list(range(COUNT))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finding, "PAGE", 25)
        patch.setattr(reconnecting, "_FIRST_PAUSE", 0.005)
        run_in_time(main, "trio")
