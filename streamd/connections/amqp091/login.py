"""The steps before an AMQP connection is open.

During these, clients take the very next frame for the answer, so nothing else is sent.

Source: rabbitmq/rabbitmq-server, deps/rabbit/src/rabbit_reader.erl.
"""

import platform
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from streamd.auth.authentication import AuthenticationFailed, Authenticator, counted
from streamd.auth.users import Account, Rights
from streamd.broker.broker import Broker
from streamd.broker.virtual_host import VirtualHost
from streamd.operations.figures import AMQP091
from streamd.operations.names import as_sent
from streamd.version import __version__
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.connection import CHANNEL_MAX, FRAME_MAX, Connection
from streamd.wire.amqp091.errors import ConnectionFault, ReplyCode
from streamd.wire.amqp091.values import Field, Table, text_field

Answers: TypeAlias = list[m.Method]

_YES = Field("t", True)
_CAPABILITIES: Table = {
    "publisher_confirms": _YES,
    "exchange_exchange_bindings": _YES,
    "basic.nack": _YES,
    "consumer_cancel_notify": _YES,
    "connection.blocked": _YES,
    "authentication_failure_close": _YES,
    "per_consumer_qos": _YES,
}
_PROPERTIES: Table = {
    "capabilities": Field("F", _CAPABILITIES),
    "product": text_field("streamd"),
    "version": text_field(__version__),
    "platform": text_field(f"Python {platform.python_version()}"),
    "information": text_field("streamd: streams, also for the RabbitMQ stream protocol"),
}
_READ_ONLY: Table = {"read_only": _YES}


class Refusal(NamedTuple):
    """The answer to a peer that may not enter.

    Attributes:
        fault: what it gets; None when it gets no answer.
        waits: the answer is delayed, which slows down guessing.
    """

    fault: ConnectionFault | None
    waits: bool


class Login:
    """Answers the login of one connection.

    Args:
        authenticator: authenticates the peer.
        heartbeat: seconds to propose.

    Attributes:
        properties: what the client says about itself; strings only.
        heartbeat_seconds: agreed; 0 for none.
        mechanism: by which the user was authenticated.
        host: the virtual host, once it is entered.
        now_ms: the wall clock.
        opened_at_ms: when the connection was opened, in ms since 1970.
    """

    host: VirtualHost
    rights: Rights
    _account: Account

    def __init__(self, authenticator: Authenticator, broker: Broker, heartbeat: int) -> None:
        self.properties: Mapping[str, str] = {}
        self.heartbeat_seconds = 0
        self.mechanism = ""
        self.is_node = False  # nodes speak the stream protocol
        self.opened_at_ms = 0
        self._authenticator = authenticator
        self._heartbeat = heartbeat
        self.now_ms = broker.now_ms
        self._is_read_only = broker.is_read_only
        self._traffic = broker.traffic.protocol(AMQP091)
        self._capabilities: Table = {}
        self._method: m.Method | None = None  # the last one given to `answer`

    def start(self) -> m.ConnectionStart:
        """The first method, which the server sends."""
        mechanisms = " ".join(self._authenticator.mechanisms()).encode()
        told = {**_PROPERTIES, **(_READ_ONLY if self._is_read_only else {})}
        return m.ConnectionStart(0, 9, told, mechanisms, b"en_US")

    def can(self, capability: str) -> bool:
        """Whether the client says that it can do something."""
        return self._capabilities.get(capability) == _YES

    async def answer(self, connection: Connection, method: m.Method) -> Answers:
        """What to send in answer to a method that is legal before the connection is open.

        Raises:
            AuthenticationFailed: the connection ends here; `refusal` says how.
            ConnectionFault: it ends here, too.
        """
        self._method = method
        match method:
            case m.ConnectionStartOk():
                return await self._authenticate(method)
            case m.ConnectionTuneOk():
                connection.tune(method)
                self.heartbeat_seconds = method.heartbeat
                return []
            case m.ConnectionOpen():
                return [self._open(method)]
            case _:  # Close, and nothing else by the table of states
                return [m.ConnectionCloseOk()]

    def refusal(self, failed: AuthenticationFailed) -> Refusal:
        """How the connection ends, after `answer` has raised `failed`."""
        method = self._method
        if isinstance(method, m.ConnectionOpen):
            # The same for what does not exist and what is not allowed: names must not leak.
            user = self._account.name
            reason = f"vhost {method.virtual_host} not found, or user '{user}' may not use it"
            fault = ConnectionFault(ReplyCode.NOT_ALLOWED, reason, m.IDS[m.ConnectionOpen])
            return Refusal(fault, waits=False)
        assert isinstance(method, m.ConnectionStartOk)  # noqa: S101 - no other method can fail so
        if not self.can("authentication_failure_close"):
            return Refusal(None, waits=True)
        reason = (
            f"Login was refused using authentication mechanism {method.mechanism[:20]}. "
            "For details see the server's log."
        )
        return Refusal(ConnectionFault(ReplyCode.ACCESS_REFUSED, reason), waits=failed.is_guess)

    async def _authenticate(self, method: m.ConnectionStartOk) -> Answers:
        given = method.properties.get("capabilities")
        if given is not None and given.tag == "F":
            self._capabilities = given.value
        self.properties = {
            name: field.value.decode(errors="replace")
            for name, field in method.properties.items()
            if field.tag == "S"
        }
        with counted(self._traffic):
            self._account = await self._authenticator.prove(method.mechanism, method.response)
        self.mechanism = method.mechanism
        return [m.ConnectionTune(CHANNEL_MAX, FRAME_MAX, self._heartbeat)]

    def _open(self, method: m.ConnectionOpen) -> m.ConnectionOpenOk:
        name = as_sent(method.virtual_host)
        self.host, self.rights = self._authenticator.enter(self._account, name)
        self.opened_at_ms = self.now_ms()
        return m.ConnectionOpenOk()
