"""Addresses of servers: rabbitmq-stream://user:password@host:port/virtual-host.

With TLS the scheme is rabbitmq-stream+tls, and files may follow as in the addresses of AMQP:
?cacertfile=ca.pem&certfile=client.pem&keyfile=client-key.pem
"""

from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlsplit

SCHEME = "rabbitmq-stream"
TLS_SCHEME = f"{SCHEME}+tls"
DEFAULT_URI = f"{SCHEME}://guest:guest@localhost:5552/"
DEFAULT_PORTS = {SCHEME: 5552, TLS_SCHEME: 5551}


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files for a TLS connection; empty: the system's authorities, no certificate of one's own."""

    cacertfile: str = ""
    certfile: str = ""
    keyfile: str = ""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server, and the user to log in as; the password does not show.

    Without a user it is the one that the client's certificate is for.
    """

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    virtual_host: str
    tls: TlsFiles | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_uri(uri: str) -> Endpoint:
    """Read an address; what is missing is the default: guest, localhost, 5552, `/`.

    Raises:
        ValueError: it is not one.
    """
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{_shown(uri)} is not an address: {error}") from None
    if parts.scheme not in DEFAULT_PORTS or not parts.netloc:
        raise ValueError(
            f"{_shown(uri)} is not an address of a stream server: expected {SCHEME}://user:password@host:port/"
        )
    is_tls = parts.scheme == TLS_SCHEME
    files = dict(parse_qsl(parts.query, keep_blank_values=True)) if is_tls else {}
    unknown = files.keys() - {"cacertfile", "certfile", "keyfile"}
    if unknown or parts.fragment or (parts.query and not files):
        expected = "only cacertfile, certfile and keyfile are" if is_tls else "nothing is"
        raise ValueError(f"{_shown(uri)}: {expected} expected after the virtual host")
    return Endpoint(
        host=parts.hostname or "localhost",
        port=DEFAULT_PORTS[parts.scheme] if port is None else port,
        user=unquote(parts.username or ("" if files.get("certfile") else "guest")),
        password=unquote("guest" if parts.password is None else parts.password),
        virtual_host=unquote(parts.path[1:]) or "/",
        tls=TlsFiles(**files) if is_tls else None,
    )


def in_virtual_host(uri: str, virtual_host: str) -> str:
    """An address with a virtual host, which it does not name or is its own.

    Raises:
        ValueError: it names another one, or is no address.
    """
    parse_uri(uri)
    parts = urlsplit(uri)
    named = unquote(parts.path[1:])
    if named not in ("", virtual_host):
        raise ValueError(
            f"{_shown(uri)} is an address in the virtual host {named}, expected {virtual_host}"
        )
    return parts._replace(path=f"/{quote(virtual_host, safe='')}").geturl()


def _shown(uri: str) -> str:
    """The address without what may be a password."""
    head, at, tail = uri.rpartition("@")
    return repr(f"{head.partition('://')[0]}://…@{tail}" if at else uri)
