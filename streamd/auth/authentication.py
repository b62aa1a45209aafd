"""Authentication: the mechanisms for peers, and the virtual hosts that they may use.

The same for all protocols.
"""

import hmac
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import NamedTuple

from streamd.auth.users import NODE, Account, Rights, UserDirectory
from streamd.broker.broker import Broker
from streamd.broker.nodes.secret import proof
from streamd.broker.traffic import ProtocolTraffic
from streamd.broker.virtual_host import VirtualHost
from streamd.config import Config
from streamd.operations.names import Name, as_sent
from streamd.operations.rights import LOOPBACK_ONLY

PLAIN, AMQPLAIN, EXTERNAL, ANONYMOUS = "PLAIN", "AMQPLAIN", "EXTERNAL", "ANONYMOUS"
_SHOWN = 64  # characters, in the log
_LONG_STRING = struct.Struct(">cI")


class Peer(NamedTuple):
    """What the transport knows of the other end.

    Attributes:
        is_local: it is on this machine.
        certificate_user: the name in its verified certificate; None without one.
    """

    host: str
    is_local: bool
    certificate_user: str | None = None


class Failure(Enum):
    """Why a peer may not enter; each protocol translates these to its own codes."""

    UNKNOWN_MECHANISM = "SASL mechanism not supported"
    MALFORMED = "SASL error"
    WRONG_CREDENTIALS = "authentication failure"
    LOOPBACK_ONLY = "authentication failure loopback"
    NO_VIRTUAL_HOST = "virtual host access failure"


class AuthenticationFailed(Exception):
    """The peer may not enter. The text is for the server's log, not for the peer.

    Attributes:
        failure: why.
    """

    def __init__(self, failure: Failure, who: str = "") -> None:
        super().__init__(f"{who}: {failure.value}" if who else failure.value)
        self.failure = failure

    @property
    def is_guess(self) -> bool:
        """The name or the password is wrong; a delayed answer slows down guessing."""
        return self.failure is Failure.WRONG_CREDENTIALS


@contextmanager
def counted(traffic: ProtocolTraffic) -> Iterator[None]:
    """Count an attempt to log in, which fails when the block raises AuthenticationFailed."""
    try:
        yield
    except AuthenticationFailed:
        traffic.logins_refused += 1
        raise
    traffic.logins += 1


class Authenticator:
    """Authenticates one peer.

    Args:
        config: names the user for ANONYMOUS.
        peer: the other end.
    """

    def __init__(
        self, config: Config, broker: Broker, directory: UserDirectory, peer: Peer
    ) -> None:
        self._config = config
        self._broker = broker
        self._directory = directory
        self._peer = peer

    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms that the peer can use."""
        found = [PLAIN, AMQPLAIN]
        if self._peer.certificate_user is not None:
            found.append(EXTERNAL)
        if self._config.anonymous_user:
            found.append(ANONYMOUS)
        return tuple(found)

    async def prove(self, mechanism: str, data: bytes) -> Account:
        """The user that the secret authenticates.

        Raises:
            AuthenticationFailed: it authenticates nobody.
        """
        if mechanism not in self.mechanisms():
            raise AuthenticationFailed(Failure.UNKNOWN_MECHANISM, f"{mechanism[:20]!r}")
        if mechanism == ANONYMOUS:
            user = as_sent(self._config.anonymous_user)
            account = self._directory.account(user)
        elif mechanism == EXTERNAL:
            user = as_sent(self._peer.certificate_user or "")
            account = self._directory.account(user)
        else:
            user, password = _read_plain(data) if mechanism == PLAIN else _read_amqplain(data)
            host, account = self._peer.host, None
            if password:
                account = await self._directory.authenticate(user, password, host)
        if account is None:
            raise AuthenticationFailed(Failure.WRONG_CREDENTIALS, _who(user, mechanism))
        if user == LOOPBACK_ONLY and not self._peer.is_local:
            raise AuthenticationFailed(Failure.LOOPBACK_ONLY, _who(user, mechanism))
        return account

    def node_acts(self, data: bytes, nonce: str) -> Account | None:
        """The user for whom another node of the cluster acts; None where it is no node who asks.

        Args:
            data: of PLAIN, with the user in the place of the authorization id.
            nonce: that it was given for this connection.

        Raises:
            AuthenticationFailed: it is none, and says that it is; or there is no such user.
        """
        parts = data.split(b"\0")
        node = self._broker.node
        if node is None or not nonce or len(parts) != 3 or parts[1] != NODE.encode():  # noqa: PLR2004
            return None
        user = _read_user(parts[0])
        wanted = proof(node.secret, nonce, user)
        is_right = bool(node.secret) and hmac.compare_digest(wanted.encode(), parts[2])
        account = None
        if is_right:
            account = self._directory.node if user == NODE else self._directory.account(user)
        if account is None:
            raise AuthenticationFailed(Failure.WRONG_CREDENTIALS, f"a node for {_who(user, PLAIN)}")
        return account

    def enter(self, account: Account, name: Name) -> tuple[VirtualHost, Rights]:
        """A virtual host, and the rights of an authenticated user there.

        Raises:
            AuthenticationFailed: it does not exist, or the user has no rights there.
        """
        host = self._broker.virtual_hosts.get(name)
        rights = Rights(self._directory, account, name)
        if host is None or not rights.may_enter:
            who = f"user {account.name!r}, virtual host {name[:_SHOWN]!r}"
            raise AuthenticationFailed(Failure.NO_VIRTUAL_HOST, who)
        return host, rights


def _who(user: str, mechanism: str) -> str:
    return f"user {user[:_SHOWN]!r} with {mechanism}"


def _read_user(data: bytes) -> Name:
    try:
        return as_sent(data.decode())
    except UnicodeDecodeError:  # no user has such a name
        raise AuthenticationFailed(Failure.WRONG_CREDENTIALS, repr(data[:_SHOWN])) from None


def _read_plain(data: bytes) -> tuple[Name, bytes]:
    parts = data.split(b"\0")
    if len(parts) != 3 or parts[0]:  # noqa: PLR2004 - authorisation id, user, password
        raise AuthenticationFailed(Failure.MALFORMED)
    return _read_user(parts[1]), parts[2]


def _read_amqplain(data: bytes) -> tuple[Name, bytes]:
    """A field table of AMQP 0-9-1 without its length, in which LOGIN and PASSWORD are strings."""
    fields: dict[bytes, bytes] = {}
    position = 0
    while position < len(data):
        start = position + 1 + data[position]
        end = start + _LONG_STRING.size
        if end > len(data):
            raise AuthenticationFailed(Failure.MALFORMED)
        kind, length = _LONG_STRING.unpack_from(data, start)
        if kind != b"S" or end + length > len(data):
            raise AuthenticationFailed(Failure.MALFORMED)
        fields[data[position + 1 : start]] = data[end : end + length]
        position = end + length
    if not {b"LOGIN", b"PASSWORD"} <= fields.keys():
        raise AuthenticationFailed(Failure.MALFORMED)
    return _read_user(fields[b"LOGIN"]), fields[b"PASSWORD"]
