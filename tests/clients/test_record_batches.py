"""Messages as Arrow record batches, from a server."""

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from clients import ArrowMissing, Client, ColumnError, Consumer, DamagedChunk, Message
from segments.codec import CHUNK_HEADER_SIZE
from tests.clients.conftest import program

ALL = ["offset", "body", "region", "total"]


def _order(number: int) -> Message:
    region = ("EU", "US", "UK")[number % 3]
    return Message(b"%d" % number, application_properties={"region": region, "total": number})


async def _fill(client: Client, stream: str, count: int) -> None:
    await client.create(stream, arguments={"stream-filter-property": "region"})
    async with client.producer(stream) as producer:
        await producer.send_all(map(_order, range(count)))


async def _rows(messages: Consumer, columns: Any = ALL, **options: Any) -> list[dict[str, Any]]:
    batches = [batch async for batch in messages.arrow(columns, **options)]
    return pa.Table.from_batches(batches).to_pylist() if batches else []


def _row(number: int) -> dict[str, Any]:
    order = _order(number)
    return {"offset": number, "body": order.body, **order.application_properties}


@program
async def test_all_messages_come(client: Client, stream: str) -> None:
    await _fill(client, stream, 1_000)
    async with client.consumer(stream, offset="first", until_end=True) as messages:
        assert await _rows(messages) == [_row(n) for n in range(1_000)]
        assert messages.last_offset == 999
        assert messages.counts.matched == messages.counts.messages == 1_000
    async with client.consumer(stream, offset=437, until_end=True, credit=1) as messages:
        assert await _rows(messages, max_rows=1) == [_row(n) for n in range(437, 1_000)]
        assert messages.counts.messages == 563


@program
async def test_what_is_asked_for_comes(client: Client, stream: str) -> None:
    await _fill(client, stream, 1_000)
    asked: list[dict[str, Any]] = [
        {"filter_values": ["EU"], "filter_value": "region"},
        {"sql": "region = 'EU'"},
    ]
    for selector in asked:
        async with client.consumer(stream, offset="first", until_end=True, **selector) as messages:
            assert await _rows(messages) == [_row(n) for n in range(0, 1_000, 3)]
            assert messages.counts.matched == 334
    async with client.consumer(
        stream, offset="first", until_end=True, sql="region = 'no'"
    ) as messages:
        assert await _rows(messages) == []


@program
async def test_sub_batches_come(client: Client, stream: str) -> None:
    await client.create(stream)
    async with client.producer(stream) as producer:
        await producer.send(_order(0))
        await producer.send_sub_batch(map(_order, range(1, 50)), compression="zstd")
        await producer.send_sub_batch([_order(50)], compression="none")
    async with client.consumer(stream, offset=3, until_end=True) as messages:
        assert await _rows(messages) == [_row(n) for n in range(3, 51)]


@program
async def test_batches_go_on_behind_single_messages(client: Client, stream: str) -> None:
    await _fill(client, stream, 10)
    async with client.consumer(stream, offset="first", until_end=True) as messages:
        assert (await anext(messages)).offset == 0
        assert await _rows(messages, ["offset"]) == [{"offset": n} for n in range(1, 10)]


@program
async def test_a_batch_comes_as_soon_as_there_is_a_message(client: Client, stream: str) -> None:
    await client.create(stream)
    async with (
        client.producer(stream) as producer,
        client.consumer(stream, offset="first") as messages,
    ):
        batches = messages.arrow(["offset"])
        for number in range(5):
            await producer.send(_order(number))
            await producer.flush()
            assert (await anext(batches))["offset"].to_pylist() == [number]
        await batches.aclose()


@program
async def test_a_damaged_chunk_costs_itself_alone(
    client: Client, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = Consumer.received

    def damaged(consumer: Consumer, command: Any) -> None:
        if hasattr(command, "chunk") and b"order 5" in command.chunk:
            chunk = bytearray(command.chunk)
            chunk[CHUNK_HEADER_SIZE + 6] ^= 1
            command = type(command)(*[*_fields(command)[:-1], bytes(chunk)])
        received(consumer, command)

    monkeypatch.setattr(Consumer, "received", damaged)
    await client.create(stream)
    async with client.producer(stream) as producer:
        for number in range(10):
            await producer.send(Message(b"order %d" % number))
            await producer.flush()
    async with client.consumer(stream, offset="first", until_end=True) as messages:
        found: list[int] = []
        with pytest.raises(DamagedChunk, match="checksum"):
            await _add(found, messages)
        await _add(found, messages)
        assert found == [0, 1, 2, 3, 4, 6, 7, 8, 9]


async def _add(found: list[int], messages: Consumer) -> None:
    async for batch in messages.arrow(["offset"]):
        found += batch["offset"].to_pylist()


def _fields(command: Any) -> list[Any]:
    return [getattr(command, name) for name in command.__struct_fields__]


@program
async def test_what_cannot_be_is_said_at_once(client: Client, stream: str) -> None:
    await client.create(stream)
    async with client.consumer(stream) as messages:
        with pytest.raises(ColumnError, match="columns is empty"):
            messages.arrow([])
        with pytest.raises(ValueError, match="max_rows is 0"):
            messages.arrow(["offset"], max_rows=0)


@pytest.mark.parametrize("missing", ["pyarrow", "numpy"])
@program
async def test_without_the_extra_it_says_what_to_install(
    client: Client, stream: str, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    for name in [name for name in sys.modules if name.startswith("segments.arrow.")]:
        if not name.endswith("parts"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    await client.create(stream)
    async with client.consumer(stream) as messages:
        with pytest.raises(ArrowMissing, match=f"{missing} is not installed; pip install"):
            messages.arrow(["offset"])


def test_the_library_does_without_the_extra() -> None:
    code = "import sys, clients; print({'numpy', 'pyarrow'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
