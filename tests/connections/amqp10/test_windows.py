"""AMQP 1.0: windows and credit, where messages are long and links come and go beside each other."""

from typing import Any, cast

import pytest
import trio

from segments.message import Message
from streamd.connections.amqp10 import delivery
from streamd.connections.amqp10.delivery import Deliveries, OutgoingSession
from streamd.net.outbox import Outbox
from streamd.net.wakeup import Wakeup
from streamd.wire.amqp10 import performatives as p
from streamd.wire.amqp10.codec import frame
from streamd.wire.amqp10.deliver import Pieces
from streamd.wire.amqp10.session import Link, Session
from streamd.wire.stream import commands as c
from tests.support.amqp10 import Amqp10Peer, bodies, connect, numbers, open_peer
from tests.support.server import OK, Harness


@pytest.fixture
async def peer(server: Harness) -> Amqp10Peer:
    """A peer with a session, and streams s and t; it takes small frames."""
    other = await server.peer()
    await other.create("s")
    await other.create("t")
    return await open_peer(server, max_frame_size=512)


async def transfers(peer: Amqp10Peer, count: int) -> list[tuple[p.Transfer, bytes]]:
    """So many transfers; what else comes before them is dropped."""
    found: list[tuple[p.Transfer, bytes]] = []
    with trio.fail_after(60):
        while len(found) < count:
            _, one, payload = await peer.receive()
            if isinstance(one, p.Transfer):
                found.append((one, payload))
    return found


class TestIn:
    async def test_a_message_in_more_transfers_than_the_window(self, peer: Amqp10Peer) -> None:
        await peer.attach_sender()
        await peer.expect(p.Flow)
        raw = Message(b"x" * 1_000).encode()
        await peer.send_bytes(peer.transfer(raw[:1], more=True))
        sent, room = 1, 399
        while sent < len(raw):
            if not room:
                with trio.fail_after(60):
                    flow = await peer.expect(p.Flow)
                room = flow.next_incoming_id + flow.incoming_window - sent
                continue
            last = p.Transfer(0, more=sent < len(raw) - 1)
            await peer.send_bytes(frame(0, last, raw[sent : sent + 1]))
            sent, room = sent + 1, room - 1
        await peer.outcomes(1)

    async def test_aborted_messages_do_not_use_up_the_credit(self, peer: Amqp10Peer) -> None:
        await peer.attach_sender()
        await peer.expect(p.Flow)
        for _ in range(170):
            await peer.send_bytes(peer.transfer(b"nothing", aborted=True))
        with trio.fail_after(60):
            assert (await peer.expect(p.Flow)).link_credit == 170


class TestOut:
    async def test_a_flow_that_crosses_a_detach_opens_the_window(
        self, peer: Amqp10Peer, server: Harness
    ) -> None:
        await peer.store(*numbers(10))
        await peer.store(*numbers(10), address="/queues/t")
        await peer.begin(1, window=0)
        await peer.attach_receiver(handle=1, channel=1)
        await peer.attach_receiver("/queues/t", handle=2, channel=1)
        await peer.credit(1_000, 1, channel=1, window=4)
        await transfers(peer, 4)
        await peer.credit(1_000, 2, channel=1, window=0, next_incoming_id=4)
        assert await (await server.peer()).code(c.Delete, "s") == OK
        await peer.find(p.Detach)
        # The client has sent this before it has seen the detach.
        await peer.credit(1_000, 1, channel=1, window=100, next_incoming_id=4, delivery_count=4)
        assert {transfer.handle for transfer, _ in await transfers(peer, 10)} == {2}

    async def test_what_waits_goes_with_its_link(self, peer: Amqp10Peer) -> None:
        """Or it would be the beginning of what the next link of that handle gets."""
        await peer.store(Message(b"x" * 2_000))
        await peer.store(Message(b"y"), address="/queues/t")
        await peer.attach_receiver()
        await peer.credit(10, window=1)
        ((first, _),) = await transfers(peer, 1)
        assert first.more
        await peer.send(p.Detach(1, True))
        await peer.find(p.Detach)
        await peer.attach_receiver("/queues/t")
        await peer.credit(10, window=100, next_incoming_id=1)
        with trio.fail_after(60):
            assert bodies(await peer.deliveries(1)) == [b"y"]

    async def test_who_waits_for_a_session_that_ends_goes_on(
        self, peer: Amqp10Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(delivery, "HELD_BYTES", 500)
        await peer.store(Message(b"x" * 1_200))
        await peer.begin(1)
        await peer.attach_receiver(channel=1)
        await peer.begin(2)
        await peer.attach_receiver(channel=2)
        await peer.credit(10, channel=1, window=1)
        await transfers(peer, 1)
        await peer.credit(10, channel=2)
        await peer.silence()
        await peer.send(p.End(), channel=1)
        await peer.find(p.End)
        await transfers(peer, 3)

    async def test_who_drains_is_told_after_what_waits(self, peer: Amqp10Peer) -> None:
        await peer.store(Message(b"x" * 600))
        await peer.attach_receiver()
        await peer.credit(1, window=1, drain=True)
        assert (await peer.expect(p.Transfer)).more
        await peer.silence()
        await peer.send(p.Flow(1, 1, 0, 1))
        assert not (await peer.expect(p.Transfer)).more
        assert (await peer.expect(p.Flow)).delivery_count == 1

    async def test_who_drains_with_no_window(self, peer: Amqp10Peer) -> None:
        await peer.attach_receiver()
        with trio.fail_after(60):
            await peer.credit(10, window=0, drain=True)
            assert (await peer.expect(p.Flow)).delivery_count == 10

    async def test_who_drains_and_goes_is_told_nothing_after_its_end(
        self, peer: Amqp10Peer, server: Harness
    ) -> None:
        await peer.store(Message(b"x" * 600))
        slow = connect(server, reads_slowly=True)
        await slow.log_in(max_frame_size=512)
        await slow.begin()
        await slow.attach_receiver()
        await slow.credit(1, drain=True)
        await trio.sleep(1)
        await slow.send(p.Detach(1, True))
        await trio.sleep(1)
        while not isinstance(await slow.next(), p.Detach):
            pass
        await slow.silence()

    def test_windows_that_open_by_little(self) -> None:
        """What waits is not looked through each time: a long message takes many transfers."""
        looks = 0

        def head(_size: int, _more: bool) -> bytes:
            nonlocal looks
            looks += 1
            return b""

        outbox = Outbox(Wakeup(), lambda _: 0)
        deliveries = Deliveries(*[cast("Any", None)] * 5, outbox)
        session = Session(0, p.Begin(None, 0, 0, 0))
        sending = OutgoingSession(session, deliveries, cast("Any", None))
        link = Link(p.Attach("in", 0, p.RECEIVER))
        sending.send(link, Pieces(head, b"x" * 1_000, 1))
        assert deliveries.waiting == 1_000
        for _ in range(1_000):
            session.outgoing = 1
            sending.opened()
        assert outbox.take() == b"x" * 1_000
        assert deliveries.waiting == 0
        assert looks < 20 * 1_000
