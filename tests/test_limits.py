"""Limits on what peers can make the server hold: each reached, reported, and within the formula."""

import json
import logging
import re
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from segments import filter_demand, filter_index, policy, tracking
from segments.format_constants import MAX_FILTER_SIZE, MIN_FILTER_SIZE
from segments.keys import extraction, table as key_table
from segments.search import request as search_request
from segments.selector import dialects
from segments.tier import plan as tier_plan
from streamd import config as limits, patterns
from streamd.auth import throttle, users
from streamd.broker import searches
from streamd.broker.declared import checks, standing_selectors
from streamd.broker.declared.filter_contract import MAX_VALUES_BYTES
from streamd.broker.routing import rules, topology
from streamd.broker.streams import fetcher as tier_fetcher, history, log_writer
from streamd.broker.traffic import ProtocolTraffic
from streamd.config import FILTER_INDEX_BYTES, Config
from streamd.connections import message_delivery as consumers, unacked
from streamd.connections.amqp091 import consumer_methods
from streamd.connections.amqp091.channel import Channel
from streamd.connections.amqp091.channel_publisher import ChannelPublisher
from streamd.connections.amqp10 import (
    attaching,
    management_link,
    publisher,
    publishing as publishing10,
)
from streamd.connections.stream import finding
from streamd.console import (
    downloads,
    forms,
    message_view,
    messages as console_messages,
    search_form,
    sessions,
)
from streamd.engine import figures, publishing as engine_publishing
from streamd.http_api import found_messages, messages, metrics
from streamd.metrics import scrape
from streamd.net import outbox
from streamd.net.outbox import Outbox
from streamd.net.wakeup import Wakeup
from streamd.operations import arguments, publishing, search_words, tier_reports as reports
from streamd.operations.streams import MAX_PARTITIONS
from streamd.wire import stored_messages
from streamd.wire.amqp091 import connection as amqp091, methods as m
from streamd.wire.amqp091.codec import FRAME_HEAD
from streamd.wire.amqp10 import (
    connection as amqp10,
    messages as messages10,
    session as amqp10_session,
)
from streamd.wire.stream import ResponseCode, codec, commands as c
from streamd.wire.stream.connection import LOGIN_FRAME_MAX
from streamd.wire.stream.fields import MAX_ITEMS, Pair
from tests.support import memory
from tests.support.amqp import FIRST as FROM_FIRST, connect, declare, fields, open_peer
from tests.support.http import Http
from tests.support.server import FIRST, OK, Harness, Peer, harness

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "limits.md"
PRECONDITION_FAILED = ResponseCode.PRECONDITION_FAILED


