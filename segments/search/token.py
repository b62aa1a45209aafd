"""Where a search goes on that was cut: an opaque text, checked when it comes back.

It says which stream and request it is of, up to where the search goes, how far it has come, and
what the newest chunk of the search looks like, so that it is not taken for one of another stream of
that name. Retention removes that chunk last; when it is gone, nothing is left to be found.
"""

import base64
import binascii
import struct
from typing import NamedTuple

from segments.checksum import crc32

_VERSION = 1
_FORM = struct.Struct(">BQQQQQI")
_CRC = struct.Struct(">I")
_MAX_BYTES = 128
NO_CHUNK = (1 << 64) - 1


class BadToken(ValueError):
    """A token that is none, or is of another stream or search; one sentence."""


class Token(NamedTuple):
    """How far a search has come.

    Attributes:
        end: offset before which it ends, or from which it went back.
        position: offset of the next message, or going back the one behind it.
        chunk: offset of the newest chunk of the search, or NO_CHUNK where it cannot be read.
        done: keys whose newest message was found, a bit each.
    """

    stream: int
    request: int
    end: int
    position: int
    chunk: int
    chunk_check: int
    done: int

    def __str__(self) -> str:
        done = self.done.to_bytes((self.done.bit_length() + 7) // 8, "big")
        raw = _FORM.pack(_VERSION, *self[:-1]) + done
        raw = _CRC.pack(crc32(raw)) + raw
        return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def read_token(text: str) -> Token:
    """The token in a text.

    Raises:
        BadToken: there is none.
    """
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raw = b""
    sized = _CRC.size + _FORM.size <= len(raw) <= _MAX_BYTES
    if not sized or _CRC.pack(crc32(raw[_CRC.size :])) != raw[: _CRC.size]:
        raise BadToken("after is no token that a search has given")
    version, *fields = _FORM.unpack_from(raw, _CRC.size)
    if version != _VERSION:
        raise BadToken("after is a token of another version of this program: start again")
    done = int.from_bytes(raw[_CRC.size + _FORM.size :], "big")
    return Token._make((*fields, done))
