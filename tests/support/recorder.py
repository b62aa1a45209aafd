"""A disk in memory that writes down what is asked of it, and shows what a crash can leave of it.

A process that is killed leaves all that it did, the last write possibly cut off. A power failure
leaves of a file what was there at its last sync, and of the later writes any sectors, in any order:
lost, torn, zero where the file grew and its bytes did not arrive. Of a folder it leaves the names
of its last sync, and any of the later changes, each whole or not at all.
"""

import errno
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from random import Random
from typing import NamedTuple

from segments.errors import StorageError
from tests.support.disk import Unlocked

SECTOR = 512


class Write(NamedTuple):
    node: int
    position: int
    data: bytes


class Cut(NamedTuple):
    node: int
    size: int


class Sync(NamedTuple):
    node: int  # of a file or a folder


class Drop(NamedTuple):
    """A sync has failed: what it was to bring to the device is not brought there by a later one."""

    node: int


class Link(NamedTuple):
    folder: int
    name: str
    node: int
    is_folder: bool


class Unlink(NamedTuple):
    folder: int
    name: str


class Move(NamedTuple):
    folder: int
    name: str
    new_folder: int
    new_name: str


Operation = Write | Cut | Sync | Drop | Link | Unlink | Move


@dataclass
class Tree:
    """Files and folders by number; 0 is the root. One that is not there has no name any more."""

    contents: dict[int, bytearray] = field(default_factory=dict)
    folders: dict[int, dict[str, int]] = field(default_factory=lambda: {0: {}})

    def change(self, operation: Operation) -> None:
        match operation:
            case Write(node, position, data) if (content := self.contents.get(node)) is not None:
                content.extend(bytes(max(0, position - len(content))))
                content[position : position + len(data)] = data
            case Cut(node, size) if (content := self.contents.get(node)) is not None:
                content.extend(bytes(max(0, size - len(content))))
                del content[size:]
            case Link(folder, name, node, is_folder):
                self.folders[folder][name] = node
                if is_folder:
                    self.folders.setdefault(node, {})
                else:
                    self.contents.setdefault(node, bytearray())
            case Unlink(folder, name):
                self.folders[folder].pop(name, None)
            case Move(folder, name, new_folder, new_name):
                moved = self.folders[folder].pop(name, None)
                if moved is not None:
                    self.folders[new_folder][new_name] = moved

    def find(self, path: str) -> int | None:
        node: int | None = 0
        for name in path.split("/"):
            if name in ("", "."):
                continue
            node = self.folders.get(node, {}).get(name) if node is not None else None
        return node


class RecordedFile:
    def __init__(self, disk: "RecordingDisk", path: str, node: int) -> None:
        self.path = path
        self._disk = disk
        self._node = node

    @property
    def _content(self) -> bytearray:
        return self._disk.tree.contents[self._node]

    def size(self) -> int:
        return len(self._content)

    def read(self, size: int, position: int) -> bytes:
        return bytes(self._content[position : position + size])

    def write(self, parts: Sequence[bytes], position: int) -> int:
        data = b"".join(parts)
        self._disk.take_room("write", self.path)
        self._disk.do(Write(self._node, position, data))
        return len(data)

    def truncate(self, size: int) -> None:
        self._disk.do(Cut(self._node, size))

    def sync(self) -> None:
        self._disk.do(Sync(self._node))

    def fileno(self) -> int:
        raise NotImplementedError("a file in memory has no descriptor")

    def close(self) -> None:
        pass


