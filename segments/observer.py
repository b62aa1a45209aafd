"""Observers of what happens to a log while it is read."""

from segments.codec import Damage
from segments.segment import Segment


class LogObserver:
    """Learns what happens to a log while it is read. This one ignores it."""

    def index_requested(self) -> None:
        """A filter index is requested; see `LogIndexes.take_requests`."""

    def keys_requested(self) -> None:
        """There are keys to index; see derived/key_schedule.py."""

    def damage_found(self, segment: Segment, damage: Damage) -> None:
        """A reader has found damage."""

    def clock_was_ahead(self, ahead_ms: int) -> None:
        """The newest chunk is so far ahead of the clock that times follow the clock again."""
