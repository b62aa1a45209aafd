"""Reading the arguments that a stream is declared with.

Values arrive as strings. Valid ones are kept in canonical form, so that the same declaration
made twice compares equal however it was written (`60m` and `1h`); arguments that this server
does not know are ignored, as RabbitMQ ignores them.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from segments import LogPolicy
from segments.format_constants import MAX_FILTER_SIZE, MIN_FILTER_SIZE
from segments.policy import (
    DEFAULT_CHUNK_BYTES,
    DEFAULT_SEGMENT_BYTES,
    MAX_CHUNK_BYTES,
    MAX_CHUNK_RECORDS,
    MAX_SEGMENT_BYTES,
)
from segments.selector import SelectorError, parse_property
from streamd.broker.errors import Reason, Refused

Value: TypeAlias = int | float | str | bool
Arguments: TypeAlias = dict[str, Value]

AUTO = "auto"
STRICT, LENIENT = "strict", "lenient"
DEFAULT_ERROR_RATE = 0.01

_MAX_PROPERTY_BYTES = 255
_AGE = re.compile(r"([0-9]{1,12})([YMDhms])")
_UNITS = {"Y": 365 * 86_400, "M": 30 * 86_400, "D": 86_400, "h": 3_600, "m": 60, "s": 1}
_LOCATORS = ("client-local", "balanced", "random", "least-leaders", "min-masters")


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or not low <= int(text[:20]) <= high:
            raise ValueError(f"a whole number from {low:,} to {high:,}")
        return int(text)

    return read


def age_seconds(text: str) -> int:
    """The seconds in an age or an interval.

    Raises:
        ValueError: it is not valid; the text says what is expected.
    """
    match = _AGE.fullmatch(text)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not seconds:
        raise ValueError("a number and one of the units Y, M, D, h, m, s, as in 7D")
    return seconds


def _filter_size(text: str) -> int | str:
    if text == AUTO:
        return text
    try:
        return _whole(MIN_FILTER_SIZE, MAX_FILTER_SIZE)(text)
    except ValueError as error:
        raise ValueError(f"{error} bytes, or {AUTO}") from None


def _choice(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError("one of " + ", ".join(choices))
        return text

    return read


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1:
        raise ValueError("a share between 0 and 1, as in 0.01")
    return rate


def _flag(text: str) -> bool:
    return _choice("true", "false")(text) == "true"


def _property(text: str) -> str:
    if len(text.encode()) > _MAX_PROPERTY_BYTES or not text.isprintable():
        raise ValueError(f"a name of at most {_MAX_PROPERTY_BYTES} bytes")
    try:
        parse_property(text)
    except SelectorError as error:
        raise ValueError(f"the name of a property: {error.reason}") from None
    return text


FILTER_SIZE = "stream-filter-size-bytes"
FILTER_HISTORY = "stream-filter-history"
FILTER_PROPERTY = "stream-filter-property"
FILTER_CONTRACT = "stream-filter-contract"
FILTER_DERIVE = "stream-filter-derive"
MAX_LENGTH = "max-length-bytes"
MAX_AGE = "max-age"
SEGMENT_SIZE = "stream-max-segment-size-bytes"
ERROR_RATE = "stream-filter-error-rate"
CHUNK_RECORDS = "stream-chunk-max-records"
CHUNK_BYTES = "stream-chunk-max-bytes"

_MAX_BYTES = 1 << 62
_READERS: Mapping[str, Callable[[str], Value]] = {
    MAX_LENGTH: _whole(0, _MAX_BYTES),
    MAX_AGE: age_seconds,
    SEGMENT_SIZE: _whole(1, MAX_SEGMENT_BYTES),
    FILTER_SIZE: _filter_size,
    FILTER_HISTORY: _flag,
    FILTER_PROPERTY: _property,
    FILTER_CONTRACT: _choice(STRICT, LENIENT),
    FILTER_DERIVE: _flag,
    ERROR_RATE: _rate,
    CHUNK_RECORDS: _whole(1, MAX_CHUNK_RECORDS),
    CHUNK_BYTES: _whole(1, MAX_CHUNK_BYTES),
    "initial-cluster-size": _whole(1, 1 << 20),
    "queue-leader-locator": _choice(*_LOCATORS),
}


def read_arguments(pairs: Iterable[tuple[str, str]]) -> Arguments:
    """The arguments that this server knows, by name, in canonical form.

    Raises:
        Refused: a value cannot be read (PRECONDITION_FAILED).
    """
    found: Arguments = {}
    for name, text in pairs:
        read = _READERS.get(name)
        if read is not None:
            try:
                found[name] = read(text)
            except ValueError as expected:
                details = f"{name} is {text[:40]!r}, expected {expected}"
                raise Refused(Reason.PRECONDITION_FAILED, details) from None
    for name in (FILTER_CONTRACT, FILTER_DERIVE):
        if name in found and FILTER_PROPERTY not in found:
            details = f"{name} needs {FILTER_PROPERTY}, which is missing"
            raise Refused(Reason.PRECONDITION_FAILED, details)
    return found


# What may be changed while the stream exists; a change takes effect with the next chunk.
SETTINGS = frozenset(
    (MAX_LENGTH, MAX_AGE, SEGMENT_SIZE, FILTER_SIZE, ERROR_RATE, CHUNK_RECORDS, CHUNK_BYTES)
)


def read_settings(pairs: Iterable[tuple[str, str]]) -> Arguments:
    """Changes to a stream's arguments, in canonical form; an empty string is the default.

    Raises:
        Refused: an argument cannot be changed or read (PRECONDITION_FAILED).
    """
    given = dict(pairs)
    for name in given:
        if name not in SETTINGS:
            details = f"{name[:40]} cannot be changed; {', '.join(sorted(SETTINGS))} can"
            raise Refused(Reason.PRECONDITION_FAILED, details)
    cleared: Arguments = {name: "" for name, text in given.items() if not text}
    return cleared | read_arguments((name, text) for name, text in given.items() if text)


def describe_arguments(arguments: Mapping[str, Value]) -> Arguments:
    """Arguments as people write them: the age with its unit."""
    return {k: _age_text(v) if k == MAX_AGE else v for k, v in arguments.items()}


def _age_text(seconds: Value) -> str:
    assert isinstance(seconds, int)  # noqa: S101 - parsed so
    unit = next(u for u in "Dhms" if seconds % _UNITS[u] == 0)
    return f"{seconds // _UNITS[unit]}{unit}"


def policy_of(arguments: Mapping[str, Value]) -> LogPolicy:
    """The log policy that a stream's arguments ask for."""

    def number(name: str) -> int | None:
        value = arguments.get(name)
        return value if isinstance(value, int) else None

    age = number(MAX_AGE)
    is_auto = arguments.get(FILTER_SIZE) == AUTO
    rate = arguments.get(ERROR_RATE, DEFAULT_ERROR_RATE if is_auto else None)
    return LogPolicy(
        max_segment_bytes=number(SEGMENT_SIZE) or DEFAULT_SEGMENT_BYTES,
        max_length_bytes=number(MAX_LENGTH),
        max_age_ms=None if age is None else age * 1000,
        filter_size=MAX_FILTER_SIZE if is_auto else number(FILTER_SIZE) or MIN_FILTER_SIZE,
        filter_error_rate=rate if isinstance(rate, float) else None,
        filter_history=bool(arguments.get(FILTER_HISTORY, True)),
        chunk_max_records=number(CHUNK_RECORDS),
        chunk_max_bytes=number(CHUNK_BYTES) or DEFAULT_CHUNK_BYTES,
    )
