"""What a form sends: fields, and files."""

import logging
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from urllib.parse import parse_qsl

import trio
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from streamd.http_api.messages import BadRequest, read_bytes
from streamd.operations.names import Name, as_sent

CSRF = "csrf"
MAX_FORM_BYTES = 64 << 10
_MAX_FIELDS = 200
_URL_ENCODED, _MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
_CHARSET = b"utf-8"
_PIECE = 64 << 10  # bytes of a form that are read at once
# It would write a line of every form that is none, which anybody may send.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)


class NotOwnForm(BadRequest):
    """The form is not one that this session was given; one sentence."""


class Form:
    """The fields of a form. A field that is missing is an empty one, as browsers see it.

    Args:
        fields: name and value, in order.
        files: contents by name.
    """

    def __init__(
        self, fields: list[tuple[str, str]], files: Mapping[str, bytes] | None = None
    ) -> None:
        self._fields = fields
        self._files = dict(files or {})

    def text(self, name: str) -> str:
        """The value of a field, without the space around it; of several the last one."""
        return self.raw(name).strip()

    def raw(self, name: str) -> str:
        """The value of a field as it was typed: for passwords, and for names that exist."""
        return next((value for key, value in reversed(self._fields) if key == name), "")

    def name(self, name: str) -> Name:
        """A field that is a name, as it was typed."""
        return as_sent(self.raw(name))

    def texts(self, name: str) -> list[str]:
        """All values of a field, as of several boxes that are ticked."""
        return [value for key, value in self._fields if key == name]

    def has(self, name: str) -> bool:
        """Whether a field was sent, as that of a box that is ticked."""
        return any(key == name for key, _ in self._fields)

    def file(self, name: str) -> bytes:
        """The contents of a file; empty without one."""
        return self._files.get(name, b"")

    def values(self) -> dict[str, str]:
        """All fields as they were typed, to show them again; of several the last one."""
        return {key: value for key, value in self._fields if key != CSRF}


async def read_form(request: Request, csrf: str | None, most: int = MAX_FORM_BYTES) -> Form:
    """The form in a request's body.

    Args:
        request: the request.
        csrf: what the form has to say; None where there is no session yet.
        most: limit of the body's size, in bytes.

    Raises:
        BadRequest: it is no form, too large or too slow.
        NotOwnForm: it is none of this session.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    data = await read_bytes(request, most)
    if kind == _URL_ENCODED:
        form = _read_fields(data)
    elif kind == _MULTIPART and csrf is not None:  # files are for those who are logged in
        form = await _read_parts(request, data)
    else:
        raise BadRequest(f"Content-Type is {kind[:40]!r}, expected that of a form")
    if csrf is not None and not secrets.compare_digest(form.raw(CSRF).encode(), csrf.encode()):
        raise NotOwnForm("the form belongs to another login: load the page again, and repeat it")
    return form


def _read_fields(data: bytearray) -> Form:
    if len(data) > MAX_FORM_BYTES:  # decoding it takes 0.4 s for a MiB
        raise BadRequest(f"the form has more than {MAX_FORM_BYTES >> 10} KiB, without a file")
    try:
        text = data.decode("ascii")
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise BadRequest("the form is not UTF-8 in percent encoding, or too long") from None
    return Form([(key, _with_line_ends(value)) for key, value in pairs])


async def _read_parts(request: Request, data: bytearray) -> Form:
    # The parser would take any that Python knows: one takes a second for 64 KiB, others make
    # characters that are none. Browsers name none at all.
    _, options = parse_options_header(request.headers["content-type"])
    if options.get(b"charset", _CHARSET).lower() != _CHARSET:
        raise BadRequest("the form is not in UTF-8")

    async def pieces() -> AsyncGenerator[bytes, None]:
        for at in range(0, len(data), _PIECE):  # the event loop has its turn between two
            yield bytes(data[at : at + _PIECE])
            await trio.lowlevel.checkpoint()
        yield b""

    try:
        async with aclosing(pieces()) as body:
            parser = MultiPartParser(
                request.headers,
                body,
                max_files=1,
                max_fields=_MAX_FIELDS,
                max_part_size=MAX_FORM_BYTES,
            )
            parser.spool_max_size = len(data)  # it is in memory already: no file is needed
            parts: FormData = await parser.parse()
    except (MultiPartException, KeyError, ValueError):
        raise BadRequest("the form cannot be read") from None
    fields, files = [], {}
    for key, value in parts.multi_items():
        if isinstance(value, UploadFile):
            files[key] = await value.read()
            await value.close()
        else:
            fields.append((key, _with_line_ends(value)))
    return Form(fields, files)


def _with_line_ends(text: str) -> str:
    """Browsers send the ends of lines as CR LF, whatever was typed."""
    return text.replace("\r\n", "\n")
