"""What is to stay free of the disk: publishers wait before it is full, and go on by themselves."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from segments.codec import FILE_HEADER_SIZE, decode_blocks, decode_journal
from segments.format_constants import JOURNAL_SNAPSHOT
from segments.policy import LogPolicy
from segments.tracking import Tracking
from streamd.broker.disk_floor import LOOK_SECONDS
from streamd.broker.streams.open_log import FULL_DISK_SECONDS
from streamd.config import Config, ConfigError
from streamd.wire.stream import commands as c
from tests.auth.test_users import must
from tests.support.server import Harness, harness, with_peer

LEAST = 1_000_000


async def test_publishers_wait_and_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SimpleNamespace(total=10 * LEAST, free=LEAST, used=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk)
    async with with_peer(tmp_path, min_disk_free_bytes=LEAST) as (server, peer):
        await peer.begin("s")
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


@pytest.mark.parametrize("flush", ["interval", "always"])
@pytest.mark.parametrize("publishes", [False, True])
async def test_consumers_go_on_and_it_is_said_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    flush: str,
    publishes: bool,
) -> None:
    """What is answered of a stored offset is on the disk, although messages wait."""
    disk = SimpleNamespace(total=10 * LEAST, free=LEAST // 2, used=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk)
    async with harness(tmp_path, min_disk_free_bytes=LEAST, flush=flush) as server:
        await trio.sleep(LOOK_SECONDS + 0.1)
        peer = await server.peer()
        await peer.create("s")
        if publishes:
            await peer.declare("s")
            await peer.publish([b"waits"])
            await trio.sleep(FULL_DISK_SECONDS + 0.1)
        for offset in range(5):
            disk.free -= 1_000
            await trio.sleep(LOOK_SECONDS)
            await peer.send(c.StoreOffset("app", "s", offset))
            assert (await peer.ask(c.QueryOffset, "app", "s")).offset == offset
            (file,) = tmp_path.rglob("tracking")
            assert stored_offsets(file.read_bytes()) == {b"app": offset}
            log = server.host.find("s").log
            assert log.flushing.is_flushed or flush == "interval"
        await must(peer, "offset.set", stream="s", name="app", offset="1")
        assert log.committed_offset == 0
    assert caplog.text.count("publishers wait") == (2 if publishes else 1), "server; stream"


def stored_offsets(journal: bytes) -> dict[bytes, int]:
    records, _ = decode_journal(journal[FILE_HEADER_SIZE:])
    found = Tracking()
    for record in records:
        found.apply(decode_blocks(record.body, snapshot=record.kind == JOURNAL_SNAPSHOT), 0)
    return found.offsets()


async def test_without_it_nobody_looks(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
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
            found: LogPolicy = server.host.policy(server.host.row(name))
            return found.max_length_bytes, found.max_age_ms

        assert limits("none") == (5_000, 7_200_000)
        assert limits("age") == (5_000, 86_400_000)
        assert limits("both") == (7, 86_400_000)
        assert server.host.arguments("none") == {}, "a declaration stays what it is"


@pytest.mark.parametrize("age", ["3", "2w", "-1s"])
def test_an_age_that_is_none(age: str) -> None:
    with pytest.raises(ConfigError, match="default_max_age is"):
        Config(data="x", default_max_age=age)
