"""RabbitMQ's Python client for AMQP 1.0, and Proton alone, against a running server.

Prints a line "ok NAME" for each part.
"""

import json
import os
import subprocess
import sys
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import matrix
from proton import Described, Link, Message as PlainMessage, symbol, timestamp, ulong
from proton.reactor import Filter, ReceiverOption
from proton.utils import BlockingConnection
from rabbitmq_amqp_python_client import (
    AddressHelper,
    AMQPMessagingHandler,
    Connection,
    Environment,
    Event,
    ExchangeSpecification,
    ExchangeToQueueBindingSpecification,
    ExchangeType,
    Message,
    OffsetSpecification,
    OutcomeState,
    PosixSslConfigurationContext,
    RecoveryConfiguration,
    StreamConsumerOptions,
    StreamFilterOptions,
    StreamSpecification,
    ValidationCodeException,
)
from rabbitmq_amqp_python_client.entities import MessageProperties

PORT = os.environ["AMQP_PORT"]
URI = f"amqp://guest:guest@localhost:{PORT}/"
FIRST = OffsetSpecification.first


class Done(Exception):
    """As many messages as were asked for are there, or none will come."""


class Taker(AMQPMessagingHandler):  # type: ignore[misc] # it has no types
    """Takes messages; the first ones may come while the consumer is being made."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.messages: list[Any] = []
        self.is_running = False

    def on_amqp_message(self, event: Event) -> None:
        self.messages.append(event.message)
        self.delivery_context.accept(event)
        if self.is_running and self.has_all:
            raise Done

    @property
    def has_all(self) -> bool:
        return len(self.messages) >= self.count

    def on_link_closed(self, event: Event) -> None:
        if self.is_running:
            raise Done(event.link.remote_condition.name)


def same(found: object, expected: object) -> None:
    assert found == expected, f"{found!r}, not {expected!r}"


def refused(action: Callable[[], object], text: str) -> None:
    found = ""
    try:
        action()
    except (Exception, ValidationCodeException) as error:  # noqa: BLE001 - that is a BaseException
        found = repr(error)
    if not found or text not in found:
        raise AssertionError(f"found {found or 'no error'}, not {text}")


def create(connection: Connection, name: str) -> None:
    management = connection.management()
    management.delete_queue(name)
    management.declare_queue(StreamSpecification(name, stream_filter_size_bytes=32))


def publish(connection: Connection, stream: str, messages: Iterable[Message]) -> None:
    publisher = connection.publisher(AddressHelper.queue_address(stream))
    for message in messages:
        same(publisher.publish(message).remote_state, OutcomeState.ACCEPTED)
    publisher.close()


def run(consumer: Any, taker: Taker) -> list[Any]:
    taker.is_running = True
    try:
        if not taker.has_all:
            consumer.run()
    except Done:
        pass
    taker.is_running = False
    consumer.close()
    return taker.messages[: taker.count]


def take(connection: Connection, stream: str, count: int, start: Any, **wanted: Any) -> list[Any]:
    """The first messages that a consumer gets."""
    taker = Taker(count)
    options = StreamConsumerOptions(start, StreamFilterOptions(**wanted) if wanted else None)
    address = AddressHelper.queue_address(stream)
    return run(connection.consumer(address, message_handler=taker, consumer_options=options), taker)


def offsets(messages: Iterable[Any]) -> list[int]:
    return [message.annotations["x-stream-offset"] for message in messages]


def numbers(count: int) -> list[Message]:
    colours = ("red", "green", "blue")
    return [
        Message(
            b"%d" % n,
            subject=f"about {n}",
            annotations={"x-stream-filter-value": colours[n % 3]},
            application_properties={"n": n, "colour": colours[n % 3]},
        )
        for n in range(count)
    ]


def publish_and_confirm(connection: Connection) -> None:
    create(connection, "confirmed")
    publish(connection, "confirmed", numbers(100))
    found = take(connection, "confirmed", 100, FIRST)
    same([bytes(message.body) for message in found], [b"%d" % n for n in range(100)])
    same(offsets(found), list(range(100)))
    info = connection.management().queue_info("confirmed")
    same((info.name, info.queue_type.value, info.is_durable), ("confirmed", "stream", True))


def offset_specifications(connection: Connection) -> None:
    create(connection, "offsets")
    publish(connection, "offsets", numbers(20))
    same(offsets(take(connection, "offsets", 2, 10)), [10, 11])
    hour_ago = datetime.now() - timedelta(hours=1)
    same(offsets(take(connection, "offsets", 1, hour_ago)), [0])
    same(take(connection, "offsets", 1, OffsetSpecification.last)[0].body is not None, True)
    taker = Taker(1)
    options = StreamConsumerOptions(OffsetSpecification.next)
    consumer = connection.consumer(
        "/queues/offsets", message_handler=taker, consumer_options=options
    )
    with Environment(URI) as environment:  # while one connection publishes, it hands out what comes
        other = environment.connection()
        other.dial()
        publish(other, "offsets", [Message(b"new")])
    same(bytes(run(consumer, taker)[0].body), b"new")


def filtering(connection: Connection) -> None:
    create(connection, "filtered")
    publish(connection, "filtered", numbers(30))
    publish(connection, "filtered", [Message(b"plain")])
    green = take(connection, "filtered", 10, FIRST, values=["green"], sql="colour = 'green'")
    same([m.application_properties["n"] for m in green], list(range(1, 30, 3)))
    found = take(connection, "filtered", 3, FIRST, sql="n > 5 AND properties.subject LIKE '%9'")
    same(offsets(found), [9, 19, 29])
    subject = MessageProperties(subject="&s: 7")
    same(offsets(take(connection, "filtered", 1, FIRST, message_properties=subject)), [7])
    wanted = {"n": 8.0, "colour": "&p:bl"}
    same(offsets(take(connection, "filtered", 1, FIRST, application_properties=wanted)), [8])
    unfiltered = {"values": ["pink"], "match_unfiltered": True}
    assert b"plain" in [bytes(m.body) for m in take(connection, "filtered", 1, 30, **unfiltered)]


def routing(connection: Connection) -> None:
    create(connection, "routed")
    management = connection.management()
    management.declare_exchange(ExchangeSpecification("news", exchange_type=ExchangeType.topic))
    binding = ExchangeToQueueBindingSpecification("news", "routed", binding_key="eu.#")
    path = management.bind(binding)
    publisher = connection.publisher(AddressHelper.exchange_address("news", "eu.de"))
    same(publisher.publish(Message(b"bound")).remote_state, OutcomeState.ACCEPTED)
    publisher.close()
    publisher = connection.publisher(AddressHelper.exchange_address("news", "us"))
    refused(lambda: publisher.publish(Message(b"lost")), str(OutcomeState.RELEASED.value))
    publisher.close()
    publisher = connection.publisher()
    message = AddressHelper.message_to_address_helper(Message(b"to"), "/queues/routed")
    same(publisher.publish(message).remote_state, OutcomeState.ACCEPTED)
    message = AddressHelper.message_to_address_helper(Message(b"no"), "/exchanges/none/k")
    refused(lambda: publisher.publish(message), "none")
    publisher.close()
    found = take(connection, "routed", 2, FIRST)
    same([bytes(message.body) for message in found], [b"bound", b"to"])
    same([found[0].annotations[f"x-{k}"] for k in ("exchange", "routing-key")], ["news", "eu.de"])
    management.unbind(path)
    management.delete_exchange("news")
    management.delete_queue("routed")


def refusals(connection: Connection) -> None:
    create(connection, "there")
    different = StreamSpecification("there", stream_filter_size_bytes=64)
    for ask, text in (
        (lambda c: c.publisher("/queues/missing"), "amqp:not-found"),
        (lambda c: c.consumer("/queues/missing"), "amqp:not-found"),
        (lambda c: c.publisher("/queues/%F"), "amqp:invalid-field"),
        (lambda c: c.management().queue_info("missing"), "404"),
        (lambda c: c.management().purge_queue("missing"), "404"),
        (lambda c: c.management().purge_queue("there"), "400"),
        (lambda c: c.management().declare_queue(different), "ErrPreconditionFailed"),
    ):
        with Environment(URI) as environment:  # RabbitMQ ends the session of some
            other = environment.connection()
            other.dial()
            refused(partial(ask, other), text)
    refused(Environment(URI.replace(":guest@", ":wrong@")).connection().dial, "")
    refused(Environment(URI + "none").connection().dial, "")


def deletion(connection: Connection) -> None:
    create(connection, "deleted")
    taker = Taker(1)
    consumer = connection.consumer(
        "/queues/deleted", message_handler=taker, consumer_options=StreamConsumerOptions(FIRST)
    )
    with Environment(URI) as environment:
        other = environment.connection()
        other.dial()
        other.management().delete_queue("deleted")
    taker.is_running = True
    refused(consumer.run, "amqp:resource-deleted")
    taker.is_running = False


def recovery(_: Connection) -> None:
    """The server ends the connections; a publisher and a consumer go on where they were."""
    recovering = RecoveryConfiguration(back_off_reconnect_interval=timedelta(seconds=2))
    with Environment(URI, recovery_configuration=recovering) as environment:
        connection = environment.connection()
        connection.dial()
        create(connection, "recovered")
        publisher = connection.publisher("/queues/recovered")
        for n in range(5):
            publisher.publish(Message(b"%d" % n))
        end_all_connections()
        for n in range(5, 10):
            try:
                publisher.publish(Message(b"%d" % n))
            except Exception:  # noqa: BLE001 - the one that notices it
                publisher.publish(Message(b"%d" % n))
        found = take(connection, "recovered", 10, FIRST)
        same([bytes(message.body) for message in found], [b"%d" % n for n in range(10)])


def end_all_connections() -> None:
    def ask(method: str, path: str) -> bytes:
        url = f"http://localhost:{os.environ['HTTP_PORT']}/api/connections{path}"
        asked = urllib.request.Request(url, method=method, headers={"Authorization": GUEST})
        with urllib.request.urlopen(asked) as answer:
            return bytes(answer.read())

    end = time.monotonic() + 15
    while not (names := [c["name"] for c in json.loads(ask("GET", "")) if "name" in c]):
        assert time.monotonic() < end, "no connection is listed"
        time.sleep(0.1)
    for name in names:
        ask("DELETE", "/" + urllib.parse.quote(name, safe=""))


GUEST = "Basic Z3Vlc3Q6Z3Vlc3Q="  # guest:guest


class Wanted(ReceiverOption):  # type: ignore[misc] # it has no types
    """Filters of a link, and how it is settled."""

    def __init__(self, mode: int, **filters: Any) -> None:
        self._mode = mode
        self._filters = {
            symbol(name.replace("__", ":").replace("_", "-")): value
            for name, value in filters.items()
        }

    def apply(self, link: Link) -> None:
        link.snd_settle_mode = self._mode
        described = {name: Described(name, value) for name, value in self._filters.items()}
        Filter(described).apply(link)


def proton_alone(connection: Connection) -> None:
    create(connection, "proton")
    plain = BlockingConnection(
        f"localhost:{PORT}", user="guest", password="guest", allowed_mechs="PLAIN", timeout=20
    )
    now = timestamp(int(datetime.now(UTC).timestamp() * 1000))
    properties = {"t": True, "n": -5, "f": 1.5, "u": ulong(7), "s": "ü", "i": uuid.uuid4()}
    sent = [
        PlainMessage(b"data", inferred=True, properties=properties, creation_time=5, id=ulong(9)),
        PlainMessage(["a", 5, None], inferred=True),
        PlainMessage({"k": [now, symbol("s")]}),
        PlainMessage("text", annotations={symbol("x-opt-mine"): "kept"}),
        PlainMessage(b"", inferred=True),
        PlainMessage(b"large" * 200_000, inferred=True),
        PlainMessage(5, subject="nothing", durable=True, priority=7),
    ]
    sender = plain.create_sender("/queues/proton")
    for message in sent:
        sender.send(message)
    sender.close()
    for mode in (Link.SND_SETTLED, Link.SND_UNSETTLED):
        wanted = Wanted(mode, rabbitmq__stream_offset_spec="first")
        receiver = plain.create_receiver("/queues/proton", credit=10, options=wanted)
        for message in sent:
            found = receiver.receive()
            same(found.body, message.body)
            same(found.properties or None, message.properties or None)
            same((found.id, found.subject), (message.id, message.subject))
            same((found.durable, found.priority), (message.durable, message.priority))
            if mode == Link.SND_UNSETTLED:
                receiver.accept()
        receiver.close()
    tags = Wanted(Link.SND_SETTLED, rabbitmq__stream_offset_spec="first", streamd__tag="a || b")
    publish(connection, "proton", [Message(b"", application_properties={"TAGS": t}) for t in "cb"])
    receiver = plain.create_receiver("/queues/proton", credit=10, options=tags)
    same(receiver.receive().properties, {"TAGS": "b"})
    plain.close()


def tls(_: Connection) -> None:
    uri = f"amqps://guest:guest@localhost:{os.environ['AMQP_TLS_PORT']}/"
    context = PosixSslConfigurationContext(ca_cert=os.environ["CA_FILE"])
    with Environment(uri, ssl_context=context) as environment:
        connection = environment.connection()
        connection.dial()
        create(connection, "inside")
        publish(connection, "inside", numbers(5))
        same(offsets(take(connection, "inside", 5, FIRST)), list(range(5)))


def matrix_of_protocols(connection: Connection) -> None:
    make = partial(create, connection)
    matrix.matrix(make)
    matrix.shapes(make)
    matrix.sub_batches(make)


def example(_: Connection) -> None:
    """What it prints is what the page shows."""
    printed = subprocess.run(
        [sys.executable, os.environ["EXAMPLE"], URI], capture_output=True, text=True, check=True
    ).stdout
    same(printed, "[(2, 70)]\n[(0, 90), (3, 60)]\n")
    assert printed in Path(os.environ["EXAMPLE_PAGE"]).read_text()


PARTS = {
    "publish_and_confirm": publish_and_confirm,
    "offsets": offset_specifications,
    "filtering": filtering,
    "routing": routing,
    "refusals": refusals,
    "deletion": deletion,
    "recovery": recovery,
    "proton": proton_alone,
    "matrix": matrix_of_protocols,
    "example": example,
    "tls": tls,
}

for name, part in PARTS.items():
    if name == "tls" and "AMQP_TLS_PORT" not in os.environ:
        continue
    with Environment(URI) as environment:
        connection = environment.connection()
        connection.dial()
        part(connection)
    print("ok", name, flush=True)
