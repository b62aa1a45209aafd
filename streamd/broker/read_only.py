"""A server that only reads: what another one has stored in the tier, as it grows.

Every change that somebody asks for is refused in one of three places, all as `ReadOnly` says: of
the catalog in catalog/writer.py, of messages and of where a log begins in stream.py.
"""

from streamd.operations.errors import Reason, Refused

READ_ONLY = (
    "this server is read-only: it serves what another server has stored in the tier; "
    "ask that one for changes"
)


class ReadOnly:
    """How changes are refused, and where they are taken.

    Attributes:
        reason: of the refusal.
    """

    reason = Reason.PRECONDITION_FAILED

    def refusal(self) -> Refused:
        """Why it is refused, for who has asked for it."""
        return Refused(self.reason, READ_ONLY)

    def leader(self, *, is_tls: bool) -> tuple[str, int] | None:  # noqa: ARG002 - of others
        """Host and port at which clients of the stream protocol reach who takes changes."""
        return None
