"""AMQP 1.0: messages in: attaching, credit, windows, outcomes, and what is refused."""

import errno
import struct
from typing import Any

import pytest
import trio

from segments.amqp10 import Symbol, encode_map, encode_symbol, encode_text
from segments.amqp10_codes import Section
from segments.message import Message, MessageView, Properties
from streamd.broker.declared.rows import PermissionRow
from streamd.broker.traffic import ProtocolTraffic
from streamd.connections.amqp10.publisher import PublisherLink
from streamd.net.outbox import Outbox
from streamd.net.wakeup import Wakeup
from streamd.operations.errors import Reason
from streamd.operations.routing import ExchangeRow
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp10 import performatives as p, session as wire_session
from streamd.wire.amqp10.codec import FRAME_HEAD, decode_composite, frame
from streamd.wire.amqp10.session import MAX_MESSAGE_BYTES, Link, Session
from streamd.wire.amqp10.values import write_value
from streamd.wire.stream import commands as c
from tests.support.amqp import open_peer as open_amqp091
from tests.support.amqp10 import (
    ACCEPTED,
    RELEASED,
    Amqp10Peer,
    bodies,
    filters,
    kind_of,
    numbers,
)
from tests.support.server import OK, Harness


def section(code: int, value: bytes) -> bytes:
    return bytes((0, 0x53, code)) + value


def annotated(**values: Any) -> bytes:
    """A message with annotations."""
    items: list[bytes] = []
    for name, value in values.items():
        items += (encode_symbol(name.replace("_", "-")), write_value(value))
    return section(Section.MESSAGE_ANNOTATIONS, encode_map(items)) + Message(b"body").encode()


async def stored(server: Harness, stream: str = "s") -> list[bytes]:
    """All messages of a stream, as they are kept."""
    peer = await server.peer()
    await peer.subscribe(stream, credit=100)
    found: list[bytes] = []
    with trio.move_on_after(1):
        while True:
            found += (await peer.chunk()).bodies
    return found


class TestAttaching:
    async def test_the_answer(self, peer: Amqp10Peer) -> None:
        found = await peer.attach_sender(snd_settle_mode=p.UNSETTLED, initial_delivery_count=7)
        assert (found.name, found.handle, found.role) == ("out0", 0, p.RECEIVER)
        assert found.snd_settle_mode == p.UNSETTLED
        assert found.target == p.Target("/queues/s")
        assert found.source == p.Source("here")
        assert found.max_message_size == MAX_MESSAGE_BYTES
        flow = await peer.expect(p.Flow)
        assert (flow.handle, flow.link_credit, flow.delivery_count) == (0, 170, 7)
        assert flow.incoming_window == 400

    @pytest.mark.parametrize(
        ("address", "condition", "text"),
        [
            ("/queues/missing", "amqp:not-found", "no queue 'missing' in vhost '/'"),
            ("/exchanges/missing", "amqp:not-found", "no exchange 'missing' in vhost '/'"),
            ("/queues/", "amqp:invalid-field", "Attach refused"),
            ("/queues/%zz", "amqp:invalid-field", "Attach refused"),
            ("s", "amqp:invalid-field", "Attach refused"),
            (5, "amqp:invalid-field", "Attach refused"),
        ],
    )
    async def test_what_is_not_there(
        self, peer: Amqp10Peer, address: Any, condition: str, text: str
    ) -> None:
        found = await peer.attach_sender(address)
        await peer.link_is_refused(found._replace(source=None, target=None), condition, text)
        await peer.send(p.Detach(0, True))
        await peer.attach_sender()
        await peer.expect(p.Flow)

    async def test_an_internal_exchange(self, peer: Amqp10Peer, server: Harness) -> None:
        assert server.host.exchanges is not None
        row = ExchangeRow("/", "inside", "fanout", True, False, True, "")
        await server.host.exchanges.declare(row)
        await peer.send(p.Attach("x", 0, p.SENDER, target=p.Target("/exchanges/inside")))
        await peer.session_ends("amqp:unauthorized-access", "internal exchange 'inside'")

    @pytest.mark.parametrize(
        "fields",
        [
            {"target": p.Coordinator()},
            {"target": p.Target(dynamic=True)},
            {"unsettled": {b"x": None}},
            {"incomplete_unsettled": True},
            {"rcv_settle_mode": p.SECOND},
            {"source": p.Source(outcomes=(Symbol("amqp:other:list"),))},
        ],
    )
    async def test_what_streams_cannot_do(self, peer: Amqp10Peer, fields: dict[str, Any]) -> None:
        attach = p.Attach("x", 3, p.SENDER, target=p.Target("/queues/s"), initial_delivery_count=0)
        await peer.send(attach._replace(**fields))
        found = await peer.expect(p.Attach)
        assert found.target is None
        assert (await peer.detached("amqp:not-implemented")) is not None

    async def test_detached_in_order(self, peer: Amqp10Peer) -> None:
        for closed in (True, False):
            await peer.attach_sender()
            await peer.send(p.Detach(0, closed))
            assert (await peer.find(p.Detach)).closed is closed


