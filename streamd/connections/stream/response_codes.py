"""The broker's reasons as response codes of the stream protocol."""

from streamd.auth.authentication import AuthenticationFailed, Failure
from streamd.operations.errors import Reason, Refused
from streamd.wire.stream import ResponseCode

OK = ResponseCode.OK
_CODES = {
    Reason.NOT_FOUND: ResponseCode.STREAM_DOES_NOT_EXIST,
    Reason.ALREADY_EXISTS: ResponseCode.STREAM_EXISTS,
    Reason.NOT_AVAILABLE: ResponseCode.STREAM_NOT_AVAILABLE,
    Reason.ACCESS_REFUSED: ResponseCode.ACCESS_REFUSED,
    Reason.PRECONDITION_FAILED: ResponseCode.PRECONDITION_FAILED,
    Reason.INTERNAL_ERROR: ResponseCode.INTERNAL_ERROR,
}
_LOGIN_CODES = {
    Failure.UNKNOWN_MECHANISM: ResponseCode.SASL_MECHANISM_NOT_SUPPORTED,
    Failure.MALFORMED: ResponseCode.SASL_ERROR,
    Failure.WRONG_CREDENTIALS: ResponseCode.AUTHENTICATION_FAILURE,
    Failure.LOOPBACK_ONLY: ResponseCode.AUTHENTICATION_FAILURE_LOOPBACK,
    Failure.NO_VIRTUAL_HOST: ResponseCode.VIRTUAL_HOST_ACCESS_FAILURE,
}


class SubscriptionIdTaken(Refused):
    """The connection has a subscription with that number already."""

    def __init__(self) -> None:
        super().__init__(Reason.PRECONDITION_FAILED, "the subscription id is in use")


def code_of_reason(reason: Reason) -> ResponseCode:
    """The code for a reason."""
    return _CODES[reason]


def code_of(refused: Refused) -> ResponseCode:
    """The code that tells a client why its request was refused."""
    if isinstance(refused, SubscriptionIdTaken):
        return ResponseCode.SUBSCRIPTION_ID_EXISTS
    return _CODES[refused.reason]


def code_of_login(failed: AuthenticationFailed) -> ResponseCode:
    """The code that tells a peer why it may not enter."""
    return _LOGIN_CODES[failed.failure]
