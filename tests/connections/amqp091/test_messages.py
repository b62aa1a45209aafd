"""AMQP 0-9-1: messages in and out; confirms, credit, offsets, filters, selectors, order."""

import gzip
import random
from collections.abc import Callable
from typing import Any

import pytest
import trio

from segments.codec import FILE_HEADER_SIZE, decode_chunk_header
from segments.message import Message, MessageView
from segments.selector import parse_sql
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import method_frame
from streamd.wire.amqp091.values import Field
from streamd.wire.stream import commands as c
from streamd.wire.stream.publish import encode_sub_batch
from tests.support.amqp import AmqpPeer, Delivery, connect, declare, fields, open_peer
from tests.support.server import Harness


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


def bodies(found: list[Delivery]) -> list[bytes]:
    return [delivery.body for delivery in found]


def offsets(found: list[Delivery]) -> list[int]:
    return [(delivery.properties.headers or {})["x-stream-offset"].value for delivery in found]


@pytest.fixture
async def amqp(server: Harness) -> AmqpPeer:
    peer = await open_peer(server)
    await peer.declare("s")
    return peer


class TestPublishing:
    async def test_without_confirms(self, amqp: AmqpPeer) -> None:
        await amqp.publish("s", b"one")
        await amqp.silence()
        assert (await amqp.declare("s")).messages == 1

    async def test_each_message_is_confirmed_once(self, amqp: AmqpPeer) -> None:
        await amqp.confirm()
        await amqp.confirm()
        open_tags: set[int] = set()
        for first in range(1, 100, 10):
            await amqp.publish("s", *numbers(10))
            open_tags |= set(range(first, first + 10))
        while open_tags:
            ack = await amqp.expect(m.BasicAck)
            assert ack.delivery_tag in open_tags, "also several are acked up to an open one"
            acked = (
                {t for t in open_tags if t <= ack.delivery_tag}
                if ack.multiple
                else {ack.delivery_tag}
            )
            open_tags -= acked
        await amqp.silence()

    async def test_what_goes_nowhere(self, amqp: AmqpPeer) -> None:
        await amqp.publish("missing", b"lost")
        await amqp.publish("missing", b"back", mandatory=True, headers=fields(a=1), message_id="m")
        returned = await amqp.expect(Delivery)
        assert returned.method == m.BasicReturn(312, "NO_ROUTE", "", "missing")
        assert returned.body == b"back"
        assert returned.properties.headers == fields(a=1)
        assert returned.properties.message_id == "m"
        await amqp.confirm()
        await amqp.publish("missing", b"", mandatory=True, headers=fields(BCC=["x"], a=1))
        returned = await amqp.expect(Delivery)  # before its ack
        assert returned.properties.headers == fields(a=1)
        assert await amqp.expect(m.BasicAck) == m.BasicAck(1, False)
        await amqp.publish("missing", b"lost")
        assert await amqp.expect(m.BasicAck) == m.BasicAck(2, False)

    async def test_returns_come_before_later_answers(self, amqp: AmqpPeer) -> None:
        await amqp.send_bytes(
            amqp.message("missing", b"x", mandatory=True) + method_frame(1, declare("s"))
        )
        await amqp.expect(Delivery)
        await amqp.expect(m.QueueDeclareOk)

    async def test_a_message_for_several_is_confirmed_when_all_have_it(
        self, amqp: AmqpPeer
    ) -> None:
        await amqp.declare("t")
        for queue in ("s", "t"):
            await amqp.ask(m.QueueBind(0, queue, "amq.fanout", "", False, {}), m.QueueBindOk)
        await amqp.confirm()
        await amqp.publish("", b"both", exchange="amq.fanout")
        assert await amqp.expect(m.BasicAck) == m.BasicAck(1, False)
        await amqp.silence()
        for queue in ("s", "t"):
            assert (await amqp.declare(queue)).messages == 1

    @pytest.mark.parametrize(
        ("properties", "text"),
        [
            ({"expiration": "soon"}, "expiration"),
            ({"expiration": "-1"}, "expiration"),
            ({"expiration": "315360000001"}, "expiration"),
            ({"user_id": "other"}, "user_id"),
            ({"headers": fields(CC="x")}, "CC"),
            ({"headers": fields(BCC=1)}, "BCC"),
            ({"headers": {"x-stream-filter-value": Field("x", b"v")}}, "x-stream-filter-value"),
            ({"headers": {"x-stream-filter-value": Field("l", 5)}}, "x-stream-filter-value"),
            ({"headers": {"x-stream-filter-value": Field("S", b"\xff")}}, "x-stream-filter-value"),
            ({"headers": {"x-stream-filter-value": Field("S", b"v" * 4097)}}, "4096"),
            ({"type": "amqp-1.0"}, "amqp-1.0"),
            ({"content_type": "ä"}, "ASCII"),
        ],
    )
    async def test_properties_that_cannot_be(
        self, amqp: AmqpPeer, properties: dict[str, Any], text: str
    ) -> None:
        await amqp.channel_fails(amqp.message("s", b"body", **properties), 406, text)
        await amqp.open()
        assert (await amqp.declare("s")).messages == 0

    async def test_an_exchange_that_is_not_there(self, amqp: AmqpPeer) -> None:
        await amqp.send_bytes(amqp.message("k", b"body", exchange="none"))
        closed = await amqp.expect(m.ChannelClose)
        assert (closed.code, closed.class_id, closed.method_id) == (404, 60, 40)

    async def test_immediate(self, amqp: AmqpPeer) -> None:
        good = amqp.message("s", b"kept")
        await amqp.connection_fails(
            good + amqp.message("s", b"x").replace(b"\x01s\x00", b"\x01s\x02", 1), 540
        )

    async def test_a_message_too_large(self, amqp: AmqpPeer) -> None:
        await amqp.publish("s", bytes((16 << 20) + 1))
        closed = await amqp.expect(m.ChannelClose)
        assert closed.code == 406

    async def test_a_large_one(self, amqp: AmqpPeer) -> None:
        body = bytes(range(256)) * 20_000
        await amqp.store("s", body, b"", b"small")
        await amqp.consume("s", x_stream_offset="first")
        assert bodies(await amqp.deliveries(3)) == [body, b"", b"small"]

    async def test_small_frames(self, server: Harness) -> None:
        small = await open_peer(server, tune=(10, 4096, 0))
        await small.declare("s")
        body = bytes(4088 * 3)
        await small.store("s", body, body[:4088], body[:4089])
        await small.consume("s", x_stream_offset="first")
        assert list(map(len, bodies(await small.deliveries(3)))) == [12_264, 4088, 4089]

    async def test_interleaved_on_two_channels(self, amqp: AmqpPeer) -> None:
        await amqp.open(2)
        one = _frames(amqp.message("s", b"one"))
        two = _frames(amqp.message("s", b"two", channel=2))
        await amqp.send_bytes(
            b"".join(part for pair in zip(one, two, strict=True) for part in pair)
        )
        await amqp.consume("s", x_stream_offset="first")
        assert set(bodies(await amqp.deliveries(2))) == {b"one", b"two"}

    async def test_a_deleted_queue_leaves_nothing_unconfirmed(self, amqp: AmqpPeer) -> None:
        await amqp.confirm()
        await amqp.open(2)
        data = b"".join(amqp.message("s", body) for body in numbers(50))
        delete = method_frame(2, m.QueueDelete(0, "s", False, False, False))
        await amqp.send_bytes(data + delete + amqp.message("s", b"late", mandatory=True))
        acked: set[int] = set()
        returned = 0
        while len(acked) < 51:
            found = await amqp.next()
            if isinstance(found, m.BasicAck):
                acked |= (
                    set(range(1, found.delivery_tag + 1))
                    if found.multiple
                    else {found.delivery_tag}
                )
            returned += isinstance(found, Delivery)
        assert returned == 1

    @pytest.mark.parametrize("able", [("connection.blocked",), ()])
    async def test_a_full_disk(
        self, server: Harness, able: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Clients that announced it get a notice; the others just wait."""
        amqp = await open_peer(server, capabilities=able)
        await amqp.declare("s")
        await amqp.confirm()
        make_room = await server.refuse("s", monkeypatch)
        await amqp.publish("s", b"one")
        await amqp.silence(0.5)
        await amqp.publish("s", b"two")
        if able:
            assert await amqp.expect(m.ConnectionBlocked) == m.ConnectionBlocked("low on disk")
        await amqp.silence(10)
        make_room()
        assert await amqp.expect(m.BasicAck) == m.BasicAck(2, True)
        if able:
            await amqp.expect(m.ConnectionUnblocked)

    async def test_the_value_of_the_filter_property_is_the_filter_value(
        self, server: Harness, amqp: AmqpPeer
    ) -> None:
        await amqp.declare("f", x_stream_filter_property="kind")
        for kind in ("a", "b", "a"):
            await amqp.store("f", *numbers(5), headers=fields(kind=kind))
        peer = await server.peer()
        await peer.subscribe("f", filter__0="a")
        assert len(await peer.bodies(10)) == 10
        await peer.silence()
        await amqp.consume("f", x_stream_offset="first", x_stream_sql="kind = 'b'")
        assert offsets(await amqp.deliveries(5)) == [5, 6, 7, 8, 9]
        await amqp.silence()

    async def test_several_filter_properties(self, server: Harness, amqp: AmqpPeer) -> None:
        await amqp.declare("f", x_stream_filter_property="kind,properties.subject,[a,b]")
        for kind, other in (("a", "x"), ("a", "y"), ("b", "x")):
            await amqp.store(
                "f", *numbers(2), headers={**fields(kind=kind), "a,b": Field("S", other.encode())}
            )
        sql = "kind = 'a' AND [a,b] = 'x'"
        await amqp.consume("f", x_stream_offset="first", x_stream_sql=sql)
        assert offsets(await amqp.deliveries(2)) == [0, 1]
        await amqp.silence()
        peer = await server.peer()
        third = {"filter_property__0": "a,b", "filter_property__0__value__0": "x"}
        await peer.subscribe("f", **third)
        assert [(await peer.chunk()).header.chunk_id for _ in range(2)] == [0, 4]
        await peer.silence()

    async def test_a_strict_contract(self, amqp: AmqpPeer) -> None:
        strict = {"x_stream_filter_property": "kind", "x_stream_filter_contract": "strict"}
        await amqp.declare("f", **strict)
        await amqp.store("f", b"x", headers=fields(kind="a", x_stream_filter_value="a"))
        wrong = amqp.message("f", b"x", headers=fields(kind="a", x_stream_filter_value="b"))
        await amqp.channel_fails(wrong, 406, "property kind")


def _frames(data: bytes) -> list[bytes]:
    found = []
    while data:
        end = 8 + int.from_bytes(data[3:7], "big")
        found.append(data[:end])
        data = data[end:]
    return found


class TestConsuming:
    @pytest.mark.parametrize("start", [0, 1, 499, 998, 999])
    async def test_from_an_offset(self, amqp: AmqpPeer, start: int) -> None:
        await amqp.store("s", *numbers(1000))
        await amqp.consume("s", prefetch=1000, x_stream_offset=start)
        found = await amqp.deliveries(1000 - start)
        assert offsets(found) == list(range(start, 1000))
        assert bodies(found) == numbers(1000)[start:]
        await amqp.silence()

    async def test_an_offset_that_is_not_there_yet(self, amqp: AmqpPeer) -> None:
        await amqp.store("s", *numbers(5))
        await amqp.consume("s", x_stream_offset=8)
        await amqp.store("s", *numbers(5, 5))
        assert bodies(await amqp.deliveries(2)) == [b"8", b"9"]

    @pytest.mark.parametrize("offset", [None, "next", Field("T", 1_700_000_060)])
    async def test_only_what_is_new(self, amqp: AmqpPeer, offset: Any) -> None:
        await amqp.store("s", *numbers(100))
        await amqp.consume("s", **({} if offset is None else {"x_stream_offset": offset}))
        await amqp.store("s", *numbers(100, 100))
        assert offsets(await amqp.deliveries(100)) == list(range(100, 200))

    @pytest.mark.parametrize("offset", ["first", "100s", "1h", Field("T", 1_699_999_940), 0])
    async def test_everything(self, amqp: AmqpPeer, offset: Any) -> None:
        await amqp.store("s", *numbers(100))
        await amqp.consume("s", x_stream_offset=offset)
        assert offsets(await amqp.deliveries(100)) == list(range(100))

    async def test_from_the_last_chunk(self, amqp: AmqpPeer) -> None:
        for first in range(0, 30, 10):
            await amqp.store("s", *numbers(10, first))
        await amqp.consume("s", x_stream_offset="last")
        first = offsets(await amqp.deliveries(1))[0]
        assert first >= 20

    @pytest.mark.parametrize(
        "offset",
        ["", "5000", "1y", "soon", True, Field("d", 1.0), Field("V", None), -1, Field("F", {})],
    )
    async def test_invalid_offsets(self, amqp: AmqpPeer, offset: Any) -> None:
        await self.refused(amqp, 406, "x-stream-offset", x_stream_offset=offset)

    async def refused(self, amqp: AmqpPeer, code: int, text: str, **arguments: Any) -> None:
        await amqp.ask(m.BasicQos(0, 10, True), m.BasicQosOk)
        method = m.BasicConsume(0, "s", "c", False, False, False, False, fields(**arguments))
        await amqp.channel_fails(method, code, text)

    async def test_without_a_prefetch(self, amqp: AmqpPeer) -> None:
        for no_ack in (False, True):  # in this order of checks
            method = m.BasicConsume(0, "s", "c", False, no_ack, False, False, {})
            await amqp.channel_fails(method, 406, "prefetch")
            await amqp.open()

    async def test_without_acks(self, amqp: AmqpPeer) -> None:
        await amqp.ask(m.BasicQos(0, 10, False), m.BasicQosOk)
        await amqp.connection_fails(m.BasicConsume(0, "s", "c", False, True, False, False, {}), 540)

    async def test_a_prefetch_in_bytes(self, amqp: AmqpPeer) -> None:
        await amqp.connection_fails(m.BasicQos(1, 10, False), 540)

    async def test_foreign_arguments(self, amqp: AmqpPeer) -> None:
        text = (
            "invalid arg 'x-priority' for queue 's' in vhost '/' of queue type rabbit_stream_queue"
        )
        method = m.BasicConsume(0, "s", "c", False, False, False, False, fields(x_priority=1))
        await amqp.channel_fails(method, 406, text)

    async def test_a_tag_twice(self, amqp: AmqpPeer) -> None:
        await amqp.consume("s", tag="c")
        await amqp.connection_fails(
            m.BasicConsume(0, "s", "c", False, False, False, False, {}), 530
        )

    async def test_a_queue_that_is_not_there(self, amqp: AmqpPeer) -> None:
        method = m.BasicConsume(0, "none", "", False, False, False, False, {})
        await amqp.channel_fails(method, 404)

    async def test_tags_of_the_server(self, amqp: AmqpPeer) -> None:
        tags = {await amqp.consume("s", tag="") for _ in range(3)}
        assert len(tags) == 3

    async def test_credit(self, amqp: AmqpPeer) -> None:
        await amqp.store("s", *numbers(100))
        await amqp.consume("s", prefetch=2, x_stream_offset="first")
        await amqp.deliveries(2)
        await amqp.silence()
        await amqp.send(m.BasicAck(1, False))
        assert bodies(await amqp.deliveries(1)) == [b"2"]
        await amqp.silence()
        for tag in range(3, 60, 2):
            await amqp.send(m.BasicAck(tag, True))
            (one, two) = await amqp.deliveries(2)
            assert (one.method.delivery_tag, two.method.delivery_tag) == (tag + 1, tag + 2)
            await amqp.silence()

    @pytest.mark.parametrize(
        "settle",
        [
            lambda tag: m.BasicAck(tag, False),
            lambda tag: m.BasicNack(tag, False, True),
            lambda tag: m.BasicReject(tag, True),
            lambda tag: m.BasicReject(tag, False),
            lambda _: m.BasicAck(0, True),
            lambda _: m.BasicRecoverAsync(True),
        ],
    )
    async def test_all_that_can_become_of_a_message_is_the_same(
        self, amqp: AmqpPeer, settle: Callable[[int], Any]
    ) -> None:
        await amqp.store("s", *numbers(4))
        await amqp.consume("s", prefetch=1, x_stream_offset="first")
        for n in range(4):
            (found,) = await amqp.deliveries(1)
            assert found.method.delivery_tag == n + 1
            assert not found.method.redelivered
            await amqp.send(settle(n + 1))
        await amqp.silence()
        assert (await amqp.declare("s")).messages == 4

    async def test_a_later_tag_alone_gives_one_credit(self, amqp: AmqpPeer) -> None:
        await amqp.store("s", *numbers(20))
        await amqp.consume("s", prefetch=5, x_stream_offset="first")
        await amqp.deliveries(5)
        await amqp.send(m.BasicAck(5, False))
        await amqp.deliveries(1)
        await amqp.silence()

    @pytest.mark.parametrize(
        "ack", [m.BasicAck(7, False), m.BasicAck(0, False), m.BasicAck(7, True)]
    )
    async def test_unknown_tags(self, amqp: AmqpPeer, ack: m.BasicAck) -> None:
        await amqp.channel_fails(ack, 406, "unknown delivery tag")

    async def test_a_tag_settled_twice(self, amqp: AmqpPeer) -> None:
        await amqp.store("s", b"one")
        await amqp.consume("s", x_stream_offset="first")
        await amqp.deliveries(1)
        await amqp.send(m.BasicAck(1, False))
        await amqp.channel_fails(m.BasicAck(1, False), 406, "unknown delivery tag 1")

    async def test_recover(self, amqp: AmqpPeer) -> None:
        await amqp.store("s", *numbers(4))
        await amqp.consume("s", prefetch=2, x_stream_offset="first")
        await amqp.deliveries(2)
        await amqp.ask(m.BasicRecover(True), m.BasicRecoverOk)
        await amqp.deliveries(2)
        await amqp.connection_fails(m.BasicRecover(False), 540)

    async def test_cancelled(self, amqp: AmqpPeer) -> None:
        await amqp.store("s", *numbers(4))
        await amqp.consume("s", prefetch=2, x_stream_offset="first")
        await amqp.deliveries(2)
        await amqp.ask(m.BasicCancel("c", False), m.BasicCancelOk)
        await amqp.ask(m.BasicCancel("unknown", False), m.BasicCancelOk)
        await amqp.send(m.BasicReject(1, True))
        await amqp.send(m.BasicNack(2, True, True))
        await amqp.silence()
        await amqp.consume("s", tag="c", x_stream_offset=3)
        assert bodies(await amqp.deliveries(1)) == [b"3"]

    async def test_tags_are_counted_over_all_consumers_of_a_channel(self, amqp: AmqpPeer) -> None:
        await amqp.declare("t")
        for queue in ("s", "t"):
            await amqp.store(queue, *numbers(3))
            await amqp.consume(queue, tag=queue, prefetch=2, x_stream_offset="first")
        found = await amqp.deliveries(4)
        assert [delivery.method.delivery_tag for delivery in found] == [1, 2, 3, 4]
        await amqp.send(m.BasicAck(4, True))
        found = await amqp.deliveries(2)
        assert {delivery.method.tag for delivery in found} == {"s", "t"}

    @pytest.mark.parametrize("able", [("consumer_cancel_notify",), ()])
    async def test_a_deleted_queue_cancels(self, server: Harness, able: tuple[str, ...]) -> None:
        amqp = await open_peer(server, capabilities=able)
        await amqp.declare("s")
        await amqp.consume("s")
        other = await open_peer(server)
        await other.ask(m.QueueDelete(0, "s", False, False, False), m.QueueDeleteOk)
        if able:
            assert await amqp.expect(m.BasicCancel) == m.BasicCancel("c", True)
            await amqp.send(m.BasicCancelOk("c"))
        await amqp.silence()
        await amqp.declare("s")
        await amqp.consume("s", tag="c")

    async def test_it_is_listed(self, server: Harness, amqp: AmqpPeer) -> None:
        await amqp.store("s", *numbers(4))
        await amqp.consume("s", prefetch=2, x_stream_offset="first")
        await amqp.deliveries(2)
        (connection,) = server.server.connections
        (facts,) = connection.consumers()
        assert (facts.stream, facts.credit, facts.consumed) == ("s", 0, 2)
        assert facts.properties["identifier"] == "c"
        await amqp.ask(m.BasicCancel("c", False), m.BasicCancelOk)
        assert connection.consumers() == []

    async def test_a_connection_that_reads_nothing_holds_up_nobody(self, server: Harness) -> None:
        slow = connect(server, reads_slowly=True)
        await slow.log_in()
        await slow.open()
        await slow.declare("s")
        await slow.store("s", *[bytes(10_000)] * 100)
        await slow.consume("s", prefetch=1000, x_stream_offset="first")
        other = await open_peer(server)
        await other.consume("s", prefetch=1000, x_stream_offset="first")
        assert len(await other.deliveries(100)) == 100

    async def test_what_a_stream_client_has_written(self, server: Harness, amqp: AmqpPeer) -> None:
        peer = await server.peer()
        await peer.declare("s")
        message = b"\0Su\xa0\x02"
        await peer.store([message + b"%02d" % n for n in range(3)], 1)
        inner = b"".join(
            len(raw).to_bytes(4, "big") + raw for raw in (message + b"%02d" % n for n in (3, 4, 5))
        )
        for number, (compression, data) in enumerate(((0, inner), (1, gzip.compress(inner)))):
            batch = encode_sub_batch(10 + number, 3, compression, len(inner), data)
            await peer.send(c.Publish(1, 1, batch))
            await peer.confirmed(1)
        await peer.store([message + b"09", b"no message at all"], 20)
        await amqp.consume("s", prefetch=2, x_stream_offset="first")
        pairs = []
        for _ in range(4):
            pairs.append(await amqp.deliveries(2))
            await amqp.silence()
            await amqp.send(m.BasicAck(0, True))
        found = [delivery for pair in pairs for delivery in pair]
        expected = [b"00", b"01", b"02", b"03", b"04", b"05", b"09", b"no message at all"]
        assert bodies(found) == expected  # as in RabbitMQ: compressed ones are skipped
        assert offsets(found) == [0, 1, 2, 3, 4, 5, 9, 10]
        assert all(list(f.properties.headers or {}) == ["x-stream-offset"] for f in found)
        assert all((f.method.exchange, f.method.key) == ("", "s") for f in found)

    async def test_an_uncompressed_sub_batch_from_its_middle(
        self, server: Harness, amqp: AmqpPeer
    ) -> None:
        peer = await server.peer()
        await peer.declare("s")
        inner = b"".join(b"\0\0\0\7\0Su\xa0\x02%02d" % n for n in range(5))
        await peer.send(c.Publish(1, 1, encode_sub_batch(1, 5, 0, len(inner), inner)))
        await peer.confirmed(1)
        await amqp.consume("s", x_stream_offset=3)
        assert bodies(await amqp.deliveries(2)) == [b"03", b"04"]


class TestFilters:
    @pytest.fixture
    async def fruits(self, amqp: AmqpPeer) -> AmqpPeer:
        """Five chunks: apples, bananas, none, apples, and one of all kinds."""
        for value in ("apple", "banana", None, "apple"):
            headers = {} if value is None else fields(x_stream_filter_value=value)
            await amqp.store("s", *numbers(5), headers=headers)
        await amqp.open(8)
        await amqp.confirm(8)
        mixed = ("apple", "banana", "cherry", "")
        data = b"".join(
            amqp.message(
                "s", value.encode(), channel=8, headers=fields(x_stream_filter_value=value)
            )
            for value in mixed
        )
        await amqp.send_bytes(data)
        while (await amqp.expect(m.BasicAck)).delivery_tag < len(mixed):
            pass
        return amqp

    @pytest.mark.parametrize(
        ("wanted", "unfiltered", "places"),
        [
            ("banana", False, [*range(5, 10), 21]),
            (["banana"], False, [*range(5, 10), 21]),
            (["banana", "cherry"], False, [*range(5, 10), 21, 22]),
            (["apple", 5], False, [*range(5), *range(15, 20), 20]),
            ("banana", True, [*range(5, 15), 21, 23]),
            ("none", False, []),
        ],
    )
    async def test_values(
        self, fruits: AmqpPeer, wanted: Any, unfiltered: bool, places: list[int]
    ) -> None:
        """Exactly what was asked for, though one chunk holds messages of all kinds."""
        arguments = {"x_stream_filter": wanted, "x_stream_match_unfiltered": unfiltered}
        await fruits.consume("s", x_stream_offset="first", **arguments)
        assert offsets(await fruits.deliveries(len(places))) == places
        await fruits.silence()

    @pytest.mark.parametrize("wanted", [5, True, Field("x", b"apple"), Field("F", {})])
    async def test_an_invalid_filter_asks_for_everything(
        self, fruits: AmqpPeer, wanted: Any
    ) -> None:
        await fruits.consume("s", x_stream_offset="first", x_stream_filter=wanted)
        assert len(await fruits.deliveries(24)) == 24

    async def test_ignored_arguments_are_logged(
        self, fruits: AmqpPeer, caplog: pytest.LogCaptureFixture
    ) -> None:
        arguments = {
            "x_stream_filters": "apple",
            "x_stream_filter": ["apple", 5],
            "x_stream_match_unfiltered": "true",
        }
        await fruits.consume("s", x_stream_offset="first", **arguments)
        assert [record.getMessage().split("': ")[1] for record in caplog.records] == [
            (
                "the argument 'x-stream-filters' is ignored; those of consumers are "
                "x-stream-offset, x-stream-filter, x-stream-match-unfiltered, x-stream-sql, "
                "x-stream-tags"
            ),
            "x-stream-filter has a value of type l, which is ignored; expected strings",
            "x-stream-match-unfiltered is of type S, which counts as false; expected a boolean",
        ]
        caplog.clear()
        await fruits.consume("s", tag="d", **{f"x_stream_{n}": n for n in range(100)})
        assert len(caplog.records) == 4

    @pytest.mark.parametrize("wanted", [[], [5], "", ["apple", ""]])
    async def test_filters_without_a_value(self, amqp: AmqpPeer, wanted: Any) -> None:
        await TestConsuming().refused(amqp, 406, "x-stream-filter", x_stream_filter=wanted)

    async def test_skipped_messages_use_no_credit(self, fruits: AmqpPeer) -> None:
        await fruits.consume("s", prefetch=1, x_stream_offset="first", x_stream_filter="cherry")
        assert bodies(await fruits.deliveries(1)) == [b"cherry"]
        assert (await fruits.declare("s")).messages == 24

    async def test_at_the_end_of_the_stream(self, fruits: AmqpPeer) -> None:
        await fruits.consume("s", x_stream_offset="next", x_stream_filter="cherry")
        await fruits.store("s", b"no", headers=fields(x_stream_filter_value="apple"))
        await fruits.store("s", b"yes", headers=fields(x_stream_filter_value="cherry"))
        assert bodies(await fruits.deliveries(1)) == [b"yes"]
        await fruits.silence()

    async def test_sql(self, amqp: AmqpPeer) -> None:
        for n in range(50):
            await amqp.publish(
                "s", b"%d" % n, headers=fields(n=n, name=f"n{n % 3}", TAGS=f"t{n % 5}")
            )
        await amqp.consume(
            "s", tag="a", x_stream_offset="first", x_stream_sql="n > 40 AND name = 'n1'"
        )
        assert bodies(await amqp.deliveries(3)) == [b"43", b"46", b"49"]
        await amqp.consume("s", tag="b", x_stream_offset=45, x_stream_tags="t1 || t2")
        assert bodies(await amqp.deliveries(2)) == [b"46", b"47"]
        await amqp.silence()
        await amqp.publish("s", b"new", headers=fields(n=1, TAGS="t2"))
        (found,) = await amqp.deliveries(1)
        assert found.method.tag == "b"

    async def test_a_selector_and_a_filter(self, fruits: AmqpPeer) -> None:
        both = {"x_stream_filter": "apple", "x_stream_sql": "missing IS NULL"}
        await fruits.consume("s", x_stream_offset=18, **both)
        assert offsets(await fruits.deliveries(3)) == [18, 19, 20]
        await fruits.silence()

    @pytest.mark.parametrize(
        "asked",
        [
            {"x_stream_tags": "t3 || t4"},
            {"x_stream_sql": "kind = 'k1' AND TAGS IN ('t1', 't2')"},
            {"x_stream_sql": "kind <> 'k1' AND NOT TAGS = 't2' AND n < 50"},
            {"x_stream_sql": "kind IS NULL"},
            {"x_stream_filter": "k1"},
            {"x_stream_filter": "k1", "x_stream_match_unfiltered": True, "x_stream_tags": "t1"},
            {"x_stream_filter": "none"},
        ],
    )
    @pytest.mark.parametrize("frame", [7, 60])
    async def test_columns_choose_what_messages_say(
        self, server: Harness, amqp: AmqpPeer, asked: dict[str, Any], frame: int
    ) -> None:
        """Chunks that are too small for columns, and such that have them, give the same."""
        await amqp.declare("f", x_stream_filter_property="kind,TAGS", x_stream_filter_derive="true")
        said = [
            {"TAGS": f"t{n % 5}", "n": n} | ({"kind": f"k{n % 3}"} if n % 4 else {})
            for n in range(60)
        ]
        raws = [Message(b"%d" % n, application_properties=it).encode() for n, it in enumerate(said)]
        peer = await server.peer()
        await peer.declare("f")
        for at in range(0, 60, frame):
            await peer.publish(raws[at : at + frame], first_id=at + 1)
            await peer.confirmed(len(raws[at : at + frame]))
        tags = asked.get("x_stream_tags", "t0||t1||t2||t3||t4").replace(" ", "").split("||")
        matcher = parse_sql(asked.get("x_stream_sql", "TRUE")).matcher()
        expected = [
            n
            for n, it in enumerate(said)
            if it["TAGS"] in tags
            and matcher.matches(raws[n])
            and (
                asked.get("x_stream_filter", it.get("kind")) == it.get("kind")
                or ("x_stream_match_unfiltered" in asked and "kind" not in it)
            )
        ]
        await amqp.consume("f", x_stream_offset="first", **asked)
        assert offsets(await amqp.deliveries(len(expected))) == expected
        await amqp.silence()

    @pytest.mark.parametrize("seed", range(6))
    async def test_what_is_delivered_is_what_a_scan_finds(
        self, server: Harness, amqp: AmqpPeer, seed: int
    ) -> None:
        """Chunks of any sizes and forms, with and without columns, sound ones and others."""
        chance = random.Random(seed)
        derives = chance.choice(["true", "false"])
        options = {"x_stream_filter_property": "kind,TAGS", "x_stream_filter_derive": derives}
        await amqp.declare("f", **options)
        peer = await server.peer()
        await peer.declare("f")
        raws: list[bytes] = []
        for _ in range(chance.randrange(4, 12)):
            some = [_any_message(chance) for _ in range(chance.choice([1, 7, 60, 200]))]
            if chance.random() < 0.2:
                inner = b"".join(len(raw).to_bytes(4, "big") + raw for raw in some)
                batch = encode_sub_batch(len(raws) + 1, len(some), 0, len(inner), inner)
                await peer.send(c.Publish(1, 1, batch))
                await peer.confirmed(1)
            else:
                kinds = [_kind(raw) for raw in some] if derives == "false" else None
                await peer.publish(some, first_id=len(raws) + 1, values=kinds)
                await peer.confirmed(len(some))
            raws += some
        if chance.random() < 0.5:
            _change_trailers(server, chance)
        for number, sql in enumerate(
            (
                "TAGS = 't1'",
                "kind = 'k1' AND TAGS IN ('t1', 't2')",
                "kind = 'k2' AND total > 500",
                "NOT TAGS = 't1' AND (kind <> 'k1' OR total < 100)",
                "kind IS NULL",
                "TAGS IS NULL OR total = 5",
            )
        ):
            matcher = parse_sql(sql).matcher()
            first = chance.choice([0, chance.randrange(len(raws))])
            expected = [n for n in matcher.select(raws) if n >= first]
            await amqp.consume(
                "f", tag=f"c{number}", prefetch=10_000, x_stream_offset=first, x_stream_sql=sql
            )
            found = await amqp.deliveries(len(expected))
            assert offsets(found) == expected
            bodies_expected = [MessageView(raws[n]).body for n in expected]
            assert bodies(found) == bodies_expected
            await amqp.silence()
            await amqp.ask(m.BasicCancel(f"c{number}", False), m.BasicCancelOk)

    @pytest.mark.parametrize(
        ("contract", "history", "expected"),
        [
            ("lenient", True, [b"mine"]),
            ("strict", False, [b"mine"]),
            ("lenient", False, [b"mine", b"none"]),
        ],
    )
    async def test_what_cannot_be_known_is_delivered(
        self, server: Harness, amqp: AmqpPeer, contract: str, history: bool, expected: list[bytes]
    ) -> None:
        """Stream clients give values beside their messages; the chunk's columns may tell them."""
        options = {
            "x_stream_filter_property": "kind",
            "x_stream_filter_contract": contract,
            "x_stream_filter_history": history,
        }
        await amqp.declare("f", **options)
        peer = await server.peer()
        raws = [
            Message(b"mine", application_properties={"kind": "a"}).encode(),
            Message(b"other", application_properties={"kind": "b"}).encode(),
            Message(b"none").encode(),
        ]
        await peer.declare("f")
        await peer.publish(raws, values=[b"a", b"b", None])
        await peer.confirmed(3)
        await amqp.consume("f", x_stream_offset="first", x_stream_filter="a")
        assert bodies(await amqp.deliveries(len(expected))) == expected
        await amqp.silence()

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ({"x_stream_sql": "n > and 5"}, "\n  n > and 5\n      ^^^"),
            ({"x_stream_sql": ""}, "x-stream-sql"),
            ({"x_stream_sql": 5}, "x-stream-sql"),
            ({"x_stream_sql": Field("S", b"\xff")}, "x-stream-sql"),
            ({"x_stream_tags": " || "}, "x-stream-tags"),
            ({"x_stream_sql": "n = 1", "x_stream_tags": "a"}, "exclude each other"),
        ],
    )
    async def test_invalid_selectors(
        self, amqp: AmqpPeer, arguments: dict[str, Any], text: str
    ) -> None:
        await TestConsuming().refused(amqp, 406, text, **arguments)

    @pytest.mark.parametrize("length", range(0, 400, 37))
    async def test_the_caret_stays_under_its_place(self, amqp: AmqpPeer, length: int) -> None:
        await amqp.ask(m.BasicQos(0, 10, True), m.BasicQosOk)
        sql = f"{'a' * (length + 1)} = 1 AND ? {'AND b = 2 ' * (length // 20)}"
        arguments = fields(x_stream_sql=sql)
        method = m.BasicConsume(0, "s", "c", False, False, False, False, arguments)
        text = await amqp.channel_fails(method, 406)
        _, shown, caret = text.rsplit("\n", 2)
        assert shown[caret.index("^")] == "?"


