"""Read chosen messages over AMQP 1.0, by filter value and by SQL. First start `streamd serve`."""

import sys
from contextlib import suppress

from rabbitmq_amqp_python_client import (
    AMQPMessagingHandler,
    Environment,
    Event,
    Message,
    OffsetSpecification,
    StreamConsumerOptions,
    StreamFilterOptions,
    StreamSpecification,
)

URI = "amqp://guest:guest@localhost:5672/"
ORDERS = "/queues/amqp10-orders"
FILLED = [("EU", 90), ("EU", 5), ("US", 70), ("EU", 60)]


class Done(Exception):
    """As many orders as were asked for are there."""


class Reader(AMQPMessagingHandler):  # type: ignore[misc] # it has no types
    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.orders: list[tuple[int, int]] = []

    def on_amqp_message(self, event: Event) -> None:
        offset = event.message.annotations["x-stream-offset"]
        self.orders.append((offset, event.message.application_properties["total"]))
        self.delivery_context.accept(event)
        if len(self.orders) == self.count:
            raise Done


def read(environment: Environment, count: int, wanted: StreamFilterOptions) -> Reader:
    """Read the first `count` orders that are delivered."""
    connection = environment.connection()
    connection.dial()
    reader = Reader(count)
    options = StreamConsumerOptions(OffsetSpecification.first, wanted)
    with suppress(Done):
        connection.consumer(ORDERS, message_handler=reader, consumer_options=options).run()
    connection.close()
    return reader


with Environment(*(sys.argv[1:] or [URI])) as environment:
    connection = environment.connection()
    connection.dial()
    management = connection.management()
    management.declare_queue(StreamSpecification("amqp10-orders", stream_filter_size_bytes=32))
    publisher = connection.publisher(ORDERS)
    for region, total in FILLED:
        value = {"x-stream-filter-value": region}
        order = {"region": region, "total": total}
        publisher.publish(Message(b"", annotations=value, application_properties=order))
    print(read(environment, 1, StreamFilterOptions(values=["US"])).orders)
    sql = StreamFilterOptions(sql="region = 'EU' AND total > 50")
    print(read(environment, 2, sql).orders)
    management.delete_queue("amqp10-orders")
