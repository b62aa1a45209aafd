"""Fields of what a store has as JSON: each is what it should be, or is refused.

Whatever is in a store may have been written by somebody else.
"""

from collections.abc import Callable
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
Node = Annotated[str, Meta(pattern=r"^([0-9A-Za-z][0-9A-Za-z._-]{0,63})?\Z")]  # or none
Suffix = Annotated[str, Meta(pattern=r"^\.[a-z]{1,20}\Z")]
Plain: TypeAlias = dict[Text, bool | int | float | str | None]


class _Kind(msgspec.Struct):
    format: object
    version: object


class _Checksum(msgspec.Struct):
    crc32: int


def reader(kind: type[Kind]) -> Callable[[bytes], Kind]:
    """Gives what reads lines of JSON of a kind; made where a module is loaded.

    msgspec learns a type when it is used first, and a second thread that uses it meanwhile gets
    half of it: the process ends with a segmentation fault.

    What it gives raises:
        FormatError: a line is not JSON, or a field is not what it should be; says which.
    """
    decode = msgspec.json.Decoder(kind).decode

    def read(line: bytes) -> Kind:
        try:
            return decode(line)
        except msgspec.ValidationError as error:
            raise FormatError(sentence_of(error)) from error
        except (ValueError, RecursionError) as error:
            raise FormatError("it is not whole") from error

    return read


_read_kind, _read_checksum = reader(_Kind), reader(_Checksum)


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
    found = _read_kind(head)
    if found.format != kind:
        raise FormatError(f"its format is not {kind}")
    if found.version != version:
        raise VersionError(f"its version is {ascii(found.version)[:40]}, expected {version}")
    if _read_checksum(last).crc32 != crc32(body):
        raise FormatError("its checksum is wrong")
