"""The end of streams in the store, orphans, and what is damaged there."""

import errno
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from segments import StorageError, at_offset
from segments.store.manifest import encode_manifest
from segments.store.object_names import StreamKey
from segments.store.object_store import TierError
from streamd.broker.tier.claims import begin_since
from streamd.broker.tier.deletions import Deletions
from streamd.operations.errors import Refused
from streamd.wire.stream import commands as c
from tests.broker.tier.support import (
    A_FRAME,
    a_stream,
    bodies,
    held_of,
    is_of_log,
    manifest_of,
    manifests,
    orphans,
    passes,
    publish,
    stored,
    tier_of,
    tiered,
)
from tests.support.fake_store import Call, FakeStore, Kept
from tests.support.server import OK, Harness

DAY_MS = 24 * 3_600_000


def of_streams(store: FakeStore) -> set[str]:
    return {key for key in store.objects if is_of_stream(key)}


def is_of_stream(key: str) -> bool:
    return "~" in key and not is_of_log(key)


class TestDeletion:
    @pytest.mark.parametrize("work", ["nothing", "a listing", "a full disk", "an upload"])
    async def test_everything_goes_whatever_is_at_work(
        self, store: FakeStore, server: Harness, monkeypatch: pytest.MonkeyPatch, work: str
    ) -> None:
        """Also what an old listing lacks, and its manifest names: nobody would look for that."""
        peer = await a_stream(server)
        if work == "a listing":
            store.freeze_listings()
        elif work == "an upload":
            store.fail(key=".segment", times=2, skip=2)
        await publish(peer, 0, 30)
        await passes(0.15 if work == "an upload" else 5)
        if work == "a full disk":
            full = StorageError("write", "f", OSError(errno.ENOSPC, "no space left"))
            monkeypatch.setattr(Deletions, "add", Mock(side_effect=full))
        number = len(store.calls)
        assert await peer.code(c.Delete, "s") == OK
        await passes(30 if work == "an upload" else 5)
        assert not of_streams(store)
        assert not list(server.data.glob("tier-deletions/*"))
        if work == "nothing":  # the manifest says it first, and goes last
            calls = [call for call in store.calls[number:] if "~" in call.key]
            changes = [call.key for call in calls if call.name in ("replace", "delete")]
            assert changes[0].endswith("/manifest")
            assert changes[-1].endswith("/manifest")

    async def test_one_of_the_same_name_shares_nothing_with_it(
        self, store: FakeStore, server: Harness
    ) -> None:
        peer = await stored(server)
        old = manifest_of(store, "s").stream
        store.fail(name="delete", times=40)
        assert await peer.code(c.Delete, "s") == OK
        peer = await a_stream(server)
        await publish(peer, 0, 20)
        await passes(3)
        new = manifest_of(store, "s").stream
        assert new.creation > old.creation
        assert any(key.startswith(old.folder) for key in store.objects)
        store.heal()
        await passes(60)
        assert not any(key.startswith(old.folder) for key in store.objects)
        assert manifest_of(store, "s").next_offset == 300
        assert not orphans(store)

    async def test_while_the_store_is_away_and_over_a_restart(self, tmp_path: Path) -> None:
        store = FakeStore()
        async with tiered(tmp_path, store) as server:
            peer = await stored(server)
            await passes(120)  # its log is closed
            store.fail(times=-1)
            assert await peer.code(c.Delete, "s") == OK
            await passes(100)
        async with tiered(tmp_path, store):
            await passes(100)
            assert of_streams(store)
            store.heal()
            await passes(100)
            assert not of_streams(store)

    async def test_of_a_server_that_is_killed_as_it_answers(
        self, tmp_path: Path, store: FakeStore, server: Harness
    ) -> None:
        """The catalog does not know the stream any more, the folder for deletions does."""
        killed = FakeStore()

        def answer() -> None:
            shutil.copytree(server.data, tmp_path / "left")
            killed.objects.update(store.objects)

        await stored(server)
        await server.host.delete("s", answer)
        assert of_streams(killed)
        async with tiered(tmp_path / "left", killed):
            await passes(60)
        assert not of_streams(killed)

    async def test_one_that_fails_keeps_no_other_waiting(
        self, store: FakeStore, server: Harness
    ) -> None:
        for name in ("bad", "good"):
            await stored(server, 30, name)
        store.fail(name="delete", key="/bad~", times=-1)
        peer = await server.peer()
        for name in ("bad", "good"):
            assert await peer.code(c.Delete, name) == OK
        await passes(100)
        left = of_streams(store)
        assert left
        assert all("/bad~" in key for key in left)
        store.heal()
        await passes(100)
        assert not of_streams(store)

    async def test_of_a_virtual_host(self, store: FakeStore, server: Harness) -> None:
        await stored(server)
        assert of_streams(store)
        broker = server.server.broker
        async with broker.catalog.turn() as turn:
            await broker.remove_virtual_host(turn, server.host.name)
        await passes(5)
        assert not of_streams(store)


