"""A store that is empty, late, another one, or half there: nothing is hidden, evicted or astray."""

import json
from pathlib import Path

import pytest
import trio

from segments.store.cluster import Root, decode_root
from segments.store.object_names import CLUSTER
from streamd.broker.tier.identity import IDENTITY_FILE
from streamd.broker.tier.ownership import BEGIN_FILE
from streamd.operations.names import Name
from streamd.operations.tier_reports import TierState
from tests.broker.tier.support import (
    A_FRAME,
    a_stream,
    all_of,
    bodies,
    held_of,
    manifest_of,
    passes,
    publish,
    stored,
    tier_of,
    tiered,
)
from tests.support.fake_store import WRITES, Call, FakeStore, Kept
from tests.support.server import FIRST, Harness, Peer

_END = 20 * A_FRAME


def _tier_in(objects: dict[str, Kept]) -> str:
    root = decode_root(objects[CLUSTER].content)
    assert isinstance(root, Root)
    return root.tier


class ChangingStore(FakeStore):
    """A store that is another one for a while.

    Attributes:
        right: what the right one has.
    """

    def __init__(self) -> None:
        super().__init__()
        self.right = self.objects

    def is_right(self) -> None:
        """It is the right one again, with all that it had."""
        self.heal()
        self.before = lambda _call: None
        self.objects = self.right

    def is_another(self, objects: dict[str, Kept]) -> None:
        self.right, self.objects = self.objects, objects


async def _stored(folder: Path, store: FakeStore) -> dict[str, Kept]:
    """What is in a store after a server has stored most of a stream."""
    async with tiered(folder, store) as server:
        await stored(server, 20, stream_local_max_length_bytes="0")
        assert server.host.find("s").log.segments.shown[0].cold is not None
    return dict(store.objects)


