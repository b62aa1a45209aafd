"""Reading and replacing manifests in a store, whatever becomes of the answers.

A write whose answer was lost is found out by reading the manifest: it was done if it says, byte for
byte, what was to be written, as epoch and revision together are those of one write alone. It may
still be under way; then it fails later, or it is done, and the next attempt finds it.

An object that is not there is lost only when the newest manifest, read after the miss, still names
its segment. `still_names` alone says so, to whoever has missed one.

These functions block; call them in a thread.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from segments.errors import FormatError
from segments.store.manifest import (
    Manifest,
    StoredSegment,
    decode_manifest,
    encode_manifest,
    number_before,
)
from segments.store.object_names import StreamKey
from segments.store.object_store import (
    ConflictError,
    CutError,
    MissingError,
    ObjectStore,
    TierError,
)

# What is said where a store has less than it is known to have had.
_WRONG = ": is it the right store, and is all of it there? It is asked again"


class KeptManifest(NamedTuple):
    """A manifest as it is in the store, and its etag."""

    manifest: Manifest
    etag: str


class OvertakenError(ConflictError):
    """The manifest is not the one that was to be replaced.

    Attributes:
        found: what there is; None where there is none any more.
    """

    def __init__(self, stream: StreamKey, found: KeptManifest | None) -> None:
        super().__init__(f"the manifest {stream.manifest} was changed by somebody else")
        self.found = found


def look_up(
    store: ObjectStore, stream: StreamKey, known: Iterable[StoredSegment] = ()
) -> KeptManifest | None:
    """The manifest of one life of a stream; None where there is none.

    Args:
        store: the store.
        stream: whose it is.
        known: segments that it probably lists; see `decode_manifest`.

    Raises:
        TierError: the store did not answer, or what it has cannot be understood.
    """
    try:
        found = store.get(stream.manifest)
        return KeptManifest(decode_manifest(found.content, stream, known), found.etag)
    except MissingError:
        return None
    except FormatError as error:
        raise TierError(f"the manifest {stream.manifest} cannot be used: {error}") from error


def still_names(store: ObjectStore, known: Manifest, segment: StoredSegment) -> bool:
    """Whether a segment, of which an object was not there just now, is still in the store.

    Args:
        store: the store.
        known: the newest manifest of the stream that is known; names the segment.
        segment: whose object it is.

    Returns:
        True where the store's manifest, read now, names the segment: what is not there is lost.
        False where it does not any more: it is gone with its segment, which was removed, truncated
        or deleted.

    Raises:
        TierError: the store cannot say, see `newest`; ask again.
    """
    manifest = newest(store, known)
    at = number_before(manifest.segments, segment.base_offset)
    is_named = at < len(manifest.segments) and manifest.segments[at].uid == segment.uid
    return is_named and not manifest.is_deleted


def newest(store: ObjectStore, known: Manifest) -> Manifest:
    """The manifest of a stream as it is in the store now.

    Raises:
        TierError: the store did not answer, has none, or an older one. It is another store then,
            or not all of it is there, and what is missing may come back: ask again.
    """
    found = look_up(store, known.stream, known.segments)
    if found is None:
        raise TierError(f"the tier {store} has no manifest of {known.stream.folder}{_WRONG}")
    check_not_older(store, known, found.manifest)
    return found.manifest


def check_not_older(store: ObjectStore, known: Manifest, found: Manifest) -> None:
    """Raise TierError where a store's manifest is older than one that is known of the stream."""
    if (found.epoch, found.revision) < (known.epoch, known.revision):
        raise TierError(
            f"the tier {store} has an older manifest of {known.stream.folder} than it had: "
            f"revision {found.revision} of epoch {found.epoch}, expected {known.revision} of "
            f"{known.epoch} or later{_WRONG}"
        )


def is_there(store: ObjectStore, kept: KeptManifest, segment: StoredSegment) -> bool:
    """Whether a store has a segment now: its manifest names it, and has all of its objects.

    Args:
        store: the store.
        kept: its manifest, as it was read or written last; names the segment.
        segment: whose objects are looked for.

    Raises:
        TierError: the store did not answer, or its manifest is another one by now.
    """
    key = kept.manifest.stream
    try:
        if store.get_changed(key.manifest, kept.etag) is not None:
            raise TierError(f"the manifest {key.manifest} was changed by somebody else")
    except MissingError:
        return False
    return are_there(store, {segment.key(key, at): file.size for at, file in segment.files.items()})


def are_there(store: ObjectStore, sizes: Mapping[str, int]) -> bool:
    """Whether a store has all of some objects now, in their sizes.

    Raises:
        TierError: the store did not answer.
    """
    try:
        for key, size in sizes.items():
            store.get_range(key, size - 1, 1)
    except (MissingError, CutError):
        return False
    return True


def put_manifest(store: ObjectStore, before: KeptManifest | None, wanted: Manifest) -> KeptManifest:
    """Create or replace a manifest, if it is still the one from before.

    Raises:
        OvertakenError: it is not.
        TierError: the store did not answer; try the same again.
    """
    key, content = wanted.stream.manifest, encode_manifest(wanted)
    try:
        if before is None:
            return KeptManifest(wanted, store.create(key, content))
        return KeptManifest(wanted, store.replace(key, content, before.etag))
    except TierError as error:
        found = look_up(store, wanted.stream, wanted.segments)
        if found is not None and encode_manifest(found.manifest) == content:
            return found
        is_as_before = _revision(found) == _revision(before)
        if not is_as_before:
            raise OvertakenError(wanted.stream, found) from error
        if isinstance(error, ConflictError):
            raise TierError(f"the manifest {key} could not be written: {error}") from error
        raise


def _revision(kept: KeptManifest | None) -> tuple[int, int, str]:
    if kept is None:
        return 0, 0, ""
    return kept.manifest.revision, kept.manifest.epoch, kept.etag
