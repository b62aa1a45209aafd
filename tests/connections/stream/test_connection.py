"""The life of an open connection: signs of life, bad input, slow peers, and its end."""

import itertools
import logging
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, given, settings, strategies as st
from trio.testing import MockClock

from streamd.config import OUTBOX_BYTES
from streamd.wire.stream import ResponseCode, State, codec, commands as c
from streamd.wire.stream.publish import Outgoing, encode_entries
from tests.connections.stream.test_publishing import bodies
from tests.support.server import LONGEST_WAIT, NEXT, OK, Harness, Peer, frame, harness
from tests.wire.stream.strategies import COMMANDS

UNKNOWN, TOO_LARGE = ResponseCode.UNKNOWN_FRAME, ResponseCode.FRAME_TOO_LARGE


class TestEnd:
    async def test_close_is_answered_after_everything_before_it(self, peer: Peer) -> None:
        await peer.create("s")
        await peer.declare("s")
        commands = frame(bodies(1000)), c.Close(9, OK, "bye")
        await peer.stream.send_all(b"".join(map(codec.encode, commands)))
        await peer.expect(c.PublishConfirm)
        peer.connection.state = State.CLOSING
        assert await peer.next() == c.CloseResponse(9, OK)
        await peer.ended()

    @pytest.mark.parametrize("size", [0, 1, 3, 5, 8, 20, 400])
    async def test_a_peer_that_vanishes_within_a_frame(
        self, server: Harness, peer: Peer, size: int
    ) -> None:
        await peer.create("s")
        other = await server.peer()
        await other.declare("s")
        raw = codec.encode(frame(bodies(50)))
        await other.stream.send_all(raw + raw[:size])
        await other.vanish()
        await peer.declare("s")
        await peer.store([b"x"])
        stats = dict((await peer.ask(c.StreamStats, "s")).statistics)
        assert stats["committed_offset"] == 50  # the whole frame is there, of the other nothing


class TestBadInput:
    @pytest.mark.parametrize(
        ("raw", "code"),
        [
            (b"\0\0\0\6\x75\x30\0\1xx", UNKNOWN),  # command 30000
            (bytes(4), UNKNOWN),
            ((1021).to_bytes(4, "big") + bytes(1021), UNKNOWN),
            (b"\0\0\0\4\0\1\0\2", UNKNOWN),  # a version that does not exist
            (codec.encode(c.PeerProperties(1, ())), UNKNOWN),
            (codec.encode(c.SaslHandshake(1)), UNKNOWN),
            (codec.encode(c.Open(1, "/")), UNKNOWN),
            (codec.encode(c.Tune(1, 1)), UNKNOWN),
            (codec.encode(c.Deliver(1, b"chunk")), UNKNOWN),
            (codec.encode(c.PublishConfirm(1, (1,))), UNKNOWN),
            (codec.encode(c.Publish(1, 2, b"12345678\0\0\0\1x")), UNKNOWN),
            (((1 << 20) + 1).to_bytes(4, "big"), TOO_LARGE),
            (b"\xff\xff\xff\xff", TOO_LARGE),
        ],
    )
    async def test_the_server_says_close_and_waits_for_the_answer(
        self, server: Harness, peer: Peer, raw: bytes, code: ResponseCode
    ) -> None:
        await peer.create("s")
        await peer.declare("s")
        other = await server.peer()
        await peer.stream.send_all(raw)
        closing = await peer.expect(c.Close)
        assert (closing.correlation_id, closing.code) == (1, code)
        assert closing.reason == code.text
        await other.declare("s")  # nobody else is affected
        await other.store([b"x"])
        await peer.send(c.CloseResponse(1, OK))
        await peer.ended()

    async def test_without_an_answer_it_ends_after_ten_seconds(self, peer: Peer) -> None:
        await peer.stream.send_all(bytes(4))
        await peer.expect(c.Close)
        started = trio.current_time()
        await peer.ended()
        assert trio.current_time() - started == pytest.approx(10)

    async def test_what_comes_after_it_is_ignored(self, peer: Peer) -> None:
        await peer.create("s")
        late = codec.encode(c.Delete(5, "s"))
        await peer.stream.send_all(bytes(4) + late + late)
        await peer.expect(c.Close)
        await peer.stream.send_all(b"\0\0\0\6\x75\x30\0\1xx" + late)
        await peer.send(c.CloseResponse(1, OK))
        await peer.ended()

    @pytest.mark.parametrize("raw", [b"\0\x16\0\0\0\0", b"\0\x16\0\1\0\0\0\1\0\1\xff"])
    async def test_a_damaged_close_instead_of_the_answer(
        self, peer: Peer, raw: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        await peer.stream.send_all(bytes(4))
        await peer.expect(c.Close)
        await peer.stream.send_all(len(raw).to_bytes(4, "big") + raw)
        await peer.ended()
        assert "failed" not in caplog.text

    async def test_the_frame_size_is_what_was_agreed(self, server: Harness) -> None:
        peer = await server.peer(frame_max=10_000)
        await peer.create("s")
        await peer.declare("s")
        overhead = len(codec.encode(frame([b""]))) - 4
        await peer.store([b"x" * (10_000 - overhead)])
        await peer.publish([b"x" * (10_001 - overhead)])
        assert (await peer.expect(c.Close)).code == TOO_LARGE

    async def test_zero_leaves_the_servers_own_limit(self, server: Harness) -> None:
        peer = await server.peer(frame_max=0)
        await peer.create("s")
        await peer.declare("s")
        await peer.store([b"x" * 1_000_000])
        await peer.publish([b"x" * (1 << 20)])
        assert (await peer.expect(c.Close)).code == TOO_LARGE


def test_any_commands_in_any_order_break_nothing_else(tmp_path: Path) -> None:
    """Random commands, whole and damaged: they end their own connection at worst."""
    counter = iter(range(10**9))

    @settings(max_examples=40, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.tuples(COMMANDS, st.integers(0, 60), st.integers(0, 255)), max_size=12))
    def check(commands: list[tuple[c.Command, int, int]]) -> None:
        folder = tmp_path / str(next(counter))
        trio.run(converse, folder, commands, clock=MockClock(autojump_threshold=0))

    async def converse(folder: Path, commands: list[tuple[c.Command, int, int]]) -> None:
        async with harness(folder) as server:
            steady, wild = await server.peer(), await server.peer()
            await steady.create("s")
            await steady.declare("s")
            await steady.subscribe("s", credit=1000)
            with trio.move_on_after(30):
                try:
                    for command, position, value in commands:
                        raw = bytearray(codec.encode(command))
                        if position + 4 < len(raw):
                            raw[position + 4] = value
                        await wild.stream.send_all(raw)
                    await wild.stream.send_all(codec.encode(c.Close(1, OK, "")))
                    while await wild.stream.receive_some(1 << 16):
                        pass
                except trio.BrokenResourceError:
                    pass
            await steady.publish([b"still here"])
            while not isinstance(command := await steady.next(), c.Deliver):
                assert isinstance(command, c.PublishConfirm)

    check()


