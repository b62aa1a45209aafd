"""Numbers as people write and read them, over every door."""

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_STEP = 1_000
_MAX_DIGITS = 20
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400  # seconds
_MILLI, _NEARLY = 0.000_999_5, 0.999_5


def whole_number(text: str, least: int = 0, most: int = 10**_MAX_DIGITS) -> int | None:
    """The number that digits stand for; None for any other text, and beyond the bounds."""
    if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS:
        number = int(text)
        return number if least <= number <= most else None
    return None


def plural(number: int, one: str, many: str = "") -> str:
    """A number with its noun: 1 message, 1,234 messages."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def size(number: float) -> str:
    """A number of bytes with a unit: 84 B, 2.3 MB."""
    unit = 0
    while number >= _STEP and unit < len(_UNITS) - 1:
        number, unit = number / _STEP, unit + 1
    return f"{number:.1f} {_UNITS[unit]}" if unit else f"{number:.0f} B"


def percent(share: float) -> str:
    """A share: 12.5 %, 0.51 %."""
    return f"{share * 100:.3g} %"


def rate(value: float) -> str:
    """How many a second, as 1,234/s; little ones with a digit behind the point."""
    return f"{value:,.1f}/s" if 0 < value < 10 else f"{value:,.0f}/s"  # noqa: PLR2004


def duration(seconds: float) -> str:
    """A time span in its largest units, as 3 h 12 min."""
    if seconds < 1:
        return _short_duration(seconds)
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE:.0f} min {seconds % _MINUTE:.0f} s"
    if seconds < _DAY:
        return f"{seconds // _HOUR:.0f} h {seconds % _HOUR // _MINUTE:.0f} min"
    return f"{seconds // _DAY:,.0f} d {seconds % _DAY // _HOUR:.0f} h"


def _short_duration(seconds: float) -> str:
    if seconds <= 0:
        return "0 s"
    if seconds < _MILLI:
        return f"{seconds * 1_000_000:.0f} µs"
    return f"{seconds * 1_000:.3g} ms" if seconds < _NEARLY else "1 s"
