"""Servers in processes of their own, which end with the test."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.process import ServerProcess


class Start(Protocol):
    """Starts a server with these options."""

    def __call__(self, *options: str, module: str = "streamd") -> ServerProcess: ...


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[ServerProcess] = []

    def begin(*options: str, module: str = "streamd") -> ServerProcess:
        data = tmp_path / f"data{len(started)}"
        started.append(ServerProcess(data, *options, module=module))
        return started[-1].start()

    yield begin
    for process in started:
        process.end()
