"""Addresses of servers: rabbitmq-stream://user:password@host:port/virtual-host."""

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

SCHEME = "rabbitmq-stream"
DEFAULT_URI = f"{SCHEME}://guest:guest@localhost:5552/"
_DEFAULT_PORT = 5552


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server and who wants to enter; the password does not show."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    virtual_host: str

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
        raise ValueError(f"{_shown(uri)} is no address: {error}") from None
    if parts.scheme != SCHEME or not parts.netloc:
        raise ValueError(
            f"{_shown(uri)} is no address of a stream server: expected {SCHEME}://user:password@host:port/"
        )
    if parts.query or parts.fragment:
        raise ValueError(f"{_shown(uri)}: nothing is expected after the virtual host")
    return Endpoint(
        host=parts.hostname or "localhost",
        port=_DEFAULT_PORT if port is None else port,
        user=unquote(parts.username or "guest"),
        password=unquote("guest" if parts.password is None else parts.password),
        virtual_host=unquote(parts.path[1:]) or "/",
    )


def _shown(uri: str) -> str:
    """The address without what may be a password."""
    head, at, tail = uri.rpartition("@")
    return repr(f"{head.partition('://')[0]}://…@{tail}" if at else uri)
