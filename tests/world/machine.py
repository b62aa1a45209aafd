"""A machine: a server's folder on a disk that can lose power, refuse and be full.

The server works on real files, as in production. Beside them the machine writes down what the
server asks of its disk, so that it knows at any moment what a kill or a power failure may leave.
Then it makes another folder of that, in which the next server starts. The one before goes on in
the old folder until it has ended, and nobody looks there any more.

The catalog is SQLite's. It is taken for durable with each commit, see A9 of durability.md.
"""

import errno
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import accumulate
from os.path import basename, dirname, isfile, join
from pathlib import Path
from random import Random
from typing import Any

import trio

from segments import disk as segments_disk
from segments.errors import FLUSH, StorageError
from streamd.broker.catalog.catalog import CATALOG_FILE
from tests.support.recorder import Cut, Drop, Link, Move, RecordingDisk, Sync, Tree, Unlink, Write

here: ContextVar["Machine | None"] = ContextVar("the machine of this task", default=None)

_REFUSALS = {"full": errno.ENOSPC, "few": errno.EMFILE, "broken": errno.EIO}
_NEEDED = {
    "few": ("create", "open"),
    "full": ("create", "make", "write", "cut"),
    "broken": ("create", "make", "write", "cut", FLUSH),
}
_MOST_RECORDED = 300  # operations, before the record starts later


