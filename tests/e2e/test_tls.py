"""TLS: the same streams inside it, certificates that change, clients known by theirs."""

import asyncio
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import rstream
import trustme

from clients import ConnectionLost, LoginRefused, connect
from clients.connection import open_connection
from clients.uri import parse_uri
from streamd.config import Config
from streamd.net.tls import Certificates
from streamd.wire.stream import commands as c
from tests.e2e.test_rstream import flight, publish_and_wait
from tests.e2e.test_serve import serve
from tests.e2e.test_stop import SUBSCRIBE, raw
from tests.support.process import wait_until
from tests.support.tls import TlsServer

BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])


class Tls(TlsServer):
    """With the stream protocol inside."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "--tls-port")

    def uri(self, user: str = "guest:guest@", **files: Path) -> str:
        query = "&".join(
            f"{name}={path}" for name, path in ({"cacertfile": self.ca} | files).items()
        )
        return f"rabbitmq-stream+tls://{user}localhost:{self.server.tls_port}/?{query}"

    def enter(self, backend: str = "trio", user: str = "guest:guest@", **files: Path) -> Any:
        async def work() -> list[dict[str, str]]:
            async with connect(self.uri(user, **files)) as client:
                return await client.manage("user.list")

        return anyio.run(work, backend=backend)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tls]:
    made = Tls(tmp_path_factory.mktemp("tls"))
    with made.running():
        yield made


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Tls]:
    """For a test that changes it, or counts what it holds."""
    made = Tls(tmp_path)
    with made.running():
        yield made


@BACKENDS
def test_messages_there_and_back(tls: Tls, backend: str) -> None:
    """Chunks of all sizes, with a filter: what comes out is what went in."""
    bodies = [b"%d" % n * (n % 200) for n in range(5000)] + [b"x" * 500_000]
    stream = f"of-{backend}"

    async def work() -> list[bytes]:
        async with connect(tls.uri()) as client:
            await client.create(stream, filter_size=64)
            async with client.producer(stream) as producer:
                for number, body in enumerate(bodies):
                    await producer.send(body, filter_value=f"v{number % 3}")
            async with client.consumer(stream, offset="first", until_end=True) as messages:
                return [message.body async for message in messages]

    assert anyio.run(work, backend=backend) == bodies


def test_with_rstream(tls: Tls) -> None:
    options = {"ssl_context": tls.context(), "username": "guest", "password": "guest"}

    async def main() -> list[bytes]:
        got: list[bytes] = []
        async with rstream.Producer("localhost", tls.server.tls_port, **options) as sink:
            await sink.create_stream("flights")
            await publish_and_wait(sink, [flight("HA", n) for n in range(500)])
        source = rstream.Consumer("localhost", tls.server.tls_port, **options)
        await source.start()

        async def on_message(message: Any, _context: Any) -> None:
            got.append(bytes(message.body))

        first = rstream.ConsumerOffsetSpecification(rstream.OffsetType.FIRST, None)
        await source.subscribe(
            "flights", on_message, decoder=rstream.amqp_decoder, offset_specification=first
        )
        running = asyncio.create_task(source.run())
        while len(got) < 500:
            await asyncio.sleep(0.02)
        await source.close()
        await running
        return got

    assert asyncio.run(asyncio.wait_for(main(), 30)) == [b"%d" % n for n in range(500)]


def test_the_port_that_is_announced_is_the_one_inside_tls(tls: Tls) -> None:
    assert tls.server.tls_port != tls.server.port

    async def main() -> list[int]:
        async with open_connection(parse_uri(tls.uri()), "test", 0, print) as connection:
            answer = await connection.request(c.Metadata, ("none",))
            return [broker.port for broker in answer.brokers]

    assert anyio.run(main) == [tls.server.tls_port]


@BACKENDS
def test_a_client_known_by_its_certificate(tls: Tls, backend: str) -> None:
    certificate = tls.folder / "client.pem"
    tls.issue(certificate, "guest")
    assert tls.enter(backend, "", certfile=certificate) == [
        {"name": "guest", "tags": "administrator"}
    ]
    tls.issue(certificate, "nobody")
    with pytest.raises(LoginRefused, match="authentication failure"):
        tls.enter(backend, "", certfile=certificate)
    tls.issue(certificate, "guest", trustme.CA())
    with pytest.raises(ConnectionLost):  # a certificate from somebody else
        tls.enter(backend, "", certfile=certificate)


@BACKENDS
def test_a_server_that_is_not_trusted(tls: Tls, backend: str) -> None:
    other = tls.folder / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    with pytest.raises(ConnectionLost, match="no TLS with localhost:"):
        tls.enter(backend, cacertfile=other)
    with pytest.raises(ValueError, match="cannot use /nowhere: No such file"):
        tls.enter(backend, cacertfile=Path("/nowhere"))


def test_a_certificate_is_changed_while_the_server_runs(own: Tls) -> None:
    def serial() -> int:
        with (
            socket.create_connection(("localhost", own.server.tls_port)) as plain,
            own.context().wrap_socket(plain, server_hostname="localhost") as wrapped,
        ):
            certificate = wrapped.getpeercert()
            assert certificate is not None
            return int(str(certificate["serialNumber"]), 16)

    def reload(outcome: str) -> None:
        own.server.signal(signal.SIGHUP)
        wait_until(lambda: outcome in own.server.log.read_text())

    before = serial()
    own.issue(own.certificate)
    reload("read the certificate again")
    after = serial()
    assert after != before
    own.certificate.write_text("no certificate")
    reload("the old certificate stays in use: cannot use")
    assert serial() == after


@pytest.mark.parametrize("port", ["port", "tls_port"])
@pytest.mark.parametrize(
    "data", [b"", b"\x16\x03\x01\x02\x00\x01", b"\0\0\0\4\0\x17\0\1", b"GET / HTTP/1.1\r\n\r\n"]
)
def test_something_else_on_either_port(tls: Tls, port: str, data: bytes) -> None:
    with socket.create_connection(("localhost", getattr(tls.server, port))) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(10)
        while connection.recv(1000):
            pass
    assert tls.enter()


def test_memory_while_a_consumer_inside_tls_reads_nothing(own: Tls) -> None:
    async def work() -> int:
        highest = 0
        async with connect(own.uri()) as client:
            await client.create("s")
            with raw(own.server.tls_port, SUBSCRIBE, tls=own.context()):
                async with client.producer("s") as producer:
                    for _ in range(60):
                        await producer.send_all([b"x" * 100_000] * 10)
                        highest = max(highest, own.server.resident_bytes())
        return highest

    assert anyio.run(work) < 120e6


@pytest.mark.parametrize(
    ("options", "reason", "code"),
    [
        (["--tls-port", "0"], "tls_port needs tls_certificate", 2),
        (["--tls-port", "0", "--tls-certificate", "/nowhere"], "No such file", 1),
        (["--tls-port", "0", "--tls-certificate", __file__], "cannot use the certificate", 1),
    ],
)
def test_certificates_that_cannot_be_used(
    tmp_path: Path, options: list[str], reason: str, code: int
) -> None:
    result = serve("--data", str(tmp_path / "d"), "--stream-port", "0", *options)
    assert result.returncode == code
    assert reason in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_renegotiation_is_refused(tls: Tls) -> None:
    """OpenSSL 3 refuses it anyway; with older ones it costs the server more than the peer."""
    certificates = Certificates(Config(tls_certificate=str(tls.certificate), tls_port=0))
    assert certificates.context.options & ssl.OP_NO_RENEGOTIATION