async def test_an_empty_store_is_waited_on_and_never_taken(
    tmp_path: Path, store: FakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    right = await _stored(tmp_path, store)
    tier = _tier_in(right)
    store.objects = {}
    async with tiered(tmp_path, store) as server:
        reader = await server.consumer("s", FIRST, credit=1_000)
        peer = await server.publisher("s", reference="p")
        end = await publish(peer, _END, 20)  # publishing goes on
        await passes(300)
        assert tier_of(server).ownership.state is TierState.AWAY
        assert (
            f"is empty, expected the tier {tier} of this server"
            in tier_of(server).ownership.sentence
        )
        assert str(tmp_path / BEGIN_FILE) in tier_of(server).ownership.sentence
        assert caplog.text.count("expected the tier") == 1
        assert not store.objects
        log = server.host.find("s").log
        assert (
            log.next_offset - log.segments.local[0].base_offset >= 20 * A_FRAME
        )  # nothing has left it
        store.objects = dict(right)
        assert await reader.bodies(end) == bodies(0, end)
        await passes(90)
        assert tier_of(server).ownership.state is TierState.OK
        assert manifest_of(store, "s").next_offset > _END


async def test_an_empty_tier_is_begun_where_somebody_says_so(tmp_path: Path) -> None:
    """What is on the disk is stored there; what is in the old one alone is waited for."""
    store = FakeStore()
    old = await _stored(tmp_path, store)
    async with tiered(tmp_path, store) as server:
        await publish(await a_stream(server, "t"), 0, 20)
        await passes(10)
        old = dict(store.objects)
    store.objects = {}
    (tmp_path / BEGIN_FILE).touch()
    async with tiered(tmp_path, store) as server:
        await passes(60)
        assert tier_of(server).ownership.state is TierState.OK
        assert not (tmp_path / BEGIN_FILE).exists()
        tier = _tier_in(store.objects)
        assert tier != _tier_in(old)
        assert json.loads((tmp_path / IDENTITY_FILE).read_text())["tier"] == tier
        assert manifest_of(store, "t").next_offset >= 15 * A_FRAME
        assert not [key for key in store.objects if "/s~" in key]
        reader = await server.consumer("s", FIRST, credit=1_000)
        with trio.move_on_after(600) as limit:
            await reader.chunk()
        assert limit.cancelled_caught
        store.objects = dict(old)
        await passes(90)
        assert "is another one" in tier_of(server).ownership.sentence
        assert store.objects == old


async def test_another_tier_fences_nobody(tmp_path: Path) -> None:
    store, other = FakeStore(), FakeStore()
    right = await _stored(tmp_path / "a", store)
    another = await _stored(tmp_path / "b", other)
    store.objects = dict(another)
    async with tiered(tmp_path / "a", store) as server:
        await passes(100)
        assert "is another one" in tier_of(server).ownership.sentence
        store.objects = dict(right)
        await passes(90)
        assert tier_of(server).ownership.state is TierState.OK
        assert await all_of(server) == bodies(0, _END)
        store.objects = dict(another)
        await passes(100)
        assert tier_of(server).ownership.state is TierState.AWAY
        store.objects = dict(right)
        assert store.objects == right
        assert other.objects == another


@pytest.mark.parametrize("seconds", [0.1, 1, 30])
async def test_an_older_state_of_the_tier_fences_nobody(tmp_path: Path, seconds: float) -> None:
    """Of an earlier start of this very server, too, while something is to be logged."""
    store = ChangingStore()
    older = dict(await _stored(tmp_path, store))
    async with tiered(tmp_path, store) as server:
        await passes(seconds)
        store.is_another(older)
        async with trio.open_nursery() as nursery:
            peer = await server.peer()
            nursery.start_soon(peer.create, "t")
            await passes(60)
            assert tier_of(server).ownership.state is not TierState.FENCED
            store.is_right()
            await passes(120)
        assert tier_of(server).ownership.state is TierState.OK


async def test_a_data_folder_of_an_earlier_version(tmp_path: Path, store: FakeStore) -> None:
    """It says no id, and neither does its tier; its streams say that there was one."""
    await _stored(tmp_path, store)
    path = tmp_path / IDENTITY_FILE
    known = json.loads(path.read_text())
    path.write_text(json.dumps({k: known[k] for k in ("version", "identity", "epoch")}))
    right, store.objects = store.objects, {}
    async with tiered(tmp_path, store) as server:
        await passes(100)
        assert "is empty, expected the tier" in tier_of(server).ownership.sentence
        assert not store.objects
        store.objects = right
        await passes(90)
        assert tier_of(server).ownership.state is TierState.OK
        assert await all_of(server) == bodies(0, _END)
    assert json.loads(path.read_text())["tier"] == known["tier"]


async def test_a_new_server_does_not_begin_among_streams_of_others(tmp_path: Path) -> None:
    store = FakeStore()
    await _stored(tmp_path / "a", store)
    del store.objects[CLUSTER]
    before = dict(store.objects)
    async with tiered(tmp_path / "b", store) as server:
        await passes(100)
        assert "and has streams: not all of it is there" in tier_of(server).ownership.sentence
        assert store.objects == before


async def test_a_segment_leaves_the_disk_when_the_store_has_it_then(
    store: FakeStore, server: Harness, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    """What the store has lost since it was stored is uploaded again first."""
    await peer.begin("s", stream_max_segment_size_bytes="2000")
    await publish(peer, 0, 20)
    await passes(5)
    lost = manifest_of(store, "s").segments[1]
    key = lost.key(manifest_of(store, "s").stream, ".index")
    del store.objects[key]
    await server.host.settings.set_arguments("s", [("stream-local-max-length-bytes", "0")])
    await passes(30)
    assert server.host.find("s").log.segments.shown[1].cold is not None
    again = manifest_of(store, "s").segments[1]
    assert again.base_offset == lost.base_offset
    assert again.uid != lost.uid
    assert "does not have all objects of the segment from offset" in caplog.text
    assert manifest_of(store, "s").keys() <= store.objects.keys()
    server.server.broker.fetcher.cache.max_bytes = 0
    assert await all_of(server) == bodies(0, _END)


async def test_a_store_that_was_copied_has_other_etags(tmp_path: Path, store: FakeStore) -> None:
    async with tiered(tmp_path, store, tier_roll_seconds=100) as server:
        await stored(server, 20)
        key = manifest_of(store, "s").stream.manifest
        store.objects[key] = Kept(store.objects[key].content, "another", 0)
        await server.host.settings.set_arguments("s", [("stream-local-max-length-bytes", "0")])
        await passes(150)
        assert server.host.find("s").log.segments.shown[0].cold is not None
        assert manifest_of(store, "s").next_offset == _END


async def test_a_manifest_older_than_its_copy_is_left_alone(tmp_path: Path) -> None:
    """The store was set back: what it has lost is not written over while it may come back."""
    store = FakeStore()
    await _stored(tmp_path, store)
    key = manifest_of(store, "s").stream.manifest
    older = store.objects[key]
    for first in (_END, 2 * _END, 3 * _END):
        if first == 2 * _END:
            newest, store.objects[key] = store.objects[key], older
        async with tiered(tmp_path, store) as server:
            peer = await server.publisher("s", reference="p")
            await publish(peer, first, 20)
            await passes(60)
        assert (store.objects[key] is older) == (first == 2 * _END)
        if store.objects[key] is older:
            store.objects[key] = newest
    assert manifest_of(store, "s").next_offset > 3 * _END


async def test_a_first_manifest_names_what_its_store_has(tmp_path: Path) -> None:
    """Another store comes while the first segment is uploaded, and goes again."""
    store = ChangingStore()

    def changes(call: Call) -> None:
        if call.key.endswith(".segment") and store.objects is store.right:
            store.is_another({})

    async with tiered(tmp_path, store) as server:
        await tier_of(server).ownership.taken()
        store.before = changes
        await publish(await a_stream(server), 0, 20)
        await passes(30)
        assert store.objects is not store.right
        store.is_right()
        await passes(90)
        manifest = manifest_of(store, "s")
        assert len(manifest.segments) > 1
        assert manifest.keys() <= store.objects.keys()


@pytest.mark.parametrize("part", [".segment", ".index", "/manifest", "/~log/"])
async def test_what_went_into_another_store_is_written_again(tmp_path: Path, part: str) -> None:
    """It comes and goes within an upload: nobody has seen it."""
    store, gone = ChangingStore(), list[str]()

    def changes(call: Call) -> None:
        if part in call.key and call.name in WRITES and not gone:
            gone.append(call.key)
            store.is_another({})

    def changes_back(_call: Call) -> None:
        store.objects = store.right

    store.before, store.after = changes, changes_back
    async with tiered(tmp_path, store, tier="file:///bucket") as server:
        await publish(await a_stream(server), 0, 20)
        await tier_of(server).upload(Name("/"), [], 90)
        manifest = manifest_of(store, "s")
        assert gone
        assert manifest.next_offset == _END
        assert manifest.keys() <= store.objects.keys()
        held = held_of(store)
        assert held.key in store.objects
