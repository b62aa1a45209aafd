"""What is told of confirms through the store: why they wait, and how long slots take."""

import logging
from collections import deque
from statistics import median
from typing import NamedTuple

from segments.words import duration, plural, size
from streamd.broker.traffic import Histogram

logger = logging.getLogger(__name__)

_SLOW_SECONDS = 5.0  # that a slot may take before somebody is told
_LAST_SLOTS = 100
_NO_ANSWER = "the store has not answered for so long"


class Unconfirmed(NamedTuple):
    """What is in no slot that is stored: streams, messages, bytes."""

    streams: int
    messages: int
    num_bytes: int


class ConfirmWatch:
    """Is told what becomes of slots.

    Args:
        slot_seconds: gets what each slot has taken, from when it was made until it was stored.

    Attributes:
        cause: why nothing is stored at the moment; empty while something is.
        num_stored: slots, since the start.
    """

    def __init__(self, slot_seconds: Histogram) -> None:
        self.cause = ""
        self.num_stored = 0
        self._slot_seconds = slot_seconds
        self._last: deque[float] = deque(maxlen=_LAST_SLOTS)
        self._failed_at = 0.0
        self._is_slow = False

    @property
    def trouble(self) -> str:
        """Why a stream is not confirmed at the moment; empty while it is."""
        return f"confirms wait for the tier: {self.cause}" if self.cause else ""

    @property
    def last_seconds(self) -> tuple[float, float] | None:
        """What half of the last hundred slots have taken at most, and all; None before the first.

        In seconds.
        """
        return (median(self._last), max(self._last)) if self._last else None

    def failed(self, cause: str, now: float) -> None:
        """Something could not be read, or stored; it is tried again."""
        self._note(logging.ERROR, cause, now)

    def ended(self, cause: str, now: float) -> None:
        """Another server has ended the log; what that means, ownership.py says."""
        self._note(logging.INFO, cause, now)

    def _note(self, level: int, cause: str, now: float) -> None:
        if not self.cause:
            self._failed_at = now
            logger.log(level, "confirms wait for the tier: %s", cause)
        self.cause = cause

    def stored(self, seconds: float) -> None:
        """A slot was stored, after so long."""
        self.num_stored += 1
        self._last.append(seconds)
        self._slot_seconds.observe(seconds)

    def goes_on(self) -> None:
        """Something was read, or confirmed."""
        if self.cause or self._is_slow:
            logger.info("confirms go on")
        self.cause, self._is_slow = "", False

    def look(self, oldest: float | None) -> None:
        """Say once that the store does not answer; see `sentence`."""
        if not (self.cause or self._is_slow) and _is_long(oldest):
            self._is_slow = True
            logger.error("confirms wait for the tier: %s", _NO_ANSWER)

    def seconds(self, oldest: float | None, now: float) -> float | None:
        """Since when confirms wait, by the oldest slot that is not confirmed; None for none."""
        failed = now - self._failed_at if self.cause else None
        return max((one for one in (oldest, failed) if one is not None), default=None)

    def sentence(self, waits: float | None, what: Unconfirmed) -> str:
        """Why confirms wait; empty while they do not.

        Args:
            waits: since when, in seconds; None when nothing waits.
            what: waits.
        """
        if waits is None or not (self.cause or _is_long(waits)):
            return ""
        messages, streams = plural(what.messages, "message"), plural(what.streams, "stream")
        much = f" ({messages} of {streams}, {size(what.num_bytes)})" if what.streams else ""
        return f"confirms wait for the tier for {duration(waits)}{much}: {self.cause or _NO_ANSWER}"


def _is_long(seconds: float | None) -> bool:
    return seconds is not None and seconds >= _SLOW_SECONDS
