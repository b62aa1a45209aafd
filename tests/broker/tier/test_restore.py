"""A new machine makes its data folder of what the store has."""

import errno
import itertools
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trio
from hypothesis import given, strategies

from segments.checksum import crc32
from segments.disk import OsDisk
from segments.errors import StorageError
from segments.gaps import RESTORE_GAP
from segments.journal import journal_of
from segments.store.lookup import by_stream, read_folder
from segments.store.manifest import Manifest, StoredFile, StoredTracking, encode_manifest
from segments.store.object_names import SNAPSHOT_FOLDER, StreamKey, names_in
from segments.store.object_store import ConflictError, DeniedError
from segments.tracking import Tracking
from streamd.broker.tier import restore as restoring
from streamd.broker.tier.claims import FencedError, claim, look
from streamd.broker.tier.identity import Identity
from streamd.operations.errors import Refused
from streamd.server import StartError
from tests.broker.tier.support import held_of, tiered
from tests.support.fake_store import Call, FakeStore, Kept, late_answers
from tests.support.server import Harness, fails_to_start, harness, with_peer
from tests.support.tier_upload import upload_catalog, upload_snapshot, upload_stream

TIER = {"tier": "s3://bucket/tier"}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FakeStore:
    """The store that servers open."""
    made = FakeStore()
    monkeypatch.setattr("segments.store.stores.open_store", lambda _url, _endpoint="": made)
    return made


async def _old_machine(folder: Path, store: FakeStore, names: tuple[str, ...] = ("s",)) -> None:
    """Publishes to streams; all of it is in the store then, and the machine is gone."""
    async with with_peer(folder) as (_, peer):
        for number, name in enumerate(names):
            await peer.begin(name, number + 1, reference="pub", max_age="7D")
            await peer.store([b"%d" % n for n in range(10)], 1, number + 1)
    for name in names:
        upload_stream(store, folder, name)
    upload_catalog(store, folder)


async def _restored(folder: Path) -> None:
    async with harness(folder, restore=True, **TIER):
        pass


async def _contents(folder: Path, **options: Any) -> dict[str, tuple[int, int]]:
    """Of each stream the first offset and the one behind its last; of one not available -1."""
    found = {}
    async with harness(folder, **TIER, **options) as server:
        for name in server.host.names():
            try:
                async with server.host.find(name).opened() as log:
                    found[name] = (
                        log.segments.first_offset,
                        log.segments.gaps.before(log.next_offset),
                    )
            except Refused:
                found[name] = (-1, -1)
    return found


async def test_a_new_machine_has_all_streams_and_goes_on(tmp_path: Path, store: FakeStore) -> None:
    await _old_machine(tmp_path / "old", store, ("s", "t"))
    async with harness(tmp_path / "new", restore=True, **TIER) as server:
        assert server.host.names() == ["s", "t"]
        assert server.host.row("s").arguments["max-age"].seconds == 7 * 86_400
        peer = await server.publisher("s", 1, "pub")
        await peer.store([b"10", b"11"], 11)  # behind what is stored
        await peer.publish([b"again"], 3)  # what was stored before is not stored again
        assert await peer.confirmed(1) == [3]
        async with server.host.find("s").opened() as log:
            assert (log.segments.first_offset, log.next_offset) == (0, 12 + RESTORE_GAP)
            assert log.segments.shown[0].cold is not None
            assert log.epoch > 1
    async with harness(tmp_path / "new", **TIER) as server:  # and the next time as any other
        assert server.host.names() == ["s", "t"]


async def test_of_two_machines_that_are_lost_each_goes_on_elsewhere(
    tmp_path: Path, store: FakeStore
) -> None:
    """What each was sent behind the end was read, and never stored."""
    await _old_machine(tmp_path / "old", store)
    begins = []
    for number in range(3):
        async with with_peer(tmp_path / f"{number}", restore=True, **TIER) as (server, peer):
            await peer.declare("s", 1)
            await peer.store([b"%d" % number], 1)
            async with server.host.find("s").opened() as log:
                begins.append(log.next_offset - 1)
    assert begins == [10 + (number + 1) * RESTORE_GAP for number in range(3)]


