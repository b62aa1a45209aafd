"""No request keeps the others waiting: each kind at its limits, and the longest turn that it takes.

The kinds are those of the tables that the server goes by. One that is new has no example here, and
fails until it has.
"""

import typing
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from segments import at_offset
from segments.amqp10 import Opaque, encode_list, encode_map, encode_symbol
from segments.compression import GZIP, pack
from segments.disk import OsDisk
from segments.message import Message
from segments.store.local_copy import write_copy
from segments.store.manifest import Manifest, StoredFile, StoredSegment, encode_manifest
from streamd.broker.declared.standing_selectors import StandingSelector
from streamd.broker.tier import index_files
from streamd.connections.amqp10 import delivery as delivery10
from streamd.operations.names import stream_folder
from streamd.operations.routing import NO_HEADERS, Binding, ExchangeRow
from streamd.operations.tier_reports import MOST_TOLD, Fault, Orphan
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import (
    HEARTBEAT_FRAME as HEARTBEAT,
    FrameType,
    encode_frame,
    method_frame,
)
from streamd.wire.amqp091.values import Field
from streamd.wire.amqp10 import performatives as p
from streamd.wire.amqp10.codec import HEARTBEAT_FRAME, frame as frame10
from streamd.wire.stream import codec, commands as c
from streamd.wire.stream.fields import MAX_ITEMS, CommandVersions, OffsetSpecification, Pair
from streamd.wire.stream.publish import encode_sub_batch
from tests.broker.tier.support import (
    A_FRAME,
    SEGMENT_BYTES,
    manifest_of,
    passes,
    publish,
    tier_of,
    tiered,
)
from tests.connections.amqp10.test_link_pairs import attach_pair
from tests.support import amqp10
from tests.support.amqp import STREAM, AmqpPeer, connect, declare, fields, open_peer
from tests.support.fake_store import FakeStore
from tests.support.http import Http
from tests.support.metrics import Metrics
from tests.support.server import FIRST, OK, Harness, frame, harness
from tests.support.syncs import work_beside
from tests.support.tier import FakeTier
from tests.support.watchdog import MOST_UNITS, Watchdog, watchdog

NAMES = tuple(f"{n:05}" for n in range(MAX_ITEMS))
PARTITIONS = tuple(f"p{n}" for n in range(1_000))
PAIRS = tuple(Pair(f"{n}", "x" * 20) for n in range(200))
MANY = (Pair("", ""),) * MAX_ITEMS
PATTERNS = [f"#.{n}.#" for n in range(2_000)]
TIER = [
    c.Manage(3, "tier.status"),
    c.Manage(4, "tier.verify", (Pair("stream", "s"),)),
    c.Manage(5, "tier.gc"),
    c.Manage(6, "tier.upload"),
]
KEYS = [".".join(map(str, range(n, n + 20))) for n in range(5)]
DERIVE = {"stream_filter_property": "carrier", "stream_filter_derive": "true"}
_CONNECTION_CLASS = 10  # of methods: these are sent on channel 0
LIKES = " OR ".join(f"carrier LIKE '%b_{n}%'" for n in range(24))


def flight(carrier: str) -> bytes:
    return Message(b"", application_properties={"carrier": carrier}).encode()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Harness]:
    """A server in which much was declared."""
    async with harness(tmp_path) as running:
        host = running.host
        running.server.broker.tier = tier = FakeTier()
        tier.faults = (Fault("v1/objects/0.segment", "is missing"),) * MOST_TOLD
        tier.orphans = (Orphan("v1/objects/0.segment", 5),) * MOST_TOLD
        tier.uploaded *= 2_000
        peer = await running.peer()
        await peer.create("s")
        await peer.create("t")
        await peer.create("d", **DERIVE)
        for n in range(16):
            await host.settings.put_selector("d", StandingSelector(f"g{n}", "union", LIKES, 0))
        assert await peer.code(c.CreateSuperStream, "big", PARTITIONS, PARTITIONS, ()) == OK
        bound(running, "topic", "topic", [("s", pattern) for pattern in PATTERNS])
        bound(running, "all", "fanout", [(name, "") for name in PARTITIONS])
        for _ in range(2):
            other = await running.peer()
            for n in range(256):
                await other.subscribe("s", subscription_id=n)
        yield running


def bound(server: Harness, name: str, kind: str, ends: list[tuple[str, str]]) -> None:
    row = ExchangeRow("/", name, kind, False, False, False, "")
    bindings = [Binding("/", name, stream, False, key, NO_HEADERS) for stream, key in ends]
    server.host.topology.add(row, bindings)


