"""Finding a stream's manifest by its names.

A stream that was deleted and created again has a folder for each of its lives; the newest that is
not deleted is meant.
"""

from segments.errors import FormatError
from segments.tier.keys import StreamKey, creation_in
from segments.tier.manifest import Manifest, decode_manifest
from segments.tier.object_store import MissingError, ObjectStore


def find_stream(store: ObjectStore, virtual_host: str, stream: str) -> Manifest:
    """The manifest of a stream as it is now.

    Raises:
        MissingError: nothing is stored of a stream of that name.
        FormatError: its manifest is damaged, or of a later version; says which.
        TierError: the store refused, or could not be reached.
    """
    named = StreamKey(virtual_host, stream, "").folder
    host, _, beginning = named.rpartition("/")
    lives = [folder for folder in store.folders(host) if folder.startswith(f"{host}/{beginning}")]
    for folder in sorted(lives, key=creation_in, reverse=True):
        found = _manifest(store, StreamKey(virtual_host, stream, creation_in(folder)))
        if found is not None and not found.is_deleted:
            return found
    raise MissingError(f"nothing is stored of a stream {stream} of the virtual host {virtual_host}")


def read_manifest(store: ObjectStore, stream: StreamKey) -> Manifest:
    """The manifest of one life of a stream.

    Raises:
        MissingError: there is none.
        FormatError: it is damaged, of a later version or of another stream; says which.
        TierError: the store refused, or could not be reached.
    """
    content = store.get(stream.manifest).content
    try:
        return decode_manifest(content, stream)
    except FormatError as error:
        raise type(error)(f"the manifest {stream.manifest} cannot be used: {error}") from error


def _manifest(store: ObjectStore, stream: StreamKey) -> Manifest | None:
    """None where there is no manifest: nothing was uploaded yet, or all of it was just removed."""
    try:
        return read_manifest(store, stream)
    except MissingError:
        return None