async def test_streams_without_a_manifest_are_there_and_empty(
    tmp_path: Path, store: FakeStore
) -> None:
    """What they had was read; others get other offsets, on each machine."""
    await _old_machine(tmp_path / "old", store, ("s", "unstored"))
    for key in [key for key in store.objects if "unstored" in key]:
        del store.objects[key]
    begins = []
    for number in range(2):
        folder = tmp_path / f"new{number}"
        async with harness(folder, restore=True, **TIER) as server:
            assert server.host.names() == ["s", "unstored"]
            async with server.host.find("unstored").opened() as log:
                assert log.segments.num_lost == 0
                begins.append(log.next_offset)
            peer = await server.publisher("unstored", 1)
            await peer.store([b"new"], 1)
        async with (
            harness(folder, **TIER) as server,
            server.host.find("unstored").opened() as log,
        ):
            assert (log.segments.first_offset, log.next_offset) == (begins[-1], begins[-1] + 1)
    epochs = [begin / RESTORE_GAP for begin in begins]
    assert epochs[0] == 2
    assert epochs[1] in (4, 5)  # a start more, if that had the time to take the tier


async def test_streams_that_the_catalog_does_not_know_are_there(
    tmp_path: Path, store: FakeStore
) -> None:
    async with harness(tmp_path / "empty"):
        pass
    await _old_machine(tmp_path / "old", store)
    manifest = _manifest(store, "s")
    upload_catalog(store, tmp_path / "empty")
    _replace(store, manifest, arguments={"max-age": "7D"}, settings={"max-length-bytes": 5_000_000})
    async with harness(tmp_path / "new", restore=True, **TIER) as server:
        row = server.host.row("s")
        assert row.arguments["max-age"].seconds == 7 * 86_400  # type: ignore[union-attr]
        assert row.settings == {"max-length-bytes": 5_000_000}
    assert await _contents(tmp_path / "new") == {"s": (0, 10)}


async def test_so_are_their_virtual_hosts(tmp_path: Path, store: FakeStore) -> None:
    await _old_machine(tmp_path / "old", store)
    manifest = _manifest(store, "s")
    elsewhere = StreamKey("elsewhere", "t", manifest.stream.creation)
    _put(store, Manifest(stream=elsewhere, revision=1, epoch=1, writer="w", next_offset=5))
    async with harness(tmp_path / "new", restore=True, **TIER) as server:
        stream = server.server.broker.virtual_hosts["elsewhere"].find("t")
        async with stream.opened() as log:  # all of it has outlived its limits
            assert log.segments.first_offset == log.next_offset == 5 + RESTORE_GAP


async def test_the_stream_that_was_created_last_counts(tmp_path: Path, store: FakeStore) -> None:
    await _old_machine(tmp_path / "old", store)
    manifest = _manifest(store, "s")
    later = manifest.stream._replace(creation="00000002")
    last = manifest.stream._replace(creation="00000003")
    _put(store, Manifest(stream=later, revision=1, epoch=1, writer="w", next_offset=77))
    _put(store, Manifest(stream=last, revision=1, epoch=1, writer="w", is_deleted=True))
    assert await _contents(tmp_path / "new", restore=True) == {"s": (77 + RESTORE_GAP, 77)}


async def test_a_deleted_stream_stays_away(tmp_path: Path, store: FakeStore) -> None:
    await _old_machine(tmp_path / "old", store, ("s", "t"))
    _replace(store, _manifest(store, "s"), is_deleted=True)
    found = await _contents(tmp_path / "new", restore=True)
    assert found["t"] == (0, 10)
    assert found["s"] == (2 * RESTORE_GAP, 0)  # the catalog has it yet: nothing is left in it


async def test_stored_offsets_and_sequences_are_those_of_the_store(
    tmp_path: Path, store: FakeStore
) -> None:
    async with with_peer(tmp_path / "old") as (server, peer):
        await peer.begin("s", 1, reference="pub")
        await peer.store([b"a", b"b"], 41)
        await server.host.find("s").set_offset("reader", 1)
    upload_stream(store, tmp_path / "old", "s")
    upload_catalog(store, tmp_path / "old")
    await _restored(tmp_path / "new")
    async with (
        harness(tmp_path / "new", **TIER) as server,
        server.host.find("s").opened() as log,
    ):
        assert log.journal.tracking.offset(b"reader") == 1
        assert log.journal.tracking.sequence(b"pub") == 42


async def test_sequences_of_messages_that_are_not_stored_are_not_believed(
    tmp_path: Path, store: FakeStore
) -> None:
    await _old_machine(tmp_path / "old", store)
    tracking = Tracking()
    tracking.set_sequences(3, [(b"early", 5)])
    tracking.set_sequences(20, [(b"late", 9)])
    manifest = _manifest(store, "s")
    _put_tracking(store, manifest, journal_of(tracking, 25))
    async with (
        harness(tmp_path / "new", restore=True, **TIER) as server,
        server.host.find("s").opened() as log,
    ):
        assert log.journal.tracking.sequence(b"early") == 5
        assert log.journal.tracking.sequence(b"late") is None


