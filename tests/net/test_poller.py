"""Real sockets: what arrives is given at once, whatever the others on the same poller do."""

import errno
import itertools
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given, settings, strategies as st

from segments.disk import OsDisk
from streamd.config import RECEIVE_BYTES
from streamd.net import poller
from streamd.net.poller import PATIENT_SECONDS, Poller, open_poller
from streamd.net.rounds import Rounds
from streamd.net.transport import (
    FileUnreadable,
    Found,
    Listening,
    SocketTransport,
    TransportClosed,
    unsent_is_high,
)

pytestmark = pytest.mark.skipif(open_poller(Rounds()) is None, reason="this system has no epoll")


class Pair:
    """A client's socket and the server's end of it."""

    def __init__(self, client: trio.SocketStream, server: SocketTransport) -> None:
        self.client = client
        self.server = server


@asynccontextmanager
async def polling(
    number: int = 1, clock: Callable[[], float] = time.perf_counter
) -> AsyncIterator[tuple[Poller, list[Pair]]]:
    poller = Poller(Rounds(), clock)
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    pairs = []
    async with trio.open_nursery() as nursery:
        for _ in range(number):
            client = await trio.open_tcp_stream("127.0.0.1", port)
            pairs.append(Pair(client, SocketTransport(await listener.accept(), poller)))
        nursery.start_soon(poller.run)
        yield poller, pairs
        nursery.cancel_scope.cancel()
    await listener.aclose()
    for pair in pairs:
        await pair.client.aclose()
        pair.server.close()


async def test_it_goes_on_until_told_to_stop() -> None:
    async with polling() as (_, (pair,)):
        got = bytearray()

        def take(data: bytes) -> bool:
            got.extend(data)
            return len(got) < 6

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pair.client.send_all, b"abcdefgh")
            assert await pair.server.feed(take)
        await pair.client.send_all(b"ijk")
        assert await pair.server.feed(take)
        assert got.startswith(b"abcdef")
        await pair.client.aclose()
        while len(got) < 11:
            await pair.server.feed(take)
        assert got == b"abcdefghijk"
        assert not await pair.server.feed(take)


async def test_what_goes_wrong_stays_with_its_connection() -> None:
    async with polling(3) as (_, (bad, reset, good)):

        def fail(data: bytes) -> bool:
            raise RuntimeError(data)

        async def fails() -> None:
            with pytest.raises(RuntimeError, match="x"):
                await bad.server.feed(fail)

        async def breaks() -> None:
            with pytest.raises(TransportClosed):
                await reset.server.feed(lambda _: True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fails)
            nursery.start_soon(breaks)
            await trio.testing.wait_all_tasks_blocked()
            await bad.client.send_all(b"x")
            linger = b"\1\0\0\0\0\0\0\0"
            reset.client.socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, linger)
            await reset.client.aclose()
        await good.client.send_all(b"y")
        assert await good.server.feed(lambda data: data != b"y")


async def test_a_cancelled_wait_loses_nothing() -> None:
    async with polling() as (_, (pair,)):
        with trio.move_on_after(0) as scope:
            await pair.server.feed(lambda _: True)
        assert scope.cancelled_caught
        await pair.client.send_all(b"late")
        await trio.testing.wait_all_tasks_blocked()
        got = []
        assert await pair.server.feed(lambda data: bool(got.append(data)))
        assert got == [b"late"]


async def test_one_may_end_another_of_the_same_round() -> None:
    async with polling(2) as (_, pairs):
        called = []

        async def feed(me: Pair, other: Pair) -> None:
            def take(_: bytes) -> bool:
                called.append(me)
                other.server._polled._forget()  # as a cancellation does
                return False

            await me.server.feed(take)

        async with trio.open_nursery() as nursery:
            for pair in pairs:
                await pair.client.send_all(b"x")
            for me, other in (pairs, pairs[::-1]):
                nursery.start_soon(feed, me, other)
            while not called:
                await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked()
            assert len(called) == 1
            nursery.cancel_scope.cancel()


async def test_what_is_left_is_done_once_a_round() -> None:
    async with polling(3) as (poller, pairs):
        done = []

        def later() -> None:
            done.append(len(seen))

        seen: list[bytes] = []

        def take(data: bytes) -> bool:
            seen.append(data)
            assert poller._rounds.at_end(later)
            return False

        assert not poller._rounds.at_end(later)
        for pair in pairs:
            await pair.client.send_all(b"x")
        async with trio.open_nursery() as nursery:
            for pair in pairs:
                nursery.start_soon(pair.server.feed, take)
        assert sum(done) >= 3
        assert done[-1] == 3
        assert len(done) == len(set(done))
        assert not poller._rounds.at_end(later)


