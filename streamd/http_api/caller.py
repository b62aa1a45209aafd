"""The caller: Basic authentication, and what the user's tags and permissions allow.

The tags are RabbitMQ's: `management` sees the virtual hosts that the user may enter and the
user's own connections, `monitoring` sees all, `administrator` may change all. Without one of them
a user is refused.

Source: rabbitmq/rabbitmq-website, docs/management/index.md, section "Access and Permissions".
"""

import base64
import logging

import trio
from starlette.authentication import AuthenticationBackend, AuthenticationError, BaseUser
from starlette.requests import HTTPConnection, Request

from streamd.auth.users import (
    ADMINISTRATOR,
    LOOPBACK_ONLY,
    MONITORING,
    Account,
    Right,
    Rights,
    UserDirectory,
)
from streamd.broker.declared.names import Name, as_sent
from streamd.broker.errors import Reason, Refused
from streamd.broker.traffic import ProtocolTraffic
from streamd.config import REFUSAL_SECONDS
from streamd.http_api.entitled import note_reader
from streamd.http_api.health import needs_no_login
from streamd.net.transport import is_local_address

logger = logging.getLogger(__name__)

POLICYMAKER = "policymaker"
MANAGEMENT = "management"
ENTERED = "entered"  # in the state of a connection: called when the user of a request is known
_TAGS = (ADMINISTRATOR, MONITORING, POLICYMAKER, MANAGEMENT)


class Caller(BaseUser):
    """The user behind a request.

    Attributes:
        name: the user's name.
        account: the user.
    """

    def __init__(self, directory: UserDirectory, account: Account) -> None:
        self.name = account.name
        self.account = account
        self._directory = directory

    @property
    def is_authenticated(self) -> bool:
        """See starlette."""
        return True

    @property
    def display_name(self) -> str:
        """See starlette."""
        return self.name

    @property
    def is_administrator(self) -> bool:
        """May change everything."""
        return self._directory.has_tag(self.account, ADMINISTRATOR)

    @property
    def sees_all(self) -> bool:
        """May look at everything."""
        return self.is_administrator or self._directory.has_tag(self.account, MONITORING)

    def sees_host(self, virtual_host: Name) -> bool:
        """May look at what is in a virtual host."""
        return self.sees_all or self.rights(virtual_host).may_enter

    def require_administrator(self) -> None:
        """Raise Refused unless the user may change everything."""
        if not self.is_administrator:
            raise Refused(Reason.ACCESS_REFUSED, f"{self.name} is not an administrator")

    def require_all(self) -> None:
        """Raise Refused unless the user may look at everything."""
        if not self.sees_all:
            details = f"{self.name} has neither the tag {ADMINISTRATOR} nor {MONITORING}"
            raise Refused(Reason.ACCESS_REFUSED, details)

    def require_host(self, virtual_host: Name) -> None:
        """Raise Refused unless the user may look at what is in a virtual host."""
        if not self.sees_host(virtual_host):
            details = f"{self.name} may not enter the virtual host {virtual_host}"
            raise Refused(Reason.ACCESS_REFUSED, details)

    def rights(self, virtual_host: Name) -> Rights:
        """What the user may do in a virtual host, here."""
        return _Rights(self._directory, self.account, virtual_host)


class _Rights(Rights):
    """Those of a user over HTTP: without any tag there are none."""

    def allows(self, right: Right, name: Name) -> bool:
        """See Rights."""
        return has_a_tag(self._directory, self.account) and super().allows(right, name)


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
        return None, caller


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
    if not has_a_tag(directory, account):
        raise AuthenticationError(f"{name} has none of the tags {', '.join(_TAGS)}")
    traffic.logins += 1
    return Caller(directory, account)


def client_host(conn: HTTPConnection) -> str:
    """The address that a request comes from."""
    return conn.client.host if conn.client else ""


def may_come_from(name: Name, host: str) -> bool:
    """Whether a user may log in from an address."""
    return name != LOOPBACK_ONLY or is_local_address(host)


def has_a_tag(directory: UserDirectory, account: Account) -> bool:
    """Whether an account has not ended, and its user has one of the tags that let in."""
    return any(directory.has_tag(account, tag) for tag in _TAGS)


def note_entered(conn: HTTPConnection, caller: Caller) -> None:
    """The user of a request is known: its connection has to make room for no other one."""
    getattr(conn.state, ENTERED, _nothing)()
    note_reader(conn, caller.account)


def _nothing() -> None:
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
