"""pika and aio-pika, unmodified, over real sockets."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aio_pika
import anyio
import pika
import pika.adapters.asyncio_connection
import pika.adapters.blocking_connection
import pika.exceptions
import pytest

from clients import connect
from segments.message import Message
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import PROTOCOL_HEADER, method_frame
from tests.support.process import ServerProcess
from tests.support.tls import TlsServer

STREAM = {"x-queue-type": "stream"}
FILTERED = STREAM | {"x-stream-filter-size-bytes": 32}
FIRST = {"x-stream-offset": "first"}
Channel = pika.adapters.blocking_connection.BlockingChannel


def parameters_for(server: ServerProcess, **options: Any) -> pika.ConnectionParameters:
    given = {"virtual_host": server.virtual_host} | options
    return pika.ConnectionParameters("localhost", server.amqp_port, **given)


@contextlib.contextmanager
def channel_to(server: ServerProcess, **options: Any) -> Iterator[Channel]:
    parameters = parameters_for(server, **options)
    with pika.BlockingConnection(parameters) as connection:
        yield connection.channel()


def take(channel: Channel, queue: str, count: int, **arguments: Any) -> list[Any]:
    """Properties and body of the first `count` messages."""
    found: list[Any] = []
    channel.basic_qos(prefetch_count=10)
    for method, properties, body in channel.consume(queue, arguments=FIRST | arguments):
        found.append((properties, body))
        channel.basic_ack(method.delivery_tag)
        if len(found) == count:
            break
    channel.cancel()
    return found


class TestPikaBlocking:
    def test_published_with_confirms_and_consumed(self, shared: ServerProcess) -> None:
        with channel_to(shared) as channel:
            channel.queue_declare("s", durable=True, arguments=FILTERED)
            channel.confirm_delivery()
            for n in range(30):
                headers = {"x-stream-filter-value": "even" if n % 2 == 0 else "odd", "n": n}
                properties = pika.BasicProperties(headers=headers, delivery_mode=2)
                channel.basic_publish("", "s", b"%d" % n, properties, mandatory=True)
            found = take(channel, "s", 30)
            assert [body for _, body in found] == [b"%d" % n for n in range(30)]
            assert [p.headers["x-stream-offset"] for p, _ in found] == list(range(30))
            odd = take(channel, "s", 15, **{"x-stream-filter": "odd"})
            assert [p.headers["n"] for p, _ in odd] == list(range(1, 30, 2))
            picked = take(channel, "s", 2, **{"x-stream-sql": "n BETWEEN 10 AND 11"})
            assert [body for _, body in picked] == [b"10", b"11"]
            counted = channel.queue_declare("s", passive=True)
            assert counted.method.message_count == 30

    def test_what_goes_nowhere_comes_back(self, shared: ServerProcess) -> None:
        with channel_to(shared) as channel:
            channel.confirm_delivery()
            with pytest.raises(pika.exceptions.UnroutableError) as caught:
                channel.basic_publish("", "missing", b"body", mandatory=True)
            (returned,) = caught.value.messages
            assert (returned.method.reply_text, returned.body) == ("NO_ROUTE", b"body")

    def test_a_deleted_queue_ends_its_consumers(self, shared: ServerProcess) -> None:
        with channel_to(shared) as channel, channel_to(shared) as other:
            channel.queue_declare("s", durable=True, arguments=STREAM)
            channel.basic_qos(prefetch_count=1)
            channel.basic_publish("", "s", b"one")
            for _, _, body in channel.consume("s", arguments=FIRST):
                assert body == b"one"
                other.queue_delete("s")  # the loop ends with it

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"credentials": pika.PlainCredentials("guest", "wrong")}, "AuthenticationError"),
            ({"virtual_host": "none"}, "AccessDeniedError"),
        ],
        ids=["password", "virtual host"],
    )
    def test_who_may_not_enter(
        self, shared: ServerProcess, options: dict[str, Any], error: str
    ) -> None:
        refused = getattr(pika.exceptions, f"Probable{error}")
        with pytest.raises(refused), channel_to(shared, **options):
            pass

    def test_heartbeats_and_a_new_secret(self, shared: ServerProcess) -> None:
        with channel_to(shared, heartbeat=1) as channel:
            channel.connection.update_secret("new", "because")
            channel.connection.process_data_events(2.5)
            channel.queue_declare("s", durable=True, arguments=STREAM)

    def test_exchanges(self, shared: ServerProcess) -> None:
        with channel_to(shared) as channel:
            channel.queue_declare("s", durable=True, arguments=STREAM)
            channel.exchange_declare("logs", "topic", durable=True)
            channel.exchange_declare("all", "fanout", durable=True)
            channel.exchange_bind("logs", "all", "kern.disk")
            channel.queue_bind("s", "logs", "kern.#")
            channel.basic_publish("all", "kern.disk", b"full")
            channel.basic_publish("logs", "mail", b"lost")
            assert [body for _, body in take(channel, "s", 1)] == [b"full"]
            with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
                channel.exchange_declare("odd", "odd")
            assert caught.value.reply_code == 406


def test_pika_on_asyncio(shared: ServerProcess) -> None:
    """The adapter of callbacks: 500 messages confirmed, some at once; then consumed."""
    confirmed: set[int] = set()
    received: list[bytes] = []

    def opened(channel: Any) -> None:
        channel.basic_qos(prefetch_count=50)
        channel.queue_declare(
            "s", durable=True, arguments=STREAM, callback=lambda _: publish(channel)
        )

    def publish(channel: Any) -> None:
        channel.confirm_delivery(acked)
        for n in range(500):
            channel.basic_publish("", "s", b"%d" % n)
        channel.basic_consume("s", got, arguments=FIRST)

    def acked(frame: Any) -> None:
        tag, multiple = frame.method.delivery_tag, frame.method.multiple
        confirmed.update(range(1, tag + 1) if multiple else [tag])
        end()

    def got(channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        received.append(body)
        channel.basic_ack(method.delivery_tag)
        end()

    def end() -> None:
        if len(confirmed) == len(received) == 500:
            connection.close()

    connection = pika.adapters.asyncio_connection.AsyncioConnection(
        parameters_for(shared),
        on_open_callback=lambda c: c.channel(on_open_callback=opened),
        on_close_callback=lambda c, _: c.ioloop.stop(),
    )
    connection.ioloop.run_forever()
    connection.ioloop.close()
    assert received == [b"%d" % n for n in range(500)]


class TestAioPika:
    def run(self, server: ServerProcess, main: Any) -> None:
        async def with_connection() -> None:
            async with await aio_pika.connect_robust(server.amqp_uri) as connection:
                await main(connection)

        anyio.run(with_connection)

    def test_published_filtered_and_consumed(self, shared: ServerProcess) -> None:
        async def main(connection: Any) -> None:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=20)
            queue = await channel.declare_queue("s", durable=True, arguments=FILTERED)
            async with anyio.create_task_group() as tasks:
                for n in range(300):
                    headers = {"x-stream-filter-value": f"v{n % 3}", "n": n, "f": 1.5}
                    message = aio_pika.Message(b"%d" % n, headers=headers)
                    tasks.start_soon(channel.default_exchange.publish, message, "s")
            found = []
            arguments = FIRST | {"x-stream-filter": ["v1"]}
            async with queue.iterator(arguments=arguments) as messages:
                async for message in messages:
                    async with message.process():
                        found.append(message)
                    if len(found) == 100:
                        break
            assert {message.headers["x-stream-filter-value"] for message in found} == {"v1"}
            assert all(message.headers["f"] == 1.5 for message in found)
            assert sorted(int(message.body) for message in found) == list(range(1, 300, 3))

        self.run(shared, main)

    def test_refusals(self, shared: ServerProcess) -> None:
        async def main(connection: Any) -> None:
            channel = await connection.channel()
            queue = await channel.declare_queue("s", durable=True, arguments=STREAM)
            with pytest.raises(aio_pika.exceptions.ChannelPreconditionFailed, match="prefetch"):
                await queue.consume(print)
            channel = await connection.channel(on_return_raises=True)
            with pytest.raises(aio_pika.exceptions.DeliveryError):
                await channel.default_exchange.publish(aio_pika.Message(b""), "missing")
            await channel.default_exchange.publish(aio_pika.Message(b""), "s")

        self.run(shared, main)

    def test_consumers_come_back_after_a_restart(self, server: ServerProcess) -> None:
        async def main(connection: Any) -> None:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=10)
            queue = await channel.declare_queue("s", durable=True, arguments=STREAM)
            sender, receiver = anyio.create_memory_object_stream[bytes](100)

            async def got(message: Any) -> None:
                await message.ack()
                await sender.send(message.body)

            await queue.consume(got, arguments=FIRST)
            await channel.default_exchange.publish(aio_pika.Message(b"one"), "s")
            assert await receiver.receive() == b"one"
            await anyio.to_thread.run_sync(server.stop)
            await anyio.to_thread.run_sync(server.start)
            assert await receiver.receive() == b"one"  # from the first offset, as it asked
            sender.close()
            receiver.close()

        self.run(server, main)


def test_from_amqp_to_a_stream_client_and_back(shared: ServerProcess) -> None:
    """What each writes, the other reads."""
    headers = {"n": 5, "text": "x", "flag": True, "x-stream-filter-value": "emea"}
    with channel_to(shared) as channel:
        channel.queue_declare("s", durable=True, arguments=FILTERED)
        channel.confirm_delivery()
        properties = pika.BasicProperties(
            "text/plain", headers=headers, message_id="m", timestamp=9
        )
        channel.basic_publish("", "s", b"from AMQP", properties)

    async def copy() -> None:
        async with connect(shared.uri) as client:
            async with client.consumer("s", filter_values=["emea"], offset="first") as consumer:
                message = await anext(aiter(consumer))
            assert message.body == b"from AMQP"
            assert message.application_properties == {"n": 5, "text": "x", "flag": True}
            assert message.annotations["x-stream-filter-value"] == "emea"
            assert (message.properties.message_id, message.properties.content_type) == (
                "m",
                "text/plain",
            )
            async with client.producer("s") as producer:
                await producer.send(message.to_message())
                await producer.send(Message(b"new", application_properties={"n": 6}))

    anyio.run(copy)
    with channel_to(shared) as channel:
        (first, _), (again, body), (new, _) = take(channel, "s", 3)
        assert body == b"from AMQP"
        for properties in (first, again):
            del properties.headers["x-stream-offset"]
            assert properties.headers == headers
            assert (properties.message_id, properties.timestamp) == ("m", 9)
        assert new.headers["n"] == 6


class Tls(TlsServer):
    """With AMQP 0-9-1 inside."""

    def __init__(self, folder: Path, processes: int) -> None:
        super().__init__(folder, "--amqp-tls-port", f"--amqp-processes={processes}")

    def certificate_of(self, user: str) -> Path:
        file = self.folder / f"{user}.pem"
        self.issue(file, user)
        return file

    def enter(self, certificate: Path | None = None, **options: Any) -> pika.BlockingConnection:
        context = self.context()
        if certificate is not None:
            context.load_cert_chain(certificate)
        parameters = pika.ConnectionParameters(
            "localhost",
            self.server.amqp_tls_port,
            ssl_options=pika.SSLOptions(context, "localhost"),
            **options,
        )
        return pika.BlockingConnection(parameters)


@pytest.fixture(scope="module", params=[0, 1])
def tls(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Tls]:
    made = Tls(tmp_path_factory.mktemp("tls"), request.param)
    with made.running():
        yield made


def test_inside_tls(tls: Tls) -> None:
    bodies = [b"secret", b"x" * 1_000_000, *(b"%d" % n for n in range(500))]
    with tls.enter() as connection:
        channel = connection.channel()
        channel.queue_declare("s", durable=True, arguments=STREAM)
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish("", "s", body)
        assert [body for _, body in take(channel, "s", len(bodies))] == bodies


def test_a_client_known_by_its_certificate(tls: Tls) -> None:
    external = {"credentials": pika.credentials.ExternalCredentials()}
    with tls.enter(tls.certificate_of("guest"), **external) as connection:
        connection.channel().queue_declare("s", durable=True, arguments=STREAM)
    for certificate in (tls.certificate_of("nobody"), None):
        refusals = (
            pika.exceptions.ProbableAuthenticationError,
            pika.exceptions.AuthenticationError,
        )
        with pytest.raises(refusals):
            tls.enter(certificate, **external)


def test_a_close_is_answered_whatever_follows_it(shared: ServerProcess) -> None:
    """Also where the client sends on: a reset would take the answer away from it."""
    login = (
        m.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US"),
        m.ConnectionTuneOk(1, 4096, 0),
        m.ConnectionOpen("/", "", True),
        m.ConnectionClose(200, "bye", 0, 0),
    )
    frames = b"".join(method_frame(0, method) for method in login)
    with socket.create_connection(("localhost", shared.amqp_port)) as peer:
        peer.sendall(PROTOCOL_HEADER + frames + bytes(100_000))
        peer.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: peer.recv(1 << 16), b""))
    assert answer.endswith(method_frame(0, m.ConnectionCloseOk()))


def test_many_threads_at_once(shared: ServerProcess) -> None:
    def publish(number: int) -> None:
        with channel_to(shared) as channel:
            channel.confirm_delivery()
            for n in range(20):
                channel.basic_publish("", "s", b"%d" % (100 * number + n))

    with channel_to(shared) as channel:
        channel.queue_declare("s", durable=True, arguments=STREAM)
        threads = [threading.Thread(target=publish, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = [int(body) for _, body in take(channel, "s", 100)]
    for number in range(5):
        assert [n % 100 for n in found if n // 100 == number] == list(range(20))
