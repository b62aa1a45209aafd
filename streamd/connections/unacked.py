"""How many messages of a connection wait for an acknowledgement, whatever it speaks."""

from collections.abc import Callable

from streamd.broker.traffic import ProtocolTraffic

# Of one connection. A consumer that is cancelled leaves its unacknowledged messages behind: without
# a limit, consuming and cancelling in turn would pile them up. Far above the 65,535 of one
# consumer's prefetch.
MAX_UNACKED = 500_000
MOST_SETTLED = 10_000  # before others have a turn, some 2 ms


class Unacked:
    """How many messages of a connection wait for an acknowledgement, of all its consumers.

    Args:
        on_room: called when more may be sent again.

    Attributes:
        count: the number of messages.
    """

    def __init__(self, on_room: Callable[[], None], traffic: ProtocolTraffic) -> None:
        self.count = 0
        self.traffic = traffic
        self._on_room = on_room

    @property
    def room(self) -> int:
        """How many more may be sent."""
        return MAX_UNACKED - self.count

    @property
    def is_full(self) -> bool:
        """Whether there are so many that no more are sent."""
        return self.room <= 0

    def settled(self, count: int) -> None:
        """This many wait no longer."""
        was_full = self.is_full
        self.count -= count
        if was_full and count:
            self._on_room()
