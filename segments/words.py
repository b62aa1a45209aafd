"""Numbers as people write and read them, over every door."""

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_STEP = 1_000
_MAX_DIGITS = 20


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