class TestOutcomes:
    async def test_each_message_is_accepted_once(self, peer: Amqp10Peer, server: Harness) -> None:
        await peer.attach_sender()
        await peer.publish(*numbers(50))
        assert await peer.outcomes(50) == dict.fromkeys(range(50), ACCEPTED)
        assert [MessageView(raw).body for raw in await stored(server)] == [
            b"%d" % n for n in range(50)
        ]

    async def test_those_that_are_settled_get_none(self, peer: Amqp10Peer, server: Harness) -> None:
        await peer.attach_sender(snd_settle_mode=p.SETTLED)
        await peer.expect(p.Flow)
        await peer.publish(*numbers(5), settled=True)
        await peer.silence()
        assert len(await stored(server)) == 5

    async def test_to_where_nothing_is_bound(self, peer: Amqp10Peer) -> None:
        await peer.attach_sender("/exchanges/amq.direct/nobody")
        await peer.publish(*numbers(2))
        assert set((await peer.outcomes(2)).values()) == {RELEASED}

    async def test_the_bare_message_is_kept_as_it_is(
        self, peer: Amqp10Peer, server: Harness
    ) -> None:
        properties = section(Section.PROPERTIES, b"\xc0\x0a\x03\x40\x40\xa1\x05/to/x")
        free = section(Section.APPLICATION_PROPERTIES, b"\xc1\x09\x02\xa1\x01a\x70\0\0\0\1")
        body = section(Section.DATA, b"\xb0\0\0\0\1x") * 3
        footer = section(Section.FOOTER, b"\xc1\x01\0")
        bare = properties + free + body + footer
        header = section(Section.HEADER, b"\xc0\x04\x02\x41\x50\x07")
        trace = section(Section.DELIVERY_ANNOTATIONS, b"\xc1\x01\0")
        await peer.attach_sender()
        await peer.publish(header + trace + bare, bare)
        await peer.outcomes(2)
        first, second = await stored(server)
        assert first.endswith(bare)
        assert second.endswith(bare)
        annotations = section(
            Section.MESSAGE_ANNOTATIONS,
            encode_map(
                [
                    *(encode_symbol("x-exchange"), encode_text("")),
                    *(encode_symbol("x-routing-key"), encode_text("s")),
                ]
            ),
        )
        durable = section(Section.HEADER, b"\xc0\x07\x05\x41\x50\x07\x40\x41\x43")
        assert first == durable + annotations + bare
        not_durable = section(Section.HEADER, b"\xc0\x06\x05\x42\x40\x40\x41\x43")
        assert second == not_durable + annotations + bare

    async def test_annotations_of_the_server_cannot_be_forged(
        self, peer: Amqp10Peer, server: Harness
    ) -> None:
        await peer.attach_sender("/queues/s")
        await peer.publish(annotated(x_exchange="other", x_routing_key="no", x_mine=5))
        await peer.outcomes(1)
        (raw,) = await stored(server)
        assert raw.count(b"x-exchange") == raw.count(b"x-routing-key") == 1
        assert b"x-mine" in raw
        assert b"other" not in raw

    @pytest.mark.parametrize("value", ["x", Symbol("x")])
    async def test_a_filter_value(self, peer: Amqp10Peer, value: str) -> None:
        await peer.attach_sender()
        await peer.publish(annotated(x_stream_filter_value=value), Message(b"none"))
        await peer.outcomes(2)
        await peer.consume(filter=filters(stream_offset_spec="first", stream_filter="x"))
        assert bodies(await peer.deliveries(1)) == [b"body"]
        await peer.silence()

    @pytest.mark.parametrize("value", [5, b"bytes", "a\0b", "a" * 4_097])
    async def test_what_is_no_filter_value(self, peer: Amqp10Peer, value: Any) -> None:
        await peer.attach_sender()
        await peer.publish(annotated(x_stream_filter_value=value))
        await peer.detached("amqp:invalid-field", "x-stream-filter-value")


