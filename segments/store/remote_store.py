"""Stores behind a network, through obstore. Only this file imports it.

Clients of the same store, for the library repeats requests by itself:

* Compare-and-set is sent once. Sent again because its answer was lost, it would meet its own write
  and report a conflict.
* Everything else may be repeated.

Bodies are not signed but have a checksum that the store compares (CRC-64/NVME), so that an upload
takes a third of the CPU; AWS_CHECKSUM_ALGORITHM names another one for a store without it.

How long a request may take says whether bytes move, not how many there are. The library ends a
connection on which the store has acknowledged nothing for 30 s (on Linux: the system's
TCP_USER_TIMEOUT), and here one from which nothing that was asked for has come for `_SILENCE`; then
it goes on, with a read where that was. What is left for a deadline is a store that has got all of a
request, and never answers. It is so late that a request of `MOST_IN_REQUEST` gets through on a line
of `SLOWEST`; so none has more than a part of an upload in it, and none that reads should ask for
more.

Files are uploaded in parts, as many at once as the caller says, and the object is there when the
store has been told that all are. A part that fails is sent again for minutes, as the others, which
the store has, would have to be sent again with it.

The library starts threads with its first request, and they do not survive a fork: a process that
has used a store must not fork and use it there.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import obstore
from obstore import exceptions, store as kinds

from segments.disk import Buffer
from segments.store.address import Address
from segments.store.object_store import (
    MOST_IN_REQUEST,
    MOST_WHOLE,
    SLOWEST,
    CutError,
    DeniedError,
    Listed,
    MissingError,
    StoredObject,
    UnsupportedError,
    check_size,
    ignored,
)
from segments.store.pieces import IdleBuffers, file_pieces
from segments.store.refusals import refusal

_CONNECT = timedelta(seconds=10)
_SILENCE = timedelta(seconds=30)
_DEADLINE = timedelta(seconds=60 + MOST_IN_REQUEST / SLOWEST)
_DEADLINE_ONCE = timedelta(seconds=240)  # a manifest of 10,000 segments on the slowest line
_AGAIN = timedelta(minutes=5)  # after which nothing is repeated: its signature gets old
_ONCE = {"max_retries": 0, "retry_timeout": _AGAIN}
_FEW = {
    "max_retries": 2,  # who calls has patience, too
    "retry_timeout": _AGAIN,
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=1)},
}
_MANY = {
    "max_retries": 100,
    "retry_timeout": _AGAIN,
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=10)},
}
_HTTP = {"gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}  # for servers in place of theirs
_DELETED_AT_ONCE = 1_000
_ERRORS = (exceptions.BaseError, FileNotFoundError, NotImplementedError, ValueError, OSError)


class RemoteStore:
    """A bucket or container; see ObjectStore. Safe for threads.

    Raises:
        DeniedError: the environment lacks something, or has something that is wrong.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._buffers = IdleBuffers(MOST_IN_REQUEST)
        # Google's store compares a number that it calls the generation, the others the etag.
        self._version = "version" if address.scheme == "gs" else "e_tag"
        cheap = _cheap_uploads(address)
        try:
            self._once = _client(address, _ONCE, {"timeout": _DEADLINE_ONCE}, **cheap)
            self._asked = _client(address, _FEW, {"timeout": _DEADLINE, "read_timeout": _SILENCE})
            self._written = _client(address, _FEW, {"timeout": _DEADLINE}, **cheap)
            self._parts = _client(address, _MANY, {"timeout": _DEADLINE}, **cheap)
        except _ERRORS as error:
            reason = _missing_setting(error)
            raise DeniedError(f"cannot use {address}: {reason}") from None

    def __repr__(self) -> str:
        return str(self._address)

    def get(self, key: str, most: int = MOST_WHOLE) -> StoredObject:  # noqa: D102 - see ObjectStore
        with self._refusals(f"read {key}"):
            found = obstore.get(self._asked, key)
            check_size(f"read {key} in {self}", found.meta["size"], most)
            return StoredObject(bytes(found.bytes()), self._etag(found.meta))

    def get_changed(self, key: str, etag: str) -> StoredObject | None:  # noqa: D102 - see ObjectStore
        # Google's store knows its etag by another name than the one that compare-and-set takes.
        options: Any = {} if self._version == "version" else {"if_none_match": etag}
        with self._refusals(f"read {key}"):
            try:
                found = obstore.get(self._asked, key, options=options)
            except exceptions.NotModifiedError:
                return None
            if self._etag(found.meta) == etag:
                return None
            check_size(f"read {key} in {self}", found.meta["size"], MOST_WHOLE)
            return StoredObject(bytes(found.bytes()), self._etag(found.meta))

    def get_range(self, key: str, start: int, size: int) -> Buffer:  # noqa: D102 - see ObjectStore
        with self._refusals(f"read {key}"):
            content = memoryview(obstore.get_range(self._asked, key, start=start, length=size))
        if len(content) != size:
            raise CutError(f"cannot read {key} in {self}: the object ends before these bytes")
        return content

    def put(self, key: str, content: Buffer) -> None:  # noqa: D102 - see ObjectStore
        whole = memoryview(content)
        starts = range(0, len(whole), MOST_IN_REQUEST)
        self._put(key, len(whole), (whole[start : start + MOST_IN_REQUEST] for start in starts))

    def put_file(  # noqa: D102 - see ObjectStore
        self,
        key: str,
        path: str,
        size: int,
        at_once: int = 1,
        moved: Callable[[int], None] = ignored,
    ) -> None:
        with self._buffers.borrowed() as buffers:
            pieces = file_pieces(path, size, MOST_IN_REQUEST, buffers.take)
            self._put(key, size, pieces, at_once, moved)

    def create(self, key: str, content: bytes) -> str:  # noqa: D102 - see ObjectStore
        with self._refusals(f"write {key}"):
            return self._etag(obstore.put(self._once, key, content, mode="create"))

    def replace(self, key: str, content: bytes, etag: str) -> str:  # noqa: D102 - see ObjectStore
        expected: Any = {self._version: etag}
        with self._refusals(f"write {key}"):
            return self._etag(obstore.put(self._once, key, content, mode=expected))

    def listing(  # noqa: D102 - see ObjectStore
        self, folder: str, after: str = ""
    ) -> Iterator[Listed]:
        with self._refusals(f"list {folder}"):
            for page in obstore.list(self._asked, folder, offset=after or None, chunk_size=1_000):
                for found in page:
                    if found["path"] <= after:  # of a store that knows no such beginning
                        continue
                    modified = found["last_modified"].timestamp()
                    yield Listed(found["path"], found["size"], int(modified * 1000))

    def folders(self, folder: str) -> list[str]:  # noqa: D102 - see ObjectStore
        with self._refusals(f"list {folder}"):
            found = obstore.list_with_delimiter(self._asked, folder)
        return sorted(found["common_prefixes"])

    def delete(self, keys: list[str]) -> None:  # noqa: D102 - see ObjectStore
        for start in range(0, len(keys), _DELETED_AT_ONCE):
            some = keys[start : start + _DELETED_AT_ONCE]
            try:
                self._delete(some)
            except MissingError:  # of stores that know no request for many
                for key in some:
                    self._delete_if_there(key)

    def _delete(self, keys: list[str]) -> None:
        what = keys[0] if len(keys) == 1 else f"{len(keys)} objects"
        with self._refusals(f"delete {what}"):
            obstore.delete(self._asked, keys)

    def _delete_if_there(self, key: str) -> None:
        try:
            self._delete([key])
        except MissingError:
            return

    def _put(
        self,
        key: str,
        size: int,
        pieces: Iterator[Buffer],
        at_once: int = 1,
        moved: Callable[[int], None] = ignored,
    ) -> None:
        """Write an object of its pieces: in one request, or in parts if it is larger."""
        told = 0

        def parts() -> Iterator[Buffer]:
            nonlocal told
            for number, piece in enumerate(pieces):
                # The library takes one more than may be on their way; those before have arrived.
                has_moved = max(0, number - at_once) * MOST_IN_REQUEST - told
                moved(has_moved)
                told += has_moved
                yield piece

        with self._refusals(f"write {key}"):
            if size <= MOST_IN_REQUEST:
                content = next(pieces, b"")
                obstore.put(self._written, key, content, use_multipart=False)
            else:
                obstore.put(
                    self._parts,
                    key,
                    parts(),
                    chunk_size=MOST_IN_REQUEST,
                    max_concurrency=at_once,
                )
        moved(size - told)

    def _etag(self, answer: Any) -> str:  # noqa: ANN401 - dictionaries of the library
        etag: str | None = answer[self._version]
        if etag is None:
            raise UnsupportedError(f"{self} gives objects no etag")
        return etag

    @contextmanager
    def _refusals(self, operation: str) -> Iterator[None]:
        try:
            yield
        except _ERRORS as error:
            raise refusal(operation, str(self), error) from None


