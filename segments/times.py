"""Times that programs and people give: which moment one without a zone is.

It is local, in the zone of the machine where it is given, as everywhere in Python. Whatever leaves
that machine, for a file or for a server, says its zone or is in ms since 1970.
"""

from datetime import UTC, datetime, timedelta, tzinfo

from segments.words import whole_number

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_FARTHEST = (1 << 63) - 1


def whole_ms(time: datetime) -> int:
    """A time in ms since 1970, rounded down; one without a zone is local.

    Raises:
        ValueError, OverflowError, OSError: it has no zone, and is too far away for the system.
    """
    return ((time if time.tzinfo is not None else time.astimezone(UTC)) - _EPOCH) // _MILLISECOND


def moment(text: str, zone: tzinfo) -> datetime | None:
    """A time as ISO 8601 writes it; None for any other text.

    Args:
        text: as 2026-11-21T09:00:00Z.
        zone: of a time that names none.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=zone)


def moment_ms(text: str, zone: tzinfo | None = None, *, needs_zone: bool = False) -> int | None:
    """A time in ms since 1970, of one as ISO 8601 writes it; None for any other text.

    Args:
        text: as 2026-11-21T09:00:00Z.
        zone: of a time that names none; None: that of this machine.
        needs_zone: such a time is none.
    """
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is None and needs_zone:
            return None
        return whole_ms(found if found.tzinfo is not None else found.replace(tzinfo=zone))
    except (ValueError, OverflowError, OSError):
        return None


def time_ms(text: str, zone: tzinfo | None = None, *, needs_zone: bool = False) -> int | None:
    """The same, or of a text with so many ms, which are cut to 63 bits."""
    number = whole_number(text.removeprefix("-"))
    if number is None:
        return moment_ms(text, zone, needs_zone=needs_zone)
    return max(-number, -_FARTHEST) if text.startswith("-") else min(number, _FARTHEST)
