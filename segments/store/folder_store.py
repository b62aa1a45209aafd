"""An object store that is a folder: of this machine, or mounted from another.

Theory of operation. An object is a file under its key. It is written to `.tmp` in the same folder
tree, synced, and renamed to its place: nobody sees a part of it, and what was reported as stored is
on the device, with the folders that lead to it. Reading takes no lock.

Compare-and-set looks at the object and renames under a lock (flock) that every process sharing the
folder takes: one of 256 files in `.locks`, chosen by the key. All the slow work is done before it
is taken. When a process ends, the system gives its lock back, and what it had written stays in
`.tmp`, where whoever opens the store next removes it once it is a day old. The etag is a hash of
the content: the same content is the same state.

Names that begin with a dot are ours, so no part of a key does. A file system without flock, or one
that keeps it from other machines, is no place for two servers; no probe can see the latter.
"""

import errno
import fcntl
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import NoReturn
from uuid import uuid4

from segments.disk import Buffer
from segments.errors import FULL_DISK
from segments.store.object_store import (
    MOST_WHOLE,
    ConflictError,
    CutError,
    DeniedError,
    Listed,
    MissingError,
    StoredObject,
    TierError,
    check_size,
    ignored,
)
from segments.store.pieces import Buffers, file_pieces

_TEMPORARY, _LOCKS = ".tmp", ".locks"
_LOCK_SECONDS = 60.0  # a holder that is stopped must not stop everybody else for good
_LOCK_WAIT_SECONDS = 0.005
_LEFT_OVER_SECONDS = 24 * 3600.0
_PIECE = 1 << 20  # bytes that are copied at once
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_CONFLICT = "somebody else has written it"


