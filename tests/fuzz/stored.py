"""Trailers as plain functions: whatever the bytes are, columns answer right or not at all.

What a column says is taken to be so: messages are made that have these values. Then whatever a
selector finds among them the columns have to have found, too.
"""

from collections.abc import Sequence
from functools import lru_cache

from segments.codec import decode_blocks
from segments.columns import Columns, open_rows, places_of
from segments.errors import FormatError
from segments.format_constants import FILTER_VALUE
from segments.message import Message
from segments.property_keys import PREFIX, key_of, mark_of, plain_key
from segments.row_screen import RowScreen
from segments.selector import Selector, parse_sql, parse_tags
from tests.fuzz.wire import Broken

_NAMES = ("TAGS", "q")
_MARK = mark_of(_NAMES[1])
SELECTORS: Sequence[Selector] = (
    *map(
        parse_sql,
        (
            "TAGS = 'a'",
            "NOT (TAGS = 'a')",
            "TAGS IN ('a', 'b', 'c', 'd')",
            "q = 'x'",
            "q <> 'x' AND TAGS = 'b'",
            "NOT (q = 'x' OR TAGS IS NULL)",
            "q IS NULL OR TAGS <> 'c'",
            "(TAGS = 'a' AND q = 'y') OR (TAGS = 'b' AND NOT (q IN ('x', 'y')))",
        ),
    ),
    parse_tags("a || b"),
)
_ENTRY = b"\0\0\0\2ab"


def try_columns(data: bytes) -> None:
    """A selector, how many messages there are, and a trailer that has passed its check."""
    selector = SELECTORS[data[0] % len(SELECTORS)]
    num_records = 1 + (data[1] if len(data) > 1 else 0)
    columns = Columns.parse(data[2:], num_records)
    if columns is None:
        return
    for is_strict in (False, True):
        rows = RowScreen(selector, _NAMES, is_strict=is_strict).rows(columns)
        if rows is None:
            continue
        if not 0 <= rows < 1 << num_records:
            raise Broken(f"{rows:#x} are not rows of {num_records} messages")
        _check_opened(columns, rows)
        bodies = _messages_of(columns, data[2:])
        if bodies is not None:
            lost = set(selector.matcher().select(bodies)).difference(places_of(rows, num_records))
            if lost:
                raise Broken(f"{selector} matches {sorted(lost)}, the columns do not")


def _check_opened(columns: Columns, rows: int) -> None:
    raw = _ENTRY * columns.num_records
    try:
        opened = open_rows(columns, rows, len(raw), lambda size, at: raw[at : at + size])
    except FormatError:  # the positions are of other messages
        return
    if opened.data != _ENTRY * len(opened.places):
        raise Broken(f"{opened.data!r} are not messages of the chunk")


def _messages_of(columns: Columns, trailer: bytes) -> list[bytes] | None:
    """Messages with the values that columns tell; None where no writer has told them so."""
    try:
        plain, further = columns.values_of(None), columns.values_of(_MARK)
        listed = [block.id for block in decode_blocks(trailer) if block.kind == FILTER_VALUE]
    except (IndexError, FormatError):
        return None
    if plain is None or further is None or len(set(listed)) < len(listed):
        return None
    if not {*plain, *further}.issubset(listed) or not _are_keys(plain, further):
        return None
    return [
        _message(value.removeprefix(plain_key(PREFIX)[: -len(PREFIX)]), key[len(_MARK) + 1 :])
        for value, key in zip(plain, further, strict=True)
    ]


def _are_keys(plain: Sequence[bytes], further: Sequence[bytes]) -> bool:
    """Whether the values of both columns are written as they are."""
    return all(key.startswith(key_of(_NAMES[1], b"")) for key in further) and not any(
        value.startswith(PREFIX) and not value.startswith(plain_key(PREFIX)) for value in plain
    )


@lru_cache(1024)
def _message(first: bytes, second: bytes) -> bytes:
    """One with these values: a text where they are ASCII, else bytes."""
    pairs = zip(_NAMES, (first, second), strict=True)
    found = {name: value.decode() if value.isascii() else value for name, value in pairs}
    return Message(application_properties=found).encode()