class TestCredit:
    async def test_it_is_granted_again(self, peer: Amqp10Peer) -> None:
        await peer.attach_sender()
        assert (await peer.expect(p.Flow)).link_credit == 170
        await peer.publish(*numbers(84))
        await peer.outcomes(84)
        await peer.silence()
        await peer.publish(*numbers(1))
        found = [await peer.next(), await peer.next()]
        (flow,) = [one for one in found if isinstance(one, p.Flow)]
        assert (flow.link_credit, flow.delivery_count) == (170, 85)

    def test_none_while_so_many_are_not_stored(self) -> None:
        link = Link(p.Attach("x", 0, p.SENDER))
        outbox = Outbox(Wakeup(), lambda _: 0)
        session = Session(0, p.Begin(None, 0, 1, 1))
        publisher = PublisherLink(session, link, None, outbox, lambda *_: None, ProtocolTraffic())
        ids = [publisher.expect(number) for number in range(170)]
        assert publisher.grant() == b""
        publisher.confirm(struct.pack(">170Q", *ids))
        assert link.credit == 170

    @pytest.mark.parametrize(
        ("stored", "gone", "expected"),
        [
            ([5], [5], p.Accepted),  # or else the stream that has it would get it twice
            ([], [5, 5], p.Released),
            ([5, 5], [], p.Accepted),
        ],
    )
    def test_one_of_two_streams_is_deleted(
        self, stored: list[int], gone: list[int], expected: type[Any]
    ) -> None:
        outbox = Outbox(Wakeup(), lambda _: 0)
        publisher = PublisherLink(
            Session(0, p.Begin(None, 0, 1, 1)),
            Link(p.Attach("x", 0, p.SENDER)),
            *(None, outbox, lambda *_: None, ProtocolTraffic()),
        )
        publisher.link.credit = 100
        publisher.expect(5, copies=2)
        for number in stored:
            publisher.confirm(struct.pack(">Q", number))
        for number in gone:
            publisher.refuse(struct.pack(">Q", number), Reason.NOT_FOUND)
        told, _ = decode_composite(outbox.take(), FRAME_HEAD.size)
        assert (told.first, type(told.state)) == (5, expected)
        assert not publisher.grant()
        assert not publisher._open
        assert not publisher._stored

    async def test_more_than_was_granted(self, peer: Amqp10Peer, server: Harness) -> None:
        await peer.attach_sender()
        await peer.expect(p.Flow)
        await peer.publish(*numbers(171), settled=True)
        await peer.detached("amqp:link:transfer-limit-exceeded")
        assert len(await stored(server)) == 170
        await peer.publish(*numbers(3), settled=True)  # dropped until the detach is answered
        await peer.send(p.Detach(0, True))
        await peer.attach_sender()
        await peer.expect(p.Flow)

    async def test_the_window_is_filled_up(self, peer: Amqp10Peer) -> None:
        for handle in range(4):
            await peer.attach_sender(handle=handle)
            await peer.expect(p.Flow)
        for handle in range(3):
            await peer.publish(*numbers(84), handle=handle, settled=True)
        flow = await peer.expect(p.Flow)
        assert flow.incoming_window == 400
        assert flow.next_incoming_id == 252

    async def test_more_than_the_window(
        self, peer: Amqp10Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All of it in less than is taken before the window is filled up again."""
        monkeypatch.setattr(wire_session, "WINDOW", 100)
        await peer.begin(1)
        await peer.attach_sender(channel=1)
        part = peer.transfer(b"x", channel=1, more=True)
        await peer.send_bytes(part * 101)
        await peer.session_ends("amqp:session:window-violation")

    async def test_an_echo(self, peer: Amqp10Peer) -> None:
        await peer.attach_sender()
        await peer.expect(p.Flow)
        await peer.send(p.Flow(0, 1, 0, 1, 0, echo=True))
        assert (await peer.expect(p.Flow)).link_credit == 170


class TestParts:
    """Messages in several transfers."""

    async def test_cut_anywhere(self, peer: Amqp10Peer, server: Harness) -> None:
        await peer.attach_sender()
        raw = Message(b"x" * 100).encode()
        for at in (0, 1, 50, len(raw)):
            first = peer.transfer(raw[:at], more=True)
            last = p.Transfer(0)
            await peer.send_bytes(first)
            await peer.send_bytes(frame(0, last, raw[at:]))
        await peer.outcomes(4)
        assert [MessageView(one).body for one in await stored(server)] == [b"x" * 100] * 4

    async def test_of_two_links_at_once(self, peer: Amqp10Peer, server: Harness) -> None:
        await peer.attach_sender(handle=0)
        await peer.attach_sender(handle=1)
        raws = [Message(body).encode() for body in (b"one", b"two")]
        for handle, raw in enumerate(raws):
            await peer.send_bytes(peer.transfer(raw[:5], handle, more=True))
        for handle, raw in enumerate(raws):
            await peer.send_bytes(frame(0, p.Transfer(handle, more=False), raw[5:]))
        assert len(await peer.outcomes(2)) == 2
        assert len(await stored(server)) == 2

    async def test_an_aborted_one_is_forgotten(self, peer: Amqp10Peer, server: Harness) -> None:
        await peer.attach_sender()
        await peer.send_bytes(peer.transfer(b"nothing", more=True))
        await peer.send(p.Transfer(0, aborted=True))
        await peer.publish(Message(b"whole"))
        assert list(await peer.outcomes(1)) == [1]
        assert [MessageView(one).body for one in await stored(server)] == [b"whole"]

    async def test_another_begins_in_the_middle(self, peer: Amqp10Peer) -> None:
        await peer.attach_sender()
        await peer.send_bytes(peer.transfer(b"x", more=True) + peer.transfer(b"y"))
        await peer.detached("amqp:invalid-field")

    async def test_one_that_is_settled_and_then_not(self, peer: Amqp10Peer) -> None:
        await peer.attach_sender()
        await peer.send_bytes(peer.transfer(b"x", more=True, settled=True))
        await peer.send(p.Transfer(0, settled=False))
        await peer.detached("amqp:invalid-field")

    async def test_without_an_id(self, peer: Amqp10Peer) -> None:
        await peer.attach_sender()
        await peer.send(p.Transfer(0, None, b"x"))
        await peer.session_ends("amqp:invalid-field", "delivery-id")

    async def test_too_large(self, peer: Amqp10Peer) -> None:
        await peer.attach_sender()
        await peer.send_bytes(peer.transfer(bytes(131_000), more=True))
        part = frame(0, p.Transfer(0, more=True), bytes(131_000))
        for _ in range(MAX_MESSAGE_BYTES // 131_000):
            await peer.send_bytes(part)
        await peer.session_ends("amqp:link:message-size-exceeded")


BODY = section(Section.DATA, b"\xa0\x01x")
PROPERTIES = section(Section.PROPERTIES, b"\x45")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"x",
        PROPERTIES,
        BODY + PROPERTIES,
        PROPERTIES * 2 + BODY,
        BODY + section(Section.VALUE, b"\x40"),
        section(Section.VALUE, b"\x40") * 2,
        section(Section.FOOTER, b"\xc1\x01\0") + BODY,
        section(Section.HEADER, b"\x45") * 2 + BODY,
        section(Section.MESSAGE_ANNOTATIONS, b"\xc1\x01\0") + section(0x70, b"\x45") + BODY,
        section(Section.DATA, b"\xa1\x01x"),
        section(Section.DATA, b"\xa0\x05x"),
        section(Section.PROPERTIES, b"\xc1\x01\0") + BODY,
        section(Section.MESSAGE_ANNOTATIONS, b"\x45") + BODY,
        section(0x79, b"\x40") + BODY,
        annotated(reserved=1),
        section(Section.MESSAGE_ANNOTATIONS, b"\xc1\x05\x02\x53\x01\x54\x01") + BODY,
        BODY * 1_025,
        section(Section.HEADER, b"\x45") * 20_000 + BODY,
        annotated(x_a="a" * 33_000),
        section(Section.MESSAGE_ANNOTATIONS, encode_map(2 * [encode_symbol("x-a"), b"\x40"]))
        + BODY,
    ],
)
async def test_what_is_no_message(peer: Amqp10Peer, raw: bytes, server: Harness) -> None:
    await peer.attach_sender()
    await peer.publish(Message(b"before"), raw, Message(b"after"))
    await peer.detached("amqp:decode-error", "failed to parse message")
    assert [MessageView(one).body for one in await stored(server)] == [b"before"]


async def test_what_costs_more_is_taken_in_turns(peer: Amqp10Peer, server: Harness) -> None:
    """In the order in which it came."""
    await peer.attach_sender()
    many = {f"name{n}": n for n in range(1_000)}
    await peer.publish(
        *(Message(b"%d" % n, application_properties=many if n % 3 else {}) for n in range(150))
    )
    assert await peer.outcomes(150) == dict.fromkeys(range(150), ACCEPTED)
    assert [MessageView(one).body for one in await stored(server)] == [
        b"%d" % n for n in range(150)
    ]


async def test_properties_that_are_too_large(peer: Amqp10Peer) -> None:
    await peer.attach_sender()
    large = b"\xb1" + (140_000).to_bytes(4, "big") + bytes(140_000)
    raw = section(Section.APPLICATION_PROPERTIES, encode_map([encode_text("a"), large])) + BODY
    await peer.send_bytes(peer.transfer(raw[:100_000], more=True))
    await peer.send_bytes(frame(0, p.Transfer(0), raw[100_000:]))
    await peer.detached("amqp:decode-error", "properties")


async def test_somebody_else(peer: Amqp10Peer) -> None:
    await peer.attach_sender()
    await peer.publish(Message(b"x", Properties(user_id=b"guest")))
    assert list((await peer.outcomes(1)).values()) == [ACCEPTED]
    await peer.publish(Message(b"x", Properties(user_id=b"ada")))
    await peer.detached("amqp:unauthorized-access", "user_id")


async def test_somebody_with_a_long_name(peer: Amqp10Peer) -> None:
    """What is told about it is no longer than the client takes."""
    await peer.attach_sender()
    await peer.publish(Message(b"x", Properties(user_id=bytes(100_000))))
    await peer.detached("amqp:unauthorized-access", "user_id")  # it looks at the frame's size


@pytest.mark.parametrize(("mode", "settled"), [(p.SETTLED, False), (p.UNSETTLED, True)])
async def test_what_the_mode_does_not_allow(peer: Amqp10Peer, mode: int, settled: bool) -> None:
    await peer.attach_sender(snd_settle_mode=mode)
    await peer.publish(Message(b"x"), settled=settled)
    await peer.detached("amqp:invalid-field")


class TestAnonymous:
    async def test_each_message_names_its_place(self, peer: Amqp10Peer, server: Harness) -> None:
        await (await server.peer()).create("other")
        await peer.attach_sender(None)
        for to in ("/queues/s", "/exchanges/amq.default2", "/queues/other", "/queues/missing"):
            await peer.publish(Message(b"x", Properties(to=to)))
        await peer.publish(Message(b"x"), Message(b"x", Properties(to="s")))
        found = await peer.outcomes(6)
        kinds = [kind_of(found[number]) for number in range(6)]
        expected = [p.Accepted, p.Rejected, p.Accepted, p.Released, p.Rejected, p.Rejected]
        assert kinds == expected
        assert found[1].error.condition == "amqp:not-found"
        assert found[4].error.condition == "amqp:precondition-failed"
        assert len(await stored(server)) == len(await stored(server, "other")) == 1

    async def test_of_one_that_is_settled_the_link_tells(self, peer: Amqp10Peer) -> None:
        await peer.attach_sender(None)
        await peer.publish(Message(b"x", Properties(to="/exchanges/missing")), settled=True)
        await peer.detached("amqp:not-found")


class TestRouting:
    async def test_more_routing_keys(self, peer: Amqp10Peer, server: Harness) -> None:
        await (await server.peer()).create("other")
        await peer.attach_sender()
        await peer.publish(annotated(x_cc=["other", "s", "missing"]))
        assert await peer.outcomes(1) == {0: ACCEPTED}
        assert len(await stored(server)) == len(await stored(server, "other")) == 1

    async def test_those_that_are_none(self, peer: Amqp10Peer) -> None:
        await peer.attach_sender()
        await peer.publish(annotated(x_cc="other"))
        (state,) = (await peer.outcomes(1)).values()
        assert state.error.condition == "amqp:invalid-field"
        await peer.publish(annotated(x_cc=["a"] * 1_001), Message(b"goes on"))
        found = (await peer.outcomes(2)).values()
        assert [kind_of(state) for state in found] == [p.Rejected, p.Accepted]

    async def test_headers(self, peer: Amqp10Peer, server: Harness) -> None:
        topology = server.host.exchanges
        assert topology is not None
        await peer.attach_sender("/exchanges/amq.headers")
        await peer.publish(Message(b"x", application_properties={"kind": "a"}))
        assert await peer.outcomes(1) == {0: RELEASED}


class TestManyStreams:
    """A message for more streams than are given it in one turn."""

    @pytest.fixture
    async def names(self, server: Harness) -> list[str]:
        names = [f"m{n}" for n in range(120)]
        other, amqp091 = await server.peer(), await open_amqp091(server)
        for name in names:
            await other.create(name)
            bind = m.QueueBind(0, name, "amq.fanout", "", False, {})
            await amqp091.ask(bind, m.QueueBindOk)
        return names

    async def test_it_is_accepted_once(
        self, peer: Amqp10Peer, server: Harness, names: list[str]
    ) -> None:
        await peer.attach_sender("/exchanges/amq.fanout")
        await peer.publish(*numbers(3))
        assert await peer.outcomes(3) == dict.fromkeys(range(3), ACCEPTED)
        await peer.silence()
        for name in (names[0], names[-1]):
            assert len(await stored(server, name)) == 3

    async def test_whoever_ends_in_the_middle(
        self, peer: Amqp10Peer, server: Harness, names: list[str]
    ) -> None:
        await peer.attach_sender("/exchanges/amq.fanout")
        await peer.expect(p.Flow)
        directory = server.server.directory
        await peer.publish(*numbers(50))
        await directory.put_permission(PermissionRow("guest", "/", ".*", "other", ".*"))
        await peer.session_ends("amqp:unauthorized-access", "write access")
        assert len(await stored(server, names[0])) < 50
        await peer.begin()
        await peer.send(p.Attach("x", 0, p.SENDER, target=p.Target("/queues/s")))
        await peer.session_ends("amqp:unauthorized-access", "write access")

    @pytest.mark.parametrize("end", [p.Detach(0, True), p.End(), p.Close()])
    async def test_the_client_ends(
        self, peer: Amqp10Peer, server: Harness, names: list[str], end: Any
    ) -> None:
        await peer.attach_sender("/exchanges/amq.fanout")
        await peer.publish(*numbers(20))
        await peer.send(end)
        await peer.find(type(end))
        for name in (names[0], names[-1]):
            assert len(await stored(server, name)) == 20


class TestDisks:
    """What a disk refuses."""

    async def test_of_several_streams_all_have_to_store_it(
        self, peer: Amqp10Peer, server: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await (await server.peer()).create("other")
        await peer.attach_sender()
        await peer.expect(p.Flow)
        make_room = await server.refuse("other", monkeypatch)
        await peer.publish(annotated(x_cc=["other"]))
        await trio.sleep(5)
        assert len(await stored(server)) == 1
        await peer.silence()
        make_room()
        assert await peer.outcomes(1) == {0: ACCEPTED}

    async def test_a_full_one(
        self, peer: Amqp10Peer, server: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Sessions that publish get no window for a while; what is on its way is stored."""
        await peer.attach_sender()
        await peer.expect(p.Flow)
        make_room = await server.refuse("s", monkeypatch)
        await peer.publish(Message(b"one"))
        await peer.silence(0.5)
        await peer.publish(Message(b"two"))
        assert (await peer.expect(p.Flow)).incoming_window == 0
        await peer.silence(10)
        make_room()
        found = [await peer.next(), await peer.next()]
        (flow,) = [one for one in found if isinstance(one, p.Flow)]
        assert flow.incoming_window == 400
        (told,) = [one for one in found if isinstance(one, p.Disposition)]
        assert (told.first, told.last, type(told.state)) == (0, 1, ACCEPTED)

    @pytest.mark.parametrize("settled", [True, False])
    async def test_a_broken_one(
        self,
        peer: Amqp10Peer,
        server: Harness,
        monkeypatch: pytest.MonkeyPatch,
        settled: bool,
    ) -> None:
        await peer.attach_sender()
        await peer.expect(p.Flow)
        await server.refuse("s", monkeypatch, errno.EIO)
        await peer.publish(Message(b"one"), settled=settled)
        if settled:
            await peer.detached("amqp:resource-limit-exceeded", "accepts no more messages")
        else:
            (state,) = (await peer.outcomes(1)).values()
            assert state.error.condition == "amqp:resource-limit-exceeded"


class TestEnds:
    async def test_a_stream_that_is_deleted(self, peer: Amqp10Peer, server: Harness) -> None:
        await peer.attach_sender()
        await peer.expect(p.Flow)
        assert await (await server.peer()).code(c.Delete, "s") == OK
        await peer.detached("amqp:resource-deleted")

    async def test_a_right_that_is_lost(self, peer: Amqp10Peer, server: Harness) -> None:
        """Also while nothing is published, as RabbitMQ has it when a token is renewed."""
        await peer.attach_sender()
        await peer.expect(p.Flow)
        directory = server.server.directory
        await directory.put_permission(PermissionRow("guest", "/", ".*", "other", ".*"))
        await peer.session_ends("amqp:unauthorized-access", "write access")

    async def test_the_one_who_closes_gets_its_outcomes(self, peer: Amqp10Peer) -> None:
        await peer.attach_sender()
        await peer.publish(*numbers(20))
        await peer.send(p.Close())
        assert len(await peer.outcomes(20)) == 20
        await peer.find(p.Close)

    async def test_one_of_its_streams_is_deleted(
        self, peer: Amqp10Peer, server: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A message that another one keeps is accepted: whoever hears less sends it again."""
        await (await server.peer()).create("other")
        await peer.attach_sender()
        await peer.expect(p.Flow)
        await server.refuse("other", monkeypatch)
        await peer.publish(annotated(x_cc=["other"]))
        await trio.sleep(5)
        assert len(await stored(server)) == 1
        assert await (await server.peer()).code(c.Delete, "other") == OK
        (state,) = (await peer.outcomes(1)).values()
        assert kind_of(state) is p.Accepted
