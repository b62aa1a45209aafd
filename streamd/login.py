"""The steps before a connection is open: who is there, may they enter, with which limits."""

import hmac
import platform
from collections.abc import Mapping

from streamd import __version__
from streamd.broker import VIRTUAL_HOST
from streamd.config import Config
from streamd.wire import ResponseCode, commands as c
from streamd.wire.fields import Pair

MECHANISM = "PLAIN"

# Clients decide by product and version what they may ask for; 4.3.0 is the first with
# ResolveOffsetSpec and the statistic committed_offset.
_PRODUCT, _COMPATIBLE_VERSION = "RabbitMQ", "4.3.0"


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


class Login:
    """Answers the login of one connection.

    Args:
        config: limits and the user.
        address: host and port to announce.
        is_local: the peer is on this machine.

    Attributes:
        properties: what the client said of itself.
        heartbeat_seconds: agreed; 0 for none. Valid once the client has answered Tune.
        frame_max: what the client answered.
    """

    def __init__(self, config: Config, address: tuple[str, int], *, is_local: bool) -> None:
        self.properties: Mapping[str, str] = {}
        self.heartbeat_seconds = 0
        self.frame_max = 0
        self._config = config
        self._address = address
        self._is_local = is_local

    def answer(self, command: c.ClientCommand) -> list[c.ServerCommand]:
        """What to send in answer to a command that is legal before the connection is open.

        Raises:
            LoginFailed: the connection ends here.
        """
        match command:
            case c.PeerProperties(corr, properties):
                self.properties = dict(properties)
                return [c.PeerPropertiesResponse(corr, ResponseCode.OK, _PROPERTIES)]
            case c.SaslHandshake(corr):
                return [c.SaslHandshakeResponse(corr, ResponseCode.OK, (MECHANISM,))]
            case c.SaslAuthenticate():
                return self._authenticate(command)
            case c.Tune(frame_max, heartbeat):
                self.frame_max, self.heartbeat_seconds = frame_max, heartbeat
                return []
            case c.Open():
                return [self._open(command)]
            case _:  # heartbeats, and nothing else by the state table
                return []

    def _authenticate(self, command: c.SaslAuthenticate) -> list[c.ServerCommand]:
        code = self._judge(command)
        answer = c.SaslAuthenticateResponse(command.correlation_id, code)
        if code != ResponseCode.OK:
            is_guess = code == ResponseCode.AUTHENTICATION_FAILURE
            raise LoginFailed(answer, is_guess=is_guess)
        return [answer, c.Tune(self._config.frame_max, self._config.heartbeat)]

    def _judge(self, command: c.SaslAuthenticate) -> ResponseCode:
        if command.mechanism != MECHANISM:
            return ResponseCode.SASL_MECHANISM_NOT_SUPPORTED
        parts = command.data.split(b"\0")
        if len(parts) != 3 or parts[0]:  # noqa: PLR2004 - authorisation id, user, password
            return ResponseCode.SASL_ERROR
        config = self._config
        is_user = hmac.compare_digest(parts[1], config.user.encode())
        is_password = hmac.compare_digest(parts[2], config.password.encode())
        if not (is_user and is_password):
            return ResponseCode.AUTHENTICATION_FAILURE
        if not self._is_local:
            return ResponseCode.AUTHENTICATION_FAILURE_LOOPBACK
        return ResponseCode.OK

    def _open(self, command: c.Open) -> c.OpenResponse:
        if command.virtual_host != VIRTUAL_HOST:
            code = ResponseCode.VIRTUAL_HOST_ACCESS_FAILURE
            raise LoginFailed(c.OpenResponse(command.correlation_id, code), is_guess=True)
        host, port = self._address
        properties = (Pair("advertised_host", host), Pair("advertised_port", str(port)))
        return c.OpenResponse(command.correlation_id, ResponseCode.OK, properties)


_PROPERTIES = (
    Pair("product", _PRODUCT),
    Pair("version", _COMPATIBLE_VERSION),
    Pair("platform", f"Python {platform.python_version()}"),
    Pair("streamd", __version__),
    Pair("information", "streamd, which speaks the RabbitMQ stream protocol"),
)
