"""Checks of names and numbers from clients; a bad one raises `Refused`."""

from collections.abc import Collection, Iterable

from streamd.config import MAX_ASKED, MAX_NAME_BYTES, PROPERTIES_BYTES
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name, check_new
from streamd.operations.streams import MAX_PARTITIONS

_RESERVED_PREFIX = "amq."
_PROPERTY_BYTES = 64  # counted for each property besides its strings
_RECORDED_BYTES = 255  # longer filter values are kept as a hash in chunks anyway


def check_stream_name(name: Name) -> None:
    """Raise Refused unless a new stream or super stream may have this name."""
    check_new("a stream", name)
    if name.startswith(_RESERVED_PREFIX):
        details = f"the name {name[:40]!r} begins with {_RESERVED_PREFIX}, which is reserved"
        raise Refused(Reason.PRECONDITION_FAILED, details)


def check_length(what: str, name: str) -> None:
    """Raise Refused when a name is too long."""
    size = len(name.encode())
    if size > MAX_NAME_BYTES:
        details = f"{what} has {size:,} bytes, expected at most {MAX_NAME_BYTES}"
        raise Refused(Reason.PRECONDITION_FAILED, details)


def check_number(partitions: int) -> None:
    """Raise Refused when a super stream cannot have so many partitions."""
    if not 0 < partitions <= MAX_PARTITIONS:
        details = f"{partitions:,} partitions, expected 1 to {MAX_PARTITIONS:,}"
        raise Refused(Reason.PRECONDITION_FAILED, details)


def checked_key(key: str) -> str:
    """A routing key.

    Raises:
        Refused: it is too long.
    """
    check_length("a routing key", key)
    return key


def properties_size(properties: Iterable[tuple[str, str]]) -> int:
    """The bytes that are counted for a consumer's properties."""
    return sum(
        len(name.encode()) + len(value.encode()) + _PROPERTY_BYTES for name, value in properties
    )


def check_properties(size: int, used: int) -> None:
    """Raise Refused when a connection has no room for the properties of another consumer.

    Args:
        size: of its properties, in bytes.
        used: bytes of the properties of the connection's other consumers.
    """
    if used + size > PROPERTIES_BYTES:
        details = (
            f"the properties of a connection's consumers have {used + size:,} bytes, expected at "
            f"most {PROPERTIES_BYTES:,}; ask for less, or on several connections"
        )
        raise Refused(Reason.PRECONDITION_FAILED, details)


def check_asked(values: Collection[object]) -> None:
    """Raise Refused when a consumer asks for too many filter values."""
    if len(values) > MAX_ASKED:
        details = (
            f"a consumer asks for {len(values):,} filter values, expected at most {MAX_ASKED:,}"
        )
        raise Refused(Reason.PRECONDITION_FAILED, details)


def recorded(values: Iterable[bytes]) -> list[bytes]:
    """The requested filter values that are recorded for tuning: not the long ones."""
    return [value for value in values if len(value) <= _RECORDED_BYTES]
