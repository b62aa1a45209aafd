"""Times that programs and people give: which moment one without a zone is.

It is local, in the zone of the machine where it is given, as everywhere in Python. Whatever leaves
that machine, for a file or for a server, says its zone or is in ms since 1970.
"""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def whole_ms(time: datetime) -> int:
    """A time in ms since 1970, rounded down; one without a zone is local.

    Raises:
        ValueError, OverflowError, OSError: it has no zone, and is too far away for the system.
    """
    return ((time if time.tzinfo is not None else time.astimezone(UTC)) - _EPOCH) // _MILLISECOND
