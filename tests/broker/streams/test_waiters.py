"""Consumers that wait for values of their own: what others' messages cost, by counted work."""

import pytest
import trio

from segments.errors import StorageError
from segments.reader import SMALL_CHUNK, Reader
from streamd.broker.streams import waiters as waiters_module
from streamd.broker.streams.waiters import Waiters
from streamd.connections.ready_queue import QueuedConsumer, ReadyQueue
from tests.support.server import NEXT, Harness, Peer
from tests.support.watchdog import watchdog

FEW, MANY = 10, 400
PER_CONNECTION = 200
# What a hundred consumers take that leave a segment. All of MANY at once would take more.
MOST_UNITS = 30_000


async def narrow_consumers(server: Harness, first: int, end: int) -> list[Peer]:
    """Consumers of stream s, each for a value that no message has so far."""
    peers = []
    for start in range(first, end, PER_CONNECTION):
        reader = await server.peer()
        for n in range(min(PER_CONNECTION, end - start)):
            await reader.subscribe("s", NEXT, subscription_id=n, filter__0=f"v{start + n}")
        peers.append(reader)
    return peers


def readers(server: Harness) -> list[Reader]:
    """The readers of all consumers of stream s."""
    waiting = server.host.find("s").waiters.by_key.values()
    return [waiter.reader for waiters in waiting for waiter in waiters]  # type: ignore[attr-defined]


async def longest_turn(peer: Peer, patch: pytest.MonkeyPatch, first_id: int, size: int) -> int:
    """The most work of a turn while messages come that no consumer asks for."""
    with patch.context() as patched, watchdog(patched) as dog:
        await peer.store([bytes(size)], first_id, values=[b"nobody"])
        await peer.store([b"x"], first_id + 1, values=[b"nobody"])
        await trio.sleep(1)
    return dog.longest


async def test_messages_of_others_cost_the_same_however_many_consumers_wait(
    server: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await peer.begin("s", stream_max_segment_size_bytes="1000")
    await peer.store([b"x"], 0, values=[b"nobody"])
    log = server.host.find("s").log
    await narrow_consumers(server, 0, FEW)
    few = await longest_turn(peer, monkeypatch, 1, 10)
    few_in_new_segment = await longest_turn(peer, monkeypatch, 3, 1_000)
    await narrow_consumers(server, FEW, MANY)
    many = await longest_turn(peer, monkeypatch, 5, 10)
    segments = len(log.segments.shown)
    many_in_new_segment = await longest_turn(peer, monkeypatch, 7, 1_000)
    assert len(log.segments.shown) > segments
    assert all(reader._segment is log.segments.shown[-1] for reader in readers(server))
    assert many < 1.5 * few
    assert few_in_new_segment < many_in_new_segment < MOST_UNITS


async def test_what_comes_after_much_for_others_is_sent_without_a_turn(
    server: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn of the connection's writer costs as much as all the rest."""
    await peer.begin("s")
    (reader,) = await narrow_consumers(server, 0, FEW)
    turns: list[QueuedConsumer] = []
    enqueue = ReadyQueue.enqueue

    def counted(queue: ReadyQueue[QueuedConsumer], consumer: QueuedConsumer) -> None:
        turns.append(consumer)
        enqueue(queue, consumer)

    monkeypatch.setattr(ReadyQueue, "enqueue", counted)
    for number in range(5):
        await peer.store([bytes(SMALL_CHUNK)], number, values=[b"nobody"])
    await peer.store([b"for one of them"], 5, values=[b"v7"])
    assert (await reader.chunk()).subscription_id == 7
    assert turns == []


@pytest.mark.parametrize("is_stored", [False, True])
async def test_a_large_chunk_behind_a_segment_with_little_left(
    server: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    """What comes without its data is not sent at once."""
    monkeypatch.setattr(Reader, "catch_up", lambda _: None)  # no index tells what is left out
    limits = {"stream_max_segment_size_bytes": "1000", "stream_chunk_max_records": "1"}
    await peer.begin("s", **limits)
    reader = await server.consumer("s", NEXT, filter__0="v", stored_chunks=str(is_stored).lower())
    await peer.store([bytes(1_000), bytes(2 * SMALL_CHUNK)], 0, values=[b"nobody", b"v"])
    await peer.store([b"small"], 2, values=[b"v"])
    with trio.fail_after(5):
        assert [(await reader.chunk()).header.chunk_id for _ in range(2)] == [1, 2]


async def test_consumers_leave_segments_that_follow_each_other_fast(
    server: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More begin while consumers still leave the first one."""
    monkeypatch.setattr(waiters_module, "_LEAVING", 1)
    await peer.begin("s", stream_max_segment_size_bytes="1000")
    log = server.host.find("s").log
    (reader,) = await narrow_consumers(server, 0, 100)
    for number in range(1, 6):
        await peer.store([bytes(1_000)], number, values=[b"nobody"])
    behind = [it for it in readers(server) if it._segment is not log.segments.shown[-1]]
    assert behind
    await trio.sleep(1)
    assert len(log.segments.shown) == 5
    assert all(it._segment is log.segments.shown[-1] for it in readers(server))
    await peer.store([b"for one of them"], 6, values=[b"v77"])
    assert (await reader.chunk()).subscription_id == 77
    counts = next(it.counts for it in readers(server) if it._matcher.keys == (b"v3",))
    assert (counts.chunks, counts.lost_records) == (0, 0)


@pytest.mark.parametrize("error", [None, StorageError("open", "a file", OSError("no"))])
async def test_consumers_without_an_index_read_on(
    server: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    def catch_up(_: Reader) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(Reader, "catch_up", catch_up)
    await peer.begin("s", stream_max_segment_size_bytes="1000")
    await narrow_consumers(server, 0, FEW)
    for number in range(1, 4):
        await peer.store([bytes(1_000)], number, values=[b"nobody"])
        await trio.sleep(1)
    log = server.host.find("s").log
    assert [it._segment for it in readers(server)] == [log.segments.shown[-1]] * FEW


def test_a_bug_of_one_consumer_stays_with_it(caplog: pytest.LogCaptureFixture) -> None:
    class Waiter:
        def __init__(self, key: bytes) -> None:
            self.keys = (key,)
            self.other_keys: tuple[frozenset[bytes], ...] = ()
            self.has_left = False

        def stream_has_more(self) -> None:
            """It is not woken here."""

        def leave_segment(self) -> None:
            if self.keys == (b"1",):
                raise RuntimeError("a bug")
            self.has_left = True

    waiting = [Waiter(b"%d" % n) for n in range(3)]
    waiters = Waiters()
    for waiter in waiting:
        waiters.add(waiter)
    assert list(waiters.leave_segment()) == []  # so few leave in one go
    assert [waiter.has_left for waiter in waiting] == [True, False, True]
    assert "cannot leave a segment" in caplog.text
