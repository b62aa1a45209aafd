"""Tests of a program that uses streams, against a real server.

pytest examples/test_with_streamd.py

The fixture `streamd_server` comes with streamd; nothing has to be started or cleaned up.
"""

import asyncio

import pika
import trio

from streamd import connect
from streamd.testing import StreamdServer


async def publish(uri: str, stream: str, count: int) -> list[bytes]:
    """What is tested here: stores some orders, and reads them back."""
    async with connect(uri) as client:
        await client.create(stream)
        async with client.producer(stream) as producer:
            await producer.send_all([b"order %d" % n for n in range(count)])
        async with client.consumer(stream, offset="first", until_end=True) as messages:
            return [message.body async for message in messages]


def test_from_asyncio(streamd_server: StreamdServer) -> None:
    assert len(asyncio.run(publish(streamd_server.uri, "from-asyncio", 3))) == 3


def test_from_trio(streamd_server: StreamdServer) -> None:
    assert len(trio.run(publish, streamd_server.uri, "from-trio", 3)) == 3


def test_with_pika(streamd_server: StreamdServer) -> None:
    with pika.BlockingConnection(pika.URLParameters(streamd_server.amqp_uri)) as connection:
        channel = connection.channel()
        channel.queue_declare("with-pika", durable=True, arguments={"x-queue-type": "stream"})
        channel.basic_publish("", "with-pika", b"order 1")
        channel.basic_qos(prefetch_count=10)
        from_the_first = {"x-stream-offset": "first"}
        for method, _, body in channel.consume("with-pika", arguments=from_the_first):
            channel.basic_ack(method.delivery_tag)
            assert body == b"order 1"
            break