async def test_index_files_come_by_themselves(tmp_path: Path, store: FakeStore) -> None:
    await _old_machine(tmp_path / "old", store, ("s", "t"))
    store.fail(key=".index", times=1)
    async with tiered(tmp_path / "new", store, restore=True) as server:
        async with server.host.find("s").opened() as log:
            suffixes = {
                path.suffix for path in Path(log.folder).iterdir() if path.name.startswith("0" * 20)
            }
            assert suffixes == set()
        await trio.sleep(30)
        for name in ("s", "t"):
            folder = Path(server.host.folder(name))
            assert {".index", ".filter"} <= {path.suffix for path in folder.glob("0" * 20 + ".*")}
        assert store.count("get_range", "%2F") == 0  # nothing else was fetched
        assert store.count("get", ".index") == 3
    before = store.count("get", ".index")
    async with tiered(tmp_path / "new", store):
        await trio.sleep(30)
    assert store.count("get", ".index") == before


# -- what is wrong with the store


async def test_what_is_damaged_costs_its_stream_alone(tmp_path: Path, store: FakeStore) -> None:
    names = ("flipped", "future", "good", "moved", "no-tracking", "short-tracking")
    await _old_machine(tmp_path / "old", store, names)
    store.flip(_key(store, "/flipped~", "manifest"), 300)
    kept = store.objects[_key(store, "/future~", "manifest")]
    kept.content = kept.content.replace(b'"version":1', b'"version":9')
    moved, good = (_key(store, f"/{name}~", "manifest") for name in ("moved", "good"))
    store.objects[moved].content = store.objects[good].content
    del store.objects[_key(store, "/no-tracking~", ".tracking")]
    store.shorten(_key(store, "/short-tracking~", ".tracking"), 20)
    bad = dict.fromkeys(names, (-1, -1)) | {"good": (0, 10)}
    assert await _contents(tmp_path / "new", restore=True) == bad
    assert await _contents(tmp_path / "new") == bad  # a restart does not change that
    async with harness(tmp_path / "new", **TIER) as server:
        for name, told in (
            ("flipped", "its checksum is wrong"),
            ("future", "its version is 9, expected 1"),
            ("moved", "it is of stream good in /"),
            ("no-tracking", "it is not there"),
            ("short-tracking", "it has 20 bytes, expected "),
        ):
            with pytest.raises(Refused, match=told):
                await server.host.find(name).ready()
            await server.host.delete(name, lambda: None)  # an operator gives it up
        assert server.host.names() == ["good"]


@pytest.mark.parametrize("suffix", ["manifest", ".tracking"])
@pytest.mark.parametrize("restarts", [False, True])
async def test_what_could_not_be_restored_is_there_when_its_object_is(
    tmp_path: Path, store: FakeStore, suffix: str, restarts: bool
) -> None:
    await _old_machine(tmp_path / "old", store)
    key = _key(store, "/s~", suffix)
    kept = store.objects[key]
    store.objects[key] = Kept(kept.content[:-20], kept.etag, kept.modified_ms)
    async with harness(tmp_path / "new", restore=True, **TIER) as server:
        with pytest.raises(Refused, match=r"it could not be restored|cannot be used"):
            await server.host.find("s").ready()
        if not restarts:
            await _comes_back(server, store, key, kept)
    if restarts:
        async with harness(tmp_path / "new", **TIER) as server:
            with pytest.raises(Refused, match="cannot be used"):
                await server.host.find("s").ready()
            await _comes_back(server, store, key, kept)
    # One for the restore, and for each server, that has written the manifest.
    gaps = 1 if suffix == "manifest" else 2 + restarts
    assert await _contents(tmp_path / "new") == {"s": (0, 11 + gaps * RESTORE_GAP)}


async def _comes_back(server: Harness, store: FakeStore, key: str, kept: Kept) -> None:
    await trio.sleep(100)
    store.objects[key] = kept
    await trio.sleep(10)
    async with server.host.find("s").opened() as log:
        assert (log.segments.first_offset, log.segments.gaps.before(log.next_offset)) == (0, 10)
    peer = await server.publisher("s")
    await peer.store([b"more"])


