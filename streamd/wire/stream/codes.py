"""Response codes of the stream protocol.

Source: rabbitmq/rabbitmq-server, deps/rabbitmq_stream_common/include/rabbit_stream.hrl.
"""

from enum import IntEnum


class ResponseCode(IntEnum):
    """What an answer says; also the reason in Close, PublishError and MetadataUpdate."""

    OK = 1
    STREAM_DOES_NOT_EXIST = 2
    SUBSCRIPTION_ID_EXISTS = 3
    SUBSCRIPTION_ID_DOES_NOT_EXIST = 4
    STREAM_EXISTS = 5
    STREAM_NOT_AVAILABLE = 6
    SASL_MECHANISM_NOT_SUPPORTED = 7
    AUTHENTICATION_FAILURE = 8
    SASL_ERROR = 9
    SASL_CHALLENGE = 10
    AUTHENTICATION_FAILURE_LOOPBACK = 11
    VIRTUAL_HOST_ACCESS_FAILURE = 12
    UNKNOWN_FRAME = 13
    FRAME_TOO_LARGE = 14
    INTERNAL_ERROR = 15
    ACCESS_REFUSED = 16
    PRECONDITION_FAILED = 17
    PUBLISHER_DOES_NOT_EXIST = 18
    NO_OFFSET = 19
    SASL_CANNOT_CHANGE_MECHANISM = 20
    SASL_CANNOT_CHANGE_USERNAME = 21

    @property
    def text(self) -> str:
        """The code in words, for messages."""
        return self.name.lower().replace("_", " ")


def text_of(code: int) -> str:
    """A code in words, also one that this program does not know."""
    try:
        return ResponseCode(code).text
    except ValueError:
        return f"unknown code {code}"
