"""Reading and replacing manifests in a store, whatever becomes of the answers.

A write whose answer was lost is found out by reading the manifest: it was done if it says, byte for
byte, what was to be written, as epoch and revision together are those of one write alone. It may
still be under way; then it fails later, or it is done, and the next attempt finds it.

These functions block; call them in a thread.
"""

from collections.abc import Iterable
from typing import NamedTuple

from segments.errors import FormatError
from segments.tier.keys import StreamKey
from segments.tier.manifest import Manifest, StoredSegment, decode_manifest, encode_manifest
from segments.tier.object_store import ConflictError, MissingError, ObjectStore, TierError


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
