"""Who asks is told why confirms wait for the store, since when, and how long slots take."""

import logging

import pytest
import trio

from segments.store.object_names import LOG_FOLDER, WAL_FOLDER
from streamd.broker.tier.confirm_watch import ConfirmWatch, Unconfirmed
from streamd.broker.traffic import SECONDS, Histogram
from streamd.engine.caller import DoorCaller
from streamd.operations.server import GetOverview
from streamd.operations.tier_reports import TierStatus
from streamd.wire.stream import commands as c
from tests.broker.tier.support import passes, report_of, tier_of
from tests.support.console import visitor
from tests.support.fake_store import FakeStore, late_answers
from tests.support.http import Http
from tests.support.server import OK, Harness, Peer


async def _publisher(server: Harness, name: str, publisher_id: int) -> Peer:
    return await server.publisher(name, publisher_id, is_new=True, stream_confirm="store")


async def _status(server: Harness) -> TierStatus:
    return await tier_of(server).status()


async def test_a_store_that_is_away_is_told_with_what_waits(
    store: FakeStore, server: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first, second = await _publisher(server, "s", 1), await _publisher(server, "t", 2)
    await first.store([b"0"], publisher_id=1)
    assert not (await _status(server)).confirm_sentence
    store.fail(key=WAL_FOLDER, times=-1)
    store.fail(key=LOG_FOLDER, times=-1)
    await server.host.create("more", [])
    await first.publish([b"1", b"2"], 2, publisher_id=1)
    await second.publish([b"1"], publisher_id=2)
    await passes(40)
    found = await _status(server)
    assert found.confirm_sentence.startswith(
        "confirms wait for the tier for 40 s (3 messages of 2 streams, "
    )
    assert "cannot reach" in found.confirm_sentence
    assert (found.streams_unconfirmed, found.messages_unconfirmed) == (2, 3)
    assert found.bytes_unconfirmed > 0
    assert found.oldest_unconfirmed_seconds == pytest.approx(40, abs=1)
    assert "confirms wait for the tier: " in server.host.find("s").alarm
    row = report_of(server)
    assert row.messages_unconfirmed == 2
    assert caplog.text.count("confirms wait") == 1
    assert caplog.text.count("does not have the newest catalog") == 1

    store.heal()
    assert await first.confirmed(2) == [2, 3]
    assert await second.confirmed(1) == [1]
    found = await _status(server)
    assert not found.confirm_sentence
    assert (found.messages_unconfirmed, found.oldest_unconfirmed_seconds) == (0, None)
    assert found.bytes_unconfirmed == 0
    assert caplog.text.count("confirms go on") == 1


async def test_a_store_that_does_not_answer_is_told(
    store: FakeStore, server: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    peer = await _publisher(server, "s", 1)
    store.seconds = lambda call: 30.0 * call.key.startswith(WAL_FOLDER)
    with late_answers(store):
        await peer.publish([b"1"])
        await passes(4)
        assert not (await _status(server)).confirm_sentence
        await passes(16)
        found = await _status(server)
        assert "has not answered" in found.confirm_sentence
        assert not server.host.find("s").alarm  # publishers may come, and wait as others do
        assert caplog.text.count("confirms wait") == 1
        assert await peer.confirmed(1) == [1]
        assert caplog.text.count("confirms go on") == 1


async def test_slots_are_measured_and_those_that_are_kept_counted(
    store: FakeStore, server: Harness
) -> None:
    peer = await _publisher(server, "s", 1)
    await peer.store([b"1"])
    store.seconds = lambda _call: 2.0
    with late_answers(store):
        await peer.publish([b"2"], 2)
        assert await peer.confirmed(1) == [2]
    found = await _status(server)
    assert (found.slots_stored, found.slots_kept) == (2, 2)
    sizes = [len(one.content) for key, one in store.objects.items() if key.startswith(WAL_FOLDER)]
    assert found.slot_bytes_kept == sum(sizes)
    assert found.slowest_slot_seconds == pytest.approx(2, abs=0.5)
    assert sum(server.server.broker.traffic.slot_seconds.counts) == 2
    await tier_of(server).confirms.shorten()
    assert (await _status(server)).slots_kept == 0


async def test_the_overview_has_it(store: FakeStore, server: Harness) -> None:
    peer = await _publisher(server, "s", 1)
    store.fail(key=WAL_FOLDER, times=-1)
    await peer.publish([b"1"])
    await passes(10)
    caller = DoorCaller(server.server.directory, "test")
    found = await server.server.engine.ask(caller, GetOverview())
    kinds = {one.kind: one.what for one in found.wrong}
    assert "1 message of 1 stream" in kinds["confirms"]
    assert "takes no messages: confirms wait for the tier" in kinds["stream"]
    assert "tier" not in kinds  # the rest of the store answers


async def test_who_looks_does_not_wait_for_a_store_that_is_away(
    store: FakeStore, server: Harness
) -> None:
    peer = await _publisher(server, "s", 1)
    await peer.store([b"0"])
    store.fail(times=-1)
    await peer.publish([b"1", b"2"], 2)
    await passes(10)
    began = trio.current_time()
    other = await server.peer()
    assert (await other.ask(c.StreamStats, "s")).code == OK
    found = visitor(server)
    await found.log_in()
    page = await found.page("/streams/%2F/s")
    text = " ".join(page.get_text(" ").split())
    assert "Not confirmed yet 2 messages wait for the tier" in text
    assert "They are shown when the tier has confirmed them." in text
    assert "confirms wait for the tier" in text.lower()
    assert await Http(server).code("GET", "queues/%2F/s") == 200
    assert trio.current_time() < began + 2
    store.heal()
    assert len(await peer.confirmed(2)) == 2
    assert "They are shown when" not in await found.text("/streams/%2F/s")


def test_without_a_stream_there_is_nothing_to_count() -> None:
    """What earlier starts have written cannot be read, say."""
    watch = ConfirmWatch(Histogram(SECONDS))
    watch.failed("it is damaged", 10.0)
    waits = watch.seconds(None, 70.0)
    assert watch.sentence(waits, Unconfirmed(0, 0, 0)) == (
        "confirms wait for the tier for 1 min 0 s: it is damaged"
    )
    assert watch.last_seconds is None
