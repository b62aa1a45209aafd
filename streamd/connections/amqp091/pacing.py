"""When messages and acknowledgements are left to gather, so that several go together.

A client that acknowledges message by message costs a turn of the event loop for each, and its next
messages a call of the system for each. While it has plenty left to deal with, nothing is lost by
taking several together: acknowledgements are read a moment later, and messages that its credit
allows are sent a moment later. Clients with little left, and those that publish, never wait.
Where a door is between, acknowledgements gather there (wire/amqp091/relay.py).
"""

from typing import Protocol

from streamd.wire.amqp091.pacing import ack_pause

PLENTY_PREFETCH = 64  # of a consumer: below that its messages are sent at once
DELAY_SECONDS = 0.002  # before messages that gather are sent
_FULL_SHARE = 8  # no waiting once this part of the prefetch may be sent


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
        return ack_pause(channel.num_unacked) if channel.is_busy else 0.0


def may_gather(credit: int, prefetch: int) -> bool:
    """Whether messages that a consumer may get are worth waiting for more."""
    return prefetch >= PLENTY_PREFETCH and credit * _FULL_SHARE < prefetch
