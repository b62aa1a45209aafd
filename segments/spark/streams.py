"""The streams at a path: a folder on this machine, or a stream in an object store."""

from collections.abc import Sequence

from segments.spark.inventory import Stream, find_folders
from segments.spark.stored import find_stored, is_in_store


def find_streams(path: str, endpoint: str = "") -> Sequence[Stream]:
    """The streams at a path.

    Args:
        path: a stream's folder, or a folder of streams; or s3://BUCKET/PREFIX/VHOST/STREAM, with
            gs://, az:// and file:///FOLDER as well.
        endpoint: URL of the store's server; empty for what the environment says.

    Raises:
        NotAStream: there is none.
        FormatError, TierError: the store has something that cannot be used, or it refused.
    """
    return [find_stored(path, endpoint)] if is_in_store(path) else find_folders(path)
