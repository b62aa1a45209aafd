"""The log holds nobody up, whoever reads it or does not."""

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamd.cli.log_writer import MOST_CHARACTERS, LineWriter, written_apart


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_who_does_not_read_holds_nobody(pipe: tuple[int, int]) -> None:
    writer, line = LineWriter(pipe[1]), "x" * 999 + "\n"
    written = 3 * MOST_CHARACTERS // len(line)
    for _ in range(written):
        writer.write(line)
    assert not writer.close(), "the pipe is full"
    found, told = b"", 0
    while told < written:  # what is dropped may be told of more than once
        found += os.read(pipe[0], 1 << 20)
        dropped = re.findall(rb"([0-9,]+) lines? of the log were dropped", found)
        told = found.count(line.encode()) + sum(int(n.replace(b",", b"")) for n in dropped)
    assert b"stderr was not read" in found
    assert told == written


def test_all_is_written_at_the_end(tmp_path: Path) -> None:
    path, root = tmp_path / "log", logging.getLogger()
    with path.open("w") as file:
        handler = logging.StreamHandler(file)
        root.addHandler(handler)
        try:
            others = [h for h in root.handlers if h is not handler]
            root.handlers = [handler]
            with written_apart():
                for number in range(100):
                    logging.getLogger("streamd").error("line %s", number)
            logging.getLogger("streamd").error("after")
        finally:
            root.handlers = others
    assert path.read_text().splitlines() == [*(f"line {n}" for n in range(100)), "after"]
