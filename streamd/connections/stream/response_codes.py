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


# The codes that RabbitMQ counts, by their names in its metrics.
ERROR_NAMES = {
    ResponseCode.ACCESS_REFUSED: "access_refused",
    ResponseCode.AUTHENTICATION_FAILURE: "authentication_failure",
    ResponseCode.FRAME_TOO_LARGE: "frame_too_large",
    ResponseCode.INTERNAL_ERROR: "internal_error",
    ResponseCode.PRECONDITION_FAILED: "precondition_failed",
    ResponseCode.PUBLISHER_DOES_NOT_EXIST: "publisher_does_not_exist",
    ResponseCode.AUTHENTICATION_FAILURE_LOOPBACK: "sasl_authentication_failure_loopback",
    ResponseCode.SASL_CHALLENGE: "sasl_challenge",
    ResponseCode.SASL_ERROR: "sasl_error",
    ResponseCode.SASL_MECHANISM_NOT_SUPPORTED: "sasl_mechanism_not_supported",
    ResponseCode.STREAM_EXISTS: "stream_already_exists",
    ResponseCode.STREAM_DOES_NOT_EXIST: "stream_does_not_exist",
    ResponseCode.STREAM_NOT_AVAILABLE: "stream_not_available",
    ResponseCode.SUBSCRIPTION_ID_EXISTS: "subscription_id_already_exists",
    ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST: "subscription_id_does_not_exist",
    ResponseCode.UNKNOWN_FRAME: "unknown_frame",
    ResponseCode.VIRTUAL_HOST_ACCESS_FAILURE: "vhost_access_failure",
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
