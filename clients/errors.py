"""The errors of this package, for programs to handle.

The codes that a server answers with have exceptions of their own, found in one table.
"""

from streamd.wire.stream import ResponseCode, text_of

_BEHIND = ResponseCode.PUBLISHER_DOES_NOT_EXIST


class StreamError(Exception):
    """Root of everything this package raises on purpose."""


class ConnectionLost(StreamError):
    """The connection is gone or was never made; says why. Unconfirmed messages may be stored."""


class NotSent(ConnectionLost):
    """The connection was gone before anything was sent."""


class Closed(StreamError):
    """A producer, consumer or client is used after its context has ended."""


class Unsupported(StreamError):
    """The server is not a streamd and does not know this request."""


class DamagedChunk(StreamError):
    """A chunk does not hold what it announces; says which chunk, and in what way."""


class ArrowMissing(StreamError, ImportError):
    """Record batches need pyarrow and numpy, and one of them is not installed."""


class PublishFailed(StreamError):
    """The server did not accept some messages.

    Of a producer with a name, those are among them that were given behind the first one, with the
    code for a publisher that does not exist: nothing is stored behind what was refused.

    Attributes:
        refused: publishing id and response code of each.
    """

    def __init__(self, refused: list[tuple[int, int]]) -> None:
        why = [code for _, code in refused if code != _BEHIND] or [_BEHIND]
        codes = ", ".join(sorted(map(text_of, set(why))))
        super().__init__(f"{len(refused)} messages were not accepted: {codes}")
        self.refused = refused


class PartitionsFailed(PublishFailed):
    """Messages to some partitions of a super stream are not stored, or may not be.

    Attributes:
        errors: what `flush` of the producer of each such partition has raised, by stream.
        num_missing: how many messages of each are not known to be stored, by stream.
        refused: of all partitions; `errors` says which are whose.
    """

    def __init__(self, errors: dict[str, StreamError], num_missing: dict[str, int]) -> None:
        super().__init__(
            [
                refused
                for error in errors.values()
                if isinstance(error, PublishFailed)
                for refused in error.refused
            ]
        )
        told = [f"{num_missing[stream]} of {stream} ({error})" for stream, error in errors.items()]
        self.args = (f"messages that are not known to be stored: {', '.join(told)}",)
        self.errors = errors
        self.num_missing = num_missing


class ServerRefused(StreamError):
    """The server refused a request.

    Attributes:
        code: its reason.
    """

    def __init__(self, code: int, what: str, reason: str = "") -> None:
        why = reason or text_of(code)
        super().__init__(f"{what}: {why}" if what else why)
        self.code = code


class StreamDoesNotExist(ServerRefused):
    """There is no stream of that name."""


class StreamExists(ServerRefused):
    """There is a stream of that name already, declared with the same arguments."""


class StreamNotAvailable(ServerRefused):
    """The stream exists but cannot be used; its server's log says why."""


class PreconditionFailed(ServerRefused):
    """The request does not fit: a bad argument, or a stream declared with other arguments."""


class AccessRefused(ServerRefused):
    """The user may not do this."""


class LoginRefused(ServerRefused):
    """User, password or virtual host are not accepted."""


class NoOffset(ServerRefused):
    """Nothing was stored under that name."""


_BY_CODE: dict[int, type[ServerRefused]] = {
    ResponseCode.STREAM_DOES_NOT_EXIST: StreamDoesNotExist,
    ResponseCode.STREAM_EXISTS: StreamExists,
    ResponseCode.STREAM_NOT_AVAILABLE: StreamNotAvailable,
    ResponseCode.PRECONDITION_FAILED: PreconditionFailed,
    ResponseCode.ACCESS_REFUSED: AccessRefused,
    ResponseCode.NO_OFFSET: NoOffset,
    ResponseCode.SASL_MECHANISM_NOT_SUPPORTED: LoginRefused,
    ResponseCode.AUTHENTICATION_FAILURE: LoginRefused,
    ResponseCode.SASL_ERROR: LoginRefused,
    ResponseCode.AUTHENTICATION_FAILURE_LOOPBACK: LoginRefused,
    ResponseCode.VIRTUAL_HOST_ACCESS_FAILURE: LoginRefused,
}


def refusal(code: int, what: str, reason: str = "") -> ServerRefused:
    """The exception for a response code.

    Args:
        code: of the answer.
        what: was asked for; empty where the reason says it all.
        reason: as the server gave it; the code in words where it gave none.
    """
    return _BY_CODE.get(code, ServerRefused)(code, what, reason)
