"""What nothing else writes down is in the log when it begins, and when it ends."""

import logging

import pytest
import trio

from streamd.engine import Watch
from streamd.operations import server as operations
from streamd.wire.stream import commands as c
from tests.support.server import FIRST, Harness


async def test_a_consumer_that_is_minutes_behind(
    server: Harness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "BEHIND_SECONDS", 1)
    watch = Watch(server.server.engine, server.server.directory)

    async def look() -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.INFO, "streamd.engine.watch"):
            await watch.look()
        return [record.getMessage() for record in caplog.records]

    peer = await server.peer()
    await peer.create("s")
    await peer.declare("s")
    await peer.store([b"x"])
    await peer.subscribe("s", FIRST, credit=0, name="till")
    assert await look() == []
    await trio.sleep(2)
    assert await look() == ["stream s: consumer till is 2 s behind, 1 message"]
    await trio.sleep(1)
    assert await look() == []
    await peer.send(c.Credit(1, 1))
    await peer.bodies(1)
    assert await look() == ["no longer: stream s: consumer till is 3 s behind, 1 message"]
    assert await look() == []


async def test_what_others_write_down_is_left_to_them(
    server: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    await server.host.create("s", [])
    server.host.find("s").life._cannot_open("/place: no such folder")
    caplog.clear()
    await Watch(server.server.engine, server.server.directory).look()
    assert caplog.records == []
