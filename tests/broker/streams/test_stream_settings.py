"""Streams that are changed while they are in use."""

from pathlib import Path

import pytest
import trio

from segments import LogPolicy
from segments.codec import FILE_HEADER_SIZE, ChunkHeader, decode_chunk_header
from segments.policy import DEFAULT_TIER_SEGMENT_BYTES
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.fields import Pair
from tests.auth.test_users import manage, must
from tests.support.server import Harness, Peer, with_peer

PRECONDITION = ResponseCode.PRECONDITION_FAILED


def stored_headers(server: Harness) -> list[ChunkHeader]:
    (file,) = (server.data / "streams").glob("*/s/*.segment")
    raw = file.read_bytes()
    found, position = [], FILE_HEADER_SIZE
    while position < len(raw):
        found.append(decode_chunk_header(raw, position))
        position += found[-1].total_size
    return found


async def figures(peer: Peer) -> dict[str, str]:
    (found,) = (await peer.ask(c.DescribeStreams, ("s",))).streams
    return dict(found.arguments)


async def test_hold_from_the_next_chunk_on(server: Harness, peer: Peer) -> None:
    await peer.begin("s", stream_filter_size_bytes="32")
    await peer.store([b"x"] * 10, values=[b"a"] * 10)
    settings = {"stream-chunk-max-records": "4", "stream-filter-size-bytes": "64"}
    await must(peer, "stream.set", stream="s", **settings)
    await peer.store([b"x"] * 10, 11, values=[b"a"] * 10)
    headers = stored_headers(server)
    assert [header.num_records for header in headers] == [10, 4, 4, 2]
    assert [header.filter_size for header in headers] == [32, 64, 64, 64]
    assert await figures(peer) == settings | {"stream-filter-size-bytes": "64"}


async def test_survive_a_restart_and_another_declaration(tmp_path: Path) -> None:
    async with with_peer(tmp_path) as (_, peer):
        await peer.create("s", max_age="7D")
        await must(peer, "stream.set", stream="s", **{"max-age": "1h"})
    async with with_peer(tmp_path) as (server, peer):
        await peer.declare("s")
        assert server.host.find("s").log.policy.max_age_ms == 3_600_000
        pairs = (Pair("max-age", "7D"),)
        assert await peer.code(c.Create, "s", pairs) == ResponseCode.STREAM_EXISTS
        await must(peer, "stream.set", stream="s", **{"max-age": ""})
        assert server.host.find("s").log.policy.max_age_ms is None
        assert await figures(peer) == {}


async def test_those_of_the_tier_survive_a_restart(tmp_path: Path) -> None:
    changed = {
        "stream-tier": "false",
        "stream-local-max-length-bytes": "0",
        "stream-local-max-age": "2h",
    }
    (tmp_path / "tier").mkdir()
    tier = f"file://{tmp_path}/tier"
    async with with_peer(tmp_path, tier=tier) as (server, peer):
        await peer.begin("s", stream_local_max_age="1D")
        assert server.host.find("s").log.policy == LogPolicy(
            max_segment_bytes=DEFAULT_TIER_SEGMENT_BYTES, local_max_age_ms=86_400_000
        )
        await must(peer, "stream.set", stream="s", **changed)
        policy = LogPolicy(tier=False, local_max_length_bytes=0, local_max_age_ms=7_200_000)
        assert server.host.find("s").log.policy == policy
    async with with_peer(tmp_path, tier=tier) as (server, peer):
        assert await figures(peer) == changed
        await peer.declare("s")
        assert server.host.find("s").log.policy == policy
        await must(peer, "stream.set", stream="s", **dict.fromkeys(changed, ""))
        assert server.host.find("s").log.policy == LogPolicy(
            max_segment_bytes=DEFAULT_TIER_SEGMENT_BYTES
        )


async def test_a_shorter_length_drops_segments_of_a_log_that_is_closed(
    server: Harness, peer: Peer
) -> None:
    await peer.begin("s", stream_max_segment_size_bytes="100")
    for number in range(1, 6):
        await peer.store([bytes(100)], number)
    await peer.code(c.DeletePublisher, 1)
    await trio.sleep(120)
    assert not server.host.find("s").is_open
    await must(peer, "stream.set", stream="s", **{"max-length-bytes": "300"})
    assert len(list((server.data / "streams").glob("*/s/*.segment"))) == 1


async def test_an_adaptive_filter(server: Harness, peer: Peer) -> None:
    await peer.begin("s", stream_filter_size_bytes="16")
    rate = {"stream-filter-size-bytes": "auto", "stream-filter-error-rate": "0.001"}
    await must(peer, "stream.set", stream="s", **rate)
    await peer.store([b"x"] * 50, values=[b"%d" % n for n in range(50)])
    (header,) = stored_headers(server)
    assert header.filter_size > 150


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"stream-filter-property": "p"}, "cannot be changed"),
        ({"x": "y"}, "x cannot be changed; max-age, "),
        ({"stream-chunk-max-records": "0"}, "expected a whole number from 1"),
        ({"stream-filter-error-rate": "2"}, "a share between 0 and 1"),
        ({"max-age": "soon"}, "a number and one of the units"),
    ],
)
async def test_refused(peer: Peer, arguments: dict[str, str], reason: str) -> None:
    await peer.create("s")
    answer = await manage(peer, "stream.set", stream="s", **arguments)
    assert answer.code == PRECONDITION
    assert reason in answer.reason
    answer = await manage(peer, "stream.set", stream="none", **{"max-age": "1h"})
    assert answer.code == ResponseCode.STREAM_DOES_NOT_EXIST
