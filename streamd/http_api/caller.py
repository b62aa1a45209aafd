"""The caller: Basic authentication, and what the user's tags and permissions allow.

The tags are RabbitMQ's: `management` sees the virtual hosts that the user may enter and the
user's own connections, `monitoring` sees all, `administrator` may change all. Without one of them
a user is refused.

Source: rabbitmq/rabbitmq-website, docs/management/index.md, section "Access and Permissions".
"""

import base64
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import trio
from starlette.authentication import AuthenticationBackend, AuthenticationError, BaseUser
from starlette.requests import HTTPConnection, Request

from streamd.config import REFUSAL_SECONDS
from streamd.hop.door import Session
from streamd.http_api.entitled import note_reader
from streamd.operations.names import Name, as_sent
from streamd.operations.rights import TAGS

LIVE, READY = OPEN_PATHS = "/healthz", "/readyz"  # for whoever asks, see health.py
ENTERED = "entered"  # in the state of a connection: told the user of a request


# Lets in a user with a name, a password and an address; None where they are wrong.
Enter: TypeAlias = Callable[[Name, bytes, str], Awaitable[Session | None]]


def visitor_of(request: Request) -> Session:
    """The user behind a request."""
    user = request.user
    assert isinstance(user, Session)  # noqa: S101 - nobody else passes BasicAuthentication
    return user


class BasicAuthentication(AuthenticationBackend):
    """Authentication by name and password in every request.

    Args:
        enter: lets users in.
    """

    def __init__(self, enter: Enter) -> None:
        self._enter = enter

    async def authenticate(self, conn: HTTPConnection) -> tuple[None, BaseUser] | None:  # type: ignore[override]
        """See starlette; a wrong password is answered late, which slows down guessing."""
        path: str = conn.scope["path"]
        if path.removeprefix(conn.scope["root_path"]) in OPEN_PATHS:
            return None
        name, password = read_credentials(conn.headers.get("authorization", ""))
        visitor = await log_in(self._enter, conn, name, password)
        note_entered(conn, visitor, leaves=True)
        return None, visitor  # type: ignore[return-value]  # starlette only hands it on


async def log_in(enter: Enter, conn: HTTPConnection, name: Name, password: bytes) -> Session:
    """The user with a password; a wrong one is answered late, which slows down guessing.

    Raises:
        AuthenticationError: name or password is wrong, or the user has none of the tags.
    """
    visitor = await enter(name, password, client_host(conn))
    if visitor is None:
        await trio.sleep(REFUSAL_SECONDS)
        raise AuthenticationError("user or password is wrong")
    if not visitor.may_use_http:
        visitor.leave()
        raise AuthenticationError(f"{name} has none of the tags {', '.join(TAGS)}")
    return visitor


def client_host(conn: HTTPConnection) -> str:
    """The address that a request comes from."""
    return conn.client.host if conn.client else ""


def note_entered(conn: HTTPConnection, visitor: Session, *, leaves: bool = False) -> None:
    """The user of a request is known: its connection has to make room for no other one.

    Args:
        conn: the request.
        visitor: the user.
        leaves: when the request ends.
    """
    getattr(conn.state, ENTERED, _nothing)(visitor.name)
    note_reader(conn, visitor, leaves=leaves)


def _nothing(user: Name) -> None:
    """For requests without a connection, as tests make them."""


def read_credentials(header: str) -> tuple[Name, bytes]:
    """Name and password of an Authorization header.

    Raises:
        AuthenticationError: it has none.
    """
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        raise AuthenticationError("expected Basic authentication")
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        user = as_sent(name.decode())
    except ValueError:  # not base64, not even ASCII, or not UTF-8 inside
        raise AuthenticationError("the Authorization header cannot be read") from None
    if not colon:
        raise AuthenticationError("the Authorization header has no password")
    return user, password
