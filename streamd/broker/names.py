"""Folders for names: any name a client can choose becomes one that file systems accept."""

import hashlib
from pathlib import PurePath
from urllib.parse import quote

_LONGEST = 180  # file systems take 255 bytes; some of our side files have suffixes
_HASH_DIGITS = 16


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
