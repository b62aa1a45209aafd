"""A store that is slow, or hangs, keeps nobody waiting but uploads."""

import threading
import time
from pathlib import Path

import pytest
import trio

from segments.store import stores
from streamd.config import Config
from streamd.operations.names import as_sent
from streamd.server import open_server
from streamd.wire.stream import commands as c
from tests.broker.tier.support import SEGMENT_BYTES, a_stream, passes, publish, tier_of, tiered
from tests.broker.tier.test_upload import SEGMENT, has_all
from tests.support.fake_store import Call, FakeStore, late_answers
from tests.support.logs import append
from tests.support.server import OK


async def test_publishing_does_not_wait_for_it(tmp_path: Path) -> None:
    store = FakeStore(seconds=lambda _call: 10.0)
    async with tiered(tmp_path, store) as server:
        with late_answers(store):
            peer = await a_stream(server)
            for at in range(0, 600, 20):
                began = trio.current_time()
                await publish(peer, at, 1)
                assert trio.current_time() - began < 0.01
            other = await a_stream(server, "other")
            began = trio.current_time()
            assert await other.code(c.Delete, "other") == OK
            assert trio.current_time() - began < 0.01
            await passes(1_000)
            has_all(store, "s", 5 * SEGMENT)


async def test_at_most_four_requests_of_uploads_at_once_and_each_stream_has_its_turns(
    tmp_path: Path,
) -> None:
    store, order = FakeStore(seconds=lambda _call: 1.0), []
    store.before = lambda call: order.append(call.key) if call.name == "put_file" else None
    async with tiered(tmp_path, store) as server:
        with late_answers(store):
            for name in "abcdefgh":
                await publish(await a_stream(server, name), 0, 16)
            most = 0
            for _ in range(400):
                await passes(0.5)
                most = max(most, len(tier_of(server).uploader.streams))
            assert most == 4
            for name in "abcdefgh":
                has_all(store, name, 3 * SEGMENT)
    first = [key.split("/")[2][0] for key in order[:8]]
    assert sorted(first) == list("abcdefgh")  # nobody had two turns before all had one


def test_a_request_that_hangs_does_not_keep_the_server_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, hangs, goes_on = FakeStore(), threading.Event(), threading.Event()
    has_gone_on = threading.Event()

    def before(call: Call) -> None:
        if call.name == "put_file":
            hangs.set()
            goes_on.wait()
            has_gone_on.set()

    store.before = before
    monkeypatch.setattr(stores, "open_store", lambda *_: store)

    async def run() -> None:
        config = Config(data=str(tmp_path), tier="s3://bucket/tier", tier_roll_seconds=1)
        async with open_server(config) as server:
            host = server.broker.virtual_hosts[as_sent("/")]
            await host.create(as_sent("s"), [("stream-max-segment-size-bytes", SEGMENT_BYTES)])
            stream = host.find(as_sent("s"))
            async with stream.opened() as log:
                for _ in range(40):
                    append(log, [b"x" * 100], now_ms=int(time.time() * 1_000))
                assert stream._tier is not None
                stream._tier.changed()
                while not hangs.is_set():
                    await trio.sleep(0.01)

    try:
        trio.run(run)
        assert not has_gone_on.is_set()
    finally:
        goes_on.set()
