"""Commands in this process; every test has a data folder of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine, command_line


@pytest.fixture
def streamd(tmp_path: Path) -> Iterator[CommandLine]:
    with command_line(tmp_path / "data") as commands:
        yield commands