class FolderStore:
    """A folder as an object store; see ObjectStore. Safe for threads and for other processes.

    Args:
        root: path of the folder, which must be there: an empty place where a file system was to be
            mounted is no tier.

    Raises:
        DeniedError: it is not there, or may not be read.
        TierError: it does not work in another way.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._is_prepared, self._has_written = self._has_locks(), False
        if not os.path.isdir(root):
            raise DeniedError(f"cannot use {self}: there is no such folder; create or mount it")
        with self._refusals("use the folder"):
            os.listdir(root)

    def __repr__(self) -> str:
        return f"file://{self._root}"

    def get(self, key: str, most: int = MOST_WHOLE) -> StoredObject:  # noqa: D102 - see ObjectStore
        with self._refusals(f"read {key}"), open(self._path(key), "rb") as file:
            check_size(f"read {key} in {self}", os.fstat(file.fileno()).st_size, most)
            content = file.read()
        return StoredObject(content, _etag(content))

    def get_changed(self, key: str, etag: str) -> StoredObject | None:  # noqa: D102 - see ObjectStore
        found = self.get(key)
        return None if found.etag == etag else found

    def get_range(self, key: str, start: int, size: int) -> Buffer:  # noqa: D102 - see ObjectStore
        with self._refusals(f"read {key}"), open(self._path(key), "rb", buffering=0) as file:
            content = _read(file.fileno(), start, size)
        if len(content) < size:
            raise CutError(f"cannot read {key} in {self}: the object ends before these bytes")
        return content

    def put(self, key: str, content: Buffer) -> None:  # noqa: D102 - see ObjectStore
        self._put(key, lambda descriptor: _write(descriptor, content))

    def put_file(  # noqa: D102 - see ObjectStore
        self,
        key: str,
        path: str,
        size: int,
        at_once: int = 1,  # noqa: ARG002 - the system sees to that
        moved: Callable[[int], None] = ignored,
    ) -> None:
        self._put(key, lambda descriptor: _copy(path, size, descriptor, moved))

    def create(self, key: str, content: bytes) -> str:  # noqa: D102 - see ObjectStore
        return self._compare_and_set(key, content, None)

    def replace(self, key: str, content: bytes, etag: str) -> str:  # noqa: D102 - see ObjectStore
        return self._compare_and_set(key, content, etag)

    def listing(  # noqa: D102 - see ObjectStore
        self, folder: str, after: str = ""
    ) -> Iterator[Listed]:
        with self._refusals(f"list {folder}"):
            self._must_be_there()
            for path, folders, names in os.walk(self._path(folder), onerror=_raise_unless_missing):
                folders[:] = sorted(name for name in folders if not name.startswith("."))
                for name in sorted(names):
                    with suppress(FileNotFoundError):  # deleted in the meantime
                        key = os.path.relpath(os.path.join(path, name), self._root)
                        if key > after:
                            yield self._listed(key)

    def folders(self, folder: str) -> list[str]:  # noqa: D102 - see ObjectStore
        with self._refusals(f"list {folder}"):
            self._must_be_there()
            try:
                with os.scandir(self._path(folder)) as entries:
                    names = [entry.name for entry in entries if entry.is_dir()]
            except FileNotFoundError:
                return []
        return [f"{folder}/{name}" for name in sorted(names) if not name.startswith(".")]

    def delete(self, keys: list[str]) -> None:  # noqa: D102 - see ObjectStore
        for key in keys:
            with self._refusals(f"delete {key}"):
                self._must_be_there()
                path = self._path(key)
                with suppress(FileNotFoundError, NotADirectoryError):
                    os.unlink(path)
                self._remove_empty_folders(os.path.dirname(path))

    def _compare_and_set(self, key: str, content: bytes, expected: str | None) -> str:
        def rename(temporary: str, path: str) -> None:
            with self._lock(key):
                if self._etag_now(path) != expected:
                    raise ConflictError(f"cannot write {key} in {self}: {_CONFLICT}")
                os.rename(temporary, path)

        self._put(key, lambda descriptor: _write(descriptor, content), rename)
        return _etag(content)

    def _etag_now(self, path: str) -> str | None:
        try:
            with open(path, "rb") as file:
                return _etag(file.read())
        except FileNotFoundError:
            return None

    def _put(
        self,
        key: str,
        write: Callable[[int], None],
        rename: Callable[[str, str], None] | None = None,
    ) -> None:
        """Give an object its content: written and synced elsewhere, then renamed, and synced."""
        path, rename = self._path(key), rename or os.rename
        temporary = os.path.join(self._root, _TEMPORARY, uuid4().hex)
        with self._refusals(f"write {key}"):
            self._prepare()
            try:
                _write_synced(temporary, write)
                self._into_folder(path, lambda: rename(temporary, path))
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary)
                self._remove_empty_folders(os.path.dirname(path))
                raise
            self._sync_folders(os.path.dirname(path))

    def _into_folder(self, path: str, rename: Callable[[], None]) -> None:
        """Rename to `path`; somebody may remove its folder just then, for it is empty."""
        for is_last in (False, False, True):
            os.makedirs(os.path.dirname(path), mode=0o750, exist_ok=True)
            try:
                return rename()
            except FileNotFoundError:
                if is_last:
                    raise
        return None

    def _sync_folders(self, folder: str) -> None:
        """All that lead to an object: who has made one of them may not have synced it yet."""
        _sync_folder(folder)
        if folder != self._root:
            self._sync_folders(os.path.dirname(folder))

    def _remove_empty_folders(self, folder: str) -> None:
        while len(folder) > len(self._root):
            try:
                os.rmdir(folder)
            except OSError:  # not empty, or gone
                return
            folder = os.path.dirname(folder)

    def _prepare(self) -> None:
        """Make what writing needs; not before, as a place that is only looked at is left alone."""
        if self._has_written:
            return
        for name in () if self._is_prepared else (_TEMPORARY, _LOCKS):
            os.makedirs(os.path.join(self._root, name), mode=0o750, exist_ok=True)
        self._remove_left_over()
        self._is_prepared = self._has_written = True

    def _has_locks(self) -> bool:
        return os.path.isdir(os.path.join(self._root, _LOCKS))

    def _remove_left_over(self) -> None:
        """What processes left that ended while they wrote."""
        with os.scandir(os.path.join(self._root, _TEMPORARY)) as entries:
            for entry in entries:
                with suppress(OSError):  # another one is quicker, or we may only read
                    if time.time() - entry.stat().st_mtime > _LEFT_OVER_SECONDS:
                        os.unlink(entry.path)

    @contextmanager
    def _lock(self, key: str) -> Iterator[None]:
        name = blake2b(key.encode(), digest_size=1).hexdigest()
        lock = os.path.join(self._root, _LOCKS, name)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            self._wait_for(descriptor, key)
            yield
        finally:
            os.close(descriptor)

    def _wait_for(self, descriptor: int, key: str) -> None:
        end = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    reason = f"another process has held its lock for {_LOCK_SECONDS:.0f} seconds"
                    raise TierError(f"cannot write {key} in {self}: {reason}") from None
                time.sleep(random.uniform(0, _LOCK_WAIT_SECONDS))  # noqa: S311 - no secret

    def _path(self, key: str) -> str:
        parts = key.split("/")
        if any(not part or part.startswith(".") for part in parts):
            raise TierError(f"cannot use {key!r} as a key: a part of it is empty, or has a dot")
        return os.path.join(self._root, *parts)

    def _listed(self, key: str) -> Listed:
        found = os.stat(os.path.join(self._root, key))
        return Listed(key, found.st_size, found.st_mtime_ns // 1_000_000)

    def _must_be_there(self) -> None:
        """An error, where the folder is gone: whoever unmounts it has not deleted the tier."""
        self._is_prepared = self._is_prepared or self._has_locks()
        os.stat(os.path.join(self._root, _LOCKS) if self._is_prepared else self._root)

    @contextmanager
    def _refusals(self, operation: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._refuse(f"cannot {operation} in {self}", error)

    def _refuse(self, what: str, error: OSError) -> NoReturn:
        if not os.path.isdir(self._root) or (self._is_prepared and not self._has_locks()):
            raise DeniedError(f"{what}: the folder is gone; mount it again") from None
        reason = error.strerror or str(error)
        if error.errno in _DENIED:
            raise DeniedError(f"{what}: {reason}") from None
        if error.errno in _MISSING:
            raise MissingError(f"{what}: it is not there") from None
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = f"{FULL_DISK}; free some space"
        raise TierError(f"{what}: {reason}") from None


def _etag(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def _raise_unless_missing(error: OSError) -> None:
    if error.errno not in _MISSING:
        raise error


def _write_synced(path: str, write: Callable[[int], None]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
    try:
        write(descriptor)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(descriptor: int, content: Buffer) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _read(descriptor: int, start: int, size: int) -> bytes:
    parts, got = [], 0
    while got < size and (part := os.pread(descriptor, size - got, start + got)):
        parts.append(part)
        got += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _copy(path: str, size: int, descriptor: int, moved: Callable[[int], None]) -> None:
    for piece in file_pieces(path, size, _PIECE, Buffers(_PIECE).take):
        _write(descriptor, piece)
        moved(len(piece))


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
