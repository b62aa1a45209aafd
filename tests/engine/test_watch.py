"""What nothing else writes down is in the log when it begins, and when it ends."""

import logging
from types import SimpleNamespace

import pytest
import trio

from streamd.engine import Watch
from streamd.operations import server as operations
from streamd.operations.server import Trouble, TroubleKind
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

    peer = await server.publisher("s", is_new=True)
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


async def test_more_consumers_than_are_named(
    server: Harness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of them are named may change while none of them has caught up."""
    watch = Watch(server.server.engine, server.server.directory)
    behind = [f"c{n}" for n in range(5)]

    class Asked:
        async def ask(self, *_: object) -> object:
            wrong = [Trouble(TroubleKind.BEHIND, "is late", "/", "s", who) for who in behind]
            return SimpleNamespace(wrong=wrong)

    monkeypatch.setattr(watch, "_engine", Asked())
    caplog.set_level(logging.INFO, "streamd.engine.watch")
    await watch.look()
    assert len(caplog.records) == 5
    behind[:2] = ["c7", "c8"]
    await watch.look()
    assert len(caplog.records) == 5
    del behind[1:]  # c7
    await watch.look()
    ended = [record.levelno for record in caplog.records[5:]]
    assert sorted(ended) == [logging.INFO] * 5 + [logging.WARNING]


async def test_what_others_write_down_is_left_to_them(
    server: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    await server.host.create("s", [])
    server.host.find("s").life._cannot_open("/place: no such folder")
    caplog.clear()
    await Watch(server.server.engine, server.server.directory).look()
    assert caplog.records == []
