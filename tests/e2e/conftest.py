"""A real server for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import ServerProcess


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path / "data")
    try:
        process.start()
        yield process
    finally:
        process.end()
    assert "Traceback" not in process.log.read_text()
