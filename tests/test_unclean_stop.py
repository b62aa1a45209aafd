"""After a stop that was not in order the log says so, once, and what was found."""

import shutil
from pathlib import Path

import pytest
import trio

from tests.support.server import harness

SAID = "the server was not shut down cleanly"


async def _run(folder: Path) -> None:
    async with harness(folder) as server:
        peer = await server.peer()
        if not server.host.has_stream("s"):
            await peer.create("s")
            await peer.declare("s")
            await peer.store([b"x"] * 10)
        await trio.sleep(1)


async def test_stopped_in_order(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        await _run(tmp_path)
    assert SAID not in caplog.text


async def test_killed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As with kill -9: the folder as it is while a server runs."""
    async with harness(tmp_path / "a") as server:
        peer = await server.peer()
        await peer.create("s")
        await peer.declare("s")
        await peer.store([b"x"] * 10)
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert SAID not in caplog.text
    await _run(tmp_path / "b")
    assert caplog.text.count(SAID) == 1
    assert "looked at 1 stream: none repaired, none with lost messages" in caplog.text
    caplog.clear()
    await _run(tmp_path / "b")
    assert SAID not in caplog.text, "the stop before was in order"


async def test_what_was_repaired(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with harness(tmp_path / "a") as server:
        peer = await server.peer()
        await peer.create("s")
        await peer.declare("s")
        await peer.store([b"x"] * 10)
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        (file,) = Path(server.host.folder("s")).glob("*.segment")
        copied = tmp_path / "b" / file.relative_to(tmp_path / "a")
    copied.write_bytes(copied.read_bytes() + b"torn")
    await _run(tmp_path / "b")
    assert "looked at 1 stream: 1 repaired, none with lost messages" in caplog.text
