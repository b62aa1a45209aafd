"""The steps before a connection is open: authentication, virtual host, limits.

The same check serves a client that sends a new secret later.
"""

import platform
import secrets
from collections.abc import Mapping
from typing import NamedTuple

from streamd.auth.authentication import PLAIN, AuthenticationFailed, Authenticator, counted
from streamd.auth.users import Account, Rights
from streamd.broker.virtual_host import VirtualHost
from streamd.connections.services import Services
from streamd.connections.stream.context import Context, Notices
from streamd.connections.stream.delivery import Delivery
from streamd.connections.stream.node_link import (
    FRAME_MAX as NODE_FRAME_MAX,
    NONCE,
    PRODUCT as NODE_PRODUCT,
)
from streamd.connections.stream.response_codes import code_of_login
from streamd.net.outbox import Outbox
from streamd.operations.connections import STREAM_PROTOCOL
from streamd.operations.names import as_sent
from streamd.version import COMPATIBLE_VERSION, PRODUCT, __version__
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.fields import Pair

# Clients decide by product and version what they may ask for; 4.3.0 is the first with
# ResolveOffsetSpec and the statistic committed_offset.


class Refusal(NamedTuple):
    """The answer to a peer that may not enter.

    Attributes:
        waits: the answer is delayed, which slows down guessing.
    """

    answer: c.ServerCommand
    waits: bool


class Login:
    """Answers the login of one connection.

    Args:
        address: host and port to announce.
        authenticator: authenticates the peer.
        is_tls: the connection is inside TLS.

    Attributes:
        heartbeat_seconds: agreed; 0 for none. Valid once the client has answered Tune.
        host: the virtual host, once it is entered.
        mechanism: by which the user was authenticated, once it is.
        opened_at_ms: when the connection was opened, in ms since 1970.
        is_node: another node of the cluster has logged in.
    """

    host: VirtualHost
    rights: Rights
    _account: Account

    def __init__(
        self,
        services: Services,
        address: tuple[str, int],
        authenticator: Authenticator,
        *,
        is_tls: bool,
    ) -> None:
        self.properties: Mapping[str, str] = {}
        self.heartbeat_seconds = 0
        self.frame_max = 0
        self._services = services
        self._broker = services.broker
        self._address, self._is_tls = address, is_tls
        self._authenticator = authenticator
        self._traffic = services.broker.traffic.protocol(STREAM_PROTOCOL)
        self.mechanism = ""
        self._nonce = ""  # for a node of the cluster
        self.is_node = False
        self.opened_at_ms = 0
        self._command: c.ClientCommand | None = None  # the last one given to `answer`

    async def answer(self, command: c.ClientCommand) -> list[c.ServerCommand]:
        """What to send in answer to a command that is legal before the connection is open.

        Raises:
            AuthenticationFailed: the connection ends here; `refusal` is its last answer.
        """
        self._command = command
        match command:
            case c.PeerProperties(corr, properties):
                self.properties = dict(properties)
                told = _PROPERTIES + (_READ_ONLY if self._is_read_only else ())
                if self.properties.get("product") == NODE_PRODUCT:
                    self._nonce = secrets.token_hex(16)
                    told += (Pair(NONCE, self._nonce),)
                if self._broker.shards is not None:
                    told += (_SPREAD,)
                if self._broker.has_alarms:
                    told += (_TROUBLE,)
                return [c.PeerPropertiesResponse(corr, ResponseCode.OK, told)]
            case c.SaslHandshake(corr):
                mechanisms = self._authenticator.mechanisms()
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

    def refusal(self, failed: AuthenticationFailed) -> Refusal:
        """The last answer, after `answer` has raised `failed`."""
        command = self._command
        code = code_of_login(failed)
        self._traffic.errors[code] += 1
        if isinstance(command, c.Open):
            return Refusal(c.OpenResponse(command.correlation_id, code), waits=True)
        assert isinstance(command, c.SaslAuthenticate)  # noqa: S101 - no other command can fail so
        answer = c.SaslAuthenticateResponse(command.correlation_id, code)
        return Refusal(answer, waits=failed.is_guess)

    @property
    def _is_read_only(self) -> bool:
        """Nothing can be published or changed here."""
        shards = self._broker.shards
        return self._broker.is_read_only and not (shards is not None and shards.has_streams)

    async def _authenticate(self, command: c.SaslAuthenticate) -> list[c.ServerCommand]:
        with counted(self._traffic):
            acts = None
            if self._nonce and command.mechanism == PLAIN:
                acts = self._authenticator.node_acts(command.data, self._nonce)
            proven = self._authenticator.prove
            self._account = acts or await proven(command.mechanism, command.data)
        self.mechanism = command.mechanism
        answer = c.SaslAuthenticateResponse(command.correlation_id, ResponseCode.OK)
        self.is_node = acts is not None
        frame_max = NODE_FRAME_MAX if self.is_node else self._services.config.frame_max
        return [answer, c.Tune(frame_max, self._services.config.heartbeat)]

    def _open(self, command: c.Open) -> c.OpenResponse:
        name = as_sent(command.virtual_host)
        self.host, self.rights = self._authenticator.enter(self._account, name)
        self.opened_at_ms = self._broker.now_ms()
        address, port = self._address
        properties = (Pair("advertised_host", address), Pair("advertised_port", str(port)))
        return c.OpenResponse(command.correlation_id, ResponseCode.OK, properties)

    def context(self, outbox: Outbox, delivery: Delivery) -> Context:
        """What an open connection works with."""
        return Context(
            self._broker,
            self._services.engine,
            self._services.directory,
            self.host,
            self.rights,
            outbox,
            delivery,
            self._address,
            self._is_tls,
            self._traffic,
            Notices(),
            self.is_node,
        )

    async def renew(self, command: c.SaslAuthenticate) -> ResponseCode:
        """Check a secret that is sent while the connection is open."""
        if command.mechanism != self.mechanism:
            return ResponseCode.SASL_CANNOT_CHANGE_MECHANISM
        try:
            with counted(self._traffic):
                account = await self._authenticator.prove(command.mechanism, command.data)
        except AuthenticationFailed as failed:
            return code_of_login(failed)
        if account is not self._account:
            return ResponseCode.SASL_CANNOT_CHANGE_USERNAME
        if not self.rights.may_enter:
            return ResponseCode.VIRTUAL_HOST_ACCESS_FAILURE
        return ResponseCode.OK


_PROPERTIES = (
    Pair("product", PRODUCT),
    Pair("version", COMPATIBLE_VERSION),
    Pair("platform", f"Python {platform.python_version()}"),
    Pair("streamd", __version__),
    Pair("information", "streamd, which speaks the RabbitMQ stream protocol"),
)
_READ_ONLY = (Pair("read_only", "true"),)
_SPREAD = Pair("spread", "true")
_TROUBLE = Pair("trouble", "some streams accept no messages")
