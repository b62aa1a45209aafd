"""The page on durability: what it refers to exists, and a flush is in the order that it says."""

import ast
import re
from collections.abc import Sequence
from pathlib import Path, PurePath

import pytest

from segments import Log, LogPolicy
from segments.disk import File, OsDisk, OsFile
from segments.flush import CHECKPOINT_BYTES, CHECKPOINT_CHUNKS
from streamd.broker.streams.flusher import FlushMode
from streamd.config import FLUSH_BYTES
from streamd.operations.arguments import CONFIRM, STORE
from tests.support.logs import append

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "internals" / "durability.md").read_text()


def names_in(path: Path) -> set[str]:
    """Tests and classes of a file, tests in classes as `Class::test`."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{n.name}" for n in node.body if hasattr(n, "name")}
        found.add(getattr(node, "name", ""))
    return found


@pytest.mark.parametrize(
    "place",
    sorted(set(re.findall(r"(?:`|^S\d+ +)((?:tests|benchmarks)/[\w./:]+)", PAGE, re.MULTILINE))),
)
def test_every_test_that_is_named_exists(place: str) -> None:
    path, _, name = place.partition("::")
    assert (ROOT / path).exists()
    assert not name or name in names_in(ROOT / path)


def test_every_number_that_is_named_is_explained() -> None:
    promises = re.findall(r"^\| P(\d+) ", PAGE, re.MULTILINE)
    assumptions = re.findall(r"^\| A(\d+) ", PAGE, re.MULTILINE)
    mechanisms = re.findall(r"^\*\*M(\d+): ", PAGE, re.MULTILINE)
    tests = re.findall(r"^\| T(\d+) ", PAGE, re.MULTILINE)
    states = re.findall(r"^\| S(\d+) ", PAGE, re.MULTILINE)
    assert states == re.findall(r"^S(\d+) +tests/", PAGE, re.MULTILINE)
    all_numbers = (promises, assumptions, mechanisms, tests, states)
    for letter, numbers in zip("PAMTS", all_numbers, strict=True):
        assert numbers == [str(n + 1) for n in range(len(numbers))]
        assert set(re.findall(rf"\b{letter}(\d+)\b", PAGE)) == set(numbers)


def test_the_figures() -> None:
    modes = re.findall(r"^\| `--flush (\w+)`", PAGE, re.MULTILINE)
    assert modes == [mode.value for mode in FlushMode]
    assert f"| [`{CONFIRM}={STORE}`]" in PAGE
    assert f"or {FLUSH_BYTES >> 20} MiB |" in PAGE
    assert f"{CHECKPOINT_BYTES >> 20} MiB or {CHECKPOINT_CHUNKS:,} chunks" in PAGE


class WatchedFile(OsFile):
    def __init__(self, path: str, flags: int, done: list[str]) -> None:
        super().__init__(path, flags)
        self._done = done

    def sync(self) -> None:
        self._done.append(f"flush {PurePath(self.path).name}")
        super().sync()


class WatchedDisk(OsDisk):
    """Writes down what is flushed and renamed."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def create(self, path: str) -> File:
        super().create(path).close()
        return self.open(path, writable=True)

    def open(self, path: str, *, writable: bool) -> File:  # noqa: ARG002
        return WatchedFile(path, 2, self.done)

    def rename(self, old: str, new: str) -> None:
        self.done.append(f"rename {PurePath(old).name} to {PurePath(new).name}")
        super().rename(old, new)

    def sync_folder(self, folder: str) -> None:
        self.done.append("flush the folder")
        super().sync_folder(folder)


def expected_order(segments: Sequence[str]) -> list[str]:
    """What the page says, with the files of these segments."""
    text = re.search(r"<!-- order of a flush -->\n```text\n(.*?)```", PAGE, re.DOTALL)
    assert text is not None
    steps = []
    for verb, what in re.findall(r"\d\. (\w+) +(.*)", text[1]):
        if "segments" in what:
            suffix = ".index" if "index" in what else ".segment"
            steps += [f"{verb} {segment}{suffix}" for segment in segments]
        else:
            steps.append(f"{verb} {what}")
    return steps


def test_a_flush_has_the_order_that_the_page_says(tmp_path: Path) -> None:
    disk = WatchedDisk()
    log = Log.open(str(tmp_path / "s"), LogPolicy(max_segment_bytes=200), disk)
    append(log, [b"a" * 200])
    append(log, [b"b"])
    log.journal.tracking.store_offset(b"c", 0)
    log.journal.write_pending(log.committed_offset)
    disk.done.clear()
    log.flush()
    assert disk.done == expected_order([f"{0:020}", f"{1:020}"])
    log.close()
