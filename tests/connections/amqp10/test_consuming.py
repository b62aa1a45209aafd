"""AMQP 1.0: messages out: attaching, credit, windows, draining, settling, filters, and ends."""

import gzip
from typing import Any

import pytest
import trio

from segments.amqp10 import Opaque, Symbol, encode_map
from segments.message import Message, MessageView
from streamd.broker.declared.rows import PermissionRow
from streamd.connections import message_delivery
from streamd.connections.amqp10 import delivery
from streamd.wire.amqp10 import performatives as p
from streamd.wire.amqp10.codec import encode_composite
from streamd.wire.amqp10.values import Array, Described, write_value
from streamd.wire.stream import commands as c
from streamd.wire.stream.publish import encode_sub_batch
from tests.support.amqp10 import (
    Amqp10Peer,
    Delivery,
    bodies,
    filters,
    numbers,
    open_peer,
)
from tests.support.server import OK, Harness


def offsets(found: list[Delivery]) -> list[int]:
    return [delivery.offset for delivery in found]


class TestAttaching:
    async def test_the_answer(self, peer: Amqp10Peer) -> None:
        found = await peer.attach_receiver(snd_settle_mode=p.MIXED, max_message_size=77)
        assert (found.name, found.handle, found.role) == ("in1", 1, p.SENDER)
        assert found.snd_settle_mode == p.UNSETTLED
        assert found.initial_delivery_count == 0
        assert found.max_message_size == 77
        assert found.target == p.Target("me")
        source = found.source
        assert source.address == "/queues/s"
        assert source.distribution_mode == "copy"
        assert source.default_outcome.raw == encode_composite(p.Released())
        assert len(source.outcomes) == 4
        assert set(found.offered_capabilities) == {
            "AMQP_FILTEX_PROP_V1_0",
            "AMQP_FILTEX_SQL_V1_0",
        }
        await peer.silence()

    async def test_filters_in_effect_come_back_as_they_were(self, peer: Amqp10Peer) -> None:
        good = filters(stream_offset_spec="first").raw[3:]
        bad = filters(stream_filter=5, no_such="x").raw[3:]
        found = await peer.attach_receiver(
            filter=Opaque(encode_map([good, b"", bad, b"", b"", b""]))
        )
        assert found.source.filter == filters(stream_offset_spec="first")
        found = await peer.attach_receiver(filter=None, handle=2)
        assert found.source.filter is None

    @pytest.mark.parametrize(
        ("address", "condition", "text"),
        [
            ("/queues/missing", "amqp:not-found", "no queue 'missing' in vhost '/'"),
            ("/exchanges/amq.direct", "amqp:invalid-field", "Attach refused"),
            ("s", "amqp:invalid-field", "Attach refused"),
            (None, "amqp:not-implemented", ""),
        ],
    )
    async def test_what_is_not_there(
        self, peer: Amqp10Peer, address: Any, condition: str, text: str
    ) -> None:
        found = await peer.attach_receiver(address)
        assert found.source is None
        await peer.detached(condition, text)

    async def test_a_place_that_is_none(self, peer: Amqp10Peer) -> None:
        await peer.attach_receiver(filter=filters(stream_offset_spec="soon"))
        await peer.detached("amqp:precondition-failed", "failed consuming from stream")

    @pytest.mark.parametrize("raw", [b"\x45", b"\xa1\x01x"])
    async def test_filters_that_are_no_map(self, peer: Amqp10Peer, raw: bytes) -> None:
        await peer.attach_receiver(filter=Opaque(raw))
        await peer.detached("amqp:invalid-field")

    @pytest.mark.parametrize(
        "fields",
        [
            {"source": p.Source("/queues/s", dynamic=True)},
            {"source": p.Source(dynamic=True, capabilities=(Symbol("rabbitmq:volatile-queue"),))},
            {"rcv_settle_mode": p.SECOND},
            {"source": p.Source("/queues/s", outcomes=(Symbol("amqp:other:list"),))},
            {"unsettled": {b"x": None}},
            {"incomplete_unsettled": True},
        ],
    )
    async def test_what_streams_cannot_do(self, peer: Amqp10Peer, fields: dict[str, Any]) -> None:
        attach = p.Attach("x", 3, p.RECEIVER, source=p.Source("/queues/s"), target=p.Target("me"))
        await peer.send(attach._replace(**fields))
        assert (await peer.expect(p.Attach)).source is None
        await peer.detached("amqp:not-implemented")

    async def test_who_settles_second_where_all_is_settled(self, peer: Amqp10Peer) -> None:
        modes = {"snd_settle_mode": p.SETTLED, "rcv_settle_mode": p.SECOND}
        found = await peer.attach_receiver(**modes)
        assert found.source is not None
        assert (found.snd_settle_mode, found.rcv_settle_mode) == (p.SETTLED, p.SECOND)

    async def test_a_right_that_is_lost(self, peer: Amqp10Peer, server: Harness) -> None:
        await peer.consume()
        directory = server.server.directory
        await directory.put_permission(PermissionRow("guest", "/", ".*", ".*", "other"))
        await peer.session_ends("amqp:unauthorized-access")

    async def test_it_is_listed(self, peer: Amqp10Peer, server: Harness) -> None:
        await peer.consume(7)
        await peer.silence()
        (connection,) = (c for c in server.server.connections if c.protocol == "AMQP 1-0")
        (facts,) = connection.consumers()
        assert (facts.stream, facts.credit) == ("s", 7)
        assert facts.properties["identifier"] == "in1"
        await peer.send(p.Detach(1, True))
        await peer.expect(p.Detach)
        assert not connection.consumers()


