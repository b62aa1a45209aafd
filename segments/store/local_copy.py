"""The copy of a stream's manifest in the stream's folder, as it was last stored.

It says which segments are cold: those that it names and whose files are not there. So a file of a
segment may go when the copy, on the device, names the segment. It is needed to open the log, when
the store may be away.

Beside it is an empty file whose name has the creation id of the stream in the store. It says that
there has to be a copy, and which one. Without it, a stream whose copy is lost could not be told
from one that was never stored: it would begin a new life in the store, without its cold segments.
"""

from collections.abc import Collection
from pathlib import PurePath

from segments.atomic_write import replace_file
from segments.disk import Disk
from segments.errors import (
    CorruptError,
    FormatError,
    LostCopyError,
    OtherVersionError,
    UnrestoredError,
    VersionError,
)
from segments.marks import STORED, marked, put_mark
from segments.store.manifest import Manifest, decode_manifest, encode_manifest

MANIFEST_FILE = "manifest"
# A reason: the stream was made after the backup that the data folder is from.
LACKED = "the data folder, as one from a backup, lacked it"
UNRESTORED_FILE = "unrestored"  # why a stream could not be restored; it is not opened then


def copy_in(disk: Disk, folder: str, names: Collection[str]) -> Manifest | None:
    """The copy in a folder with files of these names; None for a stream that was never stored.

    Raises:
        LostCopyError: it is missing, damaged, or of another stream.
        CorruptError, OtherVersionError, StorageError: see `read_copy`.
    """
    path = str(PurePath(folder, MANIFEST_FILE))
    creation = max(marked(names, STORED), default="")
    if MANIFEST_FILE not in names:
        if creation:
            raise LostCopyError(path, "is missing", creation)
        return None
    try:
        found = read_copy(disk, folder)
    except CorruptError as error:
        if not creation:
            raise
        raise LostCopyError(path, "is damaged", creation) from error
    if creation not in ("", found.stream.creation):
        raise LostCopyError(path, "is of another stream", creation)
    return found


def read_copy(disk: Disk, folder: str) -> Manifest:
    """The copy in a folder that has one.

    Raises:
        CorruptError: it is damaged; messages that are only in the store would be missed.
        OtherVersionError: another version of this program wrote it.
        StorageError: the system refused.
    """
    path = str(PurePath(folder, MANIFEST_FILE))
    file = disk.open(path, writable=False)
    try:
        return decode_manifest(file.read(file.size(), 0))
    except VersionError as error:
        raise OtherVersionError(path, error) from error
    except FormatError as error:
        raise CorruptError(path, 0, f"{error}; the store has it, too") from error
    finally:
        file.close()


def write_copy(disk: Disk, folder: str, manifest: Manifest) -> None:
    """Replace the copy; on the device when this returns. May run in a thread.

    Raises:
        StorageError: the system refused; the old one stays.
    """
    path = str(PurePath(folder, MANIFEST_FILE))
    replace_file(disk, path, encode_manifest(manifest)).close()
    disk.sync_folder(folder)
    creation = manifest.stream.creation
    if creation not in marked(disk.list(folder), STORED):  # never before there is a copy
        put_mark(disk, folder, STORED, creation)
        disk.sync_folder(folder)


def write_unrestored(disk: Disk, folder: str, reason: str) -> None:
    """Note why a stream could not be restored; on the device when this returns."""
    replace_file(disk, str(PurePath(folder, UNRESTORED_FILE)), reason.encode()).close()
    disk.sync_folder(folder)


def forget_unrestored(disk: Disk, folder: str) -> None:
    """The stream was restored after all; on the device when this returns."""
    if UNRESTORED_FILE in disk.list(folder):
        disk.remove(str(PurePath(folder, UNRESTORED_FILE)))
        disk.sync_folder(folder)


def check_restored(disk: Disk, folder: str) -> None:
    """Raise UnrestoredError in a folder with a note that the stream could not be restored."""
    path = str(PurePath(folder, UNRESTORED_FILE))
    file = disk.open(path, writable=False)
    try:
        reason = file.read(file.size(), 0).decode(errors="replace")
    finally:
        file.close()
    raise UnrestoredError(f"it could not be restored: {reason}")
