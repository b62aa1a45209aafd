"""The steps before a connection is open: who is there, may they enter, with which limits.

The same judgement serves a client that sends a new secret later.
"""

import platform
import struct
from collections.abc import Mapping
from typing import NamedTuple

from streamd import __version__
from streamd.access import LOOPBACK_ONLY, Access, Rights
from streamd.broker import Broker
from streamd.config import Config
from streamd.delivery import Delivery
from streamd.outbox import Outbox
from streamd.session import Context
from streamd.virtual_host import VirtualHost
from streamd.wire import ResponseCode, commands as c
from streamd.wire.fields import Pair

PLAIN, AMQPLAIN, EXTERNAL, ANONYMOUS = "PLAIN", "AMQPLAIN", "EXTERNAL", "ANONYMOUS"
_LONG_STRING = struct.Struct(">cI")

# Clients decide by product and version what they may ask for; 4.3.0 is the first with
# ResolveOffsetSpec and the statistic committed_offset.
PRODUCT, COMPATIBLE_VERSION = "RabbitMQ", "4.3.0"


class LoginFailed(Exception):
    """The peer may not enter; the answer says so, after a delay that slows down guessing.

    Attributes:
        answer: what it is told.
        is_guess: whether the answer waits.
    """

    def __init__(self, answer: c.ServerCommand, *, is_guess: bool) -> None:
        super().__init__(type(answer).__name__)
        self.answer = answer
        self.is_guess = is_guess


class Peer(NamedTuple):
    """What the transport knows of the other end.

    Attributes:
        is_local: it is on this machine.
        certificate_user: the name in the certificate it has proved to own, None without one.
    """

    is_local: bool
    certificate_user: str | None = None


class _Denied(Exception):
    def __init__(self, code: ResponseCode) -> None:
        super().__init__(code.text)
        self.code = code