class TestDelivery:
    async def test_what_a_delivery_is(self, peer: Amqp10Peer) -> None:
        await peer.store(*numbers(3))
        await peer.consume()
        found = await peer.deliveries(3)
        assert bodies(found) == [b"0", b"1", b"2"]
        assert [one.transfer.delivery_id for one in found] == [0, 1, 2]
        assert [one.transfer.delivery_tag for one in found] == [
            bytes((0, 0, 0, n)) for n in range(3)
        ]
        assert {(one.transfer.settled, one.transfer.message_format) for one in found} == {
            (False, 0)
        }
        assert offsets(found) == [0, 1, 2]
        assert found[0].annotations["x-routing-key"] == "s"

    async def test_a_link_for_what_is_settled(self, peer: Amqp10Peer) -> None:
        await peer.store(*numbers(1))
        found = await peer.attach_receiver(snd_settle_mode=p.SETTLED)
        assert found.snd_settle_mode == p.SETTLED
        await peer.credit(1)
        assert (await peer.deliveries(1))[0].transfer.settled

    async def test_large_ones_are_cut(self, server: Harness) -> None:
        await (await server.peer()).create("s")
        writer = await open_peer(server)
        sizes = [0, 1, 300, 480, 490, 500, 600, 5_000]
        await writer.store(*(Message(b"x" * size) for size in sizes))
        reader = await open_peer(server, max_frame_size=512)
        await reader.consume()
        assert [len(body) for body in bodies(await reader.deliveries(len(sizes)))] == sizes

    async def test_messages_of_stream_clients(self, peer: Amqp10Peer, server: Harness) -> None:
        """Their own annotations stay; sub-batches are unpacked, compressed ones left out."""
        other = await server.peer()
        await other.declare("s")
        plain = [
            Message(b"a", annotations={"x-own": 1}).encode(),
            b"no message",
            Message().encode(),
        ]
        await other.publish(plain)
        await other.confirmed(3)
        for kind, pack in ((0, bytes), (1, gzip.compress)):
            inner = _entries(*plain[:2])
            batch = encode_sub_batch(9 + kind, 2, kind, len(inner), pack(inner))
            await other.send(c.Publish(1, 1, batch))
            await other.confirmed(1)
        await peer.consume()
        found = await peer.deliveries(5)
        assert bodies(found) == [b"a", b"no message", b"", b"a", b"no message"]
        assert offsets(found) == [0, 1, 2, 3, 4]
        assert found[0].annotations["x-own"] == 1
        assert all(MessageView(one.raw).is_amqp for one in found)
        await peer.silence()

    async def test_new_ones_come_at_once(self, peer: Amqp10Peer) -> None:
        await peer.consume(filter=None)
        await peer.attach_sender()
        for n in range(3):
            before = trio.current_time()
            await peer.publish(Message(b"%d" % n))
            assert bodies(await peer.deliveries(1)) == [b"%d" % n]
            assert trio.current_time() == before

    async def test_two_links_take_turns(self, peer: Amqp10Peer) -> None:
        await peer.store(*numbers(500))
        for handle in (1, 2):
            await peer.consume(handle=handle)
        found = await peer.deliveries(1_000)
        for handle in (1, 2):
            own = [one for one in found if one.transfer.handle == handle]
            assert offsets(own) == list(range(500))
        assert [one.transfer.delivery_id for one in found] == list(range(1_000))


