"""What a data folder of each release holds, and reading it all through a server.

What is read is compared with what was read when the folder was made: with `expected.json` beside
it, never with what this file would write today.
"""

from pathlib import Path
from typing import Any

import httpx

from clients import Client, Message, Properties, connect
from tests.support.process import ServerProcess

FOLDERS = Path(__file__).parent.parent / "vectors" / "folders"
# As an orderly end leaves it, and as a kill does.
KINDS = ("ended", "killed")

_COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
_REGIONS = ("EU", "US", "AP", None)
_SEGMENT = {"segment_size": 4_000, "arguments": {"stream-chunk-max-records": "4"}}
_DEFINED = ("users", "vhosts", "permissions", "queues", "exchanges", "bindings")


def server_over(data: Path) -> ServerProcess:
    """A server with the HTTP API."""
    return ServerProcess(data, "--http-port", "0")


def _http(server: ServerProcess) -> httpx.AsyncClient:
    url = f"http://localhost:{server.http_port}/api"
    return httpx.AsyncClient(base_url=url, auth=("guest", "guest"))


def _region(message: Message) -> str | None:
    found = message.application_properties.get("region")
    return None if found is None else str(found)


def _message(number: int) -> Message:
    region = _REGIONS[number % len(_REGIONS)]
    return Message(
        b"message %03d" % number + b"." * (number % 90),
        properties=Properties(subject=f"s{number}", message_id=number),
        application_properties={"number": number} | ({"region": region} if region else {}),
    )


async def write(server: ServerProcess) -> None:
    """Fill an empty server."""
    async with _http(server) as http:
        for path, body in (
            ("/users/ada", {"password": "lovelace", "tags": "monitoring"}),
            ("/vhosts/other", {}),
            ("/permissions/other/ada", {"configure": ".*", "write": ".*", "read": ".*"}),
            ("/exchanges/%2F/orders", {"type": "topic", "durable": True}),
        ):
            (await http.put(path, json=body)).raise_for_status()
        async with connect(server.uri) as client:
            await _write_streams(client)
        binding = {"routing_key": "orders.#"}
        (await http.post("/bindings/%2F/e/orders/q/plain", json=binding)).raise_for_status()
    async with connect(_of_ada(server)) as client:
        await client.create("of-ada")
        async with client.producer("of-ada") as producer:
            await producer.send(b"of Ada")


async def _write_streams(client: Client) -> None:
    await client.create("plain")
    async with client.producer("plain", name="till-1") as producer:
        await producer.send_all(_message(n) for n in range(30))
    filtered = {"stream-filter-property": "region", **_SEGMENT["arguments"]}
    await client.create("filtered", filter_size=32, segment_size=4_000, arguments=filtered)
    await client.register_selector("filtered", "late", sql="number > 100 AND region = 'EU'")
    async with client.producer("filtered", filter_value=_region) as producer:
        for n in range(120):
            await producer.send(_message(n))
            if n % 4 == 3:
                await producer.flush()
    await client.create("packed", segment_size=4_000)
    async with client.producer("packed", name="packer") as producer:
        for n, compression in enumerate(_COMPRESSIONS):
            await producer.send_sub_batch([_message(10 * n + i) for i in range(10)], compression)
            await producer.send(_message(500 + n))
    for offset, name in enumerate(("reader-a", "reader-b"), 7):
        async with client.consumer("plain", offset="first", name=name, until_end=True) as messages:
            await messages.store_offset(offset)
    await client.create_super_stream("invoices", 3)
    async with client.super_producer("invoices", _subject_of) as sink:
        for n in range(30):
            await sink.send(_message(n))
        await sink.flush()
    await client.create("empty")


def _subject_of(message: Message) -> str:
    return str(message.properties.subject)


def _of_ada(server: ServerProcess) -> str:
    return f"rabbitmq-stream://ada:lovelace@localhost:{server.port}/other"


async def read(server: ServerProcess) -> dict[str, Any]:
    """Everything that is there, as JSON."""
    async with _http(server) as http:
        definitions = (await http.get("/definitions")).raise_for_status().json()
    async with connect(_of_ada(server)) as client:
        of_ada = await _messages(client, "of-ada")
    names = sorted(q["name"] for q in definitions["queues"] if q["vhost"] == "/")
    async with connect(server.uri) as client:
        return {
            "definitions": {kind: definitions[kind] for kind in _DEFINED},
            "messages": {name: await _messages(client, name) for name in names},
            "of Ada": of_ada,
            "by region": {
                region: await _messages(
                    client, "filtered", filter_values=[region], filter_value="region"
                )
                for region in ("EU", "US", "nowhere")
            },
            "of the group": await _messages(client, "filtered", group="late"),
            "selectors": [[s.group, s.text, s.since] for s in await client.selectors("filtered")],
            "stored offsets": {
                name: await client.query_offset("plain", name) for name in ("reader-a", "reader-b")
            },
            "publishing ids": {
                "till-1": await _publishing_id(client, "plain", "till-1"),
                "packer": await _publishing_id(client, "packed", "packer"),
            },
            "partitions": await client.partitions("invoices"),
        }


async def _messages(client: Client, stream: str, **options: Any) -> list[list[Any]]:
    async with client.consumer(stream, offset="first", until_end=True, **options) as messages:
        return [
            [
                message.offset,
                message.body.decode(),
                message.properties.subject,
                message.application_properties,
            ]
            async for message in messages
        ]


async def _publishing_id(client: Client, stream: str, name: str) -> int:
    async with client.producer(stream, name=name) as producer:
        return producer.last_publishing_id


async def append(server: ServerProcess, names: list[str]) -> None:
    """Add a message to each of these streams."""
    async with connect(server.uri) as client:
        for name in names:
            async with client.producer(name, filter_value=_region) as producer:
                await producer.send(Message(b"new", application_properties={"region": "EU"}))
