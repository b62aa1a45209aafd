"""Names of streams, exchanges, users and so on, and the folders that are named after them.

A door reads each name once, with `as_sent`, before it checks a right. Everything behind it takes
a `Name` and uses it as it is: nothing is stripped, folded or decoded again, so that the name
whose right was checked is the name that is used. What is created must have a name that
`check_new` accepts; the name of something that exists is never judged, only looked for.
"""

import hashlib
import unicodedata
from pathlib import PurePath
from typing import NewType
from urllib.parse import quote

from streamd.config import MAX_NAME_BYTES
from streamd.operations.errors import Reason, Refused

_LONGEST = 180  # file systems take 255 bytes; some of our side files have suffixes
_HASH_DIGITS = 16
_SHOWN = 40  # characters of a refused name
# Control characters, halves of surrogate pairs, and the separators of lines and paragraphs.
_NEVER_IN_NAMES = frozenset({"Cc", "Cs", "Zl", "Zp"})

Name = NewType("Name", str)
"""The name of a stream, an exchange, a queue, a virtual host, a user, or a reference."""


def as_sent(text: str) -> Name:
    """The name that a client sent, unchanged."""
    return Name(text)


def check_new(what: str, name: Name, most: int = MAX_NAME_BYTES) -> None:
    """Raise Refused unless something new may have this name.

    RabbitMQ takes line ends out of the names of new queues and exchanges; here such a name is
    refused, so that a name is the same for all who look at it.

    Args:
        what: has the name, for the error.
        name: as it was sent.
        most: bytes that it may have in UTF-8.
    """
    wrong = next((c for c in name if unicodedata.category(c) in _NEVER_IN_NAMES), None)
    if wrong is not None:
        found = f"the character U+{ord(wrong):04X}"
        details = f"the name of {what}, {name[:_SHOWN]!r}, has {found}, expected printable ones"
        raise Refused(Reason.PRECONDITION_FAILED, details)
    size = len(name.encode())
    if not 0 < size <= most:
        details = f"the name of {what} has {size:,} bytes, expected 1 to {most:,}"
        raise Refused(Reason.PRECONDITION_FAILED, details)


def folder_name(name: str) -> str:
    """A folder name for a stream or virtual host: the name itself where that is possible.

    Everything but letters, digits, `_`, `-` and inner dots is percent-encoded, so `unquote` gives
    the name back. Names that become too long end in a hash of the whole instead.
    """
    quoted = quote(name, safe="")
    if quoted.startswith("."):
        quoted = "%2E" + quoted[1:]
    if len(quoted) <= _LONGEST:
        return quoted
    digest = hashlib.sha256(name.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{quoted[:_LONGEST]}~~{digest}"


def stream_folder(data: str, virtual_host: str, name: str) -> str:
    """Where a stream's files are."""
    return str(PurePath(data, "streams", folder_name(virtual_host), folder_name(name)))
