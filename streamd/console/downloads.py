"""Messages as files: JSON lines for programs, CSV for spreadsheets.

A file is made while it is sent, page by page, each of them a search of its own: nothing of it is
kept here. It has an end whatever is found; where that is not all, its last line says so and why: a
limit, a login or a right that has ended meanwhile, a disk that fails.

A spreadsheet takes what begins with =, +, -, @ or a tabulator for a formula, and a formula can send
what is in the table elsewhere. Such a text gets an apostrophe before it, which spreadsheets take
for "this is text". Source: OWASP/www-community, pages/attacks/CSV_Injection.md.
"""

import csv
import io
import json
from collections.abc import Callable
from typing import Any, Protocol

from segments.message import MessageView
from segments.message_json import message_json
from segments.search.page import FoundMessage
from streamd.http_api.messages import encoded_in_pieces

MAX_MESSAGES = 100_000
MAX_BYTES = 256 << 20
MAX_SECONDS = 600.0
JSON_LINES, CSV = "jsonl", "csv"
MEDIA_TYPES = {JSON_LINES: "application/x-ndjson", CSV: "text/csv; charset=utf-8"}
_PIECE = 64 << 10  # characters that are written at once
COLUMNS = ("offset", "timestamp", "body", "encoding", "properties", "message_properties")
_FORMULA = (  # and those of full width
    "=",
    "+",
    "-",
    "@",
    "\t",
    "\r",
    "\n",
    "\uff1d",
    "\uff0b",
    "\uff0d",
    "\uff20",
    "'",
)


class Writer(Protocol):
    """Makes a line of a message."""

    def __call__(self, message: FoundMessage, *, is_large: bool = False) -> bytes:
        """See `json_line`."""


def json_line(message: FoundMessage, *, is_large: bool = False) -> bytes:
    """A message as a line, as `streamd find` prints it.

    Args:
        message: the message.
        is_large: it is written in a thread, in pieces between which the event loop has its turn.
    """
    found = _as_json(message)
    return encoded_in_pieces(found) + b"\n" if is_large else f"{json.dumps(found)}\n".encode()


def csv_row(message: FoundMessage, *, is_large: bool = False) -> bytes:
    """A message as a row of a table; see `json_line`."""
    found = _as_json(message)
    if "value" in found:
        found["body"] = _as_text(found["value"], is_large=is_large)
        found["encoding"] = "value"
    if "damaged" in found:
        found["body"], found["encoding"] = found["raw"], "base64, damaged"
    texts = (_as_text(found.get(name, ""), is_large=is_large) for name in COLUMNS[1:])
    cells = [found["offset"], *map(safe, texts)]
    return _row_in_pieces(cells) if is_large else _row(cells)


def csv_head() -> bytes:
    """The first row, with the mark by which spreadsheets know UTF-8."""
    return "\ufeff".encode() + _row(list(COLUMNS))


def json_end(reason: str, after: str) -> bytes:
    """The last line where there is more."""
    return f"{json.dumps({'incomplete': reason, 'after': after})}\n".encode()


def csv_end(reason: str, after: str) -> bytes:
    """The last row where there is more."""
    return _row([f"incomplete: {reason}", f"after {after}"])


def writers(
    kind: str,
) -> tuple[bytes, Writer, Callable[[str, str], bytes]]:
    """The beginning of a file, what makes a line of a message, and a last one where there is more.

    Args:
        kind: JSON_LINES or CSV.
    """
    if kind == CSV:
        return csv_head(), csv_row, csv_end
    return b"", json_line, json_end


def safe(text: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.lstrip(" \xa0").startswith(_FORMULA) else text


def _as_json(message: FoundMessage) -> dict[str, Any]:
    return message_json(MessageView(message.raw), message.offset, message.timestamp_ms)


def _as_text(value: object, *, is_large: bool) -> str:
    if isinstance(value, str):
        return value
    if is_large:
        return encoded_in_pieces(value).decode()
    return json.dumps(value, ensure_ascii=False)


def _row(cells: list[Any]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer).writerow(cells)
    return buffer.getvalue().encode(errors="backslashreplace")


def _row_in_pieces(cells: list[Any]) -> bytes:
    """The same in a thread: what is written in C keeps the interpreter to itself."""
    pieces = []
    for number, cell in enumerate(map(str, cells)):
        pieces.append(b',"' if number else b'"')
        for at in range(0, len(cell), _PIECE):
            text = cell[at : at + _PIECE].replace('"', '""')
            pieces.append(text.encode(errors="backslashreplace"))
        pieces.append(b'"')
    return b"".join([*pieces, b"\r\n"])
