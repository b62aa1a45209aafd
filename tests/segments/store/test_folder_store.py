"""A folder as a store: what a kill leaves, several processes, and disks that refuse."""

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from segments.store import folder_store
from segments.store.folder_store import FolderStore
from segments.store.object_store import DeniedError, MissingError, TierError

CALLS = ("open", "write", "fsync", "rename", "mkdir", "unlink", "rmdir", "close")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "tier"
    path.mkdir()
    return path


@pytest.fixture
def store(root: Path) -> FolderStore:
    return FolderStore(str(root))


def refusing(code: int) -> Callable[..., Any]:
    """A call to the system that fails."""
    return Mock(side_effect=OSError(code, os.strerror(code)))


class Killed(BaseException):
    """The process ended."""


class Calls:
    """Sees the calls to the system that a store makes, and ends the process at one of them."""

    def __init__(self, patch: pytest.MonkeyPatch, last: int | None = None) -> None:
        self.log: list[tuple[str, str]] = []
        self._last = last
        self._paths: dict[int, str] = {}
        self._close = os.close
        for name in CALLS:
            patch.setattr(folder_store.os, name, self._seen(name, getattr(os, name)))

    def _seen(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def seen(*arguments: Any) -> Any:
            if self._last is not None and len(self.log) >= self._last:
                raise Killed
            what = arguments[0]
            self.log.append((name, self._paths.get(what, what)))
            result = call(*arguments)
            if name == "open":
                self._paths[result] = what
            if name == "close":
                del self._paths[what]
            return result

        return seen

    def end_process(self) -> None:
        """What the system does: it closes all files, which gives locks back."""
        for descriptor in self._paths:
            self._close(descriptor)


def test_a_kill_at_each_call_leaves_the_old_or_the_new(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes next sees whole objects, and is stopped by nothing that was left."""
    outcomes = set()
    for step in range(1_000):
        key = f"v1/{step}/x"
        store = FolderStore(str(root))
        etag = store.create(key, b"old")
        new = f"v1/{step}/deep/er"
        with monkeypatch.context() as patch:
            calls = Calls(patch, step)
            try:
                store.replace(key, b"new!", etag)
                store.put(new, b"new!")
                store.delete([new])
            except Killed:
                has_ended = True
            else:
                has_ended = False
            finally:
                calls.end_process()
        after = FolderStore(str(root))
        found = after.get(key)
        there = [listed.key for listed in after.listing(f"v1/{step}")]
        assert found.content in (b"old", b"new!")
        if new in there:
            assert after.get(new).content == b"new!"
        after.replace(key, b"then", found.etag)
        after.put(new, b"then")
        outcomes.add((found.content, len(there)))
        if not has_ended:
            break
    assert outcomes == {(b"old", 1), (b"new!", 1), (b"new!", 2)}
    assert step > 20


def test_what_is_stored_is_on_the_device(
    store: FolderStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes before the name, and the name with all folders before anybody is told."""
    calls = Calls(monkeypatch)
    store.create("v1/a/x", b"1")
    store.put("v1/a/y", b"2")
    told = [
        (name, "temporary" if "/.tmp/" in path else path.removeprefix(f"{root}"))
        for name, path in calls.log
        if name in ("write", "fsync", "rename")
    ]
    write = [("write", "temporary"), ("fsync", "temporary"), ("rename", "temporary")]
    assert told == [*write, ("fsync", "/v1/a"), ("fsync", "/v1"), ("fsync", "")] * 2


def test_processes_that_count_lose_nothing(store: FolderStore, root: Path) -> None:
    store.create("v1/counter", b"0")
    program = f"""
from segments.store.folder_store import FolderStore
from segments.store.object_store import ConflictError
store = FolderStore({str(root)!r})
done = 0
while done < 40:
    found = store.get("v1/counter")
    try:
        store.replace("v1/counter", b"%d" % (int(found.content) + 1), found.etag)
        done += 1
    except ConflictError:
        pass
"""
    processes = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert store.get("v1/counter").content == b"80"
    assert os.listdir(root / ".tmp") == []


def test_a_lock_that_is_never_given_back(
    store: FolderStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    etag = store.create("v1/x", b"1")
    (lock,) = (root / ".locks").iterdir()
    monkeypatch.setattr(folder_store, "_LOCK_SECONDS", 0)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TierError) as told:
            store.replace("v1/x", b"2", etag)
        assert type(told.value) is TierError
        assert str(told.value) == (
            f"cannot write v1/x in file://{root}: another process has held its lock for 0 seconds"
        )
        assert store.get("v1/x").content == b"1"
    store.replace("v1/x", b"2", etag)


def test_no_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path / "none" / "deeper"):
        with pytest.raises(DeniedError) as told:
            FolderStore(str(path))
        assert str(told.value) == (
            f"cannot use file://{path}: there is no such folder; create or mount it"
        )
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_unmounted_is_not_an_empty_one(store: FolderStore, root: Path) -> None:
    etag = store.create("v1/x", b"1")
    root.rename(root.with_name("elsewhere"))
    operations: tuple[Callable[[], Any], ...] = (
        lambda: store.get("v1/x"),
        lambda: store.get_range("v1/x", 0, 1),
        lambda: store.put("v1/x", b"2"),
        lambda: store.put_file("v1/x", __file__, 10),
        lambda: store.create("v1/y", b"2"),
        lambda: store.replace("v1/x", b"2", etag),
        lambda: list(store.listing("v1")),
        lambda: store.folders("v1"),
        lambda: store.delete(["v1/x"]),
    )
    for is_back in (False, True):
        if is_back:
            root.mkdir()  # where it was mounted
        for operation in operations:
            with pytest.raises(DeniedError, match=": the folder is gone; mount it again"):
                operation()
    assert list(root.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [
        (errno.ENOSPC, TierError, "the disk is full; free some space"),
        (errno.EDQUOT, TierError, "the disk is full; free some space"),
        (errno.EIO, TierError, "Input/output error"),
        (errno.EROFS, DeniedError, "Read-only file system"),
        (errno.EACCES, DeniedError, "Permission denied"),
    ],
)
@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename"])
def test_a_disk_that_refuses(
    store: FolderStore,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    code: int,
    kind: type[TierError],
    reason: str,
) -> None:
    store.create("v1/old", b"1")
    with monkeypatch.context() as patch:
        patch.setattr(folder_store.os, call, refusing(code))
        with pytest.raises(TierError) as told:
            store.create("v1/x", b"1")
    assert type(told.value) is kind
    assert str(told.value) == f"cannot write v1/x in file://{root}: {reason}"
    assert [found.key for found in store.listing("v1")] == ["v1/old"]
    assert os.listdir(root / ".tmp") == []


def test_one_that_may_only_be_read(
    store: FolderStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine that mounts it read-only; it has been written to before."""
    store.create("v1/x", b"1")
    old = root / ".tmp" / "old"
    old.touch()
    os.utime(old, (0, 0))
    with monkeypatch.context() as patch:  # pytest removes the folder
        patch.setattr(folder_store.os, "unlink", refusing(errno.EROFS))
        assert FolderStore(str(root)).get("v1/x").content == b"1"


def test_one_that_cannot_be_prepared(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_store.os, "makedirs", refusing(errno.EACCES))
    store = FolderStore(str(root))
    with pytest.raises(DeniedError) as told:
        store.put("v1/x", b"1")
    assert str(told.value) == f"cannot write v1/x in file://{root}: Permission denied"


def test_a_place_that_is_only_looked_at_is_left_alone(root: Path) -> None:
    """A file system may be mounted there later; then that is used."""
    store = FolderStore(str(root))
    with pytest.raises(MissingError):
        store.get("v1/cluster")
    assert store.folders("v1") == []
    assert list(store.listing("v1")) == []
    store.delete(["v1/cluster"])
    assert os.listdir(root) == []
    store.put("v1/x", b"1")
    assert store.get("v1/x").content == b"1"
    root.rename(root.with_name("away"))
    root.mkdir()
    with pytest.raises(DeniedError, match="the folder is gone; mount it again"):
        store.get("v1/x")
    with pytest.raises(DeniedError, match="the folder is gone; mount it again"):
        store.put("v1/x", b"1")
    assert os.listdir(root) == []


def test_what_was_left_over_goes_after_a_day(store: FolderStore, root: Path) -> None:
    store.put("v1/x", b"1")
    old, new = root / ".tmp" / "old", root / ".tmp" / "new"
    for path in (old, new):
        path.touch()
    os.utime(old, (0, 0))
    store.create("v1/z", b"1")
    FolderStore(str(root)).put("v1/y", b"2")
    assert os.listdir(root / ".tmp") == ["new"]


def test_a_folder_that_somebody_removes_just_then(
    store: FolderStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process deletes the last object of a folder, another writes one into it."""
    rename, left = os.rename, [1, 2]

    def late(old: str, new: str) -> None:
        if left:
            left.pop()
            os.rmdir(root / "v1" / "a")
        rename(old, new)

    store.put("v1/b", b"")
    monkeypatch.setattr(folder_store.os, "rename", late)
    store._put("v1/a/x", lambda _: None, late)
    assert store.get("v1/a/x").content == b""
    left.extend([1, 2, 3])
    with pytest.raises(TierError):
        store._put("v1/a/y/z", lambda _: None, lambda *_: os.rmdir(root / "none"))


def test_empty_folders_go_with_the_last_object(store: FolderStore, root: Path) -> None:
    store.put("v1/a/b/x", b"")
    store.put("v1/a/y", b"")
    store.delete(["v1/a/b/x"])
    assert sorted(os.listdir(root / "v1" / "a")) == ["y"]
    store.delete(["v1/a/y"])
    assert sorted(os.listdir(root)) == [".locks", ".tmp"]


@pytest.mark.parametrize("key", ["", "/x", "x/", "a//b", "../x", "a/../b", "a/.", ".tmp/x"])
def test_keys_that_lead_elsewhere(store: FolderStore, key: str) -> None:
    with pytest.raises(TierError, match="as a key: a part of it is empty, or has a dot"):
        store.put(key, b"")
    with pytest.raises(TierError):
        store.delete([key])
