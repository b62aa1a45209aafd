"""The caller: Basic authentication, and what the user's tags and permissions allow.

The tags are RabbitMQ's: `management` sees the virtual hosts that the user may enter and the
user's own connections, `monitoring` sees all, `administrator` may change all. Without one of them
a user is refused.

Source: rabbitmq/rabbitmq-website, docs/management/index.md, section "Access and Permissions".
"""

import base64
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

import trio
from starlette.authentication import AuthenticationBackend, AuthenticationError, BaseUser
from starlette.requests import HTTPConnection, Request

from streamd.auth.users import UserDirectory
from streamd.broker.traffic import ProtocolTraffic
from streamd.config import REFUSAL_SECONDS
from streamd.engine import Caller
from streamd.http_api.entitled import note_reader
from streamd.http_api.health import needs_no_login
from streamd.operations.names import Name, as_sent
from streamd.operations.rights import TAGS, may_come_from

logger = logging.getLogger(__name__)

ENTERED = "entered"  # in the state of a connection: told the user of a request


def caller_of(request: Request) -> Caller:
    """The user behind a request."""
    user = request.user
    assert isinstance(user, Caller)  # noqa: S101 - nobody else passes BasicAuthentication
    return user


class BasicAuthentication(AuthenticationBackend):
    """Authentication by name and password in every request.

    Args:
        directory: the users.
        traffic: counts attempts to log in.
    """

    def __init__(self, directory: UserDirectory, traffic: ProtocolTraffic) -> None:
        self._directory = directory
        self._traffic = traffic

    async def authenticate(self, conn: HTTPConnection) -> tuple[None, BaseUser] | None:  # type: ignore[override]
        """See starlette; a wrong password is answered late, which slows down guessing."""
        if needs_no_login(conn):
            return None
        name, password = _read_credentials(conn.headers.get("authorization", ""))
        caller = await log_in(self._directory, self._traffic, conn, name, password)
        note_entered(conn, caller)
        return None, caller  # type: ignore[return-value]  # starlette only hands it on


class Visitor(Protocol):
    """A user who has entered through a door.

    Attributes:
        tags: that it has.
    """

    @property
    def tags(self) -> tuple[str, ...]:
        """See above."""

    def leave(self) -> None:
        """Nothing more is asked for it."""


class Entrance(AuthenticationBackend):
    """Authentication as above in a process beside the engine, which decides.

    Args:
        enter: lets in a user with a name, a password and an address; None where they are wrong.
    """

    def __init__(self, enter: Callable[[Name, bytes, str], Awaitable[Visitor | None]]) -> None:
        self._enter = enter

    async def authenticate(self, conn: HTTPConnection) -> tuple[None, BaseUser] | None:  # type: ignore[override]
        """See starlette; a wrong password is answered late, which slows down guessing."""
        name, password = _read_credentials(conn.headers.get("authorization", ""))
        visitor = await self._enter(name, password, client_host(conn)) if password else None
        if visitor is None:
            await trio.sleep(REFUSAL_SECONDS)
            raise AuthenticationError("user or password is wrong")
        visitor.leave()  # its tags say all that is asked here
        return None, visitor  # type: ignore[return-value]  # starlette only hands it on


async def log_in(
    directory: UserDirectory,
    traffic: ProtocolTraffic,
    conn: HTTPConnection,
    name: Name,
    password: bytes,
) -> Caller:
    """The user with a password; a wrong one is answered late, which slows down guessing.

    Raises:
        AuthenticationError: name or password is wrong, or the user has none of the tags.
    """
    host = client_host(conn)
    account = await directory.authenticate(name, password, host) if password else None
    if account is None or not may_come_from(name, host):
        logger.warning("%s: login refused", host or "?")
        traffic.logins_refused += 1
        await trio.sleep(REFUSAL_SECONDS)
        raise AuthenticationError("user or password is wrong")
    caller = Caller(directory, account, needs_tag=True)
    if not caller.may_use_http:
        raise AuthenticationError(f"{name} has none of the tags {', '.join(TAGS)}")
    traffic.logins += 1
    return caller


def client_host(conn: HTTPConnection) -> str:
    """The address that a request comes from."""
    return conn.client.host if conn.client else ""


def note_entered(conn: HTTPConnection, caller: Caller) -> None:
    """The user of a request is known: its connection has to make room for no other one."""
    getattr(conn.state, ENTERED, _nothing)(caller.name)
    note_reader(conn, caller.account)


def _nothing(user: Name) -> None:
    """For requests without a connection, as tests make them."""


def _read_credentials(header: str) -> tuple[Name, bytes]:
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
