"""Reading requests and making answers: JSON, pages, columns, errors."""

import json
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import chain, islice, repeat
from typing import Any, TypeAlias, TypeVar
from urllib.parse import unquote

import msgspec
import trio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from segments.words import whole_number
from streamd.net.turns import in_turns
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name, as_sent

Row: TypeAlias = dict[str, Any]
Item = TypeVar("Item")

MAX_BODY_BYTES = 256 << 10  # JSON takes up to 50 times its size in memory
MAX_DEFINITIONS_BYTES = 16 << 20  # of a large cluster; from administrators only
BODY_SECONDS = 30  # a request's body has to arrive within
_PAGE_SIZE, _MAX_PAGE_SIZE = 100, 500
_PIECE = 64 << 10  # characters that are written at once
_ITEMS, _FEW = 1_000, 4  # values that are, and of those in them
_NO_CONTENT, _CREATED = 204, 201


class NotFound(Exception):
    """There is no such thing."""


class BadRequest(Exception):
    """The request cannot be understood; one sentence."""


class NotServed(BadRequest):
    """RabbitMQ has it, this server does not; one sentence. Imported definitions leave it out."""


_STATUS = {
    Reason.NOT_FOUND: (404, "Object Not Found"),
    Reason.ACCESS_REFUSED: (401, "not_authorised"),
    Reason.PRECONDITION_FAILED: (400, "bad_request"),
    Reason.ALREADY_EXISTS: (400, "bad_request"),
    Reason.NOT_AVAILABLE: (503, "unavailable"),
}


def refused_answer(refused: Refused) -> Response:
    """A refusal as HTTP expresses it: a status and a sentence instead of a code."""
    status, error = _STATUS.get(refused.reason, (500, "internal_error"))
    return error_answer(status, error, refused.details)


def error_answer(status: int, error: str, reason: str) -> Response:
    """An error as RabbitMQ words it."""
    return json_answer({"error": error, "reason": reason}, status)


def not_found_answer() -> Response:
    """An error as RabbitMQ words it."""
    return error_answer(404, "Object Not Found", "Not Found")


def json_answer(value: object, status: int = 200) -> Response:
    """An answer with a value."""
    return Response(encoded(value), status, media_type="application/json")


async def large_answer(value: Row) -> Response:
    """An answer with an object that may hold long lists; others have their turn meanwhile."""
    fields = []
    for name, field in value.items():
        if isinstance(field, list):
            rows = [encoded(item) async for item in in_turns(field)]
            fields.append(encoded(name) + b":[" + b",".join(rows) + b"]")
        else:
            fields.append(encoded(name) + b":" + encoded(field))
    data = b"{" + b",".join(fields) + b"}"
    return Response(data, media_type="application/json")


def joined_answer(name: str, rows: Iterable[bytes], rest: Row) -> Response:
    """An answer with an object: a list of items that are encoded already, and other fields."""
    return _joined(rows, b"{" + encoded(name) + b":", b"," + encoded(rest)[1:])


def listed_answer(rows: Iterable[bytes]) -> Response:
    """An answer with a list of items that are encoded already."""
    return _joined(rows)


def done(*, is_new: bool = False, location: str | None = None) -> Response:
    """An answer without a body, with the address of a new object where there is one."""
    headers = None if location is None else {"location": location}
    return Response(status_code=_CREATED if is_new else _NO_CONTENT, headers=headers)


def encoded(value: object) -> bytes:
    """A value as JSON, for one of several parts of an answer."""
    # Lone surrogates are written as \\u and their number, as JSON writes them.
    return _dumped(value).encode(errors="backslashreplace")


def encoded_in_pieces(value: object) -> bytes:
    """The same for a large value, in a thread: the event loop has its turn between two pieces.

    What is written in C keeps the interpreter to itself, 20 ms for a MiB.
    """
    return b"".join(map(_piece, _pieces(value)))


def _piece(text: str) -> bytes:
    return text.encode(errors="backslashreplace")