def _entries(*raws: bytes) -> bytes:
    return b"".join(len(raw).to_bytes(4, "big") + raw for raw in raws)


class TestCredit:
    async def test_no_more_than_was_given(self, peer: Amqp10Peer) -> None:
        await peer.store(*numbers(20))
        await peer.attach_receiver()
        await peer.silence()
        await peer.credit(3)
        assert offsets(await peer.deliveries(3)) == [0, 1, 2]
        await peer.silence()
        await peer.credit(4, delivery_count=1)  # what the client has not seen counts
        assert offsets(await peer.deliveries(2)) == [3, 4]
        await peer.silence()
        await peer.credit(1, delivery_count=0)
        await peer.silence()

    async def test_the_window_of_the_client(self, peer: Amqp10Peer) -> None:
        await peer.store(*numbers(20))
        await peer.attach_receiver()
        await peer.credit(10, window=3)
        assert len(await peer.deliveries(3)) == 3
        await peer.silence()
        await peer.send(p.Flow(3, 2, 0, 1))  # of the session alone
        assert offsets(await peer.deliveries(2)) == [3, 4]
        await peer.silence()
        await peer.send(p.Flow(4, 3, 0, 1))
        assert offsets(await peer.deliveries(2)) == [5, 6]

    async def test_a_window_smaller_than_a_message(self, server: Harness) -> None:
        await (await server.peer()).create("s")
        peer = await open_peer(server, max_frame_size=512)
        await peer.store(Message(b"x" * 600), Message(b"after"))
        await peer.attach_receiver()
        raw = b""
        await peer.credit(10, window=0)
        for number in range(2):
            await peer.send(p.Flow(number, 1, 0, 1))
            _, transfer, payload = await peer.receive()
            raw += payload
            assert transfer.more == (number == 0)
            await peer.silence()
        assert MessageView(raw).body == b"x" * 600
        await peer.silence()

    async def test_what_waits_for_windows_is_bounded(
        self, server: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Beyond that, no session gets another message; each goes on when there is room again."""
        monkeypatch.setattr(delivery, "HELD_BYTES", 500)
        await (await server.peer()).create("s")
        peer = await open_peer(server, max_frame_size=512)
        await peer.store(Message(b"x" * 1_200))
        await peer.attach_receiver()
        await peer.begin(1)
        await peer.attach_receiver(channel=1)
        await peer.credit(10, window=1)
        assert (await peer.expect(p.Transfer)).more
        await peer.credit(10, channel=1)
        await peer.silence()
        await peer.send(p.Flow(1, 100, 0, 1))
        found = [await peer.receive() for _ in range(5)]
        assert [channel for channel, _, _ in found] == [0, 0, 1, 1, 1]

    async def test_a_window_that_leads(self, peer: Amqp10Peer) -> None:
        await peer.send(p.Flow(1, 1, 0, 1))
        await peer.session_ends("amqp:session:window-violation")

    async def test_an_echo(self, peer: Amqp10Peer) -> None:
        await peer.store(*numbers(20))
        await peer.attach_receiver()
        await peer.credit(0, echo=True)
        flow = await peer.expect(p.Flow)
        assert (flow.handle, flow.link_credit, flow.delivery_count) == (1, 0, 0)
        assert flow.available == 20


class TestDraining:
    async def test_what_is_there_is_sent_first(self, peer: Amqp10Peer) -> None:
        await peer.store(*numbers(5))
        await peer.attach_receiver()
        await peer.credit(1_000, drain=True)
        assert offsets(await peer.deliveries(5)) == list(range(5))
        flow = await peer.expect(p.Flow)
        assert (flow.drain, flow.link_credit, flow.delivery_count) == (True, 0, 1_000)
        await peer.store(*numbers(1))
        await peer.silence()
        await peer.credit(1, delivery_count=1_000, next_incoming_id=5)
        assert offsets(await peer.deliveries(1)) == [5]

    async def test_more_than_fits_into_the_credit(self, peer: Amqp10Peer) -> None:
        await peer.store(*numbers(5))
        await peer.attach_receiver()
        await peer.credit(2, drain=True)
        assert len(await peer.deliveries(2)) == 2
        flow = await peer.expect(p.Flow)
        assert (flow.drain, flow.link_credit, flow.delivery_count) == (True, 0, 2)

    async def test_behind_a_filter(self, peer: Amqp10Peer) -> None:
        """Who drains is told once everything was looked through."""
        await peer.store(*(Message(b"x", application_properties={"n": n}) for n in range(300)))
        sql = _described("sql-filter", "amqp:sql-filter", "n = 299")
        first = filters(stream_offset_spec="first").raw[3:]
        await peer.attach_receiver(filter=Opaque(encode_map([first, b"", *sql])))
        await peer.credit(100, drain=True)
        assert offsets(await peer.deliveries(1)) == [299]
        assert (await peer.expect(p.Flow)).delivery_count == 100

    async def test_with_no_credit(self, peer: Amqp10Peer) -> None:
        await peer.attach_receiver()
        await peer.credit(0, drain=True)
        assert (await peer.expect(p.Flow)).drain


def _described(key: str, descriptor: str, value: Any) -> list[bytes]:
    return [write_value(Symbol(key)), write_value(Described(Symbol(descriptor), value))]


class TestSettling:
    async def test_who_does_not_settle_is_told_that_we_do(self, peer: Amqp10Peer) -> None:
        await peer.store(*numbers(5))
        await peer.consume()
        await peer.deliveries(5)
        await peer.send(p.Disposition(p.RECEIVER, 0, 3, False, p.Accepted()))
        found = await peer.expect(p.Disposition)
        assert found == p.Disposition(p.SENDER, 0, 3, True, p.Accepted())
        await peer.send(p.Disposition(p.RECEIVER, 0, 3, False, p.Accepted()))  # no more
        await peer.send(p.Disposition(p.RECEIVER, 4, None, True, p.Released()))
        await peer.send(p.Disposition(p.RECEIVER, 1_000, 5_000_000, False, p.Accepted()))
        await peer.silence()

    @pytest.mark.parametrize("last", [24_999, 30_000, (1 << 31) - 1])
    async def test_many_at_once(self, peer: Amqp10Peer, server: Harness, last: int) -> None:
        """In steps; what is not there is not looked for."""
        other = await server.peer()
        await other.declare("s")
        for at in range(0, 25_000, 5_000):
            await other.store([b"x"] * 5_000, first_id=1 + at)
        await peer.attach_receiver()
        await peer.credit(25_000, window=1_000_000)
        await peer.deliveries(25_000)
        await peer.send(p.Disposition(p.RECEIVER, 1, last, False, p.Accepted()))
        found = await peer.expect(p.Disposition)
        assert (found.first, found.last, found.settled) == (1, last, True)
        traffic = server.host.find("s").traffic
        assert traffic.messages_acknowledged == 24_999
        await peer.send(p.Disposition(p.RECEIVER, 0, 0, False, p.Accepted()))
        await peer.expect(p.Disposition)

    async def test_what_nobody_has_to_settle(self, peer: Amqp10Peer) -> None:
        """Nor is it looked for: as much in steps would take minutes."""
        await peer.send(*[p.Disposition(p.RECEIVER, 0, (1 << 31) - 1, False)] * 1_000)
        await peer.attach_sender()

    async def test_a_state_that_is_not_known(self, peer: Amqp10Peer) -> None:
        state = Described(Symbol("what"), [])
        await peer.send(p.Disposition(p.RECEIVER, 0, 0, True, state))
        await peer.session_ends("amqp:invalid-field")

    async def test_messages_are_counted(self, peer: Amqp10Peer, server: Harness) -> None:
        await peer.store(*numbers(5))
        await peer.consume()
        await peer.deliveries(5)
        await peer.send(p.Disposition(p.RECEIVER, 0, 4, True, p.Accepted()))
        await peer.silence()
        traffic = server.host.find("s").traffic
        assert traffic.messages_acknowledged == traffic.messages_out_amqp == 5


class TestFilters:
    async def test_places_to_begin(self, peer: Amqp10Peer) -> None:
        await peer.store(*numbers(10))
        for handle, place in enumerate(("first", "last", 4, 0), 1):
            await peer.attach_receiver(handle=handle, filter=filters(stream_offset_spec=place))
            await peer.credit(1, handle)
            (found,) = await peer.deliveries(1)
            assert found.offset == {"first": 0, "last": 0, 4: 4, 0: 0}[place]

    async def test_filter_values(self, peer: Amqp10Peer) -> None:
        marked = [
            Message(b"%d" % n, annotations={"x-stream-filter-value": "ab"[n % 2]})
            for n in range(10)
        ]
        await peer.store(*marked, Message(b"none"))
        await peer.consume(filter=filters(stream_offset_spec="first", stream_filter=["a"]))
        assert bodies(await peer.deliveries(5)) == [b"0", b"2", b"4", b"6", b"8"]
        await peer.silence()

    async def test_sql_with_a_filter_property(self, server: Harness) -> None:
        other = await server.peer()
        await other.create("s", stream_filter_property="kind")
        peer = await open_peer(server)
        for n in range(20):
            kind = {"kind": "rare" if n == 7 else "usual"}
            await peer.store(Message(b"%d" % n, application_properties=kind))
        sql = _described("sql-filter", "amqp:sql-filter", "kind = 'rare'")
        first = filters(stream_offset_spec="first").raw[3:]
        await peer.consume(filter=Opaque(encode_map([first, b"", *sql])))
        assert bodies(await peer.deliveries(1)) == [b"7"]
        await peer.silence()
        traffic = server.host.find("s").traffic
        assert traffic.flow().skipped_chunks >= 10, "chunks are ruled out without being read"


class TestEnds:
    async def test_a_stream_that_is_deleted(self, peer: Amqp10Peer, server: Harness) -> None:
        await peer.consume()
        assert await (await server.peer()).code(c.Delete, "s") == OK
        await peer.detached("amqp:resource-deleted", "queue 's' in vhost '/'")
        await peer.send(p.Detach(1, True))
        await peer.silence()

    async def test_nobody_waits_for_what_it_has_not_settled(
        self, peer: Amqp10Peer, server: Harness
    ) -> None:
        await peer.store(*numbers(3))
        for end in (p.Detach(1, True), p.End()):
            await peer.consume()
            await peer.deliveries(3)
            (connection,) = (c for c in server.server._running if hasattr(c, "_chosen"))
            count = connection._chosen._session._unacked  # type: ignore[attr-defined]
            assert count.count == 3
            await peer.send(end)
            await peer.find(type(end))
            assert count.count == 0

    async def test_what_many_messages_leave_is_forgotten_in_turns(
        self, peer: Amqp10Peer, server: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All at once, half a million would hold everybody up."""
        monkeypatch.setattr(delivery, "MOST_SETTLED", 2)
        turns: list[int] = []
        tidy = delivery.OutgoingSession.tidy

        def counted(sending: delivery.OutgoingSession) -> bool:
            before = sending.num_unsettled
            has_more = tidy(sending)
            turns.append(before - sending.num_unsettled)
            return has_more

        monkeypatch.setattr(delivery.OutgoingSession, "tidy", counted)
        await peer.store(*numbers(5))
        await peer.consume()
        await peer.deliveries(5)
        await peer.attach_receiver("/queues/s", 2)
        await peer.credit(1, 2, next_incoming_id=5)
        await peer.deliveries(1)
        assert await (await server.peer()).code(c.Delete, "s") == OK
        await peer.detached("amqp:resource-deleted")
        await peer.detached("amqp:resource-deleted")
        await peer.silence()
        assert turns == [2, 2, 1, 1]

    async def test_many_attach_and_detach(self, peer: Amqp10Peer, server: Harness) -> None:
        await peer.store(*numbers(3))
        for _ in range(20):
            await peer.consume()
            await peer.deliveries(3)
            await peer.send(p.Detach(1, True))
            await peer.expect(p.Detach)
        stream = server.host.find("s")
        assert not stream.traffic.has_readers

    async def test_what_is_held_is_dropped_and_read_again(
        self, peer: Amqp10Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(message_delivery, "HELD_BYTES", 10_000)
        await peer.store(*numbers(300))
        for handle in range(1, 6):
            await peer.attach_receiver(handle=handle)
            await peer.credit(7, handle)
        found = await peer.deliveries(35)
        for handle in range(1, 6):
            own = [one.offset for one in found if one.transfer.handle == handle]
            assert own == list(range(7))


def test_arrays_of_symbols() -> None:
    assert write_value(Array((Symbol("a"),)))[0] == 0xF0