@given(st.lists(st.binary(min_size=1, max_size=9), max_size=9), st.integers(1, 20))
@settings(max_examples=30)
def test_all_bytes_come_in_order(pieces: list[bytes], stop_every: int) -> None:
    async def work() -> bytes:
        got = bytearray()

        def take(data: bytes) -> bool:
            got.extend(data)
            return len(got) % stop_every != 0

        async def send(stream: trio.SocketStream) -> None:
            for piece in pieces:
                await stream.send_all(piece)
            await stream.aclose()

        async with polling() as (_, (pair,)), trio.open_nursery() as nursery:
            nursery.start_soon(send, pair.client)
            while await pair.server.feed(take):
                pass
        return bytes(got)

    assert trio.run(work) == b"".join(pieces)


async def test_one_that_cannot_be_watched_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with polling() as (poller, (pair,)):
        monkeypatch.setattr(poller, "watch", refuse)
        with pytest.raises(TransportClosed):
            await pair.server.feed(lambda _: True)
        pair.server.close()  # wakes nobody: a task that is not asleep would end the process
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("code", [errno.EIO, 0])
async def test_a_file_that_cannot_be_read_is_not_taken_for_a_peer_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    (tmp_path / "f").write_bytes(bytes(10))
    file = OsDisk().open(str(tmp_path / "f"), writable=False)

    def fails(*_: int) -> int:
        raise OSError(code, "Input/output error")

    if code:
        monkeypatch.setattr(os, "sendfile", fails)
    async with polling() as (_, (pair,)):
        with pytest.raises(FileUnreadable):
            await pair.server.send_file(file, 0, 20)
    file.close()


@pytest.mark.parametrize(
    ("seconds", "least", "bound"),
    [(0.05, 0, RECEIVE_BYTES), (0.015, 0, RECEIVE_BYTES), (0.001, 1, 4 * RECEIVE_BYTES)],
)
async def test_what_many_send_is_bounded_in_a_round(
    seconds: float, least: float, bound: int
) -> None:
    """Else those that send most would decide how long everybody else waits."""
    ticks = itertools.count()
    async with polling(20, lambda: next(ticks) * seconds) as (poller, pairs):
        taken, in_round, most = 0, 0, 0
        end = poller._rounds.end

        def end_of_round() -> None:
            nonlocal in_round, most
            most, in_round = max(most, in_round), 0
            end()

        def take(data: bytes) -> bool:
            nonlocal taken, in_round
            taken += len(data)
            in_round += len(data)
            return True

        poller._rounds.end = end_of_round  # type: ignore[method-assign]
        data = bytes(256 << 10)
        for pair in pairs:
            pair.client.socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_SNDBUF, len(data))
        async with trio.open_nursery() as nursery:
            for pair in pairs:
                nursery.start_soon(pair.client.send_all, data)
            await trio.testing.wait_all_tasks_blocked()  # there is much to be read from each
            for pair in pairs:
                nursery.start_soon(pair.server.feed, take)
            while taken < len(pairs) * len(data):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert least * RECEIVE_BYTES < most <= bound


class Rhythm:
    """A connection that always has something, read in rounds that take as long as is said.

    Args:
        is_hurried: somebody is in a hurry before the first.

    Attributes:
        asked: how much it might send in each round.
    """

    def __init__(self, rounds: list[tuple[float, Found]], *, is_hurried: bool = True) -> None:
        self._rounds, self._is_hurried = rounds, is_hurried
        self._now = 0.0
        self._scope = trio.CancelScope()
        self.asked: list[int] = []

    async def run(self) -> list[int]:
        poller = Poller(Rounds(), lambda: self._now)
        here, there = socket.socketpair()
        with here, there, self._scope:
            there.send(b"x")
            poller.watch(here.fileno(), self._read)
            if self._is_hurried:
                poller.hurry(here.fileno())
            await poller.run()
        poller.close()
        return self.asked

    def _read(self, most: int) -> Found:
        self.asked.append(most)
        seconds, found = self._rounds[len(self.asked) - 1]
        self._now += seconds
        if len(self.asked) == len(self._rounds):
            self._scope.cancel()
        return found


async def test_a_round_takes_less_while_rounds_are_long() -> None:
    """A byte may cost much, and what consumers say meanwhile waits for the end of the round."""
    asked = await Rhythm([(0.01, Found.MORE)] * 9).run()
    assert asked[0] == RECEIVE_BYTES
    assert asked[-1] == RECEIVE_BYTES // 8
    assert asked == sorted(asked, reverse=True)


async def test_only_while_somebody_is_in_a_hurry() -> None:
    """Large pieces are cheaper."""
    assert set(await Rhythm([(0.1, Found.MORE)] * 9, is_hurried=False).run()) == {RECEIVE_BYTES}
    asked = await Rhythm([(0.1, Found.MORE)] * 120).run()
    assert min(asked) == RECEIVE_BYTES // 8
    assert asked[-1] == RECEIVE_BYTES


