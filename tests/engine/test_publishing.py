"""Single messages that are published without a connection."""

import errno
from pathlib import Path
from typing import Any

import pytest
import trio

from segments import StorageError
from segments.message import Message
from streamd.broker.streams.log_writer import LogWriter
from streamd.engine import Caller
from streamd.operations import publishing as p
from streamd.operations.errors import NoSuch, Reason, Refused
from streamd.operations.routing import Binding, ExchangeRow, ExchangeType
from tests.support.server import Harness, Peer, harness

EU = Message(b"body", application_properties={"region": "EU"}).encode()


class Asking:
    """Somebody who publishes."""

    def __init__(self, server: Harness) -> None:
        self.server = server
        directory = server.server.directory
        account = directory.account("guest")
        assert account is not None
        self._caller = Caller(directory, account)

    async def publish(self, stream: str = "s", message: bytes = EU, value: bytes = b"") -> int:
        request = p.PublishMessage(vhost="/", stream=stream, message=message, filter_value=value)
        return (await self.server.server.engine.ask(self._caller, request)).offset

    async def route(self, exchange: str, *keys: str, **headers: Any) -> int:
        request = p.PublishToExchange(
            vhost="/", exchange=exchange, keys=keys, message=EU, headers=headers
        )
        return (await self.server.server.engine.ask(self._caller, request)).streams


@pytest.fixture
def asking(server: Harness) -> Asking:
    return Asking(server)


async def bodies(peer: Peer, stream: str, count: int) -> list[bytes]:
    await peer.subscribe(stream)
    found: list[bytes] = []
    while len(found) < count:
        found += (await peer.chunk()).bodies
    return found


@pytest.mark.parametrize("flush", ["os", "interval", "always"])
async def test_the_offset_is_that_of_the_message(tmp_path: Path, flush: str) -> None:
    """Also where others publish in the same turn, some of them what was stored before."""
    async with harness(tmp_path, flush=flush) as server:
        peer, asking = await server.peer(), Asking(server)
        await peer.begin("s", reference="named")
        await peer.store([b"a", b"b"])
        mine: dict[int, bytes] = {}

        async def one(number: int) -> None:
            body = b"mine %d" % number
            mine[await asking.publish(message=body)] = body

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(one, number)
                await peer.publish([b"a", b"b", b"new %d" % number], number)
        count = server.host.find("s").log.committed_offset
        found = await bodies(await server.peer(), "s", count)
        assert len(mine) == 5
        assert {offset: found[offset] for offset in mine} == mine


@pytest.mark.parametrize(
    ("declared", "given", "stored"),
    [
        ({}, b"own", b"own"),
        ({"stream_filter_property": "region"}, b"", b"EU"),
        ({"stream_filter_property": "region"}, b"own", b"own"),
        ({"stream_filter_property": "region", "stream_filter_contract": "strict"}, b"", b"EU"),
        ({"stream_filter_property": "region", "stream_filter_contract": "strict"}, b"EU", b"EU"),
        ({"stream_filter_property": "region", "stream_filter_contract": "strict"}, b"US", None),
        ({"stream_filter_property": "region,kind"}, b"", b"EU"),
    ],
)
async def test_the_filter_value_is_as_for_any_publisher(
    peer: Peer, asking: Asking, declared: dict[str, str], given: bytes, stored: bytes | None
) -> None:
    await peer.create("s", **declared)
    if stored is None:
        with pytest.raises(Refused, match="requires the value of property region, which is"):
            await asking.publish(value=given)
        return
    assert await asking.publish(value=given) == 0
    await peer.subscribe("s", filter__0="other")
    await peer.silence()
    await peer.subscribe("s", subscription_id=2, filter__0=stored.decode())
    assert (await peer.chunk()).bodies == [EU]