class TestOrphans:
    async def test_only_what_nobody_is_about_to_name_goes(self, tmp_path: Path) -> None:
        store = FakeStore()
        async with tiered(tmp_path, store):
            pass
        async with tiered(tmp_path, store) as server:
            await stored(server)
            tier = tier_of(server)
            assert tier.ownership.identity.epoch == 2
            whole = set(store.objects)
            stream = manifest_of(store, "s").stream
            now_ms = tier.now_ms()

            def put(epoch: int, age_ms: int, stream: StreamKey = stream) -> str:
                key = stream.object(7, epoch, f"{epoch:08x}{age_ms:08x}"[-16:], ".segment")
                store.objects[key] = Kept(b"12345", "etag", now_ms - age_ms)
                return key

            earlier, young, old = put(1, 5), put(2, 5), put(2, DAY_MS + 5)
            gone = StreamKey("/", "other", "0" * 20)
            no_manifest = put(1, 5, gone)
            foreign = f"{stream.folder}/notes.txt"
            store.objects[foreign] = Kept(b"x", "etag", 0)
            found = await tier.collect(dry_run=True)
            assert {one.key for one in found.orphans} == {earlier, old, no_manifest}
            assert (found.num_orphans, found.num_bytes, found.is_removed) == (3, 15, False)
            assert await tier.collect(dry_run=False)
            assert set(store.objects) == whole | {young, foreign}

    async def test_what_is_named_between_listing_and_deleting_stays(
        self, store: FakeStore, server: Harness
    ) -> None:
        await stored(server)
        store.now_ms -= 2 * DAY_MS  # all objects look old
        manifest = manifest_of(store, "s")
        key = manifest.stream.manifest
        before, listed = store.objects[key], []

        def hook(call: Call) -> None:
            if call.name == "listing" and call.key == manifest.stream.folder and not listed:
                listed.append(call)
                store.objects[key] = before

        fewer = replace(manifest, segments=manifest.segments[:1])
        store.objects[key] = Kept(encode_manifest(fewer), before.etag, 0)
        store.after = hook
        await tier_of(server).collect(dry_run=False)
        assert manifest.keys() <= set(store.objects)

    async def test_of_an_upload_that_ends_after_the_manifest_was_read(
        self, store: FakeStore, server: Harness
    ) -> None:
        """Its objects look old, because the clock has jumped, say."""
        await stored(server)
        manifest = manifest_of(store, "s")
        store.now_ms -= 2 * DAY_MS
        for kept in store.objects.values():
            kept.modified_ms -= 2 * DAY_MS
        tier, key = tier_of(server), manifest.stream.manifest
        last = manifest.segments[-1]
        fewer = encode_manifest(replace(manifest, segments=manifest.segments[:-1]))
        now = store.objects[key]
        store.objects[key] = Kept(fewer, "before", 0)
        in_work = {last.key(manifest.stream, suffix) for suffix in last.files}
        tier._in_work = lambda: set(in_work)  # type: ignore[method-assign]

        def named(call: Call) -> None:
            if call.name == "get" and call.key == key:
                store.objects[key] = now
                in_work.clear()

        store.after = named
        await tier.collect(dry_run=False)
        assert manifest.keys() <= set(store.objects)

    async def test_what_is_left_of_a_stream_that_never_had_a_manifest(self, tmp_path: Path) -> None:
        """Its first upload was cut off, and its messages were trimmed before the next one."""
        store = FakeStore()
        async with tiered(tmp_path, store) as server:
            store.fail(key=".index", times=-1)
            await stored(server)
            await server.host.find("s").truncate(at_offset(600))
            await passes(5)
        left = [key for key in store.objects if key.endswith(".segment")]
        store.heal()
        async with tiered(tmp_path, store) as server:
            await server.host.find("s").ready()
            await passes(5)
            assert not manifests(store)
            await tier_of(server).collect(dry_run=False)
            assert left
            assert not store.objects.keys() & set(left)

    async def test_a_stream_whose_manifest_comes_back_as_it_was_long_ago(
        self, store: FakeStore, server: Harness
    ) -> None:
        await stored(server)
        tier = tier_of(server)
        manifest = manifest_of(store, "s")
        old = encode_manifest(replace(manifest, epoch=0))
        store.objects[manifest.stream.manifest].content = old
        held = held_of(store)
        begin_since(store, held, tier.ownership.identity._replace(epoch=1))
        await tier.collect(dry_run=False)
        assert manifest.keys() <= set(store.objects)

    async def test_a_manifest_in_the_folder_of_another_stream(
        self, store: FakeStore, server: Harness
    ) -> None:
        """As somebody leaves it who copies folders."""
        await stored(server)
        manifest = manifest_of(store, "s")
        deleted = encode_manifest(replace(manifest, is_deleted=True))
        copied = StreamKey("/", "copy", "1" * 20)
        store.objects[copied.manifest] = Kept(deleted, "e", 0)
        await tier_of(server).collect(dry_run=False)
        assert manifest.keys() <= set(store.objects)

    async def test_of_an_upload_that_takes_days(self, store: FakeStore, server: Harness) -> None:
        peer = await a_stream(server)
        store.fail(name="create", key="/manifest", times=-1)
        store.now_ms -= 2 * DAY_MS
        await publish(peer, 0, 6)
        await passes(5)
        assert of_streams(store)
        found = await tier_of(server).collect(dry_run=False)
        assert not found.num_orphans
        store.heal()
        await passes(60)
        manifest = manifest_of(store, "s")
        assert manifest.keys() <= set(store.objects)

    async def test_of_an_earlier_life_of_a_stream(self, store: FakeStore, server: Harness) -> None:
        peer = await stored(server)
        old = {key: kept for key, kept in store.objects.items() if is_of_stream(key)}
        assert await peer.code(c.Delete, "s") == OK
        await stored(server)
        new = of_streams(store)
        store.objects |= old
        found = await tier_of(server).collect(dry_run=False)
        assert found.num_orphans == len(old)
        assert of_streams(store) == new

    async def test_not_while_the_store_is_away(self, store: FakeStore, server: Harness) -> None:
        await passes(1)
        store.fail(times=-1)
        with pytest.raises(TierError):
            await tier_of(server).collect(dry_run=True)


