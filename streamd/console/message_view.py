"""Messages as pages show them: a row of a list, and a message in full.

What publishers have written may be anything. Templates escape it; here characters that cannot be
seen, or that would change the direction of what stands around them, become ones that can be seen.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import islice
from typing import Any, NamedTuple

from segments import amqp10_codes as codes
from segments.amqp10 import Value, decode_value
from segments.errors import FormatError
from segments.message import MessageView, Properties, walk_sections
from segments.message_json import plain_value
from segments.search.page import FoundMessage
from segments.selector import (
    Dialect,
    SelectorError,
    parse_property,
    parse_selector,
    property_value_reader,
)
from segments.selector.nodes import Property, PropertySection
from streamd.http_api.messages import encoded_in_pieces

ROW_BODY = 240  # characters of a body in a list
ROW_PAIRS = 8  # properties
_CONDITION_VALUE = 200  # characters of a value that others are found by
_ROW_VALUE = 80  # characters of a property in a list
SHOWN_TEXT = 64 << 10  # characters of a body on its page
SHOWN_HEX = 4 << 10  # bytes
JSON_BYTES = 128 << 10  # of a body that is laid out as JSON
SHOWN_PAIRS = 500  # properties of a message on its page
_SHOWN_VALUE = 4_000  # characters of each
_HEX_WIDTH = 16
TEXT, JSON, HEX = "text", "json", "hex"
VIEWS = (TEXT, JSON, HEX)

_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)
_LINES = "\n\t"
_DELETE = 0x7F
_PICTURES = 0x2400  # of control characters
_SECTIONS = {
    codes.Section.HEADER: "Header",
    codes.Section.DELIVERY_ANNOTATIONS: "Delivery annotations",
    codes.Section.MESSAGE_ANNOTATIONS: "Message annotations",
    codes.Section.PROPERTIES: "Properties",
    codes.Section.APPLICATION_PROPERTIES: "Application properties",
    codes.Section.FOOTER: "Footer",
}
_ORDER = (
    codes.Section.APPLICATION_PROPERTIES,
    codes.Section.PROPERTIES,
    codes.Section.MESSAGE_ANNOTATIONS,
    codes.Section.HEADER,
    codes.Section.DELIVERY_ANNOTATIONS,
    codes.Section.FOOTER,
)
_HEADER = ("durable", "priority", "ttl", "first-acquirer", "delivery-count")
_PROPERTIES = tuple(item.name for item in fields(Properties))
_TYPES = {
    codes.DESCRIBED: "described",
    codes.NULL: "null",
    **dict.fromkeys((codes.TRUE, codes.FALSE, codes.BOOLEAN), "boolean"),
    codes.UBYTE: "ubyte",
    codes.BYTE: "byte",
    codes.USHORT: "ushort",
    codes.SHORT: "short",
    **dict.fromkeys((codes.UINT, codes.SMALL_UINT, codes.UINT_0), "uint"),
    **dict.fromkeys((codes.INT, codes.SMALL_INT), "int"),
    **dict.fromkeys((codes.ULONG, codes.SMALL_ULONG, codes.ULONG_0), "ulong"),
    **dict.fromkeys((codes.LONG, codes.SMALL_LONG), "long"),
    codes.FLOAT: "float",
    codes.DOUBLE: "double",
    codes.DECIMAL32: "decimal32",
    codes.DECIMAL64: "decimal64",
    codes.DECIMAL128: "decimal128",
    codes.CHAR: "char",
    codes.TIMESTAMP: "timestamp",
    codes.UUID: "uuid",
    **dict.fromkeys(codes.BINARIES, "binary"),
    **dict.fromkeys(codes.STRINGS, "string"),
    **dict.fromkeys(codes.SYMBOLS, "symbol"),
    **dict.fromkeys(codes.LISTS, "list"),
    **dict.fromkeys(codes.MAPS, "map"),
    **dict.fromkeys((codes.ARRAY_8, codes.ARRAY_32), "array"),
}


class Row(NamedTuple):
    """A message in a list.

    Attributes:
        offset, chunk: of it, and of the first message of its chunk.
        timestamp_ms: when it was stored.
        size: in bytes, encoded.
        pairs: some of its properties, with their values.
        num_more: others.
        cells: the values of the properties that are columns, empty for those that it has not.
        is_binary: the body is no text, and shown in hex.
        is_cut: there is more of it.
        damage: what cannot be read of the message; empty when all can.
    """

    offset: int
    chunk: int
    timestamp_ms: int
    size: int
    pairs: list[tuple[str, str]]
    num_more: int
    cells: list[str]
    body: str
    is_binary: bool
    is_cut: bool
    damage: str


class Typed(NamedTuple):
    """A property with its type.

    Attributes:
        is_cut: there is more of it.
        condition: a selector that finds others with this value; empty where there is none.
    """

    name: str
    kind: str
    text: str
    is_cut: bool
    condition: str


class Group(NamedTuple):
    """A section of a message: properties of one kind.

    Attributes:
        num_more: that are not shown, because there are too many.
    """

    title: str
    rows: list[Typed]
    num_more: int


class Body(NamedTuple):
    """A message's body, as much as a page shows.

    Attributes:
        view: TEXT, JSON or HEX.
        size: of all of it, in bytes.
        is_cut: there is more of it.
        kind: its AMQP type where it is a value, not bytes.
        problem: why it is not shown as was asked for; empty when it is.
    """

    view: str
    views: list[str]
    text: str
    size: int
    is_cut: bool
    kind: str
    problem: str


class Full(NamedTuple):
    """A message in full.

    Attributes:
        groups: its sections, but for the body.
        body: it.
        damage: what cannot be read of the message; empty when all can.
        is_amqp: it is an AMQP 1.0 message; else all of it is body.
    """

    groups: list[Group]
    body: Body
    damage: str
    is_amqp: bool


def visible(text: str, *, keeps_lines: bool = False) -> str:
    """A text in which every character is seen.

    Args:
        text: of any kind.
        keeps_lines: ends of lines and tabulators stay what they are.
    """

    def picture(found: re.Match[str]) -> str:
        character = found[0]
        if keeps_lines and character in _LINES:
            return character
        number = ord(character)
        if number < ord(" "):
            return chr(_PICTURES + number)
        return "\N{SYMBOL FOR DELETE}" if number == _DELETE else f"\\u{{{number:x}}}"

    return _UNSEEN.sub(picture, text)


def row_of(message: FoundMessage, columns: Sequence[Property] = ()) -> Row:
    """A message as a row of a list.

    Args:
        message: it.
        columns: properties that have columns of their own.
    """
    view = MessageView(message.raw)
    pairs: list[tuple[str, str]] = []
    cells = [""] * len(columns)
    body, is_binary, is_cut, damage = "", False, False, ""
    num_more = 0
    try:
        body, is_binary, is_cut = _beginning(view)
        found = [*view.application_properties.items(), *_fixed(view)]
        pairs = [(visible(_short(str(k), 60)), _value(v)) for k, v in found[:ROW_PAIRS]]
        num_more = len(found) - len(pairs)
        known = dict(found) if columns else {}
        cells = [_value(known[name]) if (name := _shown(p)) in known else "" for p in columns]
    except FormatError as error:
        damage = str(error)
    at = message.offset, message.chunk, message.timestamp_ms, len(message.raw)
    return Row(*at, pairs, num_more, cells, body, is_binary, is_cut, damage)


def _shown(column: Property) -> str:
    """The name of a property as rows have it."""
    is_free = column.section is PropertySection.APPLICATION
    return column.name if is_free else f"{column.section}.{column.name}"


def conditions_of(raw: bytes) -> Iterator[tuple[str, str]]:
    """Selectors for the values of a message's application properties, each with its property."""
    try:
        found = MessageView(raw).application_properties
    except FormatError:
        return
    for name, value in islice(found.items(), ROW_PAIRS):
        if condition := condition_of(name, value):
            yield name, condition


