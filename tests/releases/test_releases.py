"""Data folders of all releases so far: this one reads everything in them, and goes on there."""

import json
import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest

from segments.disk import OsDisk
from segments.verify import verify
from streamd import __version__
from tests.releases.contents import FOLDERS, KINDS, append, read, server_over

RELEASES = sorted(folder.name for folder in FOLDERS.iterdir())


def includes(found: Any, expected: Any) -> bool:
    """Whether something is as expected; a later release may say more of what was declared."""
    if isinstance(expected, dict):
        return all(name in found and includes(found[name], expected[name]) for name in expected)
    if isinstance(expected, list) and expected and isinstance(expected[0], dict):
        return all(any(includes(row, wanted) for row in found) for wanted in expected)
    return bool(found == expected)


def test_one_of_this_version_is_kept() -> None:
    assert __version__ in RELEASES, "python -m tests.releases makes it"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("release", RELEASES)
def test_everything_in_a_folder_of_a_release(release: str, kind: str, tmp_path: Path) -> None:
    expected = json.loads((FOLDERS / release / "expected.json").read_text())
    shutil.copytree(FOLDERS / release / kind, tmp_path / "data")
    server = server_over(tmp_path / "data").start()
    try:
        found = anyio.run(read, server)
        assert includes(found["definitions"], expected["definitions"])
        for part in expected.keys() - {"definitions"}:
            assert found[part] == expected[part], part

        names = list(expected["messages"])
        anyio.run(append, server, names)
        found = anyio.run(read, server)
        for name in names:
            before, after = expected["messages"][name], found["messages"][name]
            assert after[: len(before)] == before
            assert [row[:2] for row in after[len(before) :]] == [[len(before), "new"]]
        assert len(found["by region"]["EU"]) == len(expected["by region"]["EU"]) + 1
        assert server.stop() == 0
    finally:
        server.end()
    for folder in {file.parent for file in server.data.glob("streams/*/*/*.segment")}:
        assert list(verify(OsDisk(), str(folder))) == []
    said = [line for line in server.log.read_text().splitlines() if " INFO " not in line]
    assert said == []
