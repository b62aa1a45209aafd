"""The watch of the loop: who is named, waits and is ended, and who is not to blame."""

import gc
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from streamd.broker.traffic import ProtocolTraffic
from streamd.connections.amqp091 import delivery
from streamd.connections.amqp091.session import Session as AmqpSession
from streamd.connections.stream.session import Session
from streamd.connections.watch import AGAIN_SECONDS, HELD_SECONDS, LoopClock, Watch, Watched
from streamd.operations.figures import AMQP091
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.messages.from_amqp10 import Delivered, delivered
from streamd.wire.stream import commands as c
from tests.support.amqp import declare, open_peer
from tests.support.server import Peer, frame, harness


class Hands:
    """A clock and a thread's work, both moved by hand."""

    def __init__(self) -> None:
        self.now = self.worked = 1_000.0
        self.clock = LoopClock(lambda: self.now, lambda: self.worked)

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.worked += seconds

    def pause(self, seconds: float) -> None:
        """The process is stopped, or another thread has the interpreter."""
        self.now += seconds


@pytest.fixture
def hands() -> Hands:
    return Hands()


class Seen:
    """A watch, and what came of it."""

    def __init__(self, hands: Hands) -> None:
        self.traffic = ProtocolTraffic()
        self.ended: list[str] = []
        self.watch = Watch("somebody", self.traffic, self.ended.append, hands.clock)
        self._hands = hands

    def does(self, seconds: float, *, stopped: float = 0, is_asked_for: bool = True) -> float:
        """Work, stopped meanwhile; returns for how long it has to wait then."""
        began = self.watch.begin()
        self._hands.work(seconds)
        self._hands.pause(stopped)
        self.watch.check(began, lambda: "Declare", is_asked_for=is_asked_for)
        return self.watch.take_pause()


