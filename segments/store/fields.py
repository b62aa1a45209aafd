"""Fields of what a store has as JSON: each is what it should be, or is refused.

Whatever is in a store may have been written by somebody else.
"""

from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from segments.checksum import crc32
from segments.errors import FormatError, VersionError
from segments.typed import sentence_of

Kind = TypeVar("Kind")

_MOST = (1 << 63) - 1
Number = Annotated[int, Meta(ge=0, le=_MOST)]
TimeMs = Annotated[int, Meta(ge=-_MOST, le=_MOST)]
Text = Annotated[str, Meta(min_length=1, max_length=4_096)]
Uid = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")]  # becomes a part of file names
Creation = Annotated[str, Meta(pattern=r"^[0-9A-Za-z-]{1,64}\Z")]  # becomes a part of keys
Suffix = Annotated[str, Meta(pattern=r"^\.[a-z]{1,20}\Z")]
Plain: TypeAlias = dict[Text, bool | int | float | str | None]


class _Kind(msgspec.Struct):
    format: object
    version: object


class _Checksum(msgspec.Struct):
    crc32: int


def decode(line: bytes, kind: type[Kind]) -> Kind:
    """What a line of JSON says.

    Raises:
        FormatError: it is not JSON, or a field is not what it should be; says which.
    """
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.ValidationError as error:
        raise FormatError(sentence_of(error)) from error
    except (ValueError, RecursionError) as error:
        raise FormatError("it is not whole") from error


def check(head: bytes, last: bytes, body: bytes, kind: str, version: int) -> None:
    """Raise unless an object is of this kind and version, and whole.

    Args:
        head: its first line, with `format` and `version`.
        last: its last line, with the CRC-32 of what is before.
        body: what is before.
        kind: what `format` should be.
        version: what this program knows.

    Raises:
        VersionError: a later version of this program wrote it.
        FormatError: it is something else, or damaged.
    """
    found = decode(head, _Kind)
    if found.format != kind:
        raise FormatError(f"its format is not {kind}")
    if found.version != version:
        raise VersionError(f"its version is {ascii(found.version)[:40]}, expected {version}")
    if decode(last, _Checksum).crc32 != crc32(body):
        raise FormatError("its checksum is wrong")
