"""Numbers, sizes and times as pages show them."""

import json
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

from segments import words
from streamd.console.map_names import height_of, names_at
from streamd.operations.server import BEHIND_SECONDS

_NONE = "\N{EN DASH}"
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


def number(value: float | None) -> str:
    """A count, as 1,234,567."""
    return _NONE if value is None else f"{value:,}"


def size(value: float | None) -> str:
    """Bytes, as 12.3 MB."""
    return _NONE if value is None else words.size(value)


def rate(value: float | None) -> str:
    """How many a second; see `segments.words.rate`."""
    return _NONE if value is None else words.rate(value)


def pace(value: float | None) -> str:
    """The same under a title that ends with /s: as 1,234."""
    return rate(value).removesuffix("/s")


def duration(seconds: float | None) -> str:
    """A time span; see `segments.words.duration`."""
    return _NONE if seconds is None else words.duration(seconds)


def lag(seconds: float | None) -> str:
    """How far a consumer is behind; it stands out from where that is trouble."""
    text = duration(seconds)
    is_trouble = seconds is not None and seconds > BEHIND_SECONDS
    return Markup('<strong class="bad">{}</strong>').format(text) if is_trouble else text


def percent(value: float | None) -> str:
    """A share, as 12.5 %."""
    return _NONE if value is None else words.percent(value)


def moment(ms: float | None) -> str:
    """A time in ms since 1970, as an element with the exact time."""
    if not ms:
        return _NONE
    try:
        at = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):  # a message may say anything
        return f"{ms} ms"
    exact = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    shown = at.strftime("%Y-%m-%d %H:%M:%S")
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(exact, shown)


def ago(ms: float | None, now_ms: float) -> str:
    """How long before now a time in ms since 1970 was, as an element with the exact time."""
    if not ms:
        return _NONE
    exact = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
    seconds = (now_ms - ms) / 1000
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(
        exact.replace("+00:00", "Z"), "just now" if seconds < 1 else f"{_roughly(seconds)} ago"
    )


def _roughly(seconds: float) -> str:
    """A time span in its largest unit, as 3 h."""
    for unit, size in (("d", _DAY), ("h", _HOUR), ("min", _MINUTE)):
        if seconds >= size:
            return f"{seconds // size:,.0f} {unit}"
    return f"{seconds:.0f} s"


def named(text: object) -> Markup:
    """A name: set apart, so that its direction of writing is that of nothing around it."""
    return Markup('<bdi class="name">{}</bdi>').format(escape(str(text)))


def code(text: str) -> Markup:
    """A text in which what stands between ` is code."""
    pieces = [escape(piece) for piece in text.split("`")]
    mark = Markup("<code>{}</code>")
    return Markup("").join(mark.format(p) if n % 2 else p for n, p in enumerate(pieces))


def sentence(text: str) -> str:
    """A text with a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def as_json(value: object) -> str:
    """A plain value as JSON writes it, which tells 1 from "1"."""
    return json.dumps(value, ensure_ascii=False)


FILTERS: dict[str, Callable[..., Any]] = {
    "number": number,
    "size": size,
    "rate": rate,
    "pace": pace,
    "duration": duration,
    "lag": lag,
    "percent": percent,
    "moment": moment,
    "ago": ago,
    "named": named,
    "names_at": names_at,
    "rows": height_of,
    "code": code,
    "as_json": as_json,
    "plural": words.plural,
    "sentence": sentence,
    "shell": shlex.quote,
}
