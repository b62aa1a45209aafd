"""Why there is no TLS connection: which it was, and what to do about it."""

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme

from clients import ConnectionLost, connect
from tests.support.proxy import answering

BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])


def in_days(number: int) -> datetime:
    return datetime.now(UTC) + timedelta(days=number)


def reason(backend: str, address: str) -> str:
    """Why there is no connection with a server."""

    async def work() -> None:
        async with connect(address):
            pass

    with pytest.raises(ConnectionLost) as lost:
        anyio.run(work, backend=backend)
    return str(lost.value)


class Authority:
    """An authority, and servers with its certificates."""

    def __init__(self, folder: Path) -> None:
        self.made = trustme.CA()
        self.file = folder / "ca.pem"
        self.made.cert_pem.write_to_path(str(self.file))

    def serve(
        self, *names: str, asks: bool = False, **options: Any
    ) -> Callable[[socket.socket], None]:
        """Answer with a certificate, ask for the client's, and end the connection."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.made.issue_cert(*names, **options).configure_cert(context)
        if asks:
            context.verify_mode = ssl.CERT_REQUIRED

        def answer(connection: socket.socket) -> None:
            with context.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            ) as inside:
                with suppress(ssl.SSLError):
                    inside.do_handshake()
                    inside.recv(1)
                socket.socket.shutdown(inside, socket.SHUT_WR)
                while socket.socket.recv(inside, 1000):  # else the peer misses what was said
                    pass

        return answer


@BACKENDS
class TestCertificates:
    @pytest.fixture
    def authority(self, tmp_path: Path) -> Authority:
        return Authority(tmp_path)

    @pytest.mark.parametrize(
        ("name", "begins", "ends", "expected"),
        [
            ("other", -20, 20, "is for another host, not localhost; connect to a name that it"),
            ("localhost", -20, -10, "has expired; the server needs a new one"),
            ("localhost", 10, 20, "is not valid yet; look at the clocks of both machines"),
        ],
    )
    def test_bad_certificates(
        self, authority: Authority, backend: str, name: str, begins: int, ends: int, expected: str
    ) -> None:
        days = {"not_before": in_days(begins), "not_after": in_days(ends)}
        with answering(authority.serve(name, **days)) as port:
            uri = f"rabbitmq-stream+tls://localhost:{port}/?cacertfile={authority.file}"
            found = reason(backend, uri)
        assert found.startswith(f"no TLS with localhost:{port}: its certificate {expected}")

    def test_an_address_in_numbers(self, authority: Authority, backend: str) -> None:
        with answering(authority.serve("localhost")) as port:
            uri = f"rabbitmq-stream+tls://127.0.0.1:{port}/?cacertfile={authority.file}"
            assert "is for another host, not 127.0.0.1" in reason(backend, uri)

    def test_an_unknown_authority(self, authority: Authority, backend: str) -> None:
        with answering(authority.serve("localhost")) as port:
            found = reason(backend, f"rabbitmq-stream+tls://localhost:{port}/")
        assert "from an authority that is not trusted here; name the authority's file" in found

    def test_a_client_without_certificate(self, authority: Authority, backend: str) -> None:
        with answering(authority.serve("localhost", asks=True)) as port:
            uri = f"rabbitmq-stream+tls://localhost:{port}/?cacertfile={authority.file}"
            found = reason(backend, uri)
        assert "it refuses the client's certificate (tlsv13 alert certificate required)" in found


@BACKENDS
def test_a_port_without_tls(backend: str) -> None:
    with answering(lambda connection: connection.recv(1000)) as port:
        found = reason(backend, f"rabbitmq-stream+tls://localhost:{port}/")
    assert "it ended the connection; is it a port for TLS? without TLS the address begins" in found

    def greet(connection: socket.socket) -> None:
        connection.sendall(b"220 hello, this is something else\r\n")
        connection.recv(1000)

    with answering(greet) as port:
        found = reason(backend, f"rabbitmq-stream+tls://localhost:{port}/")
    assert "what it answers is not TLS; is it a port for TLS?" in found


@BACKENDS
def test_a_port_that_expects_tls(backend: str) -> None:
    with answering(lambda connection: connection.recv(1000)) as port:
        found = reason(backend, f"rabbitmq-stream://localhost:{port}/")
    assert found.endswith(", or expects TLS: then the address begins with rabbitmq-stream+tls://")
