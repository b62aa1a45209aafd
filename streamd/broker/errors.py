"""What the server answers when it must say no."""

from streamd.wire.stream import ResponseCode


class Refused(Exception):
    """A well-formed request that is refused; the connection goes on.

    Attributes:
        code: what the client is told.
    """

    def __init__(self, code: ResponseCode, details: str = "") -> None:
        super().__init__(f"{code.text}: {details}" if details else code.text)
        self.code = code
        self.details = details
