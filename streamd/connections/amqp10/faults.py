"""The refusals of the server as faults of AMQP 1.0."""

from collections.abc import Iterator
from contextlib import contextmanager

from streamd.operations.errors import Reason, Refused
from streamd.wire.amqp10.errors import Condition, Fault, LinkFault, SessionFault

_CONDITIONS = {
    Reason.NOT_FOUND: Condition.NOT_FOUND,
    Reason.ALREADY_EXISTS: Condition.PRECONDITION_FAILED,
    Reason.NOT_AVAILABLE: Condition.PRECONDITION_FAILED,
    Reason.PRECONDITION_FAILED: Condition.PRECONDITION_FAILED,
    Reason.INTERNAL_ERROR: Condition.INTERNAL_ERROR,
}


def fault_of(refused: Refused) -> Fault:
    """The fault that tells a client about a refusal: who may not do something loses the session."""
    text = refused.details or refused.reason.value
    if refused.reason is Reason.ACCESS_REFUSED:
        return SessionFault(Condition.UNAUTHORIZED_ACCESS, text)
    return LinkFault(_CONDITIONS[refused.reason], text)


@contextmanager
def refusals() -> Iterator[None]:
    """Turn a `Refused` raised in this block into its AMQP fault."""
    try:
        yield
    except Refused as refused:
        raise fault_of(refused) from refused


def not_implemented(text: str) -> LinkFault:
    """The fault for something that streams cannot do."""
    return LinkFault(Condition.NOT_IMPLEMENTED, text)