async def test_a_manifest_that_is_not_there_and_was(tmp_path: Path, store: FakeStore) -> None:
    """The stream is not started again; what others have in the store goes on to count."""
    await _old_machine(tmp_path / "old", store)
    key = _key(store, "/s~", "manifest")
    for name, offset in ((".segment", 0), (".segment", 5)):
        store.put(key.replace("manifest", f"{offset:020d}.1.{'a' * 16}{name}"), b"")
    kept = store.objects.pop(key)
    async with harness(tmp_path / "new", restore=True, **TIER) as server:
        with pytest.raises(Refused, match="is all of the tier there"):
            await server.host.find("s").ready()
        await _comes_back(server, store, key, kept)


async def test_an_older_copy_of_the_catalog_is_better_than_none(
    tmp_path: Path, store: FakeStore
) -> None:
    await _old_machine(tmp_path / "old", store)
    key = upload_snapshot(store, tmp_path / "old")
    store.flip(key, 900)
    assert await _contents(tmp_path / "a", restore=True) == {"s": (0, 10)}
    for key in [key for key in store.objects if key.startswith(SNAPSHOT_FOLDER)]:
        del store.objects[key]
    with pytest.raises(StartError, match="cannot be used"):
        await _contents(tmp_path / "b", restore=True)


async def test_a_catalog_of_a_later_version_is_left_alone(tmp_path: Path, store: FakeStore) -> None:
    await _old_machine(tmp_path / "old", store)
    upload_catalog(store, tmp_path / "old", user_version=99)
    await fails_to_start(
        tmp_path / "new", "has version 99, this program knows", restore=True, **TIER
    )


async def test_there_must_be_something_to_restore(tmp_path: Path, store: FakeStore) -> None:
    await fails_to_start(
        tmp_path, "there is nothing in the tier fake://store to restore", restore=True, **TIER
    )
    assert not store.objects
    async with harness(tmp_path, **TIER):  # nothing was done
        pass


async def test_a_folder_that_is_used_is_refused(tmp_path: Path, store: FakeStore) -> None:
    await _old_machine(tmp_path / "old", store)
    before = look(store)
    await fails_to_start(
        tmp_path / "old", "it has a catalog; start without --restore", restore=True, **TIER
    )
    (tmp_path / "b" / "streams" / "x" / "y").mkdir(parents=True)
    await fails_to_start(
        tmp_path / "b", "it has streams; start without --restore", restore=True, **TIER
    )
    assert look(store) == before


async def test_a_store_that_is_away_is_waited_for(tmp_path: Path, store: FakeStore) -> None:
    await _old_machine(tmp_path / "old", store, ("s", "t"))
    store.fail(times=12)
    store.fail(name="replace", after=True, times=3)  # whose answers are lost
    store.conflict(name="replace", skip=4)
    assert await _contents(tmp_path / "new", restore=True) == {"s": (0, 10), "t": (0, 10)}


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (None, r"cannot restore the data folder .* connection broke off"),  # in the end
        (DeniedError("fake://store does not let us in: 403"), "does not let us in"),  # at once
    ],
)
async def test_but_not_for_ever(
    tmp_path: Path, store: FakeStore, error: Exception | None, why: str
) -> None:
    await _old_machine(tmp_path / "old", store)
    store.fail(error, times=-1)
    await fails_to_start(tmp_path / "new", why, restore=True, **TIER)


# -- the end at any point


class _Killed(BaseException):
    """The process ends here."""


async def test_a_restore_that_ends_at_any_call_can_be_begun_again(
    tmp_path: Path, store: FakeStore
) -> None:
    """With the store: before and after each call."""
    await _old_machine(tmp_path / "old", store, ("s", "t"))
    before = store.count()
    await _restored(tmp_path / "whole")
    number = store.count() - before
    assert number > 8
    for at in range(number):
        for after in (False, True):
            folder = tmp_path / f"{at}-{after}"
            store.fail(_Killed, skip=at, after=after)
            assert "_Killed" in repr(await _failure(folder))
            store.heal()
            if at:
                await fails_to_start(folder, "was interrupted: begin it again with --rest", **TIER)
            assert await _contents(folder, restore=True) == {"s": (0, 10), "t": (0, 10)}