def _pieces(value: object) -> Iterator[str]:
    """The JSON of a value in pieces."""
    match value:
        case str() if len(value) > _PIECE:
            yield '"'
            for at in range(0, len(value), _PIECE):
                yield _dumped(value[at : at + _PIECE])[1:-1]
            yield '"'
        case list():
            yield from _of_many("[]", value, lambda some: some, lambda item: ("", item))
        case dict():
            items = list(value.items())
            yield from _of_many("{}", items, dict, lambda item: (_dumped(item[0]) + ":", item[1]))
        case _:
            yield _dumped(value)


def _of_many(
    brackets: str,
    items: list[Any],
    together: Callable[[list[Any]], object],
    apart: Callable[[Any], tuple[str, object]],
) -> Iterator[str]:
    """The JSON of items, many of them together where they are small."""
    comma = brackets[0]
    for at in range(0, len(items), _ITEMS):
        some = items[at : at + _ITEMS]
        if all(map(_is_small, some)):
            yield comma + _dumped(together(some))[1:-1]
            comma = ","
            continue
        for item in some:
            before, value = apart(item)
            yield comma + before
            yield from _pieces(value)
            comma = ","
    yield brackets[1] if items else brackets


def _is_small(value: object, depth: int = 2) -> bool:
    """Whether it takes no time to write; of what it holds there is little, and nothing deep."""
    if isinstance(value, str):
        return len(value) <= _ITEMS
    if isinstance(value, list | tuple):
        return depth > 0 and len(value) <= _FEW and all(_is_small(v, depth - 1) for v in value)
    return not isinstance(value, dict) or not value


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def part(request: Request, name: str) -> Name:
    """A name in the path, decoded. Paths are routed as sent, where %2F is not a slash.

    Raises:
        BadRequest: it is not UTF-8.
    """
    try:
        return as_sent(unquote(request.path_params[name], errors="strict"))
    except UnicodeDecodeError:
        sent = request.path_params[name][:40]
        raise BadRequest(f"{sent!r} in the path is not UTF-8 in percent encoding") from None


def found(item: Item | None) -> Item:
    """The item, which has been looked up.

    Raises:
        NotFound: it is None.
    """
    if item is None:
        raise NotFound
    return item


async def read_body(request: Request) -> Row:
    """The JSON object in a request's body; no body is an empty one.

    Raises:
        BadRequest: the body is too large, too slow, or not a JSON object.
    """
    return decoded(await read_bytes(request, MAX_BODY_BYTES), Row)


