"""The refusals of the server as faults of AMQP 0-9-1."""

from collections.abc import Iterator
from contextlib import contextmanager

from streamd.connections.declaring import Locked
from streamd.operations.errors import Reason, Refused
from streamd.wire.amqp091.errors import ChannelFault, ConnectionFault, Fault, ReplyCode

_OF_A_CHANNEL = {
    Reason.ACCESS_REFUSED: ReplyCode.ACCESS_REFUSED,
    Reason.NOT_FOUND: ReplyCode.NOT_FOUND,
    Reason.ALREADY_EXISTS: ReplyCode.PRECONDITION_FAILED,
    Reason.NOT_AVAILABLE: ReplyCode.PRECONDITION_FAILED,
    Reason.PRECONDITION_FAILED: ReplyCode.PRECONDITION_FAILED,
}


def fault_of(refused: Refused) -> Fault:
    """The fault that tells a client about a refusal."""
    code = _OF_A_CHANNEL.get(refused.reason)
    reason = refused.details or refused.reason.value
    if isinstance(refused, Locked):
        code = ReplyCode.RESOURCE_LOCKED
    if code is None:
        return ConnectionFault(ReplyCode.INTERNAL_ERROR, reason)
    return ChannelFault(code, reason)


@contextmanager
def refusals() -> Iterator[None]:
    """Turn a `Refused` raised in this block into its AMQP fault."""
    try:
        yield
    except Refused as refused:
        raise fault_of(refused) from refused


def not_found(kind: str, name: str, virtual_host: str) -> ChannelFault:
    """The fault for a name that nothing has."""
    return ChannelFault(ReplyCode.NOT_FOUND, f"no {kind} '{name}' in vhost '{virtual_host}'")


def access_refused(reason: str) -> ChannelFault:
    """The fault for something that this user, or any user, may not do."""
    return ChannelFault(ReplyCode.ACCESS_REFUSED, reason)


def not_implemented(reason: str) -> ConnectionFault:
    """The fault for something that streams cannot do."""
    return ConnectionFault(ReplyCode.NOT_IMPLEMENTED, reason)
