"""AMQP 1.0: pairs of links to the management node; what can be asked is in test_management.py."""

from typing import Any

import pytest

from segments.amqp10 import Symbol
from segments.amqp10_codes import Section
from segments.message import MessageView, Properties, find_section
from streamd.connections import message_delivery
from streamd.connections.amqp10 import attaching, management_link
from streamd.wire.amqp10 import performatives as p
from streamd.wire.amqp10.codec import frame
from streamd.wire.amqp10.values import read_value
from tests.connections.amqp10.test_management import request
from tests.support.amqp10 import Amqp10Peer, Delivery, open_peer
from tests.support.server import Harness

PAIRED: dict[str, Any] = {
    "snd_settle_mode": p.SETTLED,
    "properties": {Symbol("paired"): True},
}
PAIR = PAIRED | {"name": "pair"}


@pytest.fixture
async def peer(server: Harness) -> Amqp10Peer:
    return await open_peer(server)


async def attach_pair(peer: Amqp10Peer, first: int = 0, **more: Any) -> None:
    """Sender and receiver, with credit."""
    both = PAIR | more
    found = await peer.attach_receiver("/management", first + 1, filter=None, **both)
    assert found.role is p.SENDER
    found = await peer.attach_sender("/management", first, **both)
    assert found.role is p.RECEIVER
    assert (await peer.expect(p.Flow)).link_credit == 8
    await peer.credit(100, first + 1)


async def ask(
    peer: Amqp10Peer, method: str, target: str, body: Any = None, **more: Any
) -> Delivery:
    await peer.publish(request(method, target, body), settled=True, **more)
    (answer,) = await peer.deliveries(1)
    return answer


async def test_a_request_and_its_answer(peer: Amqp10Peer) -> None:
    await attach_pair(peer)
    arguments = {"x-queue-type": "stream"}
    answer = await ask(peer, "PUT", "/queues/s", {"durable": True, "arguments": arguments})
    assert answer.transfer.settled
    assert answer.transfer.delivery_tag == b""
    assert answer.message.properties.subject == "201"
    answer = await ask(peer, "GET", "/queues/s")
    at = find_section(answer.raw, Section.VALUE)
    assert at is not None
    assert read_value(answer.raw, at)[0]["type"] == "stream"
    await peer.attach_sender(handle=5)


async def test_the_sender_may_come_first(peer: Amqp10Peer) -> None:
    await peer.attach_sender("/management", 0, **PAIR)
    await peer.attach_receiver("/management", 1, filter=None, **PAIR)
    await peer.credit(1, 1)
    assert (await ask(peer, "GET", "/queues/s")).message.properties.subject == "404"


async def test_credit_for_requests_is_granted_again(peer: Amqp10Peer) -> None:
    await attach_pair(peer)
    for _ in range(20):
        await ask(peer, "GET", "/queues/s")


async def test_several_at_once(peer: Amqp10Peer) -> None:
    """In one read, and on several pairs."""
    await attach_pair(peer)
    await attach_pair(peer, 10, name="other")
    await peer.publish(*[request("GET", "/queues/s")] * 8, settled=True)
    await peer.publish(*[request("GET", "/queues/s")] * 8, handle=10, settled=True)
    found = await peer.deliveries(16)
    assert [one.transfer.handle for one in found] == [1] * 8 + [11] * 8
    assert [one.transfer.delivery_id for one in found] == list(range(16))


@pytest.mark.parametrize(
    "fields",
    [
        {"properties": None},
        {"properties": {Symbol("paired"): "true"}},
        {"snd_settle_mode": p.MIXED},
    ],
)
@pytest.mark.parametrize("sends", [True, False])
async def test_halves_that_are_none(peer: Amqp10Peer, fields: dict[str, Any], sends: bool) -> None:
    if sends:
        await peer.attach_sender("/management", **PAIRED | fields)
    else:
        await peer.attach_receiver("/management", filter=None, **PAIRED | fields)
    await peer.detached("amqp:invalid-field")


async def test_a_half_twice(peer: Amqp10Peer) -> None:
    await attach_pair(peer)
    await peer.attach_sender("/management", 7, **PAIR)
    await peer.detached("amqp:invalid-field", "has this half")
    await ask(peer, "GET", "/queues/s")


