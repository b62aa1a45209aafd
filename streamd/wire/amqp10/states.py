"""What a client may send when, as one table for the connection.

A session has no states but to be there or not: after our `End` its channel is free, and what still
comes on it is dropped until a `Begin`, as RabbitMQ does. A link that we have detached is there
until the client's `Detach`, and what comes for it is dropped.

Source: OASIS AMQP 1.0 part 2 (transport), 2.4.6; part 5 (security), 5.3.2.
"""

from enum import Enum, auto
from typing import Any

from streamd.wire.amqp10 import performatives as p


class State(Enum):
    """The state of a connection, as the server sees it: what it waits for, or how it ends."""

    GREETING = auto()  # for the header of SASL
    PROVING = auto()  # for SaslInit
    JUDGING = auto()  # whether the client may enter: the server is at it
    GREETING_AGAIN = auto()  # for the header of AMQP
    OPENING = auto()
    OPEN = auto()
    CLOSING = auto()  # for the answer to our Close
    CLOSED = auto()


_OF_SESSIONS = (p.Begin, p.Attach, p.Flow, p.Transfer, p.Disposition, p.Detach, p.End)
TRANSITIONS: dict[tuple[State, type[Any]], State] = {
    (State.PROVING, p.SaslInit): State.JUDGING,
    (State.OPENING, p.Open): State.OPEN,
    **{(State.OPEN, kind): State.OPEN for kind in _OF_SESSIONS},
    (State.OPEN, p.Close): State.CLOSED,
    (State.CLOSING, p.Close): State.CLOSED,
}
