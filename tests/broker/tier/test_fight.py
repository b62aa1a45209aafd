"""Two servers with one tier: once another has taken it, the first can change nothing in it."""

from dataclasses import replace
from pathlib import Path

import pytest

from segments.checksum import crc32
from segments.store.manifest import encode_manifest
from streamd.broker.tier.claims import claim
from streamd.broker.tier.identity import Identity
from streamd.operations.tier_reports import TierState
from streamd.wire.stream import commands as c
from tests.broker.tier.support import SEGMENT_BYTES, manifests, passes, publish, tier_of, tiered
from tests.support.fake_store import Call, FakeStore
from tests.support.server import Harness, Peer

B = Identity("b" * 16, 1, "c" * 16)


def take_over(store: FakeStore) -> None:
    """What `--restore` does with the store: it takes the tier, then each manifest."""
    held = claim(store, B, takes_over=True)
    for manifest in manifests(store):
        if not manifest.is_deleted:
            wanted = replace(
                manifest,
                revision=manifest.revision + 1,
                epoch=held.cluster.epoch,
                writer=B.name,
            )
            key = manifest.stream.manifest
            store.replace(key, encode_manifest(wanted), store.objects[key].etag)


async def _work(server: Harness, peer: Peer) -> None:
    """Uploads, local limits, retention, and the end of a stream."""
    await peer.begin("s", reference="p", stream_max_segment_size_bytes=SEGMENT_BYTES)
    await publish(peer, 0, 11)
    await passes(2)
    await server.host.settings.set_arguments("s", [("max-length-bytes", "3000")])
    await server.host.expire()
    await passes(2)
    if tier_of(server).ownership.state is TierState.OK:
        await peer.code(c.Delete, "s")
    await passes(2)


async def _calls(folder: Path) -> int:
    store = FakeStore()
    async with tiered(folder, store) as server:
        await _work(server, await server.peer())
    return len(store.calls)


@pytest.mark.parametrize("is_after", [False, True])
async def test_another_takes_over_at_any_request(tmp_path: Path, *, is_after: bool) -> None:
    num_calls = await _calls(tmp_path / "whole")
    assert num_calls > 30
    for number in range(9, num_calls + 1):
        await _overtaken_at(number, tmp_path / f"{number}", is_after=is_after)


async def _overtaken_at(number: int, folder: Path, *, is_after: bool) -> None:
    store = FakeStore()
    taken: list[bytes] = []

    def hook(call: Call) -> None:
        if call.number == number and not taken:
            taken.append(b"")
            take_over(store)
            left = [one for one in manifests(store) if not one.is_deleted]
            taken[:] = map(encode_manifest, left)
            taken.append(b"")

    if is_after:
        store.after = hook
    else:
        store.before = hook
    async with tiered(folder, store) as server:
        peer = await server.peer()
        try:
            await _work(server, peer)
        except AssertionError:  # it was refused
            assert taken
        await passes(100)
        if not taken:
            return
        assert tier_of(server).ownership.state is TierState.FENCED, number
        left = [m for m in manifests(store) if m.writer == B.name]
        assert [encode_manifest(one) for one in left if not one.is_deleted] == taken[:-1], number
        for manifest in left:
            for segment in manifest.segments:
                for suffix, file in segment.files.items():
                    content = store.objects[segment.key(manifest.stream, suffix)].content
                    assert (len(content), crc32(content)) == file