@contextmanager
def held(most: float) -> Iterator[None]:
    """The block makes the server hold no more than that, the peers' memory included."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield
        assert tracemalloc.get_traced_memory()[0] - before < most
    finally:
        tracemalloc.stop()


class TestStreams:
    @pytest.fixture
    async def server(self, tmp_path: Path) -> AsyncIterator[Harness]:
        async with harness(tmp_path, max_streams=3) as running:
            yield running

    async def test_no_more_than_the_setting_allows(
        self, server: Harness, peer: Peer, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        for name in "abc":
            await peer.create(name)
        assert await peer.code(c.Create, "d", ()) == PRECONDITION_FAILED
        told = "cannot create 1 more: there are 3 streams, and the setting max_streams is 3"
        assert told in caplog.text
        assert await peer.code(c.Create, "a", ()) == ResponseCode.STREAM_EXISTS
        amqp = await open_peer(server)
        await amqp.channel_fails(declare("d"), 406, told)
        assert await Http(server).reason("PUT", "queues/%2F/d", {}) == told

        assert await peer.code(c.Delete, "a") == OK
        await peer.create("d")

    async def test_a_super_stream_needs_room_for_all_its_streams(self, peer: Peer) -> None:
        await peer.create("a")
        for count, code in ((3, PRECONDITION_FAILED), (2, OK)):
            names = tuple(f"p{n}" for n in range(count))
            assert await peer.code(c.CreateSuperStream, "s", names, names, ()) == code
        assert await peer.code(c.DeleteSuperStream, "s") == OK
        await peer.create("b")

    async def test_those_that_are_there_stay_when_the_setting_is_lowered(
        self, tmp_path: Path
    ) -> None:
        async with harness(tmp_path / "again") as server:
            peer = await server.peer()
            for name in "abc":
                await peer.create(name)
        async with harness(tmp_path / "again", max_streams=2) as server:
            peer = await server.peer()
            assert server.host.names() == ["a", "b", "c"]
            assert await peer.code(c.Create, "d", ()) == PRECONDITION_FAILED
            await peer.code(c.Delete, "a")
            await peer.code(c.Delete, "b")
            await peer.create("d")


async def test_connections(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with harness(tmp_path, max_connections=2) as server:
        first, second = await server.peer(), await open_peer(server)
        await server.connect().ended()
        await connect(server).ended()
        assert "2 connections are open, the setting max_connections allows no more" in caplog.text
        await first.create("s")
        await second.stream.aclose()
        await wait_all_tasks_blocked()
        await server.peer()


async def test_connections_without_a_login_keep_nobody_out(tmp_path: Path) -> None:
    async with harness(tmp_path, max_connections=3) as server:
        first, silent, amqp = await server.peer(), server.connect(), connect(server)
        await wait_all_tasks_blocked()
        assert len(server.server._running) == 3
        await (await server.peer()).create("s")  # in place of the one that was silent longest
        await silent.ended()
        await open_peer(server)
        await amqp.ended()
        await server.connect().ended()  # the others have logged in
        assert await first.code(c.Create, "s", ()) == ResponseCode.STREAM_EXISTS


# -- the stream protocol


async def test_what_subscriptions_say_of_themselves(
    peer: Peer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "PROPERTIES_BYTES", 64 << 10)
    caplog.set_level(logging.INFO)
    await peer.create("s")
    # A letter of 4 bytes makes all others take as much.
    properties = tuple(Pair(f"filter.{n}", "\U0001f600" + "x" * 300) for n in range(40))
    with held(memory.TEXT * (64 << 10) + 100_000):  # what it logs is kept by the test
        codes = [await peer.code(c.Subscribe, n, "s", FIRST, 0, properties) for n in range(9)]
    assert codes == [OK] * 4 + [PRECONDITION_FAILED] * 5
    assert "bytes, expected at most 65,536; ask for less" in caplog.text
    assert await peer.code(c.Unsubscribe, 0) == OK
    assert await peer.code(c.Subscribe, 9, "s", FIRST, 0, properties) == OK


async def test_filter_values_of_a_subscription(
    server: Harness, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await peer.create("s")
    for number, (count, code) in enumerate(((1000, OK), (1001, PRECONDITION_FAILED))):
        properties = tuple(Pair(f"filter.{n}", str(n)) for n in range(count))
        assert await peer.code(c.Subscribe, number, "s", FIRST, 0, properties) == code
    assert "asks for 1,001 filter values, expected at most 1,000" in caplog.text
    amqp = await open_peer(server)
    await amqp.ask(m.BasicQos(0, 9, False), m.BasicQosOk)
    table = FROM_FIRST | fields(x_stream_filter=[str(n) for n in range(1001)])
    consume = m.BasicConsume(0, "s", "", False, False, False, False, table)
    await amqp.channel_fails(consume, 406, "asks for 1,001 filter values, expected at most 1,000")


async def test_long_filter_values_are_not_recorded(server: Harness, peer: Peer) -> None:
    await peer.create("s")
    await peer.subscribe("s", filter__1="short", filter__2="x" * 256)
    assert server.host.find("s").log.filter_demand.counts == {"short": 1}


@pytest.mark.parametrize(
    "command", [c.Credit(9, 100), c.Publish(9, 1, bytes(12)), c.Metadata(1, ("none",) * 90)]
)
async def test_answers_that_nobody_reads(
    server: Harness, command: c.ClientCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 100_000
    monkeypatch.setattr(outbox, "OUTBOX_BYTES", most)
    peer = server.connect(reads_slowly=True)
    await peer.log_in()
    (link,) = server.server._running
    frame = codec.encode(command)
    highest = 0
    with trio.move_on_after(9) as waiting:
        while True:
            await peer.stream.send_all(frame * 50)
            await wait_all_tasks_blocked()
            highest = max(highest, link._outbox._size)
    assert waiting.cancelled_caught  # it is not read from any more
    assert most < highest < 1.1 * most + 256 * 20
    await (await server.peer()).create("s")


async def test_metadata_of_many_names_keeps_nobody_waiting(server: Harness, peer: Peer) -> None:
    names = tuple(f"{n:05}" for n in range(4_000))
    other = await server.peer()
    done: list[str] = []

    async def ask(who: Peer, *asked: str) -> None:
        answer = await who.ask(c.Metadata, asked)
        assert len(answer.streams) == len(asked)
        done.append(asked[0])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, peer, *names)
        await trio.lowlevel.checkpoint()
        nursery.start_soon(ask, other, "one")
    assert done == ["one", "00000"]


async def test_names_of_consumers(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that stored an offset longest ago are forgotten."""
    monkeypatch.setattr(tracking, "MAX_OFFSETS", 100)
    await peer.create("s")
    with held(100 * memory.REFERENCE + 100_000):
        for n in range(1000):
            await peer.send(c.StoreOffset(f"{n:0255}", "s", 7))
        assert await peer.code(c.QueryOffset, f"{999:0255}", "s") == OK
        assert await peer.code(c.QueryOffset, f"{899:0255}", "s") == ResponseCode.NO_OFFSET