def judge(longest: dict[str, tuple[int, str]]) -> None:
    """Show the longest turns, and fail when one is too long."""
    for what, (units, where) in sorted(longest.items(), key=lambda item: -item[1][0]):
        print(f"{units:9,} {what} in {where}")
    assert {what for what, (units, _) in longest.items() if units > MOST_UNITS} == set()


# -- the stream protocol


def sub_batches() -> c.Publish:
    bodies = [flight("x" * 20)] * 65_535
    packed, size = pack(bodies, GZIP)
    entries = (encode_sub_batch(n, 65_535, GZIP, size, packed) for n in range(2))
    return c.Publish(1, 2, b"".join(entries))


STREAM_KINDS: dict[type[Any], list[Any]] = {
    c.DeclarePublisher: [c.DeclarePublisher(1, 1, "r" * 255, "d")],
    c.Publish: [
        frame([b"", b"x"] * 40_000),  # as many as a frame holds
        frame([b"", b"x"] * 15_000, publisher_id=2),
        [frame([b"", b"x"] * 1_000, publisher_id=2)] * 10,
        frame([flight("UA")] * 2_000),
        frame([flight("b" * 500_000)]),
        sub_batches(),
    ],
    c.PublishFiltered: [
        frame([b""] * 12_000, values=[b"%05d" % n for n in range(12_000)], publisher_id=2),
        [frame([b""] * 1_500, values=[b"%05d" % n for n in range(1_500)], publisher_id=2)] * 10,
    ],
    c.QueryPublisherSequence: [c.QueryPublisherSequence(1, "r" * 255, "s")],
    c.DeletePublisher: [c.DeletePublisher(1, 1)],
    c.Subscribe: [c.Subscribe(1, 1, "d", FIRST, 10, PAIRS), c.Subscribe(1, 1, "d", FIRST, 1, MANY)],
    c.Credit: [c.Credit(1, 65_535)] * 1_000,
    c.StoreOffset: [c.StoreOffset(f"{n:0255}", "s", 1) for n in range(2_000)],
    c.QueryOffset: [c.QueryOffset(1, "r" * 255, "s")] * 100,
    c.Unsubscribe: [c.Unsubscribe(1, 1)],
    c.Create: [
        [c.Create(1, f"new{n}") for n in range(300)],
        [c.Create(1, "many", MANY)] * 2,
        [c.Create(1, "more", MANY[:60])] * 256,
    ],
    c.Delete: [c.Delete(1, "t")],
    c.Metadata: [[c.Metadata(1, NAMES)] * 2],
    c.PeerProperties: [[c.PeerProperties(1, MANY)] * 2],
    c.SaslHandshake: [c.SaslHandshake(1)],
    c.SaslAuthenticate: [c.SaslAuthenticate(1, "PLAIN", b"x" * 10_000)],
    c.Tune: [c.Tune(1 << 20, 60)],
    c.Open: [c.Open(1, "x" * 30_000)],
    c.Close: [c.Close(1, 1, "x" * 30_000)],
    c.CloseResponse: [c.CloseResponse(1, 1)],
    c.Heartbeat: [c.Heartbeat()] * 1_000,
    c.Route: [c.Route(1, "p7", "big")] * 64,
    c.Partitions: [c.Partitions(1, "big")] * 20,
    c.ConsumerUpdateResponse: [c.ConsumerUpdateResponse(1, 1, OffsetSpecification(1))] * 1_000,
    c.ExchangeCommandVersions: [
        [c.ExchangeCommandVersions(1, tuple(CommandVersions(n, 1, 1) for n in range(MAX_ITEMS)))]
        * 4
    ],
    c.StreamStats: [c.StreamStats(1, "s")] * 100,
    c.CreateSuperStream: [
        c.CreateSuperStream(1, "more", tuple(f"m{n}" for n in range(1_000)), PARTITIONS, ()),
        [c.CreateSuperStream(1, "x", ("",) * MAX_ITEMS, ("",) * MAX_ITEMS, MANY)] * 2,
    ],
    c.DeleteSuperStream: [c.DeleteSuperStream(1, "big")],
    c.ResolveOffsetSpec: [c.ResolveOffsetSpec(1, "s", FIRST, MANY)],
    c.DescribeStreams: [c.DescribeStreams(1, NAMES), [c.DescribeStreams(1)] * 2],
    c.DescribeSubscription: [c.DescribeSubscription(1, 1, 0)],
    c.DescribeFilters: [c.DescribeFilters(1, "d")],
    c.Find: [c.Find(1, "d"), [c.Find(2, "d", (Pair("order", "newest"),))] * 2],
    c.Manage: [c.Manage(1, "permission.list"), c.Manage(2, "none", MANY), *TIER],
}


