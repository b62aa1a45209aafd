"""What is in doubt is not removed from the store, and what goes by itself is no fault."""

import shutil
from pathlib import Path

import pytest

from segments.store.local_copy import MANIFEST_FILE
from segments.store.manifest import Manifest
from segments.store.object_names import LOG_FOLDER
from streamd.broker.tier.deletions import Deletions
from streamd.operations.errors import Refused
from streamd.operations.names import Name, stream_folder
from tests.broker.tier.support import (
    A_FRAME,
    a_stream,
    manifest_of,
    manifests,
    passes,
    publish,
    stored,
    tier_of,
    tiered,
)
from tests.support.fake_store import Call, FakeStore
from tests.support.server import Harness

HOST, S = Name("/"), Name("s")


def _is_whole(store: FakeStore, manifest: Manifest) -> bool:
    return manifest in manifests(store) and manifest.keys() <= store.objects.keys()


async def test_a_stream_whose_deletion_was_not_finished_stays_when_its_folder_is_damaged(
    tmp_path: Path, store: FakeStore
) -> None:
    """The server was killed when the deletion was written down, and before the catalog knew."""
    async with tiered(tmp_path, store) as server:
        await stored(server, 20)
    manifest = manifest_of(store, "s")
    Deletions(str(tmp_path)).add(0, streams=[manifest.stream])
    path = Path(stream_folder(str(tmp_path), HOST, S), MANIFEST_FILE)
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    async with tiered(tmp_path, store):
        await passes(100)
    assert _is_whole(store, manifest)
    path.write_bytes(content)
    async with tiered(tmp_path, store) as server:
        await passes(100)
        async with server.host.find("s").opened() as log:
            assert log.next_offset == 400
    assert _is_whole(store, manifest_of(store, "s"))


async def test_streams_that_an_older_backup_does_not_know_stay(
    tmp_path: Path, store: FakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    async with tiered(tmp_path / "a", store):
        await passes(5)
    shutil.copytree(tmp_path / "a", tmp_path / "backup")
    async with tiered(tmp_path / "a", store) as server:
        await passes(5)
        store.fail(name="create", key=LOG_FOLDER, times=-1)
        await stored(server, 20)
    store.heal()
    manifest = manifest_of(store, "s")
    async with tiered(tmp_path / "backup", store) as server:
        await passes(5)
        assert not (await tier_of(server).collect(dry_run=False)).num_orphans
    assert _is_whole(store, manifest)
    assert "stream s is in the tier but not in the catalog" in caplog.text


async def test_nothing_is_verified_where_nothing_is_stored(
    store: FakeStore, server: Harness
) -> None:
    store.fail(key=".segment", times=-1)
    await stored(server, 20)
    with pytest.raises(Refused, match="nothing of s is in the tier yet"):
        await tier_of(server).verify(HOST, S)


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("is_missing", [True, False])
async def test_what_an_older_manifest_does_not_name_stays(
    tmp_path: Path, store: FakeStore, *, is_open: bool, is_missing: bool
) -> None:
    """Not all of the store is there, as while a bucket is restored."""
    async with tiered(tmp_path, store) as server:
        peer = await a_stream(server)
        await publish(peer, 0, 2)
        await tier_of(server).upload(HOST, [S], 60)
        key = f"{manifest_of(store, 's').stream.folder}/manifest"
        older = store.objects[key]
        if not is_missing:
            await publish(peer, 2 * A_FRAME, 20)
            await passes(5)
    manifest, newer = manifest_of(store, "s"), store.objects[key]
    assert (len(manifest.segments) == 1) == is_missing
    async with tiered(tmp_path, store) as server:
        await passes(5)
        if is_open:
            async with server.host.find("s").opened():
                await passes(5)
        store.objects[key] = older
        if is_missing:
            del store.objects[key]
        await tier_of(server).collect(dry_run=False)
        store.objects[key] = newer
    assert _is_whole(store, manifest)


@pytest.mark.parametrize("step", ["listing", "get_range"])
async def test_what_retention_removes_meanwhile_is_no_fault(tmp_path: Path, step: str) -> None:
    store, later = FakeStore(), FakeStore()
    async with tiered(tmp_path, store) as server:
        await stored(server, 20)
        whole = dict(store.objects)
        await server.host.settings.set_arguments("s", [("max-length-bytes", "3000")])
        await server.host.expire()
        await passes(5)
        later.objects = store.objects
        gone = set(whole) - set(later.objects)
        assert gone
        store.objects = whole

        def change(call: Call) -> None:
            if call.name == step and (step == "listing" or call.key in gone):
                store.objects = later.objects

        store.before = change
        found = await tier_of(server).verify(HOST, S)
        assert store.objects is later.objects
        assert not found.faults
        del store.objects[next(iter(manifest_of(store, "s").keys()))]
        assert (await tier_of(server).verify(HOST, S)).num_faults == 1
