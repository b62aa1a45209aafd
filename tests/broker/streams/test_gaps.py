"""A stream goes on behind a gap: what consumers, counts and searches make of it."""

from pathlib import Path

import pytest
import trio

from segments.gaps import OFFSET_GAP
from streamd.wire.stream import commands as c
from streamd.wire.stream.fields import OffsetSpecification
from tests.connections.stream.test_publishing import bodies
from tests.support.server import FIRST, Peer, with_peer

BEHIND = 10 + OFFSET_GAP


def at(offset: int) -> OffsetSpecification:
    return OffsetSpecification(4, offset)


async def _machine_goes_down(folder: Path, flush: str) -> None:
    """Ten messages are left; consumers have seen more."""
    async with with_peer(folder, flush=flush) as (_, peer):
        await peer.begin("s")
        await peer.store(bodies(10))
        await peer.send(c.StoreOffset("app", "s", 9))
    (folder / "streams/%2F/s/ahead-another-boot").touch()


async def _figures(peer: Peer) -> dict[str, int]:
    (found,) = (await peer.ask(c.DescribeStreams, ("s",))).streams
    return dict(found.statistics)


@pytest.mark.parametrize("flush", ["os", "interval", "always"])
async def test_consumers_and_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, flush: str
) -> None:
    await _machine_goes_down(tmp_path, flush)
    async with with_peer(tmp_path, flush=flush) as (server, peer):
        assert (await _figures(peer))["messages"] == 10
        assert (await _figures(peer))["committed_offset"] == 9
        await peer.subscribe("s", at(10), subscription_id=1)
        assert "asks for offset" not in caplog.text  # it has seen nothing that is gone
        await peer.subscribe("s", at(15), subscription_id=2)
        assert (
            "stream s: a consumer asks for offset 15; offsets 10 to 14 were given out before a "
            f"machine went down, and are lost: it begins with offset {BEHIND}"
        ) in caplog.text
        resolved = await peer.ask(c.ResolveOffsetSpec, "s", at(15), ())
        assert resolved.offset.value == BEHIND
        await peer.declare("s")
        await peer.store([b"new"])
        for _ in range(2):
            assert (await peer.chunk()).header.chunk_id == BEHIND
        figures = await _figures(peer)
        assert (figures["messages"], figures["committed_offset"]) == (11, BEHIND)
        assert "lost_messages" not in figures
        await peer.subscribe("s", FIRST, credit=1, subscription_id=3)
        await peer.chunk()
        (connection,) = server.server.connections
        (lag,) = [f.lag for f in connection.consumers() if f.subscription_id == 3]
        assert lag == 1
        assert not list(Path(tmp_path, "streams/%2F/s").glob("ahead-another-boot"))
    marks = list(Path(tmp_path, "streams/%2F/s").glob("ahead-*"))
    assert marks == []


async def test_the_first_message_waits_for_the_mark(tmp_path: Path) -> None:
    async with with_peer(tmp_path) as (_, peer):
        await peer.begin("s")
        await peer.store([b"0"])
    async with with_peer(tmp_path) as (server, peer):
        await peer.subscribe("s", FIRST)
        await peer.chunk()
        assert server.host.find("s").log.awaits_mark
        await peer.declare("s")
        await peer.store([b"1"])
        assert not server.host.find("s").log.awaits_mark
        assert list(Path(tmp_path, "streams/%2F/s").glob("ahead-*"))
        await trio.sleep(1)
