"""A message that one protocol has written is read by each of the others, and is the same.

Written and read over the stream protocol (rstream), AMQP 0-9-1 (pika), AMQP 1.0 (Proton) and HTTP.
"""

import asyncio
import base64
import json
import os
import urllib.request
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pika
import rstream
from proton import Described, Link, Message, symbol
from proton.reactor import Filter, ReceiverOption
from proton.utils import BlockingConnection

AMQP_PORT, STREAM_PORT = int(os.environ["AMQP_PORT"]), int(os.environ["STREAM_PORT"])
OFFSET = "rabbitmq:stream-offset-spec"
LOGIN = {"host": "localhost", "username": "guest", "password": "guest"}
AMQP091 = pika.ConnectionParameters(
    "localhost", AMQP_PORT, credentials=pika.PlainCredentials("guest", "guest")
)


class Letter(NamedTuple):
    """What all protocols can say in a message."""

    body: bytes
    message_id: str | None = None
    correlation_id: str | None = None
    content_type: str | None = None
    headers: Mapping[str, str | int | bool] = MappingProxyType({})


LETTERS = [
    Letter(b"plain"),
    Letter(b""),
    Letter(b"named", "id-1", "about-1", "text/plain"),
    Letter(
        "ü✓".encode(), headers={"text": "ü", "n": -5, "large": 1 << 40, "flag": True, "no": False}
    ),
    Letter(b"large" * 20_000, "id-2", headers={"long": "x" * 300, "empty": ""}),
]


# -- the stream protocol


async def _write_stream(stream: str, letters: list[Letter]) -> None:
    async with rstream.Producer(**LOGIN, port=STREAM_PORT) as producer:
        for letter in letters:
            fields = {"message_id": letter.message_id, "correlation_id": letter.correlation_id}
            fields["content_type"] = letter.content_type
            given = {name: value for name, value in fields.items() if value is not None}
            properties = rstream.Properties(**given) if given else None
            headers = dict(letter.headers) or None
            message = rstream.AMQPMessage(
                body=letter.body, properties=properties, application_properties=headers
            )
            await producer.send_wait(stream, message)


async def _read_stream(stream: str, count: int) -> list[Letter]:
    found: list[Letter] = []

    def take(message: Any, _context: object) -> None:
        fields = message.properties
        names = ("message_id", "correlation_id", "content_type")
        named = [_text(getattr(fields, name, None)) for name in names]
        headers = {_text(k): _text(v) for k, v in (message.application_properties or {}).items()}
        found.append(Letter(bytes(message.body or b""), *named, headers))

    async with rstream.Consumer(**LOGIN, port=STREAM_PORT) as consumer:
        first = rstream.ConsumerOffsetSpecification(rstream.OffsetType.FIRST, None)
        await consumer.subscribe(
            stream, take, decoder=rstream.amqp_decoder, offset_specification=first
        )
        for _ in range(500):
            if len(found) >= count:
                break
            await asyncio.sleep(0.02)
    return found


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


# -- AMQP 0-9-1


def _write_amqp091(stream: str, letters: list[Letter]) -> None:
    with pika.BlockingConnection(AMQP091) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for letter in letters:
            properties = pika.BasicProperties(
                message_id=letter.message_id,
                correlation_id=letter.correlation_id,
                content_type=letter.content_type,
                headers=dict(letter.headers) or None,
            )
            channel.basic_publish("", stream, letter.body, properties)


def _read_amqp091(stream: str, count: int) -> list[Letter]:
    found = []
    with pika.BlockingConnection(AMQP091) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=10)
        wanted = {"x-stream-offset": "first"}
        for delivery, properties, body in channel.consume(
            stream, arguments=wanted, inactivity_timeout=10
        ):
            if delivery is None:
                break
            headers = {
                name: int(value) if type(value).__name__ == "long" else value
                for name, value in (properties.headers or {}).items()
                if not name.startswith("x-")
            }
            names = (properties.message_id, properties.correlation_id, properties.content_type)
            found.append(Letter(body, *names, headers))
            channel.basic_ack(delivery.delivery_tag)
            if len(found) == count:
                break
        channel.cancel()
    return found


# -- AMQP 1.0


class _First(ReceiverOption):  # type: ignore[misc] # it has no types
    def apply(self, link: Link) -> None:
        Filter({symbol(OFFSET): Described(symbol(OFFSET), "first")}).apply(link)


def _plain() -> BlockingConnection:
    address = f"localhost:{AMQP_PORT}"
    return BlockingConnection(
        address, user="guest", password="guest", allowed_mechs="PLAIN", timeout=20
    )


def _write_amqp10(stream: str, letters: list[Letter]) -> None:
    connection = _plain()
    sender = connection.create_sender(f"/queues/{stream}")
    for letter in letters:
        message = Message(letter.body, inferred=True, properties=dict(letter.headers) or None)
        message.id, message.correlation_id = letter.message_id, letter.correlation_id
        message.content_type = letter.content_type and symbol(letter.content_type)
        sender.send(message)
    connection.close()