async def test_nor_does_it_matter_at_which_write(
    tmp_path: Path, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the disk, which is full at each file in turn."""
    await _old_machine(tmp_path / "old", store, ("s", "t"))
    for number in itertools.count(0):
        folder = tmp_path / f"{number}"
        with monkeypatch.context() as patch:
            room = [None] * number
            patch.setattr(restoring, "OsDisk", lambda room=room: _FullDisk(room))
            failure = await _failure(folder)
        if failure is None:
            break
        assert "No space left" in str(failure)
        if number:
            await fails_to_start(folder, "was interrupted", **TIER)
        assert await _contents(folder, restore=True) == {"s": (0, 10), "t": (0, 10)}
    assert number > 3


async def test_all_that_was_made_is_on_the_device_before_it_is_used(
    tmp_path: Path, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the note of a stream of which the store has nothing."""
    await _old_machine(tmp_path / "old", store, ("s", "unstored"))
    for key in [key for key in store.objects if "unstored" in key]:
        del store.objects[key]
    _SyncedDisk.unsynced.clear()
    _SyncedDisk.at_the_end.clear()
    monkeypatch.setattr(restoring, "OsDisk", _SyncedDisk)
    await _restored(tmp_path / "new")
    assert _SyncedDisk.at_the_end == [set()]


class _SyncedDisk(OsDisk):
    """Knows in which folders names were made and not synced."""

    unsynced: ClassVar[set[str]] = set()
    at_the_end: ClassVar[list[set[str]]] = []

    def create(self, path: str) -> Any:
        self.unsynced.add(str(Path(path).parent))
        return super().create(path)

    def rename(self, old: str, new: str) -> None:
        self.unsynced.add(str(Path(new).parent))
        super().rename(old, new)

    def sync_folder(self, folder: str) -> None:
        super().sync_folder(folder)
        self.unsynced.discard(folder)

    def remove(self, path: str) -> None:
        if Path(path).name == restoring.RESTORING:
            self.at_the_end.append(set(self.unsynced))
        super().remove(path)


class _FullDisk(OsDisk):
    """Has room for some files."""

    def __init__(self, room: list[None]) -> None:
        self._room = room

    def create(self, path: str) -> Any:
        if not self._room:
            raise StorageError("create", path, OSError(errno.ENOSPC, "No space left"))
        self._room.pop()
        return super().create(path)


async def _failure(folder: Path) -> BaseException | None:
    """What a restore ends with."""
    try:
        await _restored(folder)
    except BaseException as error:  # noqa: BLE001 - to be looked at
        return error
    return None


# -- more than one machine


async def test_the_old_machine_can_change_nothing_any_more(
    tmp_path: Path, store: FakeStore
) -> None:
    await _old_machine(tmp_path / "old", store)
    key = _key(store, "/s~", "manifest")
    old, etag = _manifest(store, "s"), store.get(key).etag
    await _restored(tmp_path / "new")
    new = _manifest(store, "s")
    assert (new.epoch, new.revision) == (old.epoch + 1, old.revision + 1)
    assert new.segments == old.segments
    assert new.writer != old.writer
    with pytest.raises(ConflictError):
        store.replace(key, b"", etag)
    with pytest.raises(FencedError):
        claim(store, Identity(old.writer, 1, "f" * 16))


async def test_of_two_restores_at_the_same_time_one_wins(tmp_path: Path, store: FakeStore) -> None:
    """The second begins, and ends, at each call of the first."""
    await _old_machine(tmp_path / "old", store, ("s", "t"))
    before = store.count()
    await _restored(tmp_path / "whole")
    number = store.count() - before
    for at in range(number):
        first, second = (tmp_path / f"{at}{which}" for which in "ab")
        store.before = _Overtaker(store, at)
        failure = await _failure(first)
        store.before = lambda _call: None
        if failure is not None:
            assert "has taken over the tier" in str(failure)
        if at and failure is not None:
            await fails_to_start(first, "was interrupted", **TIER)
        assert await _contents(second, restore=True) == {"s": (0, 10), "t": (0, 10)}


class _Overtaker:
    """Takes the tier over before a call."""

    def __init__(self, store: FakeStore, number: int) -> None:
        self._store, self._left = store, number

    def __call__(self, _call: Call) -> None:
        self._left -= 1
        if self._left == -1:
            held = held_of(self._store)
            me = Identity("b" * 16, held.cluster.epoch + 1, "2" * 16)
            claim(self._store, me, takes_over=True)


async def test_a_folder_does_not_join_a_tier_of_another_server(
    tmp_path: Path, store: FakeStore
) -> None:
    await _old_machine(tmp_path / "old", store)
    await fails_to_start(
        tmp_path / "new", "belongs to another server: start with --restore to", **TIER
    )
    assert not (tmp_path / "new" / "catalog.sqlite").exists()


# -- names


@given(strategies.text(min_size=1, max_size=40), strategies.text(min_size=1, max_size=40))
def test_names_are_in_folders(host: str, stream: str) -> None:
    folder = StreamKey(host, stream, "00000001").folder
    assert names_in(folder) in ((host, stream), None)


def test_of_long_names_there_is_a_hash_alone() -> None:
    assert names_in(StreamKey("/", "x" * 200, "1").folder) == ("/", "x" * 200)
    assert names_in(StreamKey("/", "x" * 201, "1").folder) is None


def test_streams_of_one_name_are_together() -> None:
    keys = [StreamKey("/", name, creation) for name in ("a", "b") for creation in ("1", "3", "2")]
    found = by_stream(key.folder for key in keys)
    assert [[folder[-1] for folder in group] for group in found.values()] == [["3", "2", "1"]] * 2


# -- helpers


def _key(store: FakeStore, *parts: str) -> str:
    (found,) = [key for key in store.objects if all(part in key for part in parts)]
    return found


def _manifest(store: FakeStore, name: str) -> Manifest:
    folder = _key(store, f"/{name}~", "manifest").rpartition("/")[0]
    return read_folder(store, folder).manifest


def _put(store: FakeStore, manifest: Manifest) -> None:
    store.delete([manifest.stream.manifest])
    store.create(manifest.stream.manifest, encode_manifest(manifest))


def _replace(store: FakeStore, manifest: Manifest, **changes: Any) -> None:
    _put(store, replace(manifest, **changes))


def _put_tracking(store: FakeStore, manifest: Manifest, content: bytes) -> None:
    stored = StoredTracking(
        manifest.next_offset, 1, "f" * 16, StoredFile(len(content), crc32(content))
    )
    manifest = replace(manifest, tracking=stored)
    store.put(manifest.tracking_key, content)
    _put(store, manifest)


async def test_a_store_that_hangs_does_not_keep_a_new_server_from_starting(
    tmp_path: Path, store: FakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    async with harness(tmp_path / "other"):
        with late_answers(store):
            store.seconds = lambda _call: 3_600.0
            began_at = trio.current_time()
            await restoring.check_is_ours(str(tmp_path / "new"), store)
            assert trio.current_time() <= began_at + 10
    assert "cannot find out who owns the tier: it has not answered within 10 s" in caplog.text


@pytest.mark.parametrize(
    "arguments",
    [
        {"max-age": "nonsense"},
        {"max-age": 7},
        {"stream-filter-size-bytes": 1 << 40},
        {"stream-filter-size-bytes": "x"},
        {"stream-max-segment-size-bytes": -5},
        {"stream-key-properties": "a\x00,,b"},
        {"consistent": "x", "": 1},
        {"stream-filter-properties": ",,"},
    ],
)
@pytest.mark.parametrize("is_known", [True, False])
async def test_arguments_that_nobody_can_have_declared(
    tmp_path: Path, store: FakeStore, arguments: dict[str, Any], *, is_known: bool
) -> None:
    """They cost their stream at most, and no start."""
    async with harness(tmp_path / "empty"):
        pass
    await _old_machine(tmp_path / "old", store, ("s", "t"))
    manifest = _manifest(store, "s")
    if not is_known:
        upload_catalog(store, tmp_path / "empty")
    store.objects[manifest.stream.manifest].content = encode_manifest(
        replace(manifest, arguments=arguments, settings=arguments)
    )
    found = await _contents(tmp_path / "new", restore=True)
    assert found.pop("s") in ((0, 10), (-1, -1))
    assert found == {"t": (0, 10)}
    assert set(await _contents(tmp_path / "new")) == {"s", "t"}


@pytest.mark.parametrize("text", ['{"max-age":"x"}', "[1]", "[" * 9_999])
async def test_a_catalog_with_something_wrong_in_it(
    tmp_path: Path, store: FakeStore, text: str
) -> None:
    """One sentence, whoever is to use it."""
    await _old_machine(tmp_path / "old", store)
    with closing(sqlite3.connect(tmp_path / "old" / "catalog.sqlite")) as catalog, catalog:
        catalog.execute("UPDATE streams SET arguments = ?", (text,))
    upload_catalog(store, tmp_path / "old")
    for options in ({"restore": True}, {"read_only": True}):
        with pytest.raises(StartError, match="the copy of the catalog"):
            async with harness(tmp_path / next(iter(options)), **TIER, **options):
                pass