class TestVerify:
    async def test_what_is_wrong_is_told(self, store: FakeStore, server: Harness) -> None:
        await stored(server)
        tier, host = tier_of(server), server.host.name
        name = server.host.find("s").name
        manifest = manifest_of(store, "s")
        found = await tier.verify(host, name)
        assert not found.faults
        assert found.num_objects == len(manifest.keys()) + 1
        assert found.num_bytes == sum(len(store.objects[k].content) for k in of_streams(store))
        flipped, cut, missing = (
            manifest.segments[n].key(manifest.stream, ".segment") for n in range(3)
        )
        store.flip(flipped, 100)
        store.shorten(cut, 99)
        del store.objects[missing]
        found = await tier.verify(host, name)
        assert {fault.key: fault.sentence for fault in found.faults} == {
            flipped: "its checksum is wrong",
            cut: "it has 99 bytes, expected 2303",
            missing: "it is not there",
        }
        store.flip(manifest.stream.manifest, 50)
        found = await tier.verify(host, name)
        assert [fault.key for fault in found.faults] == [manifest.stream.manifest]

    async def test_of_a_stream_that_is_not_there(self, server: Harness) -> None:
        await a_stream(server)
        name = server.host.find("s").name
        with pytest.raises(Refused, match="not in the tier"):
            await tier_of(server).verify(server.host.name, name)


async def test_a_manifest_that_is_not_of_this_log(tmp_path: Path, store: FakeStore) -> None:
    """The data folder is from a backup: it has not what the tier has."""
    async with tiered(tmp_path / "a", store) as server:
        await stored(server, 6)
    shutil.copytree(tmp_path / "a", tmp_path / "backup")
    async with tiered(tmp_path / "a", store) as server:
        peer = await server.publisher("s", reference="p")
        await publish(peer, 6 * A_FRAME, 20)
        await passes(5)
    before = set(store.objects)
    async with tiered(tmp_path / "backup", store) as server:
        await passes(30)
        alarm = server.host.alarms()["s"]
        assert "the tier has messages up to offset 500, the data folder only up to 120" in alarm
        reader = await server.consumer("s", credit=100)
        assert await reader.bodies(120) == bodies(0, 120)
        await passes(100)
        assert {key for key in before if is_of_stream(key)} == of_streams(store)
    assert manifests(store)[0].next_offset == 500
