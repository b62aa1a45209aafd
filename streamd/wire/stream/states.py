"""What may happen when, on one connection: data, for both ends.

A connection goes through a fixed login and is then open. A row says: in this state, this command
(whoever sends it, see SENT_BY_CLIENT and SENT_BY_SERVER) leads to that state. What has no row is
a protocol error. Answers that refuse lead to REFUSED: the server closes then. Heartbeats are
taken in every state, because some clients send them before they are open.

Source: rabbitmq/rabbitmq-server, deps/rabbitmq_stream/src/rabbit_stream_reader.erl (state machine
of the login).
"""

from enum import Enum, auto
from typing import get_args

from streamd.wire.stream import commands as c
from streamd.wire.stream.codes import ResponseCode


class State(Enum):
    """How far a connection has come."""

    CONNECTED = auto()
    GREETING = auto()
    GREETED = auto()
    CHOOSING = auto()
    AUTHENTICATING = auto()
    JUDGING = auto()
    AUTHENTICATED = auto()
    TUNING = auto()
    TUNED = auto()
    OPENING = auto()
    OPEN = auto()
    CLOSING = auto()
    CLOSED = auto()
    REFUSED = auto()


SENT_BY_CLIENT: frozenset[type[c.Command]] = frozenset(get_args(c.ClientCommand))
SENT_BY_SERVER: frozenset[type[c.Command]] = frozenset(get_args(c.ServerCommand))

_LOGIN: dict[tuple[State, type[c.Command]], State] = {
    (State.CONNECTED, c.PeerProperties): State.GREETING,
    (State.GREETING, c.PeerPropertiesResponse): State.GREETED,
    (State.GREETED, c.SaslHandshake): State.CHOOSING,
    (State.CHOOSING, c.SaslHandshakeResponse): State.AUTHENTICATING,
    (State.AUTHENTICATING, c.SaslAuthenticate): State.JUDGING,
    (State.JUDGING, c.SaslAuthenticateResponse): State.AUTHENTICATED,
    (State.AUTHENTICATED, c.Tune): State.TUNING,
    (State.TUNING, c.Tune): State.TUNED,
    (State.TUNED, c.Open): State.OPENING,
    (State.OPENING, c.OpenResponse): State.OPEN,
    (State.OPEN, c.SaslAuthenticate): State.OPEN,  # a new secret for the same user
    (State.OPEN, c.SaslAuthenticateResponse): State.OPEN,
    (State.OPEN, c.Close): State.CLOSING,
    (State.CLOSING, c.Close): State.CLOSING,  # both ends close at the same time
    (State.CLOSING, c.CloseResponse): State.CLOSED,
}
_LOGIN_COMMANDS = frozenset(command for _, command in _LOGIN)
_SESSION = {
    (State.OPEN, command): State.OPEN
    for command in (SENT_BY_CLIENT | SENT_BY_SERVER) - _LOGIN_COMMANDS
}
_HEARTBEATS = {(state, c.Heartbeat): state for state in State if state is not State.CLOSED}

TRANSITIONS: dict[tuple[State, type[c.Command]], State] = _LOGIN | _SESSION | _HEARTBEATS

# Only the server proposes limits, only the client answers.
TUNE_BY_SERVER, TUNE_BY_CLIENT = State.AUTHENTICATED, State.TUNING

_JUDGED = (c.PeerPropertiesResponse, c.SaslHandshakeResponse, c.OpenResponse)


def next_state(state: State, command: c.Command) -> State | None:
    """The state after `command`, None when it is not legal in `state`."""
    following = TRANSITIONS.get((state, type(command)))
    if following is None:
        return None
    if isinstance(command, c.SaslAuthenticateResponse):
        if command.code == ResponseCode.SASL_CHALLENGE:
            return State.AUTHENTICATING
        return following if command.code == ResponseCode.OK else State.REFUSED
    if isinstance(command, _JUDGED) and command.code != ResponseCode.OK:
        return State.REFUSED
    return following
