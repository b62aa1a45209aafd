"""What connections learn, and when, whose user or virtual host is deleted."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from streamd.auth.administration import Administration
from streamd.broker.declared.rows import PermissionRow
from streamd.operations.names import as_sent
from streamd.operations.routing import NO_HEADERS, Binding, ExchangeRow
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import PROTOCOL_HEADER
from streamd.wire.amqp091.connection import Content
from streamd.wire.amqp091.properties import Properties, encode_properties
from streamd.wire.stream import commands as c
from streamd.wire.stream.fields import Pair
from tests.support.amqp import connect, declare, open_peer
from tests.support.http import add_user
from tests.support.server import OK, Harness

AT_ONCE = 0.1  # seconds of virtual time


def administration(server: Harness) -> Administration:
    return Administration(server.server.broker, server.server.directory)


async def add_host(server: Harness) -> None:
    await administration(server).add_virtual_host(as_sent("other"), as_sent("guest"))


async def remove_host(server: Harness) -> None:
    await administration(server).remove_virtual_host(as_sent("other"))


async def test_a_deleted_user_gets_a_close_over_amqp(server: Harness) -> None:
    await add_user(server, "ada")
    peer = await open_peer(server, user="ada", password="ada-secret")
    await peer.declare("s")
    await peer.store("s", b"x")
    await peer.consume("s", prefetch=1)
    await server.server.directory.remove_user(as_sent("ada"))
    await peer.publish("s", b"too late")
    await peer.expect(m.BasicCancel)
    closed = await peer.expect(m.ConnectionClose)
    assert (closed.code, closed.text) == (320, "CONNECTION_FORCED - user 'ada' is deleted")
    await peer.send(m.ConnectionCloseOk(), 0)
    await peer.ended()
    stream = server.host.find(as_sent("s"))
    await stream.settled()
    assert stream.log.committed_offset == 1


async def test_a_user_deleted_while_its_request_waits(
    server: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    await add_user(server, "ada")
    peer = await open_peer(server, user="ada", password="ada-secret")
    async with server.server.broker.catalog.turn():
        server.start(server.server.directory.remove_user, as_sent("ada"))
        await wait_all_tasks_blocked()
        await peer.send(declare("s"))  # its turn comes after that of the deletion
        await wait_all_tasks_blocked()
    assert (await peer.expect(m.ChannelClose)).code == 403
    assert (await peer.expect(m.ConnectionClose)).code == 320
    await peer.send(m.ConnectionCloseOk(), 0)
    await peer.ended()
    assert "failed" not in caplog.text
    assert not server.host.names()


async def test_connections_of_a_deleted_virtual_host_end_at_once(server: Harness) -> None:
    await add_host(server)
    stream = await server.peer(virtual_host="other")
    await stream.create("s")
    await stream.declare("s")
    amqp = await open_peer(server, virtual_host="other")
    begin = trio.current_time()
    await remove_host(server)
    closed = await amqp.expect(m.ConnectionClose)
    assert (closed.code, closed.text) == (320, "CONNECTION_FORCED - vhost 'other' is deleted")
    await amqp.send(m.ConnectionCloseOk(), 0)
    await amqp.ended()
    await stream.expect(c.MetadataUpdate)
    await stream.ended()
    assert trio.current_time() - begin <= AT_ONCE


async def test_who_deletes_its_own_virtual_host_gets_the_answer(server: Harness) -> None:
    await add_host(server)
    peer = await server.peer(virtual_host="other")
    assert await peer.code(c.Manage, "vhost.delete", (Pair("name", "other"),)) == OK
    await peer.ended()


async def test_a_virtual_host_deleted_and_made_again_while_it_is_entered(server: Harness) -> None:
    await add_host(server)
    peer = server.connect(reads_slowly=True)
    assert await peer.code(c.PeerProperties, ()) == OK
    assert await peer.code(c.SaslHandshake) == OK
    assert await peer.code(c.SaslAuthenticate, "PLAIN", b"\0guest\0guest") == OK
    await peer.expect(c.Tune)
    await peer.send(c.Tune(1 << 20, 0), c.Open(9, "other"))
    await wait_all_tasks_blocked()  # the answer is on its way
    await remove_host(server)
    await add_host(server)
    with trio.fail_after(AT_ONCE):
        await peer.expect(c.OpenResponse)
        await peer.ended()


async def test_a_virtual_host_deleted_while_it_is_entered_over_amqp(server: Harness) -> None:
    await add_host(server)
    peer = connect(server, reads_slowly=True)
    await peer.send_bytes(PROTOCOL_HEADER)
    await peer.expect(m.ConnectionStart)
    await peer.send(m.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US"), 0)
    await peer.expect(m.ConnectionTune)
    await peer.send(m.ConnectionTuneOk(2047, 131_072, 0), 0)
    await peer.send(m.ConnectionOpen("other", "", True), 0)
    await wait_all_tasks_blocked()
    await remove_host(server)
    await add_host(server)
    with trio.fail_after(AT_ONCE):
        await peer.expect(m.ConnectionOpenOk)
        assert (await peer.expect(m.ConnectionClose)).code == 320
        await peer.send(m.ConnectionCloseOk(), 0)
        await peer.ended()


async def test_what_is_taken_away_while_a_message_is_on_its_way_to_many_streams(
    server: Harness,
) -> None:
    names = [f"s{n}" for n in range(300)]
    await server.host.create_all([(as_sent(name), []) for name in names])
    row = ExchangeRow("/", "all", "fanout", False, False, False, "")
    bindings = [Binding("/", "all", name, False, "", NO_HEADERS) for name in names]
    server.host.topology.add(row, bindings)
    await add_user(server, "ada")
    peer = await open_peer(server, user="ada", password="ada-secret")
    (connection,) = server.server._running
    session = connection._chosen._session  # type: ignore[attr-defined]
    publish = m.BasicPublish(0, "all", "", False, False)
    message = Content(1, publish, encode_properties(Properties()), b"x", 1)

    assert not session.publish(message)  # it has only been begun
    await server.server.directory.remove_permission(as_sent("ada"), as_sent("/"))
    await session.go_on(message)
    with trio.fail_after(AT_ONCE):
        assert (await peer.expect(m.ChannelClose)).code == 403
    await peer.send(m.ChannelCloseOk())

    everything = PermissionRow("ada", "/", *[".*"] * 3)
    await server.server.directory.put_permission(everything)
    await peer.open()
    assert not session.publish(message)
    await server.server.directory.remove_user(as_sent("ada"))
    await session.go_on(message)
    assert (await peer.expect(m.ConnectionClose)).code == 320
    await peer.send(m.ConnectionCloseOk(), 0)
    await peer.ended()
    assert not any(server.host.find(as_sent(name)).life.num_published for name in names)
