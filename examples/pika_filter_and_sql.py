"""Read chosen messages with pika, by filter value and by SQL. First start `streamd serve`."""

import sys
from typing import Any

import pika

URI = "amqp://guest:guest@localhost:5672/"
STREAM = {"x-queue-type": "stream", "x-stream-filter-size-bytes": 32}
ORDERS = [("EU", 90), ("EU", 5), ("US", 70), ("EU", 60)]


def read(channel: Any, count: int, **asked: str) -> list[tuple[int, int]]:
    """The first `count` orders that are delivered."""
    arguments = {name.replace("_", "-"): value for name, value in asked.items()}
    arguments["x-stream-offset"] = "first"
    orders = []
    for delivery, properties, _ in channel.consume("pika-orders", arguments=arguments):
        offset = int(properties.headers["x-stream-offset"])  # pika has its own type for a long
        orders.append((offset, properties.headers["total"]))
        channel.basic_ack(delivery.delivery_tag)
        if len(orders) == count:
            break
    channel.cancel()
    return orders


with pika.BlockingConnection(pika.URLParameters(*(sys.argv[1:] or [URI]))) as connection:
    channel = connection.channel()
    channel.queue_declare("pika-orders", durable=True, arguments=STREAM)
    channel.confirm_delivery()  # each message is stored when basic_publish returns
    for region, total in ORDERS:
        headers = {"x-stream-filter-value": region, "region": region, "total": total}
        channel.basic_publish("", "pika-orders", b"", pika.BasicProperties(headers=headers))
    channel.basic_qos(prefetch_count=10)  # streams ask for it
    print(read(channel, 1, x_stream_filter="US"))
    print(read(channel, 2, x_stream_sql="region = 'EU' AND total > 50"))
    channel.queue_delete("pika-orders")
