"""A server that only reads: what another one has stored in the tier, as it grows.

Every change that somebody asks for is refused in one of three places, all with `ReadOnlyError`:
of the catalog in catalog/writer.py, of messages and of where a log begins in stream.py.
"""

from streamd.operations.errors import Reason, Refused

READ_ONLY = (
    "this server is read-only: it serves what another server has stored in the tier; "
    "ask that one for changes"
)


class ReadOnlyError(Refused):
    """Somebody wants to change something."""

    def __init__(self) -> None:
        super().__init__(Reason.PRECONDITION_FAILED, READ_ONLY)
