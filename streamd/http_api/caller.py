"""The caller: Basic authentication, and what the user's tags and permissions allow.

The tags are RabbitMQ's: `management` sees the virtual hosts that the user may enter and the
user's own connections, `monitoring` sees all, `administrator` may change all. Without one of them
a user is refused.

Source: RabbitMQ, "Management Plugin", section "Access and Permissions".
"""

import base64
import logging

import trio
from starlette.authentication import AuthenticationBackend, AuthenticationError, BaseUser
from starlette.requests import HTTPConnection, Request

from streamd.auth.users import ADMINISTRATOR, LOOPBACK_ONLY, Right, Rights, UserDirectory
from streamd.broker.errors import Reason, Refused
from streamd.config import REFUSAL_SECONDS
from streamd.net.transport import is_local_address

logger = logging.getLogger(__name__)

MONITORING = "monitoring"
POLICYMAKER = "policymaker"
MANAGEMENT = "management"
_TAGS = (ADMINISTRATOR, MONITORING, POLICYMAKER, MANAGEMENT)


class Caller(BaseUser):
    """The user behind a request.

    Attributes:
        name: the user's name.
    """

    def __init__(self, directory: UserDirectory, name: str) -> None:
        self.name = name
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
        return self._directory.has_tag(self.name, ADMINISTRATOR)

    @property
    def sees_all(self) -> bool:
        """May look at everything."""
        return self.is_administrator or self._directory.has_tag(self.name, MONITORING)

    def sees_host(self, virtual_host: str) -> bool:
        """May look at what is in a virtual host."""
        entered = self._directory.permission(self.name, virtual_host) is not None
        return entered or self.sees_all

    def require_administrator(self) -> None:
        """Raise Refused unless the user may change everything."""
        if not self.is_administrator:
            raise Refused(Reason.ACCESS_REFUSED, f"{self.name} is not an administrator")

    def require_all(self) -> None:
        """Raise Refused unless the user may look at everything."""
        if not self.sees_all:
            details = f"{self.name} has neither the tag {ADMINISTRATOR} nor {MONITORING}"
            raise Refused(Reason.ACCESS_REFUSED, details)

    def require_host(self, virtual_host: str) -> None:
        """Raise Refused unless the user may look at what is in a virtual host."""
        if not self.sees_host(virtual_host):
            details = f"{self.name} may not enter the virtual host {virtual_host}"
            raise Refused(Reason.ACCESS_REFUSED, details)

    def require(self, right: Right, virtual_host: str, name: str) -> None:
        """Raise Refused unless the user has the right to the stream or exchange `name`."""
        Rights(self._directory, self.name, virtual_host).require(right, name)


def caller_of(request: Request) -> Caller:
    """The user behind a request."""
    user = request.user
    assert isinstance(user, Caller)  # noqa: S101 - nobody else passes BasicAuthentication
    return user


class BasicAuthentication(AuthenticationBackend):
    """Authentication by name and password in every request.

    Args:
        directory: the users.
    """

    def __init__(self, directory: UserDirectory) -> None:
        self._directory = directory

    async def authenticate(self, conn: HTTPConnection) -> tuple[None, BaseUser]:  # type: ignore[override]
        """See starlette; a wrong password is answered late, which slows down guessing."""
        name, password = _read_credentials(conn.headers.get("authorization", ""))
        host = conn.client.host if conn.client else ""
        is_local = is_local_address(host)
        is_right = bool(password) and await self._directory.authenticate(name, password, host)
        if not is_right or (name == LOOPBACK_ONLY and not is_local):
            logger.warning("%s: login refused", host or "?")
            await trio.sleep(REFUSAL_SECONDS)
            raise AuthenticationError("user or password is wrong")
        if not any(self._directory.has_tag(name, tag) for tag in _TAGS):
            raise AuthenticationError(f"{name} has none of the tags {', '.join(_TAGS)}")
        return None, Caller(self._directory, name)


def _read_credentials(header: str) -> tuple[str, bytes]:
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        raise AuthenticationError("expected Basic authentication")
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        text = name.decode()
    except ValueError:  # not base64, not even ASCII, or not UTF-8 inside
        raise AuthenticationError("the Authorization header cannot be read") from None
    if not colon:
        raise AuthenticationError("the Authorization header has no password")
    return text, password