def decoded(
    data: bytes | bytearray, kind: type[Item], expected: str = "expected a JSON object"
) -> Item:
    """What JSON says, as a type; no data is an empty object.

    Args:
        data: UTF-8.
        kind: what comes of it.
        expected: says what is wrong where it is something else.

    Raises:
        BadRequest: it is something else, or no JSON.
    """
    try:
        return msgspec.json.decode(data.strip() or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise BadRequest(f"{expected}: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadRequest("not_json") from None


async def read_bytes(request: Request, most: int) -> bytearray:
    """A request's body.

    Raises:
        BadRequest: it is larger than `most` bytes, or too slow.
    """
    _check_size(int(request.headers.get("content-length", 0)), most)
    data = bytearray()
    try:
        with trio.fail_after(BODY_SECONDS):
            async with aclosing(request.stream()) as pieces:
                async for piece in pieces:
                    data += piece
                    _check_size(len(data), most)
    except trio.TooSlowError:
        raise BadRequest(f"the body did not arrive within {BODY_SECONDS} s") from None
    except ClientDisconnect:
        raise BadRequest("the body ended early") from None
    return data


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise BadRequest(f"the body is larger than {most:,} bytes")


def texts(body: Mapping[str, Any], name: str) -> list[str]:
    """A list of strings, which may be written as one string with commas.

    Raises:
        BadRequest: it is something else.
    """
    value = body.get(name, [])
    if isinstance(value, str):
        value = [item.strip() for item in value.split(",") if item.strip()]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise BadRequest(f"{name} is neither a list of strings nor a string with commas")
    return value


def text(body: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """A string.

    Raises:
        BadRequest: it is missing and has no default, or is something else.
    """
    value = body.get(name, default)
    if not isinstance(value, str):
        raise BadRequest(f"{name} is missing" if value is None else f"{name} is not a string")
    return value


def name_in(body: Mapping[str, Any], field: str, default: str | None = None) -> Name:
    """A name; see `text`."""
    return as_sent(text(body, field, default))


def mapping(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A JSON object; empty when it is missing.

    Raises:
        BadRequest: it is something else.
    """
    value = body.get(name, {})
    if value == []:  # some write an empty object like this
        return {}
    if not isinstance(value, dict):
        raise BadRequest(f"{name} is not a JSON object")
    return value


def flag(body: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """True or false, which may be written as a string.

    Raises:
        BadRequest: it is something else.
    """
    value = body.get(name, default)
    value = {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
    if not isinstance(value, bool):
        raise BadRequest(f"{name} is {str(value)[:40]!r}, expected true or false")
    return value


async def listing(
    request: Request,
    items: Iterable[Item],
    make_row: Callable[[Item], Row | None],
    name_of: Callable[[Item], str] | None = None,
    describe: Callable[[Sequence[Item]], Awaitable[Sequence[Item]]] | None = None,
) -> Response:
    """An answer with many rows: all or a page of them, with the columns that were asked for.

    Args:
        request: may ask for `page`, `page_size`, `name` (a part of it) and `columns`.
        items: all items, in order.
        make_row: makes the row of an item that is sent; None when the item is gone meanwhile.
        name_of: gives the name that `name` is looked for in; None when items have no names.
        describe: finds what is needed of the items that are sent.

    Raises:
        BadRequest: there is no such page, or a parameter cannot be understood.
    """
    query = request.query_params
    total = list(items)
    chosen: Sequence[Item] = total
    if "page" not in query:
        sent = total if describe is None else await describe(total)
        return _joined(await _encoded(request, sent, make_row))
    page, size = _number(query, "page", 1), _number(query, "page_size", _PAGE_SIZE)
    wanted = query.get("name", "")
    if query.get("use_regex", "false") != "false":
        raise BadRequest("use_regex is not supported: rows are found by a part of their name")
    if wanted and name_of is not None:
        chosen = [item async for item in in_turns(total) if wanted in name_of(item)]
    num_pages = max(1, math.ceil(len(chosen) / size))
    if not 1 <= page <= num_pages or not 1 <= size <= _MAX_PAGE_SIZE:
        raise BadRequest(f"page {page} of {size} rows: there are {num_pages} pages")
    sent = chosen[(page - 1) * size : page * size]
    rows = await _encoded(request, sent if describe is None else await describe(sent), make_row)
    about = {
        "total_count": len(total),
        "filtered_count": len(chosen),
        "item_count": len(rows),
        "page": page,
        "page_size": size,
        "page_count": num_pages,
    }
    head = encoded(about)[:-1]
    return _joined(rows, head + b',"items":', b"}")


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    value = query.get(name, str(default))
    number = whole_number(value, most=10**9)
    if number is None:
        raise BadRequest(f"{name} is {value[:20]!r}, expected a number")
    return number if name == "page" else max(1, number)


async def _encoded(
    request: Request, items: Sequence[Item], make_row: Callable[[Item], Row | None]
) -> list[bytes]:
    columns = [
        column.split(".")[0] for column in request.query_params.get("columns", "").split(",")
    ]
    keep = {column for column in columns if column}
    rows = []
    async for item in in_turns(items):
        row = make_row(item)
        if row is not None:
            rows.append(encoded({k: v for k, v in row.items() if k in keep} if keep else row))
    return rows


def _joined(rows: Iterable[bytes], head: bytes = b"", tail: bytes = b"") -> Response:
    commas = chain.from_iterable(zip(repeat(b","), rows))
    data = b"".join((head, b"[", *islice(commas, 1, None), b"]", tail))
    return Response(data, media_type="application/json")
