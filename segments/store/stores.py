"""A store of an address: s3://BUCKET/PREFIX, gs://, az://CONTAINER/PREFIX, file:///FOLDER.

    store = open_store("s3://bucket/tier", "http://127.0.0.1:9000")
    told = probe(store)

Credentials come from the environment, where the library looks for them: AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION or AWS_DEFAULT_REGION, AWS_ENDPOINT_URL; those
of GOOGLE_ and AZURE_. They are in no address, no error and no repr.
"""

from collections.abc import Callable
from contextlib import suppress
from uuid import uuid4

from segments.store.address import parse_address
from segments.store.folder_store import FolderStore
from segments.store.object_store import (
    ConflictError,
    DeniedError,
    ObjectStore,
    TierError,
    UnsupportedError,
)


def open_store(url: str, endpoint: str = "") -> ObjectStore:
    """The store at an address; nothing is asked of it yet, but whether a folder is there.

    Args:
        url: see `parse_address`.
        endpoint: URL of a server that speaks S3's protocol; empty for the one that the environment
            names, or else the provider's.

    Raises:
        DeniedError: the address is none, the extra is not installed, the environment lacks
            something, or the folder is not there.
    """
    address = parse_address(url, endpoint)
    if address.scheme == "file":
        return FolderStore(address.prefix)
    try:
        from segments.store.remote_store import RemoteStore  # noqa: PLC0415 - only with the extra
    except ImportError:
        raise DeniedError(
            f"a tier at {address.scheme}:// needs the package obstore;"
            ' pip install "streamd-server[tier]"'
        ) from None
    return RemoteStore(address)


def probe(store: ObjectStore) -> str:
    """Try whether a store can compare-and-set, without which two servers may undo each other's.

    Also whether one may write and delete there. It leaves nothing behind, unless it is cut off.

    Returns:
        Empty, or one line that says what the store cannot do.

    Raises:
        DeniedError: it does not let us in.
        TierError: it could not be reached, or refused what it should have done, so nothing is
            known: a write that was sent twice, as its answer was lost, is refused by stores that
            can, too.
    """
    key = f"probe-{uuid4().hex}"
    try:
        told = _cannot_compare_and_set(store, key)
    except TierError as error:
        with suppress(TierError):
            store.delete([key])
        raise type(error)(str(error).replace(key, "a probe")) from error  # told once, not each time
    store.delete([key])
    return told and f"{store} cannot compare-and-set, so only one server may use it: {told}"


def _cannot_compare_and_set(store: ObjectStore, key: str) -> str:
    """Why not; empty if it can."""
    try:
        first = store.create(key, b"1")
        if _is_done(lambda: store.create(key, b"2")):
            return "it replaced an object that was to be created"
        second = store.replace(key, b"3", first)
        if _is_done(lambda: store.replace(key, b"4", first)):
            return "it replaced an object that had been changed"
        found = store.get(key)
        if found != (b"3", second):
            return "it gave back another object than the one it had stored"
    except UnsupportedError as error:
        return str(error)
    return ""


def _is_done(write: Callable[[], str]) -> bool:
    try:
        write()
    except ConflictError:
        return False
    return True
