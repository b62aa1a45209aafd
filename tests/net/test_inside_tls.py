"""Connections from node to node inside TLS: a certificate is known by its fingerprint."""

import hashlib
import ssl
from contextlib import suppress
from functools import partial

import pytest
import trio
import trustme

from streamd.net import passing


async def _echo(stream: trio.abc.Stream) -> None:
    with suppress(trio.BrokenResourceError):  # who left during the handshake, say
        async with stream:
            async for data in stream:
                await stream.send_all(data)


def _issued() -> tuple[ssl.SSLContext, str]:
    """A server's context, and the fingerprint of its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    issued = trustme.CA().issue_cert("localhost")
    issued.configure_cert(context)
    der = ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode())
    return context, hashlib.sha256(der).hexdigest()


async def test_who_shows_the_certificate_is_talked_to() -> None:
    context, certificate = _issued()
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_ssl_over_tcp, _echo, 0, context, host="127.0.0.1")
        (listener,) = await nursery.start(serve)
        port = listener.transport_listener.socket.getsockname()[1]
        transport = await passing.connect("127.0.0.1", port, certificate)
        assert transport.is_tls
        await transport.send(b"hello")
        assert await transport.receive() == b"hello"
        transport.close()
        with pytest.raises(OSError, match="another certificate"):
            await passing.connect("127.0.0.1", port, _issued()[1])
        nursery.cancel_scope.cancel()


async def test_who_does_not_speak_tls_is_not() -> None:
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, _echo, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        with pytest.raises(OSError, match="does not speak TLS"):
            await passing.connect("127.0.0.1", port, "00")
        nursery.cancel_scope.cancel()
