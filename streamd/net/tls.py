"""Connections inside TLS: certificates that can be changed while the server runs.

Any protocol may run inside. Chunks are read and encrypted here; `os.sendfile` cannot be used.
Everything else is as without TLS, one flow of bytes.
"""

import hashlib
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import trio

from segments.disk import Buffer, File
from segments.errors import UnreadableError
from streamd.config import LOGIN_SECONDS, Config
from streamd.net.addresses import is_local_address
from streamd.net.transport import (
    Address,
    FileUnreadable,
    TransportClosed,
    feed_from,
    keep_alive,
    set_unsent_limit,
    unsent_is_high,
)

logger = logging.getLogger(__name__)

_RECEIVE_BYTES = 256 << 10  # decrypted at once, into a buffer of its own each time
_PIECE_BYTES = 64 << 10  # read from a segment and encrypted at once
_COMMON_NAME = "commonName"


class CertificateError(Exception):
    """Certificate, key or authorities cannot be used; one sentence."""


class Certificates:
    """The server's certificate, and the authorities whose client certificates it accepts.

    Attributes:
        context: for connections.
        fingerprint: SHA-256 of the certificate, in hex.

    Raises:
        CertificateError: one of them cannot be used.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self.context = _make_context(config)
        self.fingerprint = _fingerprint(config)

    def reload(self) -> None:
        """Read the files again; open connections keep the certificate that they have."""
        try:
            made = _make_context(self._config), _fingerprint(self._config)
        except CertificateError as error:
            logger.error("the old certificate stays in use: %s", error)
        else:
            self.context, self.fingerprint = made
            logger.info("read the certificate again")


def _make_context(config: Config) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # each would cost the peer little, the server much
    try:
        context.load_cert_chain(config.tls_certificate, config.tls_key or None)
    except (OSError, ssl.SSLError) as error:
        files = f"{config.tls_certificate} and {config.tls_key or 'the key in it'}"
        reason = error.strerror or error
        raise CertificateError(f"cannot use the certificate {files}: {reason}") from error
    if config.tls_ca:
        try:
            context.load_verify_locations(config.tls_ca)
        except (OSError, ssl.SSLError) as error:
            reason = error.strerror or error
            raise CertificateError(f"cannot use {config.tls_ca}: {reason}") from error
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _fingerprint(config: Config) -> str:
    """That of the first certificate in the file, which the context has just read."""
    try:
        text = Path(config.tls_certificate).read_text(errors="replace")
        begin, end = text.index(ssl.PEM_HEADER), text.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(text[begin:end])).hexdigest()
    except (OSError, ValueError) as error:
        raise CertificateError(f"cannot use {config.tls_certificate}: {error}") from error


async def inside_tls(
    stream: trio.SocketStream, certificate: str
) -> trio.SSLStream[trio.SocketStream]:
    """A connection to another node, which shows the certificate that its heartbeat names.

    Args:
        stream: is closed where that fails.
        certificate: SHA-256 of it, in hex.

    Raises:
        OSError: it shows another one.
        trio.BrokenResourceError: it does not speak TLS.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # see below
    inside = trio.SSLStream(stream, context, https_compatible=True)
    try:
        await inside.do_handshake()
        shown = inside.getpeercert(binary_form=True) or b""
        if hashlib.sha256(shown).hexdigest() != certificate:
            host, port = stream.socket.getpeername()[:2]
            raise OSError(f"{host}:{port} shows another certificate than its heartbeat names")
    except BaseException:
        stream.socket.close()
        raise
    return inside


