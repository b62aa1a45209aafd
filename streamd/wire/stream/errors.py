"""Protocol errors by side: ours is a bug, the peer's ends its connection."""

from streamd.wire.stream.codes import ResponseCode


class ProtocolError(Exception):
    """Root of both sides' errors."""


class LocalProtocolError(ProtocolError):
    """Our own code asked for a command that is not legal now."""


class RemoteProtocolError(ProtocolError):
    """The peer broke format, limits or order.

    Attributes:
        code: for the Close frame that it gets.
        reason: a short string for the same frame.
    """

    def __init__(self, code: ResponseCode, reason: str, details: str = "") -> None:
        super().__init__(f"{reason}: {details}" if details else reason)
        self.code = code
        self.reason = reason


def unknown_frame(details: str) -> RemoteProtocolError:
    """The error for bytes that are not a command, or not one that is legal now."""
    return RemoteProtocolError(ResponseCode.UNKNOWN_FRAME, "unknown frame", details)


def frame_too_large(size: int, limit: int) -> RemoteProtocolError:
    """The error for a frame that announces more bytes than were agreed."""
    details = f"{size} bytes were announced, {limit} are allowed"
    return RemoteProtocolError(ResponseCode.FRAME_TOO_LARGE, "frame too large", details)
