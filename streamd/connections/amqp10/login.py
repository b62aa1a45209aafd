"""The steps before an AMQP 1.0 connection is open: SASL, then Open.

Source: OASIS AMQP 1.0 part 2 (transport), 2.4.1 and 2.7.1; part 5 (security), 5.3;
rabbitmq/rabbitmq-server, deps/rabbit/src/rabbit_amqp_reader.erl.
"""

import platform
from collections.abc import Mapping

from segments.amqp10 import Symbol
from streamd.auth.authentication import AuthenticationFailed, Authenticator, Failure, counted
from streamd.auth.users import Account, Rights
from streamd.broker.broker import Broker
from streamd.broker.catalog.catalog import DEFAULT_HOST
from streamd.broker.virtual_host import VirtualHost
from streamd.operations.figures import AMQP10
from streamd.operations.names import as_sent
from streamd.operations.server import NODE
from streamd.version import COMPATIBLE_VERSION, PRODUCT, __version__
from streamd.wire.amqp10 import performatives as p
from streamd.wire.amqp10.codec import MIN_FRAME_SIZE
from streamd.wire.amqp10.connection import CHANNEL_MAX, FRAME_MAX
from streamd.wire.amqp10.errors import Condition, ConnectionFault

_CONTAINER = "streamd"
_HOST = "vhost:"  # in the hostname of Open: a virtual host
_MIN_IDLE_MS = 1_000
_AUTHENTICATED, _NOT_AUTHENTICATED = 0, 1  # codes of SaslOutcome
_CAPABILITIES = (Symbol("LINK_PAIR_V1_0"), Symbol("ANONYMOUS-RELAY"))
# Clients look at product and version, and use of the server what a RabbitMQ of that version has.
_PROPERTIES: dict[Symbol, str | bool] = {
    Symbol(name): text
    for name, text in {
        "product": PRODUCT,
        "version": COMPATIBLE_VERSION,
        "platform": f"Python {platform.python_version()}",
        "streamd": __version__,
        "information": "streamd, which speaks AMQP 1.0 as RabbitMQ does",
        "cluster_name": _CONTAINER,
        "node": NODE,
    }.items()
}
_READ_ONLY = {Symbol("read_only"): True}


class Login:
    """Answers the login of one connection.

    Args:
        authenticator: authenticates the peer.
        heartbeat: seconds of silence that end a connection; 0 for any.

    Attributes:
        properties: what the client says about itself; strings only.
        heartbeat_seconds: half of that time: the client sends something in each.
        idle_seconds: of silence from here that end it at the client; None for any.
        frame_max: bytes that the client takes in a frame, and no more than we do.
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
        self.heartbeat_seconds = heartbeat // 2
        self.idle_seconds: float | None = None
        self.frame_max = FRAME_MAX
        self.mechanism = ""
        self.is_node = False  # nodes speak the stream protocol
        self.opened_at_ms = 0
        self._authenticator = authenticator
        self.now_ms = broker.now_ms
        self._is_read_only = broker.is_read_only
        self._traffic = broker.traffic.protocol(AMQP10)

    def mechanisms(self) -> p.SaslMechanisms:
        """What the client may choose from."""
        return p.SaslMechanisms(tuple(map(Symbol, self._authenticator.mechanisms())))

    async def prove(self, init: p.SaslInit) -> p.SaslOutcome:
        """The answer to a client that has proved who it is.

        Raises:
            AuthenticationFailed: it has not.
        """
        with counted(self._traffic):
            response = init.initial_response or b""
            self._account = await self._authenticator.prove(init.mechanism, response)
        self.mechanism = init.mechanism
        return p.SaslOutcome(_AUTHENTICATED)

    def enter(self, asked: p.Open) -> None:
        """Enter the virtual host.

        Raises:
            ConnectionFault: what is asked for cannot be, or the user may not enter.
        """
        if asked.max_frame_size < MIN_FRAME_SIZE:
            text = f"max-frame-size is {asked.max_frame_size}, expected {MIN_FRAME_SIZE} or more"
            raise ConnectionFault(Condition.FRAME_SIZE_TOO_SMALL, text)
        self.frame_max = min(asked.max_frame_size, FRAME_MAX)
        idle = asked.idle_time_out
        if idle is not None and 0 < idle < _MIN_IDLE_MS:
            text = f"idle-time-out is {idle} ms, expected 0 or at least {_MIN_IDLE_MS}"
            raise ConnectionFault(Condition.NOT_ALLOWED, text)
        self.idle_seconds = idle / 1_000 if idle else None
        hostname = asked.hostname or ""
        is_named = hostname.startswith(_HOST)
        name = as_sent(hostname.removeprefix(_HOST)) if is_named else DEFAULT_HOST
        try:
            self.host, self.rights = self._authenticator.enter(self._account, name)
        except AuthenticationFailed as failed:
            # The same for what does not exist and what is not allowed: names must not leak.
            user = self._account.name
            text = f"vhost {name} not found, or user '{user}' may not use it"
            raise ConnectionFault(Condition.UNAUTHORIZED_ACCESS, text) from failed
        own = {
            str(key): str(value)
            for key, value in (asked.properties or {}).items()
            if isinstance(value, str)
        }
        self.properties = {"connection_name": asked.container_id, **own}
        self.opened_at_ms = self.now_ms()

    def answer(self) -> p.Open:
        """The answer to an Open."""
        return p.Open(
            _CONTAINER,
            max_frame_size=FRAME_MAX,
            channel_max=CHANNEL_MAX,
            idle_time_out=self.heartbeat_seconds * 1_000 or None,
            offered_capabilities=_CAPABILITIES,
            properties=_PROPERTIES | (_READ_ONLY if self._is_read_only else {}),
        )


def outcome_of(failed: AuthenticationFailed) -> p.SaslOutcome | None:
    """What a client is told that may not enter; None where it gets no answer."""
    if failed.failure is Failure.UNKNOWN_MECHANISM:
        return None
    return p.SaslOutcome(_NOT_AUTHENTICATED)
