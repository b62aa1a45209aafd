"""Commands to frames and back, derived from the declarations in `commands.py`.

A frame here is what follows the 4-byte size: key, version, fields.
"""

import struct
from collections.abc import Generator
from typing import Any, get_args, get_type_hints

from streamd.wire.stream import commands as c
from streamd.wire.stream.errors import RemoteProtocolError, unknown_frame
from streamd.wire.stream.fields import MAX_ITEMS, Field, TooMany, Truncated

_HEAD = struct.Struct(">HH")
_SIZED_HEAD = struct.Struct(">IHH")
_COUNT = struct.Struct(">I")
SIZE_BYTES = 4
HEAD_SIZE = _HEAD.size
_ITEMS_A_STEP = 1_000


class _Form:
    """How one command class is written: key, version, fields in order."""

    def __init__(self, kind: type[Any]) -> None:
        self.kind = kind
        self.key: int = kind.KEY
        self.version: int = getattr(kind, "VERSION", 1)
        hints = get_type_hints(kind, include_extras=True)
        self.fields: list[tuple[str, Field[Any]]] = [
            (name, get_args(hints[name])[1]) for name in kind.__struct_fields__
        ]


_FORMS: dict[type[Any], _Form] = {kind: _Form(kind) for kind in get_args(c.Command)}
_BY_KEY: dict[tuple[int, int], _Form] = {(f.key, f.version): f for f in _FORMS.values()}
_BY_KEY[c.Tune.KEY | c.RESPONSE_BIT, 1] = _FORMS[c.Tune]  # how some clients answer Tune
KNOWN_KEYS = frozenset(key for key, _ in _BY_KEY)


def answer_to(kind: type[Any]) -> type[Any] | None:
    """The command that answers another one and names it by its number; None for none."""
    form = _BY_KEY.get((kind.KEY | c.RESPONSE_BIT, 1))
    is_asked = "correlation_id" in kind.__struct_fields__ and not kind.KEY & c.RESPONSE_BIT
    return form.kind if form is not None and is_asked else None


def encode(command: c.Command) -> bytes:
    """The command as it is sent, its size first.

    Raises:
        ValueError: a string is too long to be sent.
    """
    form = _FORMS[type(command)]
    return _framed(form, [field.encode(getattr(command, name)) for name, field in form.fields])


def encode_in_steps(command: c.Command) -> Generator[None, None, bytes]:
    """The same for a command with long arrays: others may have their turn at each yield.

    Raises:
        ValueError: see `encode`.
    """
    form = _FORMS[type(command)]
    parts: list[bytes] = []
    for name, field in form.fields:
        value: Any = getattr(command, name)
        if field.item is None:
            parts.append(field.encode(value))
            continue
        parts.append(_COUNT.pack(len(value)))
        for number, item in enumerate(value, 1):
            parts.append(field.item.encode(item))
            if number % _ITEMS_A_STEP == 0:
                yield
    return _framed(form, parts)


def _framed(form: _Form, parts: list[bytes]) -> bytes:
    body = b"".join(parts)
    return _SIZED_HEAD.pack(HEAD_SIZE + len(body), form.key, form.version) + body


def decode(frame: bytes) -> c.Command:
    """Read one frame (without its size). Bytes after the last field are ignored.

    Raises:
        RemoteProtocolError: unknown key or version, a field reaches beyond the frame, or an array
            has too many items.
    """
    if len(frame) < HEAD_SIZE:
        raise unknown_frame(f"{len(frame)} bytes cannot hold key and version")
    key, version = _HEAD.unpack_from(frame)
    form = _BY_KEY.get((key, version))
    if form is None:
        raise _unknown(key, version)
    values: list[Any] = []
    position = HEAD_SIZE
    try:
        for _, field in form.fields:
            value, position = field.decode(frame, position)
            values.append(value)
    except Truncated:
        name, _ = form.fields[len(values)]
        details = f"field {name} of {form.kind.__name__} is cut off or not readable"
        raise unknown_frame(details) from None
    except TooMany:
        name, _ = form.fields[len(values)]
        details = f"field {name} of {form.kind.__name__} has more than {MAX_ITEMS:,} items"
        raise unknown_frame(details) from None
    command: c.Command = form.kind(*values)
    return command


def _unknown(key: int, version: int) -> RemoteProtocolError:
    if key in KNOWN_KEYS:
        return unknown_frame(f"version {version} of command {key:#06x}")
    return unknown_frame(f"command {key:#06x}")
