"""Reading the arguments that a stream is declared with.

Values arrive as strings. Valid ones are kept so that the same declaration made twice compares
equal however it was written (`60m` and `1h`), while an age is shown as it was declared; arguments
that this server does not know are ignored, as RabbitMQ ignores them.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from segments import LogPolicy
from segments.format_constants import MAX_FILTER_SIZE, MIN_FILTER_SIZE
from segments.policy import (
    DEFAULT_CHUNK_BYTES,
    DEFAULT_SEGMENT_BYTES,
    DEFAULT_TIER_SEGMENT_BYTES,
    MAX_CHUNK_BYTES,
    MAX_CHUNK_RECORDS,
    MAX_SEGMENT_BYTES,
)
from segments.selector import (
    MAX_PROPERTY_BYTES,
    SelectorError,
    names_in,
    parse_property,
    text_of_names,
)
from streamd.operations.errors import Reason, Refused


@dataclass(frozen=True, slots=True, repr=False)
class Age:
    """An age as it was declared; ages of the same length are equal."""

    text: str = field(compare=False)
    seconds: int

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return repr(self.text)


Plain: TypeAlias = int | float | str | bool
Value: TypeAlias = Plain | Age
Arguments: TypeAlias = dict[str, Value]

AUTO = "auto"
STRICT, LENIENT = "strict", "lenient"
DEFAULT_ERROR_RATE = 0.01

MAX_FILTER_PROPERTIES = 4  # each costs every message, and bits of every filter
MAX_KEY_PROPERTIES = 8
_MAX_FURTHER_BYTES = 200  # of one that stands in keys, which must not be cut
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


def _age(text: str) -> Age:
    return Age(text, age_seconds(text))


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


def _properties(most: int, further_bytes: int) -> Callable[[str], str]:
    """Reads up to so many names of properties; gives their canonical text.

    Args:
        most: names.
        further_bytes: of each name but the first, at most.
    """

    def read(text: str) -> str:
        names = names_in(text)
        if len(names) > most:
            raise ValueError(f"at most {most} names of properties, and there are {len(names)}")
        _check_property(names[0], MAX_PROPERTY_BYTES)
        for name in names[1:]:
            _check_property(name, further_bytes)
        return text_of_names(names)

    return read


def _check_property(name: str, most: int) -> None:
    if len(name.encode()) > most or not name.isprintable():
        raise ValueError(f"a name of at most {most} bytes")
    if not name:
        raise ValueError("the name of a property")
    try:
        parse_property(name)
    except SelectorError as error:
        raise ValueError(f"the name of a property: {error.reason}") from None


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
KEY_PROPERTIES = "stream-key-properties"
TIER = "stream-tier"
LOCAL_LENGTH = "stream-local-max-length-bytes"
LOCAL_AGE = "stream-local-max-age"

AGES = frozenset((MAX_AGE, LOCAL_AGE))

_MAX_BYTES = 1 << 62
READERS: Mapping[str, Callable[[str], Value]] = {
    MAX_LENGTH: _whole(0, _MAX_BYTES),
    MAX_AGE: _age,
    SEGMENT_SIZE: _whole(1, MAX_SEGMENT_BYTES),
    FILTER_SIZE: _filter_size,
    FILTER_HISTORY: _flag,
    FILTER_PROPERTY: _properties(MAX_FILTER_PROPERTIES, _MAX_FURTHER_BYTES),
    FILTER_CONTRACT: _choice(STRICT, LENIENT),
    FILTER_DERIVE: _flag,
    ERROR_RATE: _rate,
    CHUNK_RECORDS: _whole(1, MAX_CHUNK_RECORDS),
    CHUNK_BYTES: _whole(1, MAX_CHUNK_BYTES),
    KEY_PROPERTIES: _properties(MAX_KEY_PROPERTIES, MAX_PROPERTY_BYTES),
    TIER: _flag,
    LOCAL_LENGTH: _whole(0, _MAX_BYTES),
    LOCAL_AGE: _age,
    "initial-cluster-size": _whole(1, 1 << 20),
    "queue-leader-locator": _choice(*_LOCATORS),
}


def read_arguments(pairs: Iterable[tuple[str, str]]) -> Arguments:
    """The arguments that this server knows, by name; equal ones compare equal.

    Raises:
        Refused: a value cannot be read (PRECONDITION_FAILED).
    """
    found: Arguments = {}
    for name, text in pairs:
        read = READERS.get(name)
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


def filter_properties(arguments: Mapping[str, Value]) -> tuple[str, ...]:
    """The names of a stream's filter properties, the first one first; none where none is declared.

    Values of the first are filter values. Those of the others the server takes from each message.
    """
    text = arguments.get(FILTER_PROPERTY)
    return () if text is None else names_in(str(text))


# What may be changed while the stream exists; a change takes effect with the next chunk. For other
# key properties all segments that are on the disk are indexed anew.
SETTINGS = frozenset(
    (
        *(MAX_LENGTH, MAX_AGE, SEGMENT_SIZE, FILTER_SIZE, ERROR_RATE, CHUNK_RECORDS, CHUNK_BYTES),
        *(KEY_PROPERTIES, TIER, LOCAL_LENGTH, LOCAL_AGE),
    )
)


def read_settings(pairs: Iterable[tuple[str, str]]) -> Arguments:
    """Changes to a stream's arguments; an empty string is the default.

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


