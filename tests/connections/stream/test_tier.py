"""What the server tells of its tier, however long that takes."""

import pytest
import trio

from clients import ConnectionLost, PreconditionFailed, connect
from clients.connection import ANSWER_SECONDS
from tests.support.client import Network
from tests.support.server import Harness
from tests.support.tier import FakeTier

SECONDS = 3 * ANSWER_SECONDS


async def test_a_verification_may_take_longer_than_other_answers(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.host.create("s", [])
    server.server.broker.tier = tier = FakeTier()
    tier.seconds = SECONDS
    network = Network(server, monkeypatch)
    async with connect(heartbeat=10) as client:
        (found,) = await client.tier_report("tier.verify", stream="s")
        assert found == {"num_objects": "12", "num_bytes": "3456", "num_faults": "0"}
        assert len(network.streams) == 1  # both ends knew all the time that the other is there
        server.server.broker.tier = None
        with pytest.raises(PreconditionFailed, match=r"tier\.gc is refused: .* has no tier"):
            await client.tier_report("tier.gc", dry_run="true")


async def test_it_is_not_asked_for_again_when_the_connection_breaks(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.server.broker.tier = tier = FakeTier()
    network = Network(server, monkeypatch)
    async with network.client() as client:
        await client.tier_report("tier.gc", dry_run="true")
        original = tier.collect

        async def collect(*, dry_run: bool) -> object:
            network.streams[-1].kill()
            return await original(dry_run=dry_run)

        monkeypatch.setattr(tier, "collect", collect)
        with pytest.raises(ConnectionLost):
            await client.tier_report("tier.gc", dry_run="false")
    assert tier.asked == [("collect", True), ("collect", False)]


async def test_an_upload_may_take_as_long_and_has_bounds(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.server.broker.tier = tier = FakeTier()
    tier.seconds = SECONDS
    async with Network(server, monkeypatch).client() as client:
        told, *rows = await client.tier_report("tier.upload", seconds="600", **{"stream.0": "s"})
        assert told == {"num_streams": "2", "num_bytes": "2345", "num_outside": "0"}
        assert [row["name"] for row in rows] == ["s", "t"]
        for seconds in ("0", "-1", "1.5", "604801", "9" * 5_000, "²", ""):
            with pytest.raises(PreconditionFailed, match="timeout_seconds"):
                await client.tier_report("tier.upload", seconds=seconds)
    assert tier.asked == [("upload", "/", "s", 600)]


async def test_an_upload_ends_with_the_connection(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.server.broker.tier = tier = FakeTier()
    tier.seconds = 100_000
    network = Network(server, monkeypatch)
    with trio.move_on_after(7):
        async with connect(heartbeat=5) as client:
            await client.tier_report("tier.upload", seconds="600000")
    assert len(network.streams) == 1
    await trio.sleep(20)
    assert tier.asked == [("upload", "/", 600_000), ("cancelled",)]
