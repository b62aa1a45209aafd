"""When messages and acknowledgements are left to gather, so that several go together.

A client that acknowledges message by message costs a turn of the event loop for each, and its next
messages a call of the system for each. While it has plenty left to deal with, nothing is lost by
taking several together: acknowledgements are read a moment later, and messages that its credit
allows are sent a moment later. Clients with little left, and those that publish, never wait.
"""

from typing import Protocol

PLENTY_UNACKED = 128  # messages of a channel: below that its acknowledgements are read at once
PLENTY_PREFETCH = 64  # of a consumer: below that its messages are sent at once
DELAY_SECONDS = 0.002  # before messages that gather are sent
_FULL_SHARE = 8  # no waiting once this part of the prefetch may be sent
_SECONDS_EACH = 1e-5  # that any client takes for a message
_MAX_PAUSE_SECONDS = 0.005


class Paced(Protocol):
    """A channel, as far as this module is concerned."""

    @property
    def num_unacked(self) -> int:
        """Messages that wait for an acknowledgement."""

    @property
    def is_busy(self) -> bool:
        """Each of its consumers has half of what it may have unacknowledged."""


class AckPacer:
    """Decides for one connection how long acknowledgements may gather."""

    def __init__(self) -> None:
        self._last_acked: Paced | None = None
        self._has_published = False

    def published(self) -> None:
        """The client publishes: it is not kept waiting any more."""
        self._has_published = True

    def acked(self, channel: Paced) -> None:
        """An acknowledgement was read."""
        self._last_acked = channel

    def take_pause(self) -> float:
        """Seconds to wait before more is read; 0 mostly, and when nothing was acknowledged."""
        channel, self._last_acked = self._last_acked, None
        if channel is None or self._has_published:
            return 0.0
        count = channel.num_unacked
        if count < PLENTY_UNACKED or not channel.is_busy:
            return 0.0
        return min(count * _SECONDS_EACH, _MAX_PAUSE_SECONDS)


def may_gather(credit: int, prefetch: int) -> bool:
    """Whether messages that a consumer may get are worth waiting for more."""
    return prefetch >= PLENTY_PREFETCH and credit * _FULL_SHARE < prefetch