class TestHeartbeats:
    async def test_not_sent_while_something_else_is(self, server: Harness) -> None:
        peer = await server.peer(heartbeat=10)
        for _ in range(100):
            assert await peer.code(c.StreamStats, "none") == ResponseCode.STREAM_DOES_NOT_EXIST
            await trio.sleep(1)
        assert peer.unasked == []

    async def test_zero_means_none(self, peer: Peer) -> None:
        await peer.silence(LONGEST_WAIT - 1)
        assert await peer.code(c.StreamStats, "none") == ResponseCode.STREAM_DOES_NOT_EXIST

    async def test_a_silent_peer_is_dropped_without_a_word(self, server: Harness) -> None:
        peer = await server.peer(heartbeat=10)
        started = trio.current_time()
        while peer.connection.state is not State.CLOSED:
            try:
                await peer.expect(c.Heartbeat)
            except trio.EndOfChannel:
                break
        assert 20 <= trio.current_time() - started <= 30.1

    async def test_any_byte_is_a_sign_of_life(self, server: Harness) -> None:
        peer = await server.peer(heartbeat=10)
        raw = codec.encode(c.StoreOffset("r" * 100, "s", 1))
        for byte in raw:
            await peer.stream.send_all(bytes([byte]))
            await trio.sleep(9)
        assert await peer.code(c.StreamStats, "none") == ResponseCode.STREAM_DOES_NOT_EXIST

    async def test_only_half_of_the_time_is_between_two(self, server: Harness) -> None:
        peer = await server.peer(heartbeat=60)
        times = []
        for _ in range(4):
            await peer.expect(c.Heartbeat)
            times.append(trio.current_time())
            await peer.send(c.Heartbeat())
        assert all(30 <= b - a <= 60 for a, b in itertools.pairwise(times))


