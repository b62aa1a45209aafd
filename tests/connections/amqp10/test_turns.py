"""AMQP 1.0: messages that are taken in several turns, and what happens between these."""

import pytest
import trio

from segments.message import Message, MessageView
from streamd.connections import routes
from streamd.connections.amqp10 import publisher, session
from streamd.wire.amqp10 import performatives as p
from streamd.wire.amqp10.connection import Messages
from tests.connections.amqp10.test_publishing import annotated, stored
from tests.support.amqp10 import Amqp10Peer, open_peer
from tests.support.server import Harness

COSTLY = Message(b"x", application_properties={f"name{n}": n for n in range(1_000)})


@pytest.fixture
async def peer(server: Harness) -> Amqp10Peer:
    """A peer with a session, and streams s and t."""
    other = await server.peer()
    await other.create("s")
    await other.create("t")
    return await open_peer(server)


@pytest.mark.parametrize("settled", [True, False])
async def test_what_is_wrong_behind_messages_that_take_turns(
    peer: Amqp10Peer, settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link has no credit for the last one, which would go without a word."""
    monkeypatch.setattr(publisher, "CREDIT", 40)  # so that all come in one read
    await peer.attach_sender()
    await peer.expect(p.Flow)
    await peer.publish(*[COSTLY] * 41, settled=settled)
    with trio.fail_after(60):
        await peer.detached("amqp:link:transfer-limit-exceeded")


async def test_credit_after_settled_messages_for_many_streams(
    peer: Amqp10Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "TARGETS_A_TURN", 1)
    await peer.attach_sender()
    await peer.expect(p.Flow)
    for _ in range(170):
        await peer.publish(annotated(x_cc=["t"]), settled=True)
    with trio.fail_after(60):
        assert (await peer.expect(p.Flow)).link_credit == 170


async def test_a_link_that_goes_before_the_turn_of_its_message(
    peer: Amqp10Peer, server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was begun goes with it: the next link would publish that, and pass over its own."""
    monkeypatch.setattr(routes, "TARGETS_A_TURN", 1)
    handle, gone = session.Session.handle, []

    async def late(self: session.Session, event: session.Event) -> None:
        """Another client deletes the stream between the two halves of the work."""
        if isinstance(event, Messages) and not gone:
            gone.append("s")
            await server.host.delete("s", lambda: None)
        await handle(self, event)

    monkeypatch.setattr(session.Session, "handle", late)
    await peer.attach_sender()
    await peer.publish(annotated(x_cc=["t"]))
    await peer.detached("amqp:resource-deleted")
    await peer.attach_sender("/queues/t", handle=1)
    many = {f"name{n}": n for n in range(1_000)}
    costly = [Message(b"%d" % n, application_properties=many) for n in range(150)]
    await peer.publish(*costly, handle=1)
    await trio.sleep(5)
    assert [MessageView(raw).body for raw in await stored(server, "t")] == [
        b"%d" % n for n in range(150)
    ]
