"""Two nodes as processes: whoever comes to the one that stands by is served by the leader."""

import asyncio
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aio_pika
import anyio
import httpx
import pytest
import trustme

from clients import connect
from tests.support.process import ServerProcess, wait_until

GUEST = ("guest", "guest")


class _Two:
    """A leader, and a standby, each with a certificate of its own.

    Attributes:
        authorities: whose certificate the one or the other shows.
    """

    def __init__(self, folder: Path, *more: str) -> None:
        self.nodes: list[ServerProcess] = []
        self.authorities: list[Path] = []
        self._folder = folder
        (folder / "tier").mkdir()
        for name in ("a", "b"):
            self.authorities.append(folder / f"{name}-ca.pem")
            file = self.issue(name)
            ports = [f"--{one}-port=0" for one in ("tls", "amqp-tls", "http", "http-tls")]
            tier = ("--tier", (folder / "tier").as_uri(), "--confirm", "store")
            options = (*tier, "--node", name, "--tls-certificate", str(file), *ports)
            options += ("--amqp-processes", "1", "--metrics-port", "0", *more)
            self.nodes.append(ServerProcess(folder / name, *options))

    def issue(self, name: str) -> Path:
        """A certificate from an authority of its own."""
        authority, file = trustme.CA(), self._folder / f"{name}.pem"
        authority.cert_pem.write_to_path(str(self._folder / f"{name}-ca.pem"))
        issued = authority.issue_cert("localhost")
        issued.private_key_and_cert_chain_pem.write_to_path(str(file))
        return file

    @property
    def leader(self) -> ServerProcess:
        return self.nodes[0]

    @property
    def standby(self) -> ServerProcess:
        return self.nodes[1]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[_Two]:
    made = _Two(tmp_path)
    with made.leader, made.standby:
        assert [node.role for node in made.nodes] == ["leader", "standby"]
        yield made
    for node in made.nodes:
        assert "Traceback" not in node.log.read_text()


def test_nodes_ask_each_other_inside_tls(tmp_path: Path) -> None:
    """There is no other way: they know each other's certificates by the heartbeats."""
    two = _Two(tmp_path, "--leader-locator", "balanced", "--stream-port", "off")
    with two.leader, two.standby:
        uris = [
            f"rabbitmq-stream+tls://guest:guest@localhost:{node.tls_port}/?cacertfile={authority}"
            for node, authority in zip(two.nodes, two.authorities, strict=True)
        ]
        for number in range(4):
            for uri in uris:
                anyio.run(_publish, uri, b"x", f"s{number}")
        for number in range(4):
            for uri in uris:
                assert anyio.run(_bodies, uri, f"s{number}") == [b"x", b"x"]


def test_all_doors_of_a_standby_lead_to_the_leader(two: _Two) -> None:
    leader, standby = two.leader, two.standby
    trusted = f"?cacertfile={two.authorities[0]}"  # what is inside TLS, the leader decrypts
    inside = f"rabbitmq-stream+tls://guest:guest@localhost:{standby.tls_port}/{trusted}"
    anyio.run(_publish, standby.uri, b"by stream")
    anyio.run(_publish, inside, b"by TLS")
    asyncio.run(_publish_over_amqp(standby.amqp_uri, b"by AMQP"))
    amqps = f"amqps://guest:guest@localhost:{standby.amqp_tls_port}/"
    context = ssl.create_default_context(cafile=str(two.authorities[0]))
    asyncio.run(_publish_over_amqp(amqps, b"by AMQPS", ssl_context=context))
    expected = [b"by stream", b"by TLS", b"by AMQP", b"by AMQPS"]
    assert anyio.run(_bodies, leader.uri) == expected


async def _publish(uri: str, body: bytes, stream: str = "s") -> None:
    async with connect(uri) as client:
        await client.create(stream, exist_ok=True)
        async with client.producer(stream) as producer:
            await producer.send(body)


async def _bodies(uri: str, stream: str = "s") -> list[bytes]:
    async with (
        connect(uri) as client,
        client.consumer(stream, offset="first", until_end=True) as messages,
    ):
        return [bytes(message.body) async for message in messages]


async def _publish_over_amqp(uri: str, body: bytes, **options: Any) -> None:
    async with await aio_pika.connect(uri, **options) as connection:
        channel = await connection.channel()
        await channel.default_exchange.publish(aio_pika.Message(body), "s")


def test_http_too(two: _Two) -> None:
    ports = (two.standby.http_port, None), (two.standby.https_port, two.authorities[1])
    for port, verify in ports:
        scheme = "http" if verify is None else "https"
        context = ssl.create_default_context(cafile=str(verify)) if verify else True
        with httpx.Client(base_url=f"{scheme}://localhost:{port}", verify=context) as http:
            path = f"/api/queues/%2F/{scheme}"
            arguments = {"arguments": {"x-queue-type": "stream"}}
            assert http.get(path).status_code == 401
            assert http.put(path, json=arguments, auth=GUEST).status_code == 201
            assert http.get(path, auth=GUEST).json()["name"] == scheme
            assert http.get("/readyz").json() == {"status": "ok", "role": "standby"}
            overview = http.get("/api/overview", auth=GUEST).json()
            assert overview["cluster"]["role"] == "leader"
            page = http.get("/", follow_redirects=True)
            assert (page.status_code, page.headers["content-type"][:9]) == (200, "text/html")
    with httpx.Client() as http:
        shown = http.get(f"http://localhost:{two.standby.metrics_port}/metrics").text
        assert "streamd_node_leads 0" in shown


def test_a_certificate_that_changes_is_known_before_long(two: _Two) -> None:
    two.issue("a")
    two.leader.signal(signal.SIGHUP)
    url = f"http://localhost:{two.standby.http_port}/api/overview"

    def role() -> str:
        return str(httpx.get(url, auth=GUEST).json()["cluster"]["role"])

    wait_until(lambda: role() == "standby")  # it does not give passwords to another one
    wait_until(lambda: role() == "leader")
