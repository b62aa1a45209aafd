"""Error conditions of AMQP 1.0, and the three sizes of fault: of a link, a session, a connection.

Source: OASIS AMQP 1.0 part 2 (transport), 2.8.14 to 2.8.18; part 3 (messaging).
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class Condition(StrEnum):
    """What an error is about."""

    INTERNAL_ERROR = "amqp:internal-error"
    NOT_FOUND = "amqp:not-found"
    UNAUTHORIZED_ACCESS = "amqp:unauthorized-access"
    DECODE_ERROR = "amqp:decode-error"
    RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
    NOT_ALLOWED = "amqp:not-allowed"
    INVALID_FIELD = "amqp:invalid-field"
    NOT_IMPLEMENTED = "amqp:not-implemented"
    PRECONDITION_FAILED = "amqp:precondition-failed"
    RESOURCE_DELETED = "amqp:resource-deleted"
    ILLEGAL_STATE = "amqp:illegal-state"
    FRAME_SIZE_TOO_SMALL = "amqp:frame-size-too-small"
    FRAMING_ERROR = "amqp:connection:framing-error"
    WINDOW_VIOLATION = "amqp:session:window-violation"
    HANDLE_IN_USE = "amqp:session:handle-in-use"
    UNATTACHED_HANDLE = "amqp:session:unattached-handle"
    TRANSFER_LIMIT_EXCEEDED = "amqp:link:transfer-limit-exceeded"
    MESSAGE_SIZE_EXCEEDED = "amqp:link:message-size-exceeded"


class Fault(Exception):
    """What a peer did, and is told as an error.

    Attributes:
        condition: what it is about.
        text: what was found, what was expected, what to do; for people.
        info: more, by symbols.
    """

    def __init__(self, condition: Condition, text: str, info: Mapping[str, Any] = {}) -> None:
        super().__init__(f"{condition}: {text}")
        self.condition = condition
        self.text = text
        self.info = info


class LinkFault(Fault):
    """A fault that ends its link: it is detached, or was never attached."""


class SessionFault(Fault):
    """A fault that ends its session with all links."""


class ConnectionFault(Fault):
    """A fault that ends the connection with all sessions."""