def test_all_commands_have_an_example() -> None:
    assert set(STREAM_KINDS) == set(typing.get_args(c.ClientCommand))


async def test_commands(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = {}
    with watchdog(monkeypatch) as dog:
        for kind in sorted(STREAM_KINDS, key=_deletes_last):
            peer = await server.peer()
            await peer.declare("d")
            await peer.declare("s", publisher_id=2)
            await peer.subscribe("s", subscription_id=1, credit=0)
            dog.reset()
            for group in _apart(STREAM_KINDS[kind]):
                await peer.stream.send_all(group)
                await wait_all_tasks_blocked()
            longest[kind.__name__] = dog.longest, dog.where
            await peer.vanish()
    judge(longest)


def _deletes_last(kind: type[Any]) -> tuple[bool, str]:
    return "Delete" in kind.__name__, kind.__name__


def _apart(commands: list[Any]) -> list[bytes]:
    """Commands one by one; those in a list of their own, and many of them, together."""
    together = commands if len(commands) < 10 else [commands]
    return [
        b"".join(map(codec.encode, group if isinstance(group, list) else [group]))
        for group in together
    ]


# -- AMQP 0-9-1


def copies(peer: AmqpPeer) -> bytes:
    return peer.message("0", b"x", "topic", headers=fields(CC=KEYS))


AMQP_KINDS: dict[type[Any], Any] = {
    type(method): method
    for method in (
        m.ConnectionStartOk({}, "PLAIN", b"x"),
        m.ConnectionSecureOk(b"x"),
        m.ConnectionTuneOk(0, 0, 0),
        m.ConnectionOpen("/"),
        m.ConnectionClose(200, "", 0, 0),
        m.ConnectionCloseOk(),
        m.ConnectionUpdateSecret(b"x" * 10_000, ""),
        m.ChannelOpen(),
        m.ChannelFlow(True),
        m.ChannelFlowOk(True),
        m.ChannelClose(200, "", 0, 0),
        m.ChannelCloseOk(),
        m.AccessRequest("/"),
        m.ExchangeDeclare(0, "x", "topic", False, True, False, False, False, {}),
        m.ExchangeDelete(0, "all", False, False),
        m.ExchangeBind(0, "amq.fanout", "topic", "a.#", False, {}),
        m.ExchangeUnbind(0, "amq.fanout", "topic", "a.#", False, {}),
        declare("q", STREAM | fields(x="x" * 100_000)),
        m.QueueBind(0, "s", "topic", "#." * 100 + "z", False, {}),
        m.QueuePurge(0, "s", False),
        m.QueueDelete(0, "t", False, False, False),
        m.QueueUnbind(0, "s", "topic", PATTERNS[-1], {}),
        m.BasicQos(0, 65_535, False),
        m.BasicConsume(0, "d", "c", False, False, False, False, fields(x_stream_sql=LIKES)),
        m.BasicCancel("c", False),
        m.BasicCancelOk("c"),
        m.BasicGet(0, "s", False),
        m.BasicAck(0, True),
        m.BasicReject(1),
        m.BasicRecoverAsync(True),
        m.BasicRecover(True),
        m.BasicNack(0, True),
        m.ConfirmSelect(False),
        m.TxSelect(),
        m.TxCommit(),
        m.TxRollback(),
    )
}


def example(kind: type[Any], peer: AmqpPeer) -> bytes:
    if kind is not m.BasicPublish:
        return method_frame(int(m.IDS[kind][0] > _CONNECTION_CLASS), AMQP_KINDS[kind])
    messages = [
        *(peer.message(f"{n}.{n}", b"x", "topic") for n in range(3)),
        copies(peer),
        peer.message("", b"x", "all"),
        *(peer.message("s", b"x") for _ in range(600)),  # more than a turn takes
    ]
    return b"".join(messages)


def test_all_methods_have_an_example() -> None:
    assert {*AMQP_KINDS, m.BasicPublish} == m.SENT_BY_CLIENT


async def test_methods(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = {}
    publisher = await server.peer()
    await publisher.declare("d")
    await publisher.store([flight("b" * 900_000)])
    with watchdog(monkeypatch) as dog:
        for kind in sorted(m.SENT_BY_CLIENT, key=_deletes_last):
            peer = await open_peer(server)
            dog.reset()
            await peer.send_bytes(example(kind, peer))
            await wait_all_tasks_blocked()
            longest[kind.__name__] = dog.longest, dog.where
            await peer.stream.aclose()
    judge(longest)


# What a peer may put into a frame: much that is little. As much of it as would be a turn that is
# too long several times: more is only counted for longer.
SECTION = b"\0\x53\x75\xa0\0"


def nulls(count: int, number: int = 0) -> dict[str, Field]:
    """A table with so many values, and one by which it differs from others."""
    return {"a": Field("A", [*[Field("V", None)] * count, Field("I", number)])}


def request(count: int) -> bytes:
    return method_frame(1, declare("q", STREAM | nulls(count)))


def messages(peer: AmqpPeer, count: int, number: int, exchange: str = "") -> bytes:
    tables = [nulls(count, n) for n in range(number)]
    return b"".join(peer.message("s", b"x", exchange, headers=table) for table in tables)


def in_parts(peer: AmqpPeer, size: int) -> bytes:
    """A message, each byte of its body in a frame."""
    whole = peer.message("s", bytes(size))
    body = encode_frame(FrameType.BODY, 1, b"x")
    return whole[: whole.index(encode_frame(FrameType.BODY, 1, bytes(size))[:7])] + body * size


def sections(peer: AmqpPeer, count: int) -> bytes:
    return peer.message("s", SECTION * count, type="amqp-1.0")


CONTENTS: dict[str, Callable[[AmqpPeer], bytes]] = {
    "values of a request": lambda _: request(120_000),
    "requests at their limit": lambda _: request(4_000) * 10,
    "values of a message": lambda peer: messages(peer, 60_000, 1),
    "messages at their limit": lambda peer: messages(peer, 4_000, 6),
    "headers that are looked at twice": lambda peer: messages(peer, 4_000, 6, "amq.headers"),
    "small messages": lambda peer: messages(peer, 450, 50),
    "sections": lambda peer: sections(peer, 500_000),
    "messages of sections": lambda peer: sections(peer, 1_000) * 20,
    "signs of life": lambda _: HEARTBEAT * 20_000,
    "small parts of a message": lambda peer: in_parts(peer, 20_000),
}


@pytest.mark.parametrize("what", CONTENTS)
async def test_what_is_in_a_frame(
    server: Harness, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    peer = await open_peer(server)
    data = CONTENTS[what](peer)
    with watchdog(monkeypatch) as dog:
        await peer.send_bytes(data)
        await wait_all_tasks_blocked()
    judge({what: (dog.longest, dog.where)})


async def test_an_ack_of_many_is_no_work_for_each(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 10_000
    peer, publisher = await open_peer(server), await server.peer()
    await publisher.declare("s")
    await publisher.store([b"x"] * count)
    await peer.consume("s", prefetch=count, x_stream_offset="first")
    await peer.deliveries(count)
    with watchdog(monkeypatch) as dog:
        await peer.send(m.BasicAck(0, True))
        await wait_all_tasks_blocked()
    assert 0 < dog.longest < count


async def test_how_many_send_it_does_not_matter(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that are read in one round, where each is carried out in place."""
    server.poll()
    peers = [connect(server, in_rounds=True) for _ in range(20)]
    for peer in peers:
        await peer.log_in()
        await peer.open()
    data = messages(peers[0], 600, 4)
    with watchdog(monkeypatch) as dog:
        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(peer.send_bytes, data)
        await wait_all_tasks_blocked()
    judge({"small messages of many": (dog.longest, dog.where)})


def section(code: int, value: bytes) -> bytes:
    return b"\0\x53" + bytes((code,)) + value


NOTHINGS = [b"\xa1\0", b"\x40"]  # names and nulls: the least that a map may be made of
STORED = {
    "sections": SECTION * 200_000,
    "heads": section(0x73, b"\x45") * 200_000 + SECTION,
    "properties": section(0x74, encode_map(NOTHINGS * 160_000)) + SECTION,
    "some properties": section(0x74, encode_map(NOTHINGS * 2_000)) + SECTION,
    "a list": section(0x72, encode_map([b"\xa3\3x-a", encode_list([b"\x40"] * 60_000)])) + SECTION,
    "an id": section(0x73, encode_list([encode_list([b"\x40"] * 500_000)])) + SECTION,
    "descriptors": b"\0" * 500_000 + SECTION,
    "a described list": section(0x75, b"\0\x40" + encode_list([b"\x40"] * 500_000)),
    "a list as a descriptor": b"\0" + encode_list([b"\x40"] * 500_000) + b"\x40",
}


@pytest.mark.parametrize("what", STORED)
async def test_what_is_in_a_stored_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Stream clients may store anything; it is delivered to AMQP clients."""
    async with harness(tmp_path) as server:
        publisher = await server.peer()
        await publisher.create("s")
        await publisher.declare("s")
        await publisher.store([STORED[what]] * (5 if len(STORED[what]) < 100_000 else 1))
        with watchdog(monkeypatch) as dog:
            peer = await open_peer(server)
            await peer.consume("s", x_stream_offset="first")
            await peer.deliveries(1)
            await wait_all_tasks_blocked()
    judge({what: (dog.longest, dog.where)})


@pytest.mark.parametrize("what", STORED)
async def test_what_is_in_a_stored_message_over_amqp10(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    async with harness(tmp_path) as server:
        publisher = await server.peer()
        await publisher.create("s")
        await publisher.declare("s")
        await publisher.store([STORED[what]] * (5 if len(STORED[what]) < 100_000 else 1))
        with watchdog(monkeypatch) as dog:
            peer = await amqp10.open_peer(server)
            await peer.consume()
            await peer.deliveries(1)
            await wait_all_tasks_blocked()
    judge({what: (dog.longest, dog.where)})


# -- AMQP 1.0

ENTRIES = [part for n in range(3_000) for part in (encode_symbol(f"x-{n}"), b"\x40")]
KEYS10 = encode_list([b"\x40"] * 20_000)  # none is a routing key
PROPERTIES = section(0x74, encode_map(NOTHINGS * 10_900)) + SECTION


def attach10(**more: Any) -> bytes:
    attach = p.Attach("big", 9, p.SENDER, target=p.Target("/queues/s"), initial_delivery_count=0)
    return frame10(0, attach._replace(**more))


AMQP10_CONTENTS: dict[str, Callable[[amqp10.Amqp10Peer], bytes]] = {
    "nulls in a map": lambda _: attach10(properties={"x": [None] * 20_000}),
    "a filter": lambda _: attach10(
        role=p.RECEIVER, source=p.Source("/queues/s", filter=Opaque(encode_map(ENTRIES[:4_400])))
    ),
    "annotations": lambda peer: b"".join(
        peer.transfer(section(0x72, encode_map(ENTRIES)) + SECTION) for _ in range(8)
    ),
    "annotations that are refused": lambda peer: b"".join(
        peer.transfer(section(0x72, encode_map([encode_symbol("x-cc"), KEYS10])) + SECTION)
        for _ in range(5)
    ),
    "properties for a headers exchange": lambda peer: b"".join(
        peer.transfer(PROPERTIES, 1) for _ in range(5)
    ),
    "sections": lambda peer: peer.transfer(SECTION * 30_000),
    "flows": lambda _: frame10(0, p.Flow(0, 1, 0, 1, 2, 0, 0, echo=True)) * 10_000,
    "dispositions": lambda _: frame10(0, p.Disposition(True, 0, 1 << 30, True)) * 10_000,
    "links": lambda _: (attach10() + frame10(0, p.Detach(9))) * 2_000,
    "sessions": lambda _: (frame10(5, p.Begin(None, 0, 1, 1)) + frame10(5, p.End())) * 2_000,
    "parts of a message": lambda peer: peer.transfer(b"x", more=True) * 399,
    "signs of life": lambda _: HEARTBEAT_FRAME * 50_000,
    "a session that is not there": lambda _: frame10(7, p.Flow(0, 1, 0, 1)) * 30_000,
    "links that are not there": lambda _: frame10(0, p.Detach(200)) * 50_000,
}


REQUESTS10 = {
    "one value": section(0x77, encode_list([b"\x40"] * 16_000)),
    "sections": section(0x77, b"\x40") * 4_000,
    "too many": section(0x77, encode_list([b"\x40"] * 300_000)),
}


@pytest.mark.parametrize("what", REQUESTS10)
async def test_what_is_in_a_request_over_amqp10(
    server: Harness, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    peer = await amqp10.open_peer(server)
    await attach_pair(peer)
    await trio.sleep(1)
    raw = REQUESTS10[what]
    parts = [raw[at : at + 100_000] for at in range(0, len(raw), 100_000)]
    data = peer.transfer(parts[0], settled=True, more=True)
    data += b"".join(frame10(0, p.Transfer(0, more=True), part) for part in parts[1:])
    data += frame10(0, p.Transfer(0))
    with watchdog(monkeypatch) as dog:
        await peer.send_bytes(data)
        await trio.sleep(1)
    judge({what: (dog.longest, dog.where)})


@pytest.mark.parametrize("what", AMQP10_CONTENTS)
async def test_what_is_in_a_frame_of_amqp10(
    server: Harness, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    peer = await amqp10.open_peer(server)
    await peer.attach_sender()
    await peer.attach_sender("/exchanges/amq.headers", 1)
    for handle in range(2, 9):
        await peer.consume(0, handle=handle)
    data = AMQP10_CONTENTS[what](peer)
    await trio.sleep(1)  # nothing is looked at for a moment after an attach
    with watchdog(monkeypatch) as dog:
        await peer.send_bytes(data)
        await trio.sleep(30)  # nor after those in `data`
    judge({what: (dog.longest, dog.where)})


async def test_links_that_go_while_much_is_not_settled(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would look through all that the session has not settled."""
    publisher = await server.peer()
    await publisher.declare("s")
    for at in range(0, 20_000, 10_000):
        await publisher.store([b"x"] * 10_000, first_id=1 + at)
    peer = await amqp10.open_peer(server)
    for handle in range(1, 101):
        await peer.attach_receiver(handle=handle)
    await peer.credit(20_000, window=1_000_000)
    await peer.deliveries(20_000)
    with watchdog(monkeypatch) as dog:
        await peer.send(*[p.Detach(handle, True) for handle in range(2, 101)])
        await trio.sleep(1)
    judge({"detaches": (dog.longest, dog.where)})


async def test_flows_while_too_much_waits_for_windows(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would look at all links of the connection, which are in other sessions."""
    monkeypatch.setattr(delivery10, "HELD_BYTES", 500)
    peer = await amqp10.open_peer(server, max_frame_size=512)
    await peer.store(Message(b"x" * 1_200))
    await peer.attach_receiver()
    await peer.credit(1, window=1)
    assert (await peer.find(p.Transfer)).more
    await peer.begin(1)
    for handle in range(200):
        await peer.attach_receiver(handle=handle, channel=1)
    await trio.sleep(1)
    with watchdog(monkeypatch) as dog:
        await peer.send(*[p.Flow(1, 0, 0, 1)] * 500)
        await trio.sleep(1)
    judge({"flows": (dog.longest, dog.where)})


async def test_a_message_for_many_streams_reaches_all_of_them(tmp_path: Path) -> None:
    names = PARTITIONS[:210]  # more than in two turns
    async with harness(tmp_path) as server:
        creator = await server.peer()
        assert await creator.code(c.CreateSuperStream, "big", names, names, ()) == OK
        bound(server, "all", "fanout", [(name, "") for name in names])
        peer = await open_peer(server)
        await peer.confirm()
        await peer.send_bytes(peer.message("", b"x", "all"))
        assert (await peer.expect(m.BasicAck)).delivery_tag == 1
        for name in names:
            assert (await server.host.find(name).read_figures()).num_messages == 1


@pytest.mark.parametrize(
    ("keys", "expected"),
    [(["k"] * 1_001, "1,001 routing keys, expected at most 1,000"), (["k" * 1_025], "1,025 bytes")],
)
async def test_too_many_copies(tmp_path: Path, keys: list[str], expected: str) -> None:
    async with harness(tmp_path) as server:
        peer = await open_peer(server)
        message = peer.message("s", b"x", headers=fields(CC=keys))
        assert expected in await peer.channel_fails(message, 406)


# -- HTTP

PARTS = {
    "reference": "reader",
    "vhost": "%2F",
    "kind": "q",
    "source": "topic",
    "destination": "s",
    "key": "0",
    "user": "guest",
    "port": "1",
    "stream": "s",
}
BODIES: dict[tuple[str, str], Any] = {}


def definitions(count: int) -> dict[str, Any]:
    rows = [{"vhost": "/", "source": "none", "destination": "s"} for _ in range(count)]
    queues = [{"vhost": "/", "name": f"c{n}", "type": "classic"} for n in range(count)]
    return {"bindings": rows, "queues": queues, "parameters": [{"n": n} for n in range(count)]}


BODIES = {
    ("POST", "/api/bindings/{vhost}/e/{source}/{kind}/{destination}"): {"routing_key": "k.#"},
    ("POST", "/api/definitions"): definitions(2_000),
    ("POST", "/api/definitions/{vhost}"): definitions(2_000),
    ("PUT", "/api/exchanges/{vhost}/{name}"): {"type": "topic"},
    ("POST", "/api/exchanges/{vhost}/{name}/publish"): {
        "properties": {"headers": {f"h{n}": n for n in range(4_000)}},
        "routing_key": "k",
        "payload": "m" * 150_000,
        "payload_encoding": "string",
    },
    ("POST", "/api/queues/{vhost}/{name}/get"): {"count": 1_000},
    ("PUT", "/api/queues/{vhost}/{name}"): {"arguments": {"x-queue-type": "stream"}},
    ("PUT", "/api/stream/super-streams/{vhost}/{name}"): {"partitions": 1_000},
    ("PUT", "/api/stream/{vhost}/{name}/tracking/{reference}"): {"offset": 5},
    ("POST", "/api/stream/{vhost}/{name}/truncate"): {"offset": 1},
    ("POST", "/api/tier/gc"): {"dry_run": True},
    ("POST", "/api/tier/upload"): {"timeout_seconds": 5},
    ("POST", "/api/tier/streams/{vhost}/{name}/upload"): None,
    ("POST", "/api/tier/streams/{vhost}/{name}/verify"): None,
    ("PUT", "/api/users/{user}"): {"password": "guest", "tags": "administrator"},
    ("PUT", "/api/permissions/{vhost}/{user}"): dict.fromkeys(("configure", "write", "read"), ".*"),
    ("PUT", "/api/vhosts/{vhost}"): {},
}
UNAUTHORIZED, FAILED = 401, 500
_CHANGES = ("GET", "POST", "PUT", "DELETE")


def routes(server: Harness) -> list[tuple[str, str]]:
    """Methods and paths of all requests, those that delete last."""
    app = server.server.http_app()
    while not hasattr(app, "routes"):
        app = app._app
    found = {(method, r.path) for r in app.routes for method in r.methods if method in _CHANGES}
    return sorted(found, key=lambda item: (_CHANGES.index(item[0]), item[1]))


def path_of(method: str, path: str) -> str:
    if path.startswith("/api/vhosts/") and method in ("PUT", "DELETE"):
        path = path.replace("{vhost}", "other")
    if path.startswith(("/api/users/", "/api/permissions/")) and method == "DELETE":
        path = path.replace("{user}", "nobody")
    name = "topic" if "exchanges" in path else "big" if "super" in path else "s"
    if method == "PUT":
        name = "new"
    return path.format(name=name, **PARTS).removeprefix("/api/")


async def test_requests(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    http = Http(server)
    assert await Http(server).code("PUT", "vhosts/other", {}) == 201
    other = await server.peer(virtual_host="other")
    names = tuple(f"o{n}" for n in range(500))
    assert await other.code(c.CreateSuperStream, "o", names, names, ()) == OK
    longest = {}
    kinds = routes(server)
    assert {kind for kind in kinds if kind[0] in ("POST", "PUT")} == set(BODIES)
    await http.get("whoami")
    with watchdog(monkeypatch) as dog:
        for method, path in kinds:
            longest[f"{method} {path}"] = await asked(http, dog, method, path)
    judge(longest)


async def asked(http: Http, dog: Watchdog, method: str, path: str) -> tuple[int, str]:
    dog.reset()
    async with trio.open_nursery() as nursery:  # the API runs in the task that asks
        body = BODIES.get((method, path))
        nursery.start_soon(_ask, http, method, path_of(method, path), body)
    await wait_all_tasks_blocked()
    return dog.longest, dog.where


async def _ask(http: Http, method: str, path: str, body: Any) -> None:
    answer = await http.ask(method, path, body)
    assert answer.status_code not in (UNAUTHORIZED, FAILED), answer.text


# -- streams of very many segments: as much for each of them as for metrics

_MANY = 10_000
_OF_ALL = ("truncating", "deleting")  # these do something with thousands of segments at once


def _stored(number: int) -> StoredSegment:
    files = {suffix: StoredFile(2_000, 7) for suffix in (".segment", ".index")}
    at = 100 * number
    return StoredSegment(at, at + 100, 9, 5, 6, at + 80, 1, f"{number:016x}", files)


def _put_many(folder: Path, store: FakeStore) -> Manifest:
    """A stream that is in the store alone, but for its newest segment."""
    manifest = manifest_of(store, "s")
    many = tuple(_stored(number) for number in range(_MANY))
    many_more = replace(manifest, segments=many, next_offset=many[-1].next_offset, tracking=None)
    store.objects[manifest.stream.manifest].content = encode_manifest(many_more)
    at = stream_folder(str(folder), "/", "s")
    OsDisk().remove_folder(at)
    OsDisk().make_folder(at)
    write_copy(OsDisk(), at, many_more)
    return many_more


class _Turns:
    """Does one thing after the other, each in a task of its own, and notes their longest turns."""

    def __init__(self, nursery: trio.Nursery, dog: Watchdog) -> None:
        self.longest: dict[str, tuple[int, str]] = {}
        self._nursery, self._dog = nursery, dog

    async def of(self, what: str, work: Callable[..., Awaitable[object]], *given: Any) -> None:
        async def do() -> None:
            await work(*given)
            done.set()

        done = trio.Event()
        self._dog.reset()
        self._nursery.start_soon(do)
        await done.wait()
        await passes()
        found = self._dog.longest, self._dog.where
        self.longest[what] = max(self.longest.get(what, (0, "")), found)


async def test_a_stream_of_very_many_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FakeStore()
    async with tiered(tmp_path, store) as server:
        peer = await server.peer()
        await peer.create("s", stream_max_segment_size_bytes=SEGMENT_BYTES)
        await peer.declare("s")
        await publish(peer, 0, 10)
        await passes()
    end = work_beside(lambda: _put_many(tmp_path, store)).next_offset
    monkeypatch.setattr(index_files, "_missing", lambda _folder: {("none", ".index")})
    async with tiered(tmp_path, store) as server, trio.open_nursery() as nursery:
        with watchdog(monkeypatch) as dog:
            turns = _Turns(nursery, dog)
            await _live_with_many(server, turns, store, end)
        nursery.cancel_scope.cancel()
    for what, (units, where) in turns.longest.items():
        print(f"{units:9,} {what} in {where}")
        assert units <= (MOST_UNITS if what in _OF_ALL else _MOST_OF_SCRAPES), what


async def _live_with_many(server: Harness, turns: _Turns, store: FakeStore, end: int) -> None:
    await turns.of("opening", passes)
    host, tier, peer = server.host, tier_of(server), await server.peer()
    await peer.declare("s")
    stream = host.find("s")
    log = stream.log
    for number in range(9):
        await turns.of("storing", publish, peer, end + number * A_FRAME, 1)
        await turns.of("sealing", stream.life.held.seal)
    assert len(log.segments.shown) == _MANY + 10
    assert log.segments.shown[-2].stored is not None
    assert manifest_of(store, "s").segments[:_MANY] == tuple(map(_stored, range(_MANY)))
    limit = ("stream-local-max-length-bytes", "2000")
    await turns.of("evicting", host.settings.set_arguments, "s", [limit])
    assert len(log.segments.local) < 9
    limit = ("max-length-bytes", str(log.segments.size - 9_000))
    await turns.of("retention", host.settings.set_arguments, "s", [limit])
    assert manifest_of(store, "s").first_offset == log.segments.first_offset > 0
    await turns.of("status", tier.status)
    await turns.of("metrics", Metrics(server).scrape_unread, "/per-object")
    await turns.of("figures", peer.code, c.StreamStats, "s")
    await turns.of("rows", peer.ask, c.DescribeStreams, ("s",))
    await turns.of("verify", tier.verify, host.name, stream.name)
    await turns.of("gc", partial(tier.collect, dry_run=True))
    manifest = manifest_of(store, "s")
    middle = manifest.segments[_MANY // 2].base_offset
    await turns.of("truncating", stream.truncate, at_offset(middle))
    assert manifest_of(store, "s").first_offset == middle
    await turns.of("deleting", peer.code, c.Delete, "s")


# -- metrics, which are asked for again and again: 5 ms at most

_MOST_OF_SCRAPES = MOST_UNITS // 10
_SCRAPES = (
    "",
    "/per-object",
    "/detailed?family=streamd_stream&queue=^p",
    "/detailed?family=exchange_bindings&family=vhost_status",
    "/detailed?family=streamd_consumer",
)


async def test_scrapes(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, longest = Metrics(server), {}
    history = server.server.broker.history
    for name in PARTITIONS:
        server.host.find(name).traffic.sent_to_amqp(1, 1)
    with watchdog(monkeypatch) as dog:
        for path in _SCRAPES:
            dog.reset()
            async with trio.open_nursery() as nursery:  # it runs in the task that asks
                nursery.start_soon(metrics.scrape_unread, path)
            longest[path] = dog.longest, dog.where
        dog.reset()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(history.sample_streams)
            nursery.start_soon(history.add_up)
        longest["the last hour"] = dog.longest, dog.where
    for path, (units, where) in longest.items():
        print(f"{units:9,} {path} in {where}")
    assert {path for path, (units, _) in longest.items() if units > _MOST_OF_SCRAPES} == set()
    assert min(units for units, _ in longest.values()) > 100
