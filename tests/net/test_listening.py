"""Listening at all addresses of a host."""

import errno
import socket
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio

from streamd.config import Config
from streamd.net import listening
from streamd.net.transport import Address
from streamd.server import serve

NAME = "several.test"
ADDRESSES = ("127.0.0.1", "127.0.0.2")


@pytest.fixture(autouse=True)
def name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with several addresses, one of them twice."""
    original = socket.getaddrinfo

    def getaddrinfo(host: object, *arguments: object, **options: object) -> object:
        hosts = (*ADDRESSES, ADDRESSES[0]) if host == NAME else (host,)
        return [a for h in hosts for a in original(h, *arguments, **options)]  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def reach(address: str, port: int) -> None:
    socket.create_connection((address, port), 5).close()


def test_all_addresses_of_a_name_at_one_port() -> None:
    sockets = listening.listen(NAME, 0)
    assert len(sockets) == len(ADDRESSES)
    (port,) = {bound.getsockname()[1] for bound in sockets}
    for address in ADDRESSES:
        reach(address, port)
    with pytest.raises(OSError, match="in use"):
        listening.listen(NAME, port)
    for bound in sockets:
        bound.close()
    for bound in listening.listen(NAME, port):
        bound.close()


def test_a_port_that_is_free_at_one_address_only(monkeypatch: pytest.MonkeyPatch) -> None:
    bound, num_tries = listening._bound, 0

    def taken(family: int, address: tuple[object, ...], **options: bool) -> socket.socket:
        nonlocal num_tries
        if address[0] == ADDRESSES[1]:
            num_tries += 1
            if num_tries < 3:
                raise OSError(errno.EADDRINUSE, "in use")
        return bound(family, address, **options)

    monkeypatch.setattr(listening, "_bound", taken)
    for found in listening.listen(NAME, 0):
        found.close()
    assert num_tries == 3


def test_an_address_that_this_machine_has_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(f"{__name__}.ADDRESSES", ("192.0.2.1", "127.0.0.1"))
    (found,) = listening.listen(NAME, 0)
    found.close()
    assert f"not at all addresses of {NAME}" in caplog.text
    with pytest.raises(OSError, match="assign"):
        listening.listen("192.0.2.1", 0)


@pytest.mark.parametrize("host", [NAME, "::"])
def test_all_protocols_listen_at_the_same_addresses(tmp_path: Path, host: str) -> None:
    if host == "::" and not socket.has_dualstack_ipv6():
        pytest.skip("this system has no IPv6")
    config = Config(data=str(tmp_path), host=host, stream_port=0, amqp_port=0, http_port=0)
    addresses = ADDRESSES if host == NAME else ("127.0.0.1", "::1")

    async def use() -> None:
        async with trio.open_nursery() as nursery:
            server = await nursery.start(partial(serve, config))
            for place in server.addresses.values():
                for address in addresses:
                    reach(address, place.port)
            async with httpx.AsyncClient(auth=("guest", "guest")) as client:
                for address in addresses:
                    at = Address(address, server.addresses["http"].port)
                    assert (await client.get(f"http://{at}/api/whoami")).status_code == 200
            nursery.cancel_scope.cancel()

    trio.run(use)
