"""Somebody waits until the store has a stream as it was when they asked.

Theory of operation. A request lies with its stream for as long as somebody waits for it, and not
longer. While it does, the stream's steps seal the newest segment as if it was old, as long as that
holds something from before the request, and tell the request what became of it:

    WAITING   for the store, or for its turn
    STORED    the manifest in the store names all that was confirmed before, or retention took it,
              and what consumers had stored by then
    GONE      the stream was deleted, or is not to be in the tier any more
    FAILED    it cannot be uploaded, and waiting does not help; there is a reason

What is published after the request is not waited for, so it ends however fast that is.
"""

from collections.abc import Iterable
from enum import Enum

import trio

from streamd.operations.names import Name
from streamd.operations.tier_reports import UploadedStream


class RequestState(Enum):
    """See the table above."""

    WAITING = "waiting"
    STORED = "stored"
    GONE = "gone"
    FAILED = "failed"


class UploadRequest:
    """A request of one stream.

    Args:
        end: offset behind the last message that was confirmed before; None while its log is not
            open, then it is known when that was opened.
        uploaded_before: bytes that this server had uploaded of it.

    Attributes:
        reason: why it is still waiting, or has failed; empty where that is not known.
        report: what was done; there when it is stored.
    """

    report: UploadedStream

    def __init__(
        self, virtual_host: Name, name: Name, end: int | None, uploaded_before: int
    ) -> None:
        self.name, self.end = name, end
        self.state, self.reason = RequestState.WAITING, ""
        self._virtual_host, self._uploaded_before = virtual_host, uploaded_before
        self._ended = trio.Event()

    @property
    def is_waiting(self) -> bool:
        """Whether it has not ended."""
        return self.state is RequestState.WAITING

    def is_beyond(self, offset: int) -> bool:
        """Whether it covers messages from an offset on."""
        return self.end is not None and self.end > offset

    def complete(self, next_offset: int, uploaded: int) -> None:
        """The store has it.

        Args:
            next_offset: behind the last message that is stored.
            uploaded: bytes that this server has uploaded of the stream so far.
        """
        if self.is_waiting:
            self.report = UploadedStream(
                name=self.name,
                vhost=self._virtual_host,
                num_bytes=uploaded - self._uploaded_before,
                next_offset=next_offset,
            )
            self._end(RequestState.STORED)

    def cancel(self) -> None:
        """The stream was deleted, or is not to be in the tier any more."""
        self._end(RequestState.GONE)

    def fail(self, reason: str) -> None:
        """Waiting does not help."""
        if self.is_waiting:
            self.reason = reason
        self._end(RequestState.FAILED)

    def _end(self, state: RequestState) -> None:
        if self.is_waiting:
            self.state = state
            self._ended.set()

    async def ended(self) -> None:
        """Return when it is not waiting any more."""
        await self._ended.wait()


def what_is_missing(requests: Iterable[UploadRequest], trouble: str) -> str:
    """Which streams are not stored, for people; empty when all are.

    Args:
        requests: that were made together.
        trouble: what is wrong with the store; empty when nothing is.
    """
    missing = [one for one in requests if one.state in (RequestState.WAITING, RequestState.FAILED)]
    if not missing:
        return ""
    first = next((one for one in missing if one.reason), missing[0])
    more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
    is_final = first.state is RequestState.FAILED
    reason = first.reason if is_final else trouble or first.reason
    return f"{first.name}{more}{f': {reason}' if reason else ''}"
