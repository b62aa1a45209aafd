"""The HTTP API of a real server, inside TLS, behind a proxy, and asked by browsers."""

import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.process import ServerProcess, wait_until
from tests.support.tls import TlsServer


class Https(TlsServer):
    """With HTTP inside."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "--http-tls-port")

    def client(self) -> httpx.Client:
        url = f"https://localhost:{self.server.https_port}/api/"
        return httpx.Client(base_url=url, auth=("guest", "guest"), verify=self.context())

    def wrapped(self) -> ssl.SSLSocket:
        plain = socket.create_connection(("localhost", self.server.https_port))
        options = {"server_hostname": "localhost", "suppress_ragged_eofs": False}
        return self.context().wrap_socket(plain, **options)


@pytest.fixture(scope="module")
def https(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Https]:
    made = Https(tmp_path_factory.mktemp("https"))
    with made.running():
        yield made


def test_streams_inside_tls(https: Https) -> None:
    """HTTP inside TLS alone: the plain port is off."""
    server = https.server
    assert server.ready_line.endswith(
        f" http=off metrics=off https=127.0.0.1:{server.https_port}\n"
    )
    with https.client() as http:
        assert http.put("queues/%2F/s", json={"arguments": {}}).status_code == 201
        assert [row["name"] for row in http.get("queues").json()] == ["s"]
        listeners = http.get("overview").json()["listeners"]
        assert ("https", server.https_port) in [(row["protocol"], row["port"]) for row in listeners]
        page = {"origin": "https://evil.example"}
        assert http.delete("queues/%2F/s", headers=page).status_code == 403


def test_an_answer_and_its_end_inside_tls(https: Https) -> None:
    """The end is announced: without that, clients cannot tell a whole answer from a cut one."""
    with https.wrapped() as raw:
        raw.sendall(b"GET /api/whoami HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        data = b""
        while some := raw.recv(4096):
            data += some
    assert data.startswith(b"HTTP/1.1 401 ")


def test_a_port_inside_tls_that_is_spoken_to_without(https: Https) -> None:
    with socket.create_connection(("localhost", https.server.https_port)) as raw:
        raw.sendall(b"GET /api/whoami HTTP/1.1\r\nhost: localhost\r\n\r\n")
        while raw.recv(4096):
            pass
    wait_until(lambda: "a TLS handshake failed" in https.server.log.read_text())
    with https.client() as http:
        assert http.get("whoami").status_code == 200


def test_a_certificate_is_changed_while_http_is_served(https: Https) -> None:
    def certificate() -> bytes:
        with https.wrapped() as raw:
            return raw.getpeercert(binary_form=True) or b""

    before = certificate()
    with https.client() as http:
        assert http.get("whoami").status_code == 200
        https.issue(https.certificate)
        https.server.signal(signal.SIGHUP)
        wait_until(lambda: "read the certificate again" in https.server.log.read_text())
        assert http.get("whoami").status_code == 200
    assert certificate() != before


def test_a_server_inside_tls_ends_in_order(tmp_path: Path) -> None:
    https = Https(tmp_path)
    with https.running(), https.wrapped():
        assert https.server.stop() == 0


def test_settings_for_browsers_and_proxies(tmp_path: Path) -> None:
    file = tmp_path / "streamd.toml"
    file.write_text('http_path_prefix = "/streamd"\nhttp_allowed_host = ["file.example"]\n')
    options = ("--http-allowed-host", "mq.example", "--http-allowed-host", "mq")
    options += ("--http-port", "0", "--config", str(file))
    with ServerProcess(tmp_path / "data", *options) as process:
        url = f"http://127.0.0.1:{process.http_port}/streamd/api/whoami"
        asked = ("mq.example", "mq:80", socket.gethostname(), "file.example")
        login = ("guest", "guest")
        found = [httpx.get(url, auth=login, headers={"host": host}).status_code for host in asked]
        assert found == [200, 200, 200, 403]  # options replace what is in the file
