"""AMQP 0-9-1: streams declared, bound and deleted as queues; exchanges and where messages go."""

from pathlib import Path

import pytest

from streamd.operations.argument_kinds import Age
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import method_frame
from streamd.wire.amqp091.values import Field, text_field
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.fields import Pair
from tests.support.amqp import (
    STREAM,
    AmqpPeer,
    Delivery,
    declare,
    exchange,
    fields,
    open_peer,
)
from tests.support.server import OK, Harness, harness

pytestmark = pytest.mark.usefixtures("server")


@pytest.fixture
async def amqp(server: Harness) -> AmqpPeer:
    return await open_peer(server)


class TestDeclaring:
    async def test_with_arguments(self, server: Harness, amqp: AmqpPeer) -> None:
        answer = await amqp.declare(
            "s",
            x_max_length_bytes=2_000_000,
            x_max_age="10D",
            x_stream_max_segment_size_bytes=5_000_000,
            x_stream_filter_size_bytes=32,
            x_stream_filter_property="kind",
            x_stream_filter_error_rate=Field("f", 0.01),
            x_stream_chunk_max_records=Field("s", 200),
            x_stream_key_properties="a,properties.to",
            x_stream_tier=False,
            x_stream_local_max_length_bytes=1_000,
            x_stream_local_max_age="1D",
            x_whatever="ignored",
        )
        assert answer == m.QueueDeclareOk("s", 0, 0)
        assert server.host.arguments("s") == {
            "max-length-bytes": 2_000_000,
            "max-age": Age("10D", 864_000),
            "stream-max-segment-size-bytes": 5_000_000,
            "stream-filter-size-bytes": 32,
            "stream-filter-property": "kind",
            "stream-filter-derive": True,
            "stream-filter-error-rate": 0.01,
            "stream-chunk-max-records": 200,
            "stream-key-properties": "a,properties.to",
            "stream-tier": False,
            "stream-local-max-length-bytes": 1_000,
            "stream-local-max-age": Age("1D", 86_400),
        }
        stream = server.host.find("s")
        await stream.ready()
        assert stream.log.policy.key_properties == ("a", "properties.to")

    async def test_ignored_arguments_are_logged(
        self, amqp: AmqpPeer, caplog: pytest.LogCaptureFixture
    ) -> None:
        for _ in range(2):  # said once
            await amqp.declare("s", x_stream_filter_size_byts=64, x_stream_filter_size_bytes=32)
        (record,) = [r for r in caplog.records if "is ignored" in r.getMessage()]
        assert record.getMessage() == (
            "stream s: the argument 'x-stream-filter-size-byts' is ignored"
        )

    @pytest.mark.parametrize("tag", "bBsuIilL")
    async def test_integers_of_all_widths_are_the_same(self, amqp: AmqpPeer, tag: str) -> None:
        await amqp.declare("s", x_stream_filter_size_bytes=Field("l", 100))
        await amqp.declare("s", x_stream_filter_size_bytes=Field(tag, 100))

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ({"x_stream_filter_size_bytes": 15}, "Invalid value for x-stream-filter-size-bytes"),
            ({"x_stream_filter_size_bytes": 256}, "Invalid value for x-stream-filter-size-bytes"),
            ({"x_stream_filter_size_bytes": "128"}, "invalid arg 'x-stream-filter-size-bytes'"),
            (
                {"x_stream_filter_size_bytes": Field("d", 32.0)},
                "invalid arg 'x-stream-filter-size-bytes' for queue 's' in vhost '/'",
            ),
            ({"x_stream_filter_size_bytes": True}, "expected an integer"),
            ({"x_max_length_bytes": -1}, "invalid arg 'x-max-length-bytes'"),
            ({"x_stream_max_segment_size_bytes": 3_000_000_001}, "3,000,000,000"),
            ({"x_initial_cluster_size": 0}, "x-initial-cluster-size"),
            ({"x_queue_leader_locator": "here"}, "x-queue-leader-locator"),
            ({"x_max_age": 5}, "invalid arg 'x-max-age'"),
            *(
                ({"x_max_age": age}, "x-max-age")
                for age in ("1A", "D", "0D", "-1D", "1y", "1D2", "")
            ),
            ({"x_stream_tier": "yes"}, "x-stream-tier"),
            ({"x_stream_tier": 1}, "invalid arg 'x-stream-tier'"),
            ({"x_stream_local_max_length_bytes": "1"}, "x-stream-local-max-length-bytes"),
            ({"x_stream_local_max_age": 5}, "invalid arg 'x-stream-local-max-age'"),
            ({"x_stream_local_max_age": "1A"}, "x-stream-local-max-age"),
            ({"x_stream_filter_error_rate": "2"}, "x-stream-filter-error-rate"),
            ({"x_stream_filter_contract": "strict"}, "stream-filter-property"),
            (
                {"x_overflow": "drop-head"},
                (
                    "invalid arg 'x-overflow' for queue 's' in vhost '/' of queue type "
                    "rabbit_stream_queue"
                ),
            ),
            ({"x_single_active_consumer": True}, "rabbit_stream_queue"),
            ({"x_queue_type": "quorum"}, "streams only"),
            ({"x_queue_type": Field("I", 5)}, "invalid arg 'x-queue-type'"),
        ],
    )
    async def test_arguments_that_cannot_be(
        self, server: Harness, amqp: AmqpPeer, arguments: dict[str, object], text: str
    ) -> None:
        await amqp.channel_fails(declare("s", STREAM | fields(**arguments)), 406, text)
        assert not server.host.has_stream("s")

    @pytest.mark.parametrize(
        ("name", "flags", "code"),
        [
            ("s", {"durable": False}, 406),
            ("s", {"durable": False, "exclusive": True}, 406),
            ("s", {"exclusive": True}, 406),
            ("s", {"auto_delete": True}, 406),
            ("", {}, 406),
            ("amq.s", {}, 403),
        ],
    )
    async def test_flags_and_names_that_cannot_be(
        self, amqp: AmqpPeer, name: str, flags: dict[str, bool], code: int
    ) -> None:
        await amqp.channel_fails(declare(name, **flags), code)

    async def test_without_a_type(self, amqp: AmqpPeer) -> None:
        await amqp.channel_fails(declare("s", {}), 406, "x-queue-type=stream")
        await amqp.open()
        await amqp.channel_fails(declare("s", {}, durable=False), 406, "x-queue-type=stream")

    async def test_the_type_can_be_the_default(self, tmp_path: Path) -> None:
        async with harness(tmp_path / "other", default_queue_type="stream") as server:
            amqp = await open_peer(server)
            await amqp.ask(declare("s", {}), m.QueueDeclareOk)
            assert server.host.has_stream("s")

    async def test_again(self, amqp: AmqpPeer) -> None:
        await amqp.declare("s", x_max_age="60m", x_stream_filter_size_bytes=20)
        await amqp.declare("s", x_max_age="1h", x_stream_filter_size_bytes=20)
        longer = fields(x_max_age="120m", x_stream_filter_size_bytes=20)
        for table, received in ((STREAM, "none"), (STREAM | longer, "the value '120m'")):
            reason = f"received {received} but current is the value '60m'"
            await amqp.channel_fails(declare("s", table), 406, reason)
            await amqp.open()
        await amqp.channel_fails(declare("s", {}), 406)
        await amqp.open()
        await amqp.channel_fails(declare("s", exclusive=True), 405)
        await amqp.open()
        await amqp.channel_fails(declare("s", auto_delete=True), 406, "'auto_delete'")
        await amqp.open()
        await amqp.channel_fails(declare("s", durable=False), 406, "'durable'")

    async def test_passive(self, amqp: AmqpPeer) -> None:
        await amqp.declare("s")
        await amqp.store("s", *[b"m"] * 100)
        answer = await amqp.ask(declare("s", {}, passive=True, exclusive=True), m.QueueDeclareOk)
        assert answer == m.QueueDeclareOk("s", 100, 0)
        await amqp.channel_fails(declare("missing", passive=True), 404, "no queue 'missing'")

    async def test_line_ends_in_names(self, amqp: AmqpPeer) -> None:
        await amqp.channel_fails(declare("a\r\nb"), 406, "has the character U+000D")

    async def test_a_stream_of_a_stream_client_is_the_same(
        self, server: Harness, amqp: AmqpPeer
    ) -> None:
        peer = await server.peer()
        await peer.create("s", max_age="1h")
        await amqp.declare("s", x_max_age="1h")
        await amqp.declare("t", x_max_age="1h")
        again = await peer.code(c.Create, "t", (Pair("max-age", "60m"),))
        assert again == ResponseCode.STREAM_EXISTS

    async def test_users_of_the_stream_protocol_are_told_of_the_end(
        self, server: Harness, amqp: AmqpPeer
    ) -> None:
        await amqp.declare("s")
        publisher, consumer = await server.peer(), await server.peer()
        await publisher.declare("s")
        await consumer.subscribe("s")
        await amqp.ask(m.QueueDelete(0, "s", False, False, False), m.QueueDeleteOk)
        for peer in (publisher, consumer):
            gone = c.MetadataUpdate(ResponseCode.STREAM_NOT_AVAILABLE, "s")
            assert await peer.next() == gone
            await peer.silence()
        await publisher.publish([b"x"])
        refusal = await publisher.expect(c.PublishError)
        assert refusal.faults == ((1, ResponseCode.PUBLISHER_DOES_NOT_EXIST),)

    async def test_deleted_and_declared_again(self, amqp: AmqpPeer) -> None:
        for _ in range(20):
            assert await amqp.declare("s") == m.QueueDeclareOk("s", 0, 0)
            await amqp.store("s", b"one")
            deleted = await amqp.ask(m.QueueDelete(0, "s", True, True, False), m.QueueDeleteOk)
            assert deleted.messages == 0
        await amqp.ask(m.QueueDelete(0, "s", False, False, False), m.QueueDeleteOk)

    async def test_the_last_declared_one_is_meant_by_no_name(self, amqp: AmqpPeer) -> None:
        await amqp.channel_fails(m.QueueDelete(0, "", False, False, False), 404)
        await amqp.open()
        await amqp.declare("s")
        await amqp.ask(m.QueueDelete(0, "", False, False, False), m.QueueDeleteOk)
        await amqp.channel_fails(declare("s", passive=True), 404)

    @pytest.mark.parametrize("method", [m.QueuePurge(0, "s", False), m.BasicGet(0, "s", False)])
    async def test_what_streams_cannot_do(self, server: Harness, method: m.BasicGet) -> None:
        amqp = await open_peer(server)
        await amqp.channel_fails(method, 404)
        await amqp.open()
        await amqp.declare("s")
        await amqp.connection_fails(method, 540)

    async def test_without_an_answer(self, amqp: AmqpPeer) -> None:
        await amqp.send(declare("s")._replace(nowait=True))
        await amqp.ask(declare("s", passive=True), m.QueueDeclareOk)
        await amqp.send(m.QueueDelete(0, "s", False, False, True))
        await amqp.channel_fails(declare("s", passive=True)._replace(nowait=True), 404)


