"""Whatever peers call things, a message in the log is one line of bounded length."""

import asyncio
import contextlib
import logging
from pathlib import Path

from hypothesis import example, given, strategies as st

from clients import StreamError, connect
from streamd.cli.log_lines import OneLine
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


def test_a_long_one_says_how_much_is_left_out() -> None:
    (line,) = formatted("stream %s: refused", "x" * 65_000)
    assert line == f"INFO stream {'x' * 993} [63,516 characters] {'x' * 491}: refused"


def test_the_log_of_the_server(tmp_path: Path) -> None:
    process = ServerProcess(tmp_path / "data").start()

    async def main() -> None:
        async with connect(process.uri) as client:
            for name in ("a\x1b[2J", "x" * 30_000):
                with contextlib.suppress(StreamError):
                    await client.create(name)

    try:
        asyncio.run(main())
        lines = process.log.read_bytes().decode().split("\n")
    finally:
        process.end()
    assert any("stream a\\x1b[2J" in line for line in lines)
    assert all(line.isprintable() for line in lines)
    assert max(map(len, lines)) < 2_000