class TestSlowPeers:
    async def test_a_consumer_that_reads_nothing_delays_nobody(self, server: Harness) -> None:
        writer = await server.peer()
        await writer.create("s")
        await writer.declare("s")
        stuck = server.connect(reads_slowly=True)
        await stuck.log_in()
        await stuck.subscribe("s", credit=60_000)
        quick = await server.peer()
        await quick.subscribe("s", credit=60_000)
        for n in range(50):
            await writer.store([b"x" * 9_000] * 10, first_id=10 * n)
        assert len(await quick.bodies(500)) == 500
        # It gets everything once it reads.
        assert len(await stuck.bodies(500)) == 500

    async def test_a_peer_that_reads_no_answers_is_not_read_from(self, server: Harness) -> None:
        """Nor is it blamed for its silence meanwhile."""
        peer = server.connect(reads_slowly=True)
        await peer.log_in(heartbeat=5)
        request = codec.encode(c.DescribeStreams(1, ("x" * 1000,)))
        sent = 0
        with trio.move_on_after(60):
            while True:
                await peer.stream.send_all(request * 10)
                sent += len(request) * 10
        (link,) = server.server._running
        assert sent < 4 * OUTBOX_BYTES
        assert link._outbox._size < 2 * OUTBOX_BYTES

    async def test_answers_get_in_between_chunks(self, server: Harness) -> None:
        writer = await server.peer()
        await writer.create("s")
        await writer.declare("s")
        for n in range(100):
            await writer.store([b"x" * 100_000], first_id=n)
        reader = server.connect(reads_slowly=True)
        await reader.log_in()
        await reader.subscribe("s", credit=100)
        await reader.chunk()
        await reader.send(c.StreamStats(7, "s"))
        before = 0
        while not isinstance(await reader.next(), c.StreamStatsResponse):
            before += 1
        assert before < 5  # chunks that were on their way, not all of them


class TestLimits:
    async def test_a_thousand_idle_ones(self, server: Harness) -> None:
        peers = [await server.peer() for _ in range(1000)]
        await peers[0].create("s")
        assert await peers[-1].code(c.StreamStats, "s") == OK


async def test_secrets_are_not_logged(server: Harness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    peer = server.connect()
    await peer.ask(c.PeerProperties, ())
    await peer.ask(c.SaslHandshake)
    await peer.code(c.SaslAuthenticate, "PLAIN", b"\0guest\0hunter2")
    assert "hunter2" not in caplog.text
    assert "login refused, user 'guest' with PLAIN: authentication failure" in caplog.text


async def test_a_bug_ends_its_connection_only(
    server: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(server.host, "find", fail)
    other = await server.peer()
    await peer.send(c.StreamStats(1, "s"))
    await peer.ended()
    assert "the connection failed" in caplog.text
    monkeypatch.undo()
    assert other.connection.state is State.OPEN
    await other.create("s")


async def test_the_order_of_answers_is_the_order_of_requests(peer: Peer) -> None:
    await peer.create("s")
    await peer.send(
        c.StreamStats(1, "s"),
        c.Metadata(2, ("s",)),
        c.QueryOffset(3, "x", "s"),
        c.Create(4, "t", ()),
        c.Subscribe(5, 1, "s", NEXT, 1),
        c.QueryPublisherSequence(6, "p", "s"),
    )
    answers = [await peer.next() for _ in range(6)]
    assert [getattr(answer, "correlation_id", None) for answer in answers] == [1, 2, 3, 4, 5, 6]


async def test_what_came_before_a_malformed_frame_is_answered(peer: Peer) -> None:
    creates = [codec.encode(c.Create(number, f"s{number}", ())) for number in (1, 2)]
    await peer.stream.send_all(b"".join(creates) + bytes((0, 0, 0, 4, 0x77, 0x77, 0, 1)))
    for number in (1, 2):
        assert await peer.expect(c.CreateResponse) == c.CreateResponse(number, OK)
    await peer.expect(c.Close)


async def test_many_small_frames_in_one_packet(peer: Peer) -> None:
    await peer.create("s")
    await peer.declare("s")
    one = [codec.encode(c.Publish(1, 1, encode_entries([Outgoing(n, b"x")]))) for n in range(5000)]
    await peer.stream.send_all(b"".join(one))
    assert await peer.confirmed(5000) == list(range(5000))


async def test_thousands_of_small_commands_do_not_keep_others_waiting(
    peer: Peer, server: Harness
) -> None:
    """One peer's commands, sent at once, are carried out a few at a time, and in order."""
    await peer.create("s")
    await peer.declare("s")
    await peer.store([b"x"])
    await peer.subscribe("s")
    await peer.chunk()
    stream = server.host.find("s")
    seen: list[int | None] = []

    async def look() -> None:
        while not seen or seen[-1] != 4999:
            await trio.lowlevel.checkpoint()
            seen.append(stream.log.journal.tracking.offset(b"me"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await peer.send(*(c.StoreOffset("me", "s", n) for n in range(5000)))
    between = [offset for offset in dict.fromkeys(seen) if offset]
    assert len(between) > 10
    assert between == sorted(between)
