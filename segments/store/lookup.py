"""Which streams a store has, and what it has of each; finding one by its names.

A stream that was deleted and created again has a folder for each of its lives; the newest that is
not deleted is meant.

Calls block; a caller who wants to read many manifests at once does so in threads.
"""

from collections.abc import Iterable
from typing import NamedTuple

from segments.checksum import crc32
from segments.errors import FormatError
from segments.store.bad_object import BadObjectError
from segments.store.manifest import Manifest, StoredFile, StoredSegment, decode_manifest
from segments.store.metadata_log import look
from segments.store.object_names import (
    MANIFEST_NAME,
    NO_HOSTS,
    VERSION,
    StreamKey,
    creation_in,
    parse_object,
)
from segments.store.object_store import (
    MOST_WHOLE,
    Listed,
    MissingError,
    ObjectStore,
    StoredObject,
    TooLargeError,
)


class FoundManifest(NamedTuple):
    """A manifest as it was read, and the etag that compare-and-set takes."""

    manifest: Manifest
    etag: str


def stream_folders(store: ObjectStore) -> list[str]:
    """The folders of all streams that were ever uploaded, and are not removed.

    Raises:
        TierError: the store refused.
    """
    hosts = [folder for folder in store.folders(VERSION) if folder not in NO_HOSTS]
    return [folder for host in hosts for folder in store.folders(host) if creation_in(folder)]


def by_stream(folders: Iterable[str]) -> dict[str, list[str]]:
    """Folders of the same stream, that created last first, by what they have in common."""
    found: dict[str, list[str]] = {}
    for folder in sorted(folders, key=creation_in, reverse=True):
        found.setdefault(folder.rpartition("~")[0], []).append(folder)
    return found


def read_folder(store: ObjectStore, folder: str) -> FoundManifest:
    """The manifest in a stream's folder.

    Raises:
        MissingError: there is none.
        BadObjectError: it is damaged, of a later version, or of another stream.
        TierError: the store refused.
    """
    key = f"{folder}/{MANIFEST_NAME}"
    try:
        return _decoded(folder, key, store.get(key))
    except TooLargeError as error:
        raise BadObjectError(key, error) from error


def read_changed(store: ObjectStore, known: FoundManifest) -> FoundManifest:
    """A manifest that was read before, as it is now.

    Raises:
        MissingError, BadObjectError, TierError: see `read_folder`.
    """
    stream = known.manifest.stream
    try:
        found = store.get_changed(stream.manifest, known.etag)
    except TooLargeError as error:
        raise BadObjectError(stream.manifest, error) from error
    if found is None:
        return known
    return _decoded(stream.folder, stream.manifest, found, known.manifest.segments)


def _decoded(
    folder: str, key: str, found: StoredObject, known: Iterable[StoredSegment] = ()
) -> FoundManifest:
    try:
        manifest = decode_manifest(found.content, known=known)
        if manifest.stream.folder != folder:
            raise FormatError(f"it is of {_shown(manifest.stream)}")
    except FormatError as error:
        raise BadObjectError(key, error) from error
    return FoundManifest(manifest, found.etag)


def counts_since(store: ObjectStore) -> int:
    """The epoch of the first manifests that count; see metadata_log.py.

    Raises:
        BadObjectError: what says so is damaged, or of a later version.
        TierError: the store refused.
    """
    held = look(store)
    return 0 if held is None else held.cluster.since


def newest_manifest(
    store: ObjectStore, folders: Iterable[str], since: int = 0
) -> FoundManifest | None:
    """The manifest of a stream that was created last and is not deleted.

    What was created earlier under its name is another stream. A folder without a manifest is what
    a crash has left, unless it has more than one segment: there was a manifest then.

    Args:
        store: the store.
        folders: of streams of one name, that created last first.
        since: see `counts_since`.

    Raises:
        BadObjectError, TierError: see `read_folder`.
    """
    for folder in folders:
        try:
            found = read_folder(store, folder)
        except MissingError:
            segments = had_manifest(store.listing(folder))
            if segments:
                reason = f"it is not there, and {segments} segments are: is all of the tier there?"
                raise BadObjectError(f"{folder}/{MANIFEST_NAME}", reason) from None
            continue
        if not found.manifest.is_deleted and found.manifest.epoch >= since:
            return found
    return None


def folders_of(store: ObjectStore, virtual_host: str, stream: str) -> list[str]:
    """The folders of all lives of a stream, that created last first.

    Raises:
        TierError: the store refused.
    """
    named = StreamKey(virtual_host, stream, "").folder
    host, _, beginning = named.rpartition("/")
    lives = [folder for folder in store.folders(host) if folder.startswith(f"{host}/{beginning}")]
    return sorted(lives, key=creation_in, reverse=True)


def had_manifest(listed: Iterable[Listed]) -> int:
    """How many segments there are in a folder that a manifest must have named; 0 for none.

    A crash leaves one at most: what comes after it is uploaded when a manifest names it.
    """
    names = (parse_object(found.key.rpartition("/")[2]) for found in listed)
    bases = {one.offset for one in names if one is not None and one.suffix == ".segment"}
    return len(bases) if len(bases) > 1 else 0


def find_stream(store: ObjectStore, virtual_host: str, stream: str, since: int) -> Manifest:
    """The manifest of a stream as it is now.

    Args:
        store: the store.
        virtual_host: of the stream.
        stream: its name.
        since: see `counts_since`.

    Raises:
        MissingError: nothing is stored of a stream of that name.
        FormatError: its manifest is damaged, or of a later version; says which.
        TierError: the store refused, or could not be reached.
    """
    ordered = folders_of(store, virtual_host, stream)
    found = newest_manifest(store, ordered, since) if ordered else None
    if found is not None:
        return found.manifest
    raise MissingError(f"nothing is stored of a stream {stream} of the virtual host {virtual_host}")


def read_object(
    store: ObjectStore, key: str, expected: StoredFile, most: int = MOST_WHOLE
) -> bytes:
    """A small object in whole, compared with what was stored.

    Args:
        store: the store.
        key: of the object.
        expected: what was stored.
        most: bytes that it may have, whatever is expected.

    Raises:
        BadObjectError: it is not there, or damaged.
        TierError: the store refused.
    """
    try:
        content = store.get(key, min(expected.size, most)).content
    except MissingError as error:
        raise BadObjectError(key, "it is not there") from error
    except TooLargeError as error:
        raise BadObjectError(key, error) from error
    if len(content) != expected.size:
        raise BadObjectError(key, f"it has {len(content)} bytes, expected {expected.size}")
    if crc32(content) != expected.crc:
        raise BadObjectError(key, "its checksum is wrong")
    return content


def _shown(stream: StreamKey) -> str:
    return f"stream {stream.stream} in {stream.virtual_host}, creation {stream.creation}"
