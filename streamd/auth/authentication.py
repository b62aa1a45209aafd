"""Who may enter: the mechanisms by which a peer proves its user, and the virtual hosts it may use.

The same for all protocols.
"""

import struct
from typing import NamedTuple

from streamd.auth.users import LOOPBACK_ONLY, Access, Rights
from streamd.broker.broker import Broker
from streamd.broker.virtual_host import VirtualHost
from streamd.config import Config
from streamd.wire.stream import ResponseCode

PLAIN, AMQPLAIN, EXTERNAL, ANONYMOUS = "PLAIN", "AMQPLAIN", "EXTERNAL", "ANONYMOUS"
_SHOWN = 64  # characters, in the log
_LONG_STRING = struct.Struct(">cI")


class Peer(NamedTuple):
    """What the transport knows of the other end.

    Attributes:
        host: its address.
        is_local: it is on this machine.
        certificate_user: the name in the certificate it has proved to own, None without one.
    """

    host: str
    is_local: bool
    certificate_user: str | None = None


class Denied(Exception):
    """The peer may not enter. The text is for the server's log, not for the peer.

    Attributes:
        code: why, as the stream protocol says it.
    """

    def __init__(self, code: ResponseCode, who: str = "") -> None:
        super().__init__(f"{who}: {code.text}" if who else code.text)
        self.code = code

    @property
    def is_guess(self) -> bool:
        """The name or the password is wrong; the answer waits, which slows down guessing."""
        return self.code == ResponseCode.AUTHENTICATION_FAILURE


class Entrance:
    """Judges one peer.

    Args:
        config: who ANONYMOUS is.
        broker: the virtual hosts.
        access: the users.
        peer: the other end.
    """

    def __init__(self, config: Config, broker: Broker, access: Access, peer: Peer) -> None:
        self._config = config
        self._broker = broker
        self._access = access
        self._peer = peer

    def mechanisms(self) -> tuple[str, ...]:
        """Those that the peer can use."""
        found = [PLAIN, AMQPLAIN]
        if self._peer.certificate_user is not None:
            found.append(EXTERNAL)
        if self._config.anonymous_user:
            found.append(ANONYMOUS)
        return tuple(found)

    async def prove(self, mechanism: str, data: bytes) -> str:
        """The user that the secret proves.

        Raises:
            Denied: it proves none.
        """
        if mechanism not in self.mechanisms():
            raise Denied(ResponseCode.SASL_MECHANISM_NOT_SUPPORTED, f"{mechanism[:20]!r}")
        if mechanism == ANONYMOUS:
            user = self._config.anonymous_user
        elif mechanism == EXTERNAL:
            user = self._peer.certificate_user or ""
        else:
            read = _read_plain if mechanism == PLAIN else _read_amqplain
            name, password = read(data)
            user = name.decode("utf-8", "replace")
            host = self._peer.host
            if not password or not await self._access.authenticate(user, password, host):
                raise Denied(ResponseCode.AUTHENTICATION_FAILURE, _who(user, mechanism))
        if not self._access.is_user(user):
            raise Denied(ResponseCode.AUTHENTICATION_FAILURE, _who(user, mechanism))
        if user == LOOPBACK_ONLY and not self._peer.is_local:
            raise Denied(ResponseCode.AUTHENTICATION_FAILURE_LOOPBACK, _who(user, mechanism))
        return user

    def enter(self, user: str, name: str) -> tuple[VirtualHost, Rights]:
        """A virtual host, and what a user that was proved may do there.

        Raises:
            Denied: there is none of that name, or the user may do nothing there.
        """
        host = self._broker.virtual_hosts.get(name)
        rights = Rights(self._access, user, name)
        if host is None or not rights.may_enter:
            who = f"user {user!r}, virtual host {name[:_SHOWN]!r}"
            raise Denied(ResponseCode.VIRTUAL_HOST_ACCESS_FAILURE, who)
        return host, rights


def _who(user: str, mechanism: str) -> str:
    return f"user {user[:_SHOWN]!r} with {mechanism}"


def _read_plain(data: bytes) -> tuple[bytes, bytes]:
    parts = data.split(b"\0")
    if len(parts) != 3 or parts[0]:  # noqa: PLR2004 - authorisation id, user, password
        raise Denied(ResponseCode.SASL_ERROR)
    return parts[1], parts[2]


def _read_amqplain(data: bytes) -> tuple[bytes, bytes]:
    """A field table of AMQP 0-9-1 without its length, in which LOGIN and PASSWORD are texts."""
    fields: dict[bytes, bytes] = {}
    position = 0
    while position < len(data):
        start = position + 1 + data[position]
        end = start + _LONG_STRING.size
        if end > len(data):
            raise Denied(ResponseCode.SASL_ERROR)
        kind, length = _LONG_STRING.unpack_from(data, start)
        if kind != b"S" or end + length > len(data):
            raise Denied(ResponseCode.SASL_ERROR)
        fields[data[position + 1 : start]] = data[end : end + length]
        position = end + length
    if not {b"LOGIN", b"PASSWORD"} <= fields.keys():
        raise Denied(ResponseCode.SASL_ERROR)
    return fields[b"LOGIN"], fields[b"PASSWORD"]
