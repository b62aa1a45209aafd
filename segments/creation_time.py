"""When a message was created, as it says itself: the field `creation_time` of AMQP 1.0."""

from segments.errors import FormatError
from segments.selector import Property, RowReader
from segments.selector.nodes import PropertySection

_read = RowReader([Property(PropertySection.PROPERTIES, "creation_time")]).read


def creation_time_ms(raw: bytes) -> int | None:
    """The time in ms since 1970; None where the message has none, or cannot be read."""
    try:
        (found,) = _read(raw)
    except FormatError:
        return None
    return found if type(found) is int else None


def was_created_before(raw: bytes, time_ms: int) -> bool:
    """Whether a message says that it was created before a time; one that says nothing was not."""
    created = creation_time_ms(raw)
    return created is not None and created < time_ms
