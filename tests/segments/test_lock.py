"""A log has one opener: who else opens it is refused, and changes nothing."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from segments import CorruptError, Log
from segments.errors import LockedError
from tests.support.logs import append, read_bodies

_HOLDER = """
import sys
from segments import Log
from tests.support.logs import append
log = Log.open(sys.argv[1])
append(log, [b"one", b"two"])
print("open", flush=True)
sys.stdin.read()
"""
_FORKER = """
import os, sys
from segments import Log
log = Log.open(sys.argv[1])
end, other = os.pipe()
if not os.fork():
    os.close(other)
    os.read(end, 1)
    os._exit(0)
log.close()
Log.open(sys.argv[1]).close()
"""


@contextmanager
def another_process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has the log open, with two messages that it has not flushed."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", _HOLDER, str(folder)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            yield process
        finally:
            process.kill()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_second_one_in_the_same_process(tmp_path: Path) -> None:
    log = Log.open(str(tmp_path))
    append(log, [b"one"])
    before = contents(tmp_path)
    with pytest.raises(LockedError, match=rf"{tmp_path}: .*\({os.getpid()}\)|another process"):
        Log.open(str(tmp_path))
    assert contents(tmp_path) == before
    append(log, [b"two"])
    log.close()
    again = Log.open(str(tmp_path))
    assert read_bodies(again) == [b"one", b"two"]
    again.abandon()
    Log.open(str(tmp_path)).close()


def test_another_process_until_it_is_killed(tmp_path: Path) -> None:
    with another_process(tmp_path) as process:
        before = contents(tmp_path)
        with pytest.raises(LockedError, match=f"process {process.pid} |another process"):
            Log.open(str(tmp_path))
        assert contents(tmp_path) == before
        process.kill()
        process.wait()
        log = Log.open(str(tmp_path))
        assert read_bodies(log) == [b"one", b"two"]
        log.close()


def test_a_forked_child_does_not_keep_what_its_parent_has_closed(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _FORKER, str(tmp_path)], check=True)


def test_one_that_cannot_be_opened_is_not_touched_and_not_locked(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020}.segment"
    path.write_bytes(b"something else entirely")
    for _ in range(2):
        with pytest.raises(CorruptError, match="byte 0: file begins with b'some'"):
            Log.open(str(tmp_path))
        assert path.read_bytes() == b"something else entirely"
    path.unlink()
    Log.open(str(tmp_path)).close()


def test_a_folder_that_is_moved_away_does_not_keep_a_new_one_from_being_opened(
    tmp_path: Path,
) -> None:
    folder, aside = tmp_path / "s", tmp_path / "aside"
    log = Log.open(str(folder))
    folder.rename(aside)
    Log.open(str(folder)).close()
    with pytest.raises(LockedError):
        Log.open(str(aside))
    log.abandon()
    Log.open(str(aside)).close()
