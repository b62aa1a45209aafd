"""The store, whatever kind it is: S3 and what speaks its protocol, GCS, Azure, a folder.

Calls block, so they belong in threads. `stores.open_store` makes one of an address.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from segments.disk import Buffer
from segments.errors import SegmentsError

# Bytes of a small object: a manifest has some hundred for each segment.
MOST_WHOLE = 64 << 20
# Bytes that one request sends, or should ask for: a larger file is written in parts.
MOST_IN_REQUEST = 8 << 20
# The slowest line that is of use, in bytes a second: on it a request of `MOST_IN_REQUEST` may still
# take its time.
SLOWEST = 10_000


def ignored(_size: int) -> None:
    """Nobody wants to know how many bytes are there."""


class TierError(SegmentsError):
    """The store refused, or could not be reached; one sentence, without anything secret.

    Trying again later may help. Of a write nobody knows whether it was done.
    """


class DeniedError(TierError):
    """The store does not let us: wrong credentials, no such bucket, no right. An operator acts."""


class MissingError(TierError):
    """There is no such object."""


class CutError(TierError):
    """The object ends before the bytes that are asked for, or the connection broke off there."""


class TooLargeError(TierError):
    """The object is larger than anything that is expected there."""


class ConflictError(TierError):
    """Compare-and-set: the object is not what was expected. Nothing was written by this call.

    Look at the object: a write of ours whose answer was lost may have done it.
    """


class UnsupportedError(TierError):
    """The store does not know this request: it has no compare-and-set, for one."""


class StoredObject(NamedTuple):
    """An object as it was read: its bytes, and the etag that compare-and-set takes."""

    content: bytes
    etag: str


class Listed(NamedTuple):
    """An object in a listing: key, size in bytes, time of its last change in ms since 1970."""

    key: str
    size: int
    modified_ms: int


class ObjectStore(Protocol):
    """What is needed of a store. Keys are relative to its prefix. May be used by many threads."""

    def get(self, key: str, most: int = MOST_WHOLE) -> StoredObject:
        """A small object in whole; TooLargeError where it has more bytes than `most`."""

    def get_changed(self, key: str, etag: str) -> StoredObject | None:
        """The same, unless it still has `etag`: then None, and its bytes are not sent."""

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        """Bytes of an object; CutError where it ends before."""

    def put(self, key: str, content: Buffer) -> None:
        """Write an object under a key that nobody else uses; repeating it does no harm."""

    def put_file(
        self,
        key: str,
        path: str,
        size: int,
        at_once: int = 1,
        moved: Callable[[int], None] = ignored,
    ) -> None:
        """The same with the first `size` bytes of a file.

        Args:
            key: see `put`.
            path: of the file.
            size: how many bytes of it.
            at_once: parts of `MOST_IN_REQUEST` that may be on their way at the same time.
            moved: hears of bytes that the store has, whatever becomes of the rest. What it raises
                ends the upload.
        """

    def create(self, key: str, content: bytes) -> str:
        """Write an object that does not exist yet, once; its etag. ConflictError if it does."""

    def replace(self, key: str, content: bytes, etag: str) -> str:
        """Write an object if it still has `etag`, once; its new etag. ConflictError if not."""

    def listing(self, folder: str, after: str = "") -> Iterator[Listed]:
        """All objects below a folder, or those of greater keys than one alone."""

    def folders(self, folder: str) -> list[str]:
        """The folders directly in a folder, as keys without a slash at the end."""

    def delete(self, keys: list[str]) -> None:
        """Remove objects; those that are not there are no error. A part may be done on errors."""


def check_size(operation: str, size: int, most: int) -> None:
    """Raise TooLargeError where an object that is to be read in whole is not small."""
    if size > most:
        raise TooLargeError(f"cannot {operation}: it has {size:,} bytes, expected {most:,} at most")