class RecordingDisk:
    """See segments.disk.Disk.

    Attributes:
        tree: as the process sees it.
        operations: what was done, in order.
        start: as it was before the first of them; all of that is on the device.
        room: for how many writes and new files; None for any number.

    Args:
        start: see above.
        boot: of the machine: another one after a power failure.
        operations: that were done since the start.
    """

    def __init__(
        self, start: Tree | None = None, boot: int = 1, operations: Sequence[Operation] = ()
    ) -> None:
        self._boot = boot
        self.room: int | None = None
        self.start = start or Tree()
        self.tree = _copy(self.start)
        self.operations: list[Operation] = []
        for operation in operations:
            self.do(operation)
        self._numbers = itertools.count(1 + max([*self.tree.contents, *self.tree.folders]))

    def take_room(self, operation: str, path: str) -> None:
        if self.room == 0:
            raise StorageError(operation, path, OSError(errno.ENOSPC, "No space left on device"))
        self.room = None if self.room is None else self.room - 1

    def do(self, operation: Operation) -> None:
        self.operations.append(operation)
        self.tree.change(operation)

    def _node(self, operation: str, path: str) -> int:
        node = self.tree.find(path)
        if node is None:
            raise StorageError(operation, path, OSError(errno.ENOENT, "No such file or directory"))
        return node

    def _place(self, path: str) -> tuple[int, str]:
        return self._node("open", str(PurePath(path).parent)), PurePath(path).name

    def create(self, path: str) -> RecordedFile:
        if self.tree.find(path) is not None:
            raise StorageError("open", path, OSError(errno.EEXIST, "File exists"))
        self.take_room("open", path)
        node = next(self._numbers)
        self.do(Link(*self._place(path), node, is_folder=False))
        return RecordedFile(self, path, node)

    def open(self, path: str, *, writable: bool) -> RecordedFile:  # noqa: ARG002
        return RecordedFile(self, path, self._node("open", path))

    def list(self, folder: str) -> list[str]:
        found = self.tree.folders[self._node("list", folder)]
        return sorted(name for name, node in found.items() if node in self.tree.contents)

    def make_folder(self, folder: str) -> None:
        paths = [*reversed(PurePath(folder).parents), PurePath(folder)]
        for path in map(str, paths[1:]):
            if self.tree.find(path) is None:
                self.do(Link(*self._place(path), next(self._numbers), is_folder=True))

    def remove(self, path: str) -> None:
        if self.tree.find(path) is not None:
            self.do(Unlink(*self._place(path)))

    def remove_folder(self, folder: str) -> None:
        self.do(Unlink(*self._place(folder)))

    def rename(self, old: str, new: str) -> None:
        self._node("rename", old)
        self.do(Move(*self._place(old), *self._place(new)))

    def lock(self, folder: str) -> Unlocked:  # noqa: ARG002
        return Unlocked()

    def sync_folder(self, folder: str) -> None:
        self.do(Sync(self._node("flush", folder)))

    def boot(self) -> str:
        return f"{self._boot}"

    def settle(self) -> None:
        """Let it start later: with what is on the device for certain."""
        start, done = _copy(self.start), self.operations
        synced = {op.node: n for n, op in enumerate(done) if isinstance(op, Sync)}
        dropped = {op.node for op in done if isinstance(op, Drop)}
        sure = next((n for n, op in enumerate(done) if not _is_named(op, n, synced)), len(done))
        self.operations = []
        for n, operation in enumerate(done):
            match operation:
                case Link() | Unlink() | Move() if n < sure:
                    start.change(operation)
                case Write(node) | Cut(node) if node not in dropped and n < synced.get(node, -1):
                    start.contents.setdefault(node, bytearray())
                    start.change(operation)
                case Sync(node) if node not in dropped and (n < sure or node in start.contents):
                    pass
                case _:
                    self.operations.append(operation)
        used = {node for names in start.folders.values() for node in names.values()}
        used |= {op.node for op in self.operations if isinstance(op, Link)}
        start.contents = {node: found for node, found in start.contents.items() if node in used}
        self.start = start

    # -- crashes

    def after_kill(
        self, random: Random, count: int | None = None, following: Write | None = None
    ) -> "RecordingDisk":
        """What the next process finds; the write that was going on may have been cut off.

        Args:
            random: decides how much of that is there.
            count: how many operations were done; all by default.
            following: the one that was going on, where it is not recorded yet.
        """
        done = self.operations[:count]
        cut_off = self.operations[len(done)] if len(done) < len(self.operations) else following
        if isinstance(cut_off, Write):
            size = random.randint(0, len(cut_off.data))
            done.append(cut_off._replace(data=cut_off.data[:size]))
        return RecordingDisk(self.start, self._boot, done)

    def after_power_failure(self, random: Random, count: int | None = None) -> "RecordingDisk":
        """What is found when the machine is up again."""
        count = len(self.operations) if count is None else count
        return RecordingDisk(self.power_cut(count, random), self._boot + 1)

    def synced(self, count: int) -> Tree:
        """The least that is there after `count` operations: what was synced."""
        return self._cut(count, lambda: False, Random(0), in_order=False)

    def power_cut(self, count: int, random: Random) -> Tree:
        """Something that a power failure can leave after `count` operations."""
        share = random.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        in_order = random.random() < 0.3  # as most file systems do with names
        return self._cut(count, lambda: random.random() < share, random, in_order=in_order)

    def _cut(self, count: int, keep: Callable[[], bool], random: Random, *, in_order: bool) -> Tree:
        done = self.operations[:count]
        tree = _copy(self.start)
        self._cut_names(tree, done, keep, in_order=in_order)
        late: dict[int, list[Write | Cut]] = {node: [] for node in tree.contents}
        for operation in done:
            match operation:
                case Write() | Cut() if operation.node in late:
                    late[operation.node].append(operation)
                case Sync(node) | Drop(node) if node in late:
                    for change in late[node]:
                        if isinstance(operation, Sync) or keep():
                            tree.change(change)
                    late[node] = []
        for node, changes in late.items():
            tree.contents[node] = _cut_content(tree.contents[node], changes, keep, random)
        return tree

    def _cut_names(
        self, tree: Tree, done: Sequence[Operation], keep: Callable[[], bool], *, in_order: bool
    ) -> None:
        last_sync = {op.node: n for n, op in enumerate(done) if isinstance(op, Sync)}
        is_lost = False
        for n, op in enumerate(done):
            if isinstance(op, Link | Unlink | Move):
                folders = {op.folder, op.new_folder} if isinstance(op, Move) else {op.folder}
                is_synced = any(last_sync.get(folder, -1) > n for folder in folders)
                if is_synced or (keep() and not (in_order and is_lost)):
                    tree.change(op)
                    continue
                is_lost = True
                if isinstance(op, Link):  # it is somewhere, under no name
                    target: dict[int, object] = tree.folders if op.is_folder else tree.contents  # type: ignore[assignment]
                    target.setdefault(op.node, {} if op.is_folder else bytearray())