def test_who_holds_the_loop_waits_and_is_ended_when_it_does_so_again(
    hands: Hands, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen(hands)
    assert seen.does(0.04) == 0
    assert seen.does(0.1) == pytest.approx(0.9)
    assert caplog.messages == [
        "somebody: Declare held everybody up for 100 ms, at most 50 are allowed; it waits for 0.9 s"
    ]
    assert (seen.traffic.loop_held, seen.ended) == (1, [])
    hands.pause(AGAIN_SECONDS + 1)
    assert seen.does(5) == 10  # at most
    assert seen.ended == []
    hands.pause(AGAIN_SECONDS / 2)
    seen.does(0.06)
    assert seen.ended == ["Declare has held everybody up again, for 60 ms"]
    assert seen.traffic.loop_held_seconds == pytest.approx(5.16)


@pytest.mark.parametrize("since_sampled", [0, 0.001, 0.009, 5])
def test_pauses_are_nobodys_fault(hands: Hands, since_sampled: float) -> None:
    seen = Seen(hands)
    seen.does(0)
    hands.work(since_sampled)  # of others: none of it is this client's
    for stopped in (0.1, 3):
        assert seen.does(0.049, stopped=stopped) == 0
    assert seen.does(0.07, stopped=3) > 0


def test_garbage_is_nobodys_fault(hands: Hands) -> None:
    seen = Seen(hands)
    began = seen.watch.begin()
    hands.clock.collects("start", {"generation": 2})
    hands.work(0.3)
    hands.clock.collects("stop", {"generation": 2})
    seen.watch.check(began, lambda: "Declare")
    assert seen.watch.take_pause() == 0
    assert any(call.__name__ == "collects" for call in gc.callbacks)


def test_what_others_have_stored_ends_nobody(hands: Hands) -> None:
    seen = Seen(hands)
    assert seen.does(0.1, is_asked_for=False) > 0
    assert seen.does(0.1, is_asked_for=False) > 0
    assert seen.ended == []


async def test_work_that_waits_is_timed_between_its_waits(hands: Hands) -> None:
    seen = Seen(hands)

    async def work() -> str:
        for _ in range(5):
            hands.work(0.04)
            await trio.sleep(1)
        with trio.move_on_after(1):
            await trio.sleep_forever()
        with pytest.raises(ValueError, match="told"):
            await fail()
        hands.work(0.06)
        return "done"

    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise ValueError("told")

    assert await Watched(seen.watch, work(), lambda: "Declare") == "done"
    assert seen.traffic.loop_held == 1


async def test_cancelled_work(hands: Hands) -> None:
    async def work() -> None:
        await trio.sleep(60)

    with trio.move_on_after(1) as scope:
        await Watched(Seen(hands).watch, work(), lambda: "Declare")
    assert scope.cancelled_caught


@pytest.fixture
def slow(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Requests of AMQP and commands of the stream protocol take so many seconds."""
    taken = [0.0]
    monkeypatch.setattr(Watch.__init__, "__defaults__", (hands.clock,))
    for kind, name in (
        (AmqpSession, "handle"),
        (Session, "create_all"),
        (Session, "handle_at_once"),
    ):
        inner = getattr(kind, name)

        def slowly(self: object, *given: object, inner: Callable[..., object] = inner) -> object:
            hands.work(taken[0])
            return inner(self, *given)

        monkeypatch.setattr(kind, name, slowly)
    return lambda seconds: taken.__setitem__(0, seconds)


async def test_over_amqp(
    tmp_path: Path, slow: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with harness(tmp_path) as server:
        peer = await open_peer(server)
        slow(0.1)
        await peer.ask(declare("q"), m.QueueDeclareOk)
        assert "(AMQP 0-9-1, user guest): QueueDeclare held everybody up for 100 ms" in caplog.text
        slow(0)
        began = trio.current_time()
        await peer.declare("r")
        assert trio.current_time() - began == pytest.approx(0.9)
        slow(0.1)
        await peer.send(declare("s"))
        while not isinstance(found := await peer.next(), m.ConnectionClose):
            pass
        assert "QueueDeclare has held everybody up again" in found.text
        assert server.server.broker.traffic.protocol(AMQP091).loop_held == 2


async def test_a_delivery_over_amqp(
    tmp_path: Path,
    hands: Hands,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It costs what somebody else has stored: its consumer waits, and goes on."""
    monkeypatch.setattr(Watch.__init__, "__defaults__", (hands.clock,))

    def slowly(raw: bytes) -> Delivered:
        hands.work(0.1)
        return delivered(raw)

    monkeypatch.setattr(delivery, "delivered", slowly)
    async with harness(tmp_path) as server:
        peer = await open_peer(server)
        await peer.declare("q")
        await peer.store("q", b"x", b"y")
        await peer.consume("q", tag="c", prefetch=1, x_stream_offset="first")
        for _ in range(2):
            (found,) = await peer.deliveries(1)
            await peer.send(m.BasicAck(found.method.delivery_tag, False))
        told = "what is stored in 'q', for the consumer c, held everybody up for 100 ms"
        assert sum(told in message for message in caplog.messages) == 2
        assert trio.current_time() >= 1.8
        await peer.declare("r")


async def until_ended(peer: Peer) -> None:
    with suppress(trio.EndOfChannel):
        while True:
            await peer.next()


@pytest.mark.parametrize("is_polled", [False, True])
async def test_over_the_stream_protocol(
    tmp_path: Path,
    slow: Callable[[float], None],
    caplog: pytest.LogCaptureFixture,
    is_polled: bool,
) -> None:
    async with harness(tmp_path) as server:
        if is_polled:
            server.poll()
        peer = await server.peer()
        await peer.create("s")
        await peer.declare("s")
        slow(HELD_SECONDS + 0.02)
        began = trio.current_time()
        await peer.send(frame([b"x"]))
        await peer.expect(c.PublishConfirm)
        assert "user guest): Publish held everybody up for 70 ms" in caplog.text
        slow(0)
        await peer.create("t")
        assert trio.current_time() - began == pytest.approx(0.63)
        slow(HELD_SECONDS + 0.02)
        await peer.send(frame([b"x"]))
        await until_ended(peer)
