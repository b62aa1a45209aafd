"""A disk in memory that can fill up, fail, and crash with what was not synced lost or torn."""

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from segments.errors import StorageError, read_error


@dataclass
class Inode:
    """One file's content as written, as it is on the device, and the writes in between.

    Attributes:
        unreadable: bytes that the device does not give back, until they are written again.
    """

    content: bytearray = field(default_factory=bytearray)
    unreadable: range = range(0)
    durable: bytes = b""
    unsynced: list[tuple[int, bytes | None]] = field(default_factory=list)  # None: cut there

    def apply(self, position: int, data: bytes | None) -> None:
        if data is None:
            del self.content[position:]
            return
        if position > len(self.content):
            self.content.extend(bytes(position - len(self.content)))
        bad = range(self.unreadable.start, min(self.unreadable.stop, len(self.content)))
        if bad and position <= bad.start and bad.stop <= position + len(data):
            self.unreadable = range(0)
        self.content[position : position + len(data)] = data


class Killed(Exception):
    """The process died within a file operation."""


class FaultyFile:
    def __init__(self, disk: "FaultyDisk", path: str, inode: Inode) -> None:
        self.path = path
        self.inode = inode
        self._disk = disk

    def size(self) -> int:
        return len(self.inode.content)

    def read(self, size: int, position: int) -> bytes:
        self._disk.reads += 1
        self._disk.maybe_fail("read", self.path)
        bad = self.inode.unreadable
        if max(position, bad.start) < min(position + size, bad.stop, len(self.inode.content)):
            raise read_error(self.path, OSError(errno.EIO, "Input/output error"))
        return bytes(self.inode.content[position : position + size])

    def write(self, parts: Sequence[bytes], position: int) -> int:
        data = b"".join(parts)
        room = self._disk.room()
        self._disk.maybe_fail("write", self.path)
        if (lived := self._disk.live(len(data))) < len(data):
            self._do(position, data[:lived])
            raise Killed
        grows = max(0, position + len(data) - len(self.inode.content))
        if grows > room:  # a real disk takes what fits, then refuses
            self._do(position, data[: len(data) - (grows - room)])
            raise StorageError("write", self.path, OSError(errno.ENOSPC, "No space left on device"))
        self._do(position, data)
        return len(data)

    def _do(self, position: int, data: bytes | None) -> None:
        self.inode.unsynced.append((position, data))
        self.inode.apply(position, data)

    def truncate(self, size: int) -> None:
        self._disk.maybe_fail("truncate", self.path)
        self._disk.live_through_one()
        self._do(size, None)

    def sync(self) -> None:
        self._disk.maybe_fail("sync", self.path)
        self.inode.durable = bytes(self.inode.content)
        self.inode.unsynced.clear()

    def fileno(self) -> int:
        raise NotImplementedError("a file in memory has no descriptor")

    def close(self) -> None:
        pass


class Unlocked:
    """A lock that keeps nobody out: tests leave a log behind as a kill does, and open it anew."""

    def release(self) -> None:
        pass


class FaultyDisk:
    """See segments.disk.Disk. Names are durable at once; contents when synced.

    Attributes:
        files: what is there, by path.
        capacity: bytes that fit, None for no limit.
        failures: operation name to the number of calls that still fail.
        errno: what those fail with.
        life: bytes that are still written before the process dies, None for a long life. Other
            operations count as one byte.
        reads: how many reads there were.
        boots: how often the machine was started.
    """

    def __init__(self) -> None:
        self.files: dict[str, Inode] = {}
        self.capacity: int | None = None
        self.failures: dict[str, int] = {}
        self.errno = errno.EIO
        self.life: int | None = None
        self.reads = 0
        self.boots = 1

    def live(self, size: int) -> int:
        if self.life is None:
            return size
        lived = min(size, self.life)
        self.life -= lived
        return lived

    def live_through_one(self) -> None:
        if not self.live(1):
            raise Killed

    def room(self) -> int:
        if self.capacity is None:
            return 1 << 60
        return max(0, self.capacity - sum(len(inode.content) for inode in self.files.values()))

    def maybe_fail(self, operation: str, path: str) -> None:
        if self.failures.get(operation, 0):
            self.failures[operation] -= 1
            raise StorageError(operation, path, OSError(self.errno, os.strerror(self.errno)))

    def boot(self) -> str:
        return f"{self.boots}"

    def create(self, path: str) -> FaultyFile:
        self.maybe_fail("create", path)
        self.live_through_one()
        if path in self.files:
            raise StorageError("open", path, OSError(errno.EEXIST, "File exists"))
        self.files[path] = Inode()
        return FaultyFile(self, path, self.files[path])

    def open(self, path: str, *, writable: bool) -> FaultyFile:  # noqa: ARG002
        if path not in self.files:
            raise StorageError("open", path, OSError(errno.ENOENT, "No such file or directory"))
        return FaultyFile(self, path, self.files[path])

    def list(self, folder: str) -> list[str]:
        return sorted(PurePath(p).name for p in self.files if str(PurePath(p).parent) == folder)

    def make_folder(self, folder: str) -> None:
        pass

    def remove(self, path: str) -> None:
        self.maybe_fail("remove", path)
        self.live_through_one()
        self.files.pop(path, None)

    def remove_folder(self, folder: str) -> None:
        for path in [p for p in self.files if p.startswith(f"{folder}/")]:
            del self.files[path]

    def rename(self, old: str, new: str) -> None:
        self.maybe_fail("rename", old)
        self.live_through_one()
        self.files[new] = self.files.pop(old)

    def lock(self, folder: str) -> Unlocked:  # noqa: ARG002
        return Unlocked()

    def sync_folder(self, folder: str) -> None:
        self.maybe_fail("sync_folder", folder)

    def cut_power(self, kept: dict[str, int], torn: dict[str, int]) -> None:
        """The power fails: of each file's unsynced writes a prefix stays, its last one torn.

        Args:
            kept: by path, how many of the unsynced writes reached the device; default none.
            torn: by path, how many bytes of the write after those did; default none.
        """
        for path, inode in self.files.items():
            writes, inode.unsynced = inode.unsynced, []
            inode.content = bytearray(inode.durable)
            count = min(kept.get(path, 0), len(writes))
            for position, data in writes[:count]:
                inode.apply(position, data)
            if count < len(writes) and (data := writes[count][1]) is not None:
                inode.apply(writes[count][0], data[: torn.get(path, 0)])
            inode.durable = bytes(inode.content)
