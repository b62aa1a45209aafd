"""Producers and consumers of AMQP 0-9-1: pika, in threads."""

import threading
import time
from typing import Any

import pika
from pika.exceptions import AMQPError

from benchmarks.soak.ledger import Producer, Reader, Told
from benchmarks.soak.streams import next_messages

_PAUSE = 0.02
_AGAIN_SECONDS = 0.2
_PREFETCH = 100
_FAILURES = (AMQPError, OSError)


def _connect(port: int) -> pika.BlockingConnection:
    login = pika.PlainCredentials("guest", "guest")
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", port, credentials=login, socket_timeout=5)
    )


def publish(port: int, producer: Producer, stop: threading.Event) -> None:
    """One after the other, each confirmed; one whose confirm was lost is sent again."""
    waiting: Told | None = None
    while not stop.is_set() or waiting:
        try:
            with _connect(port) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                while not stop.is_set() or waiting:
                    waiting = waiting or next(next_messages(producer, 1))
                    _send(channel, producer, waiting)
                    producer.confirmed = waiting.number
                    waiting = None
                    time.sleep(_PAUSE)
        except _FAILURES:
            time.sleep(_AGAIN_SECONDS)


def _send(channel: Any, producer: Producer, told: Told) -> None:  # noqa: ANN401 - of pika
    headers = {**told.properties, "x-stream-filter-value": told.kind}
    properties = pika.BasicProperties(headers=headers, delivery_mode=2)
    channel.basic_publish("", producer.stream, told.body(), properties, mandatory=True)


def read(port: int, reader: Reader, stop: threading.Event, arguments: dict[str, Any]) -> None:
    """Begin at the first message, after a lost connection behind the last one."""
    while not stop.is_set():
        start: str | int = reader.last_offset + 1 if reader.received else "first"
        try:
            with _connect(port) as connection:
                channel = connection.channel()
                channel.basic_qos(prefetch_count=_PREFETCH)
                consumed = channel.consume(
                    reader.stream,
                    arguments={"x-stream-offset": start, **arguments},
                    inactivity_timeout=0.2,
                )
                for method, properties, body in consumed:
                    if stop.is_set():
                        break
                    if method is not None:
                        reader.take(body, properties.headers["x-stream-offset"])
                        channel.basic_ack(method.delivery_tag)
        except _FAILURES:
            time.sleep(_AGAIN_SECONDS)
