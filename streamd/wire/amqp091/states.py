"""What a client may send when: one table for the connection, one for each of its channels.

Source: rabbitmq/rabbitmq-server, deps/rabbit/src/rabbit_reader.erl and
deps/rabbit/src/rabbit_channel.erl.
"""

from enum import Enum, auto
from typing import Any

from streamd.wire.amqp091 import methods as m


class State(Enum):
    """The state of a connection, as the server sees it: what it waits for, or how it ends."""

    GREETING = auto()  # for the protocol header
    STARTING = auto()  # for StartOk
    TUNING = auto()
    OPENING = auto()
    OPEN = auto()
    CLOSING = auto()  # for the answer to our Close
    CLOSED = auto()


class ChannelState(Enum):
    """The state of a channel."""

    NONE = auto()
    OPEN = auto()
    CLOSING = auto()  # for the answer to our Close


_NO_SECRET = {
    (State.STARTING, m.ConnectionStartOk): State.TUNING,
    (State.TUNING, m.ConnectionTuneOk): State.OPENING,
    (State.OPENING, m.ConnectionOpen): State.OPEN,
    (State.OPEN, m.ConnectionUpdateSecret): State.OPEN,
    (State.CLOSING, m.ConnectionClose): State.CLOSING,  # both ends close at the same time
    (State.CLOSING, m.ConnectionCloseOk): State.CLOSED,
}
_CLOSES = {
    (state, m.ConnectionClose): State.CLOSED
    for state in (State.STARTING, State.TUNING, State.OPENING, State.OPEN)
}
CONNECTION_TRANSITIONS: dict[tuple[State, type[Any]], State] = _NO_SECRET | _CLOSES

_OF_A_CONNECTION = {kind for kind, number in m.IDS.items() if number.class_id == 10}  # noqa: PLR2004
_OPENING_AND_CLOSING = {m.ChannelOpen, m.ChannelClose, m.ChannelCloseOk}
CHANNEL_TRANSITIONS: dict[tuple[ChannelState, type[Any]], ChannelState] = {
    (ChannelState.NONE, m.ChannelOpen): ChannelState.OPEN,
    (ChannelState.OPEN, m.ChannelClose): ChannelState.NONE,
    (ChannelState.CLOSING, m.ChannelClose): ChannelState.CLOSING,
    (ChannelState.CLOSING, m.ChannelCloseOk): ChannelState.NONE,
} | {
    (ChannelState.OPEN, kind): ChannelState.OPEN
    for kind in m.SENT_BY_CLIENT - _OF_A_CONNECTION - _OPENING_AND_CLOSING
}