def plain_arguments(arguments: Mapping[str, Value]) -> dict[str, Plain]:
    """Arguments as they were declared, in values that JSON knows."""
    return {k: v.text if isinstance(v, Age) else v for k, v in arguments.items()}


def arguments_to_json(arguments: Mapping[str, Value]) -> str:
    """Arguments, or changes to them, for the catalog."""
    return json.dumps(plain_arguments(arguments))


def arguments_from_json(text: str) -> Arguments:
    """What `arguments_to_json` was given."""
    found: Arguments = json.loads(text)
    texts = {name: found[name] for name in AGES & found.keys()}
    return found | {k: _age(text) for k, text in texts.items() if isinstance(text, str) and text}


def policy_of(arguments: Mapping[str, Value], *, has_tier: bool = False) -> LogPolicy:
    """The log policy that a stream's arguments ask for.

    Args:
        arguments: as far as they are declared.
        has_tier: the server has a tier; segments of streams in it are smaller by default.
    """

    def milliseconds(name: str) -> int | None:
        age = arguments.get(name)
        return age.seconds * 1000 if isinstance(age, Age) else None

    def number(name: str) -> int | None:
        value = arguments.get(name)
        return value if isinstance(value, int) else None

    tier = bool(arguments.get(TIER, True))
    segment_bytes = DEFAULT_TIER_SEGMENT_BYTES if has_tier and tier else DEFAULT_SEGMENT_BYTES
    is_auto = arguments.get(FILTER_SIZE) == AUTO
    keys = arguments.get(KEY_PROPERTIES)
    rate = arguments.get(ERROR_RATE, DEFAULT_ERROR_RATE if is_auto else None)
    return LogPolicy(
        max_segment_bytes=number(SEGMENT_SIZE) or segment_bytes,
        max_length_bytes=number(MAX_LENGTH),
        max_age_ms=milliseconds(MAX_AGE),
        filter_size=MAX_FILTER_SIZE if is_auto else number(FILTER_SIZE) or MIN_FILTER_SIZE,
        filter_error_rate=rate if isinstance(rate, float) else None,
        filter_history=bool(arguments.get(FILTER_HISTORY, True)),
        chunk_max_records=number(CHUNK_RECORDS),
        chunk_max_bytes=number(CHUNK_BYTES) or DEFAULT_CHUNK_BYTES,
        key_properties=names_in(str(keys)) if keys else (),
        tier=tier,
        local_max_length_bytes=number(LOCAL_LENGTH),
        local_max_age_ms=milliseconds(LOCAL_AGE),
    )