def _is_named(operation: Operation, number: int, synced: dict[int, int]) -> bool:
    """It does not change names, or that is on the device."""
    match operation:
        case Link(folder) | Unlink(folder):
            return synced.get(folder, -1) > number
        case Move(folder, _, new_folder):
            return max(synced.get(folder, -1), synced.get(new_folder, -1)) > number
    return True


def _cut_content(
    content: bytearray, late: Sequence[Write | Cut], keep: Callable[[], bool], random: Random
) -> bytearray:
    """What a file has after a power failure: any sectors of the late writes, any size it had."""
    sizes, size = [len(content)], len(content)
    found = bytearray(content)
    for change in late:
        if isinstance(change, Cut):
            size = change.size
        else:
            size = max(size, change.position + len(change.data))
            found.extend(bytes(max(0, size - len(found))))
            at, end = change.position, change.position + len(change.data)
            while at < end:
                following = min(end, (at // SECTOR + 1) * SECTOR)
                if keep():
                    if random.random() < 0.02:
                        following = random.randint(at, following)  # torn within the sector
                    start = at - change.position
                    found[at:following] = change.data[start : start + following - at]
                at = min(end, (at // SECTOR + 1) * SECTOR)
        sizes.append(size)
    chosen = sizes[-1] if random.random() < 0.5 else random.choice(sizes)
    found.extend(bytes(max(0, chosen - len(found))))
    return found[:chosen]


def _copy(tree: Tree) -> Tree:
    return Tree(
        {node: bytearray(content) for node, content in tree.contents.items()},
        {node: dict(names) for node, names in tree.folders.items()},
    )
