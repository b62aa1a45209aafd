"""A stored segment is truncated in its middle: who stands behind the cut gets all the rest."""

from pathlib import Path
from typing import Any

import pytest
import trio

from segments import at_offset
from segments.tier import plan
from streamd.wire.stream import commands as c
from streamd.wire.stream.fields import OffsetSpecification
from tests.broker.tier.support import A_FRAME, bodies, passes, publish, tiered
from tests.support.fake_store import FakeStore
from tests.support.server import FIRST, Harness, Peer

_FRAMES = 40
_END = _FRAMES * A_FRAME
_CUT = 7 * A_FRAME
_STREAM = {
    "stream_max_segment_size_bytes": "16000",  # 16 frames or so
    "stream_local_max_length_bytes": "0",
}


@pytest.fixture(autouse=True)
def little_is_fetched_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("FIRST", 1_000), ("BLOCK", 2_000), ("_FIRST_WINDOW", 2_000)):
        monkeypatch.setattr(plan, name, size)


async def _fill(server: Harness, **more: str) -> Peer:
    peer = await server.publisher("s", is_new=True, reference="p", **_STREAM, **more)
    await publish(peer, 0, _FRAMES)
    await passes(5)
    assert server.host.find("s").log.segments.shown[0].cold is not None
    return peer


async def _begin(server: Harness, frames: int, spec: OffsetSpecification = FIRST) -> Peer:
    """A consumer that has taken some chunks."""
    peer = await server.consumer("s", spec, credit=frames)
    assert len(await peer.bodies(frames * A_FRAME)) == frames * A_FRAME
    return peer


async def _rest(peer: Peer, first: int, end: int = _END) -> None:
    await peer.send(c.Credit(1, 1_000))
    with trio.fail_after(300):
        assert await peer.bodies(end - first) == bodies(first, end - first)


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize("delay", [0, 600])
@pytest.mark.parametrize("frames", [8, 12])
async def test_on_the_server_that_writes(
    tmp_path: Path, store: FakeStore, frames: int, delay: int, restored: bool
) -> None:
    settings: dict[str, Any] = {"tier_delete_delay_seconds": delay}
    async with tiered(tmp_path, store, **settings) as server:
        server.server.broker.fetcher.cache.max_bytes = 0
        await _fill(server)
        if restored:
            for path in tmp_path.glob("streams/*/s/*.index"):
                if not path.with_suffix(".segment").exists():
                    path.unlink()
        reader = await _begin(server, frames)
        await server.host.find("s").truncate(at_offset(_CUT))
        await passes(5)
        server.server.broker.fetcher.cache.shrink(0)
        await _rest(reader, frames * A_FRAME)
        assert server.host.find("s").log.segments.num_lost == 0


@pytest.mark.parametrize("wait", [0, 5, 100])
@pytest.mark.parametrize("frames", [8, 12])
async def test_on_one_that_reads(tmp_path: Path, frames: int, wait: float) -> None:
    store = FakeStore()
    async with tiered(tmp_path / "writer", store) as writer:
        await _fill(writer)
        async with tiered(tmp_path / "reader", store, read_only=True) as server:
            server.server.broker.fetcher.cache.max_bytes = 0
            reader = await _begin(server, frames)
            await writer.host.find("s").truncate(at_offset(_CUT))
            await passes(wait)
            await _rest(reader, frames * A_FRAME, server.host.find("s").log.next_offset)
            assert server.host.find("s").log.segments.num_lost == 0