def condition_of(name: Value, value: Value, *, is_fixed: bool = False) -> str:
    """A selector that finds messages with this value of a property; empty where there is none."""
    literal = ""
    if isinstance(value, bool):
        literal = str(value).upper()
    elif isinstance(value, int | float):
        literal = repr(value)
    elif type(value) is str and len(value) <= _CONDITION_VALUE:
        literal = "'" + value.replace("'", "''") + "'"
    if not literal or not isinstance(name, str):
        return ""
    try:
        section = PropertySection.PROPERTIES if is_fixed else PropertySection.APPLICATION
        text = f"{Property(section, name).text()} = {literal}"
        parse_selector(Dialect.UNION, text)
    except SelectorError:
        return ""
    return text if text.isprintable() else ""


def _fixed(view: MessageView) -> Iterator[tuple[str, Value]]:
    for name in _PROPERTIES:
        value = getattr(view.properties, name)
        if value is not None:
            yield f"properties.{name}", value


def _beginning(view: MessageView) -> tuple[str, bool, bool]:
    if view.value is not None:
        text = value_text(view.value, 2 * ROW_BODY)
        return visible(text[:ROW_BODY]), False, len(text) > ROW_BODY
    data = view.body[: 4 * ROW_BODY]
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        is_cut_character = len(data) < len(view.body) and error.start >= len(data) - 3
        if not is_cut_character:
            return view.body[: ROW_BODY // 4].hex(" "), True, len(view.body) > ROW_BODY // 4
        text = data[: error.start].decode()
    return visible(text[:ROW_BODY]), False, len(text) > ROW_BODY or len(data) < len(view.body)


def _value(value: Value) -> str:
    return visible(_short(value_text(value, 2 * _ROW_VALUE), _ROW_VALUE))


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def value_text(value: Value, most: int) -> str:
    """An AMQP value as a text, of some length at most if it is a text itself."""
    if isinstance(value, str):
        return value[:most]
    if isinstance(value, bytes):
        cut = value[: most // 2]
        try:
            text = cut.decode("ascii")
            if text.isprintable():
                return text
        except UnicodeDecodeError:
            pass
        return f"0x{cut.hex()}"
    if value is None:
        return "null"
    plain: Any = plain_value(value)
    return plain if isinstance(plain, str) else _begun(plain, most)


def full_of(raw: bytes, view: str) -> Full:
    """A message in full.

    Args:
        raw: its bytes.
        view: how the body is shown, one of VIEWS; empty: as suits it.
    """
    message, groups, damage = MessageView(raw), [], ""
    try:
        groups = _groups(raw) if message.is_amqp else []
        body = _body(message, view)
    except FormatError as error:
        damage = str(error)
        body = _bytes_body(raw, HEX, "")
    return Full(groups, body, damage, message.is_amqp)


def _groups(raw: bytes) -> list[Group]:
    found: dict[int, Group] = {}
    for code, _, position in walk_sections(raw):
        if code in _SECTIONS and code not in found:
            value, _ = decode_value(raw, position)
            if isinstance(value, list | dict) and value:
                found[code] = _group(raw, code, position, len(value))
    return [found[code] for code in _ORDER if code in found]


def _group(raw: bytes, code: int, position: int, count: int) -> Group:
    rows = list(islice(_typed(raw, code, position), SHOWN_PAIRS))
    num_more = max(0, count - len(rows))
    if code in _LISTED:
        rows = [row for row in rows if row.kind != "null"]
        num_more = 0
    return Group(_SECTIONS[codes.Section(code)], rows, num_more)


_LISTED = {codes.Section.PROPERTIES: _PROPERTIES, codes.Section.HEADER: _HEADER}


def _typed(raw: bytes, code: int, position: int) -> Iterator[Typed]:
    """Names and values of a section, which `decode_value` has read: it is sound."""
    form = raw[position]
    width = codes.LISTS.get(form, 0) + codes.MAPS.get(form, 0)
    at = position + 1 + 2 * width
    count = int.from_bytes(raw[position + 1 + width : at], "big") if width else 0
    if form in codes.MAPS:
        for _ in range(count // 2):
            name, at = decode_value(raw, at)
            value, end = decode_value(raw, at)
            is_free = code == codes.Section.APPLICATION_PROPERTIES
            condition = condition_of(name, value) if is_free else ""
            yield _one(value_text(name, _SHOWN_VALUE), raw[at], value, condition)
            at = end
    elif code in _LISTED:
        for name in _LISTED[codes.Section(code)][:count]:
            value, end = decode_value(raw, at)
            is_fixed = code == codes.Section.PROPERTIES
            condition = condition_of(name, value, is_fixed=True) if is_fixed else ""
            yield _one(name, raw[at], value, condition)
            at = end


def _one(name: str, code: int, value: Value, condition: str) -> Typed:
    text = value_text(value, 2 * _SHOWN_VALUE + 2)
    is_cut = len(text) > _SHOWN_VALUE
    shown = visible(text[:_SHOWN_VALUE], keeps_lines=True)
    return Typed(visible(name), _TYPES.get(code, "?"), shown, is_cut, condition)


def _body(message: MessageView, view: str) -> Body:
    value = message.value
    if value is None:
        return _bytes_body(message.body, view, "")
    kind = next(
        (
            _TYPES.get(message.raw[position], "?")
            for code, _, position in walk_sections(message.raw)
            if code == codes.Section.VALUE
        ),
        "sequence",
    )
    if isinstance(value, bytes):
        return _bytes_body(value, view, kind)
    if isinstance(value, str):
        return _bytes_body(value.encode(errors="surrogatepass"), view, kind)
    plain = plain_value(value)
    laid_out = _begun(plain, SHOWN_TEXT, indent=2)
    shown = visible(laid_out[:SHOWN_TEXT], keeps_lines=True)
    size = len(encoded_in_pieces(plain))
    return Body(JSON, [JSON], shown, size, len(laid_out) > SHOWN_TEXT, kind, "")


def _bytes_body(data: bytes, view: str, kind: str) -> Body:
    text = _text_of(data)
    laid_out = _laid_out(data) if text is not None and view in (JSON, "") else None
    views = [TEXT, JSON, HEX] if text is not None else [HEX]
    problem = ""
    if view == JSON and laid_out is None:
        problem = f"It is no JSON, or longer than {JSON_BYTES >> 10} KiB."
    if text is None and view not in (HEX, ""):
        problem = "It is no text in UTF-8."
    chosen = view
    if not view or problem:
        chosen = HEX if text is None else TEXT if laid_out is None else JSON
    if chosen == HEX or text is None:
        is_cut = len(data) > SHOWN_HEX
        return Body(HEX, views, hex_dump(data[:SHOWN_HEX]), len(data), is_cut, kind, problem)
    found = laid_out if chosen == JSON and laid_out is not None else text
    shown = visible(found[:SHOWN_TEXT], keeps_lines=True)
    return Body(chosen, views, shown, len(data), len(found) > SHOWN_TEXT, kind, problem)


def _text_of(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _laid_out(data: bytes) -> str | None:
    """The beginning of a JSON text, with line ends; None for what is none, or a word alone."""
    if len(data) > JSON_BYTES or data.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        return _begun(json.loads(data), SHOWN_TEXT, indent=2)
    except (ValueError, RecursionError):
        return None


def _begun(value: object, most: int, indent: int | None = None) -> str:
    """A value as JSON, up to somewhat more than so many characters.

    All of it may be a thousand times longer than what it was read from: each line of what is nested
    deeply begins with as many spaces.
    """
    pieces, length = [], 0
    for piece in json.JSONEncoder(ensure_ascii=False, indent=indent).iterencode(value):
        pieces.append(piece)
        length += len(piece)
        if length > most:
            break
    return "".join(pieces)


def hex_dump(data: bytes) -> str:
    """Bytes in lines: where they stand, in hex, and as characters."""
    lines = []
    for at in range(0, len(data), _HEX_WIDTH):
        part = data[at : at + _HEX_WIDTH]
        shown = "".join(chr(byte) if " " <= chr(byte) <= "~" else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<{3 * _HEX_WIDTH}} {shown}")
    return "\n".join(lines)


def filter_values_of(raw: bytes, names: tuple[str, ...]) -> list[tuple[str, str, bool]]:
    """What a message has in the filter properties of its stream.

    Args:
        raw: its bytes.
        names: of the properties.

    Returns:
        name, value (empty for none), and whether that is a number, of each.
    """
    found = []
    for name in names:
        value = property_value_reader(parse_property(name))(raw)
        text = visible(value.value[:_SHOWN_VALUE].decode(errors="backslashreplace"))
        found.append((name, text, value.is_number))
    return found
