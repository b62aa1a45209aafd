"""Giving a file new content in one step, or the one that it has once more."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import PurePath

from segments.disk import Disk, File
from segments.errors import StorageError, UnreadableError

TEMPORARY_SUFFIX = ".tmp"
_COPY_BYTES = 1 << 20


def replace_file(disk: Disk, path: str, content: bytes, *, is_synced: bool = True) -> File:
    """Give `path` new content in one step: written beside it, synced, renamed over it.

    Args:
        disk: where it is.
        path: of the file.
        content: its new content.
        is_synced: False leaves syncing to the caller, where no old file can be lost.

    Returns:
        The new file, open for writing.

    Raises:
        StorageError: the system refused; the old file stays.
    """

    def write(file: File) -> None:
        file.write([content], 0)

    return replace_with(disk, path, write, is_synced=is_synced)


def replace_with(
    disk: Disk, path: str, write: Callable[[File], None], *, is_synced: bool = True
) -> File:
    """The same for content that `write` puts into the file, piece by piece."""
    temporary = path + TEMPORARY_SUFFIX
    if PurePath(temporary).name in disk.list(str(PurePath(path).parent)):
        disk.remove(temporary)
    file = disk.create(temporary)
    try:
        write(file)
        if is_synced:
            file.sync()
        disk.rename(temporary, path)
    except BaseException:
        file.close()
        with suppress(StorageError):  # it takes room that others may lack
            disk.remove(temporary)
        raise
    file.path = path
    return file


def write_again(disk: Disk, path: str, start: int) -> None:
    """Write what a file has from `start` on once more, in its place; nothing is synced.

    Raises:
        StorageError: the system refused; the file has the same content.
    """
    file = disk.open(path, writable=True)
    try:
        for position in range(start, file.size(), _COPY_BYTES):
            with suppress(UnreadableError):  # what is not in memory is as it is on the device
                file.write([file.read(_COPY_BYTES, position)], position)
    finally:
        file.close()
