"""The port for metrics of a real server: when it is taken, inside TLS, and with slow scrapers."""

import socket
import ssl
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support.metrics import Scraped
from tests.support.process import ServerProcess, wait_until
from tests.support.tls import TlsServer


def scrape(port: int, path: str = "") -> Scraped:
    with urlopen(f"http://127.0.0.1:{port}/metrics{path}") as answer:
        return Scraped(answer.read().decode())


def test_a_port_of_its_own(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--metrics-port", "0") as server:
        assert f" http=off metrics=127.0.0.1:{server.metrics_port}\n" in server.ready_line
        found = scrape(server.metrics_port)
        assert found.of("rabbitmq_process_open_fds") > 5
        assert found.of("rabbitmq_process_resident_memory_bytes") > 10_000_000
        assert found.of("rabbitmq_resident_memory_limit_bytes") > 100_000_000
        assert found.of("rabbitmq_disk_space_available_bytes") > 0
        silent = [socket.create_connection(("127.0.0.1", server.metrics_port)) for _ in range(40)]
        assert scrape(server.metrics_port, "/per-object").of("rabbitmq_connections") == 0
        for one in silent:
            one.close()


def test_a_port_that_somebody_else_has(tmp_path: Path) -> None:
    """The default gives way, any other does not."""
    log = tmp_path / "data.log"
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind(("127.0.0.1", 15692))
            other.listen()
        except OSError:  # another server on this machine has it: as good
            pass
        with ServerProcess(tmp_path / "data", "--metrics-port", "15692") as server:
            assert server.metrics_port == 0
            assert " metrics=off" in server.ready_line
    assert "cannot listen on 127.0.0.1:15692: Address already in use" in log.read_text()
    assert "this server runs without metrics" in log.read_text()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        server = ServerProcess(tmp_path / "data", "--metrics-port", port)
        with pytest.raises(AssertionError, match=f"cannot listen on 127.0.0.1:{port}"):
            server.start()
        wait_until(lambda: server._process is None or server._process.poll() == 1)
        server.end()


def test_inside_tls(tmp_path: Path) -> None:
    made = TlsServer(tmp_path, "--metrics-tls-port")
    with made.running():
        server = made.server
        assert server.ready_line.endswith(f" metrics-tls=127.0.0.1:{server.metrics_tls_port}\n")
        url = f"https://localhost:{server.metrics_tls_port}/metrics"
        with urlopen(url, context=made.context()) as answer:
            assert b"rabbitmq_identity_info" in answer.read()
        with pytest.raises((ssl.SSLError, OSError)):
            scrape(server.metrics_tls_port)