def _read_amqp10(stream: str, count: int) -> list[Letter]:
    connection = _plain()
    receiver = connection.create_receiver(f"/queues/{stream}", credit=10, options=_First())
    found = []
    for _ in range(count):
        message = receiver.receive()
        receiver.accept()
        content_type = str(message.content_type or "None")  # Proton has the word None for null
        names = (message.id, message.correlation_id, {"None": None}.get(content_type, content_type))
        found.append(Letter(bytes(message.body or b""), *names, dict(message.properties or {})))
    connection.close()
    return found


# -- HTTP


def _ask(path: str, body: object) -> Any:
    login = base64.b64encode(b"guest:guest").decode()
    asked = urllib.request.Request(
        f"http://localhost:{os.environ['HTTP_PORT']}/api/{path}",
        json.dumps(body).encode(),
        {"Authorization": f"Basic {login}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(asked) as answer:
        return json.loads(answer.read())


def _write_http(stream: str, letters: list[Letter]) -> None:
    for letter in letters:
        names = ("message_id", "correlation_id", "content_type")
        properties: dict[str, Any] = {
            name: getattr(letter, name) for name in names if getattr(letter, name) is not None
        }
        if letter.headers:
            properties["headers"] = dict(letter.headers)
        answer = _ask(
            "exchanges/%2F/amq.default/publish",
            {
                "routing_key": stream,
                "payload": base64.b64encode(letter.body).decode(),
                "payload_encoding": "base64",
                "properties": properties,
            },
        )
        assert answer == {"routed": True}, answer


def _read_http(stream: str, count: int) -> list[Letter]:
    asked = {"count": count, "ackmode": "ack_requeue_true", "encoding": "base64"}
    found = []
    for message in _ask(f"queues/%2F/{stream}/get", asked):
        body = base64.b64decode(message["payload"])
        properties = message["properties"]
        names = ("message_id", "correlation_id", "content_type")
        headers = {
            name: value
            for name, value in properties.get("headers", {}).items()
            if not name.startswith("x-")
        }
        found.append(Letter(body, *map(properties.get, names), headers))
    return found


# -- all with all

WRITERS: dict[str, Callable[[str, list[Letter]], None]] = {
    "stream": lambda *given: asyncio.run(_write_stream(*given)),
    "amqp091": _write_amqp091,
    "amqp10": _write_amqp10,
    "http": _write_http,
}
READERS: dict[str, Callable[[str, int], list[Letter]]] = {
    "stream": lambda *given: asyncio.run(_read_stream(*given)),
    "amqp091": _read_amqp091,
    "amqp10": _read_amqp10,
    "http": _read_http,
}


def matrix(create: Callable[[str], None]) -> None:
    """Write with each, read with each."""
    wrong = []
    for writer, write in WRITERS.items():
        stream = f"by-{writer}"
        create(stream)
        write(stream, LETTERS)
        for reader, read in READERS.items():
            found = read(stream, len(LETTERS))
            wrong += [
                f"{writer} to {reader}: {str(one)[:200]}, not {str(letter)[:200]}"
                for one, letter in zip(found, LETTERS, strict=True)
                if one != letter
            ]
    assert not wrong, "\n".join(wrong)


def shapes(create: Callable[[str], None]) -> None:
    """Bodies that only AMQP 1.0 has: over 0-9-1 they are what RabbitMQ makes of them."""
    create("shapes")
    connection = _plain()
    sender = connection.create_sender("/queues/shapes")
    bodies: list[Any] = [{"k": [1, None, "v"]}, "text", 5, [1, "a", True]]
    for body in bodies:
        sender.send(Message(body, inferred=isinstance(body, list)))
    receiver = connection.create_receiver("/queues/shapes", credit=10, options=_First())
    found = [receiver.receive() for _ in bodies]
    assert [message.body for message in found] == bodies, found
    connection.close()
    read = _read_amqp091("shapes", len(bodies))
    assert all(letter.body.startswith(b"\0\x53") for letter in read), read
    create("again")
    with pika.BlockingConnection(AMQP091) as again:
        for letter in read:
            properties = pika.BasicProperties(type="amqp-1.0")
            again.channel().basic_publish("", "again", letter.body, properties)
    connection = _plain()
    receiver = connection.create_receiver("/queues/again", credit=10, options=_First())
    assert [receiver.receive().body for _ in bodies] == bodies
    connection.close()


def sub_batches(create: Callable[[str], None]) -> None:
    """Messages of sub-batches come one by one; those that are compressed are left out."""
    create("batches")
    asyncio.run(_write_batches())
    found = sorted(letter.body for letter in _read_amqp10("batches", 3))
    assert found == [b"0", b"1", b"last"], found
    assert len(asyncio.run(_read_stream("batches", 5))) == 5


async def _write_batches() -> None:
    messages = [rstream.AMQPMessage(body=b"%d" % n) for n in range(2)]
    async with rstream.Producer(**LOGIN, port=STREAM_PORT) as producer:
        for compression in (rstream.CompressionType.No, rstream.CompressionType.Gzip):
            await producer.send_sub_entry("batches", messages, compression_type=compression)
        await producer.send_wait("batches", rstream.AMQPMessage(body=b"last"))
