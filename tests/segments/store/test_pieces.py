"""Memory that is used again, and only when nobody looks at it any more."""

import errno
import os
from pathlib import Path
from pickle import PickleBuffer

import pytest

from segments.errors import StorageError, UnreadableError
from segments.store import pieces
from segments.store.pieces import Buffers, IdleBuffers, file_pieces


def test_memory_is_used_again_once_it_is_let_go() -> None:
    buffers = Buffers(10)
    first = buffers.take(10)
    used, held = first.obj, PickleBuffer(first)  # holds it as the library does
    second = buffers.take(10)
    assert second.obj is not used
    held.release()
    third = buffers.take(4)
    assert third.obj is used
    assert len(third) == 4
    assert buffers.take(10).obj is used, "nobody holds the third"


def test_uploads_at_the_same_time_share_no_memory() -> None:
    idle = IdleBuffers(10)
    with idle.borrowed() as one, idle.borrowed() as other:
        assert one is not other
        used = other.take(10).obj, one.take(10).obj
        assert used[0] is not used[1]
    with idle.borrowed() as later:
        assert later in (one, other)


@pytest.mark.parametrize("most", [1, 3, 10, 100])
def test_a_file_in_pieces(tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path, preadv = tmp_path / "file", os.preadv
    path.write_bytes(b"0123456789")
    # A system that gives less than it was asked for.
    monkeypatch.setattr(pieces.os, "preadv", lambda fd, parts, at: preadv(fd, [parts[0][:2]], at))
    for size in range(11):
        found = [bytes(piece) for piece in file_pieces(str(path), size, most, Buffers(most).take)]
        assert b"".join(found) == b"0123456789"[:size]
        assert all(len(piece) == most for piece in found[:-1])
    with pytest.raises(StorageError) as told:
        list(file_pieces(str(path), 11, most))
    assert str(told.value) == f"cannot read {path}: it ends after 10 bytes, not 11"


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StorageError, match=r"cannot read .*: No such file"):
        list(file_pieces(str(tmp_path / "none"), 1, 1))

    def refuse(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(pieces.os, "preadv", refuse)
    with pytest.raises(UnreadableError, match="Input/output error"):
        list(file_pieces(__file__, 1, 1))