def _client(
    address: Address,
    retries: Any,  # noqa: ANN401 - the library's
    deadlines: dict[str, timedelta],
    **options: Any,  # noqa: ANN401 - as above
) -> Any:  # noqa: ANN401 - as above
    """A client of the library; what is not said here it takes from the environment."""
    client: dict[str, Any] = {"connect_timeout": _CONNECT, **deadlines}
    if address.endpoint.startswith("http://") or os.environ.get(_HTTP.get(address.scheme, "")):
        client["allow_http"] = True
    shared: dict[str, Any] = {
        "prefix": address.prefix or None,
        "client_options": client,
        "retry_config": retries,
    }
    if address.scheme == "gs":
        return kinds.GCSStore(address.bucket, **shared)
    if address.scheme == "az":
        return kinds.AzureStore(address.bucket, **shared)
    if address.endpoint:  # by both names: the environment may have the second, which would win
        options["endpoint"] = options["aws_endpoint_url_s3"] = address.endpoint
    return kinds.S3Store(address.bucket, **shared, **options)


def _cheap_uploads(address: Address) -> dict[str, Any]:
    if address.scheme != "s3":
        return {}
    checksum = os.environ.get("AWS_CHECKSUM_ALGORITHM", "CRC64NVME")
    return {"unsigned_payload": True, "checksum_algorithm": checksum}


# Words in the library's refusal to make a client, and what an operator does about it.
_SETTINGS = (
    ("Missing SecretAccessKey", "AWS_ACCESS_KEY_ID is set, and AWS_SECRET_ACCESS_KEY is not"),
    ("Missing AccessKeyId", "AWS_SECRET_ACCESS_KEY is set, and AWS_ACCESS_KEY_ID is not"),
    ("Account must be specified", "AZURE_STORAGE_ACCOUNT_NAME is not set"),
    ("service account file", "the file that GOOGLE_SERVICE_ACCOUNT names cannot be read"),
)


def _missing_setting(error: Exception) -> str:
    for words, meaning in _SETTINGS:
        if words in str(error):
            return meaning
    return "the library does not take the settings in the environment (AWS_…, GOOGLE_…, AZURE_…)"