class TlsTransport:
    """A connection inside TLS; see transport.Transport.

    Attributes:
        certificate_user: common name in the client's certificate, None without one.
    """

    is_tls = True

    def __init__(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        connection = stream.transport_stream.socket
        self.peer = Address(*connection.getpeername()[:2])
        self.local = Address(*connection.getsockname()[:2])
        self.is_local = is_local_address(self.peer.host)
        self.certificate_user = _common_name(stream)
        self._stream = stream
        self._pending: list[Buffer] = []
        self.num_reads = 0
        set_unsent_limit(stream.transport_stream.socket)
        keep_alive(stream.transport_stream.socket)

    async def receive(self) -> bytes:  # noqa: D102 - see Transport
        try:
            data = bytes(await self._stream.receive_some(_RECEIVE_BYTES))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise TransportClosed from error
        self.num_reads += 1
        return data

    async def feed(self, take: Callable[[bytes], int]) -> bool:  # noqa: D102 - see Transport
        return await feed_from(self.receive, take)

    def hurry(self) -> None:
        """Nothing: it is always read at once."""

    def send_some(self, parts: Sequence[Buffer]) -> int:  # noqa: ARG002, D102 - see Transport
        return 0  # encrypting cannot be undone: what was taken must be sent

    async def send(self, *parts: Buffer, more: bool = False) -> None:  # noqa: D102
        self._pending += parts
        if not more:
            await self._flush()

    async def send_file(self, file: File, position: int, size: int) -> None:  # noqa: D102
        end = position + size
        while position < end:
            try:
                piece = file.read(min(_PIECE_BYTES, end - position), position)
            except UnreadableError as error:
                raise FileUnreadable(str(error)) from error
            if not piece:
                raise FileUnreadable(f"{file.path} ends before byte {end}")
            self._pending.append(piece)
            position += len(piece)
            await self._flush()

    async def _flush(self) -> None:
        data = b"".join(self._pending)
        self._pending.clear()
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise TransportClosed from error

    @property
    def is_congested(self) -> bool:  # noqa: D102 - see Transport
        return unsent_is_high(self._stream.transport_stream.socket.fileno())

    async def drained(self) -> None:  # noqa: D102 - see Transport
        try:
            await trio.lowlevel.wait_writable(self._stream.transport_stream.socket)
        except (OSError, trio.ClosedResourceError) as error:
            raise TransportClosed from error

    def end_sending(self) -> None:  # noqa: D102 - see Transport
        with suppress(OSError):  # it has gone
            self._stream.transport_stream.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:  # noqa: D102 - see Transport
        self._stream.transport_stream.socket.close()


def _common_name(stream: trio.SSLStream[trio.SocketStream]) -> str | None:
    certificate = stream.getpeercert()
    for part in certificate["subject"] if certificate else ():
        for key, value in part:
            if key == _COMMON_NAME:
                return str(value)
    return None


async def accept(certificates: Certificates, stream: trio.SocketStream) -> TlsTransport | None:
    """Put a connection inside TLS; None when the handshake fails."""
    wrapped = await shake_hands(certificates, stream)
    try:
        return None if wrapped is None else TlsTransport(wrapped)
    except OSError as error:
        logger.info("a TLS connection has gone: %s", error)
        stream.socket.close()
        return None


async def shake_hands(
    certificates: Certificates, stream: trio.SocketStream
) -> trio.SSLStream[trio.SocketStream] | None:
    """The same as a stream, for protocols that need no transport of ours."""
    wrapped = trio.SSLStream(stream, certificates.context, server_side=True, https_compatible=True)
    try:
        with trio.fail_after(LOGIN_SECONDS):
            await wrapped.do_handshake()
    except (trio.BrokenResourceError, trio.TooSlowError, OSError) as error:
        reason = error.__cause__ or error
        logger.info("a TLS handshake failed: %s", reason)
        stream.socket.close()
        return None
    return wrapped


async def end_sending(
    stream: trio.SocketStream | trio.SSLStream[trio.SocketStream],
) -> trio.SocketStream:
    """Tell the peer that nothing more comes.

    Returns:
        The stream of bytes as they come, which the peer may still send.

    Raises:
        BrokenResourceError: the peer has gone.
    """
    if isinstance(stream, trio.SSLStream):
        with suppress(
            trio.BrokenResourceError
        ):  # OpenSSL takes what has come meanwhile for a fault
            # trio has no other way to send close_notify without waiting for the peer's.
            await stream._retry(stream._ssl_object.unwrap, ignore_want_read=True)  # noqa: SLF001
        stream = stream.transport_stream
    await stream.send_eof()
    return stream