def test_stored_offsets_that_the_disk_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "MAX_OFFSETS", 100)
    found = tracking.Tracking()
    for n in range(1000):
        found.store_offset(b"%d" % n, 7)
    assert [block.id for block in found.pending_blocks()] == [b"%d" % n for n in range(900, 1000)]


async def test_tiny_frames_while_the_disk_is_slow(
    server: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a hundred times its bytes in memory."""
    monkeypatch.setattr(log_writer, "QUEUE_BYTES", 50_000)
    await peer.create("s")
    await peer.declare("s")
    stream = server.host.find("s")
    stream.life.held.writer.pause()  # as in a thread that does not come back
    with trio.move_on_after(5):
        for n in range(1, 2000):
            await peer.publish([b""], n, values=[b"%d" % n])
    await wait_all_tasks_blocked()
    most = 50_000 // limits.PUBLICATION_BYTES + 256  # what is carried out in one go
    assert stream.life.held.writer.num_queued <= most
    stream.life.held.writer.resume()
    stream.life.held.write_in_round()
    assert await peer.confirmed(1999) == list(range(1, 2000))


@pytest.mark.parametrize("count", [0, MAX_PARTITIONS + 1])
async def test_partitions(peer: Peer, count: int) -> None:
    names = tuple(f"p{n}" for n in range(count))
    assert await peer.code(c.CreateSuperStream, "s", names, names, ()) == PRECONDITION_FAILED


# -- exchanges and bindings


async def test_exchanges_and_bindings(
    server: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topology, "MAX_EXCHANGES", 7)  # five are there
    monkeypatch.setattr(topology, "MAX_BINDINGS", 3)
    amqp, http = await open_peer(server), Http(server)
    assert await peer.code(c.CreateSuperStream, "s", ("p0", "p1"), ("0", "1"), ()) == OK
    exchange = m.ExchangeDeclare(0, "x", "headers", False, True, False, False, False, {})
    await amqp.ask(exchange, m.ExchangeDeclareOk)
    another = m.ExchangeDeclare(0, "y", "topic", False, True, False, False, False, {})
    await amqp.channel_fails(another, 406, "there are 7 exchanges, the limit of a virtual host")
    await amqp.open()
    assert await peer.code(c.CreateSuperStream, "t", ("p9",), ("0",), ()) == PRECONDITION_FAILED
    assert "7 exchanges" in await http.reason("PUT", "exchanges/%2F/y", {"type": "direct"})

    long = m.QueueBind(0, "p0", "x", "k", False, fields(a="x" * 1024))
    await amqp.channel_fails(long, 406, "have 1,025 characters, expected at most 1,024")
    await amqp.open()
    await amqp.ask(m.QueueBind(0, "p0", "x", "k", False, fields(a="b")), m.QueueBindOk)
    told = "there would be more than 3 bindings, the limit of a virtual host"
    await amqp.channel_fails(m.QueueBind(0, "p1", "x", "", False, {}), 406, told)
    assert told in await http.reason("POST", "bindings/%2F/e/s/q/p0", {"routing_key": "more"})


# -- AMQP 0-9-1


async def test_a_frame_before_login(server: Harness) -> None:
    peer = connect(server)
    await peer.send_bytes(amqp091.PROTOCOL_HEADER)
    await peer.expect(m.ConnectionStart)
    await peer.send_bytes(FRAME_HEAD.pack(1, 0, amqp091.LOGIN_FRAME_MAX + 1))
    await peer.ended()


async def test_properties_of_messages_that_never_come(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amqp091, "UNFINISHED_BYTES", 1 << 20)
    peer = await open_peer(server)
    headers = fields(**{f"h{n}": "x" * 500 for n in range(200)})
    number = 1
    with held(4 << 20):
        while not any(isinstance(found, m.ConnectionClose) for found in peer.unasked):
            frames = peer.message("s", b"body", channel=number, headers=headers)
            await peer.send_bytes(frames[: -FRAME_HEAD.size - len(b"body") - 1])
            number += 1
            await peer.send(m.ChannelOpen(), number)
            peer.unasked.append((await peer.receive())[1])
    closed = peer.unasked[-1]
    assert closed.code == 506
    assert "unfinished messages have more than 1048576 bytes together" in closed.text
    assert number < 15


async def test_a_body_in_tiny_pieces(server: Harness) -> None:
    """Each piece on its own would take twenty times its size."""
    peer = await open_peer(server)
    await peer.declare("s")
    size = 40_000
    whole = peer.message("s", bytes(size))
    head = whole[: -FRAME_HEAD.size - size - 1]
    piece = FRAME_HEAD.pack(3, 1, 2) + b"ab" + b"\xce"
    pieces = piece * (size // 2 - 1)
    with held(4 * size + 50_000):
        for part in (head, *(pieces[at : at + 10_000] for at in range(0, len(pieces), 10_000))):
            await peer.send_bytes(part)
            await wait_all_tasks_blocked()
    await peer.send_bytes(piece)
    assert (await peer.declare("s")).messages == 1


async def test_unacknowledged_messages_of_all_channels(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unacked, "MAX_UNACKED", 50)
    peer = await open_peer(server)
    await peer.declare("s")
    await peer.store("s", *(b"%d" % n for n in range(40)))
    for number in (1, 2):
        if number > 1:
            await peer.open(number)
        await peer.consume("s", f"c{number}", number, prefetch=1000, x_stream_offset="first")
    first = await peer.deliveries(50)
    await peer.silence()
    await peer.send(m.BasicAck(0, True), first[0].channel)
    rest = await peer.deliveries(30)
    for number in (1, 2):
        assert [d.body for d in first + rest if d.channel == number] == [
            b"%d" % n for n in range(40)
        ]


async def test_what_consumers_have_read_and_cannot_send(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the limit it is read again; every consumer gets everything, in order."""
    monkeypatch.setattr(consumers, "HELD_BYTES", 100_000)
    peer = await open_peer(server)
    await peer.declare("s")
    expected = [b"%d" % n for n in range(300)]
    await peer.store("s", *expected)
    tags = [await peer.consume("s", f"c{n}", prefetch=7, x_stream_offset="first") for n in range(9)]
    (link,) = server.server._running
    found: dict[str, list[bytes]] = {tag: [] for tag in tags}
    for _ in range(9 * 300):
        (delivery,) = await peer.deliveries(1)
        found[delivery.method.tag].append(delivery.body)
        assert link._chosen._session._context.deliveries.held < 100_000 + 300 * 200
        await peer.send(m.BasicAck(delivery.method.delivery_tag, False))
    assert all(bodies == expected for bodies in found.values())
    assert link._chosen._session._context.deliveries.held == 0


async def test_arguments_of_consumers(server: Harness) -> None:
    peer = await open_peer(server)
    await peer.declare("s")
    for n in range(5):
        await peer.consume("s", f"c{n}", x_stream_offset="first", x="x" * 100_000)
    table = FROM_FIRST | fields(x="x" * 100_000)
    consume = m.BasicConsume(0, "s", "d", False, False, False, False, table)
    await peer.channel_fails(consume, 406, "expected at most 524,288")


@pytest.mark.parametrize(
    "unit",
    [
        "{}",
        "[]",
        "[[]]",
        '{"a":{}}',
        '"é"',
        "1e9",
        "99999999999",
        "[" * 100 + "]" * 100,
        '{"":' * 50 + "1" + "}" * 50,
    ],
)
def test_json_in_memory(unit: str) -> None:
    text = '{"x":[' + ",".join([unit] * 3_000) + "]}"
    tracemalloc.start()
    try:
        value = json.loads(text)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(value["x"]) == 3_000
    assert taken < memory.JSON * len(text.encode())


async def test_messages_that_are_not_acknowledged() -> None:
    with held(memory.UNACKED * 50_000):
        waiting = unacked.Unacked(lambda: None, ProtocolTraffic())
        publisher = ChannelPublisher(
            1, Outbox(Wakeup(), lambda _: 0), lambda _: None, ProtocolTraffic()
        )
        one = Channel(1, waiting, publisher)
        one.count_deliveries(None, 50_000)  # type: ignore[arg-type]
    assert waiting.count == 50_000


def test_the_page_has_the_formula() -> None:
    default = Config()
    bounds = {
        "a connection before login": memory.before_login(),
        "a stream connection": memory.stream_connection(default),
        "an AMQP connection": memory.amqp_connection(),
        "an HTTP connection": memory.http_connection(),
        "a stream": memory.stream(default),
        "a virtual host": memory.virtual_host(),
        "a user": memory.http_answers(),
        "metrics": memory.metrics(),
        "the console": memory.console(),
    }
    page = PAGE.read_text()
    for what, size in bounds.items():
        mebibytes = size / (1 << 20)
        shown = f"{mebibytes:,.0f}" if mebibytes >= 10 else f"{mebibytes:.1f}"
        assert f"| {what} | {shown} |" in page
    least = Config(max_connections=1, max_http_connections=1, max_streams=0)
    assert (
        memory.everything(least)
        == sum(
            bounds[what]
            for what in ("an AMQP connection", "an HTTP connection", "a virtual host", "a user")
        )
        + FILTER_INDEX_BYTES
        + tier_fetcher.MAX_BYTES
        + memory.searches()
        + memory.metrics()
        + memory.console()
    )


LIMITS = {
    "streams": Config().max_streams,
    "name of a stream or a super stream": f"{limits.MAX_NAME_BYTES:,} bytes",
    "name of a user or a virtual host": f"{users.MAX_NAME_BYTES} bytes",
    "partitions of a super stream": MAX_PARTITIONS,
    "message, with its frame": f"{Config().frame_max >> 20} MiB",
    "messages in a chunk": policy.BUSY_CHUNK_RECORDS,
    "data of a chunk": f"{policy.DEFAULT_CHUNK_BYTES >> 20} MiB",
    "filter properties of a stream": arguments.MAX_FILTER_PROPERTIES,
    "key properties of a stream": arguments.MAX_KEY_PROPERTIES,
    "local data of a stream in the tier": f"{policy.DEFAULT_LOCAL_BYTES >> 30} GiB",
    "faults, or orphans, of a tier in one answer": reports.MOST_TOLD,
    "time that an upload is waited for": f"{reports.MOST_SECONDS // 86_400} days",
    "requests to the tier for what is read": tier_fetcher.MAX_REQUESTS,
    "bytes of those requests": f"{tier_fetcher.MAX_BYTES >> 20} MiB",
    "bytes asked for ahead of a reader": f"{tier_plan.MOST_WINDOW >> 20} MiB",
    "searches at once": searches.MAX_SEARCHES,
    "searches that wait": searches.MAX_WAITING,
    "searches of a connection": 1,  # the next one ends it
    "searches of a user that wait for their turn": searches.MAX_OF_A_USER,
    "keys of a search": search_request.MAX_KEYS,
    "properties of a search": search_request.MAX_PROPERTIES,
    "key that is looked for": f"{search_request.MAX_KEY_BYTES:,} bytes",
    "parameters of a search": search_words._MOST_WORDS,
    "messages of a page": search_request.MAX_LIMIT,
    "data of a page": f"{searches.PAGE_BYTES >> 20} MiB",
    "bytes that are read for a page": f"{searches.READ_BYTES >> 30} GiB",
    "seconds for a page, stream protocol; HTTP": (
        f"{finding._SECONDS:.0f}; {found_messages.SECONDS:.0f}"
    ),
    "chunks of a segment in a key index": key_table.MAX_CHUNKS,
    "keys of a chunk in a key index": f"1 for each {extraction._BYTES_PER_KEY} bytes",
    "filter of a chunk": f"{MIN_FILTER_SIZE} to {MAX_FILTER_SIZE} bytes",
    "different filter values in one compressed sub-batch": f"{MAX_VALUES_BYTES >> 20} MiB",
    "segment": f"{policy.DEFAULT_SEGMENT_BYTES // 10**6} MB",
    "stored offsets that a stream remembers": tracking.MAX_OFFSETS,
    "named publishers that a stream remembers": tracking.MAX_SEQUENCES,
    "filter values that `asked.json` counts": filter_demand.MAX_VALUES,
    "filter indexes of sealed segments": f"{FILTER_INDEX_BYTES >> 20} MiB",
    "values in the filter index of a newest segment": filter_index.MAX_KEYS,
    "entries in the filter index of a newest segment": filter_index.MAX_POSTINGS,
    "filter values of one subscription": limits.MAX_ASKED,
    "text of a selector": f"{dialects.MAX_CHARACTERS:,} characters",
    "nesting of a selector": f"{dialects.MAX_DEPTH} levels",
    "standing selectors of a stream": standing_selectors.MAX_GROUPS,
    "properties, values and operators of a standing selector": standing_selectors.MAX_PARTS,
    "connections": Config().max_connections,
    "HTTP connections": Config().max_http_connections,
    "connections to the port for metrics": limits.MAX_METRICS_CONNECTIONS,
    "scrapes that wait for their turn": scrape.MAX_WAITING,
    "answers with metrics that are sent at once": metrics.MAX_SENT_AT_ONCE,
    "answer with metrics": f"{scrape.MAX_ANSWER_BYTES >> 20} MiB",
    "pattern of `/metrics/detailed`": f"{scrape.MAX_PATTERN_BYTES:,} bytes",
    "names of consumers in an answer with metrics": figures.MAX_NAMES,
    "streams with rates of the last hour": history.MOST_STREAMS,
    "publishers of a connection": limits.MAX_IDS,
    "subscriptions of a connection": limits.MAX_IDS,
    "filters and properties of all subscriptions of a connection": (
        f"{limits.PROPERTIES_BYTES >> 10} KiB"
    ),
    "items in one list of a command": MAX_ITEMS,
    "frame before the login": f"{LOGIN_FRAME_MAX >> 10} KiB",
    "answers that a peer does not read": f"{limits.OUTBOX_BYTES >> 20} MiB",
    "body of an HTTP request": f"{messages.MAX_BODY_BYTES >> 10} KiB",
    "pattern of a permission": f"{patterns._MEMORY >> 10} KiB",
    "definitions that are imported": f"{messages.MAX_DEFINITIONS_BYTES >> 20} MiB",
    "logins to the console": sessions.MAX_SESSIONS,
    "logins of a user to the console": sessions.MAX_OF_A_USER,
    "hours that a login to the console lasts; without a request": (
        f"{sessions.SECONDS // 3600}; {sessions.IDLE_SECONDS // 3600}"
    ),
    "form of the console": f"{forms.MAX_FORM_BYTES >> 10} KiB",
    "messages on a page of the console": search_form.MAX_LIMIT,
    "messages a second that the live tail shows": console_messages.TAIL,
    "messages of a download in the console": downloads.MAX_MESSAGES,
    "bytes of a body that the console shows": f"{message_view.SHOWN_TEXT >> 10} KiB",
    "seconds for each step of a login, or a TLS handshake": limits.LOGIN_SECONDS,
    "passwords of one address that are checked at once": throttle._AT_ONCE,
    "AMQP message": f"{amqp091.MAX_MESSAGE_BYTES >> 20} MiB",
    "AMQP frame": f"{amqp091.FRAME_MAX >> 10} KiB",
    "channels of a connection": amqp091.CHANNEL_MAX,
    "consumers of a connection": consumer_methods.MAX_CONSUMERS,
    "unacknowledged messages of a connection": unacked.MAX_UNACKED,
    "unfinished messages of a connection": f"{amqp091.UNFINISHED_BYTES >> 20} MiB",
    "keys in `CC` and `BCC` of a message": stored_messages.MAX_KEYS,
    "message over AMQP 1.0": f"{amqp10_session.MAX_MESSAGE_BYTES >> 20} MiB",
    "frame over AMQP 1.0": f"{amqp10.FRAME_MAX >> 10} KiB",
    "frame over AMQP 1.0 that has no message": f"{amqp10.MAX_PERFORMATIVE_BYTES >> 10} KiB",
    "annotations of a message over AMQP 1.0": f"{messages10.MAX_ANNOTATIONS_BYTES >> 10} KiB",
    "properties of a message over AMQP 1.0": f"{messages10.MAX_PROPERTIES_BYTES >> 10} KiB",
    "properties of a message over AMQP 1.0 to an exchange that looks at them": (
        f"{publishing10.MAX_READ_BYTES >> 10} KiB"
    ),
    "request to the management node": f"{management_link.MAX_REQUEST_BYTES >> 10} KiB",
    "sections of a message": stored_messages.MAX_SECTIONS,
    "routing keys in `x-cc`": stored_messages.MAX_KEYS,
    "sessions of a connection": amqp10.CHANNEL_MAX + 1,
    "links of a session": amqp10_session.HANDLE_MAX + 1,
    "links of a connection": attaching.MAX_LINKS,
    "name of a link": f"{limits.MAX_NAME_BYTES:,} bytes",
    "link pairs to the management node, of a session": management_link.MAX_PAIRS,
    "transfers that a session takes before the next flow": amqp10_session.WINDOW,
    "credit of a link that publishes": publisher.CREDIT,
    "transfers that wait for the client's windows": f"{consumers.HELD_BYTES >> 20} MiB",
    "message that is published": f"{publishing.MAX_MESSAGE_BYTES >> 20} MiB",
    "filter value of it": f"{publishing.MAX_VALUE_BYTES:,} bytes",
    "seconds until it is stored": round(engine_publishing._SECONDS),
    "columns on the messages page": search_form._MOST_COLUMNS,
    "exchanges of a virtual host": topology.MAX_EXCHANGES,
    "bindings of a virtual host": topology.MAX_BINDINGS,
    "arguments of a binding": f"{rules.MAX_ARGUMENTS_BYTES >> 10} KiB",
}


def test_the_page_has_the_limits() -> None:
    text = PAGE.read_text().split("## Memory")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|", text, re.MULTILINE)
    shown = {what: limit for what, limit in rows if what not in ("What", "---")}
    assert shown.pop("filter value") == "its frame"
    expected = {w: f"{n:,}" if isinstance(n, int) else n for w, n in LIMITS.items()}
    assert shown == expected
