"""Sealed segments reach the store, in order, once, whatever becomes of requests."""

import errno
import logging
from collections import Counter
from pathlib import Path
from random import Random

import pytest
import trio

from segments.checksum import crc32
from segments.derived.key_files import KeyJob
from segments.derived.key_worker import Answer, encode_job, work
from segments.disk import OsFile
from segments.errors import FLUSH, StorageError
from segments.journal import tracking_in
from segments.segment import KEYS_SUFFIX
from segments.store.object_store import ConflictError, DeniedError, TierError
from streamd.broker.streams.key_worker import KeyWorker
from streamd.operations.tier_reports import TierState
from streamd.wire.stream import ResponseCode, commands as c
from tests.broker.tier.support import (
    A_FRAME,
    SEGMENT_BYTES,
    a_stream,
    bodies,
    manifest_of,
    manifests,
    orphans,
    passes,
    publish,
    report_of,
    stored,
    stored_bytes,
    tier_of,
    tiered,
)
from tests.broker.tier.test_fight import take_over
from tests.support.fake_store import Call, FakeStore
from tests.support.server import Harness
from tests.support.syncs import work_beside

SEGMENT = A_FRAME * 5  # messages in one


def has_all(store: FakeStore, name: str, end: int) -> None:
    """The store has each message before `end` once, in order, and nothing that nobody names."""
    manifest = manifest_of(store, name)
    assert manifest.next_offset == end
    content = stored_bytes(store, manifest)
    at = -1
    for body in bodies(0, end):
        assert content.count(body) == 1
        assert content.index(body) > at
        at = content.index(body)
    assert content.count(b"message") == end
    assert not orphans(store)