async def test_an_answer_needs_a_link(peer: Amqp10Peer) -> None:
    await peer.attach_sender("/management", **PAIR)
    await peer.publish(request("GET", "/queues/s"), settled=True)
    await peer.session_ends("amqp:precondition-failed", "not attached")


async def test_an_answer_needs_credit(peer: Amqp10Peer) -> None:
    await peer.attach_receiver("/management", 1, filter=None, **PAIR)
    await peer.attach_sender("/management", 0, **PAIR)
    await peer.publish(request("GET", "/queues/s"), settled=True)
    await peer.session_ends("amqp:precondition-failed", "no credit")


async def test_what_is_no_request(peer: Amqp10Peer) -> None:
    await attach_pair(peer)
    await peer.publish(b"\0\x53\x75\xa0\0", settled=True)
    await peer.session_ends("amqp:invalid-field")


async def test_a_request_that_is_not_settled(peer: Amqp10Peer) -> None:
    await attach_pair(peer)
    await peer.publish(request("GET", "/queues/s"))
    await peer.detached("amqp:invalid-field", "settled=False")


async def test_a_request_in_pieces(peer: Amqp10Peer) -> None:
    """RabbitMQ ends the session for it."""
    await attach_pair(peer)
    raw = request("GET", "/queues/s")
    await peer.send_bytes(peer.transfer(raw[:9], settled=True, more=True))
    await peer.send_bytes(frame(0, p.Transfer(0), raw[9:]))
    assert len(await peer.deliveries(1)) == 1


async def test_answers_wait_for_the_window(
    peer: Amqp10Peer, server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no more is asked meanwhile than there is credit for."""
    await attach_pair(peer)
    await peer.send(p.Flow(0, 0, 0, 1))
    await peer.publish(*[request("GET", "/queues/s")] * 8, settled=True)
    await peer.silence()
    (connection,) = server.server.connections
    await peer.send(p.Flow(0, 0, 0, 1))
    await peer.attach_sender("/queues/none", 20)  # the connection goes on with everything else
    await peer.detached("amqp:not-found")
    await peer.send(p.Flow(0, 3, 0, 1))
    assert len(await peer.deliveries(3)) == 3
    await peer.silence()
    monkeypatch.setattr(message_delivery, "HELD_BYTES", 100)
    await peer.send(p.Flow(3, 100, 0, 1))
    assert len(await peer.deliveries(5)) == 5
    await ask(peer, "GET", "/queues/s")
    connection.end("enough")
    await peer.connection_fails("amqp:internal-error", "enough")


async def test_signs_of_life_while_answers_wait(server: Harness) -> None:
    peer = await open_peer(server, idle_time_out=2_000)
    await attach_pair(peer)
    await peer.send(p.Flow(0, 0, 0, 1))
    await peer.publish(request("GET", "/queues/s"), settled=True)
    for _ in range(5):
        assert (await peer.receive())[1] is None


async def test_a_pair_that_is_detached(peer: Amqp10Peer) -> None:
    for _ in range(3):
        await attach_pair(peer)
        for handle in (1, 0):
            await peer.send(p.Detach(handle, True))
            assert (await peer.find(p.Detach)).closed


async def test_more_than_there_can_be(peer: Amqp10Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(management_link, "MAX_PAIRS", 2)
    monkeypatch.setattr(attaching, "MAX_PAIRS", 2)
    for number in range(2):
        await attach_pair(peer, 10 * number, name=f"pair{number}")
    await peer.attach_sender("/management", 50, **PAIRED)
    await peer.detached("amqp:resource-limit-exceeded")


async def test_links_beyond_the_limit(
    peer: Amqp10Peer, server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await server.peer()).create("s")
    monkeypatch.setattr(attaching, "MAX_LINKS", 3)
    await peer.begin(1)
    await peer.attach_sender(handle=0)
    await peer.attach_sender(handle=0, channel=1)
    await peer.attach_sender(handle=1, channel=1)
    await peer.attach_sender(handle=2, channel=1)
    await peer.detached("amqp:resource-limit-exceeded")


async def test_a_name_that_is_too_long(peer: Amqp10Peer) -> None:
    await peer.attach_sender(name="x" * 1_025)
    await peer.detached("amqp:invalid-field", "1,025 bytes")


def test_ids_of_any_type() -> None:
    raw = request("GET", "/queues/s", message_id=5)
    assert MessageView(raw).properties == Properties(5, None, "/queues/s", "GET", "$me")
