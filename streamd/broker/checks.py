"""What names and numbers from clients have to be; raised as `Refused` where they are not."""

from collections.abc import Collection, Iterable

from streamd.broker.errors import Reason, Refused
from streamd.config import MAX_ASKED, MAX_NAME_BYTES, PROPERTIES_BYTES

MAX_PARTITIONS = 1_000  # of a super stream
_RESERVED_PREFIX = "amq."
_PROPERTY_BYTES = 64  # that count for one besides its texts
_RECORDED_BYTES = 255  # longer filter values are kept as a hash in chunks anyway


def checked_name(name: str) -> str:
    """A name for a stream, line ends taken out.

    Raises:
        Refused: it is none.
    """
    name = name.replace("\r", "").replace("\n", "")
    if not name or name.startswith(_RESERVED_PREFIX):
        raise Refused(Reason.PRECONDITION_FAILED, f"{name!r} is no name for a stream")
    check_length("the name of a stream", name)
    return name


def check_length(what: str, name: str) -> None:
    """Raise Refused when a name is too long to be one."""
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
        Refused: it is too long to be one.
    """
    check_length("a routing key", key)
    return key


def properties_size(properties: Iterable[tuple[str, str]]) -> int:
    """Bytes that count for what a consumer says of itself."""
    return sum(
        len(name.encode()) + len(value.encode()) + _PROPERTY_BYTES for name, value in properties
    )


def check_properties(size: int, used: int) -> None:
    """Raise Refused when a consumer says more of itself than its connection has room for.

    Args:
        size: of its properties.
        used: that the connection's other consumers use.
    """
    if used + size > PROPERTIES_BYTES:
        details = (
            f"the properties of a connection's consumers have {used + size:,} bytes, expected at "
            f"most {PROPERTIES_BYTES:,}; ask for less, or on several connections"
        )
        raise Refused(Reason.PRECONDITION_FAILED, details)


def check_asked(values: Collection[object]) -> None:
    """Raise Refused when a consumer asks for more filter values than are looked for."""
    if len(values) > MAX_ASKED:
        details = (
            f"a consumer asks for {len(values):,} filter values, expected at most {MAX_ASKED:,}"
        )
        raise Refused(Reason.PRECONDITION_FAILED, details)


def recorded(values: Iterable[bytes]) -> list[bytes]:
    """Of filter values asked for, those that are recorded for tuning: no long ones."""
    return [value for value in values if len(value) <= _RECORDED_BYTES]