async def test_what_did_not_reach_the_device_is_not_stored(
    store: FakeStore, server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine may lose it, and go on with other messages at its offsets."""
    peer = await stored(server)
    end = manifest_of(store, "s").next_offset

    def refuse(file: OsFile) -> None:
        raise StorageError(FLUSH, file.path, OSError(errno.EIO, "Input/output error"))

    monkeypatch.setattr(OsFile, "sync", refuse)
    for at in range(30 * A_FRAME, 60 * A_FRAME, A_FRAME):
        await peer.publish(bodies(at), first_id=at + 1)
    await passes(30)
    assert server.host.find("s").log.flushing.failed is not None
    monkeypatch.undo()
    await passes(30)
    assert manifest_of(store, "s").next_offset == end


async def test_sealed_segments_are_stored(store: FakeStore, server: Harness) -> None:
    await stored(server, max_age="7D")
    log = server.host.find("s").log
    has_all(store, "s", 5 * SEGMENT)
    assert all(segment.stored for segment in log.segments.shown[:-1])
    manifest = manifest_of(store, "s")
    assert manifest.revision == len(manifest.segments) == 5
    assert set(manifest.segments[0].files) == {".segment", ".index", ".filter"}
    assert manifest.arguments["max-age"] == "7D"
    assert log.stored.manifest == manifest
    report = report_of(server)
    assert (report.segments_local, report.segments_remote, report.bytes_waiting) == (6, 5, 0)


async def test_the_limit_of_the_disk_is_worth_more_than_the_delay(tmp_path: Path) -> None:
    """Files stay for the delay, as long as there is not more than a segment too much."""
    async with tiered(tmp_path, FakeStore(), tier_delete_delay_seconds=3_600) as server:
        limit = 3 * int(SEGMENT_BYTES)
        peer = await a_stream(server, stream_local_max_length_bytes=str(limit))
        log = server.host.find("s").log
        after = 0
        while log.segments.local_size <= limit:
            after = await publish(peer, after, 1)
        await passes(5)
        assert all(segment.cold is None for segment in log.segments.shown)
        for _ in range(4):
            after = await publish(peer, after, 20)
            await passes(5)
            assert limit < log.segments.local_size <= limit + 2 * log.segments.shown[0].size
        await passes(3_700)  # its log is closed meanwhile
        report = report_of(server)
        assert report.bytes_local <= limit


async def test_a_stream_that_is_not_in_the_tier(store: FakeStore, server: Harness) -> None:
    peer = await stored(server, stream_tier="false")
    assert not manifests(store)
    await server.host.settings.set_arguments("s", [("stream-tier", "true")])
    await passes(5)
    has_all(store, "s", 5 * SEGMENT)
    await server.host.settings.set_arguments("s", [("stream-tier", "false")])
    await publish(peer, 30 * A_FRAME, 10)
    await passes(5)
    has_all(store, "s", 5 * SEGMENT)


async def test_a_stream_that_is_not_in_the_tier_is_left_alone(server: Harness) -> None:
    """Its log is closed when nobody uses it, and nobody looks at it again and again."""
    await publish(await a_stream(server, stream_tier="false"), 0, 12)
    await passes(600)
    assert not server.host.find("s").is_open


async def test_after_a_restart_nothing_is_uploaded_again(tmp_path: Path, store: FakeStore) -> None:
    async with tiered(tmp_path, store) as server:
        await stored(server)
    before = store.count("put_file")
    async with tiered(tmp_path, store) as server:
        await passes(60)
        assert store.count("put_file") == before
        peer = await server.publisher("s", reference="p")
        await publish(peer, 30 * A_FRAME, 10)
        await passes(5)
        has_all(store, "s", 7 * SEGMENT)
        assert {one.epoch for one in manifest_of(store, "s").segments} == {1, 2}


async def test_what_publishers_are_known_by_is_stored_as_of_the_last_segment(
    store: FakeStore, server: Harness
) -> None:
    peer = await a_stream(server)
    await peer.declare("s", 2, "once")
    await peer.store([b"x" * 20], 77, publisher_id=2)
    await publish(peer, 0, 30)
    await peer.send(c.StoreOffset("app", "s", 3))
    await publish(peer, 30 * A_FRAME, 10)
    await passes(5)
    manifest = manifest_of(store, "s")
    assert manifest.tracking is not None
    content = store.objects[manifest.tracking_key].content
    tracking = tracking_in(content, manifest.next_offset)
    assert tracking.sequences() == {b"once": 77, b"p": manifest.next_offset - 1}
    assert tracking.offsets() == {b"app": 3}


@pytest.mark.parametrize("order", ["before", "after", "conflict"])
async def test_every_request_fails_before_it_succeeds(tmp_path: Path, order: str) -> None:
    store, seen, chance = FakeStore(), Counter[tuple[str, str]](), Random(1)

    def fails(call: Call) -> bool:
        if call.key.startswith("probe"):
            return False
        what = call.name, call.key
        seen[what] += 1
        return seen[what] == 1 or chance.random() < 0.3

    def before(call: Call) -> None:
        if order == "before" and fails(call):
            raise TierError("it is away")
        if order == "conflict" and call.name in ("create", "replace") and fails(call):
            raise ConflictError("409")

    def after(call: Call) -> None:
        if order == "after" and fails(call):
            raise TierError("the answer is lost")

    store.before, store.after = before, after
    async with tiered(tmp_path, store, tier_roll_seconds=86_400) as server:
        await publish(await a_stream(server), 0, 30)
        await passes(9_000)  # pauses grow to a minute, and a third of the requests fail
        has_all(store, "s", 5 * SEGMENT)
        store.before = store.after = lambda _call: None
        await passes(90)
        assert tier_of(server).ownership.state is TierState.OK


@pytest.mark.parametrize("is_later", [False, True])
async def test_a_store_that_is_away_for_hours(
    tmp_path: Path, store: FakeStore, caplog: pytest.LogCaptureFixture, is_later: bool
) -> None:
    caplog.set_level(logging.INFO)
    if not is_later:
        store.fail(times=-1)
    async with tiered(tmp_path, store) as server:
        peer = await a_stream(server)
        if is_later:
            await passes(5)
            store.fail(times=-1)
            caplog.clear()
        before = set(store.objects)
        for hour in range(3):
            with trio.fail_after(1):
                await publish(peer, hour * 30 * A_FRAME, 30)
            await passes(3_700)
        status = await tier_of(server).status()
        assert status.state == TierState.AWAY
        assert status.bytes_waiting > 17 * 2_000
        assert (status.oldest_waiting_seconds or 0) >= 3 * 3_600
        assert set(store.objects) == before
        assert bool(before) is is_later
        assert len([line for line in caplog.messages if line.startswith("tier: ")]) == 1
        store.heal()
        await passes(60)
        has_all(store, "s", 18 * SEGMENT)
        assert (await tier_of(server).status()).bytes_waiting == 0


async def test_one_stream_that_cannot_be_stored_keeps_no_other_waiting(tmp_path: Path) -> None:
    store = FakeStore()
    store.fail(DeniedError("no right"), key="/bad~", times=-1)
    async with tiered(tmp_path, store) as server:
        bad, good = await a_stream(server, "bad"), await a_stream(server, "good")
        await publish(bad, 0, 30)
        await publish(good, 0, 30)
        await passes(5)
        has_all(store, "good", 5 * SEGMENT)
        report = report_of(server, "bad")
        assert report.sentence == "no right"
        assert report.segments_waiting == 5


@pytest.mark.parametrize("key", ["", "v1/cluster", "probe"])
async def test_a_store_that_denies_it(
    tmp_path: Path, store: FakeStore, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    store.fail(DeniedError("cannot use it: the secret is wrong"), key=key, times=-1)
    async with tiered(tmp_path, store) as server:
        peer = await a_stream(server)
        await publish(peer, 0, 30)
        await passes(3_600)
        status = await tier_of(server).status()
        assert (status.state, status.sentence) == (
            TierState.AWAY,
            "cannot use it: the secret is wrong",
        )
        assert status.errors
        assert len([m for m in caplog.messages if m.startswith("tier: ")]) == 1
        store.heal()
        await passes(60)
        has_all(store, "s", 6 * SEGMENT)


async def test_a_store_that_cannot_compare_and_set(
    tmp_path: Path, store: FakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.create = lambda key, content: (store.put(key, content), "etag")[1]  # type: ignore[method-assign]
    async with tiered(tmp_path, store) as server:
        await publish(await a_stream(server), 0, 30)
        await passes(600)
        assert tier_of(server).ownership.state is TierState.NO_COMPARE_AND_SET
        assert len([m for m in caplog.messages if "compare-and-set" in m]) == 1
        assert not manifests(store)


class TestAge:
    async def test_a_segment_is_sealed_when_something_in_it_is_old(self, tmp_path: Path) -> None:
        store = FakeStore()
        async with tiered(tmp_path, store, tier_roll_seconds=3_600) as server:
            peer = await a_stream(server)
            await publish(peer, 0, 1)
            await passes(3_590)
            assert not manifests(store)
            await passes(40)
            has_all(store, "s", A_FRAME)
            await passes(20_000)
            assert manifest_of(store, "s").revision == 1  # nothing new came
            await publish(peer, A_FRAME, 1)
            await passes(3_640)
            has_all(store, "s", 2 * A_FRAME)

    async def test_also_in_a_log_that_is_closed(self, tmp_path: Path, store: FakeStore) -> None:
        async with tiered(tmp_path, store, tier_roll_seconds=3_600) as server:
            peer = await a_stream(server)
            await publish(peer, 0, 1)
            await passes(300)
            assert not server.host.find("s").is_open
            await passes(3_400)
            has_all(store, "s", A_FRAME)

    async def test_also_after_a_restart(self, tmp_path: Path, store: FakeStore) -> None:
        async with tiered(tmp_path, store, tier_roll_seconds=3_600) as server:
            await publish(await a_stream(server), 0, 1)
        async with tiered(tmp_path, store, tier_roll_seconds=3_600):
            await passes(3_700)
            has_all(store, "s", A_FRAME)


async def test_a_file_that_cannot_be_read_is_tried_again_later(tmp_path: Path) -> None:
    """Not at once, over and over, with all that was sent before."""
    store = FakeStore()
    shortage = StorageError("read", "s", OSError(errno.EMFILE, "too many open files"))
    store.fail(shortage, name="put_file", times=4)
    async with tiered(tmp_path, store) as server:
        await publish(await a_stream(server), 0, 6)
        await passes(0.05)
        assert sum(call.name == "put_file" for call in store.calls) == 1
        await passes(60)
        has_all(store, "s", SEGMENT)


class TestKeys:
    async def test_they_are_waited_for_for_a_while(self, store: FakeStore, server: Harness) -> None:
        server.server.broker._resources.keys.keys_requested = lambda _stream: None  # type: ignore[method-assign]
        peer = await a_stream(server, stream_key_properties="key")
        await publish(peer, 0, 6)
        await passes(50)
        assert not manifests(store)
        await passes(20)
        has_all(store, "s", SEGMENT)
        assert KEYS_SUFFIX not in manifest_of(store, "s").segments[0].files

    @pytest.mark.parametrize("is_shorter", [False, True])
    async def test_they_are_made_anew_while_they_are_stored(
        self, tmp_path: Path, store: FakeStore, monkeypatch: pytest.MonkeyPatch, is_shorter: bool
    ) -> None:
        """Nothing is stored beside a row of the manifest that says something else of it."""
        made: list[Path] = []

        def make_anew(call: Call) -> None:
            if call.name == "put_file" and call.key.endswith(KEYS_SUFFIX) and not made:
                file = min(tmp_path.rglob("*" + KEYS_SUFFIX))
                made.append(file)
                content = file.read_bytes()
                new = file.with_suffix(".new")
                new.write_bytes(content[:-1] if is_shorter else content[:-1] + b"!")
                new.rename(file)

        async def make_here(_: KeyWorker, job: KeyJob) -> Answer:
            return work_beside(work, encode_job(job))

        store.before = make_anew
        monkeypatch.setattr(KeyWorker, "make", make_here)
        async with tiered(tmp_path, store) as server:
            peer = await a_stream(server, stream_key_properties="key")
            await publish(peer, 0, 6)
            with trio.fail_after(600):
                while not manifests(store):
                    await passes(1)
            stored = manifest_of(store, "s").segments[0].files[KEYS_SUFFIX]
            assert made
            assert (stored.size, stored.crc) == (
                made[0].stat().st_size,
                crc32(made[0].read_bytes()),
            )
            has_all(store, "s", SEGMENT)


class TestFenced:
    async def test_a_server_that_was_overtaken_takes_no_more(
        self, tmp_path: Path, store: FakeStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with tiered(tmp_path / "a", store) as server:
            peer = await a_stream(server)
            other = await server.publisher("local", is_new=True, reference="q", stream_tier="false")
            await publish(peer, 0, 8)
            await passes(5)
            take_over(store)
            after = dict(store.objects)
            await passes(70)
            assert tier_of(server).ownership.state is TierState.FENCED
            await peer.publish([b"late"], 1_000)
            refused = await peer.expect(c.PublishError)
            assert {fault.code for fault in refused.faults} == {ResponseCode.STREAM_NOT_AVAILABLE}
            reader = await server.consumer("s", credit=100)
            assert await reader.bodies(160) == bodies(0, 160)
            await other.store([b"goes on"])
            alarm = server.host.alarms()["s"]
            assert "another server, epoch 2, has taken over" in alarm
            assert len([m for m in caplog.messages if "taken over" in m]) == 1
            assert store.objects == after
