"""Whatever peers call things, a message in the log is one line of bounded length."""

import asyncio
import contextlib
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

from hypothesis import example, given, strategies as st

from clients import StreamError, connect
from streamd.cli.json_lines import JsonLine
from streamd.cli.log_lines import OneLine
from streamd.net.transport import Address
from tests.support.process import ServerProcess


def formatted(message: str, *arguments: object, error: BaseException | None = None) -> list[str]:
    info = (type(error), error, None) if error else None
    record = logging.LogRecord("x", logging.INFO, "", 0, message, arguments, info)
    return OneLine("%(levelname)s %(message)s").format(record).splitlines()


@given(st.text())
@example("a\n2026-11-22 02:00:00,000 INFO    forged")
@example("\x1b[2J\x1b]0;title\x07")
@example("\r\x85\u2028\u202e\udc80")
@example("x" * 70_000)
def test_one_line(name: str) -> None:
    (line,) = formatted("stream %s: it is %s", name, "refused")
    assert line.isprintable()
    assert len(line) < 1_600 * 10
    assert line.startswith("INFO stream ")
    assert line.endswith(": it is refused")
    if name.isprintable() and len(name) < 1_000:
        assert name in line


@given(st.text())
@example("x\n2026-11-22 02:00:00,000 INFO    forged\r\x1b[2J")
@example("x\n" * 70_000)
def test_a_traceback_is_indented(name: str) -> None:
    first, *rest = formatted("it failed", error=ValueError(name))
    assert first == "INFO it failed"
    assert rest
    assert all(line.startswith("  ") and line.isprintable() for line in rest)
    assert sum(map(len, rest)) < 100_000 * 10


def as_json(message: str, *arguments: object, error: BaseException | None = None) -> Any:
    info = (type(error), error, error.__traceback__) if error else None
    record = logging.LogRecord("x", logging.WARNING, "", 0, message, arguments, info)
    line = JsonLine().format(record)
    assert line.isascii()
    assert line.isprintable()
    found = json.loads(line)
    assert list(found)[:4] == ["time", "level", "logger", "message"]
    assert (found["level"], found["logger"]) == ("warning", "x")
    return found


@given(st.text())
@example('a\n{"level": "critical", "message": "forged"}')
@example('\x1b[2J\r\x85\u2028\u202e\udc80"\\\0')
@example("stream %s %s %(a)s")
@example("x" * 70_000)
def test_one_object(name: str) -> None:
    peer = Address("::1", 40_000)
    found = as_json("%s: stream %s is refused", peer, name)
    assert found["connection"] == "[::1]:40000"
    assert len(found["message"]) < 1_600
    name = name.encode(errors="backslashreplace").decode()  # no halves of surrogate pairs
    if len(name) < 1_000:
        assert found["message"] == f"[::1]:40000: stream {name} is refused"
        assert found["stream"] == name
    found = as_json("it failed", error=ValueError(name))
    assert "ValueError" in found["exception"]
    assert len(found["exception"]) < 21_000
    assert found.keys() == {"time", "level", "logger", "message", "exception"}
    assert as_json(name.replace("%", "")).keys() == {"time", "level", "logger", "message"}


def test_halves_of_surrogate_pairs_are_no_unicode() -> None:
    """As in the name of a file that is not UTF-8; strict readers refuse the whole line."""
    found = as_json("stream %s", "a\udc80 \U0001f600", error=ValueError("\ud800"))
    assert (found["stream"], found["message"]) == (
        "a\\udc80 \U0001f600",
        "stream a\\udc80 \U0001f600",
    )
    assert found["exception"] == "ValueError: \\ud800"


def test_time_is_in_utc_with_milliseconds() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "it is", (), None)
    record.created = 1_700_000_000.25
    assert json.loads(JsonLine().format(record))["time"] == "2023-11-14T22:13:20.250Z"


def test_what_nobody_catches_is_in_the_log() -> None:
    """Warnings, faults of threads and of destructors, each in its line."""
    program = """
import logging, threading, warnings
from streamd.cli.json_lines import log_as_json

class Bad:
    def __del__(self):
        raise ValueError("of a destructor\\nforged")

def fail():
    raise ValueError("of a thread")

log_as_json()
warnings.warn("of Python")
Bad()
thread = threading.Thread(target=fail)
thread.start()
thread.join()
"""
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    texts = [json.loads(line) for line in said.stderr.splitlines()]
    found = [text.get("exception", text["message"]) for text in texts]
    assert len(found) == 3
    for text, what in zip(
        found, ("of Python", "of a destructor\nforged", "of a thread"), strict=True
    ):
        assert what in text


def test_a_long_one_says_how_much_is_left_out() -> None:
    (line,) = formatted("stream %s: refused", "x" * 65_000)
    assert line == f"INFO stream {'x' * 993} [63,516 characters] {'x' * 491}: refused"


def test_the_log_of_the_server(tmp_path: Path) -> None:
    process = ServerProcess(tmp_path / "data")

    async def main() -> None:
        async with connect(process.uri) as client:
            for name in ("a\x1b[2J", "x" * 30_000):
                with contextlib.suppress(StreamError):
                    await client.create(name)

    with process:
        asyncio.run(main())
        lines = process.log.read_bytes().decode().split("\n")
    assert any("stream a\\x1b[2J" in line for line in lines)
    assert all(line.isprintable() for line in lines)
    assert max(map(len, lines)) < 2_000