@pytest.mark.parametrize(
    ("seconds", "found", "grows"),
    [(0.001, Found.MORE, True), (0.001, Found.ALL, False), (0.004, Found.MORE, False)],
)
async def test_it_takes_more_again_where_short_rounds_leave_something(
    seconds: float, found: Found, grows: bool
) -> None:
    """One that took all there was says nothing of what more would cost."""
    asked = await Rhythm([(0.01, Found.MORE)] * 9 + [(seconds, found)] * 9).run()
    assert asked[9] == RECEIVE_BYTES // 8
    assert asked[-1] == (RECEIVE_BYTES if grows else RECEIVE_BYTES // 8)


@settings(max_examples=20)
@given(sizes=st.lists(st.sampled_from([10, 100_000, 200_000, 1 << 20]), min_size=1, max_size=8))
def test_whether_a_peer_takes_too_little_is_what_the_kernel_says(sizes: list[int]) -> None:
    """Although it is not asked while less was sent than may be unsent."""

    async def main() -> None:
        async with polling() as (_, (pair,)):
            for size in sizes:
                pair.server.send_some([bytes(size)])
                descriptor = pair.server._socket.fileno()
                said = {unsent_is_high(descriptor)}
                is_congested = pair.server.is_congested
                assert is_congested in said | {unsent_is_high(descriptor)}

    trio.run(main)


class Patient:
    """A connection of which everything may be read a moment later: what came, and when."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.took: list[tuple[bytes, float]] = []

    async def feed(self) -> None:
        assert not await self.pair.server.feed(self._take)
        self.took.append((b"", trio.current_time()))

    def _take(self, data: bytes) -> Listening:
        self.took.append((data, trio.current_time()))
        return Listening.LATER if data.islower() else Listening.YES

    async def send(self, data: bytes) -> float:
        """Send something; when that was."""
        await self.pair.client.send_all(data)
        await trio.testing.wait_all_tasks_blocked()
        return trio.current_time()


@asynccontextmanager
async def patience(number: int = 1) -> AsyncIterator[tuple[Pair, list[Patient]]]:
    """A connection that is read at once, and patient ones that have been read once."""
    async with polling(number + 1, trio.current_time) as (_, (other, *pairs)):
        patient = [Patient(pair) for pair in pairs]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other.server.feed, lambda _: True)
            for one in patient:
                nursery.start_soon(one.feed)
                await one.send(b"a")
            yield other, patient
            nursery.cancel_scope.cancel()


async def test_a_patient_connection_is_read_a_moment_later() -> None:
    async with patience() as (_, (one,)):
        for _ in range(2):
            sent_at = await one.send(b"b")
            await trio.sleep(1)
            data, at = one.took[-1]
            assert data == b"b"
            assert sent_at <= at <= sent_at + 2 * PATIENT_SECONDS
            await trio.sleep(1)
            await one.send(b"a")
            await trio.testing.wait_all_tasks_blocked()
            num_taken = len(one.took)
            await one.send(b"c")
            assert len(one.took) == num_taken  # else nothing is saved
            await trio.sleep(1)
        await one.pair.client.aclose()
        await trio.sleep(2 * PATIENT_SECONDS)
        assert one.took[-1][0] == b""


async def test_a_patient_connection_is_read_in_a_round_of_others() -> None:
    async with patience() as (other, (one,)):
        for number in range(2, 12):
            await one.send(b"b")
            await trio.sleep(PATIENT_SECONDS)
            assert len(one.took) == number - 1  # nobody woke for it
            await other.client.send_all(b"x")
            await trio.testing.wait_all_tasks_blocked()
            assert len(one.took) == number


@pytest.mark.parametrize("reason", ["what came", "hurry"])
async def test_patience_ends(reason: str) -> None:
    async with patience() as (_, (one,)):
        if reason == "hurry":
            await one.send(b"b")
            one.pair.server.hurry()
            await trio.testing.wait_all_tasks_blocked()
            assert len(one.took) == 2
            assert one.took[0][1] == one.took[1][1]
        else:
            await one.send(b"B")
            await trio.sleep(1)
            for _ in range(3):
                sent_at = await one.send(b"B")
                assert one.took[-1] == (b"B", sent_at)


async def test_of_many_patient_connections_all_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "_MOST_READY", 2)
    async with patience(5) as (other, ones):
        for one in ones:
            await one.send(b"b")
        for _ in range(3):
            await trio.sleep(PATIENT_SECONDS)  # a round comes before patience ends
            await other.client.send_all(b"x")
            await trio.testing.wait_all_tasks_blocked()
        assert {b"".join(data for data, _ in one.took) for one in ones} == {b"ab"}
