"""Reply codes of AMQP 0-9-1, and the two sizes of fault: of a channel, or of all the connection.

Source: rabbitmq/rabbitmq-server, deps/rabbitmq_codegen/amqp-rabbitmq-0.9.1.json, where they are
hard or soft.
"""

from enum import IntEnum
from typing import NamedTuple

MAX_SHORT_TEXT = 255


class ReplyCode(IntEnum):
    """What a close or a return is about."""

    REPLY_SUCCESS = 200
    NO_ROUTE = 312
    CONNECTION_FORCED = 320
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541


class MethodId(NamedTuple):
    """Class and method number, 0 and 0 for none."""

    class_id: int
    method_id: int


NO_METHOD = MethodId(0, 0)


class Fault(Exception):
    """A request that is answered with a close.

    Attributes:
        reason: what was found, what was expected, what to do.
        method: what is at fault; filled in by whoever carried it out.
    """

    def __init__(self, code: ReplyCode, reason: str, method: MethodId = NO_METHOD) -> None:
        super().__init__(f"{code.name} - {reason}")
        self.code = code
        self.reason = reason
        self.method = method

    @property
    def text(self) -> str:
        """For the close: the code's name and the reason, cut to a short string."""
        raw = str(self).encode("utf-8", "replace")
        return raw[:MAX_SHORT_TEXT].decode("utf-8", "ignore")


class ChannelFault(Fault):
    """A fault that ends its channel; the connection goes on."""


class ConnectionFault(Fault):
    """A fault that ends the connection with all channels."""


def frame_error(reason: str, method: MethodId = NO_METHOD) -> ConnectionFault:
    """The fault for bytes that break the protocol."""
    return ConnectionFault(ReplyCode.FRAME_ERROR, reason, method)


def precondition_failed(reason: str) -> ChannelFault:
    """The fault for arguments that cannot be used."""
    return ChannelFault(ReplyCode.PRECONDITION_FAILED, reason)