class TestExchanges:
    async def received(self, amqp: AmqpPeer, queue: str) -> list[bytes]:
        """All that is in a queue."""
        count = (await amqp.ask(declare(queue, passive=True), m.QueueDeclareOk)).messages
        if not count:
            return []
        await amqp.open(5)
        await amqp.consume(queue, channel=5, prefetch=1000, x_stream_offset="first")
        found = [delivery.body for delivery in await amqp.deliveries(count)]
        await amqp.ask(m.ChannelClose(200, "", 0, 0), m.ChannelCloseOk, 5)
        return found

    async def bind(
        self, amqp: AmqpPeer, queue: str, source: str, key: str = "", **args: object
    ) -> None:
        await amqp.ask(m.QueueBind(0, queue, source, key, False, fields(**args)), m.QueueBindOk)

    @pytest.mark.parametrize(
        ("kind", "keys", "sent", "expected"),
        [
            ("direct", ["a", "b"], ["a", "b", "c", "a.b"], ["a", "b"]),
            ("fanout", ["a"], ["a", "b", ""], ["a", "b", ""]),
            ("topic", ["a.*", "#.z", "#.z.#"], ["a.b", "a", "z", "q.z.w"], ["a.b", "z", "q.z.w"]),
        ],
    )
    async def test_kinds(
        self, amqp: AmqpPeer, kind: str, keys: list[str], sent: list[str], expected: list[str]
    ) -> None:
        await amqp.declare("q")
        for name in ("x", f"amq.{kind}"):
            if name == "x":
                await amqp.ask(exchange("x", kind), m.ExchangeDeclareOk)
            for key in keys:
                await self.bind(amqp, "q", name, key)
        for key in sent:
            await amqp.store(key, key.encode(), exchange="x")
        assert await self.received(amqp, "q") == [key.encode() for key in expected]

    async def test_headers(self, amqp: AmqpPeer) -> None:
        for queue, mode in (("all", "all"), ("any", "any")):
            await amqp.declare(queue)
            await self.bind(amqp, queue, "amq.headers", x_match=mode, a=1, b="two")
        for body, headers in (
            (b"1", fields(a=1, b="two")),
            (b"2", fields(a=Field("b", 1))),
            (b"3", fields(b="three")),
        ):
            await amqp.store("", body, exchange="amq.headers", headers=headers)
        assert await self.received(amqp, "all") == [b"1"]
        assert await self.received(amqp, "any") == [b"1", b"2"]

    async def test_copies(self, amqp: AmqpPeer) -> None:
        for queue in ("a", "b", "c"):
            await amqp.declare(queue)
        copies = {
            "CC": Field("A", [text_field("b"), Field("I", 5)]),
            "BCC": Field("A", [text_field("c")]),
        }
        await amqp.store("a", b"body", headers=copies)
        for queue in ("a", "b", "c"):
            assert await self.received(amqp, queue) == [b"body"]
        await amqp.consume("c", x_stream_offset="first")
        (found,) = await amqp.deliveries(1)
        assert set(found.properties.headers or {}) == {"CC", "x-stream-offset"}
        await amqp.channel_fails(amqp.message("a", headers=fields(CC="b")), 406)

    async def test_one_exchange_after_another(self, amqp: AmqpPeer) -> None:
        await amqp.declare("q")
        for name in ("x", "y", "lost"):
            arguments = {"alternate_exchange": "lost"} if name == "y" else {}
            await amqp.ask(
                exchange(name, "fanout" if name != "y" else "direct", **arguments),
                m.ExchangeDeclareOk,
            )
        for pair in (("y", "x"), ("x", "y")):  # in a circle
            await amqp.ask(m.ExchangeBind(0, *pair, "k", False, {}), m.ExchangeBindOk)
        await self.bind(amqp, "q", "y", "k")
        await self.bind(amqp, "q", "lost")
        await amqp.store("k", b"through", exchange="x")
        await amqp.store("other", b"saved", exchange="y")
        assert await self.received(amqp, "q") == [b"through", b"saved"]
        await amqp.ask(m.ExchangeUnbind(0, "y", "x", "k", False, {}), m.ExchangeUnbindOk)
        await amqp.store("k", b"nowhere", exchange="x")
        assert len(await self.received(amqp, "q")) == 2

    async def test_unbound(self, amqp: AmqpPeer) -> None:
        await amqp.declare("q")
        await self.bind(amqp, "q", "amq.direct", "k")
        await self.bind(amqp, "q", "amq.direct", "k")
        await amqp.ask(m.QueueUnbind(0, "q", "amq.direct", "k", {}), m.QueueUnbindOk)
        await amqp.ask(m.QueueUnbind(0, "q", "amq.direct", "unknown", {}), m.QueueUnbindOk)
        await amqp.store("k", b"nowhere", exchange="amq.direct")
        assert await self.received(amqp, "q") == []

    async def test_declared_again(self, amqp: AmqpPeer) -> None:
        await amqp.ask(exchange("x"), m.ExchangeDeclareOk)
        await amqp.ask(exchange("x", anything="else"), m.ExchangeDeclareOk)
        await amqp.ask(exchange("x", passive=True), m.ExchangeDeclareOk)
        others = (
            exchange("x", "topic"),
            exchange("x", durable=False),
            exchange("x", auto_delete=True),
            exchange("x", internal=True),
            exchange("x", alternate_exchange="y"),
        )
        for other in others:
            await amqp.channel_fails(other, 406, "inequivalent arg")
            await amqp.open()

    @pytest.mark.parametrize(
        ("method", "code"),
        [
            (exchange("x", "odd"), 406),
            (exchange("amq.new"), 403),
            (exchange(""), 403),
            (exchange("missing", passive=True), 404),
            (m.ExchangeDelete(0, "amq.direct", False, False), 403),
            (m.ExchangeDelete(0, "", False, False), 403),
            (m.QueueBind(0, "missing", "amq.direct", "", False, {}), 404),
            (m.QueueBind(0, "q", "missing", "", False, {}), 404),
            (m.QueueBind(0, "q", "", "", False, {}), 403),
            (m.ExchangeBind(0, "amq.direct", "missing", "", False, {}), 404),
        ],
    )
    async def test_refused(self, amqp: AmqpPeer, method: object, code: int) -> None:
        await amqp.declare("q")
        await amqp.channel_fails(method, code)

    async def test_deleted(self, amqp: AmqpPeer) -> None:
        await amqp.declare("q")
        await amqp.ask(exchange("x"), m.ExchangeDeclareOk)
        await self.bind(amqp, "q", "x", "k")
        await amqp.channel_fails(m.ExchangeDelete(0, "x", True, False), 406)
        await amqp.open()
        for _ in range(2):
            await amqp.ask(m.ExchangeDelete(0, "x", False, False), m.ExchangeDeleteOk)
        await amqp.channel_fails(amqp.message("k", exchange="x"), 404)

    async def test_internal_and_auto_delete(self, amqp: AmqpPeer) -> None:
        await amqp.declare("q")
        await amqp.ask(exchange("x", internal=True, auto_delete=True), m.ExchangeDeclareOk)
        await self.bind(amqp, "q", "x", "k")
        await amqp.channel_fails(amqp.message("k", exchange="x"), 403)
        await amqp.open()
        await amqp.ask(m.QueueUnbind(0, "q", "x", "k", {}), m.QueueUnbindOk)
        await amqp.channel_fails(exchange("x", passive=True), 404)

    async def test_a_super_stream_is_a_direct_exchange(
        self, server: Harness, amqp: AmqpPeer
    ) -> None:
        peer = await server.peer()
        created = await peer.code(c.CreateSuperStream, "super", ("p0", "p1"), ("a", "b"), ())
        assert created == OK
        await amqp.store("b", b"body", exchange="super")
        assert await self.received(amqp, "p1") == [b"body"]
        assert await self.received(amqp, "p0") == []
        await amqp.ask(exchange("made", x_super_stream=True), m.ExchangeDeclareOk)
        await amqp.declare("part")
        await self.bind(amqp, "part", "made", "k", x_stream_partition_order=0)
        found = await peer.ask(c.Partitions, "made")
        assert found.streams == ("part",)

    async def test_an_exchange_and_a_super_stream_cannot_have_one_name(
        self, server: Harness, amqp: AmqpPeer
    ) -> None:
        peer = await server.peer()
        await amqp.ask(exchange("taken", "topic"), m.ExchangeDeclareOk)
        code = await peer.code(c.CreateSuperStream, "taken", ("p",), ("a",), ())
        assert code == ResponseCode.STREAM_EXISTS
        assert not list(server.host.super_streams.rows())

    async def test_a_deleted_super_stream_leaves_no_bindings(
        self, server: Harness, amqp: AmqpPeer
    ) -> None:
        peer = await server.peer()
        for _ in range(2):
            assert await peer.code(c.CreateSuperStream, "super", ("p",), ("a",), ()) == OK
            assert len(server.host.topology.bindings_from("super")) == 1
            bind = m.ExchangeBind(0, "amq.fanout", "super", "a", False, {})
            await amqp.ask(bind, m.ExchangeBindOk)
            assert await peer.code(c.DeleteSuperStream, "super") == OK

    async def test_deleting_a_queue_takes_its_bindings(self, amqp: AmqpPeer) -> None:
        for _ in range(2):
            await amqp.declare("q")
            await amqp.publish("k", b"lost", exchange="amq.direct", mandatory=True)
            returned = await amqp.expect(Delivery)
            assert returned.method.code == 312
            await self.bind(amqp, "q", "amq.direct", "k")
            await amqp.send_bytes(method_frame(1, m.QueueDelete(0, "q", False, False, False)))
            await amqp.expect(m.QueueDeleteOk)