class Machine:
    """See above.

    Args:
        folder: an empty one, for all folders of the server.
        chance: decides what a power failure leaves.

    Attributes:
        data: the server's folder.
        num_lives: how many folders there were.
        num_boots: how often it was started, from any number on.
        wrong: "" or what each write and sync is refused with: "full", "broken"; with "few" what
            makes or opens a file is. A full disk takes a part of what is written, perhaps; what a
            broken one has not synced is lost with the power, whatever it says later.
        num_refused: how many have been.
        broken_at: when that began, until the next server.
        rotten: names of files that are, or were, not what was written.
        goes_on: what it has asked disk or store for is not answered until then; None: it is.
        kinds: of operations that there were, and how many of each: what is done to which file.
        before_each: is called before each, with its kind, its path and, of a write, what is
            written; what it looks at has been done by then, and nothing of this one.
    """

    def __init__(self, folder: Path, chance: Random) -> None:
        self._folder = folder
        self._chance = chance
        self.num_lives = 1
        self.num_boots = chance.randrange(1 << 30)
        self._record = RecordingDisk(boot=self.num_boots)
        self._nodes: dict[int, int] = {}  # by the inode of a file
        self.wrong = ""
        self.num_refused = 0
        self.broken_at: float | None = None
        self.rotten: set[str] = set()
        self.goes_on: trio.Event | None = None
        self.kinds: Counter[str] = Counter()
        self.before_each: Callable[[str, str, Write | None], None] = lambda *_: None
        self._left, self._due = 0, _nothing
        self._counts: Callable[[str], bool] = brings_to_device
        self.data = folder / f"data-{self.num_lives}"
        self._root = str(self.data)
        self.data.mkdir()

    def arm(self, number: int, due: Callable[[], Any], counts: Callable[[str], bool]) -> None:
        """Call `due` just before the operation of that number, which may have been begun.

        Args:
            number: from 1, of those that are counted.
            due: see above.
            counts: whether one of a kind is counted; see `brings_to_device`.
        """
        self._left, self._due, self._counts = number, due, counts

    def disarm(self) -> None:
        """Do not, if it has not happened yet."""
        self._left = 0

    def pause(self) -> None:
        """As SIGSTOP."""
        if self.goes_on is None:
            self.goes_on = trio.Event()

    def go_on(self) -> None:
        """It does."""
        if self.goes_on is not None:
            self.goes_on.set()
            self.goes_on = None

    async def gone_on(self) -> None:
        """Return when it is not paused; who is paused is not cancelled either."""
        while (event := self.goes_on) is not None:
            with trio.CancelScope(shield=True):
                await event.wait()

    def _step(
        self,
        what: str,
        path: str,
        begin: Callable[[], Any] | None = None,
        written: Write | None = None,
    ) -> None:
        """An operation comes; `begin` does a part of it."""
        if self._place(path) is None:
            return
        kind = f"{what} {_kind_of(path)}"
        self.kinds[kind] += 1
        self.before_each(kind, path, written)
        if not self._left or not self._counts(kind):
            return
        self._left -= 1
        if not self._left:
            if begin is not None:
                begin()
            self._due()

    def rot(self, suffixes: tuple[str, ...]) -> str:
        """Some files with one of these endings are not what was written; which, and how."""
        found = sorted(path for path in self.data.rglob("*") if path.suffix in suffixes)
        share = self._chance.choice((0.1, 0.5, 1))
        return ", ".join(
            f"{path.name} {self._rot_one(path, found)}"
            for path in found
            if self._chance.random() < share
        )

    def _rot_one(self, path: Path, others: list[Path]) -> str:
        """What becomes of a file."""
        self.rotten.add(path.name)
        content = bytearray(path.read_bytes())
        match self._chance.choice(("gone", "another", "of before", "cut", "changed", "changed")):
            case "gone" as how:
                path.unlink()
                return how
            case "another" as how:
                content[:] = self._chance.choice([p for p in others if p.exists()]).read_bytes()
            case "of before" as how:  # as an earlier folder has it
                life = self._folder / f"data-{self._chance.randint(1, self.num_lives)}"
                old = life / path.relative_to(self.data)
                content[:] = old.read_bytes() if old.exists() else content
            case "cut" as how:
                del content[self._chance.randint(0, len(content)) :]
            case how:
                places = [at for at, byte in enumerate(content) if byte] or [0]
                for at in self._chance.choices(places, k=3):
                    content[at : at + 1] = self._chance.randbytes(1)
        path.write_bytes(content)
        return how

    @property
    def record(self) -> RecordingDisk:
        """What was asked of the disk."""
        if len(self._record.operations) > _MOST_RECORDED:
            self._record.settle()
        return self._record

    def kill(self) -> None:
        """The process ends: all that it has written is there."""
        before = self._leave()
        shutil.copytree(before, self.data)
        self._learn_nodes()

    def cut_power(self) -> None:
        """The power fails: any of what was not synced is lost."""
        before = self._leave()
        tree = self._record.power_cut(len(self._record.operations), self._chance)
        shutil.copytree(before, self.data, ignore=self._recorded_in(before))
        _lay(tree, 0, self.data)
        self.num_boots += 1
        self._record = RecordingDisk(tree, self.num_boots)
        self._learn_nodes()

    def wipe(self) -> None:
        """It is lost, with all that it had: this is another one."""
        self._leave()
        self.data.mkdir()
        self.num_boots += 1
        self._record, self._nodes = RecordingDisk(boot=self.num_boots), {}

    @property
    def left(self) -> Path:
        """The folder that it had before."""
        return self._folder / f"data-{self.num_lives - 1}"

    def _leave(self) -> Path:
        before = self.data
        self.go_on()
        self.num_lives += 1
        self.data = self._folder / f"data-{self.num_lives}"
        self._root = str(self.data)
        self.wrong, self.broken_at = "", None
        return before

    def _recorded_in(self, root: Path) -> Any:
        """What is not copied after a power failure: all that went through the record."""

        def ignored(folder: str, names: list[str]) -> set[str]:
            place = folder[len(str(root)) + 1 :]
            found = {name for name in names if self._node_of(join(place, name)) is not None}
            found = {name for name in found if not name.startswith(CATALOG_FILE)}
            return {name for name in found if isfile(join(folder, name))}

        return ignored

    def _node_of(self, place: str) -> int | None:
        return self._record.tree.find(place)

    def _learn_nodes(self) -> None:
        """Which file of the new folder is which one of the record."""
        self._nodes = {}
        for path in self.data.rglob("*"):
            node = self._node_of(str(path.relative_to(self.data)))
            if node is not None and path.is_file():
                self._nodes[path.stat().st_ino] = node

    # -- what the server does to its disk

    @contextmanager
    def running(self) -> Iterator[None]:
        """In this block all that asks the operating system about files is recorded."""
        kept = {
            (kind, name): getattr(kind, name)
            for kind, names in (
                (segments_disk.OsFile, ("write", "truncate", "sync")),
                (
                    segments_disk.OsDisk,
                    ("create", "open", "make_folder", "remove", "remove_folder", "rename"),
                ),
                (segments_disk.OsDisk, ("sync_folder", "boot")),
                (Path, ("rename",)),
            )
            for name in names
        }
        for (kind, name), original in kept.items():
            setattr(kind, name, getattr(self, f"_{name}")(original))
        Path.rename = self._rename_folder(kept[Path, "rename"])  # type: ignore[method-assign]
        try:
            yield
        finally:
            for (kind, name), original in kept.items():
                setattr(kind, name, original)

    def _place(self, path: str) -> str | None:
        """Of a path in the server's folder; None elsewhere, in the folder of one that is over."""
        if not (path + "/").startswith(self._root + "/"):
            return None
        return path[len(self._root) + 1 :]

    def _refuse(self, operation: str, path: str) -> None:
        if operation in _NEEDED.get(self.wrong, ()) and self._place(path) is not None:
            self.num_refused += 1
            number = _REFUSALS[self.wrong]
            raise StorageError(operation, path, OSError(number, errno.errorcode[number]))

    def _node(self, file: Any) -> int | None:
        if self._place(file.path) is None:
            return None
        return self._nodes.get(segments_disk.os.fstat(file.fileno()).st_ino)

    def _write(self, original: Any) -> Any:
        def write(file: Any, parts: Any, position: int) -> int:
            def write_some() -> None:
                whole = b"".join(parts)
                put(file, [whole[: self._chance.randint(0, len(whole))]], position)

            node = self._node(file)
            now = None if node is None else Write(node, position, b"".join(parts))
            self._step("write", file.path, write_some, now)
            if self.wrong == "full" and self._place(file.path) is not None:
                write_some()
            self._refuse("write", file.path)
            return put(file, parts, position)

        def put(file: Any, parts: Any, position: int) -> int:
            size: int = original(file, parts, position)
            if (node := self._node(file)) is not None:
                self._record.do(Write(node, position, b"".join(parts)))
            return size

        return write

    def _truncate(self, original: Any) -> Any:
        def truncate(file: Any, size: int) -> None:
            self._step("cut", file.path)
            self._refuse("cut", file.path)
            original(file, size)
            if (node := self._node(file)) is not None:
                self._record.do(Cut(node, size))

        return truncate

    def _sync(self, original: Any) -> Any:
        def sync(file: Any) -> None:
            self._step("sync", file.path)
            node = self._node(file)
            if self.wrong == "broken":
                if node is not None:
                    self._record.do(Drop(node))
                self._refuse(FLUSH, file.path)
            original(file)
            if node is not None:
                self._record.do(Sync(node))

        return sync

    def _create(self, original: Any) -> Any:
        def create(disk: Any, path: str) -> Any:
            self._step("create", path)
            self._refuse("create", path)
            file = original(disk, path)
            place = self._place(path)
            if place is not None:
                folder = self._folder_of(dirname(place))
                node = next(self._record._numbers)
                self._record.do(Link(folder, basename(place), node, is_folder=False))
                self._nodes[segments_disk.os.fstat(file.fileno()).st_ino] = node
            return file

        return create

    def _open(self, original: Any) -> Any:
        def opened(disk: Any, path: str, *, writable: bool) -> Any:
            self._refuse("open", path)
            return original(disk, path, writable=writable)

        return opened

    def _folder_of(self, place: str) -> int:
        """The node of a folder; one that was made by others is taken for synced."""
        node = self._node_of(place)
        if node is None:
            parent = self._folder_of(dirname(place))
            node = next(self._record._numbers)
            self._record.do(Link(parent, basename(place), node, is_folder=True))
            self._record.do(Sync(parent))
        return node

    def _make_folder(self, original: Any) -> Any:
        def make_folder(disk: Any, folder: str) -> None:
            self._step("make", folder)
            self._refuse("make", folder)
            place = self._place(folder)
            original(disk, folder)
            if place is None:
                return
            for one in accumulate(place.split("/"), join):
                if self._node_of(one) is None:
                    parent = self._folder_of(dirname(one))
                    number = next(self._record._numbers)
                    self._record.do(Link(parent, basename(one), number, is_folder=True))

        return make_folder

    def _unlink(self, path: str) -> None:
        place = self._place(path)
        if place is not None and self._node_of(place) is not None:
            self._record.do(Unlink(self._folder_of(dirname(place)), basename(place)))

    def _remove(self, original: Any) -> Any:
        def remove(disk: Any, path: str) -> None:
            self._step("remove", path)
            original(disk, path)
            self._unlink(path)

        return remove

    _remove_folder = _remove

    def _rename(self, original: Any) -> Any:
        def rename(disk: Any, old: str, new: str) -> None:
            self._step("rename", new)
            original(disk, old, new)
            self._note_move(old, new)

        return rename

    def _rename_folder(self, original: Any) -> Any:
        def rename(folder: Path, new: Path) -> Path:
            moved: Path = original(folder, new)
            self._note_move(str(folder), str(new))
            return moved

        return rename

    def _note_move(self, old: str, new: str) -> None:
        source, target = self._place(old), self._place(new)
        if source is None or target is None or self._node_of(source) is None:
            return
        folders = self._folder_of(dirname(source)), self._folder_of(dirname(target))
        self._record.do(Move(folders[0], basename(source), folders[1], basename(target)))

    def _sync_folder(self, original: Any) -> Any:
        def sync_folder(disk: Any, folder: str) -> None:
            self._step("sync names", folder)
            self._refuse(FLUSH if self.wrong == "broken" else "open", folder)
            original(disk, folder)
            place = self._place(folder)
            if place is not None:
                self._record.do(Sync(self._folder_of(place)))

        return sync_folder

    def _boot(self, original: Any) -> Any:
        def boot(disk: Any) -> str:
            return f"{self.num_boots}" if here.get() is self else original(disk)

        return boot


def brings_to_device(kind: str) -> bool:
    """Operations of this kind do, or give a file its name."""
    return kind.startswith(("sync", "rename"))


def _kind_of(path: str) -> str:
    """Of a file: its name without numbers and ids."""
    name = basename(path)
    return name[name.find(".") :] if name[:1].isdigit() else name.partition("-")[0]


def _nothing() -> None:
    """Nobody waits for an operation."""


def _lay(tree: Tree, node: int, folder: Path) -> None:
    """Put folders and files of a tree into a real folder."""
    folder.mkdir(exist_ok=True)
    for name, inner in tree.folders.get(node, {}).items():
        if inner in tree.folders:
            _lay(tree, inner, folder / name)
        elif not name.startswith(CATALOG_FILE):  # of a restore; SQLite has it since
            (folder / name).write_bytes(tree.contents[inner])
