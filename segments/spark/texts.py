"""How AMQP values appear in columns: as text, or as the type that was declared."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from segments.amqp10 import Opaque, Value

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MIN_LONG, _MAX_LONG = -(1 << 63), (1 << 63) - 1


def text_of_bytes(raw: bytes) -> str:
    """Bytes as text; what is not UTF-8 in them as backslash escapes."""
    return raw.decode("utf-8", "backslashreplace")


def text_of(value: Value) -> str | None:  # noqa: PLR0911 - one for each kind
    """Any value as text: lists and maps as JSON, times as ISO 8601, null as None."""
    if isinstance(value, str) or value is None:
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | UUID):
        return str(value)
    if isinstance(value, bytes):
        return text_of_bytes(value)
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, Opaque):
        return value.raw.hex()
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:  # noqa: ANN401 - what json takes
    if isinstance(value, Mapping):
        return {text_of(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | Opaque):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, bool | int | float | None) else text_of(value)


def binary_of(value: object) -> bytes | None:
    """A binary value; None for any other."""
    return value if isinstance(value, bytes) else None


def long_of(value: object) -> int | None:
    """A whole number that fits into 64 bits; None for any other."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and _MIN_LONG <= value <= _MAX_LONG else None  # type: ignore[operator,return-value]


def double_of(value: object) -> float | None:
    """A number; None for any other."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None  # type: ignore[arg-type]


def boolean_of(value: object) -> bool | None:
    """True or false; None for any other."""
    return value if isinstance(value, bool) else None


def string_of(value: object) -> str | None:
    """A text; None for any other."""
    return value if isinstance(value, str) else None


def microseconds_of(value: object) -> int | None:
    """A time, or milliseconds since 1970, in microseconds; None for any other."""
    if isinstance(value, datetime):
        return (value - _EPOCH) // timedelta(microseconds=1)
    milliseconds = long_of(value)
    if milliseconds is None or abs(milliseconds) > _MAX_LONG // 1000:
        return None
    return milliseconds * 1000


# The types that a property's column may have, as they are written in DDL.
READINGS: dict[str, Callable[[object], Any]] = {
    "string": string_of,
    "bigint": long_of,
    "double": double_of,
    "boolean": boolean_of,
    "binary": binary_of,
    "timestamp": microseconds_of,
}