async def test_bounds(server: Harness, peer: Peer, asking: Asking) -> None:
    await peer.create("s")
    assert await asking.publish(message=bytes(p.MAX_MESSAGE_BYTES)) == 0
    with pytest.raises(Refused, match="expected at most"):
        await asking.publish(message=bytes(p.MAX_MESSAGE_BYTES + 1))
    with pytest.raises(Refused, match="the filter value has 4,097 bytes"):
        await asking.publish(value=bytes(p.MAX_VALUE_BYTES + 1))
    with pytest.raises(Refused) as refused:
        await asking.publish("other")
    assert refused.value.reason is Reason.NOT_FOUND
    assert server.host.find("s").log.committed_offset == 1


async def test_a_full_disk_is_answered(
    server: Harness, peer: Peer, asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the one that finds it: that message waits, and is stored. Others are not even queued."""
    await peer.create("s")
    await asking.publish()
    log = server.host.find("s").log
    with monkeypatch.context() as patch:
        patch.setattr(log, "append", no_room)
        with pytest.raises(Refused, match=r"the disk is full.*do not publish it again"):
            await asking.publish()
        for ask in (asking.publish(), asking.route("amq.default", "s")):
            with pytest.raises(Refused, match=r"the disk is full$"):
                await ask
    while server.host.find("s").alarm:
        await trio.sleep(1)
    assert await asking.publish() == 2


def no_room(*_: object) -> None:
    raise StorageError("write", "x", OSError(errno.ENOSPC, "no room"))


async def test_what_is_not_confirmed_is_answered(
    server: Harness, peer: Peer, asking: Asking
) -> None:
    await peer.create("s")
    writer = await writer_of(server, "s")
    writer.pause()  # as while a flush lasts
    with pytest.raises(Refused, match="s has not confirmed it within 5 s") as refused:
        await asking.publish()
    assert refused.value.reason is Reason.NOT_AVAILABLE
    writer.resume()
    assert await asking.publish() == 1


async def writer_of(server: Harness, name: str) -> LogWriter:
    stream = server.host.find(name)
    await stream.ready()
    assert stream.life.opened_log is not None
    return stream.life.opened_log.writer


# -- exchanges


async def declare(
    server: Harness, name: str, kind: ExchangeType, *, internal: bool = False
) -> None:
    await server.host.exchanges.declare(ExchangeRow("/", name, kind, True, False, internal, ""))


async def bind(server: Harness, source: str, stream: str, key: str = "", **arguments: Any) -> None:
    await server.host.exchanges.bind(Binding("/", source, stream, False, key, arguments))


async def test_an_exchange_leads_where_it_does_over_amqp(
    server: Harness, peer: Peer, asking: Asking
) -> None:
    for name in ("a", "b"):
        await peer.create(name)
    await declare(server, "topic", ExchangeType.TOPIC)
    await declare(server, "headers", ExchangeType.HEADERS)
    await declare(server, "inner", ExchangeType.FANOUT, internal=True)
    await bind(server, "topic", "a", "order.*")
    await bind(server, "topic", "b", "#")
    await bind(server, "headers", "a", region="EU")
    assert await asking.route("amq.default", "a") == 1
    assert await asking.route("amq.default", "none") == 0
    assert await asking.route("topic", "order.new") == 2
    assert await asking.route("topic", "other") == 1
    assert await asking.route("headers", "", region="EU") == 1
    assert await asking.route("headers", "", region="US") == 0
    with pytest.raises(Refused, match="no exchange 'gone'"):
        await asking.route("gone", "a")
    with pytest.raises(Refused, match="inner is internal"):
        await asking.route("inner", "a")
    assert {name: server.host.find(name).log.committed_offset for name in "ab"} == {
        "a": 3,
        "b": 2,
    }


async def test_some_of_its_streams_take_nothing(
    server: Harness, peer: Peer, asking: Asking
) -> None:
    for name in ("a", "b"):
        await peer.create(name)
        await bind(server, "amq.fanout", name)
    (await writer_of(server, "b")).fail("it broke")
    with pytest.raises(Refused, match="it broke"):
        await asking.route("amq.fanout", "")
    with pytest.raises(NoSuch):
        await asking.server.server.engine.ask(
            asking._caller, p.PublishMessage(vhost="no", stream="s", message=EU)
        )
