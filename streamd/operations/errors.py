"""Why the broker refuses requests, independent of any protocol."""

from enum import Enum


class Reason(Enum):
    """Why a request is refused; each protocol translates these to its own codes."""

    NOT_FOUND = "stream does not exist"
    ALREADY_EXISTS = "stream exists"
    NOT_AVAILABLE = "stream not available"
    ACCESS_REFUSED = "access refused"
    PRECONDITION_FAILED = "precondition failed"
    INTERNAL_ERROR = "internal error"


class Refused(Exception):
    """A well-formed request that is refused; the connection goes on.

    Attributes:
        reason: why.
        details: what was found and what to do, for people; may be empty.
    """

    def __init__(self, reason: Reason, details: str = "") -> None:
        super().__init__(f"{reason.value}: {details}" if details else reason.value)
        self.reason = reason
        self.details = details


class NoSuch(Refused):
    """There is no such user, permission or virtual host.

    The stream protocol has a code of its own only for streams that do not exist.
    """

    def __init__(self, details: str) -> None:
        super().__init__(Reason.PRECONDITION_FAILED, details)


class Busy(Refused):
    """A user is at it already: one sentence."""

    def __init__(self, details: str) -> None:
        super().__init__(Reason.NOT_AVAILABLE, details)


class ReservedName(Refused):
    """An exchange that every virtual host has, and nobody may declare or delete."""

    def __init__(self, details: str) -> None:
        super().__init__(Reason.ACCESS_REFUSED, details)


class Inequivalent(Refused):
    """What is declared is there already, and differs: one sentence."""

    def __init__(self, details: str) -> None:
        super().__init__(Reason.PRECONDITION_FAILED, details)
