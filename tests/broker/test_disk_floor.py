"""What is to stay free of the disk: publishers wait before it is full, and go on by themselves."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from segments.policy import LogPolicy
from streamd.broker.disk_floor import LOOK_SECONDS
from streamd.broker.streams.open_log import FULL_DISK_SECONDS
from streamd.config import Config, ConfigError
from tests.support.server import harness

LEAST = 1_000_000


async def test_publishers_wait_and_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SimpleNamespace(total=10 * LEAST, free=LEAST, used=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk)
    async with harness(tmp_path, min_disk_free_bytes=LEAST) as server:
        peer = await server.peer()
        await peer.create("s")
        await peer.declare("s")
        await peer.store([b"a"])
        stream = server.host.find("s")
        for free, is_low in (
            (LEAST - 1, True),
            (LEAST, True),  # a little more has to be free again
            (LEAST * 11 // 10, False),
            (LEAST, False),
            (0, True),
            (2 * LEAST, False),
        ):
            disk.free = free
            await trio.sleep(LOOK_SECONDS + 0.1)
            before = stream.log.next_offset
            await peer.publish([b"x"])
            await trio.sleep(FULL_DISK_SECONDS + 0.1)
            assert (stream.log.next_offset == before) is is_low, free
            assert ("of the disk are free" in stream.alarm) is is_low
        assert stream.log.next_offset == 7, "all that waited is stored"
        assert stream.alarm == ""
    assert caplog.text.count("publishers wait") >= 2


async def test_without_it_nobody_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with harness(tmp_path) as server:
        looked: list[str] = []
        monkeypatch.setattr(shutil, "disk_usage", looked.append)
        await trio.sleep(10 * LOOK_SECONDS)
        assert server.server.broker.floor.error is None
        assert looked == []


async def test_default_retention(tmp_path: Path) -> None:
    settings = {"default_max_length_bytes": 5_000, "default_max_age": "2h"}
    async with harness(tmp_path, **settings) as server:
        await server.host.create("none", [])
        await server.host.create("age", [("max-age", "1D")])
        await server.host.create("both", [("max-age", "1D"), ("max-length-bytes", "7")])

        def limits(name: str) -> tuple[int | None, int | None]:
            found: LogPolicy = server.host.logs.policy(server.host.row(name))
            return found.max_length_bytes, found.max_age_ms

        assert limits("none") == (5_000, 7_200_000)
        assert limits("age") == (5_000, 86_400_000)
        assert limits("both") == (7, 86_400_000)
        assert server.host.arguments("none") == {}, "a declaration stays what it is"


@pytest.mark.parametrize("age", ["3", "2w", "-1s"])
def test_an_age_that_is_none(age: str) -> None:
    with pytest.raises(ConfigError, match="default_max_age is"):
        Config(data="x", default_max_age=age)
