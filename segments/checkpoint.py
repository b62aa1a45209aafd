"""The checkpoint of a stream: how much of it is known to be on the device.

A file `checkpoint` in the stream's folder, replaced in one step. Everything before it is trusted
when the log is opened, so that opening takes as long for a large stream as for a small one.
Everything after it is read through: a power failure may have lost any part of it.
"""

from pathlib import PurePath

from segments import codec
from segments.atomic_write import replace_file
from segments.codec import Checkpoint
from segments.disk import Disk
from segments.errors import OtherVersionError, VersionError

CHECKPOINT_NAME = "checkpoint"
_MAX_BYTES = 1 << 10


def checkpoint_path(folder: str) -> str:
    """Where the checkpoint of the stream in `folder` is."""
    return str(PurePath(folder, CHECKPOINT_NAME))


def read_checkpoint(disk: Disk, folder: str) -> Checkpoint:
    """The checkpoint in a folder that has one.

    Raises:
        FormatError: it is damaged.
        OtherVersionError: another version of this program wrote it.
        StorageError: the system refused to read it.
    """
    path = checkpoint_path(folder)
    file = disk.open(path, writable=False)
    try:
        return codec.decode_checkpoint(file.read(_MAX_BYTES, 0))
    except VersionError as error:
        raise OtherVersionError(path, error) from error
    finally:
        file.close()


def write_checkpoint(disk: Disk, folder: str, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint; on the device when this returns. May run in a thread.

    Raises:
        StorageError: the system refused; the old one stays.
    """
    replace_file(disk, checkpoint_path(folder), codec.encode_checkpoint(checkpoint)).close()
    disk.sync_folder(folder)
