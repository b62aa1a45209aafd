"""What leaves the disk, when, and what has to be there before."""

from pathlib import Path

import pytest

from segments.journal import Journal
from segments.log import Log
from segments.policy import DEFAULT_LOCAL_BYTES
from streamd.broker.tier import eviction
from tests.broker.tier.support import (
    A_FRAME,
    a_stream,
    bodies,
    is_of_log,
    manifest_of,
    passes,
    publish,
    report_of,
    stored,
    tiered,
)
from tests.support.fake_store import FakeStore, late_answers
from tests.support.server import Harness


def cold(log: Log) -> list[int]:
    """Base offsets of the segments whose files are not here."""
    for segment in log.segments.shown:
        is_here = (Path(log.folder) / Path(segment.path()).name).exists()
        assert is_here is (segment.cold is None)
    return [segment.base_offset for segment in log.segments.shown if segment.cold is not None]


async def reads_all(server: Harness, count: int) -> None:
    reader = await server.consumer("s", credit=1_000)
    assert await reader.bodies(count) == bodies(0, count)


async def test_the_oldest_go_until_the_rest_fits(tmp_path: Path, store: FakeStore) -> None:
    async with tiered(tmp_path, store) as server:
        await stored(server)
        log = server.host.find("s").log
        assert not cold(log)
        setting = [("stream-local-max-length-bytes", "8000")]
        await server.host.settings.set_arguments("s", setting)
        await passes(1)  # it counts at once
        assert cold(log) == [0, 100, 200]
        assert log.segments.local_size == 3 * 2_303
        await reads_all(server, 30 * A_FRAME)
    async with tiered(tmp_path, store) as server:
        await passes(5)
        async with server.host.find("s").opened() as log:
            assert cold(log) == [0, 100, 200]
            await reads_all(server, 30 * A_FRAME)


async def test_never_more_is_here_than_the_limit_and_two_segments(server: Harness) -> None:
    peer = await a_stream(server, stream_local_max_length_bytes="5000")
    log = None
    for frame in range(60):
        await publish(peer, frame * A_FRAME, 1)
        await passes(0.5)
        log = server.host.find("s").log
        assert log.segments.local_size <= 5_000 + 2 * 2_303
    assert log is not None
    await reads_all(server, 60 * A_FRAME)


async def test_a_store_that_is_slower_than_the_publishers_keeps_only_what_it_has_not_got(
    store: FakeStore, server: Harness
) -> None:
    store.seconds = lambda call: 1.0 if call.key.endswith(".segment") else 0.0
    with late_answers(store):
        peer = await a_stream(server, stream_local_max_length_bytes="5000")
        for frame in range(200):
            await publish(peer, frame * A_FRAME, 1)
            await passes(0.15)
        log = server.host.find("s").log
        waiting = [one for one in log.segments.shown if one.stored is None]
        assert len(waiting) > 5
        assert log.segments.local_size <= 5_000 + 2 * 2_303 + sum(one.size for one in waiting)


async def test_nothing_goes_that_is_not_stored(store: FakeStore, server: Harness) -> None:
    store.fail(times=-1)
    await stored(server, stream_local_max_length_bytes="0")
    await passes(1_000)
    async with server.host.find("s").opened() as log:
        assert not cold(log)
        store.heal()
        await passes(60)
        assert cold(log) == [0, 100, 200, 300, 400]


async def test_nothing_goes_that_publishers_are_known_by(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as the journal does not know them without it."""
    monkeypatch.setattr(Journal, "is_covered", lambda *_: False)
    await stored(server, stream_local_max_length_bytes="0")
    await passes(60)
    log = server.host.find("s").log
    assert not cold(log)
    monkeypatch.undo()
    await passes(60)
    assert cold(log) == [0, 100, 200, 300, 400]


async def test_where_no_checkpoint_finds_room_segments_go_one_by_one(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That makes room."""
    monkeypatch.setattr(Log, "is_sure_of", lambda *_: False)
    await stored(server, stream_local_max_length_bytes="0")
    await passes(600)
    async with server.host.find("s").opened() as log:
        assert cold(log) == [0, 100, 200, 300, 400]


async def test_what_the_store_has_lost_is_stored_again_before_it_goes(
    store: FakeStore, server: Harness
) -> None:
    await stored(server)
    for key in [key for key in store.objects if key.endswith(".segment")][:2]:
        del store.objects[key]
    setting = [("stream-local-max-length-bytes", "0")]
    await server.host.settings.set_arguments("s", setting)
    await passes(60)
    async with server.host.find("s").opened() as log:
        assert cold(log) == [0, 100, 200, 300, 400]
    assert manifest_of(store, "s").keys() <= store.objects.keys()
    await reads_all(server, 30 * A_FRAME)


async def test_nothing_goes_before_the_delay_is_over(tmp_path: Path, store: FakeStore) -> None:
    async with tiered(tmp_path, store, tier_delete_delay_seconds=600) as server:
        peer = await a_stream(server, stream_local_max_length_bytes="3500")  # not far above it
        await publish(peer, 0, 11)
        await passes(590)
        async with server.host.find("s").opened() as log:
            assert not cold(log)
            await passes(20)
            assert cold(log) == [0]


async def test_by_age(server: Harness) -> None:
    peer = await a_stream(server, stream_local_max_age="1h")
    await publish(peer, 0, 11)
    await passes(1_800)
    await publish(peer, 11 * A_FRAME, 10)
    await passes(1_700)
    async with server.host.find("s").opened() as log:
        assert not cold(log)
        await passes(200)
        assert cold(log) == [0, 100]


async def test_without_limits_a_gibibyte_stays(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert DEFAULT_LOCAL_BYTES == 1 << 30
    monkeypatch.setattr(eviction, "DEFAULT_LOCAL_BYTES", 5_000)
    await stored(server)
    assert cold(server.host.find("s").log) == [0, 100, 200, 300]


async def test_retention_counts_what_is_only_in_the_store(
    store: FakeStore, server: Harness
) -> None:
    limits = {"stream_local_max_length_bytes": "0", "max_length_bytes": "7000"}
    await stored(server, 60, **limits)
    log = server.host.find("s").log
    assert log.segments.size <= 7_000
    assert log.segments.first_offset == 900
    manifest = manifest_of(store, "s")
    assert [one.base_offset for one in manifest.segments] == [900, 1_000]
    assert manifest.next_offset == 1_100
    assert {key for key in store.objects if "/s~" in key} == {
        *manifest.keys(),
        manifest.stream.manifest,
    }
    report = report_of(server)
    assert (report.segments_local, report.segments_remote) == (1, 2)


async def test_objects_stay_for_the_grace_time_over_a_restart(tmp_path: Path) -> None:
    store = FakeStore()
    async with tiered(tmp_path, store, tier_delete_delay_seconds=600) as server:
        await stored(server)
        await server.host.settings.set_arguments("s", [("max-length-bytes", "5000")])
        await server.host.expire()
        await passes(300)
        assert any("/00000000000000000000." in key for key in store.objects)
    async with tiered(tmp_path, store, tier_delete_delay_seconds=600):
        await passes(700)
        objects = [key for key in store.objects if not is_of_log(key)]
        assert not any("/00000000000000000000." in key for key in objects)
        manifest = manifest_of(store, "s")
        assert manifest.keys() <= set(store.objects)