class Login:
    """Answers the login of one connection.

    Args:
        config: limits.
        broker: the virtual hosts.
        access: the users.
        address: host and port to announce.
        peer: the other end.

    Attributes:
        properties: what the client said of itself.
        heartbeat_seconds: agreed; 0 for none. Valid once the client has answered Tune.
        frame_max: what the client answered.
        host: the virtual host, once it was entered.
        rights: what the user may do there.
        mechanism: by which the user was proved, once it was.
        opened_at_ms: when the connection was opened, in ms since 1970.
    """

    host: VirtualHost
    rights: Rights

    def __init__(
        self,
        config: Config,
        broker: Broker,
        access: Access,
        address: tuple[str, int],
        peer: Peer,
    ) -> None:
        self.properties: Mapping[str, str] = {}
        self.heartbeat_seconds = 0
        self.frame_max = 0
        self._config = config
        self._broker = broker
        self._access = access
        self._address = address
        self._peer = peer
        self.mechanism = ""
        self.opened_at_ms = 0
        self._user = ""

    async def answer(self, command: c.ClientCommand) -> list[c.ServerCommand]:
        """What to send in answer to a command that is legal before the connection is open.

        Raises:
            LoginFailed: the connection ends here.
        """
        match command:
            case c.PeerProperties(corr, properties):
                self.properties = dict(properties)
                return [c.PeerPropertiesResponse(corr, ResponseCode.OK, _PROPERTIES)]
            case c.SaslHandshake(corr):
                mechanisms = self._mechanisms()
                return [c.SaslHandshakeResponse(corr, ResponseCode.OK, mechanisms)]
            case c.SaslAuthenticate():
                return await self._authenticate(command)
            case c.Tune(frame_max, heartbeat):
                self.frame_max, self.heartbeat_seconds = frame_max, heartbeat
                return []
            case c.Open():
                return [self._open(command)]
            case _:  # heartbeats, and nothing else by the state table
                return []

    def _mechanisms(self) -> tuple[str, ...]:
        found = [PLAIN, AMQPLAIN]
        if self._peer.certificate_user is not None:
            found.append(EXTERNAL)
        if self._config.anonymous_user:
            found.append(ANONYMOUS)
        return tuple(found)

    async def _authenticate(self, command: c.SaslAuthenticate) -> list[c.ServerCommand]:
        try:
            self._user = await self._judge(command)
        except _Denied as denied:
            answer = c.SaslAuthenticateResponse(command.correlation_id, denied.code)
            is_guess = denied.code == ResponseCode.AUTHENTICATION_FAILURE
            raise LoginFailed(answer, is_guess=is_guess) from denied
        self.mechanism = command.mechanism
        answer = c.SaslAuthenticateResponse(command.correlation_id, ResponseCode.OK)
        return [answer, c.Tune(self._config.frame_max, self._config.heartbeat)]

    async def _judge(self, command: c.SaslAuthenticate) -> str:
        """The user that the secret proves.

        Raises:
            _Denied: it proves none.
        """
        if command.mechanism not in self._mechanisms():
            raise _Denied(ResponseCode.SASL_MECHANISM_NOT_SUPPORTED)
        if command.mechanism == ANONYMOUS:
            user = self._config.anonymous_user
        elif command.mechanism == EXTERNAL:
            user = self._peer.certificate_user or ""
        else:
            read = _read_plain if command.mechanism == PLAIN else _read_amqplain
            name, password = read(command.data)
            user = name.decode("utf-8", "replace")
            if not password or not await self._access.authenticate(user, password):
                raise _Denied(ResponseCode.AUTHENTICATION_FAILURE)
        if not self._access.is_user(user):
            raise _Denied(ResponseCode.AUTHENTICATION_FAILURE)
        if user == LOOPBACK_ONLY and not self._peer.is_local:
            raise _Denied(ResponseCode.AUTHENTICATION_FAILURE_LOOPBACK)
        return user

    def _open(self, command: c.Open) -> c.OpenResponse:
        host = self._broker.virtual_hosts.get(command.virtual_host)
        rights = Rights(self._access, self._user, command.virtual_host)
        if host is None or not rights.may_enter:
            code = ResponseCode.VIRTUAL_HOST_ACCESS_FAILURE
            raise LoginFailed(c.OpenResponse(command.correlation_id, code), is_guess=True)
        self.host, self.rights = host, rights
        self.opened_at_ms = self._broker.now_ms()
        name, port = self._address
        properties = (Pair("advertised_host", name), Pair("advertised_port", str(port)))
        return c.OpenResponse(command.correlation_id, ResponseCode.OK, properties)

    def context(self, outbox: Outbox, delivery: Delivery) -> Context:
        """What an open connection works with."""
        return Context(
            self._broker, self._access, self.host, self.rights, outbox, delivery, self._address
        )

    async def renew(self, command: c.SaslAuthenticate) -> ResponseCode:
        """Judge a secret that is sent while the connection is open."""
        if command.mechanism != self.mechanism:
            return ResponseCode.SASL_CANNOT_CHANGE_MECHANISM
        try:
            user = await self._judge(command)
        except _Denied as denied:
            return denied.code
        if user != self._user:
            return ResponseCode.SASL_CANNOT_CHANGE_USERNAME
        if not self.rights.may_enter:
            return ResponseCode.VIRTUAL_HOST_ACCESS_FAILURE
        return ResponseCode.OK


def _read_plain(data: bytes) -> tuple[bytes, bytes]:
    parts = data.split(b"\0")
    if len(parts) != 3 or parts[0]:  # noqa: PLR2004 - authorisation id, user, password
        raise _Denied(ResponseCode.SASL_ERROR)
    return parts[1], parts[2]


def _read_amqplain(data: bytes) -> tuple[bytes, bytes]:
    """A field table of AMQP 0-9-1 without its length, in which LOGIN and PASSWORD are texts."""
    fields: dict[bytes, bytes] = {}
    position = 0
    while position < len(data):
        start = position + 1 + data[position]
        end = start + _LONG_STRING.size
        if end > len(data):
            raise _Denied(ResponseCode.SASL_ERROR)
        kind, length = _LONG_STRING.unpack_from(data, start)
        if kind != b"S" or end + length > len(data):
            raise _Denied(ResponseCode.SASL_ERROR)
        fields[data[position + 1 : start]] = data[end : end + length]
        position = end + length
    if not {b"LOGIN", b"PASSWORD"} <= fields.keys():
        raise _Denied(ResponseCode.SASL_ERROR)
    return fields[b"LOGIN"], fields[b"PASSWORD"]


_PROPERTIES = (
    Pair("product", PRODUCT),
    Pair("version", COMPATIBLE_VERSION),
    Pair("platform", f"Python {platform.python_version()}"),
    Pair("streamd", __version__),
    Pair("information", "streamd, which speaks the RabbitMQ stream protocol"),
)