def _any_message(chance: random.Random) -> bytes:
    said: dict[str, Any] = {"total": chance.randrange(1000), "id": f"{chance.random()}"}
    if chance.random() < 0.8:
        said["TAGS"] = f"t{chance.randrange(5)}"
    if chance.random() < 0.8:
        said["kind"] = chance.choice(["k1", "k2", "k3", 5])
    return Message(b"%d" % chance.randrange(1 << 30), application_properties=said).encode()


def _kind(raw: bytes) -> bytes | None:
    kind = MessageView(raw).application_properties.get("kind")
    return None if kind is None else str(kind).encode()


def _change_trailers(server: Harness, chance: random.Random) -> None:
    """Change a bit in some trailers of a stream, each behind its chunk's data."""
    (path,) = (file for file in server.data.rglob("*.segment") if file.stat().st_size > 8)
    content = bytearray(path.read_bytes())
    at = FILE_HEADER_SIZE
    while at < len(content):
        header = decode_chunk_header(content, at)
        if header.trailer_size and chance.random() < 0.3:
            place = at + header.data_start + header.data_size
            content[place + chance.randrange(header.trailer_size)] ^= 1 << chance.randrange(8)
        at += header.total_size
    path.write_bytes(content)


async def test_nothing_comes_on_a_channel_after_its_close(server: Harness) -> None:
    amqp = await open_peer(server)
    await amqp.declare("s")
    await amqp.store("s", *numbers(200))
    await amqp.consume("s", prefetch=1000, x_stream_offset="first")
    await amqp.send(m.ChannelClose(200, "", 0, 0))
    while not isinstance(await amqp.next(), m.ChannelCloseOk):
        pass
    await amqp.silence()


async def test_the_server_stays_when_a_connection_breaks_anywhere(server: Harness) -> None:
    first = await open_peer(server)
    await first.declare("s")
    data = method_frame(1, m.ConfirmSelect(False)) + first.message(
        "s", bytes(100), headers=fields(a=1)
    )
    data += method_frame(1, m.BasicQos(0, 5, False))
    data += method_frame(1, m.BasicConsume(0, "s", "", False, False, False, False, {}))
    for cut in range(0, len(data), 7):
        peer = await open_peer(server)
        await peer.send_bytes(data[:cut])
        await peer.stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert len(server.server.connections) == 1
    await first.declare("s")
