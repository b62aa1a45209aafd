"""The copy of a manifest is lost: no new life is begun, and nothing that only the store has is."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from segments.disk import OsDisk
from segments.errors import LostCopyError
from segments.recovery.recovery import examine
from segments.store.manifest import decode_manifest, encode_manifest
from streamd.operations.errors import Refused
from streamd.operations.names import Name
from streamd.operations.tier_reports import TierState
from tests.broker.tier.support import (
    a_stream,
    bodies,
    manifest_of,
    manifests,
    passes,
    publish,
    report_of,
    stored,
    stored_bytes,
    tier_of,
    tiered,
)
from tests.broker.tier.test_fight import take_over
from tests.support.fake_store import FakeStore
from tests.support.server import Harness

HOST, S = Name("/"), Name("s")
END = 460  # messages, 400 of them are stored, and 300 only there


@pytest.fixture
async def copy(tmp_path: Path, store: FakeStore) -> Path:
    """That of a data folder of which the store has the first segments alone."""
    async with tiered(tmp_path, store) as server:
        await publish(await a_stream(server, "t"), 0, 12)
        peer = await stored(server, 7, stream_local_max_length_bytes="5000")
        (copy,) = tmp_path.rglob("s/manifest")
        older = copy.read_bytes()
        await publish(peer, 140, END // 20 - 7)
        await passes(5)
        log = server.host.find("s").log
        assert [one.base_offset for one in log.segments.shown if one.cold] == [0, 100, 200]
    (tmp_path / "older").write_bytes(older)
    return copy


async def _is_whole(server: Harness, store: FakeStore, end: int = END) -> None:
    """It has all messages, publishing goes on, and there is one life of it in the store."""
    async with server.host.find("s").opened() as log:
        assert (log.segments.first_offset, log.next_offset) == (0, end)
        assert [one.base_offset for one in log.segments.shown if one.cold] == [0, 100, 200]
    peer = await server.publisher("s", reference="p")
    await publish(peer, end, 5)
    await passes(700)
    (life,) = [one for one in manifests(store) if one.stream.stream == "s"]
    assert life.first_offset == 0
    content = stored_bytes(store, life)
    assert all(content.count(body) == 1 for body in bodies(0, life.next_offset))
    assert (await tier_of(server).collect(dry_run=True)).num_orphans == 0
    assert (await tier_of(server).verify(HOST, S)).num_faults == 0


def _remove(copy: Path) -> None:
    copy.unlink()


def _damage(copy: Path) -> None:
    copy.write_bytes(copy.read_bytes()[:-9])


def _empty(copy: Path) -> None:
    copy.write_bytes(b"")


def _of_another(copy: Path) -> None:
    copy.write_bytes((copy.parent.parent / "t" / "manifest").read_bytes())


def _older(copy: Path) -> None:
    """As after the first of four segments."""
    (older,) = (path for path in (folder / "older" for folder in copy.parents) if path.exists())
    assert [one.base_offset for one in decode_manifest(older.read_bytes()).segments] == [0]
    copy.write_bytes(older.read_bytes())


def _first(copy: Path) -> None:
    """As before anything was stored."""
    manifest = decode_manifest(copy.read_bytes())
    first = replace(manifest, revision=0, segments=(), tracking=None, next_offset=0)
    copy.write_bytes(encode_manifest(first))


@pytest.mark.parametrize("lose", [_remove, _damage, _empty, _of_another, _older, _first])
async def test_it_is_fetched(
    tmp_path: Path, store: FakeStore, copy: Path, lose: Callable[[Path], None]
) -> None:
    lose(copy)
    with pytest.raises(LostCopyError, match="fetches it from the tier"):
        examine(OsDisk(), str(copy.parent))
    async with tiered(tmp_path, store) as server:
        await _is_whole(server, store)
    assert decode_manifest(copy.read_bytes()) == manifest_of(store, "s")


@pytest.mark.parametrize("lose", [_remove, _of_another, _first])
async def test_while_the_store_is_away_nothing_is_done(
    tmp_path: Path, store: FakeStore, copy: Path, lose: Callable[[Path], None]
) -> None:
    """The log is as it was, nobody publishes at wrong offsets, and the files beside it stay."""
    lose(copy)
    before = {path: path.read_bytes() for path in copy.parent.iterdir()}
    store.fail(times=-1)
    async with tiered(tmp_path, store) as server:
        for _ in range(3):
            with pytest.raises(Refused, match=r"cannot be done: .*broke off") as refused:
                await server.host.find("s").ready()
            assert "in the tier alone" in refused.value.details
            report = report_of(server)
            assert report.sentence == refused.value.details
            await passes(6)
        assert {path: path.read_bytes() for path in copy.parent.iterdir()} == before
        store.heal()
        await passes(60)
        assert len(manifests(store)) == 2
        await _is_whole(server, store)


async def test_a_server_without_a_tier(tmp_path: Path, store: FakeStore, copy: Path) -> None:
    copy.unlink()
    async with tiered(tmp_path, store, tier="") as server:
        with pytest.raises(Refused, match="is missing"):
            await server.host.find("s").ready()
    async with tiered(tmp_path, store) as server:
        await _is_whole(server, store)


async def test_the_wrong_store(tmp_path: Path, copy: Path) -> None:
    copy.unlink()
    other = FakeStore()
    async with tiered(tmp_path, other) as server:
        with pytest.raises(Refused, match=r"expected the tier .* is it mounted"):
            await server.host.find("s").ready()
        await passes(60)
        assert not [one for one in manifests(other) if one.stream.stream == "s"]


async def test_nothing_was_stored_yet(tmp_path: Path, store: FakeStore) -> None:
    """All of it is here, so it is uploaded under the same id."""
    async with tiered(tmp_path, store) as server:
        store.fail(key=".segment", times=-1)
        await stored(server, 12)
    (copy,) = tmp_path.rglob("s/manifest")
    creation = decode_manifest(copy.read_bytes()).stream.creation
    copy.unlink()
    store.heal()
    async with tiered(tmp_path, store) as server:
        async with server.host.find("s").opened() as log:
            assert log.next_offset == 240
        await passes(60)
        assert manifest_of(store, "s").stream.creation == creation
        assert manifest_of(store, "s").next_offset == 200


async def test_another_server_has_the_tier(tmp_path: Path, store: FakeStore, copy: Path) -> None:
    copy.unlink()
    take_over(store)
    async with tiered(tmp_path, store) as server:
        with pytest.raises(Refused, match="cannot be done: another server"):
            await server.host.find("s").ready()
        assert tier_of(server).ownership.state is TierState.FENCED
    assert not copy.exists()


async def test_a_data_folder_that_is_behind(tmp_path: Path, store: FakeStore, copy: Path) -> None:
    """The store has more than the folder: what would be published gets offsets that are taken."""
    copy.unlink()
    for path in copy.parent.glob("*00400.*"):
        path.unlink()
    async with tiered(tmp_path, store) as server:
        with pytest.raises(Refused, match="up to offset 400, and no segment"):
            await server.host.find("s").ready()
    assert not copy.exists()


async def test_a_stream_without_its_copy_is_deleted(
    tmp_path: Path, store: FakeStore, copy: Path
) -> None:
    copy.unlink()
    async with tiered(tmp_path, store) as server:
        store.fail(times=-1)
        await server.host.delete("s", lambda: None)
        store.heal()
        await passes(60)
        assert [one.stream.stream for one in manifests(store)] == ["t"]
        assert not [key for key in store.objects if "/s~" in key]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"epoch": 99}, "another server has written"),
        ({"writer": "f" * 16, "epoch": 2}, "another server has written"),
        ({"is_deleted": True}, "it is deleted in the tier"),
    ],
)
async def test_a_manifest_that_is_not_taken(
    tmp_path: Path, store: FakeStore, copy: Path, change: dict[str, Any], says: str
) -> None:
    copy.unlink()
    manifest = replace(manifest_of(store, "s"), **change)
    kept = store.objects[manifest.stream.manifest]
    kept.content = encode_manifest(manifest)
    async with tiered(tmp_path, store) as server:
        with pytest.raises(Refused, match=says):
            await server.host.find("s").ready()
    assert not copy.exists()


async def test_what_is_left_of_a_segment_does_not_keep_it_closed(
    tmp_path: Path, store: FakeStore, copy: Path
) -> None:
    """Nobody has it: a crash has left its index, or somebody has deleted its file."""
    stray = copy.parent / f"{450:020}.index"
    stray.write_bytes((copy.parent / f"{300:020}.index").read_bytes())
    async with tiered(tmp_path, store) as server:
        await _is_whole(server, store)
    assert not stray.exists()


@pytest.mark.parametrize("settings", [{}, {"tier": ""}])
@pytest.mark.parametrize(
    "left",
    [
        {f"{END:020}.index": 8},  # it was killed before the segment behind it was created
        {f"{340:020}.begin": 0},  # a truncation that came to nothing
        {f"{340:020}.segment.tmp": 99, f"{340:020}.index": 37},  # or that was killed
    ],
)
async def test_what_is_left_of_no_cold_segment_needs_no_store(
    tmp_path: Path, store: FakeStore, copy: Path, left: dict[str, int], settings: dict[str, str]
) -> None:
    for name, size in left.items():
        (copy.parent / name).write_bytes(bytes(size))
    store.fail(times=-1)
    async with (
        tiered(tmp_path, store, **settings) as server,
        server.host.find("s").opened() as log,
    ):
        assert (log.segments.first_offset, log.next_offset) == (0, END)
